/* Kernels of the backward GEMMs: panels for the block kernels of linear_impl.h, packed from a matrix or from a
 * transposed weight, dot products of long rows, and transposing. */
#include "kernels/cpu/nf4.h"

static void tp_transpose(float *to, int ld_to, const float *from, int ld_from, int rows, int cols)
{
    size_t t = (size_t)ld_to, f = (size_t)ld_from;
    for (int r = 0; r < rows; r += 16)
        for (int c = 0; c < cols; c += 16) {
            float *a = to + (size_t)c * t + r;
            const float *b = from + (size_t)r * f + c;
            if (r + 16 <= rows && c + 16 <= cols) {
                w_transpose(a, t, b, f);
                continue;
            }
            for (int i = 0; i < 16 && r + i < rows; i++)
                for (int k = 0; k < 16 && c + k < cols; k++)
                    a[(size_t)k * t + (size_t)i] = b[(size_t)i * f + (size_t)k];
        }
}

/* ---- dot products: lanes along k ----------------------------------------------------------------------------- */

/* R rows of x by N of w. Each result is one chain in sixteen lanes, folded at the end, whatever the block. */
INLINE void dot_block(const struct mat *c, const struct mat *x, int row, const float *w, int ld_w, int n, float alpha,
                      bool accumulate, const int R, const int N)
{
    const float *xr = mat_row(x, row), *wn = w + (size_t)n * (size_t)ld_w;
    size_t ld = (size_t)x->ld, lw = (size_t)ld_w;
    vf acc[DOT_R][DOT_N];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < N; i++) acc[r][i] = v_zero();
    int k = 0, K = x->cols;
    for (; k + 16 <= K; k += 16) {
        vf wk[DOT_N];
        UNROLL for (int i = 0; i < N; i++) wk[i] = v_load(wn + (size_t)i * lw + k);
        UNROLL for (int r = 0; r < R; r++)
        {
            vf xk = v_load(xr + (size_t)r * ld + k);
            UNROLL for (int i = 0; i < N; i++) acc[r][i] = v_fma(xk, wk[i], acc[r][i]);
        }
    }
    if (k < K) {
        UNROLL for (int r = 0; r < R; r++)
        {
            vf xk = v_load_n(xr + (size_t)r * ld + k, K - k);
            UNROLL for (int i = 0; i < N; i++) acc[r][i] =
                v_fma(xk, v_load_n(wn + (size_t)i * lw + k, K - k), acc[r][i]);
        }
    }
    UNROLL for (int r = 0; r < R; r++)
    {
        float *to = mat_row(c, row + r) + n;
        UNROLL for (int i = 0; i < N; i++)
        {
            float y = v_sum(acc[r][i]) * alpha;
            to[i] = accumulate ? to[i] + y : y;
        }
    }
}

static void tp_dot(struct mat c, struct mat x, const float *w, int ld_w, float alpha, bool accumulate)
{
    int r = 0;
    for (; r + DOT_R <= c.rows; r += DOT_R) {
        int n = 0;
        for (; n + DOT_N <= c.cols; n += DOT_N) dot_block(&c, &x, r, w, ld_w, n, alpha, accumulate, DOT_R, DOT_N);
        for (; n < c.cols; n++) dot_block(&c, &x, r, w, ld_w, n, alpha, accumulate, DOT_R, 1);
    }
    for (; r < c.rows; r++) {
        int n = 0;
        for (; n + DOT_N <= c.cols; n += DOT_N) dot_block(&c, &x, r, w, ld_w, n, alpha, accumulate, 1, DOT_N);
        for (; n < c.cols; n++) dot_block(&c, &x, r, w, ld_w, n, alpha, accumulate, 1, 1);
    }
}

/* ---- panels -------------------------------------------------------------------------------------------------- */

/* Two rows of 32 floats as a line of bf16 pairs of a panel. */
INLINE void panel_pair(uint32_t *line, const float *even, const float *odd)
{
    UNROLL for (int h = 0; h < PAIR; h += 16)
        v_store((float *)line + h, i_float(v_pair_bf16(v_load(even + h), v_load(odd + h))));
}

static const float panel_zeros[PAIR];

