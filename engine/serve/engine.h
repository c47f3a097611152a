/* The engine: one model, its KV pages, a scheduler, and a thread that turns submitted requests into events.
 *
 * Threads.  The owner (the loop thread of the daemon, or a command's main) calls engine_open and engine_close.  After
 * engine_start the engine thread owns model, pages and scheduler.  engine_submit, engine_cancel, engine_pause,
 * engine_resume, engine_events and engine_events_done are called by the owner's thread only; they pass messages and
 * never block.  Any thread may call engine_stats_read and read struct engine_info.  Results come as batches of events,
 * announced by the notify callback.
 *
 * The engine knows neither sockets nor JSON. */
#ifndef TANDEM_ENGINE_SERVE_ENGINE_H
#define TANDEM_ENGINE_SERVE_ENGINE_H

#include "engine/base/err.h"
#include "engine/base/histogram.h"
#include "engine/model/embedder.h"
#include "engine/serve/speculate.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/train/train.h"
#include "kernels/comm.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct device_turn;
struct engine;
struct grammar;
struct kv_event_sink;

/* ---- opening --------------------------------------------------------------------------------------------------- */

struct engine_config {
    const char *model;       /* a Hugging Face directory */
    const char *model_name;  /* what it is called; NULL: the directory's last component */
    const char *device;      /* see struct dev_config (kernels/ops.h); NULL: cpu */
    int threads;             /* compute threads, the engine's own included; 0: one per available core */
    const char *cpus;        /* cores that the threads are bound to: "0-3,8"; NULL or "": not bound.  With threads 0,
                                one thread per core listed */
    const char *quantize;    /* NULL or "none": the file's own type; "int8", "int4", "nf4"; for comparisons
                                "int8-nearest", "int4-nearest": plain rounding */
    const char *kv_type;     /* NULL or "auto": the device's choice of 16 bits; "f16", "bf16", "f32", "int8" */
    const char *activations; /* inputs of GEMMs with bf16 weights: "f32"; "bf16": rounded, as in frameworks that run the
                                model in bf16; NULL or "auto": bf16 where the device multiplies it faster */
    size_t kv_cache_bytes;   /* 0: max_seqs requests of moderate length, at most a quarter of the free memory */
    /* memory budget of a device with its own memory */
    size_t gpu_memory_bytes;    /* 0: from gpu_memory_fraction */
    double gpu_memory_fraction; /* of the memory free at the start; 0: 0.9 */
    int kv_pages;               /* exactly, or ERR_NOMEM with the bytes needed; 0: from kv_cache_bytes */
    int max_seqs;               /* requests running at once; 0: 64 */
    int max_batch_tokens;       /* tokens in one step; 0: 512 */
    int max_prefill_tokens; /* prompt tokens in a step that also decodes, so that a new prompt does not delay the next
                               tokens of others; 0: a sixteenth of max_batch_tokens */
    int max_queue;          /* waiting requests; 0: 256 */
    int max_total_tokens;   /* prompt + generated of one request; 0: what the model and the page pool allow */
    int max_adapters;       /* loaded at once; 0: 64 */
    int max_lora_rank;      /* of an adapter; 0: 256 */
    bool no_prefix_cache;
    const char *kv_disk;             /* a directory where prefixes are kept that fall out of memory; NULL or "": none */
    size_t kv_disk_bytes;            /* they may take there; 0: 10 GiB */
    double kv_disk_ttl;              /* seconds after its last use in which a page is removed there; 0: never */
    bool kv_disk_always;             /* read a prefix also where computing it has been faster; for tests */
    struct kv_event_sink *kv_events; /* is told what the prefix cache holds (kv_events.h); borrowed; NULL: nobody */
    const char *kv_events_model;     /* the model's name in its events; NULL: model_name, or what that is */
    const char *speculate;   /* candidates from a text's own repetitions, verified several in a step; no text depends on
                                it. NULL or "off"; "auto": where it saves time, on devices that use host memory; "on" */
    const char *draft_model; /* a directory: a small model of the same vocabulary that proposes candidates; NULL; not
                                opened while speculate is off */
    const char *draft_model_name; /* what it is called; NULL: its directory */
    size_t draft_kv_bytes;        /* of its KV pages; 0: 16 texts of moderate length, at least one of the full length */
    size_t history_bytes;         /* of earlier texts that candidates are taken from (history.h); 0: none */
    bool record_steps;   /* warm-up: capture the CUDA graphs of all decode batch sizes when opening, for up to a second,
                            so that the first requests do not wait for it (warmup.h); meant for long-running servers */
    bool verify_weights; /* compare every byte with the checksums `tandem quantize` wrote; an error where it has none */
    double train_itl_budget;  /* seconds that a step and the training behind it may take; 0: 0.05 */
    double train_slowdown;    /* the same in multiples of the step, >= 1; 0: 1.2 */
    bool watch_device;        /* CHECK which thread uses the device (device_owner.h); with TANDEM_DEBUG always */
    struct device_turn *turn; /* of all engines of the process (device_turn.h); NULL: it is the only one */
    struct comm *comm;        /* NULL, or the ranks that the model is divided over, of which this is rank 0; borrowed until
                                 engine_close.  The others call engine_follow */
    int stages;               /* with comm: see shard_open (engine/model/shard.h) */
    struct comm *trains;      /* NULL, or the ranks that train its jobs (job_ranks.h), of which this is rank 0; not with
                                 comm; borrowed until engine_close.  The others call engine_follow_jobs */
    bool no_calibration;      /* quantise a small model without calibrating on its own text (calibrate.h) */
};

