#include "engine/model/tensor_table.h"

/* Names: transformers 5.23, modeling_*.py of each family. */

static const struct tensor_row llama_rows[] = {
    {"input_layernorm", PART_NORM1, TENSOR_ALWAYS},
    {"post_attention_layernorm", PART_NORM2, TENSOR_ALWAYS},
    {"self_attn.q_proj", PART_Q, TENSOR_ALWAYS, TENSOR_IF_QKV_BIAS, TENSOR_PEFT, TARGET_Q},
    {"self_attn.k_proj", PART_K, TENSOR_ALWAYS, TENSOR_IF_QKV_BIAS, 0, TARGET_K},
    {"self_attn.v_proj", PART_V, TENSOR_ALWAYS, TENSOR_IF_QKV_BIAS, TENSOR_PEFT, TARGET_V},
    {"self_attn.o_proj", PART_O, TENSOR_ALWAYS, TENSOR_IF_O_BIAS, 0, TARGET_O},
    {"self_attn.q_norm", PART_Q_NORM, TENSOR_IF_QK_NORM},
    {"self_attn.k_norm", PART_K_NORM, TENSOR_IF_QK_NORM},
    {"mlp.gate_proj", PART_GATE, TENSOR_ALWAYS, TENSOR_IF_MLP_BIAS, 0, TARGET_GATE},
    {"mlp.up_proj", PART_UP, TENSOR_ALWAYS, TENSOR_IF_MLP_BIAS, 0, TARGET_UP},
    {"mlp.down_proj", PART_DOWN, TENSOR_ALWAYS, TENSOR_IF_MLP_BIAS, 0, TARGET_DOWN},
    {"norm", PART_NORM, TENSOR_ALWAYS},
    {"embed_tokens", PART_EMBED, TENSOR_ALWAYS},
    {"lm_head", PART_HEAD, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_BARE},
    {0},
};

static const struct tensor_row phi_rows[] = {
    {"input_layernorm", PART_NORM1, TENSOR_ALWAYS, TENSOR_ALWAYS},
    {"self_attn.q_proj", PART_Q, TENSOR_ALWAYS, TENSOR_ALWAYS, TENSOR_PEFT, TARGET_Q},
    {"self_attn.k_proj", PART_K, TENSOR_ALWAYS, TENSOR_ALWAYS, 0, TARGET_K},
    {"self_attn.v_proj", PART_V, TENSOR_ALWAYS, TENSOR_ALWAYS, TENSOR_PEFT, TARGET_V},
    {"self_attn.dense", PART_O, TENSOR_ALWAYS, TENSOR_ALWAYS, 0, TARGET_DENSE},
    {"self_attn.q_layernorm", PART_Q_NORM, TENSOR_IF_QK_NORM, TENSOR_IF_QK_NORM},
    {"self_attn.k_layernorm", PART_K_NORM, TENSOR_IF_QK_NORM, TENSOR_IF_QK_NORM},
    {"mlp.fc1", PART_UP, TENSOR_ALWAYS, TENSOR_ALWAYS, TENSOR_PEFT, TARGET_FC1},
    {"mlp.fc2", PART_DOWN, TENSOR_ALWAYS, TENSOR_ALWAYS, TENSOR_PEFT, TARGET_FC2},
    {"final_layernorm", PART_NORM, TENSOR_ALWAYS, TENSOR_ALWAYS},
    {"embed_tokens", PART_EMBED, TENSOR_ALWAYS},
    {"lm_head", PART_HEAD, TENSOR_ALWAYS, TENSOR_ALWAYS, TENSOR_BARE},
    {0},
};

