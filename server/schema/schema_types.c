/* JSON Schema, one type at a time: strings, numbers, arrays, objects.  schema.h says what holds. */
#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "server/json/check.h"
#include "server/json/json.h"
#include "server/schema/format.h"
#include "server/schema/lark.h"
#include "server/schema/number.h"
#include "server/schema/regex.h"
#include "server/schema/schema_in.h"

#include <stdlib.h>
#include <string.h>

enum {
    NAME_MAX = 200, /* bytes of a property's name, where other names are possible too */
    UNIQUE_MAX = 8  /* values of an enumeration in an array of different ones */
};

/* ---- strings --------------------------------------------------------------------------------------------------- */

/* Sets *out to the contents of a string by pattern or format; JX_NONE when there is neither. */
static bool string_content(struct translator *t, const cJSON *schema, jx *out, const struct place *at)
{
    const cJSON *pattern = schema_get(schema, "pattern"), *format = schema_get(schema, "format");
    struct err e = {0};
    *out = JX_NONE;
    if ((pattern && !cJSON_IsString(pattern)) || (format && !cJSON_IsString(format))) {
        schema_fail(t, at, "`pattern` and `format` must be strings");
        return false;
    }
    enum json_format known = format ? json_format(t->p, format->valuestring, t->formats, out) : FORMAT_UNKNOWN;
    if (known == FORMAT_REFUSED) schema_fail(t, at, "`format` %.40s is not supported", format->valuestring);
    if (!pattern) return !jpool_failed(t->p);
    if (known == FORMAT_KNOWN) schema_fail(t, at, "`pattern` beside `format` is not supported");
    *out = json_regex(t->p, pattern->valuestring, &e);
    if (e.code) schema_fail(t, at, "`pattern`: %.150s", e.msg);
    if (*out == JX_NONE) schema_fail(t, at, "`pattern` matches no string");
    return !jpool_failed(t->p);
}

/* A string by a grammar of Lark's, which is tandem's own keyword: the custom tools of /v1/responses have such. */
static jx string_by_grammar(struct translator *t, const cJSON *schema, const cJSON *grammar, const struct place *at)
{
    static const char *const others[] = {"pattern", "format", "minLength", "maxLength"};
    struct err e = {0};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (schema_get(schema, others[i])) schema_fail(t, at, "`lark` beside `%s` is not supported", others[i]);
    jx content = cJSON_IsString(grammar) ? json_lark(t->p, grammar->valuestring, &e) : JX_NONE;
    if (content == JX_NONE) schema_fail(t, at, "`lark`: %.150s", e.code ? e.msg : "expected a grammar");
    jx quote = jx_text(t->p, "\"");
    return content == JX_NONE ? JX_NONE : jx_seq3(t->p, quote, content, quote);
}

jx schema_string(struct translator *t, const cJSON *schema, const struct place *at)
{
    if (schema_get(schema, "lark")) return string_by_grammar(t, schema, schema_get(schema, "lark"), at);
    uint32_t min = schema_count(t, schema, "minLength", 0, at), max = schema_count(t, schema, "maxLength", JX_MANY, at);
    jx content;
    if (!string_content(t, schema, &content, at)) return JX_NONE;
    if (content == JX_NONE) {
        if (min == 0 && max == JX_MANY) return schema_any_string(t);
        content = jx_repeat(t->p, jx_any_char(t->p), min, max);
    } else {
        content = jx_fit(t->p, content, min, max);
        if (content == JX_NONE)
            schema_fail(t, at, "no string was found that has both its pattern or format and its length");
    }
    jx quote = jx_text(t->p, "\"");
    return content == JX_NONE ? JX_NONE : jx_seq3(t->p, quote, content, quote);
}

/* ---- numbers --------------------------------------------------------------------------------------------------- */

