/* Statements of the chat templates' language (jinja_ast.h). */
#include "engine/template/jinja_ast.h"
#include "engine/template/jinja_lex.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static struct jnode *parse_body(struct jparse *x, const char *const *ends);

void jparse_fail(struct jparse *x, const char *fmt, ...)
{
    char what[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    x->j->line = x->t->line;
    x->j->column = x->t->column;
    jinja_fail(x->j, "%s", what);
}

bool jparse_at_name(const struct jparse *x, const char *name)
{
    size_t n = strlen(name);
    return x->t->type == TOK_NAME && x->t->text.n == n && memcmp(x->t->text.s, name, n) == 0;
}

bool jparse_skip_name(struct jparse *x, const char *name)
{
    if (!jparse_at_name(x, name)) return false;
    x->t++;
    return true;
}

const struct jtoken *jparse_expect(struct jparse *x, int type)
{
    const struct jtoken *t = x->t;
    if ((int)t->type != type) {
        if (t->type == TOK_NAME)
            jparse_fail(x, "expected '%s', got '%.*s'", jinja_token_name((enum jtok)type), jstr_short(t->text),
                        t->text.s);
        jparse_fail(x, "expected '%s', got '%s'", jinja_token_name((enum jtok)type), jinja_token_name(t->type));
    }
    x->t++;
    return t;
}

void jparse_unknown(struct jparse *x, const struct jtoken *at, const char *kind, struct jstr name)
{
    if (x->n_unknown == x->cap_unknown) {
        size_t cap = x->cap_unknown ? 2 * x->cap_unknown : 16;
        x->unknown = jinja_extend(x->j, x->unknown, x->cap_unknown * sizeof *x->unknown, cap * sizeof *x->unknown);
        x->cap_unknown = cap;
    }
    x->unknown[x->n_unknown++] = (struct junknown){at, kind, name};
}

static void refuse_unknown(struct jparse *x, size_t since)
{
    if (x->n_unknown == since) return;
    const struct junknown *u = &x->unknown[since];
    x->t = u->at;
    jparse_fail(x, "No %s named '%.*s'.", u->kind, jstr_short(u->name), u->name.s);
}

/* A body in a scope of its own.  As in jinja2, an `if` around it guards nothing within. */
static struct jnode *parse_scope(struct jparse *x, const char *const *ends)
{
    size_t since = x->n_unknown;
    struct jnode *body = parse_body(x, ends);
    refuse_unknown(x, since);
    return body;
}

struct jnode *jparse_node(struct jparse *x, enum jnode_type type)
{
    struct jnode *n = jinja_alloc(x->j, sizeof *n);
    n->type = type;
    n->line = x->t->line;
    return n;
}

int jparse_intern(struct jparse *x, struct jstr name)
{
    struct jv v = {.type = J_STR, .str = &name};
    size_t at = jv_hash(x->j, v) % x->buckets;
    for (; x->index[at]; at = (at + 1) % x->buckets)
        if (jstr_same(x->names[x->index[at] - 1], name)) return x->index[at] - 1;
    if (2 * x->n_names >= x->buckets) jparse_fail(x, "the template has too many names");
    if (x->n_names == x->cap_names) {
        size_t cap = x->cap_names ? 2 * x->cap_names : 64;
        x->names = jinja_extend(x->j, x->names, x->cap_names * sizeof *x->names, cap * sizeof *x->names);
        x->cap_names = cap;
    }
    x->names[x->n_names++] = name;
    return x->index[at] = (int)x->n_names, (int)x->n_names - 1;
}

static void refuse_loop(struct jparse *x, const struct jnode *target)
{
    if (target->type == N_NAME && target->id == x->p->id_loop)
        jparse_fail(x, "cannot assign to the special loop variable in a for loop's target");
    for (const struct jnode *n = target->list; n; n = n->next) refuse_loop(x, n);
}

static struct jnode *parse_for(struct jparse *x)
{
    struct jnode *n = jparse_node(x, N_FOR);
    n->a = jparse_target(x, "in", false);
    refuse_loop(x, n->a);
    if (!jparse_skip_name(x, "in")) jparse_fail(x, "expected 'in'");
    n->b = jparse_tuple(x, false, "recursive");
    if (jparse_skip_name(x, "if")) n->c = jparse_expression(x, true);
    n->op = jparse_skip_name(x, "recursive");
    x->loops++;
    n->list = parse_scope(x, (const char *const[]){"endfor", "else", NULL});
    x->loops--;
    if (jparse_skip_name(x, "else")) n->orelse = parse_scope(x, (const char *const[]){"endfor", NULL});
    x->t++;
    return n;
}

static struct jnode *parse_if(struct jparse *x)
{
    struct jnode *first = jparse_node(x, N_IF), *n = first;
    size_t since = x->n_unknown;
    for (;;) {
        n->a = jparse_tuple(x, false, NULL);
        n->list = parse_body(x, (const char *const[]){"elif", "else", "endif", NULL});
        if (!jparse_skip_name(x, "elif")) break;
        n = n->d = jparse_node(x, N_IF);
    }
    if (jparse_skip_name(x, "else")) first->orelse = parse_body(x, (const char *const[]){"endif", NULL});
    x->t++;
    x->n_unknown = since; /* reported when it is reached, as in jinja2 */
    return first;
}

static struct jnode *parse_set(struct jparse *x)
{
    struct jnode *n = jparse_node(x, N_SET);
    n->a = jparse_target(x, NULL, true);
    if (x->t->type == TOK_ASSIGN) {
        x->t++;
        n->b = jparse_tuple(x, true, NULL);
        return n;
    }
    n->type = N_SET_BLOCK;
    n->b = jparse_filter(x, NULL, false);
    n->list = parse_scope(x, (const char *const[]){"endset", NULL});
    x->t++;
    return n;
}

static void parse_parameters(struct jparse *x, struct jnode *of)
{
    struct jnode **last = &of->params;
    bool defaults = false;
    jparse_expect(x, TOK_LPAREN);
    while (x->t->type != TOK_RPAREN) {
        if (of->params) jparse_expect(x, TOK_COMMA);
        struct jnode *p = jparse_node(x, N_NAME);
        p->name = jparse_expect(x, TOK_NAME)->text;
        p->id = jparse_intern(x, p->name);
        if (x->t->type == TOK_ASSIGN) {
            x->t++;
            p->a = jparse_expression(x, true);
            defaults = true;
        } else if (defaults) {
            jparse_fail(x, "non-default argument follows default argument");
        }
        *last = p;
        last = &p->next;
    }
    x->t++;
}

/* The body of a macro or caller: what it mentions is found on the way. */
static void parse_macro_body(struct jparse *x, struct jnode *n, const char *end)
{
    int *outer = x->macro, loops = x->loops, flags = 0;
    x->macro = &flags;
    x->loops = 0;
    n->list = parse_scope(x, (const char *const[]){end, NULL});
    x->t++;
    x->macro = outer;
    x->loops = loops;
    n->op = flags;
    if (outer) *outer |= flags;
}

static struct jnode *parse_macro(struct jparse *x)
{
    struct jnode *n = jparse_node(x, N_MACRO);
    n->name = jparse_expect(x, TOK_NAME)->text;
    n->id = jparse_intern(x, n->name);
    parse_parameters(x, n);
    parse_macro_body(x, n, "endmacro");
    return n;
}

static struct jnode *parse_call_block(struct jparse *x)
{
    struct jnode *n = jparse_node(x, N_CALL_BLOCK);
    n->name = jstr_of("caller");
    if (x->t->type == TOK_LPAREN) parse_parameters(x, n);
    n->a = jparse_expression(x, true);
    if (n->a->type != N_CALL) jparse_fail(x, "expected call");
    parse_macro_body(x, n, "endcall");
    return n;
}

static struct jnode *parse_with(struct jparse *x)
{
    struct jnode *n = jparse_node(x, N_WITH), **last = &n->params;
    while (x->t->type != TOK_BLOCK_END) {
        if (n->params) jparse_expect(x, TOK_COMMA);
        struct jnode *set = *last = jparse_node(x, N_SET);
        set->a = jparse_target(x, NULL, false);
        jparse_expect(x, TOK_ASSIGN);
        set->b = jparse_expression(x, true);
        last = &set->next;
    }
    n->list = parse_scope(x, (const char *const[]){"endwith", NULL});
    x->t++;
    return n;
}

static struct jnode *parse_filter_block(struct jparse *x)
{
    struct jnode *n = jparse_node(x, N_FILTER_BLOCK);
    n->a = jparse_filter(x, NULL, true);
    n->list = parse_scope(x, (const char *const[]){"endfilter", NULL});
    x->t++;
    return n;
}

static struct jnode *parse_generation(struct jparse *x)
{
    struct jnode *n = jparse_node(x, N_GENERATION);
    int loops = x->loops;
    x->p->has_generation = true;
    x->loops = 0; /* it is a macro of its own in transformers: no way out of a loop */
    n->list = parse_scope(x, (const char *const[]){"endgeneration", NULL});
    x->loops = loops;
    x->t++;
    return n;
}

static struct jnode *parse_print(struct jparse *x)
{
    struct jnode *n = jparse_node(x, N_OUTPUT), **last = &n->list;
    while (x->t->type != TOK_BLOCK_END) {
        if (last != &n->list) jparse_expect(x, TOK_COMMA);
        *last = jparse_expression(x, true);
        last = &(*last)->next;
    }
    return n;
}

/* {% block %}: there is nothing to inherit from, so it is a scope. */
static struct jnode *parse_block(struct jparse *x)
{
    struct jnode *n = jparse_node(x, N_SCOPE);
    struct jstr name = jparse_expect(x, TOK_NAME)->text;
    n->list = parse_scope(x, (const char *const[]){"endblock", NULL});
    x->t++;
    if (x->t->type == TOK_NAME && jstr_same(x->t->text, name)) x->t++;
    return n;
}

static struct jnode *parse_jump(struct jparse *x, enum jnode_type type)
{
    if (!x->loops) jparse_fail(x, "break and continue belong in a loop");
    return jparse_node(x, type);
}

static struct jnode *parse_break(struct jparse *x)
{
    return parse_jump(x, N_BREAK);
}

static struct jnode *parse_continue(struct jparse *x)
{
    return parse_jump(x, N_CONTINUE);
}

static const struct {
    const char *tag;
    struct jnode *(*parse)(struct jparse *);
} STATEMENTS[] = {{"for", parse_for},
                  {"if", parse_if},
                  {"set", parse_set},
                  {"macro", parse_macro},
                  {"call", parse_call_block},
                  {"with", parse_with},
                  {"filter", parse_filter_block},
                  {"generation", parse_generation},
                  {"print", parse_print},
                  {"block", parse_block},
                  {"break", parse_break},
                  {"continue", parse_continue}};

/* From after "{%"; ends before "%}". */
static struct jnode *parse_statement(struct jparse *x)
{
    const struct jtoken *tag = x->t;
    if (tag->type != TOK_NAME) jparse_fail(x, "tag name expected");
    for (size_t i = 0; i < sizeof STATEMENTS / sizeof *STATEMENTS; i++) {
        if (jparse_skip_name(x, STATEMENTS[i].tag)) return STATEMENTS[i].parse(x);
    }
    jparse_fail(x, "unknown tag '%.*s'", jstr_short(tag->text), tag->text.s);
}

static bool at_end(const struct jparse *x, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (jparse_at_name(x, *ends)) return true;
    return false;
}

/* Data, print statements and statements up to a tag among `ends` (NULL: up to the end of the template), whose name is
 * then at hand.  From the end of the opening tag. */
static struct jnode *parse_body(struct jparse *x, const char *const *ends)
{
    struct jnode *first = NULL, **last = &first;
    jinja_enter(x->j);
    if (ends) {
        if (x->t->type == TOK_COLON) x->t++; /* optional, as in Python */
        jparse_expect(x, TOK_BLOCK_END);
    }
    for (; x->t->type != TOK_END; last = &(*last)->next) {
        if (x->t->type == TOK_DATA) {
            *last = jparse_node(x, N_TEXT);
            (*last)->value = jv_str(x->j, (x->t++)->text);
        } else if (x->t->type == TOK_VARIABLE_BEGIN) {
            *last = jparse_node(x, N_OUTPUT);
            x->t++;
            (*last)->list = jparse_tuple(x, true, NULL);
            jparse_expect(x, TOK_VARIABLE_END);
        } else {
            jparse_expect(x, TOK_BLOCK_BEGIN);
            if (at_end(x, ends)) {
                jinja_leave(x->j);
                return first;
            }
            *last = parse_statement(x);
            jparse_expect(x, TOK_BLOCK_END);
        }
    }
    if (ends) jparse_fail(x, "unexpected end of template: '%s' is missing", ends[0]);
    jinja_leave(x->j);
    return first;
}

void jinja_parse(struct jinja *j, struct jstr source, struct jprogram *p)
{
    if (source.n > JINJA_SOURCE_MAX) jinja_fail(j, "the template is longer than %d bytes", JINJA_SOURCE_MAX);
    struct jparse x = {.j = j, .p = p, .t = jinja_lex(j, source), .buckets = 1 << 14};
    x.index = jinja_array(j, x.buckets, sizeof *x.index);
    p->id_loop = jparse_intern(&x, jstr_of("loop"));
    p->id_caller = jparse_intern(&x, jstr_of("caller"));
    p->id_kwargs = jparse_intern(&x, jstr_of("kwargs"));
    p->id_varargs = jparse_intern(&x, jstr_of("varargs"));
    p->body = parse_scope(&x, NULL);
    p->names = x.names;
    p->n_names = (int)x.n_names;
    j->column = 0;
}
