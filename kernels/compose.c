/* Fused ops written with basic ones, for devices that have no kernel of their own.  Each is also the oracle of the
 * fused kernels elsewhere: *fused == composed*, bit for bit on one device. */
#include "kernels/dev.h"

static void compose_add_norm(struct dev *d, const struct add_norm_args *a)
{
    d->ops->add(d, &(struct add_args){.x = a->x, .y = a->y});
    d->ops->norm(d,
                 &(struct norm_args){.out = a->out, .x = a->x, .w = a->w, .b = a->b, .eps = a->eps, .kind = a->kind});
}

void compose_fill(struct dev_ops *ops)
{
    if (!ops->add_norm) ops->add_norm = compose_add_norm;
}
