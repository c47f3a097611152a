/* GEMM kernels: a block of R rows by P panels of sixteen outputs is held in registers while k runs over all of K.
 * Lanes are outputs, so each output element is one chain over k, the same chain in every block shape: a row's result
 * does not depend on the batch.
 *
 * A panel's weights come from memory for the first block of rows and from the cache for the others, so the outer
 * loop is over panels. */

#include "kernels/cpu/linear_store_impl.h"

/* The hardware prefetcher stops at every page, and pairs of short rows are hardly longer. `past`: see struct block;
 * blocks of more than half of the most rows (R of `most`) are prefetched into the caches always. */
INLINE const uint8_t *prefetch(const uint8_t *ahead, size_t stride, const int R, const int most, bool past)
{
    if (R < (most + 1) / 2 && past)
        __builtin_prefetch(ahead, 0, 0);
    else
        __builtin_prefetch(ahead, 0, 2);
    return (const uint8_t *)((uintptr_t)ahead + stride);
}

/* The end of a block: stores y of row r and panel p, an expression in r, p and the panel's bias. */
#define STORE_BLOCK(y)                                                                                                 \
    FOR_P                                                                                                              \
    {                                                                                                                  \
        int panel = b->panel + p;                                                                                      \
        vf bias = panel_bias(j, b->pair, panel);                                                                       \
        FOR_R block_store(j, b, r, panel, y);                                                                          \
    }

/* The same for quantised rows: y is also an expression in `from`, which is the bias, or for a residual the result of
 * the row before; that row is stored, then overwritten. */
#define STORE_QUANTISED(y)                                                                                             \
    FOR_P                                                                                                              \
    {                                                                                                                  \
        int panel = b->panel + p;                                                                                      \
        vf bias = panel_bias(j, b->pair, panel), from = bias;                                                          \
        FOR_R                                                                                                          \
        {                                                                                                              \
            if (!lin_is_rest(j, b->row + r)) from = bias;                                                              \
            from = (y);                                                                                                \
            block_store(j, b, r, panel, from);                                                                         \
        }                                                                                                              \
    }

/* The same where y may be scaled and accumulated. */
#define STORE_BLOCK_INTO(y)                                                                                            \
    if (j->into) {                                                                                                     \
        FOR_P FOR_R block_add(j, b, r, b->panel + p, acc[r][p]);                                                       \
    } else                                                                                                             \
        STORE_BLOCK(y)

/* With j->by: adds the block's sums times it to y, and returns. */
#define ADD_SCALED                                                                                                     \
    if (j->by) {                                                                                                       \
        FOR_P                                                                                                          \
        {                                                                                                              \
            int column = (b->panel + p) * PANEL;                                                                       \
            vf by = v_load(j->by + column);                                                                            \
            FOR_R                                                                                                      \
            {                                                                                                          \
                float *to = mat_row(&j->y, r) + column;                                                                \
                v_store(to, v_fma(acc[r][p], by, v_load(to)));                                                         \
            }                                                                                                          \
        }                                                                                                              \
        return;                                                                                                        \
    }

INLINE void block_float(const struct lin_job *j, enum dtype t, const struct block *b, const int R, const int P)
{
    const size_t line = t == DT_F32 ? 64 : 32;
    const uint8_t *w = b->w + (size_t)b->panel * line, *ahead = b->ahead;
    const float *x = mat_row(&j->x, b->row);
    int ld = j->x.ld, K = j->w->cols;
    vf acc[R_MAX][P_MAX];
    FOR_R FOR_P acc[r][p] = v_zero();
    for (int k = 0; k < K; k++, w += 2 * line) {
        vf wk[P_MAX];
        FOR_P wk[p] = row_load(w + (size_t)p * line, t, 0);
        FOR_P ahead = prefetch(ahead, b->stride, R, BLOCK_ROWS_F, b->past);
        FOR_R
        {
            vf xk = v_set1(x[(size_t)r * ld + k]);
            FOR_P acc[r][p] = v_fma(xk, wk[p], acc[r][p]);
        }
    }
    if (t == DT_F32) {
        STORE_BLOCK_INTO(v_add(acc[r][p], bias))
    } else {
        STORE_BLOCK(v_add(acc[r][p], bias))
    }
}

