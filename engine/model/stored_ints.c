#include "engine/model/stored_ints.h"

#include "engine/base/mem.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int stored_ints_make(struct stored_ints *m, int rows, int cols, int bits, int groups, struct err *e)
{
    size_t n = (size_t)rows * (size_t)cols, n_groups = (size_t)rows * (size_t)groups;
    *m = (struct stored_ints){.rows = rows, .cols = cols, .bits = bits, .groups = groups};
    m->group = (cols + groups - 1) / groups;
    m->code = mem_try_alloc(n);
    m->zero = mem_try_alloc(n_groups);
    m->scale = mem_try_alloc(n_groups * sizeof *m->scale);
    if (m->code && m->zero && m->scale) return 0;
    stored_ints_free(m);
    return err_set(e, ERR_NOMEM, "no memory for a matrix of %d x %d", rows, cols);
}

void stored_ints_free(struct stored_ints *m)
{
    free(m->code);
    free(m->zero);
    free(m->scale);
    *m = (struct stored_ints){0};
}

/* ---- what the values allow --------------------------------------------------------------------------------------- */

static size_t n_groups(const struct stored_ints *m)
{
    return (size_t)m->rows * (size_t)m->groups;
}

static bool contiguous(const struct stored_ints *m)
{
    for (int k = 0; m->group_of && k < m->cols; k++)
        if (m->group_of[k] != k / m->group) return false;
    return true;
}

/* The columns sorted by their group, and in a group ascending.  *order, for the caller to free, is NULL where that does
 * not make groups of equal size, but for the last one. */
static int sort_columns(const struct stored_ints *m, uint32_t **order, struct err *e)
{
    size_t cols = (size_t)m->cols, bytes = cols * sizeof **order;
    uint32_t *next = mem_try_alloc((size_t)m->groups * sizeof *next);
    bool fits = true;
    *order = mem_try_alloc(bytes);
    if (!*order || !next) {
        free(next), free(*order);
        *order = NULL;
        return err_set(e, ERR_NOMEM, "no memory for a matrix of %d x %d", m->rows, m->cols);
    }
    memset(next, 0, (size_t)m->groups * sizeof *next);
    for (size_t k = 0; k < cols && fits; k++) {
        size_t g = (size_t)m->group_of[k], at = g * (size_t)m->group + next[g];
        fits = next[g]++ < (uint32_t)m->group && at < cols;
        if (fits) (*order)[at] = (uint32_t)k;
    }
    free(next);
    if (fits) return 0;
    free(*order);
    *order = NULL;
    return 0;
}

static bool zeros_are(const struct stored_ints *m, uint8_t zero)
{
    for (size_t i = 0; i < n_groups(m); i++)
        if (m->zero[i] != zero) return false;
    return true;
}

static bool scales_fit_f16(const struct stored_ints *m)
{
    for (size_t i = 0; i < n_groups(m); i++)
        if (f16_to_f32(f32_to_f16(m->scale[i])) != m->scale[i]) return false;
    return true;
}

static bool is_int4(const struct stored_ints *m)
{
    bool group = m->group == 32 || m->group == 64 || m->group == 128;
    return m->bits == 4 && group && contiguous(m) && zeros_are(m, 8) && scales_fit_f16(m);
}

static bool is_int8(const struct stored_ints *m)
{
    if (m->bits != 8 || m->groups != 1 || !zeros_are(m, 128)) return false;
    return !memchr(m->code, 0, (size_t)m->rows * (size_t)m->cols); /* no -128 */
}

/* ---- the forms --------------------------------------------------------------------------------------------------- */

/* Two codes to a byte, in place of the codes; columns that fill the last group up are 8, a value of 0. */
static int to_int4(struct stored_ints *m, struct weight_src *src, void **owned, struct err *e)
{
    size_t row_bytes = (size_t)m->groups * (size_t)m->group / 2, bytes = row_bytes * (size_t)m->rows;
    uint8_t *data = mem_try_alloc(bytes + n_groups(m) * sizeof(uint16_t));
    if (!data) return err_set(e, ERR_NOMEM, "no memory for a matrix of %d x %d", m->rows, m->cols);
    uint16_t *scale = (uint16_t *)(void *)(data + bytes); /* row_bytes is a multiple of 16 */
    memset(data, 0x88, bytes);
    for (int r = 0; r < m->rows; r++) {
        const uint8_t *code = m->code + (size_t)r * (size_t)m->cols;
        uint8_t *out = data + (size_t)r * row_bytes;
        for (int k = 0; k < m->cols; k++)
            out[k / 2] = (uint8_t)(k % 2 ? (out[k / 2] & 0x0f) | code[k] << 4 : (out[k / 2] & 0xf0) | code[k]);
    }
    for (size_t i = 0; i < n_groups(m); i++) scale[i] = f32_to_f16(m->scale[i]);
    src->t = DT_I4, src->group = m->group, src->data = *owned = data, src->scale = scale;
    return 0;
}

