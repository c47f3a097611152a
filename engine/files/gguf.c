#include "engine/files/gguf.h"

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/model_dir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS_MAX = 1 << 16, TENSORS_MAX = 1 << 20, NAME_MAX_BYTES = 1 << 10, DIMS_MAX = 4, SPLITS_MAX = 1000 };

struct gguf {
    struct file_map *maps; /* owned; n_maps 0 for parsed bytes */
    int n_maps;
    struct gguf_key *keys; /* of the first file, sorted */
    size_t n_keys;
    struct gguf_tensor *tensors; /* of all files, sorted */
    size_t n_tensors, cap_tensors;
};

static const struct {
    const char *name;
    uint8_t elements;
    uint16_t bytes; /* 0: tandem knows no more than the name */
    bool super;     /* 256 elements */
} types[GGML_TYPES] = {
    [GGML_F32] = {"F32", 1, 4},
    [GGML_F16] = {"F16", 1, 2},
    [GGML_BF16] = {"BF16", 1, 2},
    [GGML_Q4_0] = {"Q4_0", 32, 18},
    [GGML_Q4_1] = {"Q4_1", 32, 20},
    [GGML_Q5_0] = {"Q5_0", 32, 22},
    [GGML_Q5_1] = {"Q5_1", 32, 24},
    [GGML_Q8_0] = {"Q8_0", 32, 34},
    [GGML_IQ4_NL] = {"IQ4_NL", 32, 18},
    [GGML_MXFP4] = {"MXFP4", 32, 17},
    [GGML_Q2_K] = {"Q2_K", 0, 84, true},
    [GGML_Q3_K] = {"Q3_K", 0, 110, true},
    [GGML_Q4_K] = {"Q4_K", 0, 144, true},
    [GGML_Q5_K] = {"Q5_K", 0, 176, true},
    [GGML_Q6_K] = {"Q6_K", 0, 210, true},
    [GGML_IQ4_XS] = {"IQ4_XS", 0, 136, true},
    [4] = {"Q4_2"},
    [5] = {"Q4_3"},
    [9] = {"Q8_1"},
    [15] = {"Q8_K"},
    [16] = {"IQ2_XXS"},
    [17] = {"IQ2_XS"},
    [18] = {"IQ3_XXS"},
    [19] = {"IQ1_S"},
    [21] = {"IQ3_S"},
    [22] = {"IQ2_S"},
    [24] = {"I8"},
    [25] = {"I16"},
    [26] = {"I32"},
    [27] = {"I64"},
    [28] = {"F64"},
    [29] = {"IQ1_M"},
    [34] = {"TQ1_0"},
    [35] = {"TQ2_0"},
};

bool ggml_type_block(enum ggml_type t, int *elements, int *bytes)
{
    if ((unsigned)t >= GGML_TYPES || !types[t].bytes) return false;
    *elements = types[t].super ? 256 : types[t].elements;
    *bytes = types[t].bytes;
    return true;
}

