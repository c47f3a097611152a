/* Exchanges without a connection (local.h).
 *
 * A struct conn that no socket belongs to: http.c collects the answer in conn.out without a head, and sock_flush_all
 * comes here with what handlers have marked, instead of sending. */
#include "server/net/local.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "server/net/conn.h"

struct local {
    struct conn conn; /* first: conn_free frees both */
    local_done_fn *done;
    void *arg;
};

struct local *local_start(struct http_server *s, const struct local_request *r, local_done_fn *done, void *arg)
{
    struct local *l = mem_zalloc(sizeof *l);
    struct conn *c = &l->conn;
    l->done = done;
    l->arg = arg;
    c->server = s;
    c->local = true;
    c->state = CONN_RUN;
    c->own_id = true;
    c->body = *r->body;
    c->held = r->held;
    *r->body = (struct buf){0};
    s->buffered += c->body.len;
    c->req = (struct http_req){.method = HTTP_M_POST,
                               .path = r->path,
                               .param = "",
                               .query = "",
                               .body = c->body.data ? c->body.data : "",
                               .body_len = c->body.len,
                               .received = clock_now(),
                               .app = s->config.app,
                               .admission = r->admission,
                               .peer = r->client,
                               .background = true};
    request_id_make(c->req.id);
    if (r->model && s->config.dispatch)
        s->config.dispatch(&c->req, r->handler, r->model);
    else
        r->handler(&c->req);
    return l;
}

static void close_exchange(struct conn *c)
{
    c->state = CONN_CLOSED;
    if (c->req.on_close) c->req.on_close(&c->req);
    if (c->req.model) c->server->config.release_model(c->req.app, c->req.model);
    c->req.model = NULL;
}

void local_flushed(struct conn *c)
{
    struct local *l = (struct local *)c;
    if (c->answer == ANSWER_DONE || c->aborted) {
        const struct local_answer answer = {.status = c->aborted ? 0 : c->status,
                                            .body = c->out.data ? c->out.data : "",
                                            .len = c->out.len,
                                            .request_id = c->req.id};
        close_exchange(c);
        l->done(l->arg, &answer);
        conn_free(c);
    } else if (c->want_drain) {
        c->want_drain = false;
        if (c->req.on_drain) c->req.on_drain(&c->req);
    }
}

void local_cancel(struct local *l)
{
    sock_forget(&l->conn);
    close_exchange(&l->conn);
    conn_free(&l->conn);
}
