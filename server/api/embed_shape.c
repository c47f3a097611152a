#include "server/api/embed_shape.h"

#include <stdbool.h>
#include <string.h>

struct cursor {
    const char *at, *end;
};

static char peek(struct cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r')) c->at++;
    return c->at < c->end ? *c->at : 0;
}

static bool take(struct cursor *c, char expected)
{
    if (peek(c) != expected) return false;
    c->at++;
    return true;
}

/* Advances from an opening quote past the closing one. */
static void skip_text(struct cursor *c)
{
    for (c->at++; c->at < c->end && *c->at != '"'; c->at++)
        if (*c->at == '\\' && c->at + 1 < c->end) c->at++;
    if (c->at < c->end) c->at++;
}

/* Advances to the comma or brace after the value. */
static void skip_value(struct cursor *c)
{
    int depth = 0;
    while (c->at < c->end) {
        char ch = *c->at;
        if (!depth && (ch == ',' || ch == '}' || ch == ']')) return;
        if (ch == '"') {
            skip_text(c);
            continue;
        }
        depth += (ch == '{' || ch == '[') - (ch == '}' || ch == ']');
        c->at++;
    }
}

static bool is_name(const char *name, size_t n, const char *wanted)
{
    return n == strlen(wanted) && memcmp(name, wanted, n) == 0;
}

static bool is_tei_field(const char *name, size_t n)
{
    static const char *const names[] = {"normalize", "truncate", "truncation_direction", "prompt_name", "dimensions"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (is_name(name, n, names[i])) return true;
    return false;
}

enum embed_shape embed_shape_of(const char *body, size_t n)
{
    struct cursor c = {.at = body, .end = body + n};
    bool tei = false;
    if (!take(&c, '{')) return EMBED_NONE;
    do {
        if (peek(&c) != '"') break;
        const char *name = c.at + 1;
        skip_text(&c);
        size_t length = (size_t)(c.at - name) - 1;
        if (!take(&c, ':')) break;
        char first = peek(&c);
        if (is_name(name, length, "inputs") && first == '{') return EMBED_SIMILARITY;
        if (is_name(name, length, "inputs") && first == '[') return EMBED_TEI;
        tei = tei || (first != 'n' && is_tei_field(name, length)); /* null: not given */
        skip_value(&c);
    } while (take(&c, ','));
    return tei ? EMBED_TEI : EMBED_NONE;
}