const char *ggml_type_name(uint32_t t)
{
    return t < GGML_TYPES ? types[t].name : NULL;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* The first error stays in *e; what is read after it is zero. */
struct cursor {
    const char *bytes;
    size_t n, at;
    struct err *e;
    int rc;
};

static uint64_t get(struct cursor *c, size_t width, const char *what)
{
    uint64_t v = 0;
    if (c->rc) return 0;
    if (c->n - c->at < width) {
        c->rc = err_set(c->e, ERR_INVALID, "byte %zu: the file ends in %s", c->n, what);
        return 0;
    }
    memcpy(&v, c->bytes + c->at, width);
    c->at += width;
    return v;
}

static struct gguf_text get_text(struct cursor *c, uint64_t max, const char *what)
{
    size_t at = c->at;
    uint64_t n = get(c, 8, what);
    if (!c->rc && n > max)
        c->rc = err_set(c->e, ERR_INVALID, "byte %zu: %s of %llu bytes; at most %llu are sane", at, what,
                        (unsigned long long)n, (unsigned long long)max);
    if (!c->rc && c->n - c->at < n)
        c->rc = err_set(c->e, ERR_INVALID, "byte %zu: %s of %llu bytes does not fit in the file", at, what,
                        (unsigned long long)n);
    if (c->rc) return (struct gguf_text){"", 0};
    struct gguf_text t = {c->bytes + c->at, (size_t)n};
    c->at += (size_t)n;
    return t;
}

static const uint8_t widths[GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

static void skip_elements(struct cursor *c, const struct gguf_key *k, const char *what)
{
    if (c->rc) return;
    if (k->of == GGUF_TEXT) {
        for (uint64_t i = 0; i < k->n && !c->rc; i++) get_text(c, c->n, what);
    } else if (k->n > (c->n - c->at) / widths[k->of]) {
        c->rc = err_set(c->e, ERR_INVALID, "byte %zu: the file ends in %s: %llu values do not fit", c->n, what,
                        (unsigned long long)k->n);
    } else {
        c->at += (size_t)k->n * widths[k->of];
    }
}

static enum gguf_type get_type(struct cursor *c, const char *what)
{
    size_t at = c->at;
    uint64_t type = get(c, 4, what);
    if (!c->rc && type >= GGUF_TYPES)
        c->rc =
            err_set(c->e, ERR_INVALID, "byte %zu: %s has the unknown type %llu", at, what, (unsigned long long)type);
    return c->rc ? GGUF_U8 : (enum gguf_type)type;
}

static void get_key(struct cursor *c, struct gguf_key *k)
{
    char what[96];
    k->name = get_text(c, NAME_MAX_BYTES, "the name of a key");
    snprintf(what, sizeof what, "key %.*s", (int)(k->name.n < 64 ? k->name.n : 64), k->name.s);
    k->type = k->of = get_type(c, what);
    k->n = 1;
    if (k->type == GGUF_ARRAY) {
        k->of = get_type(c, what);
        k->n = get(c, 8, what);
        if (!c->rc && k->of == GGUF_ARRAY)
            c->rc = err_set(c->e, ERR_UNSUPPORTED, "%s: an array of arrays is not supported", what);
    }
    k->at = c->bytes + c->at;
    skip_elements(c, k, what);
}

static int by_text(struct gguf_text a, struct gguf_text b)
{
    int d = memcmp(a.s, b.s, a.n < b.n ? a.n : b.n);
    return d ? d : (a.n > b.n) - (a.n < b.n);
}

static int by_key(const void *a, const void *b)
{
    return by_text(((const struct gguf_key *)a)->name, ((const struct gguf_key *)b)->name);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct gguf_tensor *)a)->name, ((const struct gguf_tensor *)b)->name);
}

static void get_keys(struct cursor *c, uint64_t n, struct gguf_key **out)
{
    struct gguf_key *keys = mem_array((size_t)n + 1, sizeof *keys);
    for (uint64_t i = 0; i < n && !c->rc; i++) get_key(c, &keys[i]);
    if (!c->rc) qsort(keys, (size_t)n, sizeof *keys, by_key);
    for (uint64_t i = 1; i < n && !c->rc; i++)
        if (by_key(&keys[i - 1], &keys[i]) == 0)
            c->rc = err_set(c->e, ERR_INVALID, "key %.*s is there twice",
                            (int)(keys[i].name.n < 64 ? keys[i].name.n : 64), keys[i].name.s);
    *out = keys;
}

