/* The device interface: what the engine may ask of a device, and the contract of every op.
 *
 * Continuous batching flattens everything: an activation is a matrix of T tokens by C features, and the ragged
 * structure (the sequence of each token, its position, the KV pages) lies in index arrays. So an op takes a few
 * `struct mat`, a few index arrays and scalars. There are about thirty ops, each about as large as what a good
 * device does in one parallel region or one launch.
 *
 * Rules that hold for every op:
 *  - It returns void and may only enqueue. The first failure stays in the device (dev_error) and is read at the end of
 *    the step; the forward pass itself has no error handling.
 *  - **The result for one row depends on that row alone**: not on the other rows, their number, the number of
 *    threads, or how a prompt was split into chunks. Bit for bit, on the cpu device.
 *  - All activations are f32, row-major, rows `ld` elements apart. No two arguments alias unless the op says so.
 *  - Pointers are device pointers from alloc (on a CPU: ordinary memory), index arrays included. What describes an op
 *    is in host memory: the args themselves, groups and parts of lora, rows of sample with the lists they point to.
 *    The op copies it before it returns.
 *  - A device is used by one thread at a time (the engine's).
 *
 * Devices: `ref` (naive, double accumulation: the definition of every op), `cpu`, `cuda`, and `simt`, which is
 * cuda's sources run on the CPU. A device may leave a fused op NULL: dev_open then fills it in with a composition of
 * basic ops (compose.c). */
#ifndef TANDEM_KERNELS_OPS_H
#define TANDEM_KERNELS_OPS_H

#include "kernels/comm.h"
#include "kernels/num.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* rows x cols elements of type t; rows are ld elements apart (ld >= cols).  A view: owns nothing. */
struct mat {
    void *p;
    enum dtype t;
    int rows, cols, ld;
};

enum { KV_PAGE = 16 }; /* tokens in a KV page */
enum {
    WEIGHT_SLICE = 32
}; /* unit of the bounds of a slice of a weight's outputs: both are multiples of it, or the last output */

/* ---- weights ------------------------------------------------------------------------------------------------- */

/* One weight matrix in the canonical, device-independent form, W[rows = outputs][cols = inputs], row-major:
 *   DT_F32/BF16/F16  data only
 *   DT_I8            data int8 in [-127, 127]; scale f32 [rows];                          w = data * scale[row]
 *   DT_I4            data [rows][ceil(cols/group) * group / 2] bytes, even column in the low nibble, each nibble
 *                    0..15 meaning nibble - 8 (padding columns hold 8);
 *                    scale f16 [rows][ceil(cols/group)];                                  w = (nibble - 8) * scale
 *   DT_NF4           data rows * cols / 2 bytes, even column in the high nibble (bitsandbytes' order);
 *                    scale f32 [rows][cols / 64];                      w = nf4_code[nibble] * scale, rounded to f32
 *   DT_BLOCK         data [rows][cols] codes, a byte each; the rest is in `block`
 *   DT_F8            data uint8 [rows][cols] e4m3 codes, none of them NaN (0x7f, 0xff);
 *                    scale f32 [rows][ceil(cols/group)], [rows] with group 0;    w = e4m3(code) * scale, rounded to f32
 * group is 32, 64 or 128 for DT_I4, 64 for DT_NF4, 0 or a multiple of 16 for DT_F8, and 0 otherwise; cols of DT_NF4 is
 * a multiple of 64. */
struct weight_src {
    enum dtype t;
    int rows, cols, group;
    const void *data;  /* borrowed until weight_pack returns */
    const void *scale; /* likewise; NULL for float types and DT_BLOCK */
    bool gate_up;      /* of all parts: two with equal rows, gate and up; only op gate_up takes the weight then */
    const struct weight_block *block; /* DT_BLOCK only; borrowed like data */
};

/* DT_BLOCK: integers with a scale, and perhaps a minimum, for each group of columns, which may themselves be small
 * integers times the float of a larger group: what the quantisers of other programs store (GGUF, AWQ, GPTQ, MXFP4...).
 *
 *     w[r][k] = value[code[r][k]] * scale[r][k / group] - minimum[r][k / group]
 *     scale[r][g] = super_scale[r][s] * sub_scale[r][g],  minimum[r][g] = super_min[r][s] * sub_min[r][g],
 *                   s = g * group / super
 *
 * each operation rounded to f32. Parts of one weight may differ in everything here but the order. A row's last group
 * and last super group may be short.
 *
 * With an order (GPTQ's act-order), k counts the columns as they are stored: column k is the weight of input order[k].
 * The device stores them so, and puts x into that order before it quantises it. Weights of experts have none. */
