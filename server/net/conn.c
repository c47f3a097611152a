/* The life of a connection: reading a request, handing it to its handler, and what comes after the answer.  Loop
 * thread.
 *
 *      IDLE -> HEAD -> [BODY ->] RUN -> IDLE ...
 *                                RUN -> LINGER -> CLOSED, where the connection cannot go on
 *
 * A state machine without a clock or a socket: events arrive through the conn_* functions, effects go out through the
 * sock_* functions (conn.h).  Invariants:
 *   - One exchange at a time.  Later requests wait as bytes in `in`, at most PIPELINE_MAX; beyond that, reading stops,
 *     and a client that disconnects is then noticed only on a write.
 *   - A handler's on_close and on_drain never run inside a call of http.h: answers take effect in conn_flushed.
 *   - After a refusal the bytes that follow may not be a request, so the connection ends.  It lingers first: closing
 *     with unread bytes makes the kernel send a reset, which can overtake the answer.
 *   - EOF from a client with an unanswered request counts as a disconnect.  A half-close cannot be distinguished from
 *     a full close, and generating without a reader costs more than failing the rare client that half-closes. */
#include "server/net/conn.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

enum {
    PIPELINE_MAX = 64 * 1024,
    LINGER_MS = 1000,
    LINGER_BYTES = 32 << 20,
    PEER_CHECK_MS = 1000,
    WIND_DOWN_MS = 1000,
    REFUSED_MS = 1000,  /* a connection beyond the limit waits this long for its request, which may be a health probe */
    KEEP_BUFFER = 4096, /* an idle connection keeps buffers of at most this size */
    GATE_BYTES = 16384, /* a shorter body is read even if it is refused, so that the connection can be reused */
    OPTIONS_BODY = 4096, /* limit of a body that is read and dropped, without authentication */
};

struct conn *conn_new(struct http_server *server)
{
    struct conn *c = mem_zalloc(sizeof *c);
    c->server = server;
    c->next = server->conns;
    if (c->next) c->next->prev = c;
    server->conns = c;
    return c;
}

static void body_free(struct conn *c)
{
    c->server->buffered -= c->body.len;
    buf_free(&c->body);
    reservation_free(&c->held);
}

static void release_key(struct conn *c)
{
    if (c->req.key) c->server->config.release_key(c->req.key);
    c->req.key = NULL;
}

void conn_free(struct conn *c)
{
    if (c->next) c->next->prev = c->prev;
    if (c->prev) c->prev->next = c->next;
    if (c->server->conns == c) c->server->conns = c->next;
    http_arena_free(c);
    release_key(c);
    buf_free(&c->in);
    buf_free(&c->head);
    body_free(c);
    buf_free(&c->extra);
    buf_free(&c->out);
    buf_free(&c->sending);
    free(c);
}

static void trim(struct buf *b)
{
    buf_clear(b);
    if (b->cap > KEEP_BUFFER) buf_free(b);
}

static size_t unread(const struct conn *c)
{
    return c->in.len - c->in_at;
}

size_t conn_bytes_wanted(const struct conn *c)
{
    if (c->state == CONN_CLOSED || c->eof || (c->state == CONN_BODY && c->paused)) return 0;
    if (c->state != CONN_RUN || !c->keep) return PIPELINE_MAX; /* used at once, or discarded */
    return unread(c) < PIPELINE_MAX ? PIPELINE_MAX - unread(c) : 0;
}

/* ---- the end of an exchange ------------------------------------------------------------------------------------ */

static void request_reset(struct conn *c)
{
    if (c->req.model) c->server->config.release_model(c->req.app, c->req.model);
    http_arena_free(c);
    trim(&c->head);
    trim(&c->extra);
    body_free(c);
    release_key(c);
    c->req = (struct http_req){.method = HTTP_M_OTHER,
                               .path = "",
                               .param = "",
                               .query = "",
                               .body = "",
                               .app = c->server->config.app,
                               .admission = c->server->config.admission,
                               .peer = c->peer};
    c->match = (struct route_match){0};
    c->n_headers = 0;
    c->length = 0;
    c->body_seen = 0;
    c->streamed = c->paused = false;
    c->chunked = c->expects_continue = c->http10 = c->message_complete = c->crowded = false;
    c->starved.code = 0;
    c->answer = ANSWER_NONE;
    c->status = 0;
    c->keep = c->head_only = c->bodyless = c->stream_chunked = c->want_drain = c->aborted = false;
    c->watch = WATCH_NOTHING;
}