static const struct tensor_row phi3_rows[] = {
    {"input_layernorm", PART_NORM1, TENSOR_ALWAYS},
    {"post_attention_layernorm", PART_NORM2, TENSOR_ALWAYS},
    {"self_attn.qkv_proj", PART_QKV, TENSOR_ALWAYS, TENSOR_NEVER, 0, TARGET_QKV_PROJ},
    {"self_attn.o_proj", PART_O, TENSOR_ALWAYS, TENSOR_NEVER, 0, TARGET_O},
    {"mlp.gate_up_proj", PART_GATE_UP, TENSOR_ALWAYS, TENSOR_NEVER, 0, TARGET_GATE_UP_PROJ},
    {"mlp.down_proj", PART_DOWN, TENSOR_ALWAYS, TENSOR_NEVER, 0, TARGET_DOWN},
    {"norm", PART_NORM, TENSOR_ALWAYS},
    {"embed_tokens", PART_EMBED, TENSOR_ALWAYS},
    {"lm_head", PART_HEAD, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_BARE},
    {0},
};

static const struct tensor_row olmo2_rows[] = {
    {"self_attn.q_proj", PART_Q, TENSOR_ALWAYS, TENSOR_IF_QKV_BIAS, TENSOR_PEFT, TARGET_Q},
    {"self_attn.k_proj", PART_K, TENSOR_ALWAYS, TENSOR_IF_QKV_BIAS, 0, TARGET_K},
    {"self_attn.v_proj", PART_V, TENSOR_ALWAYS, TENSOR_IF_QKV_BIAS, TENSOR_PEFT, TARGET_V},
    {"self_attn.o_proj", PART_O, TENSOR_ALWAYS, TENSOR_IF_O_BIAS, 0, TARGET_O},
    {"self_attn.q_norm", PART_Q_NORM, TENSOR_ALWAYS},
    {"self_attn.k_norm", PART_K_NORM, TENSOR_ALWAYS},
    {"post_attention_layernorm", PART_POST1, TENSOR_ALWAYS},
    {"mlp.gate_proj", PART_GATE, TENSOR_ALWAYS, TENSOR_NEVER, 0, TARGET_GATE},
    {"mlp.up_proj", PART_UP, TENSOR_ALWAYS, TENSOR_NEVER, 0, TARGET_UP},
    {"mlp.down_proj", PART_DOWN, TENSOR_ALWAYS, TENSOR_NEVER, 0, TARGET_DOWN},
    {"post_feedforward_layernorm", PART_POST2, TENSOR_ALWAYS},
    {"norm", PART_NORM, TENSOR_ALWAYS},
    {"embed_tokens", PART_EMBED, TENSOR_ALWAYS},
    {"lm_head", PART_HEAD, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_BARE},
    {0},
};

static const struct tensor_row stablelm_rows[] = {
    {"input_layernorm", PART_NORM1, TENSOR_ALWAYS, TENSOR_ALWAYS},
    {"post_attention_layernorm", PART_NORM2, TENSOR_IF_NORM2, TENSOR_IF_NORM2},
    {"self_attn.q_proj", PART_Q, TENSOR_ALWAYS, TENSOR_IF_QKV_BIAS, TENSOR_PEFT, TARGET_Q},
    {"self_attn.k_proj", PART_K, TENSOR_ALWAYS, TENSOR_IF_QKV_BIAS, 0, TARGET_K},
    {"self_attn.v_proj", PART_V, TENSOR_ALWAYS, TENSOR_IF_QKV_BIAS, TENSOR_PEFT, TARGET_V},
    {"self_attn.o_proj", PART_O, TENSOR_ALWAYS, TENSOR_NEVER, 0, TARGET_O},
    {"self_attn.q_layernorm.norms.%d", PART_Q_NORM, TENSOR_IF_QK_NORM},
    {"self_attn.k_layernorm.norms.%d", PART_K_NORM, TENSOR_IF_QK_NORM},
    {"mlp.gate_proj", PART_GATE, TENSOR_ALWAYS, TENSOR_NEVER, 0, TARGET_GATE},
    {"mlp.up_proj", PART_UP, TENSOR_ALWAYS, TENSOR_NEVER, 0, TARGET_UP},
    {"mlp.down_proj", PART_DOWN, TENSOR_ALWAYS, TENSOR_NEVER, 0, TARGET_DOWN},
    {"norm", PART_NORM, TENSOR_ALWAYS, TENSOR_ALWAYS},
    {"embed_tokens", PART_EMBED, TENSOR_ALWAYS},
    {"lm_head", PART_HEAD, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_BARE},
    {0},
};

