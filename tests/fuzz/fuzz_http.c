/* Fuzzes the HTTP connection without a socket: this file stands in for server/net/sock.c (see server/net/conn.h).
 *
 * The input is eight bytes of seed and then what a client sends.  The seed drives everything else: how the bytes are
 * cut, how much of the answer the client takes and when, when the handlers answer, time-outs, the client's leaving.
 * Checked, besides what the sanitizers see:
 *   - every handler that was called gets its on_close, once, and nothing touches a connection after sock_close;
 *   - the answers are well-formed HTTP (llhttp reads them back);
 *   - buffered input is bounded;
 *   - the answers do not depend on how the bytes were cut. */
#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "server/net/conn.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static struct {
    uint64_t random;
    bool steady; /* no chance events: the same bytes must give the same answers */
    bool timer, closed, shut, wake;
    int started, ended, in_call;
    struct http_req *waiting; /* for the driver to answer it */
    struct http_req *paused;  /* its body is, until the driver lets it go on */
    struct buf answers;       /* what the client has received */
} world;

static uint32_t chance(uint32_t n)
{
    world.random = world.random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(world.random >> 33) % n;
}

/* ---- the socket ------------------------------------------------------------------------------------------------ */

void sock_write(struct conn *c, const void *p, size_t n)
{
    CHECK(!world.closed && !world.shut);
    buf_append(&c->out, p, n);
    c->queued_total += n;
    world.wake = true;
}

void sock_wake(struct conn *c)
{
    (void)c;
    world.wake = true;
}

size_t sock_queued(const struct conn *c)
{
    return c->out.len;
}

uint64_t sock_acked(const struct conn *c)
{
    return c->queued_total - c->out.len;
}

void sock_send_and_close(struct conn *c, const char *text, size_t n)
{
    sock_write(c, text, n);
}

bool sock_peer_closed(const struct conn *c)
{
    CHECK(!c->reading);
    return chance(2);
}

void sock_read(struct conn *c, bool on)
{
    c->reading = on;
}

void sock_timer(struct conn *c, int ms)
{
    (void)c;
    world.timer = ms > 0;
}

void sock_shutdown(struct conn *c)
{
    CHECK(!world.closed && !world.shut && c->out.len == 0);
    world.shut = true;
}

void sock_close_notify(struct conn *c)
{
    (void)c;
    CHECK(!world.closed && !world.shut);
}

void sock_close(struct conn *c)
{
    (void)c;
    CHECK(!world.closed);
    world.closed = true;
}

/* ---- the handlers ---------------------------------------------------------------------------------------------- */

static void on_close(struct http_req *req)
{
    CHECK(!world.in_call);
    world.ended++;
    if (world.waiting == req) world.waiting = NULL;
    if (world.paused == req) world.paused = NULL;
    memset(req->user, 0xee, 16); /* ours until we return */
}

static void begin(struct http_req *req)
{
    CHECK(strlen(req->path) < 20000 && req->body[req->body_len] == 0 && req->body_len <= 5000);
    (void)http_header(req, "X-Test");
    world.started++;
    req->user = http_alloc(req, 16);
    req->on_close = on_close;
}

static void echo(struct http_req *req)
{
    begin(req);
    world.in_call++;
    http_set_header(req, "X-Body", req->path);
    http_reply(req, 200, http_header(req, "Content-Type"), req->body, req->body_len);
    world.in_call--;
}

static void produce(struct http_req *req)
{
    static char block[500];
    world.in_call++;
    for (int i = 0; i < 20; i++) {
        memset(block, 'a' + i, sizeof block);
        if (!http_write(req, block, world.steady ? 400 : chance(sizeof block))) break;
    }
    if (world.steady || chance(3) == 0) {
        http_end(req);
        req->on_drain = NULL;
    } else if (chance(10) == 0) {
        http_abort(req);
        req->on_drain = NULL;
    }
    world.in_call--;
}

static void stream(struct http_req *req)
{
    begin(req);
    req->on_drain = produce;
    http_start(req, 200, "text/plain");
    produce(req);
}

static void wait_for_driver(struct http_req *req)
{
    begin(req);
    if (world.steady) {
        http_reply_error(req, 429, "overloaded", "%s", req->query);
    } else {
        world.waiting = req;
    }
}

static void answer_waiting(void)
{
    struct http_req *req = world.waiting;
    world.waiting = NULL;
    world.in_call++;
    if (chance(8) == 0) {
        http_abort(req);
    } else {
        http_reply(req, chance(2) ? 200 : 204, "text/plain", "late", 4);
    }
    world.in_call--;
}

