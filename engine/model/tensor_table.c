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
    {"mlp.fc1", PART_UP, TENSOR_ALWAYS, TENSOR_ALWAYS, TENSOR_PEFT, TARGET_FC1},
    {"mlp.fc2", PART_DOWN, TENSOR_ALWAYS, TENSOR_ALWAYS, TENSOR_PEFT, TARGET_FC2},
    {"final_layernorm", PART_NORM, TENSOR_ALWAYS, TENSOR_ALWAYS},
    {"embed_tokens", PART_EMBED, TENSOR_ALWAYS},
    {"lm_head", PART_HEAD, TENSOR_ALWAYS, TENSOR_ALWAYS, TENSOR_BARE},
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

const struct tensor_table llama_tensors = {{"model.", ""}, "layers", llama_rows};
const struct tensor_table phi_tensors = {{"model.", ""}, "layers", phi_rows};
const struct tensor_table gpt2_tensors = {{"transformer.", ""}, "h", gpt2_rows};
const struct tensor_table gemma2_tensors = {{"model.", ""}, "layers", gemma2_rows};
/* in a multimodal model the text model has the prefix language_model */
const struct tensor_table gemma3_tensors = {
    {"model.", "language_model.model.", "model.language_model.", ""}, "layers", gemma3_rows};
