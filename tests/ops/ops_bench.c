/* What the kernels reach beside what this machine can do, measured in the same run (shared machines drift).
 *
 *   ops_bench [threads] [device] [filter]
 *
 * One row for each case: time, GMAC/s and the share of the multiplier's ceiling, GB/s of weights or cache and the share
 * of the read ceiling (a weight that fits a cache can pass it).  The int8 ceiling is vpdpbusd on registers, the float
 * ceiling fused multiply-adds; without AVX-512 VNNI only bandwidth is measured. */
#include "kernels/ops.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- ceilings ------------------------------------------------------------------------------------------------ */

/* Short bursts, the best of many: a neighbour on the same cores must not lower the ceiling. */
enum { READ_BYTES = 512 << 20, READ_BURST = 8 << 20, LOOPS = 60000, BURSTS = 40 };

struct ceilings {
    double read, int8, f32; /* bytes/s, multiply-adds/s; 0: not measured */
};

struct probe {
    pthread_t thread;
    pthread_barrier_t *barrier;
    const char *p;
    size_t n;
    struct ceilings c;
    uint64_t sink;
};

static uint64_t read_all(const char *p, size_t n)
{
    uint64_t sum[16] = {0};
    for (size_t i = 0; i + 128 <= n; i += 128)
        for (int k = 0; k < 16; k++) sum[k] += ((const uint64_t *)(const void *)(p + i))[k];
    for (int k = 1; k < 16; k++) sum[0] += sum[k];
    return sum[0];
}

#if defined(__x86_64__)
/* Twelve independent chains, written as one block so that nothing but registers is involved: kept in an array they went
 * through memory at -O2, which halved the "ceiling" and let kernels pass it. */
#define CHAINS(op)                                                                                                     \
    op " %%zmm1, %%zmm0, %%zmm20\n" op " %%zmm1, %%zmm0, %%zmm21\n" op " %%zmm1, %%zmm0, %%zmm22\n" op                 \
       " %%zmm1, %%zmm0, %%zmm23\n" op " %%zmm1, %%zmm0, %%zmm24\n" op " %%zmm1, %%zmm0, %%zmm25\n" op                 \
       " %%zmm1, %%zmm0, %%zmm26\n" op " %%zmm1, %%zmm0, %%zmm27\n" op " %%zmm1, %%zmm0, %%zmm28\n" op                 \
       " %%zmm1, %%zmm0, %%zmm29\n" op " %%zmm1, %%zmm0, %%zmm30\n" op " %%zmm1, %%zmm0, %%zmm31\n"
#define CHAINS_USED                                                                                                    \
    "xmm0", "xmm1", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", \
        "xmm31"
#define RATE(name, op, lanes)                                                                                          \
    __attribute__((target("avx512f,avx512vnni"))) static double name(void)                                             \
    {                                                                                                                  \
        long n = LOOPS;                                                                                                \
        double start = now();                                                                                          \
        __asm__ volatile(                                                                                              \
            "vpxord %%zmm0, %%zmm0, %%zmm0\nvpxord %%zmm1, %%zmm1, %%zmm1\n1:\n" CHAINS(op) "dec %0\njnz 1b\n"         \
            : "+r"(n)                                                                                                  \
            :                                                                                                          \
            : CHAINS_USED, "cc");                                                                                      \
        return LOOPS * 12.0 * (lanes) / (now() - start);                                                               \
    }
RATE(rate_int8, "vpdpbusd", 64)
RATE(rate_f32, "vfmadd231ps", 16)

