#include "engine/model/quantize.h"

#include "engine/base/levels.h"
#include "engine/base/mem.h"
#include "engine/model/nf4.h"
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

/* eight lanes; gcc and clang compile these to the machine's vector instructions */
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t ilanes __attribute__((vector_size(LANES * sizeof(int32_t))));

/* ---- int8 ---- */

/* @return the scale that fits the rounded values best in least squares; never worse than amax / 127.  Nothing is
 * clipped: clipping an outlier by d costs d^2, about as much as the other values gain from the smaller step.  The best
 * of ten clipping thresholds per row reduced the squared error by 0 to 3 % (rows of 128 to 4864 normal or t-distributed
 * values, with and without outliers of 20 times their size). */
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
            wq[i] += w[k + i] * inv * v; /* partial sums, so that none can overflow */
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

/* The best f16 scale for one group (padded with zeros).  First tries scales that place the extreme value at several
 * positions between 6.25 and 8.5 steps from zero (7 is one of them, so the result is never worse than plain rounding),
 * with either sign, since -8 has no positive counterpart.  Then improves the best one by alternating between fitting
 * the scale to the rounded values and rounding with the new scale. */
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

/* Plain round-to-nearest, with the extreme value 7 steps from zero. */
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

/* TILE rows being quantised: value [r][k] is v * scale of its group.  int8: a row is one group. */
struct tile {
    int cols, group, groups;
    bool int4;
    float low, high; /* range of v */
    const float *w;  /* (TILE, cols) the weights */
    float *left;     /* (TILE, cols) the values still to be rounded, including errors propagated from earlier columns */
    int8_t *v;       /* (TILE, cols) */
    float *scale;    /* (TILE, groups) */
    float *pull;     /* (TILE, FEEDBACK_BLOCK) H times the error, see refine_rows */
};

static inline float to_level(float x, float low, float high)
{
    x = rintf(x);
    return !(x >= low) ? low : x > high ? high : x; /* NaN, from a moment that overflowed, becomes low */
}

/* y -= a x */
static inline void take(float *y, const float *x, float a, int from, int to)
{
    for (int j = from; j < to; j++) y[j] -= a * x[j];
}

/* Rounds `len` columns of row r from column `at` on, one by one, and propagates the error of each to the later ones. u:
 * their diagonal block of the feedback, rows ld apart.  error[k] is to be propagated to the columns after these. */
static inline void feed_group(const struct tile *t, int r, int at, int len, const float *u, int ld, float *error)
{
    float *x = t->left + (size_t)r * (size_t)t->cols + at, *scale = t->scale + r * t->groups + at / t->group;
    int8_t *v = t->v + (size_t)r * (size_t)t->cols + at;
    if (t->int4) { /* an int4 group's scale is fitted when its first column is reached */
        float group[INT4_GROUP] = {0};
        memcpy(group, x, (size_t)len * sizeof *x);
        *scale = f16_to_f32(best_scale_int4(group));
    }
    float s = *scale, inv = s != 0 ? 1 / s : 0;
    for (int k = 0; k < len; k++, u += ld) {
        float level = to_level(x[k] * inv, t->low, t->high);
        v[k] = (int8_t)level;
        error[k] = (x[k] - level * s) / u[k];
        take(x, u, error[k], k + 1, len);
    }
}

/* GPTQ (Frantar, Ashkboos, Hoefler, Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
 * Transformers", 2022): with H^-1 = U^T U, rounding column k with error e changes the later columns by
 * -e U[k][j] / U[k][k], which keeps x W^T nearest to what it was.  All rows of the tile share each read of U. */
FOR_EACH_LEVEL static void feed_rows(const struct tile *t, const struct feedback *f)
{
    const float *u = f->u;
    for (int at = 0; at < t->cols; at += FEEDBACK_BLOCK) {
        int block = t->cols - at < FEEDBACK_BLOCK ? t->cols - at : FEEDBACK_BLOCK;
        for (int g = 0; g < block; g += INT4_GROUP) {
            int len = block - g < INT4_GROUP ? block - g : INT4_GROUP;
            float e[TILE][INT4_GROUP];
            for (int r = 0; r < TILE; r++)
                feed_group(t, r, at + g, len, u + (size_t)g * (size_t)block + g, block, e[r]);
            for (int k = 0; k < len; k++)
                for (int r = 0; r < TILE; r++)
                    take(t->left + (size_t)r * (size_t)t->cols + at, u + (size_t)(g + k) * (size_t)block, e[r][k],
                         g + len, block);
        }
        u += (size_t)block * (size_t)block;
    }
}

/* Improves one group's scale: with v fixed, the change that reduces the error most.  h: row `from` of the block's H. */
static inline void refit_group(const struct tile *t, int r, int column, int from, int len, int block, const float *h)
{
    const int8_t *v = t->v + (size_t)r * (size_t)t->cols + column;
    float *pull = t->pull + (size_t)r * FEEDBACK_BLOCK, *scale = t->scale + r * t->groups + column / t->group;
    float num = 0, den = 0;
    for (int k = 0; k < len; k++) {
        float sum = 0;
        for (int j = 0; j < len; j++) sum += h[(size_t)k * (size_t)block + (size_t)(from + j)] * (float)v[j];
        num += (float)v[k] * pull[from + k];
        den += (float)v[k] * sum;
    }
    float s = den > 0 ? *scale + num / den : *scale;
    if (!(fabsf(s) <= F16_MAX)) return;
    s = f16_to_f32(f32_to_f16(s));
    for (int k = 0; k < len; k++) take(pull, h + (size_t)k * (size_t)block, (s - *scale) * (float)v[k], 0, block);
    *scale = s;
}

