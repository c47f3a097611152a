/* pprint: values as Python's pprint.pformat writes them, in 80 columns. */
#include "engine/template/jinja_builtins.h"
#include "engine/template/jinja_sequence.h"

#include <string.h>

enum { WIDTH = 80 };

static bool plain_list(struct jv v)
{
    return v.type == J_LIST && v.list->kind <= JL_TUPLE;
}

/* The value with the keys of its dicts in order. */
static struct jv sorted(struct jinja *j, struct jv v)
{
    if (v.type != J_DICT && !plain_list(v)) return v;
    jinja_enter(j);
    struct jv out = v.type == J_DICT ? jv_dict(j) : jv_list(j, v.list->kind, v.list->n);
    if (v.type == J_DICT) {
        struct jlist *order = jv_list(j, JL_LIST, v.dict->n).list;
        struct jv *keys = jinja_array(j, v.dict->n + 1, sizeof *keys);
        bool texts = true, numbers = true;
        for (size_t i = 0; i < v.dict->n; i++) {
            double d;
            keys[i] = v.dict->v[i].key;
            texts = texts && keys[i].type == J_STR;
            numbers = numbers && jv_is_number(keys[i], &d);
            jlist_add(j, order, jv_int((int64_t)i));
        }
        /* what cannot be compared is ordered by the types' names */
        for (size_t i = 0; i < v.dict->n && !texts && !numbers; i++) keys[i] = jv_cstr(j, jv_type_name(keys[i]));
        order = jinja_sort(j, order, keys, false).list;
        for (size_t i = 0; i < v.dict->n; i++) {
            const struct jpair *p = &v.dict->v[order->v[i].i];
            jdict_set(j, out.dict, p->key, sorted(j, p->value));
        }
    } else {
        for (size_t i = 0; i < v.list->n; i++) jlist_add(j, out.list, sorted(j, v.list->v[i]));
    }
    jinja_leave(j);
    return out;
}

static struct jstr repr(struct jinja *j, struct jv v)
{
    struct jtext t = {0};
    jtext_repr(j, &t, v);
    return jtext_str(&t);
}

static void new_line(struct jinja *j, struct jtext *out, int indent)
{
    jtext_cstr(j, out, "\n");
    jtext_repeat(j, out, ' ', (size_t)indent);
}

/* A text as adjacent string literals, each a line or some words, as Python's implicit concatenation. */
static void put_string(struct jinja *j, struct jtext *out, struct jstr s, int indent, int allowance, int level)
{
    struct jlist *pieces = jv_list(j, JL_LIST, 0).list;
    const struct jlist *lines = jinja_splitlines(j, s, true).list;
    if (level == 1) indent++, allowance++;
    int64_t width = WIDTH - indent;
    for (size_t i = 0; i < lines->n; i++) {
        struct jstr line = *lines->v[i].str, whole = repr(j, lines->v[i]);
        bool last = i + 1 == lines->n;
        if ((int64_t)jstr_chars(j, whole) <= width - (last ? allowance : 0)) {
            jlist_add(j, pieces, jv_str(j, whole));
            continue;
        }
        size_t from = 0, end;
        for (size_t at = 0; at < line.n; at = end) { /* a word and the blanks behind it */
            for (end = at; end < line.n && !jinja_space(line.s + end, line.n - end);) end = jstr_at(line, end, 1);
            for (size_t k; (k = jinja_space(line.s + end, line.n - end));) end += k;
            int64_t room = width - (last && end == line.n ? allowance : 0);
            jinja_work(j, 1);
            if ((int64_t)jstr_chars(j, repr(j, jv_str(j, jstr_cut(j, line, from, end)))) <= room) continue;
            if (at > from) jlist_add(j, pieces, jv_str(j, repr(j, jv_str(j, jstr_cut(j, line, from, at)))));
            from = at;
        }
        if (from < line.n) jlist_add(j, pieces, jv_str(j, repr(j, jv_str(j, jstr_cut(j, line, from, line.n)))));
    }
    bool brackets = level == 1 && pieces->n > 1;
    if (brackets) jtext_cstr(j, out, "(");
    for (size_t i = 0; i < pieces->n; i++) {
        if (i) new_line(j, out, indent);
        jtext_add(j, out, *pieces->v[i].str);
    }
    if (brackets) jtext_cstr(j, out, ")");
}

/* allowance: columns that what follows on the last line takes */
static void put(struct jinja *j, struct jtext *out, struct jv v, int indent, int allowance, int level)
{
    struct jstr whole = repr(j, v);
    bool splits = plain_list(v) || (v.type == J_DICT && v.dict->n) || (v.type == J_STR && v.str->n);
    jinja_enter(j);
    if (!splits || (int64_t)jstr_chars(j, whole) <= WIDTH - indent - allowance) {
        jtext_add(j, out, whole);
    } else if (v.type == J_STR) {
        put_string(j, out, *v.str, indent, allowance, level + 1);
    } else {
        bool dict = v.type == J_DICT, tuple = !dict && v.list->kind == JL_TUPLE;
        size_t n = dict ? v.dict->n : v.list->n;
        const char *close = dict ? "}" : !tuple ? "]" : n == 1 ? ",)" : ")";
        jtext_cstr(j, out, dict ? "{" : tuple ? "(" : "[");
        for (size_t i = 0; i < n; i++) {
            int at = indent + 1, after = i + 1 == n ? allowance + (int)strlen(close) : 1;
            if (dict) {
                struct jstr key = repr(j, v.dict->v[i].key);
                jtext_add(j, out, key);
                jtext_cstr(j, out, ": ");
                at += (int)jstr_chars(j, key) + 2;
            }
            put(j, out, dict ? v.dict->v[i].value : v.list->v[i], at, after, level + 1);
            if (i + 1 == n) break;
            jtext_cstr(j, out, ",");
            new_line(j, out, indent + 1);
        }
        jtext_cstr(j, out, close);
    }
    jinja_leave(j);
}

struct jv jinja_pprint(struct jinja *j, struct jv self, const struct jv *a, const struct jcall *c)
{
    struct jtext out = {0};
    if (self.type == J_UNDEF) return jv_cstr(j, "Undefined");
    put(j, &out, sorted(j, self), 0, 0, 0);
    return jtext_value(j, &out);
}
