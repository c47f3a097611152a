/* The drivers of gemm and linear_back, and of related sums.
 *
 * A GEMM has two implementations. Few columns (an adapter's rank) are dot products of long rows: memory is read
 * once, and no lane is wasted. Otherwise the right factor is packed into panels, 32 columns wide, in a worker's
 * scratch, and the block kernels of `linear` run over them as over a weight; a panel stays in the core's cache for
 * all rows. A long reduction is divided into chunks that are added in order; for linear_back they are whole slices
 * of outputs, so that calls for single slices add up to the bits of one call. The choice and the chunks depend on
 * the shapes only, and without ta not on the number of rows. */
#include "kernels/cpu/cpu.h"

enum { DOT_COLS = 32, DEPTH_MAX = 1280, WIDE_DEPTH = 64, SWAP_COLS = 256 };
/* Columns of the left factor that a task transposes at once (many for one that is read by rows, which suits memory),
 * and the scratch that a worker needs for it: a slice of a block of rows. */
enum { BLOCK_MOST = 12, SLICE_LEAST = 128, SLICE_MOST = 512, TILE_FLOATS = BLOCK_MOST * SLICE_MOST };
_Static_assert((int)DEPTH_MAX == (int)BACK_SLICE && (int)WEIGHT_SLICE == (int)PAIR, "what callers may cut at");
_Static_assert((int)TILE_FLOATS >= 2 * PAIR * PAIR, "the tiles of a panel");
_Static_assert((int)TILE_FLOATS >= LIN_TILE_ROWS * SLICE_LEAST, "a transposed block for tiles");

struct gemm_run {
    struct cpu_dev *d;
    struct lin_job job; /* writes into y; reads x, or q */
    bool half;
    lin_fn *tiles; /* of half, or NULL */
    int depth, padded, cols; /* of this chunk; the same, padded as in panels; of y */
    /* The right factor. */
    const struct weight *back; /* its outputs in pairs from..to; or NULL: b, k from..to */
    struct mat b;
    bool tb;
    int from, to;
    /* The left factor: dy, or a, or its transpose. */
    struct mat left;
    bool left_transposed, gathered;
    int slice, slices, left_blocks; /* of the tasks that prepare the left factor */
    /* tasks */
    int pairs, pairs_per_task, pair_tasks, blocks_per_task;
    uint8_t *panels; /* all panels, or NULL: each worker makes its own */
};

static size_t panel_bytes(const struct gemm_run *p)
{
    return p->half ? (size_t)(p->padded + 1) / 2 * PAIR * 4 : (size_t)p->padded * PAIR * 4;
}

static void fill_panel(const struct gemm_run *p, void *panel, int pair, float *tile)
{
    const struct isa_gemm *isa = &p->d->isa->gemm;
    if (p->back)
        isa->panel_back(panel, p->half, p->back, pair * PAIR, p->from, p->to, tile);
    else
        isa->panel_of(panel, p->half, &p->b, p->tb, pair * PAIR, p->from, p->to, tile);
}

/* Multiplies blocks block0..block1 by the panels of pairs pair0..pair1, which begin at data. */
static void multiply(const struct gemm_run *p, uint8_t *data, int block0, int block1, int pair0, int pair1)
{
    struct weight w = {.t = p->half ? DT_BF16 : DT_F32,
                       .rows = (pair1 - pair0) * PAIR,
                       .cols = p->depth,
                       .pairs = pair1 - pair0,
                       .k_pad = p->half ? (p->depth + 1) / 2 * 2 : p->depth,
                       .pair_bytes = panel_bytes(p),
                       .data = data};
    struct lin_job j = p->job;
    j.w = &w;
    j.k1 = w.k_pad;
    j.skip = -w.pairs; /* nothing to prefetch: the next panels do not exist yet */
    j.y.p = (float *)j.y.p + (size_t)pair0 * PAIR;
    j.y.cols = p->cols - pair0 * PAIR;
    lin_fn *fn = p->tiles ? p->tiles : p->half ? p->d->isa->linear_bf16_x : p->d->isa->linear[DT_F32];
    fn(&j, block0, block1, 0, w.pairs);
}

