/* GEMMs of many rows with int8 and int4 weights on the int8 tensor cores (mma_int.cuh).
 *
 * int4: a lane's eight columns come from one word (see gemv_int.cu for how it unpacks, and why int4 is multiplied over
 * int8), and the activations are stored even columns first.
 *
 * int8: the sum over k is one exact integer, so a row has the bits that gemv_int gives it. int4: gemv_int sums 32
 * columns at a time and then over lanes, so a row in a batch of more than GEMV_ROWS_INT may differ in the last bits
 * from the same row in a small one. */
#include "kernels/cuda/gemm/mma_int.cuh"

namespace GPU_NAMESPACE {
namespace {

struct int8_tile {
    static constexpr bool GROUPED = false, SIXTEENS = false, MINIMA = false;
    static constexpr int SCALES = TILE_K / 32, LINE = TILE_K, FIRST = LINE, PITCH = LINE + 32, BLOCKS_16 = 5;

    static __device__ size_t plane(const packed_gemm &p)
    {
        return p.row_bytes;
    }
    static __device__ size_t chunk(const packed_gemm &, int kt, int c)
    {
        return (size_t)kt * LINE + (size_t)c;
    }
    static __device__ void fragment(unsigned (&w)[2], const packed_gemm &, const uint8_t *line, int k, int t)
    {
        uint2 v = *reinterpret_cast<const uint2 *>(line + k * 32 + t * 8);
        w[0] = v.x, w[1] = v.y;
    }
};

struct int4_tile {
    static constexpr bool GROUPED = true, SIXTEENS = false, MINIMA = false;
    static constexpr int SCALES = TILE_K / 32, LINE = TILE_K / 2, FIRST = LINE, PITCH = LINE + 16, BLOCKS_16 = 5;

    static __device__ size_t plane(const packed_gemm &p)
    {
        return p.row_bytes;
    }
    static __device__ size_t chunk(const packed_gemm &, int kt, int c)
    {
        return (size_t)kt * LINE + (size_t)c;
    }
    static __device__ void fragment(unsigned (&w)[2], const packed_gemm &, const uint8_t *line, int k, int t)
    {
        unsigned v = *reinterpret_cast<const unsigned *>(line + k * 16 + t * 4);
        w[0] = (v << 4 & 0xf0f0f0f0u) ^ 0x80808080u;
        w[1] = (v & 0xf0f0f0f0u) ^ 0x80808080u;
    }
    static __device__ block_scales scales(const packed_gemm &p, int n, int g)
    {
        size_t at = (size_t)n * (size_t)p.n_groups + (size_t)g;
        return {half_to_float(static_cast<const uint16_t *>(p.scale)[at]) * 0.0625f, 0};
    }
};

template <int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(mma_tiles<int8_tile, BM, BN, WM, WN, STAGES>::THREADS)
    mma_rests_kernel(packed_gemm p, quantised x)
{
    typedef mma_tiles<int8_tile, BM, BN, WM, WN, STAGES> block;
    SMEM(typename block::smem, s);
    block b(p, s, (int)blockIdx.x * BM, (int)blockIdx.y * BN);
    b.ld = x.ld;
    b.distance = 0;
    if (!any_outlier(b, x)) return;
    b.begin();
    b.multiply(x.rest);
    b.write(x, true, true, true);
}

template <int BM, int BN, int WM, int WN, int STAGES>
void launch_rests(gpu_dev *d, const char *op, const packed_gemm *p, const quantised *x)
{
    typedef mma_tiles<int8_tile, BM, BN, WM, WN, STAGES> block;
    dim3 grid(blocks_for((size_t)p->M, BM), blocks_for((size_t)p->N, BN));
    LAUNCH(d, op, (mma_rests_kernel<BM, BN, WM, WN, STAGES>), grid, dim3(block::THREADS), sizeof(typename block::smem),
           *p, *x);
}

/* Whether the tiles for many rows fit into shared memory. */
template <class W> bool large_tiles(const gpu_dev *d)
{
    return d->shared_max >= sizeof(mma_smem<W, 128, 128, 4>);
}

template <class W> void launch_rows(gpu_dev *d, const char *op, const packed_gemm *p, const quantised *x)
{
    if (p->M <= 16)
        mma_launch<W, 16, 32, 16, 8, 8>(d, op, p, x);
    else if (p->M <= 32)
        mma_launch<W, 32, 32, 16, 16, 6>(d, op, p, x);
    else if (p->M <= 64 && blocks_for((size_t)p->N, 64) < (unsigned)d->n_sm)
        mma_launch<W, 64, 32, 32, 8, 6>(d, op, p, x);
    else if (p->M <= 64 || !large_tiles<W>(d))
        mma_launch<W, 64, 64, 32, 16, 4>(d, op, p, x);
    else
        mma_launch<W, 128, 128, 64, 32, 4>(d, op, p, x);
}

} // namespace

void mma_int(gpu_dev *d, const char *op, enum dtype t, const packed_gemm *p, const quantised *x)
{
    assert((t == DT_I8 || t == DT_I4) && !p->gate && x->ld % TILE_K == 0 && p->row_bytes % 16 == 0);
    if (t == DT_I8)
        launch_rows<int8_tile>(d, op, p, x);
    else
        launch_rows<int4_tile>(d, op, p, x);
}

void mma_int_rests(gpu_dev *d, const char *op, const packed_gemm *p, const quantised *x)
{
    if (large_tiles<int8_tile>(d))
        launch_rests<128, 128, 64, 32, 4>(d, op, p, x);
    else
        launch_rests<64, 64, 32, 16, 4>(d, op, p, x);
}

} // namespace GPU_NAMESPACE
