/* Internals of the HTTP server, shared by conn.c, head.c, http.c, sock.c and listen.c only.  Handlers use http.h.
 *
 *      listen.c  accepts, counts, drains, closes              owns struct http_server
 *      sock.c    bytes in, bytes out, one timer (libuv)       owns the handles in struct conn; TLS stays in it (tls.h)
 *      conn.c    what a connection does next                  owns the rest of struct conn
 *      head.c    a complete request head -> struct http_req;  http.c: the answer
 *
 * conn.c, head.c and http.c reach the socket only through the sock_* functions below and receive events only through
 * the conn_* functions, so tests/fuzz/fuzz_http.c can replace sock.c.  All on the loop thread. */
#ifndef TANDEM_SERVER_NET_CONN_H
#define TANDEM_SERVER_NET_CONN_H

#include "engine/base/buf.h"
#include "server/memory/reservation.h"
#include "server/net/http.h"
#include "server/net/peer.h"
#include "server/net/route.h"
#include "server/net/wire.h"

#include <llhttp.h>
#include <uv.h>

enum conn_state {
    CONN_IDLE,   /* between requests */
    CONN_HEAD,   /* receiving the request line or headers */
    CONN_BODY,   /* receiving the body */
    CONN_RUN,    /* the request is being answered */
    CONN_LINGER, /* our side is closed; reads on, for at most LINGER_MS, so that no RST overtakes the answer */
    CONN_CLOSED, /* sock_close was called */
};

enum conn_answer { ANSWER_NONE, ANSWER_STREAM, ANSWER_DONE };

/* What the timer checks while a request is being answered. */
enum conn_watch { WATCH_NOTHING, WATCH_WRITES, WATCH_PEER };

struct header {
    const char *name, *value; /* NUL-terminated, in conn.head */
};

struct conn {
    struct http_server *server;
    struct conn *prev, *next; /* server->conns */
    char peer[PEER_ADDRESS];

    enum conn_state state;
    bool eof;            /* the client has closed its sending side */
    bool refused;        /* beyond max_connections: answered with 503 */
    bool local;          /* local.c's: without a socket, and not in server->conns */
    uint64_t idle_since; /* clock_now() when its newest exchange ended; 0: none has */

    /* bytes read but not yet parsed: in.data[in_at, in.len).  wire has scanned the first `scanned` of them. */
    struct buf in;
    size_t in_at, scanned;
    struct wire wire;

    /* the request */
    struct http_req req;
    struct buf head; /* its bytes; head.c splits them into NUL-terminated strings */
    struct buf body;
    struct reservation held; /* for body */
    llhttp_t parser;
    struct header headers[HTTP_MAX_HEADERS];
    int n_headers;
    struct route_match match;
    size_t body_limit;
    uint64_t length; /* of the body; unknown when chunked */
    bool chunked, expects_continue, http10;
    bool message_complete; /* reported by llhttp */
    bool streamed, paused; /* the body goes to req.on_body; delivery is paused */
    uint64_t body_seen;    /* bytes of it so far */
    bool own_id;           /* req.id was generated here */
    bool crowded;          /* the body exceeds what the bodies of other connections leave of max_buffered_bytes */
    struct err starved;    /* memory for the body could not be reserved; code 0: no such error */
    struct arena_block *arena;

    /* the answer */
    enum conn_answer answer;
    int status;
    bool keep;      /* the connection may be used again after it */
    bool head_only; /* HEAD: the body is dropped */
    bool bodyless;  /* 204, 304 */
    bool stream_chunked;
    bool want_drain; /* http_write returned false */
    bool aborted;
    uint64_t discarded; /* bytes read while lingering */
    struct buf extra;   /* http_set_header's lines */
    enum conn_watch watch;
    uint64_t taken_mark; /* sock_acked when the timer was set */

    /* sock.c */
    uv_tcp_t tcp;
    uv_timer_t timer;
    uv_write_t write;
    uv_shutdown_t shutdown;
    struct buf out;        /* collected since the last flush */
    struct buf sending;    /* in flight; untouched until written */
    uint64_t queued_total; /* all bytes ever passed to sock_write, plus the overhead of TLS */
    struct tls_link *tls;  /* NULL: plain */
    bool reading, dirty;
    int open_handles;
    struct conn *next_dirty;
};

