/* Sees what each op of a training step wrote, while a step is replayed to find its first value that is not finite
 * (locate.h).  In normal steps there is none.  Trainer thread. */
#ifndef TANDEM_ENGINE_TRAIN_OP_WATCH_H
#define TANDEM_ENGINE_TRAIN_OP_WATCH_H

#include "kernels/ops.h"

#include <stdbool.h>

enum { WATCH_EMBEDDINGS = -1 }; /* a layer before the first; the head is the layer after the last */

struct op_watch {
    /* Called after an op, with the matrix that it wrote, on the device.  of: the weights that it read, or the gradient
     * that it added to; NULL: none.  sum: a sum over tokens; else the rows are those of the micro-batch's tokens, or,
     * with target >= 0, of its targets from `target` on. */
    void (*wrote)(struct op_watch *, enum op_id, const void *of, struct mat out, bool sum);
    int layer;
    bool back;
    int target; /* -1: rows are tokens */
};

/* watch NULL: none */
static inline void op_watch_wrote(struct op_watch *watch, enum op_id op, const void *of, struct mat out, bool sum)
{
    if (watch && out.p) watch->wrote(watch, op, of, out, sum);
}

#endif
