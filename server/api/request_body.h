/* What the routes that take JSON do with a body: where it is read, what tokenising it may take, and the answer when
 * there is no memory for it. */
#ifndef TANDEM_SERVER_API_REQUEST_BODY_H
#define TANDEM_SERVER_API_REQUEST_BODY_H

#include "engine/base/err.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

struct app;
struct bridge;
struct http_req;

/* A longer body is parsed and checked on the thread pool: the loop's work may not grow with what clients send. */
enum { BODY_INLINE = 16 * 1024 };

/* Answers 413 or 503 (with Retry-After, counted) where e says that there is no memory; false: it says something else.
 */
bool body_reply_memory(struct app *, struct http_req *, const struct err *e);

/* json_free, of a large tree on the pool. */
void body_free_json(struct bridge *, uint64_t client, cJSON *);

#endif
