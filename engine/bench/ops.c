/* Every op alone, in the shapes of Qwen2.5-0.5B: hidden 896, inter 4864, 14 heads of 64 on 2 key heads, vocabulary
 * 151936.  A weight is copied until the copies exceed the caches, and each call uses the next copy.  Other inputs
 * (activations) may stay in cache, so the bytes/s of such a row can exceed the read ceiling. */
#include "engine/bench/bench.h"

#include "engine/base/clock.h"
#include "engine/base/cpus.h"
#include "engine/base/mem.h"
#include "kernels/ops.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HIDDEN = 896,
    INTER = 4864,
    HEADS = 14,
    KV_HEADS = 2,
    DIM = 64,
    QKV = (HEADS + 2 * KV_HEADS) * DIM,
    VOCAB = 151936
};
enum { ROWS = 512, COPIES_BYTES = 96 << 20, COPIES_MAX = 64 };

#ifdef TANDEM_SANITIZED
static const uint64_t ROW_NS = 1000000;
#else
static const uint64_t ROW_NS = 200000000; /* duration of repeated calls per row */
#endif

struct bench_all {
    struct dev *d;
    struct ceilings c;
    const char *filter;
    const struct bench_ops_sink *sink;
    const struct block_kind *block; /* of weights of DT_BLOCK */
    struct bench_op_row row;        /* the current row */
    bool no_memory, stopped;
    int calls; /* measured calls between two waits */
};

/* Names the current row.  @return false when the filter excludes it. */
__attribute__((format(printf, 2, 3))) static bool wanted(struct bench_all *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(b->row.name, sizeof b->row.name, fmt, ap);
    va_end(ap);
    return !b->stopped && (!b->filter || strstr(b->row.name, b->filter));
}

/* The best time of `call`, repeated for ROW_NS and at least three times, into `best` (seconds).  An asynchronous device
 * is waited for after each call, or after several calls when one is too short to time. */
#define BEST_OF(best, call)                                                                                            \
    do {                                                                                                               \
        uint64_t bench_begin = clock_now();                                                                            \
        best = INFINITY;                                                                                               \
        for (int runs = 0; runs < 3 || clock_now() - bench_begin < ROW_NS; runs++) {                                   \
            uint64_t bench_at = clock_now();                                                                           \
            for (int again = 0; again < b->calls; again++) {                                                           \
                call;                                                                                                  \
            }                                                                                                          \
            if (!b->d->ops->host_memory) b->d->ops->finish(b->d);                                                      \
            double bench_took = (double)(clock_now() - bench_at) * 1e-9 / b->calls;                                    \
            best = bench_took < best ? bench_took : best;                                                              \
        }                                                                                                              \
    } while (0)

static void report(struct bench_all *b, double seconds, double macs, double macs_ceiling, double bytes)
{
    b->row.seconds = seconds > 1e-9 ? seconds : 1e-9;
    b->row.macs = macs;
    b->row.bytes = bytes;
    b->row.macs_ceiling = macs_ceiling;
    if (!b->sink->row(b->sink->arg, &b->row)) b->stopped = true;
}

/* Data for the device: allocated on the host, filled, then uploaded and freed.  @return NULL, with no_memory set, when
 * out of memory. */
static void *host_room(struct bench_all *b, size_t bytes)
{
    void *p = mem_try_alloc(bytes);
    if (!p) b->no_memory = true;
    return p;
}

static void *sent(struct bench_all *b, void *host, size_t bytes)
{
    void *p = host ? b->d->ops->alloc(b->d, bytes) : NULL;
    if (!p) b->no_memory = true;
    if (p) b->d->ops->upload(b->d, p, host, bytes);
    if (p && !b->d->ops->host_memory) b->d->ops->finish(b->d);
    free(host);
    return p;
}

/* n small, varying floats on the device; NULL and no_memory. */
static float *floats(struct bench_all *b, size_t n)
{
    float *p = host_room(b, n * sizeof *p);
    for (size_t i = 0; p && i < n; i++) p[i] = (float)((int)(i * 7 % 31) - 15) * 0.05f;
    return sent(b, p, n * sizeof *p);
}

/* n floats equal to x */
static float *equal_floats(struct bench_all *b, size_t n, float x)
{
    float *p = host_room(b, n * sizeof *p);
    for (size_t i = 0; p && i < n; i++) p[i] = x;
    return sent(b, p, n * sizeof *p);
}

