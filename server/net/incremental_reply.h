/* A reply that is produced and sent in chunks, one per loop iteration, while the connection's unsent output is below
 * its limit.  So a large reply neither blocks the loop nor is held in memory as a whole.  Loop thread only. */
#ifndef TANDEM_SERVER_NET_INCREMENTAL_REPLY_H
#define TANDEM_SERVER_NET_INCREMENTAL_REPLY_H

#include "engine/base/buf.h"

#include <stdbool.h>

struct http_req;

enum { REPLY_CHUNK_BYTES = 16 * 1024 }; /* approximate: takes less than a millisecond to produce */

/* Appends the next chunk to *out, about REPLY_CHUNK_BYTES.  @return false when it was the last. */
typedef bool reply_chunk_fn(void *arg, struct buf *out);

struct incremental_reply {
    struct http_req *req;
    reply_chunk_fn *next;
    void *arg;
};

/* Answers 200.  A single chunk is sent with its Content-Length; more are streamed, for which req->on_drain must call
 * incremental_reply_more.  arg must live until on_close. */
void incremental_reply_begin(struct incremental_reply *, struct http_req *, const char *type, reply_chunk_fn *next,
                             void *arg);
void incremental_reply_more(struct incremental_reply *);

#endif
