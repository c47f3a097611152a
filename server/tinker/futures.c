/* Results that come later: POST /api/v1/retrieve_future holds its call open until there is one. */
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "server/access/client.h"
#include "server/api/app.h"
#include "server/net/http.h"
#include "server/tinker/state.h"

#include <stdlib.h>
#include <string.h>

struct future *future_new(struct tinker *t, const void *owner, uint64_t client, int64_t seq)
{
    struct future *f = mem_zalloc(sizeof *f);
    f->owner = owner;
    f->seq = seq;
    if (handles_add(&t->futures, &f->handle, client, FUTURES_MAX)) return f;
    free(f);
    return NULL;
}

struct future *future_of(const struct tinker *t, const void *owner, int64_t seq)
{
    for (size_t i = 0; i < t->futures.n; i++) {
        struct future *f = (struct future *)t->futures.v[i];
        if (f && f->owner == owner && f->seq == seq) return f;
    }
    return NULL;
}

/* ---- calls that are held ----------------------------------------------------------------------------------------- */

/* @return its exchange; one that was let go before stays as it is. */
static struct http_req *let_go(struct held_call *c)
{
    if (c->link) *c->link = c->next;
    if (c->link && c->next) c->next->link = c->link;
    c->link = NULL;
    return c->req;
}

static void on_close(struct http_req *req)
{
    let_go(req->user);
}

static void reply(struct future *f, struct http_req *req)
{
    f->fetched = clock_now();
    http_reply(req, 200, f->json ? "application/json" : "application/x-protobuf", f->answer.data, f->answer.len);
}

static void reply_try_again(const struct future *f, struct http_req *req)
{
    struct buf b = {0};
    buf_printf(&b, "{\"type\":\"try_again\",\"request_id\":\"%s\",\"queue_state\":\"active\"}", f->handle.id);
    http_reply(req, 200, "application/json", b.data, b.len);
    buf_free(&b);
}

static void reply_gone(struct http_req *req)
{
    http_reply_error(req, 410, "not_found", "`request_id`: there is no such request, or its result is gone");
}

void future_done(struct future *f)
{
    f->done = true;
    while (f->held) reply(f, let_go(f->held));
}

void future_failed(struct future *f, const char *category, const char *msg)
{
    f->json = true;
    buf_clear(&f->answer);
    buf_str(&f->answer, "{\"error\":");
    json_put_string(&f->answer, msg, strlen(msg));
    buf_printf(&f->answer, ",\"category\":\"%s\"}", category);
    future_done(f);
}

void future_free(struct tinker *t, struct future *f)
{
    while (f->held) reply_gone(let_go(f->held));
    if (!f->done && f->cancel) f->cancel(f->work);
    handles_remove(&t->futures, &f->handle);
    buf_free(&f->answer);
    reservation_free(&f->memory);
    free(f);
}

void futures_free(struct tinker *t, const void *owner)
{
    for (size_t i = 0; i < t->futures.n; i++) {
        struct future *f = (struct future *)t->futures.v[i];
        if (f && f->owner == owner) future_free(t, f);
    }
}

void futures_tick(struct tinker *t, uint64_t now)
{
    for (size_t i = 0; i < t->futures.n; i++) {
        struct future *f = (struct future *)t->futures.v[i];
        if (!f) continue;
        for (struct held_call *c = f->held, *next; c; c = next) {
            next = c->next;
            if (now >= c->until || t->stopping) reply_try_again(f, let_go(c));
        }
        if (f->fetched && now - f->fetched > FETCHED_SECONDS * 1000000000ull) future_free(t, f);
    }
}

void api_tinker_retrieve(struct http_req *req)
{
    struct tinker *t = tinker_of(req);
    struct err e = {0};
    const char *id = NULL;
    cJSON *tree = tinker_body(req);
    if (!tree) return;
    struct json_at at = {tree, "", &e};
    json_get_string(&at, "request_id", &id);
    struct future *f = (struct future *)handles_find(&t->futures, id, client_id(req));
    json_free(tree);
    if (e.code) {
        tinker_refuse(req, &e);
    } else if (!f) {
        reply_gone(req);
    } else if (f->done) {
        reply(f, req);
    } else if (t->stopping) {
        reply_try_again(f, req);
    } else {
        struct held_call *c = http_alloc(req, sizeof *c);
        *c = (struct held_call){f->held, &f->held, req, clock_now() + HELD_SECONDS * 1000000000ull};
        if (f->held) f->held->link = &c->next;
        f->held = c;
        req->user = c;
        req->on_close = on_close;
    }
}
