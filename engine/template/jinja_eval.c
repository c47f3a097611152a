/* Expressions, and calls of macros and functions. */
#include "engine/template/jinja_eval.h"
#include "engine/template/jinja_builtins.h"
#include "engine/template/jinja_int.h"

#include <string.h>

struct jscope *jscope_new(struct jinja *j, struct jscope *outer)
{
    struct jscope *s = jinja_alloc(j, sizeof *s);
    s->outer = outer;
    s->vars = s->few;
    s->cap = sizeof s->few / sizeof *s->few;
    return s;
}

void jscope_set(struct jinja *j, struct jscope *s, int id, struct jv v)
{
    if (!s) {
        j->run->root[id] = v;
        return;
    }
    for (size_t i = 0; i < s->n; i++) {
        if (s->vars[i].id != id) continue;
        s->vars[i].value = v;
        return;
    }
    if (s->n == s->cap) {
        struct jvar *vars = jinja_array(j, 2 * s->cap, sizeof *vars);
        memcpy(vars, s->vars, s->n * sizeof *vars);
        s->vars = vars;
        s->cap *= 2;
    }
    s->vars[s->n++] = (struct jvar){id, v};
}

struct jv jscope_get(struct jinja *j, const struct jscope *s, int id)
{
    for (; s; s = s->outer)
        for (size_t i = 0; i < s->n; i++)
            if (s->vars[i].id == id) return s->vars[i].value;
    struct jv v = j->run->root[id];
    if (v.type != J_MISSING) return v;
    struct jundef *u = jinja_alloc(j, sizeof *u);
    u->name = j->run->p->names[id];
    return (struct jv){.type = J_UNDEF, .undef = u};
}

/* --- calls */

static struct jv eval_optional(struct jinja *j, const struct jnode *n)
{
    return n ? jinja_eval(j, n) : (struct jv){.type = J_MISSING};
}

static int count(const struct jnode *list)
{
    int n = 0;
    for (; list; list = list->next) n++;
    return n;
}

static void spread_keywords(struct jinja *j, struct jv v, struct jkeyword *k, int *n)
{
    for (size_t i = 0; i < v.dict->n; i++) {
        jinja_work(j, 1);
        if (v.dict->v[i].key.type != J_STR) jinja_fail(j, "keywords must be strings");
        k[(*n)++] = (struct jkeyword){*v.dict->v[i].key.str, v.dict->v[i].value};
    }
}

static struct jcall eval_arguments(struct jinja *j, const struct jnode *n, const struct jinja_macro *caller)
{
    struct jlist *star = n->star ? jv_iterate(j, jinja_eval(j, n->star)) : NULL;
    struct jv star2 = eval_optional(j, n->star2);
    if (star2.type != J_MISSING && star2.type != J_DICT)
        jinja_fail(j, "argument after ** must be a mapping, not %s", jv_type_name(star2));
    size_t n_args = (size_t)count(n->list) + (star ? star->n : 0);
    size_t n_keywords = (size_t)count(n->keywords) + (n->star2 ? star2.dict->n : 0) + (caller != NULL);
    struct jcall c = {0};
    struct jv *args = jinja_array(j, n_args, sizeof *args);
    struct jkeyword *keywords = jinja_array(j, n_keywords, sizeof *keywords);
    for (const struct jnode *a = n->list; a; a = a->next) args[c.n++] = jinja_eval(j, a);
    for (size_t i = 0; star && i < star->n; i++) args[c.n++] = star->v[i];
    for (const struct jnode *k = n->keywords; k; k = k->next)
        keywords[c.n_keywords++] = (struct jkeyword){k->name, jinja_eval(j, k->a)};
    if (n->star2) spread_keywords(j, star2, keywords, &c.n_keywords);
    if (caller) keywords[c.n_keywords++] = (struct jkeyword){jstr_of("caller"), {.type = J_MACRO, .macro = caller}};
    c.args = args;
    c.keywords = keywords;
    j->line = n->line;
    return c;
}

static struct jv keyword(const struct jcall *c, struct jstr name, bool *used)
{
    for (int i = 0; i < c->n_keywords; i++) {
        if (!jstr_same(c->keywords[i].name, name)) continue;
        used[i] = true;
        return c->keywords[i].value;
    }
    return (struct jv){.type = J_MISSING};
}

