/* Numbers of JSON through cJSON, which keeps doubles only: where a double loses what was written (digits of a large
 * integer, that 1.0 is no integer, the sign of -0.0), the number's literal stays with it, in `valuestring`
 * (cJSON_Delete frees that whatever the type).  On the way through cJSON such a number is a string that begins with
 * JSON_LITERAL_TAG.  No state; any thread. */
#ifndef TANDEM_BASE_JSON_LITERAL_H
#define TANDEM_BASE_JSON_LITERAL_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

/* No UTF-8, so no string of a text that was checked begins with it. */
#define JSON_LITERAL_TAG '\xff'

/* Whether the double alone loses what the literal (n bytes, a number by JSON's grammar) says. */
bool json_literal_needed(const char *literal, size_t n);
/* Turns tagged strings, of the item, those behind it and those within, back into numbers. */
void json_literal_restore(cJSON *item);
/* cJSON_ParseWithLengthOpts with literals; *end (may be NULL) is where the value or what is readable ends.  The text is
 * valid UTF-8. */
cJSON *json_literal_parse(const char *text, size_t n, const char **end);

#endif
