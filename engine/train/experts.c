#include "engine/train/experts.h"

void train_experts_take(struct train_experts *w, const struct model_config *c, int tokens,
                        void *(*take)(void *arg, size_t n, size_t size), void *arg)
{
    struct block_experts b = model_experts(c);
    int rows = tokens * b.chosen;
    const struct {
        struct mat *m;
        int rows, cols;
    } mats[] = {{&w->router, tokens, b.count + b.gate},
                {&w->drouter, tokens, b.count + b.gate},
                {&w->weight, tokens, b.chosen},
                {&w->dweight, tokens, b.chosen},
                {&w->x, rows, c->hidden},
                {&w->up, rows, 2 * b.inter},
                {&w->ff, rows, b.inter},
                {&w->shared, b.gate ? tokens : 0, c->hidden}};
    int32_t **ints[] = {&w->expert, &w->place, &w->token, &w->start};
    if (!b.count) return;
    for (size_t i = 0; i < sizeof mats / sizeof *mats; i++) {
        size_t n = (size_t)mats[i].rows * (size_t)mats[i].cols;
        *mats[i].m = mat_f32(n ? take(arg, n, sizeof(float)) : NULL, mats[i].rows, mats[i].cols);
    }
    for (int i = 0; i < 4; i++) *ints[i] = take(arg, (size_t)(i < 3 ? rows : b.count + 1), sizeof(int32_t));
}

static struct mat rows_cols(struct mat m, int rows, int cols)
{
    return mat_f32(m.p, rows, cols);
}

/* Reads which rows are whose.  On a device that only records sizes nothing is read, and the first expert has all. */
static void read_start(struct op_chunks c, struct train_experts *w, int n, int rows)
{
    w->first[0] = 0;
    for (int e = 1; e <= n; e++) w->first[e] = rows;
    scheduler_gate_pass(c.gate);
    c.d->ops->download(c.d, w->first, w->start, ((size_t)n + 1) * sizeof *w->first);
}

/* The rows of expert e. */
static struct mat rows_of(const struct train_experts *w, struct mat m, int e)
{
    return mat_rows(m, w->first[e], w->first[e + 1] - w->first[e]);
}

/* The rows of each expert: y = x W^T + b, b (n, cols of y) or NULL.  slices: as in chunked_linear */
static void linear(struct op_chunks c, const struct train_experts *w, struct mat y, struct mat x,
                   struct weight *const *weight, const float *b, int n, bool slices)
{
    for (int e = 0; e < n; e++) {
        const float *own = b ? b + (size_t)e * (size_t)y.cols : NULL;
        chunked_linear(c, (struct linear_args){rows_of(w, y, e), rows_of(w, x, e), weight[e], own, 0}, slices);
    }
}

/* The rows of each expert: dx = dy W. */
static void linear_back(struct op_chunks c, const struct train_experts *w, struct mat dx, struct mat dy,
                        struct weight *const *weight, int n, bool slices)
{
    for (int e = 0; e < n; e++)
        chunked_linear_back(c, (struct linear_back_args){rows_of(w, dx, e), rows_of(w, dy, e), weight[e], false, 0},
                            slices);
}

/* How many of the `left` tokens the next call takes, of an op that moves `floats` floats for each.  Passes the gate. */
static int tokens(struct op_chunks c, int left, double floats)
{
    scheduler_gate_pass(c.gate);
    return scheduler_gate_rows(c.gate, WORK_MOVE, left, floats, 0);
}

static void combine(struct op_chunks c, struct combine_args a)
{
    for (int t = 0, n; t < a.y.rows; t += n) {
        struct combine_args part = a;
        n = tokens(c, a.y.rows - t, (a.k + 2.0) * a.y.cols);
        part.y = mat_rows(a.y, t, n);
        part.weight = mat_rows(a.weight, t, n);
        part.shared = mat_rows(a.shared, t, n);
        part.gate = mat_rows(a.gate, t, n);
        part.place += (size_t)t * (size_t)a.k;
        op_combine(c.d, part);
    }
}

static void combine_back(struct op_chunks c, struct combine_back_args a)
{
    for (int t = 0, n; t < a.dy.rows; t += n) {
        struct combine_back_args part = a;
        n = tokens(c, a.dy.rows - t, (3.0 * a.k + 4) * a.dy.cols);
        part.dweight = mat_rows(a.dweight, t, n);
        part.dy = mat_rows(a.dy, t, n);
        part.weight = mat_rows(a.weight, t, n);
        part.shared = mat_rows(a.shared, t, n);
        part.gate = mat_rows(a.gate, t, n);
        part.dshared = mat_rows(a.dshared, t, n);
        part.dgate = mat_rows(a.dgate, t, n);
        part.place += (size_t)t * (size_t)a.k;
        op_combine_back(c.d, part);
    }
}

