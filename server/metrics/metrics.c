/* Counters and histograms.  Loop thread only; nothing here allocates. */
#include "server/metrics/metrics.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"

#include <string.h>

/* status codes with a series of their own; the rest count as "other" */
static const int statuses[] = {200, 202, 204, 304, 400, 401, 403, 404, 405, 408, 409, 411, 413, 414,
                               415, 417, 422, 424, 429, 431, 499, 500, 501, 503, 504, 505, 507};
enum { N_STATUSES = sizeof statuses / sizeof *statuses };
_Static_assert((int)N_STATUSES < (int)METRICS_STATUSES, "one place is for the others");

static const char *const finish_names[] = {
    [FINISH_LENGTH] = "length",       [FINISH_EOS] = "eos_token",   [FINISH_STOP] = "stop_sequence",
    [FINISH_EMBEDDED] = "embedding",  [FINISH_TIMEOUT] = "timeout", [FINISH_ABORTED] = "aborted",
    [FINISH_CANCELLED] = "cancelled", [FINISH_ERROR] = "error",
};

const char *const metrics_reject_names[REJECT_REASONS] = {
    [REJECT_QUEUE_FULL] = "queue_full",
    [REJECT_QUEUE_TOKENS] = "queue_tokens",
    [REJECT_QUEUE_WAIT] = "queue_wait",
    [REJECT_KEY_RATE] = "key_rate",
    [REJECT_KEY_CONCURRENCY] = "key_concurrency",
    [REJECT_KEY_TOKENS] = "key_tokens",
    [REJECT_DEADLINE] = "deadline",
    [REJECT_UNAUTHORIZED] = "unauthorized",
    [REJECT_FORBIDDEN] = "forbidden",
    [REJECT_VALIDATION] = "validation",
    [REJECT_LOADING] = "loading",
    [REJECT_DRAINING] = "draining",
    [REJECT_MEMORY] = "memory",
};
const char *const metrics_abort_names[ABORT_REASONS] = {
    [ABORT_CLIENT] = "client",
    [ABORT_SHUTDOWN] = "shutdown",
    [ABORT_DEADLINE] = "deadline",
    [ABORT_ERROR] = "error",
};
const char *const metrics_startup_names[STARTUP_PHASES] = {
    [STARTUP_LISTEN] = "listen",       [STARTUP_TEMPLATE] = "template", [STARTUP_WEIGHTS] = "weights",
    [STARTUP_TOKENIZER] = "tokenizer", [STARTUP_MEMORY] = "memory",     [STARTUP_ADAPTERS] = "adapters",
    [STARTUP_READY] = "ready",
};

/* From half a millisecond on, because small models answer faster than other servers' first bucket. */
static const histogram_bounds latency = {.0005, .001, .0025, .005, .01, .025, .05, .1,  .25, .5,
                                         1,     2.5,  5,     10,   20,  40,   80,  160, 320, 640};
static const histogram_bounds between = {.0005, .001, .002, .003, .005, .0075, .01, .015, .02, .03,
                                         .05,   .075, .1,   .15,  .25,  .5,    1,   2.5,  10};
static const histogram_bounds sizes = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 1e4, 2e4, 5e4, 1e5, 2e5};
static const histogram_bounds few = {1, 2, 5, 10, 20, 50, 100};
const histogram_bounds metrics_duration_bounds = {.0005, .001, .0025, .005, .01, .025, .05, .1, .25,
                                                  .5,    1,    2.5,   5,    10,  30,   60,  300};

