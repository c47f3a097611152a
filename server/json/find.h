/* Finds one string in a JSON text without parsing the rest: which model a request is for, before its body is read. */
#ifndef TANDEM_SERVER_JSON_FIND_H
#define TANDEM_SERVER_JSON_FIND_H

#include <stdbool.h>
#include <stddef.h>

/* The string at `path`, names of fields joined by dots: "model", "parameters.adapter_id".  The last of equal names
 * counts, as for json.h; names that are written with escapes are not found.  The text need not be valid JSON: whoever
 * parses it says what is wrong.  out: NUL-terminated, unescaped.  @return false where there is no such string, or it is
 * empty, does not fit or contains a NUL. */
bool json_find_string(const char *text, size_t n, const char *path, char *out, size_t size);

#endif