/* Stores `rows` rows of 32 floats as rows k .. of a panel; k is even, and so is `rows` except at the end. */
static void panel_put(void *panel, bool half, int k, const float *tile, int rows)
{
    if (!half) {
        memcpy((float *)panel + (size_t)k * PAIR, tile, (size_t)rows * PAIR * sizeof(float));
        return;
    }
    uint32_t *line = (uint32_t *)panel + (size_t)(k / 2) * PAIR;
    for (int i = 0; i < rows; i += 2, line += PAIR)
        panel_pair(line, tile + i * PAIR, i + 1 < rows ? tile + (i + 1) * PAIR : panel_zeros);
}

/* From a matrix with whole rows of 32, read directly from b. */
INLINE void panel_of_rows(void *panel, bool half, const struct mat *b, int first, int k0, int k1)
{
    for (int k = k0; k < k1; k += 2) {
        const float *even = mat_row(b, k) + first, *odd = k + 1 < k1 ? even + b->ld : NULL;
        float *line = (float *)panel + (size_t)(k - k0) * PAIR;
        if (half) {
            panel_pair((uint32_t *)panel + (size_t)((k - k0) / 2) * PAIR, even, odd ? odd : panel_zeros);
            continue;
        }
        memcpy(line, even, PAIR * sizeof *line);
        if (odd) memcpy(line + PAIR, odd, PAIR * sizeof *line);
    }
}

static void tp_panel_of(void *panel, bool half, const struct mat *b, bool transposed, int first, int k0, int k1,
                        float *tile)
{
    int N = transposed ? b->rows : b->cols, left = N - first < PAIR ? N - first : PAIR;
    if (!transposed && left == PAIR) {
        panel_of_rows(panel, half, b, first, k0, k1);
        return;
    }
    memset(tile, 0, PAIR * PAIR * sizeof *tile);
    for (int k = k0; k < k1; k += PAIR) {
        int rows = k1 - k < PAIR ? k1 - k : PAIR;
        if (transposed)
            tp_transpose(tile, PAIR, mat_row(b, first) + k, b->ld, left, rows);
        else
            for (int i = 0; i < rows; i++)
                memcpy(tile + i * PAIR, mat_row(b, k + i) + first, (size_t)left * sizeof *tile);
        panel_put(panel, half, k - k0, tile, rows);
    }
}

/* Dequantises columns first .. first + 31 of a pair in packed order: tile [column][32 outputs], zeros past the last
 * column. */
INLINE void tile_words(float *tile, const uint8_t *w, int words, const int per_word, enum dtype t, vf less,
                       const vf *scale)
{
    for (int i = 0; i < words; i++, w += PAIR * 4) UNROLL for (int h = 0; h < 2; h++)
        {
            vi word = i_load(w + h * 64);
            float *to = tile + i * per_word * PAIR + h * 16;
            if (t == DT_I8)
                UNROLL for (int b = 0; b < 4; b++) v_store(to + b * PAIR, i_to_f(i_sar(i_shl(word, 24 - 8 * b), 24)));
            else
                UNROLL for (int b = 0; b < 8; b++) /* low nibbles are k 0..3, high nibbles k 4..7 */
                {
                    vf code = i_to_f(i_and(i_shr(word, b % 4 * 8 + b / 4 * 4), i_set1(15)));
                    v_store(to + b * PAIR, v_mul(v_sub(code, less), scale[h]));
                }
        }
}

static void tile_nf4(float *tile, const uint8_t *block, int column, int words)
{
    vt table = nf4_table();
    const uint8_t *w = block + NF4_SCALES + column / 8 * (PAIR * 4);
    for (int h = 0; h < 2; h++) {
        vf scale = v_load((const float *)block + h * 16);
        for (int i = 0; i < words; i++) {
            vi codes = i_load(w + i * (PAIR * 4) + h * 64);
            for (int b = 0; b < 8; b++, codes = nf4_next(codes))
                v_store(tile + (i * 8 + b) * PAIR + h * 16, v_mul(nf4_codes(table, codes), scale));
        }
    }
}

