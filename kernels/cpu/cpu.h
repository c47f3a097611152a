/* Internals of the cpu device: its structures, and the table of kernels that each instruction-set level provides.
 *
 * The drivers (linear.c, experts.c, attn.c, sample.c, rows.c) divide an op into tasks and contain no vector code; the
 * kernels
 * (*_impl.h, compiled once for each level by isa_*.c) run one task and know nothing of threads. Every kernel has one
 * order of operations for a row, whatever block computes it, so the levels agree bit for bit (except for subnormal
 * numbers, which the bf16 instructions treat as zero, and for bf16 products on tiles). */
#ifndef TANDEM_KERNELS_CPU_H
#define TANDEM_KERNELS_CPU_H

#include "kernels/cpu/pool.h"
#include "kernels/dev.h"
#include "kernels/dynamic8.h"

#include <pthread.h>

enum { PANEL = 16 };            /* outputs in a weight panel: the lanes of a vector */
enum { PAIR = 2 * PANEL };      /* outputs in a pair of panels */
enum { HEAD_DIM_MAX = 512 };    /* attention keeps a block of rows on the stack */
enum { ATTN_ROWS_MAX = 24 };    /* query rows (token, head) in one block */
enum { ATTN_SPLIT_PAGES = 32 }; /* context is summed in splits of 512 positions, folded in order */

/* ---- weights and KV cache ------------------------------------------------------------------------------------ */

/* Packed so that lanes are outputs, in pairs of panels: 32 outputs that one pass over k reads as a single stream.
 * Outputs are padded with zeros to whole pairs, k as written.  Layout "tandem-cpu-2", the same for every level:
 *   f32, f16     [pair][k][32]
 *   bf16         [pair][k_pad / 2][32][2]
 *   int8         [pair][k_pad / 4][32][4] bytes; then, for each output, f32 scales [pairs * 32] and int32 [pairs * 32]
 *                -128 times the sum of its weights
 *   int4         [pair][n_groups] of { f16 scales [32], [group / 8][32][4] bytes }: low nibbles are k 0..3 of the
 * eight, high nibbles k 4..7
 *   nf4          see nf4.h
 *   fp8          see f8.h
 *   block        see block.h: the pairs of a weight differ in size */
struct weight {
    enum dtype t;
    int rows, cols, group;         /* group: 0 except for int4, nf4, fp8 and block (there the smallest) */
    int pairs, k_pad, n_groups;    /* k_pad: bf16 to 2, int8 and fp8 to 4, int4 and block to whole groups; n_groups: per row */
    size_t pair_bytes, data_bytes; /* pair_bytes: of block the most */
    struct block_run *runs;        /* block: n_runs, else NULL */
    int n_runs, pair0;             /* pair0: of a slice, its first pair as runs count them */
    uint32_t *order;               /* block with an order of columns: [cols], see weight_block; else NULL */
    uint8_t *data;
    const float *scale;      /* int8: within data */
    const int32_t *bias_sum; /* int8: likewise */
    bool gate_up;            /* each pair is a panel of gate and the corresponding panel of up; rows counts both */
    struct slab *slab;       /* that data is in; NULL: data belongs to the caller of weight_open */
};

/* One block for each (layer, head, page), so that neighbouring pages of a head are read as one stream: K [head_dim][16]
 * so that a vector is the page's tokens, V [16][dim_pad], and for int8 the two rows of sixteen f32 scales.  bf16: K
 * [head_dim / 2][16][2] and V [8][dim_pad][2], in the pairs that the bf16 dot product takes. */
struct kv {
    struct kv_shape shape;
    int dim_pad;                        /* head_dim to a multiple of 16; the padding stays zero */
    size_t v_at, scale_at, block_bytes; /* within a block; block_bytes is a multiple of 64 */
    uint8_t *data;
    size_t data_bytes;
    int asked, from,
        ahead;       /* pages; the first `asked` have been requested, most recently `ahead` pages starting at `from` */
    bool populating; /* `populator` must be joined */
    pthread_t populator;
};

