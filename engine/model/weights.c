#include "engine/model/weights.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/model/gguf_source.h"
#include "engine/model/quantize.h"
#include "engine/model/shard.h"
#include "engine/model/weights_gguf.h"
#include "engine/model/weights_packed.h"
#include "engine/model/weights_read.h"

#include <stdlib.h>
#include <string.h>

/* ---- destinations ------------------------------------------------------------------------------------------------ */

struct weight **weights_stack_field(struct weights *w, const struct model_config *c, int i)
{
    int layer = i / LAYER_GEMMS;
    struct expert_stack x = tensors_expert_stack(c, i);
    if (x.layer >= 0) {
        struct layer_weights *l = &w->layer[x.layer];
        if (x.gemm == EXPERT_ROUTER) return &l->router;
        struct weight **expert = x.gemm == EXPERT_UP ? l->expert_up : l->expert_down;
        return expert ? &expert[x.expert] : NULL;
    }
    if (layer >= c->layers) return i == c->layers * LAYER_GEMMS && tensors_have_head(c) ? &w->head : NULL;
    struct layer_weights *l = &w->layer[layer];
    struct weight **places[LAYER_GEMMS] = {
        [GEMM_QKV] = &l->qkv, [GEMM_O] = &l->o, [GEMM_UP] = &l->up, [GEMM_DOWN] = &l->down};
    return places[i % LAYER_GEMMS];
}

