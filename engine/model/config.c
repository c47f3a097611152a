#include "engine/model/config.h"

#include "engine/base/file.h"
#include "engine/base/model_dir.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_LIMIT = 16 << 20 };

/* Ranges that every real model is within; they ensure that two sizes multiplied fit in 64 bits and a dimension in 31.
 */
enum { MAX_WIDTH = 1 << 18, MAX_HEADS = 4096, MAX_HEAD_DIM = 1024, MAX_VOCAB = 1 << 24, MAX_POSITIONS = 1 << 24 };

/* ---- typed getters: a missing field, or name NULL, leaves *out unchanged; a wrong value is the first error ---- */

struct fields {
    const cJSON *j;
    struct err *e;
    const char *file;
    int rc;
};

static const cJSON *get(const struct fields *f, const char *name)
{
    const cJSON *v = name ? cJSON_GetObjectItemCaseSensitive(f->j, name) : NULL;
    return v && !cJSON_IsNull(v) ? v : NULL;
}

static void get_int(struct fields *f, const char *name, int min, int max, int *out)
{
    const cJSON *v = get(f, name);
    if (!v || f->rc) return;
    double d = v->valuedouble;
    if (!cJSON_IsNumber(v) || !(d >= min && d <= max) || d != floor(d))
        f->rc = err_set(f->e, ERR_INVALID, "%s: %s must be a whole number from %d to %d", f->file, name, min, max);
    else
        *out = (int)d;
}

static void get_real(struct fields *f, const char *name, double min, double max, double *out)
{
    const cJSON *v = get(f, name);
    if (!v || f->rc) return;
    if (!cJSON_IsNumber(v) || !(v->valuedouble >= min && v->valuedouble <= max))
        f->rc = err_set(f->e, ERR_INVALID, "%s: %s must be a number from %g to %g", f->file, name, min, max);
    else
        *out = v->valuedouble;
}

static void get_bool(struct fields *f, const char *name, bool *out)
{
    const cJSON *v = get(f, name);
    if (!v || f->rc) return;
    if (!cJSON_IsBool(v))
        f->rc = err_set(f->e, ERR_INVALID, "%s: %s must be true or false", f->file, name);
    else
        *out = cJSON_IsTrue(v);
}

static const char *get_text(struct fields *f, const char *name)
{
    const cJSON *v = get(f, name);
    if (!v || f->rc) return NULL;
    if (cJSON_IsString(v)) return v->valuestring;
    f->rc = err_set(f->e, ERR_INVALID, "%s: %s must be a string", f->file, name);
    return NULL;
}

static void need(struct fields *f, const char *name)
{
    if (!f->rc && !get(f, name)) f->rc = err_set(f->e, ERR_INVALID, "%s: %s is missing", f->file, name);
}

/* ---- the parts ---- */

static void read_family(struct fields *f, struct model_config *c)
{
    const char *type = get_text(f, "model_type");
    if (f->rc) return;
    if (!type) {
        f->rc = err_set(f->e, ERR_INVALID, "config.json: model_type is missing");
        return;
    }
    if ((c->family = model_family_find(type))) return;
    char names[256];
    model_family_names(names, sizeof names);
    f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: model_type \"%.40s\" is not one of %s", type, names);
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
    if (!name) name = c->family->otherwise.act;
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (strcmp(name, acts[i].name) == 0) {
            *act = acts[i].act;
            return;
        }
    f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: %s \"%.40s\" is not an activation tandem knows", field, name);
}

/* A non-empty object of the file, or NULL. */
static const cJSON *object(struct fields *f, const char *name)
{
    const cJSON *v = get(f, name);
    if (!v || f->rc) return NULL;
    if (cJSON_IsObject(v)) return v->child ? v : NULL;
    f->rc = err_set(f->e, ERR_INVALID, "%s: %s must be an object", f->file, name);
    return NULL;
}

/* Rules for each layer type are refused where the family has one rule. */
static void refuse_types(struct fields *f, const char *name, const cJSON *rope)
{
    for (const cJSON *k = rope ? rope->child : NULL; k; k = k->next)
        if (cJSON_IsObject(k)) {
            f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: %s: one for each layer type (%.40s) is not supported",
                            name, k->string);
            return;
        }
}

