/* The path of a byte in a JSON text, for messages.  Pure; any thread. */
#ifndef TANDEM_SERVER_JSON_PATH_H
#define TANDEM_SERVER_JSON_PATH_H

#include <stddef.h>

enum { JSON_PATH_MAX = 160 };

/* Writes the path of the value that contains byte `at`, like "messages[1].content"; "" at the top.  The text before
 * `at` must be valid.  Names are copied as written; a path that is too long is truncated. */
void json_path(const char *text, size_t at, char out[JSON_PATH_MAX]);

#endif