static void tile_i4(float *tile, const struct weight *w, const uint8_t *pair, int first, int words)
{
    const uint8_t *group = pair + (size_t)(first / w->group) * (w->pair_bytes / (size_t)w->n_groups);
    const uint16_t *s = (const uint16_t *)group;
    vf scale[2] = {v_load_f16(s), v_load_f16(s + 16)};
    tile_words(tile, group + PAIR * sizeof *s + first % w->group / 8 * (PAIR * 4), words, 8, DT_I4, v_set1(8), scale);
}

static void tile_f8(float *tile, const struct weight *w, const uint8_t *pair, int first, int n)
{
    for (int k = first; k < first + n; k += 4, tile += 4 * PAIR) {
        int g = w->group ? k / w->group : 0;
        const uint8_t *group = pair + f8_group_at(w, g), *words = group + f8_code_at(0, k - g * w->group);
        for (int i = 0; i < 4; i++) {
            vi two = f8_pairs(i_load(words + i % 2 * 64), i / 2);
            vf scale = v_load((const float *)group + i % 2 * PANEL);
            float *to = tile + i / 2 * (2 * PAIR) + i % 2 * PANEL;
            v_store(to, v_mul(i_float(i_shl(two, 16)), scale));
            v_store(to + PAIR, v_mul(i_float(i_and(two, i_set1((int32_t)0xffff0000))), scale));
        }
    }
}

static void tile_block(float *tile, const struct weight *w, int pair, int first, int n)
{
    const struct block_run *run = block_run_of(w, pair);
    const struct block_form *f = &run->form;
    const uint8_t *data = block_pair_of(w, run, pair);
    const int some = f->group < PAIR ? f->group : PAIR; /* columns of one group in the tile */
    vi low = i_set1(255), zero = i_set1(f->zero);
    uint8_t bytes[PAIR * PAIR];
    for (int c = 0; c < n; c += some, tile += some * PAIR) {
        int g = (first + c) / f->group, in = g % f->per_super, steps = (first + c) % f->group / codes_step(f->codes);
        const uint8_t *super = data + block_super_at(f, g / f->per_super);
        codes_expand(bytes, super + f->head + (size_t)in * f->group_bytes + (size_t)steps * codes_bytes(f->codes), f,
                     some);
        for (int p = 0; p < 2; p++) {
            vf scale = group_scale(f, super, in, p), minimum = v_zero();
            if (f->minimum) minimum = group_minimum(f, super, in, p);
            for (int k = 0; k < some; k++) {
                vi word = i_load(bytes + k / 4 * (4 * PAIR) + p * 64);
                vf x = v_mul(i_to_f(i_add(i_and(i_shr(word, k % 4 * 8), low), zero)), scale);
                v_store(tile + k * PAIR + p * PANEL, f->minimum ? v_sub(x, minimum) : x);
            }
        }
    }
}

static void tile_floats(float *tile, const struct weight *w, const uint8_t *pair, int first, int n)
{
    const float *f = (const float *)pair + (size_t)first * PAIR;
    const uint16_t *h = (const uint16_t *)pair + (size_t)first * PAIR;
    if (w->t == DT_F32) memcpy(tile, f, (size_t)n * PAIR * sizeof *f);
    for (int k = 0; k < n && w->t == DT_F16; k++)
        for (int i = 0; i < PAIR; i += 16) v_store(tile + k * PAIR + i, v_load_f16(h + k * PAIR + i));
    for (int k = 0; k < n && w->t == DT_BF16; k += 2)
        for (int i = 0; i < PAIR; i += 16) {
            vi both = i_load(h + k * PAIR + i * 2);
            v_store(tile + k * PAIR + i, i_float(i_shl(both, 16)));
            v_store(tile + (k + 1) * PAIR + i, i_float(i_and(both, i_set1((int32_t)0xffff0000))));
        }
}

/* Transposes a pair of bf16 weights: words of two k's by outputs become words of two outputs by k. */
static void transpose_bf16(uint32_t *panel, const uint8_t *data, int first, int n, float *tile)
{
    const float *w = (const float *)data + (size_t)(first / 2) * PAIR;
    int words = (n + 1) / 2;
    if (words < 16) { /* the last columns: zeros beyond */
        memcpy(tile + 16 * PAIR, w, (size_t)words * PAIR * sizeof *tile);
        memset(tile + (16 + words) * PAIR, 0, (size_t)(16 - words) * PAIR * sizeof *tile);
        w = tile + 16 * PAIR;
    }
    w_transpose(tile, 16, w, PAIR);
    w_transpose(tile + 256, 16, w + 16, PAIR);
    for (int i = 0; i < PAIR / 2; i++, panel += PAIR) w_zip(panel, panel + 16, tile + i * 32, tile + i * 32 + 16);
}