static void gemm_task(void *ctx, int task, int worker)
{
    const struct gemm_run *p = ctx;
    int pair0 = task % p->pair_tasks * p->pairs_per_task, pair1 = pair0 + p->pairs_per_task;
    int block0 = task / p->pair_tasks * p->blocks_per_task, block1 = block0 + p->blocks_per_task;
    if (block1 > p->job.n_blocks) block1 = p->job.n_blocks;
    if (pair1 > p->pairs) pair1 = p->pairs;
    if (p->panels) {
        multiply(p, p->panels + (size_t)pair0 * panel_bytes(p), block0, block1, pair0, pair1);
        return;
    }
    float *tile = p->d->worker[worker].p;
    for (int pair = pair0; pair < pair1; pair++) {
        fill_panel(p, tile + TILE_FLOATS, pair, tile);
        multiply(p, (uint8_t *)(tile + TILE_FLOATS), block0, block1, pair, pair + 1);
    }
}

static void panels_task(void *ctx, int pair, int worker)
{
    const struct gemm_run *p = ctx;
    fill_panel(p, p->panels + (size_t)pair * panel_bytes(p), pair, p->d->worker[worker].p);
}

/* ---- the left factor ----------------------------------------------------------------------------------------- */

/* Rounds one slice, from `from` on, of a block of rows to bf16 pairs. */
static void halve_block(const struct gemm_run *p, int block, int from, float *tile)
{
    const struct isa_gemm *isa = &p->d->isa->gemm;
    int row = lin_block_row(&p->job, block), R = lin_block_row(&p->job, block + 1) - row;
    int n = p->depth - from < p->slice ? p->depth - from : p->slice;
    uint32_t *out = (uint32_t *)p->job.q + (size_t)row * (size_t)p->job.q_ld / 2 + (size_t)from / 2 * (size_t)R;
    if (p->left_transposed) {
        isa->halve_columns(out, R, mat_row(&p->left, p->from + from) + row, p->left.ld, n);
    } else if (p->gathered) {
        int pair = p->from + from / PAIR;
        for (int r = 0; r < R; r++)
            isa->gather(tile + r * p->slice, p->back, mat_row(&p->left, row + r), p->left.ld, pair, pair + n / PAIR);
        isa->halve_rows(out, R, tile, p->slice, n);
    } else {
        isa->halve_rows(out, R, mat_row(&p->left, row) + p->from * (p->back ? PAIR : 1) + from, p->left.ld, n);
    }
}

/* The same for tiles: row by row. */
static void halve_rows(const struct gemm_run *p, int block, int from, float *tile)
{
    const struct isa_gemm *isa = &p->d->isa->gemm;
    int row0 = lin_block_row(&p->job, block), R = lin_block_row(&p->job, block + 1) - row0;
    int n = p->depth - from < p->slice ? p->depth - from : p->slice, pair = p->from + from / PAIR;
    int to = p->job.q_ld - from < p->slice ? p->job.q_ld - from : p->slice;
    if (p->left_transposed)
        isa->transpose(tile, p->slice, mat_row(&p->left, p->from + from) + row0, p->left.ld, n, R);
    for (int r = 0; r < R; r++) {
        uint16_t *out = (uint16_t *)(p->job.q + (size_t)(row0 + r) * p->job.q_stride) + from;
        const float *x = tile;
        if (p->left_transposed)
            x = tile + r * p->slice;
        else if (p->gathered)
            isa->gather(tile, p->back, mat_row(&p->left, row0 + r), p->left.ld, pair, pair + n / PAIR);
        else
            x = mat_row(&p->left, row0 + r) + p->from * (p->back ? PAIR : 1) + from;
        lin_halve_row(p->d->isa, out, x, n, 0, to);
    }
}

/* The same as floats, in rows of q_ld. */
static void copy_block(const struct gemm_run *p, int block, int from)
{
    const struct isa_gemm *isa = &p->d->isa->gemm;
    int row = lin_block_row(&p->job, block), R = lin_block_row(&p->job, block + 1) - row;
    int n = p->depth - from < p->slice ? p->depth - from : p->slice, pair = p->from + from / PAIR;
    float *to = mat_row(&p->job.x, row) + from;
    if (p->left_transposed)
        isa->transpose(to, p->job.x.ld, mat_row(&p->left, p->from + from) + row, p->left.ld, n, R);
    else
        for (int r = 0; r < R; r++)
            isa->gather(to + (size_t)r * (size_t)p->job.x.ld, p->back, mat_row(&p->left, row + r), p->left.ld, pair,
                        pair + n / PAIR);
}

/* A task handles a slice of some blocks; when the matrix is read by columns, blocks that are neighbours in its rows. */
static void left_task(void *ctx, int task, int worker)
{
    const struct gemm_run *p = ctx;
    int from = task % p->slices * p->slice, block0 = task / p->slices * p->left_blocks,
        block1 = block0 + p->left_blocks;
    for (int block = block0; block < block1 && block < p->job.n_blocks; block++) {
        if (p->tiles)
            halve_rows(p, block, from, p->d->worker[worker].p);
        else if (p->half)
            halve_block(p, block, from, p->d->worker[worker].p);
        else
            copy_block(p, block, from);
    }
}