/* rope_parameters of a family with a rule for each layer type: one object per layer type, nothing else. */
static void need_types(struct fields *f)
{
    for (const cJSON *k = f->j ? f->j->child : NULL; k && !f->rc; k = k->next)
        if (strcmp(k->string, "full_attention") && strcmp(k->string, "sliding_attention"))
            f->rc = err_set(f->e, ERR_UNSUPPORTED, "%s: \"%.40s\" is not full_attention or sliding_attention", f->file,
                            k->string);
}

/* For a family that does not read partial_rotary_factor, transformers ignores the field, or fails. */
static void check_partial(struct fields *f, struct model_config *c, double partial)
{
    int rot = (int)(c->head_dim * partial);
    if (!c->family->rope.partial_read && partial < 1)
        f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: partial_rotary_factor %g: %s models rotate whole heads",
                        partial, c->family->model_type);
    else if (rot % 2)
        f->rc = err_set(f->e, ERR_INVALID, "config.json: an odd number of rotated features (%d of %d) in a head", rot,
                        c->head_dim);
    for (int i = 0; i < c->n_ropes; i++) c->rope[i].rot = rot;
}

/* A rope_scaling or rope_parameters object. */
static void read_rope_rule(struct fields *f, const cJSON *object, int max_len, struct rope *r, double *partial)
{
    struct fields s = {object, f->e, f->file, 0};
    get_real(&s, "rope_theta", 1, 1e12, &r->theta);
    get_real(&s, "partial_rotary_factor", 0, 1, partial);
    const char *type = get_text(&s, "rope_type");
    if (!type) type = get_text(&s, "type");
    if (!type || strcmp(type, "default") == 0) {
        r->scaling = ROPE_PLAIN;
    } else if (strcmp(type, "linear") == 0) {
        r->scaling = ROPE_LINEAR;
        need(&s, "factor");
    } else if (strcmp(type, "llama3") == 0) {
        r->scaling = ROPE_LLAMA3;
        need(&s, "factor");
        need(&s, "low_freq_factor");
        need(&s, "high_freq_factor");
        r->old_len = max_len;
    } else if (!s.rc) {
        s.rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: rope type \"%.40s\" is not supported", type);
    }
    get_real(&s, "factor", 1e-3, 1e6, &r->factor);
    get_real(&s, "low_freq_factor", 1e-3, 1e6, &r->low);
    get_real(&s, "high_freq_factor", 1e-3, 1e6, &r->high);
    get_int(&s, "original_max_position_embeddings", 1, MAX_POSITIONS, &r->old_len);
    if (r->scaling == ROPE_LLAMA3) get_int(f, "original_max_position_embeddings", 1, MAX_POSITIONS, &r->old_len);
    if (!s.rc && r->scaling == ROPE_LLAMA3 && r->high <= r->low)
        s.rc = err_set(f->e, ERR_INVALID, "config.json: high_freq_factor must be above low_freq_factor");
    if (!f->rc) f->rc = s.rc;
}

/* Transformers 5 writes rope_parameters, 4 wrote rope_scaling; the same keys inside.  As in transformers, a non-empty
 * rope_scaling takes precedence. */
static void read_rope(struct fields *f, struct model_config *c)
{
    const struct family_rope *m = &c->family->rope;
    double partial = m->partial;
    c->n_ropes = m->window_theta_field ? 2 : 1;
    if (!m->any) return;
    c->rope[0] = (struct rope){.theta = m->theta, .factor = 1};
    get_real(f, "rope_theta", 1, 1e12, &c->rope[0].theta);
    get_real(f, "partial_rotary_factor", 0, 1, &partial);
    const char *name = "rope_scaling";
    const cJSON *rule = object(f, name), *window_rule = NULL, *full_rule = NULL;
    if (m->window_theta_field) {
        c->rope[1] = (struct rope){.theta = m->window_theta, .factor = 1};
        get_real(f, m->window_theta_field, 1, 1e12, &c->rope[1].theta);
        const cJSON *parameters = object(f, "rope_parameters");
        struct fields types = {parameters, f->e, "config.json: rope_parameters", f->rc};
        need_types(&types);
        window_rule = object(&types, "sliding_attention");
        full_rule = object(&types, "full_attention");
        f->rc = types.rc;
    } else if (!rule) {
        rule = object(f, name = "rope_parameters");
    }
    refuse_types(f, name, rule);
    if (full_rule && !f->rc) read_rope_rule(f, full_rule, c->max_len, &c->rope[0], &partial);
    if (rule && !f->rc)
        read_rope_rule(f, rule, c->max_len, &c->rope[0], &partial); /* overrides the other, as in transformers */
    if (window_rule && !f->rc) read_rope_rule(f, window_rule, c->max_len, &c->rope[1], &partial);
    if (!f->rc) check_partial(f, c, partial);
}

