/* Products of up to sixteen rows with float weights and nf4 (eight where x is rounded to bf16: then the tensor cores
 * take the rest): bound by reading the weight once. */
#include "kernels/cuda/gemv.cuh"

namespace GPU_NAMESPACE {
namespace {

enum { NF4_BLOCK = 64, COPY_THREADS = 256, X_PAD = 32 };

/* nf4's sixteen values, once for each lane's bank */
struct nf4_smem {
    float code[16][32];
};

__device__ inline float word_at(const uint4 &v, int i)
{
    return __uint_as_float(i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w);
}

/* How each type is read: `piece`, the bytes a lane takes at a time, EACH weights; value(piece, i). */
struct f32_weights {
    typedef uint4 piece;
    static constexpr int EACH = 4;
    __device__ static float value(const piece &p, int i)
    {
        return word_at(p, i);
    }
};

struct bf16_weights {
    typedef uint4 piece;
    static constexpr int EACH = 8;
    __device__ static float value(const piece &p, int i)
    {
        unsigned w = __float_as_uint(word_at(p, i / 2));
        return __uint_as_float(i % 2 ? w & 0xffff0000u : w << 16);
    }
};

struct f16_weights {
    typedef uint4 piece;
    static constexpr int EACH = 8;
    __device__ static float value(const piece &p, int i)
    {
        unsigned w = __float_as_uint(word_at(p, i / 2));
        return half_to_float((uint16_t)(i % 2 ? w >> 16 : w & 0xffffu));
    }
};

struct nf4_weights {
    typedef uint2 piece;
    static constexpr int EACH = 16;
};

template <class W> constexpr bool is_nf4 = W::EACH == 16;

/* Four values of one piece, from i on; nf4's are rounded to f32 as the contract says before they meet x. */
template <class W>
__device__ inline void piece_values(float (&v)[4], const typename W::piece &p, int i, float scale,
                                    const float (*code)[32])
{
    UNROLL for (int j = 0; j < 4; j++)
    {
        if constexpr (is_nf4<W>) {
            unsigned w = i < 8 ? p.x : p.y;
            int nibble = (int)(w >> (((i + j) % 8 * 4) ^ 4) & 15); /* the even column is the high one */
            v[j] = __fmul_rn(code[nibble][threadIdx.x % 32], scale);
        } else {
            v[j] = W::value(p, i + j);
        }
    }
}

struct float_rows {
    const float *p; /* (M, K), 16-byte aligned rows, of whole pieces */
    int ld;
};

/* M: at least the rows of p; R: outputs of a warp; U: pieces of each in flight */
template <class W, int M, int R, int U, bool ROUND, bool GATE>
__global__ void __launch_bounds__(GEMV_THREADS, M == 1 ? 6 : 0)
    gemv_float_kernel(product p, float_rows x, nf4_table codes)
{
    typedef typename W::piece piece;
    const float(*code)[32] = nullptr;
    if constexpr (is_nf4<W>) {
        SMEM(nf4_smem, s);
        for (int i = (int)threadIdx.x; i < 16 * 32; i += GEMV_THREADS) s.code[i / 32][i % 32] = codes.v[i / 32];
        __syncthreads();
        code = s.code;
    }
    int lane = (int)threadIdx.x % 32, unit = (int)(blockIdx.x * (GEMV_THREADS / 32) + threadIdx.x / 32);
    int pieces = (p.K + W::EACH - 1) / W::EACH;
    if (unit * (GATE ? R / 2 : R) >= p.N) return; /* the whole warp */
    const piece *w[R];
    const float *scale[R];
    UNROLL for (int r = 0; r < R; r++)
    {
        size_t row = (size_t)weight_row<R, GATE>(p, unit, r);
        w[r] = reinterpret_cast<const piece *>(p.w + row * p.row_bytes);
        scale[r] = is_nf4<W> ? static_cast<const float *>(p.scale) + row * (size_t)p.n_groups : nullptr;
    }
    float sum[M * R] = {};
    for (int k0 = lane; k0 < pieces; k0 += 32 * U) {
        piece at[U][R];
        float by[U][R];
        UNROLL for (int u = 0; u < U; u++)
        {
            UNROLL for (int r = 0; r < R; r++)
            {
                int k = k0 + u * 32;
                at[u][r] = k < pieces ? load_stream(w[r] + k) : piece{};
                by[u][r] = is_nf4<W> && k < pieces ? scale[r][k / (NF4_BLOCK / W::EACH)] : 0;
            }
        }
        UNROLL for (int u = 0; u < U; u++)
        {
            int k = k0 + u * 32;
            if (k >= pieces) break;
            UNROLL for (int i = 0; i < W::EACH; i += 4)
            {
                float v[R][4];
                UNROLL for (int r = 0; r < R; r++) piece_values<W>(v[r], at[u][r], i, by[u][r], code);
                UNROLL for (int m = 0; m < M; m++)
                {
                    const float *row = x.p + (size_t)(m < p.M ? m : 0) * (size_t)x.ld;
                    float4 f = *reinterpret_cast<const float4 *>(row + (size_t)k * W::EACH + i);
                    if (ROUND) f = {round_to_bf16(f.x), round_to_bf16(f.y), round_to_bf16(f.z), round_to_bf16(f.w)};
                    UNROLL for (int r = 0; r < R; r++)
                    {
                        float *to = &sum[m * R + r];
                        *to = fmaf(v[r][3], f.w, fmaf(v[r][2], f.z, fmaf(v[r][1], f.y, fmaf(v[r][0], f.x, *to))));
                    }
                }
            }
        }
    }
    constexpr int V = M * R;
    spread_sum<float, V>(sum);
    spread<V, R> s;
    float y[s.PER];
    UNROLL for (int j = 0; j < s.PER; j++)
    {
        int n = weight_row<R, GATE>(p, unit, s.output(j));
        y[j] = p.bias ? __fadd_rn(sum[j], p.bias[n]) : sum[j];
    }
    write_products<V, R, GATE>(p, unit, y);
}

/* rows of x where the kernels can take them: 16-byte aligned, zeros from K to a whole piece */
__global__ void __launch_bounds__(COPY_THREADS) copy_rows_kernel(struct mat x, float *out, int ld)
{
    int c = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    if (c >= ld) return;
    const float *row = static_cast<const float *>(x.p) + (size_t)blockIdx.x * (size_t)x.ld;
    out[(size_t)blockIdx.x * (size_t)ld + (size_t)c] = c < x.cols ? row[c] : 0;
}

/* ---- launching -----------------------------------------------------------------------------------------------------
 */

template <class W, int M, bool ROUND, bool GATE>
void launch(gpu_dev *d, const char *op, const product *p, float_rows x, const nf4_table &codes)
{
    constexpr int R = M <= 2 ? 2 : 4, U = M <= 8 ? 8 / R : 1;
    LAUNCH(d, op, (gemv_float_kernel<W, M, R, U, ROUND, GATE>), gemv_grid(p, R), dim3(GEMV_THREADS),
           is_nf4<W> ? sizeof(nf4_smem) : 0, *p, x, codes);
}

template <class W, bool ROUND, bool GATE>
void launch_rows(gpu_dev *d, const char *op, const product *p, float_rows x, const nf4_table &codes)
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

template <class W, bool ROUND> void launch_type(gpu_dev *d, const char *op, const product *p, const struct mat *m)
{
    nf4_table codes = nf4_values();
    float_rows x = {static_cast<const float *>(m->p), m->ld};
    if (reinterpret_cast<uintptr_t>(m->p) % 16 || m->ld % 4 || m->cols % W::EACH) {
        int ld = (m->cols + X_PAD - 1) / X_PAD * X_PAD;
        float *copy = static_cast<float *>(gpu_scratch(d, op, AREA_X, (size_t)m->rows * (size_t)ld * sizeof(float)));
        if (!copy) return;
        LAUNCH(d, op, copy_rows_kernel, dim3((unsigned)m->rows, blocks_for((size_t)ld, COPY_THREADS)),
               dim3(COPY_THREADS), 0, *m, copy, ld);
        x = {copy, ld};
    }
    if (p->gate)
        launch_rows<W, ROUND, true>(d, op, p, x, codes);
    else
        launch_rows<W, ROUND, false>(d, op, p, x, codes);
}

} // namespace

void gemv_float(gpu_dev *d, const char *op, enum dtype t, const product *p, const struct mat *x, bool round_x)
{
    assert(p->M <= (round_x ? GEMV_ROWS_ROUNDED : GEMV_ROWS) && p->row_bytes % 16 == 0 && x->rows == p->M &&
           x->cols == p->K);
    if (t == DT_F32)
        launch_type<f32_weights, false>(d, op, p, x);
    else if (t == DT_F16)
        launch_type<f16_weights, false>(d, op, p, x);
    else if (t == DT_NF4)
        launch_type<nf4_weights, false>(d, op, p, x);
    else if (round_x)
        launch_type<bf16_weights, true>(d, op, p, x);
    else
        launch_type<bf16_weights, false>(d, op, p, x);
}

} // namespace GPU_NAMESPACE
