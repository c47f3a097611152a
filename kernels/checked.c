/* A wrapper around a device that checks every op's arguments against the contracts in ops.h. A breach fails the
 * device with an error that names the argument, and the op is not run. It knows the shapes of weights and caches
 * because they are made through it. The checks of the training ops are in checked_train.c. */
#include "kernels/checked.h"

#include "kernels/block.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LOOKS = 4 };

struct checked {
    struct dev head;
    struct dev_ops ops;
    struct dev *inner;
    struct made *made;
    int32_t *look[LOOKS]; /* copies of device memory that the op's checks read */
    int n_looks;
};

static struct checked *checked_of(struct dev *d)
{
    return (struct checked *)d;
}

const struct made *find_made(struct dev *d, const void *object)
{
    for (const struct made *m = checked_of(d)->made; m; m = m->next)
        if (m->object == object) return m;
    return NULL;
}

/* ---- helpers ------------------------------------------------------------------------------------------------- */

bool check_mat(struct dev *d, const char *op, const char *name, const struct mat *m, int rows, int cols)
{
    need(m->t == DT_F32, "%s is %s, not f32", name, dtype_name(m->t));
    need(m->rows == rows && m->cols == cols, "%s is %d x %d, not %d x %d", name, m->rows, m->cols, rows, cols);
    need(rows >= 0 && cols > 0 && m->ld >= cols, "%s has rows %d, cols %d, ld %d", name, rows, cols, m->ld);
    need(m->p || rows == 0, "%s is NULL", name);
    need((uintptr_t)m->p % sizeof(float) == 0, "%s is not aligned", name);
    return true;
}

static bool check_table(struct dev *d, const char *op, const char *name, const struct mat *m, int cols)
{
    need(m->t == DT_F32 || m->t == DT_BF16 || m->t == DT_F16, "%s is %s", name, dtype_name(m->t));
    need(m->p && m->rows > 0, "%s is empty", name);
    need(m->cols == cols && m->ld >= cols, "%s has cols %d, ld %d, wanted %d", name, m->cols, m->ld, cols);
    return true;
}

const int32_t *check_look(struct dev *d, const char *op, const int32_t *p, size_t n)
{
    struct checked *c = checked_of(d);
    if (d->ops->host_memory) return p;
    int32_t *copy = c->n_looks < LOOKS ? malloc((n ? n : 1) * sizeof *copy) : NULL;
    if (!copy) return dev_fail(d, op, "out of memory"), NULL;
    c->look[c->n_looks++] = copy;
    d->ops->download(d, copy, p, n * sizeof *copy);
    return d->error.op ? NULL : copy;
}

static void drop_looks(struct dev *d)
{
    struct checked *c = checked_of(d);
    while (c->n_looks) free(c->look[--c->n_looks]);
}

bool check_index(struct dev *d, const char *op, const char *name, const int32_t *index, int n, int64_t limit)
{
    need(index || n == 0, "%s is NULL", name);
    if (n && !(index = check_look(d, op, index, (size_t)n))) return false;
    for (int i = 0; i < n; i++)
        need(index[i] >= 0 && index[i] < limit, "%s[%d] is %d, not in 0..%lld", name, i, index[i],
             (long long)limit - 1);
    return true;
}

bool check_floats(struct dev *d, const char *op, const char *name, const float *p)
{
    need(p && (uintptr_t)p % sizeof(float) == 0, "%s is NULL or not aligned", name);
    return true;
}

/* Column slices of one buffer interleave without sharing elements. */
bool mats_overlap(const struct mat *a, const struct mat *b)
{
    if (!a->p || !b->p || a->rows < 1 || b->rows < 1) return false;
    if ((uintptr_t)a->p > (uintptr_t)b->p) {
        const struct mat *t = a;
        a = b;
        b = t;
    }
    size_t a_size = ((size_t)(a->rows - 1) * a->ld + a->cols) * sizeof(float);
    size_t apart = (uintptr_t)b->p - (uintptr_t)a->p;
    if (apart >= a_size) return false;
    if (a->ld != b->ld) return true;
    size_t col = apart / sizeof(float) % (size_t)a->ld; /* where b's columns start within a's rows */
    return col < (size_t)a->cols || col + (size_t)b->cols > (size_t)a->ld;
}

