/* The drivers of the products of training: gemm, linear_back, lora, and the small sums beside them. */
#include "kernels/cpu/cpu.h"

#include <string.h>

struct product_run {
    const void *args;
    const struct weight *w;
    float *tile; /* weights as floats (N, K) */
};

static float op_at(const struct mat *m, bool transposed, int row, int col)
{
    return transposed ? mat_row(m, col)[row] : mat_row(m, row)[col];
}

static void gemm_task(void *ctx, int m, int worker)
{
    const struct gemm_args *a = ctx;
    int K = a->ta ? a->a.rows : a->a.cols;
    for (int n = 0; n < a->c.cols; n++) {
        float sum = 0, *c = mat_row(&a->c, m) + n;
        for (int k = 0; k < K; k++) sum += op_at(&a->a, a->ta, m, k) * op_at(&a->b, a->tb, k, n);
        *c = a->alpha * sum + (a->accumulate ? *c : 0);
    }
}

void cpu_gemm(struct dev *d, const struct gemm_args *a)
{
    pool_run(cpu_of(d)->pool, gemm_task, (void *)a, a->c.rows);
}

static void linear_back_task(void *ctx, int t, int worker)
{
    const struct product_run *r = ctx;
    const struct linear_back_args *a = r->args;
    float *dx = mat_row(&a->dx, t), *dy = mat_row(&a->dy, t);
    int K = a->dx.cols;
    if (!a->accumulate) memset(dx, 0, (size_t)K * sizeof *dx);
    for (int n = 0; n < a->dy.cols; n++)
        for (int k = 0; k < K; k++) dx[k] += dy[n] * r->tile[(size_t)n * K + k];
}

void cpu_linear_back(struct dev *d, const struct linear_back_args *a)
{
    struct cpu_dev *c = cpu_of(d);
    size_t K = (size_t)a->w->cols;
    float *tile = scratch_get(&c->quant, (size_t)a->w->rows * K * sizeof *tile);
    if (!tile) {
        dev_fail(d, "linear_back", "out of memory");
        return;
    }
    for (int n = 0; n < a->w->rows; n++) weight_row(a->w, n, tile + (size_t)n * K);
    pool_run(c->pool, linear_back_task, &(struct product_run){a, a->w, tile}, a->dx.rows);
}

static void lora_part(const struct lora_part *p, float *y, const float *x, int K, float *xa)
{
    for (int i = 0; i < p->r; i++) {
        xa[i] = 0;
        for (int k = 0; k < K; k++) xa[i] += x[k] * p->a[(size_t)i * K + k];
    }
    for (int n = 0; n < p->n; n++) {
        float sum = 0;
        for (int i = 0; i < p->r; i++) sum += xa[i] * p->b[(size_t)n * p->r + i];
        y[p->col + n] += p->scale * sum;
    }
}

void cpu_lora(struct dev *d, const struct lora_args *a)
{
    for (const struct lora_group *g = a->group; g < a->group + a->n_groups; g++)
        for (const struct lora_part *p = g->part; p < g->part + g->n_parts; p++) {
            float *xa = scratch_get(&cpu_of(d)->quant, (size_t)p->r * sizeof *xa);
            if (!xa) {
                dev_fail(d, "lora", "out of memory");
                return;
            }
            for (int t = g->row0; t < g->row0 + g->rows; t++)
                lora_part(p, mat_row(&a->y, t), mat_row(&a->x, t), a->x.cols, xa);
        }
}

void cpu_embed_back(struct dev *d, const struct embed_back_args *a)
{
    for (int t = 0; t < a->dx.rows; t++)
        for (int c = 0; c < a->dx.cols; c++) {
            mat_row(&a->dtable, a->id[t])[c] += mat_row(&a->dx, t)[c];
            if (a->dpos.p) mat_row(&a->dpos, a->pos[t])[c] += mat_row(&a->dx, t)[c];
        }
}

void cpu_col_sum(struct dev *d, const struct col_sum_args *a)
{
    for (int c = 0; c < a->x.cols; c++) {
        float sum = 0;
        for (int t = 0; t < a->x.rows; t++) sum += mat_row(&a->x, t)[c];
        a->out[c] += sum;
    }
}
