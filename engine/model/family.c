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

/* what BERT and RoBERTa have in common */
#define ENCODER_ROW                                                                                                    \
    .field = {.hidden = "hidden_size",                                                                                 \
              .layers = "num_hidden_layers",                                                                           \
              .heads = "num_attention_heads",                                                                          \
              .inter = "intermediate_size",                                                                            \
              .max_len = "max_position_embeddings",                                                                    \
              .eps = "layer_norm_eps",                                                                                 \
              .act = "hidden_act",                                                                                     \
              .types = "type_vocab_size"},                                                                             \
    .toggle = {{"is_decoder", SWITCH_OFF}, {"add_cross_attention", SWITCH_OFF}},                                       \
    .layer = {.norm = NORM_LAYER, .qkv_bias = true, .o_bias = true, .mlp_bias = true, .norms = NORMS_SUM},             \
    .encoder = true

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
        .layer = {.norm = NORM_RMS, .gated = true, .qk_norm = QK_NORM_HEADS},
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
        .toggle = {{"mlp_bias", SWITCH_OFF}, {"qk_layernorm", SWITCH_QK_NORM}},
        .rope = {.any = true, .partial_read = true, .partial = 0.5, .theta = 10000},
        .layer = {.norm = NORM_LAYER,
                  .qkv_bias = true,
                  .o_bias = true,
                  .mlp_bias = true,
                  .qk_norm = QK_NORM_HEADS,
                  .norms = NORMS_PARALLEL},
    },
    {
        .model_type = "phi3",
        .tensors = &phi3_tensors,
        .field = RMS_FIELDS,
        .otherwise = {.max_len = 4096, .eps = 1e-5, .act = "silu"},
        .toggle = {{"attention_bias", SWITCH_OFF}, {"mlp_bias", SWITCH_OFF}},
        .window = {.rule = WINDOW_ALL},
        .rope =
            {.any = true, .partial_read = true, .partial = 1, .theta = 10000, .longrope_only = true, .old_len = 4096},
        .layer = {.norm = NORM_RMS, .gated = true},
    },
    {
        .model_type = "smollm3",
        .tensors = &llama_tensors,
        .field = RMS_FIELDS,
        .otherwise = {.kv_heads = 4, .max_len = 32768, .eps = 1e-6, .act = "silu", .tied = true},
        .toggle = {{"attention_bias", SWITCH_ATTENTION_BIAS}, {"mlp_bias", SWITCH_MLP_BIAS}},
        .window = {.rule = WINDOW_UNROTATED, .enabled = "use_sliding_window", .by_type = true},
        .rope = {.any = true, .partial = 1, .theta = 2e6},
        .unrotated = {.list = "no_rope_layers", .every = "no_rope_layer_interval", .number = 4},
        .layer = {.norm = NORM_RMS, .gated = true},
    },
    {
        .model_type = "granite",
        .tensors = &llama_tensors,
        .field = RMS_FIELDS,
        .otherwise = {.max_len = 2048, .eps = 1e-6, .act = "silu"},
        .toggle = {{"attention_bias", SWITCH_ATTENTION_BIAS}, {"mlp_bias", SWITCH_MLP_BIAS}},
        .number = {{"embedding_multiplier", NUMBER_EMBED_SCALE, 0},
                   {"attention_multiplier", NUMBER_ATTN_SCALE, 1},
                   {"residual_multiplier", NUMBER_RESIDUAL_SCALE, 0},
                   {"logits_scaling", NUMBER_LOGIT_DIVISOR, 0}},
        .rope = WHOLE_HEADS,
        .layer = {.norm = NORM_RMS, .gated = true},
    },
    {
        .model_type = "olmo2",
        .tensors = &olmo2_tensors,
        .field = RMS_FIELDS,
        .otherwise = {.max_len = 2048, .eps = 1e-5, .act = "silu"},
        .toggle = {{"attention_bias", SWITCH_ATTENTION_BIAS}, {"mlp_bias", SWITCH_OFF}},
        .rope = WHOLE_HEADS,
        .layer = {.norm = NORM_RMS, .gated = true, .qk_norm = QK_NORM_WHOLE, .norms = NORMS_AFTER},
    },
    {
        .model_type = "olmo3",
        .tensors = &olmo2_tensors,
        .field = RMS_FIELDS,
        .otherwise = {.max_len = 2048, .eps = 1e-5, .act = "silu"},
        .toggle = {{"attention_bias", SWITCH_ATTENTION_BIAS}, {"mlp_bias", SWITCH_OFF}},
        .window = {.rule = WINDOW_BUT_EVERY, .positions = 4096, .number = 4, .by_type = true},
        .rope = {.any = true, .partial = 1, .theta = 500000, .window_rule = true, .window_theta = 500000},
        .layer = {.norm = NORM_RMS, .gated = true, .qk_norm = QK_NORM_WHOLE, .norms = NORMS_AFTER},
    },
    {
        .model_type = "gpt_neox",
        .tensors = &gpt_neox_tensors,
        .field = {.hidden = "hidden_size",
                  .layers = "num_hidden_layers",
                  .heads = "num_attention_heads",
                  .inter = "intermediate_size",
                  .max_len = "max_position_embeddings",
                  .eps = "layer_norm_eps",
                  .act = "hidden_act"},
        .otherwise = {.max_len = 2048, .eps = 1e-5, .act = "gelu"},
        .toggle = {{"attention_bias", SWITCH_ATTENTION_BIAS}, {"use_parallel_residual", SWITCH_PARALLEL}},
        .rope = {.any = true,
                 .partial_read = true,
                 .partial = 0.25,
                 .theta = 10000,
                 .theta_field = "rotary_emb_base",
                 .partial_field = "rotary_pct"},
        .layer = {.norm = NORM_LAYER,
                  .qkv_bias = true,
                  .o_bias = true,
                  .mlp_bias = true,
                  .norms = NORMS_PARALLEL_TWO,
                  .parallel = NORMS_PARALLEL_TWO},
    },
    {
        .model_type = "stablelm",
        .tensors = &stablelm_tensors,
        .field = {.hidden = "hidden_size",
                  .layers = "num_hidden_layers",
                  .heads = "num_attention_heads",
                  .kv_heads = "num_key_value_heads",
                  .inter = "intermediate_size",
                  .max_len = "max_position_embeddings",
                  .eps = "layer_norm_eps",
                  .act = "hidden_act"},
        .otherwise = {.kv_heads = 32, .max_len = 4096, .eps = 1e-5, .act = "silu"},
        .toggle = {{"use_qkv_bias", SWITCH_QKV_BIAS},
                   {"use_parallel_residual", SWITCH_PARALLEL},
                   {"qk_layernorm", SWITCH_QK_NORM}},
        .rope = {.any = true, .partial_read = true, .partial = 0.25, .theta = 10000},
        .layer = {.norm = NORM_LAYER, .gated = true, .qk_norm = QK_NORM_APART, .parallel = NORMS_PARALLEL},
    },
    {
        .model_type = "ministral",
        .tensors = &llama_tensors,
        .field = RMS_FIELDS,
        .otherwise = {.kv_heads = 8, .max_len = 131072, .eps = 1e-6, .act = "silu"},
        .toggle = {{"attention_bias", SWITCH_OFF}, {"mlp_bias", SWITCH_OFF}},
        .window = {.rule = WINDOW_ALL, .positions = 4096, .by_type = true},
        .rope = WHOLE_HEADS,
        .layer = {.norm = NORM_RMS, .gated = true},
    },
    {
        .model_type = "ministral3",
        .tensors = &llama_tensors,
        .field = RMS_FIELDS,
        .otherwise = {.kv_heads = 8, .head_dim = 128, .max_len = 262144, .eps = 1e-5, .act = "silu"},
        .toggle = {{"attention_bias", SWITCH_OFF}, {"mlp_bias", SWITCH_OFF}},
        .window = {.rule = WINDOW_ALL},
        .rope = {.any = true, .partial = 1, .theta = 1e6, .scaled = true, .scaled_queries = true},
        .layer = {.norm = NORM_RMS, .gated = true},
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
        .otherwise = {.vocab = 262208,
                      .heads = 8,
                      .kv_heads = 4,
                      .head_dim = 256,
                      .max_len = 131072,
                      .eps = 1e-6,
                      .act = "gelu_pytorch_tanh",
                      .tied = true},
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
                 .window_rule = true,
                 .window_theta_field = "rope_local_base_freq",
                 .window_theta = 1e4},
        .layer = {.norm = NORM_RMS, .gated = true, .qk_norm = QK_NORM_HEADS, .norms = NORMS_BOTH},
        .embed_root = true,
    },
    {
        .model_type = "mixtral",
        .tensors = &mixtral_tensors,
        .field = RMS_FIELDS,
        .otherwise = {.kv_heads = 8, .max_len = 131072, .eps = 1e-5, .act = "silu"},
        .toggle = {{"attention_bias", SWITCH_OFF}, {"mlp_bias", SWITCH_OFF}},
        .window = {.rule = WINDOW_ALL},
        .rope = {.any = true, .partial = 1, .theta = 1e6},
        .layer = {.norm = NORM_RMS, .gated = true},
        .experts = {.count = "num_local_experts",
                    .count_too = "num_experts",
                    .chosen = "num_experts_per_tok",
                    .otherwise = {.count = 8, .chosen = 2}},
    },
    {
        .model_type = "olmoe",
        .tensors = &qwen_moe_tensors,
        .field = RMS_FIELDS,
        .otherwise = {.max_len = 4096, .eps = 1e-5, .act = "silu"},
        .toggle = {{"attention_bias", SWITCH_ATTENTION_BIAS}, {"mlp_bias", SWITCH_OFF}},
        .rope = WHOLE_HEADS,
        .layer = {.norm = NORM_RMS, .gated = true, .qk_norm = QK_NORM_WHOLE},
        .experts = {.count = "num_experts",
                    .count_too = "num_local_experts",
                    .chosen = "num_experts_per_tok",
                    .normalise = "norm_topk_prob",
                    .otherwise = {.count = 64, .chosen = 8}},
    },
    {
        .model_type = "qwen2_moe",
        .tensors = &qwen_moe_tensors,
        .field = RMS_FIELDS,
        .otherwise = {.kv_heads = 16, .max_len = 32768, .eps = 1e-6, .act = "silu"},
        .toggle = {{"qkv_bias", SWITCH_QKV_BIAS}, {"mlp_bias", SWITCH_OFF}, {"use_sliding_window", SWITCH_OFF}},
        .rope = WHOLE_HEADS,
        .layer = {.norm = NORM_RMS, .qkv_bias = true, .gated = true},
        .experts = {.count = "num_experts",
                    .count_too = "num_local_experts",
                    .chosen = "num_experts_per_tok",
                    .inter = "moe_intermediate_size",
                    .shared = "shared_expert_intermediate_size",
                    .normalise = "norm_topk_prob",
                    .otherwise = {.count = 60, .chosen = 4, .inter = 1408, .shared = 5632}},
    },
    {
        .model_type = "qwen3_moe",
        .tensors = &qwen_moe_tensors,
        .field = RMS_FIELDS,
        .otherwise = {.kv_heads = 4, .max_len = 32768, .eps = 1e-6, .act = "silu"},
        .toggle = {{"attention_bias", SWITCH_ATTENTION_BIAS}, {"mlp_bias", SWITCH_OFF}},
        .window = {.rule = WINDOW_ALL, .positions = 4096, .enabled = "use_sliding_window"},
        .rope = WHOLE_HEADS,
        .layer = {.norm = NORM_RMS, .gated = true, .qk_norm = QK_NORM_HEADS},
        .experts = {.count = "num_experts",
                    .count_too = "num_local_experts",
                    .chosen = "num_experts_per_tok",
                    .inter = "moe_intermediate_size",
                    .normalise = "norm_topk_prob",
                    .otherwise = {.count = 128, .chosen = 8, .inter = 768}},
    },
    {
        .model_type = "gpt_oss",
        .tensors = &gpt_oss_tensors,
        .field = {LLAMA_FIELDS, .eps = "rms_norm_eps"},
        .otherwise = {.kv_heads = 8, .head_dim = 64, .max_len = 131072, .eps = 1e-5},
        .toggle = {{"attention_bias", SWITCH_ATTENTION_BIAS}},
        .number = {{"swiglu_limit", NUMBER_FIXED, 7}, {"swiglu_alpha", NUMBER_FIXED, 1.702}},
        .window = {.rule = WINDOW_BUT_EVERY, .positions = 128, .number = 2, .by_type = true},
        .rope = {.any = true, .partial = 1, .theta = 150000, .scaled = true},
        .layer = {.norm = NORM_RMS, .qkv_bias = true, .o_bias = true, .gated = true, .clamped = true},
        .experts = {.count = "num_local_experts",
                    .count_too = "num_experts",
                    .chosen = "num_experts_per_tok",
                    .chosen_too = "experts_per_token",
                    .otherwise = {.count = 128, .chosen = 4}},
    },
    {
        .model_type = "bert",
        .tensors = &bert_tensors,
        ENCODER_ROW,
        .otherwise = {.max_len = 512, .eps = 1e-12, .act = "gelu"},
    },
    {
        .model_type = "roberta",
        .tensors = &roberta_tensors,
        ENCODER_ROW,
        .otherwise = {.max_len = 512, .eps = 1e-12, .act = "gelu"},
        .after_pad = true,
    },
    {
        .model_type = "xlm-roberta",
        .tensors = &roberta_tensors,
        ENCODER_ROW,
        .otherwise = {.max_len = 512, .eps = 1e-12, .act = "gelu"},
        .after_pad = true,
    },
    {
        .model_type = "modernbert",
        .tensors = &modernbert_tensors,
        .field = {LLAMA_FIELDS, .eps = "norm_eps", .act = "hidden_activation"},
        .otherwise = {.max_len = 8192, .eps = 1e-5, .act = "gelu"},
        .toggle = {{"attention_bias", SWITCH_ATTENTION_BIAS},
                   {"mlp_bias", SWITCH_MLP_BIAS},
                   {"norm_bias", SWITCH_NORM_BIAS}},
        .window = {.rule = WINDOW_BUT_FIRST,
                   .positions = 128,
                   .both = "local_attention",
                   .field = "global_attn_every_n_layers",
                   .number = 3,
                   .by_type = true},
        .rope = {.any = true,
                 .partial = 1,
                 .theta = 160000,
                 .theta_field = "global_rope_theta",
                 .window_rule = true,
                 .window_theta_field = "local_rope_theta",
                 .window_theta = 1e4},
        .layer = {.norm = NORM_LAYER, .gated = true},
        .encoder = true,
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
