/* LoRA adapters: PEFT's directory format (adapter_config.json, adapter_model.safetensors), read and written, and where
 * in the model's products they act.
 * (Format: huggingface/peft, src/peft/tuners/lora; names and shapes as its save_pretrained writes them.) */
#ifndef TANDEM_ENGINE_MODEL_ADAPTER_H
#define TANDEM_ENGINE_MODEL_ADAPTER_H

#include "engine/base/err.h"
#include "engine/model/config.h"
#include "engine/model/tensors.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <stdint.h>

/* A module as PEFT names it, and its place in a product's outputs. */
struct lora_module {
    const char *name; /* "q_proj", "c_attn": the last component */
    const char *path; /* within a layer: "self_attn.q_proj", "attn.c_attn" */
    unsigned target;  /* of enum lora_target */
    bool peft;        /* PEFT's choice where a configuration names none */
    bool transposed;  /* the base's weight is stored [inputs][outputs] */
    enum product product;
    int col, n, k; /* columns [col, col + n) of the product's output; k inputs */
};

enum { LORA_MODULES_MAX = LAYER_MATRICES_MAX, LORA_RANK_MAX = 512 };

/* The family's modules in the order of its tensor table; returns how many. */
int lora_modules(const struct model_config *, struct lora_module out[LORA_MODULES_MAX]);
/* "model.layers.3." or "transformer.h.3." */
void lora_layer_prefix(const struct model_config *, int layer, char out[64]);

/* A pair of matrices on the host, f32: a (r, k), b (n, r).  r 0: the module has none in this layer. */
struct lora_pair {
    int r;
    float scale; /* alpha / r, or alpha / sqrt(r) */
    float *a, *b;
};

/* Owned by whoever read or built it, from any thread; immutable once served. */
struct adapter {
    int layers, n_modules;
    struct lora_module module[LORA_MODULES_MAX];
    struct lora_pair *pair; /* [layers][n_modules] */
    int r;                  /* for the configuration: of the whole, before patterns; 1..LORA_RANK_MAX */
    double alpha, dropout;
    bool rslora;
    unsigned targets;
    void *memory; /* one block */
};

/* Reads and checks every shape against the model.  NULL and *e, with the file and the tensor or key in it: DoRA, aLoRA,
 * modules_to_save, biases, adapters of the embedding or the head and values that are not finite are refused by name.
 * Any thread. */
struct adapter *adapter_read(const char *dir, const struct model_config *, struct err *e);
/* The same of a configuration's text and its tensors (both borrowed for the call). */
struct adapter *adapter_parse(const char *config, const struct tensor_source *, const struct model_config *,
                              struct err *e);
/* Pairs zeroed, for building one: rank r at the modules in targets, scale from r, alpha and rslora.  NULL: no memory.
 */
struct adapter *adapter_new(const struct model_config *, unsigned targets, int r, double alpha, bool rslora);
/* Pairs zeroed, of rank[layer * n_modules + module] each (0: none), scale 0.  NULL: no memory. */
struct adapter *adapter_of_ranks(const struct model_config *, const int *rank);
size_t adapter_bytes(const struct adapter *); /* of all matrices */
/* Writes the two files into dir, which is made, parents too; each file is written beside, synced and renamed, the
 * configuration last, and the directory is synced.  The bytes depend on the arguments only. */
int adapter_write(const struct adapter *, const struct model_config *, const char *base_name, const char *dir,
                  struct err *e);
void adapter_free(struct adapter *); /* NULL is allowed */
/* What adapters of a model call it, so that PEFT finds it: "ORG/NAME" of a snapshot in the Hub's cache
 * (".../models--ORG--NAME/snapshots/REVISION"), else the absolute path of its directory.  Not _name_or_path of
 * config.json, which may name the model that this one was made from.  Owned by the caller. */
char *adapter_base_name(const char *model_dir);

#define ADAPTER_CONFIG "adapter_config.json"
#define ADAPTER_WEIGHTS "adapter_model.safetensors"

#endif
