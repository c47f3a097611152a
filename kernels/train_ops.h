/* The ops of training: backward GEMMs with weights, dense GEMMs of f32 matrices, and the backward of the other
 * forward ops. Part of ops.h, whose rules hold here too; include that.
 *
 * There are two kinds of results. What belongs to a token (dx, dy, out, lse) is computed per row and depends on that
 * row alone (attention: on its sequence alone). What is summed over tokens (gradients of parameters, a gemm with ta)
 * is one chain of additions in an order that depends on the shapes only: the same bits for any number of threads.
 *
 * Names: x is what the forward op read, y what it wrote, dx and dy the gradients of the loss with respect to them.
 * `accumulate`: the result is added to what the destination holds. Parameter gradients (dw, db...) are always
 * accumulated; a NULL pointer means that the gradient is not computed.
 *
 * T tokens, C hidden, H heads, G kv_heads, D head_dim, F inter, V vocab, N outputs, K inputs. */
#ifndef TANDEM_KERNELS_TRAIN_OPS_H
#define TANDEM_KERNELS_TRAIN_OPS_H

/* c = alpha * op(a) op(b) (+ c).  c (M, N); op(a) (M, K) is a, or with ta the transpose of a (K, M); op(b) (K, N) is b,
 * or with tb the transpose of b (N, K).  f32.  half: a and b may be rounded to bf16 where the device was opened with
 * bf16_x; sums are f32.  Without ta, a row of c depends on that row of a alone. */
struct gemm_args {
    struct mat c, a, b;
    bool ta, tb, accumulate, half;
    float alpha;
};

enum { BACK_SLICE = 1280 }; /* outputs of a slice: linear_back sums at most one slice at once */

/* dx = dy W (+ dx).  dy (T, N), dx (T, K), w packed (N, K) of any type; of a gate_up weight N = 2F, gate first.
 * Gradients pass the quantisation of activations unchanged (straight-through). On a device opened with bf16_x, dy
 * and the weight's values may be rounded to bf16 unless w is f32.
 *
 * For a weight that is not gate_up, dy may cover the outputs first .. first + N - 1 alone, both ends at multiples of
 * BACK_SLICE or at the last output. The sum over outputs is made slice by slice, in order: calls for neighbouring
 * ranges in ascending order, all but the first with accumulate, give the bits of one call. */
struct linear_back_args {
    struct mat dx, dy;
    const struct weight *w;
    bool accumulate;
    int first;
};

/* Adds an adapter's output, y += scale * (x a^T) b^T, to columns [col, col + n) of y, for rows [row0, row0 + rows)
 * of x and y. a (r, K), b (n, r) f32. Ranges of different groups are disjoint; the parts of a group may overlap in
 * columns and are added in order. */
struct lora_part {
    const float *a, *b;
    int r, col, n;
    float scale;
};
struct lora_group {
    int row0, rows, n_parts;
    const struct lora_part *part;
};
/* y (T, N), x (T, K) */
struct lora_args {
    struct mat y, x;
    const struct lora_group *group;
    int n_groups;
};

/* The gradients through combine, of all that it read: dx (R, C), which may be x, dweight (T, k), and where they are set
 * dshared (T, C), which may be dy or shared, and dgate (T, 1). */
struct combine_back_args {
    struct mat dx, dweight, dy, x, weight;
    const int32_t *place;
    int k;
    struct mat shared, gate, dshared, dgate;
};

/* dlogits (T, E) = the gradient through route's weights, from dweight (T, k); weight (T, k) and expert (T, k) as route
 * wrote them from logits (T, E), read only without normalise.  The choice itself has no gradient. */
struct route_back_args {
    struct mat dlogits, logits, dweight, weight;
    const int32_t *expert;
    bool normalise;
};

enum { TRAIN_HEAD_MAX = 512 }; /* head_dim of the attention ops of training */