/* bf16 weights are stored in pairs of k, one line per pair: the even one is the low half of each lane. */
INLINE void block_bf16(const struct lin_job *j, const struct block *b, const int R, const int P)
{
    const uint8_t *w = b->w + (size_t)b->panel * 64, *ahead = b->ahead;
    const float *x = mat_row(&j->x, b->row);
    int ld = j->x.ld, K = j->w->cols;
    vf acc[R_MAX][P_MAX];
    FOR_R FOR_P acc[r][p] = v_zero();
    for (int k = 0; k < K; k += 2, w += 128) {
        vi both[P_MAX];
        FOR_P both[p] = i_load(w + (size_t)p * 64);
        FOR_P ahead = prefetch(ahead, b->stride, R, BLOCK_ROWS_F, b->past);
        FOR_R
        {
            vf xk = v_set1(x[(size_t)r * ld + k]);
            FOR_P acc[r][p] = v_fma(xk, i_float(i_shl(both[p], 16)), acc[r][p]);
        }
        if (k + 1 == K) break;
        FOR_R
        {
            vf xk = v_set1(x[(size_t)r * ld + k + 1]);
            FOR_P acc[r][p] = v_fma(xk, i_float(i_and(both[p], i_set1((int32_t)0xffff0000))), acc[r][p]);
        }
    }
    ADD_SCALED
    STORE_BLOCK(v_add(acc[r][p], bias))
}

/* x rounded to bf16, in the layout of quantised activations: [k / 2][R] pairs. A part of k leaves its sums in y, and
 * the next part continues from them: the chain is the same. */
INLINE void block_bf16_x(const struct lin_job *j, const struct block *b, const int R, const int P)
{
    const uint8_t *w = b->w + (size_t)b->panel * 64 + (size_t)j->k0 * 64, *ahead = b->ahead;
    const uint32_t *x = (const uint32_t *)j->q + (size_t)b->row * j->q_ld / 2 + (size_t)j->k0 / 2 * R;
    vf acc[R_MAX][P_MAX];
    if (j->k0 == 0) {
        FOR_R FOR_P acc[r][p] = v_zero();
    } else {
        FOR_R FOR_P acc[r][p] = block_sum(j, b, r, b->panel + p);
    }
    for (int k = j->k0; k < j->k1; k += 2, w += 128, x += R) {
        vi wk[P_MAX];
        FOR_P wk[p] = i_load(w + (size_t)p * 64);
        FOR_P ahead = prefetch(ahead, b->stride, R, BLOCK_ROWS_F, b->past);
        FOR_R FOR_P acc[r][p] = v_dot_bf16(acc[r][p], wk[p], x[r]);
    }
    ADD_SCALED
    if (j->k1 < j->w->k_pad) {
        FOR_P FOR_R block_store(j, b, r, b->panel + p, acc[r][p]);
        return;
    }
    STORE_BLOCK_INTO(v_add(acc[r][p], bias))
}

#ifdef VEC_MATRICES
/* The sums of each two rows as products of matrices have them, and back. */
INLINE void sums_pair(vi acc[R_MAX][P_MAX], const int R, const int P)
{
    UNROLL for (int r = 0; r + 1 < R; r += 2) FOR_P i_pair(&acc[r][p], &acc[r + 1][p]);
}

/* Adds the products of eight columns: weights of the first four of them, and of the others. */
INLINE void eight_columns(vi acc[R_MAX][P_MAX], const vb first[P_MAX], const vb then[P_MAX], const int8_t *q,
                          const int R, const int P)
{
    UNROLL for (int r = 0; r + 1 < R; r += 2)
    {
        int8x16_t both = two_rows(q + 4 * r, q + 4 * (R + r));
        FOR_P acc[r][p] = i_dot_two(acc[r][p], b_zip_x(first[p], then[p]), both);
        FOR_P acc[r + 1][p] = i_dot_two(acc[r + 1][p], b_zip_y(first[p], then[p]), both);
    }
    if (R % 2 == 0) return;
    FOR_P acc[R - 1][p] = i_dot_s(acc[R - 1][p], first[p], q + 4 * (R - 1));
    FOR_P acc[R - 1][p] = i_dot_s(acc[R - 1][p], then[p], q + 4 * (2 * R - 1));
}
#else
INLINE void sums_pair(vi acc[R_MAX][P_MAX], const int R, const int P) {}
#endif

