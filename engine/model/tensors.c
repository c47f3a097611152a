#include "engine/model/tensors.h"

#include "engine/base/check.h"
#include "engine/model/family.h"
#include "engine/model/weights.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* ---- parts ------------------------------------------------------------------------------------------------------- */

enum size {
    SIZE_1,
    SIZE_C,
    SIZE_H,
    SIZE_Q_NORM,
    SIZE_K_NORM,
    SIZE_Q,
    SIZE_KV,
    SIZE_QKV,
    SIZE_F,
    SIZE_2F,
    SIZE_FE,
    SIZE_E,
    SIZE_V,
    SIZE_POSITIONS,
    SIZE_TYPES
};

enum kind { LAYER_VECTOR, LAYER_MATRIX, EXPERT_MATRIX, MODEL_VECTOR, MODEL_MATRIX };

#define LAYER(field) offsetof(struct layer_weights, field)
#define MODEL(field) offsetof(struct weights, field)
#define NO_BIAS SIZE_MAX

/* weight: the field of the vector (for matrices: the number of the GEMM); bias: the field of the bias added to its
 * outputs. */
static const struct part {
    enum kind kind;
    enum size rows, cols;
    int gemm; /* of enum layer_gemm, or of enum expert_gemm */
    size_t weight, bias;
} parts[TENSOR_PARTS] = {
    [PART_NORM1] = {LAYER_VECTOR, SIZE_1, SIZE_C, 0, LAYER(norm1_w), LAYER(norm1_b)},
    [PART_NORM2] = {LAYER_VECTOR, SIZE_1, SIZE_C, 0, LAYER(norm2_w), LAYER(norm2_b)},
    [PART_POST1] = {LAYER_VECTOR, SIZE_1, SIZE_C, 0, LAYER(post1_w), LAYER(post1_b)},
    [PART_POST2] = {LAYER_VECTOR, SIZE_1, SIZE_C, 0, LAYER(post2_w), LAYER(post2_b)},
    [PART_Q_NORM] = {LAYER_VECTOR, SIZE_1, SIZE_Q_NORM, 0, LAYER(q_norm), LAYER(q_norm_b)},
    [PART_K_NORM] = {LAYER_VECTOR, SIZE_1, SIZE_K_NORM, 0, LAYER(k_norm), LAYER(k_norm_b)},
    [PART_SINKS] = {LAYER_VECTOR, SIZE_1, SIZE_H, 0, LAYER(sinks), NO_BIAS},
    [PART_QKV] = {LAYER_MATRIX, SIZE_QKV, SIZE_C, GEMM_QKV, 0, LAYER(qkv_b)},
    [PART_Q] = {LAYER_MATRIX, SIZE_Q, SIZE_C, GEMM_QKV, 0, LAYER(qkv_b)},
    [PART_K] = {LAYER_MATRIX, SIZE_KV, SIZE_C, GEMM_QKV, 0, LAYER(qkv_b)},
    [PART_V] = {LAYER_MATRIX, SIZE_KV, SIZE_C, GEMM_QKV, 0, LAYER(qkv_b)},
    [PART_O] = {LAYER_MATRIX, SIZE_C, SIZE_Q, GEMM_O, 0, LAYER(o_b)},
    [PART_GATE] = {LAYER_MATRIX, SIZE_F, SIZE_C, GEMM_UP, 0, LAYER(up_b)},
    [PART_UP] = {LAYER_MATRIX, SIZE_F, SIZE_C, GEMM_UP, 0, LAYER(up_b)},
    [PART_GATE_UP] = {LAYER_MATRIX, SIZE_2F, SIZE_C, GEMM_UP, 0, LAYER(up_b)},
    [PART_DOWN] = {LAYER_MATRIX, SIZE_C, SIZE_F, GEMM_DOWN, 0, LAYER(down_b)},
    [PART_ROUTER] = {EXPERT_MATRIX, SIZE_E, SIZE_C, EXPERT_ROUTER, 0, LAYER(router_b)},
    [PART_SHARED_GATE] = {EXPERT_MATRIX, SIZE_1, SIZE_C, EXPERT_ROUTER, 0, NO_BIAS},
    [PART_EXPERT_GATE] = {EXPERT_MATRIX, SIZE_FE, SIZE_C, EXPERT_UP, 0, LAYER(expert_up_b)},
    [PART_EXPERT_UP] = {EXPERT_MATRIX, SIZE_FE, SIZE_C, EXPERT_UP, 0, LAYER(expert_up_b)},
    [PART_EXPERT_DOWN] = {EXPERT_MATRIX, SIZE_C, SIZE_FE, EXPERT_DOWN, 0, LAYER(expert_down_b)},
    [PART_NORM] = {MODEL_VECTOR, SIZE_1, SIZE_C, 0, MODEL(norm_w), MODEL(norm_b)},
    [PART_EMBED] = {MODEL_MATRIX, SIZE_V, SIZE_C, 0, 0, NO_BIAS},
    [PART_HEAD] = {MODEL_MATRIX, SIZE_V, SIZE_C, 0, 0, MODEL(head_b)},
    [PART_POS] = {MODEL_VECTOR, SIZE_POSITIONS, SIZE_C, 0, MODEL(pos), NO_BIAS},
    [PART_TYPES] = {MODEL_VECTOR, SIZE_TYPES, SIZE_C, 0, MODEL(types), NO_BIAS},
    [PART_EMBED_NORM] = {MODEL_VECTOR, SIZE_1, SIZE_C, 0, MODEL(embed_norm_w), MODEL(embed_norm_b)},
};