/* A body that is taken as it comes: its bytes are counted and added up. */
static void upload_body(struct http_req *req, const char *p, size_t n)
{
    size_t *sum = req->user;
    CHECK(n > 0 && n <= 3000);
    for (size_t i = 0; i < n; i++) sum[1] += (unsigned char)p[i];
    sum[0] += n;
    CHECK(sum[0] <= 3000);
    if (world.steady) return;
    world.in_call++;
    if (chance(4) == 0) {
        http_body_pause(req, true);
        world.paused = req;
    } else if (chance(40) == 0 && http_body_stop(req)) {
        http_reply_error(req, 507, "storage", "no more");
        CHECK(!http_body_stop(req));
    }
    world.in_call--;
}

static void upload_begin(struct http_req *req)
{
    CHECK(req->param[0] && !strchr(req->param, '/'));
    begin(req);
    req->on_body = upload_body;
}

static void upload(struct http_req *req)
{
    char text[64];
    if (!req->user) begin(req); /* without a body */
    const size_t *sum = req->user;
    world.in_call++;
    CHECK(!http_body_stop(req));
    http_reply(req, 200, "text/plain", text, (size_t)snprintf(text, sizeof text, "%zu %zu", sum[0], sum[1]));
    world.in_call--;
}

/* Of bodies that did not come with their heads. */
static bool gate(struct http_req *req, uint64_t length)
{
    CHECK(req->body_len == 0 && length <= 5000 && !http_answered(req));
    if (*req->query != 'g') return false;
    world.in_call++;
    http_reply_error(req, 429, "overloaded", "not now");
    CHECK(http_answered(req));
    world.in_call--;
    return true;
}

/* What a daemon with keys does: some requests are answered by their head. */
static bool permit(void *arg, struct http_req *req)
{
    (void)arg;
    CHECK(req->body_len == 0 && !world.in_call);
    if (!http_header(req, "X-Refuse")) return true;
    http_set_header(req, "WWW-Authenticate", "Bearer");
    http_reply_error(req, 401, "invalid_api_key", "%s", req->path);
    return false;
}

static const struct http_route routes[] = {
    {HTTP_M_GET, "/", echo, 0},
    {HTTP_M_POST, "/", echo, 5000, .gate = gate},
    {HTTP_M_GET, "/s", stream, 0},
    {HTTP_M_POST, "/w", wait_for_driver, 100},
    {HTTP_M_GET, "/w*", wait_for_driver, 0},
    {HTTP_M_POST, "/u/{id}", upload, 3000, upload_begin},
    {HTTP_M_DELETE, "/u/{id}/x", echo, 0},
};

/* ---- the client ------------------------------------------------------------------------------------------------ */

/* The client takes n bytes of what was sent. */
static void take(struct conn *c, size_t n)
{
    buf_append(&world.answers, c->out.data, n);
    memmove(c->out.data, c->out.data + n, c->out.len - n);
    c->out.len -= n;
    world.wake = true;
}

static void flush(struct conn *c, bool everything)
{
    while (!world.closed && (c->out.len || world.wake)) {
        if (c->out.len) take(c, everything ? c->out.len : chance((uint32_t)c->out.len + 1));
        world.wake = false;
        conn_flushed(c);
        if (!everything) break;
    }
}

static size_t feed(struct conn *c, const uint8_t *p, size_t n)
{
    size_t most = conn_bytes_wanted(c);
    if (!c->reading || !most || !n) return 0;
    static const uint32_t sizes[] = {1, 2, 7, 40, 300, 5000, 70000};
    size_t part = world.random == 0 ? n : 1 + chance(sizes[chance(7)]);
    if (part > n) part = n;
    if (part > most) part = most;
    char *copy = mem_alloc(part); /* its own block, so that reading past it is seen */
    memcpy(copy, p, part);
    conn_input(c, copy, part);
    free(copy);
    CHECK(world.closed || c->in.len <= 128 * 1024);
    return part;
}

static void chance_event(struct conn *c)
{
    switch (chance(12)) {
    case 0: c->server->draining |= chance(20) == 0; break;
    case 1:
        if (world.timer && chance(4) == 0) conn_timeout(c);
        break;
    case 2:
        if (chance(20) == 0) conn_lost(c);
        break;
    case 3:
        if (chance(10) == 0 && !c->eof) conn_eof(c);
        break;
    default:
        if (world.waiting && chance(2)) answer_waiting();
        if (world.paused && chance(2)) {
            struct http_req *req = world.paused;
            world.paused = NULL;
            world.in_call++;
            http_body_pause(req, false);
            world.in_call--;
        }
    }
}

