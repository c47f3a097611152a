/* ROUGE (Lin, 2004) as the package rouge-score computes it: F1 of words in lower case, which are runs of a-z and 0-9.
 * Pure. */
#ifndef TANDEM_ENGINE_EVAL_ROUGE_H
#define TANDEM_ENGINE_EVAL_ROUGE_H

#include <stdbool.h>

enum rouge_kind {
    ROUGE_1,    /* words */
    ROUGE_2,    /* pairs of words */
    ROUGE_L,    /* the longest common subsequence */
    ROUGE_LSUM, /* the union of those of lines */
    ROUGE_KINDS
};

/* 0 to 1 each, of the reference that gives the most.  stem: words of more than three letters are stemmed (stem.h). */
void rouge_score(const char *text, const char *const *refs, int n_refs, bool stem, double out[ROUGE_KINDS]);

#endif
