#include "engine/model/experts.h"

static bool take(struct dev *d, void **p, size_t n, size_t *bytes)
{
    *p = d->ops->alloc(d, n * sizeof(float));
    *bytes += n * sizeof(float);
    return *p != NULL;
}

static bool take_mat(struct dev *d, struct mat *m, int rows, int cols, size_t *bytes)
{
    *m = mat_f32(NULL, rows, cols);
    return take(d, &m->p, (size_t)rows * (size_t)cols, bytes);
}

static bool take_ints(struct dev *d, int32_t **p, int n, size_t *bytes)
{
    void *at;
    bool ok = take(d, &at, (size_t)n, bytes);
    *p = at;
    return ok;
}

bool experts_open(struct experts_work *w, struct dev *d, const struct model_config *c, int tokens, size_t *bytes)
{
    struct block_experts x = model_experts(c);
    int rows = tokens * x.chosen;
    *w = (struct experts_work){0};
    if (!x.count) return true;
    return take_mat(d, &w->router, tokens, x.count + x.gate, bytes) &&
           take_mat(d, &w->weight, tokens, x.chosen, bytes) && take_mat(d, &w->x, rows, c->hidden, bytes) &&
           take_mat(d, &w->ff, rows, x.inter, bytes) &&
           (d->ops->fused_gate_up || take_mat(d, &w->up, rows, 2 * x.inter, bytes)) &&
           take_ints(d, &w->expert, rows, bytes) && take_ints(d, &w->place, rows, bytes) &&
           take_ints(d, &w->token, rows, bytes) && take_ints(d, &w->start, x.count + 1, bytes);
}

void experts_close(struct experts_work *w, struct dev *d)
{
    void *all[] = {w->router.p, w->weight.p, w->x.p, w->ff.p, w->up.p, w->expert, w->place, w->token, w->start};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) d->ops->free(d, all[i]);
    *w = (struct experts_work){0};
}

void experts_forward(struct dev *d, const struct experts_work *w, const struct layer *l, struct mat h, struct mat y)
{
    const struct block_experts *b = &l->b->experts;
    int T = h.rows, rows = T * b->chosen;
    bool shared = l->b->inter > 0;
    struct mat router = mat_f32(w->router.p, T, b->count + b->gate), logits = router, gate = router;
    struct mat weight = mat_f32(w->weight.p, T, b->chosen), x = mat_f32(w->x.p, rows, h.cols);
    struct mat ff = mat_f32(w->ff.p, rows, b->inter);
    const struct weight *const *up = (const struct weight *const *)l->w->expert_up;
    const struct weight *const *down = (const struct weight *const *)l->w->expert_down;
    const float *up_b = l->w->expert_up_b;

    op_linear(d, (struct linear_args){router, h, l->w->router, l->w->router_b, 0});
    logits.cols = b->count;
    op_route(d, (struct route_args){logits, weight, w->expert, w->place, w->token, w->start, b->normalise});
    op_rows(d, (struct rows_args){x, h, w->token});
    op_experts_gate_up(d, (struct experts_gate_up_args){ff, x, up, up_b, w->start, b->count, l->b->act, w->up});
    op_experts_linear(d, (struct experts_linear_args){x, ff, down, l->w->expert_down_b, w->start, b->count});
    struct combine_args sum = {.y = y, .x = x, .weight = weight, .place = w->place, .k = b->chosen};
    if (shared) sum.shared = y;
    if (shared && b->gate) {
        gate.p = (float *)router.p + b->count;
        gate.cols = 1;
        sum.gate = gate;
    }
    op_combine(d, sum);
}
