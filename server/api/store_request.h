/* A request that the store answers: what it needs is copied, its function runs on the store thread with the database,
 * and the answer goes out on the loop once the commit is on the disk.  So a handler of this kind is straight prose:
 * read, check, write rows, append JSON to c->out. */
#ifndef TANDEM_SERVER_API_STORE_REQUEST_H
#define TANDEM_SERVER_API_STORE_REQUEST_H

#include "engine/base/buf.h"
#include "server/api/app.h"
#include "server/net/http.h"
#include "server/store/store.h"

struct store_request;
typedef void store_request_fn(struct store_request *, struct db *); /* store thread */

struct store_request {
    struct store_work work; /* first */
    struct app *app;
    struct http_req *req; /* loop thread; NULL once the client is gone */
    bool openai;          /* errors and ids in OpenAI's shape */
    store_request_fn *run;
    store_request_fn *settle; /* store thread, after commit or failure (c->status >= 400 then); may be NULL */
    void (*after)(struct store_request *); /* loop thread, once it is over, before the answer; may be NULL */

    /* the request, owned */
    char *param, *query, *idempotency_key;
    const char *body; /* of taken; "" */
    size_t body_len;
    struct http_body taken;

    /* the answer */
    int status; /* 200 unless run sets it */
    const char *type;
    struct buf out;
    char header_name[32], header_value[160]; /* one more header; "" none */

    /* from run to settle and after */
    int64_t job;
    int command;
    char *path, *path2; /* owned */
    bool answered;      /* after has taken the exchange over: no answer is sent */
    void *user;
};

#define STORE_REQUEST_BYTES                                                                                            \
    ((size_t)64 * 1024 * 1024) /* of bodies at the store, whether or not their clients still wait */

/* Takes the exchange over: sets req->user and on_close. */
struct store_request *store_request_new(struct http_req *, bool openai, store_request_fn *run);
/* Takes the body over, which is empty for run otherwise. */
void store_request_take_body(struct store_request *);
/* One body more would be more than STORE_REQUEST_BYTES.  A body alone is never too much. */
bool store_request_crowded(const struct http_req *);
void store_request_send(struct store_request *);
/* store_request_new and store_request_send */
void store_request_start(struct http_req *, bool openai, store_request_fn *run, void (*after)(struct store_request *));
void store_request_free(struct store_request *);

/* Sets an error answer, in the shape of the route; what run wrote is undone.  type: "validation", "not_found",
 * "conflict"...; param: the field, NULL. */
__attribute__((format(printf, 5, 6))) void store_request_fail(struct store_request *, int status, const char *type,
                                                              const char *param, const char *fmt, ...);
/* The same for a body that json_parse_body refused: malformed, or no memory for it. */
void store_request_fail_body(struct store_request *, const char *type, const struct err *);
/* An error body in either shape. */
void store_request_put_error(struct buf *, bool openai, int status, const char *type, const char *param,
                             const char *msg);
__attribute__((format(printf, 5, 6))) void store_request_reply_error(struct http_req *, bool openai, int status,
                                                                     const char *type, const char *fmt, ...);

/* The value of name in a query string, percent-decoded into out; false when absent or too long. */
bool query_get(const char *query, const char *name, char *out, size_t size);
/* A whole number between min and max; `otherwise` when absent.  False: *e names it. */
bool query_int(const char *query, const char *name, int64_t min, int64_t max, int64_t otherwise, int64_t *out,
               struct err *e);

#endif
