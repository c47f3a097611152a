/* What an evaluation is to do: POST /evaluate's body, checked field by field, and its stored form. */
#ifndef TANDEM_SERVER_JOBS_EVALUATION_SPEC_H
#define TANDEM_SERVER_JOBS_EVALUATION_SPEC_H

#include "engine/eval/evaluation.h"
#include "server/jobs/train_spec.h"

enum { EVALUATION_ADAPTERS_MAX = 63 };

struct evaluation_spec {
    const char *model;                             /* its id, in the tree; NULL: the default one */
    struct data_spec data;                         /* one file, or inline */
    const char *adapters[EVALUATION_ADAPTERS_MAX]; /* names, in the tree */
    int n_adapters;
    struct evaluation_options options; /* all but model and chat */
    const char *stop[ENGINE_STOP_MAX]; /* options.stop */
    int64_t limit;                     /* rows; 0: all */
    int resamples;
    uint64_t seed;
    char *metadata; /* JSON object of strings; NULL; owned */
};

/* @return 0, or *e.  stored: the text was written by evaluation_spec_put.  Strings point into the tree, and options
 * into the spec: both stay where they are.  Free in either case. */
int evaluation_spec_read(struct evaluation_spec *, const cJSON *tree, bool stored, struct err *e);
/* Appends it as a JSON object with every field; inline data is replaced by its count. */
void evaluation_spec_put(struct buf *, const struct evaluation_spec *);
void evaluation_spec_free(struct evaluation_spec *);

#endif
