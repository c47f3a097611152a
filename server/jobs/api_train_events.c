/* GET /train/{id}/events: a list, or a stream that ends after the job's last event.
 *
 * A stream reads the store from the last id sent, sends the events found, and waits for jobs_notify.  So it sends only
 * committed events, a client that reconnects with Last-Event-ID misses and repeats nothing, and a draining daemon can
 * simply end its streams. */
#include "server/jobs/api_train.h"

#include "engine/base/mem.h"
#include "server/access/admission.h"
#include "server/jobs/jobs.h"
#include "server/jobs/routes.h"
#include "server/net/http.h"
#include "server/net/sse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 200, LIST_MAX = 10000, LIST_DEFAULT = 1000, STREAMS_MAX = 256 };

struct stream {
    struct store_work work; /* first: one read of the store, sent repeatedly */
    struct app *app;
    struct http_req *req; /* NULL once closed */
    struct sse sse;
    struct job_watch watch;
    int64_t seq;
    int64_t last; /* id of the last event that was sent */
    int64_t next; /* id of the last event in out */
    struct buf out;
    int n;           /* events in out */
    bool over, gone; /* the job's state is final (or paused); the job was deleted */
    bool reading, again, slow;
    bool ending; /* the daemon drains: ends after the stored events, and the client reconnects */
};

static void stream_free(struct stream *s)
{
    jobs_unwatch(&s->watch);
    buf_free(&s->out);
    s->app->event_streams--;
    free(s);
}

static void read_more(struct stream *s)
{
    if (s->reading) {
        s->again = true;
        return;
    }
    if (s->slow) return;
    s->reading = true;
    s->again = false;
    store_send(s->app->store, &s->work);
}

/* Store thread. */
static int on_read(struct store_work *w, struct db *db)
{
    struct stream *s = (struct stream *)w;
    buf_clear(&s->out);
    s->next = s->last; /* only the loop updates `last`: a repeated read starts at the same event */
    s->over = s->gone = false;
    sqlite3_stmt *q =
        db_query(db, "SELECT status IN ('succeeded', 'failed', 'cancelled') FROM jobs WHERE seq = ?", "i", s->seq);
    s->gone = !db_step(db, q);
    if (!s->gone) {
        s->over = db_int(q, 0);
        db_done(q);
    }
    s->n = job_put_events(db, &s->out, s->seq, s->last, BATCH, true, &s->next);
    return 0;
}

static void on_slow(struct http_req *req)
{
    struct stream *s = req->user;
    s->slow = false;
    read_more(s);
}

static void on_changed(void *arg)
{
    read_more(arg);
}

static void end_stream(struct stream *s)
{
    sse_stop(&s->sse);
    http_end(s->req);
}

static void on_ending(void *arg)
{
    struct stream *s = arg;
    s->ending = true;
    if (s->slow)
        end_stream(s);
    else
        read_more(s);
}

/* Loop thread. */
static void on_done(struct store_work *w)
{
    struct stream *s = (struct stream *)w;
    s->reading = false;
    if (!s->req) {
        stream_free(s);
        return;
    }
    /* events read in a transaction that failed may not be committed */
    if (!w->e.code) s->last = s->next;
    if (!w->e.code && s->out.len) s->slow = !sse_write(&s->sse, s->out.data, s->out.len);
    if (w->e.code || s->gone || (s->over && s->n < BATCH) || (s->ending && (s->slow || s->n < BATCH))) {
        end_stream(s);
    } else if (s->n == BATCH || s->again) {
        read_more(s);
    }
}

static void on_close(struct http_req *req)
{
    struct stream *s = req->user;
    s->req = NULL;
    sse_stop(&s->sse);
    jobs_unwatch(&s->watch);
    if (!s->reading) stream_free(s);
}

