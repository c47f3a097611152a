/* The arena, the error exit, and the makers of values (jinja_value.h). */
#include "engine/template/jinja_value.h"

#include "engine/base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct jchunk {
    struct jchunk *older;
    size_t used, size;
    _Alignas(max_align_t) char data[];
};

enum { CHUNK = 64 << 10, ALIGN = _Alignof(max_align_t), FEW_PAIRS = 8 };

void jinja_begin(struct jinja *j, struct err *e)
{
    memset(j, 0, sizeof *j);
    j->steps = JINJA_STEPS;
    j->memory_max = JINJA_MEMORY_MAX;
    j->e = e;
}

void jinja_end(struct jinja *j)
{
    while (j->chunks) {
        struct jchunk *older = j->chunks->older;
        free(j->chunks);
        j->chunks = older;
    }
}

void jinja_fail(struct jinja *j, const char *fmt, ...)
{
    char what[sizeof j->e->msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (j->column) {
        err_set(j->e, ERR_INVALID, "chat template, line %u, column %u: %s", j->line, j->column, what);
    } else {
        err_set(j->e, ERR_INVALID, "chat template, line %u: %s", j->line, what);
    }
    longjmp(j->failed, 1);
}

void jinja_work(struct jinja *j, size_t steps)
{
    if (steps > (size_t)j->steps) jinja_fail(j, "takes too many steps");
    j->steps -= (long)steps;
}

void jinja_enter(struct jinja *j)
{
    if (++j->depth > JINJA_DEPTH) jinja_fail(j, "nested too deeply");
}

static size_t aligned(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static void *take(struct jinja *j, size_t n)
{
    if (n > JINJA_MEMORY_MAX) jinja_fail(j, "takes too much memory");
    n = aligned(n ? n : 1);
    struct jchunk *c = j->chunks;
    if (!c || c->size - c->used < n) {
        size_t size = n > CHUNK / 4 ? n : CHUNK;
        if (j->memory > j->memory_max || size > j->memory_max - j->memory) jinja_fail(j, "takes too much memory");
        c = size == CHUNK ? mem_alloc(sizeof *c + size) : mem_try_alloc(sizeof *c + size);
        if (!c) jinja_fail(j, "there is no memory left");
        *c = (struct jchunk){.size = size};
        j->memory += size;
        if (j->chunks && size == n) { /* a large allocation: continue filling the previous chunk */
            c->older = j->chunks->older;
            j->chunks->older = c;
        } else {
            c->older = j->chunks;
            j->chunks = c;
        }
    }
    void *p = c->data + c->used;
    c->used += n;
    return p;
}

void *jinja_alloc(struct jinja *j, size_t n)
{
    return memset(take(j, n), 0, n);
}

void *jinja_array(struct jinja *j, size_t count, size_t size)
{
    if (count > JINJA_MEMORY_MAX / size) jinja_fail(j, "takes too much memory");
    return jinja_alloc(j, count * size);
}

void *jinja_extend(struct jinja *j, void *p, size_t old, size_t new)
{
    struct jchunk *c = j->chunks;
    size_t had = aligned(old ? old : 1);
    if (p && c && (char *)p + had == c->data + c->used) {
        size_t more = aligned(new) - had;
        if (new <= JINJA_MEMORY_MAX && more <= c->size - c->used) {
            c->used += more;
            return p;
        }
    }
    void *q = take(j, new);
    if (p) memcpy(q, p, old);
    return q;
}

struct jv jv_str(struct jinja *j, struct jstr s)
{
    struct jstr *str = take(j, sizeof *str);
    *str = s;
    return (struct jv){.type = J_STR, .str = str};
}

struct jv jv_cstr(struct jinja *j, const char *s)
{
    return jv_str(j, jstr_of(s));
}

struct jv jv_undefined(struct jinja *j, const char *hint)
{
    struct jundef *u = jinja_alloc(j, sizeof *u);
    u->hint = hint;
    return (struct jv){.type = J_UNDEF, .undef = u};
}

struct jv jv_list(struct jinja *j, enum jlist_kind kind, size_t room)
{
    struct jlist *l = jinja_alloc(j, sizeof *l);
    l->kind = kind;
    l->cap = room;
    l->v = room ? jinja_array(j, room, sizeof *l->v) : NULL;
    return (struct jv){.type = J_LIST, .list = l};
}

struct jv jv_dict(struct jinja *j)
{
    return (struct jv){.type = J_DICT, .dict = jinja_alloc(j, sizeof(struct jdict))};
}

struct jv jv_bound(struct jinja *j, const struct jbuiltin *b, struct jv self)
{
    struct jbound *f = take(j, sizeof *f);
    *f = (struct jbound){b, self};
    return (struct jv){.type = J_FUNCTION, .fn = f};
}

void jlist_add(struct jinja *j, struct jlist *l, struct jv v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 8;
        l->v = jinja_extend(j, l->v, l->cap * sizeof *l->v, cap * sizeof *l->v);
        l->cap = cap;
    }
    l->v[l->n++] = v;
}

static void dict_index(struct jinja *j, struct jdict *d)
{
    d->buckets = 4 * d->cap;
    d->index = jinja_array(j, d->buckets, sizeof *d->index);
    for (size_t i = 0; i < d->n; i++) {
        size_t at = jv_hash(j, d->v[i].key) % d->buckets;
        for (; d->index[at]; at = (at + 1) % d->buckets) jinja_work(j, 1);
        d->index[at] = (uint32_t)(i + 1);
    }
}

static bool same_key(struct jinja *j, struct jv a, struct jv b)
{
    if (a.type == J_STR || b.type == J_STR) return a.type == b.type && jstr_same(*a.str, *b.str);
    return jv_equal(j, a, b);
}

struct jv *jdict_find(struct jinja *j, const struct jdict *d, struct jv key)
{
    uint32_t hash = jv_hash(j, key);
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (same_key(j, d->v[i].key, key)) return &d->v[i].value;
        return NULL;
    }
    for (size_t at = hash % d->buckets; d->index[at]; at = (at + 1) % d->buckets) {
        jinja_work(j, 1);
        struct jpair *p = &d->v[d->index[at] - 1];
        if (same_key(j, p->key, key)) return &p->value;
    }
    return NULL;
}