static const struct tensor_row gpt_neox_rows[] = {
    {"input_layernorm", PART_NORM1, TENSOR_ALWAYS, TENSOR_ALWAYS},
    {"post_attention_layernorm", PART_NORM2, TENSOR_ALWAYS, TENSOR_ALWAYS},
    {"attention.query_key_value", PART_QKV, TENSOR_ALWAYS, TENSOR_IF_QKV_BIAS, TENSOR_PEFT | TENSOR_BY_HEAD,
     TARGET_QUERY_KEY_VALUE},
    {"attention.dense", PART_O, TENSOR_ALWAYS, TENSOR_IF_O_BIAS, 0, TARGET_DENSE},
    {"mlp.dense_h_to_4h", PART_UP, TENSOR_ALWAYS, TENSOR_ALWAYS, 0, TARGET_DENSE_H_TO_4H},
    {"mlp.dense_4h_to_h", PART_DOWN, TENSOR_ALWAYS, TENSOR_ALWAYS, 0, TARGET_DENSE_4H_TO_H},
    {"final_layer_norm", PART_NORM, TENSOR_ALWAYS, TENSOR_ALWAYS},
    {"embed_in", PART_EMBED, TENSOR_ALWAYS},
    {"embed_out", PART_HEAD, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_BARE},
    {0},
};

static const struct tensor_row gpt2_rows[] = {
    {"ln_1", PART_NORM1, TENSOR_ALWAYS, TENSOR_ALWAYS},
    {"ln_2", PART_NORM2, TENSOR_ALWAYS, TENSOR_ALWAYS},
    {"attn.c_attn", PART_QKV, TENSOR_ALWAYS, TENSOR_ALWAYS, TENSOR_TRANSPOSED | TENSOR_PEFT, TARGET_C_ATTN},
    {"attn.c_proj", PART_O, TENSOR_ALWAYS, TENSOR_ALWAYS, TENSOR_TRANSPOSED | TENSOR_RESIDUAL, TARGET_C_PROJ},
    {"mlp.c_fc", PART_UP, TENSOR_ALWAYS, TENSOR_ALWAYS, TENSOR_TRANSPOSED, TARGET_C_FC},
    {"mlp.c_proj", PART_DOWN, TENSOR_ALWAYS, TENSOR_ALWAYS, TENSOR_TRANSPOSED | TENSOR_RESIDUAL, TARGET_C_PROJ},
    {"ln_f", PART_NORM, TENSOR_ALWAYS, TENSOR_ALWAYS},
    {"wte", PART_EMBED, TENSOR_ALWAYS},
    {"lm_head", PART_HEAD, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_BARE},
    {"wpe", PART_POS, TENSOR_ALWAYS},
    {0},
};

#define LLAMA_ATTENTION                                                                                                \
    {"input_layernorm", PART_NORM1, TENSOR_ALWAYS}, {"post_attention_layernorm", PART_NORM2, TENSOR_ALWAYS},           \
        {"self_attn.q_proj", PART_Q, TENSOR_ALWAYS, TENSOR_IF_QKV_BIAS, TENSOR_PEFT, TARGET_Q},                        \
        {"self_attn.k_proj", PART_K, TENSOR_ALWAYS, TENSOR_IF_QKV_BIAS, 0, TARGET_K},                                  \
        {"self_attn.v_proj", PART_V, TENSOR_ALWAYS, TENSOR_IF_QKV_BIAS, TENSOR_PEFT, TARGET_V},                        \
        {"self_attn.o_proj", PART_O, TENSOR_ALWAYS, TENSOR_IF_O_BIAS, 0, TARGET_O},                                    \
        {"self_attn.q_norm", PART_Q_NORM, TENSOR_IF_QK_NORM},                                                          \
    {                                                                                                                  \
        "self_attn.k_norm", PART_K_NORM, TENSOR_IF_QK_NORM                                                             \
    }
