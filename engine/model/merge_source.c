#include "engine/model/merge_source.h"

#include "engine/base/check.h"
#include "engine/base/cpus.h"
#include "engine/base/mem.h"
#include "engine/model/fused_experts.h"
#include "engine/model/weights_gguf.h"
#include "engine/model/weights_read.h"
#include "engine/model/weights_unify.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS_MAX = 64, ROWS = 16 /* that a thread takes at once */ };

/* What is added to a matrix: scale * b * a.  b (rows, r) and a (r, cols) in the order of stored rows. */
struct delta {
    int r; /* 0: nothing */
    float scale;
    const float *a, *b;
};

struct item {
    struct tensor t;
    bool computed;
    struct matrix_slot slot; /* of a computed one */
    struct delta delta;
};

struct merged {
    struct tensor_list list; /* first; v[i] is item[i].t, without its data until it is populated */
    const struct tensor_source *base;
    struct merge_plan plan;
    float *owned[2]; /* of the embedding table's pair, transposed */
    struct item *item;
    size_t n, cap;
};

/* ---- what is changed --------------------------------------------------------------------------------------------- */

/* Rows [at, at + rows) of the GEMM that a stack is of. */
static struct delta delta_of(const struct adapter *a, int layer, enum layer_gemm gemm, int expert, int at, int rows)
{
    for (int i = 0; i < a->n_modules; i++) {
        const struct lora_module *m = &a->module[i];
        const struct lora_pair *p = &a->pair[layer * a->n_modules + i];
        if (!p->r || m->gemm != gemm || at < m->col || at + rows > m->col + m->n) continue;
        size_t r = (size_t)p->r, row = (size_t)expert * (size_t)m->n + (size_t)(at - m->col);
        return (struct delta){p->r, p->scale, p->a + (size_t)expert * r * (size_t)m->k, p->b + row * r};
    }
    return (struct delta){0};
}

static float *transposed(const float *in, size_t rows, size_t cols)
{
    float *out = mem_array(rows * cols, sizeof *out);
    for (size_t r = 0; r < rows; r++)
        for (size_t k = 0; k < cols; k++) out[k * rows + r] = in[r * cols + k];
    return out;
}

/* The head is a GEMM of its own; the table's rows are columns of its a. */
static struct delta delta_of_end(struct merged *s, const struct matrix_slot *slot)
{
    if (slot->head) return delta_of(s->plan.adapter, 0, GEMM_LM_HEAD, 0, 0, slot->rows);
    struct delta d = delta_of(s->plan.adapter, 0, GEMM_EMBEDDING, 0, 0, slot->cols);
    if (!d.r) return d;
    const float *a = d.a;
    d.a = s->owned[1] = transposed(d.b, (size_t)slot->cols, (size_t)d.r);
    d.b = s->owned[0] = transposed(a, (size_t)d.r, (size_t)slot->rows);
    return d;
}

/* The GEMM of stack i. @return its layer, or -1: it is none of a layer's */
static int layer_of(const struct model_config *c, int i, enum layer_gemm *gemm, int *expert)
{
    static const enum layer_gemm of_experts[] = {
        [EXPERT_ROUTER] = GEMM_ROUTER, [EXPERT_UP] = GEMM_EXPERT_UP, [EXPERT_DOWN] = GEMM_EXPERT_DOWN};
    struct expert_stack x = tensors_expert_stack(c, i);
    *expert = 0;
    if (x.layer >= 0) {
        *gemm = of_experts[x.gemm];
        *expert = x.gemm == EXPERT_ROUTER ? 0 : x.expert;
        return x.layer;
    }
    *gemm = (enum layer_gemm)(i % LAYER_GEMMS);
    return i < c->layers * LAYER_GEMMS ? i / LAYER_GEMMS : -1;
}

static struct item *add_item(struct merged *s)
{
    mem_grow(&s->item, &s->cap, s->n + 1, sizeof *s->item);
    struct item *item = &s->item[s->n++];
    *item = (struct item){.computed = false};
    return item;
}

