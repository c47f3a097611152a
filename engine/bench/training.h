/* Measuring fine-tuning: steps of real jobs on made-up rows, at several batch sizes and lengths, and with each switch
 * on and off.  docs/bench.md has the formulae.  Used by one thread. */
#ifndef TANDEM_ENGINE_BENCH_TRAINING_H
#define TANDEM_ENGINE_BENCH_TRAINING_H

#include "engine/model/options.h"
#include "engine/train/bottleneck.h"
#include "engine/train/train.h"
#include "kernels/ceilings.h"

struct bench_training_config {
    struct model_options model;
    const char *cpus;          /* which cores the threads are bound to (cpus.h) */
    struct train_params p;     /* the batch, the length and the number of steps are set by each case */
    const int *batch, *length; /* rows of a step; ids of each row */
    int n_batches, n_lengths;
    bool any_length; /* lengths beyond the model's positions are lowered to them */
    int steps;       /* measured ones of each case, >= 1 */
    bool switches;   /* also measure the switches */
    /* called at each step with what is being done; false stops the run with ERR_FULL.  NULL: none. */
    bool (*progress)(void *arg, const char *what, int done, int total);
    void *arg;
};

enum { BENCH_TRAINING_WARM_UP = 2, BENCH_LENGTH_LEAST = 32, BENCH_TRAINING_TOKENS_MAX = 1 << 18 };

struct bench_spread {
    double median, least, most;
};

struct bench_training_row {
    char name[48];     /* "8 x 512"; of a switch its setting, "recompute on" */
    char weights[12];  /* type of the base's: "bf16", "int8"... */
    const char *of;    /* the switch; NULL: a row of the table */
    char refused[480]; /* why it was not measured; "": it was */
    int batch, length, steps;
    double tokens, micro_batches;                          /* of a step, the mean */
    struct bench_spread seconds, tokens_per_s, rows_per_s; /* over the steps */
    struct bench_spread part[TRAIN_PARTS];                 /* seconds */
    double macs_per_token, ceiling_ratio;                  /* multiply-adds; share of the ceiling, 0: unknown */
    double loss;                                           /* of the last step */
    struct train_plan plan;                                /* known for refused rows as far as it was made */
    struct train_advice advice[TRAIN_ADVICE_MAX];
    int n_advice;
    struct train_usage usage; /* of all steps, with the warm-up */
};

/* The largest batch whose plan fits in memory. */
struct bench_training_most {
    int length, batch;
    bool more; /* larger ones were not tried */
};

struct bench_training {
    char device[48]; /* "cpu avx512" */
    int threads;
    uint64_t parameters;
    struct ceilings before, after;
    struct bench_training_row *row;
    int n_rows;
    struct bench_training_most *most;
    int n_most;
};

/* Opens the model, measures, and closes it.  Free *out with bench_training_free, also after an error. */
int bench_training(const struct bench_training_config *, struct bench_training *out, struct err *e);
void bench_training_free(struct bench_training *);

/* v[0, n) is sorted; n > 0. */
struct bench_spread bench_spread_of(double *v, int n);

#endif