/* Reports the end of the exchange to its observers; the request is invalid afterwards. */
static void exchange_finish(struct conn *c)
{
    struct http_server *s = c->server;
    int status = c->answer == ANSWER_NONE ? 0 : c->status;
    if (s->on_done && !c->refused) s->on_done(s->config.app, &c->req, status, clock_now() - c->req.received);
    if (c->req.on_close) c->req.on_close(&c->req);
    request_reset(c);
}

void conn_drop(struct conn *c)
{
    if (c->state == CONN_CLOSED) return;
    bool running = c->state == CONN_RUN || (c->state == CONN_BODY && c->streamed);
    if (c->state == CONN_IDLE) sock_close_notify(c);
    c->state = CONN_CLOSED;
    if (running) exchange_finish(c);
    sock_close(c);
}

static void conn_linger(struct conn *c)
{
    c->state = CONN_LINGER; /* set first: the exchange is over, and conn_drop must not end it again */
    if (c->eof) {
        conn_drop(c);
        return;
    }
    buf_free(&c->in);
    c->in_at = c->scanned = 0;
    sock_shutdown(c);
    sock_timer(c, LINGER_MS);
    sock_read(c, true);
}

/* Answers with an error and ends the connection. */
static void conn_refuse(struct conn *c, const struct refusal *why)
{
    if (!c->req.received) c->req.received = clock_now();
    c->state = CONN_RUN;
    c->keep = false;
    sock_timer(c, 0);
    http_answer_refusal(c, why);
}

/* Sets the timer that detects a client that does not read (one that reads slowly is fine) or, while reading is stopped,
 * a client that disconnected. */
static void watch_client(struct conn *c)
{
    size_t queued = sock_queued(c);
    enum conn_watch watch = queued > 0                             ? WATCH_WRITES
                            : conn_bytes_wanted(c) == 0 && !c->eof ? WATCH_PEER
                                                                   : WATCH_NOTHING;
    if (watch == c->watch) return;
    c->watch = watch;
    c->taken_mark = sock_acked(c);
    sock_timer(c, watch == WATCH_WRITES ? c->server->config.write_timeout_ms : watch == WATCH_PEER ? PEER_CHECK_MS : 0);
}

/* ---- reading ----------------------------------------------------------------------------------------------------
 * Each step returns whether another one may be possible with the buffered bytes. */

static bool begin_head(struct conn *c)
{
    if (!unread(c)) return false;
    c->state = CONN_HEAD;
    c->scanned = 0;
    wire_begin_head(&c->wire, c->server->config.max_header_bytes);
    if (!c->refused) sock_timer(c, c->server->config.header_timeout_ms);
    return true;
}

static void refuse_crowd(struct conn *c)
{
    struct refusal why;
    c->server->stats.rejected++;
    refuse(&why, 503, "too many connections");
    conn_refuse(c, &why);
}

/* Beyond the connection limit only probes are answered: a full server is still alive. */
static bool crowd_refuses(struct conn *c)
{
    if (!c->refused) return false;
    c->keep = false;
    if (c->match.route && c->match.route->role == ROUTE_OPEN && !c->chunked && !c->length) return false;
    refuse_crowd(c);
    return true;
}

static void refuse_path(const struct conn *c, struct refusal *why)
{
    const struct http_server_config *config = &c->server->config;
    char near[128];
    if (route_near(config->routes, config->n_routes, c->req.path, near, sizeof near))
        refuse(why, 404, "%.100s: no such path; did you mean %.100s?", c->req.path, near);
    else
        refuse(why, 404, "%.200s: no such path", c->req.path);
}

/* Large allocations for a body are reserved one by one (reservation.h).  Small allocations cannot fail individually
 * (mem.h), so no request starts while memory is short. */
