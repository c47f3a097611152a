/* The drivers of attention in training: keys and values are packed, queries are divided into blocks of rows, and
 * gradients are written back.
 *
 * Forward, a task is one block of query rows of one head. Backward, it is one head of one sequence: dk and dv of a
 * KV head are sums over the rows of all its query heads; each query head makes its own sums, block by block, and
 * these are added in order, in one call or in several calls for some of the heads each. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { WAVE_ROWS = 1024 }; /* backward: sums are kept for so many rows at a time, or for one longer sequence */

/* Sequences seq0 .. seq1 - 1 of the arguments, which are those of the forward or of the backward. */
struct attn_train {
    const struct isa *isa;
    struct cpu_dev *d;
    struct attn_seq_args a;
    const struct mat *dqkv, *dout; /* backward only */
    int seq0, seq1, dim_pad;
    int head0, heads, kv0, kv_heads; /* the query heads of this call, and the KV heads they read */
    int units, units_per_task;       /* of the current run */
    int *block0;                     /* (n_seqs + 1) blocks of TILE rows in the sequences before, from seq0 on */
    float *keys;                     /* packed: (blocks, kv_heads of this call, stride) */
    size_t stride;
    float *sums; /* (2, heads of this call, blocks * TILE, dim_pad): dk, then dv */
};

static void heads_open(struct attn_train *r)
{
    int group = r->a.heads / r->a.kv_heads;
    r->head0 = r->a.head0;
    r->heads = r->a.n_heads ? r->a.n_heads : r->a.heads;
    r->kv0 = r->head0 / group;
    r->kv_heads = (r->head0 + r->heads - 1) / group + 1 - r->kv0;
}

static int seq_rows(const struct attn_train *r, int s)
{
    return r->a.q_start[s + 1] - r->a.q_start[s];
}

/* The sequence that contains block `block`. */
static int block_seq(const struct attn_train *r, int block)
{
    int low = r->seq0, high = r->seq1; /* the last sequence whose first block is <= block; never an empty one */
    while (high - low > 1) {
        int mid = low + (high - low) / 2;
        *(r->block0[mid] <= block ? &low : &high) = mid;
    }
    return low;
}

/* Copies n rows of a head, from column `col` on, to contiguous rows, with zeros past head_dim. */
static void rows_take(float *to, const struct mat *m, int row0, int n, size_t col, int head_dim, int dim_pad)
{
    for (int r = 0; r < n; r++, to += dim_pad) {
        memcpy(to, mat_row(m, row0 + r) + col, (size_t)head_dim * sizeof *to);
        for (int c = head_dim; c < dim_pad; c++) to[c] = 0;
    }
}

static void rows_give(const struct mat *m, int row0, int n, size_t col, const float *from, int head_dim, int dim_pad)
{
    for (int r = 0; r < n; r++, from += dim_pad)
        memcpy(mat_row(m, row0 + r) + col, from, (size_t)head_dim * sizeof *from);
}

/* Transposes rows [TILE][dim_pad] to [head_dim][TILE]. */
static void rows_transpose(float *to, const float *from, int head_dim, int dim_pad)
{
    for (int c0 = 0; c0 < head_dim; c0 += 16)
        for (int r = 0; r < TILE; r++)
            for (int c = c0; c < c0 + 16 && c < head_dim; c++) to[(size_t)c * TILE + r] = from[(size_t)r * dim_pad + c];
}

