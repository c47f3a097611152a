/* Several schemas that hold at once (allOf, keywords beside $ref or anyOf), as one schema.  Keyword by keyword: types
 * intersect, bounds tighten, properties are united; other keywords are refused by name.  The result refers to the
 * schemas it is made of and copies nothing. */
#include "server/schema/schema_in.h"

#include "engine/base/mem.h"
#include "server/json/json.h"

#include <string.h>

static bool merge_into(struct translator *t, cJSON *acc, const cJSON *schema, const struct place *at);

cJSON *schema_new(struct translator *t)
{
    cJSON *made = cJSON_CreateObject();
    mem_grow(&t->made, &t->cap_made, t->n_made + 1, sizeof *t->made);
    t->made[t->n_made++] = made;
    return made;
}

/* Removes the keyword; its value is freed only at the end, since newer parts may refer to it. */
static void take_out(struct translator *t, cJSON *acc, const char *name)
{
    cJSON *old = cJSON_DetachItemFromObjectCaseSensitive(acc, name);
    if (!old) return;
    mem_grow(&t->made, &t->cap_made, t->n_made + 1, sizeof *t->made);
    t->made[t->n_made++] = old;
}

static void set_reference(struct translator *t, cJSON *acc, const char *name, const cJSON *value)
{
    take_out(t, acc, name);
    cJSON_AddItemReferenceToObject(acc, name, (cJSON *)value);
}

static void set_made(struct translator *t, cJSON *acc, const char *name, cJSON *value)
{
    take_out(t, acc, name);
    cJSON_AddItemToObject(acc, name, value);
}

/* {"allOf": [a, b]}; a alone if they are the same. */
static cJSON *both(const cJSON *a, const cJSON *b)
{
    cJSON *out = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(out, "allOf");
    cJSON_AddItemReferenceToArray(list, (cJSON *)a);
    if (a != b) cJSON_AddItemReferenceToArray(list, (cJSON *)b);
    return out;
}

/* ---- keywords -------------------------------------------------------------------------------------------------- */

static bool lists_type(const cJSON *type, const char *name)
{
    if (cJSON_IsString(type)) return strcmp(type->valuestring, name) == 0;
    for (const cJSON *i = cJSON_IsArray(type) ? type->child : NULL; i; i = i->next)
        if (cJSON_IsString(i) && strcmp(i->valuestring, name) == 0) return true;
    return false;
}

static void merge_types(struct translator *t, cJSON *acc, const cJSON *other)
{
    static const char *const names[] = {"null", "boolean", "object", "array", "string", "number", "integer"};
    const cJSON *mine = schema_get(acc, "type");
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; i < 7; i++) {
        bool a = lists_type(mine, names[i]), b = lists_type(other, names[i]);
        if (i == 6) { /* every integer is a number */
            a |= lists_type(mine, "number");
            b |= lists_type(other, "number");
        }
        if (a && b) cJSON_AddItemToArray(list, cJSON_CreateString(names[i]));
    }
    if (list->child) {
        set_made(t, acc, "type", list);
    } else { /* no common type */
        cJSON_Delete(list);
        set_made(t, acc, "enum", cJSON_CreateArray());
    }
}

/* Intersects the lists; a const is a list of one. */
static bool merge_enums(struct translator *t, cJSON *acc, const cJSON *other, bool single, const struct place *at)
{
    const cJSON *mine = schema_get(acc, "enum");
    cJSON *list = cJSON_CreateArray();
    for (const cJSON *b = single ? other : other->child; b; b = single ? NULL : b->next) {
        bool found = !mine;
        long weight = mine ? json_weight(b) : 1;
        if (!schema_works(t, weight, at)) break;
        for (const cJSON *a = mine ? mine->child : NULL; a && !found; a = a->next) {
            if (!schema_works(t, weight, at)) break;
            found = json_equal(a, b);
        }
        if (found) cJSON_AddItemReferenceToArray(list, (cJSON *)b);
    }
    set_made(t, acc, "enum", list);
    return !jpool_failed(t->p);
}

