/* What the keys of a GGUF file say about a model, as the files of Hugging Face's layout that the parsers of the rooms
 * above read.
 *
 * The keys: ggml-org/ggml, docs/gguf.md, and the `gguf` Python package 0.19, constants.py.  What the other rooms check
 * in a file (ranges, known values) is not checked here a second time. */
#ifndef TANDEM_ENGINE_FILES_GGUF_MODEL_H
#define TANDEM_ENGINE_FILES_GGUF_MODEL_H

#include "engine/base/buf.h"
#include "engine/files/gguf.h"

/* The architectures that tandem reads. */
enum gguf_rope { GGUF_ROPE_HALVES, GGUF_ROPE_PAIRS }; /* PAIRS: rows of q and k are stored permuted */
struct gguf_arch {
    const char *name;       /* general.architecture */
    const char *model_type; /* of config.json */
    enum gguf_rope rope;
};
/* The file's architecture.  NULL, with *e set: it is no language model, or not one that tandem knows. */
const struct gguf_arch *gguf_arch(const struct gguf *, struct err *e);

/* The architecture in which files of a family are written; NULL: none. */
const struct gguf_arch *gguf_arch_of(const char *model_type);

/* The sizes that config.json and the permutation of rows share.  ERR_INVALID when they are missing or absurd. */
struct gguf_heads {
    int q, kv, dim;
};
int gguf_heads(const struct gguf *, const struct gguf_arch *, struct gguf_heads *out, struct err *e);

/* ---- the files: JSON text appended to *out ---- */

int gguf_config_json(const struct gguf *, struct buf *out, struct err *e);
int gguf_generation_json(const struct gguf *, struct buf *out, struct err *e);
int gguf_tokenizer_json(const struct gguf *, struct buf *out, struct err *e);
int gguf_tokenizer_config_json(const struct gguf *, struct buf *out, struct err *e);

/* A JSON string with its quotes.  Bytes that are not UTF-8 stay as they are: the reader refuses them. */
void gguf_put_text(struct buf *out, struct gguf_text t);

#endif
