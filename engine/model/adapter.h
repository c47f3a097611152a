/* LoRA adapters: PEFT's directory format (adapter_config.json, adapter_model.safetensors), read and written, and which
 * of the model's GEMMs they change. (Format: huggingface/peft, src/peft/tuners/lora; names and shapes as its
 * save_pretrained writes them.) */
#ifndef TANDEM_ENGINE_MODEL_ADAPTER_H
#define TANDEM_ENGINE_MODEL_ADAPTER_H

#include "engine/base/err.h"
#include "engine/model/config.h"
#include "engine/model/tensors.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <stdint.h>

/* A module as PEFT names it, and the columns of its GEMM's output that it adds to.  Routers and experts are parameters
 * for transformers 5: PEFT's target_parameters (peft/tuners/lora/layer.py, ParamWrapper). */
struct lora_module {
    const char *name;             /* "q_proj", "c_attn": the last component; of a parameter two, "experts.down_proj" */
    const char *path;             /* within a layer: "self_attn.q_proj", "attn.c_attn", "mlp.experts.down_proj" */
    const struct tensor_row *row; /* of the first of its matrices: the layers with it have the module */
    bool parameter;               /* not a module but a parameter of one */
    bool end;        /* the embedding table or the LM head: a module of the model, whose pair is that of layer 0 */
    int experts;     /* a and b are of so many experts, one after the other; 0: the module is no experts' */
    unsigned target; /* a bit of enum lora_target */
    bool peft;       /* adapted by default: in PEFT's target_modules when a configuration has none */
    bool transposed; /* the base's weight is stored as [inputs][outputs] */
    int by_head;     /* as matrix_slot's: the rows of b are stored likewise */
    enum layer_gemm gemm;
    int col, n, k; /* columns [col, col + n) of the GEMM's output; k inputs */
};

enum { LORA_MODULES_MAX = 2 * LAYER_MATRICES_MAX, LORA_RANK_MAX = 512 };

/* The modules of all layers, in the order of the family's tensor table but experts last, then the embedding table and
 * the LM head; @return their number. */
int lora_modules(const struct model_config *, struct lora_module out[LORA_MODULES_MAX]);
/* Whether the layer has the module; layer 0 has those outside the layers. */
bool lora_module_present(const struct model_config *, int layer, const struct lora_module *);
/* "model.layers.3.self_attn.q_proj", "lm_head" */
enum { LORA_NAME_MAX = 160 };
void lora_module_name(const struct model_config *, int layer, const struct lora_module *, char out[LORA_NAME_MAX]);
/* "model.layers.3." or "transformer.h.3." */
void lora_layer_prefix(const struct model_config *, int layer, char out[64]);

/* The number of matrices a, and b, of a pair. */
static inline int lora_copies(const struct lora_module *m)
{
    return m->experts ? m->experts : 1;
}

/* A pair of matrices on the host, f32: a (r, k), b (n, r), rows as stored; of experts a (E, r, k), b (E, n, r).  Of the
 * embedding table k is the vocabulary: column t of a is token t's.  r 0: the module has none in this layer. */
struct lora_pair {
    int r;
    float scale; /* alpha / r, or alpha / sqrt(r) */
    float *a, *b;
};

/* The rows of b in the order of the GEMM's outputs, or back as they are stored. */
void lora_b_to_outputs(const struct lora_module *, int r, const float *stored, float *out);
void lora_b_to_stored(const struct lora_module *, int r, const float *outputs, float *out);

/* Owned by the caller that read or built it, on any thread; immutable once it is served. */
struct adapter {
    int layers, n_modules;
    struct lora_module module[LORA_MODULES_MAX];
    struct lora_pair *pair; /* [layers][n_modules] */
    int r;                  /* the configuration's default rank, before rank_pattern; 1..LORA_RANK_MAX */
    double alpha, dropout;
    bool rslora;
    unsigned targets;
    float *score; /* (hidden) of an adapter that scores texts: score = score . h, h the final norm's output for the last
                     token; PEFT's SEQ_CLS with one label; owned; NULL: none */
    unsigned char content[32]; /* hash of its pairs, where one was made */
    void *memory;              /* one block */
};

/* Reads and checks every shape against the model.  @return NULL on failure, and *e names the file and the tensor or
 * key.  DoRA, aLoRA, modules_to_save other than the head of scores, biases and non-finite values are refused by name.
 * Any thread. */
struct adapter *adapter_read(const char *dir, const struct model_config *, struct err *e);
/* The same from a configuration's text and its tensors, both borrowed for the call. */
struct adapter *adapter_parse(const char *config, const struct tensor_source *, const struct model_config *,
                              struct err *e);
/* A new adapter with zeroed pairs: rank r for the modules in targets, scale from r, alpha and rslora.  @return NULL:
 * out of memory. */
struct adapter *adapter_new(const struct model_config *, unsigned targets, int r, double alpha, bool rslora);
/* A new adapter with zeroed pairs of rank[layer * n_modules + module] (0: no pair), scale 0.  @return NULL: out of
 * memory. */
struct adapter *adapter_of_ranks(const struct model_config *, const int *rank);
size_t adapter_bytes(const struct adapter *); /* bytes of all matrices */
/* Writes the two files into dir, which is created with its parents.  Each file is written under a temporary name,
 * synced and renamed, the configuration last; then the directory is synced.  The bytes depend on the arguments only. */
int adapter_write(const struct adapter *, const struct model_config *, const char *base_name, const char *dir,
                  struct err *e);
void adapter_free(struct adapter *); /* NULL is allowed */
/* The base_model_name_or_path that adapters of the model get, so that PEFT finds it: "ORG/NAME" of a snapshot in the
 * Hub's cache (".../models--ORG--NAME/snapshots/REVISION"), else the absolute path of its directory.  _name_or_path of
 * config.json is not used, since it may name the model that this one was derived from.  Owned by the caller. */
char *adapter_base_name(const char *model_dir);

#define SCORE_WEIGHT "score.weight"
#define ADAPTER_CONFIG "adapter_config.json"
#define ADAPTER_WEIGHTS "adapter_model.safetensors"

#endif