/* The kinds of layers; model_config.kind holds them. */
enum { KIND_FULL, KIND_WINDOW };

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
        agrees = agrees && kind == c->kind[n];
        slides = slides || slide;
        c->kind[n] = kind;
    }
    bool windows = c->block[KIND_WINDOW].window > 0;
    if (n != c->layers)
        f->rc =
            err_set(f->e, ERR_INVALID, "config.json: layer_types must be a list of num_hidden_layers (%d)", c->layers);
    else if (c->family->window.by_type ? slides && !windows : !agrees)
        f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: layer_types does not go with sliding_window in a %s model",
                        c->family->model_type);
}

static bool has_window(enum window_rule rule, int number, int layer)
{
    switch (rule) {
    case WINDOW_ALL: return true;
    case WINDOW_FROM: return layer >= number;
    case WINDOW_BUT_EVERY: return (layer + 1) % number != 0;
    default: return false;
    }
}

/* Creates the kinds of layers from `like` and assigns each layer its kind. */
static void read_window(struct fields *f, const struct block *like, struct model_config *c)
{
    const struct family_window *w = &c->family->window;
    int window = 0, number = w->number;
    bool use = w->rule != WINDOW_NONE && !w->enabled;
    if (w->enabled) get_bool(f, w->enabled, &use);
    if (use) {
        bool null = cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(f->j, "sliding_window"));
        window = null ? 0 : w->positions;
        get_int(f, "sliding_window", 1, MAX_POSITIONS, &window);
        get_int(f, w->field, w->rule == WINDOW_BUT_EVERY, MAX_LAYERS, &number);
        if (!f->rc && null && w->rule == WINDOW_BUT_EVERY) /* transformers fails */
            f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: sliding_window null is not supported in a %s model",
                            c->family->model_type);
    }
    c->block[KIND_FULL] = c->block[KIND_WINDOW] = *like;
    c->block[KIND_WINDOW].window = window;
    c->block[KIND_WINDOW].rope = c->n_ropes - 1;
    for (int l = 0; l < c->layers; l++) c->kind[l] = window && has_window(w->rule, number, l) ? KIND_WINDOW : KIND_FULL;
    const cJSON *types = get(f, "layer_types");
    if (types && !f->rc) read_layer_types(f, types, c);
}

