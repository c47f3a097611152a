/* The tensors that stand beside each other for one quantised matrix: X.qweight, X.scales...  of X.weight. */
#ifndef TANDEM_ENGINE_MODEL_STORED_PARTS_H
#define TANDEM_ENGINE_MODEL_STORED_PARTS_H

#include "engine/base/err.h"
#include "engine/model/stored_ints.h"
#include "engine/model/tensor_source.h"
#include "engine/model/tensors.h"

enum { PART_NAME_MAX = TENSOR_NAME_MAX + 40 };

/* X + suffix of NAME, "X.weight"; out is "" where NAME does not end so. */
void stored_part_name(const char *name, const char *suffix, char out[PART_NAME_MAX]);
/* That tensor, or NULL. */
const struct tensor *stored_part(const struct tensor_source *f, const char *name, const char *suffix);
/* That tensor, which must be there, of this type and [d0, d1] (d1 0: one dimension). */
int stored_part_find(const struct tensor_source *f, const char *name, const char *suffix, enum tensor_type type,
                     int64_t d0, int64_t d1, const struct tensor **out, struct err *e);
/* Finite floats of any float type: element i of the tensor. */
int stored_part_float(const struct tensor *t, size_t i, float *out, struct err *e);
/* Groups of the inputs from a tensor g_idx (I32 [cols]): each below `groups`; out, owned by the caller, is NULL when
 * the tensor is not there. */
int stored_part_groups(const struct tensor_source *f, const char *name, const char *suffix, int cols, int groups,
                       int32_t **out, struct err *e);
uint32_t stored_word(const struct tensor *t, size_t i); /* element i of an I32 tensor */

#endif
