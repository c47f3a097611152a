/* The server: its socket, its connections as a whole, and its end.  Loop thread; owns struct http_server.
 *
 * At the connection limit the connection that has been idle for longest since its last answer is closed: clients that
 * only keep connections open, which takes no key, must not lock out those with a request, such as probes of /health.
 * Where no connection is idle (those without a first request end by header_timeout_ms), a new client gets a 503 with
 * the reason, unless it requests a route that is open to all (probes).  These answers need connections too, so at most
 * REFUSING_MAX exist at a time; beyond that, a connection is closed as soon as it is accepted.
 *
 * File descriptors are a second limit of the same kind: the kernel hands out the lowest free one, so a connection with
 * one of the last FILES_KEPT shows that all below are in use.  Those are left to files and to the answers above. If
 * they run out anyway, libuv has one in reserve to accept and close with, so the loop does not spin. */
#include "server/net/conn.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { REFUSING_MAX = 64, BACKLOG = 511 };
enum { FILES_KEPT = 128, FILES_FEW = 256 };

void http_server_defaults(struct http_server_config *config)
{
    *config = (struct http_server_config){
        .host = "127.0.0.1",
        .port = 3000,
        .max_connections = 1024,
        .max_header_bytes = 16 * 1024,
        .max_body_bytes = 2 * 1000 * 1000,
        .max_buffered_bytes = 256 * 1000 * 1000,
        .header_timeout_ms = 10 * 1000,
        .body_timeout_ms = 30 * 1000,
        .idle_timeout_ms = 75 * 1000,
        .write_timeout_ms = 30 * 1000,
        .high_water = 256 * 1024,
        .low_water = 64 * 1024,
    };
}

/* ---- accepting ------------------------------------------------------------------------------------------------- */

static void log_accept_error(struct http_server *s, int code)
{
    uint64_t now = clock_now();
    if (s->last_accept_error && now - s->last_accept_error < 1000000000u) return;
    s->last_accept_error = now;
    log_warn("cannot accept a connection error=\"%s\"", uv_strerror(code));
}

/* Closes the connection that has been idle for longest, of those that were served before.  @return false when there is
 * none.  Linear in the connections, but called only at the limit. */
static bool make_room(struct http_server *s)
{
    struct conn *oldest = NULL;
    for (struct conn *c = s->conns; c; c = c->next)
        if (!c->refused && c->state == CONN_IDLE && c->idle_since && (!oldest || c->idle_since < oldest->idle_since))
            oldest = c;
    if (oldest) conn_drop(oldest);
    if (oldest) s->stats.evicted++;
    return oldest != NULL;
}

/* @return whether this new connection has one of the last descriptors.  A process with few of them reserves none. */
static bool files_are_short(const struct conn *c)
{
    struct rlimit limit;
    uv_os_fd_t fd;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur < FILES_FEW) return false;
    rlim_t kept = limit.rlim_cur / 4 < FILES_KEPT ? limit.rlim_cur / 4 : FILES_KEPT;
    return uv_fileno((const uv_handle_t *)&c->tcp, &fd) == 0 && (rlim_t)fd >= limit.rlim_cur - kept;
}

/* Static handles for connections that memory does not suffice for: they are accepted and closed. */
static struct refused_conn {
    uv_tcp_t tcp;
    bool busy;
} refused_conn[8];

static void on_refused_closed(uv_handle_t *h)
{
    ((struct refused_conn *)h)->busy = false;
}

/* @return false when all of them are in use. */
static bool refuse_for_memory(struct http_server *s, uv_stream_t *listener)
{
    for (size_t i = 0; i < sizeof refused_conn / sizeof *refused_conn; i++) {
        struct refused_conn *t = &refused_conn[i];
        if (t->busy || uv_tcp_init(s->loop, &t->tcp)) continue;
        t->busy = true;
        s->stats.no_memory++;
        uv_accept(listener, (uv_stream_t *)&t->tcp);
        uv_close((uv_handle_t *)&t->tcp, on_refused_closed);
        return true;
    }
    return false;
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct http_server *s = listener->data;
    if (status < 0) {
        log_accept_error(s, status);
        return;
    }
    bool full = s->stats.open >= s->config.max_connections && !make_room(s);
    if (!mem_available(CONN_ROOM) && refuse_for_memory(s, listener)) return;
    struct conn *c = conn_new(s);
    c->refused = full;
    int rc = sock_open(c, listener);
    CHECK(c->open_handles == 2);
    if (rc == 0 && !full && files_are_short(c)) {
        log_accept_error(s, UV_EMFILE);
        c->refused = !make_room(s);
    }
    if (c->refused) {
        s->refusing++;
    } else {
        s->stats.open++;
        s->stats.accepted++;
    }
    if (rc < 0) {
        log_accept_error(s, rc);
        conn_drop(c);
    } else if (c->refused && (s->refusing > REFUSING_MAX || s->config.tls)) {
        s->stats.rejected++;
        conn_drop(c); /* under TLS an answer would need a handshake */
    } else {
        conn_begin(c);
    }
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

/* @return whether only this machine can connect:  127.0.0.0/8, ::1, the former written as IPv6, and sockets that are
 * files. */
static bool is_local(int fd)
{
    struct sockaddr_storage at = {0};
    socklen_t n = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &n) != 0) return false;
    if (at.ss_family == AF_UNIX) return true;
    if (at.ss_family == AF_INET) return ntohl(((struct sockaddr_in *)&at)->sin_addr.s_addr) >> 24 == 127;
    if (at.ss_family != AF_INET6) return false;
    const struct in6_addr *a = &((struct sockaddr_in6 *)&at)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(a) || (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127);
}

