/* Writing: the data first, after space reserved for the header, which is written when every tensor is known. */
#include "engine/model/safetensors.h"

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Bytes of a tensor's header entry besides its name (twice) and its shape:
 * {"dtype":"BF16","shape":[],"data_offsets":[,]} with two offsets of up to 16 digits, the checksum, quotes and commas.
 * Escaping makes a name up to six times as long. */
enum { ENTRY_ROOM = 256, NAME_ROOM = 2 * 6, PADDING_ROOM = 64 };

struct st_writer {
    char *path, *tmp;
    int fd;
    cJSON *notes, *tensors;
    size_t room; /* bytes before the data: length and header */
    uint64_t at; /* bytes of data so far */
    int n_padding;
    struct err failed; /* the first error */
};

static int fail(struct st_writer *w, struct err *e)
{
    if (!w->failed.code) err_set(&w->failed, ERR_IO, "%s: %s", w->tmp, strerror(errno));
    *e = w->failed;
    return e->code;
}

static int put(struct st_writer *w, const void *p, size_t n, struct err *e)
{
    return file_write_all(w->fd, p, n) ? fail(w, e) : 0;
}

struct st_writer *st_writer_open(const char *path, size_t n, size_t names, size_t metadata, struct err *e)
{
    struct st_writer *w = mem_zalloc(sizeof *w);
    struct buf tmp = {0};
    buf_printf(&tmp, "%s.tmp", path);
    w->path = mem_strdup(path);
    w->tmp = tmp.data;
    w->notes = cJSON_CreateObject();
    w->tensors = cJSON_CreateObject();
    cJSON_AddStringToObject(w->notes, ST_HEADER_SUM, "00000000");
    size_t need = 8 + 256 + 6 * metadata + NAME_ROOM * names + n * 2 * (ENTRY_ROOM + PADDING_ROOM);
    w->room = (need + ST_ALIGN - 1) / ST_ALIGN * ST_ALIGN;
    w->fd = open(w->tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (w->fd >= 0 && lseek(w->fd, (off_t)w->room, SEEK_SET) >= 0) return w;
    fail(w, e);
    st_writer_abort(w);
    return NULL;
}

void st_writer_note(struct st_writer *w, const char *key, const char *value)
{
    cJSON_AddStringToObject(w->notes, key, value);
}

static int add(struct st_writer *w, const struct tensor *t, struct err *e)
{
    if (w->failed.code) return fail(w, e);
    struct buf key = {0};
    char sum[9];
    cJSON *o = cJSON_AddObjectToObject(w->tensors, t->name);
    cJSON_AddStringToObject(o, "dtype", tensor_type_name(t->type));
    cJSON *shape = cJSON_AddArrayToObject(o, "shape");
    for (int d = 0; d < t->n_dims; d++) cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->dims[d]));
    cJSON *off = cJSON_AddArrayToObject(o, "data_offsets");
    cJSON_AddItemToArray(off, cJSON_CreateNumber((double)w->at));
    cJSON_AddItemToArray(off, cJSON_CreateNumber((double)(w->at + t->bytes)));
    snprintf(sum, sizeof sum, "%08x", crc32c(0, t->data, t->bytes));
    buf_printf(&key, "%s%s", ST_TENSOR_SUM, t->name);
    st_writer_note(w, key.data, sum);
    buf_free(&key);
    w->at += t->bytes;
    return put(w, t->data, t->bytes, e);
}

int st_writer_add(struct st_writer *w, const struct tensor *t, size_t align, struct err *e)
{
    static const char zeros[ST_ALIGN];
    char name[32];
    size_t gap = (align - w->at % align) % align;
    int rc = 0;
    if (gap) {
        snprintf(name, sizeof name, "padding.%d", w->n_padding++);
        rc = add(w,
                 &(struct tensor){
                     .name = name, .type = TENSOR_U8, .n_dims = 1, .dims = {(int64_t)gap}, .data = zeros, .bytes = gap},
                 e);
    }
    return rc ? rc : add(w, t, e);
}

/* The header fills the space before the data: the format allows spaces after the JSON. */
static int put_header(struct st_writer *w, struct err *e)
{
    cJSON *j = cJSON_CreateObject();
    cJSON_AddItemReferenceToObject(j, "__metadata__", w->notes);
    for (cJSON *t = w->tensors->child; t; t = t->next) cJSON_AddItemReferenceToObject(j, t->string, t);
    char *text = cJSON_PrintUnformatted(j), *head = mem_alloc(w->room), sum[9];
    cJSON_Delete(j);
    size_t len = text ? strlen(text) : 0, size = w->room - 8;
    int rc = 0;
    if (!text || len > size) {
        rc = err_set(&w->failed, ERR_INVALID, "%s: the header needs %zu bytes, %zu were kept", w->tmp, len, size);
        *e = w->failed;
    } else {
        static const char before[] = "\"" ST_HEADER_SUM "\":\"";
        for (int i = 0; i < 8; i++) head[i] = (char)((uint64_t)size >> (8 * i));
        memset(head + 8, ' ', size);
        memcpy(head + 8, text, len);
        snprintf(sum, sizeof sum, "%08x", crc32c(0, head + 8, size));
        const char *at = strstr(text, before); /* a quote inside a name or a note is escaped: only the key matches */
        CHECK(at);
        memcpy(head + 8 + (at - text) + sizeof before - 1, sum, 8);
        rc = lseek(w->fd, 0, SEEK_SET) < 0 ? fail(w, e) : put(w, head, w->room, e);
    }
    free(head);
    free(text);
    return rc;
}

/* Reads the file again, from the disk if the kernel drops the cached pages, and compares every checksum. */
static int read_back(struct st_writer *w, struct err *e)
{
    posix_fadvise(w->fd, 0, 0, POSIX_FADV_DONTNEED);
    struct tensor_source *s = safetensors_open(w->tmp, e);
    int rc = s ? tensor_source_verify(s, e) : e->code;
    if (s && rc) err_prefix(e, "%s: read back", w->tmp);
    tensor_source_close(s);
    return rc;
}

static void writer_free(struct st_writer *w)
{
    if (w->fd >= 0) close(w->fd);
    cJSON_Delete(w->notes);
    cJSON_Delete(w->tensors);
    free(w->path);
    free(w->tmp);
    free(w);
}

int st_writer_finish(struct st_writer *w, struct err *e)
{
    int rc = w->failed.code ? fail(w, e) : put_header(w, e);
    if (!rc && fsync(w->fd) != 0) rc = fail(w, e);
    if (!rc) rc = read_back(w, e);
    if (!rc && rename(w->tmp, w->path) != 0) rc = fail(w, e);
    if (rc)
        unlink(w->tmp);
    else
        dir_sync_parent(w->path);
    writer_free(w);
    return rc;
}

void st_writer_abort(struct st_writer *w)
{
    if (!w) return;
    if (w->fd >= 0) unlink(w->tmp);
    writer_free(w);
}

int safetensors_write(const char *path, const struct tensor *t, size_t n, const char *const *metadata, struct err *e)
{
    size_t names = 0, texts = 0;
    for (size_t i = 0; i < n; i++) names += strlen(t[i].name);
    for (int i = 0; metadata && metadata[i]; i++) texts += strlen(metadata[i]) + 8;
    struct st_writer *w = st_writer_open(path, n, names, texts, e);
    if (!w) return e->code;
    for (; metadata && metadata[0]; metadata += 2) st_writer_note(w, metadata[0], metadata[1]);
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) rc = st_writer_add(w, &t[i], 1, e);
    if (!rc) return st_writer_finish(w, e);
    st_writer_abort(w);
    return rc;
}