struct weight_block {
    int bits;                 /* 2..8: codes are below 1 << bits */
    const int8_t *value;      /* [1 << bits] what each code stands for */
    int group;                /* columns: 16, 32, 64 or 128 */
    int super;                /* columns, a multiple of group; more than cols is one super group */
    const int8_t *sub_scale;  /* [rows][ceil(cols / group)]; NULL: all 1 */
    const float *super_scale; /* [rows][ceil(cols / super)] */
    const uint8_t *sub_min;   /* as sub_scale; NULL: all 1 */
    const float *super_min;   /* as super_scale; NULL: no minimum, and sub_min is NULL too */
    const uint32_t *order;    /* [cols] a permutation of the inputs, the same in all parts; NULL: k is the input */
};

struct weight; /* packed in the device's own layout; opaque */

/* ---- KV cache ------------------------------------------------------------------------------------------------ */

/* t is DT_F32, DT_F16, DT_BF16 or DT_I8 (one f32 scale per token, head and k/v: amax / 127). */
struct kv_shape {
    int layers, pages, kv_heads, head_dim;
    enum dtype t;
};

struct kv; /* all layers and pages of one pool; opaque */

/* ---- op arguments -------------------------------------------------------------------------------------------- */

enum norm_kind { NORM_RMS, NORM_LAYER };
/* ACT_SWIGLU_CLAMPED is of gated ops alone, and of gate and up together (GptOssExperts of Hugging Face's transformers):
 * with g = min(gate, 7),  g * sigmoid(1.702 g) * (clamp(up, -7, 7) + 1)  in place of act(gate) * up. */
enum act_kind { ACT_SILU, ACT_GELU_TANH, ACT_GELU_ERF, ACT_RELU, ACT_SWIGLU_CLAMPED };

/* out[t] = table[id[t]] * scale + (pos_table ? pos_table[pos[t]] : 0).   out (T, C) f32; table (V, C), pos_table (P,
 * C) any float type; id, pos (T) in range. With w, packed (V, C), the table is w and `table` is ignored: a value is
 * what struct weight_src says, rounded to f32. The multiplication by `scale` is rounded to f32 too. */
struct embed_args {
    struct mat out, table, pos_table; /* pos_table.p NULL: none */
    const int32_t *id, *pos;
    const struct weight *w; /* NULL: none */
    float scale;            /* 0: 1 */
};

/* out = norm(x) * w + b over each row. x, out (T, C) may be the same matrix; w, b (C) f32, b NULL for none. RMS: x /
 * sqrt(mean(x^2) + eps). LAYER: (x - mean) / sqrt(var + eps), var with divisor C.
 *
 * next (cols C), or NULL: the weight of the linear or gate_up that will read `out` next, as a whole or in ranges of
 * rows. A hint: the device may already quantise the rows for that GEMM. It does not change results, and costs time
 * only when the GEMM does not follow. */
struct norm_args {
    struct mat out, x;
    const float *w, *b;
    float eps;
    enum norm_kind kind;
    const struct weight *next;
};

/* x += y; out = norm(x). x, y, out (T, C); out aliases neither. next: as in norm_args.
 *
 * With post_w (C), x += norm(y), of the same kind and eps, with the weight post_w and the bias post_b (C, or NULL);
 * y is not changed. The bits are those of norm of y, then add_norm. */
struct add_norm_args {
    struct mat out, x, y;
    const float *w, *b;
    float eps;
    enum norm_kind kind;
    const struct weight *next;
    const float *post_w, *post_b; /* NULL: none */
};

/* x += y.  (T, C) */
struct add_args {
    struct mat x, y;
};