/* dx (+)= the gradient through norm(x) * w + b;  dw += sum_t dy xhat,  db += sum_t dy.  x, dx, dy (T, C); dx may be
 * dy (without accumulate). */
struct norm_back_args {
    struct mat dx, x, dy;
    const float *w;
    float eps;
    enum norm_kind kind;
    bool accumulate;
    float *dw, *db; /* (C) */
};

/* Rotates q and k of qkv (T, (H + 2G) D) in place as rope_kv does, without storing to a cache; back: by the opposite
 * angle. */
struct rope_args {
    struct mat qkv;
    int heads, kv_heads, head_dim, rot;
    const float *cos, *sin;
    const int32_t *pos;
    bool back;
};

/* Attention of whole sequences: rows q_start[s] .. q_start[s+1]-1 of qkv (after rope) are sequence s and see only each
 * other.  Causal: row i sees the rows max(first, i - window + 1) .. i (window 0: all before it and itself); both_sides:
 * also those up to min(last, i + window - 1) (window 0: all).  out (T, H D); lse (T, H) the natural log of the sum of
 * exp(score), the score as in attn_args; with sinks, the head's sink is one of the scores.  With n_heads only the query
 * heads head0 .. head0 + n_heads - 1; 0: all. */
struct attn_seq_args {
    /* on a device opened with bf16_x, q, k, v and the weights may be rounded to bf16; f32 sums */
    struct mat out, lse, qkv;
    int heads, kv_heads, head_dim, window;
    float scale;
    int n_seqs;
    const int32_t *q_start;
    int head0, n_heads;
    float softcap;      /* 0: none */
    bool both_sides;    /* not causal; attn_back has no such */
    const float *sinks; /* (heads) f32, as in attn_args; NULL: none */
};

/* dqkv (T, (H + 2G) D) = the gradient with respect to q, k and v; all columns are written. dout, out (T, H D), lse
 * as above. With n_heads, writes dq of those query heads only, and their contribution to dk and dv: the first query
 * head of a KV head overwrites it, the others add to it. Calls in ascending order of heads give the bits of one
 * call. Sinks are in lse and out already: gradients with respect to q, k and v need nothing else of them. */
struct attn_back_args {
    struct mat dqkv, dout, out, lse, qkv; /* with bf16_x, dout and the gradients of scores may be rounded too */
    int heads, kv_heads, head_dim, window;
    float scale;
    int n_seqs;
    const int32_t *q_start;
    int head0, n_heads;
    float softcap; /* as attn_seq's */
};

/* In place on columns [col, col + heads * head_dim) of dx: on entry the gradient with respect to head_norm's output,
 * on return with respect to its input. x: head_norm's input (before it ran in place). dw, db (D), or with by_head
 * (heads, D). */
struct head_norm_back_args {
    struct mat dx, x;
    int col, heads, head_dim;
    const float *w;
    float eps; /* as head_norm's, and so kind and by_head */
    float *dw;
    enum norm_kind kind;
    float *db;
    bool by_head;
};

/* dgu (T, 2F) = the gradient through act_mul; dy (T, F).  dgu may be gu.  Of a clamped value beyond its bounds: 0. */
struct act_mul_back_args {
    struct mat dgu, gu, dy;
    enum act_kind act;
};

/* dx (T, F) = dy * act'(x), x as it was before act.  dx may be dy.  act as in act_args. */
struct act_back_args {
    struct mat dx, x, dy;
    enum act_kind act;
};

/* For each row of logits (R, V): loss[r] = -log softmax(logits)[target[r]]; hit[r] = 1 where the target is the
 * largest logit (the lowest id on a tie); with `back` the row is replaced by (softmax - onehot(target)) * scale[r].
 * target -1: loss 0, hit 0, row 0. A row with a NaN or +infinity, or with nothing finite, gives loss NaN, hit 0 and
 * a row of NaN.
 *
 * When op softcap wrote the logits, with the same logit_scale and softcap, `back` gives the gradient with respect to
 * softcap's input: that of a logit z times logit_scale * (1 - (z / softcap)^2), without softcap times logit_scale. */
