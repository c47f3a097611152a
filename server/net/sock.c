/* Bytes in and out of one connection, and its timer, over libuv; TLS in between, where there is any (tls.h).  Loop
 * thread; owns the handles in struct conn.
 *
 * Writing.  sock_write only collects; each connection written to goes on the server's dirty list, and once per loop
 * iteration (prepare, before the poll, and check, after it: so whatever ran, callback or timer, is covered before the
 * loop sleeps) sock_flush_all sends what was collected with one uv_try_write.  What the kernel does not accept becomes
 * one uv_write; while that is in flight new bytes are collected.  So a burst of tokens is one system call and one
 * segment.
 *
 * Under TLS the collected bytes are queued in the filter, which encrypts a chunk once the previous one was sent: so the
 * encrypted bytes in memory are bounded, however large an answer is.
 *
 * Closing.  sock_close may be called at any time; the memory is freed when both handles are closed. */
#include "server/net/conn.h"

#include "server/net/tls.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <sys/ioctl.h>

enum {
    KEEP_OUT = 64 * 1024,     /* an emptied output buffer up to this size is kept */
    SEND_BUFFER = 128 * 1024, /* requested from the kernel, which doubles it */
    RECORD = 16 * 1024,       /* largest TLS record */
    ROUNDS = 4,               /* chunks encrypted for one connection before the next is served */
};

static struct conn *conn_of_tcp(uv_handle_t *h)
{
    return (struct conn *)((char *)h - offsetof(struct conn, tcp));
}

static uv_stream_t *stream_of(struct conn *c)
{
    return (uv_stream_t *)&c->tcp;
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *b)
{
    struct conn *c = conn_of_tcp(h);
    size_t room = sizeof c->server->read_bytes;
    size_t wanted = conn_bytes_wanted(c);
    *b = uv_buf_init(c->server->read_bytes, (unsigned)(wanted < room ? wanted : room));
}

static void send_last_messages(struct conn *c);

/* All received bytes are decrypted at once, so conn.c may get one record more than conn_bytes_wanted. */
static void read_tls(struct conn *c, const char *p, size_t n)
{
    char plain[RECORD];
    int got;
    tls_feed(c->tls, p, n);
    while ((got = tls_read(c->tls, plain, sizeof plain)) > 0) {
        conn_input(c, plain, (size_t)got);
        if (c->state == CONN_CLOSED) return;
    }
    if (got == TLS_MORE || got == TLS_END) {
        if (tls_pending(c->tls)) sock_wake(c);
        if (got == TLS_END) conn_eof(c);
        return;
    }
    send_last_messages(c);
    conn_lost(c);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *b)
{
    struct conn *c = conn_of_tcp((uv_handle_t *)stream);
    if (n > 0 && c->tls) {
        read_tls(c, b->base, (size_t)n);
    } else if (n > 0) {
        conn_input(c, b->base, (size_t)n);
    } else if (n == UV_EOF) {
        conn_eof(c);
    } else if (n < 0 && n != UV_ENOBUFS) {
        conn_lost(c);
    }
}

