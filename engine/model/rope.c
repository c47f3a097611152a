#include "engine/model/rope.h"

#include "engine/base/mem.h"

#include <math.h>
#include <stdlib.h>

/* The angle of feature pair i per position.  Llama 3's rule stretches long wavelengths by `factor`, keeps short ones,
 * and interpolates in between (transformers, modeling_rope_utils.py). */
static float inv_freq(const struct rope *r, int i)
{
    double f = 1.0 / pow(r->theta, 2.0 * i / r->rot);
    if (r->scaling == ROPE_LINEAR) return (float)(f / r->factor);
    if (r->scaling == ROPE_PLAIN) return (float)f;
    double wavelength = 2 * M_PI / f, old = r->old_len;
    if (wavelength < old / r->high) return (float)f;
    if (wavelength > old / r->low) return (float)(f / r->factor);
    double smooth = (old / wavelength - r->low) / (r->high - r->low);
    return (float)((1 - smooth) * f / r->factor + smooth * f);
}

static int table_open(const struct rope *r, struct dev *d, int positions, struct rope_table *out, struct err *e)
{
    size_t half = (size_t)r->rot / 2, n = half * (size_t)positions;
    if (!n) return 0;
    float *cos_host = mem_array(n, sizeof *cos_host), *sin_host = mem_array(n, sizeof *sin_host);
    for (size_t i = 0; i < half; i++) {
        float f = inv_freq(r, (int)i);
        for (size_t p = 0; p < (size_t)positions; p++) {
            float angle = (float)p * f; /* rounded to f32 as transformers does */
            cos_host[p * half + i] = (float)cos((double)angle);
            sin_host[p * half + i] = (float)sin((double)angle);
        }
    }
    out->cos = d->ops->alloc(d, n * sizeof *out->cos);
    out->sin = d->ops->alloc(d, n * sizeof *out->sin);
    if (out->cos) d->ops->upload(d, out->cos, cos_host, n * sizeof *out->cos);
    if (out->sin) d->ops->upload(d, out->sin, sin_host, n * sizeof *out->sin);
    free(cos_host);
    free(sin_host);
    if (out->cos && out->sin) return 0;
    return err_set(e, ERR_NOMEM, "no memory for the rotary tables of %d positions", positions);
}

int rope_tables_open(const struct rope *rope, int n, struct dev *d, int positions, struct rope_table out[ROPES_MAX],
                     struct err *e)
{
    int rc = 0;
    for (int i = 0; i < n && !rc; i++) rc = table_open(&rope[i], d, positions, &out[i], e);
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
