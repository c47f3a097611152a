#include "engine/model/config.h"

#include "engine/base/model_dir.h"
#include "engine/files/model_file.h"
#include "engine/model/config_fields.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_LIMIT = 16 << 20 };

/* ---- the parts ---- */

/* Of a model that also takes images: its text model's fields, with those beside text_config that concern it.
 * @return `j`, or text_config in its place */
static cJSON *take_text_config(struct fields *f, cJSON *j, struct model_config *c)
{
    static const struct {
        const char *model_type, *text; /* what the text model is unless its model_type says */
    } known[] = {{"gemma3", "gemma3_text"}, {"mistral3", "mistral"}};
    static const char *const beside[] = {"architectures", "dtype",        "torch_dtype",         "quantization_config",
                                         "eos_token_id",  "pad_token_id", "tie_word_embeddings", "quantization"};
    const char *type = get_text(f, "model_type"), *text = NULL;
    for (size_t i = 0; type && i < sizeof known / sizeof *known; i++)
        if (strcmp(type, known[i].model_type) == 0) text = known[i].text;
    if (!text) return j;
    if (!object(f, "text_config")) {
        need(f, "text_config");
        if (!f->rc) f->rc = err_set(f->e, ERR_INVALID, "%s: text_config is empty", f->file);
        return j;
    }
    cJSON *t = cJSON_DetachItemFromObjectCaseSensitive(j, "text_config");
    f->j = t;
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        if (get(f, beside[i])) continue;
        cJSON_DeleteItemFromObjectCaseSensitive(t, beside[i]); /* null */
        cJSON *v = cJSON_DetachItemFromObjectCaseSensitive(j, beside[i]);
        if (v) cJSON_AddItemToObject(t, beside[i], v);
    }
    if (!get(f, "model_type")) {
        cJSON_DeleteItemFromObjectCaseSensitive(t, "model_type");
        cJSON_AddStringToObject(t, "model_type", text);
    }
    cJSON_Delete(j);
    c->with_images = true;
    return t;
}

static void read_family(struct fields *f, struct model_config *c)
{
    const char *type = get_text(f, "model_type");
    if (f->rc) return;
    if (!type) {
        f->rc = err_set(f->e, ERR_INVALID, "config.json: model_type is missing");
        return;
    }
    if ((c->family = model_family_find(type))) return;
    char names[384];
    model_family_names(names, sizeof names);
    f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: model_type \"%.40s\" is not one of %s, gemma3, mistral3", type,
                    names);
}

static bool is_classifier(const struct fields *f)
{
    static const char suffix[] = "ForSequenceClassification";
    const cJSON *names = get(f, "architectures");
    const char *name = cJSON_IsArray(names) && cJSON_IsString(names->child) ? names->child->valuestring : "";
    size_t n = strlen(name), k = sizeof suffix - 1;
    return n > k && strcmp(name + n - k, suffix) == 0;
}

static void read_act(struct fields *f, const struct model_config *c, enum act_kind *act)
{
    static const struct {
        const char *name;
        enum act_kind act;
    } acts[] = {
        {"silu", ACT_SILU},
        {"swish", ACT_SILU},
        {"gelu_new", ACT_GELU_TANH},
        {"gelu_fast", ACT_GELU_TANH},
        {"gelu_pytorch_tanh", ACT_GELU_TANH},
        {"gelu", ACT_GELU_ERF},
        {"relu", ACT_RELU},
    };
    const char *field = c->family->field.act, *name = get_text(f, field);
    if (f->rc) return;
    if (c->family->layer.clamped) {
        *act = ACT_SWIGLU_CLAMPED;
        return;
    }
    if (!name) name = c->family->otherwise.act;
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (strcmp(name, acts[i].name) == 0) {
            *act = acts[i].act;
            return;
        }
    f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: %s \"%.40s\" is not an activation tandem knows", field, name);
}

