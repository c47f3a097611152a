/* The pure half of bench.h: percentiles, ratios, and the rules that turn figures into advice. */
#include "engine/bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *bench_phase_name(enum bench_phase p)
{
    return p == BENCH_PREFILL ? "prefill" : "decode";
}

const char *bench_bound_name(enum bench_bound b)
{
    static const char *const names[] = {"memory", "multiplier", "overhead"};
    return names[b];
}

double bench_percentile(const double *v, int n, double q)
{
    int rank = (int)ceil(q * n) - 1;
    return v[rank < 0 ? 0 : rank >= n ? n - 1 : rank];
}

/* ---- ratios ---------------------------------------------------------------------------------------------------- */

/* below this fraction of both ceilings the bound is overhead */
static const double OVERHEAD_BELOW = 0.4;

double bench_bf16_rate(const struct ceilings *c)
{
    return c->bf16_macs_per_s > c->f32_macs_per_s ? c->bf16_macs_per_s : c->f32_macs_per_s;
}

/* "block": a GGUF file's types, which are multiplied as integers */
static bool is_integer(const char *weight_type)
{
    return strncmp(weight_type, "int", 3) == 0 || strcmp(weight_type, "block") == 0;
}

/* The rate of the best unit for weights of this type. */
static double unit_rate(const char *weight_type, const struct ceilings *c)
{
    if (is_integer(weight_type)) return strcmp(weight_type, "int4") == 0 ? c->int4_macs_per_s : c->int8_macs_per_s;
    bool bf16 = strcmp(weight_type, "bf16") == 0;
    return bf16 ? bench_bf16_rate(c) : c->f32_macs_per_s;
}

static double time_at(double work, double rate)
{
    return rate > 0 ? work / rate : 0;
}

struct bench_ratios bench_ratios_of(const struct bench_work *w, const char *weight_type, double seconds,
                                    const struct ceilings *c)
{
    struct bench_ratios r = {0};
    double float_rate = bench_bf16_rate(c);
    if (seconds > 0) {
        r.read = time_at(w->weight_bytes + w->kv_bytes, c->read_bytes_per_s) / seconds;
        r.compute =
            (time_at(w->weight_macs, unit_rate(weight_type, c)) + time_at(w->attention_macs, float_rate)) / seconds;
        r.multiplier = time_at(w->weight_macs, c->int8_macs_per_s) / seconds;
    }
    r.ceiling = r.read > r.compute ? r.read : r.compute;
    r.bound = r.ceiling < OVERHEAD_BELOW ? BOUND_OVERHEAD : r.read > r.compute ? BOUND_MEMORY : BOUND_MULTIPLIER;
    return r;
}

/* ---- advice ---------------------------------------------------------------------------------------------------- */

static bool is_type(const char *type, const char *name)
{
    return strcmp(type, name) == 0;
}

static bool wide_kv(const struct bench_facts *f)
{
    return !is_type(f->kv_type, "int8");
}

static bool busy(const struct bench_facts *f)
{
    return f->ratios.ceiling < 0.8 && (f->system->load > 0.5 * f->system->cores || f->ceiling_drift > 0.15);
}

static bool few_threads(const struct bench_facts *f)
{
    return f->threads < f->system->cores && f->ranks < 2;
}

static bool many_threads(const struct bench_facts *f)
{
    return f->threads > f->system->cores;
}

static bool low_level(const struct bench_facts *f)
{
    return *f->system->best_level && !is_type(f->level, f->system->best_level);
}

static bool no_huge_pages(const struct bench_facts *f)
{
    return is_type(f->system->huge_pages, "never") && f->ratios.bound != BOUND_MULTIPLIER;
}

static bool float_weights(const struct bench_facts *f)
{
    return !is_integer(f->weight_type) && f->ratios.bound != BOUND_OVERHEAD;
}

static bool int8_from_memory(const struct bench_facts *f)
{
    return is_type(f->weight_type, "int8") && f->ratios.bound == BOUND_MEMORY;
}

static bool weights_for_few(const struct bench_facts *f)
{
    return f->phase == BENCH_DECODE && f->batch <= 4 && f->ratios.bound == BOUND_MEMORY;
}

static bool attention_long(const struct bench_facts *f)
{
    return f->attention_share > 0.25 && wide_kv(f);
}

static bool out_of_multipliers(const struct bench_facts *f)
{
    return f->ratios.bound == BOUND_MULTIPLIER && f->ratios.ceiling >= 0.6 && is_integer(f->weight_type) &&
           (f->gpu || f->threads >= f->system->cores);
}

static bool between_ranks(const struct bench_facts *f)
{
    return f->ranks_share > 0.2;
}

static bool between_ops(const struct bench_facts *f)
{
    return f->engine_share > 0.1;
}

static bool small_steps(const struct bench_facts *f)
{
    return f->ratios.bound == BOUND_OVERHEAD && f->phase == BENCH_DECODE && f->batch <= 8 && !busy(f);
}

/* Ordered by usefulness: what disturbs the measurement, wrong settings, then what would change the bound. */
static const struct rule {
    bool (*applies)(const struct bench_facts *);
    const char *text;
    bool cpu_only;
} rules[] = {
    {busy, "the machine is busy with something else or its speed changes: measure again when it is quiet"},
    {low_level, "the machine has a better instruction-set level than the one used: leave --device at auto", true},
    {few_threads, "cores are idle: raise --threads to the number of cores", true},
    {many_threads, "more threads than cores: lower --threads to the number of cores", true},
    {no_huge_pages,
     "huge pages are off: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled makes reading weights faster",
     true},
    {float_weights, "--quantize int8 reads a half (from f32 a quarter) of the bytes and multiplies on the int8 unit"},
    {int8_from_memory, "--quantize int4 reads about half the bytes of int8; check the text with tandem perplexity"},
    {weights_for_few, "the weights are read for few sequences: more of them at once cost little more time a step"},
    {attention_long, "attention takes much of the time: --kv-cache int8 halves what it reads from a 16-bit cache"},
    {out_of_multipliers,
     "near the multiplier's ceiling: only more cores or another processor, or a smaller model, are faster"},
    {between_ranks,
     "bound by the link between the ranks, or by the slowest of them: fewer ranks, a faster link, or more "
     "sequences at once"},
    {between_ops, "much of the time passes between the operations: the model is small for this machine"},
    {small_steps, "the steps are too short to fill the machine: run more sequences at once, or use fewer threads",
     true},
};

int bench_advise(const struct bench_facts *f, char out[BENCH_ADVICE_MAX][BENCH_ADVICE_BYTES])
{
    int n = 0;
    for (size_t i = 0; i < sizeof rules / sizeof *rules && n < BENCH_ADVICE_MAX; i++)
        if (!(f->gpu && rules[i].cpu_only) && rules[i].applies(f))
            snprintf(out[n++], BENCH_ADVICE_BYTES, "%s", rules[i].text);
    return n;
}
