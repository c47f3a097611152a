/* Fused ops composed of basic ones, for devices that have no kernel of their own. Each composition is also the
 * oracle of the fused kernels elsewhere: on one device, fused and composed results are equal bit for bit. */
#include "kernels/dev.h"

/* `out` holds norm(y) until it is added. */
static void compose_add_norm(struct dev *d, const struct add_norm_args *a)
{
    if (a->post_w)
        d->ops->norm(d, &(struct norm_args){
                            .out = a->out, .x = a->y, .w = a->post_w, .b = a->post_b, .eps = a->eps, .kind = a->kind});
    d->ops->add(d, &(struct add_args){.x = a->x, .y = a->post_w ? a->out : a->y});
    d->ops->norm(d,
                 &(struct norm_args){
                     .out = a->out, .x = a->x, .w = a->w, .b = a->b, .eps = a->eps, .kind = a->kind, .next = a->next});
}

static void compose_gate_up(struct dev *d, const struct gate_up_args *a)
{
    struct mat both = a->tmp;
    both.rows = a->x.rows;
    d->ops->linear(d, &(struct linear_args){.y = both, .x = a->x, .w = a->w, .b = a->b});
    d->ops->act_mul(d, &(struct act_mul_args){.out = a->y, .gu = both, .act = a->act});
}

static void compose_experts_gate_up(struct dev *d, const struct experts_gate_up_args *a)
{
    struct mat both = a->tmp;
    both.rows = a->x.rows;
    d->ops->experts_linear(
        d, &(struct experts_linear_args){.y = both, .x = a->x, .w = a->w, .b = a->b, .start = a->start, .n = a->n});
    d->ops->act_mul(d, &(struct act_mul_args){.out = a->y, .gu = both, .act = a->act});
}

void compose_fill(struct dev_ops *ops)
{
    if (!ops->add_norm) ops->add_norm = compose_add_norm;
    ops->fused_gate_up = ops->gate_up && ops->experts_gate_up;
    if (!ops->gate_up) ops->gate_up = compose_gate_up;
    if (!ops->experts_gate_up) ops->experts_gate_up = compose_experts_gate_up;
}