bool check_apart(struct dev *d, const char *op, const struct mat *a, const struct mat *b)
{
    need(!mats_overlap(a, b), "two arguments share memory");
    return true;
}

bool check_slice(struct dev *d, const char *op, const struct made *w, int first, const struct mat *y, const char *name,
                 int unit)
{
    if (first == 0 && y->cols == w->rows) return true;
    need(!w->gate_up, "%s has cols %d, wanted %d", name, y->cols, w->rows);
    need(first >= 0 && y->cols > 0 && (int64_t)first + y->cols <= w->rows && first % unit == 0 &&
             (y->cols % unit == 0 || first + y->cols == w->rows),
         "%s has cols %d, and %d outputs from %d on are no slice of %d", name, y->cols, y->cols, first, w->rows);
    return true;
}

bool check_cap(struct dev *d, const char *op, float scale, float cap)
{
    need(isfinite(scale) && scale >= 0 && isfinite(cap) && cap >= 0, "scale %g, softcap %g", (double)scale,
         (double)cap);
    return true;
}

bool check_act(struct dev *d, const char *op, enum act_kind act, bool gated)
{
    need((unsigned)act <= (gated ? ACT_SWIGLU_CLAMPED : ACT_RELU), "act is %d", act);
    return true;
}

/* ---- ops ----------------------------------------------------------------------------------------------------- */

static bool check_embed(struct dev *d, const struct embed_args *a)
{
    const char *op = "embed";
    int T = a->out.rows, C = a->out.cols;
    const struct made *w = a->w ? find_made(d, a->w) : NULL;
    if (!check_cap(d, op, a->scale, 0)) return false;
    if (a->w) {
        need(w && w->rows, "w is not a weight of this device");
        need(w->cols == C, "w has cols %d, wanted %d", w->cols, C);
    } else if (!check_table(d, op, "table", &a->table, C)) {
        return false;
    }
    return check_mat(d, op, "out", &a->out, T, C) && check_index(d, op, "id", a->id, T, w ? w->rows : a->table.rows) &&
           (!a->pos_table.p || (check_table(d, op, "pos_table", &a->pos_table, C) &&
                                check_index(d, op, "pos", a->pos, T, a->pos_table.rows)));
}

static bool check_norm_tail(struct dev *d, const char *op, const float *w, const float *b, float eps,
                            enum norm_kind kind, const struct weight *next, int C)
{
    const struct made *consumer = next ? find_made(d, next) : NULL;
    need((unsigned)kind <= NORM_LAYER, "kind is %d", kind);
    need(!next || (consumer && consumer->cols == C), "next is not a weight of this device with cols %d", C);
    need(eps >= 0, "eps is %g", (double)eps);
    return check_floats(d, op, "w", w) && (!b || check_floats(d, op, "b", b));
}

static bool check_norm(struct dev *d, const struct norm_args *a)
{
    const char *op = "norm";
    int T = a->x.rows, C = a->x.cols;
    bool same = a->x.p == a->out.p && a->x.ld == a->out.ld;
    return check_mat(d, op, "x", &a->x, T, C) && check_mat(d, op, "out", &a->out, T, C) &&
           (same || check_apart(d, op, &a->x, &a->out)) &&
           check_norm_tail(d, op, a->w, a->b, a->eps, a->kind, a->next, C);
}

static bool check_add_norm(struct dev *d, const struct add_norm_args *a)
{
    const char *op = "add_norm";
    int T = a->x.rows, C = a->x.cols;
    return check_mat(d, op, "x", &a->x, T, C) && check_mat(d, op, "y", &a->y, T, C) &&
           check_mat(d, op, "out", &a->out, T, C) && check_apart(d, op, &a->x, &a->y) &&
           check_apart(d, op, &a->x, &a->out) && check_apart(d, op, &a->y, &a->out) &&
           (!a->post_w || check_floats(d, op, "post_w", a->post_w)) &&
           (!a->post_b || (check_floats(d, op, "post_w", a->post_w) && check_floats(d, op, "post_b", a->post_b))) &&
           check_norm_tail(d, op, a->w, a->b, a->eps, a->kind, a->next, C);
}

