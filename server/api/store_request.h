/* A request answered from the store: its inputs are copied, its function runs on the store thread with the database,
 * and the loop sends the answer after the commit.  So such a handler is one sequential function: read, check, write
 * rows, append JSON to c->out. */
#ifndef TANDEM_SERVER_API_STORE_REQUEST_H
#define TANDEM_SERVER_API_STORE_REQUEST_H

#include "engine/base/buf.h"
#include "server/api/app.h"
#include "server/json/json.h"
#include "server/net/http.h"
#include "server/store/store.h"

struct store_request;
typedef void store_request_fn(struct store_request *, struct db *); /* store thread */

struct store_request {
    struct store_work work; /* first */
    struct app *app;
    struct served_model *served;    /* the request's; used while it lasts if `pinned`; the store thread reads its id, */
    const struct engine_info *info; /* and what is here; NULL: it is not loaded */
    struct engine *engine;          /* likewise */
    bool pinned;
    struct http_req *req; /* loop thread; NULL once the client disconnected */
    bool openai;          /* errors and ids in OpenAI's format */
    bool may_download;    /* the client is an operator: disk and network are theirs */
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
    bool answered;      /* `after` has taken the exchange over: no answer is sent */
    void *user;
};

#define STORE_REQUEST_BYTES                                                                                            \
    ((size_t)64 * 1024 * 1024) /* limit of bodies at the store, including those of disconnected clients */

/* Takes over the exchange: sets req->user and on_close. */
struct store_request *store_request_new(struct http_req *, bool openai, store_request_fn *run);
/* Takes over the body, which is otherwise empty for run. */
void store_request_take_body(struct store_request *);
/* @return whether this body would exceed STORE_REQUEST_BYTES.  A single body is always accepted. */
bool store_request_crowded(const struct http_req *);
void store_request_send(struct store_request *);
/* store_request_new and store_request_send */
void store_request_start(struct http_req *, bool openai, store_request_fn *run, void (*after)(struct store_request *));
void store_request_free(struct store_request *);

/* Sets an error answer, in the route's format; rolls back what run wrote.  type: "validation", "not_found",
 * "conflict"...; param: the field, NULL. */
__attribute__((format(printf, 5, 6))) void store_request_fail(struct store_request *, int status, const char *type,
                                                              const char *param, const char *fmt, ...);
/* Parses the body, which must be a JSON object.  @return the tree, to be freed with json_free; NULL with an error
 * answer. */
cJSON *store_request_object(struct store_request *);
/* Appends an error body in either format. */
void store_request_put_error(struct buf *, bool openai, int status, const char *type, const char *param,
                             const char *msg);
__attribute__((format(printf, 5, 6))) void store_request_reply_error(struct http_req *, bool openai, int status,
                                                                     const char *type, const char *fmt, ...);

/* Copies the value of name in a query string, percent-decoded, to out.  @return false when absent or too long. */
bool query_get(const char *query, const char *name, char *out, size_t size);
/* Reads an integer between min and max; `otherwise` when absent.  @return false with *e naming it. */
bool query_int(const char *query, const char *name, int64_t min, int64_t max, int64_t otherwise, int64_t *out,
               struct err *e);

#endif
