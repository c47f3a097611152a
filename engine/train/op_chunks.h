/* The ops of a training step, each cut into calls as small as the gate wants them.
 *
 * What belongs to a token is cut by tokens, a product also by outputs, attention by sequences and heads: none of it
 * changes a bit of the result, by the contracts of the ops (train_ops.h), so the gate may cut as it likes.  Sums over
 * tokens, the gradients of parameters, are cut in one way that depends on shapes only, with or without a gate.  So a
 * job has the same bytes alone and beside serving.
 *
 * Each takes an op's arguments and passes the gate before each call.  Used by the trainer's thread. */
#ifndef TANDEM_ENGINE_TRAIN_OP_CHUNKS_H
#define TANDEM_ENGINE_TRAIN_OP_CHUNKS_H

#include "engine/train/scheduler_gate.h"
#include "kernels/ops.h"

struct op_chunks {
    struct dev *d;
    struct scheduler_gate *gate; /* or NULL: nothing is cut that need not be */
};

/* rows [row, row + n) of m, columns [col, col + n); m.p may be NULL */
struct mat mat_rows(struct mat m, int row, int n);
struct mat mat_cols(struct mat m, int col, int n);

/* slices: w is not a gate_up weight, and may be cut by its outputs */
void chunked_linear(struct op_chunks, struct linear_args, bool slices);
void chunked_linear_back(struct op_chunks, struct linear_back_args, bool slices);
/* A gemm without ta, by rows. */
void chunked_product(struct op_chunks, struct gemm_args);
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
void cut_softcap(struct op_chunks, struct softcap_args);
void chunked_act_mul(struct op_chunks, struct act_mul_args);
void chunked_act_back(struct op_chunks, struct act_back_args);
void chunked_act_mul_back(struct op_chunks, struct act_mul_back_args);
void chunked_dropout(struct op_chunks, struct dropout_args);
void cut_scale(struct op_chunks, struct mat, double by); /* m *= by; rows one after the other */
void chunked_zero(struct op_chunks, struct mat);         /* m = 0; rows one after the other */

/* n floats to the host, from it, between serving's steps: nothing else changes them meanwhile. */
void chunked_download(struct op_chunks, float *host, const float *device, size_t n);
void chunked_upload(struct op_chunks, float *device, const float *host, size_t n);

/* Some sequences of a micro-batch, and some heads of them, for a call of attention. */
struct chunk_seqs {
    int first, n, row, rows; /* sequences first .. first + n - 1, rows row .. row + rows - 1 */
    int head0, n_heads;
    const int32_t *q_start; /* device */
};
/* Passes the gate, and takes the next after *s, which is {0} at first; false: that were all.
 * start (n_seqs + 1): first rows, host; q_start: the same on the device; some (n_seqs + 1): device, scratch. */
bool chunked_attention(struct op_chunks, enum train_work, const struct attn_seq_args *, const int32_t *start,
                       int32_t *some, struct chunk_seqs *s);

#endif
