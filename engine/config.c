#include "engine/config.h"

#include "engine/base/file.h"

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

static void read_rope(struct fields *f, struct model_config *c)
{
    double partial = c->family == FAMILY_PHI ? 0.5 : 1.0;
    c->rope_theta = 10000;
    get_real(f, "rope_theta", 1, 1e12, &c->rope_theta);
    get_real(f, "partial_rotary_factor", 0, 1, &partial);

    /* transformers 5 says rope_parameters, 4 says rope_scaling; the same keys inside */
    const cJSON *scaling = get(f, "rope_parameters");
    if (!scaling) scaling = get(f, "rope_scaling");
    if (scaling && !cJSON_IsObject(scaling) && !f->rc)
        f->rc = err_set(f->e, ERR_INVALID, "config.json: rope_scaling must be an object");
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
            need(&s, "original_max_position_embeddings");
        } else if (!s.rc) {
            s.rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: rope type \"%.40s\" is not supported", type);
        }
        get_real(&s, "factor", 1e-3, 1e6, &c->rope_factor);
        get_real(&s, "low_freq_factor", 1e-3, 1e6, &c->rope_low);
        get_real(&s, "high_freq_factor", 1e-3, 1e6, &c->rope_high);
        get_int(&s, "original_max_position_embeddings", 1, MAX_POSITIONS, &c->rope_old_len);
        if (!s.rc && c->rope == ROPE_LLAMA3 && c->rope_high <= c->rope_low)
            s.rc = err_set(f->e, ERR_INVALID, "config.json: high_freq_factor must be above low_freq_factor");
        f->rc = s.rc;
    }
    c->rot = (int)(c->head_dim * partial) / 2 * 2;
}

static void read_window(struct fields *f, struct model_config *c)
{
    /* Mistral's sliding_window counts when present, Qwen's needs the switch, Llama has none */
    bool use = strcmp(c->family_name, "mistral") == 0;
    if (c->family == FAMILY_LLAMA && !use) return;
    get_bool(f, "use_sliding_window", &use);
    if (!use) return;
    get_int(f, "sliding_window", 1, MAX_POSITIONS, &c->window);
    if (c->family != FAMILY_LLAMA) {
        c->window_from = 28; /* transformers' default */
        get_int(f, "max_window_layers", 0, MAX_LAYERS, &c->window_from);
    }
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
    bool odd = false;
    get_bool(f, "scale_attn_by_inverse_layer_idx", &odd);
    if (!f->rc && odd)
        f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: scale_attn_by_inverse_layer_idx is not supported");
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
    c->kv_heads = c->heads;
    get_int(f, "num_key_value_heads", 1, MAX_HEADS, &c->kv_heads);
    get_int(f, "intermediate_size", 1, MAX_WIDTH * 4, &c->inter);
    c->max_len = 2048;
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
    if (c->family == FAMILY_LLAMA || c->family == FAMILY_QWEN3) {
        get_bool(f, "attention_bias", &c->qkv_bias);
        c->o_bias = c->qkv_bias;
        if (c->family == FAMILY_LLAMA) get_bool(f, "mlp_bias", &c->mlp_bias);
    }
    bool odd = false;
    if (phi) get_bool(f, "qk_layernorm", &odd);
    if (!f->rc && odd) f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: qk_layernorm is not supported");
    get_bool(f, "tie_word_embeddings", &c->tied);
    if (c->tied) c->head_bias = false;
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
    if (!cJSON_IsObject(j)) f.rc = err_set(e, ERR_INVALID, "config.json is not a JSON object");
    if (!f.rc) read_family(&f, c);
    need(&f, "vocab_size");
    get_int(&f, "vocab_size", 1, MAX_VOCAB, &c->vocab);
    if (!f.rc) c->family == FAMILY_GPT2 ? read_gpt2(&f, c) : read_llama_like(&f, c);
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
    if (rc) return rc;
    path = file_join(dir, "generation_config.json");
    rc = file_read(path, CONFIG_LIMIT, &generation, &n, e);
    free(path);
    if (rc == ERR_NOT_FOUND) rc = 0;
    if (!rc) rc = model_config_parse(config, generation, c, e);
    free(config);
    free(generation);
    return rc;
}
