/* Opens safetensors files, single or sharded by an index, as a tensor_source, and writes single ones, with checksums.
 *
 * Format: u64 little-endian header length, that many bytes of JSON {"name": {"dtype", "shape", "data_offsets"}, ...,
 * "__metadata__": {...}}, then the data.  (huggingface/safetensors, README "Format".)  The files are untrusted:
 * lengths, shapes and offsets are checked against each other before any becomes a pointer; overlaps, gaps and
 * duplicates are errors that name the tensor.  Immutable after opening. */
#ifndef TANDEM_ENGINE_MODEL_SAFETENSORS_H
#define TANDEM_ENGINE_MODEL_SAFETENSORS_H

#include "engine/base/err.h"
#include "engine/model/tensor_source.h"

#include <stddef.h>

/* one file given as bytes, borrowed until the source is closed; for tests and the fuzzer */
struct tensor_source *safetensors_parse(const char *bytes, size_t n, struct err *e);
struct tensor_source *safetensors_open(const char *path, struct err *e);
/* a model directory's model.safetensors, or the shards listed in its model.safetensors.index.json */
struct tensor_source *safetensors_open_dir(const char *dir, struct err *e);

/* What tandem writes into __metadata__: CRC-32C in eight hexadecimal digits, of each tensor's bytes ("crc32c:" NAME),
 * and of the header with its padding, computed with these eight digits as 0.  The header's checksum is verified
 * whenever a file that has it is opened, the tensors' only by tensor_source_verify. */
#define ST_HEADER_SUM "header_crc32c"
#define ST_TENSOR_SUM "crc32c:"

/* ---- writing (safetensors_write.c) ---- */

/* Tensors are written one by one, so only one has to be in memory: open, note and add in any order, then finish or
 * abort.  The file is written as path + ".tmp", read back and verified, and renamed last, so a file named `path` is
 * complete.  The first error is kept in the writer and returned by finish; add returns it as soon as it occurs. */
struct st_writer;

/* Upper bounds that determine the size reserved for the header: n tensors, the bytes of all their names, the bytes of
 * their metadata. */
struct st_writer *st_writer_open(const char *path, size_t n, size_t names, size_t metadata, struct err *e);
void st_writer_note(struct st_writer *, const char *key, const char *value);
/* data and name are borrowed for the call.  align: alignment of the data within the file, a power of two up to
 * ST_ALIGN; a gap becomes a tensor "padding.N", since the format allows no holes. */
int st_writer_add(struct st_writer *, const struct tensor *, size_t align, struct err *e);
int st_writer_finish(struct st_writer *, struct err *e); /* frees the writer, also when it fails */
void st_writer_abort(struct st_writer *);                /* NULL is allowed */

enum { ST_ALIGN = 4096 }; /* offset of the data in a file */

/* Writes the tensors in the given order, end to end, with such a writer. metadata: key, value pairs ended by NULL, or
 * NULL. */
int safetensors_write(const char *path, const struct tensor *t, size_t n, const char *const *metadata, struct err *e);

#endif
