/* Incremental parser of multipart/form-data (RFC 7578, RFC 2046 5.1); buffers none of a part's content.  Pure; any one
 * thread. */
#ifndef TANDEM_SERVER_NET_MULTIPART_H
#define TANDEM_SERVER_NET_MULTIPART_H

#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>

enum { MULTIPART_BOUNDARY = 70, MULTIPART_HEADERS = 4096, MULTIPART_NAME = 255, MULTIPART_PARTS = 32 };

struct multipart_part {
    char name[MULTIPART_NAME + 1];
    char filename[MULTIPART_NAME + 1]; /* last component of the name sent; "": none */
    bool has_filename;
};

struct multipart_events {
    /* A part begins, has bytes (any number of calls), ends.  @return false to stop; multipart_feed then returns the
     * error that the callback has set. */
    bool (*begin)(void *arg, const struct multipart_part *, struct err *);
    bool (*data)(void *arg, const char *p, size_t n, struct err *);
    bool (*end)(void *arg, struct err *);
};

struct multipart {
    const struct multipart_events *on;
    void *arg;
    char mark[MULTIPART_BOUNDARY + 5]; /* "\r\n--boundary" */
    size_t mark_len, matched;          /* matched: bytes of mark at the end of the input so far */
    int state, parts;
    char head[MULTIPART_HEADERS]; /* of the part whose headers are being received */
    size_t head_len;
};

/* From the Content-Type header: ERR_INVALID when it is not multipart/form-data with a boundary. */
int multipart_init(struct multipart *, const char *content_type, const struct multipart_events *, void *arg,
                   struct err *e);
/* @return 0, or ERR_INVALID or a callback's error, after which the parser must not be fed again. */
int multipart_feed(struct multipart *, const char *p, size_t n, struct err *e);
/* The body is complete: ERR_INVALID when it ends too early. */
int multipart_end(struct multipart *, struct err *e);

#endif
