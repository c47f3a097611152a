#include "engine/eval/metrics.h"

#include <math.h>

static const struct evaluation_metric text_metrics[] = {
    {"perplexity", true}, {"word_perplexity", true}, {"byte_perplexity", true}, {"bits_per_byte", true}};
static const struct evaluation_metric choice_metrics[] = {{"acc", false}, {"acc_norm", false}, {"acc_bytes", false}};
static const struct evaluation_metric generation_metrics[] = {
    {"exact_match", false}, {"rouge1", false}, {"rouge2", false}, {"rougeL", false},
    {"rougeLsum", false},   {"bleu", false},   {"chrf", false},   {"chrf++", false}};
enum { N_MEANS = 1 + ROUGE_KINDS }; /* of the generation metrics, the first are means over rows */

#define LEN(a) ((int)(sizeof(a) / sizeof *(a)))

int evaluation_metrics(enum evaluation_kind kind, const struct evaluation_metric **out)
{
    switch (kind) {
    case EVALUATION_TEXT: *out = text_metrics; return LEN(text_metrics);
    case EVALUATION_CHOICE: *out = choice_metrics; return LEN(choice_metrics);
    case EVALUATION_GENERATION: break;
    }
    *out = generation_metrics;
    return LEN(generation_metrics);
}

int metrics_sums(enum evaluation_kind kind)
{
    return kind == EVALUATION_TEXT ? TEXT_SUMS : kind == EVALUATION_CHOICE ? CHOICE_SUMS : GENERATION_SUMS;
}

/* As lm-eval: nats per token, word or byte. */
static double text_score(int metric, const double *sums)
{
    static const enum text_sums unit[] = {TEXT_TOKENS, TEXT_WORDS, TEXT_BYTES, TEXT_BYTES};
    double each = sums[TEXT_NLL] / sums[unit[metric]];
    return metric == 3 ? each / log(2) : exp(each);
}

static double generation_score(int metric, const double *sums, bool single)
{
    if (metric < N_MEANS) return sums[GENERATION_EXACT + metric] / sums[GENERATION_ROWS];
    switch (metric - N_MEANS) {
    case 0: return bleu_score(sums + GENERATION_BLEU, single);
    case 1: return chrf_score(sums + GENERATION_CHRF, CHRF_STATS);
    default: return chrf_score(sums + GENERATION_CHRF_PLUS, CHRF_PLUS_STATS);
    }
}

double metrics_score(enum evaluation_kind kind, int metric, const double *sums, bool single)
{
    if (kind == EVALUATION_TEXT) return text_score(metric, sums);
    if (kind == EVALUATION_CHOICE) return sums[CHOICE_ACC + metric] / sums[CHOICE_ROWS];
    return generation_score(metric, sums, single);
}
