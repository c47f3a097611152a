#include "server/json/find.h"

#include <cjson/cJSON.h>
#include <stdint.h>
#include <string.h>

struct cursor {
    const char *p, *end;
};

static void skip_space(struct cursor *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\t' || *c->p == '\n' || *c->p == '\r')) c->p++;
}

static bool skip_char(struct cursor *c, char ch)
{
    skip_space(c);
    if (c->p == c->end || *c->p != ch) return false;
    c->p++;
    return true;
}

/* At a quote: moves behind the string.  @return false where it has no end. */
static bool skip_string(struct cursor *c)
{
    for (c->p++; c->p < c->end; c->p++) {
        if (*c->p == '\\' && c->end - c->p > 1)
            c->p++;
        else if (*c->p == '"')
            return c->p++, true;
    }
    return false;
}

/* Moves behind a value, up to the comma or bracket that follows it. */
static bool skip_value(struct cursor *c)
{
    size_t depth = 0;
    while (c->p < c->end) {
        char ch = *c->p;
        if (ch == '"') {
            if (!skip_string(c)) return false;
            continue;
        }
        if (depth == 0 && (ch == ',' || ch == '}' || ch == ']')) return true;
        depth += ch == '{' || ch == '[';
        depth -= ch == '}' || ch == ']';
        c->p++;
    }
    return false;
}

/* At an opening brace: moves to the value of the last field of that name, as far as the text can be read. */
static bool enter_field(struct cursor *c, const char *name, size_t len)
{
    const char *value = NULL;
    if (!skip_char(c, '{')) return false;
    do {
        skip_space(c);
        const char *key = c->p;
        if (c->p == c->end || *c->p != '"' || !skip_string(c)) break;
        bool named = (size_t)(c->p - key) == len + 2 && memcmp(key + 1, name, len) == 0;
        if (!skip_char(c, ':')) break;
        skip_space(c);
        if (named) value = c->p;
        if (!skip_value(c)) break;
    } while (skip_char(c, ','));
    if (value) c->p = value;
    return value != NULL;
}

static bool copy_string(const char *from, size_t n, char *out, size_t size)
{
    bool good = false;
    if (!memchr(from, '\\', n)) { /* without its quotes */
        good = n > 2 && n - 2 < size && !memchr(from, 0, n);
        if (good) memcpy(out, from + 1, n - 2), out[n - 2] = 0;
        return good;
    }
    if (n > 6 * size + 2) return false;
    cJSON *text = cJSON_ParseWithLength(from, n);
    const char *value = cJSON_GetStringValue(text);
    good = value && *value && strlen(value) < size;
    if (good) memcpy(out, value, strlen(value) + 1);
    cJSON_Delete(text);
    return good;
}

bool json_find_string(const char *text, size_t n, const char *path, char *out, size_t size)
{
    struct cursor c = {text, text + n};
    for (;;) {
        size_t len = strcspn(path, ".");
        if (!enter_field(&c, path, len)) return false;
        if (!path[len]) break;
        path += len + 1;
    }
    const char *from = c.p;
    if (c.p == c.end || *c.p != '"' || !skip_string(&c)) return false;
    return copy_string(from, (size_t)(c.p - from), out, size);
}
