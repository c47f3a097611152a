/* Every rate is that of all threads together: total work divided by the time from the first start to the last end,
 * between two barriers. (The sum of each thread's best run is no ceiling: the threads never reached it at the same
 * time.) For multiplying, the best of many short repeats counts: other processes on the same cores must not lower a
 * ceiling, and some repeats run undisturbed. For reading, the median of passes through the whole buffer with the
 * fastest read pattern counts: memory bandwidth is shared with other processes, short passes would find part of the
 * buffer in a cache, and what is compared with it are medians too.
 *
 * The multipliers are loops of inline assembly on registers with enough independent chains to hide the latency.
 * Written with intrinsics, compilers spilled the accumulators or joined chains, and kernels exceeded the "ceiling". */
#include "kernels/ceilings.h"

#include "kernels/cuda/runtime/ceilings.h"
#include "kernels/dev.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifdef TANDEM_SANITIZED /* the figures would mean nothing, and measuring takes time */
enum { READ_MAX = 8 << 20, READ_NS = 20000000, BURST_NS = 100000 };
#else
enum { READ_MAX = CEILINGS_READ_WANTED, READ_NS = 400000000, BURST_NS = 2000000 };
#endif
enum {
    TOGETHER_NS = 200000, /* how long a thread waits for the others to wake */
    BURSTS = 40,          /* of each unit */
    PASSES = 64,          /* of reading, at most */
    TRIES = 2,            /* rounds of each way to read */
    HUGE_PAGE = 2 << 20,
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

/* Reads n bytes as `streams` interleaved streams, prefetching `ahead` bytes further (0: hardware prefetcher only). n
 * is a multiple of 4096. Returns a value that depends on every byte. */
typedef uint64_t read_fn(const char *p, size_t n, int ahead, int streams);

static uint64_t read_portable(const char *p, size_t n, int ahead, int streams)
{
    uint64_t sum[8] = {0};
    size_t part = n / (size_t)streams / 64 * 64;
    for (size_t i = 0; i < part; i += 64)
        for (int s = 0; s < streams; s++) {
            const char *at = p + (size_t)s * part + i;
            if (ahead) __builtin_prefetch(at + ahead);
            for (int k = 0; k < 8; k++) sum[k] += ((const uint64_t *)(const void *)at)[k];
        }
    for (int k = 1; k < 8; k++) sum[0] += sum[k];
    return sum[0];
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t read_avx2(const char *p, size_t n, int ahead, int streams)
{
    __m256i sum[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    size_t part = n / (size_t)streams / 128 * 128;
    for (size_t i = 0; i < part; i += 128)
        for (int s = 0; s < streams; s++) {
            const char *at = p + (size_t)s * part + i;
            if (ahead) {
                _mm_prefetch(at + ahead, _MM_HINT_T0);
                _mm_prefetch(at + ahead + 64, _MM_HINT_T0);
            }
            for (int k = 0; k < 4; k++)
                sum[k] = _mm256_add_epi64(sum[k], _mm256_load_si256((const __m256i *)(const void *)(at + k * 32)));
        }
    sum[0] = _mm256_add_epi64(_mm256_add_epi64(sum[0], sum[1]), _mm256_add_epi64(sum[2], sum[3]));
    uint64_t lane[4];
    memcpy(lane, &sum[0], sizeof lane);
    return lane[0] + lane[1] + lane[2] + lane[3];
}

__attribute__((target("avx512f"))) static uint64_t read_avx512(const char *p, size_t n, int ahead, int streams)
{
    __m512i sum[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
    size_t part = n / (size_t)streams / 256 * 256;
    for (size_t i = 0; i < part; i += 256)
        for (int s = 0; s < streams; s++) {
            const char *at = p + (size_t)s * part + i;
            for (int k = 0; k < 4; k++) {
                if (ahead) _mm_prefetch(at + k * 64 + ahead, _MM_HINT_T0);
                sum[k] = _mm512_add_epi64(sum[k], _mm512_load_si512(at + k * 64));
            }
        }
    sum[0] = _mm512_add_epi64(_mm512_add_epi64(sum[0], sum[1]), _mm512_add_epi64(sum[2], sum[3]));
    uint64_t lane[8]; /* not the intrinsic's reduction: it adds signed numbers, which may overflow */
    memcpy(lane, &sum[0], sizeof lane);
    for (int k = 1; k < 8; k++) lane[0] += lane[k];
    return lane[0];
}
#endif

static const struct {
    int ahead, streams;
} ways[] = {{1024, 1}, {0, 1}, {4096, 1}, {512, 2}, {1024, 4}, {2048, 1}};
enum { WAYS = sizeof ways / sizeof *ways };

/* ---- multiplying ----------------------------------------------------------------------------------------------- */

/* `loops` rounds of a fixed number of multiply-adds; `macs` in the table below says how many. */
typedef void mac_fn(long loops);

/* Each accumulator depends on its previous value, so nothing can be hoisted out of the loop; 32 accumulators fill
 * the vectors of any machine. */
static void mac_f32_portable(long loops)
{
    static volatile float seed = 0.5f;
    volatile float sink; /* of this thread: all of a device's threads are here at once */
    enum { LANES = 32 };
    float a[LANES], b[LANES], acc[LANES];
    for (int k = 0; k < LANES; k++) a[k] = b[k] = acc[k] = seed;
    for (long i = 0; i < loops; i++)
        for (int k = 0; k < LANES; k++) acc[k] = acc[k] * b[k] + a[k];
    for (int k = 1; k < LANES; k++) acc[0] += acc[k];
    sink = acc[0];
    (void)sink;
}

enum { DOT = 1024 };

/* The int8 rate of plain C code on two arrays that fit into L1. */
static void mac_int8_portable(long loops)
{
    static volatile int8_t seed = 3;
    volatile int32_t sink;
    int8_t a[DOT], b[DOT];
    int32_t sum = 0;
    memset(a, seed, sizeof a);
    memset(b, seed, sizeof b);
    for (long i = 0; i < loops; i++) {
        int32_t dot = 0;
        __asm__ volatile("" : : "r"(a), "r"(b) : "memory"); /* stops hoisting out of the loop */
        for (int k = 0; k < DOT; k++) dot += a[k] * b[k];
        sum ^= dot;
    }
    sink = sum;
    (void)sink;
}

#if defined(__x86_64__)
#define LOOP(name, target_, zero, body, ...)                                                                           \
    __attribute__((target(target_))) static void name(long loops)                                                      \
    {                                                                                                                  \
        __asm__ volatile(zero "1:\n" body "dec %0\njnz 1b\nvzeroupper\n" : "+r"(loops) : : __VA_ARGS__, "cc");         \
    }
#define LOW "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7"
#define HIGH "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"
#define ON_ALL(f, op) f(op, 0) f(op, 1) f(op, 2) f(op, 3) f(op, 4) f(op, 5) f(op, 6) f(op, 7) f(op, 8) f(op, 9)
#define ON_MORE(f, op) f(op, 10) f(op, 11) f(op, 12) f(op, 13)

#define ZMM(op, n) op " %%zmm30, %%zmm31, %%zmm" #n "\n"
#define ZMM_ALL(op) ON_ALL(ZMM, op) ON_MORE(ZMM, op) ZMM(op, 14) ZMM(op, 15)
#define ZMM_ZERO "vpxord %%zmm30, %%zmm30, %%zmm30\nvpxord %%zmm31, %%zmm31, %%zmm31\n"
LOOP(mac_int8_avx512, "avx512f", ZMM_ZERO, ZMM_ALL("vpdpbusd"), LOW, HIGH, "xmm30", "xmm31")
LOOP(mac_bf16_avx512, "avx512f", ZMM_ZERO, ZMM_ALL("vdpbf16ps"), LOW, HIGH, "xmm30", "xmm31")
LOOP(mac_f32_avx512, "avx512f", ZMM_ZERO, ZMM_ALL("vfmadd231ps"), LOW, HIGH, "xmm30", "xmm31")

/* Six sums of sixteen by sixteen on tile registers, of 64 bytes each. */
enum { TILE_SUMS = 6, TILE_BYTES = TILE_SUMS * 16 * 16 * 64 };
#define TILE(op, n) op " %%tmm" #n "\n"
#define TILE_DOT(op, n) op " %%tmm7, %%tmm6, %%tmm" #n "\n"
#define TILE_LOOP(name, op)                                                                                            \
    static void name(long loops)                                                                                       \
    {                                                                                                                  \
        _Alignas(64) uint8_t config[64] = {1}; /* the palette; then bytes of a row from 16 on, rows from 48 on */      \
        for (int i = 0; i < 8; i++) config[16 + 2 * i] = 64, config[48 + i] = 16;                                      \
        __asm__ volatile(                                                                                              \
            "ldtilecfg %1\n" TILE("tilezero", 0) TILE("tilezero", 1) TILE("tilezero", 2) TILE("tilezero", 3)           \
                TILE("tilezero", 4) TILE("tilezero", 5) TILE("tilezero", 6) TILE("tilezero", 7) "1:\n"                 \
            TILE_DOT(op, 0) TILE_DOT(op, 1) TILE_DOT(op, 2) TILE_DOT(op, 3) TILE_DOT(op, 4) TILE_DOT(op, 5)            \
            "dec %0\njnz 1b\ntilerelease\n"                                                                           \
            : "+r"(loops)                                                                                              \
            : "m"(config)                                                                                              \
            : "cc");                                                                                                   \
    }
TILE_LOOP(mac_int8_amx, "tdpbusd")
TILE_LOOP(mac_bf16_amx, "tdpbf16ps")

#define YMM(op, n) op " %%ymm14, %%ymm15, %%ymm" #n "\n"
#define YMM_ALL(op) ON_ALL(YMM, op) ON_MORE(YMM, op)
#define YMM_ZERO "vpxor %%ymm14, %%ymm14, %%ymm14\nvpxor %%ymm15, %%ymm15, %%ymm15\n"
LOOP(mac_int8_avxvnni, "avx2", YMM_ZERO, YMM_ALL("%{vex%} vpdpbusd"), LOW, HIGH)
LOOP(mac_f32_avx2, "avx2", YMM_ZERO, YMM_ALL("vfmadd231ps"), LOW, HIGH)

/* Multiplies bytes to pairs in 16 bits, adds these to 32 bits and accumulates: eight sums, each with its own
 * temporary register. */
#define MADD(sum, tmp)                                                                                                 \
    "vpmaddubsw %%ymm14, %%ymm15, %%ymm" #tmp "\nvpmaddwd %%ymm14, %%ymm" #tmp ", %%ymm" #tmp "\nvpaddd %%ymm" #tmp    \
    ", %%ymm" #sum ", %%ymm" #sum "\n"
LOOP(mac_int8_avx2, "avx2", YMM_ZERO,
     MADD(0, 8) MADD(1, 9) MADD(2, 10) MADD(3, 11) MADD(4, 12) MADD(5, 13) MADD(6, 8) MADD(7, 9), LOW, HIGH)

/* The same with one factor of four bits: the sums of eight such products fit into 16 bits, so pairs are added there and
 * widened once. Four pairs of sums in registers 4 to 7, each with a temporary one. */
#define SHORT(sum, tmp)                                                                                                \
    "vpmaddubsw %%ymm14, %%ymm15, %%ymm" #tmp "\nvpaddw %%ymm" #tmp ", %%ymm" #sum ", %%ymm" #sum "\n"
#define SHORT_4 SHORT(4, 8) SHORT(5, 9) SHORT(6, 10) SHORT(7, 11)
#define WIDEN(sum, of)                                                                                                 \
    "vpmaddwd %%ymm14, %%ymm" #of ", %%ymm" #of "\nvpaddd %%ymm" #of ", %%ymm" #sum ", %%ymm" #sum "\n"
LOOP(mac_int4_avx2, "avx2", YMM_ZERO,
     SHORT_4 SHORT_4 SHORT_4 SHORT_4 SHORT_4 SHORT_4 SHORT_4 SHORT_4 WIDEN(0, 4) WIDEN(1, 5) WIDEN(2, 6) WIDEN(3, 7),
     LOW, HIGH)
#elif defined(__aarch64__)
enum { SUMS = 16 };
#define SUM(op, of, n) op " v" #n ".4s, v30." of ", v31." of "\n"
#define SUM_4(op, of, a, b, c, d) SUM(op, of, a) SUM(op, of, b) SUM(op, of, c) SUM(op, of, d)
#define LOOP(name, op, of)                                                                                             \
    __attribute__((target("arch=armv8.2-a+dotprod+i8mm+bf16"))) static void name(long loops)                           \
    {                                                                                                                  \
        __asm__ volatile("movi v30.16b, #0\nmovi v31.16b, #0\n1:\n" SUM_4(op, of, 0, 1, 2, 3)                          \
                             SUM_4(op, of, 4, 5, 6, 7) SUM_4(op, of, 16, 17, 18, 19)                                   \
                                 SUM_4(op, of, 20, 21, 22, 23) "subs %0, %0, #1\nb.ne 1b\n"                            \
                         : "+r"(loops)                                                                                 \
                         :                                                                                             \
                         : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21",   \
                           "v22", "v23", "v30", "v31", "cc");                                                          \
    }
LOOP(mac_int8_neon, "sdot", "16b")
LOOP(mac_int8_i8mm, "smmla", "16b")
LOOP(mac_bf16_neon, "bfmmla", "8h")
LOOP(mac_f32_neon, "fmla", "4s")
#endif

/* ---- what a level has ------------------------------------------------------------------------------------------- */

struct unit {
    mac_fn *run; /* NULL: none */
    double macs; /* per loop */
};

enum { UNIT_INT8, UNIT_INT4, UNIT_BF16, UNIT_F32, UNITS };

struct machine {
    read_fn *read;
    struct unit unit[UNITS];
};

/* The units that a level's kernels use; a device of the level exists, so the machine has them. Reading is the machine's
 * own. */
static struct machine machine_look(const char *level)
{
    struct machine m = {read_portable, {[UNIT_INT8] = {mac_int8_portable, DOT}, [UNIT_F32] = {mac_f32_portable, 32}}};
#if defined(__x86_64__)
    bool avx = !strncmp(level, "avx", 3), vnni = !strcmp(level, "avxvnni"), bf16 = !strcmp(level, "avx512bf16"),
         amx = !strcmp(level, "amx");
    if (__builtin_cpu_supports("avx2")) m.read = read_avx2;
    if (__builtin_cpu_supports("avx512f")) m.read = read_avx512;
    if (avx || amx) {
        m.unit[UNIT_INT8] = vnni ? (struct unit){mac_int8_avxvnni, 14 * 32} : (struct unit){mac_int8_avx2, 8 * 32};
        if (!strcmp(level, "avx2")) m.unit[UNIT_INT4] = (struct unit){mac_int4_avx2, 32 * 32};
        m.unit[UNIT_F32] = (struct unit){mac_f32_avx2, 14 * 8};
    }
    if (amx || bf16 || !strcmp(level, "avx512")) {
        m.unit[UNIT_INT8] = (struct unit){mac_int8_avx512, 16 * 64};
        m.unit[UNIT_F32] = (struct unit){mac_f32_avx512, 16 * 16};
    }
    if (bf16) m.unit[UNIT_BF16] = (struct unit){mac_bf16_avx512, 16 * 32};
    if (amx) {
        m.unit[UNIT_INT8] = (struct unit){mac_int8_amx, TILE_BYTES};
        m.unit[UNIT_BF16] = (struct unit){mac_bf16_amx, TILE_BYTES / 2.0};
    }
#elif defined(__aarch64__)
    if (strncmp(level, "neon", 4) != 0 && strcmp(level, "i8mm") != 0) return m;
    m.unit[UNIT_INT8] = (struct unit){mac_int8_neon, SUMS * 16};
    m.unit[UNIT_F32] = (struct unit){mac_f32_neon, SUMS * 4};
    if (strcmp(level, "neon") != 0) m.unit[UNIT_INT8] = (struct unit){mac_int8_i8mm, SUMS * 32};
    if (!strcmp(level, "neonbf16")) m.unit[UNIT_BF16] = (struct unit){mac_bf16_neon, SUMS * 16};
#endif
    return m;
}

/* ---- all threads together ---------------------------------------------------------------------------------------- */

struct stamp {
    _Alignas(64) int64_t start, end;
};

struct probe {
    struct machine machine;
    pthread_barrier_t barrier;
    int threads;
    char *buffer;
    size_t share; /* bytes of the buffer that each thread reads */
    struct stamp *stamp;
    _Atomic uint64_t sink;
    _Atomic long arrived; /* number of rounds begun, summed over threads */
    /* Written by thread 0 between two barriers. */
    int way, best_way;
    long loops;
    int64_t began;
    double read, rate[UNITS]; /* read: the best pass */
    double pass[PASSES];      /* in the best way */
    int passes;
};

static void meet(struct probe *p)
{
    pthread_barrier_wait(&p->barrier);
}

/* Called after meet(), whose sleeping threads wake one after the other: spins until all are awake, so that all start
 * the round together. The spin is bounded, because there may be more threads than cores. *rounds: how many rounds
 * this thread began. */
static void start_together(struct probe *p, int thread, long *rounds)
{
    long all = ++*rounds * p->threads;
    int64_t until = now_ns() + TOGETHER_NS;
    atomic_fetch_add(&p->arrived, 1);
    while (atomic_load(&p->arrived) < all && now_ns() < until) {
    }
    p->stamp[thread].start = now_ns();
}

/* Seconds from the first start to the last end of the round that just ended. Called by thread 0, after meet(). */
static double round_seconds(const struct probe *p)
{
    int64_t start = p->stamp[0].start, end = p->stamp[0].end;
    for (int i = 1; i < p->threads; i++) {
        if (p->stamp[i].start < start) start = p->stamp[i].start;
        if (p->stamp[i].end > end) end = p->stamp[i].end;
    }
    return end > start ? (double)(end - start) * 1e-9 : 1e-9;
}

/* The read pattern of the next round: each TRIES times, then the best one until the time is up (-1). */
static int next_way(const struct probe *p, int round)
{
    int64_t took = now_ns() - p->began;
    if (round < WAYS * TRIES && took < 2 * READ_NS) return round / TRIES;
    return p->passes < PASSES && (took < 2 * READ_NS || !p->passes) ? p->best_way : -1;
}

static void probe_read(struct probe *p, int thread, long *rounds)
{
    char *mine = p->buffer + (size_t)thread * p->share;
    memset(mine, 1, p->share); /* first touch by the thread that reads it, so that the pages are on its NUMA node */
    meet(p);
    if (thread == 0) p->began = now_ns(), p->way = 0;
    for (int round = 1;; round++) {
        meet(p);
        if (p->way < 0) return;
        start_together(p, thread, rounds);
        p->sink += p->machine.read(mine, p->share, ways[p->way].ahead, ways[p->way].streams);
        p->stamp[thread].end = now_ns();
        meet(p);
        if (thread != 0) continue;
        double rate = (double)p->share * p->threads / round_seconds(p);
        if (round > WAYS * TRIES) p->pass[p->passes++] = rate;
        if (rate > p->read) p->read = rate, p->best_way = round > WAYS * TRIES ? p->best_way : p->way;
        p->way = next_way(p, round);
    }
}

/* Number of loops that take BURST_NS on an undisturbed core. */
static long loops_for(const struct unit *u)
{
    enum { LOOPS = 4000, TRIES_ALONE = 8 };
    int64_t best = INT64_MAX;
    for (int i = 0; i < TRIES_ALONE; i++) {
        int64_t start = now_ns();
        u->run(LOOPS);
        int64_t took = now_ns() - start;
        if (took < best) best = took;
    }
    return (long)((double)LOOPS * BURST_NS / (double)(best > 0 ? best : 1)) + 1;
}

static void probe_unit(struct probe *p, int thread, int unit, long *rounds)
{
    const struct unit *u = &p->machine.unit[unit];
    if (!u->run) return;
    meet(p);
    if (thread == 0) p->loops = loops_for(u);
    for (int burst = 0; burst < BURSTS; burst++) {
        meet(p);
        start_together(p, thread, rounds);
        u->run(p->loops);
        p->stamp[thread].end = now_ns();
        meet(p);
        if (thread != 0) continue;
        double rate = (double)p->loops * u->macs * p->threads / round_seconds(p);
        if (rate > p->rate[unit]) p->rate[unit] = rate;
    }
    meet(p); /* no thread may change p->loops while another still reads it */
}

static void probe_thread(void *ctx, int thread)
{
    struct probe *p = ctx;
    long rounds = 0;
    probe_read(p, thread, &rounds);
    for (int unit = 0; unit < UNITS; unit++) probe_unit(p, thread, unit, &rounds);
}

static int by_rate(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int dev_ceilings(struct dev *d, size_t read_bytes, struct ceilings *out)
{
    *out = (struct ceilings){0};
#ifdef TANDEM_SIMT
    if (!strcmp(d->ops->name, "simt")) return simt_ceilings(d, read_bytes, out);
#endif
#ifdef TANDEM_CUDA
    if (!strcmp(d->ops->name, "cuda")) return cuda_ceilings(d, read_bytes, out);
#endif
    if (!d->ops->host_memory) return 0;
    struct probe p = {.machine = machine_look(d->level), .threads = d->ops->on_threads ? d->threads : 1};
    if (read_bytes > READ_MAX) read_bytes = READ_MAX;
    p.share = read_bytes / (size_t)p.threads / HUGE_PAGE * HUGE_PAGE;
    if (!p.share) p.share = HUGE_PAGE;
    size_t bytes = p.share * (size_t)p.threads + HUGE_PAGE; /* the last thread's prefetches end within it */
    p.buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    p.stamp = calloc((size_t)p.threads, sizeof *p.stamp);
    if (p.buffer == MAP_FAILED || !p.stamp || pthread_barrier_init(&p.barrier, NULL, (unsigned)p.threads)) {
        if (p.buffer != MAP_FAILED) munmap(p.buffer, bytes);
        free(p.stamp);
        return -1;
    }
    madvise(p.buffer, bytes, MADV_HUGEPAGE); /* huge pages, as for the weights */
    if (d->ops->on_threads)
        d->ops->on_threads(d, probe_thread, &p);
    else
        probe_thread(&p, 0);
    pthread_barrier_destroy(&p.barrier);
    munmap(p.buffer, bytes);
    free(p.stamp);
    qsort(p.pass, (size_t)p.passes, sizeof *p.pass, by_rate);
    double read = p.passes ? p.pass[p.passes / 2] : p.read;
    *out = (struct ceilings){.read_bytes_per_s = read,
                             .int8_macs_per_s = p.rate[UNIT_INT8],
                             .int4_macs_per_s = p.rate[p.machine.unit[UNIT_INT4].run ? UNIT_INT4 : UNIT_INT8],
                             .bf16_macs_per_s = p.rate[UNIT_BF16],
                             .f32_macs_per_s = p.rate[UNIT_F32],
                             .read_bytes = p.share * (size_t)p.threads};
    return 0;
}

void ceilings_add(struct ceilings *sum, const struct ceilings *c, double share)
{
    sum->read_bytes_per_s += c->read_bytes_per_s * share;
    sum->int8_macs_per_s += c->int8_macs_per_s * share;
    sum->int4_macs_per_s += c->int4_macs_per_s * share;
    sum->bf16_macs_per_s += c->bf16_macs_per_s * share;
    sum->f32_macs_per_s += c->f32_macs_per_s * share;
    sum->read_bytes = c->read_bytes;
}

struct ceilings ceilings_mean(const struct ceilings *v, int n)
{
    struct ceilings c = {0};
    for (int i = 0; i < n; i++) ceilings_add(&c, v + i, 1.0 / n);
    return c;
}