/* Each name of `from` that is not in the list already. */
static bool add_names(struct translator *t, cJSON *list, const cJSON *from, const struct place *at)
{
    for (const cJSON *i = from->child; i; i = i->next) {
        bool known = false;
        long looks = 1;
        if (!cJSON_IsString(i)) schema_fail(t, at, "`required` must be a list of names");
        if (jpool_failed(t->p)) return false;
        for (const cJSON *k = list->child; k && !known; k = k->next, looks++)
            known = strcmp(k->valuestring, i->valuestring) == 0;
        if (!schema_works(t, 1 + looks / 16, at)) return false;
        if (!known) cJSON_AddItemReferenceToArray(list, (cJSON *)i);
    }
    return true;
}

static bool merge_required(struct translator *t, cJSON *acc, const cJSON *other, const struct place *at)
{
    const cJSON *mine = schema_get(acc, "required");
    if (!mine) {
        set_reference(t, acc, "required", other);
        return true;
    }
    cJSON *list = cJSON_CreateArray();
    bool good = cJSON_IsArray(mine) && add_names(t, list, mine, at) && add_names(t, list, other, at);
    if (!cJSON_IsArray(mine)) schema_fail(t, at, "`required` must be a list");
    set_made(t, acc, "required", list);
    return good;
}

/* Adds one side's properties to list: one that the other side also lists must satisfy both, any other also the other
 * side's additionalProperties. */
static void join_properties(cJSON *list, const cJSON *from, const cJSON *other, const cJSON *other_additional)
{
    for (const cJSON *i = from ? from->child : NULL; i; i = i->next) {
        const cJSON *twin = other ? schema_get(other, i->string) : NULL;
        if (schema_get(list, i->string)) continue;
        if (twin)
            cJSON_AddItemToObject(list, i->string, both(i, twin));
        else if (other_additional && !cJSON_IsTrue(other_additional))
            cJSON_AddItemToObject(list, i->string, both(i, other_additional));
        else
            cJSON_AddItemReferenceToObject(list, i->string, (cJSON *)i);
    }
}

static bool merge_members(struct translator *t, cJSON *acc, const cJSON *schema, const struct place *at)
{
    const cJSON *mine = schema_get(acc, "properties"), *theirs = schema_get(schema, "properties");
    const cJSON *a = schema_get(acc, "additionalProperties"), *b = schema_get(schema, "additionalProperties");
    bool patterns = schema_get(acc, "patternProperties") || schema_get(schema, "patternProperties");
    if ((mine && !cJSON_IsObject(mine)) || (theirs && !cJSON_IsObject(theirs))) {
        schema_fail(t, at, "`properties` must be an object");
        return false;
    }
    bool members = mine || a || schema_get(acc, "patternProperties");
    if (patterns && members) {
        schema_fail(t, at, "`patternProperties` is not supported together with other schemas of the same object");
        return false;
    }
    if (patterns) set_reference(t, acc, "patternProperties", schema_get(schema, "patternProperties"));
    if (!mine && !a) {
        if (theirs) set_reference(t, acc, "properties", theirs);
    } else if ((theirs || b) && (mine || theirs)) {
        long n = cJSON_GetArraySize(mine) + cJSON_GetArraySize(theirs);
        if (!schema_works(t, n + n * n / 16, at)) return false;
        cJSON *list = cJSON_CreateObject();
        join_properties(list, mine, theirs, b);
        join_properties(list, theirs, mine, a);
        set_made(t, acc, "properties", list);
    }
    if (a && b && !cJSON_IsTrue(a) && !cJSON_IsTrue(b))
        set_made(t, acc, "additionalProperties",
                 cJSON_IsFalse(a) || cJSON_IsFalse(b) ? cJSON_CreateFalse() : both(a, b));
    else if (b && (!a || cJSON_IsTrue(a)))
        set_reference(t, acc, "additionalProperties", b);
    return true;
}