__attribute__((target("avx512f"))) static uint64_t read_wide(const char *p, size_t n)
{
    __m512i sum[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
    for (size_t i = 0; i + 256 <= n; i += 256) {
        for (int k = 0; k < 4; k++) {
            _mm_prefetch(p + i + (size_t)k * 64 + 4096, _MM_HINT_T0); /* across the page, where the hardware's stops */
            sum[k] = _mm512_add_epi64(sum[k], _mm512_load_si512(p + i + (size_t)k * 64));
        }
    }
    sum[0] = _mm512_add_epi64(_mm512_add_epi64(sum[0], sum[1]), _mm512_add_epi64(sum[2], sum[3]));
    return (uint64_t)_mm512_reduce_add_epi64(sum[0]);
}
#endif

/* the best of the ways to read that we know: it is to be a ceiling */
static double rate_read(const char *p, size_t n, int way, uint64_t *sink)
{
    double start = now();
#if defined(__x86_64__)
    if (way && __builtin_cpu_supports("avx512f")) {
        *sink += read_wide(p, n);
        return (double)n / (now() - start);
    }
#endif
    *sink += read_all(p, n);
    return (double)n / (now() - start);
}

static void *probe_run(void *arg)
{
    struct probe *p = arg;
    for (int i = 0; i < 4; i++) {
        pthread_barrier_wait(p->barrier);
        for (size_t at = 0; at + READ_BURST <= p->n; at += READ_BURST) {
            p->c.read = fmax(p->c.read, rate_read(p->p + at, READ_BURST, i % 2, &p->sink));
        }
    }
    pthread_barrier_wait(p->barrier);
#if defined(__x86_64__)
    for (int i = 0; i < BURSTS && __builtin_cpu_supports("avx512vnni"); i++) {
        p->c.int8 = fmax(p->c.int8, rate_int8());
        p->c.f32 = fmax(p->c.f32, rate_f32());
    }
#endif
    return NULL;
}

static struct ceilings measure(int threads)
{
    struct ceilings sum = {0};
    struct probe *probes = calloc((size_t)threads, sizeof *probes);
    pthread_barrier_t barrier;
    char *buffer = aligned_alloc(2 << 20, READ_BYTES);
    if (!probes || !buffer) abort();
    madvise(buffer, READ_BYTES, MADV_HUGEPAGE); /* as the weights are */
    memset(buffer, 1, READ_BYTES);
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
        size_t n = READ_BYTES / (size_t)threads / 4096 * 4096;
        probes[i] = (struct probe){.barrier = &barrier, .p = buffer + n * (size_t)i, .n = n};
        if (pthread_create(&probes[i].thread, NULL, probe_run, probes + i)) abort();
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(probes[i].thread, NULL);
        sum.read += probes[i].c.read;
        sum.int8 += probes[i].c.int8;
        sum.f32 += probes[i].c.f32;
    }
    free(buffer);
    free(probes);
    return sum;
}

/* ---- cases --------------------------------------------------------------------------------------------------- */

static const char *filter;

static bool wanted(const char *label)
{
    return !filter || strstr(label, filter);
}

static void report(const char *label, double s, double macs, double mac_ceiling, double bytes, double read_ceiling)
{
    printf("%-34s %9.3f ms %8.1f GMAC/s", label, s * 1e3, macs / s * 1e-9);
    if (mac_ceiling > 0)
        printf(" %5.2f", macs / s / mac_ceiling);
    else
        printf("     -");
    printf(" %8.1f GB/s %5.2f\n", bytes / s * 1e-9, bytes / s / read_ceiling);
}

/* the best of repeated runs within about 0.2 s */
#define BEST_OF(best, call)                                                                                            \
    do {                                                                                                               \
        double bench_begin = now(), bench_at;                                                                          \
        best = 1e9;                                                                                                    \
        for (int runs = 0; runs < 3 || now() - bench_begin < 0.2; runs++) {                                            \
            bench_at = now();                                                                                          \
            call;                                                                                                      \
            double took = now() - bench_at;                                                                            \
            best = took < best ? took : best;                                                                          \
        }                                                                                                              \
    } while (0)

/* enough copies of the weight that they do not stay in a cache; run one after the other */
enum { COPIES_BYTES = 96 << 20, COPIES_MAX = 64 };

