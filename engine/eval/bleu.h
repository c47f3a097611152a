/* BLEU (Papineni et al., ACL 2002) as sacrebleu computes it by default: tokenizer 13a (mteval-v13a.pl), mixed case,
 * exponential smoothing, up to 4-grams, the reference length nearest to the text's.  Pure. */
#ifndef TANDEM_ENGINE_EVAL_BLEU_H
#define TANDEM_ENGINE_EVAL_BLEU_H

#include "engine/base/buf.h"

#include <stdbool.h>

enum { BLEU_ORDER = 4, BLEU_STATS = 2 + 2 * BLEU_ORDER };

/* Counts of one text against its references: words of the text, of the nearest reference; matched n-grams, n-grams.
 * Those of a corpus are the sums of its texts'. */
void bleu_count(const char *text, const char *const *refs, int n_refs, double stats[BLEU_STATS]);
/* 0 to 100.  effective_order: orders that the text is too short for do not count, as for single sentences. */
double bleu_score(const double stats[BLEU_STATS], bool effective_order);

/* Appends the text with a space between tokens. */
void bleu_tokenize(const char *text, struct buf *out);

#endif
