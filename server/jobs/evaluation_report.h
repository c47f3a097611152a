/* The results of an evaluation as JSON: of tandem eval, and of POST /evaluate.  Any thread. */
#ifndef TANDEM_SERVER_JOBS_EVALUATION_REPORT_H
#define TANDEM_SERVER_JOBS_EVALUATION_REPORT_H

#include "engine/base/buf.h"
#include "engine/eval/evaluation.h"

#include <stdio.h>

/* One of the things compared: the model, the model with an adapter, the model quantised. */
struct evaluation_subject {
    const char *name;              /* "base", the adapter's directory or name, the type of the weights */
    const char *adapter;           /* its directory or name; NULL: none */
    const char *quantize;          /* as engine_config */
    struct evaluation *evaluation; /* owned */
    double seconds;
};

struct evaluation_report {
    const struct evaluation_rows *rows;
    const struct evaluation_subject *subjects;
    int n_subjects;
    const struct evaluation_score *scores; /* (n_subjects, metrics) */
    const char *model;
    int resamples;
    uint64_t seed;
};

void evaluation_report_json(const struct evaluation_report *, struct buf *); /* appends one object */
void evaluation_report_rows(const struct evaluation_report *, FILE *);       /* a line for every subject and row */

#endif
