/* Finds the first value that is not finite in a step, by replaying it: the same rows, weights and dropout, and a look
 * at what each op wrote. */
#include "engine/base/mem.h"
#include "engine/model/tensors.h"
#include "engine/train/train_state.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOOK_FLOATS = 1 << 21 }; /* copied to the host at once */

struct finder {
    struct op_watch watch; /* first */
    struct train *t;
    uint32_t micro; /* its first unit */
    float *host;    /* owned */
    size_t cap_host;
    /* what was found; of rows: one that has it is at `row`, `n_rows` have it */
    bool found, sum;
    enum op_id op;
    const void *of;
    int layer, target, row, col, n_rows, rows;
    bool back;
    float value;
};

/* ---- looking ----------------------------------------------------------------------------------------------------- */

static void look_at_row(struct finder *f, const float *x, int row, int cols)
{
    for (int i = 0; i < cols; i++) {
        if (isfinite(x[i])) continue;
        if (!f->n_rows++) f->row = row, f->col = i, f->value = x[i];
        return;
    }
}

static void wrote(struct op_watch *watch, enum op_id op, const void *of, struct mat out, bool sum)
{
    struct finder *f = (struct finder *)watch;
    if (f->found || !out.rows) return;
    struct op_chunks c = {f->t->d, f->t->gate, NULL};
    int most = LOOK_FLOATS / out.ld > 0 ? LOOK_FLOATS / out.ld : 1;
    size_t ld = (size_t)out.ld;
    mem_grow(&f->host, &f->cap_host, (size_t)most * ld, sizeof *f->host);
    f->n_rows = 0;
    f->t->d->ops->finish(f->t->d);
    for (int r = 0, n; r < out.rows; r += n) {
        n = out.rows - r < most ? out.rows - r : most;
        chunked_download(c, f->host, (const float *)out.p + (size_t)r * ld, (size_t)(n - 1) * ld + (size_t)out.cols);
        for (int i = 0; i < n; i++) look_at_row(f, f->host + (size_t)i * ld, r + i, out.cols);
    }
    if (!f->n_rows) return;
    f->found = true;
    f->sum = sum;
    f->op = op;
    f->of = of;
    f->rows = out.rows;
    f->layer = watch->layer;
    f->back = watch->back;
    f->target = watch->target;
}

/* ---- naming ------------------------------------------------------------------------------------------------------ */

#define SAME(field)                                                                                                    \
    {                                                                                                                  \
        offsetof(struct layer_grads, field), offsetof(struct layer_weights, field)                                     \
    }

/* The weights of a layer whose gradient is at `grad`; NULL: not of one. */
static const void *weight_of(const struct train_model *m, int layer, const void *grad)
{
    static const struct {
        size_t grad, weight;
    } same[] = {SAME(norm1_w), SAME(norm1_b),  SAME(norm2_w), SAME(norm2_b),  SAME(post1_w), SAME(post1_b),
                SAME(post2_w), SAME(post2_b),  SAME(qkv),     SAME(qkv_b),    SAME(o),       SAME(o_b),
                SAME(q_norm),  SAME(q_norm_b), SAME(k_norm),  SAME(k_norm_b), SAME(up),      SAME(up_b),
                SAME(down),    SAME(down_b),   SAME(router)};
    if (!m->grads || !grad) return NULL;
    if (grad == m->grads->head) return m->w->head;
    if (grad == m->grads->norm_w) return m->w->norm_w;
    for (size_t i = 0; i < sizeof same / sizeof *same && layer >= 0 && layer < m->c->layers; i++) {
        const void *const *g = (const void *const *)((const char *)&m->grads->layer[layer] + same[i].grad);
        if (*g == grad) return *(const void *const *)((const char *)&m->w->layer[layer] + same[i].weight);
    }
    return NULL;
}

/* The tensor at output `col` of a GEMM of the layer. */
static void stack_name(const struct tensors *t, int layer, int gemm, int col, char out[TENSOR_NAME_MAX])
{
    struct stack s;
    tensors_stack(t, layer * LAYER_GEMMS + gemm, &s);
    for (int i = 0; i < s.n; col -= s.part[i++].rows) {
        memcpy(out, s.part[i].name, TENSOR_NAME_MAX);
        if (col < s.part[i].rows) return;
    }
}

static bool matrix_name(const struct train_model *m, const struct tensors *t, int layer, const void *w, int col,
                        char out[TENSOR_NAME_MAX])
{
    if (w == m->w->head) {
        tensors_head_name(t, out);
        return true;
    }
    if (layer < 0 || layer >= m->c->layers) return false;
    const struct layer_weights *l = &m->w->layer[layer];
    const struct weight *all[LAYER_GEMMS] = {
        [GEMM_QKV] = l->qkv, [GEMM_O] = l->o, [GEMM_UP] = l->up, [GEMM_DOWN] = l->down};
    for (int p = 0; p < LAYER_GEMMS; p++) {
        if (all[p] != w) continue;
        stack_name(t, layer, p, col, out);
        return true;
    }
    if (w == l->router) snprintf(out, TENSOR_NAME_MAX, "the router");
    return w == l->router;
}

