/* GEMV with float, fp8 and nf4 weights for up to sixteen rows (eight where x is rounded to bf16: tensor cores handle
 * more). Bound by reading the weight once. */
#include "kernels/cuda/gemm/gemv.cuh"

namespace GPU_NAMESPACE {
namespace {

enum { NF4_BLOCK = 64, COPY_THREADS = 256, X_PAD = 32 };

__device__ inline float word_at(const uint4 &v, int i)
{
    return __uint_as_float(i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w);
}

struct unscaled {
    typedef uint4 vector;
    typedef float scale;
    static constexpr bool SCALED = false;
};

/* How each type is read: `vector`, what a lane loads at a time, which holds EACH weights; value(vector, i).
 */
struct f32_weights : unscaled {
    static constexpr int EACH = 4;
    __device__ static float value(const vector &p, int i)
    {
        return word_at(p, i);
    }
};

struct bf16_weights : unscaled {
    static constexpr int EACH = 8;
    __device__ static float value(const vector &p, int i)
    {
        unsigned w = __float_as_uint(word_at(p, i / 2));
        return __uint_as_float(i % 2 ? w & 0xffff0000u : w << 16);
    }
};

struct f16_weights : unscaled {
    static constexpr int EACH = 8;
    __device__ static float value(const vector &p, int i)
    {
        unsigned w = __float_as_uint(word_at(p, i / 2));
        return half_to_float((uint16_t)(i % 2 ? w >> 16 : w & 0xffffu));
    }
};

struct nf4_weights {
    typedef uint2 vector;
    typedef float scale;
    static constexpr bool SCALED = true;
    static constexpr int EACH = 16;
};

struct f8_weights {
    typedef uint4 vector;
    typedef float scale;
    static constexpr bool SCALED = true;
    static constexpr int EACH = 16;
    __device__ static float value(const vector &p, int i)
    {
        unsigned w = __float_as_uint(word_at(p, i / 4)) << (24 - i % 4 * 8);
        return __uint_as_float((w & 0x80000000u) | (w >> 4 & 0x07f00000u)) * 0x1p120f; /* as e4m3_to_f32 */
    }
};

template <class W> constexpr bool is_nf4 = W::EACH == 16 && sizeof(typename W::vector) == 8;

/* log2 of the vectors that share a scale of fp8: a power of two of them, or all of a row. */
template <class W> __device__ inline int scale_shift(const packed_gemm &p)
{
    int shift = 0;
    while (W::EACH << shift < p.group) shift++;
    return shift;
}

template <class W, int M, int U> struct float_smem {
    x_chunks<M, W::EACH / 4, U> x;
    float code[is_nf4<W> ? 16 : 1][32]; /* nf4's sixteen values, one copy for each lane's bank */
};

/* Four values of one vector, from i on; nf4 and fp8 values are rounded to f32 before they are multiplied by x, as ops.h
 * demands. */
template <class W>
__device__ inline void vector_values(float (&v)[4], const typename W::vector &p, int i, float scale,
                                     const float (*code)[32])
{
    UNROLL for (int j = 0; j < 4; j++)
    {
        if constexpr (is_nf4<W>) {
            unsigned w = i < 8 ? p.x : p.y;
            int nibble = (int)(w >> (((i + j) % 8 * 4) ^ 4) & 15); /* the even column is the high nibble */
            v[j] = __fmul_rn(code[nibble][threadIdx.x % 32], scale);
        } else if constexpr (W::SCALED) {
            v[j] = __fmul_rn(W::value(p, i + j), scale);
        } else {
            v[j] = W::value(p, i + j);
        }
    }
}

struct float_rows {
    const float *p; /* (M, K), rows 16-byte aligned and padded to whole vectors */
    int ld;
};

/* Blocks per SM for __launch_bounds__: as many as registers allow without spilling; on sm_100 ptxas would spill to
 * fit more. */
constexpr int gemv_blocks(int M)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
    return M <= 2 ? 6 : 1;
#else
    return M <= 2 ? 6 : M <= 4 ? 3 : 2;
#endif
}

/* M: an upper bound of the rows of p; R: outputs per warp; U: vectors of each row in flight. */
template <class W, int M, int R, int U, bool ROUND, bool GATE>
__global__ void __launch_bounds__(GEMV_THREADS, gemv_blocks(M))
    gemv_float_kernel(packed_gemm p, float_rows x, const __grid_constant__ nf4_table codes, gemv_prefetch prefetch)
{
    constexpr int V = M * R;
    typedef float_smem<W, M, U> smem;
    SMEM(smem, s);
    int unit = (int)(blockIdx.x * (GEMV_THREADS / 32) + threadIdx.x / 32), vectors = (p.K + W::EACH - 1) / W::EACH;
    size_t ld = (size_t)x.ld * sizeof(float);
    weight_stream<W, R, U> weights;
    launch_next();
    weights.template open<GATE>(p, unit, vectors, is_nf4<W> ? 2 : W::SCALED ? scale_shift<W>(p) : 0);
    weights.begin();
    weights.prefetch(prefetch.own);
    prefetch_after(p, prefetch);
    if constexpr (is_nf4<W>)
        for (int i = (int)threadIdx.x; i < 16 * 32; i += GEMV_THREADS) s.code[i / 32][i % 32] = codes.v[i / 32];
    wait_for_previous();
    s.x.copy(x.p, ld, p.M, vectors, 0);
    scattered<V, R> place;
    float sum[V] = {}, bias[place.PER];
    UNROLL for (int j = 0; j < place.PER; j++) bias[j] =
        p.bias ? p.bias[weight_row<R, GATE>(p, unit, place.output(j))] : 0;
    s.x.walk(x.p, ld, p.M, vectors, [&](int u, int k, int half, int at) {
        UNROLL for (int i = 0; i < W::EACH; i += 4)
        {
            float v[R][4];
            UNROLL for (int r = 0; r < R; r++) vector_values<W>(v[r], weights.at[u][r], i, weights.by[u][r], s.code);
            UNROLL for (int m = 0; m < M; m++)
            {
                uint4 b = s.x.v[half][m < p.M ? m : 0][i / 4][at];
                float4 f = {__uint_as_float(b.x), __uint_as_float(b.y), __uint_as_float(b.z), __uint_as_float(b.w)};
                if (ROUND) f = {round_to_bf16(f.x), round_to_bf16(f.y), round_to_bf16(f.z), round_to_bf16(f.w)};
                UNROLL for (int r = 0; r < R; r++)
                {
                    float *to = &sum[m * R + r];
                    *to = fmaf(v[r][3], f.w, fmaf(v[r][2], f.z, fmaf(v[r][1], f.y, fmaf(v[r][0], f.x, *to))));
                }
            }
        }
        weights.next(u, k, false);
    });
    reduce_scatter<float, V>(sum);
    float y[place.PER];
    UNROLL for (int j = 0; j < place.PER; j++) y[j] = p.bias ? __fadd_rn(sum[j], bias[j]) : sum[j];
    write_outputs<V, R, GATE>(p, unit, y);
}

/* Copies rows of x to where the kernels can read them: 16-byte aligned, zeros from K to a whole vector. */
__global__ void __launch_bounds__(COPY_THREADS) copy_rows_kernel(struct mat x, float *out, int ld)
{
    int c = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    launch_next_and_wait();
    if (c >= ld) return;
    const float *row = static_cast<const float *>(x.p) + (size_t)blockIdx.x * (size_t)x.ld;
    out[(size_t)blockIdx.x * (size_t)ld + (size_t)c] = c < x.cols ? row[c] : 0;
}

/* ---- launching -----------------------------------------------------------------------------------------------------
 */

template <class W, int M, bool ROUND, bool GATE>
void launch(gpu_dev *d, const char *op, const packed_gemm *p, float_rows x, const nf4_table &codes)
{
    constexpr int R = M <= 2 ? 2 : 4, U = M <= 8 ? 8 / R : 1;
    LAUNCH_EARLY(d, op, (gemv_float_kernel<W, M, R, U, ROUND, GATE>), gemv_grid(p, R), dim3(GEMV_THREADS),
                 sizeof(float_smem<W, M, U>), *p, x, codes, gemv_prefetch_of<W>(d, p, R));
}

template <class W, bool ROUND, bool GATE>
void launch_rows(gpu_dev *d, const char *op, const packed_gemm *p, float_rows x, const nf4_table &codes)
{
    if (p->M <= 1)
        launch<W, 1, ROUND, GATE>(d, op, p, x, codes);
    else if (p->M <= 2)
        launch<W, 2, ROUND, GATE>(d, op, p, x, codes);
    else if (p->M <= 4)
        launch<W, 4, ROUND, GATE>(d, op, p, x, codes);
    else if (p->M <= 8)
        launch<W, 8, ROUND, GATE>(d, op, p, x, codes);
    else if constexpr (!ROUND)
        launch<W, 16, ROUND, GATE>(d, op, p, x, codes);
}

template <class W, bool ROUND> void launch_type(gpu_dev *d, const char *op, const packed_gemm *p, const struct mat *m)
{
    nf4_table codes = nf4_values();
    float_rows x = {static_cast<const float *>(m->p), m->ld};
    if (reinterpret_cast<uintptr_t>(m->p) % 16 || m->ld % 4 || m->cols % W::EACH) {
        int ld = (m->cols + X_PAD - 1) / X_PAD * X_PAD;
        float *copy = static_cast<float *>(gpu_scratch(d, op, AREA_X, (size_t)m->rows * (size_t)ld * sizeof(float)));
        if (!copy) return;
        LAUNCH_EARLY(d, op, copy_rows_kernel, dim3((unsigned)m->rows, blocks_for((size_t)ld, COPY_THREADS)),
                     dim3(COPY_THREADS), 0, *m, copy, ld);
        x = {copy, ld};
    }
    if (p->gate)
        launch_rows<W, ROUND, true>(d, op, p, x, codes);
    else
        launch_rows<W, ROUND, false>(d, op, p, x, codes);
}

} // namespace

void gemv_float(gpu_dev *d, const char *op, enum dtype t, const packed_gemm *p, const struct mat *x, bool round_x)
{
    assert(p->M <= (round_x ? GEMV_ROWS_ROUNDED : GEMV_ROWS) && p->row_bytes % 16 == 0 && x->rows == p->M &&
           x->cols == p->K);
    if (t == DT_F32)
        launch_type<f32_weights, false>(d, op, p, x);
    else if (t == DT_F16)
        launch_type<f16_weights, false>(d, op, p, x);
    else if (t == DT_NF4)
        launch_type<nf4_weights, false>(d, op, p, x);
    else if (t == DT_F8 && round_x)
        launch_type<f8_weights, true>(d, op, p, x);
    else if (t == DT_F8)
        launch_type<f8_weights, false>(d, op, p, x);
    else if (round_x)
        launch_type<bf16_weights, true>(d, op, p, x);
    else
        launch_type<bf16_weights, false>(d, op, p, x);
}

} // namespace GPU_NAMESPACE
