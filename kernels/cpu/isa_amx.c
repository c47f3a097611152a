/* The level amx of the cpu device: the level avx512, with products of many rows by int8 weights on Intel's tile registers
 * (AMX: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18).
 *
 * A tile is sixteen rows of 64 bytes.  One instruction adds to sixteen rows by sixteen outputs the products of 64 columns
 * of k.  Its integer sums are exact, and the floating-point operations after them are those of linear_impl.h, so the bits
 * are those of the other levels.
 *
 * Tiles of weights are read from their packed form, in which four columns of sixteen outputs are 64 bytes.  Rows of
 * activations are quantised one after another.  The tile of a block's last rows may reach past them:
 * what is computed there is not stored.
 *
 * int4 and block weights were tried the same way, expanded to bytes: every group's sums must leave the tile to be scaled,
 * and that took longer than the products on vectors (0.89 of their speed). */
#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/cpu.h"

#include "kernels/cpu/math_impl.h"

#include "kernels/cpu/linear_store_impl.h"

enum { TILE_ROWS = 16, TILE_BYTES = 64, ROWS = 2 * TILE_ROWS };
enum { FAR = 8192 };      /* bytes: how far ahead weights are prefetched that come from memory */
enum { LINE = PAIR * 4 }; /* bytes of four columns of a pair */

_Static_assert((int)ROWS == (int)LIN_TILE_ROWS, "rows of a block");

/* ---- tiles ----------------------------------------------------------------------------------------------------- */

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
};

/* Tiles 0 to 3 hold sums, 4 and 5 activations, 6 and 7 weights. */
static void tiles_begin(void)
{
    _Alignas(64) struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.rows[i] = TILE_ROWS;
        c.bytes[i] = TILE_BYTES;
    }
    _tile_loadconfig(&c);
}

/* The compiler does not know that a tile is loaded from memory. */
INLINE void tiles_written(void)
{
    __asm__ volatile("" : : : "memory");
}

/* ---- products ------------------------------------------------------------------------------------------------------ */

/* The last columns of a block's rows or of a pair's weights, when they do not fill a tile: zeros follow them. */
struct rest {
    _Alignas(64) uint8_t x[ROWS][TILE_BYTES];
    _Alignas(64) uint8_t w[TILE_BYTES / 4][LINE];
};

/* Adds the products of 64 columns; both: of more than sixteen rows.  x: unsigned, as I8_BIAS is added to it. */
INLINE void i8_step(const uint8_t *x, size_t ld, const uint8_t *w, const bool both)
{
    _tile_loadd(6, w, LINE);
    _tile_loadd(4, x, ld);
    _tile_dpbusd(0, 4, 6);
    _tile_loadd(7, w + 64, LINE);
    _tile_dpbusd(1, 4, 7);
    if (!both) return;
    _tile_loadd(5, x + TILE_ROWS * ld, ld);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
}

/* The sums of a block. `first`: its pair's weights come from memory. */
INLINE void i8_sums(const struct lin_job *j, const struct block *b, struct rest *rest, bool first, int32_t *sums,
                    const bool both)
{
    const uint8_t *x = (const uint8_t *)j->q + (size_t)b->row * j->q_stride, *w = b->w;
    int K = j->w->k_pad, k = 0;
    _tile_zero(0);
    _tile_zero(1);
    if (both) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (; k + TILE_BYTES <= K; k += TILE_BYTES, w += TILE_BYTES / 4 * LINE) {
        if (first)
            for (int i = 0; i < TILE_BYTES / 4 * LINE; i += 64)
                __builtin_prefetch((const uint8_t *)((uintptr_t)w + FAR + (size_t)i), 0, 2);
        i8_step(x + k, j->q_stride, w, both);
    }
    if (k < K) {
        memcpy(rest->w, w, (size_t)(K - k) / 4 * LINE);
        tiles_written();
        i8_step(rest->x[0], TILE_BYTES, rest->w[0], both);
    }
    _tile_stored(0, sums, LINE);
    _tile_stored(1, sums + PANEL, LINE);
    if (both) {
        _tile_stored(2, sums + TILE_ROWS * PAIR, LINE);
        _tile_stored(3, sums + TILE_ROWS * PAIR + PANEL, LINE);
    }
}

/* As STORE_QUANTISED of linear_store_impl.h. */
static void i8_store(const struct lin_job *j, const struct block *b, const int32_t *sums, int rows)
{
    for (int p = 0; p < 2; p++) {
        int at = b->pair * PAIR + p * PANEL;
        vi less = i_load(j->w->bias_sum + at);
        vf bias = panel_bias(j, b->pair, p), scale = v_load(j->w->scale + at), from = bias;
        for (int r = 0; r < rows; r++) {
            if (!lin_is_rest(j, b->row + r)) from = bias;
            vf sum = i_to_f(i_add(i_load(sums + r * PAIR + p * PANEL), less));
            from = v_fma(v_mul(sum, v_set1(j->q_step[b->row + r])), scale, from);
            block_store(j, b, r, p, from);
        }
    }
}

/* A block of rows stays in the first cache while the task's weights pass, which are in the second after the first
 * block. */
void linear_i8_amx(const struct lin_job *j, int block0, int block1, int pair0, int pair1)
{
    _Alignas(64) int32_t sums[ROWS * PAIR];
    _Alignas(64) float up[ROWS * PANEL];
    struct rest rest;
    int left = j->w->k_pad % TILE_BYTES;
    if (left) memset(&rest, 0, sizeof rest);
    tiles_begin();
    for (int i = block0; i < block1; i++) {
        struct block b = {.row = lin_block_row(j, i), .up = up};
        int rows = lin_block_row(j, i + 1) - b.row;
        for (int r = 0; left && r < rows; r++)
            memcpy(rest.x[r], j->q + (size_t)(b.row + r) * j->q_stride + (j->w->k_pad - left), (size_t)left);
        for (b.pair = pair0; b.pair < pair1; b.pair++) {
            b.w = j->w->data + (size_t)b.pair * j->w->pair_bytes;
            block_prefetch_y(j, &b, rows);
            if (rows > TILE_ROWS)
                i8_sums(j, &b, &rest, i == block0, sums, true);
            else
                i8_sums(j, &b, &rest, i == block0, sums, false);
            i8_store(j, &b, sums, rows);
            if (j->gated) block_gate(j, &b, rows);
        }
    }
    _tile_release();
}
