/* Options for opening a model, the same for serving, evaluating and training. */
#ifndef TANDEM_ENGINE_MODEL_OPTIONS_H
#define TANDEM_ENGINE_MODEL_OPTIONS_H

#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct comm;
struct weights_taker;

struct model_options {
    const char *dir;         /* a Hugging Face directory */
    const char *device;      /* see struct dev_config (kernels/ops.h); NULL: cpu */
    int threads;             /* compute threads, the caller's own included; 0: one per core to bind to or available */
    const char *quantize;    /* NULL or "none": the file's own type; "int8", "int4", "nf4"; for comparisons
                                "int8-nearest", "int4-nearest": plain rounding */
    const char *activations; /* inputs of GEMMs with bf16 weights: "f32"; "bf16": rounded, as in frameworks that run in
                                bf16; NULL or "auto": bf16 where the device multiplies it faster */
    /* memory budget of a device with its own memory */
    size_t gpu_memory_bytes;    /* 0: from gpu_memory_fraction */
    double gpu_memory_fraction; /* of the memory free at the start; 0: 0.9 */
    struct comm *comm; /* NULL, or the ranks that the model is divided over (shard.h); borrowed until it is closed */
    int stages;        /* with comm: see shard_open */
    const struct weights_taker *taker; /* NULL, or who takes matrices away while they are loaded (weights.h) */
    bool verify_weights; /* compare every byte with the checksums `tandem quantize` wrote; an error where it has none */
    bool no_calibration; /* quantise a small model without calibrating it on text it generates (calibrate.h) */
};

/* Reads the configuration and the tokenizer of a directory whose weights are not there yet.  @return 0, or what
 * opening it would say; *e is set. */
int model_worth_loading(const char *dir, struct err *e);

#endif