#define LLAMA_MODEL                                                                                                    \
    {"norm", PART_NORM, TENSOR_ALWAYS}, {"embed_tokens", PART_EMBED, TENSOR_ALWAYS},                                   \
        {"lm_head", PART_HEAD, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_BARE},                                              \
    {                                                                                                                  \
        0                                                                                                              \
    }

static const struct tensor_row mixtral_rows[] = {
    LLAMA_ATTENTION,
    {"block_sparse_moe.gate", PART_ROUTER, TENSOR_IF_EXPERTS, TENSOR_NEVER, 0, TARGET_ROUTER},
    {"block_sparse_moe.experts.%d.w1", PART_EXPERT_GATE, TENSOR_IF_EXPERTS, TENSOR_NEVER, 0, TARGET_EXPERTS_GATE_UP},
    {"block_sparse_moe.experts.%d.w3", PART_EXPERT_UP, TENSOR_IF_EXPERTS, TENSOR_NEVER, 0, TARGET_EXPERTS_GATE_UP},
    {"block_sparse_moe.experts.%d.w2", PART_EXPERT_DOWN, TENSOR_IF_EXPERTS, TENSOR_NEVER, 0, TARGET_EXPERTS_DOWN},
    LLAMA_MODEL,
};

static const struct tensor_row qwen_moe_rows[] = {
    LLAMA_ATTENTION,
    {"mlp.gate_proj", PART_GATE, TENSOR_IF_DENSE, TENSOR_NEVER, 0, TARGET_GATE},
    {"mlp.up_proj", PART_UP, TENSOR_IF_DENSE, TENSOR_NEVER, 0, TARGET_UP},
    {"mlp.down_proj", PART_DOWN, TENSOR_IF_DENSE, TENSOR_NEVER, 0, TARGET_DOWN},
    {"mlp.gate", PART_ROUTER, TENSOR_IF_EXPERTS, TENSOR_NEVER, 0, TARGET_ROUTER},
    {"mlp.experts.%d.gate_proj", PART_EXPERT_GATE, TENSOR_IF_EXPERTS, TENSOR_NEVER, 0, TARGET_EXPERTS_GATE_UP},
    {"mlp.experts.%d.up_proj", PART_EXPERT_UP, TENSOR_IF_EXPERTS, TENSOR_NEVER, 0, TARGET_EXPERTS_GATE_UP},
    {"mlp.experts.%d.down_proj", PART_EXPERT_DOWN, TENSOR_IF_EXPERTS, TENSOR_NEVER, 0, TARGET_EXPERTS_DOWN},
    {"mlp.shared_expert.gate_proj", PART_GATE, TENSOR_IF_SHARED, TENSOR_NEVER, 0, TARGET_GATE},
    {"mlp.shared_expert.up_proj", PART_UP, TENSOR_IF_SHARED, TENSOR_NEVER, 0, TARGET_UP},
    {"mlp.shared_expert.down_proj", PART_DOWN, TENSOR_IF_SHARED, TENSOR_NEVER, 0, TARGET_DOWN},
    {"mlp.shared_expert_gate", PART_SHARED_GATE, TENSOR_IF_SHARED, TENSOR_NEVER, 0, TARGET_SHARED_EXPERT_GATE},
    LLAMA_MODEL,
};