/* first + i * step for each i < n, modulo `below` */
static int32_t *steps(struct bench_all *b, int n, int first, int step, int below)
{
    int32_t *p = host_room(b, (size_t)n * sizeof *p);
    for (int i = 0; p && i < n; i++) p[i] = (first + i * step) % below;
    return sent(b, p, (size_t)n * sizeof *p);
}

static void drop(struct bench_all *b, void *p)
{
    if (p) b->d->ops->free(b->d, p);
}

/* ---- linear ------------------------------------------------------------------------------------------------------ */

/* What llama.cpp calls Q8_0, Q4_K and Q6_K. */
static const struct block_kind {
    const char *name;
    struct weight_block form;
    bool sub_min;
} block_kinds[] = {{"block q8_0", {.bits = 8, .group = 32, .super = 32}, false},
                   {"block q4_k", {.bits = 4, .group = 32, .super = 256}, true},
                   {"block q6_k", {.bits = 6, .group = 16, .super = 256}, false}};

static double unit_ceiling(const struct bench_all *b, enum dtype t)
{
    const struct ceilings *c = &b->c;
    if (t == DT_I4 || (t == DT_BLOCK && b->block->form.bits <= 4)) return c->int4_macs_per_s;
    if (t == DT_I8 || t == DT_BLOCK) return c->int8_macs_per_s;
    bool bf16 = t == DT_BF16 || t == DT_F8 || (t == DT_NF4 && b->d->ops->rounds_more);
    return bf16 ? bench_bf16_rate(c) : c->f32_macs_per_s;
}

static const char *kind_name(const struct bench_all *b, enum dtype t)
{
    return t == DT_BLOCK ? b->block->name : dtype_name(t);
}

/* A weight of b->block; NULL and no_memory. */
static struct weight *make_block(struct bench_all *b, int N, int K, bool gate_up)
{
    struct weight_block form = b->block->form;
    size_t n = (size_t)N * (size_t)K, groups = (size_t)N * (size_t)((K + form.group - 1) / form.group);
    uint8_t *code = mem_try_alloc(n + groups);
    float *scale = mem_try_alloc(groups * sizeof *scale);
    int8_t value[256];
    struct weight *w = NULL;
    if (code && scale) {
        uint8_t *sub = code + n;
        for (size_t i = 0; i < n; i++) code[i] = (uint8_t)(i * 37 % (size_t)(1 << form.bits));
        for (size_t i = 0; i < groups; i++) scale[i] = 0x1p-7f, sub[i] = (uint8_t)(i % 64);
        for (int i = 0; i < 1 << form.bits; i++) value[i] = (int8_t)(b->block->sub_min ? i : i - (1 << form.bits) / 2);
        form.value = value;
        form.super_scale = scale;
        if (form.super > form.group) form.sub_scale = (int8_t *)sub;
        if (b->block->sub_min) form.super_min = scale, form.sub_min = sub;
        struct weight_src src = {.t = DT_BLOCK, .rows = gate_up ? N / 2 : N, .cols = K, .data = code};
        src.gate_up = gate_up;
        src.block = &form;
        w = b->d->ops->weight_pack(b->d, (const struct weight_src[]){src, src}, gate_up ? 2 : 1);
    }
    free(code);
    free(scale);
    if (!w) b->no_memory = true;
    return w;
}

/* A weight of any type from bytes that are valid for it; NULL and no_memory.  gate_up: both, with N rows in total. */
static struct weight *make_weight(struct bench_all *b, enum dtype t, int N, int K, bool gate_up)
{
    if (t == DT_BLOCK) return make_block(b, N, K, gate_up);
    int group = t == DT_I4 ? 32 : t == DT_NF4 ? 64 : t == DT_F8 ? 128 : 0;
    size_t bytes = dtype_bytes(t, (size_t)N * (size_t)((K + 127) / 128 * 128));
    size_t scales = (size_t)N * (size_t)(group ? (K + group - 1) / group : 1);
    uint8_t *data = mem_try_alloc(bytes);
    float *scale = mem_try_alloc(scales * sizeof *scale);
    struct weight *w = NULL;
    if (data && scale) {
        int from = group || t == DT_I8 ? 0 : 0x30; /* bytes that as floats are 1e-10 to 0.2, none denormal */
        for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)(from + (int)(i * 37 % 15));
        for (size_t i = 0; i < scales; i++) scale[i] = 0.01f;
        struct weight_src src = {t, gate_up ? N / 2 : N, K, group, data, group || t == DT_I8 ? scale : NULL, gate_up};
        w = b->d->ops->weight_pack(b->d, (const struct weight_src[]){src, src}, gate_up ? 2 : 1);
    }
    free(data);
    free(scale);
    if (!w) b->no_memory = true;
    return w;
}

