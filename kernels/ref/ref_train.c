/* The training ops of the reference device, each exactly as its contract in train_ops.h defines it, one loop per
 * index, in double. The GEMMs among them are in ref_train_gemm.c. */
#include "kernels/ref/ref.h"

#include "kernels/dev.h"
#include "kernels/dynamic8.h"
#include "kernels/rng.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static float *mat_row(const struct mat *m, int row)
{
    return (float *)m->p + (size_t)row * m->ld;
}

/* @return NULL when out of memory; the device has failed then. */
static double *doubles(struct dev *d, const char *op, size_t n)
{
    double *p = calloc(n ? n : 1, sizeof *p);
    if (!p) dev_fail(d, op, "out of memory");
    return p;
}

/* to += sum, unless to is NULL. */
static void add_sums(float *to, const double *sum, int n)
{
    for (int i = 0; to && i < n; i++) to[i] = (float)(to[i] + sum[i]);
}

/* ---- norms --------------------------------------------------------------------------------------------------- */

/* With xhat = (x - mean) inv and g = dy w: dx = inv (g - [mean(g)] - xhat mean(g xhat)), the bracket for LAYER only.
 * The row's terms are added to dw and db. */
static void norm_back_row(float *dx, const float *x, const float *dy, int n, const struct norm_back_args *a, double *dw,
                          double *db)
{
    double mean = 0, square = 0, mean_g = 0, mean_gx = 0;
    for (int i = 0; i < n && a->kind == NORM_LAYER; i++) mean += x[i];
    mean /= n;
    for (int i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean);
    double inv = 1 / sqrt(square / n + a->eps);
    for (int i = 0; i < n; i++) {
        double xhat = (x[i] - mean) * inv, g = (double)dy[i] * a->w[i];
        mean_g += a->kind == NORM_LAYER ? g / n : 0;
        mean_gx += g * xhat / n;
        dw[i] += dy[i] * xhat;
        db[i] += dy[i];
    }
    for (int i = 0; i < n; i++) {
        double xhat = (x[i] - mean) * inv, g = (double)dy[i] * a->w[i], d = inv * (g - mean_g - xhat * mean_gx);
        dx[i] = (float)(a->accumulate ? dx[i] + d : d);
    }
}

void ref_norm_back(struct dev *d, const struct norm_back_args *a)
{
    int C = a->x.cols;
    double *sums = doubles(d, "norm_back", 2 * (size_t)C);
    if (!sums) return;
    for (int t = 0; t < a->x.rows; t++)
        norm_back_row(mat_row(&a->dx, t), mat_row(&a->x, t), mat_row(&a->dy, t), C, a, sums, sums + C);
    add_sums(a->dw, sums, C);
    add_sums(a->db, sums + C, C);
    free(sums);
}

void ref_head_norm_back(struct dev *d, const struct head_norm_back_args *a)
{
    int D = a->head_dim, width = a->by_head ? a->heads * D : D;
    struct norm_back_args norm = {.eps = a->eps, .kind = a->kind};
    double *sums = doubles(d, "head_norm_back", 2 * (size_t)width);
    if (!sums) return;
    for (int t = 0; t < a->x.rows; t++)
        for (int h = 0; h < a->heads; h++) {
            int col = a->col + h * D, at = a->by_head ? h * D : 0;
            float *dx = mat_row(&a->dx, t) + col;
            norm.w = a->w + at;
            norm_back_row(dx, mat_row(&a->x, t) + col, dx, D, &norm, sums + at, sums + width + at);
        }
    add_sums(a->dw, sums, width);
    add_sums(a->db, sums + width, width);
    free(sums);
}

/* ---- attention ----------------------------------------------------------------------------------------------- */

void ref_rope(struct dev *d, const struct rope_args *a)
{
    int half = a->rot / 2;
    for (int t = 0; t < a->qkv.rows; t++)
        for (int h = 0; h < a->heads + a->kv_heads; h++)
            for (int i = 0; i < half; i++) {
                float *x = mat_row(&a->qkv, t) + h * a->head_dim + i;
                double x0 = x[0], x1 = x[half];
                double c = a->cos[(size_t)a->pos[t] * half + i], s = a->sin[(size_t)a->pos[t] * half + i];
                if (a->back) s = -s;
                x[0] = (float)(x0 * c - x1 * s);
                x[half] = (float)(x1 * c + x0 * s);
            }
}

/* the head_dim floats of row t's head h: query heads, then key heads, then value heads */
static float *head_of(const struct mat *qkv, int t, int h, int head_dim)
{
    return mat_row(qkv, t) + (size_t)h * head_dim;
}