/* A number that stays the same for the directory of kv_disk, and that nobody without access to it knows. */
int engine_kv_disk_seed(const char *dir, uint64_t *seed, struct err *e);

/* Loads the model, which takes long.  NULL and *e on error. */
struct engine *engine_open(const struct engine_config *, struct err *e);

/* On every rank of config.comm but the first: opens this rank's part of the model, and computes what rank 0 does until
 * that closes its engine.  Of the config only the model, its types and the device are used. */
int engine_follow(const struct engine_config *, struct err *e);
/* On every rank of config.trains but the first: opens the model, and trains with rank 0 what that trains, until it closes
 * its engine. */
int engine_follow_jobs(const struct engine_config *, struct err *e);

/* Memory that engine_open would take, an upper bound from the headers of the model's files; of a device with its own
 * memory gpu_memory_bytes, as weights.  Any thread; blocks for the disk.  @return 0, or *e */
struct engine_memory {
    size_t weight_bytes, kv_bytes, workspace_bytes;
};
int engine_estimate(const struct engine_config *, struct engine_memory *, struct err *e);
/* Starts the thread.  notify(arg) is called on the engine thread when events are posted and none were pending. */
int engine_start(struct engine *, void (*notify)(void *), void *arg, struct err *e);
/* Ends every request, stops the thread if started, frees everything.  NULL is allowed. */
void engine_close(struct engine *);

/* What was loaded; constant after engine_open, owned by the engine. */
struct engine_info {
    const char *model_id;    /* engine_config.model_name, or the directory's last component */
    const char *base_name;   /* where it came from, as adapters of it say: adapter.h */
    const char *family;      /* model_type of config.json */
    const char *device;      /* "cpu avx512" */
    const char *device_note; /* why "auto" chose no GPU; or "" */
    const char *exchange;    /* of ranks whose devices have their own memory: how they exchange (shard.h); else "" */
    const char *weight_type; /* "bf16", "int8" ... */
    const char *kv_type;
    uint64_t parameters;
    size_t weight_bytes, kv_bytes, page_bytes;
    int layers, hidden, vocab;
    int max_model_len;    /* positions the model has */
    int max_total_tokens; /* prompt + generated, what one request may use here */
    int max_seqs, max_batch_tokens, max_prefill_tokens, max_queue, pages, page_tokens, threads;
    int max_adapters, max_lora_rank;
    int ranks; /* that the model is divided over; 1: none.  Bytes and threads are those of rank 0 */
    int train_ranks; /* that train its jobs; 1: this process alone */
    const int32_t *eos; /* ids that end a text (n_eos of them) */
    int n_eos;
    int32_t pad; /* no score is read at this token at the end of a text (struct model_config); -1: none */
    /* defaults of generation_config.json; NAN or -1 where it says nothing */
    float temperature, top_p, repetition_penalty;
    int top_k, do_sample;
    const struct embedder *embedder; /* what the directory says about vectors and classes */
    int token_types;                 /* 0: the model has none */
    double load_seconds;
    double weights_seconds, tokenizer_seconds, memory_seconds; /* its parts: reading and packing, the vocabulary, KV
                                                                  pages and workspace */
    size_t workspace_bytes;  /* activations and logits of a step; index arrays are small and not counted.  With the
                                scratch of a device whose memory is its own */
    const char *draft_model; /* NULL: none, and zeros */
    uint64_t draft_parameters;
    size_t draft_weight_bytes, draft_kv_bytes, draft_workspace_bytes;
    int draft_pages, draft_max_tokens;               /* longer texts are not drafted */
    size_t device_bytes, device_budget, device_base; /* such a device's memory, what may be taken of it, and what is
                                                        taken before the first request; 0 for others */
};