static bool wants_stream(const struct http_req *req)
{
    char text[8];
    const char *accept = http_header(req, "Accept");
    if (query_get(req->query, "stream", text, sizeof text)) return strcmp(text, "0") != 0 && strcmp(text, "false") != 0;
    return accept && strstr(accept, "text/event-stream");
}

/* The id to start after: from Last-Event-ID, which browsers send when they reconnect, or ?after=. */
static bool first_id(struct store_request *c, int64_t *after)
{
    struct err e = {0};
    if (c->idempotency_key) { /* holds Last-Event-ID here */
        char *end, *text = c->idempotency_key;
        *after = strtoll(text, &end, 10);
        if (end != text && !*end && *after >= 0) return true;
        store_request_fail(c, 422, "validation", NULL, "Last-Event-ID: expected the id of an event");
        return false;
    }
    if (query_int(c->query, "after", 0, INT64_MAX, 0, after, &e)) return true;
    store_request_fail(c, 422, "validation", NULL, "%s", e.msg);
    return false;
}

/* Store thread: checks that the job exists and the start id is well-formed. */
static void open_stream(struct store_request *c, struct db *db)
{
    struct job_key k;
    struct stream *s = c->user;
    if (!job_find(db, c->param, &k))
        store_request_fail(c, 404, "not_found", NULL, "there is no job %.80s", c->param);
    else if (first_id(c, &s->last))
        s->seq = k.seq;
}

static void after_open(struct store_request *c)
{
    struct stream *s = c->user;
    struct app *app = s->app;
    if (!c->req || c->status >= 400) {
        stream_free(s);
        return;
    }
    if (c->req->method == HTTP_M_HEAD) { /* a stream would occupy the connection until the job ends */
        c->type = "text/event-stream";
        stream_free(s);
        return;
    }
    c->answered = true;
    s->req = c->req;
    s->req->user = s;
    s->req->on_close = on_close;
    s->req->on_drain = on_slow;
    s->work = (struct store_work){.run = on_read, .done = on_done};
    s->watch = (struct job_watch){.seq = s->seq, .fn = on_changed, .end = on_ending, .arg = s};
    sse_start(&s->sse, app->sse, s->req);
    s->ending = app->state == SERVING_DRAINING;
    jobs_watch(app->jobs, &s->watch);
    read_more(s);
}

static void list(struct store_request *c, struct db *db)
{
    struct err e = {0};
    struct job_key k;
    int64_t limit, after, last = 0;
    if (!job_find(db, c->param, &k)) {
        store_request_fail(c, 404, "not_found", NULL, "there is no job %.80s", c->param);
        return;
    }
    if (!query_int(c->query, "limit", 1, LIST_MAX, LIST_DEFAULT, &limit, &e)) {
        store_request_fail(c, 422, "validation", NULL, "%s", e.msg);
        return;
    }
    if (!first_id(c, &after)) return;
    buf_str(&c->out, "{\"object\":\"list\",\"data\":[");
    int n = job_put_events(db, &c->out, k.seq, after, (int)limit, false, &last);
    buf_printf(&c->out, "],\"has_more\":%s}", n == limit ? "true" : "false");
}

void api_train_events(struct http_req *req)
{
    struct app *app = req->app;
    const char *last = http_header(req, "Last-Event-ID");
    bool stream = wants_stream(req);
    if (stream && app->state == SERVING_DRAINING && train_refuses(req, false)) return;
    if (stream && app->event_streams >= STREAMS_MAX) {
        http_set_header(req, "Retry-After", "5");
        store_request_reply_error(req, false, 429, "overloaded", "%d event streams are open already", STREAMS_MAX);
        return;
    }
    app->event_streams += stream;
    struct store_request *c = store_request_new(req, false, stream ? open_stream : list);
    free(c->idempotency_key);
    c->idempotency_key = last ? mem_strdup(last) : NULL;
    if (stream) {
        struct stream *s = mem_zalloc(sizeof *s);
        s->app = app;
        c->user = s;
        c->after = after_open;
    }
    store_request_send(c);
}
