#include "engine/lora_weights.h"

#include "engine/base/mem.h"

#include <stdlib.h>

enum { ALIGN = 16 }; /* floats: each matrix begins where a vector does */

static size_t rounded(size_t floats)
{
    return (floats + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t floats_of(const struct adapter *a)
{
    size_t n = 0;
    for (int i = 0; i < a->layers * a->n_modules; i++) {
        const struct lora_module *m = &a->module[i % a->n_modules];
        size_t r = (size_t)a->pair[i].r;
        n += rounded(r * (size_t)m->k) + rounded(r * (size_t)m->n);
    }
    return n;
}

static const float *put(struct dev *d, float **at, const float *host, size_t floats)
{
    float *p = *at;
    d->ops->upload(d, p, host, floats * sizeof *p);
    *at += rounded(floats);
    return p;
}

int lora_weights_upload(struct lora_weights *w, struct dev *d, const struct adapter *a, struct err *e)
{
    *w = (struct lora_weights){.bytes = floats_of(a) * sizeof(float)};
    if (!(w->memory = d->ops->alloc(d, w->bytes)))
        return err_set(e, ERR_NOMEM, "no memory on the device for an adapter of %zu bytes", w->bytes);
    w->layer = mem_array((size_t)a->layers, sizeof *w->layer);
    float *at = w->memory;
    for (int i = 0; i < a->layers * a->n_modules; i++) {
        const struct lora_module *m = &a->module[i % a->n_modules];
        const struct lora_pair *p = &a->pair[i];
        struct lora_product *to = &w->layer[i / a->n_modules][m->product];
        if (!p->r) continue;
        const float *pa = put(d, &at, p->a, (size_t)p->r * (size_t)m->k);
        const float *pb = put(d, &at, p->b, (size_t)p->r * (size_t)m->n);
        to->part[to->n++] =
            (struct lora_part){.a = pa, .b = pb, .r = p->r, .col = m->col, .n = m->n, .scale = p->scale};
        w->up |= m->product == PRODUCT_UP;
    }
    return 0;
}

void lora_weights_free(struct lora_weights *w, struct dev *d)
{
    if (w->memory) d->ops->free(d, w->memory);
    free(w->layer);
    *w = (struct lora_weights){0};
}
