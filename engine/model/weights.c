#include "engine/model/weights.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/model/calibrate.h"
#include "engine/model/quantize.h"
#include "engine/model/safetensors.h"
#include "engine/model/weights_bnb.h"

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
    return c->family->kind == FAMILY_GPT2 ? &gpt2_names : c->family->kind == FAMILY_PHI ? &phi_names : &llama_names;
}

struct source {
    const struct tensor_source *f;
    const struct model_config *c;
    const struct names *n;
    const char *prefix; /* n->prefix, or "" when the file leaves it out */
};

static struct source source_open(const struct tensor_source *f, const struct model_config *c)
{
    struct source s = {f, c, names_of(c), names_of(c)->prefix};
    char norm[64];
    snprintf(norm, sizeof norm, "%s.weight", s.n->norm);
    if (tensor_source_find(f, norm)) s.prefix = "";
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

/* A tied table is stored once, under either name. */
static void embed_name(const struct source *s, char name[TENSOR_NAME_MAX])
{
    top_name(s, s->n->embed, name);
    bool as_head = s->c->tied && !tensor_source_find(s->f, name) && tensor_source_find(s->f, "lm_head.weight");
    if (as_head) snprintf(name, TENSOR_NAME_MAX, "lm_head.weight");
}

/* Adds a tensor to the stack.  what NULL: the family has none. */
static void stack_add(struct stack *m, const struct source *s, int layer, const char *what, int rows, int cols)
{
    if (!what) return;
    struct matrix_slot *p = &m->part[m->n++];
    *p = (struct matrix_slot){.rows = rows, .cols = cols, .transposed = s->n->transposed};
    layer_name(s, layer, what, ".weight", p->name);
    m->rows += rows;
    m->cols = cols;
}

enum { STACK_QKV, STACK_O, STACK_UP, STACK_DOWN, LAYER_STACKS };

static void layer_stack(const struct source *s, int layer, int which, struct stack *m)
{
    static const char *const names[LAYER_STACKS] = {"qkv", "o", "up", "down"};
    const struct model_config *c = s->c;
    int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    *m = (struct stack){.product = layer * LAYER_STACKS + which};
    snprintf(m->name, sizeof m->name, "packed.layers.%d.%s", layer, names[which]);
    switch (which) {
    case STACK_QKV:
        stack_add(m, s, layer, s->n->qkv, q + 2 * kv, c->hidden);
        stack_add(m, s, layer, s->n->q, q, c->hidden);
        stack_add(m, s, layer, s->n->k, kv, c->hidden);
        stack_add(m, s, layer, s->n->v, kv, c->hidden);
        break;
    case STACK_O: stack_add(m, s, layer, s->n->o, c->hidden, q); break;
    case STACK_UP:
        stack_add(m, s, layer, s->n->gate, c->inter, c->hidden);
        stack_add(m, s, layer, s->n->up, c->inter, c->hidden);
        m->gate_up = c->gated;
        break;
    default: stack_add(m, s, layer, s->n->down, c->hidden, c->inter);
    }
}

static void head_stack(const struct source *s, struct stack *m)
{
    const struct model_config *c = s->c;
    *m = (struct stack){
        .name = "packed.head", .n = 1, .rows = c->vocab, .cols = c->hidden, .product = c->layers * LAYER_STACKS};
    m->part[0] = (struct matrix_slot){.name = "lm_head.weight", .rows = m->rows, .cols = m->cols, .head = true};
    /* early versions of tandem quantize wrote a head beside a tied float table */
    bool own = !c->tied || (c->quant[0] && tensor_source_find(s->f, m->part[0].name));
    if (!own) embed_name(s, m->part[0].name);
    m->part[0].table = !own;
}

static void embed_stack(const struct source *s, struct stack *m)
{
    *m = (struct stack){.name = "packed.embed", .n = 1, .rows = s->c->vocab, .cols = s->c->hidden, .product = -1};
    m->part[0] = (struct matrix_slot){.rows = m->rows, .cols = m->cols, .table = true};
    embed_name(s, m->part[0].name);
}

int weights_stacks(const struct model_config *c)
{
    return c->layers * LAYER_STACKS + (c->tied ? 1 : 2);
}

void weights_stack(const struct tensor_source *f, const struct model_config *c, int i, struct stack *out)
{
    struct source s = source_open(f, c);
    if (i < c->layers * LAYER_STACKS)
        layer_stack(&s, i / LAYER_STACKS, i % LAYER_STACKS, out);
    else if (i == c->layers * LAYER_STACKS)
        head_stack(&s, out);
    else
        embed_stack(&s, out);
}

struct vectors {
    struct source s;
    struct vector_slot *out;
    int n, layer;
};

static void vector_add(struct vectors *v, bool wanted, const char *what, const char *suffix, size_t field, int at,
                       int n)
{
    if (!wanted) return;
    struct vector_slot *o = v->out ? &v->out[v->n] : NULL;
    v->n++;
    if (!o) return;
    *o = (struct vector_slot){.layer = v->layer, .field = field, .at = at, .rows = 1, .cols = n};
    o->norm = strstr(what, "norm") || strncmp(what, "ln_", 3) == 0;
    o->norm = o->norm && strcmp(suffix, ".weight") == 0;
    char top[TENSOR_NAME_MAX / 2];
    snprintf(top, sizeof top, "%s%s", what, suffix);
    if (v->layer >= 0)
        layer_name(&v->s, v->layer, what, suffix, o->name);
    else
        top_name(&v->s, top, o->name);
}

static void layer_vectors(struct vectors *v)
{
    const struct model_config *c = v->s.c;
    const struct names *n = v->s.n;
    int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
#define FIELD(name) offsetof(struct layer_weights, name)
    vector_add(v, true, n->norm1, ".weight", FIELD(norm1_w), 0, c->hidden);
    vector_add(v, c->norm_bias, n->norm1, ".bias", FIELD(norm1_b), 0, c->hidden);
    vector_add(v, !c->parallel, n->norm2, ".weight", FIELD(norm2_w), 0, c->hidden);
    vector_add(v, !c->parallel && c->norm_bias, n->norm2, ".bias", FIELD(norm2_b), 0, c->hidden);
    vector_add(v, c->qkv_bias && n->qkv, n->qkv, ".bias", FIELD(qkv_b), 0, q + 2 * kv);
    vector_add(v, c->qkv_bias && !n->qkv, n->q, ".bias", FIELD(qkv_b), 0, q);
    vector_add(v, c->qkv_bias && !n->qkv, n->k, ".bias", FIELD(qkv_b), q, kv);
    vector_add(v, c->qkv_bias && !n->qkv, n->v, ".bias", FIELD(qkv_b), q + kv, kv);
    vector_add(v, c->o_bias, n->o, ".bias", FIELD(o_b), 0, c->hidden);
    vector_add(v, c->qk_norm, "self_attn.q_norm", ".weight", FIELD(q_norm), 0, c->head_dim);
    vector_add(v, c->qk_norm, "self_attn.k_norm", ".weight", FIELD(k_norm), 0, c->head_dim);
    vector_add(v, c->mlp_bias && c->gated, n->gate, ".bias", FIELD(up_b), 0, c->inter);
    vector_add(v, c->mlp_bias, n->up, ".bias", FIELD(up_b), c->gated ? c->inter : 0, c->inter);
    vector_add(v, c->mlp_bias, n->down, ".bias", FIELD(down_b), 0, c->hidden);
#undef FIELD
}

int weights_vectors(const struct tensor_source *f, const struct model_config *c, struct vector_slot *out)
{
    struct vectors v = {.s = source_open(f, c), .out = out};
    for (v.layer = 0; v.layer < c->layers; v.layer++) layer_vectors(&v);
    v.layer = -1;
    vector_add(&v, true, v.s.n->norm, ".weight", offsetof(struct weights, norm_w), 0, c->hidden);
    vector_add(&v, c->norm_bias, v.s.n->norm, ".bias", offsetof(struct weights, norm_b), 0, c->hidden);
    vector_add(&v, c->head_bias, "lm_head", ".bias", offsetof(struct weights, head_b), 0, c->vocab);
    if (out && c->head_bias) snprintf(out[v.n - 1].name, TENSOR_NAME_MAX, "lm_head.bias"); /* never prefixed */
    vector_add(&v, c->learned_pos, v.s.n->pos, "", offsetof(struct weights, pos), 0, c->hidden);
    if (out && c->learned_pos) out[v.n - 1].rows = c->max_len;
    return v.n;
}

void weights_describe(const struct stack *m, enum dtype t, int group, char out[DESCRIPTION_MAX])
{
    snprintf(out, DESCRIPTION_MAX, "%s %dx%d group %d%s", dtype_name(t), m->rows, m->cols, group,
             m->gate_up ? " gate_up" : "");
}

void weights_embed_names(const struct tensor_source *f, const struct model_config *c, char stored[TENSOR_NAME_MAX],
                         char usual[TENSOR_NAME_MAX])
{
    struct source s = source_open(f, c);
    embed_name(&s, stored);
    top_name(&s, s.n->embed, usual);
}

/* ---- one tensor ---- */

static int find_shaped(const struct tensor_source *f, const char *name, int n_dims, int64_t d0, int64_t d1,
                       const struct tensor **out, struct err *e)
{
    const struct tensor *t = tensor_source_find(f, name);
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
static int quantized_matrix(const struct tensor_source *f, const struct matrix_slot *slot, const struct tensor *t,
                            struct weight_src *src, struct err *e)
{
    int64_t groups = (slot->cols + INT4_GROUP - 1) / INT4_GROUP, rows = slot->rows;
    bool int8 = t->type == TENSOR_I8;
    const struct tensor *scale = NULL;
    char name[TENSOR_NAME_MAX + 8];
    snprintf(name, sizeof name, "%s.scale", slot->name);
    int rc = find_shaped(f, slot->name, 2, rows, int8 ? slot->cols : groups * INT4_GROUP / 2, &t, e);
    if (!rc) rc = find_shaped(f, name, 2, rows, int8 ? 1 : groups, &scale, e);
    if (rc) return rc;
    enum tensor_type scale_type = int8 ? TENSOR_F32 : TENSOR_F16;
    if (scale->type != scale_type || (uintptr_t)scale->data % (int8 ? 4 : 2))
        return err_set(e, ERR_INVALID, "tensor %s: not %s, or not aligned", name, tensor_type_name(scale_type));
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

int weights_matrix(const struct tensor_source *f, const struct matrix_slot *slot, struct weight_src *src, void **owned,
                   struct err *e)
{
    *owned = NULL;
    if (bnb_is_quantized(f, slot->name)) return bnb_matrix(f, slot, src, owned, e);
    const struct tensor *t = tensor_source_find(f, slot->name);
    if (t && (t->type == TENSOR_I8 || t->type == TENSOR_U8)) return quantized_matrix(f, slot, t, src, e);
    int64_t d0 = slot->transposed ? slot->cols : slot->rows, d1 = slot->transposed ? slot->rows : slot->cols;
    int rc = find_shaped(f, slot->name, 2, d0, d1, &t, e);
    if (rc) return rc;
    enum dtype type = tensor_float_type(t->type);
    if (type == DT_NONE)
        return err_set(e, ERR_UNSUPPORTED, "tensor %s: type %s is not F32, F16 or BF16", slot->name,
                       tensor_type_name(t->type));
    size_t width = dtype_bytes(type, 1);
    CHECK(width > 0);
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

static int read_part(const struct tensor_source *f, const struct matrix_slot *slot, const struct quantize_fit *fit,
                     int threads, struct weight_src *src, void *owned[2], struct err *e)
{
    int rc = weights_matrix(f, slot, src, &owned[0], e);
    bool is_float = src->t == DT_F32 || src->t == DT_BF16 || src->t == DT_F16;
    bool left = fit->type == DT_NONE || (fit->type == DT_NF4 && slot->head); /* as bitsandbytes leaves it */
    if (rc || left || !is_float) return rc;
    struct weight_src q;
    rc = quantize_matrix(src, fit, threads, &q, e);
    if (rc) return err_prefix(e, "tensor %s", slot->name);
    free(owned[0]);
    *src = q;
    owned[0] = (void *)q.data;
    owned[1] = (void *)q.scale;
    return 0;
}

int weights_parts(const struct tensor_source *f, const struct stack *m, const struct quantize_how *how, int threads,
                  struct parts *out, struct err *e)
{
    struct quantize_fit fit = {how->type, how->nearest, calibration_feedback(how->calibration, m->product)};
    int rc = 0;
    *out = (struct parts){0};
    for (int i = 0; i < m->n && !rc; i++) {
        rc = read_part(f, &m->part[i], &fit, threads, &out->src[i], out->owned[i], e);
        out->n = i + 1;
    }
    void *first[STACK_MAX];
    for (int i = 0; i < m->n; i++) first[i] = out->owned[i][0];
    if (!rc) rc = bnb_unify(out->src, m->n, first, e);
    for (int i = 0; i < m->n; i++) {
        out->owned[i][0] = first[i];
        out->src[i].gate_up = m->gate_up;
        if (!rc && out->src[i].t != out->src[0].t)
            rc =
                err_set(e, ERR_UNSUPPORTED, "tensors %s and %s have different types", m->part[0].name, m->part[i].name);
    }
    return rc;
}

void weights_parts_free(struct parts *p)
{
    for (int i = 0; i < p->n; i++) free(p->owned[i][0]), free(p->owned[i][1]);
    *p = (struct parts){0};
}

/* ---- loading ---- */

struct loader {
    struct source s;
    struct weights *w;
    struct dev *d;
    struct quantize_how quantize;
    bool packed; /* the file holds stacks in the device's own layout */
    int threads;
    struct err *e;
};

/* a vector of n floats as f32 on the device */
static int load_vector(struct loader *l, const char *name, int n, float **out)
{
    const struct tensor *t = NULL;
    int rc = find_shaped(l->s.f, name, 1, n, 0, &t, l->e);
    if (rc) return rc;
    if (tensor_float_type(t->type) == DT_NONE)
        return err_set(l->e, ERR_UNSUPPORTED, "tensor %s: type %s is not F32, F16 or BF16", name,
                       tensor_type_name(t->type));
    float *host = mem_array((size_t)n, sizeof *host);
    for (int i = 0; i < n; i++) host[i] = tensor_element(t, (size_t)i);
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
    const struct tensor *t = NULL;
    int rc = find_shaped(l->s.f, name, 2, rows, cols, &t, l->e);
    if (rc) return rc;
    enum dtype type = tensor_float_type(t->type);
    if (type == DT_NONE)
        return err_set(l->e, ERR_UNSUPPORTED, "tensor %s: type %s is not F32, F16 or BF16", name,
                       tensor_type_name(t->type));
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

/* The type and group that the file states of a packed stack; the rest of what it states has to be the stack's own. */
static int read_description(struct loader *l, const struct stack *m, struct weight_src *shape)
{
    const char *says = tensor_source_metadata(l->s.f, m->name);
    const char *group = says ? strstr(says, " group ") : NULL;
    char want[DESCRIPTION_MAX];
    *shape = (struct weight_src){.rows = m->rows, .cols = m->cols, .gate_up = m->gate_up};
    size_t len = says ? strcspn(says, " ") : 0;
    for (enum dtype t = DT_NONE + 1; t < DT_COUNT; t++)
        if (len && strncmp(says, dtype_name(t), len) == 0 && !dtype_name(t)[len]) shape->t = t;
    long n = group ? strtol(group + strlen(" group "), NULL, 10) : 0;
    shape->group = n > 0 && n <= INT16_MAX ? (int)n : 0;
    weights_describe(m, shape->t, shape->group, want);
    if (!says || strcmp(says, want))
        return err_set(l->e, ERR_INVALID, "tensor %s: the file says it is \"%.60s\", config.json makes it \"%s\"",
                       m->name, says ? says : "", want);
    return 0;
}

/* A weight over the mapped file. */
static int open_packed(struct loader *l, const struct stack *m, struct weight **out, enum dtype *type)
{
    struct weight_src shape;
    const struct tensor *t = tensor_source_find(l->s.f, m->name);
    if (!t) return err_set(l->e, ERR_NOT_FOUND, "tensor %s is missing", m->name);
    int rc = read_description(l, m, &shape);
    if (rc) return rc;
    if (t->type != TENSOR_U8 || (uintptr_t)t->data % PACKED_ALIGN)
        return err_set(l->e, ERR_INVALID, "tensor %s: not U8, or not aligned to %d bytes", m->name, PACKED_ALIGN);
    rc = tensor_source_populate(l->s.f, t, l->e);
    if (rc) return rc;
    if (!(*out = l->d->ops->weight_open(l->d, &shape, t->data, t->bytes)))
        return err_set(l->e, ERR_INVALID, "tensor %s: %zu bytes are not a packed %s matrix of %d x %d", m->name,
                       t->bytes, dtype_name(shape.t), m->rows, m->cols);
    *type = shape.t;
    return 0;
}

/* Why the device did not take the parts.  Int8 weights are -127 to 127: a file of our own that has others is damaged.
 */
static int not_packed(struct loader *l, const struct stack *m, const struct parts *p)
{
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

static int pack(struct loader *l, const struct stack *m, struct weight **out, enum dtype *type)
{
    struct parts p;
    int rc = weights_parts(l->s.f, m, &l->quantize, l->threads, &p, l->e);
    if (!rc && !(*out = l->d->ops->weight_pack(l->d, p.src, p.n))) rc = not_packed(l, m, &p);
    for (int i = 0; i < m->n; i++) { /* copied; but a tied table is still read where it is mapped */
        const struct tensor *t = tensor_source_find(l->s.f, m->part[i].name);
        if (t && t->data != l->w->embed.p) tensor_source_release(l->s.f, t);
    }
    *type = p.src[0].t;
    weights_parts_free(&p);
    return rc;
}

static int load_stack(struct loader *l, const struct stack *m, struct weight **out)
{
    enum dtype type = DT_NONE;
    const struct matrix_slot *p = &m->part[0];
    int rc = l->packed ? open_packed(l, m, out, &type) : pack(l, m, out, &type);
    if (rc) return rc;
    l->w->bytes += l->d->ops->weight_bytes(*out);
    if (!p->head && !p->table) l->w->type = type;
    bool counted = p->head && l->s.c->tied && l->w->embed.p; /* a tied float table */
    if (!counted) l->w->parameters += (uint64_t)m->rows * (uint64_t)m->cols;
    return 0;
}

static int load_layer_stack(struct loader *l, int layer, int which, struct weight **out)
{
    struct stack m;
    layer_stack(&l->s, layer, which, &m);
    return load_stack(l, &m, out);
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
    int rc = load_layer_stack(l, i, STACK_QKV, &w->qkv);
    if (!rc) rc = load_layer_stack(l, i, STACK_O, &w->o);
    if (!rc) rc = load_layer_stack(l, i, STACK_UP, &w->up);
    if (!rc) rc = load_layer_stack(l, i, STACK_DOWN, &w->down);
    if (!rc) rc = load_biases(l, i, w);
    if (!rc) rc = layer_vector(l, i, n->norm1, ".weight", true, c->hidden, &w->norm1_w);
    if (!rc) rc = layer_vector(l, i, n->norm1, ".bias", c->norm_bias, c->hidden, &w->norm1_b);
    if (!rc && !c->parallel) rc = layer_vector(l, i, n->norm2, ".weight", true, c->hidden, &w->norm2_w);
    if (!rc && !c->parallel) rc = layer_vector(l, i, n->norm2, ".bias", c->norm_bias, c->hidden, &w->norm2_b);
    if (!rc) rc = layer_vector(l, i, "self_attn.q_norm", ".weight", c->qk_norm, c->head_dim, &w->q_norm);
    if (!rc) rc = layer_vector(l, i, "self_attn.k_norm", ".weight", c->qk_norm, c->head_dim, &w->k_norm);
    return rc;
}

/* A float table stays as it is, beside the packed head.  A quantised one is a packed matrix too, the head itself when
 * they are tied. */
static int load_embed_and_head(struct loader *l)
{
    const struct model_config *c = l->s.c;
    struct stack head, embed;
    head_stack(&l->s, &head);
    embed_stack(&l->s, &embed);
    const char *name = embed.part[0].name;
    const struct tensor *t = tensor_source_find(l->s.f, name);
    bool quantized = l->packed ? !t
                               : (l->quantize.type != DT_NONE && l->quantize.type != DT_NF4) ||
                                     (t && (t->type == TENSOR_I8 || t->type == TENSOR_U8));
    int rc = quantized ? 0 : load_table(l, name, c->vocab, c->hidden, &l->w->embed, &l->w->embed_mapped);
    if (!rc) rc = load_stack(l, &head, &l->w->head);
    if (rc || !quantized) return rc;
    if (!head.part[0].table) return load_stack(l, &embed, &l->w->embed_w);
    l->w->embed_w = l->w->head;
    return 0;
}

static int load_rest(struct loader *l)
{
    const struct model_config *c = l->s.c;
    char name[TENSOR_NAME_MAX], norm[64];
    int rc = load_embed_and_head(l);
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
    return rc;
}

/* What of `tandem quantize` this is: *packed when its stacks can be used where the file is mapped. */
static int check_layout(const struct tensor_source *f, const struct dev *d, const char *dir, bool *packed,
                        struct err *e)
{
    const char *format = tensor_source_metadata(f, "format"), *version = tensor_source_metadata(f, "version"),
               *layout = tensor_source_metadata(f, "layout");
    *packed = false;
    if (!format || strcmp(format, "tandem")) return 0; /* "pt" and the like */
    if (!version || (strcmp(version, "1") && strcmp(version, WEIGHTS_VERSION)))
        return err_set(e, ERR_UNSUPPORTED, "%s: weights of version \"%.20s\"; this tandem reads 1 and " WEIGHTS_VERSION,
                       dir, version ? version : "");
    if (!layout || strcmp(layout, WEIGHTS_CANONICAL) == 0) return 0;
    *packed = d->ops->layout && strcmp(layout, d->ops->layout) == 0;
    if (*packed) return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "%s is packed as %.40s; device %s takes %s: quantise the original model again, with --layout "
                   "canonical for every device",
                   dir, layout, d->ops->name, d->ops->layout ? d->ops->layout : "no packed weights");
}

int weights_load(struct weights *w, struct dev *d, const struct model_config *c, const char *dir,
                 const struct quantize_how *quantize, bool verify, int threads, struct err *e)
{
    *w = (struct weights){0};
    struct quantize_how how = quantize ? *quantize : (struct quantize_how){.type = DT_NONE};
    if (c->quant[0] && how.type != DT_NONE && strcmp(c->quant, dtype_name((enum dtype)how.type)))
        return err_set(e, ERR_INVALID, "%s is quantised to %s already; leave --quantize out", dir, c->quant);
    if (!(w->file = safetensors_open_dir(dir, e))) return e->code;
    w->layer = mem_array((size_t)c->layers, sizeof *w->layer);
    if (c->quant[0]) how.type = DT_NONE; /* what was left in floats was left so on purpose */
    struct loader l = {source_open(w->file, c), w, d, how, false, threads, e};
    int rc = check_layout(w->file, d, dir, &l.packed, e);
    if (!rc && verify) {
        rc = tensor_source_verify(w->file, e);
        if (rc) err_prefix(e, "%s", dir);
    }
    if (!rc) rc = load_rest(&l);
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
    if (w->embed_w && w->embed_w != w->head) d->ops->weight_free(d, w->embed_w);
    if (w->head) d->ops->weight_free(d, w->head);
    free(w->layer);
    tensor_source_close(w->file);
    *w = (struct weights){0};
}