static void bench_linear(struct dev *d, const struct ceilings *c, enum dtype t, int group, int M, int N, int K)
{
    char label[80];
    snprintf(label, sizeof label, "linear %s M=%d N=%d K=%d", dtype_name(t), M, N, K);
    if (!wanted(label)) return;
    size_t n = (size_t)N * (K + 128);
    int8_t *data = malloc(n * 4);
    float *scale = malloc(n);
    if (!data || !scale) abort();
    for (size_t i = 0; i < n * 4; i++) data[i] = (int8_t)(i * 37 % 15);
    for (size_t i = 0; i < n / 4; i++) scale[i] = 0.01f;
    struct weight_src src = {t, N, K, group, data, t == DT_I8 || t == DT_I4 ? scale : NULL};
    struct weight *w[COPIES_MAX] = {d->ops->weight_pack(d, &src, 1)};
    int copies = M > 64 ? 1 : 1 + (int)(COPIES_BYTES / d->ops->weight_bytes(w[0]));
    copies = copies < COPIES_MAX ? copies : COPIES_MAX;
    for (int i = 1; i < copies; i++) w[i] = d->ops->weight_pack(d, &src, 1);
    float *x = d->ops->alloc(d, (size_t)M * K * 4), *y = d->ops->alloc(d, (size_t)M * N * 4);
    for (int i = 0; i < M * K; i++) x[i] = (float)(i % 255 - 127);
    struct mat mx = mat_f32(x, M, K), my = mat_f32(y, M, N);
    double best;
    BEST_OF(best, for (int i = 0; i < copies; i++) op_linear(d, (struct linear_args){my, mx, w[i], NULL}));
    best /= copies;
    report(label, best, (double)M * N * K, t == DT_I8 || t == DT_I4 ? c->int8 : c->f32,
           (double)d->ops->weight_bytes(w[0]), c->read);
    for (int i = 0; i < copies; i++) d->ops->weight_free(d, w[i]);
    d->ops->free(d, x);
    d->ops->free(d, y);
    free(data);
    free(scale);
}

/* n_seqs sequences, each with `rows` new tokens at the end of a context of `len` */
static void bench_attn(struct dev *d, const struct ceilings *c, enum dtype t, int n_seqs, int rows, int len)
{
    enum { HEADS = 14, KV_HEADS = 2, DIM = 64, WIDTH = (HEADS + 2 * KV_HEADS) * DIM };
    char label[80];
    snprintf(label, sizeof label, "attn %s seqs=%d rows=%d len=%d", dtype_name(t), n_seqs, rows, len);
    if (!wanted(label)) return;
    int T = n_seqs * rows, used = (len + KV_PAGE - 1) / KV_PAGE;
    struct kv_shape shape = {1, n_seqs * used, KV_HEADS, DIM, t};
    struct kv *kv = d->ops->kv_open(d, &shape);
    float *x = d->ops->alloc(d, (size_t)T * WIDTH * 4), *out = d->ops->alloc(d, (size_t)T * HEADS * DIM * 4);
    int32_t *start = calloc((size_t)n_seqs + 1, 4), *lens = calloc((size_t)n_seqs, 4);
    int32_t *pages = calloc((size_t)n_seqs * used, 4), *slot = calloc((size_t)T, 4);
    if (!kv || !x || !out || !start || !lens || !pages || !slot) abort();
    for (int i = 0; i < T * WIDTH; i++) x[i] = (float)(i * 7 % 31 - 15) * 0.05f;
    for (int i = 0; i < n_seqs * used; i++) pages[i] = i;
    for (int i = 0; i < n_seqs; i++) start[i + 1] = (i + 1) * rows, lens[i] = len;
    for (int i = 0; i < T; i++) slot[i] = i;
    struct mat qkv = mat_f32(x, T, WIDTH);
    double best;
    BEST_OF(best, op_attn(d, (struct attn_args){mat_f32(out, T, HEADS * DIM), qkv, HEADS, KV_HEADS, DIM, 0, 0.125f,
                                                n_seqs, start, lens, pages, used, kv, 0}));
    double seen = (double)T * (len - rows + (rows + 1) / 2.0);
    report(label, best, seen * HEADS * DIM * 2, c->f32, (double)n_seqs * used * (double)d->ops->kv_page_bytes(&shape),
           c->read);
    if (T <= shape.pages * KV_PAGE) {
        BEST_OF(best,
                op_rope_kv(d, (struct rope_kv_args){qkv, HEADS, KV_HEADS, DIM, 0, NULL, NULL, NULL, slot, kv, 0}));
        report("  its rope_kv (no rotation)", best, 0, 0, (double)T * KV_HEADS * DIM * 2 * 4, c->read);
    }
    d->ops->kv_close(d, kv);
    d->ops->free(d, x);
    d->ops->free(d, out);
    free(start), free(lens), free(pages), free(slot);
}