static bool check_add(struct dev *d, const struct add_args *a)
{
    const char *op = "add";
    return check_mat(d, op, "x", &a->x, a->x.rows, a->x.cols) && check_mat(d, op, "y", &a->y, a->x.rows, a->x.cols) &&
           check_apart(d, op, &a->x, &a->y);
}

static bool check_linear(struct dev *d, const struct linear_args *a)
{
    const char *op = "linear";
    const struct made *w = find_made(d, a->w);
    need(w && w->rows, "w is not a weight of this device");
    return check_slice(d, op, w, a->first, &a->y, "y", WEIGHT_SLICE) &&
           check_mat(d, op, "x", &a->x, a->x.rows, w->cols) && check_mat(d, op, "y", &a->y, a->x.rows, a->y.cols) &&
           check_apart(d, op, &a->x, &a->y) && (!a->b || check_floats(d, op, "b", a->b));
}

static bool check_gate_up(struct dev *d, const struct gate_up_args *a)
{
    const char *op = "gate_up";
    const struct made *w = find_made(d, a->w);
    int T = a->x.rows, F = a->y.cols;
    need(w && w->gate_up, "w is not a gate_up weight of this device");
    need(w->rows == 2 * F, "y has %d columns, w %d rows", F, w->rows);
    return check_mat(d, op, "x", &a->x, T, w->cols) && check_mat(d, op, "y", &a->y, T, F) &&
           check_apart(d, op, &a->x, &a->y) && (!a->b || check_floats(d, op, "b", a->b)) &&
           check_act(d, op, a->act, true) &&
           (d->ops->fused_gate_up || (a->tmp.rows >= T && check_mat(d, op, "tmp", &a->tmp, a->tmp.rows, 2 * F) &&
                                      check_apart(d, op, &a->tmp, &a->x) && check_apart(d, op, &a->tmp, &a->y)));
}

static bool check_head_norm(struct dev *d, const struct head_norm_args *a)
{
    const char *op = "head_norm";
    need(a->head_dim > 0 && a->heads > 0 && a->col >= 0, "heads %d, head_dim %d, col %d", a->heads, a->head_dim,
         a->col);
    need((int64_t)a->col + (int64_t)a->heads * a->head_dim <= a->x.cols, "columns pass the end of x");
    return check_mat(d, op, "x", &a->x, a->x.rows, a->x.cols) &&
           check_norm_tail(d, op, a->w, a->b, a->eps, a->kind, NULL, 0);
}

/* Checks the shapes that rope_kv and attn have in common. *shape: the cache's. */
static bool check_kv(struct dev *d, const char *op, const struct kv *kv, int layer, int heads, int kv_heads,
                     int head_dim, const struct mat *qkv, const struct kv_shape **shape)
{
    const struct made *m = find_made(d, kv);
    need(m && m->kv.layers, "kv is not a cache of this device");
    need(layer >= 0 && layer < m->kv.layers, "layer is %d of %d", layer, m->kv.layers);
    need(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, "heads %d, kv_heads %d", heads, kv_heads);
    need(kv_heads == m->kv.kv_heads && head_dim == m->kv.head_dim, "kv is of %d heads of %d, not %d of %d",
         m->kv.kv_heads, m->kv.head_dim, kv_heads, head_dim);
    *shape = &m->kv;
    return check_mat(d, op, "qkv", qkv, qkv->rows, (heads + 2 * kv_heads) * head_dim);
}

static bool check_distinct(struct dev *d, const char *op, const char *name, const int32_t *index, int n, int64_t limit)
{
    uint8_t *seen = calloc((size_t)limit / 8 + 1, 1);
    int i = 0;
    need(seen, "out of memory in the check");
    for (; i < n && !(seen[index[i] / 8] >> index[i] % 8 & 1); i++) seen[index[i] / 8] |= (uint8_t)(1 << index[i] % 8);
    free(seen);
    need(i == n, "%s[%d] is %d for the second time", name, i, index[i]);
    return true;
}

