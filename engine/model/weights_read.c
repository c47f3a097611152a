#include "engine/model/weights_read.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/model/calibrate.h"
#include "engine/model/weights_bnb.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int weights_find(const struct tensor_source *f, const char *name, int n_dims, int64_t d0, int64_t d1,
                 const struct tensor **out, struct err *e)
{
    const struct tensor *t = tensor_source_find(f, name);
    if (!t) return err_set(e, ERR_NOT_FOUND, "tensor %s is missing", name);
    if (t->n_dims != n_dims || t->dims[0] != d0 || (n_dims > 1 && t->dims[1] != d1)) {
        if (n_dims == 1) return err_set(e, ERR_INVALID, "tensor %s: shape is not [%lld]", name, (long long)d0);
        return err_set(e, ERR_INVALID, "tensor %s: shape is not [%lld, %lld] as config.json says", name, (long long)d0,
                       (long long)d1);
    }
    *out = t;
    return 0;
}

int weights_find_floats(const struct tensor_source *f, const char *name, int n_dims, int64_t d0, int64_t d1,
                        const struct tensor **out, struct err *e)
{
    int rc = weights_find(f, name, n_dims, d0, d1, out, e);
    if (rc || tensor_float_type((*out)->type) != DT_NONE) return rc;
    return err_set(e, ERR_UNSUPPORTED, "tensor %s: type %s is not F32, F16 or BF16", name,
                   tensor_type_name((*out)->type));
}

/* A matrix written by `tandem quantize`: NAME as I8 [rows, cols] or U8 [rows, bytes], and NAME.scale. */
static int quantized_matrix(const struct tensor_source *f, const struct matrix_slot *slot, const struct tensor *t,
                            struct weight_src *src, struct err *e)
{
    int64_t groups = (slot->cols + INT4_GROUP - 1) / INT4_GROUP, rows = slot->rows;
    bool int8 = t->type == TENSOR_I8;
    const struct tensor *scale = NULL;
    char name[TENSOR_NAME_MAX + 8];
    snprintf(name, sizeof name, "%s.scale", slot->name);
    int rc = weights_find(f, slot->name, 2, rows, int8 ? slot->cols : groups * INT4_GROUP / 2, &t, e);
    if (!rc) rc = weights_find(f, name, 2, rows, int8 ? 1 : groups, &scale, e);
    if (rc) return rc;
    enum tensor_type scale_type = int8 ? TENSOR_F32 : TENSOR_F16;
    if (scale->type != scale_type || (uintptr_t)scale->data % (int8 ? 4 : 2))
        return err_set(e, ERR_INVALID, "tensor %s: not %s, or not aligned", name, tensor_type_name(scale_type));
    *src = (struct weight_src){.t = int8 ? DT_I8 : DT_I4,
                               .rows = slot->rows,
                               .cols = slot->cols,
                               .group = int8 ? 0 : INT4_GROUP,
                               .data = t->data,
                               .scale = scale->data};
    return 0;
}

static void transpose(const char *in, char *out, size_t rows, size_t cols, size_t width)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t k = 0; k < cols; k++) memcpy(out + (r * cols + k) * width, in + (k * rows + r) * width, width);
}

int weights_matrix(const struct tensor_source *f, const struct matrix_slot *slot, struct weight_src *src, void **owned,
                   struct err *e)
{
    *owned = NULL;
    if (bnb_is_quantized(f, slot->name)) return bnb_matrix(f, slot, src, owned, e);
    const struct tensor *t = tensor_source_find(f, slot->name);
    if (t && (t->type == TENSOR_I8 || t->type == TENSOR_U8)) return quantized_matrix(f, slot, t, src, e);
    int64_t d0 = slot->transposed ? slot->cols : slot->rows, d1 = slot->transposed ? slot->rows : slot->cols;
    int rc = weights_find_floats(f, slot->name, 2, d0, d1, &t, e);
    if (rc) return rc;
    enum dtype type = tensor_float_type(t->type);
    size_t width = dtype_bytes(type, 1);
    CHECK(width > 0);
    *src = (struct weight_src){.t = type, .rows = slot->rows, .cols = slot->cols, .data = t->data};
    if (!slot->transposed && (uintptr_t)t->data % width == 0) return 0;
    if (!(*owned = mem_try_alloc(t->bytes))) return err_set(e, ERR_NOMEM, "no memory for tensor %s", slot->name);
    if (slot->transposed)
        transpose(t->data, *owned, (size_t)slot->rows, (size_t)slot->cols, width);
    else
        memcpy(*owned, t->data, t->bytes);
    src->data = *owned;
    return 0;
}

