/* The daemon's metrics.  Fixed memory: every label value is known here.  Loop thread only.
 *
 *     metrics.c  the counts         metrics_render.c  their Prometheus text         metrics_vllm.c  vLLM's names */
#ifndef TANDEM_SERVER_METRICS_METRICS_H
#define TANDEM_SERVER_METRICS_METRICS_H

#include "engine/base/buf.h"
#include "engine/serve/engine.h"

#include <stdint.h>

struct device_sample;
struct jobs_view;

enum { METRICS_ROUTES = 160, METRICS_STATUSES = 32 };

/* Why a request was refused before it generated anything; a row in metrics.c for each. */
enum reject_reason {
    REJECT_QUEUE_FULL,
    REJECT_QUEUE_TOKENS,
    REJECT_QUEUE_WAIT,
    REJECT_KEY_RATE,
    REJECT_KEY_CONCURRENCY,
    REJECT_KEY_TOKENS,
    REJECT_DEADLINE,
    REJECT_UNAUTHORIZED,
    REJECT_FORBIDDEN,
    REJECT_VALIDATION,
    REJECT_LOADING,
    REJECT_DRAINING,
    REJECT_MEMORY,
    REJECT_REASONS
};

/* Why a generation ended before its time. */
enum abort_reason {
    ABORT_CLIENT,   /* the client disconnected */
    ABORT_SHUTDOWN, /* --drain-timeout expired */
    ABORT_DEADLINE, /* the request's deadline passed */
    ABORT_ERROR,    /* the device or the model failed */
    ABORT_REASONS
};

enum histogram_id {
    HIST_TTFT,      /* request head complete to first token, seconds */
    HIST_ITL,       /* between tokens of one request, as they reach the loop, seconds */
    HIST_TPOT,      /* of one request: first to last token, over the tokens after the first, seconds */
    HIST_E2E,       /* request head complete to last token, seconds */
    HIST_QUEUE,     /* submitted to first scheduled, seconds */
    HIST_PREFILL,   /* first scheduled to first token, seconds */
    HIST_DECODE,    /* first to last token, seconds */
    HIST_INFERENCE, /* first scheduled to last token, seconds */
    HIST_PROMPT,    /* tokens */
    HIST_GENERATED, /* likewise */
    HIST_MAX_NEW,   /* requested maximum, tokens */
    HIST_SEQUENCES, /* sequences per request */
    HIST_COMPILE,   /* a grammar, seconds */
    HISTOGRAMS,
};

/* How a line of a batch ended. */
enum batch_line_outcome { BATCH_LINE_COMPLETED, BATCH_LINE_FAILED, BATCH_LINE_EXPIRED, BATCH_LINE_OUTCOMES };

enum startup_phase {
    STARTUP_LISTEN,    /* from main to the open port */
    STARTUP_TEMPLATE,  /* the chat template */
    STARTUP_WEIGHTS,   /* read, quantised, packed */
    STARTUP_TOKENIZER, /* */
    STARTUP_MEMORY,    /* KV pages and workspace */
    STARTUP_ADAPTERS,
    STARTUP_READY, /* total, from main to the first request accepted */
    STARTUP_PHASES
};

struct metrics {
    const char *routes[METRICS_ROUTES]; /* label values, static text; n_routes of them, then "other" */
    int n_routes;
    uint64_t requests[METRICS_ROUTES + 1][METRICS_STATUSES];
    struct histogram duration[METRICS_ROUTES + 1]; /* of HTTP requests, seconds */
    uint64_t finished[FINISH_ERROR + 1];
    uint64_t rejected[REJECT_REASONS];
    uint64_t aborted[ABORT_REASONS];
    uint64_t batch_lines[BATCH_LINE_OUTCOMES];
    uint64_t grammar_hits, grammar_failed; /* cache hits; failed compilations */
    struct histogram hist[HISTOGRAMS];
    double startup[STARTUP_PHASES]; /* seconds; 0: not reached */
    uint64_t start_unix_ns;
};

/* what metrics_render reads besides the counts; NULL where not available yet */
struct metrics_view {
    const struct engine_info *info;
    const struct engine_stats *stats;
    const struct http_server_stats *http;
    const struct jobs_view *jobs;
    const struct device_sample *devices;
    const struct adapter_info *adapters; /* n_adapters */
    int n_adapters;
    bool ready, prefix_cache;
    bool batch_running;
    double oldest_waiting;      /* seconds; wait of the oldest generation without a first token */
    double step_running;        /* seconds; 0: no step runs */
    double memory_limit;        /* the process's memory limit, bytes */
    double certificate_expires; /* seconds since the epoch; 0: none */
    double train_speed_floor;   /* tokens/s; 0: none */
    const char *model_name;
    bool vllm; /* also under its names */
    uint64_t kv_event_batches, kv_event_batches_refused, kv_event_replays, kv_event_resyncs;
};

void metrics_init(struct metrics *);
/* Routes are known by the address-independent text of their path; call before serving. */
void metrics_add_route(struct metrics *, const char *path);
/* status 0: the client disconnected first (reported as 499) */
void metrics_request(struct metrics *, const char *path, int status, uint64_t duration_ns);
void metrics_reject(struct metrics *, enum reject_reason);
void metrics_abort(struct metrics *, enum abort_reason);
void metrics_observe(struct metrics *, enum histogram_id, double value);
void metrics_startup(struct metrics *, enum startup_phase, double seconds);
/* one generation is over; received 0: nobody waited for it, so no durations are counted */
void metrics_finish(struct metrics *, const struct event *done, uint64_t received, uint64_t now);
/* counts a constraint, compiled in ns; 0: a cache hit */
void metrics_constraint(struct metrics *, uint64_t ns, bool good);

void metrics_render(const struct metrics *, const struct metrics_view *, struct buf *out);
void metrics_render_vllm(const struct metrics *, const struct metrics_view *, struct buf *out);

/* ---- label values and tables, for rendering ---- */

extern const char *const metrics_reject_names[REJECT_REASONS];
extern const char *const metrics_abort_names[ABORT_REASONS];
extern const char *const metrics_startup_names[STARTUP_PHASES];
const char *metrics_finish_name(int reason); /* NULL: no such reason */
/* @return the status of slot s of requests[]; 0: all others; -1: no such slot. */
int metrics_status(int s);

struct metrics_hist {
    const char *name, *help;
    const double *bounds;
    const char *vllm; /* its name there; NULL: none */
};
extern const struct metrics_hist metrics_hists[HISTOGRAMS];
extern const histogram_bounds metrics_duration_bounds;

#endif
