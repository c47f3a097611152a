/* Runs the phases on an engine that has no thread: requests are submitted and loop iterations are called directly, so
 * the scheduler, batch, forward pass, sampling and events that are measured are the daemon's.
 *
 * Decoding at batch B needs B sequences at the same position: each is paused after its first token until all have one,
 * then all are resumed.  Prompts are random ids; those of decoding are the same in every repeat, so that from the
 * second repeat on they hit the prefix cache and only decoding takes time. */
#include "engine/bench/bench.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/meminfo.h"
#include "engine/serve/manual_step.h"
#include "kernels/rng.h"
#include "kernels/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_PROMPT = 512, DEFAULT_GENERATE = 64, WARM_UP = 64, PAGES_MAX = 1 << 24 };

struct slot { /* a sequence of the run, updated from events */
    uint64_t id;
    int tokens;
};

struct bench {
    struct bench_config c;
    struct engine *g;
    struct dev_trace *trace;
    const struct engine_info *info;
    int prompt, generate;
    size_t load_peak;
    uint64_t fresh; /* prefills so far: each has a different prompt */
    bool warm;
    int32_t *ids;       /* (prompt) */
    struct slot *slots; /* (max_batch) */
    int n_slots, n_first, n_ended;
    bool hold; /* pause a sequence after its first token */
    const char *what;
    double *times; /* seconds of the timed steps; room for repeat * steps */
    int n_times;
    struct trace_count sum[TRACE_COUNT];     /* of the timed steps */
    struct comm_profile ranks, ranks_before; /* what rank 0 exchanged in them, and before those that are timed now */
};

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Lengths of prompt and generated text: as configured, or what the model's context allows. */
static int choose_lengths(struct bench *b, const struct model_config *m, struct err *e)
{
    int64_t room = m->max_len - 1, p = b->c.prompt_tokens, g = b->c.generate_tokens; /* 1: sampled by prefill */
    if (!g) g = DEFAULT_GENERATE;
    if (!p) p = DEFAULT_PROMPT;
    if (!b->c.prompt_tokens && p + g > room) p = room - g > 1 ? room - g : 1;
    if (!b->c.generate_tokens && p + g > room) g = room - p > 1 ? room - p : 1;
    if (p + g > room)
        return err_set(e, ERR_INVALID,
                       "--prompt-tokens %lld and --generate-tokens %lld take %lld positions; the model has %d",
                       (long long)p, (long long)g, (long long)p + (long long)g + 1, m->max_len);
    b->prompt = (int)p;
    b->generate = (int)g;
    return 0;
}

static int open_engine(struct bench *b, struct err *e)
{
    struct model_config m;
    struct engine_config c = b->c.engine;
    int rc = model_config_read(c.model, &m, e);
    if (!rc) rc = model_config_generates(&m, e);
    if (!rc) rc = choose_lengths(b, &m, e);
    if (rc) return rc;
    /* one page for each to grow: the scheduler admits no sequence without it */
    int64_t pages = (int64_t)b->c.max_batch * ((b->prompt + b->generate + 1 + KV_PAGE - 1) / KV_PAGE + 1);
    if (pages > PAGES_MAX)
        return err_set(e, ERR_NOMEM, "--batch %d needs %lld KV pages; at most %d are possible", b->c.max_batch,
                       (long long)pages, PAGES_MAX);
    c.kv_pages = (int)pages;
    c.max_seqs = c.max_queue = b->c.max_batch;
    c.max_total_tokens = b->prompt + b->generate + 1;
    c.no_prefix_cache = false;
    c.speculate = NULL; /* what is measured is a step, not how far made-up texts repeat themselves */
    if (!(b->g = engine_open(&c, e)) || setup_pin(engine_setup(b->g), e)) return e->code;
    b->info = engine_info(b->g);
    struct model *model = &engine_setup(b->g)->model;
    b->trace = dev_trace_open(model->d, model->w.head, (double)b->info->page_bytes / b->info->layers / KV_PAGE);
    return b->trace ? 0 : err_set(e, ERR_NOMEM, "no memory for the trace");
}

