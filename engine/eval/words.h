/* Texts as sequences of words, sequences of ids, and n-grams of ids that two texts share: what BLEU, chrF and ROUGE
 * count.  Texts are valid UTF-8 without NULs.  Pure functions of their arguments: any thread. */
#ifndef TANDEM_ENGINE_EVAL_WORDS_H
#define TANDEM_ENGINE_EVAL_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct word {
    const char *at; /* borrowed */
    size_t len;
};

struct words {
    struct word *v; /* owned: words_free */
    size_t n, cap;
};

struct ids {
    int32_t *v; /* owned: free */
    size_t n;
};

/* Whether Python's str.isspace, str.split and the \s of its regexes take the character for white space. */
bool word_is_space(uint32_t c);
size_t word_text_end(const char *text); /* bytes of the text without the white space at its end */

void words_add(struct words *, const char *at, size_t len);
void words_split(struct words *, const char *text, size_t n); /* appends the words between white space */
void words_free(struct words *);

/* Numbers the words of n texts: equal words have equal ids, whichever text they are in.  out: (n), overwritten. */
void words_number(const struct words *texts, int n, struct ids *out);
/* The characters of a text without white space, as ids.  Overwrites *out. */
void chars_number(const char *text, size_t n, struct ids *out);

size_t ngrams_count(const struct ids *, int order); /* how many n-grams the text has */
/* How many n-grams of the text are also in a reference: each at most as often as in the reference that has it most
 * often. */
size_t ngrams_matched(const struct ids *text, const struct ids *refs, int n_refs, int order);

#endif
