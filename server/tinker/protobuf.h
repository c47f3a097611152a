/* Writes protobuf's wire format: the few kinds of fields that Tinker's messages have.  A field of value 0 is left out,
 * as proto3 has it.  Pure; any thread. */
#ifndef TANDEM_SERVER_TINKER_PROTOBUF_H
#define TANDEM_SERVER_TINKER_PROTOBUF_H

#include "engine/base/buf.h"

#include <stddef.h>
#include <stdint.h>

void protobuf_put_int(struct buf *, unsigned field, int64_t v);
/* Bytes, a text or a message; also when it is empty. */
void protobuf_put_bytes(struct buf *, unsigned field, const void *p, size_t n);

#endif
