/* The families of models as data: what config.json calls things, what transformers takes for a field that is absent,
 * which fields change the computation, and what a layer is made of.  A family is a row of the table in family.c. */
#ifndef TANDEM_ENGINE_MODEL_FAMILY_H
#define TANDEM_ENGINE_MODEL_FAMILY_H

#include "engine/model/block.h"
#include "kernels/ops.h"

#include <stdbool.h>

struct tensor_table;

/* Names of fields in config.json; NULL: the family has no such field. */
struct family_fields {
    const char *hidden, *layers, *heads, *kv_heads, *head_dim, *inter, *max_len, *eps, *act;
};

/* What transformers takes for a field that is absent. */
struct family_defaults {
    int kv_heads;         /* 0: heads; so is null in the file */
    int head_dim;         /* 0: hidden / heads */
    int inter_per_hidden; /* 0: the field must be there */
    int max_len;
    double eps;
    const char *act;
    bool tied;
};

/* A field of config.json that is true or false. */
enum family_switch_use {
    SWITCH_ATTENTION_BIAS, /* q, k, v and o have biases */
    SWITCH_MLP_BIAS,       /* the feed-forward's products have biases */
    SWITCH_OFF,            /* true is refused */
    SWITCH_ON,             /* false is refused */
};
enum { FAMILY_SWITCHES = 4 };
struct family_switch {
    const char *name;
    enum family_switch_use use;
};

/* A field of config.json that is a number; null in the file: the neutral value of its use. */
enum family_number_use {
    NUMBER_ATTN_SOFTCAP,   /* of scores */
    NUMBER_ATTN_SCALE,     /* of scores */
    NUMBER_QUERY_SCALAR,   /* scores are divided by its root */
    NUMBER_EMBED_SCALE,    /* of embeddings */
    NUMBER_RESIDUAL_SCALE, /* of what a branch adds */
    NUMBER_LOGIT_SOFTCAP,
    NUMBER_LOGIT_SCALE,
    NUMBER_LOGIT_DIVISOR,
};
enum { FAMILY_NUMBERS = 4 };
struct family_number {
    const char *name;
    enum family_number_use use;
    double otherwise; /* where the field is absent; 0: neutral */
};

/* Which layers see only the last `sliding_window` positions. */
enum window_rule {
    WINDOW_NONE, /* the field is not read */
    WINDOW_ALL,
    WINDOW_FROM,      /* the layers from `number` on */
    WINDOW_BUT_EVERY, /* all but layers number - 1, 2 number - 1, ... */
};
struct family_window {
    enum window_rule rule;
    int positions;       /* where the file has no sliding_window; null in the file: no window */
    const char *enabled; /* field that must be true for there to be windows, or NULL */
    const char *field;   /* that has `number`, or NULL */
    int number;          /* of the rule, where the file has none */
    bool by_type;        /* layer_types overrides the rule; else it must agree with it */
};

struct family_rope {
    bool any;          /* positions rotate q and k */
    bool partial_read; /* partial_rotary_factor counts; else only 1 is accepted */
    double partial;    /* rotated share of a head, where the file has none */
    double theta;      /* where the file has none */
    /* Layers with a window have a rule of their own: the field of its theta and what that is where the file has none.
     * Then rope_scaling is for full layers, and rope_parameters has an object for each layer type.  NULL: one rule. */
    const char *window_theta_field;
    double window_theta;
};

/* What a layer has where no switch says otherwise. */
struct family_layer {
    enum norm_kind norm;
    bool qkv_bias, o_bias, mlp_bias;
    bool gated; /* act(gate) * up, else act(fc1) */
    bool qk_norm;
    enum block_norms norms;
};

struct model_family {
    const char *model_type;
    const struct tensor_table *tensors;
    struct family_fields field;
    struct family_defaults otherwise;
    struct family_switch toggle[FAMILY_SWITCHES]; /* up to the first without a name */
    struct family_number number[FAMILY_NUMBERS];  /* likewise */
    struct family_window window;
    struct family_rope rope;
    struct family_layer layer;
    bool embed_root; /* embeddings are multiplied by the root of hidden, rounded to the weights' type */
};

/* The row of a model_type; NULL: there is none. */
const struct model_family *model_family_find(const char *model_type);
/* Makes a family known beside those of the table, instead of the one added before; NULL: none.  For tests; before any
 * thread reads a configuration.  The row stays the caller's. */
void model_family_add(const struct model_family *);
/* All names, separated by ", ". */
void model_family_names(char *out, size_t size);

#endif
