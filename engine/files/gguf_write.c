#include "engine/files/gguf_write.h"

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ALIGN = 32, VERSION = 3 };

struct gguf_writer {
    char *path, *tmp;
    int fd;
    struct buf keys, list;
    uint64_t n_keys, n_tensors, data; /* data: bytes of all tensors with their padding */
    size_t *size;                     /* of each tensor, without padding */
    size_t cap, tensor, written;      /* the tensor that is written, and how much of it */
    struct err failed;                /* the first error */
};

static int fail(struct gguf_writer *w, struct err *e)
{
    if (!w->failed.code) err_set(&w->failed, ERR_IO, "%s: %s", w->tmp, strerror(errno));
    *e = w->failed;
    return e->code;
}

static void writer_free(struct gguf_writer *w)
{
    if (w->fd >= 0) close(w->fd);
    buf_free(&w->keys);
    buf_free(&w->list);
    free(w->size);
    free(w->path);
    free(w->tmp);
    free(w);
}

struct gguf_writer *gguf_writer_open(const char *path, struct err *e)
{
    if (access(path, F_OK) == 0) {
        err_set(e, ERR_INVALID, "%s is there already; choose another file", path);
        return NULL;
    }
    struct gguf_writer *w = mem_zalloc(sizeof *w);
    struct buf tmp = {0};
    buf_printf(&tmp, "%s.tmp", path);
    w->path = mem_strdup(path);
    w->tmp = tmp.data;
    w->fd = open(w->tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (w->fd >= 0) return w;
    fail(w, e);
    writer_free(w);
    return NULL;
}

void gguf_writer_abort(struct gguf_writer *w)
{
    if (!w) return;
    unlink(w->tmp);
    writer_free(w);
}

int gguf_writer_finish(struct gguf_writer *w, struct err *e)
{
    CHECK(w->failed.code || w->tensor == w->n_tensors);
    int rc = w->failed.code ? fail(w, e) : 0;
    if (!rc && (fsync(w->fd) || rename(w->tmp, w->path))) rc = fail(w, e);
    if (rc) {
        gguf_writer_abort(w);
        return rc;
    }
    dir_sync_parent(w->path);
    writer_free(w);
    return 0;
}

const char *gguf_writer_path(const struct gguf_writer *w)
{
    return w->tmp;
}

/* ---- numbers and texts ------------------------------------------------------------------------------------------- */

static void put_u32(struct buf *b, uint32_t v)
{
    for (int i = 0; i < 4; i++) buf_char(b, (char)(v >> 8 * i));
}

static void put_u64(struct buf *b, uint64_t v)
{
    put_u32(b, (uint32_t)v);
    put_u32(b, (uint32_t)(v >> 32));
}

static void put_text(struct buf *b, const char *s, size_t n)
{
    put_u64(b, n);
    buf_append(b, s, n);
}

static void put_f32(struct buf *b, float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    put_u32(b, bits);
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static void put_key(struct gguf_writer *w, const char *key, enum gguf_type type)
{
    put_text(&w->keys, key, strlen(key));
    put_u32(&w->keys, (uint32_t)type);
    w->n_keys++;
}

void gguf_write_u32(struct gguf_writer *w, const char *key, uint32_t v)
{
    put_key(w, key, GGUF_U32);
    put_u32(&w->keys, v);
}

void gguf_write_f32(struct gguf_writer *w, const char *key, float v)
{
    put_key(w, key, GGUF_F32);
    put_f32(&w->keys, v);
}

void gguf_write_bool(struct gguf_writer *w, const char *key, bool v)
{
    put_key(w, key, GGUF_BOOL);
    buf_char(&w->keys, v);
}

void gguf_write_text(struct gguf_writer *w, const char *key, const char *s, size_t n)
{
    put_key(w, key, GGUF_TEXT);
    put_text(&w->keys, s, n);
}

void gguf_write_array(struct gguf_writer *w, const char *key, enum gguf_type of, uint64_t n)
{
    put_key(w, key, GGUF_ARRAY);
    put_u32(&w->keys, (uint32_t)of);
    put_u64(&w->keys, n);
}

void gguf_write_element(struct gguf_writer *w, enum gguf_type of, double v)
{
    CHECK(of == GGUF_F32 || of == GGUF_I32 || of == GGUF_BOOL);
    if (of == GGUF_F32)
        put_f32(&w->keys, (float)v);
    else if (of == GGUF_I32)
        put_u32(&w->keys, (uint32_t)(int32_t)v);
    else
        buf_char(&w->keys, v != 0);
}

void gguf_write_text_element(struct gguf_writer *w, const char *s, size_t n)
{
    put_text(&w->keys, s, n);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

void gguf_write_tensor(struct gguf_writer *w, const char *name, enum ggml_type type, int n_dims, const int64_t *dims)
{
    int elements, bytes;
    bool known = ggml_type_block(type, &elements, &bytes);
    CHECK(known && n_dims > 0 && dims[0] % elements == 0);
    size_t size = (size_t)(dims[0] / elements) * (size_t)bytes;
    put_text(&w->list, name, strlen(name));
    put_u32(&w->list, (uint32_t)n_dims);
    for (int i = 0; i < n_dims; i++) put_u64(&w->list, (uint64_t)dims[i]);
    for (int i = 1; i < n_dims; i++) size *= (size_t)dims[i];
    put_u32(&w->list, (uint32_t)type);
    put_u64(&w->list, w->data);
    mem_grow(&w->size, &w->cap, w->n_tensors + 1, sizeof *w->size);
    w->size[w->n_tensors++] = size;
    w->data += (size + ALIGN - 1) / ALIGN * ALIGN;
}

int gguf_write_header(struct gguf_writer *w, struct err *e)
{
    struct buf head = {0};
    buf_append(&head, "GGUF", 4);
    put_u32(&head, VERSION);
    put_u64(&head, w->n_tensors);
    put_u64(&head, w->n_keys);
    size_t n = head.len + w->keys.len + w->list.len, padding = (ALIGN - n % ALIGN) % ALIGN;
    for (size_t i = 0; i < padding; i++) buf_char(&w->list, 0);
    bool bad = file_write_all(w->fd, head.data, head.len) || file_write_all(w->fd, w->keys.data, w->keys.len) ||
               file_write_all(w->fd, w->list.data, w->list.len) || ftruncate(w->fd, (off_t)(n + padding + w->data));
    buf_free(&head);
    return bad ? fail(w, e) : 0;
}

int gguf_write_data(struct gguf_writer *w, const void *data, size_t n, struct err *e)
{
    static const char zeros[ALIGN];
    CHECK(w->tensor < w->n_tensors && n <= w->size[w->tensor] - w->written);
    if (w->failed.code || file_write_all(w->fd, data, n)) return fail(w, e);
    w->written += n;
    if (w->written < w->size[w->tensor]) return 0;
    size_t padding = (ALIGN - w->written % ALIGN) % ALIGN;
    w->tensor++;
    w->written = 0;
    return file_write_all(w->fd, zeros, padding) ? fail(w, e) : 0;
}
