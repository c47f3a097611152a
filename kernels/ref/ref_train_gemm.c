/* The GEMMs of training of the reference device: the formulae of train_ops.h, summed in double. */
#include "kernels/dev.h"
#include "kernels/ref/ref.h"

#include <stdlib.h>

static float *mat_row(const struct mat *m, int row)
{
    return (float *)m->p + (size_t)row * m->ld;
}

static double op_at(const struct mat *m, bool transposed, int row, int col)
{
    return transposed ? mat_row(m, col)[row] : mat_row(m, row)[col];
}

void ref_gemm(struct dev *d, const struct gemm_args *a)
{
    int K = a->ta ? a->a.rows : a->a.cols;
    for (int m = 0; m < a->c.rows; m++)
        for (int n = 0; n < a->c.cols; n++) {
            double sum = 0;
            for (int k = 0; k < K; k++) sum += op_at(&a->a, a->ta, m, k) * op_at(&a->b, a->tb, k, n);
            float *c = mat_row(&a->c, m) + n;
            *c = (float)(a->alpha * sum + (a->accumulate ? *c : 0));
        }
}

void ref_linear_back(struct dev *d, const struct linear_back_args *a)
{
    for (int t = 0; t < a->dx.rows; t++)
        for (int k = 0; k < a->dx.cols; k++) {
            const float *dy = mat_row(&a->dy, t);
            float *dx = mat_row(&a->dx, t) + k;
            double sum = a->accumulate ? *dx : 0;
            /* rounds to f32 after each slice, so that calls for single slices add up to one call */
            for (int n = 0; n < a->dy.cols; n++) {
                if (n && n % BACK_SLICE == 0) sum = (float)sum;
                sum += (double)dy[n] * ref_weight_at(a->w, a->first + n, k);
            }
            *dx = (float)sum;
        }
}

static void lora_row(const struct lora_part *p, float *y, const float *x, int K, double *xa)
{
    for (int i = 0; i < p->r; i++) {
        xa[i] = 0;
        for (int k = 0; k < K; k++) xa[i] += (double)x[k] * p->a[(size_t)i * K + k];
    }
    for (int n = 0; n < p->n; n++) {
        double sum = 0;
        for (int i = 0; i < p->r; i++) sum += xa[i] * p->b[(size_t)n * p->r + i];
        y[p->col + n] = (float)(y[p->col + n] + p->scale * sum);
    }
}

void ref_lora(struct dev *d, const struct lora_args *a)
{
    for (const struct lora_group *g = a->group; g < a->group + a->n_groups; g++)
        for (const struct lora_part *p = g->part; p < g->part + g->n_parts; p++) {
            double *xa = malloc((size_t)p->r * sizeof *xa);
            if (!xa) {
                dev_fail(d, "lora", "out of memory");
                return;
            }
            for (int t = g->row0; t < g->row0 + g->rows; t++)
                lora_row(p, mat_row(&a->y, t), mat_row(&a->x, t), a->x.cols, xa);
            free(xa);
        }
}

void ref_embed_back(struct dev *d, const struct embed_back_args *a)
{
    for (int t = 0; t < a->dx.rows; t++)
        for (int c = 0; c < a->dx.cols; c++) {
            mat_row(&a->dtable, a->id[t])[c] += mat_row(&a->dx, t)[c] * (a->scale == 0 ? 1 : a->scale);
            if (a->dpos.p) mat_row(&a->dpos, a->pos[t])[c] += mat_row(&a->dx, t)[c];
        }
}

void ref_col_sum(struct dev *d, const struct col_sum_args *a)
{
    for (int c = 0; c < a->x.cols; c++) {
        double sum = 0;
        for (int t = 0; t < a->x.rows; t++) sum += mat_row(&a->x, t)[c];
        a->out[c] = (float)(a->out[c] + sum);
    }
}

void ref_weight_update(struct dev *d, struct weight *w, const struct weight_src *parts, int n_parts, int chunk,
                       int chunks)
{
    size_t all = (size_t)w->rows * w->cols, from = all * (size_t)chunk / (size_t)chunks, at = 0;
    size_t end = all * ((size_t)chunk + 1) / (size_t)chunks;
    for (int i = 0; i < n_parts; i++) {
        const float *data = parts[i].data;
        size_t n = (size_t)parts[i].rows * parts[i].cols;
        for (size_t k = 0; k < n; k++, at++)
            if (at >= from && at < end)
                w->f[at] = w->t == DT_F32    ? data[k]
                           : w->t == DT_BF16 ? bf16_to_f32(f32_to_bf16(data[k]))
                                             : f16_to_f32(f32_to_f16(data[k]));
    }
}
