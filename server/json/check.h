/* The strict validator of json_parse: checks the whole grammar before cJSON parses the text (check.c). */
#ifndef TANDEM_SERVER_JSON_CHECK_H
#define TANDEM_SERVER_JSON_CHECK_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/json_literal.h"

#include <stddef.h>

enum { JSON_MAX_DEPTH = 64, JSON_MAX_NUMBER = 1000 };

/* The size of a text's tree. */
struct json_size {
    size_t values;  /* nodes */
    size_t strings; /* strings, names, and numbers that keep their literal */
    size_t bytes;   /* of those, as written in the text */
    size_t wrapped; /* the numbers among `strings` */
};

/* @return an upper bound of cJSON's memory for it, bytes; json_test measures it with both allocators. */
size_t json_size_memory(const struct json_size *);

/* Checks `text` and computes its tree's size without building it.  @return ERR_INVALID: not JSON; ERR_NOMEM: the tree
 * would need more than `most` bytes, and the message names the top-level field where it exceeds them. */
int json_measure(const char *text, size_t n, size_t most, struct json_size *size, struct err *e);

/* Checks `text` and, if valid, appends to *out an equivalent text for cJSON, in which every number that must keep its
 * literal is a tagged string (json_literal.h). */
int json_check(const char *text, size_t n, struct buf *out, struct err *e);

/* @return the bytes of the UTF-8 sequence at p (1..4), or 0 if there is no well-formed one within n bytes. */
int utf8_length(const unsigned char *p, size_t n);

#endif
