#include "engine/weights.h"

#include "engine/base/mem.h"
#include "engine/quantize.h"
#include "engine/weights_bnb.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- where each family keeps what ---- */

struct names {
    const char *prefix; /* before every name but the head's; some files leave it out */
    const char *embed, *pos, *norm, *layers;
    const char *norm1, *norm2, *q, *k, *v, *qkv, *o, *gate, *up, *down;
    bool transposed; /* GPT-2's Conv1D keeps [inputs][outputs] */
};

static const struct names llama_names = {
    .prefix = "model.",
    .embed = "embed_tokens.weight",
    .norm = "norm",
    .layers = "layers",
    .norm1 = "input_layernorm",
    .norm2 = "post_attention_layernorm",
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .o = "self_attn.o_proj",
    .gate = "mlp.gate_proj",
    .up = "mlp.up_proj",
    .down = "mlp.down_proj",
};
static const struct names phi_names = {
    .prefix = "model.",
    .embed = "embed_tokens.weight",
    .norm = "final_layernorm",
    .layers = "layers",
    .norm1 = "input_layernorm",
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .o = "self_attn.dense",
    .up = "mlp.fc1",
    .down = "mlp.fc2",
};
static const struct names gpt2_names = {
    .prefix = "transformer.",
    .embed = "wte.weight",
    .pos = "wpe.weight",
    .norm = "ln_f",
    .layers = "h",
    .norm1 = "ln_1",
    .norm2 = "ln_2",
    .qkv = "attn.c_attn",
    .o = "attn.c_proj",
    .up = "mlp.c_fc",
    .down = "mlp.c_proj",
    .transposed = true,
};

static const struct names *names_of(const struct model_config *c)
{
    return c->family == FAMILY_GPT2 ? &gpt2_names : c->family == FAMILY_PHI ? &phi_names : &llama_names;
}

enum { LAYER_SLOTS = 7 };

struct source {
    const struct safetensors *f;
    const struct model_config *c;
    const struct names *n;
    const char *prefix; /* n->prefix, or "" when the file leaves it out */
};

static struct source source_open(const struct safetensors *f, const struct model_config *c)
{
    struct source s = {f, c, names_of(c), names_of(c)->prefix};
    char norm[64];
    snprintf(norm, sizeof norm, "%s.weight", s.n->norm);
    if (safetensors_find(f, norm)) s.prefix = "";
    return s;
}

static void top_name(const struct source *s, const char *what, char out[TENSOR_NAME_MAX])
{
    snprintf(out, TENSOR_NAME_MAX, "%s%s", s->prefix, what);
}

/* "model.layers.3.self_attn.q_proj" + ".weight" */
static void layer_name(const struct source *s, int layer, const char *what, const char *suffix,
                       char out[TENSOR_NAME_MAX])
{
    char rest[TENSOR_NAME_MAX / 2];
    snprintf(rest, sizeof rest, "%s.%d.%s%s", s->n->layers, layer, what, suffix);
    top_name(s, rest, out);
}

/* Slot i of a layer, in the order q k v (or qkv) o gate up down.  False: the family has no such slot. */
static bool layer_slot(const struct source *s, int layer, int i, char name[TENSOR_NAME_MAX], struct matrix_slot *slot)
{
    const struct model_config *c = s->c;
    int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const struct {
        const char *what;
        int rows, cols;
    } all[LAYER_SLOTS] = {
        {s->n->qkv ? s->n->qkv : s->n->q, s->n->qkv ? q + 2 * kv : q, c->hidden},
        {s->n->k, kv, c->hidden},
        {s->n->v, kv, c->hidden},
        {s->n->o, c->hidden, q},
        {s->n->gate, c->inter, c->hidden},
        {s->n->up, c->inter, c->hidden},
        {s->n->down, c->hidden, c->inter},
    };
    if (!all[i].what) return false;
    layer_name(s, layer, all[i].what, ".weight", name);
    *slot = (struct matrix_slot){name, all[i].rows, all[i].cols, s->n->transposed, false};
    return true;
}

/* A tied table is stored once, under either name. */
static void embed_name(const struct source *s, char name[TENSOR_NAME_MAX])
{
    top_name(s, s->n->embed, name);
    bool as_head = s->c->tied && !safetensors_find(s->f, name) && safetensors_find(s->f, "lm_head.weight");
    if (as_head) snprintf(name, TENSOR_NAME_MAX, "lm_head.weight");
}

