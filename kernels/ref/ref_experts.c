/* The reference device's ops of experts: see ref.c. */
#include "kernels/ref/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float *mat_row(const struct mat *m, int row)
{
    return (float *)m->p + (size_t)row * m->ld;
}

/* How many experts come before e in the order of choice. */
static int rank_of(const float *logit, int n, int e)
{
    int rank = 0;
    double own = isnan(logit[e]) ? -INFINITY : logit[e];
    for (int i = 0; i < n; i++) {
        double other = isnan(logit[i]) ? -INFINITY : logit[i];
        /* a NaN is below -infinity */
        bool above = other > own || (other == own && !isnan(logit[i]) && isnan(logit[e]));
        bool level = other == own && isnan(logit[i]) == isnan(logit[e]);
        rank += above || (level && i < e);
    }
    return rank;
}

static void choose(const struct route_args *a, int t)
{
    int n = a->logits.cols, k = a->weight.cols, at = 0;
    const float *logit = mat_row(&a->logits, t);
    int32_t *expert = a->expert + (size_t)t * k;
    double max = -INFINITY, sum = 0;
    bool broken = false;
    for (int e = 0; e < n; e++) {
        broken |= isnan(logit[e]) || logit[e] == INFINITY;
        max = fmax(max, logit[e]);
        if (rank_of(logit, n, e) < k) expert[at++] = e;
    }
    for (int i = 0; i < (a->normalise ? k : n); i++) sum += exp(logit[a->normalise ? expert[i] : i] - max);
    for (int i = 0; i < k; i++) mat_row(&a->weight, t)[i] = broken ? NAN : (float)(exp(logit[expert[i]] - max) / sum);
}

void ref_route(struct dev *d, const struct route_args *a)
{
    int T = a->logits.rows, k = a->weight.cols, row = 0;
    for (int t = 0; t < T; t++) choose(a, t);
    for (int e = 0; e < a->logits.cols; e++) {
        a->start[e] = row;
        for (int i = 0; i < T * k; i++)
            if (a->expert[i] == e) {
                a->place[i] = row;
                a->token[row++] = i / k;
            }
    }
    a->start[a->logits.cols] = row;
}

/* Rows start[e] .. of a matrix. */
static struct mat rows_of(const struct mat *m, const int32_t *start, int e)
{
    struct mat part = *m;
    part.p = mat_row(m, start[e]);
    part.rows = start[e + 1] - start[e];
    return part;
}

void ref_experts_linear(struct dev *d, const struct experts_linear_args *a)
{
    for (int e = 0; e < a->n; e++)
        d->ops->linear(d, &(struct linear_args){.y = rows_of(&a->y, a->start, e),
                                                .x = rows_of(&a->x, a->start, e),
                                                .w = a->w[e],
                                                .b = a->b ? a->b + (size_t)e * a->y.cols : NULL});
}

void ref_combine_back(struct dev *d, const struct combine_back_args *a)
{
    int C = a->dy.cols;
    for (int t = 0; t < a->dy.rows; t++) {
        float *dy = mat_row(&a->dy, t);
        double by = a->gate.p ? 1 / (1 + exp(-(double)mat_row(&a->gate, t)[0])) : 1, sum = 0;
        for (int j = 0; j < a->k; j++) {
            int row = a->place[t * a->k + j];
            double dot = 0, weight = (double)mat_row(&a->weight, t)[j];
            for (int c = 0; c < C; c++) {
                dot += (double)dy[c] * mat_row(&a->x, row)[c];
                mat_row(&a->dx, row)[c] = (float)(weight * dy[c]);
            }
            mat_row(&a->dweight, t)[j] = (float)dot;
        }
        for (int c = 0; a->dgate.p && c < C; c++) sum += (double)dy[c] * mat_row(&a->shared, t)[c];
        if (a->dgate.p) mat_row(&a->dgate, t)[0] = (float)(sum * by * (1 - by));
        for (int c = 0; a->dshared.p && c < C; c++) mat_row(&a->dshared, t)[c] = (float)(by * dy[c]);
    }
}

void ref_route_back(struct dev *d, const struct route_back_args *a)
{
    int n = a->dlogits.cols, k = a->weight.cols;
    for (int t = 0; t < a->dlogits.rows; t++) {
        const int32_t *expert = a->expert + (size_t)t * k;
        const float *logit = mat_row(&a->logits, t), *w = mat_row(&a->weight, t), *dw = mat_row(&a->dweight, t);
        double mean = 0, max = -INFINITY, sum = 0;
        for (int j = 0; j < k; j++) mean += (double)w[j] * dw[j];
        for (int e = 0; e < n; e++) max = fmax(max, logit[e]);
        for (int e = 0; e < n; e++) sum += exp(logit[e] - max);
        for (int e = 0; e < n; e++)
            mat_row(&a->dlogits, t)[e] = a->normalise ? 0 : (float)(-mean * exp(logit[e] - max) / sum);
        for (int j = 0; j < k; j++) mat_row(&a->dlogits, t)[expert[j]] = (float)(w[j] * (dw[j] - mean));
    }
}

void ref_combine(struct dev *d, const struct combine_args *a)
{
    for (int t = 0; t < a->y.rows; t++)
        for (int c = 0; c < a->y.cols; c++) {
            double by = a->gate.p ? 1 / (1 + exp(-(double)mat_row(&a->gate, t)[0])) : 1;
            double sum = a->shared.p ? by * mat_row(&a->shared, t)[c] : 0;
            for (int j = 0; j < a->k; j++)
                sum +=
                    (double)mat_row(&a->x, a->place[t * a->k + j])[c] * (a->weight.p ? mat_row(&a->weight, t)[j] : 1);
            mat_row(&a->y, t)[c] = (float)sum;
        }
}