struct http_server {
    struct http_server_config config;
    char *cors_origin; /* owned; NULL: none */
    uv_loop_t *loop;
    llhttp_settings_t parser_settings;
    struct http_server_stats stats;
    void (*on_done)(void *, const struct http_req *, int, uint64_t);

    struct conn *conns;
    size_t buffered; /* bytes in the bodies of all connections */
    struct conn *dirty, **dirty_tail;
    int refusing; /* connections that are only answered with 503 */

    uv_tcp_t listener;
    uv_prepare_t prepare;
    uv_check_t check;
    uv_idle_t idle;
    int open_handles;
    bool listening, winding_down, draining, closing;
    enum { KEEP_LISTENING, POLL_ONCE, POLLED } stop; /* accepts what has connected before it stops listening */
    void (*drained)(void *), (*closed)(void *);
    void *drained_arg, *closed_arg;
    uint64_t last_accept_error; /* accept errors are logged once a second */

    char read_bytes[65536]; /* libuv fills it and delivers it at once, so all connections can share it */
};

/* Why a request is not served. */
struct refusal {
    int status;
    const char *type;
    char text[256];
};

/* ---- conn.c ---- */
enum { CONN_ROOM = 64 * 1024 }; /* memory that must be available when a connection or a request begins */
struct conn *conn_new(struct http_server *);
void conn_free(struct conn *); /* once its handles are closed */
void conn_begin(struct conn *);
void conn_input(struct conn *, const char *p, size_t n);
void conn_eof(struct conn *);
void conn_lost(struct conn *); /* reset, or a write failed */
void conn_timeout(struct conn *);
void conn_flushed(struct conn *); /* the collected output was written, as far as the socket accepts it */
void conn_wind_down(struct conn *);
void conn_drain(struct conn *);
void conn_drop(struct conn *);
void conn_body_pause(struct conn *, bool pause); /* http.h */
bool conn_body_stop(struct conn *);
/* @return how many more bytes the connection wants to read now; 0: none. */
size_t conn_bytes_wanted(const struct conn *);

/* ---- head.c ---- */
void head_settings(llhttp_settings_t *);
/* conn.head holds a head that wire accepted.  Fills the request; @return false and *why when it cannot be served. */
bool head_parse(struct conn *, struct refusal *why);
__attribute__((format(printf, 3, 4))) bool refuse(struct refusal *, int status, const char *fmt, ...);

/* ---- http.c ---- */
void http_answer_refusal(struct conn *, const struct refusal *);
/* Fills req.id and req.trace from the request's headers.  headers false: they were not parsed; only an id is
 * generated. */
void http_name_request(struct conn *, bool headers);
void http_answer_options(struct conn *);
void http_arena_free(struct conn *);

/* ---- sock.c (or its replacement in tests) ---- */
void sock_write(struct conn *, const void *p, size_t n); /* collected, sent once per loop iteration */
void sock_wake(struct conn *);                           /* conn_flushed will be called in this iteration */
void sock_forget(struct conn *);                         /* undoes sock_wake */
size_t sock_queued(const struct conn *);                 /* bytes not yet accepted by the kernel */
uint64_t sock_acked(const struct conn *);                /* bytes the client's side has acknowledged, ever */
bool sock_peer_closed(const struct conn *);              /* only while reading is stopped */
void sock_read(struct conn *, bool on);
void sock_timer(struct conn *, int ms); /* replaces the running timer; 0: none */
void sock_shutdown(struct conn *);      /* closes our sending side */
void sock_send_and_close(struct conn *, const char *text,
                         size_t n);    /* sends now, without allocating; then sock_close */
void sock_close_notify(struct conn *); /* TLS close_notify, or a no-op */
void sock_close(struct conn *);        /* later: conn_free */

/* ---- local.c ---- */
void local_flushed(struct conn *); /* in the place of conn_flushed */

/* ---- between sock.c and listen.c ---- */
int sock_open(struct conn *, uv_stream_t *listener);
void sock_flush_all(struct http_server *);
void server_conn_closed(struct http_server *, bool refused);

#endif
