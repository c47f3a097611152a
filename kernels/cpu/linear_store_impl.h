/* Where a block of a GEMM's results goes: outputs of a pair of panels, rows of y, and with op gate_up the product of
 * both.  Included by the kernels on vectors (linear_impl.h) and on tiles (isa_amx.c), after math_impl.h. */

#if defined VEC_NO_UNROLL
#define UNROLL
#define UNROLL_GROUP
#elif defined __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#define UNROLL_GROUP /* clang unrolls where the length is a constant, and warns where it is not */
#else
#define UNROLL _Pragma("GCC unroll 16")
#define UNROLL_GROUP _Pragma("GCC unroll 4")
#endif
/* R and P are constants wherever these functions are inlined, so that a block's accumulators become registers;
 * arrays are declared for the largest block, and unused elements are optimised away. */
enum { R_MAX = 12, P_MAX = 2 };
#define FOR_R UNROLL for (int r = 0; r < R; r++)
#define FOR_P UNROLL for (int p = 0; p < P; p++)

/* The first column of y of a panel; with op gate_up both panels of a pair have the same columns. */
INLINE int panel_column(const struct lin_job *j, int pair, int panel)
{
    if (!j->w->gate_up) return pair * PAIR + panel * PANEL;
    return pair * PANEL + (panel && !j->gated ? j->w->rows / 2 : 0);
}

/* The number of columns from there to the end. */
INLINE int panel_left(const struct lin_job *j, int pair, int panel)
{
    return j->w->gate_up ? j->w->rows / 2 - pair * PANEL : j->y.cols - pair * PAIR - panel * PANEL;
}

INLINE vf panel_bias(const struct lin_job *j, int pair, int panel)
{
    int n = panel_column(j, pair, panel), left = panel_left(j, pair, panel);
    const float *b = j->b;
    if (b && j->gated && panel == 1) b += j->w->rows / 2;
    return b && left > 0 ? v_load_n(b + n, left) : v_zero();
}

/* One block: rows row .. row + R - 1, panels panel .. panel + P - 1 of one pair; and its prefetch: `ahead` advances
 * by `stride` bytes for each line of weights read. */
struct block {
    int row, pair, panel;
    const uint8_t *w; /* the pair's weights */
    const uint8_t *ahead;
    size_t stride;
    bool once;                     /* the pair has no other block of rows */
    bool past;                     /* its weights are used once, and best prefetched past the caches */
    const struct block_form *form; /* DT_BLOCK */
    int lines;                     /* of an expanded pair: see block_expanded */
    float *up; /* op gate_up: [R][16] values of up, kept for block_gate while those of gate are in y */
};

INLINE void block_store(const struct lin_job *j, const struct block *b, int r, int panel, vf y)
{
    int n = panel_column(j, b->pair, panel), left = panel_left(j, b->pair, panel);
    float *to = mat_row(&j->y, lin_row(j, b->row + r)) + n;
    if (j->gated && panel == 1)
        v_store(b->up + r * PANEL, y);
    else if (left >= PANEL)
        v_store(to, y);
    else if (left > 0)
        v_store_n(to, y, left);
}

/* Prefetches where the block's results go, a line or two of each row. */
INLINE void block_prefetch_y(const struct lin_job *j, const struct block *b, int rows)
{
    for (int r = 0; r < rows; r++)
        __builtin_prefetch(mat_row(&j->y, lin_row(j, b->row + r)) + panel_column(j, b->pair, 0), 1, 3);
}

/* The sum that block_store wrote to y. */
INLINE vf block_sum(const struct lin_job *j, const struct block *b, int r, int panel)
{
    const float *y = mat_row(&j->y, b->row + r) + panel_column(j, b->pair, panel);
    int left = panel_left(j, b->pair, panel);
    return left >= PANEL ? v_load(y) : left > 0 ? v_load_n(y, left) : v_zero();
}

/* y = alpha * sum (+ y) */
INLINE void block_add(const struct lin_job *j, const struct block *b, int r, int panel, vf sum)
{
    int n = b->pair * PAIR + panel * PANEL, left = j->y.cols - n;
    float *to = mat_row(&j->y, b->row + r) + n;
    if (left <= 0) return;
    vf y = v_mul(sum, v_set1(j->alpha));
    if (j->accumulate) y = v_add(y, left >= PANEL ? v_load(to) : v_load_n(to, left));
    if (left >= PANEL)
        v_store(to, y);
    else
        v_store_n(to, y, left);
}

/* y = act(y) * up for the rows of a block. */
static void block_gate(const struct lin_job *j, const struct block *b, int rows)
{
    int n = b->pair * PANEL, left = j->y.cols - n;
    for (int r = 0; r < rows; r++) {
        float *y = mat_row(&j->y, lin_row(j, b->row + r)) + n;
        if (r + 1 < rows && lin_is_rest(j, b->row + r + 1)) continue; /* wait until its residual is added */
        v_store_n(y, v_mul(v_act(v_load_n(y, left), j->act), v_act_up(v_load(b->up + r * PANEL), j->act)), left);
    }
}
