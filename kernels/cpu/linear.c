/* The driver of matrix products: quantises the activations once, then cuts the output into tasks. */
#include "kernels/cpu/cpu.h"

struct lin_run {
    struct lin_job job;
    const struct isa *isa;
    int panels_per_task, rows_per_task, panel_tasks;
    int rows_per_quant_task;
};

static void quant_task(void *ctx, int task, int worker)
{
    struct lin_run *r = ctx;
    struct lin_job *j = &r->job;
    int end = (task + 1) * r->rows_per_quant_task, span = j->q_ld;
    if (j->w->t == DT_I4) span = j->w->group;
    for (int t = task * r->rows_per_quant_task; t < end && t < j->x.rows; t++) {
        int8_t *q = (int8_t *)j->q + (size_t)t * j->q_ld;
        r->isa->quantise(q, (float *)j->q_step + t, mat_row(&j->x, t), j->x.cols, j->q_ld);
        for (int g = 0; g < j->sums; g++) {
            int32_t sum = 0;
            for (int k = 0; k < span; k++) sum += q[g * span + k];
            j->q_sum[(size_t)t * j->sums + g] = sum;
        }
    }
}

/* q, its steps and its sums in the device's scratch */
static bool quantise_rows(struct cpu_dev *d, struct lin_run *r)
{
    struct lin_job *j = &r->job;
    size_t T = (size_t)j->x.rows;
    j->sums = j->w->t == DT_I4 ? j->w->n_groups : 1;
    j->q_ld = (j->w->k_pad + 63) / 64 * 64;
    int8_t *q = scratch_get(&d->quant, T * ((size_t)j->q_ld + sizeof(float) + (size_t)j->sums * sizeof(int32_t)));
    if (!q) return false;
    j->q = q;
    j->q_step = (float *)(q + T * (size_t)j->q_ld);
    j->q_sum = (int32_t *)(j->q_step + T);
    double ns = (double)T * j->x.cols / 8;
    r->rows_per_quant_task = 1 + (int)(T / 256);
    cpu_run(d, quant_task, r, (int)((T + (size_t)r->rows_per_quant_task - 1) / (size_t)r->rows_per_quant_task), ns);
    return true;
}

static void lin_task(void *ctx, int task, int worker)
{
    const struct lin_run *r = ctx;
    const struct lin_job *j = &r->job;
    int panel0 = task % r->panel_tasks * r->panels_per_task, panel1 = panel0 + r->panels_per_task;
    int row0 = task / r->panel_tasks * r->rows_per_task, row1 = row0 + r->rows_per_task;
    r->isa->linear[j->w->t](j, row0, row1 < j->x.rows ? row1 : j->x.rows, panel0,
                            panel1 < j->w->panels ? panel1 : j->w->panels);
}

/* a guess at one core's time: the multiplier's or the memory's, whichever is longer */
static double lin_ns(const struct lin_job *j)
{
    double macs = (double)j->x.rows * j->w->cols * j->w->panels * PANEL;
    bool floats = j->w->t == DT_F32 || j->w->t == DT_BF16 || j->w->t == DT_F16;
    double multiply = macs / (floats ? 30 : 100), read = (double)j->w->data_bytes / 20;
    return multiply > read ? multiply : read;
}

void cpu_linear(struct dev *head, const struct linear_args *a)
{
    struct cpu_dev *d = cpu_of(head);
    struct lin_run r = {.job = {.w = a->w, .y = a->y, .x = a->x, .b = a->b}, .isa = d->isa};
    int rows = a->x.rows, panels = a->w->panels;
    if (rows == 0) return;
    if ((a->w->t == DT_I8 || a->w->t == DT_I4) && !quantise_rows(d, &r)) {
        dev_fail(head, "linear", "out of memory for %d rows of quantised activations", rows);
        return;
    }
    /* four panels is what the one-row kernels take; about eight tasks a thread evens out a busy neighbour */
    int groups = (panels + 3) / 4, want = head->threads * 8;
    int groups_per_task = groups > want ? groups / want : 1;
    r.panels_per_task = groups_per_task * 4;
    r.panel_tasks = (groups + groups_per_task - 1) / groups_per_task;
    int row_tasks = r.panel_tasks >= head->threads * 2 || rows < 48 ? 1 : (rows + 23) / 24;
    r.rows_per_task = (rows + row_tasks - 1) / row_tasks;
    row_tasks = (rows + r.rows_per_task - 1) / r.rows_per_task;
    cpu_run(d, lin_task, &r, r.panel_tasks * row_tasks, lin_ns(&r.job));
}
