/* The driver of linear and gate_up: quantises the activations once, then divides the output into tasks. */
#include "kernels/cpu/block.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/f8.h"

enum { HALVE_ROWS = 4 };                     /* fewer rows are rounded one at a time */
enum { NEAR_BYTES = 512 << 10 };             /* quantised rows of this size stay in a core's cache for all pairs */
enum { DEPTH_MOST = 1280, DEEP_BLOCKS = 8 }; /* with more blocks than this, x and a panel should fit a core's cache */

/* Quantises one slice of columns of one block. Rows of a block share cache lines, so threads divide blocks, and when
 * there are few of these, columns. */
void lin_quantise_task(void *ctx, int task, int worker)
{
    struct lin_run *run = ctx;
    struct lin_job *j = &run->job;
    bool grouped = lin_is_grouped(j->w->t), bf16 = lin_is_half(j->w->t);
    int block = task / run->slices, from = task % run->slices * run->slice, to = from + run->slice;
    int row0 = lin_block_row(j, block), R = lin_block_row(j, block + 1) - row0;
    to = to < j->q_ld ? to : j->q_ld;
    uint32_t *words = (uint32_t *)j->q + (size_t)row0 * j->q_ld / 2;
    if (bf16 && run->tiles) {
        for (int r = row0; r < row0 + R; r++)
            lin_halve_row(run->isa, (uint16_t *)(j->q + (size_t)r * j->q_stride), mat_row(&j->x, r), j->x.cols, from, to);
        return;
    }
    if (bf16 && R >= HALVE_ROWS) {
        int n = (to < j->x.cols ? to : j->x.cols) - from;
        if (n > 0) run->isa->gemm.halve_rows(words + (size_t)from / 2 * R, R, mat_row(&j->x, row0) + from, j->x.ld, n);
        return;
    }
    for (int r = 0; r < R && bf16; r++)
        run->isa->halve_block(words + r, R, mat_row(&j->x, row0 + r), j->x.cols, from, to);
    for (int r = 0; r < R && !bf16; r++) {
        int row = lin_row(j, row0 + r), apart = run->tiles ? 1 : R;
        bool rest = lin_is_rest(j, row0 + r), outlier;
        int8_t *q = run->tiles ? j->q + (size_t)(row0 + r) * j->q_stride : j->q + (size_t)row0 * j->q_ld + r * 4;
        outlier = run->isa->quantise_block(q, apart, j->q_step + row0 + r,
                                           grouped ? j->q_sum + (size_t)row0 * j->w->n_groups + r : NULL,
                                           j->w->t == DT_I4 ? -8 : 1, j->w->group, mat_row(&j->x, row), j->x.cols, from,
                                           to, rest);
        if (from == 0) run->outlier[row] = outlier;
    }
}

void lin_halve_row(const struct isa *isa, uint16_t *out, const float *x, int n, int from, int to)
{
    int left = (to < n ? to : n) - from, padded = left > 0 ? from + (left + 15) / 16 * 16 : from;
    if (left > 0) isa->halve(out + from, DT_BF16, x + from, left);
    if (to > padded) memset(out + padded, 0, (size_t)(to - padded) * sizeof *out);
}

/* Whole lines; and sixteen rows must not meet in the same few sets of a cache. */
size_t lin_tile_stride(size_t bytes)
{
    bytes = (bytes + 63) / 64 * 64;
    return bytes % 1024 ? bytes : bytes + 64;
}

size_t lin_row_bytes(struct lin_run *r)
{
    struct lin_job *j = &r->job;
    j->q_ld = lin_is_grouped(j->w->t) ? j->w->k_pad : (j->w->k_pad + 63) / 64 * 64; /* to whole groups */
    size_t bytes = (size_t)j->q_ld * (lin_is_half(j->w->t) ? 2 : 1);
    return r->tiles ? (j->q_stride = lin_tile_stride(bytes)) : bytes;
}

int lin_most_rows(const struct lin_run *r)
{
    return r->tiles ? (int)LIN_TILE_ROWS : r->isa->block_rows[r->job.w->t];
}