struct cross_entropy_args {
    struct mat logits;
    const int32_t *target;
    const float *scale; /* (R); NULL without back */
    float *loss;        /* (R) */
    int32_t *hit;       /* (R) */
    bool back;
    float logit_scale, softcap; /* 0: 1, and none */
};

/* dtable[id[t]] += dx[t] * scale (the multiplication rounded to f32), in the order of t; dpos[pos[t]] += dx[t] when
 * dpos.p is set. dx (T, C), dtable (V, C). */
struct embed_back_args {
    struct mat dtable, dpos, dx;
    const int32_t *id, *pos;
    float scale; /* as embed's; 0: 1 */
};

/* out[c] += sum_t x[t][c].  x (T, C), out (C): gradients of biases. */
struct col_sum_args {
    struct mat x;
    float *out;
};

/* x[t][c] = keep ? x[t][c] / (1 - p) : 0, keep = rng_uniform(seed, (row0 + t) * cols + c) >= p.  In place; the same
 * call on a gradient is the backward. */
struct dropout_args {
    struct mat x;
    float p;
    uint64_t seed, row0;
};

/* *sum += the sum of x[i]^2 in double.  Device memory. */
struct square_sum_args {
    const float *x;
    size_t n;
    double *sum;
};

/* Decoupled weight decay (Loshchilov and Hutter, 2019), in the order of torch.optim.AdamW: with g' = g * grad_scale
 *   p *= 1 - lr * decay;  m = beta1 m + (1 - beta1) g';  v = beta2 v + (1 - beta2) g'^2
 *   p -= lr / bias1 * m / (sqrt(v) / sqrt(bias2) + eps)          bias = 1 - beta^step
 * p, m, v, g: n f32. */
struct adamw_args {
    float *p, *m, *v;
    const float *g;
    size_t n;
    double lr, beta1, beta2, eps, decay, bias1, bias2, grad_scale; /* double: 1 - beta2 keeps its digits */
};

/* adamw with its moments in 8 bits, in blocks of 256 values from the first on, each moment of a block with a scale
 * (dynamic8.h): m by the map with signs, v by the one without.  The step is computed with the moments before they are
 * rounded; v is FLT_MAX at most.  A v / scale above 0 is not rounded to 0, but to the first entry above it: v divides,
 * and an m of a step before may be left.  p, g: n f32; m, v: n codes; the scales: one for each block begun. */
struct adamw_8bit_args {
    float *p;
    uint8_t *m, *v;
    float *m_scale, *v_scale;
    const float *g;
    size_t n;
    double lr, beta1, beta2, eps, decay, bias1, bias2, grad_scale; /* as adamw's */
};

/* y = alpha x + beta y.  With beta 0, y is not read; alpha 1 copies bits.  x, y: n f32; x may be y. */
struct axpby_args {
    float *y;
    const float *x;
    size_t n;
    double alpha, beta;
};

/* Each name here has a definition in ref, a kernel in cpu, a check and a test. */
#define TRAIN_OPS(X)                                                                                                   \
    X(gemm)                                                                                                            \
    X(linear_back)                                                                                                     \
    X(combine_back)                                                                                                    \
    X(route_back)                                                                                                      \
    X(lora)                                                                                                            \
    X(embed_back)                                                                                                      \
    X(col_sum)                                                                                                         \
    X(norm_back)                                                                                                       \
    X(rope)                                                                                                            \
    X(attn_seq)                                                                                                        \
    X(attn_back)                                                                                                       \
    X(head_norm_back)                                                                                                  \
    X(act_mul_back) X(act_back) X(cross_entropy) X(dropout) X(square_sum) X(adamw) X(adamw_8bit) X(axpby)

#endif