static void linear_rows(struct bench_all *b, enum dtype t, int M, int N, int K, bool gate_up, struct weight **w,
                        int copies)
{
    float *x = floats(b, (size_t)M * (size_t)K), *y = floats(b, (size_t)M * (size_t)N);
    if (x && y) {
        struct mat mx = mat_f32(x, M, K), my = mat_f32(y, M, N), ff = mat_f32(y, M, N / 2), tmp = {0};
        double best;
        if (gate_up) {
            if (!b->d->ops->fused_gate_up) tmp = mat_f32(floats(b, (size_t)M * (size_t)N), M, N);
            BEST_OF(best, for (int i = 0; i < copies && !b->no_memory; i++)
                              op_gate_up(b->d, (struct gate_up_args){ff, mx, w[i], NULL, ACT_SILU, tmp}));
            drop(b, tmp.p);
        } else {
            BEST_OF(best, for (int i = 0; i < copies; i++) op_linear(b->d, (struct linear_args){my, mx, w[i], NULL}));
        }
        report(b, best / copies, (double)M * N * K, unit_ceiling(b, t), (double)b->d->ops->weight_bytes(w[0]));
    }
    drop(b, x);
    drop(b, y);
}

/* One weight shape, for each number of rows. */
static void bench_linear(struct bench_all *b, enum dtype t, int N, int K, bool gate_up, const int *rows, int n_rows)
{
    struct weight *w[COPIES_MAX] = {0};
    int copies = 0;
    for (int i = 0; i < n_rows && !b->no_memory; i++) {
        int M = rows[i];
        if (!wanted(b, "%s %s M=%d N=%d K=%d", gate_up ? "gate_up" : "linear", kind_name(b, t), M, N, K)) continue;
        if (!copies && (w[0] = make_weight(b, t, N, K, gate_up))) {
            int most = 1 + (int)(COPIES_BYTES / b->d->ops->weight_bytes(w[0]));
            if (most > COPIES_MAX) most = COPIES_MAX;
            for (copies = 1; copies < most; copies++)
                if (!(w[copies] = make_weight(b, t, N, K, gate_up))) break;
        }
        if (!b->no_memory) linear_rows(b, t, M, N, K, gate_up, w, M > 64 ? 1 : copies);
    }
    for (int i = 0; i < copies; i++) b->d->ops->weight_free(b->d, w[i]);
}

static void bench_linears(struct bench_all *b)
{
    static const int many[] = {1, 2, 4, 8, 16, 32, 64, 512}, few[] = {1, 8, 32, 512}, head[] = {1, 8, 32};
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_I8, DT_F8, DT_I4, DT_NF4};
    static const int shapes[][2] = {{INTER, HIDDEN}, {HIDDEN, INTER}, {128, 384}, {QKV, HIDDEN}, {2 * INTER, HIDDEN}};
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        bool f32 = types[k] == DT_F32;
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            bench_linear(b, types[k], shapes[s][0], shapes[s][1], false, f32 ? few : many, f32 ? 4 : 8);
        bench_linear(b, types[k], 2 * INTER, HIDDEN, true, few, 4);
        if (!f32) bench_linear(b, types[k], VOCAB, HIDDEN, false, head, 3);
    }
    for (size_t k = 0; k < sizeof block_kinds / sizeof *block_kinds; k++) {
        b->block = block_kinds + k;
        bench_linear(b, DT_BLOCK, 2 * INTER, HIDDEN, false, few, 4);
        bench_linear(b, DT_BLOCK, HIDDEN, INTER, false, few, 4);
        bench_linear(b, DT_BLOCK, 2 * INTER, HIDDEN, true, few, 4);
    }
}

/* ---- GEMMs of training ------------------------------------------------------------------------------------------- */

