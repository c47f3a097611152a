/* A matrix of small integers in groups of columns with a common scale and zero point, on its way from a checkpoint's
 * own packing (weights_gptq.h, weights_compressed.h) to a form that devices take:
 *
 *     w[r][k] = (code[r][k] - zero[r][g]) * scale[r][g]        g = group_of[k], or k / group
 *
 * Any thread. */
#ifndef TANDEM_ENGINE_MODEL_STORED_INTS_H
#define TANDEM_ENGINE_MODEL_STORED_INTS_H

#include "engine/base/err.h"
#include "kernels/ops.h"

#include <stdint.h>

struct stored_ints {
    int rows, cols, bits;    /* 2..8 */
    int groups;              /* of a row */
    int group;               /* columns of a group; the last one may be shorter */
    uint8_t *code;           /* [rows][cols], each below 1 << bits */
    uint8_t *zero;           /* [rows][groups] */
    float *scale;            /* [rows][groups], finite */
    const int32_t *group_of; /* [cols], each below groups; borrowed; NULL: k / group */
};

/* Allocates the arrays, uninitialised, and sets the rest.  ERR_NOMEM.  Free with stored_ints_free. */
int stored_ints_make(struct stored_ints *, int rows, int cols, int bits, int groups, struct err *e);
void stored_ints_free(struct stored_ints *);

/* The matrix in the type of the same values that is multiplied fastest: DT_I4 (4 bits, all zero points 8, groups of 32,
 * 64 or 128, scales that f16 can hold), DT_I8 (8 bits, all zero points 128, one group), else DT_BLOCK, with the columns
 * sorted by group where group_of is not ascending; DT_F32 where groups are not multiples of 16 columns or differ in
 * size.  src points into *owned, which the caller frees.  Consumes the arrays, also after an error. */
int stored_ints_matrix(struct stored_ints *, struct weight_src *src, void **owned, struct err *e);

#endif
