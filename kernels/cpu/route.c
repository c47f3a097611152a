/* Routing to experts, and the sum of their results. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

/* ---- route --------------------------------------------------------------------------------------------------- */

static bool taken(const uint64_t *set, int e)
{
    return set[e / 64] >> (e % 64) & 1;
}

/* Chooses k experts: those with the largest logits, of equal ones the first; NaN is below all numbers. *max: the
 * largest number, if any. @return whether all logits are numbers below infinity. */
static bool choose(const float *logit, int n, int k, uint64_t *set, float *max)
{
    int best[EXPERTS_CHOSEN_MAX] = {0}, found = 0; /* so far, the largest first */
    bool whole = true;
    for (int e = 0; e < n; e++) {
        float v = logit[e];
        whole &= v < INFINITY;
        if (!(v >= -INFINITY) || (found == k && v <= logit[best[k - 1]])) continue;
        int at = found < k ? found++ : k - 1;
        for (; at > 0 && logit[best[at - 1]] < v; at--) best[at] = best[at - 1];
        best[at] = e;
    }
    if (found) *max = logit[best[0]];
    for (int j = 0; j < found; j++) set[best[j] / 64] |= (uint64_t)1 << (best[j] % 64);
    for (int e = 0; found < k; e++) {
        if (taken(set, e)) continue;
        set[e / 64] |= (uint64_t)1 << (e % 64);
        found++;
    }
    return whole;
}

static void route_row(const struct rows_run *r, int t)
{
    const struct route_args *a = r->args;
    int n = a->logits.cols, k = a->weight.cols, at = 0;
    const float *logit = mat_row(&a->logits, t);
    float *weight = mat_row(&a->weight, t), max = -INFINITY, p[EXPERTS_MAX] = {0};
    int32_t *expert = a->expert + (size_t)t * k;
    uint64_t set[EXPERTS_MAX / 64] = {0};
    bool whole = choose(logit, n, k, set, &max);
    double sum = 0;
    for (int e = 0; e < n; e++) {
        if (!a->normalise || taken(set, e)) sum += (double)(p[e] = expf(logit[e] - max));
        if (taken(set, e)) expert[at++] = e;
    }
    for (int j = 0; j < k; j++) weight[j] = whole ? (float)((double)p[expert[j]] / sum) : NAN;
}

void cpu_route(struct dev *d, const struct route_args *a)
{
    int n = a->logits.cols, k = a->weight.cols, T = a->logits.rows, at[EXPERTS_MAX] = {0};
    rows_run(d, route_row, a, T, n * 8.0);
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

enum { PART = 512 }; /* columns, so that a part of y stays in the core's cache while the experts' are added */

/* Row j of the k that are added to row t of y. */
static const float *chosen_row(const struct combine_args *a, int t, int j)
{
    return mat_row(&a->x, a->place[(size_t)t * a->k + j]);
}

static void combine_row(const struct rows_run *r, int t)
{
    const struct combine_args *a = r->args;
    float *y = mat_row(&a->y, t), shared = 1;
    if (a->gate.p) shared = 1 / (1 + expf(-*mat_row(&a->gate, t)));
    for (int c = 0; c < a->y.cols; c += PART) {
        size_t n = (size_t)(a->y.cols - c < PART ? a->y.cols - c : PART);
        float beta = 0;
        if (a->shared.p) {
            r->isa->axpby(y + c, mat_row(&a->shared, t) + c, n, shared, 0);
            beta = 1;
        }
        for (int j = 0; j < a->k; j++, beta = 1) {
            /* the rows are far apart, and too short for the hardware prefetcher */
            const float *next = j + 1 < a->k ? chosen_row(a, t, j + 1) + c : chosen_row(a, t, 0) + c + n;
            if (j + 1 < a->k || c + PART < a->y.cols)
                for (size_t i = 0; i < n; i += 16) __builtin_prefetch(next + i);
            r->isa->axpby(y + c, chosen_row(a, t, j) + c, n, a->weight.p ? mat_row(&a->weight, t)[j] : 1, beta);
        }
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
