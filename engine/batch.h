/* A step's plan as flat arrays on the device: what model_forward works on.  Sized once; owned by the engine thread (or
 * an eval). */
#ifndef TANDEM_BATCH_H
#define TANDEM_BATCH_H

#include "engine/sched.h"
#include "kernels/ops.h"

struct batch {
    int n_tokens, n_seqs, n_rows, pages_ld;
    /* device arrays; T = max_tokens, S = max_seqs, R = max_rows */
    int32_t *id, *pos, *slot;  /* (T) token, position in its text, KV place (page * KV_PAGE + offset) */
    int32_t *q_start, *kv_len; /* (S + 1), (S) */
    int32_t *pages;            /* (n_seqs, pages_ld) */
    int32_t *row;              /* (R) which tokens' logits are wanted */
    int32_t *host;             /* all of the above as host memory, one block in the same order */
    int max_tokens, max_seqs, max_rows, max_pages; /* max_pages: of one sequence */
};

/* 0 or ERR_NOMEM */
int batch_open(struct batch *, struct dev *, int max_tokens, int max_seqs, int max_rows, int max_pages);
void batch_close(struct batch *, struct dev *);
void batch_build(struct batch *, struct dev *, const struct plan *);

#endif