static inline uint8_t *kv_block(const struct kv *kv, int layer, int page, int head)
{
    return kv->data + (((size_t)layer * kv->shape.kv_heads + head) * kv->shape.pages + page) * kv->block_bytes;
}

/* ---- arguments of the kernels ----------------------------------------------------------------------------------- */

/* Rows are cut into n_blocks equal blocks that the kernels hold in registers (13 rows are 7 + 6, not 12 + 1). */
struct lin_job {
    const struct weight *w;
    struct mat y, x;
    const float *b;        /* (N) or NULL */
    bool gated;            /* op gate_up on a gate_up weight, not linear */
    enum act_kind act;     /* if gated */
    bool into, accumulate; /* into: y = alpha * x w^T (+ y with accumulate); f32 and linear_bf16_x only, no b */
    float alpha;
    const float *by;    /* NULL, or of the 32 outputs of one pair: y += x w^T * by; kernels of bf16 weights only */
    int k0, k1;         /* linear_bf16_x only: range of k, even; y holds the sums before k0 */
    bool streams;       /* as in cpu_dev */
    int n_blocks, skip; /* skip: pairs between a task and the one that the same thread probably takes next */
    /* int8, int4 and block: x quantised, zeros past K.  Of a block of R rows from row r0: [q_ld / 4][R][4] from q + r0
     * * q_ld; int4: also -8 times the sum of each group, [n_groups][R] from q_sum + r0 * n_groups; block: the sum. bf16
     * of rounded x: q is pairs of bf16 [q_ld / 2][R] from 2 * (r0 * q_ld) bytes on, q_ld counts bf16.
     * For tiles: each row's q is [q_ld] from q + row * q_stride bytes */
    size_t q_stride;
    int8_t *q;
    float *q_step; /* (T) amax / 127 */
    int32_t *q_sum;
    int q_ld;
    /* With outlier rows: (n_rows) the row of x and y of each quantised row. Of two equal entries, which are in the
     * same block, the second is the residual of the first. NULL: the rows of x, once each. */
    const int32_t *row;
    int n_rows;
};

static inline int lin_rows(const struct lin_job *j)
{
    return j->row ? j->n_rows : j->x.rows;
}

/* The row of x and y of a quantised row. */
static inline int lin_row(const struct lin_job *j, int row)
{
    return j->row ? j->row[row] : row;
}

/* Whether a quantised row is the residual of the row before it. */
static inline bool lin_is_rest(const struct lin_job *j, int row)
{
    return j->row && row > 0 && row < j->n_rows && j->row[row] == j->row[row - 1];
}

static inline int lin_block_row(const struct lin_job *j, int block)
{
    int row = (int)((int64_t)lin_rows(j) * block / j->n_blocks);
    return row - lin_is_rest(j, row);
}

/* Computes row blocks block0 .. block1 by pairs of panels pair0 .. pair1. */
typedef void lin_fn(const struct lin_job *, int block0, int block1, int pair0, int pair1);

struct cpu_dev;

enum { LIN_TILE_ROWS = 32, LIN_TILE_LEAST = 9 }; /* rows of a block; fewer rows than the least are faster on vectors */

/* A job divided into tasks, for the drivers of linear and of experts. */
struct lin_run {
    struct lin_job job;
    const struct isa *isa;
    lin_fn *tiles; /* NULL: on vectors */
    int pairs_per_task, blocks_per_task, pair_tasks;
    bool rounded;      /* x is in q: quantised, or rounded to bf16 */
    int slice, slices; /* columns per quantising task, and slices per row */
    bool *outlier;     /* (T) found by the first quantisation */
    bool expand;       /* block and fp8 weights: pairs are expanded in the worker's scratch */
    const struct scratch *worker;
};
pool_fn lin_quantise_task, lin_task; /* ctx: a lin_run */

