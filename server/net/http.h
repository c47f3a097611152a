/* One HTTP exchange as a handler sees it: the request is complete (head and body), the answer is sent with the calls
 * below.  Everything here runs on the loop thread.
 *
 * Life.  A connection (conn.c) parses with llhttp, collects the body up to the route's limit, finds the route and calls
 * its handler with a `struct http_req`.  The handler answers at once (http_reply) or later, or streams
 * (http_start, http_write..., http_end).  The exchange ends when the answer was handed to the socket, or when the
 * client went away; either way `on_close` (if set) is called exactly once, and after it the pointer is dead.  The next
 * pipelined request is dispatched only then.  Memory from http_alloc lives until on_close returns.
 *
 * on_close and on_drain never run inside a call of the functions below (a handler may still touch its request after
 * http_reply), and no http_* function but http_header may be called from on_close.  A client that ends its sending side
 * while it is owed an answer counts as gone: a half-close looks the same as a client that hung up. */
#ifndef TANDEM_SERVER_NET_HTTP_H
#define TANDEM_SERVER_NET_HTTP_H

#include "server/memory/reservation.h"
#include "server/net/request_id.h"
#include "server/net/request_note.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum http_method { HTTP_M_GET, HTTP_M_HEAD, HTTP_M_POST, HTTP_M_PUT, HTTP_M_DELETE, HTTP_M_OPTIONS, HTTP_M_OTHER };

struct http_route;
struct admission;
struct key;
struct tls;

struct http_req {
    /* read-only for the handler; owned by the connection until on_close */
    enum http_method method; /* HEAD is dispatched to the GET handler; its body is dropped on the way out */
    const char *path;        /* percent-decoded, no query, NUL-terminated */
    const char *param;       /* what stands in the path for the route's {...}; "" when it has none */
    const char *query;       /* raw, without '?'; "" when none */
    const char *body;        /* body_len bytes and a NUL */
    size_t body_len;
    uint64_t received;              /* clock_now() when the head was complete */
    void *app;                      /* what the server was set up with (struct http_server_config.app) */
    struct admission *admission;    /* likewise */
    const struct http_route *route; /* NULL: none was found */
    char id[REQUEST_ID_MAX + 1];    /* X-Request-Id, the client's or made; sent back with every answer */
    struct trace_parent trace;      /* of the header traceparent */
    struct request_note note;       /* the handler's: what it did, for the log */
    const char *peer;               /* the client's address, as peer_address writes it (peer.h) */
    const struct key *key;          /* whose request it is, set by permit; NULL: none was asked for */

    /* the handler's */
    void *user;
    void (*on_body)(struct http_req *, const char *p, size_t n); /* set by a route's begin; see struct http_route */
    /* The answer is complete: called once, inside http_reply or http_end, so it may call no http_* function.  What was
     * kept for the work is given back here, not when the client has taken the answer.  Not called where there is none:
     * on_close always is. */
    void (*on_answer)(struct http_req *);
    void (*on_close)(struct http_req *); /* the exchange is over; req->user may be freed */
    void (*on_drain)(struct http_req *); /* the write queue fell below the low-water mark after http_write said false */
};

/* Before the answer begins: another id in place of one that was made here; a client's own stays.  Copied. */
void http_set_id(struct http_req *, const char *id);
/* value of a request header, NULL when absent; name in any case.  Repeated headers: the first. */
const char *http_header(const struct http_req *, const char *name);
/* zeroed memory that lives as long as the exchange */
void *http_alloc(struct http_req *, size_t bytes);

/* A request's body as its own owner has it, with what is reserved for it: zero-initialise, http_body_free. */
struct http_body {
    char *data; /* len bytes and a NUL; NULL: empty */
    size_t len;
    struct reservation held;
};

/* Moves the body out of the request, which then has none: for work on the pool, which outlives a client that leaves. */
void http_take_body(struct http_req *, struct http_body *);
void http_give_body(struct http_req *, struct http_body *); /* back again */
void http_body_free(struct http_body *);

/* Adds a header to the answer; before http_reply or http_start.  Copied.  CR and LF in either are dropped; so are
 * Content-Length, Transfer-Encoding and Connection, which are the connection's business. */
void http_set_header(struct http_req *, const char *name, const char *value);

/* The whole answer.  `type` is the Content-Type (NULL: none).  Copies the body. */
void http_reply(struct http_req *, int status, const char *type, const void *body, size_t len);
/* {"error": message, "error_type": type} in TGI's shape, below /v1/ in OpenAI's; message is escaped. */
__attribute__((format(printf, 4, 5))) void http_reply_error(struct http_req *, int status, const char *type,
                                                            const char *fmt, ...);

/* What OpenAI's errors with this status have as their type. */
const char *http_openai_type(int status);

/* A streamed answer: chunked on HTTP/1.1, until-close on 1.0. */
void http_start(struct http_req *, int status, const char *type);
/* Copies and queues.  False: the client reads too slowly, stop producing until on_drain. */
bool http_write(struct http_req *, const void *data, size_t len);
/* Requests one more on_drain, after the bytes written so far were sent: for replies produced in chunks, so that other
 * connections are served between two of them. */
void http_want_drain(struct http_req *);
void http_end(struct http_req *);
/* An answer has begun, or none is possible any more. */
bool http_answered(const struct http_req *);
/* Gives the connection up at once (after an error in the middle of a stream). */
void http_abort(struct http_req *);

/* ---- a body that is not collected (struct http_route.begin) ---- */

