/* Scores and what their answers share: pairs' (rerank.c) and labels' (classify.c).  Pure. */
#ifndef TANDEM_SERVER_API_SCORES_H
#define TANDEM_SERVER_API_SCORES_H

#include "engine/base/buf.h"

#include <stdint.h>

struct score {
    int index;
    double score;
};

/* For qsort of struct score: the best first; of equals the first. */
int scores_order(const void *a, const void *b);

double scores_sigmoid(double x);

/* Writes a JSON string; the beginning of an answer of vLLM's, up to the model's name; its usage and end. */
void scores_put_text(struct buf *out, const char *s);
void scores_put_head(struct buf *out, const char *id_prefix, const char *model);
void scores_put_usage(struct buf *out, uint64_t tokens);

#endif