/* Quantised activations of a block are contiguous, [k / 4][R][4]: one pointer with constant offsets. */
INLINE void block_i8(const struct lin_job *j, const struct block *b, const int R, const int P)
{
    const uint8_t *w = b->w + (size_t)b->panel * 64, *ahead = b->ahead;
    const int8_t *q = j->q + (size_t)b->row * j->q_ld;
    vi acc[R_MAX][P_MAX];
    FOR_P
    {
        vi less = I8_BIAS ? i_load(j->w->bias_sum + b->pair * PAIR + (b->panel + p) * PANEL) : i_zero();
        FOR_R acc[r][p] = less;
    }
    int k = 0;
#ifdef VEC_MATRICES
    sums_pair(acc, R, P);
    for (; k + 8 <= j->w->k_pad; k += 8, w += 256, q += 8 * R) {
        vb wk[2][P_MAX];
        for (int half = 0; half < 2; half++) FOR_P wk[half][p] = b_load(w + half * 128 + p * 64);
        for (int half = 0; half < 2; half++) FOR_P ahead = prefetch(ahead, b->stride, R, BLOCK_ROWS_I8, b->past);
        eight_columns(acc, wk[0], wk[1], q, R, P);
    }
    sums_pair(acc, R, P);
#endif
    for (; k < j->w->k_pad; k += 4, w += 128, q += 4 * R) {
        vb wk[P_MAX];
        FOR_P wk[p] = b_load(w + (size_t)p * 64);
        FOR_P ahead = prefetch(ahead, b->stride, R, BLOCK_ROWS_I8, b->past);
        FOR_R FOR_P acc[r][p] = i_dot_s(acc[r][p], wk[p], q + 4 * r);
    }
    STORE_QUANTISED(v_fma(v_mul(i_to_f(acc[r][p]), v_set1(j->q_step[b->row + r])),
                          v_load(j->w->scale + b->pair * PAIR + panel * PANEL), from))
}

/* Eight columns of four-bit weights: the first four and the others. */
INLINE void nibbles_load(vb low[P_MAX], vb high[P_MAX], const uint8_t *w, const int P)
{
    FOR_P
    {
        vb both = b_load(w + p * 64);
        low[p] = b_low(both);
        high[p] = b_high(both);
    }
}

/* The group sums of a block have the layout of its activations, [group][R]. */
INLINE void block_i4_groups(const struct lin_job *j, const struct block *b, const int group, const int R, const int P)
{
    const uint8_t *w = b->w, *ahead = b->ahead;
    const int8_t *q = j->q + (size_t)b->row * j->q_ld;
    const int32_t *sums = j->q_sum + (size_t)b->row * j->w->n_groups;
    size_t stride = b->stride;
    vf total[R_MAX][P_MAX];
    FOR_R FOR_P total[r][p] = v_zero();
    for (int g = 0; g < j->w->n_groups; g++, sums += R) {
        const uint16_t *s = (const uint16_t *)w + b->panel * PANEL;
        vi acc[R_MAX][P_MAX];
        FOR_R
        {
            vi sum = i_set1(sums[r]);
            FOR_P acc[r][p] = sum;
        }
        sums_pair(acc, R, P);
        w += PAIR * sizeof *s;
#ifdef SHORT_SUMS
        for (int k = 0; k < group; k += 4 * SHORT_SUMS(4)) {
            vi sum[R_MAX][P_MAX];
            FOR_R FOR_P sum[r][p] = i_zero();
            UNROLL for (int i = 0; i < SHORT_SUMS(4); i += 2, w += 128, q += 8 * R)
            {
                vb low[P_MAX], high[P_MAX];
                nibbles_load(low, high, w + b->panel * 64, P);
                FOR_P ahead = prefetch(ahead, stride, R, BLOCK_ROWS_I4, b->past);
                FOR_R FOR_P sum[r][p] = s_dot_u(sum[r][p], low[p], q + 4 * r);
                FOR_R FOR_P sum[r][p] = s_dot_u(sum[r][p], high[p], q + 4 * (R + r));
            }
            FOR_R FOR_P acc[r][p] = i_add_short(acc[r][p], sum[r][p]);
        }
#else
        UNROLL_GROUP
        for (int k = 0; k < group; k += 8, w += 128, q += 8 * R) {
            vb low[P_MAX], high[P_MAX];
            nibbles_load(low, high, w + b->panel * 64, P);
            FOR_P ahead = prefetch(ahead, stride, R, BLOCK_ROWS_I4, b->past);
#ifdef VEC_MATRICES
            eight_columns(acc, low, high, q, R, P);
#else
            FOR_R FOR_P acc[r][p] = i_dot_u(acc[r][p], low[p], q + 4 * r);
            FOR_R FOR_P acc[r][p] = i_dot_u(acc[r][p], high[p], q + 4 * (R + r));
#endif
        }
#endif
        sums_pair(acc, R, P);
        FOR_P
        {
            vf scale = v_load_f16(s + p * PANEL);
            FOR_R total[r][p] = v_fma(i_to_f(acc[r][p]), scale, total[r][p]);
        }
    }
    STORE_QUANTISED(v_fma(total[r][p], v_set1(j->q_step[b->row + r]), from))
}

