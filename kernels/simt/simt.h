/* Runs CUDA kernels as ordinary C++ on the calling thread.
 *
 * One fiber per CUDA thread, one block at a time. A fiber yields only at a rendezvous: __syncthreads (all live
 * threads of the block) or a warp collective (all lanes of its mask). The last lane to arrive runs the collective
 * for all lanes, directly on the arguments that the suspended lanes hold on their stacks, so a shuffle, a ballot and
 * an mma are the same mechanism with a different function.
 *
 * Advantages over hardware: an order that is the same in every run (SIMT_SEED permutes it), poisoned shared memory,
 * reports of divergence and deadlock, and the usual host sanitizers. Under TSan the shim itself is invisible: only
 * the kernels' own loads and stores are events, and only barriers order them, so it is a race checker for CUDA code. */
#ifndef TANDEM_KERNELS_SIMT_H
#define TANDEM_KERNELS_SIMT_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>

#if defined(__SANITIZE_THREAD__)
#define SIMT_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SIMT_TSAN 1
#endif
#endif

#if defined(SIMT_TSAN) && defined(__clang__)
#define SIMT_HIDE __attribute__((noinline, no_sanitize("thread"), disable_sanitizer_instrumentation))
#elif defined(SIMT_TSAN)
#define SIMT_HIDE __attribute__((noinline, no_sanitize_thread))
#else
#define SIMT_HIDE
#endif

/* Large, and called from unrolled loops: never inlined, or compilation would take minutes. */
#define SIMT_CALL __attribute__((noinline))

/* ---- the language ---------------------------------------------------------------------------------------------- */

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __constant__ static const
#define __restrict__ __restrict