static enum tensor_type type_of(const struct merged *s, const struct tensor *stored)
{
    if (s->plan.type != TENSOR_OTHER) return s->plan.type;
    return stored && tensor_float_type(stored->type) != DT_NONE ? stored->type : TENSOR_BF16;
}

/* The matrix of a slot, under a name that may be another than that of the tensor which it is read from. */
static void add_matrix(struct merged *s, const char *name, const struct matrix_slot *slot, struct delta delta)
{
    const struct tensor *stored = tensor_source_find(s->base, slot->name);
    struct item *item = add_item(s);
    int64_t rows = slot->rows, cols = slot->cols;
    item->computed = true;
    item->slot = *slot;
    item->delta = delta;
    item->t = (struct tensor){.name = mem_strdup(name),
                              .type = type_of(s, stored),
                              .n_dims = 2,
                              .dims = {slot->transposed ? cols : rows, slot->transposed ? rows : cols}};
    item->t.bytes = (size_t)rows * (size_t)cols * tensor_type_bytes(item->t.type);
}

/* Of a file whose experts are fused: all of them are computed where one is changed, so that their names are of one
 * kind. */
static bool is_computed(const struct merged *s, const struct matrix_slot *slot, const struct delta *d, bool experts)
{
    const struct tensor *stored = tensor_source_find(s->base, slot->name);
    bool slice = stored && stored->form && stored->form->slice;
    return d->r || s->plan.dequantise || (slice && experts);
}

static bool changes_experts(const struct adapter *a)
{
    for (int i = 0; i < a->layers * a->n_modules; i++)
        if (a->pair[i].r && a->module[i % a->n_modules].experts) return true;
    return false;
}

/* One matrix that is the head and the embedding table becomes two.  @return how many of them the adapter changes. */
static int add_ends(struct merged *s, const struct tensors *tensors, const struct matrix_slot *head)
{
    struct matrix_slot table = {.rows = head->rows, .cols = head->cols, .table = true};
    char head_name[TENSOR_NAME_MAX], table_name[TENSOR_NAME_MAX];
    tensors_head_name(tensors, head_name);
    tensors_embed_names(tensors, table.name, table_name);
    struct delta of_head = delta_of_end(s, head), of_table = delta_of_end(s, &table);
    add_matrix(s, head_name, head, of_head);
    add_matrix(s, table_name, &table, of_table);
    return (of_head.r > 0) + (of_table.r > 0);
}

static int add_matrices(struct merged *s)
{
    const struct model_config *c = s->plan.c;
    struct tensors tensors = tensors_of(c, s->base);
    bool experts = changes_experts(s->plan.adapter) || s->plan.untie;
    int stacks = tensors_stacks(c), changed = 0, expert;
    for (int i = 0; i < stacks; i++) {
        struct stack stack;
        enum layer_gemm gemm;
        int layer = layer_of(c, i, &gemm, &expert), at = 0;
        tensors_stack(&tensors, i, &stack);
        for (int k = 0; k < stack.n; at += stack.part[k++].rows) {
            const struct matrix_slot *slot = &stack.part[k];
            if (slot->head && s->plan.untie) {
                changed += add_ends(s, &tensors, slot);
                continue;
            }
            struct delta d =
                layer < 0 ? delta_of_end(s, slot) : delta_of(s->plan.adapter, layer, gemm, expert, at, slot->rows);
            changed += d.r > 0;
            if (is_computed(s, slot, &d, experts)) add_matrix(s, slot->name, slot, d);
        }
    }
    return changed;
}

static void add_stored(struct merged *s, const struct tensor *t)
{
    add_item(s)->t = *t;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct item *)a)->t.name, ((const struct item *)b)->t.name);
}

/* The vectors of a quantised base: what else its files hold is of its quantiser's. */
static void add_vectors(struct merged *s)
{
    struct tensors tensors = tensors_of(s->plan.c, s->base);
    int n = tensors_vectors(&tensors, NULL);
    struct vector_slot *v = mem_array((size_t)n, sizeof *v);
    tensors_vectors(&tensors, v);
    for (int i = 0; i < n; i++) {
        const struct tensor *t = tensor_source_find(s->base, v[i].name);
        if (t) add_stored(s, t);
    }
    free(v);
}

