/* One HTTP exchange as a handler sees it: the request is complete (head and body), and the functions below send the
 * answer.  Everything here runs on the loop thread.
 *
 * Lifetime.  A connection (conn.c) parses with llhttp, collects the body up to the route's limit, finds the route and
 * calls its handler with a `struct http_req`.  The handler answers at once (http_reply) or later, or streams
 * (http_start, http_write..., http_end).  The exchange ends when the answer has been written to the socket or the
 * client has disconnected.  In both cases `on_close` (if set) is called exactly once, and afterwards the pointer is
 * invalid.  Only then is the next pipelined request dispatched.  Memory from http_alloc lives until on_close returns.
 *
 * on_close and on_drain never run inside a call of the functions below (a handler may still touch its request after
 * http_reply), and no http_* function but http_header may be called from on_close.  A client that closes its sending
 * side before it is answered counts as disconnected: a half-close looks the same as a full close. */
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
    enum http_method method; /* HEAD is dispatched to the GET handler; the answer's body is dropped */
    const char *path;        /* percent-decoded, no query, NUL-terminated */
    const char *param;       /* the path's segment for the route's {...}; "" when the route has none */
    const char *query;       /* raw, without '?'; "" when none */
    const char *body;        /* body_len bytes and a NUL */
    size_t body_len;
    uint64_t received;              /* clock_now() when the head was complete */
    void *app;                      /* struct http_server_config.app */
    struct admission *admission;    /* likewise */
    const struct http_route *route; /* NULL: none was found */
    char id[REQUEST_ID_MAX + 1];    /* X-Request-Id, the client's or generated; returned with every answer */
    struct trace_parent trace;      /* from the header traceparent */
    struct request_note note;       /* filled by the handler for the log */
    const char *peer;               /* the client's address, as peer_address writes it (peer.h) */
    void *model;                    /* the model chosen for it (api/served_model.h); NULL: the default one */
    const struct key *key;          /* the API key of the request, set by permit; NULL: none is required */
    bool background;                /* nobody waits for the answer (local.h): its waits are not counted as latency */

    /* the handler's */
    void *user;
    void (*on_body)(struct http_req *, const char *p, size_t n); /* set by a route's begin; see struct http_route */
    /* The answer is complete.  Called once, inside http_reply or http_end, so it must not call any http_* function.
     * Releases the resources of the work now, rather than when the client has read the answer.  Not called when there
     * is no answer; on_close always is. */
    void (*on_answer)(struct http_req *);
    void (*on_close)(struct http_req *); /* the exchange is over; req->user may be freed */
    void (*on_drain)(struct http_req *); /* after http_write returned false: the queue is below low_water again */
};

/* Replaces a generated request id; an id sent by the client is kept.  Only before the answer begins.  Copied. */
void http_set_id(struct http_req *, const char *id);
/* @return the value of a request header, NULL when absent; the name is case-insensitive.  Repeated headers: the
 * first. */
const char *http_header(const struct http_req *, const char *name);
/* @return zeroed memory that lives as long as the exchange */
void *http_alloc(struct http_req *, size_t bytes);

/* A body detached from its request, with its memory reservation.  Zero-initialise; release with http_body_free. */
struct http_body {
    char *data; /* len bytes and a NUL; NULL: empty */
    size_t len;
    struct reservation held;
};

/* Moves the body out of the request, which then has none: for work on the pool, which may outlive the exchange. */
void http_take_body(struct http_req *, struct http_body *);
void http_return_body(struct http_req *, struct http_body *); /* moves it back */
void http_body_free(struct http_body *);

/* Adds a header to the answer; before http_reply or http_start.  Copied.  CR and LF in either are dropped.
 * Content-Length, Transfer-Encoding and Connection are ignored: the connection sets them. */
void http_set_header(struct http_req *, const char *name, const char *value);

/* Sends a whole answer.  type: the Content-Type (NULL: none).  Copies the body. */
void http_reply(struct http_req *, int status, const char *type, const void *body, size_t len);
/* @return whether a path's errors are in OpenAI's format: those below /v1/ (but Anthropic's), and vLLM's own route. */
bool http_speaks_openai(const char *path);
/* {"error": message, "error_type": type} in TGI's format, where http_speaks_openai in OpenAI's, at and below
 * /v1/messages in Anthropic's; message is escaped. */
__attribute__((format(printf, 4, 5))) void http_reply_error(struct http_req *, int status, const char *type,
                                                            const char *fmt, ...);

/* @return the type of OpenAI's errors with this status. */
const char *http_openai_type(int status);
/* {"type":"error","error":{"type":...,"message":...,"details":...}} as Anthropic's servers have it; details: JSON, or
 * NULL. */
void http_put_anthropic_error(struct buf *out, int status, const char *msg, const char *details);

/* Begins a streamed answer: chunked on HTTP/1.1, delimited by close on 1.0. */
void http_start(struct http_req *, int status, const char *type);
/* Copies and queues.  @return false when the client reads too slowly: stop producing until on_drain. */
bool http_write(struct http_req *, const void *data, size_t len);
/* Requests one more on_drain, after the bytes written so far were sent: for replies produced in chunks, so that other
 * connections are served between two of them. */
void http_want_drain(struct http_req *);
void http_end(struct http_req *);
/* @return whether an answer has begun or is no longer possible. */
bool http_answered(const struct http_req *);
/* Closes the connection at once (after an error in the middle of a stream). */
void http_abort(struct http_req *);

/* ---- a body that is not collected (struct http_route.begin) ---- */

/* Pauses or resumes reading the body, for a sink that is slower than the client.  Bytes already read (64 KiB at most)
 * may still be delivered after a pause.  Not from on_close. */