/* Packs the left factor's columns of this chunk in the layout of the kernel. */
static bool prepare_left(struct gemm_run *p)
{
    int rows = p->job.y.rows;
    p->job.x = p->left;
    p->job.x.rows = rows;
    if (!p->half && !p->left_transposed && !p->gathered) {
        p->job.x.p = mat_row(&p->left, 0) + p->from * (p->back ? PAIR : 1);
        return true;
    }
    p->job.q_ld = (p->depth + 63) / 64 * 64;
    size_t row = (size_t)p->job.q_ld * (p->half ? 2 : 4);
    if (p->tiles) row = p->job.q_stride = lin_tile_stride(row);
    void *to = scratch_get(&p->d->quant, ((size_t)rows + (p->tiles ? LIN_TILE_ROWS : 0)) * row + 64);
    if (!to) return false;
    p->job.q = to;
    if (!p->half) p->job.x = mat_f32(to, rows, p->job.q_ld);
    p->slice = p->left_transposed || p->job.n_blocks < p->d->head.threads * 8 ? SLICE_LEAST : SLICE_MOST;
    p->slices = (p->depth + p->slice - 1) / p->slice;
    int want = p->d->head.threads * 8 / (p->slices ? p->slices : 1) + 1;
    if (want < p->job.n_blocks / 64) want = p->job.n_blocks / 64;
    p->left_blocks = (p->job.n_blocks + want - 1) / want;
    int tasks = (p->job.n_blocks + p->left_blocks - 1) / p->left_blocks * p->slices;
    cpu_run(p->d, left_task, p, tasks, (double)rows * p->depth / 8);
    return true;
}

/* ---- one chunk ----------------------------------------------------------------------------------------------- */

static void plan_tasks(struct gemm_run *p)
{
    int threads = p->d->head.threads, rows = p->job.y.rows, want = threads * 20, row_tasks = 1;
    if (p->panels) { /* writing y dominates: long ranges of rows */
        p->pairs_per_task = p->pairs;
        row_tasks = (rows + 23) / 24;
    } else {
        p->pairs_per_task = p->pairs > want ? p->pairs / want : 1;
        int pair_tasks = (p->pairs + p->pairs_per_task - 1) / p->pairs_per_task;
        if (pair_tasks < threads * 4) row_tasks = (threads * 4 + pair_tasks - 1) / pair_tasks;
        if (row_tasks > (rows + 95) / 96) row_tasks = (rows + 95) / 96; /* each of them makes its own panel */
    }
    p->pair_tasks = (p->pairs + p->pairs_per_task - 1) / p->pairs_per_task;
    if (row_tasks > POOL_TASKS_MAX / p->pair_tasks) row_tasks = POOL_TASKS_MAX / p->pair_tasks;
    p->blocks_per_task = (p->job.n_blocks + row_tasks - 1) / row_tasks;
}

static bool run_chunk(struct gemm_run *p)
{
    p->tiles = p->half && p->d->tiles ? p->d->tiles->bf16 : NULL;
    int most = p->tiles ? (int)LIN_TILE_ROWS : p->d->isa->block_rows[p->half ? DT_BF16 : DT_F32], rows = p->job.y.rows;
    size_t tile = TILE_FLOATS * sizeof(float);
    p->pairs = (p->cols + PAIR - 1) / PAIR;
    p->job.n_blocks = (rows + most - 1) / most;
    bool wide = p->depth <= WIDE_DEPTH && rows > 24;
    for (int i = 0; i < p->d->head.threads; i++)
        if (!scratch_get(p->d->worker + i, tile + (wide ? 0 : panel_bytes(p)))) return false;
    if (!prepare_left(p)) return false;
    double macs = (double)rows * p->cols * p->depth, ns = macs / (p->half ? 100 : 40) + (double)rows * p->cols / 4;
    p->panels = NULL;
    if (wide) {
        p->panels = scratch_get(&p->d->panels, (size_t)p->pairs * panel_bytes(p) + 64);
        if (!p->panels) return false;
        cpu_run(p->d, panels_task, p, p->pairs, (double)p->cols * p->depth / 4);
    }
    plan_tasks(p);
    int row_tasks = (p->job.n_blocks + p->blocks_per_task - 1) / p->blocks_per_task;
    cpu_run(p->d, gemm_task, p, p->pair_tasks * row_tasks, ns);
    return true;
}

