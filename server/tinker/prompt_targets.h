/* `target_prompt_logprobs` of POST /api/v1/asample: ids whose log-probabilities are asked for in the places of a
 * prompt's tokens, and the tensor that answers it, dense or sparse (CSR) as it came.  Pure; any thread. */
#ifndef TANDEM_SERVER_TINKER_PROMPT_TARGETS_H
#define TANDEM_SERVER_TINKER_PROMPT_TARGETS_H

#include "engine/base/buf.h"
#include "server/api/generation_result.h"
#include "server/json/json.h"
#include "server/memory/reservation.h"

/* Row i is of the prompt's token i + 1.  Of a dense tensor the cells of -1 are left out. */
struct prompt_targets {
    int rows;      /* 0: none were asked for */
    int64_t width; /* of the tensor */
    bool sparse;
    int64_t *begin;  /* (rows + 1) owned: where each row begins in the two that follow */
    int64_t *column; /* (begin[rows]) owned */
    int32_t *id;     /* likewise; -1: none */
    int first;       /* the first row that has an id */
    int widest;      /* entries of the longest row, at most ENGINE_TOP_MAX */
    int32_t largest; /* id */
    struct reservation held;
};

/* v: the field; n_prompt: tokens.  @return 0, or *e, which names it.  To be freed either way. */
int prompt_targets_read(struct prompt_targets *, const cJSON *v, int n_prompt, struct err *e);
void prompt_targets_free(struct prompt_targets *);
/* @return the ids of the rows from row `from` on, as gen_request.scored: (rows - from, widest); to be freed. */
int32_t *prompt_targets_scored(const struct prompt_targets *, int from);
/* The tensor of the log-probabilities, 0 for -1, into a field of the answer. */
void prompt_targets_put(struct buf *, unsigned field, const struct prompt_targets *, const struct generation_result *);
/* @return bytes that this adds, at most. */
size_t prompt_targets_bytes(const struct prompt_targets *);

#endif
