/* What another served model says of the rows of a distillation: for each trained token its likeliest tokens and their
 * log-probabilities, in a file that the trainer reads (engine/train/teacher_file.h).
 *
 * Requests of the daemon's own, behind those of all clients, as many as fill the engine's batch: each is a row as a
 * prompt, of which log-probabilities are asked and one token is generated.  A row is a record of the file as soon as it
 * is answered, synced in rounds: what was written stays after a crash, and only the rest is asked again.  Loop
 * thread. */
#ifndef TANDEM_SERVER_JOBS_TEACHER_ANSWERS_H
#define TANDEM_SERVER_JOBS_TEACHER_ANSWERS_H

#include "engine/base/err.h"

#include <stdint.h>

struct app;
struct dataset;
struct served_model;
struct teacher_answers;

struct teacher_answers_task {
    struct app *app;
    const struct served_model *teacher; /* loaded, until over */
    const struct served_model *student; /* its directory is read, to compare the vocabularies */
    int vocab;                          /* of the student */
    const struct dataset *rows;         /* borrowed, until over */
    const char *path;                   /* of the file; copied */
    int k;                              /* likeliest tokens */
    void (*progress)(void *arg, double fraction);
    void (*written)(void *arg);                  /* a round of rows is in the file, synced */
    void (*over)(void *arg, const struct err *); /* once, it is gone; ERR_FULL: it was stopped; *e.code 0: all are
                                                    there */
    void *arg;
};

struct teacher_answers *teacher_answers_start(const struct teacher_answers_task *);
/* `over` follows. */
void teacher_answers_stop(struct teacher_answers *);

#endif
