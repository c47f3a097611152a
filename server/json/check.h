/* The strict reader behind json_parse: the whole grammar, checked before cJSON sees a byte (check.c). */
#ifndef TANDEM_SERVER_JSON_CHECK_H
#define TANDEM_SERVER_JSON_CHECK_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/json_literal.h"

#include <stddef.h>

enum { JSON_MAX_DEPTH = 64, JSON_MAX_NUMBER = 1000 };

/* What a tree of the text will take. */
struct json_size {
    size_t values;  /* nodes */
    size_t strings; /* texts, names, and numbers that keep their literal */
    size_t bytes;   /* of those, as they stand in the text */
    size_t wrapped; /* of the strings, the numbers */
};

/* Bytes of memory that cJSON takes for it, at most: measured against both allocators by json_test. */
size_t json_size_memory(const struct json_size *);

/* Checks `text` and says what its tree takes, before one node is made.  ERR_INVALID: it is no JSON; ERR_NOMEM: its tree
 * would take more than `most` bytes of memory, and the message names the field of the top where it got so large. */
int json_measure(const char *text, size_t n, size_t most, struct json_size *size, struct err *e);

/* Checks `text` and, when it is good, appends to *out an equal text for cJSON in which every number that needs its
 * literal became a tagged string (json_literal.h). */
int json_check(const char *text, size_t n, struct buf *out, struct err *e);

/* Bytes of the UTF-8 sequence at p (1..4), or 0 if there is no well-formed one within n bytes. */
int utf8_length(const unsigned char *p, size_t n);

#endif
