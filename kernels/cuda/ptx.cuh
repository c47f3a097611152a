/* Every PTX instruction that the kernels use, one function each, next to its equivalent for a host. */
#ifndef TANDEM_KERNELS_CUDA_PTX_CUH
#define TANDEM_KERNELS_CUDA_PTX_CUH

#include "kernels/cuda/gpu.h"

namespace GPU_NAMESPACE {

/* Copies 16 bytes from global to shared memory, both 16-byte aligned; zeros when !pred. Belongs to the current
 * group. */
__device__ inline void cp_async16(void *dst, const void *src, bool pred)
{
#ifdef __CUDACC__
    unsigned s = (unsigned)__cvta_generic_to_shared(dst);
    int n = pred ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(s), "l"(src), "r"(n));
#else
    simt::cp_async(dst, src, pred ? 16 : 0, 16);
#endif
}

__device__ inline void cp_async_commit()
{
#ifdef __CUDACC__
    asm volatile("cp.async.commit_group;");
#else
    simt::cp_commit();
#endif
}

/* Waits until at most N of this thread's groups are in flight; a barrier must follow before other threads' copies
 * are read. */
template <int N> __device__ inline void cp_async_wait()
{
#ifdef __CUDACC__
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#else
    simt::cp_wait(N);
#endif
}

/* Loads four 8x8 matrices of 16-bit values; lane 8 m + r passes the (16-byte aligned, shared) address of row r of
 * matrix m. */
__device__ inline void ldmatrix_x4(unsigned (&r)[4], const void *row)
{
#ifdef __CUDACC__
    unsigned s = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(s)
                 : "memory");
#else
    simt::ldmatrix<false>(r, row, 4);
#endif
}

/* Likewise, with each matrix transposed. */
__device__ inline void ldmatrix_x4_trans(unsigned (&r)[4], const void *row)
{
#ifdef __CUDACC__
    unsigned s = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(s)
                 : "memory");
#else
    simt::ldmatrix<true>(r, row, 4);
#endif
}

/* c (16, 8) += a (16, 16) b (16, 8); fragments as the PTX ISA lays them out */
__device__ inline void mma_bf16_16816(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
#ifdef __CUDACC__
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    simt::mma_m16n8k16<bf16_to_f32>(c, a, b);
#endif
}

__device__ inline void mma_f16_16816(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
#ifdef __CUDACC__
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    simt::mma_m16n8k16<f16_to_f32>(c, a, b);
#endif
}

/* c (16, 8) += a (16, 32) b (32, 8), int8, sums int32 */
__device__ inline void mma_s8_16832(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
#ifdef __CUDACC__
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    simt::mma_m16n8k32_s8(c, a, b);
#endif
}

/* Converts f16 bits to f32: one instruction, where num.h takes several. */
__device__ inline float half_to_float(uint16_t h)
{
#ifdef __CUDACC__
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
#else
    return f16_to_f32(h);
#endif
}

/* Loads 16 bytes that are read once: bypasses L1. */
__device__ inline uint4 load_stream(const uint4 *p)
{
#ifdef __CUDACC__
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
#else
    return *p;
#endif
}

/* x rounded to bf16, as a float. */
__device__ inline float round_to_bf16(float x)
{
#ifdef __CUDACC__
    unsigned short h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return __uint_as_float((unsigned)h << 16);
#else
    return bf16_to_f32(f32_to_bf16(x));
#endif
}

/* Loads 8 bytes that are read once. */
__device__ inline uint2 load_stream(const uint2 *p)
{
#ifdef __CUDACC__
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
#else
    return *p;
#endif
}

/* Like cp_async16, but reads only the first `bytes` (0 to 16); the rest is zeros. */
__device__ inline void cp_async16_part(void *dst, const void *src, int bytes)
{
#ifdef __CUDACC__
    unsigned s = (unsigned)__cvta_generic_to_shared(dst);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(s), "l"(src), "r"(bytes));
#else
    simt::cp_async(dst, src, (unsigned)bytes, 16);
