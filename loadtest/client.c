#include "loadtest/client.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

#include <ctype.h>
#include <llhttp.h>
#include <math.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { HEAD_MAX = 256 << 10, READ_BYTES = 64 << 10 };

struct client {
    uv_loop_t *loop;
    llhttp_settings_t settings;
    struct sockaddr_storage address;
    struct client_conn *idle; /* a stack: the one used last first */
    struct client_counts counts;
    char read[READ_BYTES]; /* all connections read into it: it is emptied before the next read */
};

/* connecting -> waiting for an answer -> idle -> waiting ..., and closing from anywhere */
struct client_conn {
    uv_tcp_t tcp;
    uv_connect_t connecting;
    uv_write_t writing;
    llhttp_t parser;
    struct client *client;
    struct call *call;               /* NULL: idle, or dropped */
    struct client_conn *next, *prev; /* idle */
    struct buf out;                  /* the request, kept until the answer begins */
    char name[32], value[64];        /* the header that is being read, its beginning */
    size_t name_n, value_n, head_n;
    bool is_idle, reused, paused, written, complete, keep, closing;
    bool failed; /* could not even begin: on_closed tells the call */
};

static void connect_new(struct client *, struct call *, struct buf *request);

/* ---- the parser's callbacks ------------------------------------------------------------------------------------ */

static size_t keep_some(char *to, size_t have, size_t cap, const char *p, size_t n)
{
    size_t room = cap - 1 - have;
    if (n > room) n = room;
    memcpy(to + have, p, n);
    to[have + n] = 0;
    return have + n;
}

static int on_begin(llhttp_t *parser)
{
    struct client_conn *c = parser->data;
    return c->complete ? -1 : 0; /* bytes after the answer */
}

static int on_name(llhttp_t *parser, const char *p, size_t n)
{
    struct client_conn *c = parser->data;
    c->name_n = keep_some(c->name, c->name_n, sizeof c->name, p, n);
    return (c->head_n += n) > HEAD_MAX ? -1 : 0;
}

static int on_value(llhttp_t *parser, const char *p, size_t n)
{
    struct client_conn *c = parser->data;
    c->value_n = keep_some(c->value, c->value_n, sizeof c->value, p, n);
    return (c->head_n += n) > HEAD_MAX ? -1 : 0;
}

static int on_value_complete(llhttp_t *parser)
{
    struct client_conn *c = parser->data;
    c->value[c->value_n] = c->name[c->name_n] = 0;
    if (c->call && !strcasecmp(c->name, "retry-after") && isdigit((unsigned char)c->value[0])) {
        char *end;
        double v = strtod(c->value, &end);
        if (*end == 0 && v >= 0 && v < 1e6) c->call->retry_after = v;
    }
    c->name_n = c->value_n = 0;
    return 0;
}

static int on_head(llhttp_t *parser)
{
    struct client_conn *c = parser->data;
    if (c->call) c->call->status = parser->status_code;
    c->keep = llhttp_should_keep_alive(parser) != 0;
    return 0;
}

static int on_body(llhttp_t *parser, const char *p, size_t n)
{
    struct client_conn *c = parser->data;
    if (c->call) c->call->on_body(c->call, p, n);
    return c->call ? 0 : -1; /* dropped, by on_body perhaps */
}

static int on_complete(llhttp_t *parser)
{
    struct client_conn *c = parser->data;
    if (parser->status_code >= 200) c->complete = true; /* else an interim answer: the real one follows */
    return 0;
}

/* ---- connections ----------------------------------------------------------------------------------------------- */

static void idle_add(struct client_conn *c)
{
    struct client *l = c->client;
    c->is_idle = true;
    c->prev = NULL;
    c->next = l->idle;
    if (l->idle) l->idle->prev = c;
    l->idle = c;
}

static void idle_remove(struct client_conn *c)
{
    if (!c->is_idle) return;
    c->is_idle = false;
    if (c->next) c->next->prev = c->prev;
    *(c->prev ? &c->prev->next : &c->client->idle) = c->next;
}

static void on_closed(uv_handle_t *h)
{
    struct client_conn *c = h->data;
    struct call *call = c->failed ? c->call : NULL;
    c->client->counts.open--;
    buf_free(&c->out);
    free(c);
    if (!call) return;
    call->conn = NULL;
    call->on_end(call, CALL_CONNECT);
}

static void conn_close(struct client_conn *c)
{
    if (c->closing) return;
    c->closing = true;
    idle_remove(c);
    uv_close((uv_handle_t *)&c->tcp, on_closed);
}

/* The call is over, the connection is not used again. */
static void conn_fail(struct client_conn *c, enum call_end end)
{
    struct call *call = c->call;
    struct buf again = {0};
    c->call = NULL;
    bool stale = call && c->reused && end == CALL_CLOSED && !call->bytes;
    if (stale) again = c->out, c->out = (struct buf){0};
    conn_close(c);
    if (!call) return;
    call->conn = NULL;
    if (!stale) {
        call->on_end(call, end);
        return;
    }
    c->client->counts.resent++;
    connect_new(c->client, call, &again);
}