static void head_slot(const struct source *s, char name[TENSOR_NAME_MAX], struct matrix_slot *slot)
{
    /* a directory that tandem quantised has the quantised head beside a tied table */
    snprintf(name, TENSOR_NAME_MAX, "lm_head.weight");
    bool own = !s->c->tied || (s->c->quant[0] && safetensors_find(s->f, name));
    if (!own) embed_name(s, name);
    *slot = (struct matrix_slot){name, s->c->vocab, s->c->hidden, false, true};
}

int weights_each_matrix(const struct safetensors *f, const struct model_config *c,
                        int (*fn)(void *, const struct matrix_slot *), void *arg, struct err *e)
{
    struct source s = source_open(f, c);
    char name[TENSOR_NAME_MAX];
    struct matrix_slot slot;
    int rc = 0;
    for (int l = 0; l < c->layers && !rc; l++)
        for (int i = 0; i < LAYER_SLOTS && !rc; i++)
            if (layer_slot(&s, l, i, name, &slot)) rc = fn(arg, &slot);
    if (rc) return rc;
    head_slot(&s, name, &slot);
    return fn(arg, &slot);
}

void weights_embed_names(const struct safetensors *f, const struct model_config *c, char stored[TENSOR_NAME_MAX],
                         char usual[TENSOR_NAME_MAX])
{
    struct source s = source_open(f, c);
    embed_name(&s, stored);
    top_name(&s, s.n->embed, usual);
}

/* ---- one tensor ---- */

static int find_shaped(const struct safetensors *f, const char *name, int n_dims, int64_t d0, int64_t d1,
                       const struct st_tensor **out, struct err *e)
{
    const struct st_tensor *t = safetensors_find(f, name);
    if (!t) return err_set(e, ERR_NOT_FOUND, "tensor %s is missing", name);
    if (t->n_dims != n_dims || t->dims[0] != d0 || (n_dims > 1 && t->dims[1] != d1)) {
        if (n_dims == 1) return err_set(e, ERR_INVALID, "tensor %s: shape is not [%lld]", name, (long long)d0);
        return err_set(e, ERR_INVALID, "tensor %s: shape is not [%lld, %lld] as config.json says", name, (long long)d0,
                       (long long)d1);
    }
    *out = t;
    return 0;
}

/* What `tandem quantize` wrote: NAME as I8 [rows, cols] or U8 [rows, bytes], and NAME.scale. */
static int quantized_matrix(const struct safetensors *f, const struct matrix_slot *slot, const struct st_tensor *t,
                            struct weight_src *src, struct err *e)
{
    int64_t groups = (slot->cols + INT4_GROUP - 1) / INT4_GROUP, rows = slot->rows;
    bool int8 = t->type == ST_I8;
    const struct st_tensor *scale = NULL;
    char name[TENSOR_NAME_MAX + 8];
    snprintf(name, sizeof name, "%s.scale", slot->name);
    int rc = find_shaped(f, slot->name, 2, rows, int8 ? slot->cols : groups * INT4_GROUP / 2, &t, e);
    if (!rc) rc = find_shaped(f, name, 2, rows, int8 ? 1 : groups, &scale, e);
    if (rc) return rc;
    enum st_type scale_type = int8 ? ST_F32 : ST_F16;
    if (scale->type != scale_type || (uintptr_t)scale->data % (int8 ? 4 : 2))
        return err_set(e, ERR_INVALID, "tensor %s: not %s, or not aligned", name, st_type_name(scale_type));
    for (size_t i = 0; int8 && i < t->bytes; i++) /* symmetric: devices count on |w| <= 127 */
        if (((const int8_t *)t->data)[i] == -128)
            return err_set(e, ERR_INVALID, "tensor %s: value %zu is -128; int8 weights are -127 to 127", slot->name, i);
    *src = (struct weight_src){.t = int8 ? DT_I8 : DT_I4,
                               .rows = slot->rows,
                               .cols = slot->cols,
                               .group = int8 ? 0 : INT4_GROUP,
                               .data = t->data,
                               .scale = scale->data};
    return 0;
}

static void transpose(const char *in, char *out, size_t rows, size_t cols, size_t width)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t k = 0; k < cols; k++) memcpy(out + (r * cols + k) * width, in + (k * rows + r) * width, width);
}

