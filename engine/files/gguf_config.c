/* config.json and generation_config.json from a GGUF file's keys (gguf_model.h). */
#include "engine/files/gguf_keys.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS_MAX = 1024, KEY_MAX = 128 };

/* ---- config.json ------------------------------------------------------------------------------------------------- */

/* Which layers have a window: of each `period` all but the last; or an array has it for each layer. */
static void put_windows(struct gguf_keys *r, struct buf *out, double period)
{
    const char *name = "attention.sliding_window_pattern";
    const struct gguf_key *k = gguf_keys_array(r, name);
    double layers = k ? (double)k->n : gguf_keys_needed(r, "block_count");
    if (!k) gguf_keys_number(r, name, &period);
    gguf_put_if(r, out, "attention.sliding_window", "sliding_window");
    buf_str(out, ",\n\"layer_types\":[");
    for (int i = 0; i < layers && i < LAYERS_MAX; i++) {
        bool slides = k ? gguf_element(k, (uint64_t)i) != 0 : fmod(i + 1, period) != 0;
        buf_printf(out, "%s\"%s_attention\"", i ? "," : "", slides ? "sliding" : "full");
    }
    buf_char(out, ']');
}

/* Without a key, scores are divided by the root of this: for the largest model of each generation by that of hidden /
 * heads (llama.cpp, src/models: the layers tell which one it is). */
static void put_gemma(struct gguf_keys *r, struct buf *out, const struct gguf_heads *h)
{
    bool third = strcmp(r->arch->model_type, "gemma2") != 0;
    double layers = gguf_keys_needed(r, "block_count"), width = gguf_keys_needed(r, "embedding_length"), local = 10000;
    bool largest = layers == (third ? 62 : 46);
    double divisor = largest ? width / h->q : h->dim, scale;
    if (gguf_keys_number(r, "attention.scale", &scale) && scale > 0) divisor = 1 / (scale * scale);
    gguf_put(out, "query_pre_attn_scalar", divisor);
    gguf_put_if(r, out, "final_logit_softcapping", "final_logit_softcapping");
    if (third) {
        gguf_keys_number(r, "rope.freq_base_swa", &local);
        gguf_put(out, "rope_local_base_freq", local);
        put_windows(r, out, 6);
    } else {
        gguf_put_if(r, out, "attention.sliding_window", "sliding_window");
        gguf_put_if(r, out, "attn_logit_softcapping", "attn_logit_softcapping");
    }
}

static void put_gpt2(struct gguf_keys *r, struct buf *out, const struct gguf_heads *h)
{
    gguf_put_needed(r, out, "embedding_length", "n_embd");
    gguf_put_needed(r, out, "block_count", "n_layer");
    gguf_put_needed(r, out, "feed_forward_length", "n_inner");
    gguf_put_needed(r, out, "context_length", "n_positions");
    gguf_put(out, "n_head", h->q);
    gguf_put_needed(r, out, "attention.layer_norm_epsilon", "layer_norm_epsilon");
}

static const struct gguf_tensor *embedding(struct gguf_keys *r)
{
    const struct gguf_tensor *t = gguf_tensor_find(r->g, "token_embd.weight");
    if (t && t->n_dims == 2) return t;
    r->rc = err_set(r->e, ERR_INVALID, "GGUF: tensor token_embd.weight is missing or not a matrix");
    return NULL;
}

static bool windowed(struct gguf_keys *r)
{
    double window = 0;
    return gguf_keys_number(r, "attention.sliding_window", &window) && window > 0;
}

/* The float type in which the model was saved, as far as the file tells. */
static void put_dtype(struct buf *out, enum ggml_type t)
{
    const char *name = t == GGML_F16 ? "float16" : t == GGML_BF16 ? "bfloat16" : NULL;
    if (name) buf_printf(out, ",\n\"torch_dtype\":\"%s\"", name);
}

static bool has(const struct gguf_keys *r, const char *tensor)
{
    return gguf_tensor_find(r->g, tensor);
}

