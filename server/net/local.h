/* An exchange without a connection: runs a route's handler on a body and collects the answer, for work that the daemon
 * does as if a client had asked for it (server/jobs/batch_run.h).  The handler sees an ordinary request.  Loop
 * thread. */
#ifndef TANDEM_SERVER_NET_LOCAL_H
#define TANDEM_SERVER_NET_LOCAL_H

#include "engine/base/buf.h"
#include "server/memory/reservation.h"

#include <stddef.h>

struct admission;
struct http_req;
struct http_server;
struct local;

struct local_request {
    const char *path; /* of the route; must outlive the exchange, as must client */
    void (*handler)(struct http_req *);
    const char *model; /* http_route.model */
    struct admission *admission;
    const char *client;      /* in the place of an address: the client that the request counts for */
    struct buf *body;        /* taken over */
    struct reservation held; /* for the body; taken over */
};

struct local_answer {
    int status;       /* 0: the handler broke its answer off */
    const char *body; /* len bytes; valid inside local_done_fn, as is request_id */
    size_t len;
    const char *request_id;
};

typedef void local_done_fn(void *arg, const struct local_answer *);

/* Calls done(arg) once, in a later iteration of the loop, after the handler's on_close; the exchange is freed then. */
struct local *local_start(struct http_server *, const struct local_request *, local_done_fn *done, void *arg);
/* Ends the exchange as if its client had disconnected; done is not called. */
void local_cancel(struct local *);

#endif