/* Stops reading the body, or goes on: for a sink that is slower than the client.  What was read already (64 KiB at
 * most) may still come after a pause.  Not from on_close. */
void http_body_pause(struct http_req *, bool pause);
/* The rest of the body is not wanted.  True: the handler answers now, the connection closes after it.  False: the body
 * was complete or refused already, and whoever saw that answers. */
bool http_body_stop(struct http_req *);

/* ---- routes ---------------------------------------------------------------------------------------------------- */

/* Who may call a route, where the daemon has keys (auth.h).  A row that says nothing is an administrator's. */
enum route_role {
    ROUTE_ADMIN,
    ROUTE_TRAIN,
    ROUTE_USER,
    ROUTE_PAGE, /* a browser, whoever it is (it gets a page without data); others as ROUTE_USER */
    ROUTE_OPEN, /* everybody */
};

struct http_route {
    enum http_method method;
    const char *path; /* exact; a trailing '*' matches any rest; "{id}" as a segment matches any one, see param */
    void (*handler)(struct http_req *);
    size_t body_limit; /* 0: the server's default */
    /* Not NULL: a body is not collected but handed to req->on_body, which begin sets, as it comes; the handler runs
     * after its last byte, with body_len 0.  Without a body begin is not called.  on_close is called from begin on,
     * also when the body was cut off.  The body's time limit counts from its latest byte. */
    void (*begin)(struct http_req *);
    enum route_role role;
    /* Not NULL: asked before a body is read that did not come with its head, of `length` bytes (0: not known).  True:
     * it has answered, and the connection ends after that.  For refusals that do not depend on the body. */
    bool (*gate)(struct http_req *, uint64_t length);
};

/* ---- the server ------------------------------------------------------------------------------------------------ */

struct http_server_config {
    const char *host; /* "127.0.0.1", "::1", "0.0.0.0" */
    int port;         /* 0: any; http_server_port tells */
    int listen_fd; /* a listening TCP socket, taken over, in place of host and port; 0: none.  Its clients can wait, so
                      nothing is accepted before http_server_accept */
    const struct http_route *routes;
    int n_routes;
    void *app;
    struct admission *admission; /* what decides about its requests (access/admission.h); NULL: no route asks it */
    /* Asked once a head is good and its route known, before any of the body is read; NULL: everything is permitted.
     * May set req->key, which release_key (then not NULL) gets back with the end of the request.  False: it has
     * answered (http_reply...), and so the request is over. */
    bool (*permit)(void *arg, struct http_req *);
    void *permit_arg;
    void (*release_key)(const struct key *);
    struct tls *tls;              /* NULL: plain HTTP; stays the caller's */
    bool local_only;              /* refuse to listen where other machines could connect */
    int max_connections;          /* beyond: an idle one makes room, else 503 with Retry-After, closed, but for
                                     routes that are open to all */
    size_t max_header_bytes;      /* request line and headers; 431 / 414 beyond */
    size_t max_body_bytes;        /* 413 beyond */
    size_t max_buffered_bytes;    /* bodies of all connections together; 503 beyond */
    int header_timeout_ms;        /* the whole head must be in by then; 408 */
    int body_timeout_ms;          /* likewise the body; 408 */
    int idle_timeout_ms;          /* keep-alive without a request: closed */
    int write_timeout_ms;         /* no byte taken by the client for so long: closed */
    size_t high_water, low_water; /* bytes queued on one connection */
    const char *cors_origin;      /* "*", or one; NULL: no CORS headers */
};

struct http_server_stats {
    uint64_t accepted, rejected, requests, bytes_in, bytes_out;
    uint64_t evicted;   /* idle connections closed to make room */
    uint64_t no_memory; /* requests and connections refused for want of memory */
    int open;
};

struct uv_loop_s;
struct http_server;
struct err;

void http_server_defaults(struct http_server_config *);
struct http_server *http_server_open(struct uv_loop_s *, const struct http_server_config *, struct err *);
int http_server_port(const struct http_server *);
const struct http_server_stats *http_server_stats(const struct http_server *);
/* Called for every finished exchange: for metrics and the access log.  status 0: the client left before an answer. */
void http_server_on_done(struct http_server *,
                         void (*fn)(void *app, const struct http_req *, int status, uint64_t duration_ns));
/* Begins to accept connections of a listen_fd; harmless again. */
void http_server_accept(struct http_server *);
/* Takes over max_*, *_timeout_ms and cors_origin of `config` but for max_buffered_bytes: they hold from the next
 * request, head, body or wait on. */
void http_server_reconfigure(struct http_server *, const struct http_server_config *config);
/* The end is near: every answer is its connection's last, and idle connections close within a second.  New ones are
 * still accepted, so that their clients hear why they are refused; with `accepting` false they wait in the listening
 * socket for whoever else has it. */
void http_server_wind_down(struct http_server *, bool accepting);
/* Stops accepting, closes idle connections, answers what runs with Connection: close; calls done(arg) when the last
 * connection is gone, perhaps at once.  Does nothing when the server drains or closes already. */
void http_server_drain(struct http_server *, void (*done)(void *), void *arg);
/* Closes everything now (on_close of what runs is called within); done(arg) when the handles are closed; then
 * http_server_free.  Not from inside a handler or its callbacks.  After it, a drain's done is not called any more. */
void http_server_close(struct http_server *, void (*done)(void *), void *arg);
void http_server_free(struct http_server *);

#endif