const struct metrics_hist metrics_hists[HISTOGRAMS] = {
    [HIST_TTFT] = {"tandem_time_to_first_token_seconds", "Time from a complete request head to the first token.",
                   latency, "vllm:time_to_first_token_seconds"},
    [HIST_ITL] = {"tandem_inter_token_latency_seconds", "Time between consecutive tokens of a request.", between,
                  "vllm:inter_token_latency_seconds"},
    [HIST_TPOT] = {"tandem_time_per_output_token_seconds", "Mean time per token after the first, of one request.",
                   between, "vllm:request_time_per_output_token_seconds"},
    [HIST_E2E] = {"tandem_e2e_request_latency_seconds", "Time from a complete request head to the last token.", latency,
                  "vllm:e2e_request_latency_seconds"},
    [HIST_QUEUE] = {"tandem_queue_time_seconds", "Time from submission to the engine until the request's first step.",
                    latency, "vllm:request_queue_time_seconds"},
    [HIST_PREFILL] = {"tandem_prefill_time_seconds", "Time from a request's first step to its first token.", latency,
                      "vllm:request_prefill_time_seconds"},
    [HIST_DECODE] = {"tandem_decode_time_seconds", "Time from a request's first token to its last.", latency,
                     "vllm:request_decode_time_seconds"},
    [HIST_INFERENCE] = {"tandem_inference_time_seconds", "Time from a request's first step to its last token.", latency,
                        "vllm:request_inference_time_seconds"},
    [HIST_PROMPT] = {"tandem_request_prompt_tokens", "Prompt tokens per request.", sizes, "vllm:request_prompt_tokens"},
    [HIST_GENERATED] = {"tandem_request_generated_tokens", "Generated tokens per request.", sizes,
                        "vllm:request_generation_tokens"},
    [HIST_MAX_NEW] = {"tandem_request_max_new_tokens", "Limit of generated tokens, per request.", sizes,
                      "vllm:request_params_max_tokens"},
    [HIST_SEQUENCES] = {"tandem_request_sequences", "Sequences generated per HTTP request (parameter n).", few,
                        "vllm:request_params_n"},
    [HIST_COMPILE] =
        {"tandem_constraint_compile_seconds",
         "Time to compile a schema or regular expression that is not cached, including the wait for a thread.", latency,
         NULL},
};

void metrics_init(struct metrics *m)
{
    *m = (struct metrics){.start_unix_ns = clock_unix()};
}

void metrics_add_route(struct metrics *m, const char *path)
{
    for (int i = 0; i < m->n_routes; i++)
        if (strcmp(m->routes[i], path) == 0) return;
    CHECK(m->n_routes < METRICS_ROUTES);
    m->routes[m->n_routes++] = path;
}

void metrics_request(struct metrics *m, const char *path, int status, uint64_t duration_ns)
{
    int route = 0, slot = 0;
    if (status == 0) status = 499;
    while (route < m->n_routes && (!path || strcmp(m->routes[route], path) != 0)) route++;
    if (route == m->n_routes) route = METRICS_ROUTES;
    while (slot < N_STATUSES && statuses[slot] != status) slot++;
    m->requests[route][slot]++;
    histogram_add(&m->duration[route], metrics_duration_bounds, (double)duration_ns * 1e-9);
}

void metrics_reject(struct metrics *m, enum reject_reason why)
{
    m->rejected[why]++;
}

void metrics_abort(struct metrics *m, enum abort_reason why)
{
    m->aborted[why]++;
}

void metrics_observe(struct metrics *m, enum histogram_id id, double value)
{
    histogram_add(&m->hist[id], metrics_hists[id].bounds, value);
}

void metrics_startup(struct metrics *m, enum startup_phase phase, double seconds)
{
    m->startup[phase] = seconds;
}

static void observe_span(struct metrics *m, enum histogram_id id, uint64_t from, uint64_t to)
{
    if (from && to >= from) metrics_observe(m, id, (double)(to - from) * 1e-9);
}

void metrics_finish(struct metrics *m, const struct event *done, uint64_t received, uint64_t now)
{
    const struct request_times *t = &done->times;
    m->finished[done->finish]++;
    metrics_observe(m, HIST_PROMPT, done->n_prompt);
    if (done->finish != FINISH_EMBEDDED) metrics_observe(m, HIST_GENERATED, done->n_generated);
    if (!received) return;
    metrics_observe(m, HIST_E2E, (double)(now - received) * 1e-9);
    observe_span(m, HIST_QUEUE, t->submitted, t->scheduled);
    observe_span(m, HIST_INFERENCE, t->scheduled, t->done);
    if (done->finish == FINISH_EMBEDDED) return;
    observe_span(m, HIST_PREFILL, t->scheduled, t->first_token);
    observe_span(m, HIST_DECODE, t->first_token, t->done);
    if (done->n_generated > 1 && t->first_token && t->done >= t->first_token)
        metrics_observe(m, HIST_TPOT, (double)(t->done - t->first_token) * 1e-9 / (done->n_generated - 1));
}

void metrics_constraint(struct metrics *m, uint64_t ns, bool good)
{
    if (ns) metrics_observe(m, HIST_COMPILE, (double)ns * 1e-9);
    m->grammar_hits += good && !ns;
    m->grammar_failed += !good;
}

const char *metrics_finish_name(int reason)
{
    return reason >= 0 && reason < (int)(sizeof finish_names / sizeof *finish_names) ? finish_names[reason] : NULL;
}

int metrics_status(int s)
{
    return s < N_STATUSES ? statuses[s] : s == N_STATUSES ? 0 : -1;
}
