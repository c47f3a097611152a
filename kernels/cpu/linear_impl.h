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
enum { R_MAX = 12, P_MAX = 4 };
#define FOR_R UNROLL for (int r = 0; r < R; r++)
#define FOR_P UNROLL for (int p = 0; p < P; p++)

INLINE void block_store(const struct lin_job *j, int row, int panel, vf y)
{
    int n = panel * PANEL, left = j->y.cols - n;
    if (left >= PANEL)
        v_store(mat_row(&j->y, row) + n, y);
    else if (left > 0)
        v_store_n(mat_row(&j->y, row) + n, y, left);
}

INLINE vf block_bias(const struct lin_job *j, int panel)
{
    int left = j->y.cols - panel * PANEL;
    return j->b && left > 0 ? v_load_n(j->b + panel * PANEL, left) : v_zero();
}

/* Asks for what the next panels will read at this place: a whole block ahead, into the second-level cache.  The
 * hardware's own prefetch stops at every page, and panels of short rows are little longer. */
INLINE void prefetch_next(const uint8_t *w, size_t ahead)
{
    __builtin_prefetch((const void *)((uintptr_t)w + ahead), 0, 2);
}

INLINE void block_float(const struct lin_job *j, enum dtype t, int row, int panel, const int R, const int P)
{
    const uint8_t *w = (const uint8_t *)j->w->data + (size_t)panel * j->w->panel_bytes;
    size_t panel_bytes = j->w->panel_bytes, step = t == DT_F32 ? 64 : 32;
    const float *x = mat_row(&j->x, row);
    int ld = j->x.ld, K = j->w->cols;
    vf acc[R_MAX][P_MAX];
    FOR_R FOR_P acc[r][p] = v_zero();
    for (int k = 0; k < K; k++) {
        vf wk[P_MAX];
        FOR_P wk[p] = row_load(w + (size_t)k * step + p * panel_bytes, t, 0);
        FOR_P prefetch_next(w + (size_t)k * step + p * panel_bytes, P * panel_bytes);
        FOR_R
        {
            vf xk = v_set1(x[(size_t)r * ld + k]);
            FOR_P acc[r][p] = v_fma(xk, wk[p], acc[r][p]);
        }
    }
    FOR_P
    {
        vf b = block_bias(j, panel + p);
        FOR_R block_store(j, row + r, panel + p, v_add(acc[r][p], b));
    }
}

INLINE void block_i8(const struct lin_job *j, int row, int panel, const int R, const int P)
{
    const uint8_t *w = (const uint8_t *)j->w->data + (size_t)panel * j->w->panel_bytes;
    const int8_t *q = j->q + (size_t)row * j->q_ld;
    size_t panel_bytes = j->w->panel_bytes;
    int ld = j->q_ld, K = j->w->k_pad;
    vi acc[R_MAX][P_MAX];
    FOR_R FOR_P acc[r][p] = i_set1((int32_t)(-(uint32_t)I8_BIAS * (uint32_t)j->q_sum[row + r]));
    for (int k = 0; k < K; k += 4) {
        vb wk[P_MAX];
        FOR_P wk[p] = b_load(w + (size_t)k * PANEL + p * panel_bytes);
        FOR_P prefetch_next(w + (size_t)k * PANEL + p * panel_bytes, P * panel_bytes);
        FOR_R FOR_P acc[r][p] = i_dot_s(acc[r][p], wk[p], q + (size_t)r * ld + k);
    }
    FOR_P
    {
        vf b = block_bias(j, panel + p), scale = v_load((const float *)j->w->scale + (panel + p) * PANEL);
        FOR_R
        {
            vf y = v_mul(i_to_f(acc[r][p]), v_set1(j->q_step[row + r]));
            block_store(j, row + r, panel + p, v_fma(y, scale, b));
        }
    }
}

