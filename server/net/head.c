/* Turns the bytes of a complete request head into a request: llhttp parses, then the rules that it leaves to the server
 * are applied.  Loop thread.  Works in place: names, values, path and query become NUL-terminated strings inside
 * conn.head.
 *
 * wire.c has accepted these bytes, so lines and header names are well-formed.  Checked here: the version, the form of
 * the target, exactly one Host, an unambiguous body length, the content coding, Expect. */
#include "server/net/conn.h"

#include "engine/base/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *refusal_type(int status)
{
    switch (status) {
    case 404: return "not_found";
    case 405: return "method_not_allowed";
    case 408: return "timeout";
    case 413:
    case 414:
    case 431: return "too_large";
    case 415:
    case 501:
    case 505: return "unsupported";
    case 503: return "overloaded";
    default: return "validation";
    }
}

bool refuse(struct refusal *why, int status, const char *fmt, ...)
{
    why->status = status;
    why->type = refusal_type(status);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why->text, sizeof why->text, fmt, ap);
    va_end(ap);
    return false;
}

/* ---- llhttp callbacks: only bookkeeping ------------------------------------------------------------------------ */

/* The whole head is one buffer given to llhttp in one call, so a name or a value is always delivered whole. */
static int on_header_field(llhttp_t *parser, const char *at, size_t n)
{
    (void)n;
    struct conn *c = parser->data;
    if (c->state == CONN_BODY) return 0; /* a trailer: read, checked, not used */
    if (c->n_headers == HTTP_MAX_HEADERS) return -1;
    struct header *h = &c->headers[c->n_headers++];
    *h = (struct header){.name = at, .value = ""};
    return 0;
}

static int on_header_value(llhttp_t *parser, const char *at, size_t n)
{
    struct conn *c = parser->data;
    if (c->state == CONN_BODY || n == 0) return 0;
    CHECK(c->n_headers > 0);
    c->headers[c->n_headers - 1].value = at;
    return 0;
}

static int on_headers_complete(llhttp_t *parser)
{
    struct conn *c = parser->data;
    c->keep = llhttp_should_keep_alive(parser) != 0;
    parser->upgrade = 0; /* never: an Upgrade header is ignored (RFC 9110 7.8), CONNECT is refused */
    return 0;
}

/* Grows the body for n more bytes, with a reservation: doubles the capacity, capped at the body's length if known. */
static bool body_room(struct conn *c, size_t n)
{
    struct buf *b = &c->body;
    size_t need = b->len + n + 1, most = c->chunked ? c->body_limit + 1 : (size_t)c->length + 1;
    if (need <= b->cap) return true;
    size_t cap = b->cap > most / 2 ? most : 2 * b->cap > need ? 2 * b->cap : need;
    if (!reserve(&c->held, cap, "the body", &c->starved)) return false;
    char *data = realloc(b->data, cap); /* both may exist while it copies */
    reservation_shrink(&c->held, data ? b->cap : cap);
    if (!data) {
        err_set(&c->starved, ERR_FULL, "no memory for the body");
        return false;
    }
    b->data = data;
    b->cap = cap;
    return true;
}

static int on_body(llhttp_t *parser, const char *at, size_t n)
{
    struct conn *c = parser->data;
    if (c->state != CONN_BODY) return HPE_USER; /* on_body stopped the body */
    CHECK(c->body_seen + n <= c->body_limit);
    c->body_seen += n;
    if (c->streamed) {
        c->req.on_body(&c->req, at, n);
        return 0;
    }
    if (c->server->buffered + n > c->server->config.max_buffered_bytes) {
        c->crowded = true;
        return HPE_USER;
    }
    if (!body_room(c, n)) return HPE_USER;
    buf_append(&c->body, at, n);
    c->server->buffered += n;
    return 0;
}

static int on_message_complete(llhttp_t *parser)
{
    struct conn *c = parser->data;
    c->message_complete = true;
    return 0;
}

void head_settings(llhttp_settings_t *settings)
{
    llhttp_settings_init(settings);
    settings->on_header_field = on_header_field;
    settings->on_header_value = on_header_value;
    settings->on_headers_complete = on_headers_complete;
    settings->on_body = on_body;
    settings->on_message_complete = on_message_complete;
}

/* ---- the request line ------------------------------------------------------------------------------------------ */

struct request_line {
    char *method, *target, *version, *end; /* end: its CRLF */
};

