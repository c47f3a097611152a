/* The driver of the experts' GEMMs: the tasks of linear, for all experts that have rows, in one parallel region.
 *
 * A row is computed by the kernels of linear in the same order of operations, so it has the bits that linear gives.
 * Only the weights of experts with rows are read. */
#include "kernels/cpu/cpu.h"

/* The two parallel regions. */
enum { QUANTISE, MULTIPLY, REGIONS };

struct expert_run {
    struct lin_run lin;
    int first[REGIONS]; /* number of the first task, counted over all experts */
};

struct experts {
    struct cpu_dev *d;
    struct lin_job job; /* what all experts share; x and y have all rows */
    const struct weight *const *w;
    const int32_t *start;
    const float *b;
    int b_ld;               /* values of b for each expert */
    struct expert_run *run; /* of the experts that have rows */
    int n;
};

/* ---- tasks ----------------------------------------------------------------------------------------------------- */

/* The last run that begins at the task or before it: a run without tasks begins where the next one does. */
static struct expert_run *run_of(const struct experts *x, int region, int task)
{
    int low = 0, high = x->n - 1;
    while (low < high) {
        int mid = (low + high + 1) / 2;
        if (x->run[mid].first[region] <= task)
            low = mid;
        else
            high = mid - 1;
    }
    return &x->run[low];
}

static void quantise_task(void *ctx, int task, int worker)
{
    struct expert_run *r = run_of(ctx, QUANTISE, task);
    lin_quantise_task(&r->lin, task - r->first[QUANTISE], worker);
}

static void multiply_task(void *ctx, int task, int worker)
{
    struct expert_run *r = run_of(ctx, MULTIPLY, task);
    lin_task(&r->lin, task - r->first[MULTIPLY], worker);
}

/* ---- quantisation ---------------------------------------------------------------------------------------------- */

/* Quantises the rows of the experts, or with `again` of those only that have outlier rows. */
static void quantise(struct experts *x, bool again)
{
    int tasks = 0;
    double rows = 0;
    for (int i = 0; i < x->n; i++) {
        struct expert_run *r = &x->run[i];
        r->first[QUANTISE] = tasks;
        if (again && !r->lin.job.row) continue;
        tasks += r->lin.job.n_blocks;
        rows += lin_rows(&r->lin.job);
    }
    double ns = rows * x->job.x.cols / 8;
    if (tasks) cpu_run(x->d, quantise_task, x, tasks, ns < 4000 ? 0 : ns * 2);
}

/* Gives each expert with outlier rows a second quantised row, the residual, for each of them. @return whether there
 * are any. */
static bool find_outliers(struct experts *x, int32_t *rows)
{
    bool any = false;
    for (int i = 0; i < x->n; i++) {
        struct lin_run *r = &x->run[i].lin;
        int T = r->job.x.rows, n = 0, most = lin_most_rows(r);
        for (int t = 0; t < T; t++) {
            rows[n++] = t;
            if (r->outlier[t]) rows[n++] = t;
        }
        if (n > T) {
            r->job.row = rows;
            r->job.n_rows = n;
            r->job.n_blocks = (n + most - 2) / (most - 1); /* see quantise_x in linear.c */
            any = true;
        }
        rows += 2 * (size_t)T;
    }
    return any;
}

/* Quantises or rounds x into the device's scratch, with room for every row's residual. */
static bool round_rows(struct experts *x)
{
    const struct weight *w = x->w[0];
    bool bf16 = lin_is_half(w->t);
    size_t R = (size_t)x->job.x.rows, room = bf16 ? R : 2 * R;
    int n_groups = 0; /* experts of block weights may differ in their groups */
    size_t line = 0, past = 0; /* past: the last expert's, that tiles reach */
    for (int i = 0; i < x->n; i++) {
        struct lin_run *one = &x->run[i].lin;
        size_t bytes = lin_row_bytes(one);
        line = bytes > line ? bytes : line;
        n_groups = one->job.w->n_groups > n_groups ? one->job.w->n_groups : n_groups;
        if (one->tiles) past = LIN_TILE_ROWS;
    }
    size_t bytes = room * (line + sizeof(float) + (size_t)n_groups * sizeof(int32_t)) + past * line;
    int8_t *q = scratch_get(&x->d->quant, bytes);
    int32_t *rows = scratch_get(&x->d->outliers, R * (2 * sizeof *rows + sizeof(bool)));
    if (!q || !rows) return false;
    float *step = (float *)(q + room * line);
    int32_t *sum = (int32_t *)(step + room);
    bool *outlier = (bool *)(rows + 2 * R);
    size_t at = 0, per_row = bf16 ? 1 : 2;
    for (int i = 0; i < x->n; i++) {
        struct lin_run *r = &x->run[i].lin;
        r->job.q = q + at * per_row * line;
        r->job.q_step = step + at * per_row;
        r->job.q_sum = sum + at * per_row * (size_t)n_groups;
        r->outlier = outlier + at;
        r->slice = r->job.q_ld;
        r->slices = 1;
        at += (size_t)r->job.x.rows;
    }
    quantise(x, false);
    if (!bf16 && find_outliers(x, rows)) quantise(x, true);
    return true;
}

