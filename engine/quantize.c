#include "engine/quantize.h"

#include "engine/base/levels.h"
#include "engine/base/mem.h"
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

enum { LANES = 8, FITS = 7, TILE = 4 };
static const float F16_MAX = 65504, AMAX_MIN = 0x1p-100f; /* below it 127 / amax could overflow */

/* eight lanes of whatever the machine has; gcc and clang both turn these into its vector instructions */
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t ilanes __attribute__((vector_size(LANES * sizeof(int32_t))));

/* ---- int8 ---- */

/* Returns the scale that fits the values best once they are rounded: least squares, never worse than amax / 127.
 * Clipping the largest values was tried too: an outlier cut by d costs d^2, what the others gain by the smaller step is
 * less unless rows have tens of thousands of columns, so nothing is ever clipped. */
FOR_EACH_LEVEL static float quantize_row_int8(const float *w, int n, int8_t *q, bool nearest)
{
    float amax = 0, wq[LANES] = {0}, qq[LANES] = {0};
    for (int k = 0; k < n; k++) amax = fabsf(w[k]) > amax ? fabsf(w[k]) : amax;
    float inv = amax >= AMAX_MIN ? 127 / amax : 0;
    for (int k = 0; k < n; k++) q[k] = (int8_t)rintf(w[k] * inv);
    if (nearest || inv == 0) return inv == 0 ? 0 : amax / 127;
    int k = 0;
    for (; k + LANES <= n; k += LANES)
        for (int i = 0; i < LANES; i++) {
            float v = (float)q[k + i];
            wq[i] += w[k + i] * inv * v; /* in steps, so that no sum can overflow */
            qq[i] += v * v;
        }
    for (; k < n; k++) wq[0] += w[k] * inv * (float)q[k], qq[0] += (float)q[k] * (float)q[k];
    for (int i = 1; i < LANES; i++) wq[0] += wq[i], qq[0] += qq[i];
    return amax / 127 * (wq[0] / qq[0]);
}

/* ---- int4 ---- */

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

/* The best f16 scale for one group (padded with zeros).  First the extreme value is put at several places between 6.25
 * and 8.5 steps from zero (7 among them: never worse than plain rounding), on either side, since -8 has no counterpart;
 * then the best is improved by fitting in turn the scale to the rounded values and the rounding to the scale. */
