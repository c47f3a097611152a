/* A parsed template: a tree in one arena, immutable after parsing, so any thread may render it. */
#ifndef TANDEM_ENGINE_TEMPLATE_JINJA_AST_H
#define TANDEM_ENGINE_TEMPLATE_JINJA_AST_H

#include "engine/template/jinja_value.h"

enum jnode_type {
    /* expressions */
    N_CONST,    /* value */
    N_NAME,     /* id */
    N_LIST,     /* list */
    N_TUPLE,    /* list */
    N_DICT,     /* list: key, value, key, value... */
    N_CONCAT,   /* list */
    N_BINARY,   /* a op b */
    N_NEGATIVE, /* -a */
    N_POSITIVE, /* +a */
    N_AND,      /* a, b */
    N_OR,       /* a, b */
    N_NOT,      /* a */
    N_COMPARE,  /* a, then list of N_OPERAND */
    N_OPERAND,  /* op, a */
    N_COND,     /* b if a else c (may be NULL) */
    N_ATTR,     /* a.name */
    N_ITEM,     /* a[b] */
    N_SLICE,    /* a[b:c:d], any of them NULL */
    N_CALL,     /* a(arguments) */
    N_FILTER,   /* a | name(arguments); a NULL: of a block */
    N_TEST,     /* a is name(arguments) */
    N_KEYWORD,  /* name=a, among arguments */
    N_NSREF,    /* id.name, as a target */
    /* statements */
    N_TEXT,         /* value */
    N_OUTPUT,       /* list */
    N_FOR,          /* for a in b if c: list, else orelse; op: recursive */
    N_IF,           /* if a: list, elif d (an N_IF), else orelse */
    N_SET,          /* a = b */
    N_SET_BLOCK,    /* a = list, through filter b (may be NULL) */
    N_MACRO,        /* id(params): list */
    N_CALL_BLOCK,   /* a is the call; the caller is (params): list */
    N_FILTER_BLOCK, /* a is the filter; list */
    N_WITH,         /* params are N_SET; list */
    N_SCOPE,        /* list */
    N_GENERATION,   /* list; its output is the assistant's (transformers' extension) */
    N_BREAK,
    N_CONTINUE,
};

/* Special variables used in a macro's body, which determine what a call may pass. */
enum { MACRO_CALLER = 1, MACRO_KWARGS = 2, MACRO_VARARGS = 4 };

struct jnode {
    enum jnode_type type;
    int op; /* enum jop; flags of a macro */
    int id; /* of a name: index into the program's names */
    unsigned line;
    struct jnode *a, *b, *c, *d;
    struct jnode *list, *orelse, *params;  /* first of siblings */
    struct jnode *keywords, *star, *star2; /* arguments beside `list`: N_KEYWORD, *star, **star2 */
    struct jnode *next;                    /* sibling */
    struct jstr name;
    struct jv value;
    const struct jbuiltin *builtin; /* filter or test; NULL when there is none of that name */
};

struct jprogram {
    struct jnode *body;
    const struct jstr *names; /* (n_names) every identifier once */
    int n_names;
    bool has_generation;
    int id_loop, id_caller, id_kwargs, id_varargs;
};

/* Fills *p from j's arena; fails through j. */
void jinja_parse(struct jinja *j, struct jstr source, struct jprogram *p);

/* The parts of the parser. */
struct jtoken;
struct jparse {
    struct jinja *j;
    const struct jtoken *t; /* the token at hand */
    struct jprogram *p;
    struct jstr *names;
    size_t n_names, cap_names;
    int *index; /* hash of names */
    size_t buckets;
    int *macro; /* flags of the macro being parsed, or NULL */
    int loops;  /* around the statement, within the macro */
    struct junknown {
        const struct jtoken *at;
        const char *kind; /* "filter" or "test" */
        struct jstr name;
    } * unknown; /* (n_unknown) refused when the scope that they stand in ends, unless a condition guards them */
    size_t n_unknown, cap_unknown;
};

__attribute__((format(printf, 2, 3), noreturn)) void jparse_fail(struct jparse *x, const char *fmt, ...);
bool jparse_at_name(const struct jparse *x, const char *name);
bool jparse_skip_name(struct jparse *x, const char *name);
const struct jtoken *jparse_expect(struct jparse *x, int type); /* an enum jtok; steps over it */
struct jnode *jparse_node(struct jparse *x, enum jnode_type type);
void jparse_unknown(struct jparse *x, const struct jtoken *at, const char *kind, struct jstr name);
int jparse_intern(struct jparse *x, struct jstr name);

struct jnode *jparse_expression(struct jparse *x, bool with_condition);
/* One expression or several with commas; end: a name that ends it besides the tag's end. */
struct jnode *jparse_tuple(struct jparse *x, bool with_condition, const char *end);
struct jnode *jparse_target(struct jparse *x, const char *end, bool with_namespace);
struct jnode *jparse_filter(struct jparse *x, struct jnode *of, bool started); /* of NULL: a block's */

#endif
