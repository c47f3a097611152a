/* Filters of sequences.  What jinja2 makes lazily (map, select...) is computed at once here and can, as there, be
 * walked once. */
#include "engine/template/jinja_sequence.h"

#include "engine/template/jinja_builtins.h"

#include <string.h>

#define FILTER(name) static struct jv name(struct jinja *j, struct jv self, const struct jv *a, const struct jcall *c)

static const struct jv MISSING = {.type = J_MISSING};

static bool truth_of(struct jv v)
{
    return v.type != J_MISSING && jv_truth(v);
}

static bool given(struct jv v)
{
    return v.type != J_MISSING && v.type != J_NONE;
}

static bool is_number_text(struct jstr s)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.s[i] < '0' || s.s[i] > '9') return false;
    return s.n && s.n < 18;
}

/* item.a.b.0 for the path "a.b.0"; `otherwise` instead of what is undefined on the way. */
static struct jv path_get(struct jinja *j, struct jv item, struct jv path, struct jv otherwise)
{
    if (!given(path)) return item;
    if (path.type != J_STR) return jinja_item(j, item, path);
    struct jstr p = *path.str;
    for (size_t at = 0; at <= p.n;) {
        const char *dot = memchr(p.s + at, '.', p.n - at);
        size_t end = dot ? (size_t)(dot - p.s) : p.n;
        struct jstr part = {.s = p.s + at, .n = end - at};
        struct jv key = jv_str(j, part);
        if (is_number_text(part)) {
            int64_t i = 0;
            for (size_t k = 0; k < part.n; k++) i = 10 * i + (part.s[k] - '0');
            key = jv_int(i);
        }
        jinja_work(j, 1);
        item = jinja_item(j, item, key);
        if (item.type == J_UNDEF && given(otherwise)) item = otherwise;
        at = end + 1;
    }
    return item;
}

static struct jv ignore_case(struct jinja *j, struct jv v)
{
    return v.type == J_STR ? jinja_case(j, *v.str, CASE_LOWER) : v;
}

static struct jv as_iterator(struct jinja *j, struct jlist *l)
{
    struct jv v = jv_list(j, JL_ITERATOR, 0);
    v.list->v = l->v;
    v.list->n = v.list->cap = l->n;
    return v;
}

FILTER(s_first)
{
    const struct jlist *l = NULL;
    if (self.type == J_LIST && self.list->kind == JL_ITERATOR) { /* takes only one */
        if (self.list->at < self.list->n) return self.list->v[self.list->at++];
    } else {
        l = jv_iterate(j, self);
    }
    return l && l->n ? l->v[0] : jv_undefined(j, "No first item, sequence was empty.");
}

FILTER(s_last)
{
    if (self.type == J_LIST && self.list->kind == JL_ITERATOR) jinja_fail(j, "'generator' object is not reversible");
    const struct jlist *l = jv_iterate(j, self);
    return l->n ? l->v[l->n - 1] : jv_undefined(j, "No last item, sequence was empty.");
}

FILTER(s_join)
{
    const struct jlist *l = jv_iterate(j, self);
    struct jstr by = a[0].type == J_MISSING ? (struct jstr){.s = ""} : jv_to_str(j, a[0]);
    struct jtext t = {0};
    for (size_t i = 0; i < l->n; i++) {
        jinja_work(j, 1);
        if (i) jtext_add(j, &t, by);
        struct jstr s = jv_to_str(j, path_get(j, l->v[i], a[1], MISSING));
        jtext_add(j, &t, s);
    }
    return jtext_value(j, &t);
}

FILTER(s_list)
{
    const struct jlist *l = jv_iterate(j, self);
    struct jv v = jv_list(j, JL_LIST, l->n);
    jinja_work(j, l->n / 16);
    for (size_t i = 0; i < l->n; i++) jlist_add(j, v.list, l->v[i]);
    return v;
}

FILTER(s_items)
{
    if (self.type == J_UNDEF) return as_iterator(j, jv_list(j, JL_LIST, 0).list);
    if (self.type != J_DICT) jinja_fail(j, "can only get item pairs from a mapping");
    struct jv items = jinja_call_builtin(j, jinja_dict_method(jstr_of("items")), self, &(struct jcall){0});
    return as_iterator(j, items.list);
}

