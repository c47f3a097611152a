/* Expressions of the chat templates' language (jinja_ast.h), with jinja2's precedence: parser.py's functions of the
 * same names. */
#include "engine/template/jinja_ast.h"
#include "engine/template/jinja_builtins.h"
#include "engine/template/jinja_lex.h"

#include <string.h>

static struct jnode *parse_unary(struct jparse *x, bool with_filter);
static struct jnode *parse_postfix(struct jparse *x, struct jnode *node);

static bool skip(struct jparse *x, enum jtok type)
{
    if (x->t->type != type) return false;
    x->t++;
    return true;
}

static struct jnode *binary(struct jparse *x, enum jnode_type type, int op, unsigned line, struct jnode *a,
                            struct jnode *b)
{
    struct jnode *n = jparse_node(x, type);
    n->op = op;
    n->line = line;
    n->a = a;
    n->b = b;
    return n;
}

static struct jnode *constant(struct jparse *x, struct jv v)
{
    struct jnode *n = jparse_node(x, N_CONST);
    n->value = v;
    return n;
}

static void mention(struct jparse *x, int id)
{
    if (!x->macro) return;
    if (id == x->p->id_caller) *x->macro |= MACRO_CALLER;
    if (id == x->p->id_kwargs) *x->macro |= MACRO_KWARGS;
    if (id == x->p->id_varargs) *x->macro |= MACRO_VARARGS;
}

static struct jnode *parse_name(struct jparse *x, bool with_namespace)
{
    struct jstr name = x->t->text;
    struct jv v = {.type = J_STR, .str = &name};
    struct jnode *n = jparse_node(x, N_NAME);
    x->t++;
    if (jv_is_text(v, "true") || jv_is_text(v, "True")) return constant(x, jv_bool(true));
    if (jv_is_text(v, "false") || jv_is_text(v, "False")) return constant(x, jv_bool(false));
    if (jv_is_text(v, "none") || jv_is_text(v, "None")) return constant(x, jv_none());
    n->id = jparse_intern(x, name);
    n->name = name;
    mention(x, n->id);
    if (with_namespace && skip(x, TOK_DOT)) {
        n->type = N_NSREF;
        n->name = jparse_expect(x, TOK_NAME)->text;
    }
    return n;
}

static struct jnode *parse_string(struct jparse *x)
{
    struct jnode *n = jparse_node(x, N_CONST);
    struct jtext t = {0};
    struct jstr only = x->t->text;
    if (x->t[1].type == TOK_STRING) { /* "a" "b" is "ab" */
        while (x->t->type == TOK_STRING) jtext_add(x->j, &t, (x->t++)->text);
        only = jtext_str(&t);
    } else {
        x->t++;
    }
    n->value = jv_str(x->j, only);
    return n;
}

/* [a, b] or {k: v}, from after the opening bracket. */
static struct jnode *parse_items(struct jparse *x, enum jnode_type type, enum jtok close)
{
    struct jnode *n = jparse_node(x, type), **end = &n->list;
    x->t++;
    while (x->t->type != close) {
        if (end != &n->list) jparse_expect(x, TOK_COMMA);
        if (x->t->type == close) break;
        *end = jparse_expression(x, true);
        end = &(*end)->next;
        if (type != N_DICT) continue;
        jparse_expect(x, TOK_COLON);
        *end = jparse_expression(x, true);
        end = &(*end)->next;
    }
    x->t++;
    return n;
}

static struct jnode *parse_parenthesis(struct jparse *x)
{
    x->t++;
    struct jnode *n = x->t->type == TOK_RPAREN ? jparse_node(x, N_TUPLE) : jparse_tuple(x, true, NULL);
    jparse_expect(x, TOK_RPAREN);
    return n;
}

static struct jnode *parse_primary(struct jparse *x, bool with_namespace)
{
    switch (x->t->type) {
    case TOK_NAME: return parse_name(x, with_namespace);
    case TOK_STRING: return parse_string(x);
    case TOK_INT:
    case TOK_FLOAT: {
        struct jnode *n = constant(x, x->t->value);
        x->t++;
        return n;
    }
    case TOK_LPAREN: return parse_parenthesis(x);
    case TOK_LBRACKET: return parse_items(x, N_LIST, TOK_RBRACKET);
    case TOK_LBRACE: return parse_items(x, N_DICT, TOK_RBRACE);
    default: jparse_fail(x, "unexpected '%s'", jinja_token_name(x->t->type));
    }
}