INLINE void block_i4(const struct lin_job *j, const struct block *b, const int R, const int P)
{
    if (j->w->group == 32)
        block_i4_groups(j, b, 32, R, P);
    else
        block_i4_groups(j, b, j->w->group, R, P);
}

/* Dispatches a run-time number of rows to the compiled block shapes; shapes past the level's limit are never reached
 * and cost nothing. */
#define BLOCK_CASE(n, most, call)                                                                                      \
    case n:                                                                                                            \
        if ((n) <= (most)) {                                                                                           \
            enum { R = n };                                                                                            \
            call;                                                                                                      \
        }                                                                                                              \
        break;
#define BLOCK_SWITCH(rows, most, call)                                                                                 \
    switch (rows) {                                                                                                    \
        BLOCK_CASE(1, most, call)                                                                                      \
        BLOCK_CASE(2, most, call)                                                                                      \
        BLOCK_CASE(3, most, call)                                                                                      \
        BLOCK_CASE(4, most, call)                                                                                      \
        BLOCK_CASE(5, most, call)                                                                                      \
        BLOCK_CASE(6, most, call)                                                                                      \
        BLOCK_CASE(7, most, call)                                                                                      \
        BLOCK_CASE(8, most, call)                                                                                      \
        BLOCK_CASE(9, most, call)                                                                                      \
        BLOCK_CASE(10, most, call)                                                                                     \
        BLOCK_CASE(11, most, call)                                                                                     \
        BLOCK_CASE(12, most, call)                                                                                     \
    }

/* ---- all blocks of a task ------------------------------------------------------------------------------------ */

/* Of a single block whose panels are read in turn, each prefetches its own lines, which are every other one. */
INLINE void block_ahead(struct block *b)
{
    if (b->panel == 0) b->stride *= 2;
    b->ahead = (const uint8_t *)((uintptr_t)b->ahead + (size_t)b->panel * 64);
}

/* A row of blocks over a pair: both panels at once for few rows, which are bound by memory, and where the registers
 * suffice. */
#define BLOCK_FN(name, most, most_2, call_block)                                                                       \
    static void name(const struct lin_job *j, struct block *b, int rows)                                               \
    {                                                                                                                  \
        b->panel = 0;                                                                                                  \
        if (rows <= (most_2))                                                                                          \
            BLOCK_SWITCH(rows, most_2, call_block(j, b, R, 2))                                                         \
        else                                                                                                           \
            for (; b->panel < 2; b->panel++) {                                                                         \
                if (b->once) block_ahead(b);                                                                           \
                BLOCK_SWITCH(rows, most, call_block(j, b, R, 1))                                                       \
            }                                                                                                          \
    }

