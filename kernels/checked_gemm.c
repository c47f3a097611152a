/* The checks of the GEMMs of training: see checked.h. */
#include "kernels/checked.h"

bool check_gemm(struct dev *d, const struct gemm_args *a)
{
    const char *op = "gemm";
    int M = a->c.rows, N = a->c.cols, K = a->ta ? a->a.rows : a->a.cols;
    return check_mat(d, op, "c", &a->c, M, N) && check_mat(d, op, "a", &a->a, a->ta ? K : M, a->ta ? M : K) &&
           check_mat(d, op, "b", &a->b, a->tb ? N : K, a->tb ? K : N) && check_apart(d, op, &a->c, &a->a) &&
           check_apart(d, op, &a->c, &a->b);
}

bool check_linear_back(struct dev *d, const struct linear_back_args *a)
{
    const char *op = "linear_back";
    const struct made *w = find_made(d, a->w);
    need(w && w->rows, "w is not a weight of this device");
    return check_slice(d, op, w, a->first, &a->dy, "dy", BACK_SLICE) &&
           check_mat(d, op, "dy", &a->dy, a->dy.rows, a->dy.cols) &&
           check_mat(d, op, "dx", &a->dx, a->dy.rows, w->cols) && check_apart(d, op, &a->dx, &a->dy);
}

static bool check_lora_group(struct dev *d, const struct lora_args *a, const struct lora_group *g)
{
    const char *op = "lora";
    need(g->row0 >= 0 && g->rows >= 0 && (int64_t)g->row0 + g->rows <= a->x.rows, "a group of %d rows from %d, of %d",
         g->rows, g->row0, a->x.rows);
    for (const struct lora_group *o = a->group; o < g; o++)
        need(g->row0 >= o->row0 + o->rows || o->row0 >= g->row0 + g->rows, "two groups share rows");
    need(g->n_parts >= 0 && (g->part || !g->n_parts), "n_parts %d, or part is NULL", g->n_parts);
    for (const struct lora_part *p = g->part; p < g->part + g->n_parts; p++) {
        need(p->r > 0 && p->n > 0 && p->col >= 0 && (int64_t)p->col + p->n <= a->y.cols,
             "r %d, columns %d from %d of %d", p->r, p->n, p->col, a->y.cols);
        if (!check_floats(d, op, "a", p->a) || !check_floats(d, op, "b", p->b)) return false;
    }
    return true;
}

bool check_lora(struct dev *d, const struct lora_args *a)
{
    const char *op = "lora";
    if (!check_mat(d, op, "x", &a->x, a->x.rows, a->x.cols) || !check_mat(d, op, "y", &a->y, a->x.rows, a->y.cols) ||
        !check_apart(d, op, &a->x, &a->y))
        return false;
    need(a->n_groups >= 0 && (a->group || !a->n_groups), "n_groups %d, or group is NULL", a->n_groups);
    for (int i = 0; i < a->n_groups; i++)
        if (!check_lora_group(d, a, a->group + i)) return false;
    return true;
}

bool check_embed_back(struct dev *d, const struct embed_back_args *a)
{
    const char *op = "embed_back";
    int T = a->dx.rows, C = a->dx.cols;
    return check_cap(d, op, a->scale, 0) && check_mat(d, op, "dx", &a->dx, T, C) &&
           check_mat(d, op, "dtable", &a->dtable, a->dtable.rows, C) &&
           check_index(d, op, "id", a->id, T, a->dtable.rows) && check_apart(d, op, &a->dx, &a->dtable) &&
           (!a->dpos.p || (check_mat(d, op, "dpos", &a->dpos, a->dpos.rows, C) &&
                           check_index(d, op, "pos", a->pos, T, a->dpos.rows) && check_apart(d, op, &a->dx, &a->dpos) &&
                           check_apart(d, op, &a->dtable, &a->dpos)));
}

bool check_col_sum(struct dev *d, const struct col_sum_args *a)
{
    const char *op = "col_sum";
    struct mat out = mat_f32(a->out, 1, a->x.cols);
    return check_mat(d, op, "x", &a->x, a->x.rows, a->x.cols) && check_floats(d, op, "out", a->out) &&
           check_apart(d, op, &a->x, &out);
}