/* The same for int8: words of four k's by outputs; the integers are exact in bf16. */
static void transpose_i8(uint32_t *panel, const uint8_t *data, int first, int n, float *tile)
{
    const float *w = (const float *)data + (size_t)(first / 4) * PAIR;
    int words = (n + 3) / 4;
    float *two = tile + 256; /* rows 0 .. 7: outputs 0 .. 15, then 16 .. 31 */
    memset(two, 0, 256 * sizeof *two);
    for (int i = 0; i < words; i++) {
        v_store(two + i * 16, v_load(w + i * PAIR));
        v_store(two + (8 + i) * 16, v_load(w + i * PAIR + 16));
    }
    w_transpose(tile, 16, two, 16);
    for (int i = 0; i < PAIR / 2; i++, panel += PAIR) {
        const int8_t *even = (const int8_t *)(tile + i % 8 * 32 + i / 8 * 8), *odd = even + 64;
        v_store((float *)panel, i_float(v_pair_bf16(v_load_i8(even), v_load_i8(odd))));
        v_store((float *)panel + 16, i_float(v_pair_bf16(v_load_i8(even + 16), v_load_i8(odd + 16))));
    }
}

static void tp_panel_back(void *panel, bool half, const struct weight *w, int first, int pair0, int pair1, float *tile)
{
    int n = w->cols - first < PAIR ? w->cols - first : PAIR;
    float *transposed = tile + PAIR * PAIR;
    memset(tile, 0, PAIR * PAIR * sizeof *tile);
    for (int pair = pair0; pair < pair1; pair++) {
        const uint8_t *data = w->data + (size_t)pair * w->pair_bytes;
        uint32_t *half_panel = (uint32_t *)panel + (size_t)(pair - pair0) * PAIR * PAIR / 2;
        if (half && w->t == DT_BF16) {
            transpose_bf16(half_panel, data, first, n, tile);
            continue;
        }
        if (half && w->t == DT_I8) {
            transpose_i8(half_panel, data, first, n, tile);
            continue;
        }
        if (w->t == DT_I8)
            tile_words(tile, data + (size_t)first * PAIR, (n + 3) / 4, 4, DT_I8, v_zero(), NULL);
        else if (w->t == DT_I4)
            tile_i4(tile, w, data, first, (n + 7) / 8);
        else if (w->t == DT_BLOCK)
            tile_block(tile, w, pair, first, n);
        else if (w->t == DT_F8)
            tile_f8(tile, w, data, first, n);
        else if (w->t == DT_NF4)
            tile_nf4(tile, data + (size_t)(first / NF4_BLOCK) * NF4_BLOCK_BYTES, first % NF4_BLOCK, (n + 7) / 8);
        else
            tile_floats(tile, w, data, first, n);
        float *to = half ? transposed : (float *)panel + (size_t)(pair - pair0) * PAIR * PAIR;
        for (int i = 0; i < PAIR; i += 16)
            for (int k = 0; k < PAIR; k += 16) w_transpose(to + k * PAIR + i, PAIR, tile + i * PAIR + k, PAIR);
        if (half) panel_put(panel, true, (pair - pair0) * PAIR, transposed, PAIR);
    }
}

static void tp_gather(float *out, const struct weight *w, const float *dy, int ld, int pair0, int pair1)
{
    int half = w->rows / 2;
    for (int panel = 2 * pair0; panel < 2 * pair1; panel++, out += PANEL) {
        int at = panel * PANEL, left = w->rows - at;
        const float *from = dy + at;
        if (w->gate_up) {
            at = panel / 2 * PANEL;
            left = half - at;
            from = dy + at + (panel % 2 ? half : 0);
        }
        __builtin_prefetch((const void *)((uintptr_t)from + (size_t)ld * sizeof *from)); /* the next row */
        vf y = left > 0 ? v_load_n(from, left) : v_zero();
        if (w->t == DT_I8) y = v_mul(y, v_load(w->scale + (size_t)panel * PANEL));
        v_store(out, y);
    }
}

