/* What tandem eval shows and writes: a progress line, a table, JSON, a line for every row.  Main thread. */
#ifndef TANDEM_SERVER_CLI_EVAL_REPORT_H
#define TANDEM_SERVER_CLI_EVAL_REPORT_H

#include "engine/eval/evaluation.h"

#include <stdio.h>

/* One of the things compared: the model, the model with an adapter, the model quantised. */
struct eval_subject {
    const char *name;              /* "base", the adapter's directory or name, the type of the weights */
    const char *adapter;           /* its directory; NULL: none */
    const char *quantize;          /* as engine_config */
    struct evaluation *evaluation; /* owned */
    double seconds;
};

struct eval_report {
    const struct evaluation_rows *rows;
    const struct eval_subject *subjects;
    int n_subjects;
    const struct evaluation_score *scores; /* (n_subjects, metrics) */
    const char *model;
    int resamples;
    uint64_t seed;
};

void eval_report_table(const struct eval_report *, FILE *);
void eval_report_json(const struct eval_report *, FILE *); /* one object */
void eval_report_rows(const struct eval_report *, FILE *); /* a line for every subject and row */

/* A line: which subject, its share done, rows per second, the time left.  terminal: rewrites the last one. */
void eval_report_progress(const struct eval_subject *, const struct evaluation_rows *, double seconds, bool terminal,
                          FILE *);

#endif
