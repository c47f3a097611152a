#include "engine/quantize.h"

#include "engine/base/mem.h"
#include "engine/nf4.h"
#include "kernels/ops.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

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
    for (int k = 0; k < n; k++) amax = fabsf(w[k]) > amax ? fabsf(w[k]) : amax;
    *scale = amax / 127;
    float inv = amax > 0 ? 127 / amax : 0;
    for (int k = 0; k < n; k++) q[k] = (int8_t)lrintf(w[k] * inv);
}

/* Built once for each level of the instruction set and chosen at load, where the compiler can do that: quantising a
 * large model is minutes of work at the lowest.  All give the same bits (no contraction into FMA, see meson.build). */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(TANDEM_SANITIZED)
#define FOR_EACH_LEVEL __attribute__((target_clones("avx512f", "avx2", "default"), flatten))
#else
#define FOR_EACH_LEVEL
#endif

enum { LANES = 8, FITS = 8 };
static const float F16_MAX = 65504;

/* eight lanes of whatever the machine has; gcc and clang both turn these into its vector instructions */
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t ilanes __attribute__((vector_size(LANES * sizeof(int32_t))));

/* The nibbles of eight weights at 1/scale = inv: round(w * inv) + 8 within 0..15. */
static inline void nibbles(const float *w, float inv, lanes *x, ilanes *q)
{
    memcpy(x, w, sizeof *x);
    lanes v = *x * inv + 8.5f, top = (lanes){0} + 15.5f;
    ilanes low = v<0, high = v> top;
    v = (lanes)((((ilanes)v & ~low) & ~high) | ((ilanes)top & high));
    *q = __builtin_convertvector(v, ilanes);
}

/* Rounds the group at 1/scale = inv.  Returns sum w q and *qq = sum q^2: the scale that then fits best is wq / qq, and
 * it leaves an error of sum w^2 - wq^2 / qq. */
static float fit_group(const float w[INT4_GROUP], float inv, float *qq)
{
    lanes a = {0}, b = {0};
    for (int k = 0; k < INT4_GROUP; k += LANES) {
        lanes x;
        ilanes n;
        nibbles(w + k, inv, &x, &n);
        lanes q = __builtin_convertvector(n, lanes) - 8;
        a += x * q;
        b += q * q;
    }
    float wq = 0;
    *qq = 0;
    for (int i = 0; i < LANES; i++) wq += a[i], *qq += b[i];
    return wq;
}

/* The best f16 scale for one group (padded with zeros).  First the extreme value is put at several places between 6.1
 * and 8.5 steps from zero, on either side, since -8 has no counterpart; then the best is improved by fitting in turn
 * the scale to the rounded values and the rounding to the scale. */
static uint16_t best_scale_int4(const float w[INT4_GROUP])
{
    float amax = 0, best = 0, scale = 0, qq;
    for (int k = 0; k < INT4_GROUP; k++) amax = fabsf(w[k]) > amax ? fabsf(w[k]) : amax;
    if (amax == 0) return 0;
    for (int c = 0; c < 2 * FITS; c++) {
        float steps = 6.1f + 2.4f / (FITS - 1) * (float)(c % FITS);
        float wq = fit_group(w, (c < FITS ? steps : -steps) / amax, &qq);
        if (qq > 0 && wq * wq > best * qq) {
            best = wq * wq / qq;
            scale = wq / qq;
        }
    }
    for (int i = 0; i < 3 && scale != 0; i++) {
        float wq = fit_group(w, 1 / scale, &qq);
        if (!(qq > 0 && wq * wq > best * qq)) break;
        best = wq * wq / qq;
        scale = wq / qq;
    }
    return f32_to_f16(scale > F16_MAX ? F16_MAX : scale < -F16_MAX ? -F16_MAX : scale);
}

FOR_EACH_LEVEL static void quantize_row_int4(const float *w, int n, uint8_t *q, uint16_t *scale)
{
    for (int g = 0; g * INT4_GROUP < n; g++, w += INT4_GROUP, q += INT4_GROUP / 2) {
        float x[INT4_GROUP] = {0};
        int len = n - g * INT4_GROUP < INT4_GROUP ? n - g * INT4_GROUP : INT4_GROUP;
        memcpy(x, w, (size_t)len * sizeof *x);
        scale[g] = best_scale_int4(x);
        float s = f16_to_f32(scale[g]), inv = s != 0 ? 1 / s : 0;
        for (int k = 0; k < INT4_GROUP; k += LANES) {
            lanes v;
            ilanes n4;
            nibbles(x + k, inv, &v, &n4);
            for (int i = 0; i < LANES; i += 2) q[(k + i) / 2] = (uint8_t)(n4[i] | n4[i + 1] << 4);
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
    if (t == DT_NF4) return nf4_quantize_matrix(src, threads, out, e);
    size_t groups = ((size_t)src->cols + INT4_GROUP - 1) / INT4_GROUP, rows = (size_t)src->rows;
    struct job j = {.src = src, .out = out, .bad_row = -1};
    j.row_bytes = t == DT_I8 ? (size_t)src->cols : groups * INT4_GROUP / 2;
    j.row_scales = t == DT_I8 ? 1 : groups;
    *out = (struct weight_src){
        .t = (enum dtype)t, .rows = src->rows, .cols = src->cols, .group = t == DT_I4 ? INT4_GROUP : 0};
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
