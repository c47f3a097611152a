/* The rotation of q and k in config.json, from a GGUF file's keys and tables of divisors. */
#include "engine/files/gguf_keys.h"

#include <math.h>
#include <string.h>

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

static void put_rope_tensor(struct gguf_keys *r, struct buf *out, const struct gguf_tensor *t, double theta, int dim)
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
static bool put_divisors(struct gguf_keys *r, struct buf *out, const char *tensor, const char *name)
{
    const struct gguf_tensor *t = gguf_tensor_find(r->g, tensor);
    if (!t) return false;
    enum { MOST = 65536 }; /* features of a head */
    if (t->type != GGML_F32 || t->n_dims != 1 || t->dims[0] > MOST) {
        r->rc = err_set(r->e, ERR_INVALID, "GGUF: tensor %s is not a list of at most %d floats", tensor, MOST);
        return false;
    }
    buf_printf(out, ",\"%s\":[", name);
    for (int i = 0; i < t->dims[0]; i++) buf_printf(out, "%s%.9g", i ? "," : "", (double)freq(t, i));
    buf_char(out, ']');
    return true;
}

/* Phi-3's rule: other divisors in texts longer than the model was first trained on. */
static void put_longrope(struct gguf_keys *r, struct buf *out, double old)
{
    double factor = 0;
    buf_str(out, ",\n\"rope_scaling\":{\"rope_type\":\"longrope\"");
    bool both = put_divisors(r, out, "rope_factors_short.weight", "short_factor") &&
                put_divisors(r, out, "rope_factors_long.weight", "long_factor");
    if (gguf_keys_number(r, "rope.scaling.attn_factor", &factor) && factor > 0)
        gguf_put(out, "attention_factor", factor);
    buf_char(out, '}');
    if (old > 0) gguf_put(out, "original_max_position_embeddings", old);
    if (!both && !r->rc)
        r->rc = err_set(r->e, ERR_INVALID, "GGUF: tensor rope_factors_short.weight is there without rope_factors_long");
}

/* llama.cpp multiplies the usual factor of attention, 1 + 0.1 ln(factor), with that of the key, and divides it by what
 * mscale_all_dim makes of it (yarn_log_multiplier). */
static void put_yarn(struct gguf_keys *r, struct buf *out, double factor, double old)
{
    double more = 1, all = 0, beta = 0, from = old;
    bool scaled = gguf_keys_number(r, "rope.scaling.attn_factor", &more) && more > 0;
    bool divided = gguf_keys_number(r, "rope.scaling.yarn_log_multiplier", &all) && all > 0;
    if ((scaled || divided) && factor > 1)
        gguf_put(out, "attention_factor",
                 (scaled ? more : 1) * (1 + 0.1 * log(factor)) / (divided ? 1 + 0.1 * all * log(factor) : 1));
    if (gguf_keys_number(r, "attention.temperature_scale", &beta)) gguf_put(out, "llama_4_scaling_beta", beta);
    if (beta > 0 && gguf_keys_number(r, "attention.temperature_length", &from) && from > 0 && from < old)
        r->rc =
            err_set(r->e, ERR_UNSUPPORTED,
                    "GGUF: attention.temperature_length %g below rope.scaling.original_context_length %g", from, old);
    gguf_put_if(r, out, "rope.scaling.yarn_beta_fast", "beta_fast");
    gguf_put_if(r, out, "rope.scaling.yarn_beta_slow", "beta_slow");
    if (strcmp(r->arch->model_type, "gpt_oss") == 0) gguf_put_flag(out, "truncate", false); /* there is no key */
}

static void put_rope_scaling(struct gguf_keys *r, struct buf *out, double theta, int dim)
{
    struct gguf_text type = {"", 0};
    double factor = 1, old = 0;
    const struct gguf_tensor *freqs = gguf_tensor_find(r->g, "rope_freqs.weight");
    gguf_keys_text(r, "rope.scaling.type", &type);
    gguf_keys_number(r, "rope.scaling.factor", &factor);
    gguf_keys_number(r, "rope.scaling.original_context_length", &old);
    if (r->rc) return;
    if (freqs) {
        put_rope_tensor(r, out, freqs, theta, dim);
    } else if (gguf_tensor_find(r->g, "rope_factors_short.weight")) {
        put_longrope(r, out, old);
    } else if (type.n && !gguf_text_is(type, "none")) {
        buf_str(out, ",\n\"rope_scaling\":{\"rope_type\":");
        gguf_put_text(out, type);
        buf_printf(out, ",\"factor\":%.17g", factor);
        if (gguf_text_is(type, "yarn")) put_yarn(r, out, factor, old);
        if (old > 0) buf_printf(out, ",\"original_max_position_embeddings\":%.17g", old);
        buf_char(out, '}');
    }
}

void gguf_put_rope(struct gguf_keys *r, struct buf *out, int head_dim)
{
    double theta = 10000, rotated = head_dim;
    gguf_keys_number(r, "rope.freq_base", &theta);
    gguf_keys_number(r, "rope.dimension_count", &rotated);
    gguf_put(out, "rope_theta", theta);
    if (!r->rc && rotated != head_dim && r->arch->rope == GGUF_ROPE_PAIRS)
        r->rc =
            err_set(r->e, ERR_UNSUPPORTED, "GGUF: rope.dimension_count %g of heads of %d features", rotated, head_dim);
    if (rotated != head_dim) gguf_put(out, "partial_rotary_factor", rotated / head_dim);
    put_rope_scaling(r, out, theta, head_dim);
}
