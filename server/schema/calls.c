#include "server/schema/calls.h"

#include "engine/base/buf.h"
#include "engine/grammar/grammar.h"
#include "server/json/json.h"
#include "server/schema/lark.h"
#include "server/schema/marks.h"
#include "server/schema/regex.h"
#include "server/schema/schema.h"

#include <string.h>

enum { S_FIRST, S_BEFORE, S_BETWEEN, S_AFTER, S_NEXT, S_LAST, S_QUOTE, N_TEXTS };

#define XML_END "</parameter>"

enum { PROPERTIES_MAX = 128, VALUE_DEPTH = 16, REFERRING_MAX = 256 /* parts with references */ };

struct writer {
    struct jpool *p;
    enum call_arguments how;
    const char *text[N_TEXTS];
    const cJSON *parameters; /* of the tool */
    int referring;           /* parts with references so far */
    jx plain;                /* any text that does not contain the mark that ends it; 0: not made yet */
    bool described;          /* the tool's text keeps to its grammar or pattern, where it is written as it is */
    jx any;                  /* any value of an argument, in JSON any arguments; 0: not made yet */
};

static const cJSON *field(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

jx calls_text(struct jpool *p, const char *text)
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

/* Any text in which the mark does not occur. */
static jx text_without(struct writer *w, const char *mark)
{
    if (!w->plain) w->plain = text_without_marks(w->p, &mark, 1, "");
    return w->plain;
}

/* ---- schemas of parts ------------------------------------------------------------------------------------------ */

static bool has_reference(const cJSON *schema)
{
    if (field(schema, "$ref")) return true;
    for (const cJSON *v = schema ? schema->child : NULL; v; v = v->next)
        if (has_reference(v)) return true;
    return false;
}

/* The JSON that the schema of a part of the parameters describes: its references are into the whole. */
static jx json_part(struct writer *w, const cJSON *schema)
{
    static const char *const places[] = {"$defs", "definitions"};
    bool refers = has_reference(schema);
    if (jpool_failed(w->p)) return JX_NONE;
    if (refers && ++w->referring > REFERRING_MAX) {
        jpool_fail(w->p, "more than %d parameters with references are not supported in this model's form of calls",
                   REFERRING_MAX);
        return JX_NONE;
    }
    cJSON *copy = cJSON_IsObject(schema) ? cJSON_Duplicate(schema, true) : cJSON_CreateObject();
    for (size_t i = 0; i < 2 && refers; i++) {
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

/* A text that the schema's own grammar or pattern describes.  JX_NONE: it has none, or one that is not supported. */
static jx described_text(struct writer *w, const cJSON *schema)
{
    const char *lark = cJSON_GetStringValue(field(schema, "lark"));
    const char *pattern = cJSON_GetStringValue(field(schema, "pattern"));
    struct err e = {0};
    jx out = JX_NONE;
    bool before = jpool_raw(w->p, true);
    if (lark)
        out = lark_supported(lark, &e) ? json_lark(w->p, lark, &e) : JX_NONE;
    else if (pattern)
        out = json_regex_supported(pattern) ? json_regex(w->p, pattern, &e) : JX_NONE;
    jpool_raw(w->p, before);
    return out;
}

static jx text_value(struct writer *w, const cJSON *schema, const char *mark)
{
    int n;
    const cJSON *v = choices(schema, &n);
    jx out = v || !w->described ? JX_NONE : described_text(w, schema);
    if (!v) return out == JX_NONE ? text_without(w, mark) : out;
    for (; n && v; n--, v = v->next) out = jx_alt2(w->p, out, jx_text(w->p, v->valuestring));
    return out;
}

static jx members(struct writer *w, const cJSON *schema, int depth);

static jx escaped_value(struct writer *w, const cJSON *schema, int depth)
{
    struct jpool *p = w->p;
    const char *quote = w->text[S_QUOTE];
    jx mark = calls_text(p, quote);
    char bare[MARK_MAX + 2];
    if (is_text(schema))
        return jx_seq3(p, mark, text_value(w, schema, marks_bare(quote, bare)), mark);
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

/* ---- whatever arguments ----------------------------------------------------------------------------------------- */

/* A name of an argument. */
static jx any_name(struct jpool *p)
{
    static const struct grange word[] = {{'-', '-'}, {'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    return jx_repeat(p, jx_raw_chars(p, word, 5), 1, JX_MANY);
}

/* Any number of `one`, with `comma` between two. */
static jx any_list(struct jpool *p, jx one, const char *comma)
{
    return jx_optional(p, jx_seq2(p, one, jx_repeat(p, jx_seq2(p, jx_text(p, comma), one), 0, JX_MANY)));
}

/* Between single quotes, as Python has it. */
static jx python_text(struct jpool *p)
{
    static const struct grange plain[] = {{0x20, 0x26}, {0x28, 0x5b}, {0x5d, 0x10ffff}};
    jx escape = jx_seq2(p, jx_text(p, "\\"), jx_raw_chars(p, (struct grange[]){{'\\', '\\'}, {'\'', '\''}, {'n', 'n'}}, 3));
    jx one = jx_alt2(p, jx_raw_chars(p, plain, 3), escape);
    return jx_seq3(p, jx_text(p, "'"), jx_repeat(p, one, 0, JX_MANY), jx_text(p, "'"));
}

/* A value without parts. */
static jx any_scalar(struct writer *w)
{
    static const char *const types[] = {"number", "boolean", "null", "string"};
    struct jpool *p = w->p;
    cJSON *schema = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(schema, "type");
    size_t n = w->how == ARGUMENTS_PYTHON ? 4 : 3;
    for (size_t i = 0; i < n; i++) cJSON_AddItemToArray(list, cJSON_CreateString(types[i]));
    jx json = json_schema(p, schema);
    cJSON_Delete(schema);
    if (w->how == ARGUMENTS_PYTHON)
        return jx_alt(p, (jx[]){json, jx_text(p, "True"), jx_text(p, "False"), jx_text(p, "None"), python_text(p)}, 5);
    char bare[MARK_MAX + 2];
    jx mark = calls_text(p, w->text[S_QUOTE]);
    return jx_alt2(p, json, jx_seq3(p, mark, text_without(w, marks_bare(w->text[S_QUOTE], bare)), mark));
}

static jx any_value(struct writer *w)
{
    struct jpool *p = w->p;
    if (w->any) return w->any;
    bool python = w->how == ARGUMENTS_PYTHON;
    const char *comma = python ? ", " : ",";
    w->any = jx_rule(p);
    jx key = python ? jx_seq2(p, any_scalar(w), jx_text(p, ": ")) : jx_seq2(p, any_name(p), jx_text(p, ":"));
    jx list = jx_seq3(p, jx_text(p, "["), any_list(p, w->any, comma), jx_text(p, "]"));
    jx members = any_list(p, jx_seq2(p, key, w->any), comma);
    jx object = jx_seq3(p, jx_text(p, "{"), members, jx_text(p, "}"));
    jx_define(p, w->any, jx_alt(p, (jx[]){any_scalar(w), list, object}, 3));
    return w->any;
}

static jx any_arguments(struct writer *w)
{
    struct jpool *p = w->p;
    if (w->how == ARGUMENTS_JSON) return w->any ? w->any : (w->any = jx_shared(p, json_any_object(p)));
    jx name = any_name(p);
    if (w->how == ARGUMENTS_XML) {
        jx value = jx_seq3(p, jx_text(p, ">\n"), text_without(w, XML_END), jx_text(p, "\n" XML_END "\n"));
        return jx_repeat(p, jx_seq3(p, jx_text(p, "<parameter="), name, value), 0, JX_MANY);
    }
    bool python = w->how == ARGUMENTS_PYTHON;
    jx list = any_list(p, jx_seq3(p, name, jx_text(p, python ? "=" : ":"), any_value(w)), python ? ", " : ",");
    return python ? list : jx_seq3(p, jx_text(p, "{"), list, jx_text(p, "}"));
}

/* ---- arguments ------------------------------------------------------------------------------------------------- */

/* One property, with its name. */
static jx property(struct writer *w, const cJSON *schema, int depth)
{
    struct jpool *p = w->p;
    jx name = jx_text(p, schema->string);
    if (w->how == ARGUMENTS_XML) {
        jx open = jx_seq3(p, jx_text(p, "<parameter="), name, jx_text(p, ">\n"));
        jx value = is_text(schema) ? text_value(w, schema, XML_END) : json_part(w, schema);
        return jx_seq3(p, open, value, jx_text(p, "\n" XML_END "\n"));
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
    jx head = jx_seq3(p, calls_text(p, before), quoted ? json_inside(p, name) : jx_text(p, name),
                      calls_text(p, w->text[S_BETWEEN]));
    bool any = cJSON_IsTrue(field(tool, "any"));
    w->described = cJSON_IsTrue(field(tool, "described"));
    jx given = any ? jx_shared(p, any_arguments(w)) : arguments(w, field(tool, "parameters"));
    return jx_seq3(p, head, given, calls_text(p, w->text[S_AFTER]));
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
        more = jx_repeat(p, jx_seq2(p, calls_text(p, w.text[S_NEXT]), one), 0, CALLS_MORE_MAX);
    return jx_seq3(p, calls_text(p, w.text[S_FIRST]), jx_seq2(p, one, more), calls_text(p, w.text[S_LAST]));
}
