/* A model for evaluation: one text at a time, the logits of every position, without scheduler or thread. Used by one
 * thread at a time. */
#ifndef TANDEM_ENGINE_BENCH_EVAL_H
#define TANDEM_ENGINE_BENCH_EVAL_H

#include "engine/serve/engine.h"

struct eval;

/* Uses model, device, threads, quantize, kv_type of the config.  NULL and *e on error. */
struct eval *eval_open(const struct engine_config *, struct err *e);
void eval_close(struct eval *); /* NULL is allowed */

const struct engine_info *eval_info(const struct eval *);
const struct tokenizer *eval_tokenizer(const struct eval *);
int eval_vocab(const struct eval *);
int eval_context(const struct eval *); /* the longest text */

/* Sets the adapter (a PEFT directory) for later texts; NULL: none. */
int eval_adapter(struct eval *, const char *dir, struct err *e);

/* Computes ids[0, n) as a fresh text and calls row(arg, pos, logits) for each position in order; logits (V) predict the
 * token after ids[pos] and are valid during the call. */
int eval_logits(struct eval *, const int32_t *ids, int n, void (*row)(void *arg, int pos, const float *logits),
                void *arg, struct err *e);

#endif
