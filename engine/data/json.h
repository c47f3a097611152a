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

/* NULL and *e: what is wrong and at which byte of the row. */
cJSON *row_parse(const char *text, size_t n, struct err *e);

/* 0, or ERR_INVALID and which byte is not UTF-8 (or a NUL). */
int row_check_text(const char *text, size_t n, struct err *e);

#endif
