#include "engine/train/muon.h"

#include "engine/base/mem.h"

#include <math.h>
#include <stdlib.h>

enum {
    NEWTON_SCHULZ = 5,
    SLICE = 1 << 20, /* floats per pass of the gate */
};
static const double MOMENTUM = 0.95, EPS = 1e-7, A = 3.4445, B = -4.7750, C = 2.0315;

/* The state of a step that the helpers here share. */
struct run {
    struct dev *d;
    struct scheduler_gate *gate;
    bool half;
};

void muon_add(struct muon *u, size_t at, int rows, int cols)
{
    mem_grow(&u->matrix, &u->cap, u->n + 1, sizeof *u->matrix);
    u->matrix[u->n++] = (struct muon_matrix){at, at, at, rows, cols};
}

/* Floats of the largest matrix x, and of the largest x x^T. */
static void largest(const struct muon *u, size_t *matrix, size_t *gram)
{
    *matrix = *gram = 0;
    for (size_t i = 0; i < u->n; i++) {
        size_t rows = (size_t)u->matrix[i].rows, cols = (size_t)u->matrix[i].cols, k = rows < cols ? rows : cols;
        if (rows * cols > *matrix) *matrix = rows * cols;
        if (k * k > *gram) *gram = k * k;
    }
}

size_t muon_bytes(const struct muon *u)
{
    size_t matrix, gram;
    largest(u, &matrix, &gram);
    return (matrix + 2 * gram) * sizeof(float) + u->n * sizeof *u->sum;
}

int muon_alloc(struct muon *u, struct dev *d, struct err *e)
{
    size_t matrix, gram;
    if (!u->n) return 0;
    largest(u, &matrix, &gram);
    u->host_sum = mem_array(u->n, sizeof *u->host_sum);
    u->sum = d->ops->alloc(d, u->n * sizeof *u->sum);
    u->x = d->ops->alloc(d, matrix * sizeof *u->x);
    u->a = d->ops->alloc(d, gram * sizeof *u->a);
    u->b = d->ops->alloc(d, gram * sizeof *u->b);
    if (u->sum && u->x && u->a && u->b) return 0;
    return err_set(e, ERR_NOMEM, "no memory for the working matrices of muon, the largest of %zu floats", matrix);
}

void muon_free(struct muon *u, struct dev *d)
{
    void *arrays[] = {u->sum, u->x, u->a, u->b};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        if (arrays[i]) d->ops->free(d, arrays[i]);
    free(u->host_sum);
    free(u->matrix);
    *u = (struct muon){0};
}

/* y = alpha x + beta y */
static void axpby(const struct run *r, float *y, const float *x, size_t n, double alpha, double beta)
{
    for (size_t i = 0, k; i < n; i += k) {
        k = n - i < SLICE ? n - i : SLICE;
        scheduler_gate_pass(r->gate);
        scheduler_gate_cost(r->gate, WORK_STATE, 3 * (double)k);
        op_axpby(r->d, (struct axpby_args){y + i, x + i, k, alpha, beta});
    }
}

/* c = alpha op(a) op(b) (+ c), in blocks of c's rows whose size depends on the shapes alone. */
static void gemm(const struct run *r, struct mat c, struct mat a, struct mat b, bool ta, bool tb, double alpha,
                 bool accumulate)
{
    const double MACS = 3e8;
    double cost = (double)c.cols * (ta ? a.rows : a.cols), most = MACS / cost;
    int block = most >= c.rows ? c.rows : most < 64 ? 64 : (int)most / 64 * 64;
    for (int row = 0, n; row < c.rows; row += n) {
        n = c.rows - row < block ? c.rows - row : block;
        struct mat part = c, from = a;
        part.p = (float *)c.p + (size_t)row * (size_t)c.ld;
        from.p = (float *)a.p + (size_t)row * (ta ? 1 : (size_t)a.ld);
        part.rows = n;
        *(ta ? &from.cols : &from.rows) = n;
        scheduler_gate_pass(r->gate);
        scheduler_gate_cost(r->gate, WORK_SUMS, cost * n);
        op_gemm(r->d, (struct gemm_args){.c = part,
                                         .a = from,
                                         .b = b,
                                         .ta = ta,
                                         .tb = tb,
                                         .accumulate = accumulate,
                                         .half = r->half,
                                         .alpha = (float)alpha});
    }
}

/* to = A x + (B a + C a a) x, a square, of the smaller side */
static void newton_schulz(const struct muon *u, const struct run *r, float *to, float *from, int rows, int cols)
{
    bool wide = rows <= cols;
    int k = wide ? rows : cols;
    struct mat x = mat_f32(from, rows, cols), y = mat_f32(to, rows, cols);
    struct mat a = mat_f32(u->a, k, k), b = mat_f32(u->b, k, k);
    gemm(r, a, x, x, !wide, wide, 1, false);
    axpby(r, u->b, u->a, (size_t)k * (size_t)k, B, 0);
    gemm(r, b, a, a, false, false, C, true);
    axpby(r, to, from, (size_t)rows * (size_t)cols, A, 0);
    gemm(r, y, wide ? b : x, wide ? x : b, false, false, 1, true);
}

/* Replaces g by the step's direction and adds its sum of squares to *sum. */
static void momentum(const struct run *r, float *g, float *m, size_t n, double grad_scale, double *sum)
{
    axpby(r, m, g, n, (1 - MOMENTUM) * grad_scale, MOMENTUM);
    axpby(r, g, m, n, MOMENTUM, (1 - MOMENTUM) * grad_scale);
    for (size_t i = 0, k; i < n; i += k) {
        k = n - i < SLICE ? n - i : SLICE;
        scheduler_gate_pass(r->gate);
        scheduler_gate_cost(r->gate, WORK_STATE, (double)k);
        op_square_sum(r->d, (struct square_sum_args){g + i, k, sum});
    }
}

void muon_step(struct muon *u, struct dev *d, struct scheduler_gate *gate, const struct muon_step *s)
{
    struct run r = {d, gate, s->half};
    if (!u->n) return;
    for (size_t i = 0; i < u->n; i++) u->host_sum[i] = 0;
    scheduler_gate_pass(gate);
    d->ops->upload(d, u->sum, u->host_sum, u->n * sizeof *u->sum);
    for (size_t i = 0; i < u->n; i++) {
        const struct muon_matrix *w = &u->matrix[i];
        momentum(&r, s->g + w->g, s->m + w->m, (size_t)w->rows * (size_t)w->cols, s->grad_scale, u->sum + i);
    }
    d->ops->finish(d);
    d->ops->download(d, u->host_sum, u->sum, u->n * sizeof *u->sum);
    for (size_t i = 0; i < u->n; i++) {
        const struct muon_matrix *w = &u->matrix[i];
        size_t n = (size_t)w->rows * (size_t)w->cols;
        float *from = s->g + w->g, *to = u->x;
        axpby(&r, from, from, n, 1 / fmax(sqrt(u->host_sum[i]), EPS), 0);
        for (int k = 0; k < NEWTON_SCHULZ; k++) {
            newton_schulz(u, &r, to, from, w->rows, w->cols);
            float *other = from;
            from = to, to = other;
        }
        double by = 0.2 * sqrt(w->rows > w->cols ? w->rows : w->cols) * s->rate;
        axpby(&r, s->p + w->p, from, n, -by, 1 - s->rate * s->decay);
    }
}
