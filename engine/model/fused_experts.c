#include "engine/model/fused_experts.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/model/gguf_blocks.h"
#include "engine/model/tensor_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MX_GROUP = 32, MX_BYTES = MX_GROUP / 2, MX_NAN = 255 };

/* ---- the source -------------------------------------------------------------------------------------------------- */

struct slice_form {
    struct tensor_form form;
    struct expert_slice slice;
};

/* The biases of a layer's experts in another order than the file's. */
struct copy {
    char *p;
    size_t n;
};

struct fused {
    struct tensor_list list; /* owns the names */
    struct tensor_source *inner;
    struct slice_form **forms;
    struct copy *copies;
    size_t n_forms, cap_forms, n_copies, cap_copies;
};

static const char *source_metadata(const struct tensor_source *source, const char *key)
{
    return tensor_source_metadata(((const struct fused *)source)->inner, key);
}

static int source_verify(const struct tensor_source *source, struct err *e)
{
    return tensor_source_verify(((const struct fused *)source)->inner, e);
}

static bool is_copy(const struct fused *s, const struct tensor *t)
{
    uintptr_t p = (uintptr_t)t->data;
    for (size_t i = 0; i < s->n_copies; i++)
        if (p >= (uintptr_t)s->copies[i].p && p < (uintptr_t)s->copies[i].p + s->copies[i].n) return true;
    return false;
}

static int source_populate(const struct tensor_source *source, const struct tensor *t, struct err *e)
{
    const struct fused *s = (const struct fused *)source;
    return is_copy(s, t) ? 0 : tensor_source_populate(s->inner, t, e);
}

static void source_release(const struct tensor_source *source, const struct tensor *t)
{
    const struct fused *s = (const struct fused *)source;
    if (!is_copy(s, t)) tensor_source_release(s->inner, t);
}

static void source_close(struct tensor_source *source)
{
    struct fused *s = (struct fused *)source;
    for (size_t i = 0; i < s->list.n; i++) free(s->list.v[i].name);
    for (size_t i = 0; i < s->n_forms; i++) free(s->forms[i]);
    for (size_t i = 0; i < s->n_copies; i++) free(s->copies[i].p);
    free(s->list.v);
    free(s->forms);
    free(s->copies);
    tensor_source_close(s->inner);
    free(s);
}

static const struct tensor_source_ops source_ops = {
    .count = tensor_list_count,
    .at = tensor_list_at,
    .find = tensor_list_find,
    .metadata = source_metadata,
    .verify = source_verify,
    .populate = source_populate,
    .release = source_release,
    .close = source_close,
};

/* ---- names ------------------------------------------------------------------------------------------------------- */

enum what { MATRIX, BIAS, BLOCKS, SCALES };

/* The kinds of fused tensors, by the ends of their names. */
static const struct kind {
    const char *end;
    bool gate_up;
    enum what what;
} kinds[] = {
    {"gate_up_proj", true, MATRIX},        {"gate_up_proj_bias", true, BIAS},   {"gate_up_proj_blocks", true, BLOCKS},
    {"gate_up_proj_scales", true, SCALES}, {"down_proj", false, MATRIX},        {"down_proj_bias", false, BIAS},
    {"down_proj_blocks", false, BLOCKS},   {"down_proj_scales", false, SCALES},
};

static const char experts[] = ".experts.";

/* The kind of a tensor of that name; NULL: not fused.  *prefix: the length of "X.experts.". */
static const struct kind *kind_of(const char *name, size_t *prefix)
{
    size_t n = strlen(name), before = sizeof experts - 1;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t end = strlen(kinds[i].end);
        if (n < before + end || strcmp(name + n - end, kinds[i].end)) continue;
        *prefix = n - end;
        if (memcmp(name + *prefix - before, experts, before) == 0) return &kinds[i];
    }
    return NULL;
}

/* ---- slices ------------------------------------------------------------------------------------------------------ */

/* A fused tensor and what the configuration says of it. */
struct part {
    const struct tensor *t;
    const struct kind *kind;
    size_t prefix;      /* of the name */
    int64_t rows, cols; /* of all its matrices of one expert together, outputs and inputs */
    int experts;
    bool transposed, interleaved;
};

static struct part part_of(const struct model_config *c, const struct tensor *t, const struct kind *kind, size_t prefix)
{
    struct block_experts x = model_experts(c);
    unsigned fused = c->family->tensors->fused;
    return (struct part){.t = t,
                         .kind = kind,
                         .prefix = prefix,
                         .rows = kind->gate_up ? 2 * x.inter : c->hidden,
                         .cols = kind->gate_up ? c->hidden : x.inter,
                         .experts = x.count,
                         .transposed = kind->what == MATRIX && fused & FUSED_TRANSPOSED,
                         .interleaved = kind->gate_up && fused & FUSED_INTERLEAVED};
}

