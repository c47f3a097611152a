/* Values of the chat templates' language, as Python has them: what a template's expressions compute with.
 *
 * One render (or one parse) owns a struct jinja: an arena for all values, freed in one call, the budget of steps, and
 * the jump target for errors.  jinja_fail does not return, so nothing here has an error to check; it is safe because
 * the arena is the only resource held.  Values are immutable once made (the sandbox of transformers forbids list.append
 * and the like) but for namespaces, iterators and loops, so renders may share them. One thread at a time per struct
 * jinja. */
#ifndef TANDEM_ENGINE_TEMPLATE_JINJA_VALUE_H
#define TANDEM_ENGINE_TEMPLATE_JINJA_VALUE_H

#include "engine/base/err.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    JINJA_STEPS = 5000000,        /* nodes evaluated, elements visited, 64 bytes of text handled: one each */
    JINJA_DEPTH = 500,            /* of expressions, statements and macro calls together, and of nested data */
    JINJA_TEXT_MAX = 8 << 20,     /* bytes of one string, and of the output */
    JINJA_MEMORY_MAX = 256 << 20, /* bytes of the arena */
    JINJA_SOURCE_MAX = 1 << 20,   /* bytes of a template */
    JINJA_RANGE_MAX = 100000,     /* elements of range(), the limit of jinja2's sandbox */
};

/* Where text came from: bytes [start, end) of a string derive from message `origin`'s fields.  This is how a render
 * finds the assistant's text, whatever the template did to it. */
enum { JINJA_ORIGIN_MIXED = -2, JINJA_ORIGIN_NONE = -1 };
struct jrun {
    size_t start, end;
    int origin; /* index of the message, or JINJA_ORIGIN_MIXED: of several */
};

struct jstr {
    const char *s; /* (n) valid UTF-8, not NUL-terminated */
    size_t n;
    const struct jrun *runs; /* (n_runs) in order, not overlapping; text outside has no origin */
    size_t n_runs;
};

enum jtype {
    J_MISSING, /* internal: an argument that was not given; no expression has this value */
    J_UNDEF,
    J_NONE,
    J_BOOL,
    J_INT, /* one that 64 bits hold */
    J_BIG, /* any other (jinja_int.h) */
    J_FLOAT,
    J_STR,
    J_LIST,
    J_DICT,
    J_NAMESPACE,
    J_LOOP,
    J_MACRO,
    J_FUNCTION, /* a builtin, perhaps bound to a value */
    J_CYCLER,
    J_JOINER,
};

/* Operators of two operands. */
enum jop {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN
};

struct jinja;
struct jinja_loop;
struct jinja_macro;
struct jbig;
struct jv {
    enum jtype type;
    union {
        bool b;
        int64_t i;
        const struct jbig *big;
        double d;
        const struct jstr *str;
        struct jlist *list;
        struct jdict *dict; /* also of a namespace */
        const struct jundef *undef;
        struct jinja_loop *loop;
        const struct jinja_macro *macro;
        const struct jbound *fn;
        struct jcycler *cycler;
    };
};

/* What is indexed by position.  An iterator (what map, select... give) can be walked once. */
enum jlist_kind {
    JL_LIST,
    JL_TUPLE,
    JL_BYTES, /* whole numbers below 256 (jinja_bytes.c) */
    JL_RANGE,
    JL_KEYS,
    JL_VALUES,
    JL_ITEMS,
    JL_ITERATOR
};
struct jlist {
    enum jlist_kind kind;
    struct jv *v; /* (n) */
    size_t n, cap;
    size_t at; /* iterator: number of elements already taken */
};

struct jpair {
    struct jv key, value;
};
struct jdict {
    struct jpair *v; /* (n) in the order of insertion */
    size_t n, cap;
    uint32_t *index; /* (buckets) position + 1, or 0; NULL while there are few entries */
    size_t buckets;
};

struct jundef {
    const char *hint; /* the whole message, or NULL */
    struct jstr name; /* what was looked for */
    struct jv in;     /* where; J_MISSING: among the variables */
    struct jv key;    /* instead of name, when that was no string */
};

struct jkeyword {
    struct jstr name;
    struct jv value;
};
struct jcall {
    const struct jv *args; /* (n) */
    int n;
    const struct jkeyword *keywords; /* (n_keywords) */
    int n_keywords;
};

/* A filter, test, method or function written in C.  `params` lists its parameters ("old new count?"); fn gets them
 * bound in that order, J_MISSING for an optional one that was not given.  params NULL: fn looks at the call itself. */
enum { JINJA_PARAMS_MAX = 6 };
struct jbuiltin {
    const char *name, *params;
    struct jv (*fn)(struct jinja *, struct jv self, const struct jv *args, const struct jcall *);
};
struct jbound {
    const struct jbuiltin *builtin;
    struct jv self;
};
struct jcycler {
    struct jlist *items;
    size_t at;
    const struct jstr *separator; /* joiner */
};

struct jinja {
    struct jchunk *chunks;
    size_t memory, memory_max; /* bytes of all chunks */
    long steps;                /* left */
    int depth;
    unsigned line, column; /* of what is being done; column only while parsing */
    jmp_buf failed;
    struct err *e;
    struct jinja_run *run; /* a render's state (jinja_eval.h) */
};

/* setjmp(j->failed) before anything that may fail. */
void jinja_begin(struct jinja *j, struct err *e);
void jinja_end(struct jinja *j); /* frees the arena */

