/* The tensors of a model with an adapter added to them, as a tensor_source: those that the adapter does not change are
 * the base's, the others are computed when they are populated, and freed when they are released.  One thread at a time.
 */
#ifndef TANDEM_ENGINE_MODEL_MERGE_SOURCE_H
#define TANDEM_ENGINE_MODEL_MERGE_SOURCE_H

#include "engine/model/adapter.h"
#include "engine/model/tensor_source.h"

struct merge_plan {
    const struct model_config *c;
    const struct adapter *adapter;
    enum tensor_type type; /* of the matrices that are computed; TENSOR_OTHER: that of the base's tensor */
    bool dequantise;       /* every matrix is computed, and nothing but matrices and vectors is listed */
    bool untie;            /* the head is the embedding table in the base, and a matrix of its own here */
};

/* Borrows all, `base` too: model_source_open's.  A tensor that is computed has no data before tensor_source_populate,
 * which reports errors: a quantised tensor that cannot be read, ERR_INVALID for a value that is not finite.
 * *changed: the number of matrices that the adapter changes. */
struct tensor_source *merge_source(const struct tensor_source *base, const struct merge_plan *, int *changed);

/* Whether the tensor of this source is computed. */
bool merge_source_computes(const struct tensor_source *, const struct tensor *);

#endif
