#include "engine/model/rope.h"

#include "engine/base/mem.h"

#include <math.h>
#include <stdlib.h>

/* The rules are those of transformers 5.23, modeling_rope_utils.py. */

/* Llama 3's rule: long wavelengths are stretched by `factor`, short ones kept, and those between interpolated. */
static double llama3(const struct rope *r, double f)
{
    double wavelength = 2 * M_PI / f, old = r->old_len;
    if (wavelength < old / r->high) return f;
    if (wavelength > old / r->low) return f / r->factor;
    double smooth = (old / wavelength - r->low) / (r->high - r->low);
    return (1 - smooth) * f / r->factor + smooth * f;
}

/* The pair that turns `times` times within old_len positions. */
static double pair_of(const struct rope *r, double times)
{
    return r->rot * log(r->old_len / (times * 2 * M_PI)) / (2 * log(r->theta));
}

/* YaRN's rule (https://arxiv.org/abs/2309.00071): likewise, with a ramp that is linear in the number of the pair. */
static double yarn(const struct rope *r, int i, double f)
{
    double low = pair_of(r, r->high), high = pair_of(r, r->low);
    if (r->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, r->rot - 1);
    if (low == high) high += 0.001;
    double stretched = fmin(fmax((i - low) / (high - low), 0), 1);
    return f / r->factor * stretched + f * (1 - stretched);
}

/* Dynamic NTK: the theta of a text of max_len tokens. */
static double dynamic_theta(const struct rope *r)
{
    double stretch = r->factor * r->max_len / r->old_len - (r->factor - 1);
    return r->theta * pow(stretch, r->rot / (r->rot - 2.0));
}

/* The angle of feature pair i per position; beyond: in texts of more than rope_near_len tokens. */
static float inv_freq(const struct rope *r, int i, bool beyond)
{
    double theta = r->scaling == ROPE_DYNAMIC && beyond ? dynamic_theta(r) : r->theta;
    double f = 1.0 / pow(theta, 2.0 * i / r->rot);
    switch (r->scaling) {
    case ROPE_PLAIN:
    case ROPE_DYNAMIC: return (float)f;
    case ROPE_LINEAR: return (float)(f / r->factor);
    case ROPE_LLAMA3: return (float)llama3(r, f);
    case ROPE_YARN: return (float)yarn(r, i, f);
    case ROPE_LONGROPE: return (float)(f / (double)r->divide[beyond][i]);
    }
    return 0;
}

/* The rows of n positions, to the tables from `row` on. */
static void fill(const struct rope *r, bool beyond, size_t row, size_t n, float *cos_host, float *sin_host)
{
    size_t half = (size_t)r->rot / 2;
    for (size_t i = 0; i < half; i++) {
        float f = inv_freq(r, (int)i, beyond);
        for (size_t p = 0; p < n; p++) {
            float angle = (float)p * f; /* rounded to f32 as transformers does */
            cos_host[(row + p) * half + i] = (float)(cos((double)angle) * r->attention);
            sin_host[(row + p) * half + i] = (float)(sin((double)angle) * r->attention);
        }
    }
}

static int table_open(const struct rope *r, int near_len, struct dev *d, int positions, struct rope_table *out,
                      struct err *e)
{
    size_t far = near_len && positions > near_len ? (size_t)positions : 0;
    size_t near = far ? (size_t)near_len : (size_t)positions;
    size_t n = (size_t)r->rot / 2 * (near + far);
    if (!n) return 0;
    float *cos_host = mem_try_alloc(n * sizeof *cos_host), *sin_host = mem_try_alloc(n * sizeof *sin_host);
    if (cos_host && sin_host) {
        fill(r, false, 0, near, cos_host, sin_host);
        fill(r, true, near, far, cos_host, sin_host);
        out->cos = d->ops->alloc(d, n * sizeof *out->cos);
        out->sin = d->ops->alloc(d, n * sizeof *out->sin);
        if (out->cos) d->ops->upload(d, out->cos, cos_host, n * sizeof *out->cos);
        if (out->sin) d->ops->upload(d, out->sin, sin_host, n * sizeof *out->sin);
    }
    free(cos_host);
    free(sin_host);
    if (out->cos && out->sin) return 0;
    return err_set(e, ERR_NOMEM, "no memory for the rotary tables of %d positions", positions);
}

int rope_tables_open(const struct rope *rope, int n, int near_len, struct dev *d, int positions,
                     struct rope_table out[ROPES_MAX], struct err *e)
{
    int rc = 0;
    for (int i = 0; i < n && !rc; i++) rc = table_open(&rope[i], near_len, d, positions, &out[i], e);
    return rc;
}

void rope_tables_close(struct dev *d, struct rope_table t[ROPES_MAX])
{
    for (int i = 0; i < ROPES_MAX; i++) {
        if (t[i].cos) d->ops->free(d, t[i].cos);
        if (t[i].sin) d->ops->free(d, t[i].sin);
        t[i] = (struct rope_table){0};
    }
}
