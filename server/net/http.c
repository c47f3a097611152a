/* Implements the calls of http.h that produce an answer: formats it as bytes for the socket.  Loop thread.
 *
 * Nothing here ends an exchange; it only marks it as answered, aborted or waiting, and wakes the socket.  conn_flushed
 * acts on the marks later in the same loop iteration, so a handler's callbacks never run inside the handler's own
 * call. */
#include "server/net/conn.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "server/json/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

struct arena_block {
    struct arena_block *next;
    _Alignas(16) char bytes[];
};

static struct conn *conn_of(const struct http_req *req)
{
    return (struct conn *)((char *)(uintptr_t)req - offsetof(struct conn, req));
}

const char *http_header(const struct http_req *req, const char *name)
{
    const struct conn *c = conn_of(req);
    for (int i = 0; i < c->n_headers; i++) {
        if (strcasecmp(c->headers[i].name, name) == 0) return c->headers[i].value;
    }
    return NULL;
}

void *http_alloc(struct http_req *req, size_t bytes)
{
    struct conn *c = conn_of(req);
    CHECK(bytes <= SIZE_MAX / 2);
    struct arena_block *block = mem_zalloc(sizeof *block + bytes);
    block->next = c->arena;
    c->arena = block;
    return block->bytes;
}

void http_arena_free(struct conn *c)
{
    while (c->arena) {
        struct arena_block *next = c->arena->next;
        free(c->arena);
        c->arena = next;
    }
}

void http_take_body(struct http_req *req, struct http_body *out)
{
    struct conn *c = conn_of(req);
    *out = (struct http_body){.data = c->body.data, .len = c->body.len, .held = c->held};
    c->server->buffered -= c->body.len;
    c->body = (struct buf){0};
    c->held = (struct reservation){0};
    req->body = "";
    req->body_len = 0;
}

void http_return_body(struct http_req *req, struct http_body *b)
{
    struct conn *c = conn_of(req);
    CHECK(!c->body.data);
    c->body = (struct buf){.data = b->data, .len = b->len, .cap = b->data ? b->len + 1 : 0};
    c->held = b->held;
    c->server->buffered += b->len;
    *b = (struct http_body){0};
    if (c->body.data) req->body = c->body.data;
    req->body_len = c->body.len;
}

void http_body_free(struct http_body *b)
{
    free(b->data);
    reservation_free(&b->held);
    *b = (struct http_body){0};
}

/* ---- names ------------------------------------------------------------------------------------------------------ */

/* @return how often the header occurs; *value: its first value. */
static int find_header(const struct conn *c, const char *name, const char **value)
{
    int n = 0;
    for (int i = 0; i < c->n_headers; i++)
        if (strcasecmp(c->headers[i].name, name) == 0 && n++ == 0) *value = c->headers[i].value;
    return n;
}

void http_name_request(struct conn *c, bool headers)
{
    struct http_req *req = &c->req;
    const char *id = NULL, *parent = NULL;
    int ids = headers ? find_header(c, "X-Request-Id", &id) : 0;
    c->own_id = ids != 1 || !request_id_valid(id);
    if (c->own_id)
        request_id_make(req->id);
    else
        snprintf(req->id, sizeof req->id, "%s", id);
    if (headers && find_header(c, "traceparent", &parent) == 1) trace_parent_parse(parent, &req->trace);
}

void http_set_id(struct http_req *req, const char *id)
{
    struct conn *c = conn_of(req);
    CHECK(c->answer == ANSWER_NONE);
    if (c->own_id && request_id_valid(id)) snprintf(req->id, sizeof req->id, "%s", id);
}

/* ---- the head of the answer ------------------------------------------------------------------------------------ */

static const char *reason_of(int status)
{
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {411, "Length Required"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {422, "Unprocessable Content"},
        {424, "Failed Dependency"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
        {507, "Insufficient Storage"},
    };
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        if (reasons[i].status == status) return reasons[i].reason;
    }
    return "Unknown";
}

static void append_clean(struct buf *b, const char *s)
{
    for (; *s; s++) {
        if (*s != '\r' && *s != '\n') buf_char(b, *s);
    }
}

static void append_header(struct buf *b, const char *name, const char *value)
{
    append_clean(b, name);
    buf_str(b, ": ");
    append_clean(b, value);
    buf_str(b, "\r\n");
}

