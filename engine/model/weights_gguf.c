#include "engine/model/weights_gguf.h"

#include "engine/base/mem.h"
#include "engine/files/gguf.h"
#include "engine/model/gguf_blocks.h"

#include <string.h>

int64_t gguf_stored_row(const struct tensor_form *f, int64_t rows, int64_t row)
{
    if (f->thirds) {
        int64_t dim = rows / (3 * f->thirds), head = row / (3 * dim), third = row / dim % 3;
        return (third * f->thirds + head) * dim + row % dim;
    }
    if (!f->pairs) return row;
    int64_t dim = rows / f->pairs, head = row / dim, i = row % dim;
    return head * dim + (i < dim / 2 ? 2 * i : 2 * (i - dim / 2) + 1);
}

bool gguf_by_head(const struct tensor *t)
{
    return t->form->thirds && t->form->blocks < 0;
}

static int64_t row_in(const struct tensor *t, int row)
{
    bool as_stored = t->form->thirds && !gguf_by_head(t);
    return as_stored ? row : gguf_stored_row(t->form, t->dims[0], row);
}

float *gguf_floats(const struct tensor *t)
{
    const struct block_layout *l = gguf_block_layout((enum ggml_type)t->form->blocks);
    size_t rows = (size_t)t->dims[0], cols = (size_t)t->dims[1], row_bytes = t->bytes / rows;
    float *out = mem_try_alloc(rows * cols * sizeof *out);
    for (size_t r = 0; out && r < rows; r++)
        gguf_dequantise_row((enum ggml_type)t->form->blocks,
                            (const uint8_t *)t->data + (size_t)row_in(t, (int)r) * row_bytes, (int)cols / l->elements,
                            out + r * cols);
    return out;
}

/* ---- integers ---------------------------------------------------------------------------------------------------- */

static const uint8_t *stored_row(const struct tensor *t, int row)
{
    return (const uint8_t *)t->data + (size_t)row_in(t, row) * (t->bytes / (size_t)t->dims[0]);
}

/* One block of memory: the form, floats, codes, bytes. */
struct blocks {
    struct weight_block form;
    float floats[];
};

static struct blocks *blocks_make(const struct block_layout *l, size_t rows, size_t cols, struct block_row *at)
{
    size_t supers = rows * (cols / (size_t)l->elements), groups = rows * (cols / (size_t)l->group);
    size_t floats = supers * (l->super_min ? 2 : 1), bytes = groups * ((l->sub_scale ? 1 : 0) + (l->sub_min ? 1 : 0));
    struct blocks *b = mem_try_alloc(sizeof *b + floats * sizeof *b->floats + rows * cols + bytes);
    if (!b) return NULL;
    uint8_t *code = (uint8_t *)(b->floats + floats), *subs = code + rows * cols;
    *at = (struct block_row){code, b->floats, l->super_min ? b->floats + supers : NULL, NULL, NULL};
    if (l->sub_scale) at->sub_scale = (int8_t *)subs;
    if (l->sub_min) at->sub_min = subs + groups;
    b->form = (struct weight_block){.bits = l->bits,
                                    .value = l->value,
                                    .group = l->group,
                                    .super = l->elements,
                                    .sub_scale = at->sub_scale,
                                    .super_scale = at->super_scale,
                                    .sub_min = at->sub_min,
                                    .super_min = at->super_min};
    return b;
}

static void *to_block(const struct tensor *t, struct weight_src *src)
{
    const struct block_layout *l = gguf_block_layout((enum ggml_type)t->form->blocks);
    size_t cols = (size_t)src->cols, supers = cols / (size_t)l->elements, groups = cols / (size_t)l->group;
    struct block_row at;
    struct blocks *b = blocks_make(l, (size_t)src->rows, cols, &at);
    if (!b) return NULL;
    src->t = DT_BLOCK, src->data = at.code, src->block = &b->form;
    for (int r = 0; r < src->rows; r++) {
        gguf_decode_row((enum ggml_type)t->form->blocks, stored_row(t, r), (int)supers, at);
        at.code += cols;
        at.super_scale += supers;
        if (l->super_min) at.super_min += supers;
        if (l->sub_scale) at.sub_scale += groups;
        if (l->sub_min) at.sub_min += groups;
    }
    return b;
}

/* Q4_0 is DT_I4 in groups of 32 but for the order of the nibbles. */
static void *to_int4(const struct tensor *t, struct weight_src *src)
{
    enum { GROUP = 32, BYTES = 18 };
    size_t groups = (size_t)src->cols / GROUP, all = groups * (size_t)src->rows;
    uint8_t *out = mem_try_alloc(all * BYTES);
    if (!out) return NULL;
    src->t = DT_I4, src->group = GROUP, src->data = out, src->scale = out + all * GROUP / 2;
    for (size_t i = 0; i < all; i++) {
        const uint8_t *b = stored_row(t, (int)(i / groups)) + i % groups * BYTES, *q = b + 2;
        memcpy((uint8_t *)(uintptr_t)src->scale + 2 * i, b, 2);
        for (int k = 0; k < GROUP / 2; k++) {
            int first = q[2 * k % 16] >> 2 * k / 16 * 4 & 15, second = q[(2 * k + 1) % 16] >> 2 * k / 16 * 4 & 15;
            out[i * GROUP / 2 + (size_t)k] = (uint8_t)(first | second << 4);
        }
    }
    return out;
}

/* ---- floats ------------------------------------------------------------------------------------------------------ */

/* Floats of the file's type. */
static void *rows_in_order(const struct tensor *t)
{
    size_t row_bytes = t->bytes / (size_t)t->dims[0];
    char *out = mem_try_alloc(t->bytes);
    for (int r = 0; out && r < t->dims[0]; r++)
        memcpy(out + (size_t)r * row_bytes, (const char *)t->data + (size_t)row_in(t, r) * row_bytes, row_bytes);
    return out;
}

int gguf_matrix(const struct tensor *t, const struct matrix_slot *slot, struct weight_src *src, void **owned,
                struct err *e)
{
    enum dtype type = tensor_float_type(t->type);
    bool transposed = slot->transposed && !t->form->outputs_first;
    if (transposed || t->n_dims != 2 || t->dims[0] != slot->rows || t->dims[1] != slot->cols)
        return err_set(e, ERR_INVALID, "tensor %s: shape is not [%d, %d] as config.json says", slot->name, slot->rows,
                       slot->cols);
    *src = (struct weight_src){.t = type, .rows = slot->rows, .cols = slot->cols};
    if (type != DT_NONE)
        src->data = *owned = rows_in_order(t);
    else
        *owned = t->form->blocks == GGML_Q4_0 ? to_int4(t, src) : to_block(t, src);
    return *owned ? 0 : err_set(e, ERR_NOMEM, "no memory for tensor %s", slot->name);
}
