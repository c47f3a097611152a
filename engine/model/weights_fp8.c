#include "engine/model/weights_fp8.h"

#include "engine/base/mem.h"
#include "engine/model/stored_parts.h"

#include <math.h>
#include <stdlib.h>

bool fp8_is_quantized(const struct tensor_source *f, const char *name)
{
    const struct tensor *t = tensor_source_find(f, name);
    return t && t->type == TENSOR_F8_E4M3;
}

/* e4m3: sign, 4 bits of exponent with bias 7, 3 of fraction; 0x7f and 0xff are NaN */
static float e4m3(uint8_t b)
{
    int exponent = b >> 3 & 15, fraction = b & 7;
    float v = exponent ? ldexpf((float)(8 + fraction), exponent - 10) : ldexpf((float)fraction, -9);
    if ((b & 0x7f) == 0x7f) v = NAN;
    return b & 0x80 ? -v : v;
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

int fp8_matrix(const struct tensor_source *f, const struct quant_config *q, const struct matrix_slot *slot,
               struct weight_src *src, void **owned, struct err *e)
{
    const struct tensor *t = NULL;
    struct scales s = {0};
    float value[256], scale;
    *owned = NULL;
    for (int b = 0; b < 256; b++) value[b] = e4m3((uint8_t)b);
    int rc = stored_part_find(f, slot->name, ".weight", TENSOR_F8_E4M3, slot->rows, slot->cols, &t, e);
    if (!rc && slot->transposed) rc = err_set(e, ERR_UNSUPPORTED, "tensor %s: a quantised Conv1D", t->name);
    if (!rc) rc = find_scales(f, q, slot, &s, e);
    for (size_t i = 0; !rc && i < s.down * s.across; i++) rc = stored_part_float(s.t, i, &scale, e);
    if (rc) return rc;
    float *w = mem_try_alloc((size_t)slot->rows * (size_t)slot->cols * sizeof *w);
    if (!w) return err_set(e, ERR_NOMEM, "no memory for tensor %s", slot->name);
    const uint8_t *codes = t->data;
    for (int r = 0; r < slot->rows; r++)
        for (int k = 0; k < slot->cols; k++) {
            size_t i = (size_t)r * (size_t)slot->cols + (size_t)k;
            w[i] = value[codes[i]] * tensor_element(s.t, (size_t)(r / s.rows) * s.across + (size_t)(k / s.cols));
        }
    *src = (struct weight_src){.t = DT_F32, .rows = slot->rows, .cols = slot->cols, .data = w};
    *owned = w;
    return 0;
}
