/* The engine: one model, its KV pages, a schedule, and a thread that turns submitted requests into events.
 *
 * Threads.  engine_open and engine_close are called by the owner (the loop thread of the daemon, or a command's main).
 * After engine_start the engine thread owns model, pages and schedule.  engine_submit, engine_cancel, engine_pause,
 * engine_resume, engine_events, engine_events_done are called by ONE other thread (the owner's); they only pass
 * messages and never block.  engine_stats_read and everything that reads struct engine_info may be called by any.
 * What flows up is data: batches of events, announced by the notify callback.
 *
 * The engine knows no sockets and no JSON requests. */
#ifndef TANDEM_ENGINE_SERVE_ENGINE_H
#define TANDEM_ENGINE_SERVE_ENGINE_H

#include "engine/base/err.h"
#include "engine/base/histogram.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/train/train.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine;
struct grammar;

/* ---- opening --------------------------------------------------------------------------------------------------- */

struct engine_config {
    const char *model;       /* a Hugging Face directory */
    const char *device;      /* see struct dev_config (kernels/ops.h); NULL: cpu */
    int threads;             /* compute threads, the engine's own included; 0: one per available core */
    const char *cpus;        /* which cores the threads are bound to: "0-3,8"; NULL or "": none.  With threads 0, one
                                thread for each */
    const char *quantize;    /* NULL or "none": the file's own type; "int8", "int4", "nf4"; for comparisons
                                "int8-nearest", "int4-nearest": plain rounding */
    const char *kv_type;     /* NULL or "auto": the device's choice of 16 bits; "f16", "bf16", "f32", "int8" */
    const char *activations; /* for products with bf16 weights: "f32"; "bf16": rounded, as models that run in bf16 have
                                them; NULL or "auto": bf16 where the device multiplies it faster */
    size_t kv_cache_bytes;   /* 0: enough for max_seqs of a moderate length, at most a quarter of the free memory */
    /* of a device with memory of its own: what may be taken of it */
    size_t gpu_memory_bytes;    /* 0: by the next line */
    double gpu_memory_fraction; /* of what is free at the start; 0: 0.9 */
    int kv_pages;               /* exactly so many pages, or ERR_NOMEM with what they need; 0: by the line above */
    int max_seqs;               /* requests that run at once; 0: 64 */
    int max_batch_tokens;       /* tokens in one step; 0: 512 */
    int max_prefill_tokens; /* and of prompts among them while others decode, so that a prompt that comes in does not
                               hold their next tokens up; 0: a sixteenth of max_batch_tokens */
    int max_queue;          /* requests that wait; 0: 256 */
    int max_total_tokens;   /* prompt + generated of one request; 0: what the model and the page pool allow */
    int max_adapters;       /* names at once; 0: 64 */
    int max_lora_rank;      /* of an adapter; 0: 256 */
    bool no_prefix_cache;
    bool record_steps;   /* a device that replays steps (kernels/ops.h) is shown those of all sizes at the start, for up
                            to a second, so that the first requests do not wait for it; for what serves for long */
    bool verify_weights; /* compare every byte with the checksums `tandem quantize` wrote; an error where it has none */
    double train_itl_budget; /* seconds a step of serving and the training behind it may take; 0: 0.05 */
    double train_slowdown;   /* and how many times the step; >= 1; 0: 1.2 */
    bool watch_device;       /* CHECK which thread uses the device (device_owner.h); with TANDEM_DEBUG always */
    bool no_calibration;     /* a small model is quantised without being calibrated on its own text (calibrate.h) */
};

/* Loads the model; long.  NULL and *e on error. */
struct engine *engine_open(const struct engine_config *, struct err *e);
/* Starts the thread.  notify(arg) is called on the engine thread whenever events wait that did not before. */
int engine_start(struct engine *, void (*notify)(void *), void *arg, struct err *e);
/* Ends every request, stops the thread if started, frees everything.  NULL is allowed. */
void engine_close(struct engine *);