/* The kinds of layers; model_config.kind holds them. */
/* bits that may be combined */
enum { KIND_FULL, KIND_WINDOW = 1, KIND_EXPERTS = 2, KIND_UNROTATED = 4 };
_Static_assert((KIND_EXPERTS | KIND_WINDOW | KIND_UNROTATED) < BLOCKS_MAX, "every kind is a block");

static void read_layer_types(struct fields *f, const cJSON *types, struct model_config *c)
{
    int n = 0;
    bool agrees = true, slides = false;
    for (const cJSON *t = cJSON_IsArray(types) ? types->child : NULL; t; t = t->next, n++) {
        bool slide = cJSON_IsString(t) && strcmp(t->valuestring, "sliding_attention") == 0;
        if (!slide && !(cJSON_IsString(t) && strcmp(t->valuestring, "full_attention") == 0)) {
            f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: layer_types: \"%.40s\" is not supported",
                            cJSON_IsString(t) ? t->valuestring : "?");
            return;
        }
        uint8_t kind = slide ? KIND_WINDOW : KIND_FULL;
        if (n >= c->layers) continue;
        agrees = agrees && kind == (c->kind[n] & KIND_WINDOW);
        slides = slides || slide;
        c->kind[n] = kind | (c->kind[n] & KIND_UNROTATED);
    }
    bool windows = c->block[KIND_WINDOW].window > 0;
    if (n != c->layers)
        f->rc =
            err_set(f->e, ERR_INVALID, "config.json: layer_types must be a list of num_hidden_layers (%d)", c->layers);
    else if (c->family->window.by_type ? slides && !windows : !agrees)
        f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: layer_types does not go with sliding_window in a %s model",
                        c->family->model_type);
}

static bool has_window(const struct model_config *c, int number, int layer)
{
    switch (c->family->window.rule) {
    case WINDOW_UNROTATED: return c->kind[layer] & KIND_UNROTATED;
    case WINDOW_ALL: return true;
    case WINDOW_FROM: return layer >= number;
    case WINDOW_BUT_EVERY: return (layer + 1) % number != 0;
    case WINDOW_BUT_FIRST: return layer % number != 0;
    default: return false;
    }
}

/* no_rope_layers: the last rule of rotation is none. */
static void read_unrotated(struct fields *f, struct model_config *c)
{
    const struct family_unrotated *u = &c->family->unrotated;
    const cJSON *list = get(f, u->list);
    int number = u->number, n = 0;
    if (!u->list || f->rc) return;
    get_int(f, u->every, 1, MAX_LAYERS, &number);
    c->rope[c->n_ropes++] = (struct rope){.attention = 1};
    for (int l = 0; l < c->layers && !list; l++) c->kind[l] = (l + 1) % number ? KIND_FULL : KIND_UNROTATED;
    for (const cJSON *v = cJSON_IsArray(list) ? list->child : NULL; v && n < c->layers; v = v->next, n++) {
        if (!cJSON_IsNumber(v) || (v->valuedouble != 0 && v->valuedouble != 1)) {
            f->rc = err_set(f->e, ERR_INVALID, "%s: %s must be a list of 0 and 1", f->file, u->list);
            return;
        }
        c->kind[n] = v->valuedouble == 0 ? KIND_UNROTATED : KIND_FULL;
    }
    if (list && n < c->layers && !f->rc)
        f->rc = err_set(f->e, ERR_INVALID, "%s: %s must have a number for each of the %d layers", f->file, u->list,
                        c->layers);
}