FILTER(s_reverse)
{
    if (self.type == J_STR) return jinja_slice(j, self, MISSING, MISSING, jv_int(-1));
    const struct jlist *l = jv_iterate(j, self);
    struct jlist *r = jv_list(j, JL_LIST, l->n).list;
    jinja_work(j, l->n / 16);
    for (size_t i = l->n; i-- > 0;) jlist_add(j, r, l->v[i]);
    return as_iterator(j, r);
}

/* --- order */

struct sorter {
    struct jinja *j;
    const struct jv *keys;
    bool reverse;
};

static bool goes_before(const struct sorter *s, size_t x, size_t y)
{
    int c = s->reverse ? jv_compare(s->j, s->keys[x], s->keys[y], "<") : jv_compare(s->j, s->keys[y], s->keys[x], "<");
    return c != 2 && c < 0;
}

static void merge_sort(const struct sorter *s, size_t *order, size_t *spare, size_t n)
{
    if (n < 2) return;
    size_t half = n / 2, a = 0, b = half;
    merge_sort(s, order, spare, half);
    merge_sort(s, order + half, spare, n - half);
    for (size_t k = 0; k < n; k++) {
        bool right = a == half || (b < n && goes_before(s, order[a], order[b]));
        spare[k] = right ? order[b++] : order[a++];
    }
    memcpy(order, spare, n * sizeof *order);
}

struct jv jinja_sort(struct jinja *j, struct jlist *l, const struct jv *keys, bool reverse)
{
    size_t *order = jinja_array(j, l->n + 1, sizeof *order), *spare = jinja_array(j, l->n + 1, sizeof *spare);
    for (size_t i = 0; i < l->n; i++) order[i] = i;
    merge_sort(&(struct sorter){j, keys, reverse}, order, spare, l->n);
    struct jv v = jv_list(j, JL_LIST, l->n);
    for (size_t i = 0; i < l->n; i++) jlist_add(j, v.list, l->v[order[i]]);
    return v;
}

/* The key that sort, unique, groupby... compare by. */
static struct jv sort_key(struct jinja *j, struct jv item, struct jv path, bool case_sensitive)
{
    struct jv v = path_get(j, item, path, MISSING);
    return case_sensitive ? v : ignore_case(j, v);
}

static struct jv multi_key(struct jinja *j, struct jv item, struct jv paths, bool case_sensitive)
{
    if (paths.type != J_STR || !memchr(paths.str->s, ',', paths.str->n))
        return sort_key(j, item, paths, case_sensitive);
    struct jv comma = jv_cstr(j, ","), key = jv_list(j, JL_LIST, 0);
    struct jv parts =
        jinja_call_builtin(j, jinja_str_method(jstr_of("split")), paths, &(struct jcall){&comma, 1, NULL, 0});
    for (size_t i = 0; i < parts.list->n; i++)
        jlist_add(j, key.list, sort_key(j, item, parts.list->v[i], case_sensitive));
    return key;
}

FILTER(s_sort)
{
    struct jlist *l = jv_iterate(j, self);
    struct jv *keys = jinja_array(j, l->n + 1, sizeof *keys);
    for (size_t i = 0; i < l->n; i++) keys[i] = multi_key(j, l->v[i], a[2], truth_of(a[1]));
    return jinja_sort(j, l, keys, truth_of(a[0]));
}

FILTER(s_dictsort)
{
    if (self.type == J_UNDEF) jinja_fail_undefined(j, self);
    if (self.type != J_DICT) jinja_fail(j, "'%s object' has no attribute 'items'", jv_type_name(self));
    bool by_value = a[1].type != J_MISSING && jv_is_text(a[1], "value");
    if (a[1].type != J_MISSING && !by_value && !jv_is_text(a[1], "key"))
        jinja_fail(j, "You can only sort by either \"key\" or \"value\"");
    struct jv items = jinja_call_builtin(j, jinja_dict_method(jstr_of("items")), self, &(struct jcall){0});
    struct jv *keys = jinja_array(j, items.list->n + 1, sizeof *keys);
    for (size_t i = 0; i < items.list->n; i++)
        keys[i] = sort_key(j, items.list->v[i].list->v[by_value], MISSING, truth_of(a[0]));
    return jinja_sort(j, items.list, keys, truth_of(a[2]));
}

FILTER(s_unique)
{
    const struct jlist *l = jv_iterate(j, self);
    struct jdict *seen = jv_dict(j).dict;
    struct jlist *kept = jv_list(j, JL_LIST, 0).list;
    for (size_t i = 0; i < l->n; i++) {
        struct jv key = sort_key(j, l->v[i], a[1], truth_of(a[0]));
        if (jdict_find(j, seen, key)) continue;
        jdict_set(j, seen, key, jv_none());
        jlist_add(j, kept, l->v[i]);
    }
    return as_iterator(j, kept);
}

