/* Rows in the order of a weight's columns (order of struct weight_block), and back. */
#include "kernels/cpu/cpu.h"

struct order_args {
    const uint32_t *order;
    const struct mat *sorted, *inputs;
};

static void sort_row(const struct rows_run *r, int t)
{
    const struct order_args *a = r->args;
    const float *x = mat_row(a->inputs, t);
    float *to = mat_row(a->sorted, t);
    for (int k = 0; k < a->sorted->cols; k++) to[k] = x[a->order[k]];
}

static void unsort_row(const struct rows_run *r, int t)
{
    const struct order_args *a = r->args;
    const float *from = mat_row(a->sorted, t);
    float *x = mat_row(a->inputs, t);
    for (int k = 0; k < a->sorted->cols; k++) x[a->order[k]] = from[k];
}

struct mat order_columns(struct dev *head, const struct weight *w, const struct mat *x)
{
    struct cpu_dev *d = cpu_of(head);
    float *p = scratch_get(&d->ordered, (size_t)x->rows * (size_t)x->cols * sizeof *p);
    struct mat sorted = mat_f32(p, x->rows, x->cols);
    if (p) rows_run(head, sort_row, &(struct order_args){w->order, &sorted, x}, x->rows, x->cols);
    return sorted;
}

void order_inputs(struct dev *head, const struct weight *w, struct mat *x, const struct mat *from)
{
    rows_run(head, unsort_row, &(struct order_args){w->order, from, x}, x->rows, x->cols);
}
