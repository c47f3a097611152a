/* The reference sampler: the steps of sample_row in ops.h in that order, with full sorts and double arithmetic. */
#include "kernels/ref/ref.h"
#include "kernels/rng.h"

#include <math.h>
#include <stdlib.h>

struct cand {
    double p, key; /* key: sort key of the next cut, ascending */
    int32_t id;
};

static int cand_by_key(const void *a, const void *b)
{
    const struct cand *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int cand_by_id(const void *a, const void *b)
{
    const struct cand *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

static void cand_renormalise(struct cand *c, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += c[i].p;
    for (int i = 0; i < n; i++) c[i].p /= sum;
}

/* How many of the first candidates are needed to reach the mass, at least one. */
static int cand_prefix(const struct cand *c, int n, double mass)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        if ((sum += c[i].p) >= mass) return i + 1;
    return n;
}

static void apply_penalties(float *z, const struct sample_row *r)
{
    for (int i = 0; i < r->n_adds; i++) z[r->adds[i].id] += r->adds[i].add;
    for (int i = 0; i < r->n_counts; i++) {
        float *l = z + r->counts[i].id;
        int n = r->counts[i].generated;
        if (r->repetition != 1) *l = *l < 0 ? *l * r->repetition : *l / r->repetition;
        *l -= r->frequency * (float)n + (n > 0 ? r->presence : 0);
    }
}

static int cut(struct cand *c, int n, const struct sample_row *r)
{
    qsort(c, (size_t)n, sizeof *c, cand_by_key);
    if (r->top_k > 0 && r->top_k < n) n = r->top_k;
    cand_renormalise(c, n);
    if (r->typical_p > 0 && r->typical_p < 1) {
        double entropy = 0;
        for (int i = 0; i < n; i++) entropy -= c[i].p > 0 ? c[i].p * log(c[i].p) : 0;
        for (int i = 0; i < n; i++) c[i].key = c[i].p > 0 ? fabs(-log(c[i].p) - entropy) : INFINITY;
        qsort(c, (size_t)n, sizeof *c, cand_by_key);
        n = cand_prefix(c, n, r->typical_p);
        cand_renormalise(c, n);
    }
    for (int i = 0; i < n; i++) c[i].key = -c[i].p;
    qsort(c, (size_t)n, sizeof *c, cand_by_key);
    if (r->top_p > 0 && r->top_p < 1) n = cand_prefix(c, n, r->top_p);
    int kept = 1;
    while (kept < n && c[kept].p >= r->min_p * c[0].p) kept++;
    return r->min_p > 0 ? kept : n;
}

static int32_t choose(const float *z, int V, float max, const struct sample_row *r, struct cand *c)
{
    double total = 0, run = 0;
    for (int i = 0; i < V; i++) {
        c[i] = (struct cand){.p = exp(((double)z[i] - max) / r->temperature), .key = -(double)z[i], .id = i};
        total += c[i].p;
    }
    for (int i = 0; i < V; i++) c[i].p /= total;
    int n = cut(c, V, r);
    qsort(c, (size_t)n, sizeof *c, cand_by_id);
    total = 0;
    for (int i = 0; i < n; i++) total += c[i].p;
    double u = rng_uniform(r->seed, r->step) * total;
    for (int i = 0; i < n; i++)
        if ((run += c[i].p) > u) return c[i].id;
    return c[n - 1].id;
}

/* The largest value and its first index; *id is SAMPLE_NONE when all are -infinity, SAMPLE_BROKEN with a NaN or
 * +infinity. */
static void row_max(const float *z, int V, float *max, int32_t *id)
{
    *max = -INFINITY;
    *id = SAMPLE_NONE;
    for (int i = 0; i < V; i++) {
        if (isnan(z[i]) || (isinf(z[i]) && z[i] > 0)) {
            *id = SAMPLE_BROKEN;
            return;
        }
        if (z[i] > *max) {
            *max = z[i];
            *id = i;
        }
    }
}

static void report_top(struct sample_out *o, const float *logits, int V, int top_n, double lse, struct cand *c)
{
    for (int i = 0; i < V; i++) c[i] = (struct cand){.key = -(double)logits[i], .id = i};
    qsort(c, (size_t)V, sizeof *c, cand_by_key);
    for (int i = 0; i < top_n && i < V; i++) {
        o->top_id[i] = c[i].id;
        o->top_logprob[i] = (float)(logits[c[i].id] - lse);
    }
}

static void sample_one(const float *logits, int V, const struct sample_row *r, struct sample_out *o, float *z,
                       struct cand *c)
{
    float max;
    int32_t id;
    *o = (struct sample_out){.id = SAMPLE_BROKEN, .logprob = NAN};
    for (int i = 0; i < SAMPLE_TOP_MAX; i++) {
        o->top_id[i] = -1;
        o->top_logprob[i] = NAN;
    }
    row_max(logits, V, &max, &id);
    if (id < 0) return;
    double sum = 0;
    for (int i = 0; i < V; i++) sum += exp((double)logits[i] - max);
    double lse = max + log(sum);
    if (r->top_n > 0) report_top(o, logits, V, r->top_n, lse, c);
    if (r->forced >= 0) {
        id = r->forced;
        o->rank = 1;
        for (int i = 0; i < V; i++) o->rank += logits[i] > logits[id] || (i < id && logits[i] == logits[id]);
    } else {
        for (int i = 0; i < V; i++) z[i] = !r->allowed || r->allowed[i / 32] >> i % 32 & 1 ? logits[i] : -INFINITY;
        apply_penalties(z, r);
        row_max(z, V, &max, &id);
        if (id >= 0 && r->temperature > 0) id = choose(z, V, max, r, c);
    }
    o->id = id;
    if (id >= 0) o->logprob = (float)(logits[id] - lse);
}

void ref_sample(struct dev *d, const struct sample_args *a)
{
    int V = a->logits.cols;
    float *z = malloc((size_t)V * sizeof *z);
    struct cand *c = malloc((size_t)V * sizeof *c);
    if (z && c)
        for (int i = 0; i < a->logits.rows; i++)
            sample_one((const float *)a->logits.p + (size_t)i * a->logits.ld, V, a->row + i, a->out + i, z, c);
    else
        dev_fail(d, "sample", "out of memory");
    free(z);
    free(c);
}
