/* GEMM kernels for DT_BLOCK weights (packed as block.h says). Integer sums over a group are exact; for each group in
 * order one fused multiply-add adds the sum times the scale, and a second one subtracts the sum of the activations
 * times the minimum. So a row's result is the same in every block shape and for every kind of codes that holds the
 * values. */
#include "kernels/cpu/block.h"

/* Vector i of a step, four columns: codes as i_dot_u takes them, with CODES_TABLE and CODES_8 as i_dot_w does. */
INLINE vb codes_vector(const uint8_t *line, enum block_codes codes, vl table, int i)
{
    if (codes == CODES_8) return b_wide(b_load(line + i * (4 * PAIR)));
    const uint8_t *nibbles = line + (codes == CODES_5 || codes == CODES_6 ? 4 * PAIR : 0) + i / 2 * (4 * PAIR);
    vb both = b_load(nibbles), low = i % 2 ? b_high(both) : b_low(both);
    if (codes == CODES_TABLE) return b_look(table, low);
    if (codes == CODES_5) return b_or(low, b_second(b_load(line), i));
    if (codes == CODES_6) return b_or(low, b_fourth(b_load(line), i));
    return low;
}

INLINE vi codes_dot(enum block_codes codes, vi acc, vb w, const int8_t *a)
{
    return codes == CODES_TABLE || codes == CODES_8 ? i_dot_w(acc, w, a) : i_dot_u(acc, w, a);
}

/* The scale of a group of a panel; `in`: the group within its super group. */
INLINE vf group_scale(const struct block_form *f, const uint8_t *super, int in, int panel)
{
    vf scale = row_load(super, f->floats, panel * PANEL);
    if (!f->sub_scale) return scale;
    return v_mul(scale, v_load_i8((const int8_t *)super + block_subs_at(f) + in * PAIR + panel * PANEL));
}

INLINE vf group_minimum(const struct block_form *f, const uint8_t *super, int in, int panel)
{
    vf minimum = row_load(super + PAIR * float_bytes(f->floats), f->floats, panel * PANEL);
    if (!f->sub_minimum) return minimum;
    return v_mul(minimum, v_load_u8(super + block_sub_mins_at(f) + in * PAIR + panel * PANEL));
}

/* Bits of the codes of a step as the kernels take them; more than 6: any byte. */
INLINE int codes_bits(enum block_codes codes)
{
    return codes == CODES_4 ? 4 : codes == CODES_5 ? 5 : codes == CODES_6 ? 6 : 8;
}

#ifdef SHORT_SUMS
/* step_dot of codes up to 6 bits. */
INLINE void step_dot_short(vi acc[R_MAX][P_MAX], enum block_codes codes, const int bits, const uint8_t *line, vl table,
                           const int8_t *q, const int R, const int P)
{
    const int each = SHORT_SUMS(bits) < 4 ? SHORT_SUMS(bits) : 4; /* a step of 16 columns has four vectors */
    UNROLL for (int i = 0; i < codes_step(codes) / 4; i += each)
    {
        vi sum[R_MAX][P_MAX];
        FOR_R FOR_P sum[r][p] = i_zero();
        UNROLL for (int n = 0; n < each; n++)
        {
            vb wk[P_MAX];
            FOR_P wk[p] = codes == CODES_8 ? b_load(line + p * 64 + (i + n) * (4 * PAIR))
                                           : codes_vector(line + p * 64, codes, table, i + n);
            FOR_R FOR_P sum[r][p] = s_dot_u(sum[r][p], wk[p], q + 4 * ((i + n) * R + r));
        }
        FOR_R FOR_P acc[r][p] = i_add_short(acc[r][p], sum[r][p]);
    }
}
#endif

/* Adds the products of one step of 16 or 32 columns. bits: of the codes. */
INLINE void step_dot(vi acc[R_MAX][P_MAX], enum block_codes codes, const int bits, const uint8_t *line, vl table,
                     const int8_t *q, const int R, const int P)
{
#ifdef VEC_MATRICES
    UNROLL for (int i = 0; i < codes_step(codes) / 4; i += 2)
    {
        vb wk[2][P_MAX];
        for (int half = 0; half < 2; half++) FOR_P wk[half][p] = codes_vector(line + p * 64, codes, table, i + half);
        eight_columns(acc, wk[0], wk[1], q + 4 * i * R, R, P);
    }
#else
#ifdef SHORT_SUMS
    if (bits <= 6) {
        step_dot_short(acc, codes, bits, line, table, q, R, P);
        return;
    }
#endif
    UNROLL for (int i = 0; i < codes_step(codes) / 4; i++)
    {
        vb wk[P_MAX];
        FOR_P wk[p] = codes_vector(line + p * 64, codes, table, i);
        FOR_R FOR_P acc[r][p] = codes_dot(codes, acc[r][p], wk[p], q + 4 * (i * R + r));
    }
#endif
}