void lin_cut_rows(struct lin_run *r, const struct cpu_dev *d)
{
    struct lin_job *j = &r->job;
    r->tiles = NULL;
    j->streams = d->streams;
    if (d->tiles && j->w->t == DT_I8 && j->x.rows >= LIN_TILE_LEAST) r->tiles = d->tiles->i8;
    if (d->tiles && j->w->t == DT_BF16 && r->rounded) r->tiles = d->tiles->bf16;
    int most = lin_most_rows(r);
    j->n_blocks = (j->x.rows + most - 1) / most;
}

/* Quantises x to q, its steps and its sums, in the device's scratch. */
static bool quantise_rows(struct cpu_dev *d, struct lin_run *r)
{
    enum { SLICE = 128 }; /* whole groups, and whole cache lines of a block */
    struct lin_job *j = &r->job;
    size_t T = (size_t)lin_rows(j);
    int threads = d->head.threads;
    size_t row = lin_row_bytes(r), past = r->tiles ? LIN_TILE_ROWS * row : 0; /* that tiles reach */
    int8_t *q = scratch_get(&d->quant, T * (row + sizeof(float) + (size_t)j->w->n_groups * sizeof(int32_t)) + past);
    if (!q) return false;
    j->q = q;
    j->q_step = (float *)(q + T * row);
    j->q_sum = (int32_t *)(j->q_step + T);
    int want = j->n_blocks >= threads * 4 ? 1 : threads * 4 / j->n_blocks;
    r->slice = ((j->q_ld + want - 1) / want + SLICE - 1) / SLICE * SLICE;
    /* longer runs suit memory better */
    if (lin_is_half(j->w->t) && r->slice < 512 && j->n_blocks >= threads * 4) r->slice = 512;
    double ns = (double)T * j->x.cols / 8;
    if (ns < 4000) r->slice = j->q_ld;
    r->slices = (j->q_ld + r->slice - 1) / r->slice;
    cpu_run(d, lin_quantise_task, r, j->n_blocks * r->slices, ns < 4000 ? 0 : ns * 2);
    return true;
}

/* Quantises x; in the rare case that there are outlier rows, quantises again with a second row, the residual, for
 * each. */
static bool quantise_x(struct cpu_dev *d, struct lin_run *r)
{
    struct lin_job *j = &r->job;
    int T = j->x.rows, n = 0, most = lin_most_rows(r);
    if (lin_is_half(j->w->t)) return quantise_rows(d, r);
    int32_t *rows = scratch_get(&d->outliers, (size_t)T * (2 * sizeof *rows + sizeof *r->outlier));
    if (!rows) return false;
    r->outlier = (bool *)(rows + 2 * (size_t)T);
    if (!quantise_rows(d, r)) return false;
    for (int t = 0; t < T; t++) {
        rows[n++] = t;
        if (r->outlier[t]) rows[n++] = t;
    }
    if (n == T) return true;
    j->row = rows;
    j->n_rows = n;
    j->n_blocks = (n + most - 2) / (most - 1); /* room for one more, to keep a row and its residual together */
    return quantise_rows(d, r);
}

void lin_task(void *ctx, int task, int worker)
{
    const struct lin_run *r = ctx;
    const struct lin_job *j = &r->job;
    int pair0 = task % r->pair_tasks * r->pairs_per_task, pair1 = pair0 + r->pairs_per_task;
    int block0 = task / r->pair_tasks * r->blocks_per_task, block1 = block0 + r->blocks_per_task;
    lin_fn *fn = j->w->t == DT_BF16 && r->rounded ? r->isa->linear_bf16_x : r->isa->linear[j->w->t];
    if (block1 > j->n_blocks) block1 = j->n_blocks;
    if (pair1 > j->w->pairs) pair1 = j->w->pairs;
    if (r->tiles)
        r->tiles(j, block0, block1, pair0, pair1);
    else if (j->w->t == DT_BLOCK)
        r->isa->linear_block(j, block0, block1, pair0, pair1, r->expand ? r->worker[worker].p : NULL);
    else if (j->w->t == DT_F8)
        r->isa->linear_f8(j, block0, block1, pair0, pair1, r->rounded, r->worker[worker].p);
    else
        fn(j, block0, block1, pair0, pair1);
}

