/* The answers of POST /rerank, /score, /classify and /predict.  Pure. */
#ifndef TANDEM_SERVER_API_RANK_ANSWER_H
#define TANDEM_SERVER_API_RANK_ANSWER_H

#include "engine/base/buf.h"
#include "server/api/embed_params.h"

/* values (n, labels): the classifier's outputs for each input; tokens: of all inputs together. */
void rank_answer_write(struct buf *out, const struct embed_params *, const struct embedder *, const float *values,
                       const char *model, uint64_t tokens);

#endif