/* The start of a group: sum[r], the sum of each row's activations in it, and from that the integer sums, which begin
 * with what the codes' zero takes off. each: of `sums`, the activations' own groups, in this one. @return the sums of
 * the next group. */
INLINE const int32_t *group_start(vi acc[R_MAX][P_MAX], int32_t sum[R_MAX], const int32_t *sums, int each, int zero,
                                  const int R, const int P)
{
    FOR_R sum[r] = sums[r];
    sums += R;
    for (int i = 1; i < each; i++, sums += R) FOR_R sum[r] += sums[r];
    FOR_R
    {
        vi less = i_set1(sum[r] * zero);
        FOR_P acc[r][p] = less;
    }
    sums_pair(acc, R, P);
    return sums;
}

INLINE void block_grouped(const struct lin_job *j, const struct block *b, enum block_codes codes, const int R,
                          const int P)
{
    const struct block_form *f = b->form;
    const uint8_t *super = b->w, *ahead = b->ahead;
    const int8_t *q = j->q + (size_t)b->row * j->q_ld;
    const int32_t *sums = j->q_sum + (size_t)b->row * j->w->n_groups;
    const int each = f->group / j->w->group; /* of the activations' sums in a group */
    const int zero = f->zero + (codes == CODES_TABLE || codes == CODES_8 ? W_LESS : 0);
    size_t stride = b->stride;
    vl table = b_table(f->table, true);
    vf total[R_MAX][P_MAX];
    FOR_R FOR_P total[r][p] = v_zero();
    for (int g = 0; g < f->n_groups; g += f->per_super) {
        const uint8_t *w = super + f->head;
        int n = f->n_groups - g < f->per_super ? f->n_groups - g : f->per_super;
        for (size_t line = 0; line < f->head; line += 64) ahead = prefetch(ahead, stride, R, BLOCK_ROWS_CODES, b->past);
        for (int in = 0; in < n; in++) {
            int32_t sum[R_MAX];
            vi acc[R_MAX][P_MAX];
            sums = group_start(acc, sum, sums, each, zero, R, P);
            for (int k = 0; k < f->group; k += codes_step(codes), w += codes_bytes(codes)) {
                UNROLL for (size_t line = 0; line < codes_bytes(codes); line += 64 * 2) FOR_P ahead =
                    prefetch(ahead, stride, R, BLOCK_ROWS_CODES, b->past);
                step_dot(acc, codes, codes_bits(codes), w + b->panel * 64, table, q, R, P);
                q += codes_step(codes) * R;
            }
            sums_pair(acc, R, P);
            FOR_P
            {
                vf scale = group_scale(f, super, in, b->panel + p);
                FOR_R total[r][p] = v_fma(i_to_f(acc[r][p]), scale, total[r][p]);
            }
            if (!f->minimum) continue;
            FOR_P
            {
                vf minimum = group_minimum(f, super, in, b->panel + p);
                FOR_R total[r][p] = v_fnma(i_to_f(i_set1(sum[r])), minimum, total[r][p]);
            }
        }
        super = w;
    }
    STORE_QUANTISED(v_fma(total[r][p], v_set1(j->q_step[b->row + r]), from))
}

/* The same for an expanded pair (block_wide), which is in the core's cache; a group prefetches b->lines lines. bits: of
 * the codes before, where they are multiplied in another way if they are small; else 8. */