/* A tensor's type, dimensions and size; its place follows when the beginning of the data is known. */
static void get_tensor(struct cursor *c, struct gguf_tensor *t, uint64_t *offset)
{
    struct gguf_text name = get_text(c, NAME_MAX_BYTES, "the name of a tensor");
    t->name = mem_strndup(name.s, name.n);
    uint64_t dims = get(c, 4, t->name), count = 1;
    if (!c->rc && (dims < 1 || dims > DIMS_MAX))
        c->rc = err_set(c->e, ERR_INVALID, "tensor %.100s: %llu dimensions; from 1 to %d are allowed", t->name,
                        (unsigned long long)dims, DIMS_MAX);
    for (uint64_t i = 0; i < dims && !c->rc; i++) {
        uint64_t d = get(c, 8, t->name);
        if (!c->rc && (!d || d > INT64_MAX || __builtin_mul_overflow(count, d, &count) || count > INT64_MAX))
            c->rc = err_set(c->e, ERR_INVALID, "tensor %.100s: the shape overflows or is empty", t->name);
        t->dims[t->n_dims++] = (int64_t)d;
    }
    uint64_t type = get(c, 4, t->name);
    *offset = get(c, 8, t->name);
    if (c->rc) return;
    const char *type_name = ggml_type_name((uint32_t)type);
    int elements, bytes;
    t->type = (enum ggml_type)type;
    if (type >= GGML_TYPES || !ggml_type_block(t->type, &elements, &bytes))
        c->rc =
            err_set(c->e, ERR_UNSUPPORTED,
                    "tensor %.100s: type %llu (%s) is not supported; tandem reads F32, F16, BF16, Q8_0, Q4_0, Q4_1, "
                    "Q5_0, Q5_1, Q2_K to Q6_K, IQ4_NL, IQ4_XS and MXFP4",
                    t->name, (unsigned long long)type, type_name ? type_name : "unknown");
    else if (t->dims[0] % elements)
        c->rc = err_set(c->e, ERR_INVALID, "tensor %.100s: %lld columns are not whole blocks of %d (%s)", t->name,
                        (long long)t->dims[0], elements, type_name);
    else if (__builtin_mul_overflow((size_t)count / (size_t)elements, (size_t)bytes, &t->bytes))
        c->rc = err_set(c->e, ERR_INVALID, "tensor %.100s: the shape overflows", t->name);
}

static uint64_t alignment(struct cursor *c, const struct gguf_key *keys, uint64_t n)
{
    for (uint64_t i = 0; i < n && !c->rc; i++) {
        if (!gguf_text_is(keys[i].name, "general.alignment")) continue;
        double v = keys[i].type == GGUF_U32 ? gguf_element(&keys[i], 0) : 0;
        if (v >= 8 && v <= 1 << 20 && ((uint32_t)v & ((uint32_t)v - 1)) == 0) return (uint64_t)v;
        c->rc = err_set(c->e, ERR_INVALID, "key general.alignment is not a power of two from 8 to 2^20");
    }
    return 32;
}

/* The tensors' places: one after the other from the first aligned byte, as the format demands. */
static void place(struct cursor *c, struct gguf_tensor *t, const uint64_t *offset, size_t n, uint64_t align)
{
    size_t start = (c->at + align - 1) / align * align;
    uint64_t next = 0;
    for (size_t i = 0; i < n && !c->rc; i++) {
        if (offset[i] != next)
            c->rc = err_set(c->e, ERR_INVALID, "tensor %.100s: offset %llu; after the tensors before it, it is %llu",
                            t[i].name, (unsigned long long)offset[i], (unsigned long long)next);
        else if (start > c->n || next > c->n - start || t[i].bytes > c->n - start - next)
            c->rc = err_set(c->e, ERR_INVALID,
                            "byte %zu: the file ends in tensor %.100s, which has %zu bytes from byte %llu on: it was "
                            "not downloaded to its end",
                            c->n, t[i].name, t[i].bytes, (unsigned long long)(start + next));
        if (c->rc) return;
        t[i].data = c->bytes + start + next;
        next = (next + t[i].bytes + align - 1) / align * align;
    }
}

static void get_tensors(struct cursor *c, struct gguf *g, uint64_t n, uint64_t align)
{
    uint64_t *offset = mem_array((size_t)n + 1, sizeof *offset);
    size_t first = g->n_tensors;
    mem_grow(&g->tensors, &g->cap_tensors, first + (size_t)n + 1, sizeof *g->tensors);
    for (uint64_t i = 0; i < n && !c->rc; i++) {
        g->tensors[g->n_tensors] = (struct gguf_tensor){0};
        get_tensor(c, &g->tensors[g->n_tensors++], &offset[i]);
    }
    if (!c->rc) place(c, g->tensors + first, offset, (size_t)n, align);
    free(offset);
}

