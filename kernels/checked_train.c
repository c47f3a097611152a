/* The checks of the training ops: see checked.h. */
#include "kernels/checked.h"

#include <math.h>

/* a and b must be the same matrix or not overlap. */
static bool check_same_or_apart(struct dev *d, const char *op, const struct mat *a, const struct mat *b)
{
    bool same = a->p == b->p && a->ld == b->ld && a->cols == b->cols;
    return same || check_apart(d, op, a, b);
}

static bool check_gradient(struct dev *d, const char *op, const char *name, const float *p)
{
    return !p || check_floats(d, op, name, p);
}

bool check_norm_back(struct dev *d, const struct norm_back_args *a)
{
    const char *op = "norm_back";
    int T = a->x.rows, C = a->x.cols;
    need((unsigned)a->kind <= NORM_LAYER, "kind is %d", a->kind);
    need(a->eps >= 0, "eps is %g", (double)a->eps);
    if (!(check_mat(d, op, "x", &a->x, T, C) && check_mat(d, op, "dx", &a->dx, T, C) &&
          check_mat(d, op, "dy", &a->dy, T, C) && check_floats(d, op, "w", a->w) &&
          check_gradient(d, op, "dw", a->dw) && check_gradient(d, op, "db", a->db)))
        return false;
    bool in_place = a->dx.p == a->dy.p && a->dx.ld == a->dy.ld;
    need(T == 0 || !in_place || !a->accumulate, "dx is dy, and accumulates");
    return check_same_or_apart(d, op, &a->dx, &a->dy) && check_apart(d, op, &a->dx, &a->x);
}

/* Checks the shape that rope, attn_seq and attn_back have in common. */
static bool check_heads(struct dev *d, const char *op, const char *name, const struct mat *qkv, int heads, int kv_heads,
                        int head_dim)
{
    need(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, "heads %d, kv_heads %d", heads, kv_heads);
    need(head_dim > 0 && head_dim <= TRAIN_HEAD_MAX, "head_dim is %d", head_dim);
    return check_mat(d, op, name, qkv, qkv->rows, (heads + 2 * kv_heads) * head_dim);
}

bool check_rope(struct dev *d, const struct rope_args *a)
{
    const char *op = "rope";
    if (!check_heads(d, op, "qkv", &a->qkv, a->heads, a->kv_heads, a->head_dim)) return false;
    need(a->rot >= 0 && a->rot <= a->head_dim && a->rot % 2 == 0, "rot is %d of %d", a->rot, a->head_dim);
    return a->rot == 0 || (check_floats(d, op, "cos", a->cos) && check_floats(d, op, "sin", a->sin) &&
                           check_index(d, op, "pos", a->pos, a->qkv.rows, INT32_MAX));
}

static bool check_some_heads(struct dev *d, const char *op, int heads, int head0, int n_heads)
{
    need(head0 >= 0 && n_heads >= 0 && (int64_t)head0 + n_heads <= heads && (n_heads || !head0),
         "%d heads from %d on, of %d", n_heads, head0, heads);
    return true;
}

static bool check_seqs(struct dev *d, const char *op, int window, int n_seqs, const int32_t *q_start, int T)
{
    need(window >= 0 && n_seqs >= 0, "window %d, n_seqs %d", window, n_seqs);
    need(n_seqs > 0 || T == 0, "%d rows of no sequence", T);
    if (n_seqs == 0) return true;
    need(q_start, "q_start is NULL");
    if (!(q_start = check_look(d, op, q_start, (size_t)n_seqs + 1))) return false;
    need(q_start[0] == 0 && q_start[n_seqs] == T, "q_start runs from %d to %d, not from 0 to %d", q_start[0],
         q_start[n_seqs], T);
    for (int s = 0; s < n_seqs; s++) need(q_start[s] <= q_start[s + 1], "q_start[%d] is above its successor", s);
    return true;
}

bool check_attn_seq(struct dev *d, const struct attn_seq_args *a)
{
    const char *op = "attn_seq";
    int T = a->qkv.rows, H = a->heads;
    return check_heads(d, op, "qkv", &a->qkv, H, a->kv_heads, a->head_dim) &&
           check_mat(d, op, "out", &a->out, T, H * a->head_dim) && check_mat(d, op, "lse", &a->lse, T, H) &&
           check_apart(d, op, &a->out, &a->qkv) && check_apart(d, op, &a->lse, &a->qkv) &&
           check_apart(d, op, &a->out, &a->lse) && check_cap(d, op, a->scale, a->softcap) &&
           (!a->sinks || check_floats(d, op, "sinks", a->sinks)) && check_some_heads(d, op, H, a->head0, a->n_heads) &&
           check_seqs(d, op, a->window, a->n_seqs, a->q_start, T);
}

bool check_attn_back(struct dev *d, const struct attn_back_args *a)
{
    const char *op = "attn_back";
    int T = a->qkv.rows, H = a->heads;
    const struct mat *given[] = {&a->dout, &a->out, &a->lse, &a->qkv};
    if (!(check_heads(d, op, "qkv", &a->qkv, H, a->kv_heads, a->head_dim) &&
          check_mat(d, op, "dqkv", &a->dqkv, T, a->qkv.cols) && check_mat(d, op, "out", &a->out, T, H * a->head_dim) &&
          check_mat(d, op, "dout", &a->dout, T, H * a->head_dim) && check_mat(d, op, "lse", &a->lse, T, H)))
        return false;
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        if (!check_apart(d, op, &a->dqkv, given[i])) return false;
    return check_cap(d, op, a->scale, a->softcap) && check_some_heads(d, op, H, a->head0, a->n_heads) &&
           check_seqs(d, op, a->window, a->n_seqs, a->q_start, T);
}

