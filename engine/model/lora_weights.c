#include "engine/model/lora_weights.h"

#include "engine/base/mem.h"
#include "engine/model/shard.h"

#include <stdlib.h>
#include <string.h>

enum {
    ALIGN = 16, /* floats; each matrix is aligned for vector loads */
    BLOCK = 256 /* allocation granularity of devices in bytes, so that the bytes counted are the bytes used */
};

static size_t rounded(size_t floats)
{
    return (floats + ALIGN - 1) / ALIGN * ALIGN;
}

/* The outputs of a module that are here: pieces of its b, whose outputs are columns [col, col + n) of the GEMM's here.
 */
struct outputs {
    struct shard_piece piece[SHARD_PIECES];
    int pieces, col, n;
};

/* A module has all of the sections (q, k, v; gate, up) that it touches, so its outputs stay adjacent. */
static struct outputs outputs_of(const struct lora_module *m, int layer, const struct shard *s)
{
    struct outputs o = {.piece = {{0, m->n, 0}}, .pieces = 1, .col = m->col, .n = m->n};
    struct shard_piece all[SHARD_PIECES];
    int n = s ? shard_pieces(s, layer, m->gemm, all) : 0, first = -1;
    if (!n) return o;
    o.pieces = o.n = 0;
    for (int i = 0; i < n; i++) {
        if (all[i].from < m->col || all[i].from >= m->col + m->n) continue;
        if (first < 0) first = all[i].at;
        o.piece[o.pieces++] = (struct shard_piece){all[i].from - m->col, all[i].n, o.n};
        o.n += all[i].n;
    }
    o.col = first < 0 ? 0 : first;
    return o;
}

/* Whether the rank computes what the module changes. */
static bool is_here(const struct lora_module *m, int layer, const struct shard *s)
{
    bool ends = m->gemm == GEMM_EMBEDDING || m->gemm == GEMM_LM_HEAD;
    return ends ? shard_has_ends(s) : shard_has_layer(s, layer);
}

static size_t floats_of(const struct adapter *a, const struct shard *s)
{
    size_t n = 0;
    for (int i = 0; i < a->layers * a->n_modules; i++) {
        const struct lora_module *m = &a->module[i % a->n_modules];
        if (!is_here(m, i / a->n_modules, s)) continue;
        size_t r = (size_t)a->pair[i].r * (size_t)lora_copies(m);
        n += rounded(r * (size_t)m->k) + rounded(r * (size_t)outputs_of(m, i / a->n_modules, s).n);
        if (m->gemm == GEMM_EMBEDDING) n += rounded(r * r);
    }
    return n;
}

static int no_room(struct dev *d, size_t bytes, struct err *e)
{
    struct dev_memory m = {0};
    if (!d->ops->memory) return err_set(e, ERR_NOMEM, "no memory on the device for an adapter of %zu bytes", bytes);
    d->ops->memory(d, &m);
    return err_set(
        e, ERR_NOMEM,
        "no memory on the device for an adapter of %zu bytes: %zu bytes are free, the largest free block has %zu; "
        "unload other adapters, or lower --kv-cache-bytes",
        bytes, m.budget - m.used, m.largest);
}

/* at: offset in floats */
static const float *put(struct lora_weights *w, struct dev *d, size_t *at, const float *host, size_t floats)
{
    float *p = w->memory + *at;
    d->ops->upload(d, p, host, floats * sizeof *p);
    *at += rounded(floats);
    return p;
}

/* Leaves of b (copies, n, r) the pieces of the outputs that are here.  @return its floats */
static size_t keep_outputs(float *b, const struct lora_module *m, size_t r, const struct outputs *o)
{
    size_t to = 0;
    for (int k = 0; k < lora_copies(m); k++)
        for (int i = 0; i < o->pieces; i++) {
            const struct shard_piece *p = &o->piece[i];
            size_t from = ((size_t)k * (size_t)m->n + (size_t)p->from) * r, n = (size_t)p->n * r;
            memmove(b + to, b + from, n * sizeof *b);
            to += n;
        }
    return to;
}