enum { LIN_EXPAND_BLOCKS = 3 }; /* from this many row blocks on, block weights are expanded first */
static inline bool lin_expands(enum dtype t, int blocks_per_task)
{
    return t == DT_F8 || (t == DT_BLOCK && blocks_per_task >= LIN_EXPAND_BLOCKS);
}
/* Scratch for an expanded pair of w, for each worker. */
bool lin_expand_room(struct cpu_dev *, const struct weight *);
/* Chooses the kernels of a run whose job has its weight and the rows of x, and cuts these into blocks. */
void lin_cut_rows(struct lin_run *, const struct cpu_dev *);
/* The most rows of a block. */
int lin_most_rows(const struct lin_run *);
/* The bytes of a quantised or rounded row, from the first to the next; sets the job's q_ld and q_stride. */
size_t lin_row_bytes(struct lin_run *);
/* From a row for tiles to the next, where each has that many bytes. */
size_t lin_tile_stride(size_t bytes);
/* Rounds columns from .. to - 1 of a row of n to bf16, with zeros past n; from and to: multiples of 16. */
void lin_halve_row(const struct isa *, uint16_t *out, const float *x, int n, int from, int to);

/* Types of weights that are multiplied with quantised activations; those that also need the sums of groups. */
static inline bool lin_is_grouped(enum dtype t)
{
    return t == DT_I4 || t == DT_BLOCK;
}

/* Types whose products round x to bf16 on a device opened with bf16_x. */
static inline bool lin_is_half(enum dtype t)
{
    return t == DT_BF16 || t == DT_F8;
}

static inline bool lin_is_int(enum dtype t)
{
    return t == DT_I8 || lin_is_grouped(t);
}

/* A row's attention over one split of the context: weights are relative to max. */
struct attn_part {
    float max;                     /* of the scores; -INFINITY when the row sees nothing of the split, nor a sink */
    _Alignas(64) float sum[PANEL]; /* of the weights, lane = position in the page */
    float out[HEAD_DIM_MAX];       /* of the weights times V */
};

/* Query rows of one sequence that share a KV head, counted (token, head in group); row r is at position
 * pos0 + r / group. */
struct attn_block {
    const struct attn_args *a;
    const int32_t *pages; /* of the sequence */
    int kv_head, group;   /* group: query heads per KV head */
    int token0, pos0;     /* the sequence's first row of qkv, and that token's position */
    int row0, n_rows;
    const struct attn_block *then; /* what the same thread probably does next; NULL: nothing, or unknown */
};

/* Kernels of the backward GEMMs (train_gemm_impl.h). */
struct isa_gemm {
    int dot_rows; /* `dot` is most efficient with a multiple of this many rows */
    /* to[c * ld_to + r] = from[r * ld_from + c] */
    void (*transpose)(float *to, int ld_to, const float *from, int ld_from, int rows, int cols);
    /* c = alpha x w^T (+ c): c (rows, n), x (rows, K), w (n, K), each chain in sixteen lanes along k */
    void (*dot)(struct mat c, struct mat x, const float *w, int ld_w, float alpha, bool accumulate);
    /* A panel of op(b), columns first .. first + 31 (zeros past N) by k0 .. k1 - 1: [k][32] f32, or with half the pairs
     * of a bf16 weight. `tile`: 32 x 32 floats for itself. */
    void (*panel_of)(void *panel, bool half, const struct mat *b, bool transposed, int first, int k0, int k1,
                     float *tile);
    /* A panel of a transposed weight: its columns first .. first + 31 by its outputs in pairs pair0 .. pair1 - 1, in
     * packed order. int8 values are left as integers, without their scale. */
    void (*panel_back)(void *panel, bool half, const struct weight *w, int first, int pair0, int pair1, float *tile);
    /* Reorders one row of dy (the next is ld further) to the packed order of outputs in pairs pair0 .. pair1 - 1;
     * multiplies by int8 scales. */
    void (*gather)(float *out, const struct weight *w, const float *dy, int ld, int pair0, int pair1);
    /* Converts R rows of n columns to bf16 in pairs: out[k / 2 * R + r]; an odd n is padded with a zero. */
    void (*halve_rows)(uint32_t *out, int R, const float *x, int ld, int n);
    /* The same for a transposed matrix: R columns of n rows at x, rows ld apart. */
    void (*halve_columns)(uint32_t *out, int R, const float *x, int ld, int n);
    void (*col_sum)(float *out, const struct mat *x, int from, int to); /* columns from .. to */
    void (*pack)(uint8_t *pair, enum dtype t, const float *const row[PAIR],
                 int K); /* a pair of a weight; NULL: zeros */
};

