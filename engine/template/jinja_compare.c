/* Truth, equality, order, membership and length of values, as in Python (jinja_value.h). */
#include "engine/template/jinja_int.h"
#include "engine/template/jinja_value.h"

#include <math.h>
#include <string.h>

bool jv_truth(struct jv v)
{
    switch (v.type) {
    case J_MISSING:
    case J_UNDEF:
    case J_NONE: return false;
    case J_BOOL: return v.b;
    case J_INT: return v.i != 0;
    case J_BIG: return true;
    case J_FLOAT: return v.d != 0;
    case J_STR: return v.str->n != 0;
    case J_LIST: return v.list->kind == JL_ITERATOR || v.list->n != 0;
    case J_DICT: return v.dict->n != 0;
    default: return true;
    }
}

static int sign(bool less, bool more)
{
    return more - less;
}

static bool is_number(struct jv v)
{
    return jint_is(v) || v.type == J_FLOAT;
}

bool jv_is_int(struct jv v, int64_t *i)
{
    if (v.type == J_INT) return *i = v.i, true;
    if (v.type == J_BOOL) return *i = v.b, true;
    return false;
}

bool jv_is_number(struct jv v, double *d)
{
    int64_t i;
    if (v.type == J_FLOAT) return *d = v.d, true;
    if (jv_is_int(v, &i)) return *d = (double)i, true;
    if (v.type == J_BIG) return *d = jint_double(v), true;
    return false;
}

/* Of two numbers, exactly: <0, 0, >0; 2: not comparable (NaN) */
static int compare_numbers(struct jinja *j, struct jv a, struct jv b)
{
    int64_t x, y;
    if (jv_is_int(a, &x) && jv_is_int(b, &y)) return sign(x<y, x> y);
    if (a.type == J_FLOAT && b.type == J_FLOAT) return isnan(a.d) || isnan(b.d) ? 2 : sign(a.d<b.d, a.d> b.d);
    if (a.type == J_FLOAT) return isnan(a.d) ? 2 : -jint_compare_double(j, b, a.d);
    if (b.type == J_FLOAT) return isnan(b.d) ? 2 : jint_compare_double(j, a, b.d);
    return jint_compare(a, b);
}

/* What order and equality of lists mean: a range equals no list, a view no tuple. */
static bool sequences(struct jv a, struct jv b)
{
    return a.type == J_LIST && b.type == J_LIST && a.list->kind == b.list->kind && a.list->kind != JL_ITERATOR &&
           a.list->kind != JL_VALUES;
}

static bool same_pairs(struct jinja *j, const struct jdict *a, const struct jdict *b)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        struct jv *other = jdict_find(j, b, a->v[i].key);
        if (!other || !jv_equal(j, a->v[i].value, *other)) return false;
    }
    return true;
}

static bool same_items(struct jinja *j, const struct jlist *a, const struct jlist *b)
{
    if (a == b) return true;
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!jv_equal(j, a->v[i], b->v[i])) return false;
    return true;
}

bool jv_equal(struct jinja *j, struct jv a, struct jv b)
{
    jinja_work(j, 1);
    if (is_number(a) && is_number(b)) return compare_numbers(j, a, b) == 0;
    if (a.type != b.type) return false;
    bool same;
    jinja_enter(j);
    switch (a.type) {
    case J_UNDEF:
    case J_NONE: same = true; break;
    case J_STR:
        jinja_work(j, a.str->n / 64);
        same = jstr_same(*a.str, *b.str);
        break;
    case J_LIST: same = a.list == b.list || (sequences(a, b) && same_items(j, a.list, b.list)); break;
    case J_DICT: same = same_pairs(j, a.dict, b.dict); break;
    default: same = a.dict == b.dict; /* the same object */
    }
    jinja_leave(j);
    return same;
}

static int compare_text(struct jinja *j, struct jstr a, struct jstr b)
{
    size_t n = a.n < b.n ? a.n : b.n;
    jinja_work(j, n / 64);
    int c = n ? memcmp(a.s, b.s, n) : 0; /* UTF-8 has the order of code points */
    return c ? c : sign(a.n<b.n, a.n> b.n);
}

