/* Matrix product kernels: a block of R rows by P panels of sixteen outputs is held in registers while k runs over the
 * whole of K.  Lanes are outputs, so each output element is one chain over k, the same chain in every block shape:
 * that is what makes a row's result independent of the batch.
 *
 * A panel's weights come from memory for the first block of rows and from the cache for the others, so panels are the
 * outer loop. */

#if defined VEC_NO_UNROLL
#define UNROLL
#elif defined __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
/* R and P are constants wherever these are inlined, so that the accumulators of a block become registers; the arrays
 * are declared at the largest block and only what is used exists. */
enum { R_MAX = 12, P_MAX = 2 };
#define FOR_R UNROLL for (int r = 0; r < R; r++)
#define FOR_P UNROLL for (int p = 0; p < P; p++)

INLINE void block_store(const struct lin_job *j, int row, int n, vf y)
{
    int left = j->y.cols - n;
    if (left >= PANEL)
        v_store(mat_row(&j->y, row) + n, y);
    else if (left > 0)
        v_store_n(mat_row(&j->y, row) + n, y, left);
}

INLINE vf block_bias(const struct lin_job *j, int n)
{
    int left = j->y.cols - n;
    return j->b && left > 0 ? v_load_n(j->b + n, left) : v_zero();
}

/* One block: rows row .. row + R - 1, panels panel .. panel + P - 1 of one pair, and what it is to prefetch: `ahead`
 * moves `stride` bytes for each line of weights read. */
struct block {
    int row, pair, panel;
    const uint8_t *w; /* the pair's weights; for int4 as they are or unpacked */
    const uint8_t *ahead;
    size_t stride;
};

/* The hardware's own prefetch stops at every page, and pairs of short rows are little longer. */
INLINE const uint8_t *prefetch(const uint8_t *ahead, size_t stride)
{
    __builtin_prefetch(ahead, 0, 2);
    return (const uint8_t *)((uintptr_t)ahead + stride);
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
        FOR_P ahead = prefetch(ahead, b->stride);
        FOR_R
        {
            vf xk = v_set1(x[(size_t)r * ld + k]);
            FOR_P acc[r][p] = v_fma(xk, wk[p], acc[r][p]);
        }
    }
    FOR_P
    {
        int n = b->pair * PAIR + (b->panel + p) * PANEL;
        vf bias = block_bias(j, n);
        FOR_R block_store(j, b->row + r, n, v_add(acc[r][p], bias));
    }
}

/* bf16 weights lie in pairs of k, one a line: the even one is the low half of each lane */
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
        FOR_P ahead = prefetch(ahead, b->stride);
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
    FOR_P
    {
        int n = b->pair * PAIR + (b->panel + p) * PANEL;
        vf bias = block_bias(j, n);
        FOR_R block_store(j, b->row + r, n, v_add(acc[r][p], bias));
    }
}

INLINE void block_i8(const struct lin_job *j, const struct block *b, const int R, const int P)
{
    const uint8_t *w = b->w + (size_t)b->panel * 64, *ahead = b->ahead;
    const int8_t *q = j->q + (size_t)b->row * j->q_ld;
    int ld = j->q_ld, K = j->w->k_pad;
    vi acc[R_MAX][P_MAX];
    FOR_R FOR_P acc[r][p] = i_set1((int32_t)(-(uint32_t)I8_BIAS * (uint32_t)j->q_sum[b->row + r]));
    for (int k = 0; k < K; k += 4, w += 128) {
        vb wk[P_MAX];
        FOR_P wk[p] = b_load_i8(w + (size_t)p * 64);
        FOR_P ahead = prefetch(ahead, b->stride);
        FOR_R FOR_P acc[r][p] = i_dot_s(acc[r][p], wk[p], q + (size_t)r * ld + k);
    }
    FOR_P
    {
        int n = b->pair * PAIR + (b->panel + p) * PANEL;
        vf bias = block_bias(j, n), scale = v_load(j->w->scale + n);
        FOR_R
        {
            vf y = v_mul(i_to_f(acc[r][p]), v_set1(j->q_step[b->row + r]));
            block_store(j, b->row + r, n, v_fma(y, scale, bias));
        }
    }
}

/* Unpacked, a group is f32 scales [32] and [group / 4][32][4] bytes. */
INLINE size_t i4_group_bytes(const struct weight *w, bool unpacked)
{
    return unpacked ? PAIR * 4 + (size_t)w->group * PAIR : PAIR * 2 + (size_t)w->group / 2 * PAIR;
}

