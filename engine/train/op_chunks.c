#include "engine/train/op_chunks.h"

#include "engine/train/optim.h"

struct mat mat_rows(struct mat m, int row, int n)
{
    if (m.p) m.p = (float *)m.p + (size_t)row * (size_t)m.ld;
    m.rows = n;
    return m;
}

struct mat mat_cols(struct mat m, int col, int n)
{
    if (m.p) m.p = (float *)m.p + col;
    m.cols = n;
    return m;
}

/* Passes the gate.  @return how many of the `rows` remaining rows the next call takes, of an op that moves `floats`
 * floats per row. */
static int move(struct op_chunks c, int rows, double floats)
{
    scheduler_gate_pass(c.gate);
    return scheduler_gate_rows(c.gate, WORK_MOVE, rows, floats, 0);
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

enum { COPY_SLICE = 1 << 19 };

void chunked_download(struct op_chunks c, float *host, const float *device, size_t n)
{
    for (size_t i = 0, k; i < n; i += k) {
        k = n - i < COPY_SLICE ? n - i : COPY_SLICE;
        scheduler_gate_pass(c.gate);
        c.d->ops->download(c.d, host + i, device + i, k * sizeof *host);
    }
}

void chunked_upload(struct op_chunks c, float *device, const float *host, size_t n)
{
    for (size_t i = 0, k; i < n; i += k) {
        k = n - i < COPY_SLICE ? n - i : COPY_SLICE;
        scheduler_gate_pass(c.gate);
        c.d->ops->upload(c.d, device + i, host + i, k * sizeof *host);
    }
}

/* ---- GEMMs ------------------------------------------------------------------------------------------------------- */

/* Estimates in multiply-adds of a linear op: reading one weight element, and moving one float. */
#define READ_WEIGHT 16.0
#define MOVE_FLOAT 40.0

enum { ROWS_GOOD = 64, ROWS_LEAST = 16, LINEAR_SLICE = 4 * WEIGHT_SLICE };

/* The part of a linear op that one call computes: `rows` rows and `outs` outputs of the weight. */
struct tile {
    int rows, outs;
};

static double tile_cost(int k, int outs, int rows)
{
    return (double)k * outs * (rows + READ_WEIGHT);
}

/* The next call's share of the `rows` remaining rows and of a weight of n outputs and k inputs; outs is n or `unit`.
 * A call reads its part of the weight once for all its rows, so it takes fewer than ROWS_GOOD rows only where splitting
 * the outputs is not enough. */
static struct tile next_tile(struct op_chunks c, enum train_work work, int rows, int k, int n, int unit)
{
    double macs = (double)k * n, room = scheduler_gate_max_cost(c.gate, work);
    int few = rows < ROWS_GOOD ? rows : ROWS_GOOD;
    if (n <= unit || tile_cost(k, n, few) <= room)
        return (struct tile){scheduler_gate_rows(c.gate, work, rows, macs, READ_WEIGHT * macs), n};
    struct tile b = {rows, unit};
    if (tile_cost(k, unit, rows) > room / 2) b.rows = few;
    if (tile_cost(k, unit, b.rows) > room) {
        double most = room / ((double)k * unit) - READ_WEIGHT;
        b.rows = most > ROWS_LEAST ? (int)most / ROWS_LEAST * ROWS_LEAST : ROWS_LEAST;
        if (b.rows > rows) b.rows = rows;
    }
    return b;
}

/* How many of the `left` remaining outputs the next call takes. */
static int next_outs(struct op_chunks c, enum train_work work, struct tile b, int k, int left, int unit)
{
    if (left <= b.outs) return left; /* all of them, or the last unit */
    double most = scheduler_gate_max_cost(c.gate, work) / tile_cost(k, unit, b.rows);
    int outs = most >= 2 ? (most < left ? (int)most * unit : left) : unit;
    if (outs > left) outs = left;
    scheduler_gate_cost(c.gate, work, tile_cost(k, outs, b.rows));
    return outs;
}

void chunked_linear(struct op_chunks c, struct linear_args a, bool slices)
{
    int N = a.y.cols, K = a.x.cols, unit = slices ? LINEAR_SLICE : N;
    struct tile b;
    for (int r = 0; r < a.x.rows; r += b.rows) {
        scheduler_gate_pass(c.gate);
        b = next_tile(c, WORK_LINEAR, a.x.rows - r, K, N, unit);
        struct mat y = mat_rows(a.y, r, b.rows), x = mat_rows(a.x, r, b.rows);
        for (int at = 0, n; at < N; at += n) {
            if (at) scheduler_gate_pass(c.gate);
            n = next_outs(c, WORK_LINEAR, b, K, N - at, unit);
            op_linear(c.d, (struct linear_args){mat_cols(y, at, n), x, a.w, a.b ? a.b + at : NULL, at});
        }
    }
    op_watch_wrote(c.watch, OP_linear, a.w, a.y, false);
}

void chunked_linear_back(struct op_chunks c, struct linear_back_args a, bool slices)
{
    int N = a.dy.cols, K = a.dx.cols, unit = slices && BACK_SLICE < N ? BACK_SLICE : N;
    struct tile b;
    for (int r = 0; r < a.dy.rows; r += b.rows) {
        scheduler_gate_pass(c.gate);
        b = next_tile(c, WORK_BACK, a.dy.rows - r, K, N, unit);
        struct mat dx = mat_rows(a.dx, r, b.rows), dy = mat_rows(a.dy, r, b.rows);
        for (int at = 0, n; at < N; at += n) {
            if (at) scheduler_gate_pass(c.gate);
            n = next_outs(c, WORK_BACK, b, K, N - at, unit);
            op_linear_back(c.d, (struct linear_back_args){dx, mat_cols(dy, at, n), a.w, a.accumulate || at > 0, at});
        }
    }
    op_watch_wrote(c.watch, OP_linear_back, a.w, a.dx, false);
}

void chunked_gemm(struct op_chunks c, struct gemm_args a)
{
    double cost = (double)a.a.cols * a.c.cols + MOVE_FLOAT * (a.a.cols + a.c.cols);
    for (int r = 0, n; r < a.a.rows; r += n) {
        struct gemm_args part = a;
        scheduler_gate_pass(c.gate);
        n = scheduler_gate_rows(c.gate, WORK_GEMM, a.a.rows - r, cost, 0);
        part.a = mat_rows(a.a, r, n);
        part.c = mat_rows(a.c, r, n);
        op_gemm(c.d, part);
    }
    op_watch_wrote(c.watch, OP_gemm, a.b.p, a.c, false);
}

/* ---- sums over tokens -------------------------------------------------------------------------------------------- */

/* About the cost of one call, some milliseconds at most.  A constant: the split must not depend on the gate. */
#define SUM_MACS 512e6
enum { SUM_FLOATS = 2 << 20 };

/* How many of n outputs or inputs, each of this cost, one call takes for about SUM_MACS: a multiple of unit, or n. */
static int sum_block(double cost, int n, int unit)
{
    double most = SUM_MACS / cost;
    return most >= n ? n : most < unit ? unit : (int)most / unit * unit;
}

void chunked_weight_grad(struct op_chunks c, float *dw, struct mat dy, struct mat x, float alpha, bool half)
{
    enum { OUTS = 64, INS = 512 };
    int n = dy.cols, k = x.cols;
    int outs = sum_block((k + MOVE_FLOAT) * x.rows, n, OUTS), ins = k;
    if (x.rows * ((double)outs * k + MOVE_FLOAT * (outs + k)) >
        1.5 * SUM_MACS) /* few outputs: reading x is what costs */
        ins = sum_block((outs + MOVE_FLOAT) * x.rows, k, INS);
    for (int at = 0; at < n; at += outs)
        for (int in = 0; in < k; in += ins) {
            int rows = n - at < outs ? n - at : outs, cols = k - in < ins ? k - in : ins;
            struct mat to = {dw + (size_t)at * (size_t)k + in, DT_F32, rows, cols, k};
            scheduler_gate_pass(c.gate);
            scheduler_gate_cost(c.gate, WORK_SUMS, x.rows * ((double)rows * cols + MOVE_FLOAT * (rows + cols)));
            op_gemm(c.d, (struct gemm_args){.c = to,
                                            .a = mat_cols(dy, at, rows),
                                            .b = mat_cols(x, in, cols),
                                            .ta = true,
                                            .accumulate = true,
                                            .half = half,
                                            .alpha = alpha});
        }
    op_watch_wrote(c.watch, OP_gemm, dw, (struct mat){dw, DT_F32, n, k, k}, true);
}

/* Rows per call of a sum over rows of `cols` floats: a multiple of the rows that a device sums in one block. */
static int sum_rows(int cols)
{
    enum { ROWS = 64 };
    int n = SUM_FLOATS / cols / ROWS * ROWS;
    return n > ROWS ? n : ROWS;
}

void chunked_col_sum(struct op_chunks c, struct col_sum_args a)
{
    int most = sum_rows(a.x.cols);
    for (int r = 0, n; a.out && r < a.x.rows; r += n) {
        n = a.x.rows - r < most ? a.x.rows - r : most;
        scheduler_gate_pass(c.gate);
        scheduler_gate_cost(c.gate, WORK_STATE, (double)n * a.x.cols);
        op_col_sum(c.d, (struct col_sum_args){mat_rows(a.x, r, n), a.out});
    }
    op_watch_wrote(c.watch, OP_col_sum, a.out, (struct mat){a.out, DT_F32, 1, a.x.cols, a.x.cols}, true);
}

/* Rows per call of a norm's backward pass.  sums: it adds to parameter gradients, so the split depends on shapes only.
 * Passes the gate. */
static int norm_rows(struct op_chunks c, bool sums, int left, int cols)
{
    int most = sum_rows(cols);
    if (!sums) return move(c, left, 3.0 * cols);
    if (most > left) most = left;
    scheduler_gate_pass(c.gate);
    scheduler_gate_cost(c.gate, WORK_STATE, 3.0 * cols * most);
    return most;
}

void chunked_norm_back(struct op_chunks c, struct norm_back_args a)
{
    int T = a.x.rows;
    for (int r = 0, n; r < T; r += n) {
        struct norm_back_args part = a;
        n = norm_rows(c, a.dw || a.db, T - r, a.x.cols);
        part.dx = mat_rows(a.dx, r, n);
        part.x = mat_rows(a.x, r, n);
        part.dy = mat_rows(a.dy, r, n);
        op_norm_back(c.d, part);
    }
    op_watch_wrote(c.watch, OP_norm_back, a.w, a.dx, false);
    op_watch_wrote(c.watch, OP_norm_back, a.dw, (struct mat){a.dw, DT_F32, 1, a.x.cols, a.x.cols}, true);
}

void chunked_head_norm_back(struct op_chunks c, struct head_norm_back_args a)
{
    int T = a.x.rows;
    for (int r = 0, n; r < T; r += n) {
        struct head_norm_back_args part = a;
        n = norm_rows(c, a.dw || a.db, T - r, a.heads * a.head_dim);
        part.dx = mat_rows(a.dx, r, n);
        part.x = mat_rows(a.x, r, n);
        op_head_norm_back(c.d, part);
    }
    op_watch_wrote(c.watch, OP_head_norm_back, a.w, a.dx, false);
}

/* ---- row by row -------------------------------------------------------------------------------------------------- */

void chunked_cross_entropy(struct op_chunks c, struct cross_entropy_args a)
{
    for (int r = 0, n; r < a.logits.rows; r += n) {
        scheduler_gate_pass(c.gate);
        n = scheduler_gate_rows(c.gate, WORK_LOSS, a.logits.rows - r, a.logits.cols, 0);
        op_cross_entropy(c.d, (struct cross_entropy_args){mat_rows(a.logits, r, n), a.target + r,
                                                          a.scale ? a.scale + r : NULL, a.loss + r, a.hit + r, a.back,
                                                          a.logit_scale, a.softcap});
    }
    op_watch_wrote(c.watch, OP_cross_entropy, a.loss, mat_f32(a.loss, a.logits.rows, 1), false);
    op_watch_wrote(c.watch, OP_cross_entropy, NULL, a.logits, false);
}

void chunked_embed(struct op_chunks c, struct embed_args a)
{
    for (int r = 0, n; r < a.out.rows; r += n) {
        struct embed_args part = a;
        n = move(c, a.out.rows - r, 2.0 * a.out.cols);
        part.out = mat_rows(a.out, r, n);
        part.id += r;
        if (part.pos) part.pos += r;
        op_embed(c.d, part);
    }
    op_watch_wrote(c.watch, OP_embed, a.table.p, a.out, false);
}

/* Each row of the table adds its gradients in the order of the tokens, however many calls there are. */
void chunked_embed_back(struct op_chunks c, struct embed_back_args a)
{
    for (int r = 0, n; r < a.dx.rows; r += n) {
        struct embed_back_args part = a;
        n = move(c, a.dx.rows - r, 3.0 * a.dx.cols);
        part.dx = mat_rows(a.dx, r, n);
        part.id += r;
        if (part.pos) part.pos += r;
        op_embed_back(c.d, part);
    }
}

void chunked_norm(struct op_chunks c, struct norm_args a)
{
    for (int r = 0, n; r < a.x.rows; r += n) {
        struct norm_args part = a;
        n = move(c, a.x.rows - r, 2.0 * a.x.cols);
        part.out = mat_rows(a.out, r, n);
        part.x = mat_rows(a.x, r, n);
        op_norm(c.d, part);
    }
    op_watch_wrote(c.watch, OP_norm, a.w, a.out, false);
}

void chunked_add(struct op_chunks c, struct add_args a)
{
    for (int r = 0, n; r < a.x.rows; r += n) {
        n = move(c, a.x.rows - r, 3.0 * a.x.cols);
        op_add(c.d, (struct add_args){mat_rows(a.x, r, n), mat_rows(a.y, r, n)});
    }
    op_watch_wrote(c.watch, OP_add, NULL, a.x, false);
}

void chunked_rows(struct op_chunks c, struct rows_args a)
{
    for (int r = 0, n; r < a.out.rows; r += n) {
        n = move(c, a.out.rows - r, 2.0 * a.out.cols);
        op_rows(c.d, (struct rows_args){mat_rows(a.out, r, n), a.x, a.row + r});
    }
    op_watch_wrote(c.watch, OP_rows, NULL, a.out, false);
}

void chunked_head_norm(struct op_chunks c, struct head_norm_args a)
{
    for (int r = 0, n; r < a.x.rows; r += n) {
        struct head_norm_args part = a;
        n = move(c, a.x.rows - r, 2.0 * a.heads * a.head_dim);
        part.x = mat_rows(a.x, r, n);
        op_head_norm(c.d, part);
    }
    op_watch_wrote(c.watch, OP_head_norm, a.w, a.x, false);
}

void chunked_rope(struct op_chunks c, struct rope_args a)
{
    for (int r = 0, n; r < a.qkv.rows; r += n) {
        struct rope_args part = a;
        n = move(c, a.qkv.rows - r, 2.0 * a.qkv.cols);
        part.qkv = mat_rows(a.qkv, r, n);
        part.pos += r;
        op_rope(c.d, part);
    }
    op_watch_wrote(c.watch, OP_rope, NULL, a.qkv, false);
}

/* The cost of an activation's exponential, in floats moved. */
#define ACT_FLOATS 4.0

void chunked_act(struct op_chunks c, struct act_args a)
{
    for (int r = 0, n; r < a.x.rows; r += n) {
        n = move(c, a.x.rows - r, ACT_FLOATS * a.x.cols);
        op_act(c.d, (struct act_args){mat_rows(a.x, r, n), a.act});
    }
    op_watch_wrote(c.watch, OP_act, NULL, a.x, false);
}

void chunked_softcap(struct op_chunks c, struct softcap_args a)
{
    for (int r = 0, n; r < a.x.rows; r += n) {
        n = move(c, a.x.rows - r, ACT_FLOATS * a.x.cols);
        op_softcap(c.d, (struct softcap_args){mat_rows(a.x, r, n), a.scale, a.cap});
    }
    op_watch_wrote(c.watch, OP_softcap, NULL, a.x, false);
}

void chunked_act_mul(struct op_chunks c, struct act_mul_args a)
{
    for (int r = 0, n; r < a.out.rows; r += n) {
        n = move(c, a.out.rows - r, (1 + ACT_FLOATS) * a.out.cols);
        op_act_mul(c.d, (struct act_mul_args){mat_rows(a.out, r, n), mat_rows(a.gu, r, n), a.act});
    }
    op_watch_wrote(c.watch, OP_act_mul, NULL, a.out, false);
}

void chunked_act_back(struct op_chunks c, struct act_back_args a)
{
    for (int r = 0, n; r < a.dy.rows; r += n) {
        n = move(c, a.dy.rows - r, (1 + ACT_FLOATS) * a.dy.cols);
        op_act_back(c.d,
                    (struct act_back_args){mat_rows(a.dx, r, n), mat_rows(a.x, r, n), mat_rows(a.dy, r, n), a.act});
    }
    op_watch_wrote(c.watch, OP_act_back, NULL, a.dx, false);
}

void chunked_act_mul_back(struct op_chunks c, struct act_mul_back_args a)
{
    for (int r = 0, n; r < a.dy.rows; r += n) {
        n = move(c, a.dy.rows - r, (3 + ACT_FLOATS) * a.dy.cols);
        op_act_mul_back(
            c.d, (struct act_mul_back_args){mat_rows(a.dgu, r, n), mat_rows(a.gu, r, n), mat_rows(a.dy, r, n), a.act});
    }
    op_watch_wrote(c.watch, OP_act_mul_back, NULL, a.dgu, false);
}

void chunked_dropout(struct op_chunks c, struct dropout_args a)
{
    for (int r = 0, n; r < a.x.rows; r += n) {
        struct dropout_args part = a;
        n = move(c, a.x.rows - r, 4.0 * a.x.cols);
        part.x = mat_rows(a.x, r, n);
        part.row0 += (uint64_t)r;
        op_dropout(c.d, part);
    }
    op_watch_wrote(c.watch, OP_dropout, NULL, a.x, false);
}

void chunked_scale(struct op_chunks c, struct mat m, double by)
{
    for (int r = 0, n; r < m.rows; r += n) {
        n = move(c, m.rows - r, 2.0 * m.cols);
        float *p = mat_rows(m, r, n).p;
        op_axpby(c.d, (struct axpby_args){p, p, (size_t)n * (size_t)m.cols, by, 0});
    }
    op_watch_wrote(c.watch, OP_axpby, NULL, m, false);
}

void chunked_zero(struct op_chunks c, struct mat m)
{
    for (int r = 0, n; r < m.rows; r += n) {
        n = move(c, m.rows - r, m.cols);
        dev_zero(c.d, mat_rows(m, r, n).p, (size_t)n * (size_t)m.cols);
    }
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* The cost of one head of a sequence of n rows. */
static double seq_cost(const struct attn_seq_args *a, int n)
{
    return (double)n * (a->window && a->window < n ? a->window : n) * a->head_dim;
}

/* Takes as many sequences from s->first on as `room` allows, at least one. */
static void take_seqs(const struct attn_seq_args *a, const int32_t *start, double room, struct chunk_seqs *s)
{
    double cost = 0;
    s->row = start[s->first];
    for (s->n = 0; s->first + s->n < a->n_seqs; s->n++) {
        int at = s->first + s->n;
        double one = seq_cost(a, start[at + 1] - start[at]) * a->heads;
        if (s->n && cost + one > room) break;
        cost += one;
    }
    s->rows = start[s->first + s->n] - s->row;
}

bool chunked_attention(struct op_chunks c, enum train_work work, const struct attn_seq_args *a, const int32_t *start,
                       int32_t *some, struct chunk_seqs *s)
{
    bool more = s->n && s->head0 + s->n_heads < a->heads; /* heads of the same sequence */
    if (!more && s->first + s->n >= a->n_seqs) return false;
    scheduler_gate_pass(c.gate);
    double room = scheduler_gate_max_cost(c.gate, work);
    s->head0 = more ? s->head0 + s->n_heads : 0;
    if (!more) {
        s->first += s->n;
        take_seqs(a, start, room, s);
        s->q_start = a->q_start;
        if (s->n < a->n_seqs) s->q_start = some;
        for (int i = 0; s->n < a->n_seqs && i <= s->n; i++) {
            int32_t from = start[s->first + i] - s->row;
            c.d->ops->upload(c.d, some + i, &from, sizeof from);
        }
    }
    double head = 0;
    for (int i = s->first; i < s->first + s->n; i++) head += seq_cost(a, start[i + 1] - start[i]);
    int left = a->heads - s->head0, threads = c.d->threads;
    s->n_heads = room >= head * left ? left : (int)(room / head) / threads * threads; /* backward, a head is a task */
    if (s->n_heads < threads) s->n_heads = threads < left ? threads : left;
    scheduler_gate_cost(c.gate, work, head * s->n_heads);
    return true;
}