/* y = x W^T + b. x (T, K), y (T, N), w packed (N, K), b (N) f32 or NULL. With a gate_up weight y is (T, 2F), gate
 * first.
 *
 * Float weights: x is used as it is, except with DT_BF16 and DT_F8 on a device opened with bf16_x: x is rounded to bf16
 * first, as everything in a model that runs in bf16 is, and k is summed in pairs. With DT_F8 the scale may multiply
 * sums of x times the codes' values. DT_NF4 weights are multiplied as the floats that they represent: on the cpu device
 * y has the bits that DT_F32 weights of the same values give. A device with rounds_more, opened with bf16_x, may also
 *  - for DT_F8: round the weight's values to bf16 first
 *  - for DT_NF4: round x and the weight's values (or those of nf4_code, before the scale is applied) to bf16 first, as
 *    bitsandbytes does for a model in bf16
 *  - for DT_F16: round x to f16 first; a row whose largest magnitude is not in [1, 2^15) is scaled to [2^14, 2^15) by a
 *    power of two before, and back after (by no more than 2^126)
 *
 * DT_I8, DT_I4 and DT_BLOCK weights: x is quantised per row first, a = round_half_even(x * (127 / amax)), and
 *  - I8: y = (sum_k a w) * (amax/127) * scale[n]           (the integer sum is exact)
 *  - I4: y = (sum over groups g in order of (sum_{k in g} a (nibble - 8)) * scale[n][g]) * (amax/127)
 *  - BLOCK: y = (sum over groups g in order of (sum_{k in g} a value[code]) * scale[n][g]
 *                                            - (sum_{k in g} a) * minimum[n][g]) * (amax/127)
 *    where the sums over k are exact, and each of the two terms is added to the sum with one rounding
 *
 * A row of zeros gives b (amax below 2^-100 counts as zero); a row with a NaN or an infinity gives NaN. In an
 * outlier row, one with amax > 64 mean |x| (in f32), quantisation would leave little of the other values: its
 * residual r = x - a * (amax/127) is quantised likewise with its own amax, multiplied by W too, and the result added
 * to the first.
 *
 * A slice: y and b are of the outputs first .. first + N - 1 of w alone, which is not a gate_up weight; the same
 * bits. */
struct linear_args {
    struct mat y, x;
    const struct weight *w;
    const float *b;
    int first;
};

/* y = act(x Wg^T + bg) * (x Wu^T + bu): linear, then act_mul, with the gate first in w (2F rows, packed as gate_up)
 * and in b (2F, or NULL). x (T, K), y (T, F); tmp (T, 2F) is scratch for devices that need two steps; its p may be
 * NULL when the device's fused_gate_up is set. */
struct gate_up_args {
    struct mat y, x;
    const struct weight *w;
    const float *b;
    enum act_kind act;
    struct mat tmp;
};

/* ---- experts: a mixture of experts sends each token through k of E feed-forwards ---- */

enum { EXPERTS_MAX = 1024, EXPERTS_CHOSEN_MAX = 64 };

/* Chooses the k experts of each token and sorts the T k choices by expert, then by token: in the order of the choices,
 * row r of the experts' GEMMs is token[r], and rows start[e] .. start[e + 1] - 1 are those of expert e.
 *
 * logits (T, E), weight (T, k); expert, place (T, k), token (T k), start (E + 1); k <= E.  The chosen are those with
 * the largest logits, the lowest id on a tie, a NaN below all numbers; expert[t] lists them by ascending id, place[t]
 * has the rows of the choices, and weight[t] their part of softmax(logits[t]): over all experts, or with `normalise`
 * over the chosen.  NaN for a row with a NaN or +infinity, or with nothing finite. */
struct route_args {
    struct mat logits, weight;
    int32_t *expert, *place, *token, *start;
    bool normalise;
};

/* linear for rows sorted by expert: rows start[e] .. start[e + 1] - 1 of y = those of x W_e^T + b_e.  x (R, K), y (R,
 * N); w: n packed weights (N, K) of one type and group, without an order of columns, in host memory; b (n, N) f32 or
 * NULL; start (n + 1) from route, from 0 to R.  With gate_up weights y is (R, 2F).  On the cpu device the bits are
 * those of linear. */
struct experts_linear_args {
    struct mat y, x;
    const struct weight *const *w;
    const float *b;
    const int32_t *start;
    int n;
};

/* gate_up likewise: y (R, F), tmp (R, 2F) as in gate_up_args. */
struct experts_gate_up_args {
    struct mat y, x;
    const struct weight *const *w;
    const float *b;
    const int32_t *start;
    int n;
    enum act_kind act;
    struct mat tmp;
};

