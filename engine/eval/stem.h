/* Porter's stemmer ("An algorithm for suffix stripping", Program 14(3), 1980) with the extensions of NLTK, which
 * rouge-score uses: irregular words, and rules for -ies, -ied, -y, -alli, -fulli and -logi.  Pure. */
#ifndef TANDEM_ENGINE_EVAL_STEM_H
#define TANDEM_ENGINE_EVAL_STEM_H

#include <stddef.h>

/* Replaces word[0, n), of a-z and 0-9, by its stem.  @return the stem's length, at most n. */
size_t stem_word(char *word, size_t n);

#endif
