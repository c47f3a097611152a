/* The metrics of each kind of row.  A row has sums, and a metric is a function of sums: the sums of one row, of all
 * rows, or of the rows of a resample.  Pure. */
#ifndef TANDEM_ENGINE_EVAL_METRICS_H
#define TANDEM_ENGINE_EVAL_METRICS_H

#include "engine/eval/bleu.h"
#include "engine/eval/chrf.h"
#include "engine/eval/evaluation.h"
#include "engine/eval/rouge.h"

enum text_sums { TEXT_NLL, TEXT_TOKENS, TEXT_WORDS, TEXT_BYTES, TEXT_SUMS }; /* nats */
enum choice_sums { CHOICE_ROWS, CHOICE_ACC, CHOICE_ACC_NORM, CHOICE_ACC_BYTES, CHOICE_SUMS };
enum generation_sums {
    GENERATION_ROWS,
    GENERATION_EXACT,
    GENERATION_ROUGE,
    GENERATION_BLEU = GENERATION_ROUGE + ROUGE_KINDS,
    GENERATION_CHRF = GENERATION_BLEU + BLEU_STATS,
    GENERATION_CHRF_PLUS = GENERATION_CHRF + CHRF_STATS,
    GENERATION_SUMS = GENERATION_CHRF_PLUS + CHRF_PLUS_STATS,
    EVALUATION_SUMS_MAX = GENERATION_SUMS
};

int metrics_sums(enum evaluation_kind);
/* metric: its place in evaluation_metrics.  single: the sums are of one row, where BLEU leaves out the orders that the
 * text is too short for. */
double metrics_score(enum evaluation_kind, int metric, const double *sums, bool single);

#endif
