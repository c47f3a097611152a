/* Tinker's `Tensor` of two dimensions as protobuf, dense and sparse (CSR).  Pure; any thread. */
#ifndef TANDEM_SERVER_TINKER_TENSORS_H
#define TANDEM_SERVER_TINKER_TENSORS_H

#include "engine/base/buf.h"

#include <stddef.h>
#include <stdint.h>

enum tensor_type { TENSOR_F32 = 1, TENSOR_I64 };

/* values: of `size` bytes; shape (2) */
void tensor_put(struct buf *, unsigned field, enum tensor_type, const void *values, size_t size, const int64_t *shape);
/* begin (n_begin): where each row begins; column (n) of each value */
void tensor_put_sparse(struct buf *, unsigned field, enum tensor_type, const void *values, size_t size,
                       const int64_t *begin, size_t n_begin, const int64_t *column, size_t n, const int64_t *shape);

#endif
