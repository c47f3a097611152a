/* Tokenising a client's text with its memory reserved. */
#ifndef TANDEM_SERVER_BRIDGE_ENCODE_H
#define TANDEM_SERVER_BRIDGE_ENCODE_H

#include "engine/tokenizer/tokenizer.h"
#include "server/memory/reservation.h"

/* Bytes of memory that tokenising takes for each byte of the text (measured, reservation_test: 70 where buffers have
 * just doubled) and, beside them, for each token as long as it is kept, with a copy of its id. */
enum { ENCODE_BYTES = 96, ENCODE_TOKEN = sizeof(struct token) + sizeof(int32_t) };

/* tokenizer_encode with its memory reserved: for the work while it lasts, for the tokens in *held.  Any thread. */
int encode_reserved(const struct tokenizer *, const char *text, size_t n, unsigned flags, struct tokens *out,
                    struct reservation *held, struct err *e);

/* tokenizer_encode_input likewise; *types is small beside the tokens and not counted. */
int encode_input_reserved(const struct tokenizer *, const struct encode_input *, unsigned flags, struct tokens *out,
                          struct buf *types, struct reservation *held, struct err *e);

#endif
