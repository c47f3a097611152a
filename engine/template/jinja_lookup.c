/* obj.name, obj[key] and obj[start:stop:step], as jinja2's sandbox resolves them: attributes are the language's own
 * methods and fields, everything else is undefined. */
#include "engine/template/jinja_builtins.h"
#include "engine/template/jinja_eval.h"
#include "engine/template/jinja_int.h"

#include <stdio.h>
#include <string.h>

static bool among(struct jstr name, const char *const *names)
{
    for (; *names; names++)
        if (jstr_same(name, jstr_of(*names))) return true;
    return false;
}

/* Attributes that the sandbox hides: undefined, with the reason as the error when they are used. */
static struct jv unsafe(struct jinja *j, struct jv obj, struct jstr name)
{
    char *hint = jinja_alloc(j, 200);
    snprintf(hint, 200, "access to attribute '%.*s' of '%s' object is unsafe.", (int)(name.n < 80 ? name.n : 80),
             name.s, jv_type_name(obj));
    return jv_undefined(j, hint);
}

static struct jv absent(struct jinja *j, struct jv obj, struct jv key)
{
    struct jundef *u = jinja_alloc(j, sizeof *u);
    u->in = obj;
    u->key = key;
    return (struct jv){.type = J_UNDEF, .undef = u};
}