#endif
}

/* Copies 4 bytes from global to shared memory, both 4-byte aligned; zeros when !pred. Belongs to the current group. */
__device__ inline void cp_async4(void *dst, const void *src, bool pred)
{
#ifdef __CUDACC__
    unsigned s = (unsigned)__cvta_generic_to_shared(dst);
    int n = pred ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(s), "l"(src), "r"(n));
#else
    simt::cp_async(dst, src, pred ? 4 : 0, 4);
#endif
}

/* 2^x within 2 ulp; 0 for -infinity. */
__device__ inline float exp2_fast(float x)
{
#ifdef __CUDACC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

/* Two floats rounded to bf16 (or f16) and packed, the first in the low half. */
__device__ inline unsigned pack_bf16(float low, float high)
{
#ifdef __CUDACC__
    unsigned r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
#else
    return (unsigned)f32_to_bf16(high) << 16 | f32_to_bf16(low);
#endif
}

__device__ inline unsigned pack_f16(float low, float high)
{
#ifdef __CUDACC__
    unsigned r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
#else
    return (unsigned)f32_to_f16(high) << 16 | f32_to_f16(low);
#endif
}

/* Selects bytes (PRMT): each of the four low nibbles of `select` picks one of the eight bytes of b:a (a's are 0 to
 * 3); a nibble of 8 or more replicates the sign bit of the byte instead. */
__device__ inline unsigned byte_select(unsigned a, unsigned b, unsigned select)
{
#ifdef __CUDACC__
    unsigned r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(select));
    return r;
#else
    uint64_t all = (uint64_t)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        unsigned s = select >> (4 * i) & 15, byte = (unsigned)(all >> (s % 8 * 8)) & 255;
        r |= (s < 8 ? byte : byte & 128 ? 255u : 0u) << (8 * i);
    }
    return r;
#endif
}

/* c = a b: mma_bf16_16816 without an accumulator input. */
__device__ inline void mma_bf16_16816_first(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
#ifdef __CUDACC__
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%10,%10,%10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
#else
    c[0] = c[1] = c[2] = c[3] = 0;
    simt::mma_m16n8k16<bf16_to_f32>(c, a, b);
#endif
}

/* Stores a word that a thread of the host reads meanwhile; nothing else is ordered by it. */
__device__ inline void store_seen(uint64_t *p, uint64_t v)
{
#ifdef __CUDACC__
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
#else
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
#endif
}

/* In a kernel launched early (LAUNCH_EARLY in device.h): waits until every preceding kernel has ended and its writes
 * are visible. Without effect in other launches and before sm_90. */
__device__ inline void wait_for_previous()
{
#ifdef __CUDACC__
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
#else
    simt::wait_for_previous();
#endif
}

/* Allows the next kernel, if launched early, to begin once all blocks of this one have called this or ended. */
__device__ inline void launch_next()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* For a kernel launched early that has nothing to do before the wait. */
__device__ inline void launch_next_and_wait()
{
    launch_next();
    wait_for_previous();
}

/* (a & b) ^ c in one instruction (LOP3), also when b and c are constants. */
__device__ inline unsigned and_xor(unsigned a, unsigned b, unsigned c)
{
#ifdef __CUDACC__
    unsigned r;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
#else
    return (a & b) ^ c;
#endif
}

/* Like cp_async16, but caches in L1: for data that other blocks of the SM read too. */
__device__ inline void cp_async16_cached(void *dst, const void *src)
{
#ifdef __CUDACC__
    unsigned s = (unsigned)__cvta_generic_to_shared(dst);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(s), "l"(src));
#else
    simt::cp_async(dst, src, 16, 16);
#endif
}

/* Prefetches memory into L2; address and size are multiples of 16. L2 is coherent, so this needs no ordering. */
__device__ inline void prefetch_l2(const void *p, unsigned bytes)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes));
#elif !defined(__CUDACC__)
    simt::prefetch(p, bytes);
#endif
}

} // namespace GPU_NAMESPACE

#endif