/* Runs the reduction from 0 to n in chunks of `unit`, which counts k or pairs of outputs. */
static void run_chunks(struct gemm_run *p, int n, int unit, const char *op)
{
    int chunks = (n * unit + DEPTH_MAX - 1) / DEPTH_MAX, slice = DEPTH_MAX / unit;
    if (chunks < 1) chunks = 1;
    bool accumulate = p->job.accumulate;
    if (p->job.y.rows == 0) return;
    p->job.into = true;
    for (int i = 0; i < chunks; i++) {
        p->from = p->back ? i * slice : (int)((int64_t)n * i / chunks);
        p->to = p->back && i + 1 < chunks ? p->from + slice : (int)((int64_t)n * (i + 1) / chunks);
        p->depth = p->padded = (p->to - p->from) * unit;
        if (unit > 1 && !p->gathered && p->to == n) p->depth = p->left.cols - p->from * unit;
        p->job.accumulate = accumulate || i > 0;
        if (!run_chunk(p)) {
            dev_fail(&p->d->head, op, "out of memory");
            return;
        }
    }
}

/* ---- gemm ---------------------------------------------------------------------------------------------------- */

struct dot_run {
    const struct isa *isa;
    const struct gemm_args *a;
    const float *w; /* op(b) transposed (N, K) */
    int ld, rows;   /* rows: per task */
};

static void dot_task(void *ctx, int task, int worker)
{
    const struct dot_run *r = ctx;
    struct mat c = r->a->c, x = r->a->a;
    int row = task * r->rows, rows = c.rows - row < r->rows ? c.rows - row : r->rows;
    c.p = mat_row(&c, row), x.p = mat_row(&x, row);
    c.rows = x.rows = rows;
    r->isa->gemm.dot(c, x, r->w, r->ld, r->a->alpha, r->a->accumulate);
}

static void gemm_dot(struct cpu_dev *d, const struct gemm_args *a)
{
    struct dot_run r = {d->isa, a, a->b.p, a->b.ld, d->isa->gemm.dot_rows};
    int K = a->a.cols, N = a->c.cols;
    if (!a->tb) {
        float *transposed = scratch_get(&d->transposed, (size_t)K * (size_t)N * sizeof *transposed);
        if (!transposed) {
            dev_fail(&d->head, "gemm", "out of memory");
            return;
        }
        d->isa->gemm.transpose(transposed, K, a->b.p, a->b.ld, K, N);
        r.w = transposed, r.ld = K;
    }
    while (r.rows < 16 || (a->c.rows + r.rows - 1) / r.rows > POOL_TASKS_MAX) r.rows *= 2;
    cpu_run(d, dot_task, &r, (a->c.rows + r.rows - 1) / r.rows, (double)a->c.rows * K * (N + 4) / 16);
}

static void gemm_panels(struct cpu_dev *d, const struct gemm_args *a, bool half)
{
    struct gemm_run p = {.d = d,
                         .job = {.y = a->c, .alpha = a->alpha, .accumulate = a->accumulate},
                         .half = half,
                         .cols = a->c.cols,
                         .b = a->b,
                         .tb = a->tb,
                         .left = a->a,
                         .left_transposed = a->ta};
    run_chunks(&p, a->ta ? a->a.rows : a->a.cols, 1, "gemm");
}

/* For few columns of c and many rows: computes the transpose of c, so that the large factor supplies the panels and
 * is read in its own layout; the transposed result is then stored or added to c. */
struct transpose_run {
    const struct isa *isa;
    struct mat c, transposed;
    bool accumulate;
};

static void transpose_task(void *ctx, int task, int worker)
{
    enum { ROWS = 16 };
    const struct transpose_run *r = ctx;
    float tile[ROWS * SWAP_COLS];
    int N = r->c.cols, row0 = task * ROWS, rows = r->c.rows - row0 < ROWS ? r->c.rows - row0 : ROWS;
    r->isa->gemm.transpose(tile, N, (const float *)r->transposed.p + row0, r->transposed.ld, N, rows);
    for (int i = 0; i < rows; i++) {
        float *c = mat_row(&r->c, row0 + i);
        for (int n = 0; n < N; n++) c[n] = r->accumulate ? c[n] + tile[i * N + n] : tile[i * N + n];
    }
}

