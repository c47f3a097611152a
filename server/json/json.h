/* Strict, typed reading of JSON from a request, and writing.  Loop or pool thread; owns what it parses.
 *
 * json_parse checks the whole text first (RFC 8259 grammar, UTF-8, escapes, nesting <= 64, no NUL character, finite
 * numbers) and names the byte at fault; only then cJSON builds the tree.  The getters name the field at fault with its
 * path
 * ("parameters.stop[2]: expected a string"). */
#ifndef TANDEM_SERVER_JSON_JSON_H
#define TANDEM_SERVER_JSON_JSON_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* @return a tree, to be freed with json_free; NULL and *e ("malformed JSON at byte 17: ...").  For texts of bounded
 * size; use json_parse_body for a client's text. */
cJSON *json_parse(const char *text, size_t n, struct err *e);
/* The same for a client's text.  Computes and reserves the tree's memory before building it; ERR_NOMEM or ERR_FULL
 * (reservation.h) when that fails. */
cJSON *json_parse_body(const char *text, size_t n, struct err *e);
/* NULL is allowed.  A large tree takes milliseconds. */
void json_free(cJSON *);
/* Bytes reserved for the tree. */
size_t json_reserved(const cJSON *);

/* A position in a request: an object and its path, for error messages.  path "": the top. */
struct json_at {
    const cJSON *obj;
    const char *path;
    struct err *e; /* the first error found; getters do nothing once it is set */
};

/* Each returns true and sets *out when the field is present (null counts as absent), false when it is absent or invalid
 * (then at->e has the error).  Duplicate fields: the last one wins, as in Python. */
bool json_get_bool(struct json_at *, const char *name, bool *out);
bool json_get_int(struct json_at *, const char *name, int64_t min, int64_t max, int64_t *out); /* whole numbers only */
bool json_get_u64(struct json_at *, const char *name, uint64_t *out); /* exact for all 64 bits */
bool json_get_number(struct json_at *, const char *name, double *out);
bool json_get_string(struct json_at *, const char *name, const char **out);
bool json_get_object(struct json_at *, const char *name, const cJSON **out);
bool json_get_array(struct json_at *, const char *name, const cJSON **out);

/* @return whether the values are equal: numbers by value (integers exactly), members in any order, the last of
 * duplicates.  O(n log n) in the size of the smaller. */
bool json_equal(const cJSON *, const cJSON *);
/* @return a measure of the work to traverse it: the number of values, plus bytes / 16 of the strings and names. */
long json_weight(const cJSON *);

/* Writing: escaped, and always valid UTF-8 (bad bytes become U+FFFD). */
void json_put_string(struct buf *, const char *s, size_t n); /* with the quotes */
void json_put_number(struct buf *, double v); /* shortest that reads back as the same float; null if not finite */
/* Writes a value read by json_parse, with numbers as in the source; comma and colon: ", " and ": ", or without
 * spaces. */
void json_put_value(struct buf *, const cJSON *, const char *comma, const char *colon);

#endif
