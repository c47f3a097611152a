/* JSON Schema, the part above single types: keywords, references, alternatives, enumerations.  schema.h says what
 * holds.  A reference becomes a rule, whose body is translated later, so recursion in the schema causes no recursion
 * here. */
#include "server/schema/schema_in.h"

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "server/json/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TARGETS_MAX = 2000, PLACE_MAX = 200, KEYWORDS_MAX = 256 };

struct target {
    const cJSON *schema;
    jx rule;
    char *pointer; /* owned: for messages */
};

/* ---- places and failures --------------------------------------------------------------------------------------- */

/* Truncated after PLACE_MAX bytes: a name may be as long as the schema. */
static void put_place(struct buf *b, const struct place *at)
{
    if (!at->up) {
        buf_str(b, at->name); /* "#", or what a reference said */
        return;
    }
    put_place(b, at->up);
    if (b->len > PLACE_MAX) return;
    if (!at->name) {
        buf_printf(b, "/%d", at->index);
        return;
    }
    buf_char(b, '/');
    for (const char *s = at->name; *s && b->len <= PLACE_MAX; s++) {
        if (*s == '~' || *s == '/')
            buf_str(b, *s == '~' ? "~0" : "~1");
        else
            buf_char(b, *s);
    }
}

void schema_fail(struct translator *t, const struct place *at, const char *fmt, ...)
{
    struct buf b = {0};
    char what[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    put_place(&b, at);
    jpool_fail(t->p, "%.*s%s: %s", PLACE_MAX, b.data, b.len > PLACE_MAX ? "..." : "", what);
    buf_free(&b);
}

bool schema_works(struct translator *t, long units, const struct place *at)
{
    t->work += units;
    if (t->work > SCHEMA_WORK_MAX) schema_fail(t, at, "the schema is too large");
    return !jpool_failed(t->p);
}

/* ---- keywords -------------------------------------------------------------------------------------------------- */

const cJSON *schema_get(const cJSON *schema, const char *name)
{
    const cJSON *found = NULL;
    for (const cJSON *i = schema && name ? schema->child : NULL; i; i = i->next)
        if (i->string && strcmp(i->string, name) == 0) found = i;
    return found && !cJSON_IsNull(found) ? found : NULL;
}

uint32_t schema_count(struct translator *t, const cJSON *schema, const char *name, uint32_t otherwise,
                      const struct place *at)
{
    const cJSON *item = schema_get(schema, name);
    if (!item) return otherwise;
    double v = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (v >= 0 && v == floor(v)) return v < JX_MANY - 1 ? (uint32_t)v : JX_MANY - 1;
    schema_fail(t, at, "`%s` must be a whole number of at least 0", name);
    return otherwise;
}

/* Keywords that restrict but are not supported.  (Names in no standard are annotations.)  Sorted. */
static const char *const refused[] = {
    "$dynamicRef", "$recursiveRef", "contains", "dependencies", "dependentRequired", "dependentSchemas", "disallow",
    "divisibleBy", "extends",       "if",       "not",
};

static int by_name(const void *key, const void *row)
{
    return strcmp(key, *(const char *const *)row);
}

bool schema_check_keywords(struct translator *t, const cJSON *schema, const struct place *at)
{
    int n = 0;
    for (const cJSON *i = schema->child; i; i = i->next) {
        if (++n > KEYWORDS_MAX) schema_fail(t, at, "more than %d keywords", KEYWORDS_MAX);
        if (!schema_works(t, 1, at)) return false;
        if (!bsearch(i->string, refused, sizeof refused / sizeof *refused, sizeof *refused, by_name)) continue;
        schema_fail(t, at, "`%s` is not supported", i->string);
        return false;
    }
    static const char *const open[] = {"unevaluatedProperties", "unevaluatedItems"};
    for (int k = 0; k < 2; k++) {
        const cJSON *item = schema_get(schema, open[k]);
        if (!item || cJSON_IsBool(item)) continue;
        schema_fail(t, at, "`%s` is supported as true or false only", open[k]);
        return false;
    }
    return true;
}

/* Keywords that restrict; a schema with none of them allows everything.  Sorted. */
static const char *const used[] = {
    "$ref",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "lark",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "required",
    "type",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
};

bool schema_restricts(const cJSON *schema, const char *but, const char *or_but)
{
    for (const cJSON *i = schema->child; i; i = i->next)
        if (strcmp(i->string, but) != 0 && strcmp(i->string, or_but) != 0 &&
            bsearch(i->string, used, sizeof used / sizeof *used, sizeof *used, by_name))
            return true;
    return false;
}

/* ---- references ------------------------------------------------------------------------------------------------ */

/* One step of a JSON pointer: the percent signs and tildes undone, into out (as long as the step). */
static bool decode_step(const char *s, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (c == '%') {
            char hex[3] = {0}, *end;
            if (n - i < 3) return false;
            memcpy(hex, s + i + 1, 2);
            c = (char)strtol(hex, &end, 16);
            if (end != hex + 2 || !c) return false;
            i += 2;
        }
        *out++ = c;
    }
    *out = 0;
    return true;
}

