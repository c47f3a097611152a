/* A trainer of one adapter that is driven call by call: gradients of rows, which add up until a step.  Its parameters,
 * gradients and moments stay on the device between the calls.  The forward pass is serving's (exact.h): the
 * log-probabilities of a text that was sampled from the adapter as it is have the bits that sampling gave.
 *
 * All calls on the thread that may use the device by the gate, one tuner after the other (engine_trainer_call). */
#ifndef TANDEM_ENGINE_TRAIN_TUNER_H
#define TANDEM_ENGINE_TRAIN_TUNER_H

#include "engine/base/err.h"
#include "engine/model/lora_targets.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TUNER_ATTENTION = TARGET_Q | TARGET_K | TARGET_V | TARGET_O | TARGET_C_ATTN | TARGET_DENSE | TARGET_QKV_PROJ |
                      TARGET_QUERY_KEY_VALUE,
    TUNER_FEED_FORWARD = TARGET_GATE | TARGET_UP | TARGET_DOWN | TARGET_C_PROJ | TARGET_C_FC | TARGET_FC1 | TARGET_FC2 |
                         TARGET_GATE_UP_PROJ | TARGET_DENSE_H_TO_4H | TARGET_DENSE_4H_TO_H | TARGET_SHARED_EXPERT_GATE,
    TUNER_HEAD = TARGET_HEAD,
};

struct adapter;
struct model;
struct scheduler_gate;
struct tuner;

struct tuner_params {
    int r;            /* 1..256 */
    double alpha;     /* (0, 4096] */
    unsigned targets; /* of enum lora_target */
    uint64_t seed;    /* of the initial values */
};

/* A sequence: the model reads id, and after each position predicts target. */
struct tuner_row {
    int n;                 /* positions, 1 .. the model's */
    const int32_t *id;     /* (n) below the vocabulary's size, as the targets */
    const int32_t *target; /* (n) */
    const float *weight; /* (n) of the gradient: the loss is -sum weight log p(target); NULL: no gradient is computed */
    float *logprob;      /* (n) out: log p(target) */
    /* (n) log p(target) when the text was sampled, NAN: unknown; NULL: all are.  Where gradients are computed, those
     * that are other bits than logprob are counted (train_sampled in train.h). */
    const float *sampled;
};

struct tuner_step {
    double learning_rate, beta1, beta2, epsilon, weight_decay;
    double max_norm; /* of the gradient; 0: it is not clipped */
};

/* NULL and *e: ERR_INVALID, ERR_UNSUPPORTED, ERR_NOMEM.  The model's weights are borrowed until tuner_free. */
struct tuner *tuner_open(const struct tuner_params *, struct model *, struct scheduler_gate *, struct err *e);
/* Log-probabilities of all rows, and with back the gradients, added to those that there are.  After an error nothing
 * was added: the gradients of calls before are lost too, and tuner_step says so. */
int tuner_run(struct tuner *, const struct tuner_row *, int n_rows, bool back, struct err *e);
/* A step of AdamW with the gradients, which are zero then.  *norm: theirs, before clipping.  ERR_INVALID: it is not
 * finite, and nothing was changed but the gradients. */
int tuner_step(struct tuner *, const struct tuner_step *, double *norm, struct err *e);
/* Its adapter as it is now; valid until the next call.  NULL and *e. */
struct adapter *tuner_adapter(struct tuner *, struct err *e);
void tuner_free(struct tuner *);

/* Writes it as a directory (tuner_files.h): the adapter as PEFT's files, with `optimizer` also the moments, and the
 * note as checkpoint.json; model_dir: of the base.  Gradients that wait for a step are not written. */
int tuner_save(struct tuner *, const char *dir, bool optimizer, const char *model_dir, const char *note, size_t n_note,
               struct err *e);
/* One from such a directory, every file of which is compared with its checksum; optimizer: with its moments and steps,
 * so that it goes on with the bits that the saved one would have gone on with.  Else as tuner_open.  ERR_NOT_FOUND also
 * where moments are wanted and there are none. */
struct tuner *tuner_load(const char *dir, bool optimizer, struct model *, struct scheduler_gate *, struct err *e);

#endif