int weights_matrix(const struct safetensors *f, const struct matrix_slot *slot, struct weight_src *src, void **owned,
                   struct err *e)
{
    *owned = NULL;
    if (bnb_is_quantized(f, slot->name)) return bnb_matrix(f, slot, src, owned, e);
    const struct st_tensor *t = safetensors_find(f, slot->name);
    if (t && (t->type == ST_I8 || t->type == ST_U8)) return quantized_matrix(f, slot, t, src, e);
    int64_t d0 = slot->transposed ? slot->cols : slot->rows, d1 = slot->transposed ? slot->rows : slot->cols;
    int rc = find_shaped(f, slot->name, 2, d0, d1, &t, e);
    if (rc) return rc;
    enum dtype type = st_float_type(t->type);
    if (type == DT_NONE)
        return err_set(e, ERR_UNSUPPORTED, "tensor %s: type %s is not F32, F16 or BF16", slot->name,
                       st_type_name(t->type));
    size_t width = dtype_bytes(type, 1);
    *src = (struct weight_src){.t = type, .rows = slot->rows, .cols = slot->cols, .data = t->data};
    if (!slot->transposed && (uintptr_t)t->data % width == 0) return 0;
    if (!(*owned = mem_try_alloc(t->bytes))) return err_set(e, ERR_NOMEM, "no memory for tensor %s", slot->name);
    if (slot->transposed)
        transpose(t->data, *owned, (size_t)slot->rows, (size_t)slot->cols, width);
    else
        memcpy(*owned, t->data, t->bytes);
    src->data = *owned;
    return 0;
}

/* ---- loading ---- */

struct loader {
    struct source s;
    struct weights *w;
    struct dev *d;
    enum dtype quantize;
    int threads;
    struct err *e;
};

/* a vector of n floats as f32 on the device */
static int load_vector(struct loader *l, const char *name, int n, float **out)
{
    const struct st_tensor *t = NULL;
    int rc = find_shaped(l->s.f, name, 1, n, 0, &t, l->e);
    if (rc) return rc;
    enum dtype type = st_float_type(t->type);
    if (type == DT_NONE)
        return err_set(l->e, ERR_UNSUPPORTED, "tensor %s: type %s is not F32, F16 or BF16", name,
                       st_type_name(t->type));
    float *host = mem_array((size_t)n, sizeof *host);
    for (int i = 0; i < n; i++) {
        uint16_t h = 0;
        if (type == DT_F32)
            memcpy(&host[i], (const char *)t->data + (size_t)i * 4, 4);
        else
            memcpy(&h, (const char *)t->data + (size_t)i * 2, 2),
                host[i] = type == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
    }
    *out = l->d->ops->alloc(l->d, (size_t)n * sizeof **out);
    if (*out) l->d->ops->upload(l->d, *out, host, (size_t)n * sizeof **out);
    free(host);
    l->w->parameters += (uint64_t)n;
    l->w->bytes += (size_t)n * 4;
    return *out ? 0 : err_set(l->e, ERR_NOMEM, "no memory on the device for %s", name);
}

static int layer_vector(struct loader *l, int layer, const char *what, const char *suffix, bool wanted, int n,
                        float **out)
{
    if (!wanted) return 0;
    char name[TENSOR_NAME_MAX];
    layer_name(&l->s, layer, what, suffix, name);
    return load_vector(l, name, n, out);
}

/* an embedding or position table, in the file's type */
static int load_table(struct loader *l, const char *name, int rows, int cols, struct mat *out, bool *mapped)
{
    const struct st_tensor *t = NULL;
    int rc = find_shaped(l->s.f, name, 2, rows, cols, &t, l->e);
    if (rc) return rc;
    enum dtype type = st_float_type(t->type);
    if (type == DT_NONE)
        return err_set(l->e, ERR_UNSUPPORTED, "tensor %s: type %s is not F32, F16 or BF16", name,
                       st_type_name(t->type));
    bool stay = l->d->ops->host_memory && (uintptr_t)t->data % 4 == 0; /* read where the file is mapped */
    void *p = stay ? (void *)t->data : l->d->ops->alloc(l->d, t->bytes);
    if (!p) return err_set(l->e, ERR_NOMEM, "no memory on the device for %s (%zu bytes)", name, t->bytes);
    if (!stay) l->d->ops->upload(l->d, p, t->data, t->bytes);
    *out = (struct mat){p, type, rows, cols, cols};
    *mapped = stay;
    l->w->parameters += (uint64_t)rows * (uint64_t)cols;
    l->w->bytes += t->bytes;
    return 0;
}