static void undo_tildes(char *s)
{
    char *out = s;
    for (; *s; s++) {
        if (s[0] == '~' && (s[1] == '0' || s[1] == '1'))
            *out++ = *++s == '0' ? '~' : '/';
        else
            *out++ = *s;
    }
    *out = 0;
}

static const cJSON *step_into(const cJSON *node, const char *step)
{
    if (cJSON_IsObject(node)) {
        const cJSON *found = NULL;
        for (const cJSON *i = node->child; i; i = i->next)
            if (strcmp(i->string, step) == 0) found = i;
        return found;
    }
    char *end;
    long index = strtol(step, &end, 10);
    if (!cJSON_IsArray(node) || *step < '0' || *step > '9' || *end || index > 1000 * 1000) return NULL;
    return cJSON_GetArrayItem(node, (int)index);
}

const cJSON *schema_resolve(struct translator *t, const cJSON *ref, const struct place *at)
{
    const char *s = cJSON_IsString(ref) ? ref->valuestring : NULL;
    if (!s || s[0] != '#' || (s[1] && s[1] != '/')) {
        schema_fail(t, at, "`$ref` must be a JSON pointer into the same schema, as \"#/$defs/name\"");
        return NULL;
    }
    const cJSON *node = t->root;
    if (!schema_works(t, (long)(strlen(s) / 256), at)) return NULL;
    char *step = mem_alloc(strlen(s) + 1);
    for (s++; *s && node;) {
        size_t n = strcspn(s + 1, "/");
        if (decode_step(s + 1, n, step)) {
            undo_tildes(step);
            if (!schema_works(t, cJSON_GetArraySize(node) / 256, at)) break;
            node = step_into(node, step);
        } else {
            node = NULL;
        }
        s += n + 1;
    }
    free(step);
    if (!node) schema_fail(t, at, "`$ref` %.100s is not there", ref->valuestring);
    return node;
}

/* The rule of a schema that is translated later; pointer: what to call it, NULL: by where it stands. */
static jx later(struct translator *t, const cJSON *schema, const char *pointer, const struct place *at)
{
    struct buf b = {0};
    for (size_t i = 0; i < t->n_targets; i++)
        if (t->targets[i].schema == schema) return t->targets[i].rule;
    if (t->n_targets == TARGETS_MAX) {
        schema_fail(t, at, "more than %d references", TARGETS_MAX);
        return JX_NONE;
    }
    if (pointer)
        buf_str(&b, pointer);
    else
        put_place(&b, at);
    mem_grow(&t->targets, &t->cap_targets, t->n_targets + 1, sizeof *t->targets);
    struct target new = {.schema = schema, .rule = jx_rule(t->p), .pointer = b.data};
    t->targets[t->n_targets++] = new;
    return new.rule;
}

static jx reference(struct translator *t, const cJSON *ref, const struct place *at)
{
    const cJSON *schema = schema_resolve(t, ref, at);
    return schema ? later(t, schema, ref->valuestring, at) : JX_NONE;
}

/* Schemas that hold at once are also merged later, so that a recursive one is merged only once. */
static jx merged_later(struct translator *t, const cJSON *schema, const struct place *at)
{
    return later(t, schema, NULL, at);
}

/* ---- enum and const ------------------------------------------------------------------------------------- */

enum { T_NULL = 1, T_BOOLEAN = 2, T_OBJECT = 4, T_ARRAY = 8, T_STRING = 16, T_INTEGER = 32, T_NUMBER = 64 };

