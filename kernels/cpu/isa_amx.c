/* The level amx of the cpu device: the level avx512, with products of many rows by int8 weights, and of all rows by bf16
 * weights where activations are rounded to bf16, on Intel's tile registers
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
 * bf16: one instruction adds to a sum the products of 32 columns of k: first those of the even ones in a chain, beside it
 * those of the odd ones, then both.  That is another order than the vectors', so few rows are computed on tiles too: a
 * row has one order in any batch.
 *
 * int4 and block weights were tried the same way, expanded to bytes: every group's sums must leave the tile to be scaled,
 * and that took longer than the products on vectors (0.89 of their speed). */
#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/cpu.h"

#include "kernels/cpu/math_impl.h"

#include "kernels/cpu/linear_store_impl.h"

enum { TILE_ROWS = 16, TILE_BYTES = 64, ROWS = 2 * TILE_ROWS };
enum { FAR = 8192 };      /* bytes: how far ahead weights are prefetched that come from memory */
enum { NEAR_BYTES = 768 << 10 }; /* of weights: they and a block of rows fit a core's second cache */
enum { LINE = PAIR * 4 };        /* bytes of four int8 columns of a pair, and of two bf16 columns */

_Static_assert((int)ROWS == (int)LIN_TILE_ROWS, "rows of a block");

/* ---- tiles ----------------------------------------------------------------------------------------------------- */

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
};

/* Tiles 0 to 3 hold sums, 4 and 5 activations, 6 and 7 weights.  rows: of the largest block. */
static void tiles_begin(int rows)
{
    _Alignas(64) struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.rows[i] = TILE_ROWS;
        c.bytes[i] = TILE_BYTES;
    }
    if (rows < TILE_ROWS)
        c.rows[0] = c.rows[1] = c.rows[4] = (uint8_t)rows;
    else if (rows > TILE_ROWS)
        c.rows[2] = c.rows[3] = c.rows[5] = (uint8_t)(rows - TILE_ROWS);
    _tile_loadconfig(&c);
}

