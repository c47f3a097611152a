/* One row of JSON, parsed within limits of depth and count; only valid UTF-8 without NULs. */
#ifndef TANDEM_ENGINE_DATA_JSON_H
#define TANDEM_ENGINE_DATA_JSON_H

#include "engine/base/err.h"

#include <cjson/cJSON.h>
#include <stddef.h>

enum {
    ROW_DEPTH_MAX = 32,
    ROW_VALUES_MAX = 1 << 20, /* each costs 64 bytes and more while the row is read */
};

/* @return NULL on failure, and *e says what is wrong at which byte of the row. */
cJSON *row_parse(const char *text, size_t n, struct err *e);

/* @return 0, or ERR_INVALID with the position of the byte that is not UTF-8 (or is NUL). */
int row_check_text(const char *text, size_t n, struct err *e);

#endif