/* The stricter of a bound and its exclusive form, which draft 4 writes as true. */
static bool read_bound(struct translator *t, const cJSON *schema, bool upper, struct number_limits *l,
                       const struct place *at)
{
    const char *name = upper ? "maximum" : "minimum", *open_name = upper ? "exclusiveMaximum" : "exclusiveMinimum";
    const cJSON *closed = schema_get(schema, name), *open = schema_get(schema, open_name);
    struct decimal *out = upper ? &l->max : &l->min;
    bool *has = upper ? &l->has_max : &l->has_min, *excluded = upper ? &l->max_excluded : &l->min_excluded;
    if ((closed && !cJSON_IsNumber(closed)) || (open && !cJSON_IsNumber(open) && !cJSON_IsBool(open))) {
        schema_fail(t, at, "`%s` and `%s` must be numbers", name, open_name);
        return false;
    }
    *has = closed || cJSON_IsNumber(open);
    *excluded = cJSON_IsTrue(open);
    if (closed) decimal_read(out, closed);
    if (!cJSON_IsNumber(open)) return true;
    struct decimal *other = mem_alloc(sizeof *other);
    decimal_read(other, open);
    int order = closed ? decimal_compare(other, out) : 0;
    if (!closed || (upper ? order <= 0 : order >= 0)) {
        *out = *other;
        *excluded = true;
    }
    free(other);
    return true;
}

static jx bounded_number(struct translator *t, const cJSON *schema, bool whole, const struct place *at)
{
    struct number_limits l = {.whole = whole};
    struct err e = {0};
    const cJSON *step = schema ? schema_get(schema, "multipleOf") : NULL;
    if (schema && (!read_bound(t, schema, false, &l, at) || !read_bound(t, schema, true, &l, at))) return JX_NONE;
    if (step && !cJSON_IsNumber(step)) {
        schema_fail(t, at, "`multipleOf` must be a number");
        return JX_NONE;
    }
    l.has_step = step != NULL;
    if (step) decimal_read(&l.step, step);
    jx out = json_numbers(t->p, &l, &e);
    if (e.code) schema_fail(t, at, "%s", e.msg);
    return out;
}

