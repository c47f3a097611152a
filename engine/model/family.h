/* Model families as data: the names of fields in config.json, transformers' defaults for absent fields, which fields
 * change the computation, and the structure of a layer.  A family is a row of the table in family.c. */
#ifndef TANDEM_ENGINE_MODEL_FAMILY_H
#define TANDEM_ENGINE_MODEL_FAMILY_H

#include "engine/model/block.h"
#include "kernels/ops.h"

#include <stdbool.h>

struct tensor_table;

/* Names of fields in config.json; NULL: the family has no such field. */
struct family_fields {
    const char *hidden, *layers, *heads, *kv_heads, *head_dim, *inter, *max_len, *eps, *act;
    const char *types; /* number of token types */
};

/* transformers' defaults for absent fields. */
struct family_defaults {
    int vocab, heads;     /* 0: the field is required */
    int kv_heads;         /* 0: as many as heads; null in the file means the same */
    int head_dim;         /* 0: hidden / heads */
    int inter_per_hidden; /* 0: the field is required */
    int max_len;
    double eps;
    const char *act;
    bool tied;
};

/* A field of config.json that is true or false. */
enum family_switch_use {
    SWITCH_ATTENTION_BIAS, /* q, k, v and o have biases */
    SWITCH_QKV_BIAS,       /* q, k and v have biases */
    SWITCH_MLP_BIAS,       /* the feed-forward's linear layers have biases */
    SWITCH_PARALLEL,       /* the norms are family_layer.parallel; false: NORMS_BEFORE */
    SWITCH_NORM_BIAS,      /* the norms have biases */
    SWITCH_QK_NORM,        /* q and k have the norms family_layer.qk_norm; false: none */
    SWITCH_OFF,            /* true is refused */
    SWITCH_ON,             /* false is refused */
};
enum { FAMILY_SWITCHES = 4 };
struct family_switch {
    const char *name;
    enum family_switch_use use;
};

/* A field of config.json that is a number; null in the file means the neutral value of its use. */
enum family_number_use {
    NUMBER_ATTN_SOFTCAP,   /* of scores */
    NUMBER_ATTN_SCALE,     /* of scores */
    NUMBER_QUERY_SCALAR,   /* scores are divided by its square root */
    NUMBER_EMBED_SCALE,    /* of embeddings */
    NUMBER_RESIDUAL_SCALE, /* of a branch's output, before it is added */
    NUMBER_LOGIT_SOFTCAP,
    NUMBER_LOGIT_SCALE,
    NUMBER_LOGIT_DIVISOR,
    NUMBER_FIXED, /* only the default is supported */
};
enum { FAMILY_NUMBERS = 4 };
struct family_number {
    const char *name;
    enum family_number_use use;
    double otherwise; /* default when the field is absent; 0: neutral */
};

/* Which layers attend to only the last `sliding_window` positions. */
enum window_rule {
    WINDOW_NONE, /* the field is not read */
    WINDOW_ALL,
    WINDOW_FROM,      /* the layers from `number` on */
    WINDOW_BUT_EVERY, /* all but layers number - 1, 2 number - 1, ... */
    WINDOW_UNROTATED, /* the layers whose q and k are not rotated */
    WINDOW_BUT_FIRST, /* all but layers 0, number, 2 number, ... */
};
struct family_window {
    enum window_rule rule;
    int positions;       /* default when the file has no sliding_window; null in the file: no window */
    const char *enabled; /* field that must be true to enable windows, or NULL */
    const char *field;   /* field that overrides `number`, or NULL */
    int number;          /* the rule's default number */
    bool by_type;        /* layer_types overrides the rule; else it must agree with it */
    const char *both;    /* field, instead of sliding_window, of the positions on both sides together */
};

/* Names of the fields of experts and their defaults; count NULL: the family has none. */
struct family_experts {
    const char *count, *count_too;   /* either name */
    const char *chosen, *chosen_too; /* either name */
    const char *inter;     /* width of an expert; NULL: the family's field `inter`, and every layer has experts */
    const char *shared;    /* width of an expert that every token goes through, with a gate; NULL: none */
    const char *normalise; /* NULL: the weights of the chosen sum to 1 */
    struct {
        int count, chosen, inter, shared;
    } otherwise;
};

/* Layers whose q and k are not rotated. */
struct family_unrotated {
    const char *list;  /* field: 0 for each such layer, else 1; NULL: the family has none */
    const char *every; /* field: without the list, layers number - 1, 2 number - 1, ... */
    int number;        /* its default */
};

struct family_rope {
    bool any;                                /* the family uses rotary embeddings */
    bool partial_read;                       /* partial_rotary_factor is read; else heads are rotated whole */
    double partial;                          /* default rotated fraction of a head */
    double theta;                            /* default */
    const char *theta_field, *partial_field; /* NULL: rope_theta, partial_rotary_factor */
    bool longrope_only;                      /* the only scaling, also called su and yarn */
    bool scaled;                             /* the default is scaled: the file must have a rule */
    bool scaled_queries; /* the rule's llama_4_scaling_beta scales queries from position old_len on */
    int old_len;         /* default of original_max_position_embeddings; 0: the rule's, or the model's positions */
    /* Layers with a window have a rule of their own: the field of its theta (NULL: none), and the default.  Then
     * rope_scaling applies to layers without a window, and rope_parameters has an object for each layer type. */
    bool window_rule;
    const char *window_theta_field;
    double window_theta;
};

/* A layer's structure unless a switch changes it. */
struct family_layer {
    enum norm_kind norm;
    bool qkv_bias, o_bias, mlp_bias;
    bool gated;   /* act(gate) * up, else act(fc1) */
    bool clamped; /* ACT_SWIGLU_CLAMPED, whatever the file says */
    enum block_qk_norm qk_norm;
    enum block_norms norms;
    enum block_norms parallel; /* for SWITCH_PARALLEL */
};

struct model_family {
    const char *model_type;
    const struct tensor_table *tensors;
    struct family_fields field;
    struct family_defaults otherwise;
    struct family_switch toggle[FAMILY_SWITCHES]; /* ends at the first without a name */
    struct family_number number[FAMILY_NUMBERS];  /* likewise */
    struct family_window window;
    struct family_rope rope;
    struct family_unrotated unrotated;
    struct family_layer layer;
    struct family_experts experts;
    bool embed_root; /* embeddings are multiplied by sqrt(hidden), rounded to the weights' type */
    bool encoder;    /* attention to both sides, no LM head: gives hidden states, not tokens */
    bool after_pad;  /* learned positions count from pad_token_id + 1 */
};

/* @return the row of a model_type; NULL: unknown. */
const struct model_family *model_family_find(const char *model_type);
/* For tests: registers one family in addition to the table's and replaces the one registered before; NULL: only removes
 * it.  Call before any thread reads a configuration.  The row remains the caller's. */
void model_family_add(const struct model_family *);
/* All names, separated by ", ". */
void model_family_names(char *out, size_t size);

#endif
