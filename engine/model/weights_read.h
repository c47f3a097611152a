/* Matrices of a source in canonical form (kernels/ops.h), quantised while reading if requested. */
#ifndef TANDEM_ENGINE_MODEL_WEIGHTS_READ_H
#define TANDEM_ENGINE_MODEL_WEIGHTS_READ_H

#include "engine/base/err.h"
#include "engine/model/quant_config.h"
#include "engine/model/quantize.h"
#include "engine/model/shard.h"
#include "engine/model/tensors.h"
#include "kernels/ops.h"

/* The tensor of that name and shape (d1 is ignored when n_dims is 1). */
int weights_find(const struct tensor_source *f, const char *name, int n_dims, int64_t d0, int64_t d1,
                 const struct tensor **out, struct err *e);
/* The same, for a float type. */
int weights_find_floats(const struct tensor_source *f, const char *name, int n_dims, int64_t d0, int64_t d1,
                        const struct tensor **out, struct err *e);

/* The tensor as a canonical matrix, whoever quantised it.  *owned gets memory to free (NULL when src points into the
 * source). */
int weights_matrix(const struct tensor_source *f, const struct quant_config *, const struct matrix_slot *slot,
                   struct weight_src *src, void **owned, struct err *e);

/* A stack's parts in canonical form; floats are quantised unless the type is DT_NONE.  Free with weights_parts_free,
 * also after an error. */
struct parts {
    struct weight_src src[STACK_MAX];
    int by_head[STACK_MAX];    /* as matrix_slot's */
    void *owned[STACK_MAX][2]; /* data, scale; NULL where src points into the source */
    int n;
};
int weights_parts(const struct tensors *, const struct stack *m, const struct quantize_how *, int threads,
                  struct parts *, struct err *e);
void weights_parts_free(struct parts *);

/* The parts in the form that devices take: gate and up in one matrix become two.  @return their number. */
struct halves {
    struct weight_src src[STACK_MAX];
    struct weight_block lower; /* that of the second half; not to be moved */
};
int weights_halves(const struct weight_src *src, int n, struct halves *out);
/* Changes the parts where the device does not take their type.  NULL: out of memory, or the device rejects the values.
 */
struct weight *weights_pack(struct dev *, struct parts *);
/* The same of n pieces of the stack's rows alone (shard.h), each of which lies within one part; n 0: of all rows. */
struct weight *weights_pack_pieces(struct dev *, struct parts *, const struct shard_piece *, int n);

#endif
