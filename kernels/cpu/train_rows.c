/* The drivers of the row-wise ops of training, and of the optimizer's.
 *
 * What is summed over tokens (the gradients of norms' parameters) is summed over SUM_ROWS rows at a time, each such
 * block into its own memory, and these are added in order: the blocks depend on the number of rows only, not on the
 * threads. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

/* ---- norms --------------------------------------------------------------------------------------------------- */

struct norm_run {
    const struct isa *isa;
    const void *args;
    void (*row)(const struct norm_run *, int t,
                float *sums); /* sums: width floats to which the row's sums are added; NULL: not computed */
    int rows, rows_per_task, width;
    float *sums; /* (blocks of rows, width) */
};

static void norm_task(void *ctx, int task, int worker)
{
    const struct norm_run *r = ctx;
    int end = (task + 1) * r->rows_per_task;
    float *sums = r->sums ? r->sums + (size_t)task * r->width : NULL;
    if (sums) memset(sums, 0, (size_t)r->width * sizeof *sums);
    for (int t = task * r->rows_per_task; t < end && t < r->rows; t++) r->row(r, t, sums);
}

/* Runs all rows and adds the sums to into[0] and into[1], each n wide. */
static void norm_run(struct dev *head, const char *op, struct norm_run *r, float *const into[2], int n, double ns)
{
    struct cpu_dev *d = cpu_of(head);
    bool wanted = into[0] || into[1];
    int blocks = (r->rows + SUM_ROWS - 1) / SUM_ROWS;
    if (r->rows <= 0) return;
    r->isa = d->isa;
    r->width = 2 * n;
    r->rows_per_task = wanted || r->rows > head->threads * 4 * SUM_ROWS ? SUM_ROWS : 1 + r->rows / (head->threads * 4);
    if (wanted) r->sums = scratch_get(&d->train, (size_t)blocks * r->width * sizeof(float));
    if (wanted && !r->sums) {
        dev_fail(head, op, "out of memory");
        return;
    }
    cpu_run(d, norm_task, r, (r->rows + r->rows_per_task - 1) / r->rows_per_task, ns * r->rows);
    for (int k = 0; k < 2; k++)
        for (int b = 0; into[k] && b < blocks; b++) d->isa->add(into[k], r->sums + (size_t)b * r->width + k * n, n);
}

static void norm_back_row(const struct norm_run *r, int t, float *sums)
{
    const struct norm_back_args *a = r->args;
    int C = a->x.cols;
    r->isa->norm_back(&(struct norm_back_row){.dx = mat_row(&a->dx, t),
                                              .x = mat_row(&a->x, t),
                                              .dy = mat_row(&a->dy, t),
                                              .w = a->w,
                                              .n = C,
                                              .eps = a->eps,
                                              .kind = a->kind,
                                              .accumulate = a->accumulate,
                                              .dw = a->dw ? sums : NULL,
                                              .db = a->db ? sums + C : NULL});
}

void cpu_norm_back(struct dev *d, const struct norm_back_args *a)
{
    struct norm_run r = {.args = a, .row = norm_back_row, .rows = a->x.rows};
    norm_run(d, "norm_back", &r, (float *[2]){a->dw, a->db}, a->x.cols, a->x.cols / 4.0);
}

static void head_norm_back_row(const struct norm_run *r, int t, float *sums)
{
    const struct head_norm_back_args *a = r->args;
    for (int h = 0; h < a->heads; h++) {
        size_t col = (size_t)a->col + (size_t)h * a->head_dim, at = a->by_head ? (size_t)h * a->head_dim : 0;
        float *dx = mat_row(&a->dx, t) + col;
        r->isa->norm_back(&(struct norm_back_row){.dx = dx,
                                                  .x = mat_row(&a->x, t) + col,
                                                  .dy = dx,
                                                  .w = a->w + at,
                                                  .n = a->head_dim,
                                                  .eps = a->eps,
                                                  .kind = a->kind,
                                                  .dw = a->dw ? sums + at : NULL,
                                                  .db = a->db ? sums + r->width / 2 + at : NULL});
    }
}