static void bench_back(struct bench_all *b, enum dtype t, int N, int K, bool gate_up)
{
    enum { M = ROWS };
    if (!wanted(b, "linear_back %s%s M=%d N=%d K=%d", dtype_name(t), gate_up ? " gate_up" : "", M, N, K)) return;
    float *dy = floats(b, (size_t)M * (size_t)N), *dx = floats(b, (size_t)M * (size_t)K);
    struct weight *w = make_weight(b, t, N, K, gate_up);
    if (dy && dx && w) {
        double best;
        BEST_OF(best, op_linear_back(b->d, (struct linear_back_args){mat_f32(dx, M, K), mat_f32(dy, M, N), w, false}));
        double rate = t != DT_F32 ? bench_bf16_rate(&b->c) : b->c.f32_macs_per_s;
        report(b, best, (double)M * N * K, rate, (double)b->d->ops->weight_bytes(w));
    }
    if (w) b->d->ops->weight_free(b->d, w);
    drop(b, dy);
    drop(b, dx);
}

/* As the trainer calls it: in bf16 unless a factor is as narrow as an adapter's rank. */
static void bench_gemm(struct bench_all *b, const char *what, int M, int N, int K, bool ta, bool tb, bool accumulate)
{
    if (!wanted(b, "gemm%s%s%s M=%d N=%d K=%d%s%s", ta ? " ta" : "", tb ? " tb" : "", accumulate ? " +=" : "", M, N, K,
                *what ? ": " : "", what))
        return;
    float *x = floats(b, (size_t)M * (size_t)K), *y = floats(b, (size_t)K * (size_t)N);
    float *z = floats(b, (size_t)M * (size_t)N);
    if (x && y && z) {
        struct gemm_args a = {.c = mat_f32(z, M, N),
                              .a = ta ? mat_f32(x, K, M) : mat_f32(x, M, K),
                              .b = tb ? mat_f32(y, N, K) : mat_f32(y, K, N),
                              .ta = ta,
                              .tb = tb,
                              .accumulate = accumulate,
                              .half = true,
                              .alpha = accumulate ? 1e-6f : 1};
        double best, rate = bench_bf16_rate(&b->c);
        BEST_OF(best, op_gemm(b->d, a));
        report(b, best, (double)M * N * K, rate,
               ((double)M * K + (double)N * K + (double)M * N * (accumulate + 1)) * 4);
    }
    drop(b, x);
    drop(b, y);
    drop(b, z);
}

static void bench_lora(struct bench_all *b, int T, int K, int N, int r)
{
    if (!wanted(b, "lora T=%d K=%d N=%d r=%d", T, K, N, r)) return;
    float *x = floats(b, (size_t)T * (size_t)K), *y = floats(b, (size_t)T * (size_t)N);
    float *a = floats(b, (size_t)r * (size_t)(K + N));
    if (x && y && a) {
        struct lora_part part = {a, a + (size_t)r * (size_t)K, r, 0, N, 1e-6f};
        struct lora_group group = {0, T, 1, &part};
        double best, bytes = ((double)r * (K + N) + (double)T * (K + 2.0 * N)) * 4;
        BEST_OF(best, op_lora(b->d, (struct lora_args){mat_f32(y, T, N), mat_f32(x, T, K), &group, 1}));
        report(b, best, (double)T * r * (K + N), b->c.f32_macs_per_s, bytes);
    }
    drop(b, x);
    drop(b, y);
    drop(b, a);
}

static void bench_products(struct bench_all *b)
{
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_I8, DT_F8, DT_I4, DT_NF4};
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        bench_back(b, types[k], QKV, HIDDEN, false);
        bench_back(b, types[k], HIDDEN, INTER, false);
        bench_back(b, types[k], 2 * INTER, HIDDEN, true);
    }
    bench_back(b, DT_I8, VOCAB / 4, HIDDEN, false);
    for (int r = 8; r <= 64; r *= 8) {
        static const int widths[] = {HIDDEN, INTER};
        for (int i = 0; i < 2; i++) {
            bench_gemm(b, "x a^T", ROWS, r, widths[i], false, true, false);
            bench_gemm(b, "y += x b^T", ROWS, widths[i], r, false, true, true);
            bench_gemm(b, "dy b", ROWS, r, widths[i], false, false, false);
            bench_gemm(b, "dx += d a", ROWS, widths[i], r, false, false, true);
            bench_gemm(b, "da", r, widths[i], ROWS, true, false, true);
            bench_gemm(b, "db", widths[i], r, ROWS, true, false, true);
        }
    }
    bench_gemm(b, "dw", 256, 256, 2048, true, false, true);
    bench_gemm(b, "dw", 1024, 1024, 2048, true, false, true);
    bench_gemm(b, "dw", INTER, HIDDEN, 2048, true, false, true);
    bench_gemm(b, "", ROWS, HIDDEN, HIDDEN, false, false, false);
    bench_lora(b, 1, HIDDEN, INTER, 8);
    bench_lora(b, 1, INTER, HIDDEN, 8);
    bench_lora(b, 32, HIDDEN, INTER, 8);
    bench_lora(b, ROWS, HIDDEN, INTER, 8);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