/* What was loaded; constant after engine_open, owned by the engine. */
struct engine_info {
    const char *model_id;    /* the directory's last component */
    const char *base_name;   /* where it came from, as adapters of it say: adapter.h */
    const char *family;      /* "llama", "qwen2", "qwen3", "gpt2", "phi" */
    const char *device;      /* "cpu avx512" */
    const char *device_note; /* why "auto" chose no GPU; or "" */
    const char *weight_type; /* "bf16", "int8" ... */
    const char *kv_type;
    uint64_t parameters;
    size_t weight_bytes, kv_bytes, page_bytes;
    int layers, hidden, vocab;
    int max_model_len;    /* positions the model has */
    int max_total_tokens; /* prompt + generated, what one request may use here */
    int max_seqs, max_batch_tokens, max_prefill_tokens, max_queue, pages, page_tokens, threads;
    int max_adapters, max_lora_rank;
    const int32_t *eos; /* ids that end a text (n_eos of them) */
    int n_eos;
    /* defaults of generation_config.json; NAN or -1 where it says nothing */
    float temperature, top_p, repetition_penalty;
    int top_k, do_sample;
    double load_seconds;
    double weights_seconds, tokenizer_seconds, memory_seconds; /* its parts: reading and packing, the vocabulary, KV
                                                                  pages and workspace */
    size_t workspace_bytes; /* activations and logits of a step; index arrays are small and not counted.  With the
                               scratch of a device whose memory is its own */
    size_t device_bytes, device_budget, device_base; /* such a device's memory, what may be taken of it, and what is
                                                        taken before the first request; 0 for others */
};

const struct engine_info *engine_info(const struct engine *);
const struct tokenizer *engine_tokenizer(const struct engine *);

/* ---- requests -------------------------------------------------------------------------------------------------- */

enum { ENGINE_TOP_MAX = 32, ENGINE_STOP_MAX = 16, ENGINE_STOP_BYTES = 256 };

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

/* What a request gets instead of tokens: the output of the last layer, after the final norm, as one vector.  MEAN of
 * all positions of its prompt, summed in order in double; LAST: that of the last position. */
enum pooling { POOLING_NONE, POOLING_MEAN, POOLING_LAST };

/* Everything is copied by engine_submit. */
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
    int top_n;            /* most likely tokens to report, 0 .. ENGINE_TOP_MAX */
    int priority;         /* lower runs first; 0 */
    uint64_t client;      /* requests of one client share with those of others (sched.h); 0: likewise one client */
    const char *adapter;  /* a name that is loaded; NULL: the base model */
    /* What the generated text must be (grammar.h), referenced by engine_submit; NULL: anything.  eos is chosen only
     * where the text is whole, and no other special token ever; with ignore_eos or min_new_tokens, the text goes on
     * while it can, but a text that nothing may follow ends with eos.  Log-
     * probabilities and top tokens stay those of the model without the constraint. */
    struct grammar *grammar;
    enum pooling pooling; /* not NONE: one EV_EMBEDDING; n_prompt <= max_total_tokens, and of the rest only priority,
                             adapter and user are looked at */
    void *user;           /* handed back in every event */
};

/* Checks, copies and queues.  Returns the request's id (never 0), or 0 with *e: ERR_FULL when max_queue wait already,
 * ERR_INVALID when a field breaks the rules above, ERR_NOT_FOUND when no such adapter is loaded. */
uint64_t engine_submit(struct engine *, const struct gen_request *, struct err *e);
/* True while the queue has room: asked before a prompt is tokenised. */
bool engine_has_room(const struct engine *);
/* One way to end early, whatever the reason: an EV_DONE with FINISH_CANCELLED follows (unless one was already on its
 * way).  Unknown ids are ignored. */
