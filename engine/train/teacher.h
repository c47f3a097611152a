/* The teacher of method distill: the model that is trained, with another adapter or with none; or another model, which
 * has been asked about all rows before (teacher_file.h).
 *
 * It has activations of its own, of one layer at a time, and its adapter on the device; another model needs neither.
 * Trainer thread; the device is needed by all but plan and bytes. */
#ifndef TANDEM_ENGINE_TRAIN_TEACHER_H
#define TANDEM_ENGINE_TRAIN_TEACHER_H

#include "engine/train/distill.h"
#include "engine/train/lora.h"
#include "engine/train/model.h"
#include "engine/train/optim.h"
#include "engine/train/teacher_file.h"

struct train;

struct teacher {
    struct train_model tm;
    struct train_lora lora; /* with an adapter */
    struct optim o;         /* of which only p is used: the adapter's matrices */
    struct distill distill;
    struct teacher_file answers, eval_answers; /* another model's, of the rows and of those of train_job.eval */
    uint64_t hash;                             /* of the adapter's matrices, or of the answers; 0: none */
};

/* Reads the adapter; after the student's model is set. */
int train_teacher_plan(struct train *, struct err *);
/* What train_teacher_open would allocate for micro-batches of so many tokens; *largest: at least the largest block. */
size_t train_teacher_bytes(const struct train *, int tokens, size_t *largest);
int train_teacher_open(struct train *, struct err *);
/* Finds its distributions for the targets of a micro-batch, of held-out rows with eval, which the student's next pass
 * is compared with. */
void train_teacher_run(struct train *, const struct micro *, bool eval);
void train_teacher_close(struct train *);

#endif