void http_body_pause(struct http_req *, bool pause);
/* Stops reading the body.  @return true: the handler answers now, and the connection closes afterwards; false: the body
 * was already complete or refused, and the answer comes from there. */
bool http_body_stop(struct http_req *);

/* ---- routes ---------------------------------------------------------------------------------------------------- */

/* Who may call a route, where the daemon has keys (auth.h).  The default of a row is the administrator's role. */
enum route_role {
    ROUTE_ADMIN,
    ROUTE_TRAIN,
    ROUTE_USER,
    ROUTE_PAGE, /* any browser (the page contains no data); other clients as ROUTE_USER */
    ROUTE_OPEN, /* everybody */
};

struct http_route {
    enum http_method method;
    const char *path; /* exact; a trailing '*' matches any rest; "{id}" as a segment matches any one, see param */
    void (*handler)(struct http_req *);
    size_t body_limit; /* 0: the server's default */
    /* Not NULL: the body is not collected but streamed to req->on_body, which begin sets; the handler runs after its
     * last byte, with body_len 0.  Not called for a request without a body.  Once begin has run, on_close is called
     * even when the body was cut off.  The body's timeout restarts with every byte. */
    void (*begin)(struct http_req *);
    enum route_role role;
    /* Not NULL: called before a body that did not arrive with the head is read; length: its bytes (0: unknown).  For
     * refusals that do not depend on the body.  @return true when it has answered; the connection then ends. */
    bool (*gate)(struct http_req *, uint64_t length);
    /* Not NULL: the handler uses a model, which http_server_config.dispatch chooses; the names of the body's fields
     * that may name it, separated by spaces; '?' before them: it need not be loaded. */
    const char *model;
};

/* ---- the server ------------------------------------------------------------------------------------------------ */

struct http_server_config {
    const char *host; /* "127.0.0.1", "::1", "0.0.0.0"; NULL: it listens nowhere, for local exchanges (local.h) only */
    int port;         /* 0: any; http_server_port returns it */
    int listen_fd;    /* a listening TCP socket to take over instead of host and port; 0: none.  Its clients can wait in
                         its backlog, so nothing is accepted before http_server_accept */
    const struct http_route *routes;
    int n_routes;
    void *app;
    struct admission *admission; /* admission control (access/admission.h); NULL: no route uses it */
    /* Called once a head is valid and its route known, before the body is read; NULL: everything is permitted.  May set
     * req->key, which is passed to release_key (then not NULL) when the request ends.  @return false when it has
     * answered (http_reply...) and the request is over. */
    bool (*permit)(void *arg, struct http_req *);
    void *permit_arg;
    void (*release_key)(const struct key *);
    /* Calls the handler of a route with `model`, now or later, or answers; NULL: it is called at once.  What it sets as
     * req->model is passed to release_model when the request has ended. */
    void (*dispatch)(struct http_req *, void (*handler)(struct http_req *), const char *fields);
    void (*release_model)(void *app, void *model);
    struct tls *tls;     /* NULL: plain HTTP; owned by the caller */
    bool local_only;     /* refuse to listen where other machines could connect */
    int max_connections; /* beyond: the longest idle connection is closed; if none is idle, 503 with Retry-After except
                            for open routes */
    size_t max_header_bytes;      /* request line and headers; 431 / 414 beyond */
    size_t max_body_bytes;        /* 413 beyond */
    size_t max_buffered_bytes;    /* bodies of all connections together; 503 beyond */
    int header_timeout_ms;        /* to receive the whole head; 408 */
    int body_timeout_ms;          /* to receive the body; 408 */
    int idle_timeout_ms;          /* keep-alive without a request: closed */
    int write_timeout_ms;         /* closed when the client reads no byte for this long */
    size_t high_water, low_water; /* bytes queued on one connection */
    const char *cors_origin;      /* "*", or one; NULL: no CORS headers */
};

struct http_server_stats {
    uint64_t accepted, rejected, requests, bytes_in, bytes_out;
    uint64_t evicted;   /* idle connections closed to make room */
    uint64_t no_memory; /* requests and connections refused because memory was short */
    int open;
};

struct uv_loop_s;
struct http_server;
struct err;

void http_server_defaults(struct http_server_config *);
struct http_server *http_server_open(struct uv_loop_s *, const struct http_server_config *, struct err *);
int http_server_port(const struct http_server *);
const struct http_server_stats *http_server_stats(const struct http_server *);
/* Called for every finished exchange, for metrics and the access log.  status 0: the client disconnected before an
 * answer. */
void http_server_on_done(struct http_server *,
                         void (*fn)(void *app, const struct http_req *, int status, uint64_t duration_ns));
/* Begins to accept connections of a listen_fd; idempotent. */
void http_server_accept(struct http_server *);
/* Applies max_* (except max_buffered_bytes), *_timeout_ms and cors_origin of `config`; in effect from the next request,
 * head, body or wait. */
void http_server_reconfigure(struct http_server *, const struct http_server_config *config);
/* Prepares for shutdown: every answer is its connection's last, and idle connections close within a second.  accepting:
 * new connections are still accepted, so that their clients get a reason for the refusal; otherwise they wait in the
 * listening socket for another process that shares it. */
void http_server_wind_down(struct http_server *, bool accepting);
/* Stops accepting and answers running requests with Connection: close; connections without one close within a second.
 * Calls done(arg) when the last connection has closed, possibly before it returns.  A no-op when the server already
 * drains or closes. */
void http_server_drain(struct http_server *, void (*done)(void *), void *arg);
/* Closes everything now (calling on_close of running requests); done(arg) when the handles are closed; then
 * http_server_free.  Not from a handler or its callbacks.  A pending drain's done is no longer called. */
void http_server_close(struct http_server *, void (*done)(void *), void *arg);
void http_server_free(struct http_server *);

#endif
