/* GEMM for fp8 weights (packed as f8.h says). A row is divided into pieces of at most F8_PIECE columns of one group.
 * The sum over a piece is that of the bf16 kernels, because the codes are exact in bf16; times the scale of its group
 * it is added to the row's total with one fused multiply-add. The pieces depend on the weight's shape alone, so a row's
 * result is the same in every block shape. */
#include "kernels/cpu/f8.h"

enum { F8_PIECE = 128 }; /* columns */

/* Input `i` of each word as a float.  A code becomes the upper half of a float whose exponent lacks its new bias, and a
 * multiplication adds that, subnormal codes included. */
INLINE vf f8_value(vi words, int i)
{
    int up = i == 0 ? 24 : i == 1 ? 8 : i == 2 ? 16 : 0;
    vi code = i_and(i_sar(up ? i_shl(words, up) : words, 4), i_set1((int32_t)0x87f00000));
    return v_mul(i_float(code), v_set1(0x1p120f));
}

/* Inputs 0 and 1 of each word (`odd` 0), or 2 and 3, as pairs of bf16. */
INLINE vi f8_pairs(vi words, int odd)
{
#ifdef VEC_F8_PAIRS
    return i_f8_pairs(words, odd);
#else
    return i_or(i_shr(v_bits(f8_value(words, 2 * odd)), 16), v_bits(f8_value(words, 2 * odd + 1)));
#endif
}

/* Words of four inputs of both panels as bf16 weights are packed. */
static void f8_widen(uint8_t *to, const uint8_t *codes, int words)
{
    for (int i = 0; i < words; i++, codes += F8_WORDS, to += 2 * F8_WORDS) UNROLL for (int p = 0; p < 2; p++)
        {
            vi four = i_load(codes + p * 64);
            v_store((float *)(to + p * 64), i_float(f8_pairs(four, 0)));
            v_store((float *)(to + F8_WORDS + p * 64), i_float(f8_pairs(four, 1)));
        }
}

/* The piece that begins at column k of group g: its columns. */
INLINE int f8_piece(const struct weight *w, int g, int k)
{
    int left = f8_columns(w, g) - k;
    return left < F8_PIECE ? left : F8_PIECE;
}

/* ---- few rows: codes are converted in registers --------------------------------------------------------------------
 */

enum { F8_FEW = BLOCK_ROWS_F2 < 4 ? BLOCK_ROWS_F2 : 4 };

/* Adds the products of the first `left` inputs of a word, in the order of the bf16 kernels; x: pairs of bf16 [2][R] if
 * rounded, else floats, rows ld apart. */
INLINE void f8_word(vf acc[R_MAX][P_MAX], const vi four[P_MAX], const void *x, size_t ld, const bool rounded, int left,
                    const int R)
{
    enum { P = 2 };
    UNROLL_GROUP for (int i = 0; i < 4; i += 1 + rounded)
    {
        if (i >= left) break;
        if (rounded) {
            const uint32_t *pair = (const uint32_t *)x + i / 2 * R;
            vi wk[P];
            FOR_P wk[p] = f8_pairs(four[p], i / 2);
            FOR_R FOR_P acc[r][p] = v_dot_bf16(acc[r][p], wk[p], pair[r]);
        } else {
            const float *value = (const float *)x + i;
            vf wk[P];
            FOR_P wk[p] = f8_value(four[p], i);
            FOR_R FOR_P acc[r][p] = v_fma(v_set1(value[(size_t)r * ld]), wk[p], acc[r][p]);
        }
    }
}

INLINE void f8_rows(const struct lin_job *j, const uint8_t *pair, int row, const bool rounded, float *total,
                    const int R)
{
    enum { P = 2 };
    const struct weight *w = j->w;
    const uint8_t *x =
        rounded ? (const uint8_t *)j->q + (size_t)row * (size_t)j->q_ld * 2 : (const uint8_t *)mat_row(&j->x, row);
    const size_t step = rounded ? 8 * (size_t)R : 16, ld = (size_t)j->x.ld;
    vf sum[R_MAX][P_MAX];
    FOR_R FOR_P sum[r][p] = v_zero();
    for (int g = 0; g < w->n_groups; g++) {
        const float *scale = (const float *)pair;
        pair += F8_SCALES;
        for (int k = 0, n; k < f8_columns(w, g); k += n) {
            vf acc[R_MAX][P_MAX];
            vi four[P_MAX];
            n = f8_piece(w, g, k);
            FOR_R FOR_P acc[r][p] = v_zero();
            for (int i = 0; i + 4 <= n; i += 4, pair += F8_WORDS, x += step) {
                FOR_P four[p] = i_load(pair + p * 64);
                FOR_P prefetch((const uint8_t *)((uintptr_t)pair + prefetch_far(j) + (size_t)p * 64), 0, R,
                               BLOCK_ROWS_F, j->streams);
                f8_word(acc, four, x, ld, rounded, 4, R);
            }
            if (n % 4) {
                FOR_P four[p] = i_load(pair + p * 64);
                f8_word(acc, four, x, ld, rounded, n % 4, R);
            }
            FOR_P
            {
                vf by = v_load(scale + p * PANEL);
                FOR_R sum[r][p] = v_fma(acc[r][p], by, sum[r][p]);
            }
        }
    }
    FOR_R FOR_P v_store(total + r * PAIR + p * PANEL, sum[r][p]);
}