int jv_compare(struct jinja *j, struct jv a, struct jv b, const char *op)
{
    jinja_work(j, 1);
    if (is_number(a) && is_number(b)) return compare_numbers(j, a, b);
    if (a.type == J_STR && b.type == J_STR) return compare_text(j, *a.str, *b.str);
    if (a.type == J_UNDEF) jinja_fail_undefined(j, a);
    if (b.type == J_UNDEF) jinja_fail_undefined(j, b);
    if (!sequences(a, b) || a.list->kind > JL_BYTES)
        jinja_fail(j, "'%s' not supported between instances of '%s' and '%s'", op, jv_type_name(a), jv_type_name(b));
    jinja_enter(j);
    size_t n = a.list->n < b.list->n ? a.list->n : b.list->n;
    int c = sign(a.list->n<b.list->n, a.list->n> b.list->n);
    for (size_t i = 0; i < n; i++) {
        if (jv_equal(j, a.list->v[i], b.list->v[i])) continue;
        c = jv_compare(j, a.list->v[i], b.list->v[i], op);
        break;
    }
    jinja_leave(j);
    return c;
}

bool jv_contains(struct jinja *j, struct jv in, struct jv what)
{
    if (in.type == J_STR) {
        if (what.type != J_STR)
            jinja_fail(j, "'in <string>' requires string as left operand, not %s", jv_type_name(what));
        return jstr_find(j, *in.str, 0, *what.str) != SIZE_MAX;
    }
    if (in.type == J_DICT) return jdict_find(j, in.dict, what) != NULL;
    if (in.type == J_UNDEF) return false;
    if (in.type != J_LIST) jinja_fail(j, "argument of type '%s' is not iterable", jv_type_name(in));
    struct jlist *l = in.list;
    if (l->kind == JL_BYTES && !jint_is(what))
        jinja_fail(j, "a number is looked for in bytes, not '%s'", jv_type_name(what));
    bool once = l->kind == JL_ITERATOR;
    for (size_t i = once ? l->at : 0; i < l->n; i++) {
        if (once) l->at = i + 1;
        if (jv_equal(j, l->v[i], what)) return true;
    }
    return false;
}

static uint32_t hash_bytes(const void *p, size_t n)
{
    const unsigned char *s = p;
    uint32_t h = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < n; i++) h = (h ^ s[i]) * 16777619u;
    return h;
}

uint32_t jv_hash(struct jinja *j, struct jv v)
{
    double d;
    if (v.type == J_STR) {
        jinja_work(j, v.str->n / 64);
        return hash_bytes(v.str->s, v.str->n);
    }
    if (jv_is_number(v, &d)) return d == 0 ? 1 : hash_bytes(&d, sizeof d); /* 1, 1.0 and true are the same key */
    if (v.type == J_LIST && (v.list->kind == JL_TUPLE || v.list->kind == JL_BYTES)) {
        uint32_t h = 7;
        jinja_enter(j);
        for (size_t i = 0; i < v.list->n; i++) {
            jinja_work(j, 1);
            h = h * 31 + jv_hash(j, v.list->v[i]);
        }
        jinja_leave(j);
        return h;
    }
    if (v.type == J_LIST || v.type == J_DICT) jinja_fail(j, "unhashable type: '%s'", jv_type_name(v));
    return (uint32_t)v.type;
}

bool jv_length(struct jinja *j, struct jv v, size_t *n)
{
    switch (v.type) {
    case J_STR: *n = jstr_chars(j, *v.str); return true;
    case J_LIST: *n = v.list->n; return v.list->kind != JL_ITERATOR;
    case J_DICT: *n = v.dict->n; return true;
    case J_UNDEF: *n = 0; return true;
    default: return false;
    }
}

bool jv_iterable(struct jv v)
{
    return v.type == J_STR || v.type == J_LIST || v.type == J_DICT || v.type == J_UNDEF || v.type == J_LOOP;
}

struct jlist *jv_iterate(struct jinja *j, struct jv v)
{
    if (v.type == J_LIST && v.list->kind != JL_ITERATOR) return v.list;
    struct jlist *l = jv_list(j, JL_LIST, 0).list;
    switch (v.type) {
    case J_LIST:
        if (v.list->at == v.list->n) return l;
        *l = (struct jlist){.v = v.list->v + v.list->at, .n = v.list->n - v.list->at};
        l->cap = l->n;
        v.list->at = v.list->n;
        return l;
    case J_DICT:
        jinja_work(j, v.dict->n);
        for (size_t i = 0; i < v.dict->n; i++) jlist_add(j, l, v.dict->v[i].key);
        return l;
    case J_STR:
        for (size_t i = 0, next; i < v.str->n; i = next) {
            jinja_work(j, 1);
            next = jstr_at(*v.str, i, 1);
            jlist_add(j, l, jv_str(j, jstr_cut(j, *v.str, i, next)));
        }
        return l;
    case J_UNDEF: return l;
    default: jinja_fail(j, "'%s' object is not iterable", jv_type_name(v));
    }
}