static struct jv loop_field(struct jinja *j, struct jv v, struct jstr name)
{
    const struct jinja_loop *l = v.loop;
    const struct {
        const char *name;
        int64_t value;
    } fields[] = {{"index", (int64_t)l->i + 1},
                  {"index0", (int64_t)l->i},
                  {"length", (int64_t)l->items->n},
                  {"revindex", (int64_t)(l->items->n - l->i)},
                  {"revindex0", (int64_t)(l->items->n - l->i) - 1},
                  {"depth", l->depth0 + 1},
                  {"depth0", l->depth0}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (jstr_same(name, jstr_of(fields[i].name))) return jv_int(fields[i].value);
    if (jstr_same(name, jstr_of("first"))) return jv_bool(l->i == 0);
    if (jstr_same(name, jstr_of("last"))) return jv_bool(l->i + 1 >= l->items->n);
    if (jstr_same(name, jstr_of("previtem")))
        return l->i ? l->items->v[l->i - 1] : jv_undefined(j, "there is no previous item");
    if (jstr_same(name, jstr_of("nextitem")))
        return l->i + 1 < l->items->n ? l->items->v[l->i + 1] : jv_undefined(j, "there is no next item");
    const struct jbuiltin *b = jinja_loop_method(name);
    return b ? jv_bound(j, b, v) : (struct jv){.type = J_MISSING};
}

static struct jv macro_field(struct jinja *j, struct jv v, struct jstr name)
{
    const struct jnode *n = v.macro->node;
    if (jstr_same(name, jstr_of("name"))) return jv_str(j, n->name);
    if (!jstr_same(name, jstr_of("arguments"))) return (struct jv){.type = J_MISSING};
    struct jv list = jv_list(j, JL_TUPLE, 0);
    for (const struct jnode *p = n->params; p; p = p->next) jlist_add(j, list.list, jv_str(j, p->name));
    return list;
}

static struct jv cycler_field(struct jinja *j, struct jv v, struct jstr name)
{
    if (jstr_same(name, jstr_of("next"))) return jv_bound(j, &jinja_cycler_next, v);
    if (jstr_same(name, jstr_of("reset"))) return jv_bound(j, &jinja_cycler_reset, v);
    if (jstr_same(name, jstr_of("current"))) return v.cycler->items->v[v.cycler->at % v.cycler->items->n];
    return (struct jv){.type = J_MISSING};
}

/* What Python's getattr finds; J_MISSING. */
static struct jv own_attribute(struct jinja *j, struct jv v, struct jstr name)
{
    static const char *const list_changes[] = {"append", "clear",  "pop",    "reverse", "insert",
                                               "sort",   "extend", "remove", NULL};
    static const char *const dict_changes[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    const struct jbuiltin *b = NULL;
    if (name.n > 4 && !memcmp(name.s, "__", 2) && !memcmp(name.s + name.n - 2, "__", 2)) return unsafe(j, v, name);
    switch (v.type) {
    case J_STR: b = jinja_str_method(name); break;
    case J_LIST:
        if (v.list->kind == JL_LIST && among(name, list_changes)) return unsafe(j, v, name);
        b = jinja_list_method(v.list->kind, name);
        break;
    case J_DICT:
        if (among(name, dict_changes)) return unsafe(j, v, name);
        b = jinja_dict_method(name);
        break;
    case J_NAMESPACE: {
        const struct jv *there = jdict_find_text(j, v.dict, name.s, name.n);
        return there ? *there : (struct jv){.type = J_MISSING};
    }
    case J_LOOP: return loop_field(j, v, name);
    case J_MACRO: return macro_field(j, v, name);
    case J_CYCLER: return cycler_field(j, v, name);
    default: break;
    }
    return b ? jv_bound(j, b, v) : (struct jv){.type = J_MISSING};
}

struct jv jinja_attribute(struct jinja *j, struct jv obj, struct jstr name)
{
    if (obj.type == J_UNDEF) jinja_fail_undefined(j, obj);
    struct jv v = own_attribute(j, obj, name);
    if (v.type != J_MISSING) return v;
    if (obj.type == J_DICT) {
        const struct jv *there = jdict_find_text(j, obj.dict, name.s, name.n);
        if (there) return *there;
    }
    return absent(j, obj, jv_str(j, name));
}

static bool hashable(struct jv v)
{
    if (v.type == J_LIST && v.list->kind == JL_TUPLE) {
        for (size_t i = 0; i < v.list->n; i++)
            if (v.list->v[i].type == J_LIST || v.list->v[i].type == J_DICT) return false;
        return true;
    }
    return (v.type != J_LIST || v.list->kind == JL_BYTES) && v.type != J_DICT;
}

/* Element i, counted from the end when negative; J_MISSING */
static struct jv element(struct jinja *j, struct jv obj, int64_t i)
{
    size_t n;
    if (obj.type == J_LIST ? obj.list->kind > JL_RANGE : obj.type != J_STR) return (struct jv){.type = J_MISSING};
    jv_length(j, obj, &n);
    if (i < 0) i += (int64_t)n;
    if (i < 0 || (uint64_t)i >= n) return (struct jv){.type = J_MISSING};
    if (obj.type == J_LIST) return obj.list->v[i];
    size_t start = jstr_at(*obj.str, 0, (size_t)i);
    return jv_str(j, jstr_cut(j, *obj.str, start, jstr_at(*obj.str, start, 1)));
}

struct jv jinja_item(struct jinja *j, struct jv obj, struct jv key)
{
    int64_t i;
    if (obj.type == J_UNDEF) jinja_fail_undefined(j, obj);
    if (obj.type == J_DICT && hashable(key)) {
        const struct jv *there = jdict_find(j, obj.dict, key);
        if (there) return *there;
    } else if (jv_is_int(key, &i)) {
        struct jv v = element(j, obj, i);
        if (v.type != J_MISSING) return v;
    }
    if (key.type == J_STR) {
        struct jv v = own_attribute(j, obj, *key.str);
        if (v.type != J_MISSING) return v;
    }
    return absent(j, obj, key);
}

struct range {
    int64_t start, step;
    size_t n;
};

static int64_t clamp(int64_t v, int64_t lo, int64_t hi)
{
    return v < lo ? lo : v > hi ? hi : v;
}

/* An argument of a slice: what 64 bits do not hold is past any end. */
static int64_t bound(struct jinja *j, struct jv v, const char *name, int64_t otherwise)
{
    if (v.type == J_BIG) return jint_below_zero(v) ? -INT64_MAX : INT64_MAX;
    return jarg_int(j, v, name, otherwise);
}

/* Python's slice.indices: which elements of n. */
static struct range slice_range(struct jinja *j, struct jv start, struct jv stop, struct jv step, size_t length)
{
    int64_t n = (int64_t)length, by = bound(j, step, "slice step", 1);
    if (by == 0) jinja_fail(j, "slice step cannot be zero");
    int64_t lo = by < 0 ? -1 : 0, hi = by < 0 ? n - 1 : n;
    int64_t a = bound(j, start, "slice start", by < 0 ? INT64_MAX : 0);
    int64_t b = bound(j, stop, "slice stop", by < 0 ? INT64_MIN : INT64_MAX);
    a = clamp(a < 0 ? a + n : a, lo, hi);
    b = b == INT64_MIN ? lo : clamp(b < 0 ? b + n : b, lo, hi);
    size_t count = 0;
    if (by > 0 && a < b) count = 1 + (size_t)((b - a - 1) / by);
    if (by < 0 && a > b) count = 1 + (size_t)(a - b - 1) / (0 - (size_t)by);
    return (struct range){a, by, count};
}

static struct jv slice_text(struct jinja *j, struct jstr s, struct range r)
{
    if (r.step == 1 || !r.n) {
        size_t from = jstr_at(s, 0, (size_t)r.start), to = jstr_at(s, from, r.n);
        jinja_work(j, s.n / 64);
        return jv_str(j, jstr_cut(j, s, from, to));
    }
    struct jtext t = {0};
    size_t n = 0, *at = jinja_array(j, s.n + 1, sizeof *at); /* where each character begins */
    for (size_t i = 0; i < s.n; i = jstr_at(s, i, 1)) at[n++] = i;
    at[n] = s.n;
    jinja_work(j, n / 16);
    for (size_t k = 0; k < r.n; k++) {
        size_t i = (size_t)(r.start + (int64_t)k * r.step);
        jtext_bytes(j, &t, s.s + at[i], at[i + 1] - at[i]);
    }
    jtext_origin(j, &t, 0, s);
    return jtext_value(j, &t);
}

struct jv jinja_slice(struct jinja *j, struct jv obj, struct jv start, struct jv stop, struct jv step)
{
    size_t n;
    if (obj.type == J_UNDEF) jinja_fail_undefined(j, obj);
    if (obj.type == J_DICT) jinja_fail(j, "unhashable type: 'slice'");
    if (obj.type == J_LIST ? obj.list->kind > JL_RANGE : obj.type != J_STR)
        jinja_fail(j, "'%s' object is not subscriptable", jv_type_name(obj));
    jv_length(j, obj, &n);
    struct range r = slice_range(j, start, stop, step, n);
    if (obj.type == J_STR) return slice_text(j, *obj.str, r);
    jinja_work(j, r.n / 16);
    struct jv v = jv_list(j, obj.list->kind, r.n);
    for (size_t k = 0; k < r.n; k++) jlist_add(j, v.list, obj.list->v[r.start + (int64_t)k * r.step]);
    return v;
}