static void get_head(struct cursor *c, uint64_t *tensors, uint64_t *keys)
{
    if (model_dir_lfs_pointer(c->bytes, c->n)) {
        c->rc = model_dir_lfs_error(c->e);
        return;
    }
    if (c->n < 4 || memcmp(c->bytes, "GGUF", 4)) {
        c->rc = err_set(c->e, ERR_INVALID, "byte 0: not a GGUF file");
        return;
    }
    c->at = 4;
    uint64_t version = get(c, 4, "the header");
    if (!c->rc && version == 1)
        c->rc = err_set(c->e, ERR_UNSUPPORTED,
                        "GGUF version 1 is not supported; versions 2 and 3 are: convert the model again");
    else if (!c->rc && (version == 3 << 24 || version == 2 << 24))
        c->rc = err_set(c->e, ERR_UNSUPPORTED, "a big-endian GGUF file; only little-endian ones are read");
    else if (!c->rc && version != 2 && version != 3)
        c->rc = err_set(c->e, ERR_UNSUPPORTED, "GGUF version %llu is not supported; versions 2 and 3 are",
                        (unsigned long long)version);
    *tensors = get(c, 8, "the header");
    *keys = get(c, 8, "the header");
    if (!c->rc && (*tensors > TENSORS_MAX || *keys > KEYS_MAX))
        c->rc = err_set(c->e, ERR_INVALID, "byte 8: %llu tensors and %llu keys; at most %d and %d are sane",
                        (unsigned long long)*tensors, (unsigned long long)*keys, TENSORS_MAX, KEYS_MAX);
    /* each takes at least 13 bytes: what the file cannot hold is not allocated */
    if (!c->rc && (*tensors + *keys) > c->n / 13)
        c->rc = err_set(c->e, ERR_INVALID, "byte %zu: the file ends before its %llu keys and %llu tensors", c->n,
                        (unsigned long long)*keys, (unsigned long long)*tensors);
}

static int add_file(struct gguf *g, const char *bytes, size_t n, struct err *e)
{
    struct cursor c = {bytes, n, 0, e, 0};
    uint64_t tensors = 0, n_keys = 0;
    get_head(&c, &tensors, &n_keys);
    if (c.rc) return c.rc;
    struct gguf_key *keys;
    get_keys(&c, n_keys, &keys);
    uint64_t align = alignment(&c, keys, n_keys);
    if (!c.rc) get_tensors(&c, g, tensors, align);
    if (g->keys || c.rc) {
        free(keys);
    } else {
        g->keys = keys;
        g->n_keys = (size_t)n_keys;
    }
    return c.rc;
}

