/* A step as flat arrays on the device, the input of model_forward.  Sized once; owned by the engine thread (or an
 * eval). */
#ifndef TANDEM_ENGINE_MODEL_STEP_BATCH_H
#define TANDEM_ENGINE_MODEL_STEP_BATCH_H

#include "engine/model/lora_weights.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The part of one sequence that a step computes; the arrays are borrowed. */
struct step_batch_seq {
    const int32_t *tokens; /* the text from its first token, at least to start + n */
    const int32_t *pages;  /* its KV pages, n_pages of them */
    int n_pages;
    int start, n;                    /* tokens [start, start + n) are computed */
    int rows;                        /* logits are computed for the last `rows` of them */
    const struct lora_weights *lora; /* the sequence's adapter; NULL: none */
    int rope_row;                    /* of its first token, in the rope tables (rope.h) */
    const unsigned char *types;      /* of its tokens, as many as `tokens`; NULL: all 0 */
};

/* Consecutive rows with the same adapter. */
struct step_batch_group {
    int row0, rows;
    const struct lora_weights *lora;
    int out0, outs; /* their rows of logits */
};

struct step_batch {
    int n_tokens, n_seqs, n_rows, pages_ld;
    int most_rows;                  /* rows of one sequence, at most; 0: unknown */
    int n_groups;                   /* 0: no row has an adapter */
    struct step_batch_group *group; /* (S), in the order of rows; host */
    struct lora_group *lora;        /* (S), of step_batch_lora; host */
    /* device arrays; T = max_tokens, S = max_seqs, R = max_rows */
    int32_t *id, *pos, *slot;  /* (T) token, row of its position in the tables, KV slot (page * KV_PAGE + offset) */
    int32_t *type;             /* (T) token type */
    int32_t *q_start, *kv_len; /* (S + 1), (S) */
    int32_t *pages;            /* (n_seqs, pages_ld) */
    int32_t *row;              /* (R) tokens whose logits are computed */
    int32_t *host;             /* host copy of all of the above, one block in the same order */
    int max_tokens, max_seqs, max_rows, max_pages; /* max_pages: of one sequence */
    int pad_page; /* first of the step_batch_pad_pages pages reserved for padding; -1 after open: steps are not padded
                   */
};

enum { PAGES_LD_MIN = 8 }; /* for steps that can be replayed; wider ones are rounded up to powers of two */

/* A device that replays steps keeps one captured graph per size, so there should be few sizes.  A step in which each of
 * n sequences has one token and no adapter is padded to step_batch_padded(n, max_seqs) sequences: 1, 2, 4, 8, then
 * multiples of 8 to 64, of 16 to 128, of 32 to 256, of 64; at most max_seqs.  The rows of logits likewise.  Kernels
 * that are selected by the number of rows change at the ends of these size classes (a GEMM variant takes at most 8, 16,
 * 32 or 64 rows, kernels/cuda/gemm/packed_gemm.h and mma_int.cu), so padding does not change a row's bits.  In GEMMs by
 * cuBLASLt a row has the bits of the padded size. */
int step_batch_padded(int n, int max_seqs);
/* @return the number of KV pages that padding rows write to. */
int step_batch_pad_pages(int max_seqs);

/* @return the bytes of a batch on the device. */
size_t step_batch_bytes(int max_tokens, int max_seqs, int max_rows, int max_pages);
/* @return 0 or ERR_NOMEM */
int step_batch_open(struct step_batch *, struct dev *, int max_tokens, int max_seqs, int max_rows, int max_pages);
/* The same for sizes that a later call may change: opens it where it is not open with just these.  @return 0 or
 * ERR_NOMEM */
int step_batch_sized(struct step_batch *, struct dev *, int max_tokens, int max_seqs, int max_rows, int max_pages);
void step_batch_close(struct step_batch *, struct dev *);
/* n_tokens, n_seqs and n_rows are the sums over the n sequences, or padded; the sequences' rows come first, in their
 * order.  Adjacent sequences with the same adapter become one group, so the caller should sort by adapter. */
void step_batch_build(struct step_batch *, struct dev *, const struct step_batch_seq *, int n);
/* Builds a step of n dummy texts of one token.  Only while no sequence has pages, since it writes to the first n slots
 * of the KV cache. */
void step_batch_blank(struct step_batch *, struct dev *, int n, int pages_ld);
/* The integers of a step on the host, from b->host on: all that step_batch_send copies to the device. */
size_t step_batch_ints(const struct step_batch *);
void step_batch_send(struct step_batch *, struct dev *);
/* Whether every sequence has one token and no adapter, so that the step can be replayed. */
bool step_batch_decodes(const struct step_batch *);
/* Makes `to` the batch of rows [row, row + n) of another one, of the same size, without rows of logits.  The rows of a
 * sequence before them are taken to be computed. */
void step_batch_rows(const struct step_batch *, struct dev *, int row, int n, struct step_batch *to);

/* The adapter groups that change a GEMM's output in rows [row0, row0 + rows), to b->lora with rows relative to row0.
 * @return their number; valid until the next call. */
int step_batch_lora(const struct step_batch *b, int layer, enum layer_gemm, int row0, int rows);
/* The same of the LM head, of all rows of logits. */
int step_batch_lora_head(const struct step_batch *b);
/* @return the end of the run of rows from `row` in which an adapter changes the GEMM for all rows, or for none
 * (*changed). */
int step_batch_run(const struct step_batch *b, int layer, enum layer_gemm, int row, bool *changed);

#endif
