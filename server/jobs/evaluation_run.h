/* One evaluation while it runs: prepares requests, has the engine answer them, scores what comes.
 *
 * Preparing and scoring is done in rounds on the pool, which own the evaluation (engine/eval/evaluation.h) as long as
 * they last; the loop only has the requests in flight.  As many are in flight as fill the engine's batch, at most. They
 * count for one client of their own and have the least urgent priority, as the lines of a batch.
 *
 * Nothing of a run is stored before its end: results do not depend on when they are computed, so one that was stopped
 * starts again.  Loop thread, unless stated otherwise. */
#ifndef TANDEM_SERVER_JOBS_EVALUATION_RUN_H
#define TANDEM_SERVER_JOBS_EVALUATION_RUN_H

#include "engine/base/buf.h"
#include "server/jobs/evaluation_spec.h"

struct app;
struct evaluation_run;
struct served_model;

enum evaluation_end {
    EVALUATION_SUCCEEDED,
    EVALUATION_FAILED, /* err says why; ERR_FULL: the reason may pass */
    EVALUATION_HALTED, /* evaluation_run_stop, or the device is lost */
};

struct evaluation_outcome {
    enum evaluation_end end;
    struct buf results; /* SUCCEEDED: a JSON object; owned by the callee */
    int64_t rows_bytes; /* of the file at `output` */
    struct err e;
};

struct evaluation_task {
    struct app *app;
    struct served_model *served;                          /* loaded, and used until `over` */
    struct evaluation_spec *spec;                         /* stays until `over` */
    const char *path, *name;                              /* the rows' file, and what messages call it; copied */
    const char *output;                                   /* where the results of rows are written; copied */
    void (*over)(void *arg, struct evaluation_outcome *); /* once, the run is gone */
    void *arg;
};

struct evaluation_run *evaluation_run_start(const struct evaluation_task *);
/* Drops the requests in flight; `over` follows later, with HALTED unless it had ended. */
void evaluation_run_stop(struct evaluation_run *);
/* Appends the members of a JSON object: how far it is. */
void evaluation_run_put_progress(const struct evaluation_run *, struct buf *);

#endif