/* @return whether the id is one of eos.  A text that is as long as it may be ends with FINISH_LENGTH although it has
 * one. */
bool engine_ends_text(const struct engine_info *, int32_t id);
const struct engine_info *engine_info(const struct engine *);
const struct tokenizer *engine_tokenizer(const struct engine *);

/* ---- requests -------------------------------------------------------------------------------------------------- */

enum {
    ENGINE_TOP_MAX = 32,
    ENGINE_STOP_MAX = 16,
    ENGINE_STOP_BYTES = 256,
    ENGINE_SALT_BYTES = 256,
    ENGINE_STOP_TOKENS = 64
};

struct logit_bias {
    int32_t id;
    float add;
};

struct sampling_params {
    bool sample;                           /* false: greedy, the six below are ignored */
    float temperature;                     /* > 0; 1 */
    int top_k;                             /* 0: off */
    float top_p, typical_p;                /* (0, 1]; 1: off */
    float min_p;                           /* [0, 1]; 0: off */
    uint64_t seed;                         /* same seed, same text, whatever the batch */
    float repetition, frequency, presence; /* 1, 0, 0: off */
    int n_bias;
    const struct logit_bias *bias;
};

/* Everything is copied by engine_submit. */
/* How a text's thoughts are told from what follows.  The marks are texts, special tokens' included, of at most
 * ENGINE_STOP_BYTES bytes; the first byte of each occurs in it once. */
struct gen_thoughts {
    const char *begin; /* behind white space at the start of the text */
    const char *end;   /* NULL: thoughts are not looked for */
    bool inside;       /* the prompt ends within thoughts: the grammar applies behind them */
    bool again;        /* thoughts may begin again, anywhere behind others */
    int budget;        /* after so many tokens within thoughts, those of `stop` follow; negative: no limit */
    const int32_t *stop;
    int n_stop; /* <= ENGINE_STOP_TOKENS */
};