/* files have the experts fused, which are read as experts one by one (fused_experts.h) */
static const struct tensor_row gpt_oss_rows[] = {
    LLAMA_ATTENTION,
    {"self_attn.sinks", PART_SINKS, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_BARE_END},
    {"mlp.router", PART_ROUTER, TENSOR_IF_EXPERTS, TENSOR_IF_EXPERTS},
    {"mlp.experts.%d.gate_proj", PART_EXPERT_GATE, TENSOR_IF_EXPERTS, TENSOR_IF_EXPERTS},
    {"mlp.experts.%d.up_proj", PART_EXPERT_UP, TENSOR_IF_EXPERTS, TENSOR_IF_EXPERTS},
    {"mlp.experts.%d.down_proj", PART_EXPERT_DOWN, TENSOR_IF_EXPERTS, TENSOR_IF_EXPERTS},
    LLAMA_MODEL,
};

/* norms before and after attention and feed-forward, all stored as w for 1 + w */
#define GEMMA_NORMS                                                                                                    \
    {"input_layernorm", PART_NORM1, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_MINUS_ONE},                                    \
        {"post_attention_layernorm", PART_POST1, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_MINUS_ONE},                       \
        {"pre_feedforward_layernorm", PART_NORM2, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_MINUS_ONE},                      \
    {                                                                                                                  \
        "post_feedforward_layernorm", PART_POST2, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_MINUS_ONE                        \
    }
#define GEMMA_ATTENTION                                                                                                \
    {"self_attn.q_proj", PART_Q, TENSOR_ALWAYS, TENSOR_IF_QKV_BIAS, TENSOR_PEFT, TARGET_Q},                            \
        {"self_attn.k_proj", PART_K, TENSOR_ALWAYS, TENSOR_IF_QKV_BIAS, 0, TARGET_K},                                  \
        {"self_attn.v_proj", PART_V, TENSOR_ALWAYS, TENSOR_IF_QKV_BIAS, TENSOR_PEFT, TARGET_V},                        \
    {                                                                                                                  \
        "self_attn.o_proj", PART_O, TENSOR_ALWAYS, TENSOR_IF_O_BIAS, 0, TARGET_O                                       \
    }
#define GEMMA_REST                                                                                                     \
    {"mlp.gate_proj", PART_GATE, TENSOR_ALWAYS, TENSOR_NEVER, 0, TARGET_GATE},                                         \
        {"mlp.up_proj", PART_UP, TENSOR_ALWAYS, TENSOR_NEVER, 0, TARGET_UP},                                           \
        {"mlp.down_proj", PART_DOWN, TENSOR_ALWAYS, TENSOR_NEVER, 0, TARGET_DOWN},                                     \
        {"norm", PART_NORM, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_MINUS_ONE},                                            \
        {"embed_tokens", PART_EMBED, TENSOR_ALWAYS}, {"lm_head", PART_HEAD, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_BARE}, \
    {                                                                                                                  \
        0                                                                                                              \
    }

static const struct tensor_row gemma2_rows[] = {GEMMA_NORMS, GEMMA_ATTENTION, GEMMA_REST};

static const struct tensor_row gemma3_rows[] = {
    GEMMA_NORMS,
    GEMMA_ATTENTION,
    {"self_attn.q_norm", PART_Q_NORM, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_MINUS_ONE},
    {"self_attn.k_norm", PART_K_NORM, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_MINUS_ONE},
    GEMMA_REST,
};

