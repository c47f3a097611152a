#include "engine/train/experts.h"

#include "engine/train/exact.h"

/* The largest rank of a GEMM's sites. */
static int most_rank(const struct model_config *c, const struct site *site, enum layer_gemm gemm)
{
    int most = 0;
    for (int l = 0; site && l < c->layers; l++) {
        int r = site[l * LORA_GEMMS + (int)gemm].r;
        most = r > most ? r : most;
    }
    return most;
}

void train_experts_take(struct train_experts *w, const struct model_config *c, const struct site *site, int tokens,
                        void *(*take)(void *arg, size_t n, size_t size), void *arg)
{
    struct block_experts b = model_experts(c);
    int rows = tokens * b.chosen, router = most_rank(c, site, GEMM_ROUTER), up = most_rank(c, site, GEMM_EXPERT_UP);
    int down = most_rank(c, site, GEMM_EXPERT_DOWN), most = up > down ? up : down;
    w->site = site;
    if (router > most) most = router;
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
                {&w->shared, b.gate ? tokens : 0, c->hidden},
                {&w->router_xa, router ? tokens : 0, router},
                {&w->up_xa, up ? rows : 0, up},
                {&w->down_xa, down ? rows : 0, down},
                {&w->du, most ? rows : 0, most}};
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

/* The gradients of the layer's weights; NULL: they are frozen. */
static const struct layer_grads *grads_of(const struct train_experts *w, const struct layer *l)
{
    return w->grads ? &w->grads[l->index] : NULL;
}

/* dw[e] += dy^T x over the rows of each expert; without rows it stays. */
static void weight_grads(struct op_chunks c, const struct train_experts *w, float *const *dw, struct mat dy,
                         struct mat x, int n)
{
    for (int e = 0; e < n; e++)
        if (w->first[e + 1] > w->first[e])
            chunked_weight_grad(c, dw[e], rows_of(w, dy, e), rows_of(w, x, e), 1, w->half);
}

/* ---- adapters ---------------------------------------------------------------------------------------------------- */

static const struct site *site_of(const struct train_experts *w, const struct layer *l, enum layer_gemm gemm)
{
    static const struct site none;
    return w->site ? &w->site[l->index * LORA_GEMMS + (int)gemm] : &none;
}

bool train_experts_adapted(const struct train_experts *w, const struct layer *l)
{
    return site_of(w, l, GEMM_ROUTER)->r || site_of(w, l, GEMM_EXPERT_UP)->r || site_of(w, l, GEMM_EXPERT_DOWN)->r;
}

/* The columns of a part's rank in x a^T, whose buffer may have more of them. */
static struct mat ranks(struct mat xa, int rows, const struct site *s)
{
    return mat_f32(xa.p, rows, s->r);
}

static void gemm(struct op_chunks c, const struct train_experts *w, struct mat to, struct mat a, struct mat b, bool tb,
                 float alpha, bool accumulate)
{
    chunked_gemm(c, (struct gemm_args){
                        .c = to, .a = a, .b = b, .tb = tb, .accumulate = accumulate, .half = w->half, .alpha = alpha});
}

/* xa = x a^T, y += scale xa b^T, with the matrices of expert e. */
static void adapt(struct op_chunks c, const struct train_experts *w, const struct site *s, int e, struct mat xa,
                  struct mat x, struct mat y)
{
    gemm(c, w, xa, x, mat_f32(s->a + (size_t)e * (size_t)s->r * (size_t)s->k, s->r, s->k), true, 1, false);
    if (w->exact) {
        train_exact_adapt(c, s, e, y, x);
        return;
    }
    for (int i = 0; i < s->n_parts; i++) {
        const struct site_part *t = &s->part[i];
        float *b = t->b + (size_t)e * (size_t)t->n * (size_t)t->r;
        gemm(c, w, mat_cols(y, t->col, t->n), mat_cols(xa, t->at, t->r), mat_f32(b, t->n, t->r), true, t->scale, true);
    }
}

/* du = scale dy b, db += scale dy^T xa, da += du^T x. */
static void adapt_back(struct op_chunks c, const struct train_experts *w, const struct site *s, int e, struct mat xa,
                       struct mat x, struct mat dy, struct mat du)
{
    for (int i = 0; i < s->n_parts; i++) {
        const struct site_part *t = &s->part[i];
        size_t at = (size_t)e * (size_t)t->n * (size_t)t->r;
        struct mat part = mat_cols(dy, t->col, t->n);
        gemm(c, w, mat_cols(du, t->at, t->r), part, mat_f32(t->b + at, t->n, t->r), false, t->scale, false);
        chunked_weight_grad(c, t->db + at, part, mat_cols(xa, t->at, t->r), t->scale, w->half);
    }
    chunked_weight_grad(c, s->da + (size_t)e * (size_t)s->r * (size_t)s->k, du, x, 1, w->half);
}

