#include "server/api/call_text.h"

#include "engine/base/err.h"
#include "engine/base/mem.h"
#include "server/api/tool_calls.h"
#include "server/json/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What is left to read. */
struct reading {
    const char *s;
    size_t n;
    const char *quote; /* of call_text_escaped */
    int depth;
};

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void skip(struct reading *r, size_t n)
{
    r->s += n;
    r->n -= n;
}

static void skip_space(struct reading *r)
{
    while (r->n && is_space(*r->s)) skip(r, 1);
}

static bool begins(const struct reading *r, const char *text)
{
    size_t n = strlen(text);
    return r->n >= n && memcmp(r->s, text, n) == 0;
}

static bool take(struct reading *r, const char *text)
{
    if (!begins(r, text)) return false;
    skip(r, strlen(text));
    return true;
}

/* Behind white space. */
static bool take_char(struct reading *r, char c)
{
    skip_space(r);
    if (!r->n || *r->s != c) return false;
    skip(r, 1);
    return true;
}

static size_t find(const struct reading *r, const char *what)
{
    const char *at = r->n ? memmem(r->s, r->n, what, strlen(what)) : NULL;
    return at ? (size_t)(at - r->s) : r->n;
}

/* ---- the list -------------------------------------------------------------------------------------------------- */

static struct call_text *add_call(struct call_texts *out, const char *name, size_t n)
{
    while (n && is_space(name[n - 1])) n--;
    while (n && is_space(*name)) name++, n--;
    if (!n || n > TOOL_NAME_MAX) return NULL;
    for (size_t i = 0; i < n; i++)
        if (is_space(name[i]) || !name[i]) return NULL;
    mem_grow(&out->v, &out->cap, out->n + 1, sizeof *out->v);
    struct call_text *c = &out->v[out->n++];
    *c = (struct call_text){.name = mem_alloc(n + 1)};
    memcpy(c->name, name, n);
    c->name[n] = 0;
    return c;
}

void call_texts_free(struct call_texts *t)
{
    for (size_t i = 0; i < t->n; i++) {
        free(t->v[i].name);
        buf_free(&t->v[i].arguments);
    }
    free(t->v);
    *t = (struct call_texts){0};
}

/* Appends "key": to an object, with a comma where there is a member.  @return false for a key that it has already. */
static bool put_key(struct buf *out, const char *key, size_t n, size_t *keys, size_t *n_keys)
{
    if (!n || *n_keys == CALL_PARAMETERS_MAX) return false;
    if (*n_keys) buf_str(out, ", ");
    size_t at = out->len;
    json_put_string(out, key, n);
    size_t len = out->len - at;
    for (size_t i = 0; i < *n_keys; i++)
        if (out->len - keys[i] > len && memcmp(out->data + keys[i], out->data + at, len) == 0) return false;
    keys[(*n_keys)++] = at;
    buf_str(out, ": ");
    return true;
}

/* ---- words ----------------------------------------------------------------------------------------------------- */

/* The JSON of a word: a number, or one of true, false, null and Python's names for them.  NULL: it is none. */
static cJSON *parse_word(const char *s, size_t n)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    struct err e = {0};
    for (size_t i = 0; i < 3; i++)
        if (n == strlen(words[i][0]) && memcmp(s, words[i][0], n) == 0)
            return json_parse(words[i][1], 4 + (i == 1), &e);
    if (!n || *s == '"' || *s == '[' || *s == '{') return NULL;
    return json_parse(s, n, &e);
}

static bool put_word(struct buf *out, const char *s, size_t n)
{
    cJSON *v = parse_word(s, n);
    if (v) json_put_value(out, v, ", ", ": ");
    json_free(v);
    return v;
}

/* ---- Python's literals ----------------------------------------------------------------------------------------- */