/* What the parameters did not take: goes into kwargs and varargs, where the body mentions them. */
static void bind_rest(struct jinja *j, const struct jinja_macro *m, const struct jcall *c, int n_params, bool *used)
{
    const struct jprogram *p = j->run->p;
    const struct jnode *n = m->node;
    struct jscope *s = j->run->scope;
    if (n->op & MACRO_CALLER) {
        struct jv v = keyword(c, jstr_of("caller"), used);
        bool is_parameter = false;
        for (const struct jnode *a = n->params; a; a = a->next) is_parameter |= a->id == p->id_caller;
        if (v.type == J_MISSING) v = jv_undefined(j, "No caller defined");
        if (!is_parameter) jscope_set(j, s, p->id_caller, v);
    }
    struct jv kwargs = jv_dict(j), varargs = jv_list(j, JL_TUPLE, 0);
    for (int i = 0; i < c->n_keywords; i++) {
        if (used[i]) continue;
        if (!(n->op & MACRO_KWARGS))
            jinja_fail(j, "macro '%.*s' takes no keyword argument '%.*s'", jstr_short(n->name), n->name.s,
                       jstr_short(c->keywords[i].name), c->keywords[i].name.s);
        jdict_set(j, kwargs.dict, jv_str(j, c->keywords[i].name), c->keywords[i].value);
    }
    for (int i = n_params; i < c->n; i++) jlist_add(j, varargs.list, c->args[i]);
    if (n->op & MACRO_KWARGS) jscope_set(j, s, p->id_kwargs, kwargs);
    if (n->op & MACRO_VARARGS) {
        jscope_set(j, s, p->id_varargs, varargs);
    } else if (c->n > n_params) {
        jinja_fail(j, "macro '%.*s' takes not more than %d argument(s)", jstr_short(n->name), n->name.s, n_params);
    }
}

static struct jv call_macro(struct jinja *j, const struct jinja_macro *m, const struct jcall *c)
{
    struct jscope *back = j->run->scope;
    struct jcapture capture;
    bool *used = jinja_array(j, (size_t)c->n_keywords + 1, sizeof *used);
    int at = 0;
    jinja_enter(j);
    j->run->scope = jscope_new(j, m->scope);
    for (const struct jnode *p = m->node->params; p; p = p->next, at++) {
        struct jv v = at < c->n ? c->args[at] : keyword(c, p->name, used);
        if (v.type == J_MISSING)
            v = p->a ? jinja_eval(j, p->a) : jv_undefined(j, "a macro's parameter was not provided");
        jscope_set(j, j->run->scope, p->id, v);
    }
    bind_rest(j, m, c, at, used);
    jcapture_begin(j, &capture);
    jinja_exec(j, m->node->list);
    j->run->scope = back;
    jinja_leave(j);
    return jcapture_end(j, &capture);
}

struct jv jinja_call(struct jinja *j, struct jv f, const struct jcall *c)
{
    switch (f.type) {
    case J_FUNCTION: return jinja_call_builtin(j, f.fn->builtin, f.fn->self, c);
    case J_MACRO: return call_macro(j, f.macro, c);
    case J_LOOP:
        if (c->n != 1 || c->n_keywords) jinja_fail(j, "loop() takes one argument");
        return jinja_loop_again(j, f.loop, c->args[0]);
    case J_JOINER:
        if (f.cycler->at++) return jv_str(j, *f.cycler->separator);
        return jv_cstr(j, "");
    case J_UNDEF: jinja_fail_undefined(j, f);
    default: jinja_fail(j, "'%s' object is not callable", jv_type_name(f));
    }
}

struct jv jinja_eval_call(struct jinja *j, const struct jnode *n, const struct jinja_macro *caller)
{
    struct jv f = jinja_eval(j, n->a);
    struct jcall c = eval_arguments(j, n, caller);
    return jinja_call(j, f, &c);
}

static struct jv apply(struct jinja *j, const struct jnode *n, struct jv input)
{
    struct jcall c = eval_arguments(j, n, NULL);
    if (!n->builtin)
        jinja_fail(j, "no %s named '%.*s'", n->type == N_FILTER ? "filter" : "test", jstr_short(n->name), n->name.s);
    return jinja_call_builtin(j, n->builtin, input, &c);
}

struct jv jinja_eval_filter(struct jinja *j, const struct jnode *n, struct jv input)
{
    jinja_enter(j);
    if (n->a) input = jinja_eval_filter(j, n->a, input);
    input = apply(j, n, input);
    jinja_leave(j);
    return input;
}

/* --- the other expressions */

static struct jv eval_list(struct jinja *j, const struct jnode *n, enum jlist_kind kind)
{
    struct jv v = jv_list(j, kind, (size_t)count(n->list));
    for (const struct jnode *a = n->list; a; a = a->next) jlist_add(j, v.list, jinja_eval(j, a));
    return v;
}

static struct jv eval_dict(struct jinja *j, const struct jnode *n)
{
    struct jv v = jv_dict(j);
    for (const struct jnode *k = n->list; k; k = k->next->next) {
        struct jv key = jinja_eval(j, k);
        jdict_set(j, v.dict, key, jinja_eval(j, k->next));
    }
    return v;
}

