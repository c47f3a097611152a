/* `tandem merge`: a model whose weights have an adapter's product added to them.  Any thread. */
#ifndef TANDEM_ENGINE_MODEL_MERGE_H
#define TANDEM_ENGINE_MODEL_MERGE_H

#include "engine/base/err.h"

#include <stdbool.h>

struct merge_summary {
    int matrices;            /* that the adapter changed */
    bool dequantised;        /* the base was quantised: floats are written */
    bool untied;             /* one matrix was the head and the embedding table; the copy has two */
    char of[200], base[200]; /* the base that the adapter's configuration names, and the name that it would give to this
                               one; `of` is "" when it names none */
};

struct merge_options {
    const char *type; /* "auto": the type of the base's tensors, or, of a quantised base,
                         the one that its config.json names, else bf16; "f32", "bf16", "f16";
                         "q8_0", "q4_0": a GGUF file */
    void (*progress)(void *arg, int done, int total); /* tensors; may be NULL */
    void *arg;
    struct merge_summary *summary; /* filled also when it fails */
};

/* Writes the model in `model` with the PEFT adapter in `adapter` as `out`, which must not exist or be an empty
 * directory: a directory with configuration and tokenizer, or a GGUF file.  Each changed matrix is dequantised, gets
 * scale * b * a added in f32, and is rounded once to the output's type.  Where the adapter changes the
 * embedding table or the head and both are one matrix, the copy has two.  Keeps one matrix in memory; `out` is complete
 * or not there.  ERR_INVALID, naming the tensor: the adapter is of another model, or a sum is not finite; ERR_IO:
 * also where the disk has too little room; ERR_UNSUPPORTED: weights packed for a device. */
int merge_adapter(const char *model, const char *adapter, const char *out, const struct merge_options *, struct err *e);

#endif
