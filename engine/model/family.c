#include "engine/model/family.h"

#include "engine/model/tensor_table.h"

#include <stdio.h>
#include <string.h>

#define LLAMA_FIELDS                                                                                                   \
    .hidden = "hidden_size", .layers = "num_hidden_layers", .heads = "num_attention_heads",                            \
    .kv_heads = "num_key_value_heads", .head_dim = "head_dim", .inter = "intermediate_size",                           \
    .max_len = "max_position_embeddings"
#define RMS_FIELDS                                                                                                     \
    {                                                                                                                  \
        LLAMA_FIELDS, .eps = "rms_norm_eps", .act = "hidden_act"                                                       \
    }
#define WHOLE_HEADS                                                                                                    \
    {                                                                                                                  \
        .any = true, .partial = 1, .theta = 10000                                                                      \
    }
#define QWEN_WINDOW                                                                                                    \
    {                                                                                                                  \
        .rule = WINDOW_FROM, .positions = 4096, .enabled = "use_sliding_window", .field = "max_window_layers",         \
        .number = 28, .by_type = true                                                                                  \
    }

#define GEMMA_FIELDS                                                                                                   \
    {                                                                                                                  \
        LLAMA_FIELDS, .eps = "rms_norm_eps", .act = "hidden_activation"                                                \
    }
#define GEMMA_SWITCHES                                                                                                 \
    {                                                                                                                  \
        {"attention_bias", SWITCH_ATTENTION_BIAS}, {"mlp_bias", SWITCH_OFF},                                           \
        {                                                                                                              \
            "use_bidirectional_attention", SWITCH_OFF                                                                  \
        }                                                                                                              \
    }

