/* Reads safetensors files, single or sharded by an index, and writes single ones.
 *
 * Format: u64 little-endian header length, that many bytes of JSON {"name": {"dtype", "shape", "data_offsets"}, ...,
 * "__metadata__": {...}}, then the data.  (huggingface/safetensors, README "Format".)  The files are untrusted:
 * lengths, shapes and offsets are checked against each other before any becomes a pointer; overlaps, gaps and
 * duplicates are errors that name the tensor.  Immutable after opening. */
#ifndef TANDEM_SAFETENSORS_H
#define TANDEM_SAFETENSORS_H

#include "engine/base/err.h"
#include "kernels/num.h"

#include <stddef.h>
#include <stdint.h>

enum { ST_MAX_DIMS = 8 };

enum st_type {
    ST_F32,
    ST_F16,
    ST_BF16,
    ST_I8,
    ST_U8,
    ST_I16,
    ST_U16,
    ST_I32,
    ST_U32,
    ST_I64,
    ST_U64,
    ST_F64,
    ST_BOOL,
    ST_OTHER
};

struct st_tensor {
    char *name;
    enum st_type type;
    int n_dims;
    int64_t dims[ST_MAX_DIMS];
    const void *data; /* into the mapping; bytes long; not necessarily aligned */
    size_t bytes;
};

struct safetensors; /* one or more mapped files under one set of names */

/* one file given as bytes (borrowed for the object's life), for tests and the fuzzer */
struct safetensors *safetensors_parse(const char *bytes, size_t n, struct err *e);
struct safetensors *safetensors_open(const char *path, struct err *e);
/* model.safetensors, or the shards that model.safetensors.index.json names, in a model directory */
struct safetensors *safetensors_open_dir(const char *dir, struct err *e);
void safetensors_close(struct safetensors *);

size_t safetensors_count(const struct safetensors *);
const struct st_tensor *safetensors_at(const struct safetensors *, size_t i);
const struct st_tensor *safetensors_find(const struct safetensors *, const char *name); /* NULL: none */

const char *st_type_name(enum st_type);
enum dtype st_float_type(enum st_type); /* DT_NONE when it is no float type tandem computes with */

/* Writes the tensors in the given order to path (through a temporary name, fsync, rename).
 * metadata: key, value pairs ended by NULL, or NULL. */
int safetensors_write(const char *path, const struct st_tensor *t, size_t n, const char *const *metadata,
                      struct err *e);

#endif
