/* Products with nf4 weights (packed as nf4.h says): looked up, scaled, and then exactly the chain of block_float, one
 * fused multiply-add for each k in order.  So a row's result is that of float weights of the same values, bit for bit,
 * in every block shape. */
#include "kernels/cpu/nf4.h"

_Static_assert(NF4_PAIR == 2 * PANEL && (int)NF4_ROWS <= (int)R_MAX && (int)NF4_PANELS <= (int)P_MAX, "nf4 blocks");

INLINE void nf4_block(const struct lin_job *j, int row, int pair, int panel, const int R, const int P)
{
    const uint8_t *w = (const uint8_t *)j->w->data + (size_t)pair * nf4_pair_bytes(j->w->cols) + panel * 64;
    const float *x = mat_row(&j->x, row);
    size_t ld = (size_t)j->x.ld;
    vt table = nf4_table();
    vf acc[R_MAX][P_MAX];
    FOR_R FOR_P acc[r][p] = v_zero();
    for (int k = 0; k < j->w->cols; k += NF4_BLOCK, w += NF4_BLOCK_BYTES) {
        vf scale[P_MAX];
        FOR_P scale[p] = v_load((const float *)(w + p * 64));
        for (int word = 0; word < NF4_BLOCK / 8; word++) {
            const uint8_t *at = w + NF4_SCALES + word * NF4_PAIR * 4;
            vi codes[P_MAX];
            FOR_P codes[p] = nf4_load(at + p * 64);
            __builtin_prefetch(at + 2 * NF4_BLOCK_BYTES, 0, 2);
            UNROLL for (int i = 0; i < 8; i++)
            {
                vf wk[P_MAX];
                FOR_P wk[p] = v_mul(nf4_codes(table, codes[p]), scale[p]);
                FOR_P codes[p] = nf4_next(codes[p]);
                FOR_R
                {
                    vf xk = v_set1(x[(size_t)r * ld + (size_t)(k + word * 8 + i)]);
                    FOR_P acc[r][p] = v_fma(xk, wk[p], acc[r][p]);
                }
            }
        }
    }
    FOR_P
    {
        int n = pair * NF4_PAIR + (panel + p) * PANEL, left = j->y.cols - n;
        if (left <= 0) continue;
        vf b = j->b ? v_load_n(j->b + n, left) : v_zero();
        FOR_R v_store_n(mat_row(&j->y, row + r) + n, v_add(acc[r][p], b), left);
    }
}

#define NF4_CASE(n, most, P)                                                                                           \
    case n:                                                                                                            \
        if ((n) <= (most)) nf4_block(j, row, pair, panel, n, P);                                                       \
        break;

/* rows row .. row + rows - 1, at most NF4_ROWS of them */
VEC_CALLED void nf4_rows(const struct lin_job *j, int row, int rows, int pair, int panel)
{
    switch (rows) {
        NF4_CASE(1, NF4_ROWS, NF4_PANELS)
        NF4_CASE(2, NF4_ROWS, NF4_PANELS)
        NF4_CASE(3, NF4_ROWS, NF4_PANELS)
        NF4_CASE(4, NF4_ROWS, NF4_PANELS)
        NF4_CASE(5, NF4_ROWS, NF4_PANELS)
        NF4_CASE(6, NF4_ROWS, NF4_PANELS)
        NF4_CASE(7, NF4_ROWS, NF4_PANELS)
        NF4_CASE(8, NF4_ROWS, NF4_PANELS)
        NF4_CASE(9, NF4_ROWS, NF4_PANELS)
        NF4_CASE(10, NF4_ROWS, NF4_PANELS)
    }
}

static void nf4_pairs(const struct lin_job *j, int row0, int row1, int pair0, int pair1)
{
    int n = row1 - row0, blocks = (n + NF4_ROWS - 1) / NF4_ROWS;
    for (int pair = pair0; pair < pair1; pair++) {
        if (n == 1) { /* bound by memory: the whole of what is read at once */
            nf4_block(j, row0, pair, 0, 1, 2);
            continue;
        }
        for (int panel = 0; panel < 2; panel += NF4_PANELS)
            for (int i = 0; i < blocks; i++) { /* equal blocks: 11 rows are 6 + 5 */
                int row = row0 + (int)((int64_t)n * i / blocks);
                nf4_rows(j, row, row0 + (int)((int64_t)n * (i + 1) / blocks) - row, pair, panel);
            }
    }
}

static void linear_nf4(const struct lin_job *j, int row0, int row1, int panel0, int panel1)
{
    nf4_pairs(j, row0, row1, panel0 / 2, (panel1 + 1) / 2);
}
