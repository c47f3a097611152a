/* json.dumps, as the tojson of transformers calls it: the bytes that a model was trained on. */
#include "engine/template/jinja_builtins.h"
#include "engine/tokenizer/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void put_unit(struct jinja *j, struct jtext *t, unsigned unit)
{
    char s[16];
    snprintf(s, sizeof s, "\\u%04x", unit);
    jtext_cstr(j, t, s);
}

static void put_string(struct jinja *j, struct jtext *t, struct jstr s, bool ascii)
{
    size_t from = t->n;
    jtext_cstr(j, t, "\"");
    for (size_t i = 0; i < s.n;) {
        size_t plain = i;
        while (plain < s.n && s.s[plain] != '"' && s.s[plain] != '\\' && (unsigned char)s.s[plain] >= 0x20 &&
               !(ascii && (unsigned char)s.s[plain] >= 0x7f))
            plain++;
        jtext_bytes(j, t, s.s + i, plain - i);
        i = plain;
        if (i == s.n) break;
        uint32_t c;
        i += utf8_get(s.s + i, &c);
        const char *k = c && c < 0x80 ? strchr("\"\\\nn\rr\tt\bb\ff", (int)c) : NULL;
        if (c == '"' || c == '\\') {
            char escaped[3] = {'\\', (char)c, 0};
            jtext_cstr(j, t, escaped);
        } else if (k && c < 0x20) {
            char escaped[3] = {'\\', k[1], 0};
            jtext_cstr(j, t, escaped);
        } else if (c >= 0x10000) {
            put_unit(j, t, 0xd800 + ((c - 0x10000) >> 10));
            put_unit(j, t, 0xdc00 + ((c - 0x10000) & 0x3ff));
        } else if (c == 0x7f) {
            jtext_char(j, t, c);
        } else {
            put_unit(j, t, c);
        }
    }
    jtext_cstr(j, t, "\"");
    jtext_origin(j, t, from, s);
}

static void put_double(struct jinja *j, struct jtext *t, double d)
{
    if (isfinite(d)) return jtext_double(j, t, d);
    jtext_cstr(j, t, isnan(d) ? "NaN" : d < 0 ? "-Infinity" : "Infinity");
}

static void put_scalar(struct jinja *j, struct jtext *t, struct jv v)
{
    if (v.type == J_NONE) {
        jtext_cstr(j, t, "null");
    } else if (v.type == J_BOOL) {
        jtext_cstr(j, t, v.b ? "true" : "false");
    } else if (v.type == J_FLOAT) {
        put_double(j, t, v.d);
    } else {
        jtext_repr(j, t, v);
    }
}

static void put_key(struct jinja *j, struct jtext *t, struct jv key, const struct jjson *how)
{
    if (key.type == J_STR) return put_string(j, t, *key.str, how->ascii);
    if (key.type < J_NONE || key.type > J_FLOAT)
        jinja_fail(j, "keys must be str, int, float, bool or None, not %s", jv_type_name(key));
    jtext_cstr(j, t, "\"");
    put_scalar(j, t, key);
    jtext_cstr(j, t, "\"");
}

static void new_line(struct jinja *j, struct jtext *t, const struct jjson *how, int level)
{
    if (!how->pretty) return;
    jtext_cstr(j, t, "\n");
    for (int i = 0; i < level; i++) jtext_add(j, t, how->indent);
}

static void put(struct jinja *j, struct jtext *t, struct jv v, const struct jjson *how, int level);

static void put_pairs(struct jinja *j, struct jtext *t, const struct jdict *d, const struct jjson *how, int level)
{
    struct jlist *pairs = jv_list(j, JL_LIST, d->n).list;
    struct jv *keys = jinja_array(j, d->n + 1, sizeof *keys);
    for (size_t i = 0; i < d->n; i++) {
        keys[i] = d->v[i].key;
        jlist_add(j, pairs, jv_int((int64_t)i));
    }
    if (how->sorted) pairs = jinja_sort(j, pairs, keys, false).list;
    jtext_cstr(j, t, "{");
    for (size_t i = 0; i < d->n; i++) {
        const struct jpair *p = &d->v[pairs->v[i].i];
        if (i) jtext_add(j, t, how->item_separator);
        new_line(j, t, how, level + 1);
        put_key(j, t, p->key, how);
        jtext_add(j, t, how->key_separator);
        put(j, t, p->value, how, level + 1);
    }
    if (d->n) new_line(j, t, how, level);
    jtext_cstr(j, t, "}");
}

static void put(struct jinja *j, struct jtext *t, struct jv v, const struct jjson *how, int level)
{
    jinja_work(j, 1);
    if (v.type == J_STR) return put_string(j, t, *v.str, how->ascii);
    if (v.type >= J_NONE && v.type <= J_FLOAT) return put_scalar(j, t, v);
    jinja_enter(j);
    if (v.type == J_DICT) {
        put_pairs(j, t, v.dict, how, level);
    } else if (v.type == J_LIST && v.list->kind <= JL_TUPLE) {
        jtext_cstr(j, t, "[");
        for (size_t i = 0; i < v.list->n; i++) {
            if (i) jtext_add(j, t, how->item_separator);
            new_line(j, t, how, level + 1);
            put(j, t, v.list->v[i], how, level + 1);
        }
        if (v.list->n) new_line(j, t, how, level);
        jtext_cstr(j, t, "]");
    } else {
        jinja_fail(j, "Object of type %s is not JSON serializable", jv_type_name(v));
    }
    jinja_leave(j);
}

void jinja_json(struct jinja *j, struct jtext *t, struct jv v, const struct jjson *how)
{
    put(j, t, v, how, 0);
}