struct seqs { /* n sequences, each with `rows` new tokens at the end of a context of `len` */
    int n, rows, len;
};

static void attn_rows(struct bench_all *b, struct seqs q, enum dtype t, struct kv *kv, double page_bytes, int used)
{
    int T = q.n * q.rows;
    float *x = floats(b, (size_t)T * QKV), *out = floats(b, (size_t)T * HEADS * DIM);
    int32_t *start = steps(b, q.n + 1, 0, q.rows, INT32_MAX), *lens = steps(b, q.n, q.len, 0, INT32_MAX);
    int32_t *pages = steps(b, q.n * used, 0, 1, INT32_MAX), *slot = steps(b, T, 0, 1, INT32_MAX);
    bool all = x && out && start && lens && pages && slot;
    struct mat qkv = mat_f32(x, T, QKV);
    double best;
    if (all && wanted(b, "attn %s seqs=%d rows=%d len=%d", dtype_name(t), q.n, q.rows, q.len)) {
        struct attn_args a = {mat_f32(out, T, HEADS * DIM),
                              qkv,
                              HEADS,
                              KV_HEADS,
                              DIM,
                              0,
                              0.125f,
                              q.n,
                              start,
                              lens,
                              pages,
                              used,
                              kv,
                              0,
                              q.rows};
        BEST_OF(best, op_attn(b->d, a));
        double seen = (double)T * (q.len - q.rows + (q.rows + 1) / 2.0);
        double rate = bench_bf16_rate(&b->c);
        report(b, best, seen * HEADS * DIM * 2, rate, (double)q.n * q.len / KV_PAGE * page_bytes);
    }
    if (all && wanted(b, "rope_kv %s rows=%d, no rotation", dtype_name(t), T)) {
        struct rope_kv_args a = {qkv, HEADS, KV_HEADS, DIM, 0, NULL, NULL, NULL, slot, kv, 0};
        BEST_OF(best, op_rope_kv(b->d, a));
        report(b, best, 0, 0, (double)T * KV_HEADS * DIM * 2 * 4);
    }
    drop(b, x);
    drop(b, out);
    drop(b, start), drop(b, lens), drop(b, pages), drop(b, slot);
}

/* Writes every slot of the first n pages: memory that was never written is one shared page of zeros, which stays in the
 * caches. */
static void kv_fill(struct bench_all *b, struct kv *kv, int n)
{
    enum { TOKENS = 512 };
    float *x = floats(b, (size_t)TOKENS * QKV);
    int32_t *slot = steps(b, n * KV_PAGE, 0, 1, INT32_MAX);
    for (int done = 0; x && slot && done < n * KV_PAGE; done += TOKENS) {
        int T = n * KV_PAGE - done < TOKENS ? n * KV_PAGE - done : TOKENS;
        op_rope_kv(b->d, (struct rope_kv_args){mat_f32(x, T, QKV), HEADS, KV_HEADS, DIM, 0, NULL, NULL, NULL,
                                               slot + done, kv, 0});
    }
    if (!b->d->ops->host_memory) b->d->ops->finish(b->d);
    drop(b, x);
    drop(b, slot);
}

static void bench_attn(struct bench_all *b, enum dtype t, struct seqs q)
{
    int used = (q.len + KV_PAGE - 1) / KV_PAGE;
    struct kv_shape shape = {1, q.n * used, KV_HEADS, DIM, t}, one = {1, 1, KV_HEADS, DIM, t};
    if (!wanted(b, "attn %s seqs=%d rows=%d len=%d", dtype_name(t), q.n, q.rows, q.len) &&
        !wanted(b, "rope_kv %s rows=%d, no rotation", dtype_name(t), q.n * q.rows))
        return;
    struct kv *kv = b->d->ops->kv_open(b->d, &shape);
    if (!kv) {
        b->no_memory = true;
        return;
    }
    kv_fill(b, kv, q.n * used);
    attn_rows(b, q, t, kv, (double)b->d->ops->kv_page_bytes(&one), used);
    b->d->ops->kv_close(b->d, kv);
}