/* y[t] = sigmoid(gate[t]) * shared[t] + weight[t][0] * x[place[t][0]] + weight[t][1] * x[place[t][1]] ..., added in
 * this order, which is that of the experts' ids.  x (T k, C), y (T, C); weight (T, k), weight.p NULL: 1; place (T, k);
 * shared (T, C), which may be y, shared.p NULL: none; gate (T, 1), gate.p NULL: a factor of 1. */
struct combine_args {
    struct mat y, x, weight;
    const int32_t *place;
    int k;
    struct mat shared, gate;
};

/* In place on the columns [col, col + heads * head_dim) of x: norm of each head's slice of each row (the norms of q and
 * k).  w, b (head_dim) f32, or with by_head (heads, head_dim): those of each head; b NULL for none. */
struct head_norm_args {
    struct mat x;
    int col, heads, head_dim;
    const float *w;
    float eps;
    enum norm_kind kind;
    const float *b;
    bool by_head;
};

/* qkv (T, (heads + 2 kv_heads) * head_dim), q then k then v.  Rotates the first `rot` features of each q and k head
 * in place (half-split pairs (i, i + rot/2), as Hugging Face does; rot 0: none) by the angle pos * inv_freq[i], read
 * from cos, sin (max_pos, rot/2) f32 at row pos[t]; then stores k and v of token t into page slot[t] / KV_PAGE, index
 * slot[t] % KV_PAGE, of layer `layer` of kv.
 *
 * With `rounds`, qkv then holds what attn computes with, for training: k and v as the cache holds them, and, with a
 * bf16 cache, q rounded to bf16.  What the cache holds, and so what attn gives, is the same without. */
struct rope_kv_args {
    struct mat qkv;
    int heads, kv_heads, head_dim, rot;
    const float *cos, *sin;
    const int32_t *pos, *slot;
    struct kv *kv;
    int layer;
    bool rounds;
};

/* Causal attention over the paged cache; rope_kv has stored the tokens' own k, v before. Rows q_start[s] ..
 * q_start[s+1]-1 of qkv and out are the last tokens of sequence s: the last of them is at position kv_len[s] - 1. A
 * token at position p sees positions max(0, p - window + 1) .. p (window 0: all). pages (n_seqs, pages_ld): page
 * numbers of each sequence in order. qkv as in rope_kv, only q is read; out (T, heads * head_dim).
 *
 * score = (q . k) * scale; with softcap, score = softcap * tanh((q . k) * scale / softcap), before masking. With a
 * bf16 cache q is rounded to bf16, and so may be each softmax weight before it multiplies v.
 *
 * With sinks, the softmax of head h has one more score, sinks[h], which is neither scaled nor capped and has no value:
 * it takes part of the weight, and nothing is added for it.
 *
 * With lse (T, heads): the natural log of the sum of exp(score), as op attn_seq's.  `out` has the same bits without. */
struct attn_args {
    struct mat out, qkv;
    int heads, kv_heads, head_dim, window;
    float scale;
    int n_seqs;
    const int32_t *q_start, *kv_len, *pages;
    int pages_ld;
    const struct kv *kv;
    int layer;
    int most_rows;      /* upper bound of the rows of a sequence; 0: the host does not know one */
    float softcap;      /* 0: none */
    const float *sinks; /* (heads) f32; NULL: none */
    struct mat lse;     /* p NULL: not wanted */
};

/* out = act(gu[:, :F]) * gu[:, F:].   gu (T, 2F), out (T, F). */
struct act_mul_args {
    struct mat out, gu;
    enum act_kind act;
};

/* x = act(x) in place; act is not ACT_SWIGLU_CLAMPED. */
struct act_args {
    struct mat x;
    enum act_kind act;
};

/* x = cap * tanh(x * scale / cap) in place; cap 0: x *= scale.  (R, V) logits, before sample or cross_entropy. */
struct softcap_args {
    struct mat x;
    float scale, cap;
};

/* out[r] = x[row[r]].   out (R, C), x (T, C), row (R). */
struct rows_args {
    struct mat out, x;
    const int32_t *row;
};

struct token_add {
    int32_t id;
    float add; /* -INFINITY bans the token */
};

struct token_count {
    int32_t id;
    int32_t generated; /* times in the generated text; 0 for a token only in the prompt */
};

enum { SAMPLE_TOP_MAX = 32 };

