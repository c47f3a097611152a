/* Expressions over the characters of a JSON text: what a schema is translated to before it becomes a grammar.
 *
 * They know two things that grammar.h does not: the empty set ("no value is allowed here"), with which alternatives
 * disappear, and how a character is written inside a JSON string: every character has exactly one spelling here, so
 * lengths and patterns count characters.  Pure; one thread.  Sizes are limited: a pool that grew too large remembers
 * it, every later call gives JX_NONE, and jexpr_grammar says so. */
#ifndef TANDEM_SERVER_SCHEMA_JEXPR_H
#define TANDEM_SERVER_SCHEMA_JEXPR_H

#include "engine/base/err.h"
#include "engine/grammar/grammar.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct jpool;

/* An expression of one pool. */
typedef int32_t jx;
enum { JX_NONE = 0, JX_EMPTY = 1 }; /* matches nothing at all; matches the empty text */

enum jx_kind { JX_IS_NONE, JX_IS_BYTES, JX_IS_CHARS, JX_IS_SEQ, JX_IS_ALT, JX_IS_REPEAT, JX_IS_RULE, JX_IS_ANCHOR };

#define JX_MANY UINT32_MAX /* a length or a count without end */
enum {
    JX_REPEAT_MAX = 100 * 1000, /* a longer minimum is an error; a longer finite maximum is held here */
    JX_NODES_MAX = 60 * 1000,   /* of a pool */
    JX_SIZE_MAX = 80 * 1000,    /* of all expressions together, in positions of an automaton, about */
    JX_BYTES_MAX = 1000 * 1000, /* of all texts of a pool */
    JX_DEPTH_MAX = 800
};

struct jpool *jpool_new(void);
void jpool_free(struct jpool *);
/* Remembers the first failure: the message of jexpr_grammar. */
__attribute__((format(printf, 2, 3))) void jpool_fail(struct jpool *, const char *fmt, ...);
bool jpool_failed(const struct jpool *);

jx jx_bytes(struct jpool *, const void *bytes, size_t n);
jx jx_text(struct jpool *, const char *text);
/* One character inside a JSON string out of the ranges (any order): as itself, or by its short escape.  Of the control
 * characters only \b \t \n \f \r are ever written. */
jx jx_chars(struct jpool *, const struct grange *, size_t n);
jx jx_any_char(struct jpool *);
jx jx_seq(struct jpool *, const jx *, size_t n);
jx jx_seq2(struct jpool *, jx, jx);
jx jx_seq3(struct jpool *, jx, jx, jx);
jx jx_alt(struct jpool *, const jx *, size_t n); /* n 0: JX_NONE */
jx jx_alt2(struct jpool *, jx, jx);
jx jx_repeat(struct jpool *, jx, uint32_t min, uint32_t max); /* max JX_MANY: without end */
jx jx_optional(struct jpool *, jx);
/* A name for an expression that is given later, once; it may stand in itself. */
jx jx_rule(struct jpool *);
void jx_define(struct jpool *, jx rule, jx body);
/* An expression that may be used several times: itself when it is small, else a rule. */
jx jx_shared(struct jpool *, jx);
/* A place of a regular expression: 0 the beginning of the text, 1 its end.  Only within json_regex. */
jx jx_anchor(struct jpool *, int end);

/* Looking at what was made. */
enum jx_kind jx_kind(const struct jpool *, jx);
size_t jx_children(const struct jpool *, jx, const jx **out); /* of seq, alt, repeat; good until the next expression */
uint32_t jx_repeat_min(const struct jpool *, jx), jx_repeat_max(const struct jpool *, jx);
bool jx_has_anchor(const struct jpool *, jx);
/* Characters (jx_chars) of the shortest and longest match; JX_MANY: no end. */
uint32_t jx_min_length(const struct jpool *, jx), jx_max_length(const struct jpool *, jx);

/* Part of the expression's texts: those (not always all) that have min to max characters.  JX_NONE when none was
 * found.  Where several parts vary, they share the room. */
jx jx_fit(struct jpool *, jx, uint32_t min, uint32_t max);

/* The grammar of the texts of root.  NULL and *e: the pool failed, or grammar_build's reasons (nothing matches, a rule
 * begins with itself, too large). */
struct grammar *jexpr_grammar(struct jpool *, jx root, struct err *e);

#endif
