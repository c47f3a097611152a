/* config.json and generation_config.json from a GGUF file's keys (gguf_model.h). */
#include "engine/base/mem.h"
#include "engine/files/gguf_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_MAX = 128 };

/* Names: llama.cpp, src/llama-arch.cpp; which architecture stores q and k permuted: convert_hf_to_gguf.py. */
static const struct gguf_arch archs[] = {
    {"llama", "llama", GGUF_ROPE_PAIRS},         {"qwen2", "qwen2", GGUF_ROPE_HALVES},
    {"qwen3", "qwen3", GGUF_ROPE_HALVES},        {"gemma2", "gemma2", GGUF_ROPE_HALVES},
    {"gemma3", "gemma3_text", GGUF_ROPE_HALVES}, {"phi2", "phi", GGUF_ROPE_HALVES},
    {"gpt2", "gpt2", GGUF_ROPE_HALVES},          {"phi3", "phi3", GGUF_ROPE_HALVES},
};
enum { ARCHS = sizeof archs / sizeof *archs };

static int unknown_arch(struct gguf_text name, struct err *e)
{
    char names[160];
    size_t n = 0;
    for (int i = 0; i < ARCHS && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", archs[i].name);
    return err_set(e, ERR_UNSUPPORTED, "GGUF: architecture \"%.*s\" is not one of %s", (int)(name.n < 40 ? name.n : 40),
                   name.s, names);
}

const struct gguf_arch *gguf_arch(const struct gguf *g, struct err *e)
{
    struct gguf_text name, type = {"", 0};
    gguf_text(g, "general.type", &type);
    if (!gguf_text(g, "general.architecture", &name)) {
        err_set(e, ERR_INVALID, "GGUF: key general.architecture is missing");
        return NULL;
    }
    if (gguf_text_is(type, "adapter")) {
        err_set(e, ERR_UNSUPPORTED,
                "GGUF: a LoRA adapter, not a model; tandem reads adapters as PEFT directories, with --adapters");
        return NULL;
    }
    if (gguf_text_is(name, "clip") || gguf_text_is(type, "mmproj")) {
        err_set(e, ERR_UNSUPPORTED, "GGUF: the image or audio part (mmproj) of a model, not its language model");
        return NULL;
    }
    if (gguf_text_is(type, "imatrix")) {
        err_set(e, ERR_UNSUPPORTED, "GGUF: statistics for quantising (imatrix), not a model");
        return NULL;
    }
    for (int i = 0; i < ARCHS; i++) {
        if (!gguf_text_is(name, archs[i].name)) continue;
        if (gguf_tensors(g)) return &archs[i];
        err_set(e, ERR_UNSUPPORTED, "GGUF: a vocabulary without tensors, not a model");
        return NULL;
    }
    unknown_arch(name, e);
    return NULL;
}

/* ---- keys of the architecture ------------------------------------------------------------------------------------ */

struct reader {
    const struct gguf *g;
    const struct gguf_arch *arch;
    struct err *e;
    int rc;
};

static void arch_key(const struct reader *r, const char *name, char out[KEY_MAX])
{
    snprintf(out, KEY_MAX, "%s.%s", r->arch->name, name);
}

/* @return false: missing, *out unchanged.  An array must have one value for all layers. */
static bool number(struct reader *r, const char *name, double *out)
{
    char key[KEY_MAX];
    arch_key(r, name, key);
    const struct gguf_key *k = gguf_find(r->g, key);
    if (!k || r->rc) return false;
    if (k->of == GGUF_TEXT || (k->type == GGUF_ARRAY && !k->n)) {
        r->rc = err_set(r->e, ERR_INVALID, "GGUF: key %s is not a number", key);
        return false;
    }
    *out = gguf_element(k, 0);
    for (uint64_t i = 1; i < k->n && !r->rc; i++)
        if (gguf_element(k, i) != *out)
            r->rc = err_set(r->e, ERR_UNSUPPORTED, "GGUF: key %s differs between layers", key);
    if (!r->rc && !isfinite(*out)) r->rc = err_set(r->e, ERR_INVALID, "GGUF: key %s is not a finite number", key);
    return !r->rc;
}

static double needed(struct reader *r, const char *name)
{
    double v = 0;
    char key[KEY_MAX];
    arch_key(r, name, key);
    if (!number(r, name, &v) && !r->rc) r->rc = err_set(r->e, ERR_INVALID, "GGUF: key %s is missing", key);
    return v;
}

static bool text(const struct reader *r, const char *name, struct gguf_text *out)
{
    char key[KEY_MAX];
    arch_key(r, name, key);
    return gguf_text(r->g, key, out);
}

static int heads(struct reader *r, struct gguf_heads *out)
{
    double q = needed(r, "attention.head_count"), kv = q, width = needed(r, "embedding_length"), dim;
    number(r, "attention.head_count_kv", &kv);
    dim = q > 0 ? floor(width / q) : 0;
    number(r, "attention.key_length", &dim);
    double value = dim;
    number(r, "attention.value_length", &value);
    if (r->rc) return r->rc;
    if (!(q >= 1 && q <= 65536 && kv >= 1 && kv <= q && dim >= 1 && dim <= 65536))
        return r->rc = err_set(r->e, ERR_INVALID,
                               "GGUF: attention.head_count %g, head_count_kv %g and heads of %g "
                               "features are not possible",
                               q, kv, dim);
    if (value != dim)
        return r->rc = err_set(r->e, ERR_UNSUPPORTED, "GGUF: attention.value_length %g differs from key_length %g",
                               value, dim);
    *out = (struct gguf_heads){(int)q, (int)kv, (int)dim};
    return 0;
}

int gguf_heads(const struct gguf *g, const struct gguf_arch *arch, struct gguf_heads *out, struct err *e)
{
    struct reader r = {g, arch, e, 0};
    return heads(&r, out);
}

/* ---- writing JSON ------------------------------------------------------------------------------------------------ */

void gguf_put_text(struct buf *out, struct gguf_text t)
{
    buf_char(out, '"');
    for (size_t i = 0; i < t.n; i++) {
        unsigned char c = (unsigned char)t.s[i];
        if (c == '"' || c == '\\')
            buf_char(out, '\\'), buf_char(out, (char)c);
        else if (c < 0x20)
            buf_printf(out, "\\u%04x", c);
        else
            buf_char(out, (char)c);
    }
    buf_char(out, '"');
}

/* Members follow the first, "model_type".  A float is written as the shortest decimal that it is nearest to: 1e-06 for
 * what was 1e-6 before it was stored. */
static void put(struct buf *out, const char *name, double value)
{
    char digits[40];
    int precision = (double)(float)value == value ? 6 : 17;
    do snprintf(digits, sizeof digits, "%.*g", precision, value);
    while (precision < 9 && strtof(digits, NULL) != (float)value && ++precision);
    buf_printf(out, ",\n\"%s\":%s", name, digits);
}

static void put_if(struct reader *r, struct buf *out, const char *key, const char *name)
{
    double v;
    if (number(r, key, &v)) put(out, name, v);
}

static void put_needed(struct reader *r, struct buf *out, const char *key, const char *name)
{
    put(out, name, needed(r, key));
}

static void put_flag(struct buf *out, const char *name, bool value)
{
    buf_printf(out, ",\n\"%s\":%s", name, value ? "true" : "false");
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

/* Llama 3's rule divides the frequency of feature pair i by this; its low and high factors are 1 and 4 in all models. A
 * GGUF file has only these results, as tensor rope_freqs, from which `old`, the length before stretching, follows.
 * (transformers 5.23, modeling_rope_utils.py; convert_hf_to_gguf.py, LlamaModel) */
static double wavelength(double theta, int i, int dim)
{
    return 2 * M_PI * pow(theta, 2.0 * i / dim);
}

static double llama3_divisor(double old, double wave, double factor)
{
    double smooth = fmin(fmax((old / wave - 1) / 3, 0), 1);
    return 1 / ((1 - smooth) / factor + smooth);
}

static float freq(const struct gguf_tensor *t, int i)
{
    float f;
    memcpy(&f, (const char *)t->data + 4 * (size_t)i, 4);
    return f;
}

static void put_rope_tensor(struct reader *r, struct buf *out, const struct gguf_tensor *t, double theta, int dim)
{
    double factor = 1, old = 8192;
    bool fits = t->type == GGML_F32 && t->n_dims == 1 && t->dims[0] == dim / 2;
    for (int i = 0; fits && i < dim / 2; i++) factor = fmax(factor, (double)freq(t, i));
    for (int i = 0; fits && i < dim / 2; i++) {
        double d = (double)freq(t, i), smooth = (1 / d - 1 / factor) / (1 - 1 / factor);
        if (smooth > 0.01 && smooth < 0.99) old = round((1 + 3 * smooth) * wavelength(theta, i, dim));
    }
    for (int i = 0; fits && i < dim / 2; i++) {
        double want = llama3_divisor(old, wavelength(theta, i, dim), factor);
        fits = fabs((double)freq(t, i) - want) <= 1e-4 * want;
    }
    if (!fits)
        r->rc = err_set(r->e, ERR_UNSUPPORTED, "GGUF: tensor rope_freqs.weight does not follow Llama 3's rule");
    else if (factor > 1)
        buf_printf(out,
                   ",\n\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":%.9g,\"low_freq_factor\":1,"
                   "\"high_freq_factor\":4,\"original_max_position_embeddings\":%.0f}",
                   factor, old);
}

/* Divisors of the frequencies, as a list; false: there is no such tensor. */
static bool put_divisors(struct reader *r, struct buf *out, const char *tensor, const char *name)
{
    const struct gguf_tensor *t = gguf_tensor_find(r->g, tensor);
    if (!t) return false;
    if (t->type != GGML_F32 || t->n_dims != 1) {
        r->rc = err_set(r->e, ERR_INVALID, "GGUF: tensor %s is not a list of floats", tensor);
        return false;
    }
    buf_printf(out, ",\"%s\":[", name);
    for (int i = 0; i < t->dims[0]; i++) buf_printf(out, "%s%.9g", i ? "," : "", (double)freq(t, i));
    buf_char(out, ']');
    return true;
}

/* Phi-3's rule: other divisors in texts longer than the model was first trained on. */
static void put_longrope(struct reader *r, struct buf *out, double old)
{
    double factor = 0;
    buf_str(out, ",\n\"rope_scaling\":{\"rope_type\":\"longrope\"");
    bool both = put_divisors(r, out, "rope_factors_short.weight", "short_factor") &&
                put_divisors(r, out, "rope_factors_long.weight", "long_factor");
    if (number(r, "rope.scaling.attn_factor", &factor) && factor > 0) put(out, "attention_factor", factor);
    buf_char(out, '}');
    if (old > 0) put(out, "original_max_position_embeddings", old);
    if (!both && !r->rc)
        r->rc = err_set(r->e, ERR_INVALID, "GGUF: tensor rope_factors_short.weight is there without rope_factors_long");
}

static void put_rope_scaling(struct reader *r, struct buf *out, double theta, int dim)
{
    struct gguf_text type = {"", 0};
    double factor = 1, old = 0;
    const struct gguf_tensor *freqs = gguf_tensor_find(r->g, "rope_freqs.weight");
    text(r, "rope.scaling.type", &type);
    number(r, "rope.scaling.factor", &factor);
    number(r, "rope.scaling.original_context_length", &old);
    if (r->rc) return;
    if (freqs) {
        put_rope_tensor(r, out, freqs, theta, dim);
    } else if (gguf_tensor_find(r->g, "rope_factors_short.weight")) {
        put_longrope(r, out, old);
    } else if (type.n && !gguf_text_is(type, "none")) {
        buf_str(out, ",\n\"rope_scaling\":{\"rope_type\":");
        gguf_put_text(out, type);
        buf_printf(out, ",\"factor\":%.17g", factor);
        if (old > 0) buf_printf(out, ",\"original_max_position_embeddings\":%.17g", old);
        buf_char(out, '}');
    }
}

static void put_rope(struct reader *r, struct buf *out, int head_dim)
{
    double theta = 10000, rotated = head_dim;
    number(r, "rope.freq_base", &theta);
    number(r, "rope.dimension_count", &rotated);
    put(out, "rope_theta", theta);
    if (!r->rc && rotated != head_dim && r->arch->rope == GGUF_ROPE_PAIRS)
        r->rc =
            err_set(r->e, ERR_UNSUPPORTED, "GGUF: rope.dimension_count %g of heads of %d features", rotated, head_dim);
    if (rotated != head_dim) put(out, "partial_rotary_factor", rotated / head_dim);
    put_rope_scaling(r, out, theta, head_dim);
}

/* The pattern of layers with a window: one of so many has none; or for each layer whether it has one. */
static void put_window_pattern(struct reader *r, struct buf *out)
{
    char key[KEY_MAX];
    double pattern = 6;
    arch_key(r, "attention.sliding_window_pattern", key);
    const struct gguf_key *k = gguf_find(r->g, key);
    if (!k || k->type != GGUF_ARRAY || k->of == GGUF_TEXT) {
        number(r, "attention.sliding_window_pattern", &pattern);
        put(out, "sliding_window_pattern", pattern);
        return;
    }
    buf_str(out, ",\n\"layer_types\":[");
    for (uint64_t i = 0; i < k->n; i++)
        buf_printf(out, "%s\"%s_attention\"", i ? "," : "", gguf_element(k, i) != 0 ? "sliding" : "full");
    buf_char(out, ']');
}

/* Without a key, scores are divided by the root of this: for the largest model of each generation by that of hidden /
 * heads (llama.cpp, src/models: the layers tell which one it is). */
static void put_gemma(struct reader *r, struct buf *out, const struct gguf_heads *h, bool third)
{
    double layers = needed(r, "block_count"), width = needed(r, "embedding_length"), local = 10000;
    bool largest = layers == (third ? 62 : 46);
    double divisor = largest ? width / h->q : h->dim, scale;
    if (number(r, "attention.scale", &scale) && scale > 0) divisor = 1 / (scale * scale);
    put(out, "query_pre_attn_scalar", divisor);
    put_if(r, out, "final_logit_softcapping", "final_logit_softcapping");
    put_if(r, out, "attention.sliding_window", "sliding_window");
    if (third) {
        number(r, "rope.freq_base_swa", &local);
        put(out, "rope_local_base_freq", local);
        put_window_pattern(r, out);
    } else {
        put_if(r, out, "attn_logit_softcapping", "attn_logit_softcapping");
    }
}

static void put_sizes(struct reader *r, struct buf *out, const struct gguf_heads *h, const char *eps)
{
    put_needed(r, out, "embedding_length", "hidden_size");
    put_needed(r, out, "block_count", "num_hidden_layers");
    put_needed(r, out, "feed_forward_length", "intermediate_size");
    put_needed(r, out, "context_length", "max_position_embeddings");
    put(out, "num_attention_heads", h->q);
    put(out, "num_key_value_heads", h->kv);
    put(out, "head_dim", h->dim);
    put_needed(r, out, eps, strstr(eps, "rms") ? "rms_norm_eps" : "layer_norm_eps");
    put_rope(r, out, h->dim);
}

static void put_gpt2(struct reader *r, struct buf *out, const struct gguf_heads *h)
{
    put_needed(r, out, "embedding_length", "n_embd");
    put_needed(r, out, "block_count", "n_layer");
    put_needed(r, out, "feed_forward_length", "n_inner");
    put_needed(r, out, "context_length", "n_positions");
    put(out, "n_head", h->q);
    put_needed(r, out, "attention.layer_norm_epsilon", "layer_norm_epsilon");
}

static const struct gguf_tensor *embedding(struct reader *r)
{
    const struct gguf_tensor *t = gguf_tensor_find(r->g, "token_embd.weight");
    if (t && t->n_dims == 2) return t;
    r->rc = err_set(r->e, ERR_INVALID, "GGUF: tensor token_embd.weight is missing or not a matrix");
    return NULL;
}

static bool windowed(struct reader *r)
{
    double window = 0;
    return number(r, "attention.sliding_window", &window) && window > 0;
}

/* The float type in which the model was saved, as far as the file tells. */
static void put_dtype(struct buf *out, enum ggml_type t)
{
    const char *name = t == GGML_F16 ? "float16" : t == GGML_BF16 ? "bfloat16" : NULL;
    if (name) buf_printf(out, ",\n\"torch_dtype\":\"%s\"", name);
}

static void put_family(struct reader *r, struct buf *out, const struct gguf_heads *h)
{
    const char *type = r->arch->model_type;
    if (strcmp(type, "gpt2") == 0) {
        put_gpt2(r, out, h);
        return;
    }
    put_sizes(r, out, h, strcmp(type, "phi") ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon");
    if (strncmp(type, "gemma", 5) == 0) put_gemma(r, out, h, strcmp(type, "gemma2") != 0);
    if (strcmp(type, "phi3") == 0 && windowed(r)) put_if(r, out, "attention.sliding_window", "sliding_window");
    if (strcmp(type, "llama") == 0 && windowed(r)) {
        put_if(r, out, "attention.sliding_window", "sliding_window");
    } else if (strcmp(type, "llama") == 0) {
        put_flag(out, "attention_bias", gguf_tensor_find(r->g, "blk.0.attn_q.bias"));
        put_flag(out, "mlp_bias", gguf_tensor_find(r->g, "blk.0.ffn_up.bias"));
    }
}

int gguf_config_json(const struct gguf *g, struct buf *out, struct err *e)
{
    struct reader r = {g, gguf_arch(g, e), e, 0};
    struct gguf_heads h;
    double experts = 0;
    if (!r.arch) return e->code;
    number(&r, "expert_count", &experts);
    const struct gguf_tensor *table = embedding(&r);
    if (r.rc || heads(&r, &h)) return r.rc;
    if (experts > 0)
        return err_set(e, ERR_UNSUPPORTED, "GGUF: a mixture of %g experts is not supported in a %s model", experts,
                       r.arch->name);
    /* Mistral's models are of architecture llama too; tandem knows windows of attention as theirs. */
    bool mistral = strcmp(r.arch->model_type, "llama") == 0 && windowed(&r);
    buf_printf(out, "{\"model_type\":\"%s\"", mistral ? "mistral" : r.arch->model_type);
    put_family(&r, out, &h);
    put(out, "vocab_size", (double)table->dims[1]);
    put_flag(out, "tie_word_embeddings", !gguf_tensor_find(g, "output.weight"));
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
        if (gguf_number(g, samplings[i].key, &v) && isfinite(v)) put(out, samplings[i].name, v);
    buf_str(out, "}\n");
    return 0;
}
