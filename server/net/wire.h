/* The byte gate in front of llhttp: a strict scan of what frames a request (wire.c). */
#ifndef TANDEM_SERVER_NET_WIRE_H
#define TANDEM_SERVER_NET_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HTTP_MAX_HEADERS = 100 };

enum wire_result { WIRE_MORE, WIRE_DONE, WIRE_BAD };

struct wire {
    int state;        /* private to wire.c */
    int lines;        /* header lines so far */
    uint64_t framing; /* framing bytes: the head, or chunk extensions and trailers */
    uint64_t limit;   /* of framing */
    uint64_t chunk;   /* bytes left in this chunk */
    uint64_t room;    /* body bytes that may still come */
    int digits;       /* of the chunk size */
    int spaces;       /* in the request line */
    bool hidden;      /* the bytes just scanned are a chunk extension, which is not passed to llhttp */
    int status;       /* after WIRE_BAD: what to answer, and why */
    char fault[96];
};

void wire_begin_head(struct wire *, uint64_t limit);
void wire_begin_chunks(struct wire *, uint64_t limit, uint64_t body_limit);
/* Scans up to n bytes.  *used: how many were consumed; after WIRE_MORE possibly fewer than n, or none (w->hidden has
 * then changed); after WIRE_DONE the end of the head or body. */
enum wire_result wire_scan(struct wire *, const char *p, size_t n, size_t *used);

#endif
