/* Calls whose arguments are not JSON, to OpenAI's shape.  Each function gets the text of a call, or of a list of them,
 * that is complete.  Pure; time and memory are linear in the text. */
#ifndef TANDEM_SERVER_API_CALL_TEXT_H
#define TANDEM_SERVER_API_CALL_TEXT_H

#include "engine/base/buf.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

enum { CALL_PARAMETERS_MAX = 128, CALL_TEXT_DEPTH = 60 };

/* Zero-initialise; call_texts_free. */
struct call_texts {
    struct call_text {
        char *name; /* owned; 1 to TOOL_NAME_MAX bytes */
        struct buf arguments;
    } * v;
    size_t n, cap;
};

/* Each appends to *out.  @return false: the text is no such call, and *out has nothing that counts. */

/* NAME>, then <parameter=KEY>VALUE</parameter> for each argument; a line break at either end of a value belongs to the
 * mark.  tools (OpenAI's; NULL: not known) say which values are texts: a value is one unless its schema allows another
 * type, of which it has the form. */
bool call_text_xml(const char *text, size_t n, const cJSON *tools, struct call_texts *out);
/* call:NAME{key:value,...}: texts between two of `quote`, numbers, true, false, null, [...], {...}, and what is JSON;
 * any other word is a text. */
bool call_text_escaped(const char *text, size_t n, const char *quote, struct call_texts *out);
/* [NAME(key=value, ...), ...]: Python's literals, and JSON's. */
bool call_text_python(const char *text, size_t n, struct call_texts *out);

void call_texts_free(struct call_texts *);

#endif