/* layer -1: of the model. */
static int size_of(const struct model_config *c, int layer, enum size s)
{
    int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const struct block *b = layer < 0 ? NULL : model_block(c, layer);
    switch (s) {
    case SIZE_1: return 1;
    case SIZE_C: return c->hidden;
    case SIZE_H: return c->heads;
    case SIZE_Q_NORM: return model_block(c, 0)->qk_norm == QK_NORM_WHOLE ? q : c->head_dim;
    case SIZE_K_NORM: return model_block(c, 0)->qk_norm == QK_NORM_WHOLE ? kv : c->head_dim;
    case SIZE_Q: return q;
    case SIZE_KV: return kv;
    case SIZE_QKV: return q + 2 * kv;
    case SIZE_F: return b ? b->inter : 0;
    case SIZE_2F: return b ? 2 * b->inter : 0;
    case SIZE_FE: return b ? b->experts.inter : 0;
    case SIZE_E: return b ? b->experts.count : 0;
    case SIZE_V: return c->vocab;
    case SIZE_POSITIONS: return c->first_pos + c->max_len;
    case SIZE_TYPES: return c->types;
    }
    return 0;
}

static bool present(const struct model_config *c, int layer, enum tensor_when when)
{
    const struct block *b = model_block(c, layer < 0 ? 0 : layer);
    switch (when) {
    case TENSOR_NEVER: return false;
    case TENSOR_ALWAYS: return true;
    case TENSOR_IF_QKV_BIAS: return c->qkv_bias;
    case TENSOR_IF_O_BIAS: return c->o_bias;
    case TENSOR_IF_MLP_BIAS: return c->mlp_bias;
    case TENSOR_IF_NORM_BIAS: return c->norm_bias;
    case TENSOR_IF_TYPES: return c->types > 0;
    case TENSOR_IF_QK_NORM: return b->qk_norm;
    case TENSOR_IF_NORM2: return b->norms != NORMS_PARALLEL;
    case TENSOR_IF_DENSE: return b->experts.count == 0;
    case TENSOR_IF_EXPERTS: return b->experts.count > 0;
    case TENSOR_IF_SHARED: return b->experts.count > 0 && b->inter > 0;
    }
    return false;
}

bool tensors_row_present(const struct model_config *c, int layer, const struct tensor_row *row)
{
    return present(c, layer, row->weight);
}

static const struct tensor_table *table_of(const struct model_config *c)
{
    return c->family->tensors;
}