static bool check_rope_kv(struct dev *d, const struct rope_kv_args *a)
{
    const char *op = "rope_kv";
    const struct kv_shape *s;
    if (!check_kv(d, op, a->kv, a->layer, a->heads, a->kv_heads, a->head_dim, &a->qkv, &s)) return false;
    int64_t slots = (int64_t)s->pages * KV_PAGE;
    need(a->rot >= 0 && a->rot <= a->head_dim && a->rot % 2 == 0, "rot is %d of %d", a->rot, a->head_dim);
    if (a->rot && !(check_floats(d, op, "cos", a->cos) && check_floats(d, op, "sin", a->sin) &&
                    check_index(d, op, "pos", a->pos, a->qkv.rows, INT32_MAX)))
        return false;
    return check_index(d, op, "slot", a->slot, a->qkv.rows, slots) &&
           check_distinct(d, op, "slot", a->slot, a->qkv.rows, slots);
}

static bool check_attn(struct dev *d, const struct attn_args *a)
{
    const char *op = "attn";
    const struct kv_shape *s;
    int T = a->qkv.rows;
    if (!check_kv(d, op, a->kv, a->layer, a->heads, a->kv_heads, a->head_dim, &a->qkv, &s) ||
        !check_mat(d, op, "out", &a->out, T, a->heads * a->head_dim) || !check_apart(d, op, &a->out, &a->qkv) ||
        !check_cap(d, op, a->scale, a->softcap) || (a->sinks && !check_floats(d, op, "sinks", a->sinks)) ||
        (a->lse.p && !check_mat(d, op, "lse", &a->lse, T, a->heads)))
        return false;
    need(a->window >= 0 && a->n_seqs >= 0, "window %d, n_seqs %d", a->window, a->n_seqs);
    if (a->n_seqs == 0) return true;
    need(a->q_start && a->kv_len && a->pages, "q_start, kv_len or pages is NULL");
    const int32_t *q_start = check_look(d, op, a->q_start, (size_t)a->n_seqs + 1),
                  *kv_len = check_look(d, op, a->kv_len, (size_t)a->n_seqs),
                  *pages = check_look(d, op, a->pages, (size_t)a->n_seqs * (size_t)a->pages_ld);
    if (!q_start || !kv_len || !pages) return false;
    need(q_start[0] == 0 && q_start[a->n_seqs] == T, "q_start runs from %d to %d, not from 0 to %d", q_start[0],
         q_start[a->n_seqs], T);
    for (int i = 0; i < a->n_seqs; i++) {
        int n = q_start[i + 1] - q_start[i], used = (kv_len[i] + KV_PAGE - 1) / KV_PAGE;
        need(n >= 0, "q_start[%d] is above its successor", i);
        need(!a->most_rows || n <= a->most_rows, "sequence %d has %d rows, more than %d", i, n, a->most_rows);
        need(kv_len[i] >= n, "sequence %d has %d rows and kv_len %d", i, n, kv_len[i]);
        need(used <= a->pages_ld, "sequence %d uses %d pages of %d", i, used, a->pages_ld);
        for (int k = 0; n && k < used; k++) {
            int32_t page = pages[(size_t)i * (size_t)a->pages_ld + (size_t)k];
            need(page >= 0 && page < s->pages, "pages[%d] is %d, not in 0..%d", k, page, s->pages - 1);
        }
    }
    return true;
}

static bool check_act_mul(struct dev *d, const struct act_mul_args *a)
{
    const char *op = "act_mul";
    int T = a->out.rows, F = a->out.cols;
    return check_mat(d, op, "out", &a->out, T, F) && check_mat(d, op, "gu", &a->gu, T, 2 * F) &&
           check_apart(d, op, &a->out, &a->gu) && check_act(d, op, a->act, true);
}

static bool check_act_op(struct dev *d, const struct act_args *a)
{
    return check_mat(d, "act", "x", &a->x, a->x.rows, a->x.cols) && check_act(d, "act", a->act, false);
}

static bool check_softcap(struct dev *d, const struct softcap_args *a)
{
    const char *op = "softcap";
    return check_mat(d, op, "x", &a->x, a->x.rows, a->x.cols) && check_cap(d, op, a->scale, a->cap);
}

static bool check_rows(struct dev *d, const struct rows_args *a)
{
    const char *op = "rows";
    return check_mat(d, op, "x", &a->x, a->x.rows, a->x.cols) &&
           check_mat(d, op, "out", &a->out, a->out.rows, a->x.cols) && check_apart(d, op, &a->out, &a->x) &&
           check_index(d, op, "row", a->row, a->out.rows, a->x.rows);
}