/* dx += du a */
static void adapt_input(struct op_chunks c, const struct train_experts *w, const struct site *s, int e, struct mat du,
                        struct mat dx)
{
    gemm(c, w, dx, du, mat_f32(s->a + (size_t)e * (size_t)s->r * (size_t)s->k, s->r, s->k), false, 1, true);
}

/* What of the experts' adapters a GEMM has: y += the output of each expert's. */
static void adapt_all(struct op_chunks c, const struct train_experts *w, const struct layer *l, enum layer_gemm gemm,
                      struct mat xa, struct mat x, struct mat y)
{
    const struct site *s = site_of(w, l, gemm);
    xa = ranks(xa, x.rows, s);
    for (int e = 0; s->r && e < l->b->experts.count; e++)
        if (w->first[e + 1] > w->first[e]) adapt(c, w, s, e, rows_of(w, xa, e), rows_of(w, x, e), rows_of(w, y, e));
}

/* The gradients of each expert's adapter; w->du for adapt_all_input. */
static void adapt_all_back(struct op_chunks c, const struct train_experts *w, const struct layer *l,
                           enum layer_gemm gemm, struct mat xa, struct mat x, struct mat dy)
{
    const struct site *s = site_of(w, l, gemm);
    struct mat du = ranks(w->du, x.rows, s);
    xa = ranks(xa, x.rows, s);
    for (int e = 0; s->r && e < l->b->experts.count; e++)
        if (w->first[e + 1] > w->first[e])
            adapt_back(c, w, s, e, rows_of(w, xa, e), rows_of(w, x, e), rows_of(w, dy, e), rows_of(w, du, e));
}

static void adapt_all_input(struct op_chunks c, const struct train_experts *w, const struct layer *l,
                            enum layer_gemm gemm, struct mat dx)
{
    const struct site *s = site_of(w, l, gemm);
    struct mat du = ranks(w->du, dx.rows, s);
    for (int e = 0; s->r && e < l->b->experts.count; e++)
        if (w->first[e + 1] > w->first[e]) adapt_input(c, w, s, e, rows_of(w, du, e), rows_of(w, dx, e));
}

/* ---- the passes -------------------------------------------------------------------------------------------------- */

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

/* The rows of experts are not those of the tokens: what the ops between route and combine write is not watched. */
static struct op_chunks unwatched(struct op_chunks c)
{
    c.watch = NULL;
    return c;
}

/* Everything up to the experts' outputs, in w->x; what the backward pass needs stays in the other buffers. */
static void run(struct op_chunks c, struct train_experts *w, const struct layer *l, struct mat h)
{
    const struct block_experts *b = &l->b->experts;
    int T = h.rows, rows = T * b->chosen;
    struct mat router = rows_cols(w->router, T, b->count + b->gate), up = rows_cols(w->up, rows, 2 * b->inter);
    struct mat x = rows_cols(w->x, rows, h.cols), ff = rows_cols(w->ff, rows, b->inter);
    const struct site *s = site_of(w, l, GEMM_ROUTER);
    chunked_linear(c, (struct linear_args){router, h, l->w->router, l->w->router_b, 0}, true);
    if (s->r) adapt(c, w, s, 0, ranks(w->router_xa, T, s), h, router);
    scheduler_gate_pass(c.gate);
    op_route(c.d, (struct route_args){mat_cols(router, 0, b->count), rows_cols(w->weight, T, b->chosen), w->expert,
                                      w->place, w->token, w->start, b->normalise});
    read_start(c, w, b->count, rows);
    chunked_rows(c, (struct rows_args){x, h, w->token});
    linear(c, w, up, x, l->w->expert_up, l->w->expert_up_b, b->count, false);
    adapt_all(c, w, l, GEMM_EXPERT_UP, w->up_xa, x, up);
    chunked_act_mul(c, (struct act_mul_args){ff, up, l->b->act});
    linear(c, w, x, ff, l->w->expert_down, l->w->expert_down_b, b->count, true);
    adapt_all(c, w, l, GEMM_EXPERT_DOWN, w->down_xa, ff, x);
}

