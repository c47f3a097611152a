/* Where in a JSON text a byte is, as a path for messages.  Pure; any thread. */
#ifndef TANDEM_SERVER_JSON_PATH_H
#define TANDEM_SERVER_JSON_PATH_H

#include <stddef.h>

enum { JSON_PATH_MAX = 160 };

/* "messages[1].content" of the value that byte `at` is in, "" at the top.  The text before `at` has been read and is
 * good.  Names are as they stand in the text; what does not fit is cut off. */
void json_path(const char *text, size_t at, char out[JSON_PATH_MAX]);

#endif