static bool check_sample_row(struct dev *d, const struct sample_row *r, int V)
{
    const char *op = "sample";
    need(r->temperature >= 0 && r->repetition > 0, "temperature %g, repetition %g", (double)r->temperature,
         (double)r->repetition);
    need(r->top_k >= 0 && r->top_n >= 0 && r->top_n <= SAMPLE_TOP_MAX, "top_k %d, top_n %d", r->top_k, r->top_n);
    need(r->forced >= -1 && r->forced < V, "forced is %d of %d", r->forced, V);
    need(r->n_adds >= 0 && r->n_counts >= 0, "n_adds %d, n_counts %d", r->n_adds, r->n_counts);
    need((r->adds || !r->n_adds) && (r->counts || !r->n_counts), "adds or counts is NULL");
    for (int i = 0; i < r->n_adds; i++)
        need(r->adds[i].id >= 0 && r->adds[i].id < V, "adds[%d].id is %d of %d", i, r->adds[i].id, V);
    for (int i = 0; i < r->n_counts; i++)
        need(r->counts[i].id >= 0 && r->counts[i].id < V, "counts[%d].id is %d of %d", i, r->counts[i].id, V);
    return true;
}

static bool check_sample(struct dev *d, const struct sample_args *a)
{
    const char *op = "sample";
    int R = a->logits.rows, V = a->logits.cols;
    if (!check_mat(d, op, "logits", &a->logits, R, V)) return false;
    need((a->row && a->out) || R == 0, "row or out is NULL");
    for (int i = 0; i < R; i++)
        if (!check_sample_row(d, a->row + i, V)) return false;
    return true;
}

/* ---- the wrapper --------------------------------------------------------------------------------------------- */

/* Copies the inner device's error to the wrapper, whose own error, once set, stops everything. */
static void take_error(struct dev *d)
{
    struct dev *inner = checked_of(d)->inner;
    if (inner->error.op && !d->error.op) d->error = inner->error;
    dev_clear_error(inner);
}

#define check_act check_act_op /* the op act has the name of the helper in checked.h */
#define X(op)                                                                                                          \
    static void checked_##op(struct dev *d, const struct op##_args *a)                                                 \
    {                                                                                                                  \
        struct dev *inner = checked_of(d)->inner;                                                                      \
        bool good = check_##op(d, a);                                                                                  \
        drop_looks(d);                                                                                                 \
        if (!good) return;                                                                                             \
        inner->ops->op(inner, a);                                                                                      \
        take_error(d);                                                                                                 \
    }
OPS(X)
#undef X
#undef check_act

static void *made_add(struct dev *d, void *object, struct made m)
{
    struct made *copy = object ? malloc(sizeof *copy) : NULL;
    if (!copy) return NULL;
    *copy = m;
    copy->object = object;
    copy->next = checked_of(d)->made;
    checked_of(d)->made = copy;
    return object;
}

static void made_remove(struct dev *d, const void *object)
{
    for (struct made **m = &checked_of(d)->made; *m; m = &(*m)->next)
        if ((*m)->object == object) {
            struct made *gone = *m;
            *m = gone->next;
            free(gone);
            return;
        }
}

static bool has_nan(const struct weight_src *f8)
{
    const uint8_t *code = f8->data;
    bool found = false;
    for (size_t i = 0; i < (size_t)f8->rows * (size_t)f8->cols; i++) found |= (code[i] & 0x7f) == 0x7f;
    return found;
}

