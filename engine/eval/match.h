/* Answers in generated texts: a regex that finds one, and equality with references.  Texts are valid UTF-8 without
 * NULs.  An extractor is immutable: any thread. */
#ifndef TANDEM_ENGINE_EVAL_MATCH_H
#define TANDEM_ENGINE_EVAL_MATCH_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>

/* What equality ignores, in the order in which it is taken away; the first three as ignore_case, ignore_punctuation and
 * ignore_numbers of evaluate's exact_match, the last as strip(). */
enum { MATCH_CASE = 1, MATCH_PUNCTUATION = 2, MATCH_NUMBERS = 4, MATCH_SPACE = 8 };

#define MATCH_IGNORE_WORDS "space, case, punctuation, numbers, none"
/* Adds what the word[0, n) names to *out.  @return false: it is none of them. */
bool match_ignore_parse(const char *word, size_t n, unsigned *out);

/* @return whether the text equals one of the references. */
bool match_exact(const char *text, const char *const *refs, int n_refs, unsigned ignore);

struct extractor;

/* A regex of PCRE2 with UTF-8 and Unicode's classes.  NULL and *e: it is none. */
struct extractor *extractor_open(const char *regex, struct err *e);
void extractor_close(struct extractor *); /* NULL is allowed */

/* Appends the first match, or the last, without white space around it; of a regex with groups its first group that is
 * not empty; where nothing matches "[invalid]", as lm-eval's filter, and so where matching takes more work than is
 * allowed: a model's text must not end an evaluation. */
void extractor_find(const struct extractor *, const char *text, bool last, struct buf *out);

#endif