static bool vector_name(const struct train_model *m, const struct tensors *t, const void *w, char out[TENSOR_NAME_MAX])
{
    int n = tensors_vectors(t, NULL);
    struct vector_slot *v = mem_array((size_t)n, sizeof *v);
    struct weights copy = *m->w; /* the field is looked up in a struct that may be written */
    bool found = false;
    tensors_vectors(t, v);
    for (int i = 0; i < n && !found; i++) {
        found = !v[i].table && *weights_vector_field(&copy, &v[i]) == w && v[i].at == 0;
        if (found) memcpy(out, v[i].name, TENSOR_NAME_MAX);
    }
    free(v);
    return found;
}

/* Of the layer's adapters, whose matrix or gradient it is. */
static bool adapter_name(const struct train_model *m, const struct tensors *t, int layer, const void *p,
                         char out[TENSOR_NAME_MAX])
{
    for (int g = 0; g < LAYER_GEMMS && m->site && layer >= 0 && layer < m->c->layers; g++) {
        const struct site *s = train_site(m, layer, (enum layer_gemm)g);
        int col = s->r && (p == s->a || p == s->da) ? 0 : -1;
        for (int i = 0; i < s->n_parts; i++)
            if (p == s->part[i].b || p == s->part[i].db) col = s->part[i].col;
        if (col < 0) continue;
        stack_name(t, layer, g, col, out);
        return true;
    }
    return false;
}

/* " of model.layers.1.mlp.up_proj.weight", or nothing. */
static void put_tensor(struct buf *b, const struct finder *f)
{
    const struct train_model *m = &f->t->tm;
    struct tensors t = tensors_of(m->c, f->t->model->w.file);
    const void *w = f->sum ? weight_of(m, f->layer, f->of) : f->of;
    int col = f->op == OP_linear_back ? 0 : f->sum ? f->row : f->col;
    char name[TENSOR_NAME_MAX];
    if (!f->of) return;
    if (w && (matrix_name(m, &t, f->layer, w, col, name) || vector_name(m, &t, w, name)))
        buf_printf(b, " of %s", name);
    else if (adapter_name(m, &t, f->layer, f->of, name))
        buf_printf(b, " of the adapter of %s", name);
}

/* The token's row in the data. */
static void put_row(struct buf *b, const struct finder *f)
{
    const struct micro *m = &f->t->micro;
    const struct train_rows *rows = &f->t->rows;
    int token = f->target < 0 ? f->row : m->row[f->target + f->row], seq = 0;
    while (seq + 1 < m->n_seqs && m->q_start[seq + 1] <= token) seq++;
    uint32_t which = m->seq[seq].row;
    struct dataset_row row = dataset_row(rows->set, rows->index[which]);
    const char *source = dataset_row_source(rows->set, rows->index[which]);
    buf_printf(b, ", in the row of line %llu of %s (its token %d", (unsigned long long)row.line,
               source ? source : "the data", token - m->q_start[seq] + 1);
    if (f->rows > 1) buf_printf(b, "; %d of %d tokens here have one", f->n_rows, f->rows);
    buf_str(b, ")");
}

static void put_found(struct buf *b, const struct finder *f)
{
    buf_printf(b, "the first is %s, ", isnan(f->value) ? "NaN" : f->value > 0 ? "infinity" : "-infinity");
    if (f->layer == WATCH_EMBEDDINGS)
        buf_str(b, "in the embeddings");
    else if (f->layer == f->t->model->c.layers)
        buf_str(b, "in the head");
    else
        buf_printf(b, "in layer %d", f->layer);
    buf_printf(b, ", %s pass, op %s", f->back || f->op == OP_linear_back ? "backward" : "forward", op_name(f->op));
    put_tensor(b, f);
    if (f->sum)
        buf_str(b, ", in a sum over tokens that are finite one by one");
    else
        put_row(b, f);
}

/* ---- replaying --------------------------------------------------------------------------------------------------- */

bool train_locate(struct train *t, int64_t step, struct buf *out)
{
    prefetch_wait(t->next);
    struct microbatches_step b = train_rows_step(&t->rows, step);
    struct finder f = {.watch = {.wrote = wrote, .target = -1}, .t = t};
    struct err e = {0};
    float scale = (float)(1 / (double)train_rows_targets(&t->rows, &b));
    uint64_t tokens = 0;
    bool stopped = false;
    optim_zero_grad(&t->o);
    t->tm.watch = &f.watch;
    for (; f.micro < b.n_micro && !stopped; f.micro++) {
        train_any_runs(t, true);
        micro_fill(&t->micro, &t->rows, &b, f.micro, f.micro + 1, tokens);
        train_model_run(&t->tm, &t->micro, true, scale);
        tokens += (uint64_t)t->micro.n_tokens;
        stopped = train_device_failed(t, &e) || atomic_load(&t->command) != TRAIN_GO_ON;
        if (f.found) break; /* its micro-batch is still in t->micro */
    }
    t->tm.watch = NULL;
    while (train_any_runs(t, false)) train_skim(t, true);
    if (f.found)
        put_found(out, &f);
    else if (!stopped)
        buf_str(out, "replayed, the step has none");
    free(f.host);
    return f.found;
}