/* R rows of 32 floats at a time are transposed as words of two. */
static void tp_halve_rows(uint32_t *out, int R, const float *x, int ld, int n)
{
    _Alignas(64) float rows[256], words[256];
    memset(rows, 0, sizeof rows);
    for (int k = 0; k < n; k += 32, out += 16 * R) {
        int left = n - k, pairs = left < 32 ? (left + 1) / 2 : 16;
        const float *from = x + k;
        for (int r = 0; r < R; r++, from += ld) {
            uint16_t *to = (uint16_t *)(rows + r * 16);
            __builtin_prefetch((const void *)((uintptr_t)from + 512));
            __builtin_prefetch((const void *)((uintptr_t)from + 576));
            if (left >= 32)
                v_store_2_bf16(to, v_load(from), v_load(from + 16));
            else
                v_store_2_bf16(to, v_load_n(from, left), left > 16 ? v_load_n(from + 16, left - 16) : v_zero());
        }
        w_transpose(words, 16, rows, 16);
        for (int i = 0; i < pairs; i++) v_store_n((float *)out + i * R, v_load(words + i * 16), R);
    }
}

static void tp_halve_columns(uint32_t *out, int R, const float *x, int ld, int n)
{
    for (int k = 0; k < n; k += 2, x += 2 * (size_t)ld, out += R) {
        vf odd = k + 1 < n ? v_load_n(x + ld, R) : v_zero();
        v_store_n((float *)out, i_float(v_pair_bf16(v_load_n(x, R), odd)), R);
    }
}

/* ---- the rest ------------------------------------------------------------------------------------------------ */

static void tp_col_sum(float *out, const struct mat *x, int from, int to)
{
    int c = from;
    for (; c + 64 <= to; c += 64) {
        vf sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
        const float *p = (const float *)x->p + c;
        for (int t = 0; t < x->rows; t++, p += x->ld)
            UNROLL for (int i = 0; i < 4; i++) sum[i] = v_add(sum[i], v_load(p + i * 16));
        for (int i = 0; i < 4; i++) v_store(out + c + i * 16, v_add(v_load(out + c + i * 16), sum[i]));
    }
    for (; c < to; c += 16) {
        vf sum = v_zero();
        const float *p = (const float *)x->p + c;
        for (int t = 0; t < x->rows; t++, p += x->ld) sum = v_add(sum, v_load_n(p, to - c));
        v_store_n(out + c, v_add(v_load_n(out + c, to - c), sum), to - c);
    }
}

/* Packs sixteen columns, from k on, of a panel's outputs. */
static void pack_tile(uint8_t *to, enum dtype t, const float *tile, int n)
{
    for (int i = 0; i < n; i++, tile += 16) {
        if (t == DT_F32)
            v_store((float *)to + i * PAIR, v_load(tile));
        else if (t == DT_F16)
            v_store_f16((uint16_t *)to + i * PAIR, v_load(tile));
        else if (i % 2 == 0)
            v_store((float *)to + i / 2 * PAIR,
                    i_float(v_pair_bf16(v_load(tile), i + 1 < n ? v_load(tile + 16) : v_zero())));
    }
}

static void tp_pack(uint8_t *pair, enum dtype t, const float *const row[PAIR], int K)
{
    float rows[256], tile[256];
    size_t column = t == DT_F32 ? PAIR * 4 : PAIR * 2, lane = t == DT_F16 ? 2 : 4;
    memset(rows, 0, sizeof rows);
    for (int panel = 0; panel < 2; panel++)
        for (int k = 0; k < K; k += 16) {
            int n = K - k < 16 ? K - k : 16;
            for (int i = 0; i < 16; i++) {
                if (row[panel * PANEL + i])
                    memcpy(rows + i * 16, row[panel * PANEL + i] + k, (size_t)n * sizeof *rows);
                else
                    memset(rows + i * 16, 0, 16 * sizeof *rows);
            }
            w_transpose(tile, 16, rows, 16);
            pack_tile(pair + (size_t)k * column + (size_t)panel * PANEL * lane, t, tile, n);
        }
}
