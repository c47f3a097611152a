/* What a device whose memory is its own takes before the first request, so that it takes nothing later: activations,
 * scratch for the largest steps, and of what is left the KV pages. */
#ifndef TANDEM_ENGINE_SERVE_RESERVE_H
#define TANDEM_ENGINE_SERVE_RESERVE_H

#include "engine/model/model.h"

struct reserve {
    int max_tokens, max_seqs, max_rows; /* of a step */
    int max_len;                        /* of a request, if memory allows; 0: the model's */
    int max_lora_rank;
    enum dtype kv_type;
    int pages;         /* exactly so many; 0: by the next line */
    size_t kv_bytes;   /* 0: enough for max_seqs of a moderate length, at most half of what is left */
    size_t page_bytes; /* model_page_bytes */
};

/* Takes all of it.  *pages: how many KV pages there are now; step_batch_pad_pages(max_seqs) more follow them, which are
 * part of the workspace.  ERR_NOMEM says what would fit. */
int reserve_device(struct model *, const struct reserve *, int *pages, struct err *);

#endif
