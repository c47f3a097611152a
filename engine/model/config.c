#include "engine/model/config.h"

#include "engine/base/file.h"
#include "engine/base/model_dir.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_LIMIT = 16 << 20 };

/* Ranges no real model leaves; with them, no product of two sizes overflows 64 bits and no dimension 31. */
enum {
    MAX_LAYERS = 1024,
    MAX_WIDTH = 1 << 18,
    MAX_HEADS = 4096,
    MAX_HEAD_DIM = 1024,
    MAX_VOCAB = 1 << 24,
    MAX_POSITIONS = 1 << 24
};

/* ---- typed getters: a missing field leaves *out alone, a wrong one is the first error ---- */

struct fields {
    const cJSON *j;
    struct err *e;
    const char *file;
    int rc;
};

static const cJSON *get(const struct fields *f, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(f->j, name);
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

static const struct {
    const char *model_type;
    enum family family;
} families[] = {
    {"llama", FAMILY_LLAMA}, {"mistral", FAMILY_LLAMA}, {"qwen2", FAMILY_QWEN2},
    {"qwen3", FAMILY_QWEN3}, {"gpt2", FAMILY_GPT2},     {"phi", FAMILY_PHI},
};

static void read_family(struct fields *f, struct model_config *c)
{
    const char *type = get_text(f, "model_type");
    if (f->rc) return;
    if (!type) {
        f->rc = err_set(f->e, ERR_INVALID, "config.json: model_type is missing");
        return;
    }
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(type, families[i].model_type) == 0) {
            c->family = families[i].family;
            snprintf(c->family_name, sizeof c->family_name, "%s", type);
            return;
        }
    f->rc = err_set(f->e, ERR_UNSUPPORTED,
                    "config.json: model_type \"%.40s\" is not one of llama, mistral, qwen2, qwen3, gpt2, phi", type);
}

static void read_act(struct fields *f, struct model_config *c, const char *field, const char *otherwise)
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
    const char *name = get_text(f, field);
    if (f->rc) return;
    if (!name) name = otherwise;
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (strcmp(name, acts[i].name) == 0) {
            c->act = acts[i].act;
            return;
        }
    f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: %s \"%.40s\" is not an activation tandem knows", field, name);
}

/* Transformers 5 writes rope_parameters, 4 wrote rope_scaling; the same keys inside.  As transformers does, a
 * rope_scaling that says something comes first. */
static const cJSON *rope_object(struct fields *f)
{
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const cJSON *v = get(f, names[i]);
        if (!v || f->rc) continue;
        if (!cJSON_IsObject(v)) {
            f->rc = err_set(f->e, ERR_INVALID, "config.json: %s must be an object", names[i]);
            return NULL;
        }
        for (const cJSON *k = v->child; k; k = k->next)
            if (cJSON_IsObject(k)) {
                f->rc =
                    err_set(f->e, ERR_UNSUPPORTED, "config.json: %s: one for each layer type (%.40s) is not supported",
                            names[i], k->string);
                return NULL;
            }
        if (v->child) return v;
    }
    return NULL;
}

/* Only Phi rotates a part of a head: in the other families transformers ignores the field, or fails. */
static void check_partial(struct fields *f, struct model_config *c, double partial)
{
    int rot = (int)(c->head_dim * partial);
    if (c->family != FAMILY_PHI && partial < 1)
        f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: partial_rotary_factor %g: %s models rotate whole heads",
                        partial, c->family_name);
    else if (rot % 2)
        f->rc = err_set(f->e, ERR_INVALID, "config.json: an odd number of rotated features (%d of %d) in a head", rot,
                        c->head_dim);
    c->rot = rot;
}

static void read_rope(struct fields *f, struct model_config *c)
{
    double partial = c->family == FAMILY_PHI ? 0.5 : 1.0;
    c->rope_theta = 10000;
    get_real(f, "rope_theta", 1, 1e12, &c->rope_theta);
    get_real(f, "partial_rotary_factor", 0, 1, &partial);
    const cJSON *scaling = rope_object(f);
    if (scaling && !f->rc) {
        struct fields s = {scaling, f->e, f->file, 0};
        get_real(&s, "rope_theta", 1, 1e12, &c->rope_theta);
        get_real(&s, "partial_rotary_factor", 0, 1, &partial);
        const char *type = get_text(&s, "rope_type");
        if (!type) type = get_text(&s, "type");
        if (!type || strcmp(type, "default") == 0) {
            c->rope = ROPE_PLAIN;
        } else if (strcmp(type, "linear") == 0) {
            c->rope = ROPE_LINEAR;
            need(&s, "factor");
        } else if (strcmp(type, "llama3") == 0) {
            c->rope = ROPE_LLAMA3;
            need(&s, "factor");
            need(&s, "low_freq_factor");
            need(&s, "high_freq_factor");
            c->rope_old_len = c->max_len;
        } else if (!s.rc) {
            s.rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: rope type \"%.40s\" is not supported", type);
        }
        get_real(&s, "factor", 1e-3, 1e6, &c->rope_factor);
        get_real(&s, "low_freq_factor", 1e-3, 1e6, &c->rope_low);
        get_real(&s, "high_freq_factor", 1e-3, 1e6, &c->rope_high);
        get_int(&s, "original_max_position_embeddings", 1, MAX_POSITIONS, &c->rope_old_len);
        if (c->rope == ROPE_LLAMA3) get_int(f, "original_max_position_embeddings", 1, MAX_POSITIONS, &c->rope_old_len);
        if (!s.rc && c->rope == ROPE_LLAMA3 && c->rope_high <= c->rope_low)
            s.rc = err_set(f->e, ERR_INVALID, "config.json: high_freq_factor must be above low_freq_factor");
        if (!f->rc) f->rc = s.rc;
    }
    if (!f->rc) check_partial(f, c, partial);
}