struct gen_request {
    const int32_t *prompt; /* 1 .. max_total_tokens - 1 ids, all < vocab */
    int n_prompt;
    struct sampling_params sampling;
    int max_new_tokens; /* >= 1; n_prompt + max_new_tokens <= max_total_tokens */
    int min_new_tokens; /* eos and stops do not count before */
    bool ignore_eos;
    const char *const *stop; /* texts, 1 .. ENGINE_STOP_BYTES bytes of UTF-8 each */
    int n_stop;              /* <= ENGINE_STOP_MAX */
    const int32_t *stop_ids;
    int n_stop_ids;       /* <= ENGINE_STOP_MAX */
    bool prompt_logprobs; /* EV_PROMPT for every prompt token before the first EV_TOKEN */
    int logprobs_from;    /* of these events the first is this token's, < n_prompt; those before may be in the cache */
    /* Log-probabilities of given ids in the places of the prompt's tokens: of token i, from the later of logprobs_from
     * and 1 on, row i - that of (n_prompt - that, n_scored) ids, -1: none.  Only with prompt_logprobs. */
    const int32_t *scored;
    int n_scored;        /* 0 .. ENGINE_TOP_MAX; 0: none */
    int n_drawn;         /* with replacement, by seed and temperature alone, in the place of each of these tokens;
                            n_scored + n_drawn <= ENGINE_TOP_MAX.  Only with prompt_logprobs */
    int top_n;           /* most likely tokens to report, 0 .. ENGINE_TOP_MAX */
    int priority;        /* lower runs first; 0 */
    uint64_t client;     /* requests of one client share with those of others (sched.h); 0: likewise one client */
    const char *adapter; /* a name that is loaded; NULL: the base model */
    /* Prefixes are shared among requests with the same two; no result depends on them. */
    const char *cache_salt; /* 1 .. ENGINE_SALT_BYTES bytes; NULL: none */
    uint64_t cache_tenant;  /* 0: none */
    /* What the generated text must be (grammar.h), referenced by engine_submit; NULL: anything.  eos is chosen only
     * where the text is whole, and no other special token ever; with ignore_eos or min_new_tokens, the text goes on
     * while it can, but a text that nothing may follow ends with eos.  Log-
     * probabilities and top tokens stay those of the model without the constraint. */
    struct grammar *grammar;
    struct gen_thoughts thoughts;
    struct poolings pooling;    /* n > 0: one EV_EMBEDDING; n_prompt <= max_total_tokens, and of the rest only
                                   pool_from, score, types, priority, adapter, cache_* and user are used.  An encoder takes
                                   no    other requests */
    bool score;                 /* the one value of EV_EMBEDDING is the adapter's score of the pooled vector, which is
                                   the last token's; only with an adapter that gives scores */
    int pool_from;              /* the first position that is pooled, < n_prompt */
    const unsigned char *types; /* (n_prompt) token types, below those the model has; NULL: all 0 */
    void *user;                 /* handed back in every event */
};

/* Checks, copies and queues.  Returns the request's id (never 0), or 0 with *e: ERR_FULL when max_queue wait already,
 * ERR_INVALID when a field breaks the rules above, ERR_NOT_FOUND when no such adapter is loaded. */
uint64_t engine_submit(struct engine *, const struct gen_request *, struct err *e);
/* @return 0, or ERR_UNSUPPORTED with what the model gives instead of text. */
int engine_check_generates(const struct engine *, struct err *e);
/* @return whether the queue has room.  Meant to be called before a prompt is tokenised. */
bool engine_has_room(const struct engine *);
/* Ends a request early.  An EV_DONE with FINISH_CANCELLED follows, unless another EV_DONE was already posted.  Unknown
 * ids are ignored. */
void engine_cancel(struct engine *, uint64_t id);
/* Ends a request whose deadline has passed, with FINISH_TIMEOUT.  A decoding request ends with its next token, whose
 * EV_TOKEN carries the reason; one that has no token yet, is paused or waits for a mask ends at once, with an EV_DONE
 * alone. */
void engine_expire(struct engine *, uint64_t id);
/* A paused request is not scheduled, and keeps its pages until another request needs them.  For slow readers. */
void engine_pause(struct engine *, uint64_t id);
void engine_resume(struct engine *, uint64_t id);

/* ---- holding, for those who change weights between texts -------------------------------------------------------- */

enum engine_hold {
    HOLD_NONE,
    HOLD_NEW, /* requests submitted from now on wait; those before go on */
    HOLD_ALL, /* no request is computed; each keeps its tokens and pages */
};

/* Of requests only: training goes on.  Deadlines and cancelling hold for those that wait, too.  From the owner's
 * thread.
 * @return how many calls there were, this one included */
uint64_t engine_hold(struct engine *, enum engine_hold);
/* @return how many of these calls have taken effect: after one of HOLD_ALL no step is in progress, and none begins.
 * `notify` is called when the number changes.  Any thread. */
uint64_t engine_holds_taken(const struct engine *);
/* Ends a request as engine_expire does, with FINISH_ABORTED. */
void engine_abort(struct engine *, uint64_t id);
/* Requests submitted from now on use no prefix in memory that was computed before.  Those on disk (kv_disk) stay: their
 * names are of the weights' contents. */
void engine_forget_prefixes(struct engine *);

/* ---- adapters -------------------------------------------------------------------------------------------------- */

enum { ADAPTER_NAME_MAX = 100 }; /* a letter or digit, then letters, digits, '.', '_', ':', '-' */