/* The family's row of a part; NULL: none. */
static const struct tensor_row *row_of(const struct model_config *c, enum tensor_part part)
{
    for (const struct tensor_row *r = table_of(c)->row; r->module; r++)
        if (r->part == part) return r;
    return NULL;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static const char *const weight = ".weight", *const bias = ".bias";

static bool stored(const struct tensors *t, const char *name)
{
    return t->source && tensor_source_find(t->source, name);
}

static void name_with(const struct tensors *t, const struct tensor_row *r, int layer, const char *suffix,
                      char out[TENSOR_NAME_MAX]);

/* A row of an expert's or a head's module, with its number in the place of %d. */
struct expert_row {
    struct tensor_row row; /* its module is the one below */
    char module[TENSOR_MODULE_MAX];
};

static const struct tensor_row *expert_row(struct expert_row *x, const struct tensor_row *r, int expert)
{
    tensors_expert_module(r->module, expert, x->module);
    x->row = *r;
    x->row.module = x->module;
    return &x->row;
}

/* The first BERT checkpoints call the weight and the bias of a norm gamma and beta; transformers 5 calls every head
 * HEAD_NAME, and the first files of models that also take images have language_model before it. */
static void name_of(const struct tensors *t, const struct tensor_row *r, int layer, const char *suffix,
                    char out[TENSOR_NAME_MAX])
{
    char old[TENSOR_NAME_MAX];
    name_with(t, r, layer, suffix, out);
    if (stored(t, out) || (!t->c->encoder && r->part != PART_HEAD)) return;
    if (r->part == PART_HEAD)
        snprintf(old, sizeof old, "%s" HEAD_NAME "%s", t->c->with_images ? "language_model." : "", suffix);
    else
        name_with(t, r, layer, suffix == weight ? ".gamma" : ".beta", old);
    if (stored(t, old)) memcpy(out, old, sizeof old);
}

static void name_with(const struct tensors *t, const struct tensor_row *r, int layer, const char *suffix,
                      char out[TENSOR_NAME_MAX])
{
    const char *prefix = r->flags & TENSOR_BARE ? "" : t->prefix;
    if (r->flags & TENSOR_BARE_END) suffix = "";
    if (layer >= 0)
        snprintf(out, TENSOR_NAME_MAX, "%s%s.%d.%s%s", prefix, table_of(t->c)->layers, layer, r->module, suffix);
    else
        snprintf(out, TENSOR_NAME_MAX, "%s%s%s", prefix, r->module, suffix);
}

/* The norm that every model of the family has: the final one, or that of the embeddings. */
static const struct tensor_row *norm_row(const struct model_config *c)
{
    const struct tensor_row *norm = row_of(c, PART_NORM);
    if (!norm) norm = row_of(c, PART_EMBED_NORM);
    CHECK(norm);
    return norm;
}

/* The source's prefix is the one with which it has that norm. */
static const char *prefix_of(const struct tensors *t)
{
    const struct tensor_row *norm = norm_row(t->c);
    for (int i = 0; t->source && i < TENSOR_PREFIXES && t->table->prefix[i]; i++) {
        char name[TENSOR_NAME_MAX];
        struct tensors other = *t;
        other.prefix = t->table->prefix[i];
        name_of(&other, norm, -1, weight, name);
        if (tensor_source_find(t->source, name)) return other.prefix;
    }
    return t->prefix;
}

/* Whether the source has the first layer's router under the name that the table has for it. */
static bool has_router(const struct tensors *t)
{
    char name[TENSOR_NAME_MAX];
    for (const struct tensor_row *r = t->table->row; r->module; r++) {
        if (r->part != PART_ROUTER) continue;
        name_of(t, r, 0, weight, name);
        return stored(t, name);
    }
    return false;
}

struct tensors tensors_of(const struct model_config *c, const struct tensor_source *source)
{
    const struct tensor_table *table = table_of(c);
    struct tensors t = {c, source, c->with_images ? IMAGES_PREFIX : table->prefix[0], table};
    t.prefix = prefix_of(&t);
    struct tensors renamed = t;
    renamed.table = table->renamed;
    return table->renamed && has_router(&renamed) ? renamed : t;
}

bool tensors_have_head(const struct model_config *c)
{
    return row_of(c, PART_HEAD) && !c->classifier;
}

void tensors_head_name(const struct tensors *t, char out[TENSOR_NAME_MAX])
{
    name_of(t, row_of(t->c, PART_HEAD), -1, weight, out);
}

/* A tied table is stored once, under either name. */
static void embed_name(const struct tensors *t, char out[TENSOR_NAME_MAX])
{
    char head[TENSOR_NAME_MAX];
    name_of(t, row_of(t->c, PART_EMBED), -1, weight, out);
    if (!tensors_have_head(t->c)) return;
    tensors_head_name(t, head);
    if (t->c->tied && !stored(t, out) && stored(t, head)) memcpy(out, head, sizeof head);
}

void tensors_embed_names(const struct tensors *t, char stored_as[TENSOR_NAME_MAX], char usual[TENSOR_NAME_MAX])
{
    embed_name(t, stored_as);
    name_of(t, row_of(t->c, PART_EMBED), -1, weight, usual);
}

void tensors_norm_name(const struct tensors *t, char out[TENSOR_NAME_MAX])
{
    name_of(t, norm_row(t->c), -1, weight, out);
}

void tensors_module(const struct model_config *c, enum tensor_part part, char out[TENSOR_NAME_MAX])
{
    struct tensors t = tensors_of(c, NULL);
    name_of(&t, row_of(c, part), -1, "", out);
}

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

int tensors_layer_matrices(const struct model_config *c, int layer, struct layer_matrix out[LAYER_MATRICES_MAX])
{
    int n = 0, at[LAYER_GEMMS] = {0};
    for (const struct tensor_row *r = table_of(c)->row; r->module; r++) {
        const struct part *p = &parts[r->part];
        if (p->kind != LAYER_MATRIX || !present(c, layer, r->weight)) continue;
        CHECK(n < LAYER_MATRICES_MAX);
        out[n] = (struct layer_matrix){r, (enum layer_gemm)p->gemm, at[p->gemm], size_of(c, layer, p->rows),
                                       size_of(c, layer, p->cols)};
        at[p->gemm] += out[n++].rows;
    }
    return n;
}

static void layer_stack(const struct tensors *t, int layer, enum layer_gemm gemm, struct stack *s)
{
    static const char *const names[LAYER_GEMMS] = {"qkv", "o", "up", "down"};
    struct layer_matrix m[LAYER_MATRICES_MAX];
    int n = tensors_layer_matrices(t->c, layer, m);
    *s = (struct stack){
        .gemm = layer * LAYER_GEMMS + (int)gemm,
    };
    snprintf(s->name, sizeof s->name, "packed.layers.%d.%s", layer, names[gemm]);
    for (int i = 0; i < n; i++) {
        if (m[i].gemm != gemm) continue;
        CHECK(s->n < STACK_MAX);
        struct matrix_slot *p = &s->part[s->n++];
        *p = (struct matrix_slot){.rows = m[i].rows,
                                  .cols = m[i].cols,
                                  .transposed = m[i].row->flags & TENSOR_TRANSPOSED,
                                  .residual = m[i].row->flags & TENSOR_RESIDUAL,
                                  .by_head = m[i].row->flags & TENSOR_BY_HEAD ? t->c->heads : 0};
        name_of(t, m[i].row, layer, weight, p->name);
        s->gate_up |= m[i].row->part == PART_GATE || m[i].row->part == PART_GATE_UP;
        s->rows += p->rows;
        s->cols = p->cols;
    }
}

/* Of each layer: the router, then gate and up, and down, of each expert. */
static int expert_stacks(const struct model_config *c)
{
    return model_experts(c).count ? 1 + 2 * model_experts(c).count : 0;
}

struct expert_stack tensors_expert_stack(const struct model_config *c, int i)
{
    int each = expert_stacks(c);
    i -= c->layers * LAYER_GEMMS + (c->tied ? 1 : 2);
    if (i < 0 || !each) return (struct expert_stack){.layer = -1};
    int at = i % each - 1;
    return (struct expert_stack){i / each, at < 0 ? 0 : at / 2,
                                 at < 0   ? EXPERT_ROUTER
                                 : at % 2 ? EXPERT_DOWN
                                          : EXPERT_UP};
}

void tensors_expert_module(const char *module, int expert, char out[TENSOR_MODULE_MAX])
{
    const char *mark = strstr(module, "%d");
    int before = mark ? (int)(mark - module) : (int)strlen(module), n;
    n = mark ? snprintf(out, TENSOR_MODULE_MAX, "%.*s%d%s", before, module, expert, mark + 2)
             : snprintf(out, TENSOR_MODULE_MAX, "%s", module);
    CHECK(n > 0 && n < TENSOR_MODULE_MAX);
}

static void expert_stack(const struct tensors *t, struct expert_stack x, struct stack *s)
{
    static const char *const names[] = {"router", "up", "down"};
    const struct model_config *c = t->c;
    *s = (struct stack){
        .gate_up = x.gemm == EXPERT_UP, .floats = x.gemm == EXPERT_ROUTER, .expert = x.gemm != EXPERT_ROUTER};
    s->gemm = s->floats ? -1 : tensors_expert_gemm(c, x.layer, x.expert, x.gemm == EXPERT_DOWN);
    snprintf(s->name, sizeof s->name, "packed.layers.%d.experts.%d.%s", x.layer, x.expert, names[x.gemm]);
    for (const struct tensor_row *r = t->table->row; r->module; r++) {
        const struct part *p = &parts[r->part];
        struct expert_row of_expert;
        if (p->kind != EXPERT_MATRIX || p->gemm != (int)x.gemm || !present(c, x.layer, r->weight)) continue;
        CHECK(s->n < STACK_MAX);
        struct matrix_slot *m = &s->part[s->n++];
        *m = (struct matrix_slot){.rows = size_of(c, x.layer, p->rows), .cols = size_of(c, x.layer, p->cols)};
        name_of(t, expert_row(&of_expert, r, x.expert), x.layer, weight, m->name);
        s->rows += m->rows;
        s->cols = m->cols;
    }
}

static void head_stack(const struct tensors *t, struct stack *s)
{
    const struct model_config *c = t->c;
    *s = (struct stack){
        .name = "packed.head", .n = 1, .rows = c->vocab, .cols = c->hidden, .gemm = c->layers * LAYER_GEMMS};
    s->part[0] = (struct matrix_slot){.rows = s->rows, .cols = s->cols, .head = true};
    tensors_head_name(t, s->part[0].name);
    /* early versions of tandem quantize wrote a head beside a tied float table */
    bool own = !c->tied || (c->quant.name[0] && stored(t, s->part[0].name));
    if (!own) embed_name(t, s->part[0].name);
    s->part[0].table = !own;
}

static void embed_stack(const struct tensors *t, struct stack *s)
{
    *s = (struct stack){.name = "packed.embed", .n = 1, .rows = t->c->vocab, .cols = t->c->hidden, .gemm = -1};
    s->part[0] = (struct matrix_slot){.rows = s->rows, .cols = s->cols, .table = true};
    embed_name(t, s->part[0].name);
}

int tensors_gemms(const struct model_config *c)
{
    return c->layers * (LAYER_GEMMS + 2 * model_experts(c).count) + 1;
}

int tensors_expert_gemm(const struct model_config *c, int layer, int expert, bool down)
{
    return c->layers * LAYER_GEMMS + 1 + 2 * (layer * model_experts(c).count + expert) + down;
}

int tensors_stacks(const struct model_config *c)
{
    return c->layers * LAYER_GEMMS + (c->tied || !tensors_have_head(c) ? 1 : 2) + c->layers * expert_stacks(c);
}

void tensors_stack(const struct tensors *t, int i, struct stack *out)
{
    int layers = t->c->layers * LAYER_GEMMS;
    struct expert_stack x = tensors_expert_stack(t->c, i);
    if (x.layer >= 0)
        expert_stack(t, x, out);
    else if (i < layers)
        layer_stack(t, i / LAYER_GEMMS, (enum layer_gemm)(i % LAYER_GEMMS), out);
    else if (i == layers && tensors_have_head(t->c))
        head_stack(t, out);
    else
        embed_stack(t, out);
}

/* ---- vectors ----------------------------------------------------------------------------------------------------- */

struct vectors {
    const struct tensors *t;
    struct vector_slot *out;
    int n;
};

/* The offset of this vector in the array that it shares with others of the layer: after those before it. */
static void add_vector(struct vectors *v, const struct tensor_row *r, int layer, bool is_bias)
{
    const struct part *p = &parts[r->part];
    const struct model_config *c = v->t->c;
    struct vector_slot *o = v->out ? &v->out[v->n] : NULL, *before = o && v->n ? o - 1 : NULL;
    v->n++;
    if (!o) return;
    CHECK(!is_bias || p->bias != NO_BIAS);
    bool matrix = p->kind == LAYER_MATRIX || p->kind == EXPERT_MATRIX || p->kind == MODEL_MATRIX;
    *o = (struct vector_slot){.layer = layer,
                              .field = is_bias ? p->bias : p->weight,
                              .rows = matrix || is_bias ? 1 : size_of(c, layer, p->rows),
                              .cols = size_of(c, layer, matrix ? p->rows : p->cols),
                              .by_head = r->flags & TENSOR_BY_HEAD ? c->heads : 0,
                              .table = r->part == PART_POS || r->part == PART_TYPES,
                              .norm = !is_bias && r->part != PART_POS && r->part != PART_TYPES && r->part != PART_SINKS,
                              .minus_one = !is_bias && r->flags & TENSOR_MINUS_ONE};
    if (before && before->layer == layer && before->field == o->field) o->at = before->at + before->cols;
    name_of(v->t, r, layer, is_bias ? bias : weight, o->name);
}

/* The vectors of a row that are beside each other: of q and k, the norms of all heads may have modules of their own. */
static void add_each(struct vectors *v, const struct tensor_row *r, int layer, bool is_bias)
{
    const struct model_config *c = v->t->c;
    bool q = r->part == PART_Q_NORM, apart = q || r->part == PART_K_NORM;
    struct expert_row x;
    if (!apart || model_block(c, layer)->qk_norm != QK_NORM_APART)
        add_vector(v, r, layer, is_bias);
    else
        for (int h = 0; h < (q ? c->heads : c->kv_heads); h++) add_vector(v, expert_row(&x, r, h), layer, is_bias);
}

/* The biases of the layer's experts, of one GEMM: those of an expert beside each other. */
static void add_expert_biases(struct vectors *v, int layer, enum expert_gemm gemm)
{
    const struct model_config *c = v->t->c;
    struct expert_row x;
    for (int expert = 0; expert < model_block(c, layer)->experts.count; expert++)
        for (const struct tensor_row *r = v->t->table->row; r->module; r++)
            if (parts[r->part].kind == EXPERT_MATRIX && parts[r->part].gemm == (int)gemm && present(c, layer, r->bias))
                add_vector(v, expert_row(&x, r, expert), layer, true);
}

static void add_vectors(struct vectors *v, int layer)
{
    const struct model_config *c = v->t->c;
    for (const struct tensor_row *r = v->t->table->row; r->module; r++) {
        enum kind kind = parts[r->part].kind;
        bool of_layer = kind == LAYER_VECTOR || kind == LAYER_MATRIX || kind == EXPERT_MATRIX,
             vector = kind == LAYER_VECTOR || kind == MODEL_VECTOR;
        if (kind == EXPERT_MATRIX && parts[r->part].gemm != EXPERT_ROUTER) continue;
        if (of_layer != (layer >= 0) || (layer == 0 && r->flags & TENSOR_NOT_FIRST)) continue;
        if (vector && present(c, layer, r->weight)) add_each(v, r, layer, false);
        if (present(c, layer, r->bias)) add_each(v, r, layer, true);
    }
    if (layer < 0) return;
    add_expert_biases(v, layer, EXPERT_UP);
    add_expert_biases(v, layer, EXPERT_DOWN);
}

int tensors_vectors(const struct tensors *t, struct vector_slot *out)
{
    struct vectors v = {.t = t, .out = out};
    for (int layer = 0; layer < t->c->layers; layer++) add_vectors(&v, layer);
    add_vectors(&v, -1);
    return v.n;
}