void sock_read(struct conn *c, bool on)
{
    if (c->reading == on || c->open_handles == 0 || uv_is_closing((uv_handle_t *)&c->tcp)) return;
    c->reading = on;
    if (on) {
        uv_read_start(stream_of(c), on_alloc, on_read);
    } else {
        uv_read_stop(stream_of(c));
    }
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

void sock_wake(struct conn *c)
{
    if (c->dirty || c->state == CONN_CLOSED) return;
    struct http_server *s = c->server;
    c->dirty = true;
    c->next_dirty = NULL;
    *s->dirty_tail = c;
    s->dirty_tail = &c->next_dirty;
}

static struct conn *dirty_pop(struct http_server *s)
{
    struct conn *c = s->dirty;
    if (!c) return NULL;
    s->dirty = c->next_dirty;
    if (!s->dirty) s->dirty_tail = &s->dirty;
    c->dirty = false;
    return c;
}

void sock_forget(struct conn *c)
{
    struct http_server *s = c->server;
    if (!c->dirty) return;
    struct conn **at = &s->dirty;
    while (*at != c) at = &(*at)->next_dirty;
    *at = c->next_dirty;
    if (!*at) s->dirty_tail = at;
    c->dirty = false;
}

void sock_write(struct conn *c, const void *p, size_t n)
{
    buf_append(&c->out, p, n);
    c->queued_total += n;
    sock_wake(c);
}

size_t sock_queued(const struct conn *c)
{
    size_t waiting = c->tls ? tls_waiting(c->tls) : 0;
    return c->out.len + waiting + uv_stream_get_write_queue_size((const uv_stream_t *)&c->tcp);
}

/* Bytes in the kernel's send buffer count as not taken: it can be megabytes and reports room only when a third is free,
 * so a slow reader would look like a client that does not read. */
uint64_t sock_acked(const struct conn *c)
{
    uv_os_fd_t fd;
    int held = 0;
    if (uv_fileno((const uv_handle_t *)&c->tcp, &fd) != 0 || ioctl(fd, SIOCOUTQ, &held) != 0 || held < 0) held = 0;
    uint64_t given = c->queued_total - sock_queued(c);
    return given > (uint64_t)held ? given - (uint64_t)held : 0;
}

bool sock_peer_closed(const struct conn *c)
{
    uv_os_fd_t fd;
    struct tcp_info info;
    socklen_t n = sizeof info;
    if (uv_fileno((const uv_handle_t *)&c->tcp, &fd) != 0) return false;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) != 0) return false;
    return info.tcpi_state != TCP_ESTABLISHED;
}

static void sending_done(struct conn *c)
{
    if (c->sending.cap > KEEP_OUT) {
        buf_free(&c->sending);
    } else {
        buf_clear(&c->sending);
    }
}

static void on_written(uv_write_t *w, int status)
{
    struct conn *c = (struct conn *)((char *)w - offsetof(struct conn, write));
    sending_done(c);
    if (c->state == CONN_CLOSED) return;
    if (status < 0) {
        conn_lost(c);
    } else {
        sock_wake(c);
    }
}

/* Fills the empty `sending` with the next output.  @return false when there is none. */
static bool sending_fill(struct conn *c)
{
    c->server->stats.bytes_out += c->out.len;
    if (!c->tls) {
        if (!c->out.len) return false;
        struct buf spare = c->sending;
        c->sending = c->out;
        c->out = spare;
        return true;
    }
    if (c->out.len) tls_write(c->tls, &c->out);
    size_t waited = tls_waiting(c->tls);
    if (!tls_seal(c->tls, &c->sending)) return false;
    c->queued_total += c->sending.len - (waited - tls_waiting(c->tls));
    return true;
}

/* Writes `sending` to the kernel, and the rest through libuv.  @return < 0 when the connection is lost. */
static int sending_send(struct conn *c)
{
    uv_buf_t b = uv_buf_init(c->sending.data, (unsigned)(c->sending.len < (1u << 30) ? c->sending.len : (1u << 30)));
    int n = uv_try_write(stream_of(c), &b, 1);
    if (n < 0 && n != UV_EAGAIN) return n;
    size_t taken = n > 0 ? (size_t)n : 0;
    if (taken == c->sending.len) {
        sending_done(c);
        return 0;
    }
    b = uv_buf_init(c->sending.data + taken, (unsigned)(c->sending.len - taken));
    return uv_write(&c->write, stream_of(c), &b, 1, on_written);
}

static void sock_flush(struct conn *c)
{
    if (c->local) {
        local_flushed(c);
        return;
    }
    for (int round = 0; round < ROUNDS && !c->sending.len && sending_fill(c); round++) {
        if (sending_send(c) < 0) {
            conn_lost(c);
            return;
        }
    }
    if (c->tls && tls_broken(c->tls)) {
        conn_lost(c);
        return;
    }
    if (c->tls && !c->sending.len && tls_pending(c->tls)) sock_wake(c);
    conn_flushed(c);
}