static void i4_unpack(const struct weight *w, uint8_t *to, const uint8_t *from)
{
    for (int g = 0; g < w->n_groups; g++) {
        for (int p = 0; p < 2; p++) v_store((float *)to + p * PANEL, v_load_f16((const uint16_t *)from + p * PANEL));
        to += PAIR * 4, from += PAIR * 2;
        for (int k = 0; k < w->group; k += 8, from += 128, to += 256)
            for (int p = 0; p < 2; p++) {
                vb both = b_load(from + p * 64);
                b_store(to + p * 64, b_low(both));
                b_store(to + 128 + p * 64, b_high(both));
            }
    }
}

INLINE void block_i4(const struct lin_job *j, const struct block *b, const bool unpacked, const int R, const int P)
{
    const uint8_t *w = b->w, *ahead = b->ahead;
    const int8_t *q = j->q + (size_t)b->row * j->q_ld;
    const int32_t *sums = j->q_sum + (size_t)b->row * j->sums;
    int ld = j->q_ld, group = j->w->group, n_groups = j->w->n_groups;
    vf total[R_MAX][P_MAX];
    FOR_R FOR_P total[r][p] = v_zero();
    for (int g = 0; g < n_groups; g++, q += group) {
        const uint8_t *s = w + (size_t)b->panel * PANEL * (unpacked ? 4 : 2);
        vi acc[R_MAX][P_MAX];
        FOR_R FOR_P acc[r][p] = i_set1(-8 * sums[(size_t)r * j->sums + g]);
        w += PAIR * (unpacked ? 4 : 2);
        if (unpacked)
            for (int k = 0; k < group; k += 4, w += 128) {
                vb wk[P_MAX];
                FOR_P wk[p] = b_load(w + (b->panel + p) * 64);
                FOR_P ahead = prefetch(ahead, b->stride);
                FOR_R FOR_P acc[r][p] = i_dot_u(acc[r][p], wk[p], q + (size_t)r * ld + k);
            }
        else
            for (int k = 0; k < group; k += 8, w += 128) {
                vb low[P_MAX], high[P_MAX];
                FOR_P
                {
                    vb both = b_load(w + (b->panel + p) * 64);
                    low[p] = b_low(both);
                    high[p] = b_high(both);
                }
                FOR_P ahead = prefetch(ahead, b->stride);
                FOR_R FOR_P acc[r][p] = i_dot_u(acc[r][p], low[p], q + (size_t)r * ld + k);
                FOR_R FOR_P acc[r][p] = i_dot_u(acc[r][p], high[p], q + (size_t)r * ld + k + 4);
            }
        FOR_P
        {
            vf scale = unpacked ? v_load((const float *)s + p * PANEL) : v_load_f16((const uint16_t *)s + p * PANEL);
            FOR_R total[r][p] = v_fma(i_to_f(acc[r][p]), scale, total[r][p]);
        }
    }
    FOR_P
    {
        int n = b->pair * PAIR + (b->panel + p) * PANEL;
        vf bias = block_bias(j, n);
        FOR_R block_store(j, b->row + r, n, v_fma(total[r][p], v_set1(j->q_step[b->row + r]), bias));
    }
}

/* One block of a run-time number of rows: a switch over the compiled shapes; those past the level's limit are never
 * reached and cost nothing. */
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

/* One row of blocks over a pair.  Few rows take both panels at once: what counts then is the stream from memory. */
enum { GEMV_ROWS = 2 };

#define BLOCK_FN(name, most, call_block)                                                                               \
    static void name(const struct lin_job *j, struct block *b, int rows)                                               \
    {                                                                                                                  \
        b->panel = 0;                                                                                                  \
        if (BLOCK_PANELS < 2 && rows <= GEMV_ROWS)                                                                     \
            BLOCK_SWITCH(rows, GEMV_ROWS, call_block(j, b, R, 2))                                                      \
        else                                                                                                           \
            for (; b->panel < 2; b->panel += BLOCK_PANELS) BLOCK_SWITCH(rows, most, call_block(j, b, R, BLOCK_PANELS)) \
    }