INLINE void block_expanded(const struct lin_job *j, const struct block *b, const int bits, const bool minimum,
                           const int R, const int P)
{
    const struct block_form *f = b->form;
    const uint8_t *w = b->w, *ahead = b->ahead;
    const int8_t *q = j->q + (size_t)b->row * j->q_ld;
    const int32_t *sums = j->q_sum + (size_t)b->row * j->w->n_groups;
    const int each = f->group / j->w->group, zero = f->zero + (bits <= 6 ? 0 : W_LESS);
    const int group = f->group, lines = b->lines;
    vf total[R_MAX][P_MAX];
    FOR_R FOR_P total[r][p] = v_zero();
    for (int g = 0; g < f->n_groups; g++) {
        const float *scale = (const float *)w + b->panel * PANEL;
        int32_t sum[R_MAX];
        vi acc[R_MAX][P_MAX];
        sums = group_start(acc, sum, sums, each, zero, R, P);
        w += PAIR * sizeof(float) * (minimum ? 2 : 1);
        for (int i = 0; i < lines; i++, ahead += 64) __builtin_prefetch(ahead, 0, 2);
        for (int k = 0; k < group; k += 16, w += codes_bytes(CODES_8), q += 16 * R)
            step_dot(acc, CODES_8, bits, w + b->panel * 64, b_table(f->table, true), q, R, P);
        sums_pair(acc, R, P);
        FOR_P
        {
            vf s = v_load(scale + p * PANEL);
            FOR_R total[r][p] = v_fma(i_to_f(acc[r][p]), s, total[r][p]);
        }
        if (!minimum) continue;
        vf all[R_MAX];
        FOR_R all[r] = i_to_f(i_set1(sum[r]));
        FOR_P
        {
            vf m = v_load(scale + PAIR + p * PANEL);
            FOR_R total[r][p] = v_fnma(all[r], m, total[r][p]);
        }
    }
    STORE_QUANTISED(v_fma(total[r][p], v_set1(j->q_step[b->row + r]), from))
}

#define BLOCK_OF_WIDE(j, b, R, P) block_expanded(j, b, 8, false, R, P)
#define BLOCK_OF_WIDE_MIN(j, b, R, P) block_expanded(j, b, 8, true, R, P)
BLOCK_FN(blocks_of_wide, BLOCK_ROWS_CODES, BLOCK_ROWS_CODES_2, BLOCK_OF_WIDE)
BLOCK_FN(blocks_of_wide_min, BLOCK_ROWS_CODES, BLOCK_ROWS_CODES_2, BLOCK_OF_WIDE_MIN)
#ifdef SHORT_SUMS
#define BLOCK_OF_WIDE_5(j, b, R, P) block_expanded(j, b, 5, false, R, P)
#define BLOCK_OF_WIDE_5_MIN(j, b, R, P) block_expanded(j, b, 5, true, R, P)
#define BLOCK_OF_WIDE_6(j, b, R, P) block_expanded(j, b, 6, false, R, P)
#define BLOCK_OF_WIDE_6_MIN(j, b, R, P) block_expanded(j, b, 6, true, R, P)
BLOCK_FN(blocks_of_wide_5, BLOCK_ROWS_CODES, BLOCK_ROWS_CODES_2, BLOCK_OF_WIDE_5)
BLOCK_FN(blocks_of_wide_5_min, BLOCK_ROWS_CODES, BLOCK_ROWS_CODES_2, BLOCK_OF_WIDE_5_MIN)
BLOCK_FN(blocks_of_wide_6, BLOCK_ROWS_CODES, BLOCK_ROWS_CODES_2, BLOCK_OF_WIDE_6)
BLOCK_FN(blocks_of_wide_6_min, BLOCK_ROWS_CODES, BLOCK_ROWS_CODES_2, BLOCK_OF_WIDE_6_MIN)
#endif
#define BLOCK_OF_4(j, b, R, P) block_grouped(j, b, CODES_4, R, P)
#define BLOCK_OF_TABLE(j, b, R, P) block_grouped(j, b, CODES_TABLE, R, P)
#define BLOCK_OF_5(j, b, R, P) block_grouped(j, b, CODES_5, R, P)
#define BLOCK_OF_6(j, b, R, P) block_grouped(j, b, CODES_6, R, P)
#define BLOCK_OF_8(j, b, R, P) block_grouped(j, b, CODES_8, R, P)
BLOCK_FN(blocks_of_4, BLOCK_ROWS_CODES, BLOCK_ROWS_CODES_2, BLOCK_OF_4)
BLOCK_FN(blocks_of_table, BLOCK_ROWS_CODES, BLOCK_ROWS_CODES_2, BLOCK_OF_TABLE)
BLOCK_FN(blocks_of_5, BLOCK_ROWS_CODES, BLOCK_ROWS_CODES_2, BLOCK_OF_5)
BLOCK_FN(blocks_of_6, BLOCK_ROWS_CODES, BLOCK_ROWS_CODES_2, BLOCK_OF_6)
BLOCK_FN(blocks_of_8, BLOCK_ROWS_CODES, BLOCK_ROWS_CODES_2, BLOCK_OF_8)

/* ---- expanding ------------------------------------------------------------------------------------------------- */