/* Creates the kinds of layers from `like` and assigns each layer its kind. */
static void read_window(struct fields *f, const struct block *like, struct model_config *c)
{
    const struct family_window *w = &c->family->window;
    int window = 0, number = w->number;
    bool use = w->rule != WINDOW_NONE && !w->enabled;
    if (w->enabled) get_bool(f, w->enabled, &use);
    if (use) {
        const char *name = w->both ? w->both : "sliding_window";
        bool null = cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(f->j, name));
        window = null ? 0 : w->positions;
        get_int(f, name, 1, MAX_POSITIONS, &window);
        if (w->both) window = window / 2 + 1;
        get_int(f, w->field, w->rule == WINDOW_BUT_EVERY || w->rule == WINDOW_BUT_FIRST, MAX_LAYERS, &number);
        if (!f->rc && null && w->rule == WINDOW_BUT_EVERY) /* transformers fails */
            f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: sliding_window null is not supported in a %s model",
                            c->family->model_type);
    }
    for (int k = 0; k < BLOCKS_MAX; k++) {
        bool unrotated = k & KIND_UNROTATED;
        c->block[k] = *like;
        c->block[k].window = k & KIND_WINDOW ? window : 0;
        c->block[k].rope = unrotated ? c->n_ropes - 1 : k & KIND_WINDOW && c->family->rope.window_rule ? 1 : 0;
    }
    for (int l = 0; l < c->layers; l++)
        if (window && has_window(c, number, l)) c->kind[l] |= KIND_WINDOW;
    const cJSON *types = get(f, "layer_types");
    if (types && !f->rc) read_layer_types(f, types, c);
}

static bool reads_number(const struct model_family *m, const char *name)
{
    for (int i = 0; i < FAMILY_NUMBERS && m->number[i].name; i++)
        if (strcmp(m->number[i].name, name) == 0) return true;
    return false;
}

static bool counts_experts(const struct model_family *m, const char *name)
{
    return m->experts.count && (strcmp(m->experts.count, name) == 0 || strcmp(m->experts.count_too, name) == 0);
}

/* Fields that change the computation in families that read them; this family does not. */
static void refuse_foreign(struct fields *f, const struct model_config *c)
{
    static const struct {
        const char *name;
        double neutral;
    } foreign[] = {
        {"attn_logit_softcapping", 0},
        {"final_logit_softcapping", 0},
        {"query_pre_attn_scalar", 0},
        {"embedding_multiplier", 1},
        {"residual_multiplier", 1},
        {"attention_multiplier", 0},
        {"logits_scaling", 1},
        {"logit_scale", 1},
        {"scale_emb", 1},
        {"scale_depth", 0},
        {"clip_qkv", 0},
        {"num_experts", 0},
        {"num_local_experts", 0},
        {"no_rope_layers", 0},
    };
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign && !f->rc; i++) {
        const cJSON *v = get(f, foreign[i].name);
        bool reads = reads_number(c->family, foreign[i].name) || counts_experts(c->family, foreign[i].name) ||
                     (c->family->unrotated.list && strcmp(c->family->unrotated.list, foreign[i].name) == 0);
        bool neutral = !v || reads || cJSON_IsFalse(v) || (cJSON_IsNumber(v) && v->valuedouble == foreign[i].neutral) ||
                       (cJSON_IsArray(v) && !v->child);
        if (!neutral)
            f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: %s is not supported: %s models have none",
                            foreign[i].name, c->family->model_type);
    }
}

static void read_number(struct fields *f, const struct family_number *n, struct model_config *c, struct block *b)
{
    double v = n->otherwise;
    bool null = cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(f->j, n->name));
    if (null && n->use == NUMBER_QUERY_SCALAR) /* transformers fails as well */
        f->rc = err_set(f->e, ERR_INVALID, "%s: %s must be a number", f->file, n->name);
    if (null) v = 0;
    get_real(f, n->name, 1e-6, 1e6, &v);
    if (f->rc || v == 0) return;
    if (n->use == NUMBER_FIXED && v != n->otherwise)
        f->rc =
            err_set(f->e, ERR_UNSUPPORTED, "%s: %s %g is not supported, only %g", f->file, n->name, v, n->otherwise);
    switch (n->use) {
    case NUMBER_FIXED: break;
    case NUMBER_ATTN_SOFTCAP: b->softcap = (float)v; break;
    case NUMBER_ATTN_SCALE: b->scale = (float)v; break;
    case NUMBER_QUERY_SCALAR: b->scale = (float)(1 / sqrt(v)); break;
    case NUMBER_EMBED_SCALE: c->embed_scale = (float)v; break;
    case NUMBER_RESIDUAL_SCALE: b->residual_scale = (float)v; break;
    case NUMBER_LOGIT_SOFTCAP: c->logit_softcap = (float)v; break;
    case NUMBER_LOGIT_SCALE: c->logit_scale = (float)v; break;
    case NUMBER_LOGIT_DIVISOR: c->logit_scale = (float)(1 / v); break;
    }
}

