/* One exchange of the routes that give vectors or scores of labels: all but the writing of the answer.
 *
 * Steps: admission (admission.h) -> read and tokenise (on the pool when long) -> submit, a few inputs at a time, so
 * that one request does not fill the queue -> the route's answer.  It is reference-counted: http, each running callback
 * and work on the pool hold a reference.  Loop thread, except the two work_ functions, whose data the loop does not
 * touch meanwhile. */
#ifndef TANDEM_SERVER_API_EMBED_EXCHANGE_H
#define TANDEM_SERVER_API_EMBED_EXCHANGE_H

#include "engine/base/buf.h"
#include "server/access/admission.h"
#include "server/api/embed_params.h"
#include "server/api/models.h"
#include "server/net/http.h"
#include "server/net/incremental_reply.h"

#include <stdatomic.h>

struct embed_exchange;
struct served_model;

/* Writes the answer once all values are there. */
typedef void embed_answer_fn(struct embed_exchange *);

struct embed_item {
    struct embed_exchange *x;
    struct gen *gen; /* NULL before and after it runs */
};

struct embed_exchange {
    int refs; /* the open http exchange, running callbacks, work on the pool */
    struct app *app;
    struct served_model *served;
    struct http_req *req; /* NULL once closed */
    struct admission_handle *handle;
    uint64_t client;   /* client_id */
    _Atomic bool gone; /* the pool's flag: closed, or past its deadline */
    struct embed_params params;
    struct embed_limits limits;
    struct embedder scores; /* of a request for an adapter's scores, limits.embedder: one label, after the last token */
    struct model_choice model;
    struct err err; /* of tokenising; status 0: no error */
    int status;
    struct embed_item *items; /* params.n */
    float *values;            /* (params.n, dimensions) */
    int in_flight;            /* limit of inputs at the engine */
    int next, n_running, n_done;
    uint64_t n_tokens;
    enum embed_shape shape;
    embed_answer_fn *answer;
    struct http_body body;   /* while it is read on the pool */
    struct reservation held; /* for inputs, their tokens and the values */
    struct incremental_reply reply;
    int written, written_values; /* inputs, and values of the next one, already written to the answer */
};

/* Handles a request; `answer` is called at most once. */
void embed_exchange_begin(struct http_req *, enum embed_shape, embed_answer_fn *answer);

/* Replies in chunks, with the exchange as the argument of `write`; or with all of *out, which is freed. */
void embed_reply_chunks(struct embed_exchange *, reply_chunk_fn *write);
void embed_reply_whole(struct embed_exchange *, struct buf *out);

/* The values of input i (dimensions). */
const float *embed_vector(const struct embed_exchange *, int i);

/* Writes the next values of input `written`: as numbers that read back as the same floats, or as base64 of
 * little-endian floats (embed_values.c).  @return true when they were its last. */
bool embed_put_values(struct embed_exchange *, struct buf *out);

#endif