static struct weight *checked_weight_pack(struct dev *d, const struct weight_src *parts, int n_parts)
{
    struct dev *inner = checked_of(d)->inner;
    int64_t rows = 0;
    for (int i = 0; i < n_parts; i++) {
        const struct weight_src *p = parts + i;
        bool scaled = p->t == DT_I8 || p->t == DT_I4 || p->t == DT_NF4 || p->t == DT_F8;
        bool grouped = p->t == DT_I4    ? p->group == 32 || p->group == 64 || p->group == 128
                       : p->t == DT_NF4 ? p->group == 64
                       : p->t == DT_F8  ? p->group >= 0 && p->group % 16 == 0
                                        : p->group == 0;
        const char *why = p->t == DT_BLOCK ? block_error(p) : NULL;
        if (!why && p->t == DT_BLOCK && !block_codes_ok(p)) why = "a code is above its bits";
        if (why) {
            dev_fail(d, "weight_pack", "part %d of block form: %s", i, why);
            return NULL;
        }
        if (!p->data || (!p->scale && scaled) || !grouped) {
            dev_fail(d, "weight_pack", "part %d: data or scale is NULL, or group %d is wrong for %s", i, p->group,
                     dtype_name(p->t));
            return NULL;
        }
        if (p->t == DT_F8 && p->rows > 0 && p->cols > 0 && has_nan(p)) {
            dev_fail(d, "weight_pack", "part %d: a code is NaN", i);
            return NULL;
        }
        rows += p->rows;
    }
    if (n_parts > 0 && !block_order_ok(parts, n_parts)) {
        dev_fail(d, "weight_pack", "the parts have different orders of columns, or one that is no permutation");
        return NULL;
    }
    struct weight *w = inner->ops->weight_pack(inner, parts, n_parts);
    take_error(d);
    if (w && !made_add(d, w,
                       (struct made){.rows = (int)rows,
                                     .cols = parts->cols,
                                     .t = parts->t,
                                     .gate_up = parts->gate_up,
                                     .ordered = parts->t == DT_BLOCK && parts->block->order})) {
        inner->ops->weight_free(inner, w);
        return NULL;
    }
    return w;
}

static struct weight *checked_weight_open(struct dev *d, const struct weight_src *shape, const void *packed,
                                          size_t bytes)
{
    struct dev *inner = checked_of(d)->inner;
    struct weight *w = inner->ops->weight_open(inner, shape, packed, bytes);
    if (w && !made_add(d, w,
                       (struct made){.rows = shape->rows,
                                     .cols = shape->cols,
                                     .t = shape->t,
                                     .gate_up = shape->gate_up,
                                     .borrowed = true})) {
        inner->ops->weight_free(inner, w);
        return NULL;
    }
    return w;
}

static bool check_weight_update(struct dev *d, const struct weight *weight, const struct weight_src *parts, int n_parts,
                                int chunk, int chunks)
{
    const char *op = "weight_update";
    need(chunk >= 0 && chunk < chunks, "chunk %d of %d", chunk, chunks);
    const struct made *w = find_made(d, weight);
    int64_t rows = 0;
    need(w && w->rows, "w is not a weight of this device");
    need(w->t == DT_F32 || w->t == DT_BF16 || w->t == DT_F16, "w is %s", dtype_name(w->t));
    need(!w->borrowed, "w is borrowed");
    need(parts && n_parts > 0, "no parts");
    for (int i = 0; i < n_parts; i++) {
        const struct weight_src *p = parts + i;
        need(p->t == DT_F32 && p->data, "part %d is %s, or NULL", i, dtype_name(p->t));
        need(p->rows > 0 && p->cols == w->cols && p->gate_up == w->gate_up, "part %d is %d x %d%s", i, p->rows, p->cols,
             p->gate_up != w->gate_up ? ", and gate_up or not unlike w" : "");
        need(!w->gate_up || (n_parts == 2 && p->rows == parts->rows), "gate and up are not two parts of equal rows");
        rows += p->rows;
    }
    need(rows == w->rows, "the parts have %lld rows, w has %d", (long long)rows, w->rows);
    return true;
}

static void checked_weight_update(struct dev *d, struct weight *w, const struct weight_src *parts, int n_parts,
                                  int chunk, int chunks)
{
    struct dev *inner = checked_of(d)->inner;
    if (!check_weight_update(d, w, parts, n_parts, chunk, chunks)) return;
    inner->ops->weight_update(inner, w, parts, n_parts, chunk, chunks);
    take_error(d);
}

static void checked_weight_free(struct dev *d, struct weight *w)
{
    struct dev *inner = checked_of(d)->inner;
    made_remove(d, w);
    inner->ops->weight_free(inner, w);
}

static struct kv *checked_kv_open(struct dev *d, const struct kv_shape *s)
{
    struct dev *inner = checked_of(d)->inner;
    struct kv *kv = inner->ops->kv_open(inner, s);
    take_error(d);
    if (kv && !made_add(d, kv, (struct made){.kv = *s})) {
        inner->ops->kv_close(inner, kv);
        return NULL;
    }
    return kv;
}