static int read_part(const struct tensor_source *f, const struct matrix_slot *slot, const struct quantize_fit *fit,
                     int threads, struct weight_src *src, void *owned[2], struct err *e)
{
    int rc = weights_matrix(f, slot, src, &owned[0], e);
    bool is_float = src->t == DT_F32 || src->t == DT_BF16 || src->t == DT_F16;
    bool left = fit->type == DT_NONE || (fit->type == DT_NF4 && slot->head); /* like bitsandbytes */
    if (rc || left || !is_float) return rc;
    struct weight_src q;
    rc = quantize_matrix(src, fit, threads, &q, e);
    if (rc) return err_prefix(e, "tensor %s", slot->name);
    free(owned[0]);
    *src = q;
    owned[0] = (void *)q.data;
    owned[1] = (void *)q.scale;
    return 0;
}

int weights_parts(const struct tensor_source *f, const struct stack *m, const struct quantize_how *how, int threads,
                  struct parts *out, struct err *e)
{
    struct quantize_fit fit = {how->type, how->nearest, calibration_feedback(how->calibration, m->product)};
    int rc = 0;
    *out = (struct parts){0};
    for (int i = 0; i < m->n && !rc; i++) {
        rc = read_part(f, &m->part[i], &fit, threads, &out->src[i], out->owned[i], e);
        out->n = i + 1;
    }
    void *first[STACK_MAX];
    for (int i = 0; i < m->n; i++) first[i] = out->owned[i][0];
    if (!rc) rc = bnb_unify(out->src, m->n, first, e);
    for (int i = 0; i < m->n; i++) {
        out->owned[i][0] = first[i];
        out->src[i].gate_up = m->gate_up;
        if (!rc && out->src[i].t != out->src[0].t)
            rc =
                err_set(e, ERR_UNSUPPORTED, "tensors %s and %s have different types", m->part[0].name, m->part[i].name);
    }
    return rc;
}

void weights_parts_free(struct parts *p)
{
    for (int i = 0; i < p->n; i++) free(p->owned[i][0]), free(p->owned[i][1]);
    *p = (struct parts){0};
}

/* The rows from `row` on of a matrix in canonical form. */
static struct weight_src rows_from(struct weight_src s, int row)
{
    size_t skipped = (size_t)row * (size_t)s.cols, groups = s.group ? (size_t)(s.cols + s.group - 1) / s.group : 1;
    size_t bytes = s.t == DT_I8    ? skipped
                   : s.t == DT_I4  ? (size_t)row * groups * INT4_GROUP / 2
                   : s.t == DT_NF4 ? skipped / 2
                                   : dtype_bytes(s.t, skipped);
    s.data = (const char *)s.data + bytes;
    if (s.scale)
        s.scale = (const char *)s.scale + (size_t)row * groups * (s.t == DT_I4 ? sizeof(uint16_t) : sizeof(float));
    s.rows -= row;
    return s;
}

int weights_halves(const struct weight_src *src, int n, struct weight_src out[STACK_MAX])
{
    memcpy(out, src, (size_t)n * sizeof *out);
    if (n != 1 || !src->gate_up) return n;
    out[0].rows = src->rows / 2;
    out[1] = rows_from(*src, src->rows / 2);
    return 2;
}

struct weight *weights_pack(struct dev *d, const struct parts *p)
{
    struct weight_src src[STACK_MAX];
    int n = weights_halves(p->src, p->n, src);
    return d->ops->weight_pack(d, src, n);
}
