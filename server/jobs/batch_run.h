/* A batch while it runs: reads lines, has their routes' handlers answer them (net/local.h), and writes the answers.
 *
 * As many lines are in flight as fill the engine's batch, at most.  They count for a client of their own and have the
 * least urgent priority, so a client's request goes before all of them, and takes the place of a running one.
 *
 * Answers are written in rounds on the pool: append at the committed end, sync, then `commit` of the owner, who stores
 * how far the files are good.  An answer counts once its round is committed; whatever is behind the committed end after
 * a crash is cut off, and its lines are answered again.  So each line is answered once, whenever the process ends.
 *
 * Loop thread; rounds and opening run on libuv's pool. */
#ifndef TANDEM_SERVER_JOBS_BATCH_RUN_H
#define TANDEM_SERVER_JOBS_BATCH_RUN_H

#include "server/jobs/batch_lines.h"

#include <stdbool.h>
#include <stdint.h>

struct app;
struct batch_run;

enum batch_end {
    BATCH_COMPLETED,
    BATCH_CANCELLED,
    BATCH_EXPIRED, /* lines without an answer got an error */
    BATCH_HALTED,  /* batch_run_end: to go on later */
    BATCH_FAILED,  /* its files cannot be read: err says why */
    BATCH_CRASHED, /* the daemon ended each time it was run; not an end of batch_run.c */
};

/* How far a batch is.  Bytes of an output file are those of whole lines. */
struct batch_progress {
    int total, good, bad; /* lines; those answered with a status below 400; and others */
    int64_t output_bytes, errors_bytes;
};

struct batch_job {
    struct app *app;
    /* Paths, copied.  errors: where failed answers go; NULL: to the output. */
    const char *input, *output, *errors;
    const char *client; /* of the lines, in the place of an address; copied */
    struct batch_limits limits;
    struct batch_progress committed; /* only its bytes are read */
    bool whole;                      /* nothing was committed: the whole lines of the output are; it is locked */
    int64_t deadline;                /* ms since the epoch; 0: none */
    /* Its files are open; NULL: not wanted. */
    void (*opened)(void *arg, const struct batch_progress *);
    /* The answers up to this are on the disk: stores it, then calls batch_run_committed. */
    void (*commit)(void *arg, struct batch_run *, const struct batch_progress *);
    /* Once; the run is freed afterwards. */
    void (*over)(void *arg, enum batch_end, const struct batch_progress *, const struct err *);
    void *arg;
};

struct batch_run *batch_run_start(const struct batch_job *);
/* The reply to `commit`; good false: it could not be stored, and is tried again later. */
void batch_run_committed(struct batch_run *, bool good);
/* How many batches run: each has its part of the lines in flight. */
void batch_run_share(struct batch_run *, int batches);
/* Ends it with CANCELLED or HALTED: lines in flight are dropped at once, answers are still written, then `over`
 * follows, possibly inside this call.  A later call can only turn another end into HALTED. */
void batch_run_end(struct batch_run *, enum batch_end);

#endif