#define BLOCK_F32(j, b, R, P) block_float(j, DT_F32, b, R, P)
#define BLOCK_F16(j, b, R, P) block_float(j, DT_F16, b, R, P)
#define BLOCK_I4(j, b, R, P) block_i4(j, b, false, R, P)
#define BLOCK_I4_UNPACKED(j, b, R, P) block_i4(j, b, true, R, P)
BLOCK_FN(blocks_f32, BLOCK_ROWS_F, BLOCK_F32)
BLOCK_FN(blocks_f16, BLOCK_ROWS_F, BLOCK_F16)
BLOCK_FN(blocks_bf16, BLOCK_ROWS_F, block_bf16)
BLOCK_FN(blocks_i8, BLOCK_ROWS_I8, block_i8)
BLOCK_FN(blocks_i4, BLOCK_ROWS_I4, BLOCK_I4)
BLOCK_FN(blocks_i4_unpacked, BLOCK_ROWS_I4, BLOCK_I4_UNPACKED)

/* A pair of panels comes from memory for the first block of rows and from the cache for the others; so that memory is
 * busy all the time, each of n blocks asks for its n-th of the next pair.  With many blocks that no longer matters, and
 * the prefetch stands still. */
enum { PREFETCH_BLOCKS = 8, PREFETCH_FAR = 2048 };

INLINE void block_prefetch(const struct lin_job *j, struct block *b, int i, int n_blocks, int prefetches)
{
    size_t bytes = j->w->pair_bytes;
    const uint8_t *pair = j->w->data + (size_t)b->pair * bytes;
    b->ahead = pair;
    b->stride = 0;
    if (n_blocks == 1) { /* a stream */
        b->ahead = (const uint8_t *)((uintptr_t)pair + PREFETCH_FAR);
        b->stride = bytes / (size_t)prefetches;
    } else if (n_blocks <= PREFETCH_BLOCKS) {
        size_t share = bytes / (size_t)n_blocks;
        b->ahead = (const uint8_t *)((uintptr_t)pair + bytes + (size_t)i * share);
        b->stride = share / (size_t)prefetches;
    }
}

struct lin_kind {
    int most, k_step; /* rows of a block; k's between two prefetches for each panel */
    void (*blocks)(const struct lin_job *, struct block *, int rows);
};

/* Rows are cut into equal blocks of at most `most` (13 rows are 7 + 6, not 12 + 1). */
INLINE void linear_rows(const struct lin_job *j, struct block *b, int row0, int row1, struct lin_kind kind)
{
    int n = row1 - row0, n_blocks = (n + kind.most - 1) / kind.most;
    int prefetches = (j->w->k_pad + kind.k_step - 1) / kind.k_step * 2;
    for (int i = 0; i < n_blocks; i++) {
        b->row = row0 + (int)((int64_t)n * i / n_blocks);
        int rows = row0 + (int)((int64_t)n * (i + 1) / n_blocks) - b->row;
        block_prefetch(j, b, i, n_blocks, prefetches);
        kind.blocks(j, b, rows);
    }
}

#define LINEAR_FN(name, ...)                                                                                           \
    static void name(const struct lin_job *j, int row0, int row1, int pair0, int pair1, void *scratch)                 \
    {                                                                                                                  \
        for (int pair = pair0; pair < pair1; pair++) {                                                                 \
            struct block b = {.pair = pair, .w = j->w->data + (size_t)pair * j->w->pair_bytes};                        \
            linear_rows(j, &b, row0, row1, (struct lin_kind){__VA_ARGS__});                                            \
        }                                                                                                              \
    }
LINEAR_FN(linear_f32, BLOCK_ROWS_F, 1, blocks_f32)
LINEAR_FN(linear_f16, BLOCK_ROWS_F, 1, blocks_f16)
LINEAR_FN(linear_bf16, BLOCK_ROWS_F, 2, blocks_bf16)
LINEAR_FN(linear_i8, BLOCK_ROWS_I8, 4, blocks_i8)

/* More than one block of rows: the pair is unpacked once for all of them. */
static void linear_i4(const struct lin_job *j, int row0, int row1, int pair0, int pair1, void *scratch)
{
    bool unpacked = row1 - row0 > BLOCK_ROWS_I4;
    struct lin_kind kind = unpacked ? (struct lin_kind){BLOCK_ROWS_I4, 4, blocks_i4_unpacked}
                                    : (struct lin_kind){BLOCK_ROWS_I4, 8, blocks_i4};
    for (int pair = pair0; pair < pair1; pair++) {
        struct block b = {.pair = pair, .w = j->w->data + (size_t)pair * j->w->pair_bytes};
        if (unpacked) {
            i4_unpack(j->w, scratch, b.w);
            b.w = scratch;
        }
        linear_rows(j, &b, row0, row1, kind);
    }
}