#define BLOCK_F32(j, b, R, P) block_float(j, DT_F32, b, R, P)
#define BLOCK_F16(j, b, R, P) block_float(j, DT_F16, b, R, P)
BLOCK_FN(blocks_f32, BLOCK_ROWS_F, BLOCK_ROWS_F2, BLOCK_F32)
BLOCK_FN(blocks_f16, BLOCK_ROWS_F, BLOCK_ROWS_F2, BLOCK_F16)
BLOCK_FN(blocks_bf16, BLOCK_ROWS_F, BLOCK_ROWS_F2, block_bf16)
BLOCK_FN(blocks_bf16_x, BLOCK_ROWS_F, BLOCK_ROWS_F2, block_bf16_x)
BLOCK_FN(blocks_i8, BLOCK_ROWS_I8, BLOCK_ROWS_I8_2, block_i8)
BLOCK_FN(blocks_i4, BLOCK_ROWS_I4, BLOCK_ROWS_I4_2, block_i4)

/* A pair of panels comes from memory for the first block of rows and from the cache for the others. To keep memory
 * busy, each of n blocks prefetches the n-th part of `next`, the pair that this thread will take next; parts are
 * rounded up, and overlap a little. With very many blocks that no longer matters, and nothing is prefetched. */
enum { PREFETCH_BLOCKS = 48 };

/* How far ahead, in bytes, the only block of a pair prefetches: into the caches far, past them little, since little
 * fits. */
INLINE uintptr_t prefetch_far(const struct lin_job *j)
{
    return j->streams ? 2048 : 8192;
}

INLINE void block_prefetch(const struct lin_job *j, struct block *b, int next, int i, int n_blocks, int prefetches)
{
    size_t bytes = j->w->pair_bytes;
    b->ahead = b->w;
    b->stride = 0;
    b->once = n_blocks == 1;
    b->past = b->once && j->streams;
    if (b->once) { /* a single block reads memory all the time: prefetch at a fixed distance */
        b->ahead = (const uint8_t *)((uintptr_t)b->w + prefetch_far(j));
        b->stride = bytes / (size_t)prefetches;
    } else if (n_blocks <= PREFETCH_BLOCKS) {
        size_t share = bytes / (size_t)n_blocks;
        b->ahead = (const uint8_t *)((uintptr_t)j->w->data + (size_t)next * bytes + (size_t)i * share);
        b->stride = (share + (size_t)prefetches - 1) / (size_t)prefetches;
    }
}

typedef void blocks_fn(const struct lin_job *, struct block *, int rows);

/* k_step: number of k between two prefetches of each panel. */
static void linear_task(const struct lin_job *j, int block0, int block1, int pair0, int pair1, int k_step,
                        blocks_fn *blocks)
{
    _Alignas(64) float up[R_MAX * PANEL];
    int prefetches = (j->w->k_pad + k_step - 1) / k_step * 2;
    for (int pair = pair0; pair < pair1; pair++) {
        struct block b = {.pair = pair, .w = j->w->data + (size_t)pair * j->w->pair_bytes, .up = up};
        int next = pair + 1 < pair1 ? pair + 1 : pair + 1 + j->skip;
        for (int i = block0; i < block1; i++) {
            b.row = lin_block_row(j, i);
            int rows = lin_block_row(j, i + 1) - b.row;
            block_prefetch(j, &b, next, i - block0, block1 - block0, prefetches);
            block_prefetch_y(j, &b, rows);
            blocks(j, &b, rows);
            if (j->gated) block_gate(j, &b, rows);
        }
    }
}

#define LINEAR_FN(name, k_step, blocks)                                                                                \
    static void name(const struct lin_job *j, int block0, int block1, int pair0, int pair1)                            \
    {                                                                                                                  \
        linear_task(j, block0, block1, pair0, pair1, k_step, blocks);                                                  \
    }
LINEAR_FN(linear_f32, 1, blocks_f32)
LINEAR_FN(linear_f16, 1, blocks_f16)
LINEAR_FN(linear_bf16, 2, blocks_bf16)
LINEAR_FN(linear_bf16_x, 2, blocks_bf16_x)
LINEAR_FN(linear_i8, 4, blocks_i8)
LINEAR_FN(linear_i4, 8, blocks_i4)
