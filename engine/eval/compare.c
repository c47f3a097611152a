/* Scores of several subjects on the same rows, with intervals from a paired bootstrap: a resample has the same rows for
 * all subjects. */
#include "engine/base/mem.h"
#include "engine/eval/metrics.h"
#include "engine/eval/results.h"
#include "kernels/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct resampling {
    const struct evaluation *const *subjects;
    int n, metrics, n_sums, resamples;
    enum evaluation_kind kind;
    size_t rows;
    double *value, *gain; /* (n, metrics, resamples) */
};

static void add_row(double *sums, const struct evaluation *subject, size_t row, int n_sums)
{
    const double *more = evaluation_sums(subject, row);
    for (int k = 0; k < n_sums; k++) sums[k] += more[k];
}

/* Scores of the summed rows into one column of value and gain. */
static void score_column(struct resampling *r, const double *sums, int column)
{
    for (int i = 0; i < r->n; i++) {
        for (int m = 0; m < r->metrics; m++) {
            size_t at = ((size_t)i * (size_t)r->metrics + (size_t)m) * (size_t)r->resamples + (size_t)column;
            size_t first = (size_t)m * (size_t)r->resamples + (size_t)column;
            r->value[at] = metrics_score(r->kind, m, sums + (size_t)i * (size_t)r->n_sums, false);
            r->gain[at] = r->value[at] - r->value[first];
        }
    }
}

static void resample(struct resampling *r, uint64_t seed)
{
    size_t bytes = (size_t)r->n * (size_t)r->n_sums * sizeof(double);
    double *sums = mem_alloc(bytes);
    for (int c = 0; c < r->resamples; c++) {
        memset(sums, 0, bytes);
        for (size_t k = 0; k < r->rows; k++) {
            size_t row = (size_t)(rng_at(seed, (uint64_t)c * r->rows + k) % r->rows);
            for (int i = 0; i < r->n; i++)
                add_row(sums + (size_t)i * (size_t)r->n_sums, r->subjects[i], row, r->n_sums);
        }
        score_column(r, sums, c);
    }
    free(sums);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What is between a fortieth of the values at either end; sorts them. */
static void interval(double *v, int n, double *low, double *high)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    *low = n ? v[n / 40] : NAN;
    *high = n ? v[n - 1 - n / 40] : NAN;
}

static void score_whole(const struct resampling *r, struct evaluation_score *out)
{
    for (int i = 0; i < r->n; i++) {
        double sums[EVALUATION_SUMS_MAX] = {0};
        for (size_t row = 0; row < r->rows; row++) add_row(sums, r->subjects[i], row, r->n_sums);
        for (int m = 0; m < r->metrics; m++) {
            struct evaluation_score *s = &out[i * r->metrics + m];
            s->value = metrics_score(r->kind, m, sums, false);
            s->gain = s->value - out[m].value;
        }
    }
}

int evaluation_compare(const struct evaluation *const *subjects, int n, int resamples, uint64_t seed,
                       struct evaluation_score *out, struct err *e)
{
    const struct evaluation_rows *rows = evaluation_rows_of(subjects[0]);
    const struct evaluation_metric *names;
    struct resampling r = {.subjects = subjects,
                           .n = n,
                           .metrics = evaluation_metrics(rows->kind, &names),
                           .n_sums = metrics_sums(rows->kind),
                           .resamples = resamples,
                           .kind = rows->kind,
                           .rows = rows->n};
    size_t cells = (size_t)n * (size_t)r.metrics * (size_t)resamples;
    r.value = mem_try_alloc((cells + 1) * sizeof *r.value);
    r.gain = mem_try_alloc((cells + 1) * sizeof *r.gain);
    int rc = r.value && r.gain ? 0 : err_set(e, ERR_NOMEM, "no memory for %d resamples", resamples);
    if (!rc) {
        score_whole(&r, out);
        resample(&r, seed);
        for (int i = 0; i < n * r.metrics; i++) {
            size_t at = (size_t)i * (size_t)resamples;
            interval(r.value + at, resamples, &out[i].low, &out[i].high);
            interval(r.gain + at, resamples, &out[i].gain_low, &out[i].gain_high);
        }
    }
    free(r.value);
    free(r.gain);
    return rc;
}
