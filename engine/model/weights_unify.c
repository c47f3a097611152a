#include "engine/model/weights_unify.h"

#include "engine/base/mem.h"
#include "engine/model/nf4.h"
#include "kernels/block.h"

#include <stdlib.h>
#include <string.h>

static bool is_integer(const struct weight_src *s)
{
    return s->t == DT_I8 || s->t == DT_I4 || s->t == DT_BLOCK;
}

/* ---- to floats --------------------------------------------------------------------------------------------------- */

static float int4_value(const struct weight_src *s, size_t groups, size_t r, size_t k)
{
    size_t at = r * groups * (size_t)s->group + k;
    int byte = ((const uint8_t *)s->data)[at / 2], nibble = at % 2 ? byte >> 4 : byte & 15;
    return (float)(nibble - 8) * f16_to_f32(((const uint16_t *)s->scale)[r * groups + k / (size_t)s->group]);
}

static float fp8_value(const struct weight_src *s, size_t groups, size_t r, size_t k)
{
    size_t g = s->group ? k / (size_t)s->group : 0;
    return e4m3_to_f32(((const uint8_t *)s->data)[r * (size_t)s->cols + k]) * ((const float *)s->scale)[r * groups + g];
}

static void row_values(const struct weight_src *s, size_t r, float *out)
{
    size_t cols = (size_t)s->cols, first = r * cols, groups = s->group ? (cols - 1) / (size_t)s->group + 1 : 1;
    for (size_t k = 0; k < cols; k++) switch (s->t) {
        case DT_BF16: out[k] = bf16_to_f32(((const uint16_t *)s->data)[first + k]); break;
        case DT_F16: out[k] = f16_to_f32(((const uint16_t *)s->data)[first + k]); break;
        case DT_I8: out[k] = (float)((const int8_t *)s->data)[first + k] * ((const float *)s->scale)[r]; break;
        case DT_I4: out[k] = int4_value(s, groups, r, k); break;
        case DT_F8: out[k] = fp8_value(s, groups, r, k); break;
        default: out[k] = ((const float *)s->data)[first + k];
        }
}

static float *values(const struct weight_src *s)
{
    size_t rows = (size_t)s->rows, cols = (size_t)s->cols;
    float *w = mem_try_alloc(rows * cols * sizeof *w);
    if (w && s->t == DT_NF4) nf4_dequantize(s->data, s->scale, NF4_GROUP, rows * cols, w);
    for (size_t r = 0; w && s->t != DT_NF4 && r < rows; r++) {
        if (s->t == DT_BLOCK)
            block_row(s, (int)r, w + r * cols);
        else
            row_values(s, r, w + r * cols);
    }
    return w;
}

static bool to_floats(struct weight_src *s, void **owned)
{
    if (s->t == DT_F32) return true;
    float *w = values(s);
    if (!w) return false;
    free(*owned);
    *owned = w;
    *s = (struct weight_src){.t = DT_F32, .rows = s->rows, .cols = s->cols, .data = w, .gate_up = s->gate_up};
    return true;
}

/* ---- to blocks --------------------------------------------------------------------------------------------------- */

/* A part with all that it points to, one allocation but for the arrays of block_from_i4. */
static bool int4_to_block(struct weight_src *s, void **owned)
{
    struct block_of_i4 b;
    if (!block_from_i4(&b, s)) return false;
    size_t groups = (size_t)(s->cols - 1) / (size_t)s->group + 1, scales = (size_t)s->rows * groups,
           codes = (size_t)s->rows * (size_t)s->cols;
    struct weight_block *block = mem_try_alloc(sizeof *block + scales * sizeof(float) + codes);
    if (!block) return block_of_i4_free(&b), false;
    float *scale = (float *)(block + 1);
    memcpy(scale, b.block.super_scale, scales * sizeof *scale);
    memcpy(scale + scales, b.src.data, codes);
    *block = b.block;
    block->super_scale = scale;
    bool gate_up = s->gate_up;
    *s = b.src;
    s->block = block, s->data = scale + scales, s->gate_up = gate_up;
    block_of_i4_free(&b);
    free(*owned);
    *owned = block;
    return true;
}

enum { INT8_GROUP = 128 };

static bool int8_to_block(struct weight_src *s, void **owned)
{
    size_t rows = (size_t)s->rows, codes = rows * (size_t)s->cols;
    struct weight_block *block = mem_try_alloc(sizeof *block + rows * sizeof(float) + 256 + codes);
    if (!block) return false;
    float *scale = (float *)(block + 1);
    int8_t *value = (int8_t *)(scale + rows);
    uint8_t *code = (uint8_t *)value + 256;
    memcpy(scale, s->scale, rows * sizeof *scale);
    for (int c = 0; c < 256; c++) value[c] = (int8_t)(c - 128);
    for (size_t i = 0; i < codes; i++) code[i] = (uint8_t)(((const int8_t *)s->data)[i] + 128);
    *block = (struct weight_block){.bits = 8,
                                   .value = value,
                                   .group = INT8_GROUP,
                                   .super = (s->cols + INT8_GROUP - 1) / INT8_GROUP * INT8_GROUP,
                                   .super_scale = scale};
    s->t = DT_BLOCK, s->group = 0, s->data = code, s->scale = NULL, s->block = block;
    free(*owned);
    *owned = block;
    return true;
}

static bool to_block(struct weight_src *s, void **owned)
{
    if (s->t == DT_BLOCK) return true;
    return s->t == DT_I4 ? int4_to_block(s, owned) : int8_to_block(s, owned);
}

int weights_unify(struct weight_src *part, int n, bool floats, void **owned, struct err *e)
{
    bool same = true, integers = true;
    for (int i = 0; i < n; i++) {
        same &= part[i].t == part[0].t && part[i].group == part[0].group;
        integers &= is_integer(&part[i]);
        floats |= !block_order_same(&part[0], &part[i]);
    }
    if (same && !floats) return 0;
    for (int i = 0; i < n; i++)
        if (!(integers && !floats ? to_block : to_floats)(&part[i], &owned[i]))
            return err_set(e, ERR_NOMEM, "no memory for a matrix of %d x %d", part[i].rows, part[i].cols);
    return 0;
}
