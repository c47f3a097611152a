/* Replies produced in chunks (incremental_reply.h). */
#include "server/net/incremental_reply.h"

#include "server/net/http.h"

void incremental_reply_begin(struct incremental_reply *p, struct http_req *req, const char *type, reply_chunk_fn *next,
                             void *arg)
{
    struct buf chunk = {0};
    *p = (struct incremental_reply){.req = req, .next = next, .arg = arg};
    if (next(arg, &chunk)) {
        http_start(req, 200, type);
        http_write(req, chunk.data, chunk.len);
        http_want_drain(req);
    } else {
        http_reply(req, 200, type, chunk.data, chunk.len);
    }
    buf_free(&chunk);
}

void incremental_reply_more(struct incremental_reply *p)
{
    struct buf chunk = {0};
    bool more = p->next(p->arg, &chunk);
    http_write(p->req, chunk.data, chunk.len);
    if (more)
        http_want_drain(p->req);
    else
        http_end(p->req);
    buf_free(&chunk);
}
