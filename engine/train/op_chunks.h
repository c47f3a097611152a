/* The ops of a training step, each split into calls no longer than the scheduler gate allows.
 *
 * Per-token ops are split by tokens, linear layers also by outputs, attention by sequences and heads.  By the contracts
 * of the ops (train_ops.h) none of these splits changes a bit of the result, so the gate may choose any.  Sums over
 * tokens (parameter gradients) are split by shape alone, with or without a gate.  So a job writes the same bytes
 * whether or not requests are served beside it.
 *
 * Each function takes the arguments of its op and passes the gate before each call.  Trainer thread. */
#ifndef TANDEM_ENGINE_TRAIN_OP_CHUNKS_H
#define TANDEM_ENGINE_TRAIN_OP_CHUNKS_H

#include "engine/train/op_watch.h"
#include "engine/train/scheduler_gate.h"
#include "kernels/ops.h"

struct op_chunks {
    struct dev *d;
    struct scheduler_gate *gate; /* NULL: only copies and sums over tokens are split */
    struct op_watch *watch;      /* sees what each of the ops wrote; NULL: none */
};

/* rows [row, row + n) of m, columns [col, col + n); m.p may be NULL */
struct mat mat_rows(struct mat m, int row, int n);
struct mat mat_cols(struct mat m, int col, int n);

/* slices: may be split by outputs, which a gate_up weight may not */
void chunked_linear(struct op_chunks, struct linear_args, bool slices);
void chunked_linear_back(struct op_chunks, struct linear_back_args, bool slices);
/* A GEMM without ta, split by rows. */
void chunked_gemm(struct op_chunks, struct gemm_args);
/* dw (n, k) += alpha dy^T x, the sum over tokens.  dy (T, n), x (T, k) */
void chunked_weight_grad(struct op_chunks, float *dw, struct mat dy, struct mat x, float alpha, bool half);
void chunked_col_sum(struct op_chunks, struct col_sum_args); /* out NULL: nothing */
void chunked_norm_back(struct op_chunks, struct norm_back_args);
void chunked_head_norm_back(struct op_chunks, struct head_norm_back_args);
void chunked_cross_entropy(struct op_chunks, struct cross_entropy_args);

void chunked_embed(struct op_chunks, struct embed_args);
void chunked_embed_back(struct op_chunks, struct embed_back_args);
void chunked_norm(struct op_chunks, struct norm_args);
void chunked_add(struct op_chunks, struct add_args);
void chunked_rows(struct op_chunks, struct rows_args);
void chunked_head_norm(struct op_chunks, struct head_norm_args);
void chunked_rope(struct op_chunks, struct rope_args);
void chunked_act(struct op_chunks, struct act_args);
void chunked_softcap(struct op_chunks, struct softcap_args);
void chunked_act_mul(struct op_chunks, struct act_mul_args);
void chunked_act_back(struct op_chunks, struct act_back_args);
void chunked_act_mul_back(struct op_chunks, struct act_mul_back_args);
void chunked_dropout(struct op_chunks, struct dropout_args);
void chunked_scale(struct op_chunks, struct mat, double by); /* m *= by; rows contiguous */
void chunked_zero(struct op_chunks, struct mat);             /* m = 0; rows contiguous */

/* Copy n floats to or from the host.  Steps of serving may run between the chunks: nothing else may change the floats
 * until the copy returns. */
void chunked_download(struct op_chunks, float *host, const float *device, size_t n);
void chunked_upload(struct op_chunks, float *device, const float *host, size_t n);

/* A chunk of a micro-batch's attention: a range of sequences and a range of heads. */
struct chunk_seqs {
    int first, n, row, rows; /* sequences first .. first + n - 1, rows row .. row + rows - 1 */
    int head0, n_heads;
    const int32_t *q_start; /* device */
};
/* Passes the gate and sets *s, {0} before the first call, to the next chunk.  @return false when there is none left.
 * start (n_seqs + 1): the first row of each sequence, on the host; some (n_seqs + 1): scratch on the device, to which
 * s->q_start may point until the next call. */
bool chunked_attention(struct op_chunks, enum train_work, const struct attn_seq_args *, const int32_t *start,
                       int32_t *some, struct chunk_seqs *s);

#endif