/* Packs the keys and values of one block and KV head: see struct attn_head. */
static void pack_unit(const struct attn_train *r, int unit)
{
    int block = unit / r->kv_heads, g = r->kv0 + unit % r->kv_heads, s = block_seq(r, block), D = r->a.head_dim;
    int row0 = (block - r->block0[s]) * TILE, left = seq_rows(r, s) - row0, n = left < TILE ? left : TILE;
    size_t k_col = (size_t)(r->a.heads + g) * D, v_col = (size_t)(r->a.heads + r->a.kv_heads + g) * D;
    size_t rows = (size_t)TILE * r->dim_pad, transposed = (size_t)TILE * D;
    float *plain = r->keys + (size_t)unit * r->stride, *k_t = plain + rows, *v_t = k_t + transposed;
    int first = r->a.q_start[s] + row0;
    memset(plain, 0, rows * sizeof *plain);
    if (r->dqkv) { /* v_t, using the memory of k as scratch */
        rows_take(plain, &r->a.qkv, first, n, v_col, D, r->dim_pad);
        rows_transpose(v_t, plain, D, r->dim_pad);
    }
    rows_take(plain, &r->a.qkv, first, n, k_col, D, r->dim_pad);
    rows_transpose(k_t, plain, D, r->dim_pad);
    if (!r->dqkv) rows_take(plain, &r->a.qkv, first, n, v_col, D, r->dim_pad);
}

/* The shared data of query head h of sequence s. */
static struct attn_head head_open(const struct attn_train *r, int s, int h)
{
    int g = h / (r->a.heads / r->a.kv_heads), D = r->a.head_dim;
    size_t unit = (size_t)r->block0[s] * r->kv_heads + (g - r->kv0), rows = (size_t)TILE * r->dim_pad;
    const float *keys = r->keys + unit * r->stride;
    struct attn_head head = {.head_dim = D,
                             .dim_pad = r->dim_pad,
                             .window = r->a.window,
                             .rows = r->a.both_sides ? seq_rows(r, s) : 0,
                             .scale = r->a.scale,
                             .softcap = r->a.softcap,
                             .sink = r->a.sinks ? r->a.sinks[h] : -INFINITY,
                             .k = keys,
                             .v = keys,
                             .k_t = keys + rows,
                             .v_t = keys + rows + (size_t)TILE * D,
                             .stride = r->stride * r->kv_heads};
    if (r->dqkv) {
        size_t all = (size_t)r->block0[r->seq1] * TILE * r->dim_pad;
        head.dk = r->sums + (h - r->head0) * all + (size_t)r->block0[s] * rows;
        head.dv = head.dk + r->heads * all;
    }
    return head;
}

/* Size of a worker's memory for one block: q, out, dout, p, and backward a second p. */
static size_t tile_bytes(const struct attn_train *r)
{
    return ((size_t)3 * TILE * r->dim_pad + (r->dqkv ? 2 : 1) * TILE * TILE) * sizeof(float);
}

/* Lays out a tile in the worker's memory; returns dout. */
static float *tile_open(const struct attn_train *r, struct attn_tile *t, int worker)
{
    size_t rows = (size_t)TILE * r->dim_pad;
    float *mem = r->d->worker[worker].p;
    t->q = mem;
    t->out = mem + rows;
    t->p = mem + 3 * rows;
    return mem + 2 * rows;
}

static void tile_unit(const struct attn_train *r, int unit, int worker)
{
    const struct attn_seq_args *a = &r->a;
    int block = unit / r->heads, h = r->head0 + unit % r->heads, s = block_seq(r, block), D = a->head_dim;
    int row0 = (block - r->block0[s]) * TILE, left = seq_rows(r, s) - row0, first = a->q_start[s] + row0;
    struct attn_head head = head_open(r, s, h);
    struct attn_tile t = {.head = &head, .row0 = row0, .n = left < TILE ? left : TILE};
    tile_open(r, &t, worker);
    rows_take(t.q, &a->qkv, first, t.n, (size_t)h * D, D, r->dim_pad);
    r->isa->attn_tile(&t);
    rows_give(&a->out, first, t.n, (size_t)h * D, t.out, D, r->dim_pad);
    for (int i = 0; i < t.n; i++) mat_row(&a->lse, first + i)[h] = t.lse[i];
}

