/* chrF and chrF++ (Popovic, WMT 2015 and 2017) as sacrebleu computes them by default: F2 of character n-grams up to 6
 * without white space; ++ adds words and pairs of words.  Pure. */
#ifndef TANDEM_ENGINE_EVAL_CHRF_H
#define TANDEM_ENGINE_EVAL_CHRF_H

enum { CHRF_CHARS = 6, CHRF_WORDS = 2, CHRF_STATS = 3 * CHRF_CHARS, CHRF_PLUS_STATS = 3 * (CHRF_CHARS + CHRF_WORDS) };

/* Counts of one text against the reference that it is nearest to: for each order the n-grams of the text, of the
 * reference, of both.  Those of a corpus are the sums of its texts'.  plain: chrF's; plus: chrF++'s. */
void chrf_count(const char *text, const char *const *refs, int n_refs, double plain[CHRF_STATS],
                double plus[CHRF_PLUS_STATS]);
/* 0 to 100.  n_stats: CHRF_STATS or CHRF_PLUS_STATS. */
double chrf_score(const double *stats, int n_stats);

#endif