/* How to choose the next token of one row.  In this order, on a copy of the logits:
 *  0. with `allowed`: the logit of every token whose bit is not set becomes -infinity (and stays so)
 *  1. logit[adds[i].id] += adds[i].add
 *  2. for each id in `counts` (distinct ids): repetition != 1: logit = logit < 0 ? logit * r : logit / r;
 *     then logit -= frequency * generated + (generated > 0 ? presence : 0)
 *  3. temperature 0 (greedy): the largest logit, the lowest id on a tie.  Otherwise p = softmax(logit / temperature)
 * and candidates are cut, in the order of (p descending, id ascending): top_k > 0: the first top_k;  then renormalise;
 * typical_p in (0,1): the smallest set, by ascending | -log p - entropy |, whose mass reaches typical_p;  renormalise;
 * top_p in (0,1): the smallest prefix whose mass reaches top_p;  min_p > 0: those with p >= min_p * largest p.  At
 * least one always stays.
 *  4. u = rng_uniform(seed, step); the choice is the first id, in ascending order of id, at which the running sum of
 *     p over the candidates exceeds u * (their sum).
 * forced >= 0 skips 0-4: that id is "chosen" (prompt log-probabilities).
 * Log-probabilities reported are those of the model: log_softmax of the logits before step 0. */
struct sample_row {
    float temperature, top_p, min_p, typical_p; /* off: top_p 1, min_p 0, typical_p 1 */
    int32_t top_k;                              /* off: 0 */
    float repetition, frequency, presence;      /* off: 1, 0, 0 */
    uint64_t seed, step;
    int32_t forced; /* -1: choose */
    int32_t top_n;  /* most likely tokens to report, 0..SAMPLE_TOP_MAX */
    int32_t n_adds, n_counts;
    const struct token_add *adds;
    const struct token_count *counts;
    const uint32_t
        *allowed; /* ((V + 31) / 32) token i: bit i % 32 of word i / 32; bits past V are ignored; NULL: all */
};

/* Values of `id` when no token was chosen. */
enum {
    SAMPLE_NONE = -1,   /* after step 2 every logit is -infinity: mask, bans and penalties left no token */
    SAMPLE_BROKEN = -2, /* a NaN or +infinity, at first or after step 2, or at first no finite logit */
};

struct sample_out {
    int32_t id;    /* the token, SAMPLE_NONE or SAMPLE_BROKEN */
    float logprob; /* of id; NaN where it is no token */
    int32_t rank;  /* of a forced id among the logits before step 0: 1 is the likeliest; ties by ascending id; else 0 */
    int32_t top_id[SAMPLE_TOP_MAX];
    float top_logprob[SAMPLE_TOP_MAX]; /* descending; ties by ascending id; places past top_n: id -1, NaN */
};

/* logits (R, V); row, out (R), host memory; `out` is written when finish returns, or earlier. */
struct sample_args {
    struct mat logits;
    const struct sample_row *row;
    struct sample_out *out;
};

/* ---- training ------------------------------------------------------------------------------------------------ */

#include "kernels/train_ops.h"

/* ---- the device ---------------------------------------------------------------------------------------------- */

/* one list: the vtable, the names, the tracer, the checks and the op table of the tests */
#define OPS(X)                                                                                                         \
    X(embed)                                                                                                           \
    X(norm)                                                                                                            \
    X(add_norm)                                                                                                        \
    X(add)                                                                                                             \
    X(linear)                                                                                                          \
    X(gate_up)                                                                                                         \
    X(route)                                                                                                           \
    X(experts_linear)                                                                                                  \
    X(experts_gate_up)                                                                                                 \
    X(combine)                                                                                                         \
    X(head_norm) X(rope_kv) X(attn) X(act_mul) X(act) X(softcap) X(rows) X(sample) TRAIN_OPS(X)

enum op_id {
#define X(op) OP_##op,
    OPS(X)
#undef X
        OP_COUNT
};

struct dev;

struct dev_error {
    const char *op; /* NULL: none */
    char msg[160];
    bool lost; /* the device itself has failed: see dev_ops.lost */
};

struct dev_config {
    const char *name; /* "cpu" (NULL likewise), or a level of it: "cpu:portable", "cpu:avx2"...; "cuda", "cuda:1";
                         "auto": cuda where it can be used, else cpu; "ref"; "simt" */
    int threads;      /* 0: one per available core */
    bool bf16_x;      /* round x to bf16 for bf16 weights: see linear_args */
    /* For a device that has its own memory: how much of it the process may use. */
    size_t memory_bytes;    /* 0: memory_fraction decides */
    double memory_fraction; /* of what is free now, (0, 1]; 0: 0.9 */
};

