/* ForwardBackwardRequest, and ForwardBackwardOutput.  Pure; any thread. */
#ifndef TANDEM_SERVER_TINKER_GRADIENT_REQUEST_H
#define TANDEM_SERVER_TINKER_GRADIENT_REQUEST_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/train/tuner.h"
#include "server/memory/reservation.h"
#include "server/tinker/losses.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A datum with one of its candidates a position. */
struct gradient_row {
    int n;
    int32_t *id, *target;    /* (n) */
    float *old, *advantage;  /* (n) logprobs, advantages; of cross_entropy advantage: weights, and no old */
    float *weight, *logprob; /* (n) of the gradient; the result */
    float *sampled;          /* (n) see tuner_row */
};

struct gradient_request {
    char model_id[96];
    int64_t seq;
    bool forward_only;
    enum loss loss;
    struct loss_config config;
    int n_data;
    size_t candidates;        /* targets of a position: each is a row of its own, with the same ids */
    bool wide;                /* the targets' shape says how many */
    struct gradient_row *row; /* (n_rows = n_data * candidates) owned; those of a datum one behind the other */
    int n_rows;
    float *values;           /* what the rows point to; owned */
    double sum;              /* of the loss */
    struct loss_stats stats; /* not of cross_entropy */
    struct reservation held;
};

/* @return 0, or *e, which names the field.  vocab, longest: of the model; 0: not checked.  To be freed either way. */
int gradient_request_read(struct gradient_request *, const void *body, size_t n, struct err *e);
int gradient_request_fits(const struct gradient_request *, int vocab, int longest, struct err *e);
/* In a call of the trainer's thread. */
int gradient_request_run(struct gradient_request *, struct tuner *, struct err *e);
void gradient_put_output(struct buf *, const struct gradient_request *);
void gradient_request_free(struct gradient_request *);

#endif