static unsigned type_of(const cJSON *v)
{
    if (cJSON_IsNull(v)) return T_NULL;
    if (cJSON_IsBool(v)) return T_BOOLEAN;
    if (cJSON_IsObject(v)) return T_OBJECT;
    if (cJSON_IsArray(v)) return T_ARRAY;
    if (cJSON_IsString(v)) return T_STRING;
    return v->valuedouble == floor(v->valuedouble) ? T_INTEGER | T_NUMBER : T_NUMBER;
}

static unsigned type_named(const char *name)
{
    static const char *const names[] = {"null", "boolean", "object", "array", "string", "integer", "number"};
    for (unsigned i = 0; i < 7; i++)
        if (strcmp(names[i], name) == 0) return 1u << i;
    return 0;
}

/* Of `type`; 0 when absent. */
static unsigned types_given(struct translator *t, const cJSON *schema, const struct place *at)
{
    const cJSON *type = schema_get(schema, "type");
    unsigned out = 0;
    if (!type) return 0;
    const cJSON *first = cJSON_IsArray(type) ? type->child : type;
    for (const cJSON *i = first; i; i = cJSON_IsArray(type) ? i->next : NULL) {
        unsigned one = cJSON_IsString(i) ? type_named(i->valuestring) : 0;
        if (!one) schema_fail(t, at, "`type` must be names of types");
        out |= one;
    }
    if (!out) schema_fail(t, at, "`type` must be names of types");
    return out;
}

