/* Grammars: the set of byte strings that a generated text may be.  A grammar is built from expressions over bytes (a
 * regular expression is one kind of them), with rules that may be recursive; it runs as an automaton over bytes whose
 * states are created when first reached, and each state has a mask of the tokens allowed next (mask.h).
 *
 * A builder belongs to one thread.  A built grammar is immutable except for its caches, reference counted, and may be
 * used by any thread.  Every size is limited: a grammar that is too large is ERR_INVALID, and the message names the
 * limit. */
#ifndef TANDEM_ENGINE_GRAMMAR_GRAMMAR_H
#define TANDEM_ENGINE_GRAMMAR_GRAMMAR_H

#include "engine/base/err.h"

#include <stddef.h>
#include <stdint.h>

struct grammar;
struct grammar_builder;

/* An expression of one builder; negative: an earlier call failed.  The builder keeps the error, and every function here
 * accepts such a value, so callers check once, at grammar_build. */
typedef int32_t gexpr;

struct grammar_builder *grammar_builder_new(void);
void grammar_builder_free(struct grammar_builder *);

gexpr gram_bytes(struct grammar_builder *, const void *bytes, size_t n); /* exactly these; n may be 0 */
/* Two of these bytes around the text of a special token, within a gram_bytes, are that token: no text of UTF-8 has the
 * byte, so no other expression allows special tokens. */
enum { GRAM_SPECIAL = 0xff };
struct grange {
    uint32_t lo, hi; /* code points, inclusive */
};
/* one code point of (not_in: outside of) the ranges, as UTF-8; surrogates are never part of it */
gexpr gram_class(struct grammar_builder *, const struct grange *, size_t n, int not_in);
gexpr gram_seq(struct grammar_builder *, const gexpr *, size_t n);
gexpr gram_alt(struct grammar_builder *, const gexpr *, size_t n);              /* n >= 1 */
gexpr gram_repeat(struct grammar_builder *, gexpr, uint32_t min, uint32_t max); /* max UINT32_MAX: unbounded */
/* A regular expression that must match as Python's re.fullmatch would (\d, \w, \s are Unicode's unless (?a) is given);
 * (?i), (?s), (?a) and their scoped forms are supported.  Constructs that are not regular (back-references,
 * look-around, \b) are rejected by name and byte position, and so are ^ and $ other than at the ends.  Groups may be
 * named, (?P<name>...) or (?<name>...). */
gexpr gram_regex(struct grammar_builder *, const char *pattern, size_t n);
/* A name for an expression that is defined later and may contain it (recursion, but not left recursion). */
gexpr gram_rule(struct grammar_builder *);
void gram_define(struct grammar_builder *, gexpr rule, gexpr body);

/* Limits: 2^18 expressions, 4 MiB of text, 1000 levels (rules not followed), 2^19 instructions.  A counted repetition
 * costs no more than an unbounded one.  Expressions that match no text are removed; a grammar that matches no text is
 * an error. */

/* The grammar whose texts are those of `root`; frees nothing.  NULL and *e on error, the builder's first included. */
struct grammar *grammar_build(struct grammar_builder *, gexpr root, struct err *e);
struct grammar *grammar_ref(struct grammar *);
void grammar_unref(struct grammar *); /* NULL is allowed */

/* @return 1 when the bytes match the grammar, 0 when not; ERR_INVALID, and *e is set, when a limit was reached.  Any
 * thread. */
int grammar_matches(struct grammar *, const void *bytes, size_t n, struct err *e);
/* Checks that some text of the grammar uses only these bytes (256 flags: some token of a vocabulary has the byte).
 * @return 0, or ERR_UNSUPPORTED, and *e names a missing character. */
int grammar_check_bytes(const struct grammar *, const unsigned char bytes[256], struct err *e);

#endif
