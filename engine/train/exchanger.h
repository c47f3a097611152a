/* Exchanges data between ranks on a thread of its own while the trainer's thread computes: one exchange after the
 * other, in the order in which they are asked for, which has to be the same on all ranks.  While one is asked for and
 * has not been waited for, the trainer's thread exchanges nothing itself. */
#ifndef TANDEM_ENGINE_TRAIN_EXCHANGER_H
#define TANDEM_ENGINE_TRAIN_EXCHANGER_H

#include <stdint.h>

struct comm;
struct exchanger;
struct scheduler_gate;

typedef void exchange_fn(void *arg, int layer);

/* comm is borrowed, and the gate, which the trainer leaves when it has to wait.  NULL: there is no thread to be had, or the
 * ranks may not be used by another one. */
struct exchanger *exchanger_open(const struct comm *, struct scheduler_gate *);
/* fn(arg, layer) on the exchanger's thread, after those asked for before.  @return what exchanger_wait takes */
uint64_t exchanger_start(struct exchanger *, exchange_fn *fn, void *arg, int layer);
/* Until that exchange is done. */
void exchanger_wait(struct exchanger *, uint64_t which);
void exchanger_close(struct exchanger *); /* after what was asked for; NULL is allowed */

#endif