static int check_shape(const struct tensor *t, int n, const int64_t *dims, struct err *e)
{
    char shape[96];
    int at = 0;
    if (t->n_dims == n && memcmp(t->dims, dims, (size_t)n * sizeof *dims) == 0) return 0;
    for (int i = 0; i < n; i++)
        at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%lld", i ? ", " : "", (long long)dims[i]);
    return err_set(e, ERR_INVALID, "tensor %.100s: shape is not [%s] as config.json says", t->name, shape);
}

static int check_floats(const struct tensor *t, int n, const int64_t *dims, struct err *e)
{
    if (tensor_float_type(t->type) == DT_NONE)
        return err_set(e, ERR_UNSUPPORTED, "tensor %.100s: type %s is not F32, F16 or BF16", t->name,
                       tensor_type_name(t->type));
    return check_shape(t, n, dims, e);
}

static int check_bytes(const struct tensor *t, int n, const int64_t *dims, struct err *e)
{
    if (t->type != TENSOR_U8)
        return err_set(e, ERR_INVALID, "tensor %.100s: type %s, not U8", t->name, tensor_type_name(t->type));
    return check_shape(t, n, dims, e);
}

/* The scales of blocks, checked. */
static int find_scales(const struct fused *s, const struct part *p, const uint8_t **out, struct err *e)
{
    char name[TENSOR_NAME_MAX + 16];
    int64_t dims[] = {p->experts, p->rows, p->cols / MX_GROUP};
    snprintf(name, sizeof name, "%.*s%s_scales", (int)p->prefix, p->t->name,
             p->kind->gate_up ? "gate_up_proj" : "down_proj");
    const struct tensor *t = tensor_source_find(s->inner, name);
    if (!t) return err_set(e, ERR_NOT_FOUND, "tensor %.140s is missing", name);
    int rc = check_bytes(t, 3, dims, e);
    if (!rc) rc = tensor_source_populate(s->inner, t, e);
    const uint8_t *nan = rc ? NULL : memchr(t->data, MX_NAN, t->bytes);
    *out = t->data;
    if (!nan) return rc;
    return err_set(e, ERR_INVALID, "tensor %.100s: scale %zu is no number", t->name, (size_t)(nan - *out));
}

/* The tensor X.experts.N.gate_proj.weight or the like; the caller fills in the rest. */
static struct tensor *add(struct fused *s, const struct part *p, int expert, bool second, const char *suffix)
{
    char name[TENSOR_NAME_MAX + 64];
    const char *module = !p->kind->gate_up ? "down_proj" : second ? "up_proj" : "gate_proj";
    snprintf(name, sizeof name, "%.*s%d.%s%s", (int)p->prefix, p->t->name, expert, module, suffix);
    mem_grow(&s->list.v, &s->list.cap, s->list.n + 1, sizeof *s->list.v);
    struct tensor *t = &s->list.v[s->list.n++];
    *t = (struct tensor){.name = mem_strdup(name), .type = p->t->type};
    return t;
}

/* The form of an expert's matrix that is no range of the tensor; scales: the expert's, or NULL. */
static const struct tensor_form *add_form(struct fused *s, const struct part *p, bool second, const uint8_t *scales)
{
    struct slice_form *f = mem_zalloc(sizeof *f);
    mem_grow(&s->forms, &s->cap_forms, s->n_forms + 1, sizeof *s->forms);
    s->forms[s->n_forms++] = f;
    f->slice = (struct expert_slice){.first = !second          ? 0
                                              : p->interleaved ? 1
                                                               : (size_t)p->rows / 2,
                                     .step = p->interleaved ? 2 : 1,
                                     .stored = (size_t)p->rows,
                                     .transposed = p->transposed,
                                     .scales = scales};
    f->form = (struct tensor_form){.blocks = -1, .slice = &f->slice};
    return &f->form;
}