static struct jv eval_concat(struct jinja *j, const struct jnode *n)
{
    struct jtext t = {0};
    for (const struct jnode *a = n->list; a; a = a->next) {
        struct jstr s = jv_to_str(j, jinja_eval(j, a));
        jtext_add(j, &t, s);
    }
    return jtext_value(j, &t);
}

static bool holds(struct jinja *j, int op, struct jv a, struct jv b)
{
    static const char *const names[] = {"<", "<=", ">", ">="};
    switch (op) {
    case OP_EQ: return jv_equal(j, a, b);
    case OP_NE: return !jv_equal(j, a, b);
    case OP_IN: return jv_contains(j, b, a);
    case OP_NOT_IN: return !jv_contains(j, b, a);
    default: break;
    }
    int c = jv_compare(j, a, b, names[op - OP_LT]);
    if (c == 2) return false;
    return op == OP_LT ? c < 0 : op == OP_LE ? c <= 0 : op == OP_GT ? c > 0 : c >= 0;
}

static struct jv eval_compare(struct jinja *j, const struct jnode *n)
{
    struct jv left = jinja_eval(j, n->a);
    for (const struct jnode *o = n->list; o; o = o->next) {
        struct jv right = jinja_eval(j, o->a);
        j->line = n->line;
        if (!holds(j, o->op, left, right)) return jv_bool(false);
        left = right;
    }
    return jv_bool(true);
}

static struct jv eval_sign(struct jinja *j, const struct jnode *n)
{
    struct jv v = jinja_eval(j, n->a);
    int64_t i;
    j->line = n->line;
    if (v.type == J_UNDEF) jinja_fail_undefined(j, v);
    if (v.type == J_FLOAT) return n->type == N_NEGATIVE ? jv_float(-v.d) : v;
    if (!jint_is(v))
        jinja_fail(j, "bad operand type for unary %c: '%s'", n->type == N_NEGATIVE ? '-' : '+', jv_type_name(v));
    if (n->type == N_NEGATIVE) return jint_negative(j, v);
    return jv_is_int(v, &i) ? jv_int(i) : v;
}

static struct jv eval_cond(struct jinja *j, const struct jnode *n)
{
    if (jv_truth(jinja_eval(j, n->a))) return jinja_eval(j, n->b);
    if (n->c) return jinja_eval(j, n->c);
    return jv_undefined(j, "the inline if-expression evaluated to false and no else section was defined.");
}

static struct jv eval_slice(struct jinja *j, const struct jnode *n)
{
    struct jv of = jinja_eval(j, n->a), start = eval_optional(j, n->b), stop = eval_optional(j, n->c);
    struct jv step = eval_optional(j, n->d);
    j->line = n->line;
    return jinja_slice(j, of, start, stop, step);
}

static struct jv eval_two(struct jinja *j, const struct jnode *n)
{
    struct jv a = jinja_eval(j, n->a), b = jinja_eval(j, n->b);
    j->line = n->line;
    return n->type == N_ITEM ? jinja_item(j, a, b) : jinja_binary(j, n->op, a, b);
}

static struct jv eval_attribute(struct jinja *j, const struct jnode *n)
{
    struct jv a = jinja_eval(j, n->a);
    j->line = n->line;
    return jinja_attribute(j, a, n->name);
}

static struct jv eval_logic(struct jinja *j, const struct jnode *n)
{
    struct jv a = jinja_eval(j, n->a);
    if (n->type == N_NOT) return jv_bool(!jv_truth(a));
    return jv_truth(a) == (n->type == N_OR) ? a : jinja_eval(j, n->b);
}

static struct jv eval(struct jinja *j, const struct jnode *n)
{
    switch (n->type) {
    case N_CONST: return n->value;
    case N_NAME: return jscope_get(j, j->run->scope, n->id);
    case N_LIST: return eval_list(j, n, JL_LIST);
    case N_TUPLE: return eval_list(j, n, JL_TUPLE);
    case N_DICT: return eval_dict(j, n);
    case N_CONCAT: return eval_concat(j, n);
    case N_BINARY:
    case N_ITEM: return eval_two(j, n);
    case N_NEGATIVE:
    case N_POSITIVE: return eval_sign(j, n);
    case N_AND:
    case N_OR:
    case N_NOT: return eval_logic(j, n);
    case N_COMPARE: return eval_compare(j, n);
    case N_COND: return eval_cond(j, n);
    case N_ATTR: return eval_attribute(j, n);
    case N_SLICE: return eval_slice(j, n);
    case N_CALL: return jinja_eval_call(j, n, NULL);
    case N_FILTER:
    case N_TEST: return apply(j, n, jinja_eval(j, n->a));
    default: jinja_fail(j, "not an expression");
    }
}

struct jv jinja_eval(struct jinja *j, const struct jnode *n)
{
    jinja_enter(j);
    jinja_work(j, 1);
    j->line = n->line;
    struct jv v = eval(j, n);
    jinja_leave(j);
    return v;
}
