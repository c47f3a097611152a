/* One request inside the engine: its tokens, its sampling state, its stop conditions; or its pooling
 * (request_pooled.c).
 *
 * Created by the submitting thread (request_new checks and copies everything), then owned by the engine thread until
 * request_free.  All its memory is one block, the penalty table and `tail`. */
#ifndef TANDEM_ENGINE_SERVE_REQUEST_H
#define TANDEM_ENGINE_SERVE_REQUEST_H

#include "engine/kvstore/store.h"
#include "engine/serve/draft.h"
#include "engine/serve/engine.h"
#include "engine/serve/events.h"
#include "engine/serve/history.h"
#include "engine/serve/masker.h"
#include "engine/serve/sched.h"
#include "engine/serve/speculate.h"
#include "engine/serve/thoughts.h"
#include "kernels/ops.h"

struct stop_text {
    const char *s;
    uint32_t len;
};

struct adapter_version;

struct request {
    struct seq seq; /* first: the scheduler's plan points to it */
    uint64_t id;
    void *user;
    struct request *next;            /* hash chain of the engine */
    struct adapter_version *adapter; /* a reference; NULL: none */
    struct masked *masked;           /* owned; NULL: no grammar */
    struct masked *behind;           /* owned; becomes `masked` behind the thoughts; NULL: none, or it has */
    bool unsampled;                  /* its last row is not sampled in this step: mask missing, or no token allowed */
    bool whole;                      /* the grammar allows only eos, even with ignore_eos or min_new_tokens */
    enum finish_reason ending;       /* FINISH_TIMEOUT, FINISH_ABORTED: it ends with its next token; FINISH_NONE */

    int32_t *tokens; /* capacity n_prompt + max_new */
    int n_prompt, n_generated, max_new, min_new;
    int n_prompt_sent; /* tokens of the prompt before the next EV_PROMPT */
    bool ignore_eos;
    int top_n;
    bool prompt_logprobs;
    const int32_t *scored; /* (.., n_scored) as gen_request's, from the row behind token scored_from on; in the block */
    int n_scored, scored_from;
    int n_drawn; /* gen_request's */

    unsigned char *types;    /* (n_prompt) of a pooled request's tokens; NULL: all 0 */
    struct poolings pooling; /* n > 0: of the fields below only those up to pooled, and times are used */
    int pool_from;           /* the positions before it are not pooled */
    int n_pooled;            /* positions seen; each is added to `pooled` once, also after a preemption */
    const float *score;      /* (C) its adapter's: the result is the score of the pooled vector; NULL: that itself */
    double *pooled;          /* (pooling.n, C) of each pooling the sum, the largest or the one; in the block */

    struct sampling_params sampling; /* bias points into the block */
    struct token_add *adds;          /* logit_bias, then bans while n_generated < min_new: eos, then stop ids */
    int n_bias, n_bans, n_eos_bans;  /* eos is banned throughout with ignore_eos and a grammar */
    struct token_count *counts;      /* distinct tokens seen, when a penalty is on */
    int32_t *count_slot;             /* open-addressed: token id -> index into counts, -1 empty */
    int n_counts;
    size_t cap_counts;
    uint32_t count_mask;

    struct speculation guess;
    struct draft_text draft;

    struct stop_text stop[ENGINE_STOP_MAX];
    int32_t stop_ids[ENGINE_STOP_MAX];
    int n_stop, n_stop_ids;
    struct buf tail; /* suffix of the generated text that may be the start of a stop text; unused without stop texts */

    struct thoughts thoughts; /* its marks are in the block */
    struct detok detok, prompt_detok;
    struct request_times times;

    /* kv_tier.c */
    struct kv_name *names; /* (n_names + 1) a root, then those of its first pages; owned */
    int n_names, load_pages;
    bool names_far, loading;   /* loading: blocked while its first load_pages pages are read, until load_until */
    uint64_t load_until;       /* clock */
    struct request *load_next; /* in the list of these */
};

/* Checks the request against the model's limits and copies it; NULL and *e. */
struct request *request_new(const struct gen_request *, const struct engine_info *, struct err *e);
void request_free(struct request *);
/* Checks the prompt's ids.  @return 0 on success; on failure a negative code, and *e is set. */
int request_check_ids(const struct gen_request *, const struct engine_info *, struct err *e);
/* The same for a request with pooling. */
struct request *request_new_pooled(const struct gen_request *, const struct engine_info *, struct err *e);
/* @return whether a pooled request needs only its last position. */
bool request_pools_last(const struct poolings *);

/* Sets the sampling parameters of the row that follows the token at `pos`, a candidate's too. */
void request_sample_row(struct request *, int pos, struct sample_row *row);

/* The same for a draft's choice of the candidate that has `ahead` others before it: by the request's seed and index,
 * and as near to its other parameters as they can be known before.  whole: the draft has every token of the model. */
void request_draft_row(const struct request *, int ahead, bool whole, struct sample_row *row);

/* After the row of the prompt token at `pos` was computed: emits EV_PROMPT for token pos + 1 (for token 0 first).
 * scores: (n_scored + n_drawn) the ids that are scored and drawn there. */
void request_prompt_row(struct request *, int pos, const struct sample_out *, const struct top_token *scores,
                        const struct tokenizer *, struct events *);
/* Column k of those in the row of the prompt token at `pos`: sets how it is sampled.  @return the id that is scored,
 * -1: none; SCORED_DRAWN: it is drawn. */
enum { SCORED_DRAWN = -2 };
int32_t request_score_row(const struct request *, int pos, int k, struct sample_row *);

/* Takes ownership of the masks of its grammar, which apply from now on, or behind its thoughts. */
void request_mask(struct request *, struct masked *);

/* After the next token was sampled, or the row of a forced one (request_force) was computed: appends it and emits
 * EV_TOKEN.  Where the thoughts end, or their budget does, the masks begin and the tokens that end them are known.
 * @return FINISH_NONE unless the text ends with it. */
enum finish_reason request_token(struct request *, const struct sample_out *, const struct engine_info *,
                                 const struct tokenizer *, struct events *, uint64_t now, int *stop_index);

/* @return whether the row after a candidate can be sampled before the candidate is accepted: neither a mask nor
 * penalties depend on it. */
bool request_samples_ahead(const struct request *);

/* @return whether tokens may be forced; false when it has parameters that act on the sampling of each token. */
bool request_may_force(const struct request *);
/* When its mask is ready: adds the tokens that the grammar forces to its known tokens, which one step computes
 * together. request_token emits each when its row has given its log-probability. */
void request_force(struct request *);

/* After the hidden states (n, C) of the prompt's tokens from `pos` on were computed.  @return FINISH_NONE: more are
 * needed; FINISH_EMBEDDED: the EV_EMBEDDING was emitted; FINISH_ERROR: a value is not finite. */
enum finish_reason request_hidden(struct request *, int pos, int n, const float *hidden, const struct engine_info *,
                                  struct events *);

void request_done(struct request *, enum finish_reason, int stop_index, const char *error, struct events *,
                  uint64_t now);

#endif