/* ---- the driver ------------------------------------------------------------------------------------------------ */

static void add_expert(struct experts *x, int e)
{
    struct expert_run *r = &x->run[x->n++];
    int row = x->start[e], rows = x->start[e + 1] - row;
    *r = (struct expert_run){.lin = {.job = x->job, .isa = x->d->isa, .worker = x->d->worker}};
    struct lin_job *j = &r->lin.job;
    enum dtype t = x->w[e]->t;
    r->lin.rounded = lin_is_int(t) || (lin_is_half(t) && x->d->head.bf16_x);
    j->w = x->w[e];
    j->x.p = mat_row(&x->job.x, row);
    j->y.p = mat_row(&x->job.y, row);
    j->x.rows = j->y.rows = rows;
    j->b = x->b ? x->b + (size_t)e * x->b_ld : NULL;
    lin_cut_rows(&r->lin, x->d);
    j->k1 = j->w->k_pad;
}

/* An estimate of one core's time for a pair of panels of a run, ns: arithmetic or memory, whichever takes longer. */
static double pair_ns(const struct lin_run *r)
{
    const struct weight *w = r->job.w;
    double multiply = (double)lin_rows(&r->job) * w->cols * PAIR / (lin_is_int(w->t) ? 100 : 30);
    double read = (double)w->data_bytes / w->pairs / 20;
    return multiply > read ? multiply : read;
}

/* Divides the experts' outputs, and many rows, into tasks of about the same time: rows are shared out unevenly.
 * @return the estimate of one core's time. */
static double plan(struct experts *x, int *tasks)
{
    enum { NEAR_ROWS = 192, LEAST_ROWS = 48 };
    int threads = x->d->head.threads, pairs = x->w[0]->pairs;
    double ns = 0;
    for (int i = 0; i < x->n; i++) ns += pair_ns(&x->run[i].lin) * pairs;
    *tasks = 0;
    for (int i = 0; i < x->n; i++) {
        struct lin_run *r = &x->run[i].lin;
        double each = ns / (threads * 20) / pair_ns(r);
        int per_task = r->pairs_per_task = each < 1 ? 1 : each > pairs ? pairs : (int)each;
        r->pair_tasks = (pairs + per_task - 1) / per_task;
        r->job.skip = per_task * (threads - 1);
        int rows = lin_rows(&r->job), row_tasks = (rows + NEAR_ROWS - 1) / NEAR_ROWS;
        if (rows >= LEAST_ROWS && r->pair_tasks * x->n < threads * 2) row_tasks = (rows + 23) / 24;
        int most = POOL_TASKS_MAX / x->n / r->pair_tasks;
        if (row_tasks > most) row_tasks = most > 1 ? most : 1;
        r->blocks_per_task = (r->job.n_blocks + row_tasks - 1) / row_tasks;
        row_tasks = (r->job.n_blocks + r->blocks_per_task - 1) / r->blocks_per_task;
        r->expand = lin_expands(r->job.w->t, r->blocks_per_task);
        x->run[i].first[MULTIPLY] = *tasks;
        *tasks += r->pair_tasks * row_tasks;
    }
    return ns;
}

static void run_experts(struct experts *x, int n, const char *op)
{
    int tasks;
    if (x->start[n] == 0) return;
    x->run = scratch_get(&x->d->experts, (size_t)n * sizeof *x->run);
    for (int e = 0; x->run && e < n; e++)
        if (x->start[e + 1] > x->start[e]) add_expert(x, e);
    if (!x->run || (x->run[0].lin.rounded && !round_rows(x))) {
        dev_fail(&x->d->head, op, "out of memory for %d rows of quantised activations", x->job.x.rows);
        return;
    }
    double ns = plan(x, &tasks);
    for (int i = 0; i < x->n; i++)
        if (x->run[i].lin.expand && !lin_expand_room(x->d, x->run[i].lin.job.w)) {
            dev_fail(&x->d->head, op, "out of memory");
            return;
        }
    cpu_run(x->d, multiply_task, x, tasks, ns);
}

void cpu_experts_linear(struct dev *d, const struct experts_linear_args *a)
{
    struct experts x = {.d = cpu_of(d), .job = {.y = a->y, .x = a->x}, a->w, a->start, a->b, a->y.cols};
    run_experts(&x, a->n, "experts_linear");
}

void cpu_experts_gate_up(struct dev *d, const struct experts_gate_up_args *a)
{
    struct lin_job job = {.y = a->y, .x = a->x, .gated = true, .act = a->act};
    struct experts x = {.d = cpu_of(d), .job = job, a->w, a->start, a->b, 2 * a->y.cols};
    run_experts(&x, a->n, "experts_gate_up");
}