float **weights_vector_field(struct weights *w, const struct vector_slot *v)
{
    return (float **)((v->layer < 0 ? (char *)w : (char *)&w->layer[v->layer]) + v->field);
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

struct loader {
    struct tensors t;
    struct weights *w;
    struct dev *d;
    struct quantize_how quantize;
    bool packed; /* the file has stacks in the device's layout */
    int threads;
    const struct shard *shard; /* NULL: all is loaded */
    const struct weights_taker *taker;
    struct err *e;
};

/* A vector as f32 into out. */
static int read_vector(struct loader *l, const struct vector_slot *v, float *out)
{
    const struct tensor *t = NULL;
    int rc = weights_find_floats(l->t.source, v->name, 1, v->cols, 0, &t, l->e);
    for (int i = 0; i < v->cols && !rc; i++) {
        size_t at = (size_t)(v->by_head ? tensors_stored_row(v->by_head, v->cols, i) : i);
        out[i] = v->minus_one ? 1 + tensor_element(t, at) : tensor_element(t, at);
    }
    return rc;
}

/* n vectors that form one array on the device */
static int load_vectors(struct loader *l, const struct vector_slot *v, int n)
{
    size_t total = 0;
    int rc = 0;
    for (int i = 0; i < n; i++) total += (size_t)v[i].cols;
    float *host = mem_array(total, sizeof *host), **out = weights_vector_field(l->w, v);
    CHECK(!*out); /* no two rows of a table have the same destination */
    for (int i = 0; i < n && !rc; i++) rc = read_vector(l, &v[i], host + v[i].at);
    l->w->parameters += total;
    if (!rc && l->shard) total = shard_vector(l->shard, v, host, total);
    if (!rc && !(*out = l->d->ops->alloc(l->d, total * sizeof *host)))
        rc = err_set(l->e, ERR_NOMEM, "no memory on the device for %s", v->name);
    if (!rc) l->d->ops->upload(l->d, *out, host, total * sizeof *host);
    free(host);
    l->w->bytes += total * sizeof *host;
    return rc;
}

static bool is_blocks(const struct tensor *t)
{
    return t && t->form && t->form->blocks >= 0;
}

/* A table of quantised blocks: as floats. */
static int load_dequantised(struct loader *l, const char *name, const struct tensor *t, struct mat *out)
{
    size_t n = (size_t)t->dims[0] * (size_t)t->dims[1];
    float *host = gguf_floats(t);
    void *p = host ? l->d->ops->alloc(l->d, n * sizeof *host) : NULL;
    if (p) l->d->ops->upload(l->d, p, host, n * sizeof *host);
    free(host);
    if (!p) return err_set(l->e, ERR_NOMEM, "no memory on the device for %s (%zu floats)", name, n);
    *out = (struct mat){p, DT_F32, (int)t->dims[0], (int)t->dims[1], (int)t->dims[1]};
    l->w->parameters += n;
    l->w->bytes += n * sizeof *host;
    return 0;
}

/* an embedding or position table, kept in the file's type */
static int load_table(struct loader *l, const char *name, int rows, int cols, struct mat *out, bool *mapped)
{
    const struct tensor *t = NULL;
    int rc = weights_find(l->t.source, name, 2, rows, cols, &t, l->e);
    if (!rc && is_blocks(t)) return load_dequantised(l, name, t, out);
    if (!rc) rc = weights_find_floats(l->t.source, name, 2, rows, cols, &t, l->e);
    if (rc) return rc;
    bool stay = l->d->ops->host_memory && (uintptr_t)t->data % 4 == 0; /* used in place in the mapped file */
    void *p = stay ? (void *)t->data : l->d->ops->alloc(l->d, t->bytes);
    if (!p) return err_set(l->e, ERR_NOMEM, "no memory on the device for %s (%zu bytes)", name, t->bytes);
    if (!stay) l->d->ops->upload(l->d, p, t->data, t->bytes);
    *out = (struct mat){p, tensor_float_type(t->type), rows, cols, cols};
    *mapped = stay;
    l->w->parameters += (uint64_t)rows * (uint64_t)cols;
    l->w->bytes += t->bytes;
    return 0;
}

static bool is_here(const struct loader *l, int layer)
{
    return layer < 0 ? shard_has_ends(l->shard) : shard_has_layer(l->shard, layer);
}

static int load_all_vectors(struct loader *l)
{
    int total = tensors_vectors(&l->t, NULL), rc = 0;
    struct vector_slot *v = mem_array((size_t)total, sizeof *v);
    tensors_vectors(&l->t, v);
    for (int i = 0, n; i < total && !rc; i += n) {
        for (n = 1; i + n < total && v[i + n].at;) n++;
        if (!is_here(l, v[i].layer)) {
            for (int k = i; k < i + n; k++)
                l->w->parameters += (uint64_t)v[k].cols * (v[k].table ? (uint64_t)v[k].rows : 1);
            continue;
        }
        bool types = v[i].field == offsetof(struct weights, types);
        if (v[i].table)
            rc = load_table(l, v[i].name, v[i].rows, v[i].cols, types ? &l->w->types : &l->w->pos,
                            types ? &l->w->types_mapped : &l->w->pos_mapped);
        else
            rc = load_vectors(l, &v[i], n);
    }
    free(v);
    return rc;
}

/* Sets the error after the device rejected the parts; the device may say why.  Int8 weights are -127 to 127; a file
 * written by tandem with others is damaged. */
static int not_packed(struct loader *l, const struct stack *m, const struct parts *p)
{
    if (l->d->error.op) return err_set(l->e, ERR_UNSUPPORTED, "tensor %s: %s", m->part[0].name, l->d->error.msg);
    for (int i = 0; i < p->n; i++) {
        const int8_t *q = p->src[i].data;
        size_t n = p->src[i].t == DT_I8 ? (size_t)p->src[i].rows * (size_t)p->src[i].cols : 0;
        for (size_t k = 0; k < n; k++)
            if (q[k] == -128)
                return err_set(l->e, ERR_INVALID, "tensor %s: value %zu is -128; int8 weights are -127 to 127",
                               m->part[i].name, k);
    }
    return err_set(l->e, ERR_NOMEM, "no memory on the device for %s", m->part[0].name);
}

static int pack(struct loader *l, const struct stack *m, int index, struct weight **out, struct weight_src *shape)
{
    struct parts p;
    struct shard_piece piece[SHARD_PIECES];
    int pieces = l->shard ? shard_stack_pieces(l->shard, index, piece) : 0;
    int rc = weights_parts(&l->t, m, &l->quantize, l->threads, &p, l->e);
    if (!rc && !(*out = weights_pack_pieces(l->d, &p, piece, pieces))) rc = not_packed(l, m, &p);
    for (int i = 0; i < m->n; i++) { /* they were copied, but a tied table is still used in the mapped file */
        const struct tensor *t = tensor_source_find(l->t.source, m->part[i].name);
        if (t && t->data != l->w->embed.p) tensor_source_release(l->t.source, t);
    }
    *shape = (struct weight_src){
        .t = p.src[0].t, .rows = m->rows, .cols = m->cols, .group = p.src[0].group, .gate_up = m->gate_up};
    weights_parts_free(&p);
    return rc;
}

static int take(struct loader *l, int index, const struct weight_src *shape, struct weight **out)
{
    const struct model_config *c = l->t.c;
    int gemms = c->layers * LAYER_GEMMS,
        layer = index < gemms ? index / LAYER_GEMMS : tensors_expert_stack(c, index).layer;
    struct weights_taken t = {index, layer, *shape};
    return l->taker->take(l->taker->arg, l->d, &t, out, l->e);
}

/* index: the stack's number, tensors.h; *bytes: its size */
static int load_stack(struct loader *l, const struct stack *m, int index, struct weight **out, size_t *bytes)
{
    struct weight_src shape = {0};
    const struct matrix_slot *p = &m->part[0];
    int rc = l->packed && !m->floats ? weights_packed_open(l->t.source, l->d, m, out, &shape, l->e)
                                     : pack(l, m, index, out, &shape);
    if (rc) return rc;
    *bytes = l->d->ops->weight_bytes(*out);
    if (l->taker && !p->table) rc = take(l, index, &shape, out);
    if (rc) return rc;
    if (*out)
        l->w->bytes += *bytes;
    else if (l->packed && !m->floats)
        tensor_source_release(l->t.source, tensor_source_find(l->t.source, m->name));
    if (!p->head && !p->table && !m->floats) l->w->type = shape.t;
    bool counted = p->head && l->t.c->tied && l->w->embed.p; /* a tied float table */
    if (!counted) l->w->parameters += (uint64_t)m->rows * (uint64_t)m->cols;
    return 0;
}

/* A float table is kept as is, besides the packed head.  A quantised table is a packed matrix as well, the same as the
 * head when they are tied. */
static int load_embed_and_head(struct loader *l)
{
    const struct model_config *c = l->t.c;
    struct stack head = {0}, embed;
    bool has_head = tensors_have_head(c);
    char name[TENSOR_NAME_MAX], usual[TENSOR_NAME_MAX];
    size_t bytes;
    int number = c->layers * LAYER_GEMMS;
    if (has_head) tensors_stack(&l->t, number, &head);
    tensors_embed_names(&l->t, name, usual);
    const struct tensor *t = tensor_source_find(l->t.source, name);
    bool quantized = l->packed
                         ? !t
                         : (l->quantize.type != DT_NONE && l->quantize.type != DT_NF4) ||
                               (t && (t->type == TENSOR_I8 || t->type == TENSOR_U8 || t->type == TENSOR_F8_E4M3)) ||
                               is_blocks(t);
    if (!shard_has_ends(l->shard)) return 0;
    int rc = quantized ? 0 : load_table(l, name, c->vocab, c->hidden, &l->w->embed, &l->w->embed_mapped);
    if (!rc && has_head) rc = load_stack(l, &head, number, &l->w->head, &bytes);
    if (rc || !quantized) return rc;
    if (head.part[0].table) {
        l->w->embed_w = l->w->head;
        return 0;
    }
    tensors_stack(&l->t, number + has_head, &embed);
    return load_stack(l, &embed, number + has_head, &l->w->embed_w, &bytes);
}

static enum dtype float_type_of(const struct tensors *t)
{
    char name[TENSOR_NAME_MAX];
    tensors_norm_name(t, name);
    const struct tensor *norm = tensor_source_find(t->source, name);
    return norm ? tensor_float_type(norm->type) : DT_NONE;
}

/* What the first expert of a layer has. */
struct alike {
    enum dtype type;
    size_t bytes;
};

/* The ops of experts take weights of one type. */
static int check_alike(struct loader *l, const struct stack *m, size_t bytes, const struct alike *first)
{
    if (l->w->type == first->type && bytes == first->bytes) return 0;
    return err_set(l->e, ERR_UNSUPPORTED, "tensor %s: not of the type of the layer's other experts", m->part[0].name);
}

/* Every stack but the head's and the embedding table's. */
static int load_layers(struct loader *l)
{
    const struct model_config *c = l->t.c;
    int rc = 0;
    struct alike first[] = {[EXPERT_UP] = {DT_NONE, 0}, [EXPERT_DOWN] = {DT_NONE, 0}};
    for (int i = 0; i < c->layers; i++) {
        int experts = model_block(c, i)->experts.count;
        if (!experts) continue;
        l->w->layer[i].expert_up = mem_array((size_t)experts, sizeof *l->w->layer->expert_up);
        l->w->layer[i].expert_down = mem_array((size_t)experts, sizeof *l->w->layer->expert_down);
    }
    for (int i = 0; i < tensors_stacks(c) && !rc; i++) {
        struct stack m;
        struct expert_stack x = tensors_expert_stack(c, i);
        size_t bytes = 0;
        if (i >= c->layers * LAYER_GEMMS && x.layer < 0) continue;
        tensors_stack(&l->t, i, &m);
        if (!is_here(l, x.layer >= 0 ? x.layer : i / LAYER_GEMMS)) {
            l->w->parameters += m.n ? (uint64_t)m.rows * (uint64_t)m.cols : 0;
            continue;
        }
        if (m.n) rc = load_stack(l, &m, i, weights_stack_field(l->w, c, i), &bytes);
        if (rc || !m.n || x.layer < 0 || x.gemm == EXPERT_ROUTER) continue;
        if (x.expert == 0) first[x.gemm] = (struct alike){l->w->type, bytes};
        rc = check_alike(l, &m, bytes, &first[x.gemm]);
    }
    return rc;
}

int weights_load(struct weights *w, struct dev *d, const struct model_config *c, const char *dir,
                 const struct quantize_how *quantize, bool verify, int threads, const struct shard *shard,
                 const struct weights_taker *taker, struct err *e)
{
    *w = (struct weights){0};
    struct quantize_how how = quantize ? *quantize : (struct quantize_how){.type = DT_NONE};
    if (c->quant.name[0] && how.type != DT_NONE && strcmp(c->quant.name, dtype_name((enum dtype)how.type)))
        return err_set(e, ERR_INVALID, "%s is quantised to %s already; leave --quantize out", dir, c->quant.name);
    if (!(w->file = model_source_open(dir, c, e))) return e->code;
    w->layer = mem_array((size_t)c->layers, sizeof *w->layer);
    if (c->quant.name[0]) how.type = DT_NONE; /* a quantised directory keeps matrices as floats on purpose */
    struct loader l = {tensors_of(c, w->file), w, d, how, false, threads, shard, taker, e};
    int rc = weights_packed_check(w->file, d, dir, &l.packed, e);
    if (!rc && shard_by_outputs(shard) && l.packed)
        rc =
            err_set(e, ERR_UNSUPPORTED,
                    "%s is in the layout of one processor and cannot be divided over ranks: name the model that it was "
                    "made of, with --quantize",
                    dir);
    if (!rc && verify) {
        rc = tensor_source_verify(w->file, e);
        if (rc) err_prefix(e, "%s", dir);
    }
    if (!rc) rc = load_embed_and_head(&l);
    if (!rc) rc = load_all_vectors(&l);
    if (!rc) w->float_type = float_type_of(&l.t);
    rc = rc ? rc : load_layers(&l);
    if (rc) weights_free(w, d, c);
    return rc;
}

static void free_vectors(struct weights *w, struct dev *d, const struct model_config *c)
{
    struct tensors t = tensors_of(c, NULL);
    int n = tensors_vectors(&t, NULL);
    struct vector_slot *v = mem_array((size_t)n, sizeof *v);
    tensors_vectors(&t, v);
    for (int i = 0; i < n; i++) {
        if (v[i].at || v[i].table) continue;
        float *p = *weights_vector_field(w, &v[i]);
        if (p) d->ops->free(d, p);
    }
    free(v);
}

void weights_free(struct weights *w, struct dev *d, const struct model_config *c)
{
    if (w->layer) free_vectors(w, d, c);
    for (int i = 0; w->layer && i < tensors_stacks(c); i++) {
        struct weight **m = weights_stack_field(w, c, i);
        if (m && *m && m != &w->head) d->ops->weight_free(d, *m);
    }
    for (int i = 0; w->layer && i < c->layers; i++) free(w->layer[i].expert_up), free(w->layer[i].expert_down);
    if (w->embed.p && !w->embed_mapped) d->ops->free(d, w->embed.p);
    if (w->pos.p && !w->pos_mapped) d->ops->free(d, w->pos.p);
    if (w->types.p && !w->types_mapped) d->ops->free(d, w->types.p);
    if (w->embed_w && w->embed_w != w->head) d->ops->weight_free(d, w->embed_w);
    if (w->head) d->ops->weight_free(d, w->head);
    free(w->layer);
    tensor_source_close(w->file);
    *w = (struct weights){0};
}