static double dot(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

static int first_seen(int start, int t, int window)
{
    return window && t - window + 1 > start ? t - window + 1 : start;
}

/* Query head h of row t, whose sequence is the rows [start, end); score holds as many elements as rows are seen. */
static void attn_seq_head(const struct attn_seq_args *a, int start, int end, int t, int h, double *score)
{
    int D = a->head_dim, first = first_seen(start, t, a->window), g = h / (a->heads / a->kv_heads), last = t;
    double sink = a->sinks ? a->sinks[h] : -INFINITY, max = sink;
    if (a->both_sides) last = a->window && a->window < end - t ? t + a->window - 1 : end - 1;
    for (int j = first; j <= last; j++) {
        double s = dot(head_of(&a->qkv, t, h, D), head_of(&a->qkv, j, a->heads + g, D), D) * (double)a->scale;
        score[j - first] = ref_softcap(s, a->softcap);
        max = fmax(max, score[j - first]);
    }
    double sum = exp(sink - max);
    for (int j = first; j <= last; j++) sum += score[j - first] = exp(score[j - first] - max);
    for (int c = 0; c < D; c++) {
        double o = 0;
        for (int j = first; j <= last; j++)
            o += score[j - first] * head_of(&a->qkv, j, a->heads + a->kv_heads + g, D)[c];
        head_of(&a->out, t, h, D)[c] = (float)(o / sum);
    }
    mat_row(&a->lse, t)[h] = (float)(max + log(sum));
}

void ref_attn_seq(struct dev *d, const struct attn_seq_args *a)
{
    int end = a->n_heads ? a->head0 + a->n_heads : a->heads;
    double *score = doubles(d, "attn_seq", (size_t)a->qkv.rows);
    if (!score) return;
    for (int s = 0; s < a->n_seqs; s++)
        for (int t = a->q_start[s]; t < a->q_start[s + 1]; t++)
            for (int h = a->head0; h < end; h++) attn_seq_head(a, a->q_start[s], a->q_start[s + 1], t, h, score);
    free(score);
}

/* The derivative of ref_softcap where its value is y. */
static double softcap_slope(double y, double cap)
{
    return cap > 0 ? 1 - (y / cap) * (y / cap) : 1;
}

/* The gradients of query head h of row t: all of dq, and its contributions to dk and dv, (rows of the sequence, D)
 * each. */
static void attn_back_head(const struct attn_back_args *a, int start, int t, int h, double *dk, double *dv)
{
    int D = a->head_dim, g = h / (a->heads / a->kv_heads);
    const float *q = head_of(&a->qkv, t, h, D), *dout = head_of(&a->dout, t, h, D);
    float *dq = head_of(&a->dqkv, t, h, D);
    double delta = dot(dout, head_of(&a->out, t, h, D), D), sum[TRAIN_HEAD_MAX] = {0};
    for (int j = first_seen(start, t, a->window); j <= t; j++) {
        const float *k = head_of(&a->qkv, j, a->heads + g, D), *v = head_of(&a->qkv, j, a->heads + a->kv_heads + g, D);
        double s = ref_softcap(dot(q, k, D) * (double)a->scale, a->softcap), p = exp(s - mat_row(&a->lse, t)[h]);
        double ds = p * (dot(dout, v, D) - delta) * a->scale * softcap_slope(s, a->softcap);
        for (int c = 0; c < D; c++) {
            sum[c] += ds * k[c];
            dk[(size_t)(j - start) * D + c] += ds * q[c];
            dv[(size_t)(j - start) * D + c] += p * dout[c];
        }
    }
    for (int c = 0; c < D; c++) dq[c] = (float)sum[c];
}

/* Query head h of a sequence; the first head of its KV head overwrites dk and dv, the others add. */
static void attn_back_seq(const struct attn_back_args *a, int start, int end, int h, double *dk, double *dv)
{
    int D = a->head_dim, group = a->heads / a->kv_heads, g = h / group;
    size_t n = (size_t)(end - start) * D;
    memset(dk, 0, n * sizeof *dk);
    memset(dv, 0, n * sizeof *dv);
    for (int t = start; t < end; t++) attn_back_head(a, start, t, h, dk, dv);
    for (int t = start; t < end; t++)
        for (int c = 0; c < D; c++) {
            float *to_k = head_of(&a->dqkv, t, a->heads + g, D) + c;
            float *to_v = head_of(&a->dqkv, t, a->heads + a->kv_heads + g, D) + c;
            *to_k = (float)(dk[(size_t)(t - start) * D + c] + (h % group ? *to_k : 0));
            *to_v = (float)(dv[(size_t)(t - start) * D + c] + (h % group ? *to_v : 0));
        }
}

void ref_attn_back(struct dev *d, const struct attn_back_args *a)
{
    size_t n = (size_t)a->qkv.rows * a->head_dim;
    double *sums = a->head_dim <= TRAIN_HEAD_MAX ? doubles(d, "attn_back", 2 * n) : NULL;
    if (!sums) {
        dev_fail(d, "attn_back", "head_dim is %d", a->head_dim);
        return;
    }
    int end = a->n_heads ? a->head0 + a->n_heads : a->heads;
    for (int s = 0; s < a->n_seqs; s++)
        for (int h = a->head0; h < end; h++) attn_back_seq(a, a->q_start[s], a->q_start[s + 1], h, sums, sums + n);
    free(sums);
}

/* ---- activations --------------------------------------------------------------------------------------------- */

/* The derivative of ref_act_value; 0 for RELU at 0, that of the inside for a clamped value at its bound. */
static double act_slope(double x, enum act_kind act)
{
    double s, u;
    switch (act) {
    case ACT_SILU: s = 1 / (1 + exp(-x)); return s * (1 + x * (1 - s));
    case ACT_GELU_TANH:
        u = tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x));
        return 0.5 * (1 + u) + 0.5 * x * (1 - u * u) * 0.79788456080286535588 * (1 + 3 * 0.044715 * x * x);
    case ACT_GELU_ERF: return 0.5 * erfc(-x * 0.70710678118654752440) + x * exp(-0.5 * x * x) * 0.39894228040143267794;
    case ACT_RELU: return x > 0 ? 1 : 0;
    case ACT_SWIGLU_CLAMPED: s = 1 / (1 + exp(-1.702 * x)); return x > 7 ? 0 : s * (1 + 1.702 * x * (1 - s));
    }
    return NAN;
}

