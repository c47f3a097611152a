#include "engine/train/experts.h"

/* Estimate of reading one weight element, in multiply-adds: see op_chunks.c. */
#define READ_WEIGHT 16.0

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

static const struct weight *const *weights(struct weight **w)
{
    return (const struct weight *const *)w;
}

/* Passes the gate for a GEMM of the experts, which is not split. */
static void pass(struct op_chunks c, enum train_work work, const struct block_experts *b, int rows, double matrix)
{
    double touched = rows < b->count ? rows : b->count;
    scheduler_gate_pass(c.gate);
    scheduler_gate_cost(c.gate, work, matrix * (rows + READ_WEIGHT * touched));
}

/* Everything up to the experts' outputs, in w->x; what the backward pass needs stays in the other buffers. */
static void run(struct op_chunks c, const struct train_experts *w, const struct layer *l, struct mat h)
{
    const struct block_experts *b = &l->b->experts;
    int T = h.rows, rows = T * b->chosen;
    double matrix = (double)b->inter * h.cols;
    struct mat router = rows_cols(w->router, T, b->count + b->gate), up = rows_cols(w->up, rows, 2 * b->inter);
    struct mat x = rows_cols(w->x, rows, h.cols), ff = rows_cols(w->ff, rows, b->inter);
    chunked_linear(c, (struct linear_args){router, h, l->w->router, NULL, 0}, true);
    scheduler_gate_pass(c.gate);
    op_route(c.d, (struct route_args){mat_cols(router, 0, b->count), rows_cols(w->weight, T, b->chosen), w->expert,
                                      w->place, w->token, w->start, b->normalise});
    chunked_rows(c, (struct rows_args){x, h, w->token});
    pass(c, WORK_LINEAR, b, rows, 2 * matrix);
    op_experts_linear(c.d, (struct experts_linear_args){up, x, weights(l->w->expert_up), NULL, w->start, b->count});
    chunked_act_mul(c, (struct act_mul_args){ff, up, l->b->act});
    pass(c, WORK_LINEAR, b, rows, matrix);
    op_experts_linear(c.d, (struct experts_linear_args){x, ff, weights(l->w->expert_down), NULL, w->start, b->count});
}

void train_experts_forward(struct op_chunks c, const struct train_experts *w, const struct layer *l, struct mat h,
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
    scheduler_gate_pass(c.gate);
    op_combine(c.d, sum);
}

struct mat train_experts_back(struct op_chunks c, const struct train_experts *w, const struct layer *l, struct mat h,
                              struct mat ff, struct mat dy)
{
    const struct block_experts *b = &l->b->experts;
    int T = h.rows, rows = T * b->chosen;
    double matrix = (double)b->inter * h.cols;
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
    scheduler_gate_pass(c.gate);
    op_combine_back(c.d, sum);
    scheduler_gate_pass(c.gate);
    op_route_back(c.d, (struct route_back_args){mat_cols(drouter, 0, b->count), mat_cols(router, 0, b->count), dweight,
                                                weight, w->expert, b->normalise});
    pass(c, WORK_BACK, b, rows, matrix);
    op_experts_linear_back(c.d,
                           (struct experts_linear_back_args){dff, x, weights(l->w->expert_down), w->start, b->count});
    chunked_act_mul_back(c, (struct act_mul_back_args){up, up, dff, l->b->act});
    pass(c, WORK_BACK, b, rows, 2 * matrix);
    op_experts_linear_back(c.d, (struct experts_linear_back_args){x, up, weights(l->w->expert_up), w->start, b->count});
    return sum.dshared.p ? shared : dy;
}

void train_experts_input(struct op_chunks c, const struct train_experts *w, const struct layer *l, struct mat dh)
{
    const struct block_experts *b = &l->b->experts;
    int T = dh.rows;
    struct combine_args sum = {
        .y = dh, .x = rows_cols(w->x, T * b->chosen, dh.cols), .place = w->place, .k = b->chosen};
    if (l->b->inter) sum.shared = dh;
    scheduler_gate_pass(c.gate);
    op_combine(c.d, sum);
    struct mat drouter = rows_cols(w->drouter, T, b->count + b->gate);
    chunked_linear_back(c, (struct linear_back_args){dh, drouter, l->w->router, true, 0}, true);
}
