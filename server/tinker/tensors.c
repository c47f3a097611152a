#include "server/tinker/tensors.h"

#include "server/tinker/protobuf.h"

/* Numbers of the fields in the package tinker_public. */
enum { TENSOR_DENSE = 1, TENSOR_SPARSE, TENSOR_TYPE, TENSOR_SHAPE };
enum { SPARSE_VALUES = 1, SPARSE_ROWS, SPARSE_COLUMNS };

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are little-endian on the wire");

static void put(struct buf *out, unsigned field, struct buf *b, enum tensor_type type, const int64_t *shape)
{
    protobuf_put_int(b, TENSOR_TYPE, type);
    for (int i = 0; i < 2; i++) protobuf_put_element(b, TENSOR_SHAPE, shape[i]);
    protobuf_put_bytes(out, field, b->data, b->len);
    buf_free(b);
}

void tensor_put(struct buf *out, unsigned field, enum tensor_type type, const void *values, size_t size,
                const int64_t *shape)
{
    struct buf b = {0};
    protobuf_put_bytes(&b, TENSOR_DENSE, values, size);
    put(out, field, &b, type, shape);
}

void tensor_put_sparse(struct buf *out, unsigned field, enum tensor_type type, const void *values, size_t size,
                       const int64_t *begin, size_t n_begin, const int64_t *column, size_t n, const int64_t *shape)
{
    struct buf b = {0}, csr = {0};
    protobuf_put_bytes(&csr, SPARSE_VALUES, values, size);
    protobuf_put_bytes(&csr, SPARSE_ROWS, begin, n_begin * sizeof *begin);
    protobuf_put_bytes(&csr, SPARSE_COLUMNS, column, n * sizeof *column);
    protobuf_put_bytes(&b, TENSOR_SPARSE, csr.data, csr.len);
    buf_free(&csr);
    put(out, field, &b, type, shape);
}
