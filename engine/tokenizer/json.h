/* Reading typed fields of a parsed tokenizer.json, with errors that name the place ("model.merges[17]: ..."). */
#ifndef TANDEM_ENGINE_TOKENIZER_JSON_H
#define TANDEM_ENGINE_TOKENIZER_JSON_H

#include "engine/base/err.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JSON_PLACE_MAX = 160, JSON_NESTED_MAX = 8 /* Sequence within Sequence */ };

/* An object (or array) of the file and where it is.  Cheap to copy; owns nothing. */
struct json_at {
    const cJSON *v;
    char place[JSON_PLACE_MAX];
    int depth;
};

/* A member (key) or element (index >= 0) of at; its v is NULL when absent or null. */
struct json_at json_member(const struct json_at *at, const char *key);
struct json_at json_element(const struct json_at *at, const cJSON *v, int index);

__attribute__((format(printf, 4, 5))) int json_fail(const struct json_at *at, struct err *e, int code, const char *fmt,
                                                    ...);

/* Each fills *out and returns 0, or an err code.  json_*_or: absent or null means `otherwise`. */
int json_bool_or(const struct json_at *at, const char *key, bool otherwise, bool *out, struct err *e);
int json_string(const struct json_at *at, const char *key, const char **out, struct err *e);
int json_string_or(const struct json_at *at, const char *key, const char *otherwise, const char **out, struct err *e);
int json_integer(const struct json_at *at, int32_t max, int32_t *out, struct err *e); /* of at->v itself */
/* Must be an array: its first element in *first (may be NULL), how many in *n. */
int json_array(const struct json_at *at, const cJSON **first, size_t *n, struct err *e);

/* Calls `read` for each element of at's member `key` (a Sequence's steps), until one fails; nesting is bounded. */
int json_each(const struct json_at *at, const char *key,
              int (*read)(void *arg, const struct json_at *step, struct err *e), void *arg, struct err *e);

/* The "type" of a step; an error when at is no object or has none. */
int json_type(const struct json_at *at, const char **out, struct err *e);

#endif