enum { TILE = 64 }; /* query rows, and keys, of a block of attention in training */

/* Shared by the blocks of one head in one sequence. Keys and values are packed in blocks of TILE, zeros past the
 * sequence's end and past head_dim, block j at + j * stride floats: k, v [TILE][dim_pad]; k_t, v_t [head_dim][TILE]. */
struct attn_head {
    int head_dim, dim_pad, window;
    int rows;                       /* of the sequence, when its rows see both sides; 0: causal */
    float scale, softcap;           /* softcap 0: none */
    float sink;                     /* forward: one more score; -INFINITY: none */
    const float *k, *k_t, *v, *v_t; /* forward: k_t and v; back: k, k_t and v_t */
    size_t stride;
    float *dk, *dv; /* backward: (rows of the sequence, dim_pad) this head's contributions to dk and dv */
};

/* Rows row0 .. row0 + n - 1 of the sequence, at most TILE, row0 a multiple of it; copies, with zeros past head_dim. */
struct attn_tile {
    const struct attn_head *head;
    int row0, n;
    float *q, *out;    /* [TILE][dim_pad]; back: out is dq */
    float *p;          /* [TILE][TILE], scratch; back: two of them */
    float lse[TILE];   /* forward: result */
    const float *dout; /* [TILE][dim_pad] */
    float delta[TILE]; /* the sum of dout * out */
};

/* One row of norm_back_args; dx may be dy. dw, db: sums to which the row is added, NULL: none. */
struct norm_back_row {
    float *dx;
    const float *x, *dy, *w;
    int n;
    float eps;
    enum norm_kind kind;
    bool accumulate;
    float *dw, *db;
};

/* One row of dropout_args: element i is kept when the top 53 bits of rng_at(seed, first + i) are `from` or more. */
struct dropout_row {
    uint64_t seed, first, from;
    float by; /* 1 / (1 - p) */
};

enum { SUM_ROWS = 32 };          /* rows of which a parameter's gradient is one chain of additions */
enum { SQUARE_BLOCK = 1 << 14 }; /* elements whose squares are one chain of additions */

