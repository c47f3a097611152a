/* GEMM kernels for nf4 weights (packed as nf4.h says): table look-up, scale, then exactly the chain of block_float,
 * one fused multiply-add for each k in order. So a row's result is that of float weights with the same values, bit
 * for bit, in every block shape. */
#include "kernels/cpu/nf4.h"

_Static_assert((int)NF4_PAIR == (int)PAIR, "a pair of panels");

INLINE void block_nf4(const struct lin_job *j, const struct block *b, const int R, const int P)
{
    const uint8_t *w = b->w + (size_t)b->panel * 64, *ahead = b->ahead;
    const float *x = mat_row(&j->x, b->row);
    size_t ld = (size_t)j->x.ld, stride = b->stride;
    vt table = nf4_table();
    vf acc[R_MAX][P_MAX];
    FOR_R FOR_P acc[r][p] = v_zero();
    for (int block = 0; block < j->w->cols / NF4_BLOCK; block++) {
        vf scale[P_MAX];
        FOR_P scale[p] = v_load((const float *)(w + p * 64));
        w += NF4_SCALES;
        for (int word = 0; word < NF4_BLOCK / 8; word++, w += PAIR * 4, x += 8) {
            vi codes[P_MAX];
            FOR_P codes[p] = i_load(w + p * 64);
            FOR_P ahead = prefetch(ahead, stride, R, BLOCK_ROWS_NF4, b->past);
            UNROLL
            for (int i = 0; i < 8; i++) {
                vf wk[P_MAX];
                FOR_P wk[p] = v_mul(nf4_codes(table, codes[p]), scale[p]);
                FOR_P codes[p] = nf4_next(codes[p]);
                FOR_R
                {
                    vf xk = v_set1(x[(size_t)r * ld + (size_t)i]);
                    FOR_P acc[r][p] = v_fma(xk, wk[p], acc[r][p]);
                }
            }
        }
    }
    STORE_BLOCK(v_add(acc[r][p], bias))
}

BLOCK_FN(blocks_nf4, BLOCK_ROWS_NF4, BLOCK_ROWS_NF4_2, block_nf4)
LINEAR_FN(linear_nf4, 8, blocks_nf4)