/* an encoder without LM head; one of a masked LM is in the file, and not read */
static const struct tensor_row bert_rows[] = {
    {"attention.self.query", PART_Q, TENSOR_ALWAYS, TENSOR_ALWAYS},
    {"attention.self.key", PART_K, TENSOR_ALWAYS, TENSOR_ALWAYS},
    {"attention.self.value", PART_V, TENSOR_ALWAYS, TENSOR_ALWAYS},
    {"attention.output.dense", PART_O, TENSOR_ALWAYS, TENSOR_ALWAYS},
    {"attention.output.LayerNorm", PART_POST1, TENSOR_ALWAYS, TENSOR_ALWAYS},
    {"intermediate.dense", PART_UP, TENSOR_ALWAYS, TENSOR_ALWAYS},
    {"output.dense", PART_DOWN, TENSOR_ALWAYS, TENSOR_ALWAYS},
    {"output.LayerNorm", PART_POST2, TENSOR_ALWAYS, TENSOR_ALWAYS},
    {"embeddings.LayerNorm", PART_EMBED_NORM, TENSOR_ALWAYS, TENSOR_ALWAYS},
    {"embeddings.word_embeddings", PART_EMBED, TENSOR_ALWAYS},
    {"embeddings.position_embeddings", PART_POS, TENSOR_ALWAYS},
    {"embeddings.token_type_embeddings", PART_TYPES, TENSOR_IF_TYPES},
    {0},
};

static const struct tensor_row modernbert_rows[] = {
    {"attn_norm", PART_NORM1, TENSOR_ALWAYS, TENSOR_IF_NORM_BIAS, TENSOR_NOT_FIRST},
    {"mlp_norm", PART_NORM2, TENSOR_ALWAYS, TENSOR_IF_NORM_BIAS},
    {"attn.Wqkv", PART_QKV, TENSOR_ALWAYS, TENSOR_IF_QKV_BIAS},
    {"attn.Wo", PART_O, TENSOR_ALWAYS, TENSOR_IF_O_BIAS},
    {"mlp.Wi", PART_GATE_UP, TENSOR_ALWAYS, TENSOR_IF_MLP_BIAS},
    {"mlp.Wo", PART_DOWN, TENSOR_ALWAYS, TENSOR_IF_MLP_BIAS},
    {"final_norm", PART_NORM, TENSOR_ALWAYS, TENSOR_IF_NORM_BIAS},
    {"embeddings.norm", PART_EMBED_NORM, TENSOR_ALWAYS, TENSOR_IF_NORM_BIAS},
    {"embeddings.tok_embeddings", PART_EMBED, TENSOR_ALWAYS},
    {0},
};

const struct tensor_table bert_tensors = {{"bert.", ""}, "encoder.layer", bert_rows};
const struct tensor_table roberta_tensors = {{"roberta.", ""}, "encoder.layer", bert_rows};
const struct tensor_table modernbert_tensors = {{"model.", ""}, "layers", modernbert_rows};
const struct tensor_table qwen_moe_tensors = {{"model.", ""}, "layers", qwen_moe_rows};
const struct tensor_table mixtral_tensors = {{"model.", ""}, "layers", mixtral_rows, .renamed = &qwen_moe_tensors};
const struct tensor_table gpt_oss_tensors = {
    {"model.", ""}, "layers", gpt_oss_rows, .fused = FUSED_TRANSPOSED | FUSED_INTERLEAVED};
/* the text model's prefix in one that also takes images: in files, and in transformers' memory, whose names PEFT has */
#define WITH_IMAGES "language_model.model.", IMAGES_PREFIX
const struct tensor_table llama_tensors = {{"model.", WITH_IMAGES, ""}, "layers", llama_rows};
const struct tensor_table phi_tensors = {{"model.", ""}, "layers", phi_rows};
const struct tensor_table phi3_tensors = {{"model.", ""}, "layers", phi3_rows};
const struct tensor_table olmo2_tensors = {{"model.", ""}, "layers", olmo2_rows};
const struct tensor_table stablelm_tensors = {{"model.", ""}, "layers", stablelm_rows};
const struct tensor_table gpt_neox_tensors = {{"gpt_neox.", ""}, "layers", gpt_neox_rows};
const struct tensor_table gpt2_tensors = {{"transformer.", ""}, "h", gpt2_rows};
const struct tensor_table gemma2_tensors = {{"model.", ""}, "layers", gemma2_rows};
const struct tensor_table gemma3_tensors = {{"model.", WITH_IMAGES, ""}, "layers", gemma3_rows};
