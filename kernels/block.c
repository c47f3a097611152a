/* See block.h. */
#include "kernels/block.h"

#include <stdlib.h>
#include <string.h>

const char *block_error(const struct weight_src *s)
{
    const struct weight_block *b = s->block;
    if (s->t != DT_BLOCK || !b) return "there is no block form";
    if (s->rows < 1 || s->cols < 1) return "it is empty";
    if (!s->data || !b->value || !b->super_scale) return "codes, values or scales are NULL";
    if (b->bits < 2 || b->bits > 8) return "bits are not 2 to 8";
    if (b->group != 16 && b->group != 32 && b->group != 64 && b->group != 128) return "group is not 16, 32, 64 or 128";
    if (b->super < b->group || b->super % b->group) return "super is no multiple of group";
    if (b->sub_min && !b->super_min) return "sub_min is without super_min";
    return NULL;
}

bool block_codes_ok(const struct weight_src *s)
{
    const uint8_t *code = s->data;
    size_t n = (size_t)s->rows * (size_t)s->cols;
    uint8_t all = 0;
    for (size_t i = 0; i < n; i++) all |= code[i];
    return all >> s->block->bits == 0;
}

static const uint32_t *order_of(const struct weight_src *s)
{
    return s->t == DT_BLOCK ? s->block->order : NULL;
}

bool block_order_same(const struct weight_src *a, const struct weight_src *b)
{
    const uint32_t *x = order_of(a), *y = order_of(b);
    return x == y || (x && y && a->cols == b->cols && !memcmp(x, y, (size_t)a->cols * sizeof *x));
}

bool block_order_ok(const struct weight_src *parts, int n_parts)
{
    const uint32_t *order = order_of(parts);
    for (int i = 1; i < n_parts; i++)
        if (!block_order_same(parts, parts + i)) return false;
    if (!order) return true;
    bool *seen = calloc((size_t)parts->cols, sizeof *seen), ok = seen;
    for (int k = 0; ok && k < parts->cols; k++) {
        ok = order[k] < (uint32_t)parts->cols && !seen[order[k]];
        if (ok) seen[order[k]] = true;
    }
    free(seen);
    return ok;
}

void block_row(const struct weight_src *s, int r, float *out)
{
    const struct weight_block *b = s->block;
    const uint8_t *code = (const uint8_t *)s->data + (size_t)r * (size_t)s->cols;
    for (int g = 0, k = 0; k < s->cols; g++) {
        float scale = block_scale(s, r, g), minimum = block_minimum(s, r, g);
        for (int i = 0; i < b->group && k < s->cols; i++, k++) {
            float product = (float)b->value[code[k]] * scale;
            out[b->order ? b->order[k] : (uint32_t)k] = b->super_min ? product - minimum : product;
        }
    }
}

bool block_from_i4(struct block_of_i4 *out, const struct weight_src *i4)
{
    static const int8_t value[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    size_t rows = (size_t)i4->rows, cols = (size_t)i4->cols,
           groups = (cols + (size_t)i4->group - 1) / (size_t)i4->group;
    size_t row_bytes = groups * (size_t)i4->group / 2;
    float *scale = malloc(rows * groups * sizeof *scale + rows * cols);
    *out = (struct block_of_i4){.owned = scale};
    if (!scale) return false;
    uint8_t *code = (uint8_t *)(scale + rows * groups);
    const uint8_t *from = i4->data;
    for (size_t r = 0; r < rows; r++, from += row_bytes)
        for (size_t k = 0; k < cols; k++) code[r * cols + k] = k & 1 ? from[k / 2] >> 4 : from[k / 2] & 15;
    for (size_t i = 0; i < rows * groups; i++) scale[i] = f16_to_f32(((const uint16_t *)i4->scale)[i]);
    out->block =
        (struct weight_block){.bits = 4, .value = value, .group = i4->group, .super = i4->group, .super_scale = scale};
    out->src = (struct weight_src){
        .t = DT_BLOCK, .rows = i4->rows, .cols = i4->cols, .data = code, .gate_up = i4->gate_up, .block = &out->block};
    return true;
}

void block_of_i4_free(struct block_of_i4 *b)
{
    free(b->owned);
    *b = (struct block_of_i4){.owned = NULL};
}