/* torch_dtype, dtype since transformers 5 */
static void read_dtype(struct fields *f, struct model_config *c)
{
    static const struct {
        const char *name;
        enum dtype type;
    } types[] = {{"float32", DT_F32}, {"bfloat16", DT_BF16}, {"float16", DT_F16}};
    const cJSON *v = get(f, get(f, "dtype") ? "dtype" : "torch_dtype");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (cJSON_IsString(v) && strcmp(v->valuestring, types[i].name) == 0) c->dtype = types[i].type;
}

static bool switch_default(const struct family_switch *s, const struct model_config *c)
{
    const struct family_layer *l = &c->family->layer;
    switch (s->use) {
    case SWITCH_ATTENTION_BIAS:
    case SWITCH_QKV_BIAS: return l->qkv_bias;
    case SWITCH_MLP_BIAS: return l->mlp_bias;
    case SWITCH_NORM_BIAS:
    case SWITCH_QK_NORM: return false;
    case SWITCH_PARALLEL: return l->norms == l->parallel;
    case SWITCH_OFF: return false;
    case SWITCH_ON: return true;
    }
    return false;
}

static void read_switch(struct fields *f, const struct family_switch *s, struct model_config *c, struct block *b)
{
    bool on = switch_default(s, c);
    get_bool(f, s->name, &on);
    if (f->rc) return;
    switch (s->use) {
    case SWITCH_ATTENTION_BIAS: c->qkv_bias = c->o_bias = on; break;
    case SWITCH_QKV_BIAS: c->qkv_bias = on; break;
    case SWITCH_MLP_BIAS: c->mlp_bias = on; break;
    case SWITCH_NORM_BIAS: c->norm_bias = on; break;
    case SWITCH_QK_NORM: b->qk_norm = on ? c->family->layer.qk_norm : QK_NORM_NONE; break;
    case SWITCH_PARALLEL: b->norms = on ? c->family->layer.parallel : NORMS_BEFORE; break;
    case SWITCH_OFF:
        if (on) f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: %s is not supported", s->name);
        break;
    case SWITCH_ON:
        if (!on) f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: %s false is not supported", s->name);
    }
}

static void read_head_dim(struct fields *f, struct model_config *c)
{
    const struct family_fields *n = &c->family->field;
    c->head_dim = c->family->otherwise.head_dim;
    get_int(f, n->head_dim, 1, MAX_HEAD_DIM, &c->head_dim);
    if (f->rc) return;
    if (!c->head_dim && c->hidden % c->heads)
        f->rc = err_set(f->e, ERR_INVALID, "config.json: %s %d is not a multiple of %s %d", n->hidden, c->hidden,
                        n->heads, c->heads);
    else if (!c->head_dim)
        c->head_dim = c->hidden / c->heads;
    if (!f->rc && c->head_dim > MAX_HEAD_DIM)
        f->rc = err_set(f->e, ERR_INVALID, "%s: heads of %d features; at most %d are sane", f->file, c->head_dim,
                        MAX_HEAD_DIM);
}

/* RoBERTa's position table has unused rows up to that of the padding token. */
static void read_first_pos(struct fields *f, struct model_config *c)
{
    int pad = 1;
    get_int(f, "pad_token_id", 0, MAX_VOCAB, &pad);
    if (!f->rc && pad + 1 >= c->max_len)
        f->rc = err_set(f->e, ERR_INVALID, "%s: no positions are left behind pad_token_id %d", f->file, pad);
    c->first_pos = pad + 1;
    c->max_len -= pad + 1;
}

