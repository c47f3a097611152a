#include "engine/model/weights_gptq.h"

#include "engine/model/stored_ints.h"
#include "engine/model/stored_parts.h"

#include <stdlib.h>

/* The output of AWQ's code i of a word. */
static const int awq_order[8] = {0, 2, 4, 6, 1, 3, 5, 7};

bool gptq_is_quantized(const struct tensor_source *f, const char *name)
{
    return stored_part(f, name, ".qweight") != NULL;
}

/* Sets bits and the number of groups from the shapes of X.qweight and X.scales. */
static int read_shape(const struct tensor_source *f, const struct quant_config *q, const struct matrix_slot *slot,
                      int *bits, int *groups, struct err *e)
{
    const struct tensor *w = stored_part(f, slot->name, ".qweight"), *s = stored_part(f, slot->name, ".scales");
    if (w->n_dims != 2) return err_set(e, ERR_INVALID, "tensor %s: not two dimensions", w->name);
    *bits = 4;
    if (q->method == QUANT_GPTQ) {
        int64_t words = w->dims[0];
        *bits = words > 0 && words <= slot->cols && 32 * words % slot->cols == 0 ? (int)(32 * words / slot->cols) : 0;
        if (*bits != 2 && *bits != 4 && *bits != 8)
            return err_set(e, *bits == 3 ? ERR_UNSUPPORTED : ERR_INVALID,
                           "tensor %s: %lld words for %d inputs are not codes of 2, 4 or 8 bits", w->name,
                           (long long)words, slot->cols);
    }
    if (slot->rows % (32 / *bits) || slot->cols % (32 / *bits))
        return err_set(e, ERR_INVALID, "tensor %s: %d outputs and %d inputs do not fill words of 32 bits", w->name,
                       slot->rows, slot->cols);
    if (!s || s->n_dims != 2 || s->dims[0] < 1 || s->dims[0] > slot->cols || tensor_float_type(s->type) == DT_NONE)
        return err_set(e, s ? ERR_INVALID : ERR_NOT_FOUND, "tensor %s needs floats X.scales of two dimensions",
                       w->name);
    *groups = (int)s->dims[0];
    return 0;
}

/* Scales and zero points; the file has the outputs side by side, here are the groups of an output. */
static int read_groups(const struct tensor_source *f, const struct quant_config *q, const struct matrix_slot *slot,
                       struct stored_ints *m, struct err *e)
{
    const struct tensor *scales = stored_part(f, slot->name, ".scales"), *zeros = NULL;
    int per = 32 / m->bits, rows = m->rows;
    uint32_t mask = (1u << m->bits) - 1;
    int rc = stored_part_find(f, slot->name, ".scales", scales->type, m->groups, rows, &scales, e);
    if (!rc) rc = stored_part_find(f, slot->name, ".qzeros", TENSOR_I32, m->groups, rows / per, &zeros, e);
    for (int g = 0; g < m->groups && !rc; g++)
        for (int r = 0; r < rows && !rc; r++) {
            size_t to = (size_t)r * (size_t)m->groups + (size_t)g;
            rc = stored_part_float(scales, (size_t)g * (size_t)rows + (size_t)r, &m->scale[to], e);
        }
    for (int g = 0; g < m->groups && !rc; g++)
        for (int j = 0; j < rows / per; j++) {
            uint32_t word = stored_word(zeros, (size_t)g * (size_t)(rows / per) + (size_t)j);
            for (int i = 0; i < per; i++) {
                int r = j * per + (q->method == QUANT_AWQ ? awq_order[i] : i);
                uint32_t zero = (word >> (i * m->bits)) + (q->zero_less_one ? 1 : 0);
                m->zero[(size_t)r * (size_t)m->groups + (size_t)g] = (uint8_t)(zero & mask);
            }
        }
    return rc;
}

enum {
    TILE = 64
}; /* outputs: their codes of a few inputs stay in the cache while the file's words are read in order */

static void read_gptq(const struct tensor *w, struct stored_ints *m)
{
    int per = 32 / m->bits;
    uint32_t mask = (1u << m->bits) - 1;
    for (int r0 = 0; r0 < m->rows; r0 += TILE)
        for (int j = 0; j < m->cols / per; j++)
            for (int r = r0; r < m->rows && r < r0 + TILE; r++) {
                uint32_t word = stored_word(w, (size_t)j * (size_t)m->rows + (size_t)r);
                uint8_t *out = m->code + (size_t)r * (size_t)m->cols + (size_t)(j * per);
                for (int i = 0; i < per; i++) out[i] = (uint8_t)(word >> (i * m->bits) & mask);
            }
}

static void read_awq(const struct tensor *w, struct stored_ints *m)
{
    int words = m->rows / 8;
    for (int j0 = 0; j0 < words; j0 += TILE / 8)
        for (int k = 0; k < m->cols; k++)
            for (int j = j0; j < words && j < j0 + TILE / 8; j++) {
                uint32_t word = stored_word(w, (size_t)k * (size_t)words + (size_t)j);
                for (int i = 0; i < 8; i++)
                    m->code[(size_t)(8 * j + awq_order[i]) * (size_t)m->cols + (size_t)k] =
                        (uint8_t)(word >> 4 * i & 15);
            }
}

int gptq_matrix(const struct tensor_source *f, const struct quant_config *q, const struct matrix_slot *slot,
                struct weight_src *src, void **owned, struct err *e)
{
    struct stored_ints m = {0};
    const struct tensor *w = NULL;
    int32_t *group_of = NULL;
    int bits = 0, groups = 0;
    *owned = NULL;
    if (q->method != QUANT_GPTQ && q->method != QUANT_AWQ)
        return err_set(e, ERR_INVALID, "tensors of GPTQ or AWQ beside %s, which config.json does not name", slot->name);
    int rc = read_shape(f, q, slot, &bits, &groups, e);
    int64_t d0 = q->method == QUANT_AWQ ? slot->cols : (int64_t)slot->cols * bits / 32,
            d1 = q->method == QUANT_AWQ ? slot->rows / 8 : slot->rows;
    if (!rc) rc = stored_part_find(f, slot->name, ".qweight", TENSOR_I32, d0, d1, &w, e);
    if (!rc && slot->transposed) rc = err_set(e, ERR_UNSUPPORTED, "tensor %s: a quantised Conv1D", w->name);
    if (!rc) rc = stored_ints_make(&m, slot->rows, slot->cols, bits, groups, e);
    if (!rc) rc = stored_part_groups(f, slot->name, ".g_idx", slot->cols, groups, &group_of, e);
    if (!rc) rc = read_groups(f, q, slot, &m, e);
    if (!rc) {
        (q->method == QUANT_AWQ ? read_awq : read_gptq)(w, &m);
        m.group_of = group_of;
        rc = stored_ints_matrix(&m, src, owned, e);
    }
    stored_ints_free(&m);
    free(group_of);
    return rc;
}
