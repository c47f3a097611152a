/* What config.json and generation_config.json say, turned into the few facts the forward pass needs.
 *
 * Families are data: `model_type` picks defaults and tensor names (weights.c), the rest are fields.  Both spellings of
 * transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters) are read.  Untrusted file: every number is checked
 * against a range before anyone multiplies it. */
#ifndef TANDEM_ENGINE_MODEL_CONFIG_H
#define TANDEM_ENGINE_MODEL_CONFIG_H

#include "engine/base/err.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <stdint.h>

enum family { FAMILY_LLAMA, FAMILY_QWEN2, FAMILY_QWEN3, FAMILY_GPT2, FAMILY_PHI };

enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3 };

enum { MAX_EOS = 16 };

struct model_config {
    enum family family;
    char family_name[16];
    int layers, hidden, heads, kv_heads, head_dim, inter, vocab, max_len;
    enum norm_kind norm;
    float eps;
    enum act_kind act;
    bool gated;       /* act(gate) * up, else act(fc1) */
    bool parallel;    /* attention and feed-forward read the same norm and are summed (Phi) */
    bool tied;        /* the head is the embedding table */
    bool learned_pos; /* position table added to the embeddings (GPT-2) */
    bool qkv_bias, o_bias, mlp_bias, norm_bias, head_bias, qk_norm;
    int window, window_from; /* layers >= window_from see only the last `window` positions; window 0: all see all */
    int rot;                 /* rotated features of a head; 0: no rope */
    double rope_theta;
    enum rope_scaling rope;
    double rope_factor, rope_low, rope_high; /* llama3: low_freq_factor, high_freq_factor; linear: factor only */
    int rope_old_len;
    char quant[16]; /* "", or "int8" / "int4" / "nf4" when the directory is quantised */
    int32_t eos[MAX_EOS];
    int n_eos;
    /* generation_config.json; NAN or -1: not said */
    float temperature, top_p, repetition_penalty;
    int top_k, do_sample;
};

int model_config_read(const char *dir, struct model_config *c, struct err *e);
/* the same from the texts; generation may be NULL */
int model_config_parse(const char *config, const char *generation, struct model_config *c, struct err *e);

#endif
