/* The matrices of the layers where their values are divided over the ranks (stage 3, shards.h). */
#include "engine/train/full_layers.h"

#include "engine/base/mem.h"
#include "engine/train/exchange.h"
#include "engine/train/op_chunks.h"
#include "kernels/comm.h"
#include "kernels/trace.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory that layers share -------------------------------------------------------------------------------------
 */

int full_layers_of(const struct train_full *f, int i)
{
    const struct model_config *c = &f->base->c;
    return i < c->layers * LAYER_GEMMS ? i / LAYER_GEMMS : tensors_expert_stack(c, i).layer;
}

static bool same_shape(const struct stack *a, const struct stack *b)
{
    if (a->n != b->n || a->rows != b->rows || a->cols != b->cols || a->gate_up != b->gate_up) return false;
    for (int i = 0; i < a->n; i++)
        if (a->part[i].rows != b->part[i].rows) return false;
    return true;
}

void full_layers_share(struct train_full *f)
{
    int places = LAYER_GEMMS + f->n_stacks, layer = -1, experts = 0;
    int *last = mem_array((size_t)places, sizeof *last), *before = mem_array((size_t)f->n_stacks, sizeof *before);
    f->root = mem_array((size_t)f->n_stacks, sizeof *f->root);
    for (int i = 0; i < places; i++) last[i] = -1;
    for (int i = 0; i < f->n_stacks; i++) {
        struct stack s, other;
        bool gemm = i < f->base->c.layers * LAYER_GEMMS;
        f->root[i] = i;
        tensors_stack(&f->tensors, i, &s);
        if (full_layers_of(f, i) < 0 || !s.n) continue;
        if (layer != full_layers_of(f, i)) experts = 0;
        layer = full_layers_of(f, i);
        int *first = &last[gemm ? i % LAYER_GEMMS : LAYER_GEMMS + experts++], at = *first;
        for (; at >= 0; at = before[at]) {
            tensors_stack(&f->tensors, at, &other);
            if (same_shape(&s, &other)) break;
        }
        if (at >= 0) {
            f->root[i] = at;
            continue;
        }
        before[i] = *first;
        *first = i;
    }
    free(last);
    free(before);
}

bool full_layers_root(const struct train_full *f, const struct optim *o, int i)
{
    return !o->s.values || f->root[i] == i;
}

/* The floats that a stack of a layer is unpacked to before it is packed; 0: that is not needed. */
static size_t unpacked_floats(const struct train_full *f, const struct optim *o)
{
    size_t most = 0;
    if (f->type == DT_F32 && dev_host_memory(o->d)) return 0;
    for (int i = 0; i < f->n_stacks; i++) {
        struct stack s;
        tensors_stack(&f->tensors, i, &s);
        size_t n = (size_t)s.rows * (size_t)s.cols;
        if (full_layers_of(f, i) >= 0 && s.n && n > most) most = n;
    }
    return most;
}

size_t full_layers_bytes(const struct train_full *f, const struct optim *o)
{
    return o->s.values ? dtype_bytes(f->type, o->s.layer) + unpacked_floats(f, o) * sizeof(float) : 0;
}

/* ---- layers that are gathered ------------------------------------------------------------------------------------ */

/* n values as ranks exchange them, which is as they are packed. */
static void shorten(enum dtype t, void *out, const float *v, size_t n)
{
    uint16_t *half = out;
    if (t == DT_F32) memcpy(out, v, n * sizeof *v);
    for (size_t i = 0; i < n && t == DT_BF16; i++) half[i] = f32_to_bf16(v[i]);
    for (size_t i = 0; i < n && t == DT_F16; i++) half[i] = f32_to_f16(v[i]);
}

static void lengthen(enum dtype t, float *out, const void *p, size_t n)
{
    const uint16_t *half = p;
    if (t == DT_F32) memcpy(out, p, n * sizeof *out);
    for (size_t i = 0; i < n && t == DT_BF16; i++) out[i] = bf16_to_f32(half[i]);
    for (size_t i = 0; i < n && t == DT_F16; i++) out[i] = f16_to_f32(half[i]);
}

