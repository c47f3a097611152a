/* An answer that is made and sent piece by piece, one a turn of the loop, and no further ahead of the client than the
 * connection's output limit: neither the loop's time nor memory grows with it.  Loop thread only. */
#ifndef TANDEM_SERVER_NET_INCREMENTAL_REPLY_H
#define TANDEM_SERVER_NET_INCREMENTAL_REPLY_H

#include "engine/base/buf.h"

#include <stdbool.h>

struct http_req;

enum { REPLY_CHUNK_BYTES = 16 * 1024 }; /* about so much in a piece: less than a millisecond's work */

/* Appends the next REPLY_CHUNK_BYTES or so.  False: that was the last. */
typedef bool reply_chunk_fn(void *arg, struct buf *out);

struct incremental_reply {
    struct http_req *req;
    reply_chunk_fn *next;
    void *arg;
};

/* Answers 200.  One piece is a whole answer with its length; more are a stream, and req->on_drain then has to call
 * incremental_reply_more.  arg must live until on_close. */
void incremental_reply_begin(struct incremental_reply *, struct http_req *, const char *type, reply_chunk_fn *next,
                             void *arg);
void incremental_reply_more(struct incremental_reply *);

#endif
