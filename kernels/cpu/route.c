/* Routing to experts, and the sum of their results. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

/* ---- route --------------------------------------------------------------------------------------------------- */

static bool taken(const uint64_t *set, int e)
{
    return set[e / 64] >> (e % 64) & 1;
}

/* The best expert that is not in the set: the first of the largest logits; NaN is below all numbers. */
static int best_of(const float *logit, int n, const uint64_t *set)
{
    int best = -1, left = -1;
    for (int e = 0; e < n; e++) {
        if (taken(set, e)) continue;
        if (left < 0) left = e;
        if (logit[e] >= -INFINITY && (best < 0 || logit[e] > logit[best])) best = e;
    }
    return best < 0 ? left : best;
}

static void route_row(const struct rows_run *r, int t)
{
    const struct route_args *a = r->args;
    int n = a->logits.cols, k = a->weight.cols, at = 0;
    const float *logit = mat_row(&a->logits, t);
    float *weight = mat_row(&a->weight, t), max = -INFINITY, p[EXPERTS_MAX] = {0};
    int32_t *expert = a->expert + (size_t)t * k;
    uint64_t set[EXPERTS_MAX / 64] = {0};
    bool broken = false;
    double sum = 0;
    for (int j = 0; j < k; j++) {
        unsigned e = (unsigned)best_of(logit, n, set);
        set[e / 64] |= (uint64_t)1 << (e % 64);
    }
    for (int e = 0; e < n; e++) {
        broken |= !(logit[e] < INFINITY);
        if (logit[e] > max) max = logit[e];
    }
    for (int e = 0; e < n; e++) {
        if (!a->normalise || taken(set, e)) sum += (double)(p[e] = expf(logit[e] - max));
        if (taken(set, e)) expert[at++] = e;
    }
    for (int j = 0; j < k; j++) weight[j] = broken ? NAN : (float)((double)p[expert[j]] / sum);
}

void cpu_route(struct dev *d, const struct route_args *a)
{
    int n = a->logits.cols, k = a->weight.cols, T = a->logits.rows, at[EXPERTS_MAX] = {0};
    rows_run(d, route_row, a, T, n * (k + 8.0));
    for (int i = 0; i < T * k; i++) at[a->expert[i]]++;
    for (int e = 0, row = 0; e <= n; e++) {
        a->start[e] = row;
        if (e == n) break;
        row += at[e];
        at[e] = a->start[e];
    }
    for (int i = 0; i < T * k; i++) {
        int row = at[a->expert[i]]++;
        a->place[i] = row;
        a->token[row] = i / k;
    }
}

/* ---- combine ------------------------------------------------------------------------------------------------- */

static void combine_row(const struct rows_run *r, int t)
{
    const struct combine_args *a = r->args;
    size_t n = (size_t)a->y.cols;
    float *y = mat_row(&a->y, t), beta = 0;
    if (a->shared.p) {
        float by = a->gate.p ? 1 / (1 + expf(-*mat_row(&a->gate, t))) : 1;
        r->isa->axpby(y, mat_row(&a->shared, t), n, by, 0);
        beta = 1;
    }
    for (int j = 0; j < a->k; j++, beta = 1) {
        float by = a->weight.p ? mat_row(&a->weight, t)[j] : 1;
        r->isa->axpby(y, mat_row(&a->x, a->place[(size_t)t * a->k + j]), n, by, beta);
    }
}

void cpu_combine(struct dev *d, const struct combine_args *a)
{
    rows_run(d, combine_row, a, a->y.rows, (a->k + 1) * (a->y.cols / 8.0));
}

/* ---- gradients ------------------------------------------------------------------------------------------------- */

static void combine_back_row(const struct rows_run *r, int t)
{
    const struct combine_back_args *a = r->args;
    int C = a->dy.cols;
    const float *dy = mat_row(&a->dy, t);
    float by = a->gate.p ? 1 / (1 + expf(-*mat_row(&a->gate, t))) : 1;
    for (int j = 0; j < a->k; j++) {
        int row = a->place[(size_t)t * a->k + j];
        mat_row(&a->dweight, t)[j] = r->isa->dot(dy, mat_row(&a->x, row), C);
        r->isa->axpby(mat_row(&a->dx, row), dy, (size_t)C, mat_row(&a->weight, t)[j], 0);
    }
    if (a->dgate.p) *mat_row(&a->dgate, t) = r->isa->dot(dy, mat_row(&a->shared, t), C) * by * (1 - by);
    if (a->dshared.p) r->isa->axpby(mat_row(&a->dshared, t), dy, (size_t)C, by, 0);
}

void cpu_combine_back(struct dev *d, const struct combine_back_args *a)
{
    rows_run(d, combine_back_row, a, a->dy.rows, (a->k + 1) * (a->dy.cols / 4.0));
}

static void route_back_row(const struct rows_run *r, int t)
{
    const struct route_back_args *a = r->args;
    int n = a->dlogits.cols, k = a->weight.cols;
    const int32_t *expert = a->expert + (size_t)t * k;
    const float *logit = mat_row(&a->logits, t), *w = mat_row(&a->weight, t), *dw = mat_row(&a->dweight, t);
    float *out = mat_row(&a->dlogits, t), max = -INFINITY;
    double mean = 0, sum = 0;
    for (int j = 0; j < k; j++) mean += (double)w[j] * dw[j];
    for (int e = 0; e < n; e++) out[e] = 0;
    for (int e = 0; e < n && !a->normalise; e++)
        if (logit[e] > max) max = logit[e];
    for (int e = 0; e < n && !a->normalise; e++) sum += (double)(out[e] = expf(logit[e] - max));
    for (int e = 0; e < n && !a->normalise; e++) out[e] = (float)(-mean * (double)out[e] / sum);
    for (int j = 0; j < k; j++) out[expert[j]] = (float)((double)w[j] * ((double)dw[j] - mean));
}

void cpu_route_back(struct dev *d, const struct route_back_args *a)
{
    rows_run(d, route_back_row, a, a->dlogits.rows, a->dlogits.cols * 8.0);
}