void engine_cancel(struct engine *, uint64_t id);
/* Its time is over: FINISH_TIMEOUT.  What is decoding ends with its next token, which says so (so the last EV_TOKEN and
 * the EV_DONE come in one batch, as always); what has no token yet, is paused or held up ends at once, by an EV_DONE
 * alone. */
void engine_expire(struct engine *, uint64_t id);
/* A paused request keeps its pages while nobody needs them and is not scheduled: the answer to a slow reader. */
void engine_pause(struct engine *, uint64_t id);
void engine_resume(struct engine *, uint64_t id);

/* ---- adapters -------------------------------------------------------------------------------------------------- */

enum { ADAPTER_NAME_MAX = 100 }; /* a letter or digit, then letters, digits, '.', '_', ':', '-' */

struct adapter_info {
    char name[ADAPTER_NAME_MAX + 1];
    uint64_t version; /* of each load, in order, from 1 */
    int r;            /* the largest of its modules' */
    double alpha;
    bool rslora;
    size_t bytes;      /* on the device */
    int requests;      /* that use this version now, waiting ones included */
    int running;       /* those of them that were scheduled at least once */
    char targets[160]; /* "q_proj,v_proj" */
};

/* Reads a PEFT directory and makes it the adapter of that name for all requests from now on; those that run keep the
 * version they began with.  Any thread but the engine's (the loop's too, if it may wait for the disk and for the step
 * in progress); before engine_start the owner's.  Several may load at once; none may begin after engine_close has. */
int engine_adapter_load(struct engine *, const char *name, const char *dir, uint64_t *version, struct err *e);
/* From now on there is no adapter of that name; its memory is free when the last request that uses it ends. */
int engine_adapter_unload(struct engine *, const char *name, struct err *e);
/* The first `max` by name; returns how many. */
int engine_adapters_list(const struct engine *, struct adapter_info *out, int max);
/* ERR_NOT_FOUND with the known names, as engine_submit would say. */
int engine_adapter_check(const struct engine *, const char *name, struct err *e);

/* ---- events ---------------------------------------------------------------------------------------------------- */

enum event_kind { EV_PROMPT, EV_TOKEN, EV_EMBEDDING, EV_DONE };

enum finish_reason {
    FINISH_NONE,
    FINISH_LENGTH,
    FINISH_EOS,
    FINISH_STOP,
    FINISH_EMBEDDED, /* the EV_EMBEDDING is out */
    FINISH_TIMEOUT,  /* engine_expire */
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
    bool special;
    uint32_t text,
        text_len;     /* this token's text: bytes [text, text + text_len) of the batch's `text`; complete UTF-8 */
    uint32_t gen_len; /* how much of it belongs to the generated text: 0 for special tokens, less where a stop text
                         ended inside the token */
    int n_top;        /* entries of batch->top from `top` on */
    uint32_t top;
    /* EV_TOKEN with finish != NONE is always followed by EV_DONE in the same batch */
    enum finish_reason finish;
    /* EV_EMBEDDING, always followed by EV_DONE in the same batch */
    uint32_t values; /* entries [values, values + n_values) of the batch's `values`, all finite */
    int n_values;    /* the model's hidden size */
    /* EV_DONE */
    int n_prompt, n_cached, n_generated; /* n_cached: prompt tokens found in the prefix cache */
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

/* Detaches the batches that wait, oldest first (NULL: none).  Hand the whole list back when done. */
struct event_batch *engine_events(struct engine *);
void engine_events_done(struct engine *, struct event_batch *);

/* ---- training --------------------------------------------------------------------------------------------------- */

/* Starts the job (train.h) on the model being served, on a thread of its own; its strings and data sets stay the
 * caller's until the last event, after which another job may be started.  Opening is part of it: what cannot be planned
 * fails with TRAIN_FAILED.  ERR_FULL while a job runs.  Called by the owner's thread or, one at a time, another. */
int engine_train_start(struct engine *, const struct train_job *, train_event_fn *, void *arg, struct err *e);
/* What the job would take: nothing is trained or kept.  A pool thread, at any time. */
int engine_train_plan(struct engine *, const struct train_job *, struct train_plan *, struct err *e);
/* Ignored when no job runs. */
void engine_train_command(struct engine *, enum train_command);

/* ---- what it is doing ------------------------------------------------------------------------------------------ */

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
    uint64_t failed_steps;  /* the device reported an error */
    bool device_lost;       /* every request ends with an error, and only a new process helps */
    size_t device_used;     /* of info's device_budget; beyond its device_base: adapters and training */
    uint64_t decode_tokens; /* computed to follow generated ones; the others are of prompts, or computed again */
    uint64_t held_rows;     /* rows not sampled in a step because their mask was not there (masker.h) */
};

