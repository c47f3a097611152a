#include "engine/data/json.h"

#include "engine/base/json_literal.h"
#include "engine/tokenizer/text.h"

#include <string.h>

int row_check_text(const char *text, size_t n, struct err *e)
{
    for (size_t i = 0; i < n;) {
        if ((unsigned char)text[i] < 0x80 && text[i]) {
            i++;
            continue;
        }
        int step = text[i] ? utf8_step(text + i, n - i) : 0;
        if (!text[i]) return err_set(e, ERR_INVALID, "a NUL byte at byte %zu: is this text?", i + 1);
        if (step <= 0) return err_set(e, ERR_INVALID, "not UTF-8 at byte %zu", i + 1);
        i += (size_t)step;
    }
    return 0;
}

static int limits_check(const char *text, size_t n, struct err *e)
{
    int rc = row_check_text(text, n, e);
    size_t values = 0, depth = 0;
    bool string = false;
    for (size_t i = 0; i < n && !rc; i++) {
        char c = text[i];
        if (c == '\\') {
            if (string && n - i >= 6 && !memcmp(text + i, "\\u0000", 6))
                rc = err_set(e, ERR_INVALID, "a NUL character in a string at byte %zu", i + 1);
            i++;
        } else if (c == '"') {
            string = !string;
        } else if (!string) {
            values += c == ',' || c == '[' || c == '{';
            if (c == '[' || c == '{') depth++;
            if ((c == ']' || c == '}') && depth) depth--;
            if (depth > ROW_DEPTH_MAX) rc = err_set(e, ERR_INVALID, "nested deeper than %d", ROW_DEPTH_MAX);
            if (values > ROW_VALUES_MAX) rc = err_set(e, ERR_INVALID, "more than %d JSON values", ROW_VALUES_MAX);
        }
    }
    return rc;
}

cJSON *row_parse(const char *text, size_t n, struct err *e)
{
    if (limits_check(text, n, e)) return NULL;
    const char *end = NULL;
    cJSON *row = json_literal_parse(text, n, &end);
    size_t at = end ? (size_t)(end - text) : 0;
    if (!row) {
        err_set(e, ERR_INVALID, "malformed JSON near byte %zu", at + 1);
        return NULL;
    }
    while (at < n && memchr(" \t\r\n", text[at], 4)) at++;
    if (at == n) return row;
    cJSON_Delete(row);
    err_set(e, ERR_INVALID, "malformed JSON: more text behind the value at byte %zu", at + 1);
    return NULL;
}
