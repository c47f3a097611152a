#include "engine/model/safetensors.h"

#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/model_dir.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HEADER_LIMIT = 100 << 20, MAX_TENSORS = 1 << 20, MAX_SHARDS = 4096 };

struct note {
    char *key, *value; /* owned */
};

/* one or more mapped files under one set of names */
struct safetensors {
    struct tensor_list list;
    struct file_map *maps; /* owned mappings; n_maps 0 for parsed bytes */
    int n_maps;
    struct note *notes; /* of every file; sorted by key */
    size_t n_notes, cap_notes;
};

/* Other 8-bit floats and types smaller than a byte are TENSOR_OTHER. */
static enum tensor_type type_of(const char *name)
{
    for (int i = 0; i < TENSOR_OTHER; i++)
        if (strcmp(tensor_type_name((enum tensor_type)i), name) == 0) return (enum tensor_type)i;
    return TENSOR_OTHER;
}

/* a JSON number that is an integer in [0, 2^53] */
static bool whole(const cJSON *j, int64_t *out)
{
    if (!cJSON_IsNumber(j) || !(j->valuedouble >= 0 && j->valuedouble <= 0x1p53)) return false;
    *out = (int64_t)j->valuedouble;
    return (double)*out == j->valuedouble;
}

static int read_shape(const cJSON *j, struct tensor *t, struct err *e)
{
    if (!cJSON_IsArray(j)) return err_set(e, ERR_INVALID, "tensor %s: shape is not a list", t->name);
    const cJSON *d;
    cJSON_ArrayForEach(d, j)
    {
        if (t->n_dims == TENSOR_MAX_DIMS)
            return err_set(e, ERR_INVALID, "tensor %s: more than %d dimensions", t->name, TENSOR_MAX_DIMS);
        if (!whole(d, &t->dims[t->n_dims++]))
            return err_set(e, ERR_INVALID, "tensor %s: shape has a bad dimension", t->name);
    }
    return 0;
}

static int read_entry(const cJSON *j, struct tensor *t, const char *data, size_t n_data, struct err *e)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(j, "dtype");
    const cJSON *off = cJSON_GetObjectItemCaseSensitive(j, "data_offsets");
    if (!cJSON_IsString(type)) return err_set(e, ERR_INVALID, "tensor %s: no dtype", t->name);
    t->type = type_of(type->valuestring);
    int rc = read_shape(cJSON_GetObjectItemCaseSensitive(j, "shape"), t, e);
    if (rc) return rc;
    int64_t begin, end;
    if (!cJSON_IsArray(off) || cJSON_GetArraySize(off) != 2 || !whole(off->child, &begin) ||
        !whole(off->child->next, &end))
        return err_set(e, ERR_INVALID, "tensor %s: data_offsets is not a pair of whole numbers", t->name);
    if (begin > end || (uint64_t)end > n_data)
        return err_set(e, ERR_INVALID, "tensor %s: data_offsets [%lld, %lld) outside the file's %zu data bytes",
                       t->name, (long long)begin, (long long)end, n_data);
    t->data = data + begin;
    t->bytes = (size_t)(end - begin);
    if (t->type == TENSOR_OTHER) return 0;
    uint64_t want = tensor_type_bytes(t->type);
    for (int i = 0; i < t->n_dims; i++)
        if (__builtin_mul_overflow(want, (uint64_t)t->dims[i], &want))
            return err_set(e, ERR_INVALID, "tensor %s: shape overflows", t->name);
    if (want != t->bytes)
        return err_set(e, ERR_INVALID, "tensor %s: shape needs %llu bytes, data_offsets give %zu", t->name,
                       (unsigned long long)want, t->bytes);
    return 0;
}

/* __metadata__: string values by name */
static int read_notes(struct safetensors *s, const cJSON *j, struct err *e)
{
    if (!cJSON_IsObject(j)) return err_set(e, ERR_INVALID, "__metadata__ is not an object");
    const cJSON *item;
    cJSON_ArrayForEach(item, j)
    {
        if (!cJSON_IsString(item)) return err_set(e, ERR_INVALID, "__metadata__: %s is not a text", item->string);
        mem_grow(&s->notes, &s->cap_notes, s->n_notes + 1, sizeof *s->notes);
        s->notes[s->n_notes++] = (struct note){mem_strdup(item->string), mem_strdup(item->valuestring)};
    }
    return 0;
}