/* items and prefixItems: either side may have them, or both `items` alone. */
static bool merge_elements(struct translator *t, cJSON *acc, const cJSON *schema, const struct place *at)
{
    static const char *const names[] = {"items", "prefixItems", "additionalItems"};
    const cJSON *mine = schema_get(acc, "items"), *theirs = schema_get(schema, "items");
    bool simple = !schema_get(acc, "prefixItems") && !schema_get(schema, "prefixItems") && !cJSON_IsArray(mine) &&
                  !cJSON_IsArray(theirs);
    if (simple && mine && theirs) {
        set_made(t, acc, "items", both(mine, theirs));
        return true;
    }
    for (int k = 0; k < 3; k++) {
        if (!schema_get(acc, names[k])) continue;
        for (int i = 0; i < 3; i++) {
            if (!schema_get(schema, names[i])) continue;
            schema_fail(t, at, "lists of elements in several schemas of the same array are not supported");
            return false;
        }
    }
    for (int k = 0; k < 3; k++)
        if (schema_get(schema, names[k])) set_reference(t, acc, names[k], schema_get(schema, names[k]));
    return true;
}

/* ---- one schema into another ----------------------------------------------------------------------------------- */

enum rule { KEEP_LARGER, KEEP_SMALLER, KEEP_EQUAL, KEEP_TRUE };

static const struct {
    const char *name;
    enum rule rule;
} simple[] = {
    {"minimum", KEEP_LARGER},
    {"exclusiveMinimum", KEEP_LARGER},
    {"minLength", KEEP_LARGER},
    {"minItems", KEEP_LARGER},
    {"minProperties", KEEP_LARGER},
    {"maximum", KEEP_SMALLER},
    {"exclusiveMaximum", KEEP_SMALLER},
    {"maxLength", KEEP_SMALLER},
    {"maxItems", KEEP_SMALLER},
    {"maxProperties", KEEP_SMALLER},
    {"pattern", KEEP_EQUAL},
    {"lark", KEEP_EQUAL},
    {"format", KEEP_EQUAL},
    {"multipleOf", KEEP_EQUAL},
    {"propertyNames", KEEP_EQUAL},
    {"uniqueItems", KEEP_TRUE},
    {"unevaluatedItems", KEEP_EQUAL},
    {"unevaluatedProperties", KEEP_EQUAL},
};

static bool same(struct translator *t, const cJSON *a, const cJSON *b, const struct place *at)
{
    return a == b || (schema_works(t, json_weight(a), at) && json_equal(a, b));
}

static bool merge_simple(struct translator *t, cJSON *acc, const cJSON *item, enum rule rule, const struct place *at)
{
    const cJSON *mine = schema_get(acc, item->string);
    bool take = !mine;
    if (mine && rule <= KEEP_SMALLER) {
        if (!cJSON_IsNumber(mine) || !cJSON_IsNumber(item)) {
            schema_fail(t, at, "`%s` must be a number", item->string);
            return false;
        }
        take = rule == KEEP_LARGER ? item->valuedouble > mine->valuedouble : item->valuedouble < mine->valuedouble;
    } else if (mine && rule == KEEP_EQUAL && !same(t, mine, item, at)) {
        schema_fail(t, at, "different `%s` for the same value are not supported", item->string);
        return false;
    } else if (mine && rule == KEEP_TRUE) {
        take = cJSON_IsTrue(item);
    }
    if (take) set_reference(t, acc, item->string, item);
    return true;
}

static bool merge_alternatives(struct translator *t, cJSON *acc, const cJSON *list, const struct place *at)
{
    const char *slot = !schema_get(acc, "anyOf") ? "anyOf" : !schema_get(acc, "oneOf") ? "oneOf" : NULL;
    if (slot)
        set_reference(t, acc, slot, list);
    else
        schema_fail(t, at, "more than two lists of alternatives for the same value are not supported");
    return slot != NULL;
}

static bool merge_all_of(struct translator *t, cJSON *acc, const cJSON *list, const struct place *at)
{
    struct place here = {at, "allOf", 0};
    int i = 0;
    if (!cJSON_IsArray(list)) schema_fail(t, at, "`allOf` must be a list of schemas");
    for (const cJSON *s = list->child; s && !jpool_failed(t->p); s = s->next) {
        struct place inside = {&here, NULL, i++};
        merge_into(t, acc, s, &inside);
    }
    return !jpool_failed(t->p);
}

