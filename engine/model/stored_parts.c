#include "engine/model/stored_parts.h"

#include "engine/base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void stored_part_name(const char *name, const char *suffix, char out[PART_NAME_MAX])
{
    size_t n = strlen(name), end = sizeof ".weight" - 1;
    out[0] = 0;
    if (n <= end || n >= TENSOR_NAME_MAX || strcmp(name + n - end, ".weight")) return;
    snprintf(out, PART_NAME_MAX, "%.*s%s", (int)(n - end), name, suffix);
}

const struct tensor *stored_part(const struct tensor_source *f, const char *name, const char *suffix)
{
    char full[PART_NAME_MAX];
    stored_part_name(name, suffix, full);
    return full[0] ? tensor_source_find(f, full) : NULL;
}

int stored_part_find(const struct tensor_source *f, const char *name, const char *suffix, enum tensor_type type,
                     int64_t d0, int64_t d1, const struct tensor **out, struct err *e)
{
    char full[PART_NAME_MAX];
    stored_part_name(name, suffix, full);
    const struct tensor *t = full[0] ? tensor_source_find(f, full) : NULL;
    if (!t) return err_set(e, ERR_NOT_FOUND, "tensor %s is missing", full);
    if (t->type != type)
        return err_set(e, ERR_INVALID, "tensor %s: type %s, not %s", full, tensor_type_name(t->type),
                       tensor_type_name(type));
    if (t->n_dims != (d1 ? 2 : 1) || t->dims[0] != d0 || (d1 && t->dims[1] != d1)) {
        if (!d1) return err_set(e, ERR_INVALID, "tensor %s: shape is not [%lld]", full, (long long)d0);
        return err_set(e, ERR_INVALID, "tensor %s: shape is not [%lld, %lld] as config.json says", full, (long long)d0,
                       (long long)d1);
    }
    *out = t;
    return 0;
}

int stored_part_float(const struct tensor *t, size_t i, float *out, struct err *e)
{
    *out = tensor_element(t, i);
    if (isfinite(*out)) return 0;
    return err_set(e, ERR_INVALID, "tensor %s: element %zu is not finite", t->name, i);
}

uint32_t stored_word(const struct tensor *t, size_t i)
{
    uint32_t w;
    memcpy(&w, (const char *)t->data + i * sizeof w, sizeof w);
    return w;
}

int stored_part_groups(const struct tensor_source *f, const char *name, const char *suffix, int cols, int groups,
                       int32_t **out, struct err *e)
{
    const struct tensor *t = stored_part(f, name, suffix);
    *out = NULL;
    if (!t || t->bytes == 0) return 0;
    int rc = stored_part_find(f, name, suffix, TENSOR_I32, cols, 0, &t, e);
    if (rc) return rc;
    int32_t *g = mem_try_alloc((size_t)cols * sizeof *g);
    if (!g) return err_set(e, ERR_NOMEM, "no memory for tensor %s", t->name);
    for (int k = 0; k < cols; k++) {
        g[k] = (int32_t)stored_word(t, (size_t)k);
        if (g[k] >= 0 && g[k] < groups) continue;
        free(g);
        return err_set(e, ERR_INVALID, "tensor %s: element %d is not a group from 0 to %d", t->name, k, groups - 1);
    }
    *out = g;
    return 0;
}