static bool tuple_ends(const struct jparse *x, const char *end)
{
    return x->t->type == TOK_VARIABLE_END || x->t->type == TOK_BLOCK_END || x->t->type == TOK_RPAREN ||
           (end && jparse_at_name(x, end));
}

static struct jnode *parse_tuple(struct jparse *x, bool simple, bool with_condition, const char *end, bool namespaces)
{
    struct jnode *tuple = jparse_node(x, N_TUPLE), **last = &tuple->list;
    bool is_tuple = false;
    for (;;) {
        if (last != &tuple->list) jparse_expect(x, TOK_COMMA);
        if (tuple_ends(x, end)) break;
        *last = simple ? parse_primary(x, namespaces) : jparse_expression(x, with_condition);
        last = &(*last)->next;
        if (x->t->type != TOK_COMMA) break;
        is_tuple = true;
    }
    if (is_tuple) return tuple;
    if (!tuple->list) jparse_fail(x, "expected an expression, got '%s'", jinja_token_name(x->t->type));
    return tuple->list;
}

struct jnode *jparse_tuple(struct jparse *x, bool with_condition, const char *end)
{
    return parse_tuple(x, false, with_condition, end, false);
}

static void check_target(struct jparse *x, const struct jnode *n)
{
    x->j->line = n->line;
    if (n->type == N_TUPLE) {
        for (const struct jnode *part = n->list; part; part = part->next) check_target(x, part);
    } else if (n->type != N_NAME && n->type != N_NSREF) {
        jparse_fail(x, "cannot assign to this");
    }
}

struct jnode *jparse_target(struct jparse *x, const char *end, bool with_namespace)
{
    struct jnode *n = parse_tuple(x, true, true, end, with_namespace);
    check_target(x, n);
    return n;
}

static void parse_arguments(struct jparse *x, struct jnode *call)
{
    struct jnode **args = &call->list, **keywords = &call->keywords;
    jparse_expect(x, TOK_LPAREN);
    for (bool first = true; x->t->type != TOK_RPAREN; first = false) {
        if (!first) jparse_expect(x, TOK_COMMA);
        if (x->t->type == TOK_RPAREN) break;
        bool wrong = call->star2 != NULL;
        if (skip(x, TOK_MUL)) {
            wrong |= call->star != NULL;
            call->star = jparse_expression(x, true);
        } else if (skip(x, TOK_POW)) {
            call->star2 = jparse_expression(x, true);
        } else if (x->t->type == TOK_NAME && x->t[1].type == TOK_ASSIGN) {
            struct jnode *k = *keywords = jparse_node(x, N_KEYWORD);
            k->name = x->t->text;
            k->id = jparse_intern(x, k->name);
            x->t += 2;
            k->a = jparse_expression(x, true);
            keywords = &k->next;
        } else {
            wrong |= call->star || call->keywords;
            *args = jparse_expression(x, true);
            args = &(*args)->next;
        }
        if (wrong) jparse_fail(x, "invalid syntax for function call expression");
    }
    x->t++;
}

static struct jnode *parse_call(struct jparse *x, struct jnode *callee)
{
    struct jnode *n = jparse_node(x, N_CALL);
    n->a = callee;
    parse_arguments(x, n);
    return n;
}

/* [i], [i, j], [start:stop:step] */
static struct jnode *parse_brackets(struct jparse *x, struct jnode *of)
{
    struct jnode *n = jparse_node(x, N_ITEM);
    n->a = of;
    x->t++;
    if (x->t->type != TOK_COLON) n->b = jparse_expression(x, true);
    if (x->t->type == TOK_COMMA) {
        struct jnode *tuple = jparse_node(x, N_TUPLE), **last = &tuple->list;
        *last = n->b;
        while (skip(x, TOK_COMMA)) {
            if (x->t->type == TOK_COLON) jparse_fail(x, "slices in tuples are not supported");
            last = &(*last)->next;
            *last = jparse_expression(x, true);
        }
        n->b = tuple;
    } else if (skip(x, TOK_COLON)) {
        n->type = N_SLICE;
        if (x->t->type != TOK_COLON && x->t->type != TOK_RBRACKET) n->c = jparse_expression(x, true);
        if (skip(x, TOK_COLON) && x->t->type != TOK_RBRACKET) n->d = jparse_expression(x, true);
    }
    jparse_expect(x, TOK_RBRACKET);
    return n;
}