static bool is_mistral(const struct model_config *c)
{
    return strcmp(c->family_name, "mistral") == 0;
}

/* Layers are full up to one, and sliding from there on: another order is refused.  -1 and the first error, or the
 * number of full layers. */
static int full_layers(struct fields *f, const cJSON *types, const struct model_config *c)
{
    int full = 0, n = 0;
    for (const cJSON *t = cJSON_IsArray(types) ? types->child : NULL; t; t = t->next, n++) {
        bool is_full = cJSON_IsString(t) && strcmp(t->valuestring, "full_attention") == 0;
        if (!is_full && !(cJSON_IsString(t) && strcmp(t->valuestring, "sliding_attention") == 0))
            return f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: layer_types: \"%.40s\" is not supported",
                                   cJSON_IsString(t) ? t->valuestring : "?"),
                   -1;
        if (is_full && full < n)
            return f->rc = err_set(f->e, ERR_UNSUPPORTED,
                                   "config.json: layer_types: full_attention above sliding_attention is not supported"),
                   -1;
        full += is_full;
    }
    if (n == c->layers) return full;
    f->rc = err_set(f->e, ERR_INVALID, "config.json: layer_types must be a list of num_hidden_layers (%d)", c->layers);
    return -1;
}

static void read_window(struct fields *f, struct model_config *c)
{
    bool mistral = is_mistral(c), qwen = c->family == FAMILY_QWEN2 || c->family == FAMILY_QWEN3, use = mistral;
    if (qwen) get_bool(f, "use_sliding_window", &use);
    if (use) {
        bool null = cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(f->j, "sliding_window"));
        c->window = null ? 0 : 4096; /* transformers' defaults, as 28 */
        get_int(f, "sliding_window", 1, MAX_POSITIONS, &c->window);
        if (qwen) c->window_from = 28;
        if (qwen) get_int(f, "max_window_layers", 0, MAX_LAYERS, &c->window_from);
    }
    const cJSON *types = get(f, "layer_types");
    int full = types && !f->rc ? full_layers(f, types, c) : -1;
    if (full < 0) return;
    bool slides = full < c->layers;
    if (qwen && slides && c->window)
        c->window_from = full;
    else if (qwen && !slides)
        c->window = 0;
    else if (slides != (c->window > 0) || (slides && full))
        f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: layer_types does not go with sliding_window in a %s model",
                        c->family_name);
}

/* Fields of other families that change what is computed; no family here has them. */
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
        bool neutral = !v || cJSON_IsFalse(v) || (cJSON_IsNumber(v) && v->valuedouble == foreign[i].neutral) ||
                       (cJSON_IsArray(v) && !v->child);
        if (!neutral)
            f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: %s is not supported: %s models have none",
                            foreign[i].name, c->family_name);
    }
}

/* A switch that must be off. */
static void refuse_true(struct fields *f, const char *name)
{
    bool on = false;
    get_bool(f, name, &on);
    if (!f->rc && on) f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: %s is not supported", name);
}

static void check_head_dim(struct fields *f, const struct model_config *c)
{
    if (!f->rc && c->head_dim > MAX_HEAD_DIM)
        f->rc = err_set(f->e, ERR_INVALID, "%s: heads of %d features; at most %d are sane", f->file, c->head_dim,
                        MAX_HEAD_DIM);
}