/* The most rows of a task's blocks. */
static int most_rows(const struct lin_job *j, int block0, int block1)
{
    int most = 0;
    for (int i = block0; i < block1; i++) {
        int rows = lin_block_row(j, i + 1) - lin_block_row(j, i);
        most = rows > most ? rows : most;
    }
    return most;
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

INLINE void sums_zero(const bool both)
{
    _tile_zero(0);
    _tile_zero(1);
    if (!both) return;
    _tile_zero(2);
    _tile_zero(3);
}

/* sums: [ROWS][PAIR] of four bytes. */
INLINE void sums_store(void *sums, const bool both)
{
    char *to = sums;
    _tile_stored(0, to, LINE);
    _tile_stored(1, to + PANEL * 4, LINE);
    if (!both) return;
    to += (size_t)TILE_ROWS * LINE;
    _tile_stored(2, to, LINE);
    _tile_stored(3, to + PANEL * 4, LINE);
}

/* Adds the products of 64 bytes of columns; both: of more than sixteen rows.  Of int8 x is unsigned, as I8_BIAS is added
 * to it. */
#define TILE_STEP(name, multiply)                                                                                      \
    INLINE void name(const uint8_t *x, size_t ld, const uint8_t *w, const bool both)                                   \
    {                                                                                                                  \
        _tile_loadd(6, w, LINE);                                                                                       \
        _tile_loadd(4, x, ld);                                                                                         \
        multiply(0, 4, 6);                                                                                             \
        _tile_loadd(7, w + 64, LINE);                                                                                  \
        multiply(1, 4, 7);                                                                                             \
        if (!both) return;                                                                                             \
        _tile_loadd(5, x + TILE_ROWS * ld, ld);                                                                        \
        multiply(2, 5, 6);                                                                                             \
        multiply(3, 5, 7);                                                                                             \
    }
TILE_STEP(i8_step, _tile_dpbusd)
TILE_STEP(bf16_step, _tile_dpbf16ps)

/* The sums of a block. `first`: its pair's weights come from memory. */
INLINE void i8_sums(const struct lin_job *j, const struct block *b, struct rest *rest, bool first, int32_t *sums,
                    const bool both)
{
    const uint8_t *x = (const uint8_t *)j->q + (size_t)b->row * j->q_stride, *w = b->w;
    int K = j->w->k_pad, k = 0;
    sums_zero(both);
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
    sums_store(sums, both);
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

/* A block of rows stays in the first cache while the weights pass, which are in the second after the first block. */
static void i8_blocks(const struct lin_job *j, int block0, int block1, int pair0, int pair1)
{
    _Alignas(64) int32_t sums[ROWS * PAIR];
    _Alignas(64) float up[ROWS * PANEL];
    struct rest rest;
    int left = j->w->k_pad % TILE_BYTES;
    if (left) memset(&rest, 0, sizeof rest);
    tiles_begin(most_rows(j, block0, block1));
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

/* ---- bf16 ------------------------------------------------------------------------------------------------------ */

/* The sums of a block over k0 .. k1.  sums: those before k0, and the result.  rest: zeros behind the last columns. */
INLINE void bf16_sums(const struct lin_job *j, const struct block *b, uint8_t *rest, bool first, float *sums,
                      const bool both)
{
    const uint8_t *x = (const uint8_t *)j->q + (size_t)b->row * j->q_stride + (size_t)j->k0 * 2;
    const uint8_t *w = b->w + (size_t)j->k0 * (LINE / 2);
    int k = j->k0;
    if (k == 0) {
        sums_zero(both);
    } else {
        tiles_written();
        _tile_loadd(0, sums, LINE);
        _tile_loadd(1, sums + PANEL, LINE);
        if (both) {
            _tile_loadd(2, sums + TILE_ROWS * PAIR, LINE);
            _tile_loadd(3, sums + TILE_ROWS * PAIR + PANEL, LINE);
        }
    }
    for (; k + TILE_K <= j->k1; k += TILE_K, x += TILE_BYTES, w += TILE_K / 2 * LINE) {
        if (first)
            for (int i = 0; i < TILE_K / 2 * LINE; i += 64)
                __builtin_prefetch((const uint8_t *)((uintptr_t)w + FAR + (size_t)i), 0, 2);
        bf16_step(x, j->q_stride, w, both);
    }
    if (k < j->k1) {
        memcpy(rest, w, (size_t)(j->k1 - k) / 2 * LINE);
        tiles_written();
        bf16_step(x, j->q_stride, rest, both);
    }
    sums_store(sums, both);
}

/* As block_bf16_x of linear_impl.h. */
static void bf16_store(const struct lin_job *j, const struct block *b, const float *sums, int rows)
{
    for (int p = 0; p < 2; p++) {
        vf bias = panel_bias(j, b->pair, p);
        for (int r = 0; r < rows; r++) {
            vf sum = v_load(sums + r * PAIR + p * PANEL);
            if (j->k1 < j->w->k_pad)
                block_store(j, b, r, p, sum);
            else if (j->into)
                block_add(j, b, r, p, v_add(sum, bias));
            else
                block_store(j, b, r, p, v_add(sum, bias));
        }
    }
}

static void bf16_blocks(const struct lin_job *j, int block0, int block1, int pair0, int pair1)
{
    _Alignas(64) float sums[ROWS * PAIR];
    _Alignas(64) float up[ROWS * PANEL];
    _Alignas(64) uint8_t rest[TILE_K / 2 * LINE];
    if (j->k1 % TILE_K) memset(rest, 0, sizeof rest);
    tiles_begin(most_rows(j, block0, block1));
    for (int i = block0; i < block1; i++) {
        struct block b = {.row = lin_block_row(j, i), .up = up};
        int rows = lin_block_row(j, i + 1) - b.row;
        for (b.pair = pair0; b.pair < pair1; b.pair++) {
            b.w = j->w->data + (size_t)b.pair * j->w->pair_bytes;
            block_prefetch_y(j, &b, rows);
            for (int r = 0; j->k0 && r < rows; r++)
                for (int p = 0; p < 2; p++) v_store(sums + r * PAIR + p * PANEL, block_sum(j, &b, r, p));
            if (rows > TILE_ROWS)
                bf16_sums(j, &b, rest, i == block0, sums, true);
            else
                bf16_sums(j, &b, rest, i == block0, sums, false);
            bf16_store(j, &b, sums, rows);
            if (j->gated) block_gate(j, &b, rows);
        }
    }
    _tile_release();
}

/* ---- tasks ----------------------------------------------------------------------------------------------------- */

/* For several blocks, as many pairs at once as stay in the second cache. */
static void in_parts(const struct lin_job *j, int block0, int block1, int pair0, int pair1, lin_fn *blocks)
{
    int part = pair1 - pair0;
    if (block1 - block0 > 1 && (size_t)part * j->w->pair_bytes > NEAR_BYTES)
        part = j->w->pair_bytes < NEAR_BYTES ? (int)(NEAR_BYTES / j->w->pair_bytes) : 1;
    for (int pair = pair0; pair < pair1; pair += part)
        blocks(j, block0, block1, pair, pair + part < pair1 ? pair + part : pair1);
}

static void linear_i8_amx(const struct lin_job *j, int block0, int block1, int pair0, int pair1)
{
    in_parts(j, block0, block1, pair0, pair1, i8_blocks);
}

static void linear_bf16_amx(const struct lin_job *j, int block0, int block1, int pair0, int pair1)
{
    in_parts(j, block0, block1, pair0, pair1, bf16_blocks);
}

const struct tile_kernels tiles_amx = {linear_i8_amx, linear_bf16_amx};