/* Checks the socket's address, not the configured name: a name may resolve to anything, and a socket may be
 * inherited. */
static int check_reach(int fd, const struct http_server_config *config, struct err *e)
{
    if (!config->local_only || is_local(fd)) return 0;
    return err_set(
        e, ERR_INVALID,
        "%s can be reached from other machines, and there are no API keys: anybody could generate, train and "
        "delete.  Make a key (tandem key new --name me --role admin --api-keys FILE) and serve with "
        "--api-keys FILE; or say --allow-open where something else keeps strangers out",
        config->host);
}

/* Uses plain system calls, before any libuv handle exists, so that a failure leaves nothing for the loop to close. */
static int bind_socket(const struct http_server_config *config, struct err *e)
{
    char port[16];
    snprintf(port, sizeof port, "%d", config->port);
    struct addrinfo *found = NULL;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    int rc = getaddrinfo(config->host, port, &hints, &found);
    if (rc != 0) {
        err_set(e, ERR_INVALID, "cannot listen on \"%s\": %s", config->host, gai_strerror(rc));
        return -1;
    }
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int on = 1;
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) != 0 ||
        ((rc = check_reach(fd, config, e)) == 0 && listen(fd, BACKLOG) != 0)) {
        rc = err_set(e, ERR_IO, "cannot listen on %s port %d: %s", config->host, config->port, strerror(errno));
    }
    if (rc && fd >= 0) {
        close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

static void on_prepare(uv_prepare_t *h);
static void on_check(uv_check_t *h);
static void on_idle(uv_idle_t *h)
{
    (void)h; /* needed only because it is active */
}

static void flush(struct http_server *s)
{
    sock_flush_all(s);
    if (s->closing) return;
    if (s->dirty || s->stop) {
        uv_idle_start(&s->idle, on_idle);
    } else {
        uv_idle_stop(&s->idle);
    }
}

static void on_prepare(uv_prepare_t *h)
{
    struct http_server *s = h->data;
    if (s->stop == POLL_ONCE) s->stop = POLLED;
    flush(s);
}

static void stop_listening(struct http_server *s);

static void on_check(uv_check_t *h)
{
    struct http_server *s = h->data;
    if (s->stop == POLLED) {
        s->stop = KEEP_LISTENING;
        stop_listening(s);
    }
    flush(s);
}

/* These three only serve connections; they must not keep the loop alive by themselves. */
static void start_flushing(struct http_server *s)
{
    uv_prepare_init(s->loop, &s->prepare);
    uv_check_init(s->loop, &s->check);
    uv_idle_init(s->loop, &s->idle);
    s->prepare.data = s->check.data = s->idle.data = s;
    uv_prepare_start(&s->prepare, on_prepare);
    uv_check_start(&s->check, on_check);
    uv_unref((uv_handle_t *)&s->prepare);
    uv_unref((uv_handle_t *)&s->check);
    uv_unref((uv_handle_t *)&s->idle);
}

struct http_server *http_server_open(struct uv_loop_s *loop, const struct http_server_config *config, struct err *e)
{
    bool listens = config->listen_fd || config->host;
    int fd = config->listen_fd || !listens ? config->listen_fd : bind_socket(config, e);
    if (fd < 0 || (config->listen_fd && check_reach(fd, config, e))) return NULL;
    /* libuv writes without MSG_NOSIGNAL: a client that disconnected would kill the process. */
    struct sigaction old;
    if (sigaction(SIGPIPE, NULL, &old) == 0 && old.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
    struct http_server *s = mem_zalloc(sizeof *s);
    s->config = *config;
    s->cors_origin = config->cors_origin ? mem_strdup(config->cors_origin) : NULL;
    s->config.host = s->config.cors_origin = NULL; /* owned by the caller */
    s->loop = loop;
    s->dirty_tail = &s->dirty;
    head_settings(&s->parser_settings);
    if (listens) {
        CHECK(uv_tcp_init(loop, &s->listener) == 0);
        s->listener.data = s;
        CHECK(uv_tcp_open(&s->listener, fd) == 0);
        s->listening = true;
        if (!config->listen_fd) http_server_accept(s);
    }
    start_flushing(s);
    s->open_handles = listens ? 4 : 3;
    return s;
}

void http_server_reconfigure(struct http_server *s, const struct http_server_config *config)
{
    struct http_server_config *c = &s->config;
    free(s->cors_origin);
    s->cors_origin = config->cors_origin ? mem_strdup(config->cors_origin) : NULL;
    c->max_connections = config->max_connections;
    c->max_header_bytes = config->max_header_bytes;
    c->max_body_bytes = config->max_body_bytes;
    c->header_timeout_ms = config->header_timeout_ms;
    c->body_timeout_ms = config->body_timeout_ms;
    c->idle_timeout_ms = config->idle_timeout_ms;
    c->write_timeout_ms = config->write_timeout_ms;
}

void http_server_accept(struct http_server *s)
{
    if (s->listening) CHECK(uv_listen((uv_stream_t *)&s->listener, BACKLOG, on_connection) == 0);
}

int http_server_port(const struct http_server *s)
{
    struct sockaddr_storage at;
    int n = sizeof at;
    if (!s->listening || uv_tcp_getsockname(&s->listener, (struct sockaddr *)&at, &n) != 0) return 0;
    return ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                          : ((struct sockaddr_in *)&at)->sin_port);
}

const struct http_server_stats *http_server_stats(const struct http_server *s)
{
    return &s->stats;
}

void http_server_on_done(struct http_server *s, void (*fn)(void *, const struct http_req *, int, uint64_t))
{
    s->on_done = fn;
}

/* ---- ending ---------------------------------------------------------------------------------------------------- */

/* A connection or handle has closed: completes a drain or close when it was the last. */
static void server_settle(struct http_server *s)
{
    if (s->conns) return;
    if (s->closing) {
        void (*closed)(void *) = s->open_handles == 0 ? s->closed : NULL;
        if (!closed) return;
        s->closed = NULL;
        closed(s->closed_arg);                       /* may free s */
    } else if (s->drained && s->open_handles == 3) { /* the listener is closed, and nobody connects any more */
        void (*drained)(void *) = s->drained;
        s->drained = NULL;
        drained(s->drained_arg);
    }
}

void server_conn_closed(struct http_server *s, bool refused)
{
    if (refused) {
        s->refusing--;
    } else {
        s->stats.open--;
    }
    server_settle(s);
}

static void on_handle_closed(uv_handle_t *h)
{
    struct http_server *s = h->data;
    s->open_handles--;
    server_settle(s);
}

static void stop_listening(struct http_server *s)
{
    if (!s->listening) return;
    s->listening = false;
    uv_close((uv_handle_t *)&s->listener, on_handle_closed);
}

void http_server_wind_down(struct http_server *s, bool accepting)
{
    s->winding_down = true;
    if (!accepting) stop_listening(s);
    for (struct conn *c = s->conns; c; c = c->next) conn_wind_down(c);
}

void http_server_drain(struct http_server *s, void (*done)(void *), void *arg)
{
    if (s->draining || s->closing) return;
    s->draining = true;
    s->drained = done;
    s->drained_arg = arg;
    if (!s->winding_down) http_server_wind_down(s, true);
    if (s->listening) s->stop = POLL_ONCE;
    flush(s);
    for (struct conn *c = s->conns; c; c = c->next) conn_drain(c);
    server_settle(s); /* possibly nothing is left to wait for */
}

void http_server_close(struct http_server *s, void (*done)(void *), void *arg)
{
    CHECK(!s->closing);
    s->closing = true;
    s->drained = NULL;
    s->closed = done;
    s->closed_arg = arg;
    stop_listening(s);
    struct conn *next;
    for (struct conn *c = s->conns; c; c = next) {
        next = c->next;
        conn_drop(c);
    }
    uv_close((uv_handle_t *)&s->prepare, on_handle_closed);
    uv_close((uv_handle_t *)&s->check, on_handle_closed);
    uv_close((uv_handle_t *)&s->idle, on_handle_closed);
}

void http_server_free(struct http_server *s)
{
    if (!s) return;
    CHECK(s->closing && s->open_handles == 0 && !s->conns);
    free(s->cors_origin);
    free(s);
}
