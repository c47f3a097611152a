/* JSON from a request, strictly read and typed.  Loop or pool thread; owns what it parses.
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

/* NULL and *e ("malformed JSON at byte 17: ..."); free with json_free.  For texts whose size is bounded: what a client
 * sends goes to json_parse_body. */
cJSON *json_parse(const char *text, size_t n, struct err *e);
/* The same of a client's text.  The tree's memory is measured and reserved before one node is made; ERR_NOMEM, ERR_FULL
 * (reservation.h) where it is not to be had. */
cJSON *json_parse_body(const char *text, size_t n, struct err *e);
/* NULL is allowed.  A large tree takes milliseconds. */
void json_free(cJSON *);
/* Bytes reserved for the tree. */
size_t json_reserved(const cJSON *);

/* A place in a request: an object and the path that led to it, for error messages.  path "" is the top. */
struct json_at {
    const cJSON *obj;
    const char *path;
    struct err *e; /* the first error found; getters do nothing once it is set */
};

/* Each returns true and sets *out when the field is there (null counts as absent), false when it is absent or wrong
 * (then at->e has the error).  Duplicate fields: the last one wins, as in Python.  */
bool json_get_bool(struct json_at *, const char *name, bool *out);
bool json_get_int(struct json_at *, const char *name, int64_t min, int64_t max, int64_t *out); /* whole numbers only */
bool json_get_u64(struct json_at *, const char *name, uint64_t *out); /* exact for all 64 bits */
bool json_get_number(struct json_at *, const char *name, double *out);
bool json_get_string(struct json_at *, const char *name, const char **out);
bool json_get_object(struct json_at *, const char *name, const cJSON **out);
bool json_get_array(struct json_at *, const char *name, const cJSON **out);

/* Whether the values are the same: numbers by value (whole ones exactly), members in any order, the last of duplicates
 * counts.  n log n in the size of the smaller. */
bool json_equal(const cJSON *, const cJSON *);
/* How much there is to look at: values within, and bytes / 16 of the strings and names. */
long json_weight(const cJSON *);

/* Writing: escaped, and always valid UTF-8 (bad bytes become U+FFFD). */
void json_put_string(struct buf *, const char *s, size_t n); /* with the quotes */
void json_put_number(struct buf *, double v); /* shortest that reads back as the same float; null if not finite */
/* A whole value that json_parse read, numbers as they stood there; comma and colon: ", " and ": ", or without spaces.
 */
void json_put_value(struct buf *, const cJSON *, const char *comma, const char *colon);

#endif