void http_set_header(struct http_req *req, const char *name, const char *value)
{
    struct conn *c = conn_of(req);
    CHECK(c->answer == ANSWER_NONE);
    /* The server alone decides the framing. */
    if (!strcasecmp(name, "Content-Length") || !strcasecmp(name, "Transfer-Encoding") ||
        !strcasecmp(name, "Connection"))
        return;
    append_header(&c->extra, name, value);
}

static void append_date(struct buf *b)
{
    time_t now = time(NULL);
    struct tm tm;
    char text[64];
    gmtime_r(&now, &tm);
    strftime(text, sizeof text, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &tm);
    buf_str(b, text);
}

/* Writes everything up to the empty line.  length: bytes of the body; -1: a stream. */
static void answer_begin(struct conn *c, int status, const char *type, int64_t length)
{
    CHECK(c->state == CONN_RUN && c->answer == ANSWER_NONE && status >= 200 && status <= 599);
    c->status = status;
    c->bodyless = status == 204 || status == 304;
    if (c->local) return; /* only the body is collected */
    if (c->server->winding_down) c->keep = false;
    c->stream_chunked = length < 0 && !c->http10 && !c->bodyless;
    if (length < 0 && c->http10) c->keep = false; /* the end of the connection is the end of the body */
    struct buf b = {0};
    buf_printf(&b, "HTTP/1.1 %d %s\r\n", status, reason_of(status));
    append_date(&b);
    if (type) append_header(&b, "Content-Type", type);
    if (c->stream_chunked) buf_str(&b, "Transfer-Encoding: chunked\r\n");
    if (length >= 0 && !c->bodyless) buf_printf(&b, "Content-Length: %lld\r\n", (long long)length);
    if (!c->req.id[0]) http_name_request(c, false);
    append_header(&b, "X-Request-Id", c->req.id);
    if (!c->keep) buf_str(&b, "Connection: close\r\n");
    if (c->keep && c->http10) buf_str(&b, "Connection: keep-alive\r\n");
    const char *origin = c->server->cors_origin;
    if (origin) append_header(&b, "Access-Control-Allow-Origin", origin);
    if (origin && strcmp(origin, "*") != 0) buf_str(&b, "Vary: Origin\r\n");
    buf_append(&b, c->extra.data, c->extra.len);
    buf_str(&b, "\r\n");
    sock_write(c, b.data, b.len);
    buf_free(&b);
}

static void answer_end(struct conn *c)
{
    c->answer = ANSWER_DONE;
    sock_wake(c);
    if (c->req.on_answer) c->req.on_answer(&c->req);
}

/* ---- whole answers --------------------------------------------------------------------------------------------- */

void http_reply(struct http_req *req, int status, const char *type, const void *body, size_t len)
{
    struct conn *c = conn_of(req);
    if (c->aborted) return;
    answer_begin(c, status, type, (int64_t)len);
    if (len && !c->head_only && !c->bodyless) sock_write(c, body, len);
    answer_end(c);
}