static void put_biases(struct gguf_keys *r, struct buf *out, const struct gguf_heads *h)
{
    (void)h;
    gguf_put_flag(out, "attention_bias", has(r, "blk.0.attn_q.bias"));
    gguf_put_flag(out, "mlp_bias", has(r, "blk.0.ffn_up.bias"));
}

static void put_window(struct gguf_keys *r, struct buf *out, const struct gguf_heads *h)
{
    (void)h;
    if (windowed(r)) gguf_put_if(r, out, "attention.sliding_window", "sliding_window");
}

static void put_llama(struct gguf_keys *r, struct buf *out, const struct gguf_heads *h)
{
    double experts = 0;
    put_window(r, out, h);
    if (gguf_keys_number(r, "expert_count", &experts) && experts > 0) {
        gguf_put(out, "num_local_experts", experts);
        gguf_put_needed(r, out, "expert_used_count", "num_experts_per_tok");
    } else if (!windowed(r)) {
        put_biases(r, out, h);
    }
}

/* The scale of attention is that of other models unless a key names one. */
static void put_granite(struct gguf_keys *r, struct buf *out, const struct gguf_heads *h)
{
    double scale = 1 / sqrt(h->dim);
    put_biases(r, out, h);
    gguf_keys_number(r, "attention.scale", &scale);
    gguf_put(out, "attention_multiplier", scale);
    gguf_put_if(r, out, "embedding_scale", "embedding_multiplier");
    gguf_put_if(r, out, "residual_scale", "residual_multiplier");
    gguf_put_if(r, out, "logit_scale", "logits_scaling");
}

/* OLMo 3 has windows. */
static void put_olmo2(struct gguf_keys *r, struct buf *out, const struct gguf_heads *h)
{
    (void)h;
    gguf_put_flag(out, "attention_bias", has(r, "blk.0.attn_q.bias"));
    if (windowed(r)) put_windows(r, out, 4);
}

static void put_stablelm(struct gguf_keys *r, struct buf *out, const struct gguf_heads *h)
{
    (void)h;
    gguf_put_flag(out, "use_qkv_bias", has(r, "blk.0.attn_q.bias"));
    gguf_put_flag(out, "qk_layernorm", has(r, "blk.0.attn_q_norm.weight"));
    gguf_put_flag(out, "use_parallel_residual", !has(r, "blk.0.ffn_norm.weight"));
}

static void put_gpt_neox(struct gguf_keys *r, struct buf *out, const struct gguf_heads *h)
{
    double parallel = 1, theta = 10000, rotated = h->dim;
    gguf_keys_number(r, "use_parallel_residual", &parallel);
    gguf_keys_number(r, "rope.freq_base", &theta);
    gguf_keys_number(r, "rope.dimension_count", &rotated);
    gguf_put_flag(out, "attention_bias", has(r, "blk.0.attn_qkv.bias"));
    gguf_put_flag(out, "use_parallel_residual", parallel != 0);
    gguf_put(out, "rotary_emb_base", theta);
    gguf_put(out, "rotary_pct", rotated / h->dim);
}

/* Ministral 3 scales queries; llama.cpp's architecture of that name is also that of Mistral Small 3, which does not. */
static bool scales_queries(struct gguf_keys *r)
{
    double scale = 0;
    return gguf_keys_number(r, "attention.temperature_scale", &scale) && scale > 0;
}

/* Layers without a router are dense. */
static void put_dense_layers(struct gguf_keys *r, struct buf *out)
{
    double layers = gguf_keys_needed(r, "block_count");
    int n = 0;
    buf_str(out, ",\n\"mlp_only_layers\":[");
    for (int i = 0; i < layers && i < LAYERS_MAX; i++) {
        char name[40];
        snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", i);
        if (!has(r, name)) buf_printf(out, "%s%d", n++ ? "," : "", i);
    }
    buf_char(out, ']');
}