void cpu_head_norm_back(struct dev *d, const struct head_norm_back_args *a)
{
    struct norm_run r = {.args = a, .row = head_norm_back_row, .rows = a->x.rows};
    int n = a->by_head ? a->heads * a->head_dim : a->head_dim;
    norm_run(d, "head_norm_back", &r, (float *[2]){a->dw, a->db}, n, a->heads * (a->head_dim / 4.0 + 20));
}

/* ---- rope, activations --------------------------------------------------------------------------------------- */

static void rope_row(const struct rows_run *r, int t)
{
    const struct rope_args *a = r->args;
    size_t angles = (size_t)a->pos[t] * (a->rot / 2);
    for (int h = 0; h < a->heads + a->kv_heads; h++) {
        float *x = mat_row(&a->qkv, t) + (size_t)h * a->head_dim;
        (a->back ? r->isa->rope_back : r->isa->rope)(x, a->rot, a->cos + angles, a->sin + angles);
    }
}

void cpu_rope(struct dev *d, const struct rope_args *a)
{
    if (a->rot) rows_run(d, rope_row, a, a->qkv.rows, (a->heads + a->kv_heads) * (a->rot / 8.0 + 5));
}

static void act_mul_back_row(const struct rows_run *r, int t)
{
    const struct act_mul_back_args *a = r->args;
    r->isa->act_mul_back(mat_row(&a->dgu, t), mat_row(&a->gu, t), mat_row(&a->dy, t), a->dy.cols, a->act);
}

void cpu_act_mul_back(struct dev *d, const struct act_mul_back_args *a)
{
    rows_run(d, act_mul_back_row, a, a->dy.rows, a->dy.cols);
}

static void act_back_row(const struct rows_run *r, int t)
{
    const struct act_back_args *a = r->args;
    r->isa->act_back(mat_row(&a->dx, t), mat_row(&a->x, t), mat_row(&a->dy, t), a->dy.cols, a->act);
}

void cpu_act_back(struct dev *d, const struct act_back_args *a)
{
    rows_run(d, act_back_row, a, a->dy.rows, a->dy.cols / 2.0);
}

/* ---- loss ---------------------------------------------------------------------------------------------------- */

static void cross_entropy_row(const struct rows_run *r, int t)
{
    const struct cross_entropy_args *a = r->args;
    int V = a->logits.cols, target = a->target[t];
    float *z = mat_row(&a->logits, t), max = target < 0 ? 0 : r->isa->row_max(z, V);
    a->hit[t] = 0;
    a->loss[t] = 0;
    if (target < 0 || !isfinite(max)) {
        if (target >= 0) a->loss[t] = NAN;
        for (int i = 0; i < V && a->back; i++) z[i] = a->loss[t];
        return;
    }
    double logit = z[target];
    a->hit[t] = r->isa->find_ge(z, 0, V, max) == target;
    bool scaled = a->softcap > 0 || (a->logit_scale != 0 && a->logit_scale != 1);
    double sum = a->back && !scaled ? r->isa->exp_in_place(z, V, max) : r->isa->exp_sum(z, V, max, 1);
    a->loss[t] = (float)(max + log(sum) - logit);
    if (!a->back) return;
    if (scaled) {
        float by = a->logit_scale == 0 ? 1 : a->logit_scale;
        double share = a->softcap > 0 ? logit / a->softcap : 0;
        r->isa->loss_capped(z, V, max, (float)(a->scale[t] / sum), a->softcap, by);
        z[target] -= (float)(a->scale[t] * by * (1 - share * share));
        return;
    }
    r->isa->scale(z, V, (float)(a->scale[t] / sum));
    z[target] -= a->scale[t];
}

void cpu_cross_entropy(struct dev *d, const struct cross_entropy_args *a)
{
    rows_run(d, cross_entropy_row, a, a->logits.rows, a->logits.cols);
}

/* ---- dropout, optimizer -------------------------------------------------------------------------------------- */

static void dropout_row(const struct rows_run *r, int t)
{
    const struct dropout_args *a = r->args;
    int C = a->x.cols;
    /* u >= p for the u of rng_uniform, 53 bits as a fraction: p is a float, so p 2^53 is exact */
    struct dropout_row row = {a->seed, (a->row0 + (uint64_t)t) * (uint64_t)C, (uint64_t)ceil((double)a->p * 0x1p53),
                              (float)(1 / (1 - (double)a->p))};
    r->isa->dropout(mat_row(&a->x, t), C, &row);
}