struct adapter_info {
    char name[ADAPTER_NAME_MAX + 1];
    uint64_t version; /* of each load, in order, from 1 */
    int r;            /* the largest of its modules' */
    double alpha;
    bool rslora;
    bool scores;       /* it gives scores of texts, not texts: see gen_request's */
    size_t bytes;      /* on the device */
    int requests;      /* that use this version now, waiting ones included */
    int running;       /* those of them that were scheduled at least once */
    char targets[160]; /* "q_proj,v_proj" */
};

/* Reads a PEFT directory and makes it the adapter of that name for all later requests; running ones keep the version
 * they began with.  Blocks for the disk and for the step in progress.  Any thread but the engine's; before engine_start
 * the owner's only.  Several loads may run at once; none may start after engine_close was called. */
int engine_adapter_load(struct engine *, const char *name, const char *dir, uint64_t *version, struct err *e);
/* The same under a name that begins with '@': engine_submit takes it, the list, the check and clients' loads do not. */
int engine_adapter_load_unlisted(struct engine *, const char *name, const char *dir, uint64_t *version, struct err *e);
/* Removes the name.  The adapter's memory is freed when the last request that uses it has ended. */
int engine_adapter_unload(struct engine *, const char *name, struct err *e);
/* The first `max` that are listed, by name; returns how many. */
int engine_adapters_list(const struct engine *, struct adapter_info *out, int max);
/* ERR_NOT_FOUND with the known names, as engine_submit would say. */
int engine_adapter_check(const struct engine *, const char *name, struct err *e);
/* Whether such an adapter gives scores; NULL: whether any does. */
bool engine_adapter_scores(const struct engine *, const char *name);

/* ---- events ---------------------------------------------------------------------------------------------------- */

enum event_kind { EV_PROMPT, EV_TOKEN, EV_EMBEDDING, EV_DONE };

enum finish_reason {
    FINISH_NONE,
    FINISH_LENGTH,
    FINISH_EOS,
    FINISH_STOP,
    FINISH_EMBEDDED, /* the EV_EMBEDDING is out */
    FINISH_TIMEOUT,  /* engine_expire */
    FINISH_ABORTED,  /* engine_abort */
    FINISH_CANCELLED,
    FINISH_ERROR
};

struct top_token {
    int32_t id;
    float logprob;
};

struct request_times { /* clock_now() nanoseconds; 0 where it never came to that */
    uint64_t submitted, scheduled, first_token, done;
};

struct event {
    uint64_t id;
    void *user;
    enum event_kind kind;
    /* EV_PROMPT, EV_TOKEN */
    int32_t token;
    float logprob; /* NAN for the first prompt token */
    int rank; /* EV_PROMPT: its place among the tokens that the model expected there, from 1; 0: no log-probability */
    bool special;
    uint32_t text,
        text_len;     /* this token's text: bytes [text, text + text_len) of the batch's `text`; complete UTF-8 */
    uint32_t gen_len; /* how much of it belongs to the generated text: 0 for special tokens, less where a stop text
                         ended inside the token */
    int n_top;        /* entries of batch->top from `top` on */
    uint32_t top;
    int n_scored; /* EV_PROMPT: of the token gen_request.scored's, then those drawn: entries of batch->top from `scored`
                     on; NAN of -1 */
    uint32_t scored;
    /* EV_TOKEN with finish != NONE is always followed by EV_DONE in the same batch */
    enum finish_reason finish;
    /* EV_EMBEDDING, always followed by EV_DONE in the same batch */
    uint32_t values; /* entries [values, values + n_values) of the batch's `values`, all finite */
    int n_values;    /* the size of engine_info's embedder; of a score 1 */
    /* EV_DONE */
    int n_prompt, n_cached, n_generated; /* n_cached: prompt tokens found in the prefix cache */
    int n_thoughts;                      /* of the generated ones, within thoughts, the marks not counted */
    int stop_index;                      /* which stop text or, after them, which stop id matched; -1 */
    struct request_times times;
    const char *error; /* FINISH_ERROR: static text */
};

struct event_batch {
    struct event_batch *next;
    struct event *v;
    int n;
    const char *text; /* UTF-8 bytes the events point into */
    const struct top_token *top;
    const float *values;
};

/* @return the list of pending batches, oldest first; NULL: none.  The whole list goes back by engine_events_done. */
struct event_batch *engine_events(struct engine *);
void engine_events_done(struct engine *, struct event_batch *);

