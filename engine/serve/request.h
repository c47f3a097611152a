/* One request inside the engine: its tokens, its sampling state, its stop conditions; or its pooling
 * (request_pooled.c).
 *
 * Created by the submitting thread (request_new checks and copies everything), then owned by the engine thread until
 * request_free.  All its memory is one block, the penalty table and `tail`. */
#ifndef TANDEM_ENGINE_SERVE_REQUEST_H
#define TANDEM_ENGINE_SERVE_REQUEST_H

#include "engine/serve/engine.h"
#include "engine/serve/events.h"
#include "engine/serve/masker.h"
#include "engine/serve/sched.h"
#include "kernels/ops.h"

struct stop_text {
    const char *s;
    uint32_t len;
};

struct adapter_version;

struct request {
    struct seq seq; /* first: the schedule hands back its address */
    uint64_t id;
    void *user;
    struct request *next;            /* hash chain of the engine */
    struct adapter_version *adapter; /* held; NULL: none */
    struct masked *masked;           /* owned; NULL: no grammar */
    bool unsampled;                  /* in this step: its mask is missing, or there is nothing to choose */
    bool whole;                      /* nothing but eos may follow, whatever else was asked for */
    bool expired;                    /* its time is over: it ends with its next token */

    int32_t *tokens; /* n_prompt + max_new of room */
    int n_prompt, n_generated, max_new, min_new;
    int n_prompt_sent; /* EV_PROMPT events so far */
    bool ignore_eos;
    int top_n;
    bool prompt_logprobs;

    enum pooling pooling; /* not NONE: of what follows only times and what is said of pooling */
    int n_pooled;         /* positions whose hidden states were taken: each is once, also after a preemption */
    double *pooled;       /* (C) their sum, or the last one; in the block */

    struct sampling_params sampling; /* bias points into the block */
    struct token_add *adds;          /* logit_bias, then bans while n_generated < min_new: eos, then stop ids */
    int n_bias, n_bans, n_eos_bans;  /* eos is banned throughout with ignore_eos and a grammar */
    struct token_count *counts;      /* distinct tokens seen, when a penalty is on */
    int32_t *count_slot;             /* open-addressed: token id -> index into counts, -1 empty */
    int n_counts;
    size_t cap_counts;
    uint32_t count_mask;

    struct stop_text stop[ENGINE_STOP_MAX];
    int32_t stop_ids[ENGINE_STOP_MAX];
    int n_stop, n_stop_ids;
    struct buf tail; /* the end of the generated text, where a stop text may have begun; unused without stop texts */

    struct detok detok, prompt_detok;
    struct request_times times;
};

/* The request's rules against the model's limits; NULL and *e. */
struct request *request_new(const struct gen_request *, const struct engine_info *, struct err *e);
void request_free(struct request *);
/* The part of it about the prompt's ids: 0, or *e. */
int request_check_ids(const struct gen_request *, const struct engine_info *, struct err *e);
/* The same for a request with pooling. */
struct request *request_new_pooled(const struct gen_request *, const struct engine_info *, struct err *e);

/* How to sample the row that follows the token at `pos`. */
void request_sample_row(struct request *, int pos, struct sample_row *row);

/* The row after the prompt token at `pos` was computed: emits EV_PROMPT for token pos + 1 (and for token 0 first). */
void request_prompt_row(struct request *, int pos, const struct sample_out *, const struct tokenizer *,
                        struct events *);

/* The next token was sampled, or was known (request_force) and its row is there: appends it, emits EV_TOKEN; not
 * FINISH_NONE when the text ends with it. */
enum finish_reason request_token(struct request *, const struct sample_out *, const struct engine_info *,
                                 const struct tokenizer *, struct events *, uint64_t now, int *stop_index);

/* false: what it asks for of single tokens would not hold for tokens that are not sampled. */
bool request_may_force(const struct request *);
/* Its mask is ready: the tokens that the grammar forces first become known ones, which are computed together; they are
 * announced by request_token, each when its row gives its log-probability. */
void request_force(struct request *);

/* The hidden states (n, C) of the prompt's tokens from `pos` on were computed.  FINISH_NONE: more are to come.
 * FINISH_EMBEDDED: it was the last, the EV_EMBEDDING is out.  FINISH_ERROR: a value is not finite. */
enum finish_reason request_hidden(struct request *, int pos, int n, const float *hidden, const struct engine_info *,
                                  struct events *);

void request_done(struct request *, enum finish_reason, int stop_index, const char *error, struct events *,
                  uint64_t now);

#endif