static struct jv extreme(struct jinja *j, struct jv self, const struct jv *a, int sign)
{
    const struct jlist *l = jv_iterate(j, self);
    if (!l->n) return jv_undefined(j, "No aggregated item, sequence was empty.");
    struct jv best = l->v[0], key = sort_key(j, best, a[1], truth_of(a[0]));
    for (size_t i = 1; i < l->n; i++) {
        struct jv k = sort_key(j, l->v[i], a[1], truth_of(a[0]));
        int c = jv_compare(j, k, key, sign < 0 ? "<" : ">");
        if (c == 2 || c * sign <= 0) continue;
        best = l->v[i];
        key = k;
    }
    return best;
}

FILTER(s_min)
{
    return extreme(j, self, a, -1);
}
FILTER(s_max)
{
    return extreme(j, self, a, 1);
}

FILTER(s_sum)
{
    const struct jlist *l = jv_iterate(j, self);
    struct jv sum = a[1].type == J_MISSING ? jv_int(0) : a[1];
    if (sum.type == J_STR) jinja_fail(j, "sum() can't sum strings [use ''.join(seq) instead]");
    for (size_t i = 0; i < l->n; i++) {
        jinja_work(j, 1);
        sum = jinja_binary(j, OP_ADD, sum, path_get(j, l->v[i], a[0], MISSING));
    }
    return sum;
}

/* --- cutting */

FILTER(s_batch)
{
    const struct jlist *l = jv_iterate(j, self);
    struct jlist *rows = jv_list(j, JL_LIST, 0).list, *row = NULL;
    int64_t size = jarg_int(j, a[0], "linecount", 1);
    for (size_t i = 0; i < l->n; i++) {
        if (!row || (int64_t)row->n == size) {
            struct jv v = jv_list(j, JL_LIST, 0);
            jlist_add(j, rows, v);
            row = v.list;
        }
        jlist_add(j, row, l->v[i]);
    }
    while (row && given(a[1]) && (int64_t)row->n < size) {
        jinja_work(j, 1);
        jlist_add(j, row, a[1]);
    }
    return as_iterator(j, rows);
}

FILTER(s_slice)
{
    const struct jlist *l = jv_iterate(j, self);
    struct jlist *rows = jv_list(j, JL_LIST, 0).list;
    int64_t n = jarg_int(j, a[0], "slices", 1);
    if (n == 0) jinja_fail(j, "integer division or modulo by zero");
    for (int64_t k = 0, at = 0; k < n; k++) {
        jinja_work(j, 1);
        struct jv row = jv_list(j, JL_LIST, 0);
        int64_t size = (int64_t)l->n / n + (k < (int64_t)l->n % n);
        for (int64_t i = 0; i < size; i++) jlist_add(j, row.list, l->v[at++]);
        if (given(a[1]) && k >= (int64_t)l->n % n) jlist_add(j, row.list, a[1]);
        jlist_add(j, rows, row);
    }
    return as_iterator(j, rows);
}

FILTER(s_groupby)
{
    struct jlist *l = jv_iterate(j, self);
    struct jv *keys = jinja_array(j, l->n + 1, sizeof *keys), result = jv_list(j, JL_LIST, 0), group = MISSING,
              last = MISSING;
    bool exact = truth_of(a[2]);
    for (size_t i = 0; i < l->n; i++) {
        struct jv key = path_get(j, l->v[i], a[0], a[1]);
        keys[i] = exact ? key : ignore_case(j, key);
    }
    const struct jlist *sorted = jinja_sort(j, l, keys, false).list;
    for (size_t i = 0; i < sorted->n; i++) {
        struct jv real = path_get(j, sorted->v[i], a[0], a[1]), key = exact ? real : ignore_case(j, real);
        if (last.type == J_MISSING || !jv_equal(j, key, last)) {
            struct jv pair = jv_list(j, JL_TUPLE, 2);
            group = jv_list(j, JL_LIST, 0);
            jlist_add(j, pair.list, real);
            jlist_add(j, pair.list, group);
            jlist_add(j, result.list, pair);
            last = key;
        }
        jlist_add(j, group.list, sorted->v[i]);
    }
    return result;
}

/* --- map, select, reject */