/* `method SP target SP version CRLF`, with exactly these two spaces. */
static bool split_request_line(char *line, struct request_line *out, struct refusal *why)
{
    out->method = line;
    out->end = strstr(line, "\r\n");
    CHECK(out->end);
    out->target = out->version = out->end;
    char *space = memchr(line, ' ', (size_t)(out->end - line));
    char *last = memrchr(line, ' ', (size_t)(out->end - line));
    if (!space || space == last) {
        return refuse(why, 400, "the request line must be a method, a target and a version, as in: GET / HTTP/1.1");
    }
    out->target = space + 1;
    out->version = last + 1;
    if (out->target == last || memchr(out->target, ' ', (size_t)(last - out->target))) {
        return refuse(why, 400, "the request line must have exactly two spaces");
    }
    return true;
}

static bool check_version(const struct request_line *line, bool *http10, struct refusal *why)
{
    size_t n = (size_t)(line->end - line->version);
    const char *v = line->version;
    if (n == 8 && memcmp(v, "HTTP/1.1", 8) == 0) return true;
    if (n == 8 && memcmp(v, "HTTP/1.0", 8) == 0) {
        *http10 = true;
        return true;
    }
    if (strncmp(line->method, "PRI ", 4) == 0) return refuse(why, 400, "this port speaks HTTP/1.1, not HTTP/2");
    if (n == 8 && memcmp(v, "HTTP/", 5) == 0 && v[5] >= '0' && v[5] <= '9' && v[6] == '.' && v[7] >= '0' &&
        v[7] <= '9') {
        return refuse(why, 505, "this server speaks HTTP/1.1 and HTTP/1.0, not %.8s", v);
    }
    return refuse(why, 400, "the request line does not end in an HTTP version");
}

static enum http_method method_of(const llhttp_t *parser)
{
    switch (parser->method) {
    case HTTP_GET: return HTTP_M_GET;
    case HTTP_HEAD: return HTTP_M_HEAD;
    case HTTP_POST: return HTTP_M_POST;
    case HTTP_PUT: return HTTP_M_PUT;
    case HTTP_DELETE: return HTTP_M_DELETE;
    case HTTP_OPTIONS: return HTTP_M_OPTIONS;
    default: return HTTP_M_OTHER;
    }
}

static int hex_value(char ch)
{
    if (ch >= '0' && ch <= '9') return ch - '0';
    ch |= 32;
    return ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : -1;
}

/* Decodes in place.  Dot segments are not resolved: paths are not file names. */
static bool percent_decode(char *path, struct refusal *why)
{
    char *to = path;
    for (const char *from = path; *from; from++) {
        if (*from != '%') {
            *to++ = *from;
            continue;
        }
        int high = hex_value(from[1]);
        int low = high < 0 ? -1 : hex_value(from[2]);
        if (low < 0) return refuse(why, 400, "'%%' in the path must be followed by two hexadecimal digits");
        if (high == 0 && low == 0) return refuse(why, 400, "the path contains a NUL character");
        *to++ = (char)(high * 16 + low);
        from += 2;
    }
    *to = 0;
    return true;
}

/* origin-form, absolute-form (sent to proxies), and "*" for OPTIONS (RFC 9112 3.2). */
static bool parse_target(struct conn *c, char *target, struct refusal *why)
{
    if (c->parser.method == HTTP_CONNECT) return refuse(why, 405, "CONNECT: this server is no proxy");
    if (strchr(target, '#')) return refuse(why, 400, "the request target contains '#'");
    char *query = strchr(target, '?');
    if (query) *query++ = 0;
    c->req.query = query ? query : "";
    if (strncasecmp(target, "http://", 7) == 0 || strncasecmp(target, "https://", 8) == 0) {
        char *authority = strstr(target, "://") + 3;
        if (!*authority || *authority == '/') return refuse(why, 400, "the request target names no host");
        target = strchr(authority, '/');
    } else if (strcmp(target, "*") == 0 && c->req.method == HTTP_M_OPTIONS) {
        c->req.path = target;
        return true;
    } else if (*target != '/') {
        return refuse(why, 400, "the request target must begin with '/'");
    }
    if (!target) {
        c->req.path = "/"; /* http://host */
        return true;
    }
    if (!percent_decode(target, why)) return false;
    c->req.path = target;
    return true;
}

/* ---- headers --------------------------------------------------------------------------------------------------- */

/* Terminates every name at its colon and every value at its end, trimmed of white space.  Done after parsing, because
 * llhttp must see the original bytes. */
static void terminate_headers(struct conn *c)
{
    for (int i = 0; i < c->n_headers; i++) {
        struct header *h = &c->headers[i];
        if (*h->value) { /* otherwise it is the literal "" */
            char *value = c->head.data + (h->value - c->head.data);
            char *end = strstr(value, "\r\n");
            CHECK(end);
            while (end > value && (end[-1] == ' ' || end[-1] == '\t')) end--;
            *end = 0;
        }
        char *colon = c->head.data + (h->name - c->head.data);
        colon += strcspn(colon, ":");
        *colon = 0;
    }
}