struct isa {
    const char *name;
    int attn_rows, block_rows[DT_COUNT]; /* most rows of a block */
    enum dtype kv_type;
    bool bf16_units;
    lin_fn *linear[DT_COUNT], *linear_bf16_x; /* linear_bf16_x: x rounded to bf16 */
    /* of block weights; expanded: scratch for a pair as block_wide says, for many row blocks, or NULL */
    void (*linear_block)(const struct lin_job *, int block0, int block1, int pair0, int pair1, uint8_t *expanded);
    /* of fp8 weights; rounded: x rounded to bf16; widened: scratch for a pair as bf16 weights are packed */
    void (*linear_f8)(const struct lin_job *, int block0, int block1, int pair0, int pair1, bool rounded,
                      uint8_t *widened);
    void (*halve)(uint16_t *out, enum dtype t, const float *x, int n); /* writes up to a multiple of 16 */
    void (*halve_block)(uint32_t *out, int R, const float *x, int n, int from, int to);
    void (*quantise)(int8_t *q, float *step, const float *x, int n);
    bool (*quantise_block)(int8_t *q, int R, float *step, int32_t *sums, int times, int group, const float *x, int n,
                           int from, int to, bool rest);
    void (*attn_split)(const struct attn_block *, int split, struct attn_part *part); /* n_rows parts */
    void (*attn_merge)(struct attn_part *into, const struct attn_part *part, int dim_pad);
    float (*attn_finish)(float *out, const struct attn_part *part, int head_dim); /* returns the sum of the weights */
    void (*norm)(float *out, const float *x, int n, const float *w, const float *b, float eps, enum norm_kind kind);
    void (*add)(float *x, const float *y, int n);
    void (*act)(float *x, int n, enum act_kind act);
    void (*act_mul)(float *out, const float *gu, int n, enum act_kind act);
    void (*embed)(float *out, const void *row, enum dtype t, float scale, const void *pos_row, enum dtype pos_t, int n);
    void (*softcap)(float *x, int n, float scale, float cap); /* x = tanh(x * scale) * cap */
    void (*rope)(float *head, int rot, const float *cosines, const float *sines);
    float (*row_max)(const float *z, int n);                                     /* NaN when there is a NaN */
    void (*exp_scaled)(float *p, const float *z, int n, float max, float inv_t); /* exp((z - max) inv_t) */
    double (*exp_sum)(const float *z, int n, float max, float inv_t);            /* their sum */
    int (*find_ge)(const float *z, int from, int n, float at_least); /* first index >= from with z >= at_least, or n */
    struct isa_gemm gemm;
    void (*rope_back)(float *head, int rot, const float *cosines, const float *sines);
    void (*norm_back)(const struct norm_back_row *);
    void (*act_back)(float *dx, const float *x, const float *dy, int n, enum act_kind act);
    void (*act_mul_back)(float *dgu, const float *gu, const float *dy, int n, enum act_kind act);
    double (*exp_in_place)(float *z, int n, float max); /* z = exp(z - max); their sum */
    void (*scale)(float *x, int n, float by);
    void (*loss_capped)(float *z, int n, float max, float by, float cap, float scale); /* see train_rows_impl.h */
    float (*dot)(const float *x, const float *y, int n);
    void (*dropout)(float *x, int n, const struct dropout_row *);
    double (*square_sum)(const float *x, size_t n); /* one chain of additions: n <= SQUARE_BLOCK */
    void (*adamw)(const struct adamw_args *, size_t from, size_t to);
    void (*adamw_8bit)(const struct adamw_8bit_args *, const struct dynamic8 tables[2], size_t from, size_t to);
    void (*axpby)(float *y, const float *x, size_t n, float alpha, float beta);
    void (*attn_tile)(struct attn_tile *);
    void (*attn_tile_back)(struct attn_tile *); /* query blocks of a head in order */
};

extern const struct isa isa_portable, isa_avx2, isa_avxvnni, isa_avx512, isa_avx512bf16, isa_neon, isa_i8mm,
    isa_neonbf16;
/* GEMMs on tile registers, beside a level's own.  Blocks have up to LIN_TILE_ROWS rows, of which they read that many each.
 * i8: the same bits as the level's own.  bf16: as linear_bf16_x, in another order of sums, so that it computes all rows;
 * k0 and k1 are multiples of TILE_K, but for the end. */
struct tile_kernels {
    lin_fn *i8, *bf16;
};
enum { TILE_K = 32 };
extern const struct tile_kernels tiles_amx;

/* ---- the device ---------------------------------------------------------------------------------------------- */

/* Scratch that grows to the largest use and is kept. */
struct scratch {
    void *p;
    size_t bytes;
};

struct cpu_dev {
    struct dev head;
    struct dev_ops ops;
    const struct isa *isa;
    const struct tile_kernels *tiles; /* or NULL */
    bool streams;                     /* weights that are read once are best prefetched past the caches */
    struct pool *pool;
    struct scratch quant, outliers, experts, attn, train, panels;
    struct scratch transposed; /* with panels: for the backward GEMMs */
    struct scratch ordered;    /* x or dx in the order of a weight's columns */
    struct scratch *worker;    /* [threads] */
    struct slab *slabs;        /* of the weights; the first is being filled */
    struct dynamic8 tables[2]; /* of optimizer states in 8 bits: with signs, and without */
};

static inline struct cpu_dev *cpu_of(struct dev *d)
{
    return (struct cpu_dev *)d;
}

static inline float *mat_row(const struct mat *m, int row)
{
    return (float *)m->p + (size_t)row * m->ld;
}

/* Runs the tasks on the pool, or on the calling thread when `ns`, an estimate of one core's time for all of them, is
 * not worth waking workers. */
void cpu_run(struct cpu_dev *, pool_fn *, void *ctx, int n_tasks, double ns);

