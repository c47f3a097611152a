/* The inside of the HTTP server, shared by conn.c, head.c, http.c, sock.c and listen.c only.  Handlers see http.h.
 *
 *      listen.c  accepts, counts, drains, closes              owns struct http_server
 *      sock.c    bytes in, bytes out, one timer (libuv)       owns the handles in struct conn; TLS stays in it (tls.h)
 *      conn.c    what a connection does next                  owns the rest of struct conn
 *      head.c    a complete request head -> struct http_req;  http.c: the answer
 *
 * conn.c, head.c and http.c reach the socket only by the sock_* functions below, and are told of events only by the
 * conn_* functions: tests/fuzz/fuzz_http.c puts itself in the place of sock.c.  All on the loop thread. */
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
    CONN_HEAD,   /* a request line or headers are coming in */
    CONN_BODY,   /* so is the body */
    CONN_RUN,    /* an answer is owed or on its way */
    CONN_LINGER, /* we said our last; reading on so that the client gets it (no RST), for LINGER_MS at most */
    CONN_CLOSED, /* sock_close was called */
};

enum conn_answer { ANSWER_NONE, ANSWER_STREAM, ANSWER_DONE };

/* What the timer is for while an answer is owed. */
enum conn_watch { WATCH_NOTHING, WATCH_WRITES, WATCH_PEER };

struct header {
    const char *name, *value; /* NUL-terminated, in conn.head */
};

struct conn {
    struct http_server *server;
    struct conn *prev, *next; /* server->conns */
    char peer[PEER_ADDRESS];

    enum conn_state state;
    bool eof;            /* the client will send no more */
    bool refused;        /* beyond max_connections: gets a 503 */
    uint64_t idle_since; /* clock_now() when its newest exchange ended; 0: none has */

    /* bytes read and not yet understood: in.data[in_at, in.len).  `scanned` of them are known to wire. */
    struct buf in;
    size_t in_at, scanned;
    struct wire wire;

    /* the request */
    struct http_req req;
    struct buf head; /* its bytes; cut into NUL-terminated pieces by head.c */
    struct buf body;
    struct reservation held; /* for body */
    llhttp_t parser;
    struct header headers[HTTP_MAX_HEADERS];
    int n_headers;
    struct route_match match;
    size_t body_limit;
    uint64_t length; /* of the body; unknown when chunked */
    bool chunked, expects_continue, http10;
    bool message_complete; /* llhttp's opinion */
    bool streamed, paused; /* the body goes to req.on_body; not now */
    uint64_t body_seen;    /* bytes of it so far */
    bool own_id;           /* req.id was made here */
    bool crowded;          /* the body did not fit beside those of the other connections */
    struct err starved;    /* there was no memory for it; code 0: there was */
    struct arena_block *arena;

    /* the answer */
    enum conn_answer answer;
    int status;
    bool keep;      /* the connection may be used again after it */
    bool head_only; /* HEAD: the body is dropped */
    bool bodyless;  /* 204, 304 */
    bool stream_chunked;
    bool want_drain; /* http_write said false */
    bool aborted;
    uint64_t discarded; /* bytes read while lingering */
    struct buf extra;   /* http_set_header's lines */
    enum conn_watch watch;
    uint64_t taken_mark; /* bytes the client had taken when the timer was set */

    /* sock.c */
    uv_tcp_t tcp;
    uv_timer_t timer;
    uv_write_t write;
    uv_shutdown_t shutdown;
    struct buf out;        /* collected since the last flush */
    struct buf sending;    /* in flight; untouched until written */
    uint64_t queued_total; /* all bytes ever given to sock_write, and what TLS made more of them */
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
    int refusing; /* connections that only get their 503 */

    uv_tcp_t listener;
    uv_prepare_t prepare;
    uv_check_t check;
    uv_idle_t idle;
    int open_handles;
    bool listening, winding_down, draining, closing;
    void (*drained)(void *), (*closed)(void *);
    void *drained_arg, *closed_arg;
    uint64_t last_complaint; /* accept errors are logged once a second */

    char read_bytes[65536]; /* libuv reads into it and hands it over at once, so one is enough */
};

/* Why a request is not served. */
struct refusal {
    int status;
    const char *type;
    char text[256];
};

/* ---- conn.c ---- */
enum { CONN_ROOM = 64 * 1024 }; /* memory that must be to be had when a connection or a request begins */
struct conn *conn_new(struct http_server *);
void conn_free(struct conn *); /* once its handles are closed */
void conn_begin(struct conn *);
void conn_input(struct conn *, const char *p, size_t n);
void conn_eof(struct conn *);
void conn_lost(struct conn *); /* reset, or a write failed */
void conn_timeout(struct conn *);
void conn_flushed(struct conn *); /* what was collected went out, as far as the socket takes it */
void conn_wind_down(struct conn *);
void conn_drain(struct conn *);
void conn_drop(struct conn *);
void conn_body_pause(struct conn *, bool pause); /* http.h */
bool conn_body_stop(struct conn *);
/* How many more bytes the connection wants to see now; 0: none. */
size_t conn_appetite(const struct conn *);

/* ---- head.c ---- */
void head_settings(llhttp_settings_t *);
/* conn.head holds a head that wire passed.  Fills the request; false and *why when it cannot be served. */
bool head_parse(struct conn *, struct refusal *why);
__attribute__((format(printf, 3, 4))) bool refuse(struct refusal *, int status, const char *fmt, ...);

/* ---- http.c ---- */
void http_answer_refusal(struct conn *, const struct refusal *);
/* Fills req.id and req.trace: from the request's headers, if these can be trusted, else the id alone. */
void http_name_request(struct conn *, bool headers);
void http_answer_options(struct conn *);
void http_arena_free(struct conn *);

/* ---- sock.c (or whoever stands in for it) ---- */
void sock_write(struct conn *, const void *p, size_t n); /* collected, sent once per loop iteration */
void sock_wake(struct conn *);                           /* conn_flushed will be called in this iteration */
size_t sock_queued(const struct conn *);                 /* bytes the kernel has not taken yet */
uint64_t sock_taken(const struct conn *);                /* bytes the client's side has acknowledged, ever */
bool sock_peer_left(const struct conn *);                /* asked only while reading is stopped */
void sock_read(struct conn *, bool on);
void sock_timer(struct conn *, int ms);                   /* replaces the one that runs; 0: none */
void sock_shutdown(struct conn *);                        /* our side is done */
void sock_say(struct conn *, const char *text, size_t n); /* at once, if that needs no memory; before sock_close */
void sock_bye(struct conn *);   /* under TLS says so, that the end is not taken for a cut; otherwise nothing */
void sock_close(struct conn *); /* later: conn_free */

/* ---- sock.c and listen.c to each other ---- */
int sock_open(struct conn *, uv_stream_t *listener);
void sock_flush_all(struct http_server *);
void server_conn_gone(struct http_server *, bool refused);

#endif