static size_t count_characters(const char *s)
{
    size_t n = 0;
    for (; *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

/* Whether a given value satisfies the other keywords beside enum or const.  Fails for those not looked at. */
static bool satisfies(struct translator *t, const cJSON *schema, const cJSON *v, const struct place *at)
{
    static const char *const unseen[] = {"pattern",      "multipleOf", "properties",           "items",
                                         "prefixItems",  "required",   "additionalProperties", "patternProperties",
                                         "propertyNames"};
    unsigned types = types_given(t, schema, at), own = type_of(v);
    if (types && !(types & own)) return false;
    for (size_t i = 0; i < sizeof unseen / sizeof *unseen; i++) {
        if (!schema_get(schema, unseen[i])) continue;
        bool about = i == 0 ? own == T_STRING : i == 1 ? own & T_NUMBER : own & (T_OBJECT | T_ARRAY);
        if (about) schema_fail(t, at, "`%s` is not supported beside `enum` or `const`", unseen[i]);
    }
    if (own == T_STRING) {
        size_t n = count_characters(v->valuestring);
        return n >= schema_count(t, schema, "minLength", 0, at) &&
               n <= schema_count(t, schema, "maxLength", JX_MANY, at);
    }
    if (own & T_NUMBER) {
        const cJSON *min = schema_get(schema, "minimum"), *max = schema_get(schema, "maximum");
        const cJSON *above = schema_get(schema, "exclusiveMinimum"), *below = schema_get(schema, "exclusiveMaximum");
        double d = v->valuedouble;
        if ((min && d < min->valuedouble) || (max && d > max->valuedouble)) return false;
        if ((cJSON_IsNumber(above) && d <= above->valuedouble) || (cJSON_IsNumber(below) && d >= below->valuedouble))
            return false;
        if (cJSON_IsTrue(above) && min && d == min->valuedouble) return false;
        if (cJSON_IsTrue(below) && max && d == max->valuedouble) return false;
    }
    return true;
}

/* const is last: `null` is a value of it. */
static const cJSON *find_const(const cJSON *schema)
{
    const cJSON *found = NULL;
    for (const cJSON *i = schema->child; i; i = i->next)
        if (strcmp(i->string, "const") == 0) found = i;
    return found;
}

jx schema_literal(struct translator *t, const cJSON *value, const struct place *at)
{
    struct buf b = {0};
    if (!schema_works(t, json_weight(value), at)) return JX_NONE;
    json_put_value(&b, value, ", ", ": ");
    jx out = jx_bytes(t->p, b.data, b.len);
    buf_free(&b);
    return out;
}

static jx enumeration(struct translator *t, const cJSON *schema, const struct place *at)
{
    const cJSON *list = schema_get(schema, "enum"), *only = find_const(schema);
    if (list && !cJSON_IsArray(list)) {
        schema_fail(t, at, "`enum` must be a list");
        return JX_NONE;
    }
    jx *v = NULL;
    size_t n = 0, cap = 0;
    for (const cJSON *i = list ? list->child : only; i; i = list ? i->next : NULL) {
        if (!schema_works(t, list && only ? json_weight(i) : 1, at)) break;
        if (list && only && !json_equal(i, only)) continue;
        if (!satisfies(t, schema, i, at)) continue;
        mem_grow(&v, &cap, n + 1, sizeof *v);
        v[n++] = schema_literal(t, i, at);
    }
    jx out = jx_alt(t->p, v, n);
    free(v);
    return out;
}

/* ---- any value ------------------------------------------------------------------------------------------------- */

jx schema_any_string(struct translator *t)
{
    if (t->any_string == JX_NONE) {
        jx quote = jx_text(t->p, "\"");
        t->any_string = jx_shared(t->p, jx_seq3(t->p, quote, jx_repeat(t->p, jx_any_char(t->p), 0, JX_MANY), quote));
    }
    return t->any_string;
}

/* first (", " item)*, between two brackets; or nothing between them */
static jx any_list(struct translator *t, const char *open, jx item, const char *close)
{
    jx more = jx_repeat(t->p, jx_seq2(t->p, jx_text(t->p, ", "), item), 0, JX_MANY);
    return jx_seq3(t->p, jx_text(t->p, open), jx_optional(t->p, jx_seq2(t->p, item, more)), jx_text(t->p, close));
}

static jx any_object(struct translator *t)
{
    if (t->any_object == JX_NONE) {
        t->any_object = jx_rule(t->p);
        jx pair = jx_seq3(t->p, schema_any_string(t), jx_text(t->p, ": "), schema_any_value(t));
        jx_define(t->p, t->any_object, any_list(t, "{", pair, "}"));
    }
    return t->any_object;
}

jx schema_any_value(struct translator *t)
{
    if (t->any_value == JX_NONE) {
        t->any_value = jx_rule(t->p);
        jx v[] = {
            schema_any_string(t),  schema_number(t, NULL, false, NULL),
            any_object(t),         any_list(t, "[", t->any_value, "]"),
            jx_text(t->p, "true"), jx_text(t->p, "false"),
            jx_text(t->p, "null"),
        };
        jx_define(t->p, t->any_value, jx_alt(t->p, v, sizeof v / sizeof *v));
    }
    return t->any_value;
}

/* ---- one schema ------------------------------------------------------------------------------------------------ */

/* @return the types that the keywords apply to, where `type` is absent. */
static unsigned types_meant(const cJSON *schema)
{
    static const struct {
        const char *name;
        unsigned type;
    } rows[] = {
        {"properties", T_OBJECT},
        {"required", T_OBJECT},
        {"additionalProperties", T_OBJECT},
        {"patternProperties", T_OBJECT},
        {"propertyNames", T_OBJECT},
        {"minProperties", T_OBJECT},
        {"maxProperties", T_OBJECT},
        {"unevaluatedProperties", T_OBJECT},
        {"items", T_ARRAY},
        {"prefixItems", T_ARRAY},
        {"minItems", T_ARRAY},
        {"maxItems", T_ARRAY},
        {"uniqueItems", T_ARRAY},
        {"additionalItems", T_ARRAY},
        {"unevaluatedItems", T_ARRAY},
        {"minLength", T_STRING},
        {"maxLength", T_STRING},
        {"pattern", T_STRING},
        {"lark", T_STRING},
        {"format", T_STRING},
        {"minimum", T_NUMBER},
        {"maximum", T_NUMBER},
        {"exclusiveMinimum", T_NUMBER},
        {"exclusiveMaximum", T_NUMBER},
        {"multipleOf", T_NUMBER},
    };
    unsigned out = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (schema_get(schema, rows[i].name)) out |= rows[i].type;
    return out;
}

/* A schema without references and alternatives. */
static jx plain(struct translator *t, const cJSON *schema, const struct place *at)
{
    if (find_const(schema) || schema_get(schema, "enum")) return enumeration(t, schema, at);
    unsigned types = types_given(t, schema, at);
    if (!types) types = types_meant(schema);
    if (jpool_failed(t->p)) return JX_NONE;
    if (!types) return schema_any_value(t);
    jx v[8];
    size_t n = 0;
    if (types & T_OBJECT) v[n++] = schema_object(t, schema, at);
    if (types & T_ARRAY) v[n++] = schema_array(t, schema, at);
    if (types & T_STRING) v[n++] = schema_string(t, schema, at);
    if (types & (T_INTEGER | T_NUMBER)) v[n++] = schema_number(t, schema, !(types & T_NUMBER), at);
    if (types & T_BOOLEAN) v[n++] = jx_alt2(t->p, jx_text(t->p, "true"), jx_text(t->p, "false"));
    if (types & T_NULL) v[n++] = jx_text(t->p, "null");
    return jx_alt(t->p, v, n);
}

/* anyOf, or oneOf taken as anyOf. */
static jx alternatives(struct translator *t, const cJSON *schema, const char *name, const struct place *at)
{
    const cJSON *list = schema_get(schema, name);
    bool more = schema_restricts(schema, name, name);
    struct place here = {at, name, 0};
    jx *v = NULL;
    size_t n = 0, cap = 0;
    int i = 0;
    if (!cJSON_IsArray(list) || !list->child) {
        schema_fail(t, at, "`%s` must be a list of schemas", name);
        return JX_NONE;
    }
    for (const cJSON *branch = list->child; branch && !jpool_failed(t->p); branch = branch->next) {
        struct place inside = {&here, NULL, i++};
        const cJSON *whole = more ? schema_merge(t, schema, name, branch, &inside) : branch;
        mem_grow(&v, &cap, n + 1, sizeof *v);
        v[n++] = whole ? schema_value(t, whole, &inside) : JX_NONE;
    }
    jx out = jpool_failed(t->p) ? JX_NONE : jx_alt(t->p, v, n);
    free(v);
    return out;
}

static jx compound(struct translator *t, const cJSON *schema, const struct place *at)
{
    const cJSON *ref = schema_get(schema, "$ref");
    const cJSON *all = schema_get(schema, "allOf");
    if (ref && !schema_restricts(schema, "$ref", "$ref")) return reference(t, ref, at);
    if (cJSON_GetArraySize(all) == 1 && !schema_restricts(schema, "allOf", "allOf")) {
        struct place list = {at, "allOf", 0}, inside = {&list, NULL, 0};
        return schema_value(t, all->child, &inside);
    }
    if ((ref || all) && t->merging != schema) return merged_later(t, schema, at);
    t->merging = NULL;
    if (ref || all) schema = schema_merge(t, schema, NULL, NULL, at);
    if (!schema) return JX_NONE;
    if (schema_get(schema, "anyOf")) return alternatives(t, schema, "anyOf", at);
    if (schema_get(schema, "oneOf")) return alternatives(t, schema, "oneOf", at);
    return plain(t, schema, at);
}

jx schema_value(struct translator *t, const cJSON *schema, const struct place *at)
{
    if (cJSON_IsFalse(schema) || jpool_failed(t->p)) return JX_NONE;
    if (cJSON_IsTrue(schema)) return schema_any_value(t);
    if (!cJSON_IsObject(schema)) {
        schema_fail(t, at, "a schema must be an object, true or false");
        return JX_NONE;
    }
    if (t->depth >= SCHEMA_DEPTH_MAX) {
        schema_fail(t, at, "the schema is nested too deeply");
        return JX_NONE;
    }
    if (!schema_check_keywords(t, schema, at)) return JX_NONE;
    t->depth++;
    jx out = compound(t, schema, at);
    t->depth--;
    if (cJSON_IsTrue(schema_get(schema, "nullable"))) out = jx_alt2(t->p, out, jx_text(t->p, "null"));
    return out;
}

/* ---- all of it ------------------------------------------------------------------------------------------------- */

static void translator_free(struct translator *t)
{
    for (size_t i = 0; i < t->n_targets; i++) free(t->targets[i].pointer);
    for (size_t i = 0; i < t->n_made; i++) cJSON_Delete(t->made[i]);
    free(t->targets);
    free(t->made);
}

jx json_schema(struct jpool *p, const cJSON *schema)
{
    struct translator t = {.p = p, .root = schema};
    struct place root = {NULL, "#", 0};
    jx out = schema_value(&t, schema, &root);
    for (size_t i = 0; i < t.n_targets && !jpool_failed(p); i++) { /* which finds more of them */
        struct place at = {NULL, t.targets[i].pointer, 0};
        t.merging = t.targets[i].schema;
        jx body = schema_value(&t, t.targets[i].schema, &at);
        jx_define(p, t.targets[i].rule, body);
    }
    translator_free(&t);
    return jpool_failed(p) ? JX_NONE : out;
}

jx json_any_object(struct jpool *p)
{
    struct translator t = {.p = p};
    jx out = any_object(&t);
    translator_free(&t);
    return out;
}
