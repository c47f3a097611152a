/* Binding of arguments to what is built in, and the global functions (jinja_builtins.h). */
#include "engine/template/jinja_builtins.h"
#include "engine/template/jinja_eval.h"

#include <string.h>
#include <time.h>

const struct jbuiltin *jbuiltin_find(const struct jbuiltin *table, size_t n, struct jstr name)
{
    for (size_t i = 0; i < n; i++)
        if (jstr_same(name, jstr_of(table[i].name))) return &table[i];
    return NULL;
}

int64_t jarg_int(struct jinja *j, struct jv v, const char *name, int64_t otherwise)
{
    int64_t i;
    if (v.type == J_MISSING || v.type == J_NONE) return otherwise;
    if (v.type == J_UNDEF) jinja_fail_undefined(j, v);
    if (v.type == J_BIG) jinja_fail(j, "%s is too large", name);
    if (!jv_is_int(v, &i)) jinja_fail(j, "%s must be an integer, not %s", name, jv_type_name(v));
    return i;
}

struct jstr jarg_str(struct jinja *j, struct jv v, const char *name)
{
    if (v.type == J_UNDEF) jinja_fail_undefined(j, v);
    if (v.type != J_STR) jinja_fail(j, "%s must be str, not %s", name, jv_type_name(v));
    return *v.str;
}

/* The next word of a list of parameters; its length, and whether it is optional. */
static size_t next_parameter(const char **at, bool *optional)
{
    *at += strspn(*at, " ");
    size_t n = strcspn(*at, " ?");
    *optional = (*at)[n] == '?';
    return n;
}

static int find_keyword(const struct jcall *c, const char *name, size_t n)
{
    for (int i = 0; i < c->n_keywords; i++)
        if (c->keywords[i].name.n == n && memcmp(c->keywords[i].name.s, name, n) == 0) return i;
    return -1;
}

struct jv jinja_call_builtin(struct jinja *j, const struct jbuiltin *b, struct jv self, const struct jcall *c)
{
    struct jv args[JINJA_PARAMS_MAX];
    int n = 0, taken = 0;
    if (!b->params) return b->fn(j, self, NULL, c);
    for (const char *p = b->params;; n++) {
        bool optional;
        size_t len = next_parameter(&p, &optional);
        if (!len) break;
        int k = find_keyword(c, p, len);
        if (n < c->n) {
            if (k >= 0) jinja_fail(j, "%s() got multiple values for argument '%.*s'", b->name, (int)len, p);
            args[n] = c->args[n];
        } else if (k >= 0) {
            args[n] = c->keywords[k].value;
            taken++;
        } else if (optional) {
            args[n] = (struct jv){.type = J_MISSING};
        } else {
            jinja_fail(j, "%s() is missing the argument '%.*s'", b->name, (int)len, p);
        }
        p += len + optional;
    }
    if (c->n > n) jinja_fail(j, "%s() takes at most %d arguments (%d given)", b->name, n, c->n);
    for (int i = 0; i < c->n_keywords && taken < c->n_keywords; i++) {
        bool known = false, optional;
        for (const char *p = b->params; *p;) {
            size_t len = next_parameter(&p, &optional);
            known |= len == c->keywords[i].name.n && memcmp(p, c->keywords[i].name.s, len) == 0;
            p += len + optional;
        }
        if (!known)
            jinja_fail(j, "%s() got an unexpected keyword argument '%.*s'", b->name, jstr_short(c->keywords[i].name),
                       c->keywords[i].name.s);
    }
    return b->fn(j, self, args, c);
}

/* --- global functions */

