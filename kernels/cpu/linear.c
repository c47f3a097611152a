/* The driver of matrix products: quantises the activations once, then cuts the output into tasks. */
#include "kernels/cpu/cpu.h"

struct lin_run {
    struct lin_job job;
    const struct isa *isa;
    int pairs_per_task, rows_per_task, pair_tasks;
    const struct scratch *worker;
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
    int pair0 = task % r->pair_tasks * r->pairs_per_task, pair1 = pair0 + r->pairs_per_task;
    int row0 = task / r->pair_tasks * r->rows_per_task, row1 = row0 + r->rows_per_task;
    r->isa->linear[j->w->t](j, row0, row1 < j->x.rows ? row1 : j->x.rows, pair0,
                            pair1 < j->w->pairs ? pair1 : j->w->pairs, r->worker[worker].p);
}

/* room for one unpacked pair of int4 panels in each worker's scratch */
static bool reserve_unpacked(struct cpu_dev *d, const struct weight *w)
{
    size_t bytes = (size_t)w->n_groups * (PAIR * sizeof(float) + (size_t)w->group * PAIR);
    for (int i = 0; i < d->head.threads; i++)
        if (!scratch_get(d->worker + i, bytes)) return false;
    return true;
}

/* a guess at one core's time: the multiplier's or the memory's, whichever is longer */
static double lin_ns(const struct lin_job *j)
{
    double macs = (double)j->x.rows * j->w->cols * j->w->pairs * PAIR;
    bool floats = j->w->t == DT_F32 || j->w->t == DT_BF16 || j->w->t == DT_F16;
    double multiply = macs / (floats ? 30 : 100), read = (double)j->w->data_bytes / 20;
    return multiply > read ? multiply : read;
}

void cpu_linear(struct dev *head, const struct linear_args *a)
{
    struct cpu_dev *d = cpu_of(head);
    struct lin_run r = {.job = {.w = a->w, .y = a->y, .x = a->x, .b = a->b}, .isa = d->isa, .worker = d->worker};
    int rows = a->x.rows, pairs = a->w->pairs;
    if (rows == 0) return;
    bool ok = (a->w->t != DT_I8 && a->w->t != DT_I4) || quantise_rows(d, &r);
    if (ok && a->w->t == DT_I4) ok = reserve_unpacked(d, a->w);
    if (!ok) {
        dev_fail(head, "linear", "out of memory for %d rows of quantised activations", rows);
        return;
    }
    /* about eight tasks a thread even out a busy neighbour */
    int want = head->threads * 8;
    r.pairs_per_task = pairs > want ? pairs / want : 1;
    r.pair_tasks = (pairs + r.pairs_per_task - 1) / r.pairs_per_task;
    int row_tasks = r.pair_tasks >= head->threads * 2 || rows < 48 ? 1 : (rows + 23) / 24;
    r.rows_per_task = (rows + row_tasks - 1) / row_tasks;
    row_tasks = (rows + r.rows_per_task - 1) / r.rows_per_task;
    cpu_run(d, lin_task, &r, r.pair_tasks * row_tasks, lin_ns(&r.job));
}
