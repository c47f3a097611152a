/* What remains of a job of `tandem train`: training_record.json in the output directory (train_compare.h reads it), and
 * with --tensorboard event files.  Main thread. */
#ifndef TANDEM_SERVER_CLI_TRAIN_RECORD_H
#define TANDEM_SERVER_CLI_TRAIN_RECORD_H

#include "engine/base/buf.h"
#include "engine/train/tfevents.h"
#include "engine/train/train.h"
#include "server/config/settings.h"

struct train_record {
    const struct settings *s; /* borrowed */
    struct train_params p;    /* batch_tokens as computed from rows */
    double started;           /* seconds since the epoch */
    struct train_event last;  /* the last step; kind TRAIN_STEP once there was one */
    struct buf usage;         /* at the end, as JSON */
    struct train_plan plan;
    struct train_rank_memory *rank_memory; /* of each rank, at the end; NULL: of one */
    double eval_loss, best_eval_loss;      /* NAN: none */
    int64_t best_step;                     /* -1: none */
    struct buf norms;                      /* of the last step by group, as JSON */
    struct tfevents *board;                /* opened with the first event for it */
    bool board_failed;
};

void train_record_init(struct train_record *, const struct settings *, const struct train_params *);
/* Remembers what an event says.  @return false when TensorBoard's file could not be written, for the first time: *e. */
bool train_record_event(struct train_record *, const struct train_event *, struct err *e);
/* Appends the record as JSON, with the fields of GET /train/{id} by the same names. */
void train_record_put(struct buf *, const struct train_record *);
/* Writes it into the directory. */
int train_record_write(const struct train_record *, const char *dir, struct err *e);
void train_record_close(struct train_record *);

#endif