static void read_gpt2(struct fields *f, struct model_config *c)
{
    need(f, "n_embd");
    need(f, "n_layer");
    need(f, "n_head");
    get_int(f, "n_embd", 1, MAX_WIDTH, &c->hidden);
    get_int(f, "n_layer", 1, MAX_LAYERS, &c->layers);
    get_int(f, "n_head", 1, MAX_HEADS, &c->heads);
    c->inter = 4 * c->hidden;
    get_int(f, "n_inner", 1, MAX_WIDTH * 4, &c->inter);
    c->max_len = 1024;
    get_int(f, "n_positions", 1, MAX_POSITIONS, &c->max_len);
    double eps = 1e-5;
    get_real(f, "layer_norm_epsilon", 0, 1, &eps);
    c->eps = (float)eps;
    c->kv_heads = c->heads;
    c->norm = NORM_LAYER;
    c->norm_bias = c->qkv_bias = c->o_bias = c->mlp_bias = c->learned_pos = true;
    c->tied = true;
    get_bool(f, "tie_word_embeddings", &c->tied);
    refuse_true(f, "scale_attn_by_inverse_layer_idx");
    refuse_true(f, "add_cross_attention");
    bool scaled = true;
    get_bool(f, "scale_attn_weights", &scaled);
    if (!f->rc && !scaled)
        f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: scale_attn_weights false is not supported");
    read_act(f, c, "activation_function", "gelu_new");
    if (!f->rc && c->hidden % c->heads)
        f->rc =
            err_set(f->e, ERR_INVALID, "config.json: n_embd %d is not a multiple of n_head %d", c->hidden, c->heads);
    if (!f->rc) c->head_dim = c->hidden / c->heads;
    check_head_dim(f, c);
}

static void read_sizes(struct fields *f, struct model_config *c)
{
    static const char *const needed[] = {"hidden_size", "num_hidden_layers", "num_attention_heads",
                                         "intermediate_size"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) need(f, needed[i]);
    get_int(f, "hidden_size", 1, MAX_WIDTH, &c->hidden);
    get_int(f, "num_hidden_layers", 1, MAX_LAYERS, &c->layers);
    get_int(f, "num_attention_heads", 1, MAX_HEADS, &c->heads);
    bool qwen = c->family == FAMILY_QWEN2 || c->family == FAMILY_QWEN3;
    c->kv_heads = c->heads;
    if (!cJSON_GetObjectItemCaseSensitive(f->j, "num_key_value_heads")) /* transformers' defaults; null is heads */
        c->kv_heads = is_mistral(c) ? 8 : qwen ? 32 : c->heads;
    get_int(f, "num_key_value_heads", 1, MAX_HEADS, &c->kv_heads);
    get_int(f, "intermediate_size", 1, MAX_WIDTH * 4, &c->inter);
    c->max_len = is_mistral(c) ? 131072 : qwen ? 32768 : 2048;
    get_int(f, "max_position_embeddings", 1, MAX_POSITIONS, &c->max_len);
    get_int(f, "head_dim", 1, MAX_HEAD_DIM, &c->head_dim);
    if (f->rc) return;
    if (c->heads % c->kv_heads)
        f->rc = err_set(f->e, ERR_INVALID,
                        "config.json: num_attention_heads %d is not a multiple of num_key_value_heads %d", c->heads,
                        c->kv_heads);
    else if (!c->head_dim && c->family != FAMILY_QWEN3 && c->hidden % c->heads)
        f->rc = err_set(f->e, ERR_INVALID, "config.json: hidden_size %d is not a multiple of num_attention_heads %d",
                        c->hidden, c->heads);
    else if (!c->head_dim)
        c->head_dim = c->family == FAMILY_QWEN3 ? 128 : c->hidden / c->heads;
    check_head_dim(f, c);
}

static void read_llama_like(struct fields *f, struct model_config *c)
{
    bool phi = c->family == FAMILY_PHI;
    read_sizes(f, c);
    double eps = phi ? 1e-5 : 1e-6;
    get_real(f, phi ? "layer_norm_eps" : "rms_norm_eps", 0, 1, &eps);
    c->eps = (float)eps;
    c->norm = phi ? NORM_LAYER : NORM_RMS;
    c->gated = !phi;
    c->parallel = c->norm_bias = c->o_bias = c->mlp_bias = c->head_bias = phi;
    c->qkv_bias = phi || c->family == FAMILY_QWEN2;
    c->qk_norm = c->family == FAMILY_QWEN3;
    bool llama = c->family == FAMILY_LLAMA && !is_mistral(c);
    if (llama || c->family == FAMILY_QWEN3) {
        get_bool(f, "attention_bias", &c->qkv_bias);
        c->o_bias = c->qkv_bias;
    } else if (is_mistral(c)) { /* transformers ignores it */
        refuse_true(f, "attention_bias");
    }
    if (llama)
        get_bool(f, "mlp_bias", &c->mlp_bias);
    else
        refuse_true(f, "mlp_bias");
    if (phi) refuse_true(f, "qk_layernorm");
    get_bool(f, "tie_word_embeddings", &c->tied);
    read_act(f, c, "hidden_act", phi ? "gelu_new" : "silu");
    if (!f->rc) read_rope(f, c);
    if (!f->rc) read_window(f, c);
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

/* as transformers writes it for bitsandbytes (weights_bnb.h) */
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
    /* the oldest have no quant_method */
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
        .temperature = NAN, .top_p = NAN, .repetition_penalty = NAN, .top_k = -1, .do_sample = -1, .rope_factor = 1};
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
    if (!f.rc) c->family == FAMILY_GPT2 ? read_gpt2(&f, c) : read_llama_like(&f, c);
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
