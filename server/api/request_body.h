/* What the routes that take JSON do with a body: where it is read, what tokenising it may take, and the answer when
 * there is no memory for it. */
#ifndef TANDEM_SERVER_API_REQUEST_BODY_H
#define TANDEM_SERVER_API_REQUEST_BODY_H

#include "engine/tokenizer/tokenizer.h"
#include "server/memory/reservation.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

struct app;
struct bridge;
struct http_req;

/* A longer body is parsed and checked on the thread pool: the loop's work may not grow with what clients send. */
enum { BODY_INLINE = 16 * 1024 };

/* Bytes of memory that tokenising takes for each byte of the text (measured, reservation_test: 70 where buffers have
 * just doubled) and, beside them, for each token as long as it is kept, with a copy of its id. */
enum { ENCODE_BYTES = 96, ENCODE_TOKEN = sizeof(struct token) + sizeof(int32_t) };

/* tokenizer_encode with its memory reserved: for the work while it lasts, for the tokens in *held.  Any thread. */
int body_encode(const struct tokenizer *, const char *text, size_t n, unsigned flags, struct tokens *out,
                struct reservation *held, struct err *e);

/* Answers 413 or 503 (with Retry-After, counted) where e says that there is no memory; false: it says something else.
 */
bool body_reply_memory(struct app *, struct http_req *, const struct err *e);

/* json_free, of a large tree on the pool. */
void body_free_json(struct bridge *, uint64_t client, cJSON *);

#endif
