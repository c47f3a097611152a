/* The tensors of each family as data: a row for each module that has some, with what it is for.  Loading, freeing,
 * quantising, full fine-tuning and adapters' module names all follow from the rows (tensors.h). */
#ifndef TANDEM_ENGINE_MODEL_TENSOR_TABLE_H
#define TANDEM_ENGINE_MODEL_TENSOR_TABLE_H

#include "engine/model/lora_targets.h"

/* What a module is for: its shape, and where it belongs in struct weights, follow from it.
 * C hidden, H heads, G kv_heads, D head_dim, F inter, V vocab. */
enum tensor_part {
    /* of every layer: vectors */
    PART_NORM1,  /* (C) before attention */
    PART_NORM2,  /* (C) before the feed-forward */
    PART_POST1,  /* (C) after attention, before it is added */
    PART_POST2,  /* (C) after the feed-forward, before it is added */
    PART_Q_NORM, /* (D) */
    PART_K_NORM, /* (D) */
    /* of every layer: matrices (outputs, inputs).  Those of one product are stacked in the order of the rows */
    PART_QKV,     /* ((H + 2G) D, C): q, k and v in one tensor */
    PART_Q,       /* (H D, C) */
    PART_K,       /* (G D, C) */
    PART_V,       /* (G D, C) */
    PART_O,       /* (C, H D) */
    PART_GATE,    /* (F, C) */
    PART_UP,      /* (F, C) */
    PART_GATE_UP, /* (2F, C): gate and up in one tensor */
    PART_DOWN,    /* (C, F) */
    /* of the model */
    PART_NORM,  /* (C) before the head */
    PART_EMBED, /* (V, C) */
    PART_HEAD,  /* (V, C); a tied one is the embedding table, under either name */
    PART_POS,   /* (max_len, C) learned positions */
    TENSOR_PARTS
};

/* When a model has a tensor: never, always, or where its configuration says so. */
enum tensor_when {
    TENSOR_NEVER,
    TENSOR_ALWAYS,
    TENSOR_IF_QKV_BIAS,
    TENSOR_IF_O_BIAS,
    TENSOR_IF_MLP_BIAS,
    TENSOR_IF_QK_NORM,
};

enum tensor_flags {
    TENSOR_TRANSPOSED = 1, /* a matrix stored [inputs][outputs], as GPT-2's Conv1D does */
    TENSOR_RESIDUAL = 2,   /* added to the residual stream: random initialisation draws it 1 / sqrt(2 layers) as wide */
    TENSOR_MINUS_ONE = 4,  /* a norm stored as w and applied as 1 + w; trained and saved as w */
    TENSOR_BARE = 8,       /* no file puts a prefix before the name */
    TENSOR_PEFT = 16,      /* PEFT's choice where a configuration names no modules (peft/utils/constants.py) */
};

struct tensor_row {
    const char *module; /* tensors MODULE.weight and MODULE.bias; of a layer: behind "layers.3." */
    enum tensor_part part;
    enum tensor_when weight, bias;
    unsigned flags;  /* of enum tensor_flags */
    unsigned target; /* of enum lora_target; 0: no adapter goes there */
};

/* The order of the rows is the order of parameters in optimizers' checkpoints and of what random numbers are drawn for:
 * new rows go where they leave the others' order as it was. */
enum { TENSOR_PREFIXES = 4 };
struct tensor_table {
    const char *prefix[TENSOR_PREFIXES]; /* what files may put before names, "" too; transformers' own first */
    const char *layers;                  /* "layers": the modules of layer 3 are behind "layers.3." */
    const struct tensor_row *row;        /* up to the first without a module */
};

extern const struct tensor_table llama_tensors, gpt2_tensors, phi_tensors, gemma2_tensors, gemma3_tensors;

#endif