/* Absolute positions are the only learned ones that are read. */
static void check_positions(struct fields *f, const struct model_config *c)
{
    const char *type = c->encoder ? get_text(f, "position_embedding_type") : NULL;
    if (type && strcmp(type, "absolute") && !c->family->rope.any)
        f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: position_embedding_type \"%.40s\" is not supported", type);
}

/* An id that is no token is ignored: only scores are looked for by it. */
static void read_pad(const struct fields *f, struct model_config *c)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(f->j, "pad_token_id");
    bool token = cJSON_IsNumber(v) && v->valuedouble >= 0 && v->valuedouble < c->vocab;
    c->pad = token ? (int32_t)v->valuedouble : -1;
}

static void read_sizes(struct fields *f, struct model_config *c)
{
    const struct family_fields *n = &c->family->field;
    const struct family_defaults *o = &c->family->otherwise;
    if (!o->vocab) need(f, "vocab_size");
    c->vocab = o->vocab;
    get_int(f, "vocab_size", 1, MAX_VOCAB, &c->vocab);
    need(f, n->hidden);
    need(f, n->layers);
    if (!o->heads) need(f, n->heads);
    if (!o->inter_per_hidden) need(f, n->inter);
    c->heads = o->heads;
    get_int(f, n->hidden, 1, MAX_WIDTH, &c->hidden);
    get_int(f, n->layers, 1, MAX_LAYERS, &c->layers);
    get_int(f, n->heads, 1, MAX_HEADS, &c->heads);
    c->kv_heads = c->heads;
    if (o->kv_heads && !cJSON_GetObjectItemCaseSensitive(f->j, n->kv_heads)) c->kv_heads = o->kv_heads;
    get_int(f, n->kv_heads, 1, MAX_HEADS, &c->kv_heads);
    c->inter = o->inter_per_hidden * c->hidden;
    get_int(f, n->inter, 1, MAX_WIDTH * 4, &c->inter);
    c->max_len = o->max_len;
    get_int(f, n->max_len, 1, MAX_POSITIONS, &c->max_len);
    get_int(f, n->types, 0, MAX_VOCAB, &c->types);
    if (c->family->after_pad) read_first_pos(f, c);
    read_pad(f, c);
    if (!f->rc && c->heads % c->kv_heads)
        f->rc = err_set(f->e, ERR_INVALID, "config.json: %s %d is not a multiple of %s %d", n->heads, c->heads,
                        n->kv_heads, c->kv_heads);
    read_head_dim(f, c);
}

static bool listed(const cJSON *list, int number)
{
    for (const cJSON *v = cJSON_IsArray(list) ? list->child : NULL; v; v = v->next)
        if (cJSON_IsNumber(v) && v->valuedouble == number) return true;
    return false;
}

/* The layers with experts get kinds of their own: Qwen's all but those of mlp_only_layers, of each decoder_sparse_step
 * the last. */
static void read_experts(struct fields *f, struct model_config *c)
{
    const struct family_experts *m = &c->family->experts;
    struct block_experts x = {m->otherwise.count, m->otherwise.chosen, m->inter ? m->otherwise.inter : c->inter,
                              !m->normalise, m->shared};
    int shared = m->shared ? m->otherwise.shared : 0, step = 1, widest = 0;
    get_int(f, m->count_too, 0, EXPERTS_MAX, &x.count);
    get_int(f, m->count, 0, EXPERTS_MAX, &x.count);
    get_int(f, m->chosen_too, 1, EXPERTS_CHOSEN_MAX, &x.chosen);
    get_int(f, m->chosen, 1, EXPERTS_CHOSEN_MAX, &x.chosen);
    get_int(f, m->inter, 1, MAX_WIDTH, &x.inter);
    get_int(f, m->shared, 1, MAX_WIDTH, &shared);
    get_bool(f, m->normalise, &x.normalise);
    const cJSON *dense = NULL;
    if (m->inter) {
        get_int(f, "decoder_sparse_step", 1, MAX_LAYERS, &step);
        dense = get(f, "mlp_only_layers");
    }
    if (f->rc) return;
    if (dense && !cJSON_IsArray(dense))
        f->rc = err_set(f->e, ERR_INVALID, "config.json: mlp_only_layers must be a list");
    else if (!m->inter && !x.count)
        f->rc = err_set(f->e, ERR_INVALID, "config.json: %s must be at least 1", m->count);
    else if (x.count && x.chosen > x.count)
        f->rc = err_set(f->e, ERR_INVALID, "config.json: %s %d is above %s %d", m->chosen, x.chosen, m->count, x.count);
    for (int kind = 0; kind < BLOCKS_MAX; kind++) {
        struct block *b = &c->block[kind];
        if (!(kind & KIND_EXPERTS)) continue;
        *b = c->block[kind & ~KIND_EXPERTS];
        b->experts = x;
        b->inter = shared;
    }
    for (int l = 0; l < c->layers; l++) {
        if (x.count && (l + 1) % step == 0 && !listed(dense, l)) c->kind[l] |= KIND_EXPERTS;
        if (model_block(c, l)->inter > widest) widest = model_block(c, l)->inter;
    }
    c->inter = widest;
}