struct bench *bench_open(const struct bench_config *c, struct err *e)
{
    struct bench *b = mem_zalloc(sizeof *b);
    b->c = *c;
    if (open_engine(b, e)) {
        bench_close(b);
        return NULL;
    }
    int chunks = (b->prompt + b->info->max_batch_tokens - 1) / b->info->max_batch_tokens;
    b->load_peak = memory_peak();
    b->ids = mem_array((size_t)b->prompt, sizeof *b->ids);
    b->slots = mem_array((size_t)c->max_batch, sizeof *b->slots);
    b->times = mem_array((size_t)c->repeat * (size_t)(b->generate > chunks ? b->generate : chunks), sizeof *b->times);
    return b;
}

void bench_close(struct bench *b)
{
    if (!b) return;
    dev_trace_close(b->trace);
    engine_close(b->g);
    free(b->ids);
    free(b->slots);
    free(b->times);
    free(b);
}

const struct engine_info *bench_info(const struct bench *b)
{
    return b->info;
}

int bench_prompt_tokens(const struct bench *b)
{
    return b->prompt;
}

int bench_generate_tokens(const struct bench *b)
{
    return b->generate;
}

size_t bench_load_peak(const struct bench *b)
{
    return b->load_peak;
}

int bench_ceilings(struct bench *b, struct ceilings *out, struct err *e)
{
    int rc = bench_measure(engine_setup(b->g)->model.d, out, e);
    memory_peak_forget(); /* it would include the buffer of the ceilings */
    return rc;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static int take_event(struct bench *b, const struct event *ev, struct err *e)
{
    struct slot *s = ev->user;
    if (ev->kind == EV_TOKEN && s->tokens++ == 0) {
        b->n_first++;
        if (b->hold) engine_pause(b->g, ev->id);
    }
    if (ev->kind != EV_DONE) return 0;
    b->n_ended++;
    return ev->finish == FINISH_ERROR ? err_set(e, ERR_IO, "a step failed: %s", ev->error) : 0;
}

static int take_events(struct bench *b, struct err *e)
{
    int rc = 0;
    struct event_batch *list = engine_events(b->g);
    for (struct event_batch *l = list; l; l = l->next)
        for (int i = 0; i < l->n && !rc; i++) rc = take_event(b, &l->v[i], e);
    engine_events_done(b->g, list);
    return rc;
}

/* One iteration of the engine loop.  *tokens: tokens computed.  done, total: for the progress callback. */
static int turn(struct bench *b, bool timed, int *tokens, int done, int total, struct err *e)
{
    if (b->c.progress && !b->c.progress(b->c.arg, b->what, done, total)) return err_set(e, ERR_FULL, "interrupted");
    uint64_t start = clock_now();
    *tokens = engine_step_once(b->g, false);
    if (timed) b->times[b->n_times++] = (double)(clock_now() - start) * 1e-9;
    int rc = take_events(b, e);
    if (!rc && *tokens <= 0) rc = err_set(e, ERR_IO, "the schedule found nothing to do");
    return rc;
}

/* All operations between ranks so far. */
static struct comm_profile exchanged(const struct bench *b)
{
    const struct shard *s = engine_setup(b->g)->model.shard;
    struct comm_profile all = {0};
    for (int i = 0; i < COMM_OPS && s; i++) {
        struct comm_profile one = comm_profile(s->comm, (enum comm_op)i);
        all.calls += one.calls;
        all.sent_bytes += one.sent_bytes;
        all.seconds += one.seconds;
    }
    return all;
}

static void count_from_here(struct bench *b)
{
    dev_trace_clear(b->trace);
    b->ranks_before = exchanged(b);
}

static void count_to_here(struct bench *b)
{
    const struct trace_count *c = dev_trace_counts(b->trace);
    for (int i = 0; i < TRACE_COUNT; i++) {
        b->sum[i].calls += c[i].calls;
        b->sum[i].ns += c[i].ns;
        b->sum[i].macs += c[i].macs;
        b->sum[i].bytes += c[i].bytes;
    }
    struct comm_profile now = exchanged(b);
    b->ranks.calls += now.calls - b->ranks_before.calls;
    b->ranks.sent_bytes += now.sent_bytes - b->ranks_before.sent_bytes;
    b->ranks.seconds += now.seconds - b->ranks_before.seconds;
}

static int submit(struct bench *b, int n_prompt, uint64_t seed, int max_new, struct err *e)
{
    for (int i = 0; i < n_prompt; i++) b->ids[i] = (int32_t)(rng_at(seed, (uint64_t)i) % (uint64_t)b->info->vocab);
    struct slot *s = &b->slots[b->n_slots++];
    *s = (struct slot){0};
    struct gen_request r = {.prompt = b->ids,
                            .n_prompt = n_prompt,
                            .sampling = {.repetition = 1},
                            .max_new_tokens = max_new,
                            .ignore_eos = true,
                            .user = s};
    s->id = engine_submit(b->g, &r, e);
    return s->id ? 0 : e->code;
}

static void begin(struct bench *b, bool hold)
{
    b->n_slots = b->n_first = b->n_ended = 0;
    b->hold = hold;
}

/* Runs a new prompt up to its first token. */
static int run_prefill(struct bench *b, int n_prompt, bool timed, struct err *e)
{
    begin(b, false);
    int tokens = 0, done = 0, rc = submit(b, n_prompt, UINT64_MAX - b->fresh++, 1, e);
    count_from_here(b);
    while (!rc && !b->n_ended) {
        rc = turn(b, timed, &tokens, done, n_prompt, e);
        done += tokens;
    }
    if (timed) count_to_here(b);
    return rc;
}

static int run_decode(struct bench *b, int batch, struct err *e)
{
    int tokens, rc = 0;
    begin(b, true);
    for (int i = 0; i < batch && !rc; i++) rc = submit(b, b->prompt, (uint64_t)i, b->generate + 1, e);
    while (!rc && b->n_first < batch) rc = turn(b, false, &tokens, b->n_first, batch, e);
    for (int i = 0; i < batch; i++) engine_resume(b->g, b->slots[i].id);
    count_from_here(b);
    for (int k = 0; k < b->generate && !rc; k++) {
        rc = turn(b, true, &tokens, k, b->generate, e);
        if (!rc && tokens != batch) rc = err_set(e, ERR_IO, "a step computed %d tokens, not %d", tokens, batch);
    }
    count_to_here(b);
    if (!rc && b->n_ended != batch) rc = err_set(e, ERR_IO, "%d of %d sequences ended", b->n_ended, batch);
    return rc;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int by_time(const void *a, const void *b)
{
    double x = ((const struct bench_op *)a)->seconds, y = ((const struct bench_op *)b)->seconds;
    return (x < y) - (x > y);
}

static void fill_ops(const struct bench *b, double whole, struct bench_result *r)
{
    _Static_assert((int)TRACE_COUNT + 1 < (int)BENCH_OPS_MAX, "two more: the ranks' and the engine's own time");
    double rest = whole, ranks = b->ranks.seconds;
    if (b->ranks.calls)
        r->ops[r->n_ops++] =
            (struct bench_op){"ranks", b->ranks.calls, ranks, ranks / whole, 0, (double)b->ranks.sent_bytes};
    rest -= ranks;
    for (int i = 0; i < TRACE_COUNT; i++) {
        const struct trace_count *c = &b->sum[i];
        if (!c->calls) continue;
        double s = (double)c->ns * 1e-9;
        r->ops[r->n_ops++] = (struct bench_op){trace_name(i), c->calls, s, s / whole, c->macs, c->bytes};
        rest -= s;
    }
    if (rest < 0) rest = 0;
    r->ops[r->n_ops++] = (struct bench_op){"engine", (uint64_t)b->n_times, rest, rest / whole, 0, 0};
    qsort(r->ops, (size_t)r->n_ops, sizeof *r->ops, by_time);
}

static void fill_result(struct bench *b, struct bench_result *r)
{
    int tokens = r->phase == BENCH_PREFILL ? b->prompt : r->batch * b->generate;
    double whole = 0, *repeat = mem_array((size_t)r->repeats, sizeof *repeat);
    r->steps = b->n_times / r->repeats;
    for (int i = 0; i < b->n_times; i++) {
        repeat[i / r->steps] += b->times[i];
        whole += b->times[i];
    }
    qsort(repeat, (size_t)r->repeats, sizeof *repeat, by_value);
    r->seconds = bench_percentile(repeat, r->repeats, 0.5);
    r->tokens_per_s = tokens / r->seconds;
    r->tokens_per_s_min = tokens / repeat[r->repeats - 1];
    r->tokens_per_s_max = tokens / repeat[0];
    free(repeat);
    qsort(b->times, (size_t)b->n_times, sizeof *b->times, by_value);
    r->step_p50 = bench_percentile(b->times, b->n_times, 0.50);
    r->step_p95 = bench_percentile(b->times, b->n_times, 0.95);
    r->step_p99 = bench_percentile(b->times, b->n_times, 0.99);
    const struct trace_count *lin = &b->sum[OP_linear], *gate_up = &b->sum[OP_gate_up], *head = &b->sum[TRACE_HEAD],
                             *attn = &b->sum[OP_attn];
    const struct trace_count *up = &b->sum[OP_experts_gate_up], *down = &b->sum[OP_experts_linear];
    double n = b->n_times, macs = lin->macs + gate_up->macs + head->macs + up->macs + down->macs;
    double bytes = lin->bytes + gate_up->bytes + head->bytes + up->bytes + down->bytes;
    r->work = (struct bench_work){macs / n, attn->macs / n, bytes / n, attn->bytes / n};
    fill_ops(b, whole, r);
    r->peak_bytes = memory_peak();
}

int bench_run(struct bench *b, enum bench_phase phase, int batch, struct bench_result *r, struct err *e)
{
    int rc = 0;
    char what[48];
    *r = (struct bench_result){.phase = phase, .batch = batch, .prompt_tokens = b->prompt, .repeats = b->c.repeat};
    if (phase == BENCH_DECODE) r->generate_tokens = b->generate;
    if (batch < 1 || batch > (phase == BENCH_DECODE ? b->c.max_batch : 1))
        return err_set(e, ERR_INVALID, "batch %d", batch);
    b->what = "warm-up";
    if (!b->warm) rc = run_prefill(b, b->prompt < WARM_UP ? b->prompt : WARM_UP, false, e);
    b->warm = true;
    b->n_times = 0;
    memset(b->sum, 0, sizeof b->sum);
    b->ranks = (struct comm_profile){0};
    for (int i = 0; i < r->repeats && !rc; i++) {
        snprintf(what, sizeof what, "%s, batch %d, run %d of %d", bench_phase_name(phase), batch, i + 1, r->repeats);
        b->what = what;
        rc = phase == BENCH_PREFILL ? run_prefill(b, b->prompt, true, e) : run_decode(b, batch, e);
    }
    if (!rc) fill_result(b, r);
    return rc;
}

/* ---- judging ----------------------------------------------------------------------------------------------------- */

static double share_of(const struct bench_result *r, const char *name)
{
    for (int i = 0; i < r->n_ops; i++)
        if (strcmp(r->ops[i].name, name) == 0) return r->ops[i].share;
    return 0;
}

static double change(double a, double b)
{
    double most = fmax(a, b);
    return most > 0 ? fabs(a - b) / most : 0;
}

void bench_judge(const struct bench *b, const struct bench_system *s, const struct ceilings *before,
                 const struct ceilings *after, struct bench_result *r)
{
    r->ceilings = ceilings_mean((const struct ceilings[]){*before, *after}, 2);
    bool gpu = strncmp(b->info->device, "cuda", 4) == 0 || strncmp(b->info->device, "simt", 4) == 0;
    const char *t = b->info->weight_type, *unit = gpu && (!strcmp(t, "nf4") || !strcmp(t, "f16")) ? "bf16" : t;
    r->ratios = bench_ratios_of(&r->work, unit, r->seconds / r->steps, &r->ceilings);
    const char *space = strchr(b->info->device, ' ');
    struct bench_facts f = {
        .phase = r->phase,
        .batch = r->batch,
        .weight_type = b->info->weight_type,
        .kv_type = b->info->kv_type,
        .level = space ? space + 1 : b->info->device,
        .threads = b->info->threads,
        .gpu = gpu,
        .system = s,
        .ratios = r->ratios,
        .attention_share = share_of(r, "attn"),
        .engine_share = share_of(r, "engine"),
        .ranks_share = share_of(r, "ranks"),
        .ranks = b->info->ranks,
        .ceiling_drift = fmax(change(before->read_bytes_per_s, after->read_bytes_per_s),
                              change(before->int8_macs_per_s, after->int8_macs_per_s)),
    };
    r->n_advice = bench_advise(&f, r->advice);
}

struct ceilings bench_overall_ceilings(const struct bench_result *r, int n)
{
    struct ceilings c = {0};
    for (int i = 0; i < n; i++) ceilings_add(&c, &r[i].ceilings, 1.0 / n);
    return c;
}
