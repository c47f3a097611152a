/* Handling of JSON bodies: the thread that parses them, the memory for tokenising, and the answer when memory is
 * short. */
#ifndef TANDEM_SERVER_API_REQUEST_BODY_H
#define TANDEM_SERVER_API_REQUEST_BODY_H

#include "engine/base/err.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

struct app;
struct bridge;
struct http_req;

/* A longer body is parsed and checked on the thread pool: the loop's work must not grow with the size of requests. */
enum { BODY_INLINE = 16 * 1024 };

/* Answers 413 or 503 (with Retry-After, counted) if e is about memory.  @return false when it is another error. */
bool body_reply_memory(struct app *, struct http_req *, const struct err *e);

/* As json_free, but frees a large tree on the pool. */
void body_free_json(struct bridge *, uint64_t client, cJSON *);

#endif