/* Then, column by column, reduces a row's error e = w - v scale as measured by e H e^T; `pull` = H e is half its
 * gradient.  Never increases it (except by rounding of floats).  Two rounds give nearly the whole improvement. */
FOR_EACH_LEVEL static void refine_rows(const struct tile *t, const struct feedback *f)
{
    const float *h = f->h;
    for (int at = 0; at < t->cols; at += FEEDBACK_BLOCK) {
        int block = t->cols - at < FEEDBACK_BLOCK ? t->cols - at : FEEDBACK_BLOCK;
        size_t ld = (size_t)block;
        memset(t->pull, 0, TILE * FEEDBACK_BLOCK * sizeof *t->pull);
        for (int k = 0; k < block; k++)
            for (int r = 0; r < TILE; r++) {
                size_t i = (size_t)r * (size_t)t->cols + (size_t)(at + k);
                float e = t->w[i] - (float)t->v[i] * t->scale[r * t->groups + (at + k) / t->group];
                take(t->pull + (size_t)r * FEEDBACK_BLOCK, h + (size_t)k * ld, -e, 0, block);
            }
        for (int g = 0; g < block && t->int4; g += INT4_GROUP)
            for (int r = 0; r < TILE; r++)
                refit_group(t, r, at + g, g, block - g < INT4_GROUP ? block - g : INT4_GROUP, block,
                            h + (size_t)g * ld);
        for (int k = 0; k < 2 * block; k++) {
            int col = k % block;
            const float *row = h + (size_t)col * ld;
            for (int r = 0; r < TILE; r++) {
                int8_t *v = t->v + (size_t)r * (size_t)t->cols + (at + col);
                float *pull = t->pull + (size_t)r * FEEDBACK_BLOCK;
                float s = t->scale[r * t->groups + (at + col) / t->group];
                float better = s != 0 ? to_level((float)*v + pull[col] / (row[col] * s), t->low, t->high) : 0;
                if (better == (float)*v) continue;
                take(pull, row, (better - (float)*v) * s, 0, block);
                *v = (int8_t)better;
            }
        }
        h += ld * ld;
    }
}

/* ---- all rows, on several threads ---- */

struct job {
    const struct weight_src *src;
    struct weight_src *out;
    const struct quantize_fit *fit;
    size_t row_bytes, row_scales; /* of the output */
    _Atomic int next;
    _Atomic int bad_row, bad_col; /* position of a weight that is not finite; -1: none */
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

/* quantises the n rows in w (with room for TILE) as one tile and writes them to the output */
static void feed_tile(const struct job *j, int row, int n, float *w)
{
    int cols = j->src->cols;
    bool int8 = j->out->t == DT_I8;
    size_t all = (size_t)TILE * (size_t)cols;
    struct tile t = {
        .cols = cols, .group = int8 ? cols : INT4_GROUP, .groups = (int)j->row_scales, .int4 = !int8, .w = w};
    t.low = int8 ? -127 : -8, t.high = int8 ? 127 : 7;
    t.v = mem_array(all, sizeof *t.v);
    t.left = mem_array(all, sizeof *t.left);
    t.scale = mem_array(TILE * j->row_scales, sizeof *t.scale);
    t.pull = mem_array(TILE * FEEDBACK_BLOCK, sizeof *t.pull);
    memset(w + (size_t)n * (size_t)cols, 0, (size_t)(TILE - n) * (size_t)cols * sizeof *w);
    memcpy(t.left, w, all * sizeof *w);
    for (int r = 0; int8 && r < n; r++) t.scale[r] = quantize_row_int8(w + (size_t)r * (size_t)cols, cols, t.v, false);
    feed_rows(&t, j->fit->feedback);
    refine_rows(&t, j->fit->feedback);
    for (int r = 0; r < n; r++) {
        const int8_t *v = t.v + (size_t)r * (size_t)cols;
        uint8_t *q = (uint8_t *)j->out->data + (size_t)(row + r) * j->row_bytes;
        if (int8) {
            memcpy(q, v, (size_t)cols);
            ((float *)j->out->scale)[row + r] = t.scale[r];
            continue;
        }
        memset(q, 0x88, j->row_bytes);
        for (int k = 0; k < cols; k++)
            q[k / 2] = (uint8_t)(k & 1 ? (q[k / 2] & 15) | (v[k] + 8) << 4 : (q[k / 2] & 0xf0) | (v[k] + 8));
        for (int g = 0; g < t.groups; g++)
            ((uint16_t *)j->out->scale)[(size_t)(row + r) * j->row_scales + (size_t)g] =
                f32_to_f16(t.scale[r * t.groups + g]);
    }
    free(t.v);
    free(t.left);
    free(t.scale);
    free(t.pull);
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
    if (fit->type == DT_NF4) return nf4_quantize_matrix(src, threads, out, e);
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