/* ---- training --------------------------------------------------------------------------------------------------- */

/* Starts the job (train.h) on the model being served, on a thread of its own.  Its strings and data sets must stay
 * valid until the last event, after which another job may be started.  The job is opened on that thread, so a job that
 * cannot be planned ends with TRAIN_FAILED.  ERR_FULL while a job runs.  Any thread, one call at a time. */
int engine_train_start(struct engine *, const struct train_job *, train_event_fn *, void *arg, struct err *e);
/* Whether a model can be trained as a draft of the one that is served: it has the same vocabulary, all of it.  Any
 * thread.  @return 0, or an err code. */
int engine_check_draft(const struct engine *, const char *dir, struct err *e);
/* Whether the model that is served can teach the one in a directory: it has the same vocabulary, but for what either
 * has beyond the other.  Any thread.  @return 0, or an err code. */
int engine_check_teacher(const struct engine *, const char *dir, struct err *e);
/* Makes a start for one: the first `layers` layers of the model in a directory (truncate.h).  Any thread. */
int engine_make_draft(const char *model, const char *out, int layers, struct err *e);
/* Plans the job without running it: its steps and memory.  A pool thread, at any time. */
int engine_train_plan(struct engine *, const struct train_job *, struct train_plan *, struct err *e);
/* Runs fn(arg) on a thread that may use the device by the gate: in order, and while a job runs between two of its
 * steps or batches.  For tuners (tuner.h).  Any thread; engine_close waits until all have run. */
struct model;
typedef void engine_trainer_fn(void *arg, struct model *, struct scheduler_gate *);
int engine_trainer_call(struct engine *, engine_trainer_fn *, void *arg, struct err *e);
/* Within such a call: makes what the tuner has learnt the adapter of that name, without a file. */
struct tuner;
int engine_tuner_publish(struct engine *, struct tuner *, const char *name, struct err *e);
/* Within train_job.rollout: makes the adapter that is trained, as it is now, the adapter of that name, without a file.
 */
int engine_train_publish(struct engine *, struct train *, const char *name, struct err *e);
/* Ignored when no job runs. */
void engine_train_command(struct engine *, enum train_command);

/* ---- statistics ------------------------------------------------------------------------------------------------ */

/* Pages on disk.  The counts are of pages, since the engine was opened. */
struct kv_disk_stats {
    bool on;
    uint64_t pages, bytes, limit; /* there now; limit: of bytes, as far as other models leave it */
    uint64_t hits, misses;        /* of prompts: read; neither in memory nor there */
    uint64_t written, dropped;    /* dropped: not written because they came faster than they were written */
    uint64_t evicted, expired, corrupt, write_errors;
    uint64_t loads, load_ns; /* requests that waited for pages, and how long */
};

struct engine_stats {
    int waiting, running, paused;
    int pages_total, pages_used, pages_cached; /* used: held by requests; cached: free but holding a known prefix */
    uint64_t steps, prompt_tokens, generated_tokens, preemptions;
    uint64_t forced_tokens;              /* of the generated ones: known from the grammar, not sampled */
    uint64_t prefill_tokens, prefill_ns; /* computed of prompts, and the time of the steps that computed any */
    uint64_t prefix_query_tokens, prefix_hit_tokens;
    int adapters; /* that can be named */
    size_t adapter_bytes;
    uint64_t step_started; /* as engine_busy_since, but 0 where that is in the future */
    uint64_t last_step_ns;
    uint64_t train_ns; /* that training had the device */
    /* of every step: its duration, its tokens, its sequences */
    struct histogram step_seconds, step_tokens, step_seqs;
    struct comm_profile ranks[COMM_OPS]; /* what rank 0 exchanged with the others, by operation */
    uint64_t failed_steps;  /* the device reported an error */
    bool device_lost;       /* every request ends with an error, and only a new process helps */
    size_t device_used;     /* of info's device_budget; beyond its device_base: adapters and training */
    uint64_t decode_tokens; /* computed to follow generated ones; the others are of prompts, or computed again */
    uint64_t proposed_tokens, accepted_tokens; /* candidates computed, and those that were right */
    uint64_t proposed_by[SPECULATE_SOURCES], accepted_by[SPECULATE_SOURCES]; /* the same by where they came from */
    uint64_t draft_steps, draft_ns, draft_prompt_tokens; /* of the draft model: its steps for candidates, all its time,
                                                            and known tokens that it computed before */
    int history_entries;
    size_t history_bytes; /* of earlier texts that are kept */
    double saved_steps;   /* steps that these would have taken, each shared by its sequences */
    struct kv_disk_stats kv_disk;
    uint64_t held_rows; /* rows not sampled in a step because their mask was not there (masker.h) */
};

