#include "server/tinker/protobuf.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are little-endian on the wire");

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool read_varint(struct protobuf_reader *r, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; shift < 64 && r->p < r->end; shift += 7) {
        unsigned char c = *r->p++;
        if (shift == 63 && c > 1) break;
        *out |= (uint64_t)(c & 0x7f) << shift;
        if (c < 0x80) return true;
    }
    r->bad = true;
    return false;
}

static bool read_fixed(struct protobuf_reader *r, size_t n, uint64_t *out)
{
    *out = 0;
    if ((size_t)(r->end - r->p) < n) {
        r->bad = true;
        return false;
    }
    memcpy(out, r->p, n);
    r->p += n;
    return true;
}

bool protobuf_next(struct protobuf_reader *r, struct protobuf_field *f)
{
    uint64_t tag;
    *f = (struct protobuf_field){0};
    if (r->bad || r->p == r->end || !read_varint(r, &tag)) return false;
    f->number = (uint32_t)(tag >> 3);
    f->wire = (enum protobuf_wire)(tag & 7);
    r->bad = tag >> 3 == 0 || tag >> 3 > (1u << 29) - 1;
    if (r->bad) return false;
    switch (f->wire) {
    case PROTOBUF_VARINT: return read_varint(r, &f->value);
    case PROTOBUF_64: return read_fixed(r, 8, &f->value);
    case PROTOBUF_32: return read_fixed(r, 4, &f->value);
    case PROTOBUF_BYTES:
        if (!read_varint(r, &f->value)) return false;
        r->bad = f->value > (uint64_t)(r->end - r->p);
        if (r->bad) return false;
        f->p = r->p;
        f->n = (size_t)f->value;
        r->p += f->n;
        return true;
    }
    r->bad = true;
    return false;
}

double protobuf_double(const struct protobuf_field *f)
{
    double v;
    memcpy(&v, &f->value, sizeof v);
    return v;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void put_varint(struct buf *out, uint64_t v)
{
    for (; v > 0x7f; v >>= 7) buf_char(out, (char)(0x80 | (v & 0x7f)));
    buf_char(out, (char)v);
}

static void put_tag(struct buf *out, unsigned field, enum protobuf_wire wire)
{
    put_varint(out, (uint64_t)field << 3 | wire);
}

void protobuf_put_int(struct buf *out, unsigned field, int64_t v)
{
    if (v) protobuf_put_element(out, field, v);
}

void protobuf_put_element(struct buf *out, unsigned field, int64_t v)
{
    put_tag(out, field, PROTOBUF_VARINT);
    put_varint(out, (uint64_t)v);
}

void protobuf_put_double(struct buf *out, unsigned field, double v)
{
    put_tag(out, field, PROTOBUF_64);
    buf_append(out, &v, sizeof v);
}

void protobuf_put_bytes(struct buf *out, unsigned field, const void *p, size_t n)
{
    put_tag(out, field, PROTOBUF_BYTES);
    put_varint(out, n);
    buf_append(out, p, n);
}
