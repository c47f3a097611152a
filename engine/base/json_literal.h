/* Exact JSON numbers with cJSON, which stores doubles only.  When a double loses information (digits of a large
 * integer, that 1.0 is not an integer, the sign of -0.0), the number's literal is kept in `valuestring` (cJSON_Delete
 * frees it for every type).  While cJSON parses, such a number is a string that begins with JSON_LITERAL_TAG.  No
 * state; any thread. */
#ifndef TANDEM_BASE_JSON_LITERAL_H
#define TANDEM_BASE_JSON_LITERAL_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

/* Not valid UTF-8, so no string of a validated text begins with it. */
#define JSON_LITERAL_TAG '\xff'

/* Whether a double alone loses information of the literal (n bytes, a valid JSON number). */
bool json_literal_needed(const char *literal, size_t n);
/* Turns tagged strings back into numbers, in the item, its later siblings and their children. */
void json_literal_restore(cJSON *item);
/* cJSON_ParseWithLengthOpts with literals; *end (may be NULL) is the end of the value or of the valid part.  The text
 * must be valid UTF-8; NULL if n is 0. */
cJSON *json_literal_parse(const char *text, size_t n, const char **end);
/* Prints a value on one line, with numbers as in the source; they are raw text in it afterwards (cJSON_Raw).  @return
 * text to be freed with cJSON_free; NULL: no memory. */
char *json_literal_print(cJSON *);

#endif