extern const histogram_bounds engine_step_seconds_bounds, engine_step_tokens_bounds, engine_step_seqs_bounds;

const char *engine_comm_op(int op); /* of engine_stats.ranks: "all-gather" ... */
void engine_stats_read(const struct engine *, struct engine_stats *);
/* Adds those of another engine of the process. */
void engine_stats_add(struct engine_stats *, const struct engine_stats *);
/* Adds the counters of an engine that is about to be closed, and nothing of what it has now. */
void engine_stats_retire(struct engine_stats *, const struct engine_stats *);
/* @return the clock_now() since which the engine thread has been busy: the start of its loop iteration, or of the
 * oldest message that it has not taken while asleep, or the end of training's time slice, which may be in the future; 0
 * when it has nothing to do.  A time long ago means that the engine is stalled.  Any thread; takes no lock, so it works
 * wherever the engine hangs. */
uint64_t engine_busy_since(const struct engine *);
/* @return whether the device was lost: every request ends with an error, and only a new process can serve again.  Any
 * thread; true before the last of these events is announced. */
bool engine_lost(const struct engine *);

/* One step, for debugging. */
struct step_record {
    uint64_t number;                  /* 1: the first */
    uint64_t started;                 /* clock_now() */
    uint64_t ns;                      /* duration */
    uint64_t train_ns;                /* of the time slice of training behind it */
    int seqs, tokens, rows;           /* sequences, tokens and rows of logits computed */
    int preempted;                    /* sequences preempted by its plan */
    int waiting, running, pages_used; /* after it */
};

/* A running sequence at the end of the last step. */
struct seq_view {
    uint64_t id;                        /* as engine_submit returned it */
    int known, computed, cached, pages; /* tokens: of prompt and text so far; in the KV cache; found there at first */
    bool paused, blocked;
};

enum { ENGINE_STEPS_KEPT = 64, ENGINE_SEQS_KEPT = 256 };

/* The last steps, oldest first.  @return how many.  Any thread, even while a step hangs. */
int engine_last_steps(const struct engine *, struct step_record out[ENGINE_STEPS_KEPT]);
/* The first ENGINE_SEQS_KEPT running sequences, in order of admission.  @return how many.  Likewise. */
int engine_running(const struct engine *, struct seq_view out[ENGINE_SEQS_KEPT]);

/* ---- a trace of its steps --------------------------------------------------------------------------------------- */

enum trace_track { TRACK_ENGINE, TRACK_TRAINER }; /* which thread */
enum trace_what { TRACE_STEP, TRACE_PHASE, TRACE_OP, TRACE_TRAINING, TRACE_EXCHANGE };

struct trace_event {
    const char *name;    /* static: "step", a phase of it, an op, or an operation between ranks */
    uint64_t start, end; /* clock_now() */
    enum trace_what what;
    enum trace_track track;
    int seqs, tokens, rows; /* TRACE_STEP */
    uint64_t sent;          /* TRACE_EXCHANGE: bytes */
};

struct engine_trace {
    uint64_t start, end;   /* when it was switched on and off */
    struct trace_event *v; /* (n), capacity max, in order of their ends; owned */
    size_t n, max;
    uint64_t lost; /* events dropped because v was full */
};

/* Records every step, phase and op from the next step on, at most `max`.  ERR_FULL: another trace is being recorded.
 * The owner's thread. */
int engine_trace_start(struct engine *, size_t max, struct err *e);
/* Ends the trace and returns it, to be freed by engine_trace_free.  Waits for the end of the step in progress, so it
 * belongs on a pool thread.  Once for every start, before engine_close. */
struct engine_trace *engine_trace_stop(struct engine *);
void engine_trace_free(struct engine_trace *);

#endif
