/* The keys of a GGUF file's architecture, "llama.block_count" for "block_count", and the members of config.json that
 * they become. */
#ifndef TANDEM_ENGINE_FILES_GGUF_KEYS_H
#define TANDEM_ENGINE_FILES_GGUF_KEYS_H

#include "engine/files/gguf_model.h"

/* After the first error, which sets *e and rc, no key is found. */
struct gguf_keys {
    const struct gguf *g;
    const struct gguf_arch *arch;
    struct err *e;
    int rc;
};

/* @return false: missing, *out unchanged.  An array must have one value for all layers. */
bool gguf_keys_number(struct gguf_keys *, const char *name, double *out);
/* ERR_INVALID when it is missing. */
double gguf_keys_needed(struct gguf_keys *, const char *name);
bool gguf_keys_text(const struct gguf_keys *, const char *name, struct gguf_text *out);
/* An array of numbers; NULL: there is none of that name. */
const struct gguf_key *gguf_keys_array(const struct gguf_keys *, const char *name);

/* ---- members, which follow the first one, "model_type" ---- */

/* A float is written as the shortest decimal that it is nearest to: 1e-06 for what was 1e-6 before it was stored. */
void gguf_put(struct buf *out, const char *name, double value);
void gguf_put_flag(struct buf *out, const char *name, bool value);
void gguf_put_if(struct gguf_keys *, struct buf *out, const char *key, const char *name);
void gguf_put_needed(struct gguf_keys *, struct buf *out, const char *key, const char *name);

/* The rotation of q and k: rope_theta, rope_scaling and others. */
void gguf_put_rope(struct gguf_keys *, struct buf *out, int head_dim);

#endif