static int to_int8(struct stored_ints *m, struct weight_src *src, void **owned, struct err *e)
{
    size_t n = (size_t)m->rows * (size_t)m->cols, bytes = (n + 3) / 4 * 4;
    int8_t *data = mem_try_alloc(bytes + (size_t)m->rows * sizeof(float));
    if (!data) return err_set(e, ERR_NOMEM, "no memory for a matrix of %d x %d", m->rows, m->cols);
    for (size_t i = 0; i < n; i++) data[i] = (int8_t)(m->code[i] - 128);
    memcpy(data + bytes, m->scale, (size_t)m->rows * sizeof(float));
    src->t = DT_I8, src->data = *owned = data, src->scale = data + bytes;
    return 0;
}

static int to_f32(const struct stored_ints *m, struct weight_src *src, void **owned, struct err *e)
{
    float *w = mem_try_alloc((size_t)m->rows * (size_t)m->cols * sizeof *w);
    if (!w) return err_set(e, ERR_NOMEM, "no memory for a matrix of %d x %d", m->rows, m->cols);
    for (int r = 0; r < m->rows; r++) {
        const uint8_t *zero = m->zero + (size_t)r * (size_t)m->groups;
        const float *scale = m->scale + (size_t)r * (size_t)m->groups;
        size_t at = (size_t)r * (size_t)m->cols;
        for (int k = 0; k < m->cols; k++) {
            int g = m->group_of ? m->group_of[k] : k / m->group;
            w[at + (size_t)k] = (float)(m->code[at + (size_t)k] - zero[g]) * scale[g];
        }
    }
    src->t = DT_F32, src->data = *owned = w;
    return 0;
}

/* Columns that share a scale in a block form: the largest of its groups that divides the stored group; 0: none. */
static int block_group(const struct stored_ints *m)
{
    for (int group = 128; group >= 16; group /= 2)
        if (m->groups == 1 || m->group % group == 0) return group;
    return 0;
}

/* Zero points become minima, zero * scale, which is exact where the scale has few bits, as those of files have: then
 * code * scale - minimum is (code - zero) * scale. */
static int to_block(struct stored_ints *m, int group, const uint32_t *order, struct weight_src *src, void **owned,
                    struct err *e)
{
    uint8_t middle = (uint8_t)(1 << (m->bits - 1));
    size_t cols = (size_t)m->cols, codes = (size_t)m->rows * cols, n = n_groups(m), ordered = order ? cols : 0;
    bool minima = !zeros_are(m, middle), small = m->bits < 8; /* of 8 bits, values are code - 128 */
    struct weight_block *b = mem_try_alloc(sizeof *b + (2 * n + ordered) * sizeof(float) + 256 + n + codes);
    if (!b) return err_set(e, ERR_NOMEM, "no memory for a matrix of %d x %d", m->rows, m->cols);
    float *scale = (float *)(b + 1), *super_min = scale + n;
    uint32_t *columns = (uint32_t *)(super_min + n);
    int8_t *value = (int8_t *)(columns + ordered);
    uint8_t *sub_min = (uint8_t *)value + 256, *code = sub_min + n;
    uint8_t origin = minima && small ? 0 : middle;
    for (int c = 0; c < 1 << m->bits; c++) value[c] = (int8_t)(c - origin);
    memcpy(scale, m->scale, n * sizeof *scale);
    memcpy(sub_min, m->zero, n);
    if (order) memcpy(columns, order, cols * sizeof *order);
    if (!order) memcpy(code, m->code, codes);
    for (size_t r = 0; order && r < codes; r += cols)
        for (size_t k = 0; k < cols; k++) code[r + k] = m->code[r + order[k]];
    for (size_t i = 0; i < n; i++) super_min[i] = small ? scale[i] : scale[i] * (float)(m->zero[i] - 128);
    int super = m->groups == 1 ? (m->cols + group - 1) / group * group : m->group;
    *b = (struct weight_block){m->bits,
                               value,
                               group,
                               super,
                               NULL,
                               scale,
                               minima && small ? sub_min : NULL,
                               minima ? super_min : NULL,
                               order ? columns : NULL};
    src->t = DT_BLOCK, src->data = code, src->block = b;
    *owned = b;
    return 0;
}

int stored_ints_matrix(struct stored_ints *m, struct weight_src *src, void **owned, struct err *e)
{
    *owned = NULL;
    *src = (struct weight_src){.rows = m->rows, .cols = m->cols};
    int group = block_group(m), rc = 0;
    bool sorted = contiguous(m);
    uint32_t *order = NULL;
    if (group && !sorted) rc = sort_columns(m, &order, e);
    if (!rc)
        rc = is_int4(m)                   ? to_int4(m, src, owned, e)
             : is_int8(m)                 ? to_int8(m, src, owned, e)
             : group && (sorted || order) ? to_block(m, group, order, src, owned, e)
                                          : to_f32(m, src, owned, e);
    free(order);
    stored_ints_free(m);
    return rc;
}