static struct jnode *parse_postfix(struct jparse *x, struct jnode *node)
{
    for (;;) {
        if (x->t->type == TOK_LBRACKET) {
            node = parse_brackets(x, node);
        } else if (x->t->type == TOK_LPAREN) {
            node = parse_call(x, node);
        } else if (x->t->type == TOK_DOT) {
            struct jnode *n = jparse_node(x, N_ATTR);
            x->t++;
            n->a = node;
            if (x->t->type == TOK_INT) {
                n->type = N_ITEM;
                n->b = constant(x, x->t->value);
                x->t++;
            } else {
                n->name = jparse_expect(x, TOK_NAME)->text;
            }
            node = n;
        } else {
            return node;
        }
    }
}

/* "name" or "some.name" of a filter or test */
static struct jstr dotted_name(struct jparse *x)
{
    struct jtext t = {0};
    struct jstr name = jparse_expect(x, TOK_NAME)->text;
    if (x->t->type != TOK_DOT) return name;
    jtext_add(x->j, &t, name);
    while (skip(x, TOK_DOT)) {
        jtext_cstr(x->j, &t, ".");
        jtext_add(x->j, &t, jparse_expect(x, TOK_NAME)->text);
    }
    return jtext_str(&t);
}

struct jnode *jparse_filter(struct jparse *x, struct jnode *of, bool started)
{
    while (started || x->t->type == TOK_PIPE) {
        if (!started) x->t++;
        started = false;
        struct jnode *n = jparse_node(x, N_FILTER);
        n->a = of;
        const struct jtoken *at = x->t;
        n->name = dotted_name(x);
        n->builtin = jinja_filter(n->name);
        if (!n->builtin) jparse_unknown(x, at, "filter", n->name);
        if (x->t->type == TOK_LPAREN) parse_arguments(x, n);
        of = n;
    }
    return of;
}

static bool starts_argument(const struct jparse *x)
{
    switch (x->t->type) {
    case TOK_NAME: return !jparse_at_name(x, "else") && !jparse_at_name(x, "or") && !jparse_at_name(x, "and");
    case TOK_STRING:
    case TOK_INT:
    case TOK_FLOAT:
    case TOK_LBRACKET:
    case TOK_LBRACE: return true;
    default: return false;
    }
}

static struct jnode *parse_test(struct jparse *x, struct jnode *of)
{
    struct jnode *n = jparse_node(x, N_TEST);
    x->t++;
    bool negated = jparse_skip_name(x, "not");
    n->a = of;
    const struct jtoken *at = x->t;
    n->name = dotted_name(x);
    n->builtin = jinja_test(n->name);
    if (!n->builtin) jparse_unknown(x, at, "test", n->name);
    if (x->t->type == TOK_LPAREN) {
        parse_arguments(x, n);
    } else if (starts_argument(x)) {
        if (jparse_at_name(x, "is")) jparse_fail(x, "you cannot chain multiple tests with is");
        n->list = parse_postfix(x, parse_primary(x, false));
    }
    return negated ? binary(x, N_NOT, 0, n->line, n, NULL) : n;
}

static struct jnode *parse_unary(struct jparse *x, bool with_filter)
{
    jinja_enter(x->j);
    struct jnode *node;
    unsigned line = x->t->line;
    if (skip(x, TOK_SUB)) {
        node = binary(x, N_NEGATIVE, 0, line, parse_unary(x, false), NULL);
    } else if (skip(x, TOK_ADD)) {
        node = binary(x, N_POSITIVE, 0, line, parse_unary(x, false), NULL);
    } else {
        node = parse_primary(x, false);
    }
    node = parse_postfix(x, node);
    while (with_filter) {
        if (x->t->type == TOK_PIPE) {
            node = jparse_filter(x, node, false);
        } else if (jparse_at_name(x, "is")) {
            node = parse_test(x, node);
        } else if (x->t->type == TOK_LPAREN) {
            node = parse_call(x, node);
        } else {
            break;
        }
    }
    jinja_leave(x->j);
    return node;
}

