/* Statements. */
#include "engine/template/jinja_builtins.h"
#include "engine/template/jinja_eval.h"

#include <string.h>

void jcapture_begin(struct jinja *j, struct jcapture *c)
{
    *c = (struct jcapture){.out = j->run->out};
    j->run->out = &c->text;
}

struct jv jcapture_end(struct jinja *j, struct jcapture *c)
{
    j->run->out = c->out;
    return jtext_value(j, &c->text);
}

static void assign(struct jinja *j, const struct jnode *target, struct jv v);

static void assign_attribute(struct jinja *j, const struct jnode *target, struct jv v)
{
    struct jv ns = jscope_get(j, j->run->scope, target->id);
    if (ns.type != J_NAMESPACE) jinja_fail(j, "cannot assign attribute on non-namespace object");
    if (target->name.n && target->name.s[0] == '_')
        jinja_fail(j, "templates cannot store underscore-prefixed attributes on a namespace");
    jdict_set(j, ns.dict, jv_str(j, target->name), v);
}

static void assign_tuple(struct jinja *j, const struct jnode *target, struct jv v)
{
    if (v.type != J_UNDEF && !jv_iterable(v)) jinja_fail(j, "cannot unpack non-iterable %s object", jv_type_name(v));
    const struct jlist *l = jv_iterate(j, v);
    size_t want = 0;
    for (const struct jnode *t = target->list; t; t = t->next) want++;
    if (l->n > want) jinja_fail(j, "too many values to unpack (expected %zu)", want);
    if (l->n < want) jinja_fail(j, "not enough values to unpack (expected %zu, got %zu)", want, l->n);
    const struct jnode *t = target->list;
    for (size_t i = 0; i < want; i++, t = t->next) assign(j, t, l->v[i]);
}

static void assign(struct jinja *j, const struct jnode *target, struct jv v)
{
    j->line = target->line;
    if (target->type == N_TUPLE) {
        assign_tuple(j, target, v);
    } else if (target->type == N_NSREF) {
        assign_attribute(j, target, v);
    } else {
        jscope_set(j, j->run->scope, target->id, v);
    }
}

/* A body in a scope of its own, printed into a string. */
static struct jv exec_captured(struct jinja *j, const struct jnode *body)
{
    struct jcapture capture;
    struct jscope *back = j->run->scope;
    j->run->scope = jscope_new(j, back);
    jcapture_begin(j, &capture);
    jinja_exec(j, body);
    j->run->scope = back;
    return jcapture_end(j, &capture);
}

static void print(struct jinja *j, struct jv v)
{
    jtext_value_str(j, j->run->out, v);
}

static void exec_set(struct jinja *j, const struct jnode *n)
{
    if (n->type == N_SET) return assign(j, n->a, jinja_eval(j, n->b));
    struct jv v = exec_captured(j, n->list);
    if (n->b) v = jinja_eval_filter(j, n->b, v);
    assign(j, n->a, v);
}

/* Only the elements that pass the loop's `if`. */
static const struct jlist *filter_items(struct jinja *j, const struct jnode *n, const struct jlist *l)
{
    struct jlist *kept = jv_list(j, JL_LIST, 0).list;
    struct jscope *back = j->run->scope;
    for (size_t i = 0; i < l->n; i++) {
        j->run->scope = jscope_new(j, back);
        assign(j, n->a, l->v[i]);
        if (jv_truth(jinja_eval(j, n->c))) jlist_add(j, kept, l->v[i]);
    }
    j->run->scope = back;
    return kept;
}

static void exec_loop(struct jinja *j, struct jinja_loop *loop, struct jv items)
{
    const struct jnode *n = loop->node;
    struct jscope *back = j->run->scope;
    j->run->scope = loop->scope;
    loop->items = jv_iterate(j, items);
    if (n->c) loop->items = filter_items(j, n, loop->items);
    for (loop->i = 0; loop->i < loop->items->n; loop->i++) {
        jinja_work(j, 1);
        j->run->scope = jscope_new(j, loop->scope);
        jscope_set(j, j->run->scope, j->run->p->id_loop, (struct jv){.type = J_LOOP, .loop = loop});
        assign(j, n->a, loop->items->v[loop->i]);
        if (jinja_exec(j, n->list) == FLOW_BREAK) break;
    }
    j->run->scope = loop->scope;
    if (!loop->items->n) {
        j->run->scope = jscope_new(j, loop->scope);
        jinja_exec(j, n->orelse);
    }
    j->run->scope = back;
}

static void exec_for(struct jinja *j, const struct jnode *n)
{
    struct jinja_loop *loop = jinja_alloc(j, sizeof *loop); /* a macro defined inside may outlive it */
    *loop = (struct jinja_loop){.node = n, .scope = j->run->scope, .changed = {.type = J_MISSING}};
    struct jv items = jinja_eval(j, n->b);
    j->line = n->line;
    exec_loop(j, loop, items);
}