/* One connection from its beginning to its end.  seed 0: all bytes at once. */
static void run(uint64_t seed, bool steady, const uint8_t *p, size_t n)
{
    struct http_server server = {.config = {.routes = routes, .n_routes = sizeof routes / sizeof *routes}};
    server.config.max_header_bytes = 2000;
    server.config.max_body_bytes = 1000;
    server.config.header_timeout_ms = server.config.body_timeout_ms = 10;
    server.config.idle_timeout_ms = server.config.write_timeout_ms = 10;
    server.config.permit = permit;
    server.config.high_water = 4000;
    server.config.low_water = 1000;
    server.cors_origin = seed & 1 ? "*" : NULL;
    head_settings(&server.parser_settings);
    world.random = seed;
    world.steady = steady;
    world.timer = world.closed = world.shut = world.wake = false;
    world.started = world.ended = world.in_call = 0;
    world.waiting = world.paused = NULL;
    buf_clear(&world.answers);
    if (steady) server.cors_origin = NULL;
    struct conn *c = conn_new(&server);
    c->refused = !steady && chance(50) == 0;
    conn_begin(c);
    for (int idle = 0; !world.closed && (n || idle < 20);) {
        size_t used = feed(c, p, n);
        p += used;
        n -= used;
        idle = used ? 0 : idle + 1;
        if (!world.closed && !steady) chance_event(c);
        flush(c, steady || chance(3) == 0);
        if (idle > 1000) break;
        if (!used && n && c->state == CONN_RUN && !steady && idle > 50) break;
    }
    if (!world.closed && !c->eof) conn_eof(c);
    for (int i = 0; i < 100 && !world.closed; i++) flush(c, true);
    if (!world.closed) conn_drop(c);
    CHECK(world.started == world.ended);
    conn_free(c);
    CHECK(!server.conns);
}

/* ---- checking -------------------------------------------------------------------------------------------------- */

/* The answers as text that must be the same for the same requests: no Date, no id, no "100 Continue" (sent only when
 * the body is not there yet). */
static struct buf stable_answers(void)
{
    struct buf out = {0};
    const char *p = world.answers.data ? world.answers.data : "";
    const char *end = p + world.answers.len;
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    while (p < end) {
        const char *line = memchr(p, '\n', (size_t)(end - p));
        size_t n = line ? (size_t)(line - p) + 1 : (size_t)(end - p);
        if ((n >= 5 && memcmp(p, "Date:", 5) == 0) || (n >= 13 && memcmp(p, "X-Request-Id:", 13) == 0)) {
            p += n;
        } else if ((size_t)(end - p) >= sizeof go_on - 1 && memcmp(p, go_on, sizeof go_on - 1) == 0) {
            p += sizeof go_on - 1;
        } else {
            buf_append(&out, p, n);
            p += n;
        }
    }
    return out;
}

/* Only where no answer is without the body its head announces. */
static void check_answers(const uint8_t *p, size_t n)
{
    if (memmem(p, n, "HEAD", 4) || !world.answers.len) return;
    llhttp_t parser;
    llhttp_settings_t settings;
    llhttp_settings_init(&settings);
    llhttp_init(&parser, HTTP_RESPONSE, &settings);
    llhttp_errno_t code = llhttp_execute(&parser, world.answers.data, world.answers.len);
    if (code != HPE_OK && code != HPE_CLOSED_CONNECTION && code != HPE_PAUSED_UPGRADE) {
        fprintf(stderr, "%s\n%s\n", llhttp_get_error_reason(&parser), world.answers.data);
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t seed;
    if (size < sizeof seed) return 0;
    memcpy(&seed, data, sizeof seed);
    data += sizeof seed;
    size -= sizeof seed;
    run(seed | 2, false, data, size);
    check_answers(data, size);
    run(0, true, data, size);
    check_answers(data, size);
    struct buf whole = stable_answers();
    run(seed | 2, true, data, size);
    struct buf cut = stable_answers();
    if (whole.len != cut.len || (whole.len && memcmp(whole.data, cut.data, whole.len) != 0)) {
        fprintf(stderr, "whole:\n%s\ncut:\n%s\n", whole.data ? whole.data : "", cut.data ? cut.data : "");
        abort();
    }
    buf_free(&whole);
    buf_free(&cut);
    buf_free(&world.answers);
    return 0;
}
