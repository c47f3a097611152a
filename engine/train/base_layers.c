#include "engine/train/base_layers.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "kernels/comm.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64 /* of packed bytes */ };

/* A packed matrix of a layer. */
struct part {
    int stack, layer;
    struct weight_src shape;
    size_t bytes, at; /* at: in a buffer */
    char *own;        /* this rank's part of them */
};

struct base_layers {
    struct comm *comm;
    struct part *part;
    size_t n, cap, own_bytes, layer_bytes; /* layer_bytes: of the largest */
    struct model *m;                       /* while it is used; else NULL */
    struct layer_gather gather;
    char *buffer[2];
    int used; /* the buffer of the layer that is there; the other one is fetched to */
};

struct base_layers *base_layers_open(struct comm *c)
{
    struct base_layers *b = mem_zalloc(sizeof *b);
    b->comm = c;
    return b;
}

void base_layers_close(struct base_layers *b)
{
    if (!b) return;
    base_layers_end(b);
    for (size_t i = 0; i < b->n; i++) free(b->part[i].own);
    free(b->part);
    free(b);
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* Where the ranks' parts of the bytes begin. */
static void divide(const struct base_layers *b, size_t bytes, size_t from[COMM_RANKS_MAX + 1])
{
    size_t ranks = (size_t)comm_ranks(b->comm), lines = (bytes + ALIGN - 1) / ALIGN;
    for (size_t r = 0; r <= ranks; r++) {
        from[r] = (lines / ranks * r + lines % ranks * r / ranks) * ALIGN;
        if (from[r] > bytes) from[r] = bytes;
    }
}

/* The end of the layer's matrices so far. */
static size_t end_of(const struct base_layers *b, int layer)
{
    size_t end = 0;
    for (size_t i = 0; i < b->n; i++)
        if (b->part[i].layer == layer) end = b->part[i].at + b->part[i].bytes;
    return (end + ALIGN - 1) / ALIGN * ALIGN;
}

static int take(void *arg, struct dev *d, const struct weights_taken *t, struct weight **w, struct err *e)
{
    struct base_layers *b = arg;
    size_t from[COMM_RANKS_MAX + 1];
    struct part p = {.stack = t->stack, .layer = t->layer, .shape = t->shape};
    int rank = comm_rank(b->comm);
    if (t->layer < 0) return 0;
    if (!d->ops->weight_packed)
        return err_set(e, ERR_UNSUPPORTED,
                       "zero 3 divides a base that adapters are trained on only on the device cpu, not on %s: let zero "
                       "be 2",
                       d->ops->name);
    const char *packed = d->ops->weight_packed(*w, &p.bytes);
    struct weight *again = d->ops->weight_open(d, &p.shape, packed, p.bytes);
    if (!again)
        return err_set(e, ERR_UNSUPPORTED,
                       "zero 3 does not divide a base that another program quantised in groups of its own: let zero be "
                       "2, or train on the original model, with --quantize");
    d->ops->weight_free(d, again);
    divide(b, p.bytes, from);
    size_t own = from[rank + 1] - from[rank];
    if (!(p.own = mem_try_alloc(own + 1))) return err_set(e, ERR_NOMEM, "no memory for %zu bytes of weights", own);
    memcpy(p.own, packed + from[rank], own);
    p.at = end_of(b, p.layer);
    mem_grow(&b->part, &b->cap, b->n + 1, sizeof *b->part);
    b->part[b->n++] = p;
    b->own_bytes += own;
    if (p.at + p.bytes > b->layer_bytes) b->layer_bytes = p.at + p.bytes;
    d->ops->weight_free(d, *w);
    *w = NULL;
    return 0;
}

struct weights_taker base_layers_taker(struct base_layers *b)
{
    return (struct weights_taker){take, b};
}

size_t base_layers_bytes(const struct base_layers *b)
{
    return b->own_bytes;
}

size_t base_layers_buffers(const struct base_layers *b)
{
    return 2 * ((b->layer_bytes + ALIGN - 1) / ALIGN * ALIGN);
}

/* ---- using ------------------------------------------------------------------------------------------------------- */

static void fetch(void *arg, int layer)
{
    struct base_layers *b = arg;
    size_t from[COMM_RANKS_MAX + 1];
    int rank = comm_rank(b->comm);
    for (const struct part *p = b->part; p < b->part + b->n; p++) {
        if (p->layer != layer) continue;
        char *to = b->buffer[!b->used] + p->at;
        divide(b, p->bytes, from);
        memcpy(to + from[rank], p->own, from[rank + 1] - from[rank]);
        comm_gather_parts(b->comm, to, from);
    }
}

static void give_up(struct base_layers *b)
{
    struct model *m = b->m;
    for (const struct part *p = b->part; p < b->part + b->n; p++) {
        struct weight **w = weights_stack_field(&m->w, &m->c, p->stack);
        if (*w) m->d->ops->weight_free(m->d, *w);
        *w = NULL;
    }
}

static void install(void *arg, int layer)
{
    struct base_layers *b = arg;
    struct model *m = b->m;
    give_up(b);
    b->used = !b->used;
    for (const struct part *p = b->part; p < b->part + b->n; p++) {
        if (p->layer != layer) continue;
        struct weight **w = weights_stack_field(&m->w, &m->c, p->stack);
        *w = m->d->ops->weight_open(m->d, &p->shape, b->buffer[b->used] + p->at, p->bytes);
        CHECK(*w); /* as when it was loaded; without memory for it this ends like mem_alloc */
    }
}

int base_layers_use(struct base_layers *b, struct model *m, struct exchanger *x, struct err *e)
{
    b->m = m;
    b->gather = (struct layer_gather){.fetch = fetch, .install = install, .arg = b};
    layer_gather_open(&b->gather, x);
    for (int i = 0; i < 2; i++)
        if (!(b->buffer[i] = m->d->ops->alloc(m->d, base_layers_buffers(b) / 2)))
            return err_set(e, ERR_NOMEM, "no memory for the weights of two layers");
    return 0;
}

struct layer_gather *base_layers_gather(struct base_layers *b)
{
    return &b->gather;
}

void base_layers_end(struct base_layers *b)
{
    if (!b->m) return;
    layer_gather_forget(&b->gather);
    give_up(b);
    for (int i = 0; i < 2; i++)
        if (b->buffer[i]) b->m->d->ops->free(b->m->d, b->buffer[i]);
    b->m = NULL;
}