/* The answer is whole. */
static void conn_done(struct client_conn *c)
{
    struct call *call = c->call;
    c->call = NULL;
    if (c->keep && c->written && !c->paused && !call->fresh) /* written: a server may answer before it has read all */
        idle_add(c);
    else
        conn_close(c);
    call->conn = NULL;
    call->on_end(call, CALL_WHOLE);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *out)
{
    (void)suggested;
    struct client_conn *c = h->data;
    /* a slow reader takes little at a time */
    size_t n = c->call && c->call->receive_buffer ? 1024 : READ_BYTES;
    *out = uv_buf_init(c->client->read, (unsigned)n);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct client_conn *c = s->data;
    if (c->closing || n == 0) return;
    if (!c->call) { /* kept, and the server closes it or sends what nobody asked for */
        conn_close(c);
        return;
    }
    if (n > 0) {
        c->call->got = clock_now();
        c->call->bytes += (uint64_t)n;
        llhttp_errno_t code = llhttp_execute(&c->parser, b->base, (size_t)n);
        if (!c->call) return; /* dropped by its own callback */
        if (c->complete) {
            if (code != HPE_OK) c->keep = false;
            conn_done(c);
        } else if (code != HPE_OK) {
            conn_fail(c, CALL_GARBAGE);
        }
        return;
    }
    c->call->got = clock_now();
    if (c->call->bytes) llhttp_finish(&c->parser); /* an answer may end with its connection */
    if (!c->call) return;
    c->keep = false;
    if (c->complete)
        conn_done(c);
    else
        conn_fail(c, CALL_CLOSED);
}

/* An error is left to the reader: a server that refuses early has answered all the same. */
static void on_written(uv_write_t *w, int status)
{
    struct client_conn *c = w->data;
    c->written = status == 0;
}

static void conn_send(struct client_conn *c)
{
    struct call *call = c->call;
    llhttp_init(&c->parser, HTTP_RESPONSE, &c->client->settings);
    c->parser.data = c;
    c->name_n = c->value_n = c->head_n = 0;
    c->complete = c->keep = c->written = false;
    call->sent = clock_now();
    uv_buf_t b = uv_buf_init(c->out.data, (unsigned)c->out.len);
    if (uv_write(&c->writing, (uv_stream_t *)&c->tcp, &b, 1, on_written)) conn_fail(c, CALL_CLOSED);
}

static void on_connect(uv_connect_t *r, int status)
{
    struct client_conn *c = r->data;
    if (c->closing) return;
    if (status || uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read)) {
        conn_fail(c, CALL_CONNECT);
        return;
    }
    uv_tcp_nodelay(&c->tcp, 1);
    conn_send(c);
}

static void connect_new(struct client *l, struct call *call, struct buf *request)
{
    struct client_conn *c = mem_zalloc(sizeof *c);
    c->client = l;
    c->call = call;
    call->conn = c;
    c->out = *request;
    *request = (struct buf){0};
    CHECK(uv_tcp_init(l->loop, &c->tcp) == 0);
    c->tcp.data = c->connecting.data = c->writing.data = c;
    l->counts.open++;
    l->counts.opened++;
    int code = 0;
    if (call->receive_buffer) { /* has an effect on the window only before connecting, so the socket is needed now */
        int fd = socket(l->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        code = fd < 0 ? -1 : uv_tcp_open(&c->tcp, fd);
        int bytes = call->receive_buffer;
        if (!code)
            uv_recv_buffer_size((uv_handle_t *)&c->tcp, &bytes);
        else if (fd >= 0)
            close(fd);
    }
    if (!code) code = uv_tcp_connect(&c->connecting, &c->tcp, (const struct sockaddr *)&l->address, on_connect);
    if (!code) return;
    c->failed = true;
    conn_close(c);
}

/* ---- the interface --------------------------------------------------------------------------------------------- */

struct client *client_open(uv_loop_t *loop, const char *host, const char *port, struct err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found;
    int code = getaddrinfo(host, port, &hints, &found);
    if (code) {
        err_set(e, ERR_NOT_FOUND, "%s:%s: %s", host, port, gai_strerror(code));
        return NULL;
    }
    struct client *l = mem_zalloc(sizeof *l);
    l->loop = loop;
    memcpy(&l->address, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    llhttp_settings_init(&l->settings);
    l->settings.on_message_begin = on_begin;
    l->settings.on_header_field = on_name;
    l->settings.on_header_value = on_value;
    l->settings.on_header_value_complete = on_value_complete;
    l->settings.on_headers_complete = on_head;
    l->settings.on_body = on_body;
    l->settings.on_message_complete = on_complete;
    return l;
}

void client_close(struct client *l)
{
    while (l->idle) conn_close(l->idle);
}

void client_free(struct client *l)
{
    free(l);
}

void client_send(struct client *l, struct call *call, struct buf *request)
{
    call->status = 0;
    call->retry_after = -1;
    call->sent = call->got = call->bytes = 0;
    struct client_conn *c = call->fresh ? NULL : l->idle;
    if (!c) {
        connect_new(l, call, request);
        return;
    }
    idle_remove(c);
    c->reused = true;
    c->call = call;
    call->conn = c;
    buf_free(&c->out);
    c->out = *request;
    *request = (struct buf){0};
    l->counts.reused++;
    conn_send(c);
}

void client_drop(struct call *call)
{
    struct client_conn *c = call->conn;
    if (!c) return;
    c->call = NULL;
    call->conn = NULL;
    conn_close(c);
}

void client_pause(struct call *call)
{
    if (!call->conn || call->conn->paused || call->conn->closing) return;
    call->conn->paused = true;
    uv_read_stop((uv_stream_t *)&call->conn->tcp);
}

void client_resume(struct call *call)
{
    if (!call->conn || !call->conn->paused || call->conn->closing) return;
    call->conn->paused = false;
    uv_read_start((uv_stream_t *)&call->conn->tcp, on_alloc, on_read);
}

const struct client_counts *client_counts(const struct client *l)
{
    return &l->counts;
}