/* The derivative of ref_act_up. */
static double up_slope(double up, enum act_kind act)
{
    return act != ACT_SWIGLU_CLAMPED || fabs(up) <= 7 ? 1 : 0;
}

void ref_act_mul_back(struct dev *d, const struct act_mul_back_args *a)
{
    int F = a->dy.cols;
    for (int t = 0; t < a->dy.rows; t++)
        for (int c = 0; c < F; c++) {
            double gate = mat_row(&a->gu, t)[c], up = mat_row(&a->gu, t)[F + c], dy = mat_row(&a->dy, t)[c];
            mat_row(&a->dgu, t)[c] = (float)(dy * ref_act_up(up, a->act) * act_slope(gate, a->act));
            mat_row(&a->dgu, t)[F + c] = (float)(dy * ref_act_value(gate, a->act) * up_slope(up, a->act));
        }
}

void ref_act_back(struct dev *d, const struct act_back_args *a)
{
    for (int t = 0; t < a->dy.rows; t++)
        for (int c = 0; c < a->dy.cols; c++)
            mat_row(&a->dx, t)[c] = (float)(mat_row(&a->dy, t)[c] * act_slope(mat_row(&a->x, t)[c], a->act));
}

/* ---- loss ---------------------------------------------------------------------------------------------------- */

static void cross_entropy_row(const struct cross_entropy_args *a, int r)
{
    float *z = mat_row(&a->logits, r);
    int V = a->logits.cols, best = 0, target = a->target[r];
    double sum = 0, max = -INFINITY, by = a->logit_scale == 0 ? 1 : a->logit_scale;
    bool nan = false;
    for (int i = 0; i < V; i++) {
        nan = nan || isnan(z[i]);
        if (z[i] > max) max = z[best = i];
    }
    bool sound = !nan && isfinite(max); /* no NaN, no infinity, and something finite */
    for (int i = 0; i < V && sound; i++) sum += exp(z[i] - max);
    a->hit[r] = target >= 0 && sound && best == target;
    a->loss[r] = target < 0 ? 0 : sound ? (float)(max + log(sum) - z[target]) : NAN;
    for (int i = 0; i < V && a->back; i++)
        z[i] =
            target < 0 ? 0
            : sound
                ? (float)((exp(z[i] - max) / sum - (i == target)) * a->scale[r] * by * softcap_slope(z[i], a->softcap))
                : NAN;
}

void ref_cross_entropy(struct dev *d, const struct cross_entropy_args *a)
{
    for (int r = 0; r < a->logits.rows; r++) cross_entropy_row(a, r);
}