/* Sends the final TLS messages, if the socket accepts them without waiting. */
static void send_last_messages(struct conn *c)
{
    if (!c->sending.len && sending_fill(c)) sending_send(c);
}

void sock_close_notify(struct conn *c)
{
    if (!c->tls) return;
    tls_close_notify(c->tls);
    send_last_messages(c);
}

/* One pass over the dirty list: connections that become dirty meanwhile wait for the next pass, so that no connection
 * can block the loop with its own pipelined requests.  The idle handle then keeps the poll from sleeping. */
void sock_flush_all(struct http_server *s)
{
    int n = 0;
    for (struct conn *c = s->dirty; c; c = c->next_dirty) n++;
    for (; n > 0 && s->dirty; n--) sock_flush(dirty_pop(s));
}

/* ---- timer, opening, closing ----------------------------------------------------------------------------------- */

static void on_timer(uv_timer_t *timer)
{
    conn_timeout((struct conn *)((char *)timer - offsetof(struct conn, timer)));
}

void sock_timer(struct conn *c, int ms)
{
    if (c->state == CONN_CLOSED) return;
    if (ms > 0) {
        uv_timer_start(&c->timer, on_timer, (uint64_t)ms, 0);
    } else {
        uv_timer_stop(&c->timer);
    }
}

void sock_send_and_close(struct conn *c, const char *text, size_t n)
{
    uv_buf_t b = uv_buf_init((char *)(uintptr_t)text, (unsigned)n);
    if (!c->tls && !sock_queued(c)) uv_try_write(stream_of(c), &b, 1);
}

static void on_shutdown(uv_shutdown_t *req, int status)
{
    (void)req, (void)status; /* result ignored: the linger timer closes the connection */
}

void sock_shutdown(struct conn *c)
{
    sock_close_notify(c);
    uv_shutdown(&c->shutdown, stream_of(c), on_shutdown);
}

static void on_closed(struct conn *c)
{
    if (--c->open_handles) return;
    struct http_server *s = c->server;
    bool refused = c->refused;
    tls_link_free(c->tls);
    conn_free(c);
    server_conn_closed(s, refused);
}

static void on_tcp_closed(uv_handle_t *h)
{
    on_closed(conn_of_tcp(h));
}

static void on_timer_closed(uv_handle_t *h)
{
    on_closed((struct conn *)((char *)h - offsetof(struct conn, timer)));
}

void sock_close(struct conn *c)
{
    sock_forget(c);
    uv_close((uv_handle_t *)&c->tcp, on_tcp_closed);
    uv_close((uv_handle_t *)&c->timer, on_timer_closed);
}

int sock_open(struct conn *c, uv_stream_t *listener)
{
    uv_timer_init(c->server->loop, &c->timer);
    int rc = uv_tcp_init(c->server->loop, &c->tcp);
    if (rc < 0) return rc; /* libuv: cannot happen without flags; the caller treats it as fatal */
    c->open_handles = 2;
    if (c->server->config.tls) c->tls = tls_link_new(c->server->config.tls);
    rc = uv_accept(listener, stream_of(c));
    if (rc == 0 && c->server->config.tls && !c->tls) rc = UV_ENOMEM; /* taken off the queue, to be closed */
    if (rc == 0) {
        uv_tcp_nodelay(&c->tcp, 1);
        int room = SEND_BUFFER; /* the default buffers megabytes for a client that has stopped reading */
        uv_send_buffer_size((uv_handle_t *)&c->tcp, &room);
        struct sockaddr_storage from;
        int n = sizeof from;
        if (uv_tcp_getpeername(&c->tcp, (struct sockaddr *)&from, &n) == 0)
            peer_address((struct sockaddr *)&from, c->peer);
        uv_tcp_keepalive(&c->tcp, 1, 60); /* detects a client machine that vanished while waiting */
    }
    return rc;
}
