/* A draft model: a small model of the same vocabulary, on the same device, that proposes the tokens which may follow a
 * text.  It has KV pages of its own, a batch and a workspace of its own, and reads texts without adapters.
 *
 * Each text's keys and values are kept while there is room (the one used longest ago loses its own), up to the length
 * that the draft knows.  Tokens are chosen as the request chooses its own, with its seed and the same index: where both
 * models agree about the chances, they choose the same token.
 *
 * Opened by the owner, then used by the engine thread. */
#ifndef TANDEM_ENGINE_SERVE_DRAFT_H
#define TANDEM_ENGINE_SERVE_DRAFT_H

#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct draft;
struct setup;
struct engine_config;
struct request;

enum {
    DRAFT_BATCH = 512, /* tokens of a step of the draft */
    DRAFT_CATCH = 32,  /* known tokens of a text that are computed on the way to a proposal; more are a prompt's */
};

/* Of a request; zero at first. */
struct draft_text {
    int32_t *pages; /* owned */
    int n_pages, n_computed;
    int known, right; /* at the last proposal: tokens known then, candidates that became known since */
    uint64_t used;
    bool closed;                      /* it has a token that the draft does not have, or there is no memory */
    struct draft_text *newer, *older; /* by use; only while it has pages */
};

/* One text of a proposal. */
struct draft_ask {
    struct request *r;
    int want, got; /* candidates, to the tokens behind the known ones */
};

/* Of the model and the memory of config->draft_model on the setup's device. */
int draft_open(struct draft **, struct setup *, const struct engine_config *, struct err *e);
void draft_close(struct draft *); /* NULL is allowed */

/* @return how many known tokens of the request the draft would have to compute first; -1: it cannot continue it. */
int draft_lags(const struct draft *, const struct request *);
/* A step begins: pages of texts that were kept for the one before may go to others. */
void draft_step(struct draft *);
/* The text is to be continued in this step: its pages stay. */
void draft_keep(struct draft *, struct request *);
/* Computes at most `most` of these but the last.  @return how many; 0: there is no room; -1: the device failed. */
int draft_read(struct draft *, struct request *, int most);
/* Fills the candidates of each text (n of them, at most SPECULATE_SEQS), whose lag is at most DRAFT_CATCH.  @return the
 * steps that this took; -1: the device failed. */
int draft_propose(struct draft *, struct draft_ask *, int n);
/* The request gives its pages back. */
void draft_release(struct draft *, struct draft_text *);

/* Whether two vocabularies give the same ids to the same texts.  @return 0, or ERR_INVALID with the first difference.
 */
struct tokenizer;
int draft_check_vocabulary(const struct tokenizer *model, const struct tokenizer *draft, struct err *e);
/* The same of the model in a directory, which must generate text.  *ids: how many tokens it has. */
int draft_check_dir(const struct tokenizer *model, const char *dir, int *ids, struct err *e);

#endif
