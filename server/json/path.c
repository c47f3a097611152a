#include "server/json/path.h"

#include "server/json/check.h"

#include <stdbool.h>
#include <stdio.h>

enum { NAME_SHOWN = 40 };

struct level {
    bool object, names; /* names: the next string is a name, not a value */
    size_t index;       /* in an array */
    size_t name, len;   /* in an object: position and length of the latest name */
};

/* @return the position after the string that begins at i; `at` if the string extends to it. */
static size_t string_end(const char *text, size_t i, size_t at)
{
    for (i++; i < at && text[i] != '"'; i++) i += text[i] == '\\';
    return i < at ? i + 1 : at;
}

static void put(const char *text, const struct level *v, int depth, char out[JSON_PATH_MAX])
{
    size_t n = 0;
    out[0] = 0;
    for (int d = 0; d < depth && n < JSON_PATH_MAX; d++) {
        int put;
        if (v[d].object)
            put = snprintf(out + n, JSON_PATH_MAX - n, "%s%.*s", d ? "." : "",
                           (int)(v[d].len < NAME_SHOWN ? v[d].len : NAME_SHOWN), text + v[d].name);
        else
            put = snprintf(out + n, JSON_PATH_MAX - n, "[%zu]", v[d].index);
        n += put > 0 ? (size_t)put : 0;
    }
}

void json_path(const char *text, size_t at, char out[JSON_PATH_MAX])
{
    struct level v[JSON_MAX_DEPTH];
    int depth = 0;
    for (size_t i = 0; i < at;) {
        struct level *top = depth ? &v[depth - 1] : NULL;
        char ch = text[i];
        if (ch == '"') {
            size_t end = string_end(text, i, at);
            if (top && top->names && end < at) {
                top->name = i + 1;
                top->len = end - i - 2;
                top->names = false;
            }
            i = end;
            continue;
        }
        i++;
        if ((ch == '{' || ch == '[') && depth < JSON_MAX_DEPTH)
            v[depth++] = (struct level){.object = ch == '{', .names = ch == '{'};
        else if ((ch == '}' || ch == ']') && depth)
            depth--;
        else if (ch == ',' && top && top->object)
            top->names = true;
        else if (ch == ',' && top)
            top->index++;
    }
    if (depth && v[depth - 1].names) depth--; /* `at` is within a name: the path is the enclosing object's */
    put(text, v, depth, out);
}