static int add_matrices(struct fused *s, const struct part *p, struct err *e)
{
    bool blocks = p->kind->what == BLOCKS;
    int64_t dims[] = {p->experts, p->transposed ? p->cols : p->rows, p->transposed ? p->rows : p->cols};
    int64_t stored[] = {p->experts, p->rows, p->cols / MX_GROUP, MX_BYTES};
    const uint8_t *scales = NULL;
    if (blocks && p->cols % MX_GROUP)
        return err_set(e, ERR_INVALID, "tensor %.100s: rows of %lld are not groups of %d", p->t->name,
                       (long long)p->cols, MX_GROUP);
    int rc = blocks ? check_bytes(p->t, 4, stored, e) : check_floats(p->t, 3, dims, e);
    if (!rc && blocks) rc = find_scales(s, p, &scales, e);
    if (rc) return rc;
    int parts = p->kind->gate_up ? 2 : 1;
    size_t groups = (size_t)(p->rows * p->cols / MX_GROUP); /* of an expert */
    size_t rows = (size_t)(p->rows / parts),
           row = blocks ? (size_t)p->cols / 2 : tensor_type_bytes(p->t->type) * (size_t)p->cols;
    for (int i = 0; i < p->experts * parts; i++) {
        int expert = i / parts, second = i % parts;
        struct tensor *t = add(s, p, expert, second, ".weight");
        const char *data = (const char *)p->t->data + (size_t)expert * (size_t)p->rows * row;
        t->n_dims = 2, t->dims[0] = (int64_t)rows, t->dims[1] = p->cols;
        if (!blocks && !p->transposed && !p->interleaved) {
            t->data = data + (size_t)second * rows * row;
            t->bytes = rows * row;
            continue;
        }
        t->form = add_form(s, p, second, blocks ? scales + (size_t)expert * groups : NULL);
        t->data = data;
        t->bytes = (size_t)p->rows * row; /* all of the expert's */
        if (blocks) t->type = TENSOR_OTHER;
    }
    return 0;
}

static int add_biases(struct fused *s, const struct part *p, struct err *e)
{
    int64_t dims[] = {p->experts, p->rows};
    int rc = check_floats(p->t, 2, dims, e), parts = p->kind->gate_up ? 2 : 1;
    if (!rc) rc = tensor_source_populate(s->inner, p->t, e);
    if (rc) return rc;
    size_t width = tensor_type_bytes(p->t->type), rows = (size_t)(p->rows / parts);
    const char *data = p->t->data;
    if (p->interleaved) {
        char *to = mem_try_alloc(p->t->bytes);
        if (!to) return err_set(e, ERR_NOMEM, "no memory for tensor %.100s", p->t->name);
        mem_grow(&s->copies, &s->cap_copies, s->n_copies + 1, sizeof *s->copies);
        s->copies[s->n_copies++] = (struct copy){to, p->t->bytes};
        for (size_t i = 0; i < (size_t)(p->experts * p->rows); i++) {
            size_t expert = i / (2 * rows), part = i / rows % 2, from = 2 * (expert * rows + i % rows) + part;
            memcpy(to + i * width, data + from * width, width);
        }
        data = to;
    }
    for (int i = 0; i < p->experts * parts; i++) {
        struct tensor *t = add(s, p, i / parts, i % parts, ".bias");
        t->n_dims = 1, t->dims[0] = (int64_t)rows;
        t->data = data + (size_t)i * rows * width;
        t->bytes = rows * width;
    }
    return 0;
}

static int add_tensor(struct fused *s, const struct model_config *c, const struct tensor *t, struct err *e)
{
    size_t prefix;
    const struct kind *kind = kind_of(t->name, &prefix);
    if (!kind) {
        mem_grow(&s->list.v, &s->list.cap, s->list.n + 1, sizeof *s->list.v);
        s->list.v[s->list.n] = *t;
        s->list.v[s->list.n++].name = mem_strdup(t->name);
        return 0;
    }
    struct part p = part_of(c, t, kind, prefix);
    switch (kind->what) {
    case BIAS: return add_biases(s, &p, e);
    case SCALES: return 0; /* read with the blocks */
    default: return add_matrices(s, &p, e);
    }
}

struct tensor_source *fused_experts_source(struct tensor_source *inner, const struct model_config *c, struct err *e)
{
    size_t n = tensor_source_count(inner), prefix;
    bool any = false;
    for (size_t i = 0; i < n && model_experts(c).count; i++)
        any |= kind_of(tensor_source_at(inner, i)->name, &prefix) != NULL;
    if (!any) return inner;
    struct fused *s = mem_zalloc(sizeof *s);
    s->list.source.ops = &source_ops;
    s->inner = inner;
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) rc = add_tensor(s, c, tensor_source_at(inner, i), e);
    tensors_sort(s->list.v, s->list.n);
    for (size_t i = 1; i < s->list.n && !rc; i++)
        if (strcmp(s->list.v[i - 1].name, s->list.v[i].name) == 0)
            rc = err_set(e, ERR_INVALID, "tensor %.140s is there fused and by itself", s->list.v[i].name);
    if (!rc) return &s->list.source;
    source_close(&s->list.source);
    return NULL;
}

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