static void dispatch(struct conn *c)
{
    struct refusal why;
    c->state = CONN_RUN;
    sock_timer(c, 0);
    if (c->body.data) c->req.body = c->body.data;
    c->req.body_len = c->body.len;
    if (c->body.len && mem_is_short()) {
        c->server->stats.no_memory++;
        refuse(&why, 503, "no memory for the work on a body of %zu bytes; try again", c->body.len);
        http_answer_refusal(c, &why);
        return;
    }
    if (c->match.route) {
        const struct http_route *route = c->match.route;
        if (route->model && c->server->config.dispatch)
            c->server->config.dispatch(&c->req, route->handler, route->model);
        else
            route->handler(&c->req);
        return;
    }
    if (c->match.status == 204) {
        http_answer_options(c);
        return;
    }
    if (c->match.status == 405) {
        refuse(&why, 405, "%.150s: method not allowed; allowed: %s", c->req.path, c->match.allow);
    } else {
        refuse_path(c, &why);
    }
    http_answer_refusal(c, &why); /* the request was read in full, so the connection can be reused */
}

/* Asks the route's gate before a large body is read.  @return true when the request was refused. */
static bool gate_refuses(struct conn *c)
{
    const struct http_route *route = c->match.route;
    bool keep = c->keep;
    if (!route || !route->gate || (!c->chunked && !c->expects_continue && c->length <= GATE_BYTES)) return false;
    c->state = CONN_RUN; /* it may answer */
    c->keep = false;
    if (route->gate(&c->req, c->chunked ? 0 : c->length)) {
        sock_timer(c, 0);
        return true;
    }
    c->state = CONN_HEAD;
    c->keep = keep;
    return false;
}

/* The head is valid: decides whether and how the body is read. */
static void begin_body(struct conn *c)
{
    const struct http_server_config *config = &c->server->config;
    const struct http_route *route = c->match.route;
    c->body_limit = route && route->body_limit                  ? route->body_limit
                    : !route && c->req.method == HTTP_M_OPTIONS ? OPTIONS_BODY
                                                                : config->max_body_bytes;
    if (!c->chunked && !c->length) {
        dispatch(c);
        return;
    }
    if (!c->chunked && c->length > c->body_limit) {
        struct refusal why;
        refuse(&why, 413, "the body of %llu bytes is larger than the limit of %zu bytes", (unsigned long long)c->length,
               c->body_limit);
        conn_refuse(c, &why);
        return;
    }
    if (c->expects_continue && (c->match.status == 404 || c->match.status == 405)) {
        c->keep = false; /* the client may or may not send its body now, so the end of the request is unknown */
        dispatch(c);
        return;
    }
    if (gate_refuses(c)) return;
    c->state = CONN_BODY;
    if (c->chunked) wire_begin_chunks(&c->wire, config->max_header_bytes, c->body_limit);
    sock_timer(c, config->body_timeout_ms);
    if (route && route->begin) {
        c->streamed = true;
        route->begin(&c->req);
        if (c->state != CONN_BODY) return;
    }
    if (c->expects_continue && !unread(c)) {
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        sock_write(c, go_on, sizeof go_on - 1);
    }
}

/* The body of a request that is not permitted is not read, so the connection ends unless there is no body. */
static bool permitted(struct conn *c)
{
    const struct http_server_config *config = &c->server->config;
    bool keep = c->keep;
    if (!config->permit) return true;
    c->state = CONN_RUN; /* it may answer */
    if (c->chunked || c->length) c->keep = false;
    if (config->permit(config->permit_arg, &c->req)) {
        CHECK(c->answer == ANSWER_NONE);
        c->state = CONN_HEAD;
        c->keep = keep;
        return true;
    }
    sock_timer(c, 0);
    return false;
}

static bool read_head(struct conn *c)
{
    size_t used;
    enum wire_result result = wire_scan(&c->wire, c->in.data + c->in_at + c->scanned, unread(c) - c->scanned, &used);
    struct refusal why;
    c->scanned += used;
    if (result == WIRE_BAD) {
        refuse(&why, c->wire.status, "malformed request: %s", c->wire.fault);
        conn_refuse(c, &why);
    }
    if (result != WIRE_DONE) return false;
    buf_clear(&c->head);
    buf_append(&c->head, c->in.data + c->in_at, c->scanned);
    c->in_at += c->scanned;
    c->scanned = 0;
    c->req.received = clock_now();
    c->server->stats.requests++;
    if (!head_parse(c, &why)) {
        conn_refuse(c, &why);
        return false;
    }
    http_name_request(c, true);
    route_find(c->server->config.routes, c->server->config.n_routes, c->req.method, c->req.path, &c->match);
    c->req.route = c->match.route;
    c->req.param = c->match.param;
    if (crowd_refuses(c) || !permitted(c)) return false;
    begin_body(c);
    return true;
}