static void bench_attns(struct bench_all *b)
{
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16, DT_I8};
    static const struct seqs all[] = {{1, 512, 512}, {1, 512, 4096}, {1, 4096, 4096}, {1, 1, 512},
                                      {8, 1, 4096},  {32, 1, 512},   {32, 1, 4096}};
    for (size_t k = 0; k < sizeof types / sizeof *types; k++)
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) bench_attn(b, types[k], all[i]);
    bench_attn(b, DT_BF16, (struct seqs){1, 1, 32768});
}

/* ---- the rest: bytes moved are those of the rows read and written --------------------------------------------------
 */

#define MOVE(name, bytes, call)                                                                                        \
    do {                                                                                                               \
        double took;                                                                                                   \
        if (!wanted(b, "%s", name)) break;                                                                             \
        BEST_OF(took, call);                                                                                           \
        report(b, took, 0, 0, bytes);                                                                                  \
    } while (0)

static void bench_moves(struct bench_all *b)
{
    enum { T = ROWS, F = INTER, C = HIDDEN };
    const double row = (double)T * C * 4;
    struct dev *d = b->d;
    /* repeated in-place ops must not converge to denormal numbers */
    float *gu = floats(b, (size_t)T * 2 * F), *out = equal_floats(b, (size_t)T * F, 6), *w = equal_floats(b, F, 1);
    float *table = floats(b, (size_t)VOCAB * 64);
    int32_t *id = steps(b, T, 0, 13, T);
    if (gu && out && w && table && id) {
        MOVE("act gelu_tanh 512 x 4864", (double)T * F * 8,
             op_act(d, (struct act_args){mat_f32(out, T, F), ACT_GELU_TANH}));
        float *second = gu + (size_t)T * C;
        struct mat x = mat_f32(gu, T, C), y = mat_f32(second, T, C), o = mat_f32(out, T, C);
        struct mat rows_of = mat_f32(table, VOCAB * 64 / C, C);
        MOVE("act_mul silu 512 x 4864", (double)T * F * 12,
             op_act_mul(d, (struct act_mul_args){mat_f32(out, T, F), mat_f32(gu, T, 2 * F), ACT_SILU}));
        MOVE("add_norm 512 x 896", row * 4, op_add_norm(d, (struct add_norm_args){o, x, y, w, NULL, 1e-6f, NORM_RMS}));
        MOVE("norm rms 512 x 896", row * 2, op_norm(d, (struct norm_args){o, x, w, NULL, 1e-6f, NORM_RMS}));
        MOVE("norm layer 512 x 896", row * 2, op_norm(d, (struct norm_args){o, x, w, w, 1e-6f, NORM_LAYER}));
        MOVE("add 512 x 896", row * 3, op_add(d, (struct add_args){o, y}));
        MOVE("head_norm 512 x 14 x 64", row * 2, op_head_norm(d, (struct head_norm_args){o, 0, HEADS, DIM, w, 1e-6f}));
        MOVE("embed f32 512 x 896", row * 2, op_embed(d, (struct embed_args){o, rows_of, {0}, id, NULL}));
        MOVE("rows 512 x 896", row * 2, op_rows(d, (struct rows_args){o, x, id}));
    }
    void *all[] = {gu, out, w, table, id};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop(b, all[i]);
}