/* Estimate of one core's time: arithmetic or memory, whichever takes longer. */
static double lin_ns(const struct lin_job *j)
{
    double macs = (double)j->x.rows * j->w->cols * j->w->pairs * PAIR;
    bool floats = !lin_is_int(j->w->t);
    double multiply = macs / (floats ? 30 : 100), read = (double)j->w->data_bytes / 20;
    return multiply > read ? multiply : read;
}

/* Scratch for an expanded pair of any form of w, for each worker. */
bool lin_expand_room(struct cpu_dev *d, const struct weight *w)
{
    size_t most = w->t == DT_F8 ? f8_wide_bytes(w) : 0;
    for (int i = 0; i < w->n_runs; i++) {
        size_t bytes = block_wide(&w->runs[i].form).pair_bytes;
        most = bytes > most ? bytes : most;
    }
    for (int i = 0; i < d->head.threads; i++)
        if (!scratch_get(d->worker + i, most)) return false;
    return true;
}

static void run_job(struct dev *head, const struct lin_job *job, const char *op)
{
    struct cpu_dev *d = cpu_of(head);
    struct lin_run r = {.job = *job, .isa = d->isa, .worker = d->worker};
    enum dtype t = job->w->t;
    int rows = job->x.rows, pairs = job->w->pairs;
    if (rows == 0) return;
    r.rounded = lin_is_int(t) || (lin_is_half(t) && head->bf16_x);
    lin_cut_rows(&r, d);
    if (job->w->order) r.job.x = order_columns(head, job->w, &job->x);
    if (!r.job.x.p || (r.rounded && !quantise_x(d, &r))) {
        dev_fail(head, op, "out of memory for %d rows of quantised activations", rows);
        return;
    }
    /* This many tasks per thread even out busy cores, and threads that end at different times. */
    int want = head->threads * 20;
    r.pairs_per_task = pairs > want ? pairs / want : 1;
    r.pair_tasks = (pairs + r.pairs_per_task - 1) / r.pairs_per_task;
    r.job.skip = r.pairs_per_task * (head->threads - 1);
    int row_tasks = r.pair_tasks >= head->threads * 2 || rows < 48 ? 1 : (rows + 23) / 24;
    int near_tasks = lin_is_half(t) || !r.rounded ? 1 : (int)((size_t)rows * (size_t)r.job.q_ld / NEAR_BYTES) + 1;
    if (near_tasks > row_tasks) row_tasks = near_tasks;
    if (row_tasks > POOL_TASKS_MAX / r.pair_tasks) row_tasks = POOL_TASKS_MAX / r.pair_tasks;
    r.blocks_per_task = (r.job.n_blocks + row_tasks - 1) / row_tasks;
    row_tasks = (r.job.n_blocks + r.blocks_per_task - 1) / r.blocks_per_task;
    if (lin_expands(t, r.blocks_per_task) && !(r.expand = lin_expand_room(d, job->w))) {
        dev_fail(head, op, "out of memory");
        return;
    }
    int k_pad = job->w->k_pad, parts = 1;
    if (t == DT_BF16 && r.rounded && !job->gated && r.job.n_blocks > DEEP_BLOCKS)
        parts = (k_pad + DEPTH_MOST - 1) / DEPTH_MOST;
    for (int i = 0; i < parts; i++) {
        r.job.k0 = (int)((int64_t)k_pad / TILE_K * i / parts) * TILE_K;
        r.job.k1 = i + 1 < parts ? (int)((int64_t)k_pad / TILE_K * (i + 1) / parts) * TILE_K : k_pad;
        cpu_run(d, lin_task, &r, r.pair_tasks * row_tasks, lin_ns(&r.job) / parts);
    }
}

void cpu_linear(struct dev *d, const struct linear_args *a)
{
    struct weight slice;
    const struct weight *w = weight_slice(a->w, a->first, a->y.cols, &slice);
    run_job(d, &(struct lin_job){.w = w, .y = a->y, .x = a->x, .b = a->b}, "linear");
}

void cpu_gate_up(struct dev *d, const struct gate_up_args *a)
{
    run_job(d, &(struct lin_job){.w = a->w, .y = a->y, .x = a->x, .b = a->b, .gated = true, .act = a->act}, "gate_up");
}