static void back_unit(const struct attn_train *r, int unit, int worker)
{
    const struct attn_seq_args *a = &r->a;
    int s = r->seq0 + unit / r->heads, h = r->head0 + unit % r->heads, D = a->head_dim;
    struct attn_head head = head_open(r, s, h);
    struct attn_tile t = {.head = &head};
    float *dout = tile_open(r, &t, worker);
    t.dout = dout;
    for (t.row0 = 0; t.row0 < seq_rows(r, s); t.row0 += TILE) {
        int left = seq_rows(r, s) - t.row0, first = a->q_start[s] + t.row0;
        t.n = left < TILE ? left : TILE;
        rows_take(t.q, &a->qkv, first, t.n, (size_t)h * D, D, r->dim_pad);
        rows_take(dout, r->dout, first, t.n, (size_t)h * D, D, r->dim_pad);
        rows_take(t.out, &a->out, first, t.n, (size_t)h * D, D, r->dim_pad);
        for (int i = 0; i < t.n; i++) {
            size_t at = (size_t)i * r->dim_pad;
            t.lse[i] = mat_row(&a->lse, first + i)[h];
            t.delta[i] = r->isa->dot(dout + at, t.out + at, r->dim_pad);
        }
        r->isa->attn_tile_back(&t);
        rows_give(r->dqkv, first, t.n, (size_t)h * D, t.out, D, r->dim_pad);
    }
}

/* Adds dk and dv of one block of rows and KV head: the sums of its query heads, in order, after those of earlier
 * calls. */
static void fold_unit(const struct attn_train *r, int unit)
{
    const struct attn_seq_args *a = &r->a;
    int block = unit / r->kv_heads, g = r->kv0 + unit % r->kv_heads, s = block_seq(r, block), D = a->head_dim;
    int group = a->heads / a->kv_heads, row0 = (block - r->block0[s]) * TILE, left = seq_rows(r, s) - row0;
    int n = left < TILE ? left : TILE, from = g * group, end = from + group;
    bool begun = from < r->head0;
    from = begun ? r->head0 : from;
    end = end < r->head0 + r->heads ? end : r->head0 + r->heads;
    size_t all = (size_t)r->block0[r->seq1] * TILE * r->dim_pad;
    for (int k = 0; k < 2; k++) { /* dk, dv */
        size_t first = (size_t)k * r->heads + (from - r->head0), col = (size_t)(a->heads + k * a->kv_heads + g) * D;
        float *sum = r->sums + first * all + (size_t)block * TILE * r->dim_pad;
        for (int i = 0; begun && i < n; i++)
            r->isa->add(sum + (size_t)i * r->dim_pad, mat_row(r->dqkv, a->q_start[s] + row0 + i) + col, D);
        for (int h = 1; h < end - from; h++) r->isa->add(sum, sum + h * all, n * r->dim_pad);
        rows_give(r->dqkv, a->q_start[s] + row0, n, col, sum, D, r->dim_pad);
    }
}

#define UNIT_TASK(name, call)                                                                                          \
    static void name##_task(void *ctx, int task, int worker)                                                           \
    {                                                                                                                  \
        const struct attn_train *r = ctx;                                                                              \
        for (int i = 0; i < r->units_per_task; i++) {                                                                  \
            int unit = task * r->units_per_task + i;                                                                   \
            if (unit < r->units) call;                                                                                 \
        }                                                                                                              \
    }
UNIT_TASK(pack, pack_unit(r, unit))
UNIT_TASK(tile, tile_unit(r, r->units - 1 - unit, worker)) /* longest blocks first */
UNIT_TASK(back, back_unit(r, unit, worker))
UNIT_TASK(fold, fold_unit(r, unit))

static void units_run(struct attn_train *r, pool_fn *task, int units, double ns)
{
    r->units = units;
    r->units_per_task = 1 + units / (r->d->head.threads * 64);
    cpu_run(r->d, task, r, (units + r->units_per_task - 1) / r->units_per_task, ns);
}

