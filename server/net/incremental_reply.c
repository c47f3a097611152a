/* Answers made piece by piece (incremental_reply.h). */
#include "server/net/incremental_reply.h"

#include "server/net/http.h"

void incremental_reply_begin(struct incremental_reply *p, struct http_req *req, const char *type, reply_chunk_fn *next,
                             void *arg)
{
    struct buf piece = {0};
    *p = (struct incremental_reply){.req = req, .next = next, .arg = arg};
    if (next(arg, &piece)) {
        http_start(req, 200, type);
        http_write(req, piece.data, piece.len);
        http_want_drain(req);
    } else {
        http_reply(req, 200, type, piece.data, piece.len);
    }
    buf_free(&piece);
}

void incremental_reply_more(struct incremental_reply *p)
{
    struct buf piece = {0};
    bool more = p->next(p->arg, &piece);
    http_write(p->req, piece.data, piece.len);
    if (more)
        http_want_drain(p->req);
    else
        http_end(p->req);
    buf_free(&piece);
}