/* Packs n slots, stacked by rows, into one weight. */
static int load_matrix(struct loader *l, const struct matrix_slot *slots, int n, bool gate_up, struct weight **out)
{
    struct weight_src part[3] = {0};
    void *owned[3] = {0};
    const void *scale[3] = {0}; /* owned too */
    int rc = 0;
    for (int i = 0; i < n && !rc; i++) {
        rc = weights_matrix(l->s.f, &slots[i], &part[i], &owned[i], l->e);
        bool is_float = part[i].t == DT_F32 || part[i].t == DT_BF16 || part[i].t == DT_F16;
        /* the head is the matrix quality depends on most: int4 models keep it in int8 */
        enum dtype to = l->quantize == DT_I4 && slots[i].head ? DT_I8 : l->quantize;
        if (to == DT_NF4 && slots[i].head) to = DT_NONE; /* as bitsandbytes leaves it */
        if (!rc && to != DT_NONE && is_float) {
            struct weight_src q;
            rc = quantize_matrix(&part[i], to, l->threads, &q, l->e);
            if (rc)
                err_prefix(l->e, "tensor %s", slots[i].name);
            else
                free(owned[i]), part[i] = q, owned[i] = (void *)q.data, scale[i] = q.scale;
        }
    }
    if (!rc) rc = bnb_unify(part, n, owned, l->e);
    for (int i = 0; i < n && !rc; i++)
        if (part[i].t != part[0].t)
            rc = err_set(l->e, ERR_UNSUPPORTED, "tensors %s and %s have different types", slots[0].name, slots[i].name);
    for (int i = 0; i < n; i++) part[i].gate_up = gate_up;
    if (!rc && !(*out = l->d->ops->weight_pack(l->d, part, n)))
        rc = err_set(l->e, ERR_NOMEM, "no memory on the device for %s", slots[0].name);
    if (!rc) {
        l->w->bytes += l->d->ops->weight_bytes(*out);
        if (!slots[0].head) l->w->type = part[0].t;
    }
    for (int i = 0; i < n; i++) {
        if (!slots[i].head || !l->s.c->tied) l->w->parameters += (uint64_t)slots[i].rows * (uint64_t)slots[i].cols;
        free(owned[i]);
        free((void *)scale[i]);
    }
    return rc;
}

/* slots [from, to) of a layer as one weight */
static int load_slots(struct loader *l, int layer, int from, int to, struct weight **out)
{
    struct matrix_slot slot[3];
    char name[3][TENSOR_NAME_MAX];
    int n = 0;
    for (int i = from; i < to; i++) n += layer_slot(&l->s, layer, i, name[n], &slot[n]);
    return load_matrix(l, slot, n, from == 4 && n == 2, out); /* two in the fifth place: gate and up */
}

/* the biases of matrices that are stacked into one, stacked likewise */
static int load_stacked_bias(struct loader *l, int layer, const char *const *what, const int *len, int n, float **out)
{
    int total = 0, at = 0, rc = 0;
    for (int i = 0; i < n; i++) total += len[i];
    float *host = mem_array((size_t)total, sizeof *host);
    *out = l->d->ops->alloc(l->d, (size_t)total * sizeof *host);
    if (!*out) rc = err_set(l->e, ERR_NOMEM, "no memory on the device for biases");
    for (int i = 0; i < n && !rc; at += len[i++]) {
        float *part = NULL;
        rc = layer_vector(l, layer, what[i], ".bias", true, len[i], &part);
        if (!rc) l->d->ops->download(l->d, host + at, part, (size_t)len[i] * sizeof *host);
        if (part) l->d->ops->free(l->d, part);
    }
    if (!rc) l->d->ops->upload(l->d, *out, host, (size_t)total * sizeof *host);
    free(host);
    return rc;
}

static int load_biases(struct loader *l, int i, struct layer_weights *w)
{
    const struct model_config *c = l->s.c;
    const struct names *n = l->s.n;
    int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, rc = 0;
    if (c->qkv_bias && n->qkv)
        rc = layer_vector(l, i, n->qkv, ".bias", true, q + 2 * kv, &w->qkv_b);
    else if (c->qkv_bias)
        rc = load_stacked_bias(l, i, (const char *const[]){n->q, n->k, n->v}, (int[]){q, kv, kv}, 3, &w->qkv_b);
    if (!rc) rc = layer_vector(l, i, n->o, ".bias", c->o_bias, c->hidden, &w->o_b);
    if (!rc && c->mlp_bias && c->gated)
        rc = load_stacked_bias(l, i, (const char *const[]){n->gate, n->up}, (int[]){c->inter, c->inter}, 2, &w->up_b);
    else if (!rc)
        rc = layer_vector(l, i, n->up, ".bias", c->mlp_bias, c->inter, &w->up_b);
    if (!rc) rc = layer_vector(l, i, n->down, ".bias", c->mlp_bias, c->hidden, &w->down_b);
    return rc;
}

