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

/* one file given as bytes (borrowed for the source's life), for tests and the fuzzer */
struct tensor_source *safetensors_parse(const char *bytes, size_t n, struct err *e);
struct tensor_source *safetensors_open(const char *path, struct err *e);
/* model.safetensors, or the shards that model.safetensors.index.json names, in a model directory */
struct tensor_source *safetensors_open_dir(const char *dir, struct err *e);

/* What tandem writes into __metadata__: CRC-32C in eight hexadecimal digits, of each tensor's bytes ("crc32c:" NAME),
 * and of the header's, padding included, with these eight digits as 0.  The header is checked whenever a file that
 * states it is opened, the tensors only by tensor_source_verify. */
#define ST_HEADER_SUM "header_crc32c"
#define ST_TENSOR_SUM "crc32c:"

/* ---- writing (safetensors_write.c) ---- */

/* Tensor by tensor, so that memory is needed for one at a time: begin, note and add in any order, finish or abort.
 * The file is written under path + ".tmp", read back and checked, and renamed last: under its own name it is whole.
 * Errors stay in the writer and come out of finish; add tells them early. */
struct st_writer;

/* names: bytes of all tensor names that will be added, n tensors, and their metadata: what the header takes at most. */
struct st_writer *st_writer_open(const char *path, size_t n, size_t names, size_t metadata, struct err *e);
void st_writer_note(struct st_writer *, const char *key, const char *value);
/* data and name are borrowed until it returns.  align: where the data start, from the start of the file, a power of two
 * up to ST_ALIGN; what is left out before it becomes a tensor "padding.N", since the format allows no holes. */
int st_writer_add(struct st_writer *, const struct tensor *, size_t align, struct err *e);
int st_writer_finish(struct st_writer *, struct err *e); /* frees the writer, also when it fails */
void st_writer_abort(struct st_writer *);                /* NULL is allowed */

enum { ST_ALIGN = 4096 }; /* where the data of a file begin */

/* Writes the tensors in the given order, end to end, by the same way.
 * metadata: key, value pairs ended by NULL, or NULL. */
int safetensors_write(const char *path, const struct tensor *t, size_t n, const char *const *metadata, struct err *e);

#endif
