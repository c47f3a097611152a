/* Writing a GGUF file, version 3 (format: gguf.h): keys and the list of tensors first, then each tensor's data in the
 * order of the list.  The bytes go to PATH.tmp, which becomes PATH when all is written and synced.
 *
 * One thread.  The first error is kept: every later call returns it. */
#ifndef TANDEM_ENGINE_FILES_GGUF_WRITE_H
#define TANDEM_ENGINE_FILES_GGUF_WRITE_H

#include "engine/base/err.h"
#include "engine/files/gguf.h"

struct gguf_writer;

/* ERR_INVALID when `path` exists. */
struct gguf_writer *gguf_writer_open(const char *path, struct err *e);
void gguf_writer_abort(struct gguf_writer *); /* deletes what was written; NULL is allowed */
/* Syncs and renames; frees the writer, also on failure, when the file is deleted. */
int gguf_writer_finish(struct gguf_writer *, struct err *e);

/* ---- keys ---- */

void gguf_write_u32(struct gguf_writer *, const char *key, uint32_t);
void gguf_write_f32(struct gguf_writer *, const char *key, float);
void gguf_write_bool(struct gguf_writer *, const char *key, bool);
void gguf_write_text(struct gguf_writer *, const char *key, const char *s, size_t n);
/* An array of n elements, which follow with gguf_write_element or, of GGUF_TEXT, gguf_write_text_element. */
void gguf_write_array(struct gguf_writer *, const char *key, enum gguf_type of, uint64_t n);
void gguf_write_element(struct gguf_writer *, enum gguf_type of, double v); /* GGUF_F32, GGUF_I32 or GGUF_BOOL */
void gguf_write_text_element(struct gguf_writer *, const char *s, size_t n);

/* ---- tensors ---- */

/* dims as in the file: the columns first. */
void gguf_write_tensor(struct gguf_writer *, const char *name, enum ggml_type, int n_dims, const int64_t *dims);
/* Ends the keys and the list, and gives the file its whole size, with zeros for data. */
int gguf_write_header(struct gguf_writer *, struct err *e);
/* The file while it is written; after gguf_write_header it can be opened. */
const char *gguf_writer_path(const struct gguf_writer *);
/* The next bytes of the data, of one tensor at most. */
int gguf_write_data(struct gguf_writer *, const void *data, size_t n, struct err *e);

#endif