/* Prepares sequences seq0 .. seq1 - 1: packs them, and for the backward allocates the sums. */
static bool wave_open(struct attn_train *r, const char *op, int seq0, int seq1)
{
    struct cpu_dev *d = r->d;
    int blocks = 0, G = r->kv_heads, D = r->a.head_dim;
    for (int s = seq0; s < seq1; s++) blocks += (seq_rows(r, s) + TILE - 1) / TILE;
    r->seq0 = seq0, r->seq1 = seq1;
    r->stride = (size_t)TILE * (r->dim_pad + (r->dqkv ? 2 : 1) * D);
    r->stride = (r->stride + 15) / 16 * 16;
    size_t index = ((size_t)r->a.n_seqs + 1) * sizeof(int), keys = (size_t)blocks * G * r->stride * sizeof(float);
    size_t sums = r->dqkv ? (size_t)2 * r->heads * blocks * TILE * r->dim_pad * sizeof(float) : 0;
    index = (index + 63) / 64 * 64;
    char *mem = scratch_get(&d->train, index + keys + sums);
    for (int i = 0; mem && i < d->head.threads; i++)
        if (!scratch_get(&d->worker[i], tile_bytes(r))) mem = NULL;
    if (!mem) {
        dev_fail(&d->head, op, "out of memory");
        return false;
    }
    r->block0 = (int *)mem;
    r->keys = (float *)(mem + index);
    r->sums = (float *)(mem + index + keys);
    blocks = 0;
    for (int s = seq0; s < seq1; s++) {
        r->block0[s] = blocks;
        blocks += (seq_rows(r, s) + TILE - 1) / TILE;
    }
    r->block0[seq1] = blocks;
    units_run(r, pack_task, blocks * G, (double)blocks * G * TILE * D * 2);
    return true;
}

/* Multiply-adds per feature of head_dim for sequences seq0 .. seq1 - 1 and the heads of this call. */
static double wave_macs(const struct attn_train *r)
{
    double scores = 0;
    for (int s = r->seq0; s < r->seq1; s++) {
        double n = seq_rows(r, s), sides = r->a.both_sides ? 2 : 1, seen = n / 2 * sides;
        if (r->a.window && r->a.window < n) seen = fmin(n, r->a.window * sides);
        scores += n * (seen + TILE / 2.0);
    }
    return scores * r->heads * r->dim_pad;
}

void cpu_attn_seq(struct dev *head, const struct attn_seq_args *a)
{
    struct cpu_dev *d = cpu_of(head);
    struct attn_train r = {.isa = d->isa, .d = d, .a = *a, .dim_pad = (a->head_dim + 15) / 16 * 16};
    heads_open(&r);
    if (a->qkv.rows == 0 || !wave_open(&r, "attn_seq", 0, a->n_seqs)) return;
    units_run(&r, tile_task, r.block0[r.seq1] * r.heads, wave_macs(&r) * 2 / 20);
}

void cpu_attn_back(struct dev *head, const struct attn_back_args *b)
{
    struct cpu_dev *d = cpu_of(head);
    struct attn_train r = {.isa = d->isa, .d = d, .dqkv = &b->dqkv, .dout = &b->dout};
    r.a = (struct attn_seq_args){b->out,   b->lse,    b->qkv,     b->heads, b->kv_heads, b->head_dim, b->window,
                                 b->scale, b->n_seqs, b->q_start, b->head0, b->n_heads,  b->softcap};
    heads_open(&r);
    r.dim_pad = (b->head_dim + 15) / 16 * 16;
    for (int seq0 = 0, seq1; seq0 < b->n_seqs; seq0 = seq1) {
        for (seq1 = seq0 + 1; seq1 < b->n_seqs && b->q_start[seq1 + 1] - b->q_start[seq0] <= WAVE_ROWS;) seq1++;
        if (b->q_start[seq1] == b->q_start[seq0]) continue;
        if (!wave_open(&r, "attn_back", seq0, seq1)) return;
        units_run(&r, back_task, (seq1 - seq0) * r.heads, wave_macs(&r) * 5 / 20);
        units_run(&r, fold_task, r.block0[seq1] * r.kv_heads, (double)r.block0[seq1] * TILE * r.heads * r.dim_pad / 4);
    }
}
