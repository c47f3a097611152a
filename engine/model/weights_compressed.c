#include "engine/model/weights_compressed.h"

#include "engine/model/stored_ints.h"
#include "engine/model/stored_parts.h"

#include <stdlib.h>

bool compressed_is_quantized(const struct tensor_source *f, const char *name)
{
    const struct tensor *t = tensor_source_find(f, name);
    if (stored_part(f, name, ".weight_packed")) return true;
    return t && t->type == TENSOR_I8 && stored_part(f, name, ".weight_scale");
}

/* The bits of a code from the number of words of a row; 0: no number fits. */
static int bits_of(int64_t words, int cols)
{
    for (int bits = 2; bits <= 8; bits++)
        if (words == ((int64_t)cols * bits + 31) / 32) return bits;
    return 0;
}

static int read_shape(const struct tensor_source *f, const struct matrix_slot *slot, const struct tensor *packed,
                      int *bits, int *groups, struct err *e)
{
    const struct tensor *s = stored_part(f, slot->name, ".weight_scale");
    if (packed && packed->n_dims != 2) return err_set(e, ERR_INVALID, "tensor %s: not two dimensions", packed->name);
    *bits = packed ? bits_of(packed->dims[1], slot->cols) : 8;
    if (!*bits)
        return err_set(e, ERR_INVALID, "tensor %s: %lld words for %d inputs are not codes of 2 to 8 bits", packed->name,
                       (long long)packed->dims[1], slot->cols);
    if (!s || tensor_float_type(s->type) == DT_NONE)
        return err_set(e, s ? ERR_UNSUPPORTED : ERR_NOT_FOUND, "tensor %s needs a weight_scale of floats", slot->name);
    bool one = s->n_dims == 0 || (s->n_dims == 1 && s->dims[0] == 1);
    bool grid = s->n_dims == 2 && s->dims[0] == slot->rows && s->dims[1] >= 1 && s->dims[1] <= slot->cols;
    if (!one && !grid)
        return err_set(e, ERR_INVALID, "tensor %s: shape is neither [1] nor [%d, groups]", s->name, slot->rows);
    *groups = one ? 1 : (int)s->dims[1];
    return 0;
}

/* bits `at`.. of words that are `stride` words apart */
static uint8_t unpack(const struct tensor *t, size_t first, size_t stride, size_t at, int bits)
{
    size_t word = at / 32;
    uint64_t w = stored_word(t, first + word * stride);
    if (at % 32 + (size_t)bits > 32) w |= (uint64_t)stored_word(t, first + (word + 1) * stride) << 32;
    return (uint8_t)(w >> at % 32 & ((1u << bits) - 1));
}

static int read_scales(const struct tensor_source *f, const struct matrix_slot *slot, struct stored_ints *m,
                       struct err *e)
{
    const struct tensor *s = stored_part(f, slot->name, ".weight_scale");
    size_t n = (size_t)m->rows * (size_t)m->groups;
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) rc = stored_part_float(s, s->n_dims == 2 ? i : 0, &m->scale[i], e);
    return rc;
}

static int read_zeros(const struct tensor_source *f, const struct matrix_slot *slot, bool packed, struct stored_ints *m,
                      struct err *e)
{
    const struct tensor *z = stored_part(f, slot->name, ".weight_zero_point");
    size_t groups = (size_t)m->groups, n = (size_t)m->rows * groups;
    int64_t words = ((int64_t)m->rows * m->bits + 31) / 32;
    int rc = 0;
    if (z && packed) rc = stored_part_find(f, slot->name, ".weight_zero_point", TENSOR_I32, words, m->groups, &z, e);
    if (z && !packed && (z->type != TENSOR_I8 || (z->bytes != n && z->bytes != 1)))
        rc = err_set(e, ERR_INVALID, "tensor %s is not I8 of the scale's shape", z->name);
    for (size_t i = 0; i < n && !rc; i++)
        m->zero[i] = !z       ? (uint8_t)(1 << (m->bits - 1))
                     : packed ? unpack(z, i % groups, groups, i / groups * (size_t)m->bits, m->bits)
                              : (uint8_t)(((const int8_t *)z->data)[z->bytes == 1 ? 0 : i] + 128);
    return rc;
}

int compressed_matrix(const struct tensor_source *f, const struct matrix_slot *slot, struct weight_src *src,
                      void **owned, struct err *e)
{
    const struct tensor *packed = stored_part(f, slot->name, ".weight_packed"), *w = packed;
    struct stored_ints m = {0};
    int32_t *group_of = NULL;
    int bits = 0, groups = 0;
    *owned = NULL;
    int rc = read_shape(f, slot, packed, &bits, &groups, e);
    if (!rc && packed)
        rc = stored_part_find(f, slot->name, ".weight_packed", TENSOR_I32, slot->rows, packed->dims[1], &w, e);
    if (!rc && !packed) rc = stored_part_find(f, slot->name, ".weight", TENSOR_I8, slot->rows, slot->cols, &w, e);
    if (!rc && slot->transposed) rc = err_set(e, ERR_UNSUPPORTED, "tensor %s: a quantised Conv1D", w->name);
    if (!rc) rc = stored_ints_make(&m, slot->rows, slot->cols, bits, groups, e);
    if (!rc) rc = stored_part_groups(f, slot->name, ".weight_g_idx", slot->cols, groups, &group_of, e);
    if (!rc) rc = read_scales(f, slot, &m, e);
    if (!rc) rc = read_zeros(f, slot, packed != NULL, &m, e);
    if (!rc) {
        size_t words = packed ? (size_t)packed->dims[1] : 0;
        for (int r = 0; r < m.rows; r++)
            for (int k = 0; k < m.cols; k++) {
                size_t i = (size_t)r * (size_t)m.cols + (size_t)k;
                m.code[i] = packed ? unpack(w, (size_t)r * words, 1, (size_t)k * (size_t)bits, bits)
                                   : (uint8_t)(((const int8_t *)w->data)[i] + 128);
            }
        m.group_of = group_of;
        rc = stored_ints_matrix(&m, src, owned, e);
    }
    stored_ints_free(&m);
    free(group_of);
    return rc;
}
