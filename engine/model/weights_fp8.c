#include "engine/model/weights_fp8.h"

#include "engine/base/mem.h"
#include "engine/model/stored_parts.h"

enum { F8_GROUPS = 16 }; /* groups of DT_F8 are multiples of it */

bool fp8_is_quantized(const struct tensor_source *f, const char *name)
{
    const struct tensor *t = tensor_source_find(f, name);
    return t && t->type == TENSOR_F8_E4M3;
}

/* Where the scales are, and the block that shares one. */
struct scales {
    const struct tensor *t;
    int rows, cols;      /* of a block */
    size_t across, down; /* blocks in a row and in a column of the matrix */
};

static int find_scales(const struct tensor_source *f, const struct quant_config *q, const struct matrix_slot *slot,
                       struct scales *s, struct err *e)
{
    s->t = stored_part(f, slot->name, ".weight_scale_inv");
    if (!s->t) s->t = stored_part(f, slot->name, ".weight_scale");
    if (!s->t || tensor_float_type(s->t->type) == DT_NONE)
        return err_set(e, s->t ? ERR_UNSUPPORTED : ERR_NOT_FOUND,
                       "tensor %s needs a weight_scale or weight_scale_inv of floats", slot->name);
    int64_t d0 = s->t->n_dims > 0 ? s->t->dims[0] : 1, d1 = s->t->n_dims > 1 ? s->t->dims[1] : 1;
    s->rows = d0 == 1 ? slot->rows : d0 == slot->rows ? 1 : q->block[0];
    s->cols = d1 == 1 ? slot->cols : q->block[1];
    if (s->rows < 1 || s->cols < 1)
        return err_set(e, ERR_INVALID, "tensor %s: for scales of blocks config.json must have weight_block_size",
                       s->t->name);
    s->down = (size_t)(slot->rows - 1) / (size_t)s->rows + 1;
    s->across = (size_t)(slot->cols - 1) / (size_t)s->cols + 1;
    if (s->t->n_dims > 2 || (size_t)d0 != s->down || (size_t)d1 != s->across)
        return err_set(e, ERR_INVALID, "tensor %s: shape is not [%zu, %zu], one scale for each block of [%d, %d]",
                       s->t->name, s->down, s->across, s->rows, s->cols);
    return 0;
}

static int check_codes(const struct tensor *t, struct err *e)
{
    const uint8_t *code = t->data;
    for (size_t i = 0; i < t->bytes; i++)
        if ((code[i] & 0x7f) == 0x7f) return err_set(e, ERR_INVALID, "tensor %s: element %zu is NaN", t->name, i);
    return 0;
}

/* The scales of each row; the codes stay in the file. */
static float *row_scales(const struct matrix_slot *slot, const struct scales *s)
{
    size_t rows = (size_t)slot->rows;
    float *scale = mem_try_alloc(rows * s->across * sizeof *scale);
    for (size_t r = 0; scale && r < rows; r++)
        for (size_t b = 0; b < s->across; b++)
            scale[r * s->across + b] = tensor_element(s->t, r / (size_t)s->rows * s->across + b);
    return scale;
}

static float *values(const struct matrix_slot *slot, const struct tensor *t, const struct scales *s)
{
    float *w = mem_try_alloc((size_t)slot->rows * (size_t)slot->cols * sizeof *w);
    const uint8_t *codes = t->data;
    for (int r = 0; w && r < slot->rows; r++)
        for (int k = 0; k < slot->cols; k++) {
            size_t i = (size_t)r * (size_t)slot->cols + (size_t)k;
            w[i] =
                e4m3_to_f32(codes[i]) * tensor_element(s->t, (size_t)(r / s->rows) * s->across + (size_t)(k / s->cols));
        }
    return w;
}

int fp8_matrix(const struct tensor_source *f, const struct quant_config *q, const struct matrix_slot *slot,
               struct weight_src *src, void **owned, struct err *e)
{
    const struct tensor *t = NULL;
    struct scales s = {0};
    float scale;
    *owned = NULL;
    int rc = stored_part_find(f, slot->name, ".weight", TENSOR_F8_E4M3, slot->rows, slot->cols, &t, e);
    if (!rc && slot->transposed) rc = err_set(e, ERR_UNSUPPORTED, "tensor %s: a quantised Conv1D", t->name);
    if (!rc) rc = find_scales(f, q, slot, &s, e);
    for (size_t i = 0; !rc && i < s.down * s.across; i++) rc = stored_part_float(s.t, i, &scale, e);
    if (!rc) rc = check_codes(t, e);
    if (rc) return rc;
    int group = s.across == 1 ? 0 : s.cols;
    bool packed = group % F8_GROUPS == 0;
    if (!(*owned = packed ? row_scales(slot, &s) : values(slot, t, &s)))
        return err_set(e, ERR_NOMEM, "no memory for tensor %s", slot->name);
    *src = (struct weight_src){.t = DT_F32, .rows = slot->rows, .cols = slot->cols, .data = *owned};
    if (packed) src->t = DT_F8, src->group = group, src->data = t->data, src->scale = *owned;
    return 0;
}
