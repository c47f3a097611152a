/* A job that rank 0 of several tells the others, each of which has the same model: its parameters, and its data, whole.
 * What else it names (an adapter to go on from, a teacher) each rank reads by the same path.  Every rank calls these
 * together, on the thread that uses the comm. */
#ifndef TANDEM_ENGINE_TRAIN_JOB_ORDER_H
#define TANDEM_ENGINE_TRAIN_JOB_ORDER_H

#include "engine/train/train.h"

#include <stdint.h>

struct comm;
struct dataset;

enum { JOB_ORDER_TEXTS = 7 };
struct job_order {
    bool end;             /* there will be no further job */
    int32_t kv_type;      /* of rank 0's model, enum dtype */
    struct train_job job; /* of the comm */
    struct dataset *data, *eval;
    char *text[JOB_ORDER_TEXTS];
};

/* What has to be the same in the programs of all ranks: a hash of it. */
uint64_t job_order_version(void);
/* On rank 0. */
void job_order_send(struct comm *, const struct train_job *, int32_t kv_type);
void job_order_end(struct comm *);
/* On the others: waits for an order.  @return 0; or *e: this rank has no room for the data; the order is there, without
 * them */
int job_order_receive(struct comm *, struct job_order *, struct err *e);
void job_order_free(struct job_order *);

#endif