static int hex_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void put_utf8(struct buf *out, unsigned c)
{
    if (c < 0x80) {
        buf_char(out, (char)c);
    } else if (c < 0x800) {
        buf_char(out, (char)(0xc0 | c >> 6));
        buf_char(out, (char)(0x80 | (c & 0x3f)));
    } else if (c < 0x10000) {
        buf_char(out, (char)(0xe0 | c >> 12));
        buf_char(out, (char)(0x80 | (c >> 6 & 0x3f)));
        buf_char(out, (char)(0x80 | (c & 0x3f)));
    } else {
        buf_char(out, (char)(0xf0 | c >> 18));
        buf_char(out, (char)(0x80 | (c >> 12 & 0x3f)));
        buf_char(out, (char)(0x80 | (c >> 6 & 0x3f)));
        buf_char(out, (char)(0x80 | (c & 0x3f)));
    }
}

static bool read_hex(struct reading *r, int digits, unsigned *out)
{
    *out = 0;
    for (int i = 0; i < digits; i++) {
        int d = r->n ? hex_of(*r->s) : -1;
        if (d < 0) return false;
        *out = *out << 4 | (unsigned)d;
        skip(r, 1);
    }
    return true;
}

/* What follows a backslash.  JSON's pairs of surrogates are one character. */
static bool read_escape(struct reading *r, struct buf *text)
{
    static const char from[] = "\\'\"/nrtbfav0\n", to[] = "\\'\"/\n\r\t\b\f\a\v\0";
    if (!r->n) return false;
    char c = *r->s;
    unsigned unit, low;
    skip(r, 1);
    if (c == 'x' || c == 'u' || c == 'U') {
        if (!read_hex(r, c == 'x' ? 2 : c == 'u' ? 4 : 8, &unit)) return false;
        if (unit >= 0xd800 && unit < 0xdc00 && take(r, "\\u")) {
            if (!read_hex(r, 4, &low) || low < 0xdc00 || low > 0xdfff) return false;
            unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
        }
        if (!unit || unit > 0x10ffff || (unit >= 0xd800 && unit < 0xe000)) return false;
        put_utf8(text, unit);
        return true;
    }
    const char *at = memchr(from, c, sizeof from - 1);
    if (c == '\n') return true; /* a line that goes on */
    if (!at) {                  /* Python keeps both */
        buf_char(text, '\\');
        buf_char(text, c);
        return true;
    }
    if (c == '0') return false;
    buf_char(text, to[at - from]);
    return true;
}

/* A text in quotes, one or three, to *text. */
static bool read_quoted(struct reading *r, struct buf *text)
{
    char mark[4] = {*r->s, *r->s, *r->s, 0};
    if (!take(r, mark)) {
        mark[1] = 0;
        skip(r, 1);
    }
    while (r->n && !begins(r, mark)) {
        char c = *r->s;
        skip(r, 1);
        if (c != '\\') {
            buf_char(text, c);
        } else if (!read_escape(r, text)) {
            return false;
        }
    }
    return take(r, mark);
}

static bool put_quoted(struct reading *r, struct buf *out)
{
    struct buf text = {0};
    buf_str(&text, "");
    bool good = read_quoted(r, &text);
    if (good) json_put_string(out, text.data, text.len);
    buf_free(&text);
    return good;
}

static bool is_quote(const struct reading *r)
{
    return r->n && (*r->s == '"' || *r->s == '\'');
}

static size_t word_length(const struct reading *r, const char *ends)
{
    size_t n = 0;
    while (n < r->n && !strchr(ends, r->s[n])) n++;
    return n;
}

static bool put_python(struct reading *r, struct buf *out);

/* Values up to the closing bracket. */
static bool put_list(struct reading *r, struct buf *out, char close, bool (*put)(struct reading *, struct buf *))
{
    buf_char(out, '[');
    for (bool any = false; !take_char(r, close); any = true) {
        if (any && !take_char(r, ',')) return false;
        if (any && take_char(r, close)) break; /* a comma behind the last */
        if (any) buf_str(out, ", ");
        if (!put(r, out)) return false;
    }
    buf_char(out, ']');
    return true;
}