/* n columns of both panels as CODES_8 has them; n is whole steps. */
static void codes_expand(uint8_t *out, const uint8_t *w, const struct block_form *f, int n)
{
    vl table = b_table(f->table, false);
#define EXPAND(kind)                                                                                                   \
    for (; n > 0; n -= codes_step(kind), w += codes_bytes(kind))                                                       \
    UNROLL for (int i = 0; i < codes_step(kind) / 4; i++, out += 4 * PAIR) UNROLL for (int p = 0; p < 2; p++)          \
        b_store(out + p * 64, codes_vector(w + p * 64, kind, table, i))
    switch (f->codes) {
    case CODES_4: EXPAND(CODES_4); break;
    case CODES_TABLE: EXPAND(CODES_TABLE); break;
    case CODES_5: EXPAND(CODES_5); break;
    case CODES_6: EXPAND(CODES_6); break;
    default: memcpy(out, w, (size_t)n * PAIR);
    }
#undef EXPAND
}

/* A whole pair in the form that block_wide says. */
static void pair_expand(uint8_t *out, const uint8_t *super, const struct block_form *f)
{
    for (int g = 0; g < f->n_groups; g += f->per_super) {
        const uint8_t *w = super + f->head;
        int n = f->n_groups - g < f->per_super ? f->n_groups - g : f->per_super;
        for (int in = 0; in < n; in++, w += f->group_bytes, out += (size_t)f->group * PAIR) {
            for (int panel = 0; panel < 2; panel++)
                v_store((float *)out + panel * PANEL, group_scale(f, super, in, panel));
            out += PAIR * sizeof(float);
            for (int panel = 0; f->minimum && panel < 2; panel++)
                v_store((float *)out + panel * PANEL, group_minimum(f, super, in, panel));
            if (f->minimum) out += PAIR * sizeof(float);
            codes_expand(out, w, f, f->group);
        }
        super = w;
    }
}

/* ---- all blocks of a task -------------------------------------------------------------------------------------- */

/* Multiplies a pair that was expanded from these codes. */
static blocks_fn *expanded_fn(enum block_codes codes, bool minimum)
{
#ifdef SHORT_SUMS
    if (codes == CODES_4 || codes == CODES_5) return minimum ? blocks_of_wide_5_min : blocks_of_wide_5;
    if (codes == CODES_6) return minimum ? blocks_of_wide_6_min : blocks_of_wide_6;
#endif
    return minimum ? blocks_of_wide_min : blocks_of_wide;
}

/* expanded: scratch for a pair, or NULL to multiply the packed codes. */
static void linear_block(const struct lin_job *j, int block0, int block1, int pair0, int pair1, uint8_t *expanded)
{
    static blocks_fn *const blocks[BLOCK_CODES] = {[CODES_4] = blocks_of_4,
                                                   [CODES_TABLE] = blocks_of_table,
                                                   [CODES_5] = blocks_of_5,
                                                   [CODES_6] = blocks_of_6,
                                                   [CODES_8] = blocks_of_8};
    _Alignas(64) float up[R_MAX * PANEL];
    int n = block1 - block0;
    for (int pair = pair0; pair < pair1; pair++) {
        const struct block_run *run = block_run_of(j->w, pair);
        struct block_form form = run->form;
        struct block b = {.pair = pair, .w = block_pair_of(j->w, run, pair), .up = up, .form = &form};
        /* of this thread's next pair, if it has the same form */
        uintptr_t next = (uintptr_t)b.w + (size_t)(pair + 1 < pair1 ? 1 : 1 + j->skip) * form.pair_bytes;
        if (expanded) {
            pair_expand(expanded, b.w, &form);
            form = block_wide(&run->form);
            b.w = expanded;
        }
        blocks_fn *fn = expanded ? expanded_fn(run->form.codes, form.minimum) : blocks[form.codes];
        for (int i = 0; i < n; i++) {
            b.row = lin_block_row(j, block0 + i);
            int rows = lin_block_row(j, block0 + i + 1) - b.row;
            b.ahead = b.w;
            b.stride = 0;
            b.lines = 0;
            b.once = n == 1 && !expanded;
            b.past = b.once && j->streams;
            if (b.once) {
                b.ahead = (const uint8_t *)((uintptr_t)b.w + prefetch_far(j));
                b.stride = 64;
            } else if (n <= PREFETCH_BLOCKS) {
                size_t share = run->form.pair_bytes / (size_t)n;
                b.ahead = (const uint8_t *)(next + (size_t)i * share);
                b.stride = share / (form.pair_bytes / 64);
                b.lines = (int)(share / 64) / form.n_groups + 1;
            }
            block_prefetch_y(j, &b, rows);
            fn(j, &b, rows);
            if (j->gated) block_gate(j, &b, rows);
        }
    }
}
