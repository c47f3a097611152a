/* Protobuf's wire format: the few kinds of fields that Tinker's messages have.  Pure; any thread. */
#ifndef TANDEM_SERVER_TINKER_PROTOBUF_H
#define TANDEM_SERVER_TINKER_PROTOBUF_H

#include "engine/base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- reading ----------------------------------------------------------------------------------------------------- */

enum protobuf_wire { PROTOBUF_VARINT = 0, PROTOBUF_64 = 1, PROTOBUF_BYTES = 2, PROTOBUF_32 = 5 };

/* Zero-initialise, and set p and end: a message, which must outlive it. */
struct protobuf_reader {
    const unsigned char *p, *end;
    bool bad; /* it is no message: groups, a field that is cut off, a number that is too long */
};

struct protobuf_field {
    uint32_t number;
    enum protobuf_wire wire;
    uint64_t value;         /* VARINT, 64 (its bits), 32 */
    const unsigned char *p; /* BYTES: (n) within the message */
    size_t n;
};

/* @return false at the end, or when the message is bad. */
bool protobuf_next(struct protobuf_reader *, struct protobuf_field *);
double protobuf_double(const struct protobuf_field *); /* of PROTOBUF_64 */

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* A field of value 0 is left out, as proto3 has it. */
void protobuf_put_int(struct buf *, unsigned field, int64_t v);
void protobuf_put_element(struct buf *, unsigned field, int64_t v); /* of a repeated field; also when it is 0 */
void protobuf_put_double(struct buf *, unsigned field, double v);   /* also when it is 0 */
/* Bytes, a text or a message; also when it is empty. */
void protobuf_put_bytes(struct buf *, unsigned field, const void *p, size_t n);

#endif
