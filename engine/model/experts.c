#include "engine/model/experts.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/model/shard.h"

#include <stdlib.h>

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

bool experts_open_adapters(struct experts_work *w, struct dev *d, const struct model_config *c, int tokens,
                           size_t *bytes)
{
    struct block_experts x = model_experts(c);
    size_t rows = (size_t)tokens * (size_t)x.chosen;
    if (!x.count) return true;
    if (!w->group) {
        w->host_token = mem_array(rows, sizeof *w->host_token);
        w->host_start = mem_array((size_t)x.count + 1, sizeof *w->host_start);
        w->group = mem_array(rows, sizeof *w->group);
        w->part = mem_array(rows, sizeof *w->part);
    }
    return w->up.p || take_mat(d, &w->up, tokens * x.chosen, 2 * x.inter, bytes);
}

void experts_close(struct experts_work *w, struct dev *d)
{
    void *all[] = {w->router.p, w->weight.p, w->x.p, w->ff.p, w->up.p, w->expert, w->place, w->token, w->start};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) d->ops->free(d, all[i]);
    free(w->host_token);
    free(w->host_start);
    free(w->group);
    free(w->part);
    *w = (struct experts_work){0};
}

/* Which rows are of which token and expert, where an adapter of the experts needs to know it. */
static void read_rows(struct dev *d, struct experts_work *w, const struct layer *l, const struct step_batch *b)
{
    size_t rows = (size_t)b->n_tokens * (size_t)l->b->experts.chosen, experts = (size_t)l->b->experts.count;
    bool any = false;
    for (int i = 0; i < b->n_groups; i++) {
        const struct lora_gemm *of = b->group[i].lora->layer[l->index];
        any |= of[GEMM_EXPERT_UP].n || of[GEMM_EXPERT_DOWN].n;
    }
    if (!any) return;
    d->ops->download(d, w->host_token, w->token, rows * sizeof *w->host_token);
    d->ops->download(d, w->host_start, w->start, (experts + 1) * sizeof *w->host_start);
}

/* The groups of rows from n ascending groups of tokens: the rows of an expert ascend by token, so those of one group
 * are adjacent.  inputs: of the GEMM.  @return their number */
static int expert_groups(const struct experts_work *w, int experts, const struct lora_group *of, int n, int inputs)
{
    int made = 0;
    for (int e = 0; e < experts; e++)
        for (int i = w->host_start[e], g = 0, run = -1; i < w->host_start[e + 1]; i++) {
            while (g < n && w->host_token[i] >= of[g].row0 + of[g].rows) g++;
            if (g == n) break;
            if (w->host_token[i] < of[g].row0) continue;
            if (run == g) {
                w->group[made - 1].rows++;
                continue;
            }
            struct lora_part *p = &w->part[made];
            CHECK(of[g].n_parts == 1); /* a module for each of the experts' GEMMs */
            *p = of[g].part[0];
            p->a += (size_t)e * (size_t)p->r * (size_t)inputs;
            p->b += (size_t)e * (size_t)p->r * (size_t)p->n;
            w->group[made++] = (struct lora_group){i, 1, 1, p};
            run = g;
        }
    return made;
}

/* y += the output of the tokens' adapters of the experts */
static void adapt(struct dev *d, const struct experts_work *w, const struct layer *l, const struct step_batch *b,
                  enum layer_gemm gemm, struct mat y, struct mat x)
{
    int n = b->n_groups && !d->error.op ? step_batch_lora(b, l->index, gemm, 0, b->n_tokens) : 0;
    if (n) n = expert_groups(w, l->b->experts.count, b->lora, n, x.cols);
    if (n) op_lora(d, (struct lora_args){y, x, w->group, n});
}

/* With an adapter for any token all take two steps: by the ops' contract the others' bits are those of the fused op. */
static void gate_up(struct dev *d, const struct experts_work *w, const struct layer *l, const struct step_batch *batch,
                    struct mat ff, struct mat x)
{
    const struct block_experts *b = &l->b->experts;
    const struct weight *const *weight = (const struct weight *const *)l->w->expert_up;
    const float *up_b = l->w->expert_up_b;
    struct mat up = mat_f32(w->up.p, x.rows, 2 * b->inter);
    if (!batch->n_groups || !step_batch_lora(batch, l->index, GEMM_EXPERT_UP, 0, batch->n_tokens)) {
        op_experts_gate_up(d, (struct experts_gate_up_args){ff, x, weight, up_b, w->start, b->count, l->b->act, w->up});
        return;
    }
    op_experts_linear(d, (struct experts_linear_args){up, x, weight, up_b, w->start, b->count});
    adapt(d, w, l, batch, GEMM_EXPERT_UP, up, x);
    op_act_mul(d, (struct act_mul_args){ff, up, l->b->act});
}

void experts_forward(struct dev *d, struct experts_work *w, const struct layer *l, struct shard *shard,
                     struct mat own_ff, const struct step_batch *batch, struct mat h, struct mat y)
{
    const struct block_experts *b = &l->b->experts;
    int T = h.rows, rows = T * b->chosen;
    bool shared = l->b->inter > 0;
    struct mat router = mat_f32(w->router.p, T, b->count + b->gate), logits = router, gate = router;
    struct mat weight = mat_f32(w->weight.p, T, b->chosen), x = mat_f32(w->x.p, rows, h.cols);
    struct mat own = mat_f32(shard ? own_ff.p : w->ff.p, rows, b->inter), ff = own;
    const struct weight *const *down = (const struct weight *const *)l->w->expert_down;

    op_linear(d, (struct linear_args){router, h, l->w->router, l->w->router_b, 0});
    int n = batch->n_groups ? step_batch_lora(batch, l->index, GEMM_ROUTER, 0, T) : 0;
    if (n) op_lora(d, (struct lora_args){router, h, batch->lora, n});
    logits.cols = b->count;
    op_route(d, (struct route_args){logits, weight, w->expert, w->place, w->token, w->start, b->normalise});
    op_rows(d, (struct rows_args){x, h, w->token});
    read_rows(d, w, l, batch);
    gate_up(d, w, l, batch, own, x);
    if (shard) {
        ff = mat_f32(w->ff.p, rows, b->inter * comm_ranks(shard->group));
        shard_join(shard, d, own, ff);
        x = mat_f32(w->x.p, rows, y.cols);
    }
    op_experts_linear(d, (struct experts_linear_args){x, ff, down, l->w->expert_down_b, w->start, b->count});
    adapt(d, w, l, batch, GEMM_EXPERT_DOWN, x, ff);
    struct combine_args sum = {.y = y, .x = x, .weight = weight, .place = w->place, .k = b->chosen};
    if (shared) sum.shared = y;
    if (shared && b->gate) {
        gate.p = (float *)router.p + b->count;
        gate.cols = 1;
        sum.gate = gate;
    }
    op_combine(d, sum);
}