/* A header that contains its own checksum (safetensors_write.c) must match it. */
static int check_header(const char *text, size_t n, const cJSON *notes, struct err *e)
{
    const cJSON *stated = cJSON_GetObjectItemCaseSensitive(notes, ST_HEADER_SUM);
    static const char before[] = "\"" ST_HEADER_SUM "\":\"";
    if (!stated) return 0;
    const char *at = memmem(text, n, before, sizeof before - 1);
    if (!cJSON_IsString(stated) || strlen(stated->valuestring) != 8 || !at || at + sizeof before - 1 + 8 > text + n)
        return err_set(e, ERR_INVALID, "%s is not eight digits as tandem writes them", ST_HEADER_SUM);
    at += sizeof before - 1;
    char sum[9];
    uint32_t c = crc32c(0, text, (size_t)(at - text));
    c = crc32c(c, "00000000", 8);
    snprintf(sum, sizeof sum, "%08x", crc32c(c, at + 8, n - (size_t)(at - text) - 8));
    if (strcmp(sum, stated->valuestring))
        return err_set(e, ERR_INVALID,
                       "the header's checksum is %s, it states %.8s: the file was changed or is damaged", sum,
                       stated->valuestring);
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const struct tensor *x = *(struct tensor *const *)a, *y = *(struct tensor *const *)b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* The tensors [from, n) came from one file: they must fill its data without gap or overlap, as the format demands. */
static int check_places(struct safetensors *s, size_t from, const char *data, size_t n_data, struct err *e)
{
    size_t n = s->list.n - from;
    struct tensor **order = mem_array(n, sizeof *order);
    for (size_t i = 0; i < n; i++) order[i] = &s->list.v[from + i];
    if (n) qsort(order, n, sizeof *order, by_place);
    int rc = 0;
    const char *at = data, *before = "the header";
    for (size_t i = 0; i < n && !rc; i++) {
        const char *begin = order[i]->data;
        if (begin < at) rc = err_set(e, ERR_INVALID, "tensors %s and %s overlap", before, order[i]->name);
        if (begin > at)
            rc = err_set(e, ERR_INVALID, "%zu bytes before tensor %s belong to none", (size_t)(begin - at),
                         order[i]->name);
        at = begin + order[i]->bytes;
        before = order[i]->name;
    }
    if (!rc && at != data + n_data)
        rc = err_set(e, ERR_INVALID, "%zu bytes after the last tensor belong to none", (size_t)(data + n_data - at));
    free(order);
    return rc;
}

static int add_file(struct safetensors *s, const char *bytes, size_t n, struct err *e)
{
    uint64_t head = 0;
    if (model_dir_lfs_pointer(bytes, n)) return model_dir_lfs_error(e);
    if (n < 8) return err_set(e, ERR_INVALID, "%zu bytes is too short for a safetensors file", n);
    for (int i = 7; i >= 0; i--) head = head << 8 | (unsigned char)bytes[i];
    if (head > HEADER_LIMIT || head > n - 8)
        return err_set(e, ERR_INVALID, "header length %llu does not fit the file of %zu bytes (truncated?)",
                       (unsigned long long)head, n);
    const char *end = NULL;
    char *text = mem_try_alloc((size_t)head + 1); /* NUL-terminated for cJSON */
    if (!text) return err_set(e, ERR_NOMEM, "no memory for a header of %llu bytes", (unsigned long long)head);
    memcpy(text, bytes + 8, (size_t)head);
    text[head] = 0;
    cJSON *j = cJSON_ParseWithLengthOpts(text, (size_t)head + 1, &end, 1);
    int rc = 0;
    if (!cJSON_IsObject(j))
        rc = err_set(e, ERR_INVALID, "the header is not a JSON object (near byte %zu)",
                     end ? (size_t)(end - text) + 8 : (size_t)8);
    size_t from = s->list.n;
    const cJSON *item;
    if (!rc) cJSON_ArrayForEach(item, j)
        {
            if (strcmp(item->string, "__metadata__") == 0) {
                rc = read_notes(s, item, e);
                if (!rc) rc = check_header(text, (size_t)head, item, e);
                if (rc) break;
                continue;
            }
            if (s->list.n >= MAX_TENSORS) {
                rc = err_set(e, ERR_INVALID, "more than %d tensors", MAX_TENSORS);
                break;
            }
            mem_grow(&s->list.v, &s->list.cap, s->list.n + 1, sizeof *s->list.v);
            struct tensor *t = &s->list.v[s->list.n++];
            *t = (struct tensor){.name = mem_strdup(item->string)};
            rc = read_entry(item, t, bytes + 8 + head, n - 8 - (size_t)head, e);
            if (rc) break;
        }
    cJSON_Delete(j);
    free(text);
    return rc ? rc : check_places(s, from, bytes + 8 + head, n - 8 - (size_t)head, e);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct note *)a)->key, ((const struct note *)b)->key);
}

