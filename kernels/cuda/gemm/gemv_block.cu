/* GEMV with DT_BLOCK weights over int8 activations, for up to eight rows. Integer sums over the columns of a vector
 * that are in one group, times its scale, then less the activations' sum times its minimum. */
#include "kernels/cuda/gemm/block.cuh"
#include "kernels/cuda/gemm/gemv_int.cuh"

namespace GPU_NAMESPACE {
namespace {

/* One vector is 16 columns of BLOCK_8 and 32 of the others, and its scales are those of one or two groups. */
template <enum block_codes C, int R, int U> struct block_stream : stream_order<block_stream<C, R, U>, U> {
    using stream_order<block_stream<C, R, U>, U>::vectors;
    static constexpr int UNITS = C == BLOCK_8 ? 1 : 2, SECOND = C == BLOCK_6 ? R : 1;
    typedef std::conditional_t<C == BLOCK_2, uint2, uint4> vector;

    const block_form *form;
    const uint8_t *w[R];
    unsigned row[R];
    vector at[U][R] = {};
    uint2 second[U][SECOND] = {};
    block_raw by[U][R][UNITS] = {};

    template <bool GATE> __device__ void open(const packed_gemm &p, int unit)
    {
        form = &p.block;
        vectors = (form->n_groups << form->group_shift) / (16 * UNITS);
        UNROLL for (int r = 0; r < R; r++)
        {
            row[r] = (unsigned)weight_row<R, GATE>(p, unit, r);
            w[r] = form->data + row[r] * form->row_bytes;
        }
    }

    __device__ bool sixteens() const
    {
        return UNITS == 2 && form->group_shift == 4;
    }

    __device__ void load(int u, int k)
    {
        if (k >= vectors) return;
        int group = k * (16 * UNITS) >> form->group_shift;
        UNROLL for (int r = 0; r < R; r++)
        {
            at[u][r] = load_stream(reinterpret_cast<const vector *>(w[r]) + k);
            if constexpr (C == BLOCK_6)
                second[u][r] = load_stream(reinterpret_cast<const uint2 *>(w[r] + form->second) + k);
            by[u][r][0] = block_load(*form, row[r], group);
        }
        if (!sixteens()) return;
        UNROLL for (int r = 0; r < R; r++) by[u][r][UNITS - 1] = block_load(*form, row[r], group + 1);
    }

    /* Of the first plane. */
    __device__ void prefetch(int n)
    {
        int lane = (int)threadIdx.x % 32;
        n = min(vectors - 32 * U, n);
        UNROLL for (int r = 0; r < R; r++) if (lane == r && n > 0)
            prefetch_l2(w[r] + 32 * U * sizeof(vector), (unsigned)n * (unsigned)sizeof(vector));
    }

    /* The columns of a vector as int8, less the zero. */
    __device__ void unpack(uint4 (&q)[UNITS], int u, int r) const
    {
        if constexpr (C == BLOCK_8) {
            q[0] = at[u][r];
        } else {
            unsigned first[4], twos[4] = {}, e[4][2];
            if constexpr (C == BLOCK_2)
                first[0] = at[u][r].x, first[1] = first[0] >> 16, first[2] = at[u][r].y, first[3] = first[2] >> 16;
            else
                first[0] = at[u][r].x, first[1] = at[u][r].y, first[2] = at[u][r].z, first[3] = at[u][r].w;
            if constexpr (C == BLOCK_6) {
                twos[0] = second[u][r].x, twos[1] = twos[0] >> 16;
                twos[2] = second[u][r].y, twos[3] = twos[2] >> 16;
            }
            UNROLL for (int i = 0; i < 4; i++) block_unpack<C>(e[i], *form, first[i], twos[i]);
            q[0] = {e[0][0], e[0][1], e[1][0], e[1][1]};
            q[1] = {e[2][0], e[2][1], e[3][0], e[3][1]};
        }
    }

    /* ONE: the whole vector is in one group. */
    template <int M, bool ONE, class GET> __device__ void products(float (&sum)[M * R], int u, GET get)
    {
        constexpr int GROUPS = ONE ? 1 : UNITS;
        uint4 q[R][UNITS];
        block_scales scale[R][GROUPS];
        UNROLL for (int r = 0; r < R; r++)
        {
            unpack(q[r], u, r);
            UNROLL for (int i = 0; i < GROUPS; i++) scale[r][i] = block_scales_of(*form, by[u][r][i]);
        }
        UNROLL for (int m = 0; m < M; m++)
        {
            uint4 a[UNITS];
            UNROLL for (int i = 0; i < UNITS; i++) a[i] = get(m, i);
            UNROLL for (int g = 0; g < GROUPS; g++)
            {
                int all = sum16(a[g]);
                if constexpr (ONE && UNITS == 2) all += sum16(a[UNITS - 1]);
                float minus = -float_of_sum(FLOAT_BITS + all);
                UNROLL for (int r = 0; r < R; r++)
                {
                    int s = dot16(q[r][g], a[g], FLOAT_BITS + form->zero * all);
                    if constexpr (ONE && UNITS == 2) s = dot16(q[r][UNITS - 1], a[UNITS - 1], s);
                    float &to = sum[m * R + r];
                    to = fmaf(minus, scale[r][g].minimum, fmaf(float_of_sum(s), scale[r][g].scale, to));
                }
            }
        }
    }

    template <int M, class GET> __device__ void multiply(float (&sum)[M * R], int u, GET get)
    {
        if (sixteens())
            products<M, UNITS == 1>(sum, u, get);
        else
            products<M, true>(sum, u, get);
    }
};

template <enum block_codes C> struct block_weights {
    typedef float sum;
    typedef typename block_stream<C, 1, 1>::vector vector;
    static constexpr bool ROW_SCALE = false;
    static constexpr int UNITS = block_stream<C, 1, 1>::UNITS, FLIGHT = 4;
    static constexpr int blocks(int M)
    {
        if (UNITS == 1) return M <= 1 ? 5 : M <= 2 ? 4 : M <= 4 ? 3 : 2;
        return M <= 1 ? 4 : M <= 2 ? 3 : 2;
    }
    template <int R, int U> using stream = block_stream<C, R, U>;
};

} // namespace

void gemv_block(gpu_dev *d, const char *op, const packed_gemm *p, const quantised *x)
{
    assert(p->M <= GEMV_ROWS_INT && x->ld == block_padded(p->K));
    switch (p->block.codes) {
    case BLOCK_2: gemv_int_rows<block_weights<BLOCK_2>>(d, op, p, x); break;
    case BLOCK_4: gemv_int_rows<block_weights<BLOCK_4>>(d, op, p, x); break;
    case BLOCK_TABLE: gemv_int_rows<block_weights<BLOCK_TABLE>>(d, op, p, x); break;
    case BLOCK_6: gemv_int_rows<block_weights<BLOCK_6>>(d, op, p, x); break;
    case BLOCK_8: gemv_int_rows<block_weights<BLOCK_8>>(d, op, p, x); break;
    }
}

} // namespace GPU_NAMESPACE
