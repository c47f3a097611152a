/* Logits of a run, row by row, against those of a fixture. */
#ifndef TANDEM_TESTS_ADAPTER_COMPARE_ROW_H
#define TANDEM_TESTS_ADAPTER_COMPARE_ROW_H

#include <math.h>
#include <stddef.h>

struct compare {
    const float *want; /* (rows, vocab) */
    int vocab, rows;   /* rows: compared so far */
    double worst;      /* largest difference */
};

/* For eval_logits; arg: a struct compare. */
static inline void compare_row(void *arg, int pos, const float *logits)
{
    struct compare *c = arg;
    for (int i = 0; i < c->vocab; i++) {
        double d = fabs((double)logits[i] - (double)c->want[(size_t)pos * (size_t)c->vocab + (size_t)i]);
        if (!(d <= c->worst)) c->worst = d;
    }
    c->rows++;
}

#endif
