#include "engine/model/gguf_config_write.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct keys {
    struct gguf_writer *w;
    const char *arch;
};

enum { KEY_MAX = 128 };

static void u32(const struct keys *k, const char *name, double v)
{
    char key[KEY_MAX];
    snprintf(key, sizeof key, "%s.%s", k->arch, name);
    gguf_write_u32(k->w, key, (uint32_t)v);
}

static void f32(const struct keys *k, const char *name, double v)
{
    char key[KEY_MAX];
    snprintf(key, sizeof key, "%s.%s", k->arch, name);
    gguf_write_f32(k->w, key, (float)v);
}

static void text(const struct keys *k, const char *name, const char *s)
{
    char key[KEY_MAX];
    snprintf(key, sizeof key, "%s.%s", k->arch, name);
    gguf_write_text(k->w, key, s, strlen(s));
}

static bool is(const struct model_config *c, const char *model_type)
{
    return strcmp(c->family->model_type, model_type) == 0;
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

static double usual_attention(const struct rope *r)
{
    return r->factor > 1 ? 1 + 0.1 * log(r->factor) : 1;
}

static void write_rope(const struct keys *k, const struct model_config *c)
{
    const struct rope *r = &c->rope[0];
    if (!c->family->rope.any) return;
    u32(k, "rope.dimension_count", r->rot);
    f32(k, "rope.freq_base", r->theta);
    if (is(c, "gemma3_text")) f32(k, "rope.freq_base_swa", c->rope[1].theta);
    if (r->scaling == ROPE_LINEAR || r->scaling == ROPE_YARN) {
        text(k, "rope.scaling.type", r->scaling == ROPE_YARN ? "yarn" : "linear");
        f32(k, "rope.scaling.factor", r->factor);
    }
    if (r->scaling == ROPE_YARN) {
        u32(k, "rope.scaling.original_context_length", r->old_len);
        f32(k, "rope.scaling.attn_factor", r->attention / usual_attention(r)); /* llama.cpp multiplies the two */
        f32(k, "rope.scaling.yarn_beta_fast", r->high);
        f32(k, "rope.scaling.yarn_beta_slow", r->low);
    }
    if (r->scaling == ROPE_LONGROPE) {
        u32(k, "rope.scaling.original_context_length", r->old_len);
        f32(k, "rope.scaling.attn_factor", r->attention);
    }
}

/* Which layers have a window: a list, where the architecture has no fixed rule. */
static void write_windows(const struct keys *k, const struct model_config *c)
{
    char key[KEY_MAX];
    int window = 0;
    for (int l = 0; l < c->layers; l++)
        if (model_block(c, l)->window) window = model_block(c, l)->window;
    if (!window) return;
    u32(k, "attention.sliding_window", window);
    if (!is(c, "gemma3_text") && !is(c, "olmo3")) return;
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", k->arch);
    gguf_write_array(k->w, key, GGUF_BOOL, (uint64_t)c->layers);
    for (int l = 0; l < c->layers; l++) gguf_write_element(k->w, GGUF_BOOL, model_block(c, l)->window > 0);
}

static void write_experts(const struct keys *k, const struct model_config *c)
{
    struct block_experts x = model_experts(c);
    if (!x.count) return;
    u32(k, "expert_count", x.count);
    u32(k, "expert_used_count", x.chosen);
    u32(k, "expert_feed_forward_length", x.inter);
    if (is(c, "qwen2_moe")) u32(k, "expert_shared_feed_forward_length", c->inter);
}

static void write_numbers(const struct keys *k, const struct model_config *c)
{
    const struct block *b = model_block(c, 0);
    bool gemma = is(c, "gemma2") || is(c, "gemma3_text"), granite = is(c, "granite");
    if (gemma || granite) f32(k, "attention.scale", b->scale);
    if (b->softcap > 0) f32(k, "attn_logit_softcapping", b->softcap);
    if (c->logit_softcap > 0) f32(k, "final_logit_softcapping", c->logit_softcap);
    if (granite) {
        f32(k, "embedding_scale", c->embed_scale);
        f32(k, "residual_scale", b->residual_scale);
        f32(k, "logit_scale", 1 / c->logit_scale);
    }
    if (is(c, "gpt_neox") || is(c, "stablelm")) {
        char key[KEY_MAX];
        snprintf(key, sizeof key, "%s.use_parallel_residual", k->arch);
        gguf_write_bool(k->w, key, block_parallel(b));
    }
}

void gguf_config_write(struct gguf_writer *w, const struct gguf_arch *arch, const struct model_config *c)
{
    struct keys k = {w, arch->name};
    u32(&k, "block_count", c->layers);
    u32(&k, "context_length", c->max_len);
    u32(&k, "embedding_length", c->hidden);
    u32(&k, "feed_forward_length", c->inter ? c->inter : model_experts(c).inter);
    u32(&k, "attention.head_count", c->heads);
    u32(&k, "attention.head_count_kv", c->kv_heads);
    u32(&k, "attention.key_length", c->head_dim);
    u32(&k, "attention.value_length", c->head_dim);
    f32(&k, c->norm == NORM_RMS ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon", c->eps);
    u32(&k, "vocab_size", c->vocab);
    write_rope(&k, c);
    write_windows(&k, c);
    write_experts(&k, c);
    write_numbers(&k, c);
}

int gguf_rope_tensors(const struct model_config *c, const char *names[2], float out[2][ROPE_PAIRS_MAX], int *pairs)
{
    const struct rope *r = &c->rope[0];
    *pairs = r->rot / 2;
    if (!c->family->rope.any || (r->scaling != ROPE_LLAMA3 && r->scaling != ROPE_LONGROPE)) return 0;
    if (r->scaling == ROPE_LONGROPE) {
        memcpy(out, r->divide, sizeof r->divide);
        names[0] = "rope_factors_short.weight", names[1] = "rope_factors_long.weight";
        return 2;
    }
    names[0] = "rope_freqs.weight";
    for (int i = 0; i < *pairs; i++) {
        double wave = 2 * M_PI * pow(r->theta, 2.0 * i / r->rot);
        double smooth = fmin(fmax((r->old_len / wave - r->low) / (r->high - r->low), 0), 1);
        out[0][i] = (float)(1 / ((1 - smooth) / r->factor + smooth));
    }
    return 1;
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

/* Numbers are stored as f32. */
static bool near(double a, double b)
{
    return fabs(a - b) <= 2e-6 * fabs(a);
}

static const char *rope_differs(const struct rope *a, const struct rope *b)
{
    if (a->rot != b->rot || !near(a->theta, b->theta)) return "rope_theta or partial_rotary_factor";
    bool same = a->scaling == b->scaling && near(a->factor, b->factor) && near(a->low, b->low) &&
                near(a->high, b->high) && a->truncate == b->truncate && near(a->attention, b->attention) &&
                (a->scaling == ROPE_LLAMA3 || a->old_len == b->old_len) && a->max_len == b->max_len;
    for (int i = 0; i < a->rot / 2; i++)
        same &= near(a->divide[0][i], b->divide[0][i]) && near(a->divide[1][i], b->divide[1][i]);
    return same ? NULL : "rope_scaling";
}

static const char *block_differs(const struct block *a, const struct block *b)
{
    const struct block_experts *x = &a->experts, *y = &b->experts;
    if (a->window != b->window) return "sliding windows";
    if (a->act != b->act || a->gated != b->gated) return "the activation";
    if (!near(a->scale, b->scale) || !near(a->softcap, b->softcap)) return "the scale of attention";
    if (!near(a->residual_scale, b->residual_scale)) return "residual_multiplier";
    if (a->norms != b->norms || a->qk_norm != b->qk_norm || a->both_sides != b->both_sides) return "the norms";
    if (x->normalise != y->normalise) return "norm_topk_prob";
    if (x->count != y->count || x->chosen != y->chosen || x->inter != y->inter || x->gate != y->gate)
        return "the experts";
    return a->inter == b->inter ? NULL : "intermediate_size";
}

static const char *config_differs(const struct model_config *a, const struct model_config *b)
{
    const char *why = NULL;
    if (a->layers != b->layers || a->hidden != b->hidden || a->heads != b->heads || a->kv_heads != b->kv_heads ||
        a->head_dim != b->head_dim || a->vocab != b->vocab || a->max_len != b->max_len)
        return "the sizes";
    if (a->norm != b->norm || !near(a->eps, b->eps)) return "the norms";
    if (a->tied != b->tied) return "tie_word_embeddings";
    if (a->qkv_bias != b->qkv_bias || a->o_bias != b->o_bias || a->mlp_bias != b->mlp_bias) return "attention_bias";
    if (!near(a->embed_scale, b->embed_scale)) return "embedding_multiplier";
    if (!near(a->logit_scale, b->logit_scale) || !near(a->logit_softcap, b->logit_softcap)) return "logits_scaling";
    if (a->n_ropes != b->n_ropes || a->near_len != b->near_len) return "rope_scaling";
    for (int i = 0; i < a->n_ropes && !why; i++) why = rope_differs(&a->rope[i], &b->rope[i]);
    for (int l = 0; l < a->layers && !why; l++) {
        why = block_differs(model_block(a, l), model_block(b, l));
        if (!why && model_block(a, l)->rope != model_block(b, l)->rope) why = "no_rope_layers";
    }
    return why;
}

int gguf_config_check(const struct model_config *want, const struct model_config *got, struct err *e)
{
    const char *why = want->family == got->family ? config_differs(want, got) : "model_type";
    if (!why) return 0;
    return err_set(e, ERR_UNSUPPORTED, "config.json: a GGUF file of a %s model cannot say %s of this one",
                   want->family->model_type, why);
}