/* ---- dropout, optimizer -------------------------------------------------------------------------------------- */

void ref_dropout(struct dev *d, const struct dropout_args *a)
{
    int C = a->x.cols;
    for (int t = 0; t < a->x.rows; t++)
        for (int c = 0; c < C; c++) {
            float *x = mat_row(&a->x, t) + c;
            bool keep = rng_uniform(a->seed, (a->row0 + (uint64_t)t) * (uint64_t)C + (uint64_t)c) >= a->p;
            *x = keep ? (float)(*x / (1 - (double)a->p)) : 0;
        }
}

void ref_square_sum(struct dev *d, const struct square_sum_args *a)
{
    double sum = 0;
    for (size_t i = 0; i < a->n; i++) sum += (double)a->x[i] * a->x[i];
    *a->sum += sum;
}

void ref_adamw(struct dev *d, const struct adamw_args *a)
{
    for (size_t i = 0; i < a->n; i++) {
        double g = a->g[i] * a->grad_scale;
        double m = a->beta1 * a->m[i] + (1 - a->beta1) * g, v = a->beta2 * a->v[i] + (1 - a->beta2) * g * g;
        double p = a->p[i] * (1 - a->lr * a->decay);
        a->p[i] = (float)(p - a->lr / a->bias1 * m / (sqrt(v) / sqrt(a->bias2) + a->eps));
        a->m[i] = (float)m;
        a->v[i] = (float)v;
    }
}

/* @return the number of the nearest entry, the lower one when two are as near. */
static int nearest(const float *entry, int n, float magnitude)
{
    int i = 0;
    while (i + 1 < n && magnitude > dynamic8_between(entry[i], entry[i + 1])) i++;
    return i;
}

/* The block of n values that begins at `at`. */
static void adamw_8bit_block(const struct adamw_8bit_args *a, size_t at, size_t n, const float *with_signs,
                             const float *without)
{
    size_t b = at / DYNAMIC8_BLOCK;
    float m[DYNAMIC8_BLOCK], v[DYNAMIC8_BLOCK], most_m = 0, most_v = 0;
    for (size_t i = 0; i < n; i++) {
        int code = a->m[at + i] - DYNAMIC8_ZERO;
        double was = code < 0 ? -with_signs[-code] : with_signs[code], g = a->g[at + i] * a->grad_scale;
        double new_m = a->beta1 * was * a->m_scale[b] + (1 - a->beta1) * g;
        double new_v = a->beta2 * without[a->v[at + i]] * a->v_scale[b] + (1 - a->beta2) * g * g;
        double p = a->p[at + i] * (1 - a->lr * a->decay);
        a->p[at + i] = (float)(p - a->lr / a->bias1 * new_m / (sqrt(new_v) / sqrt(a->bias2) + a->eps));
        m[i] = (float)new_m;
        v[i] = new_v < FLT_MAX ? (float)new_v : FLT_MAX;
        most_m = fmaxf(most_m, fabsf(m[i]));
        most_v = fmaxf(most_v, v[i]);
    }
    a->m_scale[b] = most_m;
    a->v_scale[b] = most_v;
    for (size_t i = 0; i < n; i++) {
        float x = most_m > 0 ? m[i] / most_m : 0, y = most_v > 0 ? v[i] / most_v : 0;
        int up = nearest(with_signs, DYNAMIC8_SIGNED, fabsf(x)), root = nearest(without, DYNAMIC8_UNSIGNED, y);
        int down = up < DYNAMIC8_ZERO ? up : DYNAMIC8_ZERO;
        a->m[at + i] = (uint8_t)(x < 0 ? DYNAMIC8_ZERO - down : DYNAMIC8_ZERO + up);
        a->v[at + i] = (uint8_t)(root == 0 && y > 0 ? 1 : root);
    }
}

void ref_adamw_8bit(struct dev *d, const struct adamw_8bit_args *a)
{
    float with_signs[DYNAMIC8_UNSIGNED], without[DYNAMIC8_UNSIGNED];
    dynamic8_entries(true, with_signs);
    dynamic8_entries(false, without);
    for (size_t at = 0; at < a->n; at += DYNAMIC8_BLOCK)
        adamw_8bit_block(a, at, a->n - at < DYNAMIC8_BLOCK ? a->n - at : DYNAMIC8_BLOCK, with_signs, without);
}

void ref_axpby(struct dev *d, const struct axpby_args *a)
{
    for (size_t i = 0; i < a->n; i++) a->y[i] = (float)(a->alpha * a->x[i] + (a->beta == 0 ? 0 : a->beta * a->y[i]));
}