/* Everything up to the experts' outputs, in w->x; what the backward pass needs stays in the other buffers. */
static void run(struct op_chunks c, struct train_experts *w, const struct layer *l, struct mat h)
{
    const struct block_experts *b = &l->b->experts;
    int T = h.rows, rows = T * b->chosen;
    struct mat router = rows_cols(w->router, T, b->count + b->gate), up = rows_cols(w->up, rows, 2 * b->inter);
    struct mat x = rows_cols(w->x, rows, h.cols), ff = rows_cols(w->ff, rows, b->inter);
    chunked_linear(c, (struct linear_args){router, h, l->w->router, l->w->router_b, 0}, true);
    scheduler_gate_pass(c.gate);
    op_route(c.d, (struct route_args){mat_cols(router, 0, b->count), rows_cols(w->weight, T, b->chosen), w->expert,
                                      w->place, w->token, w->start, b->normalise});
    read_start(c, w, b->count, rows);
    chunked_rows(c, (struct rows_args){x, h, w->token});
    linear(c, w, up, x, l->w->expert_up, l->w->expert_up_b, b->count, false);
    chunked_act_mul(c, (struct act_mul_args){ff, up, l->b->act});
    linear(c, w, x, ff, l->w->expert_down, l->w->expert_down_b, b->count, true);
}

void train_experts_forward(struct op_chunks c, struct train_experts *w, const struct layer *l, struct mat h,
                           struct mat y)
{
    const struct block_experts *b = &l->b->experts;
    int T = h.rows;
    run(c, w, l, h);
    struct combine_args sum = {.y = y,
                               .x = rows_cols(w->x, T * b->chosen, h.cols),
                               .weight = rows_cols(w->weight, T, b->chosen),
                               .place = w->place,
                               .k = b->chosen};
    if (l->b->inter) sum.shared = y;
    if (l->b->inter && b->gate) sum.gate = mat_cols(rows_cols(w->router, T, b->count + 1), b->count, 1);
    combine(c, sum);
}

struct mat train_experts_back(struct op_chunks c, struct train_experts *w, const struct layer *l, struct mat h,
                              struct mat ff, struct mat dy)
{
    const struct block_experts *b = &l->b->experts;
    int T = h.rows, rows = T * b->chosen;
    struct mat x = rows_cols(w->x, rows, h.cols), weight = rows_cols(w->weight, T, b->chosen);
    struct mat dweight = rows_cols(w->dweight, T, b->chosen), shared = rows_cols(w->shared, T, h.cols);
    struct mat router = rows_cols(w->router, T, b->count + b->gate), up = rows_cols(w->up, rows, 2 * b->inter);
    struct mat drouter = rows_cols(w->drouter, T, b->count + b->gate), dff = rows_cols(w->ff, rows, b->inter);
    run(c, w, l, h);
    struct combine_back_args sum = {
        .dx = x, .dweight = dweight, .dy = dy, .x = x, .weight = weight, .place = w->place, .k = b->chosen};
    if (l->b->inter && b->gate) {
        chunked_linear(c, (struct linear_args){shared, ff, l->w->down, l->w->down_b, 0}, true);
        sum.shared = sum.dshared = shared;
        sum.gate = mat_cols(router, b->count, 1);
        sum.dgate = mat_cols(drouter, b->count, 1);
    }
    combine_back(c, sum);
    scheduler_gate_pass(c.gate);
    op_route_back(c.d, (struct route_back_args){mat_cols(drouter, 0, b->count), mat_cols(router, 0, b->count), dweight,
                                                weight, w->expert, b->normalise});
    linear_back(c, w, dff, x, l->w->expert_down, b->count, true);
    chunked_act_mul_back(c, (struct act_mul_back_args){up, up, dff, l->b->act});
    linear_back(c, w, x, up, l->w->expert_up, b->count, false);
    return sum.dshared.p ? shared : dy;
}

void train_experts_input(struct op_chunks c, const struct train_experts *w, const struct layer *l, struct mat dh)
{
    const struct block_experts *b = &l->b->experts;
    int T = dh.rows;
    struct combine_args sum = {
        .y = dh, .x = rows_cols(w->x, T * b->chosen, dh.cols), .place = w->place, .k = b->chosen};
    if (l->b->inter) sum.shared = dh;
    combine(c, sum);
    struct mat drouter = rows_cols(w->drouter, T, b->count + b->gate);
    chunked_linear_back(c, (struct linear_back_args){dh, drouter, l->w->router, true, 0}, true);
}