static bool put_dict(struct reading *r, struct buf *out)
{
    buf_char(out, '{');
    for (bool any = false; !take_char(r, '}'); any = true) {
        if (any && !take_char(r, ',')) return false;
        if (any && take_char(r, '}')) break;
        if (any) buf_str(out, ", ");
        skip_space(r);
        if (!is_quote(r) || !put_quoted(r, out) || !take_char(r, ':')) return false;
        buf_str(out, ": ");
        if (!put_python(r, out)) return false;
    }
    buf_char(out, '}');
    return true;
}

/* NOLINTNEXTLINE(misc-no-recursion): depth is bounded */
static bool put_python(struct reading *r, struct buf *out)
{
    bool good;
    skip_space(r);
    if (is_quote(r)) return put_quoted(r, out);
    if (!r->n || r->depth == CALL_TEXT_DEPTH) return false;
    r->depth++;
    if (take(r, "[")) {
        good = put_list(r, out, ']', put_python);
    } else if (take(r, "(")) {
        good = put_list(r, out, ')', put_python);
    } else if (take(r, "{")) {
        good = put_dict(r, out);
    } else {
        size_t n = word_length(r, " \t\r\n,)]}:");
        good = put_word(out, r->s, n);
        skip(r, n);
    }
    r->depth--;
    return good;
}

static bool read_python_call(struct reading *r, struct call_texts *out)
{
    size_t keys[CALL_PARAMETERS_MAX], n_keys = 0, n = find(r, "(");
    struct call_text *c = n < r->n ? add_call(out, r->s, n) : NULL;
    if (!c) return false;
    skip(r, n + 1);
    buf_char(&c->arguments, '{');
    for (bool any = false; !take_char(r, ')'); any = true) {
        if (any && !take_char(r, ',')) return false;
        if (any && take_char(r, ')')) break;
        skip_space(r);
        n = word_length(r, "= \t\r\n,()[]{}\"'");
        if (!put_key(&c->arguments, r->s, n, keys, &n_keys)) return false;
        skip(r, n);
        if (!take_char(r, '=') || !put_python(r, &c->arguments)) return false;
    }
    buf_char(&c->arguments, '}');
    return true;
}

bool call_text_python(const char *text, size_t n, struct call_texts *out)
{
    struct reading r = {.s = text, .n = n};
    if (!take_char(&r, '[')) return false;
    do {
        skip_space(&r);
        if (out->n == TOOL_CALLS_MAX || !read_python_call(&r, out)) return false;
    } while (take_char(&r, ','));
    if (!take_char(&r, ']')) return false;
    skip_space(&r);
    return r.n == 0;
}

/* ---- texts between marks of their own -------------------------------------------------------------------------- */

/* Up to the closing quote; @return false when there is none. */
static bool read_escaped(struct reading *r, const char **text, size_t *n)
{
    skip(r, strlen(r->quote));
    *text = r->s;
    *n = find(r, r->quote);
    if (*n == r->n) return false;
    skip(r, *n + strlen(r->quote));
    return true;
}

static bool put_escaped(struct reading *r, struct buf *out);

static bool put_members(struct reading *r, struct buf *out)
{
    size_t keys[CALL_PARAMETERS_MAX], n_keys = 0, n;
    const char *key;
    buf_char(out, '{');
    for (bool any = false; !take_char(r, '}'); any = true) {
        if (any && !take_char(r, ',')) return false;
        skip_space(r);
        if (begins(r, r->quote)) {
            if (!read_escaped(r, &key, &n)) return false;
        } else if (begins(r, "\"")) { /* of JSON within */
            skip(r, 1);
            key = r->s;
            n = find(r, "\"");
            if (n == r->n || memchr(key, '\\', n)) return false;
            skip(r, n + 1);
        } else {
            key = r->s;
            n = word_length(r, ":{}[],");
            skip(r, n);
            while (n && is_space(key[n - 1])) n--;
        }
        if (!put_key(out, key, n, keys, &n_keys) || !take_char(r, ':') || !put_escaped(r, out)) return false;
    }
    buf_char(out, '}');
    return true;
}

