/* Activations to int8, row by row: see linear_args in ops.h.  Everything in f32, in the same operations as the other
 * devices, so that the integers are the same. */
#include "kernels/cuda/products.h"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {
namespace {

enum { QUANT_THREADS = 256, QUANT_PAD = 128, QUANT_STEP = 8 }; /* STEP: columns of a thread at a time */

struct quantise_smem {
    block_part<float> part;
};

struct eight {
    float v[QUANT_STEP];
};

/* columns c .. c + 7 of a row of n, zeros past its end; wide: the row is 16-byte aligned */
__device__ inline eight load_eight(const float *x, int c, int n, bool wide)
{
    eight e;
    if (wide && c + QUANT_STEP <= n) {
        float4 a = *reinterpret_cast<const float4 *>(x + c), b = *reinterpret_cast<const float4 *>(x + c + 4);
        e = {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
        return e;
    }
    UNROLL for (int i = 0; i < QUANT_STEP; i++) e.v[i] = c + i < n ? x[c + i] : 0;
    return e;
}

__device__ inline unsigned pack_four(int a, int b, int c, int d)
{
    return ((unsigned)a & 255) | ((unsigned)b & 255) << 8 | ((unsigned)c & 255) << 16 | (unsigned)d << 24;
}

__device__ inline void store_eight(int8_t *q, int c, const int (&v)[QUANT_STEP], bool even_odd)
{
    uint2 two = even_odd ? uint2{pack_four(v[0], v[2], v[4], v[6]), pack_four(v[1], v[3], v[5], v[7])}
                         : uint2{pack_four(v[0], v[1], v[2], v[3]), pack_four(v[4], v[5], v[6], v[7])};
    *reinterpret_cast<uint2 *>(q + c) = two;
}

struct quant_step {
    float inv, step;
};

/* of a row's amax, infinite when it has a NaN or an infinity */
__device__ inline quant_step step_of(float amax)
{
    if (amax >= QUANT_AMAX_MIN && amax < INFINITY) return {127.0f / amax, amax / 127.0f};
    return {0, amax < QUANT_AMAX_MIN ? 0 : NAN};
}

__device__ inline int quant_round(float x, quant_step s)
{
    return s.inv == 0 ? 0 : __float2int_rn(__fmul_rn(x, s.inv));
}

/* one block a row */
__global__ void __launch_bounds__(QUANT_THREADS)
    quantise_kernel(struct mat x, int ld, bool even_odd, int8_t *q, int8_t *rest, float *step, float *rest_step,
                    int *outlier)
{
    SMEM(quantise_smem, s);
    take_turn();
    int n = x.cols, from = (int)threadIdx.x * QUANT_STEP, by = QUANT_THREADS * QUANT_STEP;
    size_t at = blockIdx.x;
    const float *row = static_cast<const float *>(x.p) + at * (size_t)x.ld;
    bool wide = reinterpret_cast<uintptr_t>(row) % 16 == 0;
    float amax = 0, sum = 0;
    for (int c = from; c < n; c += by) {
        eight e = load_eight(row, c, n, wide);
        UNROLL for (float v : e.v)
        {
            float a = fabsf(v);
            amax = a < INFINITY ? fmaxf(amax, a) : INFINITY; /* a NaN too */
            sum += a;
        }
    }
    amax = block_max(amax, s.part);
    sum = block_sum(sum, s.part);
    quant_step first = step_of(amax);
    bool twice = first.inv != 0 && amax > sum * (QUANT_OUTLIER / (float)n);
    if (threadIdx.x == 0) {
        step[at] = first.step;
        outlier[at] = twice;
    }
    float left_max = 0;
    for (int c = from; c < ld; c += by) {
        eight e = load_eight(row, c, n, wide);
        int v[QUANT_STEP];
        UNROLL for (int i = 0; i < QUANT_STEP; i++)
        {
            v[i] = quant_round(e.v[i], first);
            left_max = fmaxf(left_max, fabsf(fmaf(-(float)v[i], first.step, e.v[i])));
        }
        store_eight(q + at * (size_t)ld, c, v, even_odd);
    }
    if (!twice) return; /* the whole block */
    left_max = block_max(left_max, s.part);
    quant_step second = step_of(left_max);
    if (threadIdx.x == 0) rest_step[at] = second.step;
    for (int c = from; c < ld; c += by) {
        eight e = load_eight(row, c, n, wide);
        int v[QUANT_STEP];
        UNROLL for (int i = 0; i < QUANT_STEP; i++) v[i] =
            quant_round(fmaf(-(float)quant_round(e.v[i], first), first.step, e.v[i]), second);
        store_eight(rest + at * (size_t)ld, c, v, even_odd);
    }
}

} // namespace

bool quantise_rows(gpu_dev *d, const char *op, const struct mat *x, bool even_odd, quantised *out)
{
    size_t rows = (size_t)x->rows, ld = ((size_t)x->cols + QUANT_PAD - 1) / QUANT_PAD * QUANT_PAD;
    uint8_t *p = static_cast<uint8_t *>(gpu_scratch(d, op, AREA_X, rows * (2 * ld + 3 * sizeof(float))));
    if (!p) return false;
    int8_t *q = reinterpret_cast<int8_t *>(p), *rest = q + rows * ld;
    float *step = reinterpret_cast<float *>(p + 2 * rows * ld), *rest_step = step + rows;
    int *outlier = reinterpret_cast<int *>(rest_step + rows);
    *out = {q, rest, step, rest_step, outlier, (int)ld};
    LAUNCH_EARLY(d, op, quantise_kernel, dim3((unsigned)rows), dim3(QUANT_THREADS), sizeof(quantise_smem), *x, (int)ld,
                 even_odd, q, rest, step, rest_step, outlier);
    return !d->head.error.op;
}

} // namespace GPU_NAMESPACE