static void gemm_swapped(struct cpu_dev *d, const struct gemm_args *a, bool half)
{
    int M = a->c.rows, N = a->c.cols;
    float *transposed = scratch_get(&d->transposed, (size_t)M * (size_t)N * sizeof *transposed);
    if (!transposed) {
        dev_fail(&d->head, "gemm", "out of memory");
        return;
    }
    struct transpose_run r = {d->isa, a->c, mat_f32(transposed, N, M), a->accumulate};
    struct gemm_args b = {
        .c = r.transposed, .a = a->b, .b = a->a, .ta = !a->tb, .tb = !a->ta, .half = a->half, .alpha = a->alpha};
    gemm_panels(d, &b, half);
    for (int done = 0; done < M; done += POOL_TASKS_MAX * 16) {
        int rows = M - done < POOL_TASKS_MAX * 16 ? M - done : POOL_TASKS_MAX * 16;
        struct transpose_run part = r;
        part.c.p = mat_row(&r.c, done);
        part.c.rows = rows;
        part.transposed.p = transposed + done;
        cpu_run(d, transpose_task, &part, (rows + 15) / 16, (double)rows * N / 4);
    }
}

void cpu_gemm(struct dev *head, const struct gemm_args *a)
{
    struct cpu_dev *d = cpu_of(head);
    int M = a->c.rows, N = a->c.cols, K = a->ta ? a->a.rows : a->a.cols;
    bool half = a->half && head->bf16_x;
    if (M == 0) return;
    if (!a->ta && N <= DOT_COLS)
        gemm_dot(d, a);
    else if (!a->ta)
        gemm_panels(d, a, half && K > 32);
    else if (N < M && N <= SWAP_COLS)
        gemm_swapped(d, a, half && N > 16);
    else
        gemm_panels(d, a, half && M > 16);
}

/* ---- linear_back --------------------------------------------------------------------------------------------- */

void cpu_linear_back(struct dev *head, const struct linear_back_args *a)
{
    struct weight slice;
    const struct weight *w = weight_slice(a->w, a->first, a->dy.cols, &slice);
    struct mat dx = w->order ? order_columns(head, w, &a->dx) : a->dx;
    if (!dx.p) {
        if (dx.rows) dev_fail(head, "linear_back", "out of memory");
        return;
    }
    struct gemm_run p = {.d = cpu_of(head),
                         .job = {.y = dx, .alpha = 1, .accumulate = a->accumulate},
                         .half = head->bf16_x && w->t != DT_F32,
                         .cols = a->dx.cols,
                         .back = w,
                         .left = a->dy,
                         .gathered = w->gate_up || w->t == DT_I8};
    run_chunks(&p, w->pairs, PAIR, "linear_back");
    struct mat inputs = a->dx;
    if (w->order) order_inputs(head, w, &inputs, &dx);
}

/* ---- sums ---------------------------------------------------------------------------------------------------- */

struct sum_run {
    const struct isa *isa;
    const void *args;
    int cols, slice;
};

static void embed_back_task(void *ctx, int task, int worker)
{
    const struct sum_run *r = ctx;
    const struct embed_back_args *a = r->args;
    int from = task * r->slice, n = r->cols - from < r->slice ? r->cols - from : r->slice;
    for (int t = 0; t < a->dx.rows; t++) {
        const float *dx = mat_row(&a->dx, t) + from;
        float *row = mat_row(&a->dtable, a->id[t]) + from;
        if (a->scale == 0 || a->scale == 1)
            r->isa->add(row, dx, n);
        else
            r->isa->axpby(row, dx, (size_t)n, a->scale, 1);
        if (a->dpos.p) r->isa->add(mat_row(&a->dpos, a->pos[t]) + from, dx, n);
    }
}

static void col_sum_task(void *ctx, int task, int worker)
{
    const struct sum_run *r = ctx;
    const struct col_sum_args *a = r->args;
    int from = task * r->slice, to = from + r->slice < r->cols ? from + r->slice : r->cols;
    r->isa->gemm.col_sum(a->out, &a->x, from, to);
}

/* Divides columns into slices of whole cache lines, at least two per thread. */
static void run_slices(struct cpu_dev *d, pool_fn *fn, const void *args, int rows, int cols)
{
    struct sum_run r = {d->isa, args, cols, 64};
    while ((cols + r.slice - 1) / r.slice > d->head.threads * 4) r.slice *= 2;
    cpu_run(d, fn, &r, (cols + r.slice - 1) / r.slice, (double)rows * cols / 4);
}

void cpu_embed_back(struct dev *d, const struct embed_back_args *a)
{
    run_slices(cpu_of(d), embed_back_task, a, a->dx.rows, a->dx.cols);
}

void cpu_col_sum(struct dev *d, const struct col_sum_args *a)
{
    run_slices(cpu_of(d), col_sum_task, a, a->x.rows, a->x.cols);
}
