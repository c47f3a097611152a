/* The ops of a training step, each cut into calls as small as the gate wants them.
 *
 * What belongs to a token is cut by tokens, a product also by outputs, attention by sequences and heads: none of it
 * changes a bit of the result, by the contracts of the ops (train_ops.h), so the gate may cut as it likes.  Sums over
 * tokens, the gradients of parameters, are cut in one way that depends on shapes only, with or without a gate.  So a
 * job has the same bytes alone and beside serving.
 *
 * Each takes an op's arguments and passes the gate before each call.  Used by the trainer's thread. */
#ifndef TANDEM_ENGINE_TRAIN_CUT_H
#define TANDEM_ENGINE_TRAIN_CUT_H

#include "engine/train/gate.h"
#include "kernels/ops.h"

struct cut {
    struct dev *d;
    struct train_gate *gate; /* or NULL: nothing is cut that need not be */
};

/* rows [row, row + n) of m, columns [col, col + n); m.p may be NULL */
struct mat mat_rows(struct mat m, int row, int n);
struct mat mat_cols(struct mat m, int col, int n);

/* slices: w is not a gate_up weight, and may be cut by its outputs */
void cut_linear(struct cut, struct linear_args, bool slices);
void cut_linear_back(struct cut, struct linear_back_args, bool slices);
/* A gemm without ta, by rows. */
void cut_product(struct cut, struct gemm_args);
/* dw (n, k) += alpha dy^T x, the sum over tokens.  dy (T, n), x (T, k) */
void cut_weight_grad(struct cut, float *dw, struct mat dy, struct mat x, float alpha, bool half);
void cut_col_sum(struct cut, struct col_sum_args); /* out NULL: nothing */
void cut_norm_back(struct cut, struct norm_back_args);
void cut_head_norm_back(struct cut, struct head_norm_back_args);
void cut_cross_entropy(struct cut, struct cross_entropy_args);

void cut_embed(struct cut, struct embed_args);
void cut_embed_back(struct cut, struct embed_back_args);
void cut_norm(struct cut, struct norm_args);
void cut_add(struct cut, struct add_args);
void cut_rows(struct cut, struct rows_args);
void cut_head_norm(struct cut, struct head_norm_args);
void cut_rope(struct cut, struct rope_args);
void cut_act(struct cut, struct act_args);
void cut_act_mul(struct cut, struct act_mul_args);
void cut_act_back(struct cut, struct act_back_args);
void cut_act_mul_back(struct cut, struct act_mul_back_args);
void cut_dropout(struct cut, struct dropout_args);
void cut_zero(struct cut, struct mat); /* m = 0; rows one after the other */

/* n floats to the host, from it, between serving's steps: nothing else changes them meanwhile. */
void cut_download(struct cut, float *host, const float *device, size_t n);
void cut_upload(struct cut, float *device, const float *host, size_t n);

/* Some sequences of a micro-batch, and some heads of them, for a call of attention. */
struct cut_seqs {
    int first, n, row, rows; /* sequences first .. first + n - 1, rows row .. row + rows - 1 */
    int head0, n_heads;
    const int32_t *q_start; /* device */
};
/* Passes the gate, and takes the next after *s, which is {0} at first; false: that were all.
 * start (n_seqs + 1): first rows, host; q_start: the same on the device; some (n_seqs + 1): device, scratch. */
bool cut_attention(struct cut, enum train_work, const struct attn_seq_args *, const int32_t *start, int32_t *some,
                   struct cut_seqs *s);

#endif