/* NOLINTNEXTLINE(misc-no-recursion): depth is bounded */
static bool put_escaped(struct reading *r, struct buf *out)
{
    const char *text;
    size_t n;
    bool good = true;
    skip_space(r);
    if (begins(r, r->quote)) {
        if (!read_escaped(r, &text, &n)) return false;
        json_put_string(out, text, n);
        return true;
    }
    if (begins(r, "\"")) return put_quoted(r, out);
    if (!r->n || r->depth == CALL_TEXT_DEPTH) return false;
    r->depth++;
    if (take(r, "{")) {
        good = put_members(r, out);
    } else if (take(r, "[")) {
        good = put_list(r, out, ']', put_escaped);
    } else {
        text = r->s;
        n = word_length(r, ",}]");
        skip(r, n);
        while (n && is_space(text[n - 1])) n--;
        if (!put_word(out, text, n)) json_put_string(out, text, n);
    }
    r->depth--;
    return good;
}

bool call_text_escaped(const char *text, size_t n, const char *quote, struct call_texts *out)
{
    struct reading r = {.s = text, .n = n, .quote = quote};
    skip_space(&r);
    if (!take(&r, "call:")) return false;
    size_t len = find(&r, "{");
    struct call_text *c = len < r.n ? add_call(out, r.s, len) : NULL;
    if (!c) return false;
    skip(&r, len + 1);
    if (!put_members(&r, &c->arguments)) return false;
    skip_space(&r);
    return r.n == 0;
}

/* ---- XML ------------------------------------------------------------------------------------------------------- */

enum { T_STRING = 1, T_NUMBER = 2, T_INTEGER = 4, T_BOOLEAN = 8, T_NULL = 16, T_ARRAY = 32, T_OBJECT = 64 };

static unsigned type_named(const cJSON *name)
{
    static const char *const names[] = {"string", "number", "integer", "boolean", "null", "array", "object"};
    for (unsigned i = 0; i < 7; i++)
        if (cJSON_IsString(name) && strcmp(name->valuestring, names[i]) == 0) return 1u << i;
    return 0;
}

static unsigned type_of(const cJSON *v)
{
    if (cJSON_IsString(v)) return T_STRING;
    if (cJSON_IsNumber(v)) return T_NUMBER | (v->valuedouble == floor(v->valuedouble) ? T_INTEGER : 0);
    if (cJSON_IsBool(v)) return T_BOOLEAN;
    if (cJSON_IsNull(v)) return T_NULL;
    return cJSON_IsArray(v) ? T_ARRAY : T_OBJECT;
}

/* The schema's own place for "#/$defs/x" and "#/definitions/x"; other references are not followed. */
static const cJSON *follow(const cJSON *parameters, const char *ref)
{
    static const char *const places[] = {"$defs", "definitions"};
    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(places[i]);
        if (strncmp(ref, "#/", 2) == 0 && strncmp(ref + 2, places[i], n) == 0 && ref[2 + n] == '/')
            return cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(parameters, places[i]),
                                                    ref + 3 + n);
    }
    return NULL;
}

enum { SCHEMAS_MAX = 1000 /* that are looked at for one argument, and values of their enums */ };

/* The types that a schema allows; 0: it does not say.  left: what may still be looked at.
 * NOLINTNEXTLINE(misc-no-recursion): it is bounded */
static unsigned types_of(const cJSON *parameters, const cJSON *schema, int *left)
{
    static const char *const unions[] = {"anyOf", "oneOf", "allOf"};
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(schema, "type"), *v;
    const cJSON *ref = cJSON_GetObjectItemCaseSensitive(schema, "$ref");
    unsigned types = type_named(type);
    for (v = cJSON_IsArray(type) ? type->child : NULL; v && --*left > 0; v = v->next) types |= type_named(v);
    if (types || --*left < 0) return types;
    const cJSON *values = cJSON_GetObjectItemCaseSensitive(schema, "enum");
    for (v = values ? values->child : NULL; v && --*left > 0; v = v->next) types |= type_of(v);
    if ((v = cJSON_GetObjectItemCaseSensitive(schema, "const"))) types |= type_of(v);
    for (size_t i = 0; i < 3; i++)
        cJSON_ArrayForEach(v, cJSON_GetObjectItemCaseSensitive(schema, unions[i])) types |=
            types_of(parameters, v, left);
    if (cJSON_IsString(ref)) types |= types_of(parameters, follow(parameters, ref->valuestring), left);
    if (!types && cJSON_GetObjectItemCaseSensitive(schema, "properties")) types = T_OBJECT;
    if (!types && cJSON_GetObjectItemCaseSensitive(schema, "items")) types = T_ARRAY;
    return types;
}