/* As OpenAI's servers, except for 401 and 403: litellm treats an invalid_request_error as a bad request. */
const char *http_openai_type(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 429: return "rate_limit_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

static const char *anthropic_type(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    case 504: return "timeout_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

void http_put_anthropic_error(struct buf *out, int status, const char *msg, const char *details)
{
    buf_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", anthropic_type(status));
    json_put_string(out, msg, strlen(msg));
    if (details) buf_printf(out, ",\"details\":%s", details);
    buf_str(out, "}}");
}

static bool speaks_anthropic(const char *path)
{
    static const char messages[] = "/v1/messages";
    size_t n = sizeof messages - 1;
    return strncmp(path, messages, n) == 0 && (!path[n] || path[n] == '/');
}

bool http_speaks_openai(const char *path)
{
    static const char vllm[] = "/inference/v1/";
    if (strncmp(path, vllm, sizeof vllm - 1) == 0) return true;
    return strncmp(path, "/v1/", 4) == 0 && !speaks_anthropic(path);
}

/* In the format of the route's API: Anthropic's, OpenAI's, otherwise TGI's. */
static void reply_error(struct http_req *req, int status, const char *type, const char *text)
{
    struct buf b = {0};
    bool openai = http_speaks_openai(req->path);
    if (speaks_anthropic(req->path)) {
        http_put_anthropic_error(&b, status, text, NULL);
        http_reply(req, status, "application/json", b.data, b.len);
        buf_free(&b);
        return;
    }
    buf_str(&b, openai ? "{\"error\":{\"message\":" : "{\"error\":");
    json_put_string(&b, text, strlen(text));
    if (openai)
        buf_printf(&b, ",\"type\":\"%s\",\"param\":null,\"code\":", http_openai_type(status));
    else
        buf_str(&b, ",\"error_type\":");
    json_put_string(&b, type, strlen(type));
    buf_str(&b, openai ? "}}" : "}");
    http_reply(req, status, "application/json", b.data, b.len);
    buf_free(&b);
}

void http_reply_error(struct http_req *req, int status, const char *type, const char *fmt, ...)
{
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    reply_error(req, status, type, text);
}

void http_answer_refusal(struct conn *c, const struct refusal *why)
{
    if (why->status == 405) {
        http_set_header(&c->req, "Allow", c->match.allow[0] ? c->match.allow : "GET, HEAD, POST, OPTIONS");
    }
    if (why->status == 415) http_set_header(&c->req, "Accept-Encoding", "identity"); /* RFC 9110 15.5.16 */
    if (why->status == 503) http_set_header(&c->req, "Retry-After", "1");
    reply_error(&c->req, why->status, why->type, why->text);
}

/* The requested list of headers may be echoed as the allowed one only if it is a list of names. */
static bool is_name_list(const char *s)
{
    return *s && strlen(s) < 1024 &&
           s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_, ")] == 0;
}

/* Answers OPTIONS where no route handles it: the methods (Allow), and the CORS preflight of browsers. */
void http_answer_options(struct conn *c)
{
    http_set_header(&c->req, "Allow", c->match.allow);
    if (c->server->cors_origin) {
        const char *wanted = http_header(&c->req, "Access-Control-Request-Headers");
        http_set_header(&c->req, "Access-Control-Allow-Methods", c->match.allow);
        http_set_header(&c->req, "Access-Control-Allow-Headers",
                        wanted && is_name_list(wanted) ? wanted : "Authorization, Content-Type");
        http_set_header(&c->req, "Access-Control-Max-Age", "86400");
        http_set_header(&c->req, "Vary", "Access-Control-Request-Headers");
    }
    http_reply(&c->req, 204, NULL, NULL, 0);
}

/* ---- streams --------------------------------------------------------------------------------------------------- */

void http_start(struct http_req *req, int status, const char *type)
{
    struct conn *c = conn_of(req);
    if (c->aborted) return;
    answer_begin(c, status, type, -1);
    c->answer = ANSWER_STREAM;
}

bool http_write(struct http_req *req, const void *data, size_t len)
{
    struct conn *c = conn_of(req);
    if (c->aborted) return false;
    CHECK(c->answer == ANSWER_STREAM);
    if (len && !c->head_only && !c->bodyless) { /* an empty chunk would end the stream */
        if (c->stream_chunked) {
            char size[24];
            sock_write(c, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", len));
        }
        sock_write(c, data, len);
        if (c->stream_chunked) sock_write(c, "\r\n", 2);
    }
    if (sock_queued(c) < c->server->config.high_water) return true;
    c->want_drain = true;
    return false;
}

void http_want_drain(struct http_req *req)
{
    struct conn *c = conn_of(req);
    if (c->aborted) return;
    c->want_drain = true;
    sock_wake(c);
}

void http_end(struct http_req *req)
{
    struct conn *c = conn_of(req);
    if (c->aborted) return;
    CHECK(c->answer == ANSWER_STREAM);
    if (c->stream_chunked && !c->head_only) sock_write(c, "0\r\n\r\n", 5);
    answer_end(c);
}

bool http_answered(const struct http_req *req)
{
    const struct conn *c = conn_of(req);
    return c->aborted || c->answer != ANSWER_NONE;
}

void http_body_pause(struct http_req *req, bool pause)
{
    conn_body_pause(conn_of(req), pause);
}

bool http_body_stop(struct http_req *req)
{
    return conn_body_stop(conn_of(req));
}

void http_abort(struct http_req *req)
{
    struct conn *c = conn_of(req);
    c->aborted = true;
    sock_wake(c);
}
