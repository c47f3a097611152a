/* What the tests of training ops share: every op has one function that runs it on a device from a flat array of inputs
 * to a flat array of results. */
#ifndef TANDEM_TESTS_OPS_TRAIN_RUN_H
#define TANDEM_TESTS_OPS_TRAIN_RUN_H

#include "tests/ops/harness.h"

/* What an op's case may need; each op reads its own. */
struct shape {
    int T, C;           /* rows, features */
    int H, G, D, rot;   /* heads */
    int window, n_seqs; /* sequences */
    int32_t q_start[8];
    int kind; /* of norm or activation */
    bool back, accumulate, in_place;
    int pad;       /* ld - cols of every matrix */
    float softcap; /* of scores, of logits; 0: none */
    float scale;   /* of logits, with softcap; 0: 1 */
    bool both;     /* attention: not causal */
    bool apart;    /* norms of heads: a weight for each */
    int by_head;   /* attention: so many query heads a call; 0: all in one */
    bool sinks;    /* attention */
};

/* Of a backward op: in is what the forward op read (n_x) and dy (n_y); out begins with the gradient by what it read
 * (n_x).  forward computes y (n_y) from that n_x. */
struct train_op {
    const char *name;
    void (*run)(struct dev *, const struct shape *, const float *in, float *out);
    void (*forward)(struct dev *, const struct shape *, const float *x, float *y);
    size_t (*n_x)(const struct shape *);
    size_t (*n_y)(const struct shape *);
    size_t (*n_more)(const struct shape *); /* results besides; NULL: none */
};

extern const struct train_op norm_back_op, head_norm_back_op, rope_op, attn_seq_op, attn_back_op, act_mul_back_op,
    act_back_op, cross_entropy_op, dropout_op;

size_t size_TC(const struct shape *);
size_t size_qkv(const struct shape *);
size_t size_head_weight(const struct shape *); /* of the norms of heads */
void dropout_at(struct dev *, const struct shape *, const float *x, float *y); /* p 0.3, row0 = window */
void rope_at(struct dev *, const struct shape *, const float *x, float *y, bool back);

/* ---- device memory of one run ---- */

struct bed {
    struct dev *d;
    int pad, n;
    void *p[16];
};

void *bed_put(struct bed *, const void *host, size_t bytes); /* host NULL: zeros */
/* rows ld apart; host NULL: of NaN, which an op that reads it cannot hide */
struct mat bed_mat(struct bed *, const float *host, int rows, int cols);
/* Copies to out what a device has, checks the gaps between rows; returns what follows in out. */
float *bed_take(struct bed *, const struct mat *, float *out);
float *bed_take_floats(struct bed *, const void *from, size_t n, float *out);
void bed_end(struct bed *, const char *label); /* frees all, and checks that the device has no error */

/* adamw_8bit_test.c: all bits of two steps of adamw_8bit; the last words are 0. */
enum { ADAMW_8BIT_N = 50001, ADAMW_8BIT_FLOATS = ADAMW_8BIT_N + 2 * 196 + ADAMW_8BIT_N / 2 + 2 };
void adamw_8bit_bits(struct dev *, float out[ADAMW_8BIT_FLOATS]);

#endif