static struct jnode *parse_pow(struct jparse *x)
{
    unsigned line = x->t->line;
    struct jnode *left = parse_unary(x, true);
    while (skip(x, TOK_POW)) left = binary(x, N_BINARY, OP_POW, line, left, parse_unary(x, true));
    return left;
}

static struct jnode *parse_product(struct jparse *x)
{
    unsigned line = x->t->line;
    struct jnode *left = parse_pow(x);
    for (;;) {
        int op = x->t->type == TOK_MUL        ? OP_MUL
                 : x->t->type == TOK_DIV      ? OP_DIV
                 : x->t->type == TOK_FLOORDIV ? OP_FLOORDIV
                 : x->t->type == TOK_MOD      ? OP_MOD
                                              : -1;
        if (op < 0) return left;
        x->t++;
        left = binary(x, N_BINARY, op, line, left, parse_pow(x));
    }
}

static struct jnode *parse_concat(struct jparse *x)
{
    struct jnode *first = parse_product(x);
    if (x->t->type != TOK_TILDE) return first;
    struct jnode *n = jparse_node(x, N_CONCAT), **last = &first->next;
    n->list = first;
    while (skip(x, TOK_TILDE)) {
        *last = parse_product(x);
        last = &(*last)->next;
    }
    return n;
}

static struct jnode *parse_sum(struct jparse *x)
{
    unsigned line = x->t->line;
    struct jnode *left = parse_concat(x);
    for (;;) {
        int op = x->t->type == TOK_ADD ? OP_ADD : x->t->type == TOK_SUB ? OP_SUB : -1;
        if (op < 0) return left;
        x->t++;
        left = binary(x, N_BINARY, op, line, left, parse_concat(x));
    }
}

/* The comparison that begins here, stepped over; -1 */
static int comparison(struct jparse *x)
{
    if (x->t->type >= TOK_EQ && x->t->type <= TOK_GE) return OP_EQ + (int)((x->t++)->type - TOK_EQ);
    if (jparse_skip_name(x, "in")) return OP_IN;
    if (!jparse_at_name(x, "not") || x->t[1].type != TOK_NAME) return -1;
    x->t++;
    if (jparse_skip_name(x, "in")) return OP_NOT_IN;
    x->t--;
    return -1;
}

static struct jnode *parse_compare(struct jparse *x)
{
    struct jnode *first = parse_sum(x), *n = NULL, **last = NULL;
    for (int op; (op = comparison(x)) >= 0; last = &(*last)->next) {
        if (!n) {
            n = jparse_node(x, N_COMPARE);
            n->a = first;
            last = &n->list;
        }
        *last = binary(x, N_OPERAND, op, x->t->line, parse_sum(x), NULL);
    }
    return n ? n : first;
}

static struct jnode *parse_not(struct jparse *x)
{
    unsigned line = x->t->line;
    if (!jparse_skip_name(x, "not")) return parse_compare(x);
    jinja_enter(x->j);
    struct jnode *n = binary(x, N_NOT, 0, line, parse_not(x), NULL);
    jinja_leave(x->j);
    return n;
}

static struct jnode *parse_and(struct jparse *x)
{
    unsigned line = x->t->line;
    struct jnode *left = parse_not(x);
    while (jparse_skip_name(x, "and")) left = binary(x, N_AND, 0, line, left, parse_not(x));
    return left;
}

static struct jnode *parse_or(struct jparse *x)
{
    unsigned line = x->t->line;
    struct jnode *left = parse_and(x);
    while (jparse_skip_name(x, "or")) left = binary(x, N_OR, 0, line, left, parse_and(x));
    return left;
}

struct jnode *jparse_expression(struct jparse *x, bool with_condition)
{
    jinja_enter(x->j);
    unsigned line = x->t->line;
    size_t since = x->n_unknown;
    struct jnode *n = parse_or(x);
    while (with_condition && jparse_skip_name(x, "if")) {
        struct jnode *cond = binary(x, N_COND, 0, line, NULL, n);
        cond->a = parse_or(x);
        if (jparse_skip_name(x, "else")) cond->c = jparse_expression(x, true);
        x->n_unknown = since; /* found out when it is reached, as in jinja2 */
        n = cond;
    }
    jinja_leave(x->j);
    return n;
}
