/* A GGUF file: keys with values, and tensors, as they are written; what they mean is in gguf_model.h and in
 * engine/model/gguf_source.h.
 *
 * Format (ggml-org/ggml, docs/gguf.md; the block sizes of the types from ggml/src/ggml-common.h): "GGUF", u32 version,
 * u64 numbers of tensors and of keys; keys: text, u32 type, value; tensors: text, u32 dimensions, u64 each, u32 type,
 * u64 offset; then the data, aligned.  Texts have a u64 length before them; everything is little-endian.  Versions 2
 * and 3 are the same in little-endian files.  A model may be split into files NAME-00001-of-0000N.gguf, each complete
 * with its own tensors; the keys of the first hold for all.
 *
 * The files are untrusted: every count, length, type and offset is checked before it is used; errors name the byte, the
 * key or the tensor.  Immutable after opening; any thread. */
#ifndef TANDEM_ENGINE_FILES_GGUF_H
#define TANDEM_ENGINE_FILES_GGUF_H

#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_TEXT,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPES
};

/* not NUL-terminated; in the mapped file */
struct gguf_text {
    const char *s;
    size_t n;
};

struct gguf_key {
    struct gguf_text name;
    enum gguf_type type, of; /* of: the elements' type of an array; else the same as type */
    uint64_t n;              /* elements of an array, else 1 */
    const char *at;          /* the first element in the file, not aligned */
};

/* The types of tensors, numbered as in the file. */
enum ggml_type {
    GGML_F32 = 0,
    GGML_F16 = 1,
    GGML_Q4_0 = 2,
    GGML_Q4_1 = 3,
    GGML_Q5_0 = 6,
    GGML_Q5_1 = 7,
    GGML_Q8_0 = 8,
    GGML_Q2_K = 10,
    GGML_Q3_K = 11,
    GGML_Q4_K = 12,
    GGML_Q5_K = 13,
    GGML_Q6_K = 14,
    GGML_IQ4_NL = 20,
    GGML_IQ4_XS = 23,
    GGML_BF16 = 30,
    GGML_MXFP4 = 39,
    GGML_TYPES = 64
};

struct gguf_tensor {
    char *name; /* owned by the file */
    enum ggml_type type;
    int n_dims;
    int64_t dims[4]; /* as in the file: the columns first */
    const void *data;
    size_t bytes;
};

struct gguf;

/* One file, or the first of a split model with all others beside it. */
struct gguf *gguf_open(const char *path, struct err *e);
/* One file given as bytes, borrowed until it is closed; for tests and the fuzzer. */
struct gguf *gguf_parse(const char *bytes, size_t n, struct err *e);
void gguf_close(struct gguf *); /* NULL is allowed */

bool gguf_is_mapped(const struct gguf *); /* false for bytes given to gguf_parse */
size_t gguf_tensors(const struct gguf *);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *, size_t i);
const struct gguf_tensor *gguf_tensor_find(const struct gguf *, const char *name); /* NULL: none */
const struct gguf_key *gguf_find(const struct gguf *, const char *key);            /* NULL: none */

/* Elements and bytes of a block of a type; false: tandem does not know the type. */
bool ggml_type_block(enum ggml_type, int *elements, int *bytes);
const char *ggml_type_name(uint32_t type); /* "Q4_K"; NULL: no such type */

/* ---- values: false or NULL when the key is missing; a value of another type is an error too ---- */

bool gguf_number(const struct gguf *, const char *key, double *out); /* a number or a boolean */
bool gguf_text(const struct gguf *, const char *key, struct gguf_text *out);
/* Element i of an array of numbers, below key->n. */
double gguf_element(const struct gguf_key *, uint64_t i);
/* The text at *at, which moves behind it: for the elements of an array of texts in turn, beginning at key->at. */
struct gguf_text gguf_next_text(const char **at);
bool gguf_text_is(struct gguf_text, const char *);

#endif