static void bench_rest(struct dev *d, const struct ceilings *c)
{
    enum { T = 512, F = 4864, C = 896, V = 151936 };
    float *gu = d->ops->alloc(d, (size_t)T * 2 * F * 4), *out = d->ops->alloc(d, (size_t)T * F * 4);
    float *z = d->ops->alloc(d, (size_t)V * 4), *w = d->ops->alloc(d, (size_t)F * 4);
    double best;
    BEST_OF(best, op_act_mul(d, (struct act_mul_args){mat_f32(out, T, F), mat_f32(gu, T, 2 * F), ACT_SILU}));
    report("act_mul silu 512 x 4864", best, 0, 0, (double)T * F * 12, c->read);
    BEST_OF(best, op_add_norm(d, (struct add_norm_args){mat_f32(out, T, C), mat_f32(gu, T, C),
                                                        mat_f32(gu + (size_t)T * C, T, C), w, NULL, 1e-6f, NORM_RMS}));
    report("add_norm 512 x 896", best, 0, 0, (double)T * C * 16, c->read);
    for (int i = 0; i < V; i++) z[i] = 8 * sinf((float)i * 1.7f) * sinf((float)i * 0.013f);
    struct sample_row row = {.temperature = 0, .top_p = 1, .typical_p = 1, .repetition = 1, .forced = -1};
    struct sample_out o;
    struct sample_args a = {mat_f32(z, 1, V), &row, &o};
    BEST_OF(best, op_sample(d, a));
    report("sample greedy V=151936", best, 0, 0, (double)V * 4, c->read);
    row.temperature = 1, row.top_p = 0.95f;
    BEST_OF(best, op_sample(d, a));
    report("sample top_p 0.95", best, 0, 0, (double)V * 4, c->read);
    row.top_k = 40, row.top_n = 5;
    BEST_OF(best, op_sample(d, a));
    report("sample top_k 40, top_p, top_n 5", best, 0, 0, (double)V * 4, c->read);
    void *all[] = {gu, out, z, w};
    for (size_t i = 0; i < 4; i++) d->ops->free(d, all[i]);
}

int main(int argc, char **argv)
{
    static const int Ms[] = {1, 8, 32, 512};
    static const struct {
        enum dtype t;
        int group;
    } kinds[] = {{DT_F32, 0}, {DT_BF16, 0}, {DT_I8, 0}, {DT_I4, 32}};
    char why[160];
    struct dev_config config = {.name = argc > 2 ? argv[2] : "cpu", .threads = argc > 1 ? atoi(argv[1]) : 0};
    struct dev *d = dev_open(&config, why);
    if (!d) {
        fprintf(stderr, "%s\n", why);
        return EXIT_FAILURE;
    }
    filter = argc > 3 ? argv[3] : NULL;
    struct ceilings c = measure(d->threads);
    printf("%s, %d threads: read %.1f GB/s, int8 %.0f GMAC/s, f32 %.0f GMAC/s\n", d->level, d->threads, c.read * 1e-9,
           c.int8 * 1e-9, c.f32 * 1e-9);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t m = 0; m < sizeof Ms / sizeof *Ms; m++) {
            bench_linear(d, &c, kinds[k].t, kinds[k].group, Ms[m], 4864, 896);
            bench_linear(d, &c, kinds[k].t, kinds[k].group, Ms[m], 896, 4864);
            bench_linear(d, &c, kinds[k].t, kinds[k].group, Ms[m], 128, 384);
        }
    static const enum dtype caches[] = {DT_F32, DT_BF16, DT_F16, DT_I8};
    for (size_t k = 0; k < 4; k++) {
        bench_attn(d, &c, caches[k], 1, 512, 512);
        bench_attn(d, &c, caches[k], 1, 1, 512);
        bench_attn(d, &c, caches[k], 8, 1, 4096);
    }
    bench_attn(d, &c, DT_BF16, 1, 1, 32768);
    if (!filter) bench_rest(d, &c);
    dev_close(d);
    return EXIT_SUCCESS;
}
