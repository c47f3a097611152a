/* A teacher's distributions, and the student's gradients by how far it is from them (divergence.h), in the head of the
 * model (model_head.c).
 *
 * Of each target the teacher's k likeliest tokens are kept on the host, in f32; the others count as one outcome.  The
 * gradient by the student's logits is that of a cross-entropy times a factor, and a few numbers more: so it is made of
 * the ops that there are.  Trainer thread. */
#ifndef TANDEM_ENGINE_TRAIN_DISTILL_H
#define TANDEM_ENGINE_TRAIN_DISTILL_H

#include "engine/base/err.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <stdint.h>

struct op_chunks;
struct train_model;

struct distill {
    int k, vocab; /* k: 1 .. vocab, which is exact */
    double beta;
    bool records;   /* the present pass is the teacher's */
    bool dry;       /* it is not computed: ops record what they need */
    float scale;    /* of the student's gradients */
    int32_t *id;    /* (T, k) */
    float *logprob; /* (T, k) the teacher's */
    /* of the rows of logits that are computed at once, room for `rows` of them */
    int rows;
    float *logits;          /* (rows, vocab) on the host; NULL: the device's are */
    int32_t *index, *at;    /* (rows, k + 1) places of the tokens, the target's last, among the logits; on the device */
    float *value, *picked;  /* the same of the values there */
    float *factor, *loss;   /* (rows) */
    struct heap_item *heap; /* (k) */
    struct dev *d;
};

/* For micro-batches of up to `targets` targets, `rows` of them at once.  @return 0, or ERR_NOMEM. */
int distill_open(struct distill *, struct dev *, int k, int vocab, double beta, int targets, int rows, struct err *);
void distill_close(struct distill *); /* zeroed is allowed */
/* Bytes that distill_open allocates, but for a copy of the logits on the host of a device with its own memory. */
double distill_bytes(int k, int targets, int rows);

/* The teacher's rows of logits (n, V): target `from` and the next ones.  Serving may have the device between two rows. */
void distill_record(struct distill *, struct op_chunks, struct mat logits, int from);
/* Before the student's cross-entropy: sets the factors of its gradient, m->scale, and the divergences. */
void distill_weigh(struct distill *, struct op_chunks, struct train_model *m, struct mat logits, int from, bool back);
/* After it: adds what the gradient lacks, and replaces the losses by the divergences. */
void distill_correct(struct distill *, struct op_chunks, struct train_model *m, struct mat logits, int from, bool back);

#endif