struct jv *jdict_find_text(struct jinja *j, const struct jdict *d, const char *s, size_t n)
{
    struct jstr str = {.s = s, .n = n};
    return jdict_find(j, d, (struct jv){.type = J_STR, .str = &str});
}

void jdict_set(struct jinja *j, struct jdict *d, struct jv key, struct jv value)
{
    struct jv *there = jdict_find(j, d, key);
    if (there) {
        *there = value;
        return;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : FEW_PAIRS;
        d->v = jinja_extend(j, d->v, d->cap * sizeof *d->v, cap * sizeof *d->v);
        d->cap = cap;
        d->v[d->n++] = (struct jpair){key, value};
        if (d->n > FEW_PAIRS) dict_index(j, d);
        return;
    }
    d->v[d->n++] = (struct jpair){key, value};
    if (!d->index) return;
    size_t at = jv_hash(j, key) % d->buckets;
    for (; d->index[at]; at = (at + 1) % d->buckets) jinja_work(j, 1);
    d->index[at] = (uint32_t)d->n;
}

const char *jv_type_name(struct jv v)
{
    static const char *const lists[] = {"list",      "tuple",       "bytes",      "range",
                                        "dict_keys", "dict_values", "dict_items", "generator"};
    switch (v.type) {
    case J_MISSING:
    case J_UNDEF: return "Undefined";
    case J_NONE: return "NoneType";
    case J_BOOL: return "bool";
    case J_INT:
    case J_BIG: return "int";
    case J_FLOAT: return "float";
    case J_STR: return "str";
    case J_LIST: return lists[v.list->kind];
    case J_DICT: return "dict";
    case J_NAMESPACE: return "TemplateNamespace";
    case J_LOOP: return "LoopContext";
    case J_MACRO: return "Macro";
    case J_FUNCTION: return "function";
    case J_CYCLER: return "Cycler";
    case J_JOINER: return "Joiner";
    }
    return "object";
}

void jinja_fail_undefined(struct jinja *j, struct jv v)
{
    const struct jundef *u = v.undef;
    if (u->hint) jinja_fail(j, "%s", u->hint);
    struct jtext name = {0};
    struct jv key = u->key.type == J_MISSING ? jv_str(j, u->name) : u->key;
    jtext_repr(j, &name, key);
    int n = name.n < 200 ? (int)name.n : 200;
    if (u->in.type == J_MISSING) jinja_fail(j, "%.*s is undefined", n, name.s);
    const char *what = u->in.type == J_NONE ? "None" : jv_type_name(u->in);
    const char *object = u->in.type == J_NONE ? "" : " object";
    if (key.type == J_STR) jinja_fail(j, "'%s%s' has no attribute %.*s", what, object, n, name.s);
    jinja_fail(j, "%s%s has no element %.*s", what, object, n, name.s);
}
