/* GEMMs of many rows with DT_BLOCK weights on the int8 tensor cores (mma_int.cuh). The order of a row's sums is that of
 * the contract: by groups. gemv_block has another, so a row in a batch of more than GEMV_ROWS_INT may differ in the
 * last bits from the same row in a small one. */
#include "kernels/cuda/gemm/mma_int.cuh"

namespace GPU_NAMESPACE {
namespace {

template <enum block_codes C> struct block_tile {
    static constexpr bool GROUPED = true, SIXTEENS = true, MINIMA = true;
    static constexpr int FIRST = C == BLOCK_2 ? TILE_K / 4 : C == BLOCK_8 ? TILE_K : TILE_K / 2;
    static constexpr int SCALES = TILE_K / 16, LINE = FIRST + (C == BLOCK_6 ? TILE_K / 4 : 0);
    static constexpr int PITCH = LINE + (C == BLOCK_8 ? 32 : 16), BLOCKS_16 = 3;

    static __device__ size_t plane(const packed_gemm &p)
    {
        return C == BLOCK_6 ? p.block.second : p.row_bytes;
    }
    static __device__ size_t chunk(const packed_gemm &p, int kt, int c)
    {
        if (C == BLOCK_6 && c >= FIRST) return p.block.second + (size_t)(kt * (LINE - FIRST) + c - FIRST);
        return (size_t)kt * FIRST + (size_t)c;
    }
    static __device__ void fragment(unsigned (&w)[2], const packed_gemm &p, const uint8_t *line, int k, int t)
    {
        if constexpr (C == BLOCK_8) {
            uint2 v = *reinterpret_cast<const uint2 *>(line + k * 32 + t * 8);
            w[0] = v.x, w[1] = v.y;
        } else {
            const uint16_t *twos =
                reinterpret_cast<const uint16_t *>(line + (C == BLOCK_6 ? FIRST : 0) + k * 8 + t * 2);
            const unsigned *word = reinterpret_cast<const unsigned *>(line + k * 16 + t * 4);
            if constexpr (C == BLOCK_2)
                block_unpack<C>(w, p.block, *twos, 0);
            else
                block_unpack<C>(w, p.block, *word, C == BLOCK_6 ? *twos : 0);
        }
    }
    static __device__ block_scales scales(const packed_gemm &p, int n, int g)
    {
        return block_scales_of(p.block, block_load(p.block, (size_t)n, g));
    }
};

/* The tiles for many rows are smaller than those of int4: a lane has sums of the activations too. */
template <enum block_codes C> void launch_rows(gpu_dev *d, const char *op, const packed_gemm *p, const quantised *x)
{
    typedef block_tile<C> tile;
    if (p->M <= 16)
        mma_launch<tile, 16, 32, 16, 8, 6>(d, op, p, x);
    else if (p->M <= 64 || d->shared_max < sizeof(mma_smem<tile, 128, 64, 4>))
        mma_launch<tile, 64, 64, 32, 16, 4>(d, op, p, x);
    else
        mma_launch<tile, 128, 64, 32, 32, 4>(d, op, p, x);
}

} // namespace

void mma_block(gpu_dev *d, const char *op, const packed_gemm *p, const quantised *x)
{
    assert(!p->gate && x->ld == block_padded(p->K));
    switch (p->block.codes) {
    case BLOCK_2: launch_rows<BLOCK_2>(d, op, p, x); break;
    case BLOCK_4: launch_rows<BLOCK_4>(d, op, p, x); break;
    case BLOCK_TABLE: launch_rows<BLOCK_TABLE>(d, op, p, x); break;
    case BLOCK_6: launch_rows<BLOCK_6>(d, op, p, x); break;
    case BLOCK_8: launch_rows<BLOCK_8>(d, op, p, x); break;
    }
}

} // namespace GPU_NAMESPACE