void train_experts_forward(struct op_chunks c, struct train_experts *w, const struct layer *l, struct mat h,
                           struct mat y)
{
    const struct block_experts *b = &l->b->experts;
    int T = h.rows;
    run(unwatched(c), w, l, h);
    struct combine_args sum = {.y = y,
                               .x = rows_cols(w->x, T * b->chosen, h.cols),
                               .weight = rows_cols(w->weight, T, b->chosen),
                               .place = w->place,
                               .k = b->chosen};
    if (l->b->inter) sum.shared = y;
    if (l->b->inter && b->gate) sum.gate = mat_cols(rows_cols(w->router, T, b->count + 1), b->count, 1);
    combine(c, sum);
    op_watch_wrote(c.watch, OP_combine, NULL, y, false);
}

struct mat train_experts_back(struct op_chunks c, struct train_experts *w, const struct layer *l, struct mat h,
                              struct mat shared, struct mat dy)
{
    const struct block_experts *b = &l->b->experts;
    const struct layer_grads *g = grads_of(w, l);
    int T = h.rows, rows = T * b->chosen;
    c = unwatched(c);
    struct mat x = rows_cols(w->x, rows, h.cols), weight = rows_cols(w->weight, T, b->chosen);
    struct mat dweight = rows_cols(w->dweight, T, b->chosen);
    struct mat router = rows_cols(w->router, T, b->count + b->gate), up = rows_cols(w->up, rows, 2 * b->inter);
    struct mat drouter = rows_cols(w->drouter, T, b->count + b->gate), dff = rows_cols(w->ff, rows, b->inter);
    run(c, w, l, h);
    struct combine_back_args sum = {
        .dx = x, .dweight = dweight, .dy = dy, .x = x, .weight = weight, .place = w->place, .k = b->chosen};
    if (shared.p) {
        sum.shared = sum.dshared = shared;
        sum.gate = mat_cols(router, b->count, 1);
        sum.dgate = mat_cols(drouter, b->count, 1);
    }
    combine_back(c, sum);
    scheduler_gate_pass(c.gate);
    op_route_back(c.d, (struct route_back_args){mat_cols(drouter, 0, b->count), mat_cols(router, 0, b->count), dweight,
                                                weight, w->expert, b->normalise});
    if (g) weight_grads(c, w, g->expert_down, x, dff, b->count); /* dff is still ff */
    adapt_all_back(c, w, l, GEMM_EXPERT_DOWN, w->down_xa, dff, x);
    linear_back(c, w, dff, x, l->w->expert_down, b->count, true);
    adapt_all_input(c, w, l, GEMM_EXPERT_DOWN, dff);
    chunked_act_mul_back(c, (struct act_mul_back_args){up, up, dff, l->b->act});
    if (g || site_of(w, l, GEMM_EXPERT_UP)->r) chunked_rows(c, (struct rows_args){x, h, w->token});
    if (g) weight_grads(c, w, g->expert_up, up, x, b->count);
    adapt_all_back(c, w, l, GEMM_EXPERT_UP, w->up_xa, x, up);
    linear_back(c, w, x, up, l->w->expert_up, b->count, false);
    adapt_all_input(c, w, l, GEMM_EXPERT_UP, x);
    return sum.dshared.p ? shared : dy;
}

void train_experts_input(struct op_chunks c, const struct train_experts *w, const struct layer *l, struct mat h,
                         struct mat dh)
{
    const struct block_experts *b = &l->b->experts;
    const struct layer_grads *g = grads_of(w, l);
    int T = dh.rows;
    struct combine_args sum = {
        .y = dh, .x = rows_cols(w->x, T * b->chosen, dh.cols), .place = w->place, .k = b->chosen};
    if (l->b->inter) sum.shared = dh;
    combine(c, sum);
    op_watch_wrote(c.watch, OP_combine_back, NULL, dh, false);
    struct mat drouter = rows_cols(w->drouter, T, b->count + b->gate);
    if (g) chunked_weight_grad(c, g->router, drouter, h, 1, w->half);
    chunked_linear_back(c, (struct linear_back_args){dh, drouter, l->w->router, true, 0}, true);
    const struct site *s = site_of(w, l, GEMM_ROUTER);
    if (!s->r) return;
    adapt_back(c, w, s, 0, ranks(w->router_xa, T, s), h, drouter, ranks(w->du, T, s));
    adapt_input(c, w, s, 0, ranks(w->du, T, s), dh);
}
