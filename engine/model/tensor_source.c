#include "engine/model/tensor_source.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} types[] = {
    [TENSOR_F32] = {"F32", 4},   [TENSOR_F16] = {"F16", 2},         [TENSOR_BF16] = {"BF16", 2},
    [TENSOR_I8] = {"I8", 1},     [TENSOR_U8] = {"U8", 1},           [TENSOR_I16] = {"I16", 2},
    [TENSOR_U16] = {"U16", 2},   [TENSOR_I32] = {"I32", 4},         [TENSOR_U32] = {"U32", 4},
    [TENSOR_I64] = {"I64", 8},   [TENSOR_U64] = {"U64", 8},         [TENSOR_F64] = {"F64", 8},
    [TENSOR_BOOL] = {"BOOL", 1}, [TENSOR_F8_E4M3] = {"F8_E4M3", 1}, [TENSOR_OTHER] = {"?", 0},
};

const char *tensor_type_name(enum tensor_type t)
{
    return types[t].name;
}

size_t tensor_type_bytes(enum tensor_type t)
{
    return types[t].bytes;
}

enum dtype tensor_float_type(enum tensor_type t)
{
    return t == TENSOR_F32 ? DT_F32 : t == TENSOR_F16 ? DT_F16 : t == TENSOR_BF16 ? DT_BF16 : DT_NONE;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

void tensors_sort(struct tensor *v, size_t n)
{
    if (n) qsort(v, n, sizeof *v, by_name);
}

const struct tensor *tensors_find(const struct tensor *v, size_t n, const char *name)
{
    struct tensor want = {.name = (char *)(uintptr_t)name};
    return n ? bsearch(&want, v, n, sizeof want, by_name) : NULL;
}

size_t tensor_list_count(const struct tensor_source *s)
{
    return ((const struct tensor_list *)s)->n;
}

const struct tensor *tensor_list_at(const struct tensor_source *s, size_t i)
{
    return &((const struct tensor_list *)s)->v[i];
}

const struct tensor *tensor_list_find(const struct tensor_source *s, const char *name)
{
    const struct tensor_list *l = (const struct tensor_list *)s;
    return tensors_find(l->v, l->n, name);
}

size_t tensor_source_count(const struct tensor_source *s)
{
    return s->ops->count(s);
}

const struct tensor *tensor_source_at(const struct tensor_source *s, size_t i)
{
    return s->ops->at(s, i);
}

const struct tensor *tensor_source_find(const struct tensor_source *s, const char *name)
{
    return s->ops->find(s, name);
}

const char *tensor_source_metadata(const struct tensor_source *s, const char *key)
{
    return s->ops->metadata(s, key);
}

int tensor_source_verify(const struct tensor_source *s, struct err *e)
{
    return s->ops->verify(s, e);
}

int tensor_source_populate(const struct tensor_source *s, const struct tensor *t, struct err *e)
{
    return s->ops->populate ? s->ops->populate(s, t, e) : 0;
}

void tensor_source_release(const struct tensor_source *s, const struct tensor *t)
{
    if (s->ops->release) s->ops->release(s, t);
}

void tensor_source_close(struct tensor_source *s)
{
    if (s) s->ops->close(s);
}
