/* The strict reader behind json_parse: the whole grammar, checked before cJSON sees a byte (json_check.c). */
#ifndef TANDEM_SERVER_JSON_CHECK_H
#define TANDEM_SERVER_JSON_CHECK_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/json_literal.h"

#include <stddef.h>

enum { JSON_MAX_DEPTH = 64, JSON_MAX_NUMBER = 1000 };

/* Checks `text` and, when it is good, appends to *out an equal text for cJSON in which every number that needs its
 * literal became a tagged string (json_literal.h). */
int json_check(const char *text, size_t n, struct buf *out, struct err *e);

/* Bytes of the UTF-8 sequence at p (1..4), or 0 if there is no well-formed one within n bytes. */
int utf8_length(const unsigned char *p, size_t n);

#endif