static void checked_kv_close(struct dev *d, struct kv *kv)
{
    struct dev *inner = checked_of(d)->inner;
    made_remove(d, kv);
    inner->ops->kv_close(inner, kv);
}

static bool check_page(struct dev *d, const char *op, const struct kv *kv, int page)
{
    const struct made *m = find_made(d, kv);
    need(m, "a KV cache that is not of this device");
    need(page >= 0 && page < m->kv.pages, "page %d of %d", page, m->kv.pages);
    return true;
}

static void checked_kv_save(struct dev *d, const struct kv *kv, int page, void *host)
{
    struct dev *inner = checked_of(d)->inner;
    if (check_page(d, "kv_save", kv, page)) inner->ops->kv_save(inner, kv, page, host);
}

static void checked_kv_load(struct dev *d, struct kv *kv, int page, const void *host)
{
    struct dev *inner = checked_of(d)->inner;
    if (check_page(d, "kv_load", kv, page)) inner->ops->kv_load(inner, kv, page, host);
}

static void *checked_alloc(struct dev *d, size_t bytes)
{
    struct dev *inner = checked_of(d)->inner;
    return inner->ops->alloc(inner, bytes);
}

static void checked_free(struct dev *d, void *p)
{
    struct dev *inner = checked_of(d)->inner;
    inner->ops->free(inner, p);
}

static void checked_upload(struct dev *d, void *device, const void *host, size_t bytes)
{
    struct dev *inner = checked_of(d)->inner;
    inner->ops->upload(inner, device, host, bytes);
}

static void checked_download(struct dev *d, void *host, const void *device, size_t bytes)
{
    struct dev *inner = checked_of(d)->inner;
    inner->ops->download(inner, host, device, bytes);
}

static int checked_pin(struct dev *d, const int *cpus, int n)
{
    struct dev *inner = checked_of(d)->inner;
    return inner->ops->pin(inner, cpus, n);
}

static void checked_on_threads(struct dev *d, void (*fn)(void *ctx, int thread), void *ctx)
{
    struct dev *inner = checked_of(d)->inner;
    inner->ops->on_threads(inner, fn, ctx);
}

static int checked_finish(struct dev *d)
{
    struct dev *inner = checked_of(d)->inner;
    inner->ops->finish(inner);
    take_error(d);
    return d->error.op ? -1 : 0;
}

static void checked_close(struct dev *d)
{
    struct checked *c = checked_of(d);
    while (c->made) {
        struct made *m = c->made;
        c->made = m->next;
        free(m);
    }
    dev_close(c->inner);
    free(c);
}

struct dev *dev_checked(struct dev *inner)
{
    struct checked *c = inner ? calloc(1, sizeof *c) : NULL;
    if (!c) return inner;
    c->ops = *inner->ops;
    c->ops.memory = NULL; /* device management of the engine, not used by ops */
    c->ops.alloc_host = NULL;
    c->ops.free_host = NULL;
    c->ops.zero = NULL;
    c->ops.reserve = NULL;
    c->ops.replay = NULL;
    c->ops.hold = NULL;
    c->ops.trim = NULL;
    c->ops.lost = NULL;
#define X(op) c->ops.op = checked_##op;
    OPS(X)
#undef X
    c->ops.weight_pack = checked_weight_pack;
    if (c->ops.weight_open) c->ops.weight_open = checked_weight_open;
    c->ops.weight_update = checked_weight_update;
    c->ops.weight_free = checked_weight_free;
    c->ops.kv_open = checked_kv_open;
    c->ops.kv_close = checked_kv_close;
    c->ops.kv_save = checked_kv_save;
    c->ops.kv_load = checked_kv_load;
    c->ops.alloc = checked_alloc;
    c->ops.free = checked_free;
    c->ops.upload = checked_upload;
    c->ops.download = checked_download;
    if (c->ops.pin) c->ops.pin = checked_pin;
    if (c->ops.on_threads) c->ops.on_threads = checked_on_threads;
    c->ops.finish = checked_finish;
    c->ops.close = checked_close;
    c->inner = inner;
    c->head = (struct dev){.ops = &c->ops, .threads = inner->threads, .bf16_x = inner->bf16_x};
    memcpy(c->head.level, inner->level, sizeof c->head.level);
    return &c->head;
}
