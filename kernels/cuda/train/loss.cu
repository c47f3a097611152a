/* Softmax cross-entropy over rows of a vocabulary, forward and in place backward: one block a row. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {
namespace {

struct loss_smem {
    block_part<float> max;
    block_part<double> sum;
    block_part<int> odd;
};

/* A thread's state for the values it has seen: the sum of exp(x - max). The sum is in double, one addition per
 * value, so that a vocabulary of 150k keeps seven digits. */
struct seen {
    float max;
    double sum;
    int odd; /* bit 0: a value that prevents a hit; bit 16: a NaN */
};

template <bool VEC> __device__ inline void see(seen &s, const float *z, int i, int V, int target, float logit)
{
    vec4 a = load4<VEC>(z + i, V - i);
    if (!VEC)
#pragma unroll
        for (int k = 1; k < 4; k++)
            if (i + k >= V) a.v[k] = -INFINITY;
    float max = fmaxf(fmaxf(a.v[0], a.v[1]), fmaxf(a.v[2], a.v[3]));
    if (max > s.max) {
        s.sum *= (double)expf(s.max - max);
        s.max = max;
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float x = a.v[k];
        if (s.max > -INFINITY) s.sum += (double)expf(x - s.max);
        if (x != x) s.odd |= 1 << 16;
        if (x > logit || (x == logit && i + k < target)) s.odd |= 1;
    }
}

template <bool VEC> __device__ inline void fill(float *z, int V, float with)
{
    vec4 all = {with, with, with, with};
    for (int i = (int)threadIdx.x * 4; i < V; i += (int)blockDim.x * 4) store4<VEC>(z + i, all, V - i);
}

/* The derivative of softcap at a logit that is `share` of its cap. */
__device__ inline float logit_slope(float share, float scale)
{
    return fmaf(-share, share, 1.0f) * (scale == 0 ? 1 : scale);
}

template <bool VEC> __global__ void __launch_bounds__(256) cross_entropy_kernel(struct cross_entropy_args a)
{
    SMEM(loss_smem, s);
    int V = a.logits.cols, row = (int)blockIdx.x, step = (int)blockDim.x * 4, target = a.target[row];
    float *z = static_cast<float *>(a.logits.p) + (size_t)row * (size_t)a.logits.ld;
    if (target < 0) { /* uniform over the block */
        if (a.back) fill<VEC>(z, V, 0);
        if (threadIdx.x == 0) a.loss[row] = 0, a.hit[row] = 0;
        return;
    }
    float logit = z[target];
    seen mine = {-INFINITY, 0, 0};
    for (int i = (int)threadIdx.x * 4; i < V; i += step) see<VEC>(mine, z, i, V, target, logit);
    float max = block_max(mine.max, s.max);
    double sum = block_sum(mine.max > -INFINITY ? mine.sum * (double)expf(mine.max - max) : 0, s.sum);
    int odd = block_sum(mine.odd, s.odd);
    bool sound = odd < 1 << 16 && max > -INFINITY && max < INFINITY;
    if (threadIdx.x == 0) {
        a.loss[row] = sound ? (float)((double)max + log(sum) - (double)logit) : NAN;
        a.hit[row] = sound && odd == 0;
    }
    if (!a.back) return;
    if (!sound) {
        fill<VEC>(z, V, NAN);
        return;
    }
    float scale = a.scale[row], by = (float)((double)scale / sum), inv_cap = a.softcap > 0 ? 1 / a.softcap : 0;
    bool scaled = a.softcap > 0 || a.logit_scale != 0;
    for (int i = (int)threadIdx.x * 4; i < V; i += step) {
        vec4 x = load4<VEC>(z + i, V - i), slope = {};
        if (scaled)
#pragma unroll
            for (int k = 0; k < 4; k++) slope.v[k] = logit_slope(x.v[k] * inv_cap, a.logit_scale);
#pragma unroll
        for (int k = 0; k < 4; k++) x.v[k] = expf(x.v[k] - max) * by - (i + k == target ? scale : 0);
        if (scaled)
#pragma unroll
            for (int k = 0; k < 4; k++) x.v[k] *= slope.v[k];
        store4<VEC>(z + i, x, V - i);
    }
}

} // namespace

void gpu_cross_entropy(struct dev *head, const struct cross_entropy_args *a)
{
    gpu_dev *d = gpu_of(head);
    int V = a->logits.cols;
    dim3 grid((unsigned)a->logits.rows), threads((unsigned)row_threads(V));
    if (a->logits.rows == 0) return;
    if (row_vectors(a->logits.p, V, a->logits.ld))
        LAUNCH(d, "cross_entropy", cross_entropy_kernel<true>, grid, threads, sizeof(loss_smem), *a);
    else
        LAUNCH(d, "cross_entropy", cross_entropy_kernel<false>, grid, threads, sizeof(loss_smem), *a);
}

} // namespace GPU_NAMESPACE