/* "chat template, line 3: ..." */
__attribute__((format(printf, 2, 3), noreturn)) void jinja_fail(struct jinja *j, const char *fmt, ...);
void jinja_work(struct jinja *j, size_t steps); /* fails when the budget is used up */
void jinja_enter(struct jinja *j);              /* one level deeper; fails past JINJA_DEPTH */
static inline void jinja_leave(struct jinja *j)
{
    j->depth--;
}

void *jinja_alloc(struct jinja *j, size_t n); /* zeroed */
void *jinja_array(struct jinja *j, size_t count, size_t size);
/* p (bytes old, from this arena) with room for `new` bytes, perhaps in place */
void *jinja_extend(struct jinja *j, void *p, size_t old, size_t new);

static inline struct jv jv_none(void)
{
    return (struct jv){.type = J_NONE};
}
static inline struct jv jv_bool(bool b)
{
    return (struct jv){.type = J_BOOL, .b = b};
}
static inline struct jv jv_int(int64_t i)
{
    return (struct jv){.type = J_INT, .i = i};
}
static inline struct jv jv_float(double d)
{
    return (struct jv){.type = J_FLOAT, .d = d};
}
static inline bool jv_is_text(struct jv v, const char *s)
{
    return v.type == J_STR && __builtin_strlen(s) == v.str->n && __builtin_memcmp(v.str->s, s, v.str->n) == 0;
}

struct jv jv_str(struct jinja *j, struct jstr s);
struct jv jv_cstr(struct jinja *j, const char *s); /* s outlives the value */
struct jv jv_undefined(struct jinja *j, const char *hint);
struct jv jv_list(struct jinja *j, enum jlist_kind kind, size_t room); /* empty */
struct jv jv_dict(struct jinja *j);
struct jv jv_bound(struct jinja *j, const struct jbuiltin *b, struct jv self);
void jlist_add(struct jinja *j, struct jlist *l, struct jv v);

struct jv *jdict_find(struct jinja *j, const struct jdict *d, struct jv key); /* NULL; fails on an unhashable key */
struct jv *jdict_find_text(struct jinja *j, const struct jdict *d, const char *s, size_t n);
void jdict_set(struct jinja *j, struct jdict *d, struct jv key, struct jv value);

const char *jv_type_name(struct jv v); /* Python's: "str", "int", "NoneType"... */
/* fails with a message that names what is undefined */
__attribute__((noreturn)) void jinja_fail_undefined(struct jinja *j, struct jv v);

/* A text being built, in the arena, with the origins of its parts. */
struct jtext {
    char *s;
    size_t n, cap;
    struct jrun *runs;
    size_t n_runs, cap_runs;
};
void jtext_add(struct jinja *j, struct jtext *t, struct jstr s);
void jtext_bytes(struct jinja *j, struct jtext *t, const char *s, size_t n);
void jtext_cstr(struct jinja *j, struct jtext *t, const char *s);
void jtext_char(struct jinja *j, struct jtext *t, uint32_t c);
void jtext_repeat(struct jinja *j, struct jtext *t, char c, size_t n);
void jtext_origin(struct jinja *j, struct jtext *t, size_t from, struct jstr of); /* t[from, n) was made from `of` */
struct jv jtext_value(struct jinja *j, const struct jtext *t);
struct jstr jtext_str(const struct jtext *t);

struct jstr jstr_of(const char *s);
struct jstr jstr_cut(struct jinja *j, struct jstr s, size_t start, size_t end); /* bytes [start, end) */
size_t jstr_chars(struct jinja *j, struct jstr s);                              /* code points */
size_t jstr_at(struct jstr s, size_t from, size_t chars);                       /* byte that many characters on */
bool jstr_same(struct jstr a, struct jstr b);
size_t jstr_find(struct jinja *j, struct jstr s, size_t from, struct jstr what); /* SIZE_MAX: not there */
size_t jinja_space(const char *s, size_t n); /* bytes of the white space (Python's) that s[0, n) starts with; 0: none */
size_t jinja_space_before(const char *s, size_t n); /* the same before its end */

/* for "%.*s" of a name in a message */
static inline int jstr_short(struct jstr s)
{
    return s.n < 100 ? (int)s.n : 100;
}

/* As Python's str() and repr(). */
void jtext_value_str(struct jinja *j, struct jtext *t, struct jv v);
void jtext_repr(struct jinja *j, struct jtext *t, struct jv v);
bool jinja_printable(uint32_t c);                                               /* as str.isprintable() */
void jinja_bytes_repr(struct jinja *j, struct jtext *t, const struct jlist *l); /* of JL_BYTES */
void jtext_double(struct jinja *j, struct jtext *t, double d);
struct jstr jv_to_str(struct jinja *j, struct jv v);

bool jv_truth(struct jv v);
bool jv_equal(struct jinja *j, struct jv a, struct jv b);
int jv_compare(struct jinja *j, struct jv a, struct jv b, const char *op); /* <0, 0, >0; 2: not comparable (NaN) */
bool jv_contains(struct jinja *j, struct jv in, struct jv what);
uint32_t jv_hash(struct jinja *j, struct jv v);
bool jv_is_number(struct jv v, double *d); /* int (perhaps too large: infinite), float or bool */
bool jv_is_int(struct jv v, int64_t *i);   /* int or bool, of 64 bits */

/* The elements of an iterable as an array.  Consumes the rest of an iterator.  Fails on values that are not iterable.
 */
struct jlist *jv_iterate(struct jinja *j, struct jv v);
bool jv_iterable(struct jv v);
bool jv_length(struct jinja *j, struct jv v, size_t *n); /* false: it has none */

#endif