static bool read_body(struct conn *c)
{
    size_t n = unread(c);
    enum wire_result result = WIRE_MORE;
    struct refusal why;
    if (!n || c->paused) return false;
    const char *p = c->in.data + c->in_at;
    if (c->chunked) {
        result = wire_scan(&c->wire, p, n, &n);
    } else {
        uint64_t left = c->length - c->body_seen;
        if (left <= n) {
            result = WIRE_DONE;
            n = (size_t)left;
        }
    }
    c->in_at += n;
    /* llhttp gets the bytes before the one that the gate refuses, so that the error reported does not depend on how the
     * input was split into reads. */
    if (result == WIRE_BAD) n--;
    llhttp_errno_t code = c->chunked && c->wire.hidden ? HPE_OK : llhttp_execute(&c->parser, p, n);
    if (c->state != CONN_BODY) return false; /* http_body_stop */
    if (c->crowded) {
        refuse(&why, 503, "the bodies of all requests together are larger than the limit of %zu bytes; try again",
               c->server->config.max_buffered_bytes);
    } else if (c->starved.code) {
        c->server->stats.no_memory++;
        refuse(&why, reservation_status(&c->starved, 503), "%.150s, with %llu bytes so far%s", c->starved.msg,
               (unsigned long long)c->body_seen, c->starved.code == ERR_FULL ? "; try again" : "");
    } else if (code != HPE_OK) {
        const char *reason = llhttp_get_error_reason(&c->parser);
        refuse(&why, 400, "malformed body: %s", reason ? reason : "unreadable");
    } else if (result == WIRE_BAD) {
        refuse(&why, c->wire.status, "malformed body: %s", c->wire.fault);
    } else if (c->message_complete != (result == WIRE_DONE)) {
        /* Gate and llhttp disagree on where the body ends: possibly request smuggling. */
        refuse(&why, 400, "malformed body: its end is ambiguous");
    } else {
        if (c->message_complete) dispatch(c);
        return true;
    }
    conn_refuse(c, &why);
    return false;
}

/* Processes the buffered bytes as far as possible. */
static void conn_pump(struct conn *c)
{
    for (bool more = true; more;) {
        switch (c->state) {
        case CONN_IDLE: more = begin_head(c); break;
        case CONN_HEAD: more = read_head(c); break;
        case CONN_BODY: more = read_body(c); break;
        default: more = false;
        }
    }
    if (c->state == CONN_CLOSED) return;
    if (c->eof && !(c->state == CONN_RUN && c->answer == ANSWER_DONE)) {
        conn_drop(c);
        return;
    }
    size_t left = unread(c);
    if (c->in_at && left) memmove(c->in.data, c->in.data + c->in_at, left);
    c->in.len = left;
    c->in_at = 0;
    if (!left) trim(&c->in);
    sock_read(c, conn_bytes_wanted(c) > 0);
    if (c->state == CONN_RUN && !c->reading) watch_client(c); /* otherwise conn_flushed does, when output is queued */
}

/* ---- events ---------------------------------------------------------------------------------------------------- */

void conn_begin(struct conn *c)
{
    request_reset(c);
    sock_read(c, true);
    /* A client that connects is about to send a request, so the first one gets a shorter timeout than later ones. */
    int ms = c->server->draining ? WIND_DOWN_MS : c->server->config.header_timeout_ms;
    sock_timer(c, c->refused ? REFUSED_MS : ms);
}

/* Not enough memory to read a request: a connection that would begin one is closed with a constant, preallocated
 * answer. */
static void refuse_for_memory(struct conn *c)
{
    static const char sorry[] =
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        "Connection: close\r\nContent-Length: 70\r\n\r\n"
        "{\"error\":\"no memory for the request; try again\",\"error_type\":\"memory\"}";
    _Static_assert(sizeof "{\"error\":\"no memory for the request; try again\",\"error_type\":\"memory\"}" - 1 == 70,
                   "as it says");
    c->server->stats.no_memory++;
    sock_send_and_close(c, sorry, sizeof sorry - 1);
    conn_drop(c);
}