static bool merge_reference(struct translator *t, cJSON *acc, const cJSON *ref, const struct place *at)
{
    const cJSON *target = schema_resolve(t, ref, at);
    return target && merge_into(t, acc, target, at);
}

static bool merge_keyword(struct translator *t, cJSON *acc, const cJSON *i, const struct place *at)
{
    const char *name = i->string;
    if (strcmp(name, "const") == 0) return merge_enums(t, acc, i, true, at); /* null is a value of it */
    if (cJSON_IsNull(i)) return true;
    if (strcmp(name, "$ref") == 0) return merge_reference(t, acc, i, at);
    if (strcmp(name, "allOf") == 0) return merge_all_of(t, acc, i, at);
    if (strcmp(name, "anyOf") == 0 || strcmp(name, "oneOf") == 0) return merge_alternatives(t, acc, i, at);
    bool list = strcmp(name, "enum") == 0 || strcmp(name, "required") == 0;
    if (list && !cJSON_IsArray(i)) {
        schema_fail(t, at, "`%s` must be a list", name);
        return false;
    }
    if (strcmp(name, "enum") == 0) return merge_enums(t, acc, i, false, at);
    if (strcmp(name, "required") == 0) return merge_required(t, acc, i, at);
    if (strcmp(name, "type") == 0) {
        if (!schema_works(t, cJSON_GetArraySize(i) + cJSON_GetArraySize(schema_get(acc, "type")), at)) return false;
        if (schema_get(acc, "type"))
            merge_types(t, acc, i);
        else
            set_reference(t, acc, name, i);
    }
    for (size_t k = 0; k < sizeof simple / sizeof *simple; k++)
        if (strcmp(name, simple[k].name) == 0) return merge_simple(t, acc, i, simple[k].rule, at);
    return true;
}

static bool merge_into(struct translator *t, cJSON *acc, const cJSON *schema, const struct place *at)
{
    if (cJSON_IsTrue(schema)) return true;
    if (cJSON_IsFalse(schema)) {
        set_made(t, acc, "enum", cJSON_CreateArray());
        return true;
    }
    if (!cJSON_IsObject(schema)) {
        schema_fail(t, at, "a schema must be an object, true or false");
        return false;
    }
    if (t->depth >= SCHEMA_DEPTH_MAX) {
        schema_fail(t, at, "the schema is nested too deeply");
        return false;
    }
    if (!schema_check_keywords(t, schema, at)) return false;
    t->depth++;
    bool good = merge_members(t, acc, schema, at) && merge_elements(t, acc, schema, at);
    for (const cJSON *i = schema->child; i && good; i = i->next) {
        bool last = true; /* of duplicates, which alone counts */
        for (const cJSON *k = i->next; k && last; k = k->next) last = strcmp(k->string, i->string) != 0;
        if (last) good = merge_keyword(t, acc, i, at);
    }
    t->depth--;
    return good;
}

const cJSON *schema_merge(struct translator *t, const cJSON *base, const char *without, const cJSON *branch,
                          const struct place *at)
{
    cJSON *acc = schema_new(t);
    if (!branch) return merge_into(t, acc, base, at) ? acc : NULL;
    for (const cJSON *i = base->child; i; i = i->next) {
        if (!schema_works(t, 1, at)) return NULL;
        if (without && strcmp(i->string, without) == 0) continue;
        if (strcmp(i->string, "nullable") == 0) continue;
        bool single = strcmp(i->string, "const") == 0;
        if (single || (strcmp(i->string, "enum") == 0 && cJSON_IsArray(i))) {
            if (!merge_enums(t, acc, i, single, at)) return NULL;
        } else if (!cJSON_IsNull(i)) {
            set_reference(t, acc, i->string, i);
        }
    }
    return merge_into(t, acc, branch, at) ? acc : NULL;
}
