#include "kernels/trace.h"

#include <stdlib.h>
#include <time.h>

struct dev_trace {
    struct dev_ops ops; /* first: what the traced device's `ops` points to */
    const struct dev_ops *own;
    struct dev *d;
    const struct weight *head;
    double kv_token_bytes;
    int32_t *look[2]; /* copies of index arrays on the device */
    int depth;        /* composed ops call other ops through the same table: only the outermost is counted */
    struct trace_count count[TRACE_COUNT];
    void (*listen)(void *arg, int row, uint64_t start, uint64_t end);
    void *listen_arg;
};

static struct dev_trace *trace_of(struct dev *d)
{
    return (struct dev_trace *)(uintptr_t)d->ops;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- the cost of each op: most ops only move activations, which is not counted ---------------------------------- */

#define X(op)                                                                                                          \
    __attribute__((unused)) static int tally_##op(struct dev_trace *t, const struct op##_args *a)                      \
    {                                                                                                                  \
        return OP_##op;                                                                                                \
    }
#define tally_linear tally_linear_plain
#define tally_gate_up tally_gate_up_plain
#define tally_experts_linear tally_experts_linear_plain
#define tally_experts_gate_up tally_experts_gate_up_plain
#define tally_attn tally_attn_plain
#define tally_gemm tally_gemm_plain
#define tally_linear_back tally_linear_back_plain
#define tally_lora tally_lora_plain
#define tally_attn_seq tally_attn_seq_plain
#define tally_attn_back tally_attn_back_plain
OPS(X)
#undef tally_linear
#undef tally_gate_up
#undef tally_experts_linear
#undef tally_experts_gate_up
#undef tally_attn
#undef tally_gemm
#undef tally_linear_back
#undef tally_lora
#undef tally_attn_seq
#undef tally_attn_back
#undef X

static int tally_linear(struct dev_trace *t, const struct linear_args *a)
{
    int row = a->w == t->head ? TRACE_HEAD : OP_linear;
    t->count[row].macs += (double)a->x.rows * a->x.cols * a->y.cols;
    /* of a weight used slice by slice, once */
    t->count[row].bytes += a->x.rows && !a->first ? (double)t->own->weight_bytes(a->w) : 0;
    return row;
}

static int tally_gate_up(struct dev_trace *t, const struct gate_up_args *a)
{
    t->count[OP_gate_up].macs += (double)a->x.rows * a->x.cols * a->y.cols * 2;
    t->count[OP_gate_up].bytes += a->x.rows ? (double)t->own->weight_bytes(a->w) : 0;
    return OP_gate_up;
}

static int tally_gemm(struct dev_trace *t, const struct gemm_args *a)
{
    t->count[OP_gemm].macs += (double)a->c.rows * a->c.cols * (a->ta ? a->a.rows : a->a.cols);
    return OP_gemm;
}

static int tally_linear_back(struct dev_trace *t, const struct linear_back_args *a)
{
    t->count[OP_linear_back].macs += (double)a->dx.rows * a->dx.cols * a->dy.cols;
    t->count[OP_linear_back].bytes += a->dx.rows && !a->first ? (double)t->own->weight_bytes(a->w) : 0;
    return OP_linear_back;
}

static int tally_lora(struct dev_trace *t, const struct lora_args *a)
{
    for (const struct lora_group *g = a->group; g < a->group + a->n_groups; g++)
        for (const struct lora_part *p = g->part; p < g->part + g->n_parts; p++)
            t->count[OP_lora].macs += (double)g->rows * p->r * (a->x.cols + p->n);
    return OP_lora;
}

/* The number of (row, position) pairs: rows at positions first .. len - 1 see themselves and all before them, or the
 * last `window` of those. */
static double positions_seen(int first, int len, int window)
{
    double rows = len - first, full = window && first + 1 > window ? rows : 0; /* rows that see a whole window */
    if (window && !full && len > window) full = len - window;
    double growing = rows - full; /* they see first + 1, first + 2 ... */
    return full * window + growing * (first + 1 + (growing - 1) / 2);
}

/* An index array for the host to read, valid until the next call with the same `place`; a traced op is waited for in
 * any case. NULL: no memory for a copy, or the device has failed. */
static const int32_t *look_at(struct dev_trace *t, int place, const int32_t *p, int n)
{
    if (t->own->host_memory) return p;
    free(t->look[place]);
    t->look[place] = calloc((size_t)n + 1, sizeof *p);
    if (t->look[place]) t->own->download(t->d, t->look[place], p, (size_t)n * sizeof *p);
    return t->d->error.op ? NULL : t->look[place];
}

/* Counts the weights of the experts that have rows. */
static int tally_experts(struct dev_trace *t, enum op_id op, const struct weight *const *w, const int32_t *start, int n)
{
    start = look_at(t, 0, start, n + 1);
    for (int e = 0; e < n && start; e++)
        if (start[e + 1] > start[e]) t->count[op].bytes += (double)t->own->weight_bytes(w[e]);
    return op;
}

static int tally_experts_linear(struct dev_trace *t, const struct experts_linear_args *a)
{
    t->count[OP_experts_linear].macs += (double)a->x.rows * a->x.cols * a->y.cols;
    return tally_experts(t, OP_experts_linear, a->w, a->start, a->n);
}

static int tally_experts_gate_up(struct dev_trace *t, const struct experts_gate_up_args *a)
{
    t->count[OP_experts_gate_up].macs += (double)a->x.rows * a->x.cols * a->y.cols * 2;
    return tally_experts(t, OP_experts_gate_up, a->w, a->start, a->n);
}

static int tally_attn(struct dev_trace *t, const struct attn_args *a)
{
    const int32_t *kv_len = look_at(t, 0, a->kv_len, a->n_seqs), *q_start = look_at(t, 1, a->q_start, a->n_seqs + 1);
    for (int s = 0; s < a->n_seqs && kv_len && q_start; s++) {
        int len = kv_len[s], first = len - (q_start[s + 1] - q_start[s]);
        int from = a->window && first + 1 > a->window ? first + 1 - a->window : 0;
        if (first == len) continue;
        t->count[OP_attn].macs += positions_seen(first, len, a->window) * a->heads * a->head_dim * 2;
        t->count[OP_attn].bytes += (double)(len - from) * t->kv_token_bytes;
    }
    return OP_attn;
}

/* Multiply-adds per pair of a score and a feature: two forward, five backward. */
static int tally_seqs(struct dev_trace *t, enum op_id op, const int32_t *q_start, int n_seqs, int window, int width,
                      bool both_sides)
{
    q_start = look_at(t, 0, q_start, n_seqs + 1);
    for (int s = 0; s < n_seqs && q_start; s++) {
        int n = q_start[s + 1] - q_start[s];
        double seen = positions_seen(0, n, window);
        if (both_sides) seen = 2 * seen - n; /* each row sees itself once */
        t->count[op].macs += seen * width * (op == OP_attn_seq ? 2 : 5);
    }
    return op;
}

static int tally_attn_seq(struct dev_trace *t, const struct attn_seq_args *a)
{
    int heads = a->n_heads ? a->n_heads : a->heads;
    return tally_seqs(t, OP_attn_seq, a->q_start, a->n_seqs, a->window, heads * a->head_dim, a->both_sides);
}

static int tally_attn_back(struct dev_trace *t, const struct attn_back_args *a)
{
    int heads = a->n_heads ? a->n_heads : a->heads;
    return tally_seqs(t, OP_attn_back, a->q_start, a->n_seqs, a->window, heads * a->head_dim, false);
}

/* ---- the table -----------------------------------------------------------------------------------------------------
 */

static void note_op(struct dev_trace *t, int row, uint64_t start, uint64_t end)
{
    t->count[row].ns += end - start;
    t->count[row].calls++;
    if (t->listen) t->listen(t->listen_arg, row, start, end);
}

#define X(op)                                                                                                          \
    static void trace_##op(struct dev *d, const struct op##_args *a)                                                   \
    {                                                                                                                  \
        struct dev_trace *t = trace_of(d);                                                                             \
        if (t->depth) {                                                                                                \
            t->own->op(d, a);                                                                                          \
            return;                                                                                                    \
        }                                                                                                              \
        int row = tally_##op(t, a);                                                                                    \
        t->depth = 1;                                                                                                  \
        uint64_t start = now_ns();                                                                                     \
        t->own->op(d, a);                                                                                              \
        if (!t->own->host_memory) t->own->finish(d);                                                                   \
        note_op(t, row, start, now_ns());                                                                              \
        t->depth = 0;                                                                                                  \
    }
OPS(X)
#undef X

struct dev_trace *dev_trace_open(struct dev *d, const struct weight *head, double kv_token_bytes)
{
    struct dev_trace *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    *t = (struct dev_trace){.ops = *d->ops, .own = d->ops, .d = d, .head = head, .kv_token_bytes = kv_token_bytes};
#define X(op) t->ops.op = trace_##op;
    OPS(X)
#undef X
    t->ops.replay = NULL; /* without replay each op runs, and is counted, by itself */
    dev_trace_switch(t, true);
    return t;
}

void dev_trace_close(struct dev_trace *t)
{
    if (!t) return;
    dev_trace_switch(t, false);
    free(t->look[0]);
    free(t->look[1]);
    free(t);
}

void dev_trace_on_op(struct dev_trace *t, void (*fn)(void *, int, uint64_t, uint64_t), void *arg)
{
    t->listen = fn;
    t->listen_arg = arg;
}

void dev_trace_switch(struct dev_trace *t, bool on)
{
    /* atomic: other threads may read the pointer at this moment */
    __atomic_store_n(&t->d->ops, on ? &t->ops : t->own, __ATOMIC_RELEASE);
}

size_t dev_memory_left(struct dev *d, size_t *largest)
{
    struct dev_memory m;
    __atomic_load_n(&d->ops, __ATOMIC_ACQUIRE)->memory(d, &m);
    if (largest) *largest = m.largest;
    return m.budget > m.used ? m.budget - m.used : 0;
}

bool dev_host_memory(const struct dev *d)
{
    return __atomic_load_n(&d->ops, __ATOMIC_ACQUIRE)->host_memory;
}

void dev_trace_clear(struct dev_trace *t)
{
    for (int i = 0; i < TRACE_COUNT; i++) t->count[i] = (struct trace_count){0};
}

const struct trace_count *dev_trace_counts(const struct dev_trace *t)
{
    return t->count;
}

const char *trace_name(int row)
{
    return row == TRACE_HEAD ? "head" : op_name((enum op_id)row);
}