/* Arguments of an op over independent rows. */
struct rows_run {
    const struct isa *isa;
    const void *args;
    void (*row)(const struct rows_run *, int t);
    int rows, rows_per_task;
};
/* Runs row(run, 0 .. rows - 1) on the pool. ns: an estimate of one row's time on one core. */
void rows_run(struct dev *, void (*row)(const struct rows_run *, int), const void *args, int rows, double ns);

/* x in the order of w's columns, in d->ordered; p is NULL when out of memory. */
struct mat order_columns(struct dev *, const struct weight *w, const struct mat *x);
/* The reverse: the columns of `from`, which are in w's order, to the inputs' places in x. */
void order_inputs(struct dev *, const struct weight *w, struct mat *x, const struct mat *from);

void *scratch_get(struct scratch *, size_t bytes); /* contents are lost; NULL: out of memory */
void *cpu_map(size_t bytes);                       /* zeroed, 64-byte aligned, huge pages where large; NULL */
void cpu_populate(void *p, size_t bytes);          /* makes mapped memory resident now, if the kernel can; any thread */
void cpu_unmap(void *, size_t bytes);

/* A mapping that weights share, filled from the front. A mapping for each weight would end in small pages, and of an
 * expert's few megabytes they would be the most: reading them costs an address translation for every 4 KB. */
struct slab {
    struct slab *next;
    uint8_t *p;
    size_t bytes, used;
    int weights; /* in it, not given back */
};
/* Takes `bytes` of zeroed memory, 64-byte aligned, from a slab of the list or a new one, and sets *p. @return the slab;
 * NULL: out of memory. */
struct slab *slab_take(struct slab **list, size_t bytes, uint8_t **p);
void slab_give(struct slab **list, struct slab *); /* gives one weight back; the last one unmaps the slab */

void cpu_embed(struct dev *, const struct embed_args *);
void cpu_norm(struct dev *, const struct norm_args *);
void cpu_add_norm(struct dev *, const struct add_norm_args *);
void cpu_add(struct dev *, const struct add_args *);
void cpu_linear(struct dev *, const struct linear_args *);
void cpu_gate_up(struct dev *, const struct gate_up_args *);
void cpu_route(struct dev *, const struct route_args *);
void cpu_experts_linear(struct dev *, const struct experts_linear_args *);
void cpu_experts_gate_up(struct dev *, const struct experts_gate_up_args *);
void cpu_combine(struct dev *, const struct combine_args *);
void cpu_head_norm(struct dev *, const struct head_norm_args *);
void cpu_rope_kv(struct dev *, const struct rope_kv_args *);
void cpu_attn(struct dev *, const struct attn_args *);
void cpu_act_mul(struct dev *, const struct act_mul_args *);
void cpu_act(struct dev *, const struct act_args *);
void cpu_softcap(struct dev *, const struct softcap_args *);
void cpu_rows(struct dev *, const struct rows_args *);
void cpu_sample(struct dev *, const struct sample_args *);
#define X(op) void cpu_##op(struct dev *, const struct op##_args *);
TRAIN_OPS(X)
#undef X

struct weight *cpu_weight_pack(struct dev *, const struct weight_src *parts, int n_parts);
void cpu_weight_free(struct dev *, struct weight *);
void cpu_weight_update(struct dev *, struct weight *, const struct weight_src *parts, int n_parts, int chunk,
                       int chunks);
/* Returns w; or in *slice its outputs first .. first + n - 1 as a weight that borrows w's memory. */
const struct weight *weight_slice(const struct weight *w, int first, int n, struct weight *slice);
size_t cpu_weight_bytes(const struct weight *);
const void *cpu_weight_packed(const struct weight *, size_t *bytes);
struct weight *cpu_weight_open(struct dev *, const struct weight_src *shape, const void *packed, size_t bytes);
void weight_row(const struct weight *, int row, float *out); /* row as cols floats, see embed_args */
size_t cpu_kv_page_bytes(const struct kv_shape *);
struct kv *cpu_kv_open(struct dev *, const struct kv_shape *);
void cpu_kv_close(struct dev *, struct kv *);
void cpu_kv_save(struct dev *, const struct kv *, int page, void *host);
void cpu_kv_load(struct dev *, struct kv *, int page, const void *host);

#endif
