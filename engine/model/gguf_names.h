/* The names of tensors in GGUF files beside those of Hugging Face's, and how their values differ. */
#ifndef TANDEM_ENGINE_MODEL_GGUF_NAMES_H
#define TANDEM_ENGINE_MODEL_GGUF_NAMES_H

#include <stddef.h>

enum { GGUF_NAME_MAX = 128 };

enum gguf_name_flags {
    GGUF_PAIRS = 1,      /* the heads' rows are permuted where the architecture's are: of q */
    GGUF_PAIRS_KV = 2,   /* likewise, of k */
    GGUF_PLUS_ONE = 4,   /* a norm stored as 1 + w */
    GGUF_TRANSPOSED = 8, /* stored [outputs][inputs], by the family's own files [inputs][outputs] */
    GGUF_THIRDS = 16,    /* rows of all heads' q, then k, then v; by the family's own files q, k and v of each head */
    GGUF_STACKED = 32,   /* one tensor with all experts, or heads, their number its slowest dimension; the module has a %d */
    GGUF_ONE_ROW = 64,   /* stored as a vector, by the family's own files a matrix of one row */
    GGUF_BARE_END = 128  /* by the family's own files without ".weight" */
};

/* "blk.3.attn_q.weight" is "model.layers.3.self_attn.q_proj.weight". */
struct gguf_name {
    const char *gguf, *module;
    int flags; /* of enum gguf_name_flags */
};

struct gguf_names {
    const char *model_type;                /* of an architecture (engine/files/gguf_model.h) */
    const char *layers;                    /* "model.layers": what stands before the number of a layer */
    const struct gguf_name *layer, *model; /* each ends at the first without a name */
};

/* The names of that model_type's tensors. */
const struct gguf_names *gguf_names_of(const char *model_type);

/* The name in a GGUF file of "model.layers.3.self_attn.q_proj.weight", and its row.  *expert: the number in the place
 * of the module's %d, else 0.  NULL: the file has no such tensor. */
const struct gguf_name *gguf_name_find(const struct gguf_names *, const char *tensor, char out[GGUF_NAME_MAX],
                                       int *expert);

#endif