static int load_layer(struct loader *l, int i)
{
    const struct model_config *c = l->s.c;
    const struct names *n = l->s.n;
    struct layer_weights *w = &l->w->layer[i];
    int rc = load_slots(l, i, 0, 3, &w->qkv);
    if (!rc) rc = load_slots(l, i, 3, 4, &w->o);
    if (!rc) rc = load_slots(l, i, 4, 6, &w->up);
    if (!rc) rc = load_slots(l, i, 6, 7, &w->down);
    if (!rc) rc = load_biases(l, i, w);
    if (!rc) rc = layer_vector(l, i, n->norm1, ".weight", true, c->hidden, &w->norm1_w);
    if (!rc) rc = layer_vector(l, i, n->norm1, ".bias", c->norm_bias, c->hidden, &w->norm1_b);
    if (!rc && !c->parallel) rc = layer_vector(l, i, n->norm2, ".weight", true, c->hidden, &w->norm2_w);
    if (!rc && !c->parallel) rc = layer_vector(l, i, n->norm2, ".bias", c->norm_bias, c->hidden, &w->norm2_b);
    if (!rc) rc = layer_vector(l, i, "self_attn.q_norm", ".weight", c->qk_norm, c->head_dim, &w->q_norm);
    if (!rc) rc = layer_vector(l, i, "self_attn.k_norm", ".weight", c->qk_norm, c->head_dim, &w->k_norm);
    return rc;
}

static int load_rest(struct loader *l)
{
    const struct model_config *c = l->s.c;
    char name[TENSOR_NAME_MAX], norm[64];
    struct matrix_slot head;
    embed_name(&l->s, name);
    int rc = load_table(l, name, c->vocab, c->hidden, &l->w->embed, &l->w->embed_mapped);
    if (!rc && c->learned_pos) {
        top_name(&l->s, l->s.n->pos, name);
        rc = load_table(l, name, c->max_len, c->hidden, &l->w->pos, &l->w->pos_mapped);
    }
    snprintf(norm, sizeof norm, "%s.weight", l->s.n->norm);
    top_name(&l->s, norm, name);
    if (!rc) rc = load_vector(l, name, c->hidden, &l->w->norm_w);
    snprintf(norm, sizeof norm, "%s.bias", l->s.n->norm);
    top_name(&l->s, norm, name);
    if (!rc && c->norm_bias) rc = load_vector(l, name, c->hidden, &l->w->norm_b);
    if (!rc && c->head_bias) rc = load_vector(l, "lm_head.bias", c->vocab, &l->w->head_b);
    head_slot(&l->s, name, &head);
    if (!rc) rc = load_matrix(l, &head, 1, false, &l->w->head);
    return rc;
}

int weights_load(struct weights *w, struct dev *d, const struct model_config *c, const char *dir, enum dtype quantize,
                 int threads, struct err *e)
{
    *w = (struct weights){0};
    if (c->quant[0] && quantize != DT_NONE && strcmp(c->quant, dtype_name(quantize)))
        return err_set(e, ERR_INVALID, "%s is quantised to %s already; leave --quantize out", dir, c->quant);
    if (!(w->file = safetensors_open_dir(dir, e))) return e->code;
    w->layer = mem_array((size_t)c->layers, sizeof *w->layer);
    if (c->quant[0]) quantize = DT_NONE; /* what was left in floats was left so on purpose */
    struct loader l = {source_open(w->file, c), w, d, quantize, threads, e};
    int rc = load_rest(&l);
    for (int i = 0; i < c->layers && !rc; i++) rc = load_layer(&l, i);
    if (rc) weights_free(w, d, c);
    return rc;
}

void weights_free(struct weights *w, struct dev *d, const struct model_config *c)
{
    for (int i = 0; w->layer && i < c->layers; i++) {
        struct layer_weights *l = &w->layer[i];
        float *vectors[] = {l->norm1_w, l->norm1_b, l->norm2_w, l->norm2_b, l->qkv_b,
                            l->o_b,     l->q_norm,  l->k_norm,  l->up_b,    l->down_b};
        struct weight *matrices[] = {l->qkv, l->o, l->up, l->down};
        for (size_t k = 0; k < sizeof vectors / sizeof *vectors; k++)
            if (vectors[k]) d->ops->free(d, vectors[k]);
        for (size_t k = 0; k < sizeof matrices / sizeof *matrices; k++)
            if (matrices[k]) d->ops->weight_free(d, matrices[k]);
    }
    void *rest[] = {w->embed_mapped ? NULL : w->embed.p, w->pos_mapped ? NULL : w->pos.p, w->norm_w, w->norm_b,
                    w->head_b};
    for (size_t k = 0; k < sizeof rest / sizeof *rest; k++)
        if (rest[k]) d->ops->free(d, rest[k]);
    if (w->head) d->ops->weight_free(d, w->head);
    free(w->layer);
    safetensors_close(w->file);
    *w = (struct weights){0};
}
