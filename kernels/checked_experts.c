/* The checks of the ops of experts: see checked.h. */
#include "kernels/checked.h"

bool check_route(struct dev *d, const struct route_args *a)
{
    const char *op = "route";
    int T = a->logits.rows, n = a->logits.cols, k = a->weight.cols;
    need(n >= 1 && n <= EXPERTS_MAX, "%d experts; 1 to %d are possible", n, EXPERTS_MAX);
    need(k >= 1 && k <= n && k <= EXPERTS_CHOSEN_MAX, "%d of %d experts are chosen", k, n);
    need((int64_t)T * k <= INT32_MAX, "%d rows of %d choices", T, k);
    need(a->expert && a->place && a->token && a->start, "expert, place, token or start is NULL");
    return check_mat(d, op, "logits", &a->logits, T, n) && check_mat(d, op, "weight", &a->weight, T, k) &&
           check_apart(d, op, &a->logits, &a->weight);
}

/* n weights of one shape and type; start begins at 0, does not descend and ends at R. */
static bool check_experts(struct dev *d, const char *op, const struct weight *const *w, const int32_t *start, int n,
                          int R, const struct made **first)
{
    need(n >= 1 && n <= EXPERTS_MAX && w, "%d experts, or w is NULL", n);
    *first = find_made(d, w[0]);
    for (int e = 0; e < n; e++) {
        const struct made *m = find_made(d, w[e]);
        need(m && m->rows, "w[%d] is not a weight of this device", e);
        need(m->t == (*first)->t && m->rows == (*first)->rows && m->cols == (*first)->cols &&
                 m->gate_up == (*first)->gate_up,
             "w[%d] is of another type or shape than w[0]", e);
        need(!m->ordered, "w[%d] has an order of columns", e);
    }
    need(start, "start is NULL");
    if (!(start = check_look(d, op, start, (size_t)n + 1))) return false;
    for (int e = 0; e < n; e++)
        need(start[e] <= start[e + 1], "start[%d] is %d, after %d", e + 1, start[e + 1], start[e]);
    need(start[0] == 0 && start[n] == R, "start is from %d to %d, for %d rows", start[0], start[n], R);
    return true;
}

bool check_experts_linear(struct dev *d, const struct experts_linear_args *a)
{
    const char *op = "experts_linear";
    const struct made *w = NULL;
    int R = a->x.rows;
    return check_experts(d, op, a->w, a->start, a->n, R, &w) && check_mat(d, op, "x", &a->x, R, w->cols) &&
           check_mat(d, op, "y", &a->y, R, w->rows) && check_apart(d, op, &a->x, &a->y) &&
           (!a->b || check_floats(d, op, "b", a->b));
}

bool check_experts_gate_up(struct dev *d, const struct experts_gate_up_args *a)
{
    const char *op = "experts_gate_up";
    const struct made *w = NULL;
    int R = a->x.rows, F = a->y.cols;
    if (!check_experts(d, op, a->w, a->start, a->n, R, &w)) return false;
    need(w->gate_up && w->rows == 2 * F, "y has %d columns, w[0] %d rows, or is no gate_up weight", F, w->rows);
    return check_mat(d, op, "x", &a->x, R, w->cols) && check_mat(d, op, "y", &a->y, R, F) &&
           check_apart(d, op, &a->x, &a->y) && (!a->b || check_floats(d, op, "b", a->b)) &&
           check_act(d, op, a->act, true) &&
           (d->ops->fused_gate_up || (a->tmp.rows >= R && check_mat(d, op, "tmp", &a->tmp, a->tmp.rows, 2 * F) &&
                                      check_apart(d, op, &a->tmp, &a->x) && check_apart(d, op, &a->tmp, &a->y)));
}

bool check_combine(struct dev *d, const struct combine_args *a)
{
    const char *op = "combine";
    int T = a->y.rows, C = a->y.cols;
    need(a->k >= 1 && a->k <= EXPERTS_CHOSEN_MAX && (int64_t)T * a->k <= INT32_MAX, "k is %d", a->k);
    if (!check_mat(d, op, "y", &a->y, T, C) || !check_mat(d, op, "x", &a->x, a->x.rows, C) ||
        !check_apart(d, op, &a->y, &a->x) || !check_index(d, op, "place", a->place, T * a->k, a->x.rows))
        return false;
    if (a->weight.p && (!check_mat(d, op, "weight", &a->weight, T, a->k) || !check_apart(d, op, &a->y, &a->weight)))
        return false;
    if (a->gate.p && (!check_mat(d, op, "gate", &a->gate, T, 1) || !check_apart(d, op, &a->y, &a->gate))) return false;
    if (!a->shared.p) return true;
    if (!check_mat(d, op, "shared", &a->shared, T, C)) return false;
    return (a->shared.p == a->y.p && a->shared.ld == a->y.ld) || check_apart(d, op, &a->y, &a->shared);
}

static bool same_or_apart(struct dev *d, const char *op, const struct mat *a, const struct mat *b)
{
    return (a->p == b->p && a->ld == b->ld) || check_apart(d, op, a, b);
}

bool check_combine_back(struct dev *d, const struct combine_back_args *a)
{
    const char *op = "combine_back";
    int T = a->dy.rows, C = a->dy.cols;
    need(a->k >= 1 && a->k <= EXPERTS_CHOSEN_MAX && (int64_t)T * a->k <= INT32_MAX, "k is %d", a->k);
    if (!check_mat(d, op, "dy", &a->dy, T, C) || !check_mat(d, op, "x", &a->x, a->x.rows, C) ||
        !check_mat(d, op, "dx", &a->dx, a->x.rows, C) || !check_mat(d, op, "weight", &a->weight, T, a->k) ||
        !check_mat(d, op, "dweight", &a->dweight, T, a->k) || !same_or_apart(d, op, &a->dx, &a->x) ||
        !check_apart(d, op, &a->dx, &a->dy) || !check_index(d, op, "place", a->place, T * a->k, a->x.rows))
        return false;
    if (a->gate.p && !check_mat(d, op, "gate", &a->gate, T, 1)) return false;
    if (a->dshared.p && (!check_mat(d, op, "dshared", &a->dshared, T, C) || !same_or_apart(d, op, &a->dshared, &a->dy)))
        return false;
    need(!a->dgate.p || a->gate.p, "dgate without a gate");
    return !a->dgate.p || (check_mat(d, op, "dgate", &a->dgate, T, 1) && check_mat(d, op, "shared", &a->shared, T, C) &&
                           check_apart(d, op, &a->dgate, &a->gate));
}

bool check_route_back(struct dev *d, const struct route_back_args *a)
{
    const char *op = "route_back";
    int T = a->dlogits.rows, n = a->dlogits.cols, k = a->weight.cols;
    need(n >= 1 && n <= EXPERTS_MAX && k >= 1 && k <= n && k <= EXPERTS_CHOSEN_MAX, "%d of %d experts", k, n);
    return check_mat(d, op, "dlogits", &a->dlogits, T, n) && check_mat(d, op, "logits", &a->logits, T, n) &&
           check_mat(d, op, "weight", &a->weight, T, k) && check_mat(d, op, "dweight", &a->dweight, T, k) &&
           check_apart(d, op, &a->dlogits, &a->logits) && check_index(d, op, "expert", a->expert, T * k, n);
}