/* @return how often the header occurs; *value: its first value. */
static int count_header(const struct conn *c, const char *name, const char **value)
{
    int n = 0;
    for (int i = 0; i < c->n_headers; i++) {
        if (strcasecmp(c->headers[i].name, name) == 0 && n++ == 0) *value = c->headers[i].value;
    }
    return n;
}

static bool check_host(const struct conn *c, struct refusal *why)
{
    const char *host = "";
    int n = count_header(c, "Host", &host);
    if (n > 1) return refuse(why, 400, "more than one Host header");
    if (n == 0 && !c->http10) return refuse(why, 400, "the Host header is missing");
    if (host[strcspn(host, " \t,/@?#\\")]) return refuse(why, 400, "the Host header is not a host name");
    return true;
}

static bool parse_length(const char *text, uint64_t *out)
{
    *out = 0;
    if (!*text) return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return false;
        if (__builtin_mul_overflow(*out, 10u, out) || __builtin_add_overflow(*out, (uint64_t)(*text - '0'), out))
            return false;
    }
    return true;
}

/* Determines the body's length, which must be unambiguous. */
static bool check_framing(struct conn *c, struct refusal *why)
{
    const char *coding = "", *length = "";
    int codings = count_header(c, "Transfer-Encoding", &coding);
    int lengths = count_header(c, "Content-Length", &length);
    if (codings && lengths) return refuse(why, 400, "both Content-Length and Transfer-Encoding");
    if (codings) {
        if (c->http10) return refuse(why, 400, "Transfer-Encoding in an HTTP/1.0 request");
        if (codings > 1 || strcasecmp(coding, "chunked") != 0) {
            return refuse(why, 501, "Transfer-Encoding: only \"chunked\" is supported");
        }
        c->chunked = true;
    } else if (lengths) {
        if (lengths > 1) return refuse(why, 400, "more than one Content-Length");
        if (!parse_length(length, &c->length)) return refuse(why, 400, "Content-Length is not a number of bytes");
    }
    return true;
}

/* Refuses content codings: bodies are never decompressed. */
static bool check_coding(const struct conn *c, struct refusal *why)
{
    if (!c->chunked && !c->length) return true;
    for (int i = 0; i < c->n_headers; i++) {
        const char *value = c->headers[i].value;
        if (strcasecmp(c->headers[i].name, "Content-Encoding") == 0 && *value && strcasecmp(value, "identity") != 0)
            return refuse(why, 415, "Content-Encoding: \"%.40s\" is not supported; send the body without compression",
                          value);
    }
    return true;
}

static bool check_expect(struct conn *c, struct refusal *why)
{
    const char *expect = "";
    int n = count_header(c, "Expect", &expect);
    if (n == 0 || c->http10) return true; /* HTTP/1.0 has no Expect; RFC 9110 10.1.1 requires it to be ignored */
    if (n > 1 || strcasecmp(expect, "100-continue") != 0) {
        return refuse(why, 417, "Expect: only \"100-continue\" is supported");
    }
    c->expects_continue = true;
    return true;
}

static bool run_parser(struct conn *c, const char *from, struct refusal *why)
{
    llhttp_init(&c->parser, HTTP_REQUEST, &c->server->parser_settings);
    c->parser.data = c;
    llhttp_errno_t code = llhttp_execute(&c->parser, from, (size_t)(c->head.data + c->head.len - from));
    if (code == HPE_OK) return true;
    c->keep = false;
    if (code == HPE_INVALID_METHOD) return refuse(why, 501, "unknown method");
    const char *reason = llhttp_get_error_reason(&c->parser);
    return refuse(why, 400, "malformed request: %s", reason && *reason ? reason : llhttp_errno_name(code));
}

bool head_parse(struct conn *c, struct refusal *why)
{
    char *from = c->head.data;
    while (*from == '\r' || *from == '\n') from++;
    struct request_line line = {0};
    if (!split_request_line(from, &line, why) || !check_version(&line, &c->http10, why)) return false;
    bool parsed = run_parser(c, from, why);
    c->req.method = method_of(&c->parser);
    c->head_only = c->req.method == HTTP_M_HEAD;
    if (!parsed) return false;
    terminate_headers(c);
    line.version[-1] = 0;
    return check_host(c, why) && check_framing(c, why) && check_expect(c, why) && parse_target(c, line.target, why) &&
           check_coding(c, why);
}