/* Widths without a key: of all chosen experts together that of a dense layer (llama.cpp, src/models). */
static void put_experts(struct gguf_keys *r, struct buf *out, const struct gguf_heads *h)
{
    (void)h;
    const char *type = r->arch->model_type;
    double chosen = gguf_keys_needed(r, "expert_used_count"), width = gguf_keys_needed(r, "feed_forward_length");
    double one = chosen > 0 ? floor(width / chosen) : 0, shared = width;
    gguf_put_needed(r, out, "expert_count", "num_experts");
    gguf_put(out, "num_experts_per_tok", chosen);
    gguf_put_flag(out, "norm_topk_prob", strcmp(type, "qwen3_moe") == 0);
    if (strcmp(type, "qwen2_moe")) gguf_put_flag(out, "attention_bias", has(r, "blk.0.attn_q.bias"));
    gguf_put_if(r, out, "attention.clamp_kqv", "clip_qkv");
    if (strcmp(type, "olmoe") == 0) return;
    gguf_keys_number(r, "expert_feed_forward_length", &one);
    gguf_put(out, "moe_intermediate_size", one);
    put_dense_layers(r, out);
    if (strcmp(type, "qwen2_moe")) return;
    gguf_keys_number(r, "expert_shared_feed_forward_length", &shared);
    gguf_put(out, "shared_expert_intermediate_size", shared);
    gguf_put_flag(out, "qkv_bias", has(r, "blk.0.attn_q.bias"));
}

/* feed_forward_length is the width of an expert, too. */
static void put_gpt_oss(struct gguf_keys *r, struct buf *out, const struct gguf_heads *h)
{
    (void)h;
    double width = gguf_keys_needed(r, "feed_forward_length"), one = width;
    gguf_keys_number(r, "expert_feed_forward_length", &one);
    if (!r->rc && one != width)
        r->rc = err_set(r->e, ERR_UNSUPPORTED,
                        "GGUF: expert_feed_forward_length %g differs from feed_forward_length %g", one, width);
    gguf_put_needed(r, out, "expert_count", "num_local_experts");
    gguf_put_needed(r, out, "expert_used_count", "num_experts_per_tok");
    gguf_put_flag(out, "attention_bias", has(r, "blk.0.attn_q.bias"));
    put_windows(r, out, 2);
}

/* What only some architectures have, by model_type; one that is not listed has nothing. */
static const struct family {
    const char *model_type;
    void (*put)(struct gguf_keys *, struct buf *, const struct gguf_heads *);
    bool layer_norm; /* not RMS */
} families[] = {
    {"llama", put_llama},
    {"ministral3", put_window},
    {"gemma2", put_gemma},
    {"gemma3_text", put_gemma},
    {"phi", NULL, .layer_norm = true},
    {"phi3", put_window},
    {"qwen2_moe", put_experts},
    {"qwen3_moe", put_experts},
    {"olmoe", put_experts},
    {"gpt_oss", put_gpt_oss},
    {"olmo2", put_olmo2},
    {"granite", put_granite},
    {"smollm3", put_biases},
    {"stablelm", put_stablelm, .layer_norm = true},
    {"gpt_neox", put_gpt_neox, .layer_norm = true},
};

static void put_sizes(struct gguf_keys *r, struct buf *out, const struct gguf_heads *h, bool layer_norm)
{
    gguf_put_needed(r, out, "embedding_length", "hidden_size");
    gguf_put_needed(r, out, "block_count", "num_hidden_layers");
    gguf_put_needed(r, out, "feed_forward_length", "intermediate_size");
    gguf_put_needed(r, out, "context_length", "max_position_embeddings");
    gguf_put(out, "num_attention_heads", h->q);
    gguf_put(out, "num_key_value_heads", h->kv);
    gguf_put(out, "head_dim", h->dim);
    if (layer_norm)
        gguf_put_needed(r, out, "attention.layer_norm_epsilon", "layer_norm_eps");
    else
        gguf_put_needed(r, out, "attention.layer_norm_rms_epsilon", "rms_norm_eps");
    gguf_put_rope(r, out, h->dim);
}