static bool reads_number(const struct model_family *m, const char *name)
{
    for (int i = 0; i < FAMILY_NUMBERS && m->number[i].name; i++)
        if (strcmp(m->number[i].name, name) == 0) return true;
    return false;
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
        bool neutral = !v || reads_number(c->family, foreign[i].name) || cJSON_IsFalse(v) ||
                       (cJSON_IsNumber(v) && v->valuedouble == foreign[i].neutral) || (cJSON_IsArray(v) && !v->child);
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
    switch (n->use) {
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

static void read_switch(struct fields *f, const struct family_switch *s, struct model_config *c)
{
    bool on = s->use == SWITCH_ATTENTION_BIAS ? c->qkv_bias
              : s->use == SWITCH_MLP_BIAS     ? c->mlp_bias
                                              : s->use == SWITCH_ON;
    get_bool(f, s->name, &on);
    if (f->rc) return;
    switch (s->use) {
    case SWITCH_ATTENTION_BIAS: c->qkv_bias = c->o_bias = on; break;
    case SWITCH_MLP_BIAS: c->mlp_bias = on; break;
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

static void read_sizes(struct fields *f, struct model_config *c)
{
    const struct family_fields *n = &c->family->field;
    const struct family_defaults *o = &c->family->otherwise;
    const char *needed[] = {n->hidden, n->layers, n->heads, n->inter};
    for (int i = 0; i < (o->inter_per_hidden ? 3 : 4); i++) need(f, needed[i]);
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
    if (!f->rc && c->heads % c->kv_heads)
        f->rc = err_set(f->e, ERR_INVALID, "config.json: %s %d is not a multiple of %s %d", n->heads, c->heads,
                        n->kv_heads, c->kv_heads);
    read_head_dim(f, c);
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
    for (int i = 0; i < FAMILY_SWITCHES && m->toggle[i].name; i++) read_switch(f, &m->toggle[i], c);
    c->tied = m->otherwise.tied;
    get_bool(f, "tie_word_embeddings", &c->tied);
    struct block b = {.norms = m->layer.norms,
                      .residual_scale = 1,
                      .scale = 1.0f / sqrtf((float)c->head_dim),
                      .qk_norm = m->layer.qk_norm,
                      .gated = m->layer.gated};
    c->embed_scale = m->embed_root ? (float)sqrt((double)c->hidden) : 1;
    c->embed_scale_rounded = m->embed_root;
    c->logit_scale = 1;
    for (int i = 0; i < FAMILY_NUMBERS && m->number[i].name; i++) read_number(f, &m->number[i], c, &b);
    read_dtype(f, c);
    read_act(f, c, &b.act);
    if (!f->rc) read_rope(f, c);
    if (!f->rc) read_window(f, &b, c);
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

/* quantization_config as transformers writes it for bitsandbytes (weights_bnb.h) */
static void read_bnb(struct fields *f, const cJSON *q, struct model_config *c)
{
    struct fields b = {q, f->e, "config.json: quantization_config", 0};
    bool four = false;
    get_bool(&b, "load_in_4bit", &four);
    const char *type = get_text(&b, "bnb_4bit_quant_type");
    if (!b.rc && !four)
        b.rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: bitsandbytes 8-bit weights are not supported, only nf4");
    else if (!b.rc && (!type || strcmp(type, "nf4")))
        b.rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: bnb_4bit_quant_type \"%.16s\" is not supported, only nf4",
                       type ? type : "fp4");
    snprintf(c->quant, sizeof c->quant, "nf4");
    f->rc = b.rc;
}

static void read_quant(struct fields *f, struct model_config *c)
{
    const cJSON *q = get(f, "quantization_config");
    if (!q || f->rc) return;
    const cJSON *method = cJSON_GetObjectItemCaseSensitive(q, "quant_method");
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(q, "type");
    /* the oldest files have no quant_method */
    bool old = !method && (cJSON_GetObjectItemCaseSensitive(q, "load_in_4bit") ||
                           cJSON_GetObjectItemCaseSensitive(q, "load_in_8bit"));
    if (old || (cJSON_IsString(method) && strcmp(method->valuestring, "bitsandbytes") == 0))
        read_bnb(f, q, c);
    else if (!cJSON_IsString(method) || strcmp(method->valuestring, "tandem") || !cJSON_IsString(type))
        f->rc = err_set(
            f->e, ERR_UNSUPPORTED,
            "config.json: quantization_config was not written by tandem; use the unquantised model and --quantize");
    else
        snprintf(c->quant, sizeof c->quant, "%.15s", type->valuestring);
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
    if (!f.rc) read_family(&f, c);
    need(&f, "vocab_size");
    get_int(&f, "vocab_size", 1, MAX_VOCAB, &c->vocab);
    if (!f.rc) read_sizes(&f, c);
    if (!f.rc) read_layers(&f, c);
    if (!f.rc) refuse_foreign(&f, c);
    bool causal = true;
    get_bool(&f, "is_causal", &causal);
    if (!f.rc && !causal) f.rc = err_set(e, ERR_UNSUPPORTED, "config.json: is_causal false is not supported");
    if (!f.rc) read_quant(&f, c);
    if (!f.rc) read_generation(generation, c, &f);
    if (!f.rc) read_eos(&f, c);
    cJSON_Delete(j);
    return f.rc;
}

int model_config_read(const char *dir, struct model_config *c, struct err *e)
{
    char *path = file_join(dir, "config.json"), *config = NULL, *generation = NULL;
    size_t n;
    int rc = file_read(path, CONFIG_LIMIT, &config, &n, e);
    free(path);
    if (rc) return model_dir_no_config(dir, e);
    path = file_join(dir, "generation_config.json");
    rc = file_read(path, CONFIG_LIMIT, &generation, &n, e);
    free(path);
    if (rc == ERR_NOT_FOUND) rc = 0;
    if (!rc) rc = model_config_parse(config, generation, c, e);
    free(config);
    free(generation);
    return rc;
}