/* `rows` outputs of `cols` inputs of `width` bytes.  Some outputs at a time, so that what is read and what is written
 * stay in the cache. */
static void gather_transposed(const struct expert_slice *s, const char *in, char *out, size_t rows, size_t cols,
                              size_t width)
{
    enum { TILE = 32 };
    for (size_t r0 = 0; r0 < rows; r0 += TILE)
        for (size_t k = 0; k < cols; k++)
            for (size_t r = r0; r < rows && r < r0 + TILE; r++)
                memcpy(out + (r * cols + k) * width, in + (k * s->stored + s->first + r * s->step) * width, width);
}

static void *gather(const struct tensor *t, size_t rows, size_t cols)
{
    const struct expert_slice *s = t->form->slice;
    size_t width = tensor_type_bytes(t->type), row = cols * width;
    char *out = mem_try_alloc(rows * row);
    if (out && s->transposed) gather_transposed(s, t->data, out, rows, cols, width);
    for (size_t r = 0; out && !s->transposed && r < rows; r++)
        memcpy(out + r * row, (const char *)t->data + (s->first + r * s->step) * row, row);
    return out;
}

/* One block of memory: the form, scales, codes. */
struct mx_matrix {
    struct weight_block form;
    float scale[];
};

static void *to_block(const struct tensor *t, struct weight_src *src)
{
    const struct expert_slice *s = t->form->slice;
    const struct block_layout *l = gguf_block_layout(GGML_MXFP4);
    size_t rows = (size_t)src->rows, cols = (size_t)src->cols, groups = cols / MX_GROUP;
    struct mx_matrix *m = mem_try_alloc(sizeof *m + rows * groups * sizeof(float) + rows * cols);
    if (!m) return NULL;
    uint8_t *code = (uint8_t *)(m->scale + rows * groups);
    for (size_t r = 0; r < rows; r++) {
        size_t from = s->first + r * s->step;
        const uint8_t *block = (const uint8_t *)t->data + from * cols / 2, *scale = s->scales + from * groups;
        for (size_t g = 0; g < groups; g++) m->scale[r * groups + g] = mxfp4_scale(scale[g]);
        for (size_t k = 0; k < cols; k++) code[r * cols + k] = block[k / 2] >> k % 2 * 4 & 15;
    }
    m->form = (struct weight_block){
        .bits = l->bits, .value = l->value, .group = MX_GROUP, .super = MX_GROUP, .super_scale = m->scale};
    src->t = DT_BLOCK, src->data = code, src->block = &m->form;
    return m;
}

bool fused_is_mxfp4(const struct tensor *t)
{
    return t->form && t->form->slice && t->form->slice->scales;
}

/* The stored blocks have the codes of neighbours in a byte, those of GGUF files codes that are half a block apart. */
void fused_mxfp4_row(const struct tensor *t, int r, uint8_t *out)
{
    const struct expert_slice *s = t->form->slice;
    size_t groups = (size_t)t->dims[1] / MX_GROUP, from = s->first + (size_t)r * s->step;
    const uint8_t *block = (const uint8_t *)t->data + from * groups * MX_BYTES, *scale = s->scales + from * groups;
    for (size_t g = 0; g < groups; g++, block += MX_BYTES) {
        *out++ = scale[g];
        for (int k = 0; k < MX_BYTES; k++) {
            int low = block[k / 2] >> k % 2 * 4 & 15, high = block[(k + MX_BYTES) / 2] >> k % 2 * 4 & 15;
            *out++ = (uint8_t)(low | high << 4);
        }
    }
}

int fused_matrix(const struct tensor *t, const struct matrix_slot *slot, struct weight_src *src, void **owned,
                 struct err *e)
{
    CHECK(t->dims[0] == slot->rows && t->dims[1] == slot->cols); /* of one configuration */
    *src = (struct weight_src){.t = tensor_float_type(t->type), .rows = slot->rows, .cols = slot->cols};
    if (t->form->slice->scales)
        *owned = to_block(t, src);
    else
        src->data = *owned = gather(t, (size_t)slot->rows, (size_t)slot->cols);
    return *owned ? 0 : err_set(e, ERR_NOMEM, "no memory for tensor %s", slot->name);
}
