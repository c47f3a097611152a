#include "engine/quantize.h"

#include "engine/base/mem.h"
#include "kernels/ops.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* ---- one row ---- */

static void row_to_f32(const struct weight_src *s, int row, float *out)
{
    size_t at = (size_t)row * (size_t)s->cols;
    const float *f = (const float *)s->data + at;
    const uint16_t *h = (const uint16_t *)s->data + at;
    for (int k = 0; k < s->cols; k++)
        out[k] = s->t == DT_F32 ? f[k] : s->t == DT_BF16 ? bf16_to_f32(h[k]) : f16_to_f32(h[k]);
}

static void quantize_row_int8(const float *w, int n, int8_t *q, float *scale)
{
    float amax = 0;
    for (int k = 0; k < n; k++) amax = fmaxf(amax, fabsf(w[k]));
    *scale = amax / 127;
    float inv = amax > 0 ? 127 / amax : 0;
    for (int k = 0; k < n; k++) q[k] = (int8_t)lrintf(w[k] * inv);
}

static float clamp4(float v)
{
    v = nearbyintf(v);
    return v < -8 ? -8 : v > 7 ? 7 : v;
}

/* The best f16 scale for one group (n <= 128): 2 x 24 candidates, each scored by what least squares leaves. */
static uint16_t best_scale_int4(const float *w, int n)
{
    float amax = 0;
    for (int k = 0; k < n; k++) amax = fmaxf(amax, fabsf(w[k]));
    if (amax == 0) return 0;
    double best = -1;
    float scale = amax / 8;
    for (int c = 0; c < 48; c++) {
        /* the extreme value lands between 6.2 and 8.5 steps from zero; the sign decides whether -8 serves it */
        float steps = 6.2f + 0.1f * (float)(c % 24), inv = (c < 24 ? steps : -steps) / amax, wq = 0, qq = 0;
        for (int k = 0; k < n; k++) {
            float q = clamp4(w[k] * inv);
            wq += w[k] * q;
            qq += q * q;
        }
        /* error = sum w^2 - wq^2 / qq: the larger the second term the better */
        if (qq > 0 && (double)wq * wq / qq > best) {
            best = (double)wq * wq / qq;
            scale = wq / qq;
        }
    }
    return f32_to_f16(scale);
}

static void quantize_row_int4(const float *w, int n, uint8_t *q, uint16_t *scale)
{
    for (int g = 0; g * INT4_GROUP < n; g++) {
        const float *x = w + g * INT4_GROUP;
        int len = n - g * INT4_GROUP < INT4_GROUP ? n - g * INT4_GROUP : INT4_GROUP;
        scale[g] = best_scale_int4(x, len);
        float s = f16_to_f32(scale[g]), inv = s != 0 ? 1 / s : 0;
        for (int k = 0; k < INT4_GROUP; k += 2) {
            int lo = k < len ? (int)clamp4(x[k] * inv) + 8 : 8, hi = k + 1 < len ? (int)clamp4(x[k + 1] * inv) + 8 : 8;
            q[(g * INT4_GROUP + k) / 2] = (uint8_t)(lo | hi << 4);
        }
    }
}

/* ---- all rows, on several threads ---- */

struct job {
    const struct weight_src *src;
    struct weight_src *out;
    size_t row_bytes, row_scales; /* of the output */
    _Atomic int next;
    _Atomic int bad_row, bad_col; /* a weight that is not finite; -1: none */
};

static void *work(void *arg)
{
    struct job *j = arg;
    const struct weight_src *s = j->src;
    float *w = mem_array((size_t)s->cols, sizeof *w);
    int row;
    while ((row = atomic_fetch_add(&j->next, 1)) < s->rows) {
        row_to_f32(s, row, w);
        for (int k = 0; k < s->cols; k++)
            if (!isfinite(w[k])) {
                atomic_store(&j->bad_col, k);
                atomic_store(&j->bad_row, row);
            }
        if (atomic_load(&j->bad_row) >= 0) break;
        uint8_t *q = (uint8_t *)j->out->data + (size_t)row * j->row_bytes;
        if (j->out->t == DT_I8)
            quantize_row_int8(w, s->cols, (int8_t *)q, (float *)j->out->scale + row);
        else
            quantize_row_int4(w, s->cols, q, (uint16_t *)j->out->scale + (size_t)row * j->row_scales);
    }
    free(w);
    return NULL;
}

int quantize_matrix(const struct weight_src *src, int t, int threads, struct weight_src *out, struct err *e)
{
    size_t groups = ((size_t)src->cols + INT4_GROUP - 1) / INT4_GROUP, rows = (size_t)src->rows;
    struct job j = {.src = src, .out = out, .bad_row = -1};
    j.row_bytes = t == DT_I8 ? (size_t)src->cols : groups * INT4_GROUP / 2;
    j.row_scales = t == DT_I8 ? 1 : groups;
    *out = (struct weight_src){.t = (enum dtype)t, .rows = src->rows, .cols = src->cols, .group = t == DT_I4 ? INT4_GROUP : 0};
    out->data = mem_try_alloc(rows * j.row_bytes);
    out->scale = mem_try_alloc(rows * j.row_scales * (t == DT_I8 ? 4 : 2));
    if (!out->data || !out->scale) {
        free((void *)out->data);
        free((void *)out->scale);
        return err_set(e, ERR_NOMEM, "no memory to quantise a matrix of %d x %d", src->rows, src->cols);
    }
    pthread_t helper[64];
    int n = 0;
    if (rows * (size_t)src->cols < 1 << 16) threads = 1;
    for (; n < threads - 1 && n < 64; n++)
        if (pthread_create(&helper[n], NULL, work, &j)) break;
    work(&j);
    for (int i = 0; i < n; i++) pthread_join(helper[i], NULL);
    if (j.bad_row < 0) return 0;
    free((void *)out->data);
    free((void *)out->scale);
    return err_set(e, ERR_INVALID, "weight [%d, %d] is not finite", j.bad_row, j.bad_col);
}