INLINE void block_i4(const struct lin_job *j, int row, int panel, const int R, const int P)
{
    const uint8_t *w = (const uint8_t *)j->w->data + (size_t)panel * j->w->panel_bytes;
    const uint16_t *scale = (const uint16_t *)j->w->scale + (size_t)panel * j->w->n_groups * PANEL;
    const int8_t *q = j->q + (size_t)row * j->q_ld;
    const int32_t *sums = j->q_sum + (size_t)row * j->sums;
    size_t panel_bytes = j->w->panel_bytes, scale_panel = (size_t)j->w->n_groups * PANEL;
    int ld = j->q_ld, group = j->w->group, n_groups = j->w->n_groups;
    vf total[R_MAX][P_MAX];
    FOR_R FOR_P total[r][p] = v_zero();
    for (int g = 0; g < n_groups; g++) {
        vi acc[R_MAX][P_MAX];
        FOR_R FOR_P acc[r][p] = i_set1(-8 * sums[(size_t)r * j->sums + g]);
        for (int k = g * group; k < (g + 1) * group; k += 8) {
            vb low[P_MAX], high[P_MAX];
            FOR_P
            {
                vb both = b_load(w + (size_t)k * (PANEL / 2) + p * panel_bytes);
                prefetch_next(w + (size_t)k * (PANEL / 2) + p * panel_bytes, P * panel_bytes);
                low[p] = b_low(both);
                high[p] = b_high(both);
            }
            FOR_R FOR_P acc[r][p] = i_dot_u(acc[r][p], low[p], q + (size_t)r * ld + k);
            FOR_R FOR_P acc[r][p] = i_dot_u(acc[r][p], high[p], q + (size_t)r * ld + k + 4);
        }
        FOR_P
        {
            vf s = v_load_f16(scale + p * scale_panel + (size_t)g * PANEL);
            FOR_R total[r][p] = v_fma(i_to_f(acc[r][p]), s, total[r][p]);
        }
    }
    FOR_P
    {
        vf b = block_bias(j, panel + p);
        FOR_R block_store(j, row + r, panel + p, v_fma(total[r][p], v_set1(j->q_step[row + r]), b));
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

/* Rows are cut into equal blocks of at most `most` (13 rows are 7 + 6, not 12 + 1).  Up to GEMV_ROWS rows, more panels
 * at once: what counts then is the number of streams from memory. */
enum { GEMV_ROWS = 2 };

#define LINEAR_FN(name, most, call_block)                                                                              \
    static void name(const struct lin_job *j, int row0, int row1, int panel0, int panel1)                              \
    {                                                                                                                  \
        int panel = panel0, n = row1 - row0, n_blocks = (n + (most)-1) / (most);                                       \
        for (; n <= GEMV_ROWS && panel + BLOCK_PANELS_GEMV <= panel1; panel += BLOCK_PANELS_GEMV) {                    \
            int row = row0;                                                                                            \
            BLOCK_SWITCH(n, GEMV_ROWS, call_block(j, row, panel, R, BLOCK_PANELS_GEMV))                                \
        }                                                                                                              \
        for (; panel < panel1; panel += BLOCK_PANELS)                                                                  \
            for (int i = 0; i < n_blocks; i++) {                                                                       \
                int row = row0 + (int)((int64_t)n * i / n_blocks);                                                     \
                int rows = row0 + (int)((int64_t)n * (i + 1) / n_blocks) - row;                                        \
                BLOCK_SWITCH(rows, most, call_block(j, row, panel, R, BLOCK_PANELS))                                   \
            }                                                                                                          \
    }

#define BLOCK_F32(j, row, panel, R, P) block_float(j, DT_F32, row, panel, R, P)
#define BLOCK_BF16(j, row, panel, R, P) block_float(j, DT_BF16, row, panel, R, P)
#define BLOCK_F16(j, row, panel, R, P) block_float(j, DT_F16, row, panel, R, P)
LINEAR_FN(linear_f32, BLOCK_ROWS_F, BLOCK_F32)
LINEAR_FN(linear_bf16, BLOCK_ROWS_F, BLOCK_BF16)
LINEAR_FN(linear_f16, BLOCK_ROWS_F, BLOCK_F16)
LINEAR_FN(linear_i8, BLOCK_ROWS_I8, block_i8)
LINEAR_FN(linear_i4, BLOCK_ROWS_I4, block_i4)