static const cJSON *parameters_of(const cJSON *tools, const char *name)
{
    const cJSON *tool;
    cJSON_ArrayForEach(tool, tools)
    {
        const cJSON *function = cJSON_GetObjectItemCaseSensitive(tool, "function");
        const char *s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(function, "name"));
        if (s && strcmp(s, name) == 0) return cJSON_GetObjectItemCaseSensitive(function, "parameters");
    }
    return NULL;
}

/* A container that is written as in Python, to JSON.  @return false when the text is none. */
static bool put_container(struct buf *out, const char *s, size_t n, unsigned types)
{
    struct reading r = {.s = s, .n = n};
    size_t at = out->len;
    skip_space(&r);
    bool fits = r.n && ((*r.s == '[' && types & T_ARRAY) || (*r.s == '{' && types & T_OBJECT));
    if (fits && put_python(&r, out)) {
        skip_space(&r);
        if (!r.n) return true;
    }
    if (out->len > at) out->data[out->len = at] = 0;
    return false;
}

static void put_typed(struct buf *out, const char *s, size_t n, unsigned types)
{
    struct err e = {0};
    const char *first = s;
    size_t len = n;
    while (len && is_space(*first)) first++, len--;
    while (len && is_space(first[len - 1])) len--;
    if (types & ~(unsigned)T_STRING && len) {
        cJSON *v = parse_word(first, len);
        if (!v && *first != '"') v = json_parse(first, len, &e);
        bool fits = v && type_of(v) & types;
        if (fits) json_put_value(out, v, ", ", ": ");
        json_free(v);
        if (fits || put_container(out, first, len, types)) return;
    }
    json_put_string(out, s, n);
}

bool call_text_xml(const char *text, size_t n, const cJSON *tools, struct call_texts *out)
{
    static const char open[] = "<parameter=", close[] = "</parameter>";
    struct reading r = {.s = text, .n = n};
    size_t keys[CALL_PARAMETERS_MAX], n_keys = 0, len = find(&r, ">");
    struct call_text *c = len < r.n ? add_call(out, r.s, len) : NULL;
    if (!c) return false;
    skip(&r, len + 1);
    const cJSON *parameters = parameters_of(tools, c->name);
    const cJSON *properties = cJSON_GetObjectItemCaseSensitive(parameters, "properties");
    buf_char(&c->arguments, '{');
    for (skip_space(&r); r.n; skip_space(&r)) {
        if (!take(&r, open) || (len = find(&r, ">")) == r.n || len > TOOL_NAME_MAX) return false;
        char *key = mem_alloc(len + 1);
        memcpy(key, r.s, len);
        key[len] = 0;
        int left = SCHEMAS_MAX;
        unsigned types = types_of(parameters, cJSON_GetObjectItemCaseSensitive(properties, key), &left);
        free(key);
        if (!put_key(&c->arguments, r.s, len, keys, &n_keys)) return false;
        skip(&r, len + 1);
        size_t whole = find(&r, close), first = 0, last = whole;
        if (whole == r.n) return false;
        if (whole && *r.s == '\n') first = 1;
        if (last > first && r.s[last - 1] == '\n') last--;
        put_typed(&c->arguments, r.s + first, last - first, types);
        skip(&r, whole + strlen(close));
    }
    buf_char(&c->arguments, '}');
    return true;
}
