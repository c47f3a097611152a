/* The values of nf4 in a kernel: as floats in shared memory, and as bf16 out of registers. */
#ifndef TANDEM_KERNELS_CUDA_GEMM_NF4_CUH
#define TANDEM_KERNELS_CUDA_GEMM_NF4_CUH

#include "kernels/cuda/gemm/packed_gemm.h"
#include "kernels/cuda/ptx.cuh"

namespace GPU_NAMESPACE {

/* Copies the table to shared memory, where a lane may index it. Has a barrier: every thread of the block must call
 * it. */
__device__ inline void share_nf4(nf4_table &shared, const nf4_table &codes)
{
    if (threadIdx.x < 16) shared.v[threadIdx.x] = codes.v[threadIdx.x];
    __syncthreads();
}

/* The sixteen values rounded to bf16, split into low and high bytes, four per word: the tables of byte_select, which
 * gives the bytes of four values at a time. */
struct nf4_bytes {
    unsigned low[4], high[4];
};

static inline nf4_bytes nf4_bf16()
{
    nf4_bytes t = {};
    for (int i = 0; i < 16; i++) {
        unsigned h = f32_to_bf16(nf4_code[i]);
        t.low[i / 4] |= (h & 255) << (i % 4 * 8);
        t.high[i / 4] |= h >> 8 << (i % 4 * 8);
    }
    return t;
}

/* Converts a word of eight nibbles to bf16, in the order of their columns, even columns (the high nibbles) in the
 * low halves: 21 instructions. */
__device__ inline void nf4_unpack(unsigned (&pairs)[4], unsigned word, const nf4_bytes &t)
{
    unsigned within = word & 0x77777777u;                    /* index within half of the table */
    unsigned half = (word >> 1 & 0x44444444u) | 0x32103210u; /* selector: byte i, or i + 4 of the upper half */
    UNROLL for (int i = 0; i < 2; i++, within >>= 16, half >>= 16)
    {
        unsigned low =
            byte_select(byte_select(t.low[0], t.low[1], within), byte_select(t.low[2], t.low[3], within), half);
        unsigned high =
            byte_select(byte_select(t.high[0], t.high[1], within), byte_select(t.high[2], t.high[3], within), half);
        pairs[2 * i] = byte_select(low, high, 0x4051);
        pairs[2 * i + 1] = byte_select(low, high, 0x6273);
    }
}

} // namespace GPU_NAMESPACE

#endif