static int finish(struct safetensors *s, struct err *e)
{
    if (s->n_notes) qsort(s->notes, s->n_notes, sizeof *s->notes, by_key);
    tensors_sort(s->list.v, s->list.n);
    for (size_t i = 1; i < s->list.n; i++)
        if (strcmp(s->list.v[i - 1].name, s->list.v[i].name) == 0)
            return err_set(e, ERR_INVALID, "tensor %s is there twice", s->list.v[i].name);
    return 0;
}

/* ---- as a source ---- */

static void source_close(struct tensor_source *source)
{
    struct safetensors *s = (struct safetensors *)source;
    for (size_t i = 0; i < s->list.n; i++) free(s->list.v[i].name);
    for (size_t i = 0; i < s->n_notes; i++) free(s->notes[i].key), free(s->notes[i].value);
    for (int i = 0; i < s->n_maps; i++) file_unmap(&s->maps[i]);
    free(s->notes);
    free(s->list.v);
    free(s->maps);
    free(s);
}

static const char *source_metadata(const struct tensor_source *source, const char *key)
{
    const struct safetensors *s = (const struct safetensors *)source;
    struct note want = {.key = (char *)key};
    const struct note *n = s->n_notes ? bsearch(&want, s->notes, s->n_notes, sizeof *s->notes, by_key) : NULL;
    return n ? n->value : NULL;
}

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

static int source_populate(const struct tensor_source *source, const struct tensor *t, struct err *e)
{
    const struct safetensors *s = (const struct safetensors *)source;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)t->data / page * page;
    if (!s->n_maps || !t->bytes) return 0;
    if (madvise((void *)from, (uintptr_t)t->data + t->bytes - from, MADV_POPULATE_READ) == 0) return 0;
    if (errno != EFAULT && errno != EIO && errno != EHWPOISON) return 0; /* an older kernel: read at first use */
    return err_set(e, ERR_IO, "tensor %s cannot be read: the disk failed, or the file became shorter", t->name);
}

static void source_release(const struct tensor_source *source, const struct tensor *t)
{
    const struct safetensors *s = (const struct safetensors *)source;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = ((uintptr_t)t->data + page - 1) / page * page,
              to = ((uintptr_t)t->data + t->bytes) / page * page;
    if (s->n_maps && to > from) madvise((void *)from, to - from, MADV_DONTNEED);
}

static int source_verify(const struct tensor_source *source, struct err *e)
{
    const struct safetensors *s = (const struct safetensors *)source;
    if (!source_metadata(source, ST_HEADER_SUM))
        return err_set(e, ERR_UNSUPPORTED, "the weights have no checksums; tandem quantize writes them");
    for (size_t i = 0; i < s->list.n; i++) {
        const struct tensor *t = &s->list.v[i];
        char sum[9], *key = mem_alloc(strlen(t->name) + sizeof ST_TENSOR_SUM);
        strcpy(stpcpy(key, ST_TENSOR_SUM), t->name);
        const char *stated = source_metadata(source, key);
        free(key);
        if (!stated) return err_set(e, ERR_INVALID, "tensor %s has no checksum", t->name);
        snprintf(sum, sizeof sum, "%08x", crc32c(0, t->data, t->bytes));
        if (strcmp(sum, stated))
            return err_set(e, ERR_INVALID, "tensor %s is damaged: its checksum is %s, the file states %.8s", t->name,
                           sum, stated);
        source_release(source, t);
    }
    return 0;
}