bool check_head_norm_back(struct dev *d, const struct head_norm_back_args *a)
{
    const char *op = "head_norm_back";
    need(a->head_dim > 0 && a->heads > 0 && a->col >= 0, "heads %d, head_dim %d, col %d", a->heads, a->head_dim,
         a->col);
    need((int64_t)a->col + (int64_t)a->heads * a->head_dim <= a->x.cols, "columns pass the end of x");
    need(a->eps >= 0, "eps is %g", (double)a->eps);
    need((unsigned)a->kind <= NORM_LAYER, "kind is %d", a->kind);
    return check_mat(d, op, "x", &a->x, a->x.rows, a->x.cols) && check_mat(d, op, "dx", &a->dx, a->x.rows, a->x.cols) &&
           check_apart(d, op, &a->dx, &a->x) && check_floats(d, op, "w", a->w) &&
           check_gradient(d, op, "dw", a->dw) && check_gradient(d, op, "db", a->db);
}

bool check_act_mul_back(struct dev *d, const struct act_mul_back_args *a)
{
    const char *op = "act_mul_back";
    int T = a->dy.rows, F = a->dy.cols;
    return check_mat(d, op, "dy", &a->dy, T, F) && check_mat(d, op, "gu", &a->gu, T, 2 * F) &&
           check_mat(d, op, "dgu", &a->dgu, T, 2 * F) && check_same_or_apart(d, op, &a->dgu, &a->gu) &&
           check_apart(d, op, &a->dgu, &a->dy) && check_act(d, op, a->act, true);
}

bool check_act_back(struct dev *d, const struct act_back_args *a)
{
    const char *op = "act_back";
    int T = a->dy.rows, F = a->dy.cols;
    return check_mat(d, op, "dy", &a->dy, T, F) && check_mat(d, op, "x", &a->x, T, F) &&
           check_mat(d, op, "dx", &a->dx, T, F) && check_same_or_apart(d, op, &a->dx, &a->dy) &&
           check_apart(d, op, &a->dx, &a->x) && check_act(d, op, a->act, false);
}

bool check_cross_entropy(struct dev *d, const struct cross_entropy_args *a)
{
    const char *op = "cross_entropy";
    int R = a->logits.rows, V = a->logits.cols;
    if (!check_mat(d, op, "logits", &a->logits, R, V)) return false;
    if (R == 0) return true;
    need(a->target && a->hit, "target or hit is NULL");
    const int32_t *target = check_look(d, op, a->target, (size_t)R);
    if (!target) return false;
    for (int r = 0; r < R; r++) need(target[r] >= -1 && target[r] < V, "target[%d] is %d of %d", r, target[r], V);
    return check_cap(d, op, a->logit_scale, a->softcap) && check_floats(d, op, "loss", a->loss) &&
           (!a->back || check_floats(d, op, "scale", a->scale));
}

bool check_dropout(struct dev *d, const struct dropout_args *a)
{
    const char *op = "dropout";
    need(a->p >= 0 && a->p < 1, "p is %g", (double)a->p);
    return check_mat(d, op, "x", &a->x, a->x.rows, a->x.cols);
}

bool check_square_sum(struct dev *d, const struct square_sum_args *a)
{
    const char *op = "square_sum";
    need(a->sum && (uintptr_t)a->sum % sizeof(double) == 0, "sum is NULL or not aligned");
    return a->n == 0 || check_floats(d, op, "x", a->x);
}

bool check_adamw(struct dev *d, const struct adamw_args *a)
{
    const char *op = "adamw";
    need(a->beta1 >= 0 && a->beta1 < 1 && a->beta2 >= 0 && a->beta2 < 1, "beta1 %g, beta2 %g", a->beta1, a->beta2);
    need(a->bias1 > 0 && a->bias2 > 0, "bias1 %g, bias2 %g", a->bias1, a->bias2);
    need(a->lr >= 0 && a->eps >= 0 && a->decay >= 0, "lr %g, eps %g, decay %g", a->lr, a->eps, a->decay);
    return a->n == 0 || (check_floats(d, op, "p", a->p) && check_floats(d, op, "m", a->m) &&
                         check_floats(d, op, "v", a->v) && check_floats(d, op, "g", a->g));
}

bool check_adamw_8bit(struct dev *d, const struct adamw_8bit_args *a)
{
    const char *op = "adamw_8bit";
    need(a->beta1 >= 0 && a->beta1 < 1 && a->beta2 >= 0 && a->beta2 < 1, "beta1 %g, beta2 %g", a->beta1, a->beta2);
    need(a->bias1 > 0 && a->bias2 > 0, "bias1 %g, bias2 %g", a->bias1, a->bias2);
    need(a->lr >= 0 && a->eps >= 0 && a->decay >= 0, "lr %g, eps %g, decay %g", a->lr, a->eps, a->decay);
    if (a->n == 0) return true;
    need(a->m && a->v, "m or v is NULL");
    return check_floats(d, op, "p", a->p) && check_floats(d, op, "g", a->g) &&
           check_floats(d, op, "m_scale", a->m_scale) && check_floats(d, op, "v_scale", a->v_scale);
}

bool check_axpby(struct dev *d, const struct axpby_args *a)
{
    const char *op = "axpby";
    need(isfinite(a->alpha) && isfinite(a->beta), "alpha %g, beta %g", a->alpha, a->beta);
    if (a->n == 0) return true;
    need(a->x == a->y || a->x + a->n <= a->y || a->y + a->n <= a->x, "x is partly y");
    return check_floats(d, op, "x", a->x) && check_floats(d, op, "y", a->y);
}