static uint16_t best_scale_int4(const float w[INT4_GROUP])
{
    float amax = 0, best = 0, scale = 0, qq;
    for (int k = 0; k < INT4_GROUP; k++) amax = fabsf(w[k]) > amax ? fabsf(w[k]) : amax;
    if (amax < AMAX_MIN) return 0;
    for (int c = 0; c < 2 * FITS; c++) {
        float steps = 6.25f + 0.375f * (float)(c % FITS);
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

/* Plain round-to-nearest, the extreme value 7 steps from zero. */
static uint16_t nearest_scale_int4(const float w[INT4_GROUP])
{
    float amax = 0;
    for (int k = 0; k < INT4_GROUP; k++) amax = fabsf(w[k]) > amax ? fabsf(w[k]) : amax;
    return f32_to_f16(amax / 7 > F16_MAX ? F16_MAX : amax / 7);
}

FOR_EACH_LEVEL static void quantize_row_int4(const float *w, int n, uint8_t *q, uint16_t *scale, bool nearest)
{
    for (int g = 0; g * INT4_GROUP < n; g++, w += INT4_GROUP, q += INT4_GROUP / 2) {
        float x[INT4_GROUP] = {0};
        int len = n - g * INT4_GROUP < INT4_GROUP ? n - g * INT4_GROUP : INT4_GROUP;
        memcpy(x, w, (size_t)len * sizeof *x);
        scale[g] = nearest ? nearest_scale_int4(x) : best_scale_int4(x);
        float s = f16_to_f32(scale[g]), inv = s != 0 ? 1 / s : 0;
        for (int k = 0; k < INT4_GROUP; k += LANES) {
            lanes v;
            ilanes n4;
            nibbles(x + k, inv, &v, &n4);
            for (int i = 0; i < LANES; i += 2) q[(k + i) / 2] = (uint8_t)(n4[i] | n4[i + 1] << 4);
        }
    }
}

/* ---- error feedback ---- */

/* where TILE rows of the output go */
struct tile_out {
    uint8_t *q; /* rows row_bytes apart */
    size_t row_bytes;
    uint16_t *scale; /* int4: rows row_scales apart */
    size_t row_scales;
    float *scale8; /* int8: one for each row */
};

/* Rounds up to INT4_GROUP columns of a row one by one, to whole steps of s from low to high; each column's error is
 * pushed into the later ones.  u: the columns' diagonal block of the feedback, rows ld apart.  error[k] is what the
 * columns after these owe. */
static inline void feed(float x[INT4_GROUP], int len, const float *u, int ld, float s, float low, float high,
                        int8_t out[INT4_GROUP], float *error)
{
    float inv = s != 0 ? 1 / s : 0;
    for (int k = 0; k < len; k++, u += ld) {
        float v = rintf(x[k] * inv);
        v = v < low ? low : v > high ? high : v;
        float e = (x[k] - v * s) / u[k];
        out[k] = (int8_t)v;
        error[k] = e;
        for (int j = k + 1; j < len; j++) x[j] -= e * u[j];
    }
}

/* `len` columns of row r from w on; column is their place in the whole row */
static inline void feed_group(const struct tile_out *o, int r, int column, const float *w, int len, const float *u,
                              int ld, float *error)
{
    float x[INT4_GROUP] = {0};
    int8_t v[INT4_GROUP] = {0};
    memcpy(x, w, (size_t)len * sizeof *x);
    uint8_t *q = o->q + (size_t)r * o->row_bytes;
    if (o->scale8) {
        feed(x, len, u, ld, o->scale8[r], -127, 127, v, error);
        memcpy(q + column, v, (size_t)len);
        return;
    }
    uint16_t *scale = o->scale + (size_t)r * o->row_scales + column / INT4_GROUP;
    *scale = best_scale_int4(x);
    feed(x, len, u, ld, f16_to_f32(*scale), -8, 7, v, error);
    for (int k = 0; k < INT4_GROUP; k += 2) q[(column + k) / 2] = (uint8_t)((v[k] + 8) | (v[k + 1] + 8) << 4);
}

/* GPTQ (Frantar, Ashkboos, Hoefler, Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
 * Transformers", 2022): with H^-1 = U^T U, rounding column k with error e changes the later columns by
 * -e U[k][j] / U[k][k], which keeps x W^T nearest to what it was.  The scale of an int4 group is fitted when its turn
 * comes.  TILE rows at a time share each read of U. */
FOR_EACH_LEVEL static void feed_rows(float *w, int n, const struct feedback *f, const struct tile_out *o)
{
    const float *u = f->u;
    size_t N = (size_t)n;
    for (int at = 0; at < n; at += FEEDBACK_BLOCK) {
        int block = n - at < FEEDBACK_BLOCK ? n - at : FEEDBACK_BLOCK;
        for (int g = 0; g < block; g += INT4_GROUP) {
            int len = block - g < INT4_GROUP ? block - g : INT4_GROUP;
            float e[TILE][INT4_GROUP];
            const float *rows = u + (size_t)g * (size_t)block;
            float *a = w + at, *b = a + N, *c = b + N, *d = c + N;
            for (int r = 0; r < TILE; r++) feed_group(o, r, at + g, a + (size_t)r * N + g, len, rows + g, block, e[r]);
            for (int k = 0; k < len; k++, rows += block)
                for (int j = g + len; j < block; j++) {
                    a[j] -= e[0][k] * rows[j];
                    b[j] -= e[1][k] * rows[j];
                    c[j] -= e[2][k] * rows[j];
                    d[j] -= e[3][k] * rows[j];
                }
        }
        u += (size_t)block * (size_t)block;
    }
}

/* ---- all rows, on several threads ---- */

struct job {
    const struct weight_src *src;
    struct weight_src *out;
    const struct quantize_fit *fit;
    size_t row_bytes, row_scales; /* of the output */
    _Atomic int next;
    _Atomic int bad_row, bad_col; /* a weight that is not finite; -1: none */
};

/* rows [row, row + n) of the source as floats; false when one is not finite */
static bool read_rows(struct job *j, int row, int n, float *w)
{
    int cols = j->src->cols;
    for (int r = 0; r < n; r++, w += cols) {
        row_to_f32(j->src, row + r, w);
        for (int k = 0; k < cols; k++)
            if (!isfinite(w[k])) {
                atomic_store(&j->bad_col, k);
                atomic_store(&j->bad_row, row + r);
                return false;
            }
    }
    return atomic_load(&j->bad_row) < 0;
}

/* TILE rows with feedback; those past the last are zeros, computed aside and dropped */
static void feed_tile(const struct job *j, int row, int n, float *w)
{
    size_t cols = (size_t)j->src->cols, bytes = j->row_bytes, scales = j->row_scales;
    bool int8 = j->out->t == DT_I8;
    uint8_t *q = mem_alloc(TILE * bytes);
    uint16_t *scale = mem_array(TILE * scales, sizeof *scale);
    float scale8[TILE] = {0};
    memset(w + (size_t)n * cols, 0, (size_t)(TILE - n) * cols * sizeof *w);
    for (int r = 0; int8 && r < n; r++)
        scale8[r] = quantize_row_int8(w + (size_t)r * cols, (int)cols, (int8_t *)q, false);
    feed_rows(w, (int)cols, j->fit->feedback, &(struct tile_out){q, bytes, scale, scales, int8 ? scale8 : NULL});
    memcpy((uint8_t *)j->out->data + (size_t)row * bytes, q, (size_t)n * bytes);
    if (int8)
        memcpy((float *)j->out->scale + row, scale8, (size_t)n * sizeof *scale8);
    else
        memcpy((uint16_t *)j->out->scale + (size_t)row * scales, scale, (size_t)n * scales * sizeof *scale);
    free(q);
    free(scale);
}

static void *work(void *arg)
{
    struct job *j = arg;
    const struct weight_src *s = j->src;
    bool with_feedback = j->fit->feedback != NULL;
    int row, step = with_feedback ? TILE : 1;
    float *w = mem_array((size_t)step * (size_t)s->cols, sizeof *w);
    while ((row = atomic_fetch_add(&j->next, step)) < s->rows) {
        int n = s->rows - row < step ? s->rows - row : step;
        if (!read_rows(j, row, n, w)) break;
        uint8_t *q = (uint8_t *)j->out->data + (size_t)row * j->row_bytes;
        uint16_t *scale = (uint16_t *)j->out->scale + (size_t)row * j->row_scales;
        if (with_feedback)
            feed_tile(j, row, n, w);
        else if (j->out->t == DT_I8)
            ((float *)j->out->scale)[row] = quantize_row_int8(w, s->cols, (int8_t *)q, j->fit->nearest);
        else
            quantize_row_int4(w, s->cols, q, scale, j->fit->nearest);
    }
    free(w);
    return NULL;
}

int quantize_matrix(const struct weight_src *src, const struct quantize_fit *fit, int threads, struct weight_src *out,
                    struct err *e)
{
    size_t groups = ((size_t)src->cols + INT4_GROUP - 1) / INT4_GROUP, rows = (size_t)src->rows;
    struct job j = {.src = src, .out = out, .fit = fit, .bad_row = -1};
    int t = fit->type;
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