static const struct jkeyword *keyword(const struct jcall *c, const char *name)
{
    for (int i = 0; i < c->n_keywords; i++)
        if (jstr_same(c->keywords[i].name, jstr_of(name))) return &c->keywords[i];
    return NULL;
}

/* The call without its first n positional arguments. */
static struct jcall arguments_after(const struct jcall *c, int n)
{
    if (c->n <= n) return (struct jcall){NULL, 0, c->keywords, c->n_keywords};
    return (struct jcall){c->args + n, c->n - n, c->keywords, c->n_keywords};
}

FILTER(s_map)
{
    struct jlist *out = jv_list(j, JL_LIST, 0).list;
    if (!jv_truth(self)) return as_iterator(j, out);
    const struct jlist *l = jv_iterate(j, self);
    const struct jkeyword *attribute = c->n ? NULL : keyword(c, "attribute"), *otherwise = keyword(c, "default");
    const struct jbuiltin *f = NULL;
    struct jcall rest = arguments_after(c, 1);
    if (attribute) {
        if (c->n_keywords > 1 + (otherwise != NULL)) jinja_fail(j, "unexpected keyword argument of map");
    } else {
        if (!c->n) jinja_fail(j, "map requires a filter argument");
        struct jstr name = jarg_str(j, c->args[0], "filter");
        f = jinja_filter(name);
        if (!f) jinja_fail(j, "no filter named '%.*s'", jstr_short(name), name.s);
    }
    for (size_t i = 0; i < l->n; i++) {
        jinja_work(j, 1);
        jlist_add(j, out,
                  f ? jinja_call_builtin(j, f, l->v[i], &rest)
                    : path_get(j, l->v[i], attribute->value, otherwise ? otherwise->value : MISSING));
    }
    return as_iterator(j, out);
}

static struct jv choose(struct jinja *j, struct jv self, const struct jcall *c, bool by_attribute, bool want)
{
    struct jlist *out = jv_list(j, JL_LIST, 0).list;
    if (!jv_truth(self)) return as_iterator(j, out);
    const struct jlist *l = jv_iterate(j, self);
    int off = by_attribute;
    if (c->n < off) jinja_fail(j, "missing parameter for attribute name");
    const struct jbuiltin *test = NULL;
    struct jcall rest = arguments_after(c, off + 1);
    if (c->n > off) {
        struct jstr name = jarg_str(j, c->args[off], "test");
        test = jinja_test(name);
        if (!test) jinja_fail(j, "no test named '%.*s'", jstr_short(name), name.s);
    }
    for (size_t i = 0; i < l->n; i++) {
        jinja_work(j, 1);
        struct jv v = by_attribute ? path_get(j, l->v[i], c->args[0], MISSING) : l->v[i];
        if (test) v = jinja_call_builtin(j, test, v, &rest);
        if (jv_truth(v) == want) jlist_add(j, out, l->v[i]);
    }
    return as_iterator(j, out);
}

FILTER(s_select)
{
    return choose(j, self, c, false, true);
}
FILTER(s_reject)
{
    return choose(j, self, c, false, false);
}
FILTER(s_selectattr)
{
    return choose(j, self, c, true, true);
}
FILTER(s_rejectattr)
{
    return choose(j, self, c, true, false);
}

static const struct jbuiltin FILTERS[] = {{"batch", "linecount fill_with?", s_batch},
                                          {"dictsort", "case_sensitive? by? reverse?", s_dictsort},
                                          {"first", "", s_first},
                                          {"groupby", "attribute default? case_sensitive?", s_groupby},
                                          {"items", "", s_items},
                                          {"join", "d? attribute?", s_join},
                                          {"last", "", s_last},
                                          {"list", "", s_list},
                                          {"map", NULL, s_map},
                                          {"max", "case_sensitive? attribute?", s_max},
                                          {"min", "case_sensitive? attribute?", s_min},
                                          {"reject", NULL, s_reject},
                                          {"rejectattr", NULL, s_rejectattr},
                                          {"reverse", "", s_reverse},
                                          {"select", NULL, s_select},
                                          {"selectattr", NULL, s_selectattr},
                                          {"slice", "slices fill_with?", s_slice},
                                          {"sort", "reverse? case_sensitive? attribute?", s_sort},
                                          {"sum", "attribute? start?", s_sum},
                                          {"unique", "case_sensitive? attribute?", s_unique}};

const struct jbuiltin *jinja_sequence_filter(struct jstr name)
{
    return jbuiltin_find(FILTERS, sizeof FILTERS / sizeof *FILTERS, name);
}