static void f8_few(const struct lin_job *j, const uint8_t *pair, int row, int rows, bool rounded, float *total)
{
    if (rounded)
        BLOCK_SWITCH(rows, F8_FEW, f8_rows(j, pair, row, true, total, R))
    else
        BLOCK_SWITCH(rows, F8_FEW, f8_rows(j, pair, row, false, total, R))
}

/* ---- many rows: a pair is converted, then multiplied as bf16 --------------------------------------------------------
 */

/* Everything that the blocks of a task share. */
struct f8_task {
    const struct lin_job *j;
    bool rounded;     /* x is in j->q, rounded to bf16 */
    uint8_t *widened; /* a piece, or with `keep` the whole pair */
    bool keep, ready; /* ready: the pair is there */
    const uint8_t *next;
    size_t share; /* of the bytes from next on, to be prefetched by a block; 0: the pair itself, ahead of its use */
};

/* The sums of one block over a whole pair: total [rows][32]. */
static void f8_block(const struct f8_task *t, const uint8_t *pair, int row, int rows, float *total)
{
    const struct lin_job *j = t->j;
    const struct weight *w = j->w;
    struct weight piece = {.t = DT_BF16, .rows = PAIR, .pairs = 1};
    struct lin_job job = {.w = &piece, .y = mat_f32(total, rows, PAIR), .x = j->x, .q_ld = j->q_ld};
    struct block b = {0};
    size_t at = 0; /* in the pair */
    memset(total, 0, (size_t)rows * PAIR * sizeof *total);
    for (int g = 0, column = 0; g < w->n_groups; g++) {
        job.by = (const float *)(pair + at);
        at += F8_SCALES;
        for (int k = 0, n; k < f8_columns(w, g); k += n, column += n) {
            n = f8_piece(w, g, k);
            uint8_t *wide = t->widened + (t->keep ? (size_t)column * PAIR * 2 : 0);
            if (!t->ready) f8_widen(wide, pair + at, (n + 3) / 4);
            b.w = wide;
            at += (size_t)((n + 3) / 4) * F8_WORDS;
            b.ahead = pair + at;
            b.stride = 0;
            if (t->share) {
                b.ahead = (const uint8_t *)((uintptr_t)t->next + (size_t)column * t->share / (size_t)w->cols);
                b.stride = t->share / (size_t)w->cols;
            } else if (!t->keep) {
                b.past = j->streams;
                b.ahead = (const uint8_t *)((uintptr_t)b.ahead + prefetch_far(j));
                b.stride = PAIR;
            }
            piece.cols = n;
            job.k1 = piece.k_pad = (n + 1) / 2 * 2;
            job.x.p = mat_row(&j->x, row) + column;
            if (t->rounded) job.q = j->q + ((size_t)row * (size_t)j->q_ld + (size_t)column * (size_t)rows) * 2;
            (t->rounded ? blocks_bf16_x : blocks_bf16)(&job, &b, rows);
        }
    }
}

/* widened: scratch for a pair as bf16, and for a whole piece at least. */
static void linear_f8(const struct lin_job *j, int block0, int block1, int pair0, int pair1, bool rounded,
                      uint8_t *widened)
{
    _Alignas(64) float up[R_MAX * PANEL], total[R_MAX * PAIR];
    int n = block1 - block0;
    struct f8_task t = {.j = j, .rounded = rounded, .widened = widened, .keep = n > 1};
    for (int pair = pair0; pair < pair1; pair++) {
        const uint8_t *data = j->w->data + (size_t)pair * j->w->pair_bytes;
        int next = pair + 1 < pair1 ? pair + 1 : pair + 1 + j->skip;
        t.ready = false;
        t.share = n > 1 && n <= PREFETCH_BLOCKS ? j->w->pair_bytes / (size_t)n : 0;
        for (int i = 0; i < n; i++, t.ready = t.keep) {
            struct block b = {.row = lin_block_row(j, block0 + i), .pair = pair, .up = up};
            int rows = lin_block_row(j, block0 + i + 1) - b.row;
            t.next = (const uint8_t *)((uintptr_t)j->w->data + (size_t)next * j->w->pair_bytes + (size_t)i * t.share);
            if (n == 1 && rows <= F8_FEW)
                f8_few(j, data, b.row, rows, rounded, total);
            else
                f8_block(&t, data, b.row, rows, total);
            for (int panel = 0; panel < 2; panel++) {
                vf bias = panel_bias(j, pair, panel);
                for (int r = 0; r < rows; r++)
                    block_store(j, &b, r, panel, v_add(v_load(total + r * PAIR + panel * PANEL), bias));
            }
            if (j->gated) block_gate(j, &b, rows);
        }
    }
}
