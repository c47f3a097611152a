#include "engine/model/gguf_names.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names: ggml-org/llama.cpp, gguf-py/gguf/tensor_mapping.py and constants.py. */
static const struct gguf_name llama_rows[] = {
    {"attn_norm", "input_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"attn_q", "self_attn.q_proj", GGUF_PAIRS},
    {"attn_k", "self_attn.k_proj", GGUF_PAIRS_KV},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_inp", "block_sparse_moe.gate"},
    {"ffn_gate_exps", "block_sparse_moe.experts.%d.w1", GGUF_STACKED},
    {"ffn_up_exps", "block_sparse_moe.experts.%d.w3", GGUF_STACKED},
    {"ffn_down_exps", "block_sparse_moe.experts.%d.w2", GGUF_STACKED},
    {0},
};
static const struct gguf_name qwen_moe_rows[] = {
    {"attn_norm", "input_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.%d.gate_proj", GGUF_STACKED},
    {"ffn_up_exps", "mlp.experts.%d.up_proj", GGUF_STACKED},
    {"ffn_down_exps", "mlp.experts.%d.down_proj", GGUF_STACKED},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate", GGUF_ONE_ROW},
    {0},
};
static const struct gguf_name gpt_oss_rows[] = {
    {"attn_norm", "input_layernorm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_sinks", "self_attn.sinks", GGUF_BARE_END},
    {"ffn_gate_inp", "mlp.router"},
    {"ffn_gate_exps", "mlp.experts.%d.gate_proj", GGUF_STACKED},
    {"ffn_up_exps", "mlp.experts.%d.up_proj", GGUF_STACKED},
    {"ffn_down_exps", "mlp.experts.%d.down_proj", GGUF_STACKED},
    {0},
};
static const struct gguf_name olmo2_rows[] = {
    {"post_attention_norm", "post_attention_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {0},
};
static const struct gguf_name stablelm_rows[] = {
    {"attn_norm", "input_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_layernorm.norms.%d", GGUF_STACKED},
    {"attn_k_norm", "self_attn.k_layernorm.norms.%d", GGUF_STACKED},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {0},
};
static const struct gguf_name gpt_neox_rows[] = {
    {"attn_norm", "input_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"attn_qkv", "attention.query_key_value", GGUF_THIRDS},
    {"attn_output", "attention.dense"},
    {"ffn_up", "mlp.dense_h_to_4h"},
    {"ffn_down", "mlp.dense_4h_to_h"},
    {0},
};
static const struct gguf_name gemma_rows[] = {
    {"attn_norm", "input_layernorm", GGUF_PLUS_ONE},
    {"post_attention_norm", "post_attention_layernorm", GGUF_PLUS_ONE},
    {"ffn_norm", "pre_feedforward_layernorm", GGUF_PLUS_ONE},
    {"post_ffw_norm", "post_feedforward_layernorm", GGUF_PLUS_ONE},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm", GGUF_PLUS_ONE},
    {"attn_k_norm", "self_attn.k_norm", GGUF_PLUS_ONE},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {0},
};
static const struct gguf_name phi_rows[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.dense"},
    {"ffn_up", "mlp.fc1"},
    {"ffn_down", "mlp.fc2"},
    {0},
};
static const struct gguf_name phi3_rows[] = {
    {"attn_norm", "input_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"attn_qkv", "self_attn.qkv_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_up", "mlp.gate_up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {0},
};
static const struct gguf_name gpt2_rows[] = {
    {"attn_norm", "ln_1"},
    {"ffn_norm", "ln_2"},
    {"attn_qkv", "attn.c_attn", GGUF_TRANSPOSED},
    {"attn_output", "attn.c_proj", GGUF_TRANSPOSED},
    {"ffn_up", "mlp.c_fc", GGUF_TRANSPOSED},
    {"ffn_down", "mlp.c_proj", GGUF_TRANSPOSED},
    {0},
};

static const struct gguf_name model_rows[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}, {0}};
static const struct gguf_name gemma_model_rows[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm", GGUF_PLUS_ONE}, {"output", "lm_head"}, {0}};
static const struct gguf_name phi_model_rows[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.final_layernorm"}, {"output", "lm_head"}, {0}};
static const struct gguf_name gpt2_model_rows[] = {{"token_embd", "transformer.wte"},
                                                   {"position_embd", "transformer.wpe"},
                                                   {"output_norm", "transformer.ln_f"},
                                                   {"output", "lm_head"},
                                                   {0}};
static const struct gguf_name gpt_neox_model_rows[] = {
    {"token_embd", "gpt_neox.embed_in"}, {"output_norm", "gpt_neox.final_layer_norm"}, {"output", "embed_out"}, {0}};

/* The first is for all others. */
static const struct gguf_names tables[] = {
    {"llama", "model.layers", llama_rows, model_rows},
    {"gemma2", "model.layers", gemma_rows, gemma_model_rows},
    {"gemma3_text", "model.layers", gemma_rows, gemma_model_rows},
    {"phi", "model.layers", phi_rows, phi_model_rows},
    {"phi3", "model.layers", phi3_rows, model_rows},
    {"gpt2", "transformer.h", gpt2_rows, gpt2_model_rows},
    {"qwen2_moe", "model.layers", qwen_moe_rows, model_rows},
    {"qwen3_moe", "model.layers", qwen_moe_rows, model_rows},
    {"olmoe", "model.layers", qwen_moe_rows, model_rows},
    {"gpt_oss", "model.layers", gpt_oss_rows, model_rows},
    {"olmo2", "model.layers", olmo2_rows, model_rows},
    {"stablelm", "model.layers", stablelm_rows, model_rows},
    {"gpt_neox", "gpt_neox.layers", gpt_neox_rows, gpt_neox_model_rows},
};

const struct gguf_names *gguf_names_of(const char *model_type)
{
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (strcmp(tables[i].model_type, model_type) == 0) return &tables[i];
    return &tables[0];
}

/* A number at the beginning of s; NULL: none, else what follows. */
static const char *number_of(const char *s, int *out)
{
    char *end;
    long n = *s >= '0' && *s <= '9' ? strtol(s, &end, 10) : -1;
    if (n < 0 || n > 0xffff) return NULL;
    *out = (int)n;
    return end;
}

/* Whether a module of a table is the first n bytes of s. */
static bool is_module(const char *module, const char *s, size_t n, int *expert)
{
    const char *mark = strstr(module, "%d"), *end = s + n;
    *expert = 0;
    if (!mark) return strlen(module) == n && memcmp(module, s, n) == 0;
    size_t before = (size_t)(mark - module);
    if (n <= before || memcmp(module, s, before)) return false;
    const char *rest = number_of(s + before, expert);
    return rest && rest <= end && strlen(mark + 2) == (size_t)(end - rest) &&
           memcmp(mark + 2, rest, (size_t)(end - rest)) == 0;
}

const struct gguf_name *gguf_name_find(const struct gguf_names *names, const char *tensor, char out[GGUF_NAME_MAX],
                                       int *expert)
{
    size_t prefix = strlen(names->layers);
    int layer = -1;
    const char *at = tensor, *suffix = strrchr(tensor, '.');
    if (strncmp(tensor, names->layers, prefix) == 0 && tensor[prefix] == '.')
        at = number_of(tensor + prefix + 1, &layer);
    if (at && layer >= 0) at += *at == '.';
    if (!at || !suffix || suffix < at) return NULL;
    for (const struct gguf_name *r = layer >= 0 ? names->layer : names->model; r->gguf; r++) {
        bool bare = r->flags & GGUF_BARE_END;
        if (!is_module(r->module, at, bare ? strlen(at) : (size_t)(suffix - at), expert)) continue;
        const char *end = bare ? ".weight" : suffix;
        if (layer >= 0)
            snprintf(out, GGUF_NAME_MAX, "blk.%d.%s%s", layer, r->gguf, end);
        else
            snprintf(out, GGUF_NAME_MAX, "%s%s", r->gguf, end);
        return r;
    }
    return NULL;
}