static void bench_samples(struct bench_all *b)
{
    enum { V = VOCAB, R = 32 };
    struct dev *d = b->d;
    float *z = host_room(b, (size_t)V * R * sizeof *z);
    struct sample_row row[R];
    struct sample_out out[R];
    for (size_t i = 0; z && i < (size_t)V * R; i++) z[i] = 8 * sinf((float)i * 1.7f) * sinf((float)i * 0.013f);
    z = sent(b, z, (size_t)V * R * sizeof *z);
    if (z) {
        struct sample_args one = {mat_f32(z, 1, V), row, out}, many = {mat_f32(z, R, V), row, out};
        for (int i = 0; i < R; i++)
            row[i] =
                (struct sample_row){.top_p = 1, .typical_p = 1, .repetition = 1, .forced = -1, .seed = (uint64_t)i};
        MOVE("sample greedy V=151936", V * 4.0, op_sample(d, one));
        MOVE("sample greedy V=151936, 32 rows", V * 4.0 * R, op_sample(d, many));
        for (int i = 0; i < R; i++) row[i].temperature = 1, row[i].top_p = 0.95f;
        MOVE("sample top_p 0.95", V * 4.0, op_sample(d, one));
        MOVE("sample top_p 0.95, 32 rows", V * 4.0 * R, op_sample(d, many));
        row[0].top_k = 40, row[0].top_n = 5;
        MOVE("sample top_k 40, top_p, top_n 5", V * 4.0, op_sample(d, one));
    }
    drop(b, z);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

/* Whole sequences of `rows` tokens, ROWS at least in all: two GEMMs forward, five backward. */
static void bench_attn_train(struct bench_all *b, int rows)
{
    enum { SEQS = 8 };
    struct dev *d = b->d;
    int n = rows < ROWS ? ROWS / rows : 1, T = n * rows;
    float *qkv = floats(b, (size_t)T * QKV), *dqkv = floats(b, (size_t)T * QKV), *lse = floats(b, (size_t)T * HEADS);
    float *out = floats(b, (size_t)T * HEADS * DIM), *dout = floats(b, (size_t)T * HEADS * DIM);
    int32_t *start = steps(b, SEQS + 1, 0, rows, INT32_MAX);
    double best, macs = (double)T * (rows + 1) / 2 * HEADS * DIM;
    bool rounds = d->bf16_x && !d->ops->host_memory && b->c.bf16_macs_per_s > 0; /* as the contract allows */
    double rate = rounds ? b->c.bf16_macs_per_s : b->c.f32_macs_per_s;
    if (qkv && dqkv && lse && out && dout && start) {
        struct mat mq = mat_f32(qkv, T, QKV), mo = mat_f32(out, T, HEADS * DIM), ml = mat_f32(lse, T, HEADS);
        struct mat mdq = mat_f32(dqkv, T, QKV), mdo = mat_f32(dout, T, HEADS * DIM);
        struct attn_seq_args a = {mo, ml, mq, HEADS, KV_HEADS, DIM, 0, 0.125f, n, start};
        struct attn_back_args back = {mdq, mdo, mo, ml, mq, HEADS, KV_HEADS, DIM, 0, 0.125f, n, start};
        if (wanted(b, "attn_seq %d x %d", n, rows)) {
            BEST_OF(best, op_attn_seq(d, a));
            report(b, best, macs * 2, rate, 0);
        }
        if (wanted(b, "attn_back %d x %d", n, rows)) {
            op_attn_seq(d, a);
            BEST_OF(best, op_attn_back(d, back));
            report(b, best, macs * 5, rate, 0);
        }
    }
    void *all[] = {qkv, dqkv, lse, out, dout, start};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop(b, all[i]);
}

static void bench_train_moves(struct bench_all *b)
{
    enum { T = ROWS, F = INTER, C = HIDDEN, R = 32 };
    const double row = (double)T * C * 4;
    struct dev *d = b->d;
    size_t n = (size_t)T * F;
    float *gu = floats(b, 2 * n), *dgu = floats(b, 2 * n), *dy = floats(b, n), *w = floats(b, 2 * F);
    int32_t *id = steps(b, T, 0, 13, T);
    float *z = floats(b, (size_t)R * VOCAB), *ones = equal_floats(b, n, 1);
    double *sum = d->ops->alloc(d, sizeof *sum);
    if (gu && dgu && dy && w && id && z && ones && sum) {
        struct mat mgu = mat_f32(gu, T, 2 * F), mdgu = mat_f32(dgu, T, 2 * F), mdy = mat_f32(dy, T, F);
        struct mat x = mat_f32(gu, T, C), dx = mat_f32(dgu, T, C), dout = mat_f32(dy, T, C);
        MOVE("act_mul_back silu 512 x 4864", (double)n * 20,
             op_act_mul_back(d, (struct act_mul_back_args){mdgu, mgu, mdy, ACT_SILU}));
        MOVE("act_back gelu_tanh 512 x 4864", (double)n * 12,
             op_act_back(d, (struct act_back_args){mat_f32(dgu, T, F), mat_f32(gu, T, F), mdy, ACT_GELU_TANH}));
        MOVE("norm_back rms 512 x 896", row * 3,
             op_norm_back(d, (struct norm_back_args){dx, x, dout, w, 1e-6f, NORM_RMS, false, NULL, NULL}));
        MOVE("norm_back layer, dw, db 512 x 896", row * 3,
             op_norm_back(d, (struct norm_back_args){dx, x, dout, w, 1e-6f, NORM_LAYER, false, w + F, w + F + C}));
        MOVE("head_norm_back 512 x 14 x 64", row * 3,
             op_head_norm_back(d, (struct head_norm_back_args){dx, x, 0, HEADS, DIM, w, 1e-6f, NULL}));
        MOVE("dropout 512 x 896", row * 2, op_dropout(d, (struct dropout_args){dout, 0.1f, 1, 0}));
        MOVE("square_sum 5 M", (double)n * 8, op_square_sum(d, (struct square_sum_args){gu, 2 * n, sum}));
        struct adamw_args a = {.p = gu, .m = dgu, .v = ones, .g = dy, .n = n, .lr = 1e-4, .beta1 = 0.9};
        a.beta2 = 0.999, a.eps = 1e-8, a.bias1 = 0.1, a.bias2 = 0.001, a.grad_scale = 1;
        MOVE("adamw 2.5 M", (double)n * 28, op_adamw(d, a));
        struct adamw_8bit_args eight = {
            .p = gu, .g = dy, .n = n, .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
        eight.m = (uint8_t *)dgu, eight.v = eight.m + n, eight.m_scale = ones, eight.v_scale = ones + n / 2;
        eight.bias1 = 0.1, eight.bias2 = 0.001, eight.grad_scale = 1;
        MOVE("adamw_8bit 2.5 M", (double)n * 16, op_adamw_8bit(d, eight));
        MOVE("axpby 2.5 M", (double)n * 12, op_axpby(d, (struct axpby_args){gu, dgu, n, 0.5, 0.5}));
        struct cross_entropy_args ce = {mat_f32(z, R, VOCAB), id, w, w + T, id, false};
        ce.hit = id + R;
        MOVE("cross_entropy V=151936, 32 rows", (double)R * VOCAB * 4, op_cross_entropy(d, ce));
        ce.back = true;
        MOVE("cross_entropy back V=151936, 32 rows", (double)R * VOCAB * 8, op_cross_entropy(d, ce));
    }
    void *all[] = {gu, dgu, dy, w, id, z, ones, sum};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop(b, all[i]);
}

int bench_ops(const char *device, int threads, const char *filter, const struct bench_ops_sink *sink, struct err *e)
{
    char why[160], name[32];
    struct dev_config dc = {.name = device, .threads = threads ? threads : cpus_available()};
    struct bench_all b = {.d = dev_open(&dc, why), .filter = filter && *filter ? filter : NULL, .sink = sink};
    if (!b.d) return err_set(e, ERR_UNSUPPORTED, "device %s: %s", device ? device : "cpu", why);
    b.d->bf16_x = b.d->ops->bf16_units; /* the default when serving */
    b.calls = strcmp(b.d->ops->name, "cuda") ? 1 : 20;
    int rc = bench_measure(b.d, &b.c, e);
    if (!rc) {
        bool same = strcmp(b.d->ops->name, b.d->level) == 0;
        snprintf(name, sizeof name, "%s%s%s", b.d->ops->name, same ? "" : " ", same ? "" : b.d->level);
        sink->begin(sink->arg, name, b.d->threads, &b.c);
        bench_linears(&b);
        bench_products(&b);
        bench_attns(&b);
        bench_moves(&b);
        bench_samples(&b);
        bench_attn_train(&b, 128);
        bench_attn_train(&b, 512);
        bench_attn_train(&b, 2048);
        bench_train_moves(&b);
    }
    if (!rc && b.stopped) rc = err_set(e, ERR_FULL, "interrupted");
    if (!rc && b.no_memory) rc = err_set(e, ERR_NOMEM, "not enough memory for every row");
    if (!rc && b.d->ops->finish(b.d)) rc = err_set(e, ERR_IO, "%s: %s", b.d->error.op, b.d->error.msg);
    dev_close(b.d);
    return rc;
}