static const float *put_b(struct lora_weights *w, struct dev *d, size_t *at, const struct lora_module *m,
                          const struct lora_pair *p, const struct outputs *o)
{
    size_t n = (size_t)p->r * (size_t)m->n * (size_t)lora_copies(m);
    if (!m->by_head && o->n == m->n) return put(w, d, at, p->b, n);
    float *b = mem_array(n, sizeof *b);
    if (m->by_head)
        lora_b_to_outputs(m, p->r, p->b, b);
    else
        memcpy(b, p->b, n * sizeof *b);
    const float *to = put(w, d, at, b, keep_outputs(b, m, (size_t)p->r, o)); /* upload copies before it returns */
    free(b);
    return to;
}

void lora_table_upload(struct dev *d, float *to, const struct lora_module *m, const struct lora_pair *p)
{
    enum { TOKENS = 4096 }; /* of which a copy is held at once: a whole table may have hundreds of MB */
    size_t r = (size_t)p->r, k = (size_t)m->k;
    float *table = mem_array(r * TOKENS, sizeof *table);
    for (size_t first = 0; first < k; first += TOKENS) {
        size_t n = k - first < TOKENS ? k - first : TOKENS;
        for (size_t t = 0; t < n; t++)
            for (size_t i = 0; i < r; i++) table[t * r + i] = p->a[i * k + first + t];
        d->ops->upload(d, to + first * r, table, n * r * sizeof *table);
    }
    free(table);
}

/* The embedding table's a as a table of tokens.  @return the identity */
static const float *put_table(struct lora_weights *w, struct dev *d, size_t *at, const struct lora_module *m,
                              const struct lora_pair *p)
{
    size_t r = (size_t)p->r;
    float *identity = mem_array(r * r, sizeof *identity), *to_table = w->memory + *at;
    lora_table_upload(d, to_table, m, p);
    *at += rounded(r * (size_t)m->k);
    for (size_t i = 0; i < r; i++) identity[i * r + i] = 1; /* mem_array zeroes */
    w->embedding = mat_f32(to_table, m->k, p->r);
    const float *to = put(w, d, at, identity, r * r);
    free(identity);
    return to;
}

int lora_weights_upload(struct lora_weights *w, struct dev *d, const struct adapter *a, const struct shard *s,
                        struct err *e)
{
    size_t bytes = floats_of(a, s) * sizeof(float);
    if (!bytes) bytes = BLOCK; /* none of it is here */
    *w = (struct lora_weights){.bytes = (bytes + BLOCK - 1) / BLOCK * BLOCK, .layers = a->layers};
    if (!(w->memory = d->ops->alloc(d, w->bytes))) return no_room(d, w->bytes, e);
    w->layer = mem_array((size_t)a->layers, sizeof *w->layer);
    size_t at = 0;
    for (int i = 0; i < a->layers * a->n_modules; i++) {
        const struct lora_module *m = &a->module[i % a->n_modules];
        const struct lora_pair *p = &a->pair[i];
        struct lora_gemm *to = &w->layer[i / a->n_modules][m->gemm];
        if (!p->r || !is_here(m, i / a->n_modules, s)) continue;
        const float *pa = m->gemm == GEMM_EMBEDDING
                              ? put_table(w, d, &at, m, p)
                              : put(w, d, &at, p->a, (size_t)p->r * (size_t)m->k * (size_t)lora_copies(m));
        struct outputs o = outputs_of(m, i / a->n_modules, s);
        const float *pb = put_b(w, d, &at, m, p, &o);
        if (o.n)
            to->part[to->n++] =
                (struct lora_part){.a = pa, .b = pb, .r = p->r, .col = o.col, .n = o.n, .scale = p->scale};
        w->up |= m->gemm == GEMM_UP || m->gemm == GEMM_EXPERT_UP;
    }
    if (!d->ops->finish(d)) return 0;
    err_set(e, ERR_IO, "the adapter could not be copied to the device: %s: %s", d->error.op, d->error.msg);
    dev_clear_error(d);
    lora_weights_free(w, d);
    return e->code;
}

void lora_weights_free(struct lora_weights *w, struct dev *d)
{
    if (w->memory) d->ops->free(d, w->memory);
    free(w->layer);
    *w = (struct lora_weights){0};
}