static void add_rest(struct merged *s)
{
    size_t computed = s->n;
    struct item *sorted = mem_array(computed + 1, sizeof *sorted);
    if (computed) memcpy(sorted, s->item, computed * sizeof *sorted);
    qsort(sorted, computed, sizeof *sorted, by_name);
    for (size_t i = 0; i < tensor_source_count(s->base); i++) {
        struct item key = {.t = *tensor_source_at(s->base, i)};
        if (!bsearch(&key, sorted, computed, sizeof *sorted, by_name)) add_stored(s, &key.t);
    }
    free(sorted);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

struct job {
    const struct item *item;
    const struct weight_src *src; /* floats of any type */
    const int *from;              /* the row of src that each stored row is; NULL: the same */
    char *out;
    atomic_int next;
    atomic_int bad; /* a row with a value that is not finite; -1: none */
};

static float element(const struct weight_src *s, size_t i)
{
    if (s->t == DT_F32) return ((const float *)s->data)[i];
    uint16_t h = ((const uint16_t *)s->data)[i];
    return s->t == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

static bool store(const struct item *item, float v, size_t row, size_t col, char *out)
{
    size_t rows = (size_t)item->slot.rows, cols = (size_t)item->slot.cols;
    size_t at = item->slot.transposed ? col * rows + row : row * cols + col;
    enum tensor_type type = item->t.type;
    uint16_t h = type == TENSOR_BF16 ? f32_to_bf16(v) : f32_to_f16(v);
    float rounded = type == TENSOR_F32 ? v : type == TENSOR_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
    if (type == TENSOR_F32)
        memcpy(out + 4 * at, &v, 4);
    else
        memcpy(out + 2 * at, &h, 2);
    return isfinite(rounded);
}

static void compute_row(struct job *j, int row, float *sum)
{
    const struct delta *d = &j->item->delta;
    size_t cols = (size_t)j->item->slot.cols, first = (size_t)(j->from ? j->from[row] : row) * cols;
    memset(sum, 0, cols * sizeof *sum);
    for (int r = 0; r < d->r; r++) {
        const float *a = d->a + (size_t)r * cols;
        float b = d->b[(size_t)row * (size_t)d->r + (size_t)r];
        for (size_t k = 0; k < cols; k++) sum[k] += b * a[k];
    }
    bool finite = true;
    for (size_t k = 0; k < cols; k++) {
        float w = element(j->src, first + k);
        finite &= store(j->item, d->r ? w + d->scale * sum[k] : w, (size_t)row, k, j->out);
    }
    if (!finite) atomic_store(&j->bad, row);
}

static void *compute_rows(void *arg)
{
    struct job *j = arg;
    int rows = j->item->slot.rows;
    float *sum = mem_array((size_t)j->item->slot.cols, sizeof *sum);
    for (int at; (at = atomic_fetch_add(&j->next, ROWS)) < rows;)
        for (int row = at; row < rows && row < at + ROWS; row++) compute_row(j, row, sum);
    free(sum);
    return NULL;
}

static void compute(struct job *j)
{
    pthread_t helper[THREADS_MAX];
    size_t work = (size_t)j->item->slot.rows * (size_t)j->item->slot.cols;
    int threads = work < 1 << 16 ? 1 : cpus_available(), n = 0;
    for (; n < threads - 1 && n < THREADS_MAX; n++)
        if (pthread_create(&helper[n], NULL, compute_rows, j)) break;
    compute_rows(j);
    for (int i = 0; i < n; i++) pthread_join(helper[i], NULL);
}

/* Where a GGUF file has q, k and v of all heads, and the family's files those of each head. */
static int *row_order(const struct matrix_slot *slot, const struct tensor *stored)
{
    if (!slot->by_head || !stored || !stored->form || gguf_by_head(stored)) return NULL;
    int *from = mem_array((size_t)slot->rows, sizeof *from);
    for (int i = 0; i < slot->rows; i++) from[tensors_stored_row(slot->by_head, slot->rows, i)] = i;
    return from;
}

static int populate_matrix(const struct merged *s, const struct item *item, struct tensor *t, struct err *e)
{
    struct weight_src src;
    void *owned = NULL;
    const struct tensor *stored = tensor_source_find(s->base, item->slot.name);
    if (t->data) return 0;
    int rc = stored ? tensor_source_populate(s->base, stored, e) : 0;
    if (!rc) rc = weights_matrix(s->base, &s->plan.c->quant, &item->slot, &src, &owned, e);
    if (!rc && src.t != DT_F32 && src.t != DT_BF16 && src.t != DT_F16) rc = weights_unify(&src, 1, true, &owned, e);
    char *out = rc ? NULL : mem_try_alloc(t->bytes);
    if (!rc && !out) rc = err_set(e, ERR_NOMEM, "no memory for tensor %s", item->slot.name);
    if (!rc) {
        int *from = row_order(&item->slot, stored);
        struct job j = {.item = item, .src = &src, .from = from, .out = out, .bad = -1};
        compute(&j);
        free(from);
        if (j.bad >= 0) {
            rc = err_set(e, ERR_INVALID, "tensor %s: row %d with the adapter is not finite in type %s", item->slot.name,
                         j.bad, tensor_type_name(t->type));
            free(out);
        } else {
            t->data = out;
        }
    }
    free(owned);
    if (stored) tensor_source_release(s->base, stored);
    return rc;
}

/* ---- the source -------------------------------------------------------------------------------------------------- */

static const struct item *item_of(const struct merged *s, const struct tensor *t)
{
    CHECK(t >= s->list.v && t < s->list.v + s->list.n);
    return &s->item[t - s->list.v];
}

static const char *source_metadata(const struct tensor_source *source, const char *key)
{
    (void)source, (void)key;
    return NULL;
}

static int source_verify(const struct tensor_source *source, struct err *e)
{
    (void)source;
    return err_set(e, ERR_UNSUPPORTED, "merged tensors have no checksums");
}

static int source_populate(const struct tensor_source *source, const struct tensor *t, struct err *e)
{
    const struct merged *s = (const struct merged *)source;
    const struct item *item = item_of(s, t);
    if (item->computed) return populate_matrix(s, item, &s->list.v[item - s->item], e);
    return tensor_source_populate(s->base, tensor_source_find(s->base, t->name), e);
}

static void source_release(const struct tensor_source *source, const struct tensor *t)
{
    const struct merged *s = (const struct merged *)source;
    const struct item *item = item_of(s, t);
    struct tensor *own = &s->list.v[item - s->item];
    if (!item->computed) {
        tensor_source_release(s->base, tensor_source_find(s->base, t->name));
        return;
    }
    free((void *)own->data);
    own->data = NULL;
}

static void source_close(struct tensor_source *source)
{
    struct merged *s = (struct merged *)source;
    for (size_t i = 0; i < s->list.n; i++) {
        if (!s->item[i].computed) continue;
        free((void *)s->list.v[i].data);
        free(s->item[i].t.name);
    }
    free(s->list.v);
    free(s->item);
    free(s->owned[0]);
    free(s->owned[1]);
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

bool merge_source_computes(const struct tensor_source *source, const struct tensor *t)
{
    return item_of((const struct merged *)source, t)->computed;
}

struct tensor_source *merge_source(const struct tensor_source *base, const struct merge_plan *plan, int *changed)
{
    struct merged *s = mem_zalloc(sizeof *s);
    s->list.source.ops = &source_ops;
    s->base = base;
    s->plan = *plan;
    *changed = add_matrices(s);
    if (plan->dequantise)
        add_vectors(s);
    else
        add_rest(s);
    qsort(s->item, s->n, sizeof *s->item, by_name);
    s->list.v = mem_array(s->n + 1, sizeof *s->list.v);
    s->list.n = s->n;
    for (size_t i = 0; i < s->n; i++) s->list.v[i] = s->item[i].t;
    return &s->list.source;
}
