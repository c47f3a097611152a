/* The texts that a draft is trained on: what the served model itself writes for the prompts of a data set.
 *
 * Requests of the daemon's own, behind those of all clients, as many as fill the engine's batch.  A text is a line of a
 * file as soon as it is done, {"row": N, "prompt": N, "input_ids": [...]}, and synced in rounds: what was written stays
 * after a crash, and only the rest is generated again.  At the end all of them are written to another file, in the
 * order of the rows, as a data set (format tokens) of which the generated part is trained.  Loop thread. */
#ifndef TANDEM_SERVER_JOBS_JOB_TEXTS_H
#define TANDEM_SERVER_JOBS_JOB_TEXTS_H

#include "engine/base/err.h"

#include <stdint.h>

struct app;
struct served_model;
struct dataset;
struct job_texts;

struct job_texts_task {
    struct app *app;
    const struct served_model *served; /* which writes the texts */
    const struct dataset *prompts;     /* borrowed, until over */
    const char *lines, *out;           /* the two files; likewise */
    int max_new_tokens, max_length;    /* of a text; of prompt and text */
    double temperature;                /* 0: greedy */
    uint64_t seed;
    void (*progress)(void *arg, double fraction);
    void (*written)(void *arg); /* a round of texts is in the file, synced */
    void (*over)(void *arg,
                 const struct err *); /* once, it is gone; ERR_FULL: it was stopped.  *e.code 0: `out` is there */
    void *arg;
};

struct job_texts *job_texts_start(const struct job_texts_task *);
/* `over` follows. */
void job_texts_stop(struct job_texts *);

#endif