jx schema_number(struct translator *t, const cJSON *schema, bool whole, const struct place *at)
{
    static const char *const limits[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
    bool limited = whole;
    for (int i = 0; i < 5 && schema; i++) limited |= schema_get(schema, limits[i]) != NULL;
    if (limited) return bounded_number(t, schema, whole, at);
    if (t->any_number == JX_NONE) t->any_number = jx_shared(t->p, bounded_number(t, NULL, false, at));
    return t->any_number;
}

/* ---- arrays ---------------------------------------------------------------------------------------------------- */

/* The elements of an array: the first ones individually, then as many of `rest` as allowed. */
struct elements {
    const cJSON *first; /* a list of schemas, or NULL */
    const cJSON *rest;  /* NULL: anything, unless closed */
    bool closed;        /* further elements are not specified: none are generated */
    bool unique;
    uint32_t min, max;
};

static bool read_elements(struct translator *t, const cJSON *schema, struct elements *v, const struct place *at)
{
    const cJSON *items = schema_get(schema, "items"), *unique = schema_get(schema, "uniqueItems");
    v->first = schema_get(schema, "prefixItems");
    v->rest = items;
    if (!v->first && cJSON_IsArray(items)) { /* drafts before 2020-12 */
        v->first = items;
        v->rest = schema_get(schema, "additionalItems");
    }
    v->min = schema_count(t, schema, "minItems", 0, at);
    v->max = schema_count(t, schema, "maxItems", JX_MANY, at);
    if (v->first && !cJSON_IsArray(v->first)) schema_fail(t, at, "`prefixItems` must be a list of schemas");
    v->unique = cJSON_IsTrue(unique) && v->max > 1;
    uint32_t n = v->first ? (uint32_t)cJSON_GetArraySize(v->first) : 0;
    v->closed = !v->rest && (cJSON_IsFalse(schema_get(schema, "unevaluatedItems")) || (v->first && v->min <= n));
    return !jpool_failed(t->p);
}

/* element (", " element)* within the counts; no brackets */
static jx uniform(struct translator *t, jx element, uint32_t min, uint32_t max)
{
    if (max == 0 || (element == JX_NONE && min == 0)) return JX_EMPTY;
    jx more = jx_repeat(t->p, jx_seq2(t->p, jx_text(t->p, ", "), element), min ? min - 1 : 0,
                        max == JX_MANY ? JX_MANY : max - 1);
    jx all = jx_seq2(t->p, element, more);
    return min ? all : jx_optional(t->p, all);
}

/* The values of an enumeration without anything beside it but a type, each once; 0: it is none, or too long. */
static size_t listed_values(struct translator *t, const cJSON *items, const cJSON *out[static UNIQUE_MAX],
                            const struct place *at)
{
    size_t n = 0;
    if (items && schema_get(items, "$ref")) items = schema_resolve(t, schema_get(items, "$ref"), at);
    const cJSON *list = items ? schema_get(items, "enum") : NULL, *type = list ? schema_get(items, "type") : NULL;
    if (!list || schema_restricts(items, "enum", "type")) return 0;
    if (type && (!cJSON_IsString(type) || strcmp(type->valuestring, "string") != 0)) return 0;
    for (const cJSON *i = list->child; i; i = i->next) {
        bool again = type && !cJSON_IsString(i);
        if (!schema_works(t, json_weight(i), at)) return 0;
        for (size_t k = 0; k < n && !again; k++) again = json_equal(out[k], i);
        if (again) continue;
        if (n == UNIQUE_MAX) return 0;
        out[n++] = i;
    }
    return n;
}

/* An array of distinct values of a short list: one rule for each set of values already used. */
static jx unique_array(struct translator *t, const struct elements *v, const struct place *at)
{
    const cJSON *values[UNIQUE_MAX];
    size_t n = v->first ? 0 : listed_values(t, v->rest, values, at);
    jx text[UNIQUE_MAX], rule[1 << UNIQUE_MAX], comma = jx_text(t->p, ", ");
    if (n == 0) {
        schema_fail(t, at, "`uniqueItems` is supported where `items` is an `enum` of at most %d values only",
                    UNIQUE_MAX);
        return JX_NONE;
    }
    for (size_t i = 0; i < n; i++) text[i] = schema_literal(t, values[i], at);
    for (size_t set = (size_t)1 << n; set-- > 0;) { /* larger sets first */
        uint32_t in = (uint32_t)__builtin_popcountll(set);
        jx ways[UNIQUE_MAX + 1];
        size_t n_ways = 0;
        if (in >= v->min) ways[n_ways++] = JX_EMPTY;
        for (size_t i = 0; i < n && in < v->max; i++)
            if (!(set >> i & 1))
                ways[n_ways++] = jx_seq3(t->p, in ? comma : JX_EMPTY, text[i], rule[set | (size_t)1 << i]);
        rule[set] = jx_shared(t->p, jx_alt(t->p, ways, n_ways));
    }
    return jx_seq3(t->p, jx_text(t->p, "["), rule[0], jx_text(t->p, "]"));
}

jx schema_array(struct translator *t, const cJSON *schema, const struct place *at)
{
    struct elements v;
    if (!read_elements(t, schema, &v, at)) return JX_NONE;
    if (v.min > v.max) return JX_NONE;
    if (v.unique) return unique_array(t, &v, at);
    struct place in_rest = {at, "items", 0}, in_first = {at, "prefixItems", 0};
    jx rest = JX_NONE, comma = jx_text(t->p, ", "), inside;
    if (!v.closed) rest = v.rest ? schema_value(t, v.rest, &in_rest) : schema_any_value(t);
    rest = rest == JX_NONE ? JX_NONE : jx_shared(t->p, rest);
    uint32_t n = v.first ? (uint32_t)cJSON_GetArraySize(v.first) : 0, i = 0;
    if (n > v.max) n = v.max;
    if (n == 0) {
        inside = uniform(t, rest, v.min, v.max);
    } else {
        jx *first = mem_array(n, sizeof *first);
        for (const cJSON *s = v.first->child; s && i < n; s = s->next, i++) {
            struct place here = {&in_first, NULL, (int)i};
            first[i] = schema_value(t, s, &here);
        }
        /* from the end: an optional element may be missing together with all that follow */
        inside = jx_repeat(t->p, jx_seq2(t->p, comma, rest), v.min > n ? v.min - n : 0,
                           v.max == JX_MANY ? JX_MANY : v.max - n);
        for (i = n; i-- > 0;) {
            inside = jx_seq3(t->p, i ? comma : JX_EMPTY, first[i], inside);
            if (v.min <= i) inside = jx_optional(t->p, inside);
        }
        free(first);
    }
    return jx_seq3(t->p, jx_text(t->p, "["), inside, jx_text(t->p, "]"));
}

/* ---- objects --------------------------------------------------------------------------------------------------- */

struct property {
    const char *name;
    const cJSON *schema; /* NULL: any value */
    int order;
    bool required;
    jx item; /* "name": value */
};

struct members {
    struct property *v; /* owned; in the order in which they are written */
    size_t n;
    const cJSON *names;      /* propertyNames, patternProperties' pattern or NULL */
    bool by_pattern;         /* `names` is the one member of patternProperties */
    const cJSON *additional; /* NULL: see open */
    bool open;               /* unlisted members may be generated */
    uint32_t min, max;
};

static int by_name(const void *a, const void *b)
{
    const struct property *x = a, *y = b;
    int rc = strcmp(x->name, y->name);
    return rc ? rc : x->order - y->order;
}

static int by_order(const void *a, const void *b)
{
    const struct property *x = a, *y = b;
    return x->order - y->order;
}

/* The listed properties sorted by name, each once: the last of duplicates counts. */
static void read_properties(struct members *m, const cJSON *properties, size_t room)
{
    size_t n = 0, kept = 0;
    m->v = mem_array(room + 1, sizeof *m->v);
    for (const cJSON *i = properties ? properties->child : NULL; i; i = i->next, n++)
        m->v[n] = (struct property){.name = i->string, .schema = i, .order = (int)n};
    if (n) qsort(m->v, n, sizeof *m->v, by_name);
    for (size_t i = 0; i < n; i++) {
        if (i + 1 < n && strcmp(m->v[i].name, m->v[i + 1].name) == 0) continue;
        m->v[kept++] = m->v[i];
    }
    m->n = kept;
}

/* Marks the required members; those not listed are appended. */
static bool read_required(struct translator *t, struct members *m, const cJSON *required, const struct place *at)
{
    size_t listed = m->n;
    int order = 1 << 30;
    if (required && !cJSON_IsArray(required)) schema_fail(t, at, "`required` must be a list of names");
    for (const cJSON *i = required ? required->child : NULL; i && !jpool_failed(t->p); i = i->next) {
        if (!cJSON_IsString(i)) {
            schema_fail(t, at, "`required` must be a list of names");
            break;
        }
        struct property key = {.name = i->valuestring}, *found = NULL;
        size_t lo = 0, hi = listed;
        while (lo < hi) {
            size_t mid = (lo + hi) / 2;
            int rc = strcmp(key.name, m->v[mid].name);
            if (rc == 0) found = &m->v[mid];
            if (rc == 0) break;
            if (rc < 0)
                hi = mid;
            else
                lo = mid + 1;
        }
        for (size_t k = listed; !found && k < m->n; k++)
            if (strcmp(key.name, m->v[k].name) == 0) found = &m->v[k];
        if (!schema_works(t, 1 + (found ? 0 : (long)(m->n - listed)), at)) break;
        if (!found) {
            found = &m->v[m->n++];
            *found = (struct property){.name = key.name, .schema = m->additional, .order = order++};
            if (m->names) schema_fail(t, at, "`required` \"%.60s\" is not among `properties`", key.name);
        }
        found->required = true;
    }
    return !jpool_failed(t->p);
}

static bool read_names(struct translator *t, const cJSON *schema, struct members *m, const struct place *at)
{
    const cJSON *patterns = schema_get(schema, "patternProperties");
    m->names = schema_get(schema, "propertyNames");
    if (cJSON_IsTrue(m->names)) m->names = NULL;
    if (!patterns || !patterns->child) return true;
    if (!cJSON_IsObject(patterns) || patterns->child->next)
        schema_fail(t, at, "`patternProperties` is supported with one pattern only");
    else if (m->names)
        schema_fail(t, at, "`patternProperties` beside `propertyNames` is not supported");
    m->names = m->additional = patterns->child;
    m->by_pattern = m->open = true;
    return !jpool_failed(t->p);
}

static bool read_members(struct translator *t, const cJSON *schema, struct members *m, const struct place *at)
{
    const cJSON *properties = schema_get(schema, "properties"), *required = schema_get(schema, "required");
    const cJSON *additional = schema_get(schema, "additionalProperties");
    *m = (struct members){.min = schema_count(t, schema, "minProperties", 0, at),
                          .max = schema_count(t, schema, "maxProperties", JX_MANY, at)};
    if (properties && !cJSON_IsObject(properties)) schema_fail(t, at, "`properties` must be an object");
    if (!additional && cJSON_IsFalse(schema_get(schema, "unevaluatedProperties")))
        additional = schema_get(schema, "unevaluatedProperties");
    m->open = additional ? !cJSON_IsFalse(additional) : !properties;
    m->additional = additional;
    if (!read_names(t, schema, m, at) || jpool_failed(t->p)) return false;
    read_properties(m, properties, (size_t)cJSON_GetArraySize(properties) + (size_t)cJSON_GetArraySize(required));
    if (m->names && m->n) {
        schema_fail(t, at, "`%s` beside `properties` is not supported",
                    m->by_pattern ? "patternProperties" : "propertyNames");
        return false;
    }
    if (!schema_works(t, (long)m->n, at) || !read_required(t, m, required, at)) return false;
    if (m->n) qsort(m->v, m->n, sizeof *m->v, by_order);
    return true;
}

/* ---- names that are not listed ---- */

static uint32_t decode(const char *s, int *len)
{
    const unsigned char *u = (const unsigned char *)s;
    static const unsigned char lead[5] = {0xff, 0x7f, 0x1f, 0x0f, 0x07};
    *len = utf8_length(u, strlen(s));
    uint32_t c = u[0] & lead[*len];
    for (int i = 1; i < *len; i++) c = c << 6 | (u[i] & 0x3f);
    if (*len == 0) *len = 1;
    return c;
}

/* The suffixes, from byte `at`, of strings not in v (n names sorted by bytes, equal up to byte `at`). */
static jx other_than(struct translator *t, const char *const *v, size_t n, size_t at)
{
    size_t n_parts = 0, n_rest = 0, i = 0;
    jx *parts = mem_array(n + 2, sizeof *parts);
    struct grange *rest = mem_array(n + 1, sizeof *rest);
    uint32_t next = 0;
    if (n && !v[0][at])
        i = 1; /* one of them ends here */
    else if (at)
        parts[n_parts++] = JX_EMPTY;
    while (i < n) {
        int len;
        uint32_t c = decode(v[i] + at, &len);
        size_t end = i + 1;
        while (end < n && strncmp(v[end] + at, v[i] + at, (size_t)len) == 0) end++;
        jx one = jx_chars(t->p, &(struct grange){c, c}, 1);
        parts[n_parts++] = jx_seq2(t->p, one, other_than(t, v + i, end - i, at + (size_t)len));
        if (c > next) rest[n_rest++] = (struct grange){next, c - 1};
        next = c + 1;
        i = end;
    }
    rest[n_rest++] = (struct grange){next, 0x10ffff};
    parts[n_parts++] = jx_seq2(t->p, jx_chars(t->p, rest, n_rest), t->any_chars);
    jx out = jx_alt(t->p, parts, n_parts);
    free(parts);
    free(rest);
    return out;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The name of a member that is not listed, with its quotes. */
static jx other_name(struct translator *t, const struct members *m, const struct place *at)
{
    jx quote = jx_text(t->p, "\"");
    struct err e = {0};
    if (m->by_pattern) {
        jx name = json_regex(t->p, m->names->string, &e);
        if (e.code) schema_fail(t, at, "`patternProperties`: %.150s", e.msg);
        return jx_seq3(t->p, quote, name, quote);
    }
    if (m->names) {
        struct place here = {at, "propertyNames", 0};
        cJSON *strings = schema_new(t);
        cJSON_AddStringToObject(strings, "type", "string");
        const cJSON *schema = schema_merge(t, strings, NULL, m->names, &here);
        return schema ? schema_value(t, schema, &here) : JX_NONE;
    }
    const char **v = mem_array(m->n + 1, sizeof *v);
    for (size_t i = 0; i < m->n; i++) {
        v[i] = m->v[i].name;
        if (strlen(v[i]) > NAME_MAX) schema_fail(t, at, "a property's name is longer than %d bytes", NAME_MAX);
    }
    if (m->n) qsort(v, m->n, sizeof *v, by_bytes);
    if (t->any_chars == JX_NONE) {
        t->any_chars = jx_rule(t->p);
        jx_define(t->p, t->any_chars, jx_repeat(t->p, jx_any_char(t->p), 0, JX_MANY));
    }
    jx out = jpool_failed(t->p) ? JX_NONE : other_than(t, v, m->n, 0);
    free(v);
    return jx_seq3(t->p, quote, out, quote);
}

/* ---- the members in their order ---- */

static jx quoted(struct translator *t, const char *name)
{
    struct buf b = {0};
    json_put_string(&b, name, strlen(name));
    jx out = jx_bytes(t->p, b.data, b.len);
    buf_free(&b);
    return out;
}

/* Fills in the items; removes members that can have no value.  @return false when a required one has none. */
static bool make_items(struct translator *t, struct members *m, const struct place *at)
{
    struct place in = {at, "properties", 0};
    size_t kept = 0;
    bool possible = true;
    for (size_t i = 0; i < m->n && !jpool_failed(t->p); i++) {
        struct property *v = &m->v[i];
        struct place here = {&in, v->name, 0};
        jx value = v->schema ? schema_value(t, v->schema, &here) : schema_any_value(t);
        if (value == JX_NONE) {
            possible &= !v->required;
            continue;
        }
        v->item = jx_seq3(t->p, quoted(t, v->name), jx_text(t->p, ": "), value);
        m->v[kept++] = *v;
    }
    m->n = kept;
    return possible && !jpool_failed(t->p);
}

/* Members [i, n) and then others, after something was written. */
static jx following(struct translator *t, const struct members *m, size_t i, jx others)
{
    jx comma = jx_text(t->p, ", ");
    jx *v = mem_array(m->n - i + 1, sizeof *v);
    size_t n = 0;
    for (; i < m->n; i++) {
        jx item = jx_seq2(t->p, comma, m->v[i].item);
        v[n++] = m->v[i].required ? item : jx_optional(t->p, item);
    }
    v[n++] = others;
    jx out = jx_seq(t->p, v, n);
    free(v);
    return out;
}

/* All members, when the first `k` are optional: whichever is generated first, later ones may follow.  The rest after
 * each is a rule that ends with the next rule. */
static jx starting(struct translator *t, const struct members *m, size_t k, jx pair, jx others, bool may_be_empty)
{
    jx comma = jx_text(t->p, ", ");
    jx *v = mem_array(k + 2, sizeof *v);
    size_t n = 0;
    jx rest = k < m->n ? following(t, m, k + 1, others) : others;
    if (k < m->n) {
        if (k) rest = jx_shared(t->p, rest);
        jx item = k ? jx_shared(t->p, m->v[k].item) : m->v[k].item;
        v[n++] = jx_seq2(t->p, item, rest);
        if (k) rest = jx_shared(t->p, jx_seq3(t->p, comma, item, rest));
    } else {
        if (pair != JX_NONE) v[n++] = jx_seq2(t->p, pair, others);
        if (may_be_empty) v[n++] = JX_EMPTY;
    }
    for (size_t i = k; i-- > 0;) {
        jx item = jx_shared(t->p, m->v[i].item);
        v[n++] = jx_seq2(t->p, item, rest);
        if (i) rest = jx_shared(t->p, jx_seq2(t->p, jx_optional(t->p, jx_seq2(t->p, comma, item)), rest));
    }
    jx out = jx_alt(t->p, v, n);
    free(v);
    return out;
}

/* @return whether the counts can be satisfied; *most: limit of members beyond the listed ones. */
static bool check_counts(struct translator *t, const struct members *m, uint32_t *most, const struct place *at)
{
    uint32_t required = 0, listed = (uint32_t)m->n;
    for (size_t i = 0; i < m->n; i++) required += m->v[i].required;
    *most = !m->open ? 0 : m->max == JX_MANY ? JX_MANY : m->max > listed ? m->max - listed : 0;
    if (m->min > 1 && m->min > required)
        schema_fail(t, at, "`minProperties` above 1 and above the number of required properties is not supported");
    if (m->max < listed) schema_fail(t, at, "`maxProperties` below the number of listed properties is not supported");
    return !jpool_failed(t->p);
}

static jx put_members(struct translator *t, struct members *m, const struct place *at)
{
    uint32_t most;
    size_t k = 0;
    if (!make_items(t, m, at) || !check_counts(t, m, &most, at)) return JX_NONE;
    jx pair = JX_NONE;
    if (most) {
        struct place here = {at, m->by_pattern ? "patternProperties" : "additionalProperties", 0};
        jx value = m->additional ? schema_value(t, m->additional, &here) : schema_any_value(t);
        if (value != JX_NONE) pair = jx_shared(t->p, jx_seq3(t->p, other_name(t, m, at), jx_text(t->p, ": "), value));
    }
    bool alone = m->n == 0; /* then the first unlisted member has no comma */
    uint32_t more = most == JX_MANY ? JX_MANY : most && alone ? most - 1 : most;
    jx others = jx_repeat(t->p, jx_seq2(t->p, jx_text(t->p, ", "), pair), 0, more);
    while (k < m->n && !m->v[k].required) k++;
    jx inside = starting(t, m, k, pair, others, m->min == 0);
    return jx_seq3(t->p, jx_text(t->p, "{"), inside, jx_text(t->p, "}"));
}

jx schema_object(struct translator *t, const cJSON *schema, const struct place *at)
{
    struct members m;
    jx out = JX_NONE;
    if (read_members(t, schema, &m, at)) out = put_members(t, &m, at);
    free(m.v);
    return jpool_failed(t->p) ? JX_NONE : out;
}