struct jv jinja_loop_again(struct jinja *j, const struct jinja_loop *l, struct jv items)
{
    if (!l->node->op) jinja_fail(j, "the loop must have the 'recursive' marker to be called recursively");
    struct jinja_loop *loop = jinja_alloc(j, sizeof *loop);
    *loop = (struct jinja_loop){.node = l->node, .scope = l->scope, .depth0 = l->depth0 + 1};
    struct jcapture capture;
    jinja_enter(j);
    jcapture_begin(j, &capture);
    exec_loop(j, loop, items);
    jinja_leave(j);
    return jcapture_end(j, &capture);
}

static struct jv macro(struct jinja *j, const struct jnode *n)
{
    struct jinja_macro *m = jinja_alloc(j, sizeof *m);
    *m = (struct jinja_macro){n, j->run->scope};
    return (struct jv){.type = J_MACRO, .macro = m};
}

static void exec_with(struct jinja *j, const struct jnode *n)
{
    struct jscope *back = j->run->scope, *inner = jscope_new(j, back);
    for (const struct jnode *set = n->params; set; set = set->next) {
        struct jv v = jinja_eval(j, set->b); /* outside */
        j->run->scope = inner;
        assign(j, set->a, v);
        j->run->scope = back;
    }
    j->run->scope = inner;
    jinja_exec(j, n->list);
    j->run->scope = back;
}

static void exec_scope(struct jinja *j, const struct jnode *n)
{
    struct jinja_run *r = j->run;
    struct jscope *back = r->scope;
    size_t start = r->page->n;
    bool marks = n->type == N_GENERATION && r->out == r->page;
    r->scope = jscope_new(j, back);
    jinja_exec(j, n->list);
    r->scope = back;
    if (!marks) return;
    if (r->n_marks == r->cap_marks) {
        size_t cap = r->cap_marks ? 2 * r->cap_marks : 8;
        r->marks = jinja_extend(j, r->marks, r->cap_marks * sizeof *r->marks, cap * sizeof *r->marks);
        r->cap_marks = cap;
    }
    r->marks[r->n_marks++] = (struct jmark){start, r->page->n};
}

static enum jflow exec(struct jinja *j, const struct jnode *n)
{
    switch (n->type) {
    case N_TEXT: jtext_add(j, j->run->out, *n->value.str); break;
    case N_OUTPUT:
        for (const struct jnode *a = n->list; a; a = a->next) print(j, jinja_eval(j, a));
        break;
    case N_FOR: exec_for(j, n); break;
    case N_SET:
    case N_SET_BLOCK: exec_set(j, n); break;
    case N_MACRO: jscope_set(j, j->run->scope, n->id, macro(j, n)); break;
    case N_CALL_BLOCK: print(j, jinja_eval_call(j, n->a, macro(j, n).macro)); break;
    case N_FILTER_BLOCK: print(j, jinja_eval_filter(j, n->a, exec_captured(j, n->list))); break;
    case N_WITH: exec_with(j, n); break;
    case N_SCOPE:
    case N_GENERATION: exec_scope(j, n); break;
    default: jinja_fail(j, "not a statement");
    }
    return FLOW_NEXT;
}

/* An if's else belongs to its first branch's node. */
static enum jflow exec_branches(struct jinja *j, const struct jnode *n)
{
    for (const struct jnode *branch = n; branch; branch = branch->d)
        if (jv_truth(jinja_eval(j, branch->a))) return jinja_exec(j, branch->list);
    return jinja_exec(j, n->orelse);
}

enum jflow jinja_exec(struct jinja *j, const struct jnode *list)
{
    enum jflow flow = FLOW_NEXT;
    jinja_enter(j);
    for (; list && flow == FLOW_NEXT; list = list->next) {
        jinja_work(j, 1);
        j->line = list->line;
        if (list->type == N_IF) {
            flow = exec_branches(j, list);
        } else if (list->type == N_BREAK || list->type == N_CONTINUE) {
            flow = list->type == N_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
        } else {
            flow = exec(j, list);
        }
    }
    jinja_leave(j);
    return flow;
}

void jinja_render(struct jinja *j, const struct jprogram *p, const struct jdict *variables, struct jinja_run *run,
                  struct jtext *page)
{
    *run = (struct jinja_run){.p = p, .out = page, .page = page};
    *page = (struct jtext){0};
    j->run = run;
    run->root = jinja_array(j, (size_t)p->n_names + 1, sizeof *run->root);
    for (int i = 0; i < p->n_names; i++) {
        const struct jv *v = jdict_find_text(j, variables, p->names[i].s, p->names[i].n);
        const struct jbuiltin *f = v ? NULL : jinja_function(p->names[i]);
        if (v) run->root[i] = *v;
        if (f) run->root[i] = jv_bound(j, f, jv_none());
    }
    jinja_exec(j, p->body);
}
