#include "server/schema/calls.h"

#include "engine/base/buf.h"
#include "engine/grammar/grammar.h"
#include "server/json/json.h"
#include "server/schema/schema.h"

#include <string.h>

enum { S_FIRST, S_BEFORE, S_BETWEEN, S_AFTER, S_NEXT, S_LAST, S_QUOTE, N_TEXTS };

enum { PROPERTIES_MAX = 128, VALUE_DEPTH = 16 };

struct writer {
    struct jpool *p;
    enum call_arguments how;
    const char *text[N_TEXTS];
    const cJSON *parameters; /* of the tool */
    jx plain;                /* any text that does not contain the mark that ends it; 0: not made yet */
};

static const cJSON *field(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* A text in which marks may be special tokens. */
static jx literal(struct jpool *p, const char *text)
{
    struct buf b = {0};
    buf_str(&b, text);
    for (size_t i = 0; i < b.len; i++)
        if (b.data[i] == CALLS_SPECIAL) b.data[i] = (char)GRAM_SPECIAL;
    jx out = jx_bytes(p, b.data, b.len);
    buf_free(&b);
    return out;
}

/* A text without the quotes of its JSON. */
static jx json_inside(struct jpool *p, const char *text)
{
    struct buf b = {0};
    json_put_string(&b, text, strlen(text));
    jx out = jx_bytes(p, b.data + 1, b.len - 2);
    buf_free(&b);
    return out;
}

/* ---- texts as they are ----------------------------------------------------------------------------------------- */

/* One character that is neither `next` nor `first`. */
static jx other_than(struct jpool *p, unsigned char next, unsigned char first)
{
    unsigned lo = next < first ? next : first, hi = next < first ? first : next;
    struct grange v[3] = {{0, lo ? lo - 1 : 0}, {lo + 1, hi - 1}, {hi + 1, 0x10ffff}};
    size_t n = 3;
    if (lo + 1 >= hi) v[1] = v[2], n = 2;
    return jx_raw_chars(p, v, n);
}

/* Any text in which the mark, whose first byte it has once, does not occur. */
static jx text_without(struct writer *w, const char *mark)
{
    struct jpool *p = w->p;
    size_t len = strlen(mark);
    jx starts = JX_NONE, ends = JX_NONE;
    if (w->plain) return w->plain;
    for (size_t i = 1; i < len; i++) { /* a part of the mark, and what may follow it */
        jx part = jx_bytes(p, mark, i);
        starts = jx_alt2(p, starts, part);
        ends = jx_alt2(p, ends, jx_seq2(p, part, other_than(p, (unsigned char)mark[i], (unsigned char)mark[0])));
    }
    starts = jx_shared(p, jx_repeat(p, starts, 0, JX_MANY));
    jx one = jx_alt2(p, other_than(p, (unsigned char)mark[0], (unsigned char)mark[0]), jx_seq2(p, starts, ends));
    return w->plain = jx_shared(p, jx_seq2(p, jx_repeat(p, one, 0, JX_MANY), starts));
}

/* ---- schemas of parts ------------------------------------------------------------------------------------------ */

/* The JSON that the schema of a part of the parameters describes: its references are into the whole. */
static jx json_part(struct writer *w, const cJSON *schema)
{
    cJSON *copy = cJSON_IsObject(schema) ? cJSON_Duplicate(schema, true) : cJSON_CreateObject();
    static const char *const places[] = {"$defs", "definitions"};
    for (size_t i = 0; i < 2; i++) {
        const cJSON *defs = field(w->parameters, places[i]);
        if (defs && !field(copy, places[i])) cJSON_AddItemToObject(copy, places[i], cJSON_Duplicate(defs, true));
    }
    jx out = json_schema(w->p, copy);
    cJSON_Delete(copy);
    return out;
}

static bool has_type(const cJSON *schema, const char *name)
{
    const char *type = cJSON_GetStringValue(field(schema, "type"));
    return type && strcmp(type, name) == 0;
}

/* enum and const; NULL: the schema has neither. */
static const cJSON *choices(const cJSON *schema, int *n)
{
    const cJSON *list = field(schema, "enum"), *one = field(schema, "const");
    *n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : one ? 1 : 0;
    return cJSON_IsArray(list) ? list->child : one;
}

static bool is_required(const cJSON *schema, const char *name)
{
    const cJSON *v;
    cJSON_ArrayForEach(v,
                       field(schema, "required")) if (cJSON_IsString(v) && !strcmp(v->valuestring, name)) return true;
    return false;
}

/* Whether a property's value is written as a text: its schema says so, or nothing. */
static bool is_text(const cJSON *schema)
{
    int n;
    const cJSON *v = choices(schema, &n);
    if (v) {
        for (; n && v; n--, v = v->next)
            if (!cJSON_IsString(v)) return false;
        return true;
    }
    return has_type(schema, "string") || (!field(schema, "type") && !field(schema, "anyOf") && !field(schema, "$ref") &&
                                          !field(schema, "oneOf") && !field(schema, "allOf"));
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

static jx text_value(struct writer *w, const cJSON *schema, const char *mark)
{
    int n;
    const cJSON *v = choices(schema, &n);
    jx out = JX_NONE;
    if (!v) return text_without(w, mark);
    for (; n && v; n--, v = v->next) out = jx_alt2(w->p, out, jx_text(w->p, v->valuestring));
    return out;
}

static jx members(struct writer *w, const cJSON *schema, int depth);

static jx escaped_value(struct writer *w, const cJSON *schema, int depth)
{
    struct jpool *p = w->p;
    const char *quote = w->text[S_QUOTE];
    jx mark = literal(p, quote);
    char bare[64]; /* the mark without what makes it special */
    size_t n = 0;
    for (const char *s = quote; *s && n + 1 < sizeof bare; s++)
        if (*s != CALLS_SPECIAL) bare[n++] = *s;
    bare[n] = 0;
    if (is_text(schema)) return jx_seq3(p, mark, text_value(w, schema, bare), mark);
    if (has_type(schema, "object") && field(schema, "properties") && depth < VALUE_DEPTH)
        return members(w, schema, depth + 1);
    if (has_type(schema, "array") && cJSON_IsObject(field(schema, "items")) && depth < VALUE_DEPTH) {
        jx item = jx_shared(p, escaped_value(w, field(schema, "items"), depth + 1));
        jx more = jx_repeat(p, jx_seq2(p, jx_text(p, ","), item), 0, JX_MANY);
        return jx_seq3(p, jx_text(p, "["), jx_optional(p, jx_seq2(p, item, more)), jx_text(p, "]"));
    }
    return json_part(w, schema);
}

static jx python_value(struct writer *w, const cJSON *schema)
{
    if (has_type(schema, "boolean")) return jx_alt2(w->p, jx_text(w->p, "True"), jx_text(w->p, "False"));
    return json_part(w, schema);
}

/* ---- arguments ------------------------------------------------------------------------------------------------- */

/* One property, with its name. */
static jx property(struct writer *w, const cJSON *schema, int depth)
{
    struct jpool *p = w->p;
    jx name = jx_text(p, schema->string);
    if (w->how == ARGUMENTS_XML) {
        static const char end[] = "</parameter>";
        jx open = jx_seq3(p, jx_text(p, "<parameter="), name, jx_text(p, ">\n"));
        jx value = is_text(schema) ? text_value(w, schema, end) : json_part(w, schema);
        return jx_seq3(p, open, value, jx_text(p, "\n</parameter>\n"));
    }
    if (w->how == ARGUMENTS_PYTHON) return jx_seq3(p, name, jx_text(p, "="), python_value(w, schema));
    return jx_seq3(p, name, jx_text(p, ":"), escaped_value(w, schema, depth));
}

/* The properties in their order, those that are not required optional, with `comma` between two. */
static jx properties(struct writer *w, const cJSON *schema, const char *comma, int depth)
{
    struct jpool *p = w->p;
    const cJSON *list = field(schema, "properties"), *v;
    const cJSON *items[PROPERTIES_MAX];
    int n = 0;
    jx begun = JX_EMPTY, fresh = JX_EMPTY; /* what follows, behind a property, and as the first */
    if (!cJSON_IsObject(list)) list = NULL;
    cJSON_ArrayForEach(v, list)
    {
        if (n == PROPERTIES_MAX) {
            jpool_fail(p, "more than %d parameters are not supported in this model's form of calls", PROPERTIES_MAX);
            return JX_NONE;
        }
        items[n++] = v;
    }
    while (n-- > 0) {
        jx one = jx_shared(p, property(w, items[n], depth));
        jx first = jx_seq2(p, one, begun), next = jx_seq3(p, jx_text(p, comma), one, begun);
        bool required = is_required(schema, items[n]->string);
        fresh = jx_shared(p, required ? first : jx_alt2(p, first, fresh));
        begun = jx_shared(p, required ? next : jx_alt2(p, next, begun));
    }
    return fresh;
}

static jx members(struct writer *w, const cJSON *schema, int depth)
{
    return jx_seq3(w->p, jx_text(w->p, "{"), properties(w, schema, ",", depth), jx_text(w->p, "}"));
}

static jx arguments(struct writer *w, const cJSON *parameters)
{
    jx out;
    if (w->how == ARGUMENTS_JSON) {
        cJSON *schema = cJSON_IsObject(parameters) ? cJSON_Duplicate(parameters, true) : cJSON_CreateObject();
        if (!field(schema, "type")) cJSON_AddStringToObject(schema, "type", "object");
        if (!cJSON_IsObject(parameters)) cJSON_AddFalseToObject(schema, "additionalProperties"); /* no parameters */
        out = json_schema(w->p, schema);
        cJSON_Delete(schema);
        return out;
    }
    w->parameters = parameters;
    if (w->how == ARGUMENTS_ESCAPED) return members(w, parameters, 0);
    return properties(w, parameters, w->how == ARGUMENTS_PYTHON ? ", " : "", 0);
}

static jx call(struct writer *w, const cJSON *tool)
{
    struct jpool *p = w->p;
    const char *name = cJSON_GetStringValue(field(tool, "name")), *before = w->text[S_BEFORE];
    size_t n = strlen(before);
    bool quoted = n && before[n - 1] == '"';
    jx head = jx_seq3(p, literal(p, before), quoted ? json_inside(p, name) : jx_text(p, name),
                      literal(p, w->text[S_BETWEEN]));
    return jx_seq3(p, head, arguments(w, field(tool, "parameters")), literal(p, w->text[S_AFTER]));
}

jx calls_expression(struct jpool *p, const cJSON *calls)
{
    struct writer w = {.p = p, .how = (enum call_arguments)field(calls, "arguments")->valueint};
    const cJSON *v;
    size_t i = 0;
    for (size_t k = 0; k < N_TEXTS; k++) w.text[k] = "";
    jx one = JX_NONE;
    cJSON_ArrayForEach(v, field(calls, "shape")) if (i < N_TEXTS) w.text[i++] = v->valuestring;
    for (v = field(calls, "tools")->child; v && !jpool_failed(p); v = v->next) {
        one = jx_alt2(p, one, call(&w, v));
        jpool_name_failure(p, cJSON_GetStringValue(field(v, "name")));
    }
    one = jx_shared(p, one);
    jx more = JX_EMPTY;
    if (cJSON_IsTrue(field(calls, "many")))
        more = jx_repeat(p, jx_seq2(p, literal(p, w.text[S_NEXT]), one), 0, CALLS_MORE_MAX);
    return jx_seq3(p, literal(p, w.text[S_FIRST]), jx_seq2(p, one, more), literal(p, w.text[S_LAST]));
}