static void read_layers(struct fields *f, struct model_config *c)
{
    const struct model_family *m = c->family;
    double eps = m->otherwise.eps;
    get_real(f, m->field.eps, 0, 1, &eps);
    c->eps = (float)eps;
    c->norm = m->layer.norm;
    c->qkv_bias = m->layer.qkv_bias;
    c->o_bias = m->layer.o_bias;
    c->mlp_bias = m->layer.mlp_bias;
    c->norm_bias = false;
    c->tied = m->otherwise.tied;
    get_bool(f, "tie_word_embeddings", &c->tied);
    if (c->encoder || c->classifier) c->tied = false; /* there is no head */
    struct block b = {.norms = m->layer.norms,
                      .inter = c->inter,
                      .both_sides = c->encoder,
                      .residual_scale = 1,
                      .scale = 1.0f / sqrtf((float)c->head_dim),
                      .qk_norm = m->layer.qk_norm,
                      .gated = m->layer.gated};
    for (int i = 0; i < FAMILY_SWITCHES && m->toggle[i].name; i++) read_switch(f, &m->toggle[i], c, &b);
    c->embed_scale = m->embed_root ? (float)sqrt((double)c->hidden) : 1;
    c->embed_scale_rounded = m->embed_root;
    c->logit_scale = 1;
    for (int i = 0; i < FAMILY_NUMBERS && m->number[i].name; i++) read_number(f, &m->number[i], c, &b);
    read_dtype(f, c);
    read_act(f, c, &b.act);
    if (!f->rc) config_read_rope(f, c);
    if (!f->rc) read_unrotated(f, c);
    if (!f->rc) read_window(f, &b, c);
    if (!f->rc && m->experts.count) read_experts(f, c);
}

/* eos_token_id: a number or a list of them; those of generation_config.json come first */
static void read_eos(struct fields *f, struct model_config *c)
{
    const cJSON *v = get(f, "eos_token_id");
    if (!v || f->rc) return;
    const cJSON *one = cJSON_IsArray(v) ? v->child : v;
    for (; one; one = cJSON_IsArray(v) ? one->next : NULL) {
        double d = one->valuedouble;
        if (!cJSON_IsNumber(one) || !(d >= 0 && d < MAX_VOCAB) || d != floor(d)) {
            f->rc = err_set(f->e, ERR_INVALID, "%s: eos_token_id must be a token id or a list of them", f->file);
            return;
        }
        bool known = false;
        for (int i = 0; i < c->n_eos; i++) known |= c->eos[i] == (int32_t)d;
        if (!known && c->n_eos < MAX_EOS && (int)d < c->vocab) c->eos[c->n_eos++] = (int32_t)d;
    }
}

static void read_quant(struct fields *f, struct model_config *c)
{
    const cJSON *q = get(f, "quantization_config"), *mlx = get(f, "quantization");
    if (q && !f->rc) f->rc = quant_config_parse(q, &c->quant, f->e);
    if (!q && cJSON_IsObject(mlx) && !f->rc) f->rc = quant_config_mlx(f->e);
}