void conn_input(struct conn *c, const char *p, size_t n)
{
    c->server->stats.bytes_in += n;
    if (c->state == CONN_CLOSED || (c->state == CONN_RUN && !c->keep)) return;
    if (c->state == CONN_LINGER) {
        c->discarded += n;
        if (c->discarded > LINGER_BYTES) conn_drop(c);
        return;
    }
    if (c->state == CONN_IDLE && !mem_available(CONN_ROOM)) {
        refuse_for_memory(c);
        return;
    }
    buf_append(&c->in, p, n);
    if (c->state == CONN_BODY && c->streamed && !c->paused) sock_timer(c, c->server->config.body_timeout_ms);
    conn_pump(c);
}

void conn_eof(struct conn *c)
{
    c->eof = true;
    sock_read(c, false);
    /* A complete answer is still sent: the client may have closed only its sending side. */
    if (c->state == CONN_RUN && c->answer == ANSWER_DONE) return;
    conn_drop(c);
}

void conn_lost(struct conn *c)
{
    c->eof = true;
    conn_drop(c);
}

static void exchange_end(struct conn *c)
{
    bool keep = c->keep && !c->server->winding_down;
    exchange_finish(c);
    if (!keep) {
        conn_linger(c);
        return;
    }
    c->state = CONN_IDLE;
    c->idle_since = clock_now();
    sock_timer(c, c->server->config.idle_timeout_ms);
    conn_pump(c);
}

/* No timeout applies while the body is paused: the sink is slow, not the client. */
void conn_body_pause(struct conn *c, bool pause)
{
    if (c->state != CONN_BODY || c->paused == pause) return;
    c->paused = pause;
    sock_timer(c, pause ? 0 : c->server->config.body_timeout_ms);
    if (pause)
        sock_read(c, false);
    else
        sock_wake(c); /* conn_flushed continues with it */
}

bool conn_body_stop(struct conn *c)
{
    if (c->state != CONN_BODY) return false;
    c->state = CONN_RUN;
    c->keep = false;
    sock_timer(c, 0);
    return true;
}

void conn_flushed(struct conn *c)
{
    if (c->state == CONN_BODY && c->streamed) conn_pump(c);
    if (c->state != CONN_RUN) return;
    size_t queued = sock_queued(c);
    if (c->aborted) {
        conn_drop(c);
        return;
    }
    if (c->answer == ANSWER_DONE && queued == 0) {
        exchange_end(c);
        return;
    }
    watch_client(c);
    if (c->want_drain && queued <= c->server->config.low_water) {
        c->want_drain = false;
        if (c->req.on_drain) c->req.on_drain(&c->req);
    }
}

static void watch_timeout(struct conn *c)
{
    uint64_t taken = sock_acked(c);
    if (c->watch == WATCH_WRITES ? taken == c->taken_mark : sock_peer_closed(c)) {
        conn_drop(c);
        return;
    }
    c->watch = WATCH_NOTHING; /* restart the measurement */
    watch_client(c);
}

void conn_timeout(struct conn *c)
{
    struct refusal why;
    if (c->refused && (c->state == CONN_IDLE || c->state == CONN_HEAD)) {
        refuse_crowd(c);
        return;
    }
    switch (c->state) {
    case CONN_HEAD:
        refuse(&why, 408, "the request head was not complete within %d ms", c->server->config.header_timeout_ms);
        conn_refuse(c, &why);
        break;
    case CONN_BODY:
        refuse(&why, 408, "the request body was not complete within %d ms", c->server->config.body_timeout_ms);
        conn_refuse(c, &why);
        break;
    case CONN_RUN: watch_timeout(c); break;
    default: conn_drop(c);
    }
}

/* Not closed at once: a request may be in transit, and its client would see a reset. */
void conn_wind_down(struct conn *c)
{
    if (c->state == CONN_IDLE) sock_timer(c, WIND_DOWN_MS);
}

void conn_drain(struct conn *c)
{
    if (c->state == CONN_IDLE && !c->idle_since) sock_timer(c, WIND_DOWN_MS); /* it has just connected, to send one */
}
