/* Reserves the memory of a device with its own before the first request, so that no step allocates any: activations,
 * scratch for the largest steps, and KV pages from what is left. */
#ifndef TANDEM_ENGINE_SERVE_RESERVE_H
#define TANDEM_ENGINE_SERVE_RESERVE_H

#include "engine/model/model.h"

struct reserve {
    int max_tokens, max_seqs, max_rows; /* limits of a step */
    int max_len;                        /* tokens of one request, if memory allows; 0: the model's limit */
    int max_lora_rank;
    enum dtype kv_type;
    int pages;         /* KV pages, exactly; 0: from kv_bytes */
    size_t kv_bytes;   /* size of the KV cache; 0: max_seqs requests of moderate length, at most half of what is left */
    size_t page_bytes; /* model_page_bytes */
};

/* *pages: set to the number of KV pages; step_batch_pad_pages(max_seqs) padding pages follow them and count as
 * workspace.  On each rank of a divided model, which then have the same number of pages.  @return 0 on success; on failure a negative code, and *e is set: ERR_NOMEM says what would fit. */
int reserve_device(struct model *, const struct reserve *, int *pages, struct err *);
/* For an encoder, which has no pages: the largest steps' scratch. */
int reserve_encoder_device(struct model *, const struct reserve *, struct err *);

#endif
