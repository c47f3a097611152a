/* A step as flat arrays on the device: what model_forward works on.  Sized once; owned by the engine thread (or an
 * eval). */
#ifndef TANDEM_ENGINE_MODEL_STEP_BATCH_H
#define TANDEM_ENGINE_MODEL_STEP_BATCH_H

#include "engine/model/lora_weights.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a step computes of one sequence; the arrays are borrowed. */
struct step_batch_seq {
    const int32_t *tokens; /* of the whole text, to start + n at least */
    const int32_t *pages;  /* its KV pages, n_pages of them */
    int n_pages;
    int start, n;                    /* tokens [start, start + n) are computed */
    int rows;                        /* logits wanted for the last `rows` of them */
    const struct lora_weights *lora; /* the adapter they go through; NULL: none */
};

/* Rows that go through an adapter. */
struct step_batch_group {
    int row0, rows;
    const struct lora_weights *lora;
};

struct step_batch {
    int n_tokens, n_seqs, n_rows, pages_ld;
    int most_rows;                  /* of one sequence; 0: not known */
    int n_groups;                   /* 0: the base model alone */
    struct step_batch_group *group; /* (S), in the order of rows; host */
    struct lora_group *lora;        /* (S), of step_batch_lora; host */
    /* device arrays; T = max_tokens, S = max_seqs, R = max_rows */
    int32_t *id, *pos, *slot;  /* (T) token, position in its text, KV place (page * KV_PAGE + offset) */
    int32_t *q_start, *kv_len; /* (S + 1), (S) */
    int32_t *pages;            /* (n_seqs, pages_ld) */
    int32_t *row;              /* (R) which tokens' logits are wanted */
    int32_t *host;             /* all of the above as host memory, one block in the same order */
    int max_tokens, max_seqs, max_rows, max_pages; /* max_pages: of one sequence */
    int pad_page; /* the first of step_batch_pad_pages pages that no sequence has; -1, as opened: steps are not padded
                   */
};

enum { PAGES_LD_MIN = 8 }; /* of steps that are replayed; wider ones go by powers of two */

/* A device that replays steps knows them by their sizes, of which there are to be few: a step in which each of n
 * sequences has one token and none an adapter is made one of step_batch_padded(n, max_seqs): 1, 2, 4, 8, then multiples
 * of 8 to 64, of 16 to 128, of 32 to 256, of 64; at most max_seqs.  The rows of logits likewise.  What the kernels
 * choose by the number of rows changes where one of these sizes ends (rows a product takes at most by its kinds: 8, 16,
 * 32, 64, kernels/cuda/gemm/packed_gemm.h and mma_int.cu), so a row has the bits that it has without padding; what
 * cuBLASLt multiplies, those of the padded size. */
int step_batch_padded(int n, int max_seqs);
/* How many KV pages rows of padding need for what they leave there. */
int step_batch_pad_pages(int max_seqs);

/* What it takes on the device. */
size_t step_batch_bytes(int max_tokens, int max_seqs, int max_rows, int max_pages);
/* 0 or ERR_NOMEM */
int step_batch_open(struct step_batch *, struct dev *, int max_tokens, int max_seqs, int max_rows, int max_pages);
void step_batch_close(struct step_batch *, struct dev *);
/* n_tokens, n_seqs and n_rows are the sums over the n sequences, or padded; the sequences' rows come first, in their
 * order.  Those with the same adapter are best beside each other: they become one group. */
void step_batch_build(struct step_batch *, struct dev *, const struct step_batch_seq *, int n);
/* A step of n texts of one token, as long as no sequence has pages: it writes to the first n places of the cache. */
void step_batch_blank(struct step_batch *, struct dev *, int n, int pages_ld);
/* Every sequence has one token and none an adapter: a step that can be replayed. */
bool step_batch_decodes(const struct step_batch *);

/* What the adapters add to a product in rows [row0, row0 + rows): b->lora, with rows counted from row0.  Returns how
 * many; good until the next call. */
int step_batch_lora(const struct step_batch *b, int layer, enum product, int row0, int rows);
/* Where the run of rows ends that begins at `row` and in which all, or none, have the product changed. */
int step_batch_run(const struct step_batch *b, int layer, enum product, int row, bool *changed);

#endif