/* Of a device's own memory, in bytes. */
struct dev_memory {
    size_t total, budget; /* of the device; what this process may use */
    size_t used;          /* allocated, everything included */
    size_t scratch;       /* part of `used`: scratch of ops, and staging memory for copies */
    size_t largest;       /* free: the largest single alloc that would succeed */
};

struct comm_device_id {
    char v[128];
};

struct dev_ops {
    const char *name;
    bool fused_gate_up; /* gate_up and experts_gate_up do not use tmp */
    bool
        host_memory; /* device pointers are ordinary pointers, so a read-only table may stay where the file is mapped */
#define X(op) void (*op)(struct dev *, const struct op##_args *);
    OPS(X)
#undef X
    /* Packs n_parts matrices of equal type, group and cols, stacked by rows into one. @return NULL when out of
     * memory or unsupported (cols of nf4 no multiple of 64, groups of fp8 none of 16; a struct weight_block
     * that block_error of block.h refuses; on cpu also an int8 weight of -128, or int8 rows longer than 2^16). */
    struct weight *(*weight_pack)(struct dev *, const struct weight_src *parts, int n_parts);
    void (*weight_free)(struct dev *, struct weight *);
    /* Overwrites a weight of floats with other values of the same shape: f32 parts, rounded to the weight's type;
     * or, when `chunks` divides the weight into ranges of about equal size, only range number `chunk`. The weight
     * must not be borrowed. For training; enqueued like an op. */
    void (*weight_update)(struct dev *, struct weight *, const struct weight_src *parts, int n_parts, int chunk,
                          int chunks);
    size_t (*weight_bytes)(const struct weight *);
    /* Packed bytes in a file. layout: the name of their format, which changes when it does; NULL: the device has no
     * such format, and the two functions are NULL. */
    const char *layout;
    /* @return a weight's packed bytes, valid until it is freed. */
    const void *(*weight_packed)(const struct weight *, size_t *bytes);
    /* Makes a weight from bytes packed before, which remain the caller's and must stay unchanged until weight_free;
     * 64-byte aligned. data and scale of `shape` are ignored. @return NULL when out of memory or when the size is
     * not what `shape` needs. */
    struct weight *(*weight_open)(struct dev *, const struct weight_src *shape, const void *packed, size_t bytes);

    bool bf16_units;                                  /* GEMMs are faster in bf16 than in f32 */
    bool rounds_more;                                 /* rounds for f16, nf4 and fp8 weights: linear_args */
    enum dtype kv_type;                               /* the 16-bit cache type that the device computes fastest with */
    size_t (*kv_page_bytes)(const struct kv_shape *); /* of one page over all layers, k and v */
    struct kv *(*kv_open)(struct dev *, const struct kv_shape *);
    void (*kv_close)(struct dev *, struct kv *);
    /* Copy a page, kv_page_bytes of it in the device's own layout, to host memory and back, with all its bits. Enqueued
     * like upload and download: `host` of kv_load is free when it returns, that of kv_save is written when finish
     * returns. */
    void (*kv_save)(struct dev *, const struct kv *, int page, void *host);
    void (*kv_load)(struct dev *, struct kv *, int page, const void *host);

    void *(*alloc)(struct dev *, size_t bytes); /* 64-byte aligned, zeroed; NULL when it does not fit */
    void (*free)(struct dev *, void *);
    void (*upload)(struct dev *, void *device, const void *host, size_t bytes);
    void (*download)(struct dev *, void *host, const void *device, size_t bytes);
    /* Runs fn(ctx, 0 .. threads - 1) once on each of the device's threads, at the same time; NULL: it has one. */
    void (*on_threads)(struct dev *, void (*fn)(void *ctx, int thread), void *ctx);
    /* Binds the calling thread, which becomes the device's, to cpus[0] and the device's other threads to the
     * following ones, wrapping around after n. @return 0, or -1 when the system refuses one. NULL: the device has no
     * threads. */
    int (*pin)(struct dev *, const int *cpus, int n);
    int (*finish)(struct dev *); /* waits for everything enqueued; 0, or -1 with dev_error set */
    void (*close)(struct dev *);

    /* The rest is for devices that have their own memory; NULL elsewhere. */