/* Source of defaults and ignored fields: transformers 5.23, configuration_*.py and modeling_*.py of each family. */
static const struct model_family families[] = {
    {
        .model_type = "llama",
        .tensors = &llama_tensors,
        .field = RMS_FIELDS,
        .otherwise = {.max_len = 2048, .eps = 1e-6, .act = "silu"},
        .toggle = {{"attention_bias", SWITCH_ATTENTION_BIAS}, {"mlp_bias", SWITCH_MLP_BIAS}},
        .rope = WHOLE_HEADS,
        .layer = {.norm = NORM_RMS, .gated = true},
    },
    {
        .model_type = "mistral",
        .tensors = &llama_tensors,
        .field = RMS_FIELDS,
        .otherwise = {.kv_heads = 8, .max_len = 131072, .eps = 1e-6, .act = "silu"},
        .toggle = {{"attention_bias", SWITCH_OFF} /* transformers ignores it */, {"mlp_bias", SWITCH_OFF}},
        .window = {.rule = WINDOW_ALL, .positions = 4096},
        .rope = WHOLE_HEADS,
        .layer = {.norm = NORM_RMS, .gated = true},
    },
    {
        .model_type = "qwen2",
        .tensors = &llama_tensors,
        .field = RMS_FIELDS,
        .otherwise = {.kv_heads = 32, .max_len = 32768, .eps = 1e-6, .act = "silu"},
        .toggle = {{"mlp_bias", SWITCH_OFF}},
        .window = QWEN_WINDOW,
        .rope = WHOLE_HEADS,
        .layer = {.norm = NORM_RMS, .qkv_bias = true, .gated = true},
    },
    {
        .model_type = "qwen3",
        .tensors = &llama_tensors,
        .field = RMS_FIELDS,
        .otherwise = {.kv_heads = 32, .head_dim = 128, .max_len = 32768, .eps = 1e-6, .act = "silu"},
        .toggle = {{"attention_bias", SWITCH_ATTENTION_BIAS}, {"mlp_bias", SWITCH_OFF}},
        .window = QWEN_WINDOW,
        .rope = WHOLE_HEADS,
        .layer = {.norm = NORM_RMS, .gated = true, .qk_norm = true},
    },
    {
        .model_type = "gpt2",
        .tensors = &gpt2_tensors,
        .field = {.hidden = "n_embd",
                  .layers = "n_layer",
                  .heads = "n_head",
                  .inter = "n_inner",
                  .max_len = "n_positions",
                  .eps = "layer_norm_epsilon",
                  .act = "activation_function"},
        .otherwise = {.inter_per_hidden = 4, .max_len = 1024, .eps = 1e-5, .act = "gelu_new", .tied = true},
        .toggle = {{"scale_attn_by_inverse_layer_idx", SWITCH_OFF},
                   {"add_cross_attention", SWITCH_OFF},
                   {"scale_attn_weights", SWITCH_ON}},
        .layer = {.norm = NORM_LAYER, .qkv_bias = true, .o_bias = true, .mlp_bias = true},
    },
    {
        .model_type = "phi",
        .tensors = &phi_tensors,
        .field = {LLAMA_FIELDS, .eps = "layer_norm_eps", .act = "hidden_act"},
        .otherwise = {.max_len = 2048, .eps = 1e-5, .act = "gelu_new"},
        .toggle = {{"mlp_bias", SWITCH_OFF}, {"qk_layernorm", SWITCH_OFF}},
        .rope = {.any = true, .partial_read = true, .partial = 0.5, .theta = 10000},
        .layer = {.norm = NORM_LAYER, .qkv_bias = true, .o_bias = true, .mlp_bias = true, .norms = NORMS_PARALLEL},
    },
    {
        .model_type = "gemma2",
        .tensors = &gemma2_tensors,
        .field = GEMMA_FIELDS,
        .otherwise =
            {.kv_heads = 4, .head_dim = 256, .max_len = 8192, .eps = 1e-6, .act = "gelu_pytorch_tanh", .tied = true},
        .toggle = GEMMA_SWITCHES,
        .number = {{"attn_logit_softcapping", NUMBER_ATTN_SOFTCAP, 50},
                   {"final_logit_softcapping", NUMBER_LOGIT_SOFTCAP, 30},
                   {"query_pre_attn_scalar", NUMBER_QUERY_SCALAR, 256}},
        .window = {.rule = WINDOW_BUT_EVERY, .positions = 4096, .number = 2, .by_type = true},
        .rope = WHOLE_HEADS,
        .layer = {.norm = NORM_RMS, .gated = true, .norms = NORMS_BOTH},
        .embed_root = true,
    },
    {
        .model_type = "gemma3_text",
        .tensors = &gemma3_tensors,
        .field = GEMMA_FIELDS,
        .otherwise =
            {.kv_heads = 4, .head_dim = 256, .max_len = 131072, .eps = 1e-6, .act = "gelu_pytorch_tanh", .tied = true},
        .toggle = GEMMA_SWITCHES,
        .number = {{"final_logit_softcapping", NUMBER_LOGIT_SOFTCAP, 0},
                   {"query_pre_attn_scalar", NUMBER_QUERY_SCALAR, 256}},
        .window = {.rule = WINDOW_BUT_EVERY,
                   .positions = 4096,
                   .field = "sliding_window_pattern",
                   .number = 6,
                   .by_type = true},
        .rope = {.any = true,
                 .partial = 1,
                 .theta = 1e6,
                 .window_theta_field = "rope_local_base_freq",
                 .window_theta = 1e4},
        .layer = {.norm = NORM_RMS, .gated = true, .qk_norm = true, .norms = NORMS_BOTH},
        .embed_root = true,
    },
};
enum { FAMILIES = sizeof families / sizeof *families };

static const struct model_family *added;

void model_family_add(const struct model_family *m)
{
    added = m;
}

const struct model_family *model_family_find(const char *model_type)
{
    if (added && strcmp(model_type, added->model_type) == 0) return added;
    for (int i = 0; i < FAMILIES; i++)
        if (strcmp(model_type, families[i].model_type) == 0) return &families[i];
    return NULL;
}

void model_family_names(char *out, size_t size)
{
    size_t n = 0;
    for (int i = 0; i < FAMILIES && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%s", i ? ", " : "", families[i].model_type);
}
