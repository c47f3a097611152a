/* The tensors of each family as data: a row for each module that has tensors, with its role.  Loading, freeing,
 * quantising, full fine-tuning and adapters' module names all follow from the rows (tensors.h). */
#ifndef TANDEM_ENGINE_MODEL_TENSOR_TABLE_H
#define TANDEM_ENGINE_MODEL_TENSOR_TABLE_H

#include "engine/model/lora_targets.h"

/* The role of a module; its shape and its field in struct weights follow from it. C hidden, H heads, G kv_heads, D
 * head_dim, F inter, V vocab. */
enum tensor_part {
    /* of every layer: vectors */
    PART_NORM1,  /* (C) before attention */
    PART_NORM2,  /* (C) before the feed-forward */
    PART_POST1,  /* (C) after attention, before it is added */
    PART_POST2,  /* (C) after the feed-forward, before it is added */
    PART_Q_NORM, /* (D), or (H D): block.qk_norm; of QK_NORM_APART, the head's number in the place of %d, (D) */
    PART_K_NORM, /* (D), or (G D) */
    PART_SINKS,  /* (H) attn_args.sinks */
    /* of every layer: matrices (outputs, inputs).  Those of one GEMM are stacked in the order of the table's rows */
    PART_QKV,     /* ((H + 2G) D, C): q, k and v in one tensor */
    PART_Q,       /* (H D, C) */
    PART_K,       /* (G D, C) */
    PART_V,       /* (G D, C) */
    PART_O,       /* (C, H D) */
    PART_GATE,    /* (F, C) */
    PART_UP,      /* (F, C) */
    PART_GATE_UP, /* (2F, C): gate and up in one tensor */
    PART_DOWN,    /* (C, F) */
    /* of every layer with experts: matrices.  The expert's number takes the place of %d in the module's name */
    PART_ROUTER,      /* (E, C) */
    PART_SHARED_GATE, /* (1, C) */
    PART_EXPERT_GATE, /* (Fe, C), Fe the width of an expert */
    PART_EXPERT_UP,   /* (Fe, C) */
    PART_EXPERT_DOWN, /* (C, Fe) */
    /* of the model */
    PART_NORM,       /* (C) before the head */
    PART_EMBED,      /* (V, C) */
    PART_HEAD,       /* (V, C); a tied one is the embedding table, under either name */
    PART_POS,        /* (first_pos + max_len, C) learned positions */
    PART_TYPES,      /* (types, C) token types */
    PART_EMBED_NORM, /* (C) of the embeddings */
    TENSOR_PARTS
};

/* When a model, or one of its layers, has a tensor: never, always, or depending on the configuration. */
enum tensor_when {
    TENSOR_NEVER,
    TENSOR_ALWAYS,
    TENSOR_IF_QKV_BIAS,
    TENSOR_IF_O_BIAS,
    TENSOR_IF_MLP_BIAS,
    TENSOR_IF_QK_NORM,
    TENSOR_IF_DENSE,   /* the layer has no experts */
    TENSOR_IF_EXPERTS, /* it has experts */
    TENSOR_IF_SHARED,  /* it has experts and one that every token goes through */
    TENSOR_IF_NORM2,   /* attention and the feed-forward do not share a norm */
    TENSOR_IF_NORM_BIAS,
    TENSOR_IF_TYPES,
};

enum tensor_flags {
    TENSOR_TRANSPOSED = 1, /* a matrix stored [inputs][outputs], as GPT-2's Conv1D does */
    TENSOR_RESIDUAL = 2,  /* added to the residual stream: initialised with 1 / sqrt(2 layers) of the usual deviation */
    TENSOR_MINUS_ONE = 4, /* a norm stored as w and applied as 1 + w; trained and saved as w */
    TENSOR_BARE = 8,      /* the name never has a prefix */
    TENSOR_NOT_FIRST = 64, /* the first layer has none */
    TENSOR_BY_HEAD = 32,   /* PART_QKV whose rows are q, k and v of the first head, then of the next (H == G) */
    TENSOR_PEFT = 16,      /* in PEFT's default target_modules (peft/utils/constants.py) */
    TENSOR_BARE_END = 128, /* a vector whose name ends with the module's: no ".weight" */
};

#define HEAD_NAME "lm_head" /* in most families; transformers 5 knows it by this name in the others, too */
#define IMAGES_PREFIX "model.language_model." /* of the text model's modules in one that also takes images */

struct tensor_row {
    const char *module; /* tensors MODULE.weight and MODULE.bias; for a layer's modules, after the prefix "layers.3." */
    enum tensor_part part;
    enum tensor_when weight, bias;
    unsigned flags;  /* of enum tensor_flags */
    unsigned target; /* of enum lora_target; 0: no adapter can target it */
};

/* The order of the rows is the order of parameters in optimizer checkpoints and of random draws at initialisation: a
 * new row must not change the relative order of the others. */
enum { TENSOR_PREFIXES = 4 };

/* How files have the experts of a layer where they are not stored one by one: in two tensors, X.experts.gate_up_proj
 * [E, 2F, C], gate first, and X.experts.down_proj [E, C, F].  Bits that may be combined. */
enum fused_experts {
    FUSED_TRANSPOSED = 1,  /* floats are [E, C, 2F] and [E, F, C] */
    FUSED_INTERLEAVED = 2, /* of the 2F outputs the even ones are the gate's */
};

struct tensor_table {
    const char *prefix[TENSOR_PREFIXES]; /* possible prefixes of names, "" included; transformers' own first */
    const char *layers;                  /* "layers": the modules of layer 3 have the prefix "layers.3." */
    const struct tensor_row *row;        /* ends at the first without a module */
    /* the same parts under the names that transformers 5 gives them in memory, and some files have; NULL: no others */
    const struct tensor_table *renamed;
    unsigned fused; /* of enum fused_experts */
};

extern const struct tensor_table llama_tensors, gpt2_tensors, phi_tensors, gemma2_tensors, gemma3_tensors, phi3_tensors,
    olmo2_tensors, stablelm_tensors, gpt_neox_tensors;
extern const struct tensor_table mixtral_tensors, qwen_moe_tensors, gpt_oss_tensors;
extern const struct tensor_table bert_tensors, roberta_tensors, modernbert_tensors;

#endif
