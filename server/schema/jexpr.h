/* Expressions over the characters of a JSON text: what a schema is translated to before it becomes a grammar.
 *
 * They add two things to grammar.h: the empty set ("no value is allowed"), which removes alternatives, and the spelling
 * of characters inside a JSON string: every character has exactly one, so lengths and patterns count characters.  Pure;
 * one thread.  Sizes are limited: once a pool has grown too large, every later call returns JX_NONE, and jexpr_grammar
 * reports it. */
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
enum { JX_NONE = 0, JX_EMPTY = 1 }; /* the empty set; the empty text */

enum jx_kind { JX_IS_NONE, JX_IS_BYTES, JX_IS_CHARS, JX_IS_SEQ, JX_IS_ALT, JX_IS_REPEAT, JX_IS_RULE, JX_IS_ANCHOR };

#define JX_MANY UINT32_MAX /* an unbounded length or count */
enum {
    JX_REPEAT_MAX = 100 * 1000, /* a larger minimum is an error; a larger finite maximum is clamped */
    JX_NODES_MAX = 60 * 1000,   /* of a pool */
    JX_SIZE_MAX = 80 * 1000,    /* of all expressions together, in approximate positions of an automaton */
    JX_BYTES_MAX = 1000 * 1000, /* of all texts of a pool */
    JX_DEPTH_MAX = 800
};

struct jpool *jpool_new(void);
void jpool_free(struct jpool *);
/* Records the first failure, which jexpr_grammar reports. */
__attribute__((format(printf, 2, 3))) void jpool_fail(struct jpool *, const char *fmt, ...);
bool jpool_failed(const struct jpool *);
/* Puts a name before the failure's text, if there is one. */
void jpool_name_failure(struct jpool *, const char *name);

jx jx_bytes(struct jpool *, const void *bytes, size_t n);
jx jx_text(struct jpool *, const char *text);
/* One character of the ranges (any order) inside a JSON string: itself, or its short escape.  Of the control characters
 * only \b \t \n \f \r are generated. */
jx jx_chars(struct jpool *, const struct grange *, size_t n);
jx jx_any_char(struct jpool *);
/* The same outside of strings: the character itself. */
jx jx_raw_chars(struct jpool *, const struct grange *, size_t n);
/* From now on jx_chars makes such characters, or no longer.  @return what was the case. */
bool jpool_raw(struct jpool *, bool raw);
jx jx_seq(struct jpool *, const jx *, size_t n);
jx jx_seq2(struct jpool *, jx, jx);
jx jx_seq3(struct jpool *, jx, jx, jx);
jx jx_alt(struct jpool *, const jx *, size_t n); /* n 0: JX_NONE */
jx jx_alt2(struct jpool *, jx, jx);
jx jx_repeat(struct jpool *, jx, uint32_t min, uint32_t max); /* max JX_MANY: unbounded */
jx jx_optional(struct jpool *, jx);
/* A reference to an expression that is defined later, once; it may be recursive. */
jx jx_rule(struct jpool *);
void jx_define(struct jpool *, jx rule, jx body);
/* An expression that may be used several times: itself when it is small, else a rule. */
jx jx_shared(struct jpool *, jx);
/* An anchor of a regular expression: 0 the beginning of the text, 1 its end.  Only within json_regex. */
jx jx_anchor(struct jpool *, int end);

/* Inspection. */
enum jx_kind jx_kind(const struct jpool *, jx);
size_t jx_children(const struct jpool *, jx, const jx **out); /* of seq, alt, repeat; valid until the next expression */
uint32_t jx_repeat_min(const struct jpool *, jx), jx_repeat_max(const struct jpool *, jx);
bool jx_has_anchor(const struct jpool *, jx);
/* Characters (jx_chars) of the shortest and longest match; JX_MANY: unbounded. */
uint32_t jx_min_length(const struct jpool *, jx), jx_max_length(const struct jpool *, jx);

/* The expression's texts of min to max characters, possibly a subset; JX_NONE when none was found.  Where several parts
 * vary in length, they share the allowance. */
jx jx_fit(struct jpool *, jx, uint32_t min, uint32_t max);

/* @return the grammar of root; NULL and *e when the pool failed, or for grammar_build's reasons (nothing matches, left
 * recursion, too large). */
struct grammar *jexpr_grammar(struct jpool *, jx root, struct err *e);

#endif