namespace simt {

enum { WARP = 32, THREADS_MAX = 1024 };

/* args[lane]: NULL when the lane is not in mask */
using Collective = void (*)(void **args, unsigned mask);

/* ---- launching (simt.cc) --------------------------------------------------------------------------------------- */

/* Runs body() on every thread of every block, blocks one after the other. smem: bytes of shared memory. early: the
 * kernel may begin before others end, so each of its threads must call wait_for_previous(). */
void run_grid(dim3 grid, dim3 block, size_t smem, bool early, void (*body)(void *), void *ctx);

/* Starts kernel(), which runs one early grid, before before() has run: the threads of its first block run up to
 * wait_for_previous(), and then before() runs. What they read until then has not been written by before(), and TSan
 * sees no ordering between the two. */
void run_early(const std::function<void()> &before, const std::function<void()> &kernel);

uint64_t schedule_seed(); /* from the environment variable SIMT_SEED; 0: threads run in order */

/* ---- calls of a running lane ------------------------------------------------------------------------------------ */

uint3 thread_idx();
uint3 block_idx();
dim3 block_dim();
dim3 grid_dim();
int lane_id();
unsigned char *shared_memory();

/* A wait is identified by its source line, not its return address: the optimiser duplicates call sites, which would
 * look like divergence. */
void barrier(int line);
void named_barrier(int id, int threads, int line); /* bar.sync id, threads */
/* Suspends until every lane of `mask` has called with the same function; the last one runs it. */
void collective(unsigned mask, Collective fn, void *arg);
void syncwarp(unsigned mask);
void wait_for_previous(); /* waits for the preceding kernels */
[[noreturn]] void die(const char *what);

/* cp.async: the copy is made at wait time, never earlier, so that a missing wait is detected. */
void cp_async(void *dst, const void *src, unsigned bytes, unsigned total);
void cp_commit();
struct copy_op {
    void *dst;
    const void *src;
    unsigned bytes, fill, group;
};
bool cp_pop(unsigned keep, copy_op *);
inline void cp_wait(unsigned keep) /* inlined into the kernel, so that sanitizers see the copy */
{
    for (copy_op c; cp_pop(keep, &c);) {
        memcpy(c.dst, c.src, c.bytes);
        memset((char *)c.dst + c.bytes, 0, c.fill);
    }
}

/* The memory must be valid: both ends are read, for sanitizers to check. */
inline void prefetch(const void *p, unsigned bytes)
{
    if (((uintptr_t)p | bytes) % 16 || !bytes) die("misaligned or empty prefetch");
    (void)*(const volatile char *)p;
    (void)((const volatile char *)p)[bytes - 1];
}

/* ---- warp collectives ------------------------------------------------------------------------------------------ */

template <class T> struct shuffle_arg {
    T value;
    int from;
    T result;
};

template <class T> T shuffle(unsigned mask, T v, int from)
{
    shuffle_arg<T> a{v, from, v};
    collective(
        mask,
        [](void **p, unsigned m) SIMT_HIDE {
            for (int i = 0; i < WARP; i++) {
                if (!p[i]) continue;
                auto *me = (shuffle_arg<T> *)p[i];
                if (me->from < 0 || me->from >= WARP) {
                    me->result = me->value;
                    continue;
                }
                if (!(m >> me->from & 1)) die("a shuffle reads a lane outside its mask");
                me->result = ((shuffle_arg<T> *)p[me->from])->value;
            }
        },
        &a);
    return a.result;
}

inline unsigned ballot(unsigned mask, bool pred)
{
    struct arg {
        bool pred;
        unsigned result;
    } a{pred, 0};
    collective(
        mask,
        [](void **p, unsigned) SIMT_HIDE {
            unsigned r = 0;
            for (int i = 0; i < WARP; i++)
                if (p[i] && ((arg *)p[i])->pred) r |= 1u << i;
            for (int i = 0; i < WARP; i++)
                if (p[i]) ((arg *)p[i])->result = r;
        },
        &a);
    return a.result;
}

/* ---- ldmatrix and mma, fragments as the PTX ISA lays them out ---------------------------------------------------- */

/* n 8x8 matrices of 16-bit values; lane 8 m + r holds the address of row r of matrix m. */
template <bool TRANSPOSED> SIMT_CALL void ldmatrix(unsigned *r, const void *row, int n)
{
    struct arg {
        uint16_t row[8];
        unsigned *r;
        int n;
    } a{{}, r, n};
    if (lane_id() < n * 8) {
        if ((uintptr_t)row % 16) die("misaligned ldmatrix row");
        memcpy(a.row, row, 16); /* read by the lane itself, so that sanitizers see it */
    }
    collective(
        ~0u,
        [](void **p, unsigned) SIMT_HIDE {
            for (int m = 0; m < ((arg *)p[0])->n; m++)
                for (int l = 0; l < WARP; l++) {
                    int i = l / 4, j = l % 4 * 2;
                    uint16_t lo = TRANSPOSED ? ((arg *)p[m * 8 + j])->row[i] : ((arg *)p[m * 8 + i])->row[j];
                    uint16_t hi = TRANSPOSED ? ((arg *)p[m * 8 + j + 1])->row[i] : ((arg *)p[m * 8 + i])->row[j + 1];
                    ((arg *)p[l])->r[m] = (unsigned)hi << 16 | lo;
                }
        },
        &a);
}

/* c (16, 8) += a (16, 16) b (16, 8), 16-bit floats converted by CVT; sums in double, because the hardware's order of
 * additions is unspecified. */
template <float (*CVT)(uint16_t)> SIMT_CALL void mma_m16n8k16(float *c, const unsigned *a, const unsigned *b)
{
    struct arg {
        const unsigned *a, *b;
        float *c;
    } args{a, b, c};
    collective(
        ~0u,
        [](void **p, unsigned) SIMT_HIDE {
            double A[16][16], B[16][8], C[16][8];
            for (int l = 0; l < WARP; l++) {
                int g = l / 4, t = l % 4;
                const unsigned *a = ((arg *)p[l])->a, *b = ((arg *)p[l])->b;
                for (int i = 0; i < 8; i++) {
                    int row = g + (i / 2 % 2) * 8, col = t * 2 + i % 2 + (i / 4) * 8;
                    A[row][col] = CVT((uint16_t)(a[i / 2] >> (i % 2 * 16)));
                }
                for (int i = 0; i < 4; i++)
                    B[t * 2 + i % 2 + (i / 2) * 8][g] = CVT((uint16_t)(b[i / 2] >> (i % 2 * 16)));
            }
            for (int l = 0; l < WARP; l++)
                for (int i = 0; i < 4; i++) C[l / 4 + (i / 2) * 8][l % 4 * 2 + i % 2] = ((arg *)p[l])->c[i];
            for (int row = 0; row < 16; row++)
                for (int k = 0; k < 16; k++)
                    for (int col = 0; col < 8; col++) C[row][col] += A[row][k] * B[k][col];
            for (int l = 0; l < WARP; l++)
                for (int i = 0; i < 4; i++) ((arg *)p[l])->c[i] = (float)C[l / 4 + (i / 2) * 8][l % 4 * 2 + i % 2];
        },
        &args);
}

/* c (16, 8) += a (16, 32) b (32, 8), int8 in, int32 sums */
inline void mma_m16n8k32_s8(int *c, const unsigned *a, const unsigned *b)
{
    struct arg {
        const unsigned *a, *b;
        int *c;
    } args{a, b, c};
    collective(
        ~0u,
        [](void **p, unsigned) SIMT_HIDE {
            int8_t A[16][32], B[32][8];
            for (int l = 0; l < WARP; l++) {
                int g = l / 4, t = l % 4;
                const unsigned *a = ((arg *)p[l])->a, *b = ((arg *)p[l])->b;
                for (int i = 0; i < 16; i++) {
                    int row = g + (i / 4 % 2) * 8, col = t * 4 + i % 4 + (i / 8) * 16;
                    A[row][col] = (int8_t)(a[i / 4] >> (i % 4 * 8));
                }
                for (int i = 0; i < 8; i++) B[t * 4 + i % 4 + (i / 4) * 16][g] = (int8_t)(b[i / 4] >> (i % 4 * 8));
            }
            for (int l = 0; l < WARP; l++) {
                int g = l / 4, t = l % 4;
                int *c = ((arg *)p[l])->c;
                for (int i = 0; i < 4; i++) {
                    int row = g + (i / 2) * 8, col = t * 2 + i % 2;
                    for (int k = 0; k < 32; k++) c[i] += A[row][k] * B[k][col];
                }
            }
        },
        &args);
}

template <class T> inline T atomic_max(T *p, T v)
{
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (old < v && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}
} // namespace simt

#define threadIdx simt::thread_idx()
#define blockIdx simt::block_idx()
#define blockDim simt::block_dim()
#define gridDim simt::grid_dim()
#define __syncthreads() simt::barrier(__LINE__)
inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    simt::syncwarp(mask);
}
template <class T> inline T __shfl_sync(unsigned mask, T v, int from)
{
    return simt::shuffle(mask, v, from);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int bits)
{
    return simt::shuffle(mask, v, simt::lane_id() ^ bits);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T v, int by)
{
    return simt::shuffle(mask, v, simt::lane_id() + by);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T v, int by)
{
    return simt::shuffle(mask, v, simt::lane_id() - by);
}
inline unsigned __ballot_sync(unsigned mask, bool pred)
{
    return simt::ballot(mask, pred);
}
inline bool __any_sync(unsigned mask, bool pred)
{
    return simt::ballot(mask, pred) != 0;
}
inline bool __all_sync(unsigned mask, bool pred)
{
    return simt::ballot(mask, pred) == mask;
}
template <class T> inline T atomicAdd(T *p, T v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
template <class T> inline T atomicOr(T *p, T v)
{
    return __atomic_fetch_or(p, v, __ATOMIC_RELAXED);
}
template <class T> inline T atomicMax(T *p, T v)
{
    return simt::atomic_max(p, v);
}
template <class T> inline T __ldg(const T *p)
{
    return *p;
}
inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
inline float __expf(float x)
{
    return expf(x);
}
inline float __fdividef(float a, float b)
{
    return a / b;
}
inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 4; i++) c += (int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
    return c;
}
inline int __float2int_rn(float x)
{
    return (int)lrintf(x);
}
inline float __fmul_rn(float a, float b) /* like nvcc, must not be contracted into a fused multiply-add */
{
    return a * b;
}
inline float __fadd_rn(float a, float b)
{
    return a + b;
}
inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __ffs(unsigned x)
{
    return __builtin_ffs((int)x);
}
inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
inline unsigned __float_as_uint(float x)
{
    unsigned u;
    memcpy(&u, &x, 4);
    return u;
}
inline float __uint_as_float(unsigned u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}
inline int min(int a, int b)
{
    return a < b ? a : b;
}
inline int max(int a, int b)
{
    return a > b ? a : b;
}
inline int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

#endif
