/* What several ranks decide together. */
#ifndef TANDEM_ENGINE_MODEL_RANKS_AGREE_H
#define TANDEM_ENGINE_MODEL_RANKS_AGREE_H

#include "engine/base/err.h"

#include <stdint.h>

struct comm;
struct dev;

/* Each rank calls it with its result.  c NULL: there is one.  @return 0 when all of them succeeded; else the code of
 * the first that did not, with its rank before the message. */
int ranks_agree(struct comm *c, int rc, struct err *e);

/* What ranks have to have in common to get the same bits. */
struct rank_kind {
    char device[32], level[32];
    int32_t bf16_x;   /* activations are rounded */
    uint64_t work[2]; /* hashes of what they do, each of something else; 0: not compared */
};
struct rank_kind rank_kind_of(const struct dev *);
/* Each rank calls it.  otherwise[i]: what a rank has whose work[i] is another than rank 0's, after "rank 1 ".  @return
 * 0, or the same error on every rank. */
int ranks_compare(struct comm *, const struct rank_kind *, const char *const otherwise[2], struct err *e);

#endif
