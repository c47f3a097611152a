/* The drivers of row-wise ops: embed, norms, add, activations, rows. */
#include "kernels/cpu/cpu.h"

#include <string.h>

static void rows_task(void *ctx, int task, int worker)
{
    const struct rows_run *r = ctx;
    int end = (task + 1) * r->rows_per_task;
    for (int t = task * r->rows_per_task; t < end && t < r->rows; t++) r->row(r, t);
}

void rows_run(struct dev *head, void (*row)(const struct rows_run *, int), const void *args, int rows, double ns)
{
    struct cpu_dev *d = cpu_of(head);
    int n_tasks = head->threads * 4 < rows ? head->threads * 4 : rows;
    if (rows <= 0) return;
    struct rows_run r = {d->isa, args, row, rows, (rows + n_tasks - 1) / n_tasks};
    cpu_run(d, rows_task, &r, (rows + r.rows_per_task - 1) / r.rows_per_task, ns * rows);
}

static const void *table_row(const struct mat *m, int row)
{
    return (const char *)m->p + dtype_bytes(m->t, (size_t)row * m->ld);
}

static float table_at(const void *row, enum dtype t, int k)
{
    if (t == DT_F32) return ((const float *)row)[k];
    uint16_t h = ((const uint16_t *)row)[k];
    return t == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

static void embed_row(const struct rows_run *r, int t)
{
    const struct embed_args *a = r->args;
    const void *pos = a->pos_table.p ? table_row(&a->pos_table, a->pos[t]) : NULL;
    float scale = a->scale == 0 ? 1 : a->scale;
    if (a->w) {
        float *row = mat_row(&a->out, t);
        weight_row(a->w, a->id[t], row);
        if (scale != 1) r->isa->scale(row, a->out.cols, scale);
        for (int k = 0; pos && k < a->out.cols; k++) row[k] += table_at(pos, a->pos_table.t, k);
        return;
    }
    r->isa->embed(mat_row(&a->out, t), table_row(&a->table, a->id[t]), a->table.t, scale, pos, a->pos_table.t,
                  a->out.cols);
}

void cpu_embed(struct dev *d, const struct embed_args *a)
{
    rows_run(d, embed_row, a, a->out.rows, a->out.cols / 8.0);
}

static void norm_row(const struct rows_run *r, int t)
{
    const struct norm_args *a = r->args;
    r->isa->norm(mat_row(&a->out, t), mat_row(&a->x, t), a->x.cols, a->w, a->b, a->eps, a->kind);
}

void cpu_norm(struct dev *d, const struct norm_args *a)
{
    rows_run(d, norm_row, a, a->x.rows, a->x.cols / 8.0);
}

static void add_norm_row(const struct rows_run *r, int t)
{
    const struct add_norm_args *a = r->args;
    float *x = mat_row(&a->x, t), *out = mat_row(&a->out, t);
    const float *y = mat_row(&a->y, t);
    if (a->post_w) r->isa->norm(out, y, a->x.cols, a->post_w, a->post_b, a->eps, a->kind);
    r->isa->add(x, a->post_w ? out : y, a->x.cols);
    r->isa->norm(out, x, a->x.cols, a->w, a->b, a->eps, a->kind);
}

void cpu_add_norm(struct dev *d, const struct add_norm_args *a)
{
    rows_run(d, add_norm_row, a, a->x.rows, a->x.cols / 6.0);
}

static void add_row(const struct rows_run *r, int t)
{
    const struct add_args *a = r->args;
    r->isa->add(mat_row(&a->x, t), mat_row(&a->y, t), a->x.cols);
}

void cpu_add(struct dev *d, const struct add_args *a)
{
    rows_run(d, add_row, a, a->x.rows, a->x.cols / 16.0);
}

static void head_norm_row(const struct rows_run *r, int t)
{
    const struct head_norm_args *a = r->args;
    for (int h = 0; h < a->heads; h++) {
        float *x = mat_row(&a->x, t) + a->col + (size_t)h * a->head_dim;
        size_t at = a->by_head ? (size_t)h * a->head_dim : 0;
        r->isa->norm(x, x, a->head_dim, a->w + at, a->b ? a->b + at : NULL, a->eps, a->kind);
    }
}

void cpu_head_norm(struct dev *d, const struct head_norm_args *a)
{
    rows_run(d, head_norm_row, a, a->x.rows, a->heads * (a->head_dim / 8.0 + 10));
}

static void act_mul_row(const struct rows_run *r, int t)
{
    const struct act_mul_args *a = r->args;
    r->isa->act_mul(mat_row(&a->out, t), mat_row(&a->gu, t), a->out.cols, a->act);
}

void cpu_act_mul(struct dev *d, const struct act_mul_args *a)
{
    rows_run(d, act_mul_row, a, a->out.rows, a->out.cols / 2.0);
}

static void act_row(const struct rows_run *r, int t)
{
    const struct act_args *a = r->args;
    r->isa->act(mat_row(&a->x, t), a->x.cols, a->act);
}

void cpu_act(struct dev *d, const struct act_args *a)
{
    rows_run(d, act_row, a, a->x.rows, a->x.cols / 2.0);
}

static void softcap_row(const struct rows_run *r, int t)
{
    const struct softcap_args *a = r->args;
    if (a->cap > 0)
        r->isa->softcap(mat_row(&a->x, t), a->x.cols, a->scale / a->cap, a->cap);
    else
        r->isa->scale(mat_row(&a->x, t), a->x.cols, a->scale);
}

void cpu_softcap(struct dev *d, const struct softcap_args *a)
{
    rows_run(d, softcap_row, a, a->x.rows, a->x.cols / 2.0);
}

static void rows_row(const struct rows_run *r, int t)
{
    const struct rows_args *a = r->args;
    memcpy(mat_row(&a->out, t), mat_row(&a->x, a->row[t]), (size_t)a->out.cols * sizeof(float));
}

void cpu_rows(struct dev *d, const struct rows_args *a)
{
    rows_run(d, rows_row, a, a->out.rows, a->out.cols / 16.0);
}
