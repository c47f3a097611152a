#include "server/tinker/protobuf.h"

enum wire { WIRE_VARINT = 0, WIRE_BYTES = 2 };

static void put_varint(struct buf *out, uint64_t v)
{
    for (; v > 0x7f; v >>= 7) buf_char(out, (char)(0x80 | (v & 0x7f)));
    buf_char(out, (char)v);
}

static void put_tag(struct buf *out, unsigned field, enum wire wire)
{
    put_varint(out, (uint64_t)field << 3 | wire);
}

void protobuf_put_int(struct buf *out, unsigned field, int64_t v)
{
    if (!v) return;
    put_tag(out, field, WIRE_VARINT);
    put_varint(out, (uint64_t)v);
}

void protobuf_put_bytes(struct buf *out, unsigned field, const void *p, size_t n)
{
    put_tag(out, field, WIRE_BYTES);
    put_varint(out, n);
    buf_append(out, p, n);
}