static void put_family(struct gguf_keys *r, struct buf *out, const struct gguf_heads *h)
{
    const struct family *f = NULL;
    for (size_t i = 0; i < sizeof families / sizeof *families && !f; i++)
        if (strcmp(families[i].model_type, r->arch->model_type) == 0) f = &families[i];
    if (strcmp(r->arch->model_type, "gpt2") == 0) {
        put_gpt2(r, out, h);
        return;
    }
    put_sizes(r, out, h, f && f->layer_norm);
    if (f && f->put) f->put(r, out, h);
}

/* Some families share an architecture: Mistral's and Mixtral's models are of llama, those of OLMo 3 of olmo2, Mistral
 * Small 3's of mistral3. */
static const char *model_type(struct gguf_keys *r)
{
    const char *type = r->arch->model_type;
    double experts = 0;
    gguf_keys_number(r, "expert_count", &experts);
    if (strcmp(type, "ministral3") == 0 && !scales_queries(r)) return windowed(r) ? "mistral" : "llama";
    if (strcmp(type, "llama") == 0) return experts > 0 ? "mixtral" : windowed(r) ? "mistral" : type;
    return strcmp(type, "olmo2") == 0 && windowed(r) ? "olmo3" : type;
}

static int check_experts(struct gguf_keys *r)
{
    static const char *const mixtures[] = {"llama", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss"};
    double experts = 0;
    if (!gguf_keys_number(r, "expert_count", &experts) || experts <= 0) return r->rc;
    for (size_t i = 0; i < sizeof mixtures / sizeof *mixtures; i++)
        if (strcmp(r->arch->model_type, mixtures[i]) == 0) return 0;
    return r->rc = err_set(r->e, ERR_UNSUPPORTED, "GGUF: a mixture of %g experts is not supported in a %s model",
                           experts, r->arch->name);
}

int gguf_config_json(const struct gguf *g, struct buf *out, struct err *e)
{
    struct gguf_keys r = {g, gguf_arch(g, e), e, 0};
    struct gguf_heads h;
    if (!r.arch) return e->code;
    const struct gguf_tensor *table = embedding(&r);
    if (r.rc || check_experts(&r)) return r.rc;
    int rc = gguf_heads(g, r.arch, &h, e);
    if (rc) return rc;
    buf_printf(out, "{\"model_type\":\"%s\"", model_type(&r));
    put_family(&r, out, &h);
    gguf_put(out, "vocab_size", (double)table->dims[1]);
    gguf_put_flag(out, "tie_word_embeddings", !has(&r, "output.weight"));
    put_dtype(out, table->type);
    buf_str(out, "}\n");
    return r.rc;
}

/* ---- generation_config.json -------------------------------------------------------------------------------------- */

int gguf_generation_json(const struct gguf *g, struct buf *out, struct err *e)
{
    static const char *const ends[] = {"eos", "eot", "eom"};
    static const struct {
        const char *key, *name;
    } samplings[] = {{"general.sampling.temp", "temperature"},
                     {"general.sampling.top_p", "top_p"},
                     {"general.sampling.top_k", "top_k"},
                     {"general.sampling.penalty_repeat", "repetition_penalty"}};
    double v;
    (void)e;
    buf_str(out, "{\"eos_token_id\":[");
    int n = 0;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char key[KEY_MAX];
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", ends[i]);
        if (gguf_number(g, key, &v) && isfinite(v)) buf_printf(out, "%s%.17g", n++ ? "," : "", v);
    }
    buf_char(out, ']');
    for (size_t i = 0; i < sizeof samplings / sizeof *samplings; i++)
        if (gguf_number(g, samplings[i].key, &v) && isfinite(v)) gguf_put(out, samplings[i].name, v);
    buf_str(out, "}\n");
    return 0;
}