void cpu_dropout(struct dev *d, const struct dropout_args *a)
{
    rows_run(d, dropout_row, a, a->x.rows, a->x.cols);
}

/* n elements in blocks of SQUARE_BLOCK. */
struct flat_run {
    const struct isa *isa;
    const void *args;
    size_t n;
    int blocks_per_task;
    double *sums; /* one per block */
    const struct dynamic8 *tables;
};

static void flat_run(struct cpu_dev *d, pool_fn *task, struct flat_run *r, double ns)
{
    size_t blocks = (r->n + SQUARE_BLOCK - 1) / SQUARE_BLOCK;
    r->isa = d->isa;
    r->blocks_per_task = (int)(blocks / ((size_t)d->head.threads * 8)) + 1;
    cpu_run(d, task, r, (int)((blocks + (size_t)r->blocks_per_task - 1) / (size_t)r->blocks_per_task),
            ns * (double)r->n);
}

static void square_sum_task(void *ctx, int task, int worker)
{
    const struct flat_run *r = ctx;
    const struct square_sum_args *a = r->args;
    size_t first = (size_t)task * r->blocks_per_task;
    for (size_t b = first; b < first + r->blocks_per_task && b * SQUARE_BLOCK < r->n; b++) {
        size_t at = b * SQUARE_BLOCK, left = r->n - at;
        r->sums[b] = r->isa->square_sum(a->x + at, left < SQUARE_BLOCK ? left : SQUARE_BLOCK);
    }
}

void cpu_square_sum(struct dev *head, const struct square_sum_args *a)
{
    struct cpu_dev *d = cpu_of(head);
    size_t blocks = (a->n + SQUARE_BLOCK - 1) / SQUARE_BLOCK;
    struct flat_run r = {.args = a, .n = a->n, .sums = scratch_get(&d->train, blocks * sizeof(double))};
    if (blocks == 0) return;
    if (!r.sums) {
        dev_fail(head, "square_sum", "out of memory");
        return;
    }
    flat_run(d, square_sum_task, &r, 0.2);
    for (size_t b = 0; b < blocks; b++) *a->sum += r.sums[b];
}

static void adamw_task(void *ctx, int task, int worker)
{
    const struct flat_run *r = ctx;
    size_t from = (size_t)task * r->blocks_per_task * SQUARE_BLOCK;
    size_t to = from + (size_t)r->blocks_per_task * SQUARE_BLOCK;
    r->isa->adamw(r->args, from, to < r->n ? to : r->n);
}

void cpu_adamw(struct dev *head, const struct adamw_args *a)
{
    struct flat_run r = {.args = a, .n = a->n};
    if (a->n) flat_run(cpu_of(head), adamw_task, &r, 0.6);
}

static void adamw_8bit_task(void *ctx, int task, int worker)
{
    const struct flat_run *r = ctx;
    size_t from = (size_t)task * r->blocks_per_task * SQUARE_BLOCK;
    size_t to = from + (size_t)r->blocks_per_task * SQUARE_BLOCK;
    r->isa->adamw_8bit(r->args, r->tables, from, to < r->n ? to : r->n);
}

void cpu_adamw_8bit(struct dev *head, const struct adamw_8bit_args *a)
{
    _Static_assert(SQUARE_BLOCK % DYNAMIC8_BLOCK == 0, "tasks of whole blocks");
    struct flat_run r = {.args = a, .n = a->n, .tables = cpu_of(head)->tables};
    if (a->n) flat_run(cpu_of(head), adamw_8bit_task, &r, 3);
}

static void axpby_task(void *ctx, int task, int worker)
{
    const struct flat_run *r = ctx;
    const struct axpby_args *a = r->args;
    size_t from = (size_t)task * r->blocks_per_task * SQUARE_BLOCK;
    size_t to = from + (size_t)r->blocks_per_task * SQUARE_BLOCK;
    if (to > r->n) to = r->n;
    r->isa->axpby(a->y + from, a->x + from, to - from, (float)a->alpha, (float)a->beta);
}

void cpu_axpby(struct dev *head, const struct axpby_args *a)
{
    struct flat_run r = {.args = a, .n = a->n};
    if (a->n) flat_run(cpu_of(head), axpby_task, &r, 0.3);
}
