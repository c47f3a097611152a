#include "engine/model/weights_read.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/model/calibrate.h"
#include "engine/model/fused_experts.h"
#include "engine/model/weights_bnb.h"
#include "engine/model/weights_compressed.h"
#include "engine/model/weights_fp8.h"
#include "engine/model/weights_gguf.h"
#include "engine/model/weights_gptq.h"
#include "engine/model/weights_unify.h"
#include "kernels/block.h"

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

int weights_matrix(const struct tensor_source *f, const struct quant_config *q, const struct matrix_slot *slot,
                   struct weight_src *src, void **owned, struct err *e)
{
    *owned = NULL;
    if (bnb_is_quantized(f, slot->name)) return bnb_matrix(f, slot, src, owned, e);
    if (gptq_is_quantized(f, slot->name)) return gptq_matrix(f, q, slot, src, owned, e);
    if (compressed_is_quantized(f, slot->name)) return compressed_matrix(f, slot, src, owned, e);
    if (fp8_is_quantized(f, slot->name)) return fp8_matrix(f, q, slot, src, owned, e);
    const struct tensor *t = tensor_source_find(f, slot->name);
    if (t && t->form && t->form->slice) return fused_matrix(t, slot, src, owned, e);
    if (t && t->form) return gguf_matrix(t, slot, src, owned, e);
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

static int read_part(const struct tensors *t, const struct matrix_slot *slot, const struct quantize_fit *fit,
                     int threads, struct weight_src *src, void *owned[2], struct err *e)
{
    int rc = weights_matrix(t->source, &t->c->quant, slot, src, &owned[0], e);
    if (!rc && src->t == DT_F8 && fit->type != DT_NONE)
        rc = weights_unify(src, 1, true, owned, e); /* to be quantised */
    bool is_float = src->t == DT_F32 || src->t == DT_BF16 || src->t == DT_F16;
    bool left = fit->type == DT_NONE || (fit->type == DT_NF4 && slot->head); /* like bitsandbytes */
    const struct tensor *stored = tensor_source_find(t->source, slot->name);
    if (!rc && !left && stored && stored->form && stored->form->blocks >= 0)
        return err_set(e, ERR_INVALID, "tensor %s is quantised in the GGUF file already; leave --quantize out",
                       slot->name);
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

static int stored_by_head(const struct tensors *t, const struct matrix_slot *slot)
{
    const struct tensor *stored = slot->by_head ? tensor_source_find(t->source, slot->name) : NULL;
    return stored && stored->form && !gguf_by_head(stored) ? 0 : slot->by_head;
}

int weights_parts(const struct tensors *t, const struct stack *m, const struct quantize_how *how, int threads,
                  struct parts *out, struct err *e)
{
    struct quantize_fit fit = {how->type, how->nearest, calibration_feedback(how->calibration, m->gemm)};
    bool floats = false;
    int rc = 0;
    if (m->floats) fit.type = DT_NONE;
    *out = (struct parts){0};
    for (int i = 0; i < m->n && !rc; i++) {
        rc = read_part(t, &m->part[i], &fit, threads, &out->src[i], out->owned[i], e);
        out->n = i + 1;
        floats |= !rc && m->expert && out->src[i].t == DT_BLOCK && out->src[i].block->order; /* see weight_block */
    }
    void *first[STACK_MAX];
    for (int i = 0; i < m->n; i++) first[i] = out->owned[i][0];
    if (!rc) rc = weights_unify(out->src, m->n, floats, first, e);
    for (int i = 0; i < m->n; i++) {
        out->owned[i][0] = first[i];
        out->src[i].gate_up = m->gate_up;
        out->by_head[i] = stored_by_head(t, &m->part[i]);
    }
    return rc;
}

void weights_parts_free(struct parts *p)
{
    for (int i = 0; i < p->n; i++) free(p->owned[i][0]), free(p->owned[i][1]);
    *p = (struct parts){0};
}

/* The bytes of one row's data and scales in a matrix in canonical form. */
static void row_bytes(const struct weight_src *s, size_t *data, size_t *scale)
{
    size_t cols = (size_t)s->cols, groups = s->group ? (cols + (size_t)s->group - 1) / (size_t)s->group : 1;
    *data = s->t == DT_I8    ? cols
            : s->t == DT_I4  ? groups * (size_t)s->group / 2
            : s->t == DT_NF4 ? cols / 2
                             : dtype_bytes(s->t, cols);
    *scale = !s->scale ? 0 : groups * (s->t == DT_I4 ? sizeof(uint16_t) : sizeof(float));
}

/* The rows from `row` on. */
static struct weight_src rows_from(struct weight_src s, int row)
{
    size_t data, scale;
    row_bytes(&s, &data, &scale);
    s.data = (const char *)s.data + (size_t)row * data;
    if (s.scale) s.scale = (const char *)s.scale + (size_t)row * scale;
    s.rows -= row;
    return s;
}

/* The rows in the stack's order.  *owned gets memory to free.  @return false: out of memory. */
static bool rows_by_part(struct weight_src *s, int heads, char **owned)
{
    size_t data, scale, rows = (size_t)s->rows;
    row_bytes(s, &data, &scale);
    size_t first_scale = (rows * data + sizeof(float) - 1) / sizeof(float) * sizeof(float);
    char *to = *owned = mem_try_alloc(first_scale + rows * scale);
    if (!to) return false;
    char *to_scale = to + first_scale;
    for (int i = 0; i < s->rows; i++) {
        size_t at = (size_t)tensors_stored_row(heads, s->rows, i), row = (size_t)i;
        memcpy(to + row * data, (const char *)s->data + at * data, data);
        if (scale) memcpy(to_scale + row * scale, (const char *)s->scale + at * scale, scale);
    }
    s->data = to;
    if (s->scale) s->scale = to_scale;
    return true;
}

/* The arrays of the same matrix's block form from that row on. */
static struct weight_block block_from(const struct weight_src *s, int row)
{
    struct weight_block b = *s->block;
    size_t groups = (size_t)row * (size_t)block_groups(s), supers = (size_t)row * (size_t)block_supers(s);
    b.super_scale += supers;
    if (b.super_min) b.super_min += supers;
    if (b.sub_scale) b.sub_scale += groups;
    if (b.sub_min) b.sub_min += groups;
    return b;
}

int weights_halves(const struct weight_src *src, int n, struct halves *out)
{
    memcpy(out->src, src, (size_t)n * sizeof *src);
    if (n != 1 || !src->gate_up) return n;
    out->src[0].rows = src->rows / 2;
    out->src[1] = rows_from(*src, src->rows / 2);
    if (src->t != DT_BLOCK) return 2;
    out->lower = block_from(src, src->rows / 2);
    out->src[1].block = &out->lower;
    return 2;
}

/* The pieces of n matrices that are stacked, to out; `block` is where their block forms are.  @return their number */
static int take_pieces(const struct weight_src *src, int n, const struct shard_piece *piece, int pieces,
                       struct weight_src *out, struct weight_block *block)
{
    for (int i = 0; i < pieces; i++) {
        int from = piece[i].from, k = 0;
        while (k < n - 1 && from >= src[k].rows) from -= src[k++].rows;
        CHECK(from + piece[i].n <= src[k].rows);
        out[i] = rows_from(src[k], from);
        out[i].rows = piece[i].n;
        if (src[k].t != DT_BLOCK) continue;
        block[i] = block_from(&src[k], from);
        out[i].block = &block[i];
    }
    return pieces;
}

struct weight *weights_pack(struct dev *d, struct parts *p)
{
    return weights_pack_pieces(d, p, NULL, 0);
}

struct weight *weights_pack_pieces(struct dev *d, struct parts *p, const struct shard_piece *piece, int pieces)
{
    struct weight_src part[STACK_MAX] = {0};
    struct halves h;
    void *first[STACK_MAX];
    char *owned[STACK_MAX] = {NULL};
    bool floats = false;
    for (int i = 0; i < p->n; i++) {
        first[i] = p->owned[i][0];
        floats |= p->src[i].t == DT_BLOCK && p->by_head[i]; /* a form whose rows cannot change their order */
    }
    bool ok = weights_unify(p->src, p->n, floats, first, NULL) == 0;
    for (int i = 0; i < p->n; i++) {
        p->owned[i][0] = first[i];
        part[i] = p->src[i];
        if (p->by_head[i] && ok) ok = rows_by_part(&part[i], p->by_head[i], &owned[i]);
    }
    struct weight_src own[SHARD_PIECES];
    struct weight_block block[SHARD_PIECES];
    struct weight *w = NULL;
    if (ok) {
        int n = weights_halves(part, p->n, &h);
        if (pieces) n = take_pieces(h.src, n, piece, pieces, own, block);
        w = d->ops->weight_pack(d, pieces ? own : h.src, n);
    }
    for (int i = 0; i < p->n; i++) free(owned[i]);
    return w;
}