/* This rank's slices of a unit, among what is gathered; values: (a unit) of the host, or NULL: f->values is there. */
static void put_own(struct train_full *f, const struct shard_unit *u, float *host)
{
    struct optim *o = f->o;
    size_t at = shards_part(&o->s, u, o->s.part), n = shards_part(&o->s, u, o->s.part + 1) - at;
    const float *from = f->values + u->own;
    if (host) chunked_download((struct op_chunks){o->d, o->gate, NULL}, host, from, n);
    shorten(f->type, f->gathered + dtype_bytes(f->type, u->layer_at + at), host ? host : from, n);
}

static bool is_of_layer(const struct optim *o, const struct shard_unit *u, int layer)
{
    return u->layer == layer && shards_by_layer(&o->s, u);
}

static void begin_layer(void *full, int layer)
{
    struct train_full *f = full;
    struct optim *o = f->o;
    scheduler_gate_settle(o->gate, o->d);
    for (size_t i = 0; i < o->s.n_units && o->staged && o->comm; i++) /* no comm: a dry run */
        if (is_of_layer(o, &o->s.unit[i], layer)) put_own(f, &o->s.unit[i], o->staged);
}

static void fetch_layer(void *full, int layer)
{
    struct train_full *f = full;
    struct optim *o = f->o;
    if (!o->exchanger) scheduler_gate_leave(o->gate); /* on the trainer's thread, which waits for the others */
    for (size_t i = 0; i < o->s.n_units; i++) {
        const struct shard_unit *u = &o->s.unit[i];
        size_t from[COMM_RANKS_MAX + 1];
        if (!is_of_layer(o, u, layer)) continue;
        if (!o->staged) put_own(f, u, NULL);
        for (int r = 0; r <= o->s.parts; r++) from[r] = dtype_bytes(f->type, shards_part(&o->s, u, r));
        if (o->comm) comm_gather_parts(o->comm, f->gathered + dtype_bytes(f->type, u->layer_at), from);
    }
}

/* The floats of a stack that was gathered. */
static const float *unpack(struct train_full *f, const struct stack *s, size_t at)
{
    enum { SOME = 1 << 19 };
    struct optim *o = f->o;
    const struct shard_unit *u = shards_at(&o->s, at);
    size_t n = (size_t)s->rows * (size_t)s->cols;
    const char *from = f->gathered + dtype_bytes(f->type, u->layer_at + (at - u->from));
    if (!f->unpacked) return (const float *)from;
    if (!o->staged) {
        lengthen(f->type, f->unpacked, from, n);
        return f->unpacked;
    }
    float *host = mem_array(SOME, sizeof *host);
    for (size_t i = 0, k; i < n; i += k) {
        k = n - i < SOME ? n - i : SOME;
        lengthen(f->type, host, from + dtype_bytes(f->type, i), k);
        chunked_upload((struct op_chunks){o->d, o->gate, NULL}, f->unpacked + i, host, k);
    }
    free(host);
    return f->unpacked;
}

static void install_layer(void *full, int layer)
{
    struct train_full *f = full;
    for (int i = 0; i < f->n_stacks; i++) {
        struct stack s;
        if (full_layers_of(f, i) != layer) continue;
        tensors_stack(&f->tensors, i, &s);
        if (!s.n) continue;
        train_full_pack(f->o, &s, *weights_stack_field(&f->w, &f->base->c, i), unpack(f, &s, f->stack_at[i]));
    }
}

int full_layers_reserve(struct train_full *f, struct err *e)
{
    struct optim *o = f->o;
    size_t unpacked = unpacked_floats(f, o);
    if (!o->s.values) return 0;
    f->gathered = mem_try_alloc(dtype_bytes(f->type, o->s.layer) + 1);
    if (unpacked) f->unpacked = o->d->ops->alloc(o->d, unpacked * sizeof *f->unpacked);
    f->gather = (struct layer_gather){.begin = begin_layer, .fetch = fetch_layer, .install = install_layer, .arg = f};
    layer_gather_open(&f->gather, o->exchanger);
    if (f->gathered && (f->unpacked || !unpacked)) return 0;
    return err_set(e, ERR_NOMEM, "no memory for the weights of a layer");
}

void full_layers_close(struct train_full *f)
{
    if (f->gathered) layer_gather_forget(&f->gather);
    if (f->unpacked) f->d->ops->free(f->d, f->unpacked);
    free(f->gathered);
    free(f->root);
}