extern const histogram_bounds engine_step_seconds_bounds, engine_step_tokens_bounds, engine_step_seqs_bounds;

void engine_stats_read(const struct engine *, struct engine_stats *);
/* clock_now() of when the engine thread began the turn (a step and what belongs to it) that it is in, or of when
 * somebody began to wait for it to wake, or of when training is to give the device back, which may be in the future; 0
 * when it has nothing to do.  What is long ago is stuck.  Any thread, no lock: it
 * answers whatever the engine hangs in. */
uint64_t engine_busy_since(const struct engine *);
/* The device has an error that stays: every request ends with an error, and only a new process helps.  Any thread; true
 * before the last of these events is announced. */
bool engine_lost(const struct engine *);

/* One step, for people who ask what it is doing. */
struct step_record {
    uint64_t number;                  /* 1: the first */
    uint64_t started;                 /* clock_now() */
    uint64_t ns;                      /* it took */
    uint64_t train_ns;                /* that training had afterwards */
    int seqs, tokens, rows;           /* sequences, tokens and rows of logits computed */
    int preempted;                    /* for it */
    int waiting, running, pages_used; /* after it */
};

/* A sequence that holds a slot, as it was at the end of the last step. */
struct seq_view {
    uint64_t id;                        /* as engine_submit returned it */
    int known, computed, cached, pages; /* tokens: of prompt and text so far; in the KV cache; found there at first */
    bool paused, blocked;
};

enum { ENGINE_STEPS_KEPT = 64, ENGINE_SEQS_KEPT = 256 };

/* The last steps, oldest first; how many.  Any thread, also while a step does not end. */
int engine_last_steps(const struct engine *, struct step_record out[ENGINE_STEPS_KEPT]);
/* Sequences that hold a slot, by admission; the first ENGINE_SEQS_KEPT; how many.  Likewise. */
int engine_running(const struct engine *, struct seq_view out[ENGINE_SEQS_KEPT]);

/* ---- a trace of its steps --------------------------------------------------------------------------------------- */

enum trace_track { TRACK_ENGINE, TRACK_TRAINER }; /* which thread */
enum trace_what { TRACE_STEP, TRACE_PHASE, TRACE_OP, TRACE_TRAINING };

struct trace_event {
    const char *name;    /* static: "step", a phase of it, or an op */
    uint64_t start, end; /* clock_now() */
    enum trace_what what;
    enum trace_track track;
    int seqs, tokens, rows; /* TRACE_STEP */
};

struct engine_trace {
    uint64_t start, end;   /* when it was switched on and off */
    struct trace_event *v; /* n of room for max, in order of their ends; owned */
    size_t n, max;
    uint64_t lost; /* events that had no room */
};

/* From the next step on, every step, phase and op is noted, max of them at most.  ERR_FULL: that is being done for
 * somebody else.  The owner's thread.  Without a trace a step costs what it always did. */
int engine_trace_start(struct engine *, size_t max, struct err *e);
/* Takes what was noted; free with engine_trace_free.  Waits for the end of the step in progress, so on a pool thread;
 * once for every start, and before engine_close. */
struct engine_trace *engine_trace_stop(struct engine *);
void engine_trace_free(struct engine_trace *);

#endif