static void read_generation(const char *text, struct model_config *c, struct fields *f)
{
    cJSON *j = text ? cJSON_ParseWithOpts(text, NULL, 1) : NULL;
    if (text && !cJSON_IsObject(j)) {
        f->rc = err_set(f->e, ERR_INVALID, "generation_config.json is not a JSON object");
    } else if (j) {
        struct fields g = {j, f->e, "generation_config.json", 0};
        double temperature = NAN, top_p = NAN, repetition = NAN;
        get_real(&g, "temperature", 0, 1e6, &temperature);
        get_real(&g, "top_p", 0, 1, &top_p);
        get_real(&g, "repetition_penalty", 1e-3, 1e3, &repetition);
        get_int(&g, "top_k", 0, MAX_VOCAB, &c->top_k);
        bool sample = false;
        get_bool(&g, "do_sample", &sample);
        if (get(&g, "do_sample")) c->do_sample = sample;
        read_eos(&g, c);
        c->temperature = (float)temperature;
        c->top_p = (float)top_p;
        c->repetition_penalty = (float)repetition;
        f->rc = g.rc;
    }
    cJSON_Delete(j);
}

int model_config_parse(const char *config, const char *generation, struct model_config *c, struct err *e)
{
    *c = (struct model_config){
        .temperature = NAN, .top_p = NAN, .repetition_penalty = NAN, .top_k = -1, .do_sample = -1};
    cJSON *j = cJSON_ParseWithOpts(config, NULL, 1);
    struct fields f = {j, e, "config.json", 0};
    if (model_dir_lfs_pointer(config, strlen(config))) {
        model_dir_lfs_error(e);
        f.rc = err_prefix(e, "config.json");
    } else if (!cJSON_IsObject(j)) {
        f.rc = err_set(e, ERR_INVALID, "config.json is not a JSON object");
    }
    if (!f.rc) j = take_text_config(&f, j, c);
    if (!f.rc) read_family(&f, c);
    if (!f.rc) c->encoder = c->family->encoder;
    if (!f.rc) c->classifier = is_classifier(&f);
    if (!f.rc) check_positions(&f, c);
    if (!f.rc) read_sizes(&f, c);
    if (!f.rc) read_layers(&f, c);
    if (!f.rc) refuse_foreign(&f, c);
    bool causal = true;
    get_bool(&f, "is_causal", &causal);
    if (!f.rc && !causal && !c->encoder)
        f.rc = err_set(e, ERR_UNSUPPORTED, "config.json: is_causal false is not supported");
    if (!f.rc) read_quant(&f, c);
    if (!f.rc) read_generation(generation, c, &f);
    if (!f.rc) read_eos(&f, c);
    cJSON_Delete(j);
    return f.rc;
}

int model_config_generates(const struct model_config *c, struct err *e)
{
    if (c->encoder)
        return err_set(e, ERR_UNSUPPORTED,
                       "a %s model is an encoder: it gives vectors or classes of texts, and generates none",
                       c->family->model_type);
    if (!c->classifier) return 0;
    return err_set(e, ERR_UNSUPPORTED, "this %s model is a classifier: it gives classes of texts, and generates none",
                   c->family->model_type);
}

int model_config_read(const char *dir, struct model_config *c, struct err *e)
{
    char *config = NULL, *generation = NULL;
    size_t n;
    int rc = model_file_read(dir, "config.json", CONFIG_LIMIT, &config, &n, e);
    if (rc) return model_dir_no_config(dir, e);
    struct err why = {0};
    rc = model_file_read(dir, "generation_config.json", CONFIG_LIMIT, &generation, &n, &why);
    rc = rc && rc != ERR_NOT_FOUND ? err_set(e, rc, "%s", why.msg) : 0;
    if (!rc) rc = model_config_parse(config, generation, c, e);
    free(config);
    free(generation);
    return rc;
}
