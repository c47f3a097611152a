/* Named tensors, independent of their storage: read by weights, adapters, training and the quantiser.
 *
 * A source is a list sorted by name; names are unique.  An implementation is a table of functions: safetensors.h opens
 * files as a source, and other code needs only this header.  Immutable after opening; any thread. */
#ifndef TANDEM_ENGINE_MODEL_TENSOR_SOURCE_H
#define TANDEM_ENGINE_MODEL_TENSOR_SOURCE_H

#include "engine/base/err.h"
#include "kernels/num.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { TENSOR_MAX_DIMS = 8 };

enum tensor_type {
    TENSOR_F32,
    TENSOR_F16,
    TENSOR_BF16,
    TENSOR_I8,
    TENSOR_U8,
    TENSOR_I16,
    TENSOR_U16,
    TENSOR_I32,
    TENSOR_U32,
    TENSOR_I64,
    TENSOR_U64,
    TENSOR_F64,
    TENSOR_BOOL,
    TENSOR_F8_E4M3,
    TENSOR_OTHER /* listed, but not usable in computations */
};

/* How a matrix is stored, where that is not plain numbers in the way of the family's own files: weights_matrix
 * (weights_read.h) reads it. */
struct tensor_form {
    int blocks;         /* an enum ggml_type (engine/files/gguf.h) of quantised blocks; -1: numbers */
    int pairs;          /* > 0: rows of this many heads, stored as llama.cpp rotates them (weights_gguf.h) */
    int thirds;         /* > 0: q, k and v of this many heads in turn, where the family has them by head */
    bool outputs_first; /* stored [outputs][inputs] also where the family transposes */
    const struct expert_slice *slice; /* not NULL: of a tensor of all experts (fused_experts.h); the rest is not used */
};

struct tensor {
    char *name;
    enum tensor_type type;
    int n_dims;
    int64_t dims[TENSOR_MAX_DIMS];
    const void *data;               /* `bytes` bytes, not necessarily aligned; valid while the source is open */
    size_t bytes;                   /* follows from type and dims, except for TENSOR_OTHER */
    const struct tensor_form *form; /* NULL: none, or with blocks of TENSOR_OTHER; owned by the source */
};

const char *tensor_type_name(enum tensor_type); /* "BF16"; "?" for TENSOR_OTHER */
size_t tensor_type_bytes(enum tensor_type);     /* 0 for TENSOR_OTHER */
enum dtype tensor_float_type(enum tensor_type); /* DT_NONE unless it is a float type that tandem computes with */

/* whether it is of a float type */
static inline float tensor_element(const struct tensor *t, size_t i)
{
    uint16_t h;
    float f;
    if (t->type == TENSOR_F32) return memcpy(&f, (const char *)t->data + 4 * i, 4), f;
    memcpy(&h, (const char *)t->data + 2 * i, 2);
    return t->type == TENSOR_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

struct tensor_source;

/* populate and release may be NULL: no-ops.  The functions are described below. */
struct tensor_source_ops {
    size_t (*count)(const struct tensor_source *);
    const struct tensor *(*at)(const struct tensor_source *, size_t i);
    const struct tensor *(*find)(const struct tensor_source *, const char *name);
    const char *(*metadata)(const struct tensor_source *, const char *key);
    int (*verify)(const struct tensor_source *, struct err *);
    int (*populate)(const struct tensor_source *, const struct tensor *, struct err *);
    void (*release)(const struct tensor_source *, const struct tensor *);
    void (*close)(struct tensor_source *);
};

/* the first member of an implementation's own struct */
struct tensor_source {
    const struct tensor_source_ops *ops;
};

size_t tensor_source_count(const struct tensor_source *);
const struct tensor *tensor_source_at(const struct tensor_source *, size_t i);
const struct tensor *tensor_source_find(const struct tensor_source *, const char *name); /* NULL: none */
/* Metadata stored with the tensors.  @return NULL: no such key. */
const char *tensor_source_metadata(const struct tensor_source *, const char *key);
/* Reads every byte and verifies the stored checksums.  ERR_UNSUPPORTED when none are stored. */
int tensor_source_verify(const struct tensor_source *, struct err *e);
/* Reads the tensor's bytes into memory.  ERR_IO when they cannot be read; without this call, such an error ends the
 * process (SIGBUS) at first use. */
int tensor_source_populate(const struct tensor_source *, const struct tensor *, struct err *e);
/* The tensor's bytes are not needed for now: their memory may be released until they are read again. */
void tensor_source_release(const struct tensor_source *, const struct tensor *);
void tensor_source_close(struct tensor_source *); /* NULL is allowed */

/* For implementations that keep their tensors in one array: their first member, and its functions. */
struct tensor_list {
    struct tensor_source source;
    struct tensor *v; /* sorted by name once the source is open */
    size_t n, cap;
};
size_t tensor_list_count(const struct tensor_source *);
const struct tensor *tensor_list_at(const struct tensor_source *, size_t i);
const struct tensor *tensor_list_find(const struct tensor_source *, const char *name);
void tensors_sort(struct tensor *v, size_t n); /* by name */
/* In a sorted array; NULL: none. */
const struct tensor *tensors_find(const struct tensor *v, size_t n, const char *name);

#endif
