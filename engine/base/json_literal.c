/* JSON numbers with their literals (json_literal.h). */
#include "engine/base/json_literal.h"

#include "engine/base/buf.h"

#include <stdlib.h>
#include <string.h>

/* Up to this many digits a double holds every integer, and cJSON (which copies 63 characters) reads it. */
enum { SURE_DIGITS = 15 };

bool json_literal_needed(const char *literal, size_t n)
{
    const char *point = memchr(literal, '.', n);
    if (n > SURE_DIGITS || memchr(literal, 'e', n) || memchr(literal, 'E', n)) return true;
    for (const char *p = point ? point + 1 : literal + n; p < literal + n; p++)
        if (*p != '0') return false; /* the double is not an integer: nothing is lost */
    return point != NULL;
}

void json_literal_restore(cJSON *item)
{
    for (; item; item = item->next) {
        if (cJSON_IsString(item) && item->valuestring[0] == JSON_LITERAL_TAG) {
            memmove(item->valuestring, item->valuestring + 1, strlen(item->valuestring));
            item->type = cJSON_Number;
            item->valuedouble = strtod(item->valuestring, NULL);
            item->valueint = item->valuedouble >= 2147483647.0    ? 2147483647
                             : item->valuedouble <= -2147483648.0 ? -2147483647 - 1
                                                                  : (int)item->valuedouble;
        }
        json_literal_restore(item->child); /* depth is limited by cJSON */
    }
}

static size_t skip_digits(const char *s, size_t n, size_t at)
{
    while (at < n && s[at] >= '0' && s[at] <= '9') at++;
    return at;
}

/* Length of the JSON number that s[0, n) begins with; 0: none. */
static size_t number_length(const char *s, size_t n)
{
    size_t start = n && s[0] == '-', at = skip_digits(s, n, start);
    if (at == start || (s[start] == '0' && at > start + 1)) return 0;
    if (at < n && s[at] == '.') {
        size_t from = at + 1;
        at = skip_digits(s, n, from);
        if (at == from) return 0;
    }
    if (at < n && (s[at] | 32) == 'e') {
        size_t from = at + 1 + (at + 1 < n && (s[at + 1] == '+' || s[at + 1] == '-'));
        at = skip_digits(s, n, from);
        if (at == from) return 0;
    }
    return at < n && strchr("+-.eE0123456789", s[at]) && s[at] ? 0 : at;
}

/* Appends the text, with tagged strings in place of numbers that need their literals. */
static void tag_numbers(const char *text, size_t n, struct buf *out)
{
    size_t copied = 0;
    for (size_t i = 0; i < n;) {
        if (text[i] == '"') {
            for (i++; i < n && text[i] != '"'; i++) i += text[i] == '\\';
            i++;
            continue;
        }
        bool digit = text[i] == '-' || (text[i] >= '0' && text[i] <= '9');
        size_t length = digit ? number_length(text + i, n - i) : 0;
        if (length && json_literal_needed(text + i, length)) {
            buf_append(out, text + copied, i - copied);
            buf_char(out, '"');
            buf_char(out, JSON_LITERAL_TAG);
            buf_append(out, text + i, length);
            buf_char(out, '"');
            copied = i + length;
        }
        i += length ? length : 1;
    }
    buf_append(out, text + copied, n - copied);
}

/* The position in the original text of position `at` of the tagged text, which is not inside a tagged string. */
static size_t place_before(const struct buf *tagged, size_t at)
{
    size_t added = 0;
    for (size_t i = 0; i < at; i++)
        if (tagged->data[i] == JSON_LITERAL_TAG) added += 3; /* the tag and its quotes */
    return at > added ? at - added : 0;
}

cJSON *json_literal_parse(const char *text, size_t n, const char **end)
{
    if (!n) { /* text may be NULL, and no offset may be added to it */
        if (end) *end = text;
        return NULL;
    }
    struct buf tagged = {0};
    const char *stopped = NULL;
    buf_str(&tagged, "");
    tag_numbers(text, n, &tagged);
    cJSON *tree = cJSON_ParseWithLengthOpts(tagged.data, tagged.len, &stopped, false);
    if (end) *end = stopped ? text + place_before(&tagged, (size_t)(stopped - tagged.data)) : NULL;
    buf_free(&tagged);
    json_literal_restore(tree);
    return tree;
}

static void make_raw(cJSON *item)
{
    for (; item; item = item->next) {
        if (cJSON_IsNumber(item) && item->valuestring) item->type = (item->type & ~0xff) | cJSON_Raw;
        make_raw(item->child);
    }
}

char *json_literal_print(cJSON *v)
{
    make_raw(v);
    return cJSON_PrintUnformatted(v);
}