static struct jv fn_range(struct jinja *j, struct jv self, const struct jv *a, const struct jcall *c)
{
    int64_t start = 0, stop = jarg_int(j, a[0], "range()'s argument", 0), step = 1;
    if (a[0].type == J_NONE) jinja_fail(j, "'NoneType' object cannot be interpreted as an integer");
    if (a[1].type != J_MISSING) {
        start = stop;
        stop = jarg_int(j, a[1], "range()'s argument", 0);
    }
    if (a[2].type != J_MISSING) step = jarg_int(j, a[2], "range()'s step", 1);
    if (step == 0) jinja_fail(j, "range() arg 3 must not be zero");
    uint64_t n = 0;
    if (step > 0 && start < stop) n = 1 + ((uint64_t)stop - (uint64_t)start - 1) / (uint64_t)step;
    if (step < 0 && start > stop) n = 1 + ((uint64_t)start - (uint64_t)stop - 1) / (0 - (uint64_t)step);
    if (n > JINJA_RANGE_MAX)
        jinja_fail(j, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", JINJA_RANGE_MAX);
    jinja_work(j, n / 4);
    struct jv v = jv_list(j, JL_RANGE, n);
    for (uint64_t i = 0; i < n; i++) jlist_add(j, v.list, jv_int((int64_t)((uint64_t)start + i * (uint64_t)step)));
    return v;
}

/* dict() and namespace(): a mapping or pairs, then keywords */
static void fill_dict(struct jinja *j, struct jdict *d, const struct jcall *c)
{
    if (c->n > 1) jinja_fail(j, "dict expected at most 1 argument, got %d", c->n);
    if (c->n && c->args[0].type == J_DICT) {
        const struct jdict *from = c->args[0].dict;
        for (size_t i = 0; i < from->n; i++) jdict_set(j, d, from->v[i].key, from->v[i].value);
    } else if (c->n) {
        const struct jlist *pairs = jv_iterate(j, c->args[0]);
        for (size_t i = 0; i < pairs->n; i++) {
            if (!jv_iterable(pairs->v[i])) jinja_fail(j, "cannot convert dictionary update sequence element");
            const struct jlist *pair = jv_iterate(j, pairs->v[i]);
            if (pair->n != 2)
                jinja_fail(j, "dictionary update sequence element has length %zu; 2 is required", pair->n);
            jdict_set(j, d, pair->v[0], pair->v[1]);
        }
    }
    for (int i = 0; i < c->n_keywords; i++) jdict_set(j, d, jv_str(j, c->keywords[i].name), c->keywords[i].value);
}

static struct jv fn_dict(struct jinja *j, struct jv self, const struct jv *a, const struct jcall *c)
{
    struct jv v = jv_dict(j);
    fill_dict(j, v.dict, c);
    return v;
}

static struct jv fn_namespace(struct jinja *j, struct jv self, const struct jv *a, const struct jcall *c)
{
    struct jv v = jv_dict(j);
    v.type = J_NAMESPACE;
    fill_dict(j, v.dict, c);
    for (size_t i = 0; i < v.dict->n; i++) {
        struct jv key = v.dict->v[i].key;
        if (key.type == J_STR && key.str->n && key.str->s[0] == '_')
            jinja_fail(j, "templates cannot store underscore-prefixed attributes on a namespace");
    }
    return v;
}

static struct jv fn_raise(struct jinja *j, struct jv self, const struct jv *a, const struct jcall *c)
{
    struct jstr s = jv_to_str(j, a[0]);
    err_set(j->e, ERR_INVALID, "chat template: %.*s", (int)(s.n < 400 ? s.n : 400), s.s);
    longjmp(j->failed, 1);
}

static struct jv fn_strftime(struct jinja *j, struct jv self, const struct jv *a, const struct jcall *c)
{
    struct jstr format = jarg_str(j, a[0], "strftime_now()'s format");
    enum { MOST = 1024 };
    if (format.n > 200) jinja_fail(j, "strftime_now()'s format is too long");
    char with_end[202], *out = jinja_alloc(j, MOST); /* the blank tells nothing printed from too much */
    memcpy(with_end, format.s, format.n);
    memcpy(with_end + format.n, " ", 2);
    time_t now = time(NULL);
    struct tm tm;
    if (!localtime_r(&now, &tm)) jinja_fail(j, "there is no local time");
    size_t n = memchr(format.s, 0, format.n) ? 0 : strftime(out, MOST, with_end, &tm);
    if (!n) jinja_fail(j, "strftime_now()'s format is not valid");
    return jv_str(j, (struct jstr){.s = out, .n = n - 1});
}

static struct jv fn_cycler(struct jinja *j, struct jv self, const struct jv *a, const struct jcall *c)
{
    if (c->n_keywords || !c->n) jinja_fail(j, "cycler() takes one or more values");
    struct jcycler *cycler = jinja_alloc(j, sizeof *cycler);
    cycler->items = jv_list(j, JL_LIST, 0).list;
    for (int i = 0; i < c->n; i++) jlist_add(j, cycler->items, c->args[i]);
    return (struct jv){.type = J_CYCLER, .cycler = cycler};
}

static struct jv fn_joiner(struct jinja *j, struct jv self, const struct jv *a, const struct jcall *c)
{
    struct jcycler *joiner = jinja_alloc(j, sizeof *joiner);
    joiner->separator = a[0].type == J_MISSING ? jv_cstr(j, ", ").str : jv_str(j, jarg_str(j, a[0], "sep")).str;
    return (struct jv){.type = J_JOINER, .cycler = joiner};
}

static const struct jbuiltin FUNCTIONS[] = {{"range", "start stop? step?", fn_range},
                                            {"dict", NULL, fn_dict},
                                            {"namespace", NULL, fn_namespace},
                                            {"raise_exception", "message", fn_raise},
                                            {"strftime_now", "format", fn_strftime},
                                            {"cycler", NULL, fn_cycler},
                                            {"joiner", "sep?", fn_joiner}};

const struct jbuiltin *jinja_function(struct jstr name)
{
    return jbuiltin_find(FUNCTIONS, sizeof FUNCTIONS / sizeof *FUNCTIONS, name);
}

/* --- of loops and cyclers */

static struct jv loop_cycle(struct jinja *j, struct jv self, const struct jv *a, const struct jcall *c)
{
    if (!c->n) jinja_fail(j, "no items for cycling given");
    return c->args[self.loop->i % (size_t)c->n];
}

static struct jv loop_changed(struct jinja *j, struct jv self, const struct jv *a, const struct jcall *c)
{
    struct jv now = jv_list(j, JL_TUPLE, 0), *before = &self.loop->changed;
    for (int i = 0; i < c->n; i++) jlist_add(j, now.list, c->args[i]);
    if (before->type != J_MISSING && jv_equal(j, *before, now)) return jv_bool(false);
    *before = now;
    return jv_bool(true);
}

static struct jv cycler_next(struct jinja *j, struct jv self, const struct jv *a, const struct jcall *c)
{
    return self.cycler->items->v[self.cycler->at++ % self.cycler->items->n];
}

static struct jv cycler_reset(struct jinja *j, struct jv self, const struct jv *a, const struct jcall *c)
{
    self.cycler->at = 0;
    return jv_none();
}

const struct jbuiltin jinja_cycler_next = {"next", "", cycler_next};
const struct jbuiltin jinja_cycler_reset = {"reset", "", cycler_reset};

const struct jbuiltin *jinja_loop_method(struct jstr name)
{
    static const struct jbuiltin methods[] = {{"cycle", NULL, loop_cycle}, {"changed", NULL, loop_changed}};
    return jbuiltin_find(methods, 2, name);
}