    void (*memory)(struct dev *, struct dev_memory *); /* may be called by any thread */
    /* Page-locked memory of the host that the caller, too, may read and write while nothing that uses it is enqueued.
     * Ops take it as if it were the device's, at the speed of the bus. 64-byte aligned, zeroed; NULL when there is
     * none. */
    void *(*alloc_host)(struct dev *, size_t bytes);
    void (*free_host)(struct dev *, void *);          /* waits for the device */
    void (*zero)(struct dev *, void *, size_t bytes); /* enqueued like an op */
    /* Dry run: calls fn(ctx), which enqueues the largest work that is to come, with any pointers. Ops record the
     * scratch they need, nothing is launched. The device allocates the scratch now and never later: an op that needs
     * more fails. May be called again, with other work. @return 0, or -1 with dev_error set. */
    int (*reserve)(struct dev *, void (*fn)(void *ctx), void *ctx);
    /* Runs fn(ctx) through a CUDA graph. fn must enqueue the same ops with the same args whenever key is the same,
     * and must not send anything from host memory. The first call with a key runs fn directly (which may autotune),
     * the second captures a graph, later ones launch the graph. */
    void (*replay)(struct dev *, uint64_t key, void (*fn)(void *ctx), void *ctx);
    int replay_ms;   /* start-up time for capturing graphs in advance, ms; 0: capturing there is too slow */
    int replay_most; /* graphs kept; beyond that the least recently used are dropped */
    /* Call when everything that stays has been allocated: reserves the rest of the budget from the system, as one
     * range if possible. What the system lacks or needs itself is removed from the budget. From now until the device
     * is closed, alloc and free work inside the reserved memory, without system calls; `used` still counts what
     * alloc gave. Scratch that reserve allocates later is kept separate until trim, so that the pointers in captured
     * graphs stay valid. */
    void (*hold)(struct dev *);
    /* Frees the scratch that reserve allocated since hold; the work it was for has been enqueued. */
    void (*trim)(struct dev *);
    /* Exchanges with the devices of other ranks: comm_device.h, which calls these; NULL: the device has none.
     * comm_prepare: on each rank, before comm_open with rank 0's id. @return false, with a sentence in why[]. */
    bool (*comm_prepare)(struct dev *, struct comm_device_id *, char why[COMM_WHY_BYTES]);
    bool (*comm_open)(struct dev *, struct comm *, const struct comm_device_id *, char why[COMM_WHY_BYTES]);
    void (*comm_close)(struct dev *); /* also done by close */
    void (*comm_join)(struct dev *, struct mat part, struct mat whole);
    void (*comm_collect)(struct dev *, struct mat part, struct mat whole);
    const char *(*comm_name)(const struct dev *);
    /* Whether an error is permanent: every op fails from now on, and only another process may use the device. */
    bool (*lost)(const struct dev *);
};

/* The common head of every device; the implementation's own fields follow. */
struct dev {
    const struct dev_ops *ops;
    struct dev_error error; /* the first failure; sticky until dev_clear_error */
    int threads;
    bool bf16_x;    /* as opened */
    char level[16]; /* the level chosen: "avx512", "avx2", "portable"; "ref" */
    void *watch;    /* set by engine/serve/device_owner.h, or NULL */
};

/* @return NULL, with a sentence in why[], when the name is unknown or the machine lacks what it needs. When "auto"
 * falls back to the cpu, why[] says why no GPU is used. */
struct dev *dev_open(const struct dev_config *, char why[160]);
void dev_close(struct dev *);
const char *op_name(enum op_id);
__attribute__((format(printf, 3, 4))) void dev_fail(struct dev *, const char *op, const char *fmt, ...);
void dev_clear_error(struct dev *);

/* Wraps a device, which the wrapper then owns: every op's arguments are checked against the contracts above before
 * they reach it. A breach fails the device with an error that names the op and the argument, and the op is not run. */
struct dev *dev_checked(struct dev *inner);

#define X(op)                                                                                                          \
    static inline void op_##op(struct dev *d, struct op##_args a)                                                      \
    {                                                                                                                  \
        d->ops->op(d, &a);                                                                                             \
    }
OPS(X)
#undef X

static inline struct mat mat_f32(float *p, int rows, int cols)
{
    struct mat m = {p, DT_F32, rows, cols, cols};
    return m;
}

#ifdef __cplusplus
}
#endif

#endif