static const struct tensor_source_ops source_ops = {
    .count = tensor_list_count,
    .at = tensor_list_at,
    .find = tensor_list_find,
    .metadata = source_metadata,
    .verify = source_verify,
    .populate = source_populate,
    .release = source_release,
    .close = source_close,
};

static struct safetensors *new_source(void)
{
    struct safetensors *s = mem_zalloc(sizeof *s);
    s->list.source.ops = &source_ops;
    return s;
}

/* The source, or NULL after an error. */
static struct tensor_source *opened(struct safetensors *s, int rc)
{
    if (!rc) return &s->list.source;
    source_close(&s->list.source);
    return NULL;
}

/* ---- opening ---- */

struct tensor_source *safetensors_parse(const char *bytes, size_t n, struct err *e)
{
    struct safetensors *s = new_source();
    int rc = add_file(s, bytes, n, e);
    return opened(s, rc ? rc : finish(s, e));
}

static int map_file(struct safetensors *s, const char *path, struct err *e)
{
    s->maps = mem_resize(s->maps, (size_t)s->n_maps + 1, sizeof *s->maps);
    struct file_map *m = &s->maps[s->n_maps];
    int rc = file_map(m, path, e);
    if (rc) return rc;
    s->n_maps++;
    rc = add_file(s, m->data, m->size, e);
    if (rc) err_prefix(e, "%s", path);
    return rc;
}

struct tensor_source *safetensors_open(const char *path, struct err *e)
{
    struct safetensors *s = new_source();
    int rc = map_file(s, path, e);
    return opened(s, rc ? rc : finish(s, e));
}

/* A shard's name is a plain file name: an index must not reach outside its directory. */
static bool plain_name(const char *s)
{
    return *s && !strchr(s, '/') && strcmp(s, ".") && strcmp(s, "..");
}

static int by_string(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int open_shards(struct safetensors *s, const char *dir, const cJSON *map, struct err *e)
{
    int n = 0, total = cJSON_GetArraySize(map), rc = 0;
    const char **names = mem_array((size_t)total, sizeof *names);
    const cJSON *item;
    cJSON_ArrayForEach(item, map)
    {
        if (!cJSON_IsString(item) || !plain_name(item->valuestring)) {
            rc =
                err_set(e, ERR_INVALID, "model.safetensors.index.json: weight_map.%s is not a file name", item->string);
            break;
        }
        names[n++] = item->valuestring;
    }
    if (!rc && n) qsort(names, (size_t)n, sizeof *names, by_string);
    for (int i = 0; i < n && !rc; i++) {
        if (i && strcmp(names[i], names[i - 1]) == 0) continue;
        if (s->n_maps == MAX_SHARDS) {
            rc = err_set(e, ERR_INVALID, "model.safetensors.index.json names more than %d files", MAX_SHARDS);
            break;
        }
        char *path = file_join(dir, names[i]);
        rc = map_file(s, path, e);
        free(path);
    }
    free(names);
    return rc;
}

struct tensor_source *safetensors_open_dir(const char *dir, struct err *e)
{
    char *single = file_join(dir, "model.safetensors");
    bool one = access(single, F_OK) == 0;
    struct tensor_source *source = one ? safetensors_open(single, e) : NULL;
    free(single);
    if (one) return source;

    char *path = file_join(dir, "model.safetensors.index.json"), *text = NULL;
    size_t n;
    int rc = file_read(path, HEADER_LIMIT, &text, &n, e);
    if (rc == ERR_NOT_FOUND) model_dir_no_weights(dir, e);
    free(path);
    if (rc) return NULL;
    struct safetensors *s = new_source();
    cJSON *j = cJSON_ParseWithLengthOpts(text, n + 1, NULL, 1);
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(j, "weight_map");
    if (!cJSON_IsObject(map) || !map->child)
        rc = err_set(e, ERR_INVALID, "model.safetensors.index.json has no weight_map");
    if (!rc) rc = open_shards(s, dir, map, e);
    if (!rc) rc = finish(s, e);
    cJSON_Delete(j);
    free(text);
    return opened(s, rc);
}