static int finish(struct gguf *g, struct err *e)
{
    if (g->n_tensors) qsort(g->tensors, g->n_tensors, sizeof *g->tensors, by_name);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (by_name(&g->tensors[i - 1], &g->tensors[i]) == 0)
            return err_set(e, ERR_INVALID, "tensor %.100s is there twice", g->tensors[i].name);
    return 0;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static struct gguf *opened(struct gguf *g, int rc)
{
    if (!rc) return g;
    gguf_close(g);
    return NULL;
}

struct gguf *gguf_parse(const char *bytes, size_t n, struct err *e)
{
    struct gguf *g = mem_zalloc(sizeof *g);
    int rc = add_file(g, bytes, n, e);
    return opened(g, rc ? rc : finish(g, e));
}

static int map_file(struct gguf *g, const char *path, struct err *e)
{
    g->maps = mem_resize(g->maps, (size_t)g->n_maps + 1, sizeof *g->maps);
    int rc = file_map(&g->maps[g->n_maps], path, e);
    if (rc) return rc;
    const struct file_map *m = &g->maps[g->n_maps++];
    rc = add_file(g, m->data ? m->data : "", m->size, e);
    if (rc) err_prefix(e, "%.200s", path);
    return rc;
}

/* "-00001-of-00003.gguf" */
enum { SPLIT_SUFFIX = 20 };

static int map_splits(struct gguf *g, const char *path, struct err *e)
{
    double count = 1, number = 0, total = 0;
    if (!gguf_number(g, "split.count", &count) || count == 1) return 0;
    gguf_number(g, "split.no", &number);
    if (!(count >= 1 && count <= SPLITS_MAX))
        return err_set(e, ERR_INVALID, "key split.count is not from 1 to %d", SPLITS_MAX);
    if (number != 0)
        return err_set(e, ERR_INVALID, "%.200s: part %d of %d of a split model: name the first, ...-00001-of-%05d.gguf",
                       path, (int)number + 1, (int)count, (int)count);
    char want[SPLIT_SUFFIX + 1];
    size_t n = strlen(path);
    snprintf(want, sizeof want, "-00001-of-%05d.gguf", (int)count);
    if (n <= SPLIT_SUFFIX || strcmp(path + n - SPLIT_SUFFIX, want))
        return err_set(e, ERR_INVALID, "%.200s: the first part of a split model, whose name must end in %s", path,
                       want);
    int rc = 0;
    for (int i = 1; i < (int)count && !rc; i++) {
        struct buf part = {0};
        buf_append(&part, path, n - SPLIT_SUFFIX);
        buf_printf(&part, "-%05d-of-%05d.gguf", i + 1, (int)count);
        rc = map_file(g, part.data, e);
        buf_free(&part);
    }
    if (!rc && gguf_number(g, "split.tensors.count", &total) && total != (double)g->n_tensors)
        rc = err_set(e, ERR_INVALID, "%.200s: the %d parts have %zu tensors; split.tensors.count is %.0f", path,
                     (int)count, g->n_tensors, total);
    return rc;
}

struct gguf *gguf_open(const char *path, struct err *e)
{
    struct gguf *g = mem_zalloc(sizeof *g);
    int rc = map_file(g, path, e);
    if (!rc) rc = map_splits(g, path, e);
    if (!rc && finish(g, e)) rc = err_prefix(e, "%.200s", path);
    return opened(g, rc);
}

void gguf_close(struct gguf *g)
{
    if (!g) return;
    for (size_t i = 0; i < g->n_tensors; i++) free(g->tensors[i].name);
    for (int i = 0; i < g->n_maps; i++) file_unmap(&g->maps[i]);
    free(g->tensors);
    free(g->keys);
    free(g->maps);
    free(g);
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

bool gguf_is_mapped(const struct gguf *g)
{
    return g->n_maps > 0;
}

size_t gguf_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name)
{
    struct gguf_tensor key = {.name = (char *)(uintptr_t)name};
    return g->n_tensors ? bsearch(&key, g->tensors, g->n_tensors, sizeof key, by_name) : NULL;
}

const struct gguf_key *gguf_find(const struct gguf *g, const char *name)
{
    struct gguf_key key = {.name = {name, strlen(name)}};
    return g->n_keys ? bsearch(&key, g->keys, g->n_keys, sizeof key, by_key) : NULL;
}

bool gguf_text_is(struct gguf_text t, const char *s)
{
    return t.n == strlen(s) && memcmp(t.s, s, t.n) == 0;
}

struct gguf_text gguf_next_text(const char **at)
{
    uint64_t n;
    memcpy(&n, *at, 8);
    struct gguf_text t = {*at + 8, (size_t)n};
    *at += 8 + n;
    return t;
}

double gguf_element(const struct gguf_key *k, uint64_t i)
{
    union {
        uint64_t u64;
        int64_t i64;
        double f64;
        float f32;
        int32_t i32;
        int16_t i16;
        int8_t i8;
    } v = {0};
    memcpy(&v, k->at + i * widths[k->of], widths[k->of]);
    switch (k->of) {
    case GGUF_I8: return v.i8;
    case GGUF_I16: return v.i16;
    case GGUF_I32: return v.i32;
    case GGUF_I64: return (double)v.i64;
    case GGUF_F32: return (double)v.f32;
    case GGUF_F64: return v.f64;
    case GGUF_BOOL: return v.i8 != 0;
    case GGUF_TEXT: return 0;
    default: return (double)v.u64;
    }
}

bool gguf_number(const struct gguf *g, const char *name, double *out)
{
    const struct gguf_key *k = gguf_find(g, name);
    if (!k || k->type == GGUF_TEXT || k->type == GGUF_ARRAY) return false;
    *out = gguf_element(k, 0);
    return true;
}

bool gguf_text(const struct gguf *g, const char *name, struct gguf_text *out)
{
    const struct gguf_key *k = gguf_find(g, name);
    if (!k || k->type != GGUF_TEXT) return false;
    const char *at = k->at;
    *out = gguf_next_text(&at);
    return true;
}
