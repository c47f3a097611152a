/* Routing to experts, and the sum of their results. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {
namespace {

enum { PLACE_THREADS = 256, COMBINE_THREADS = 256 };

/* ---- which experts ------------------------------------------------------------------------------------------------
 */

struct choose_smem {
    float logit[EXPERTS_MAX];
    int taken[EXPERTS_MAX];
};

/* Whether logit a of expert i is chosen before b of j: NaN is below all numbers, ties go to the lower id. */
__device__ inline bool before(float a, int i, float b, int j)
{
    if (a != a || b != b) return b != b && (a == a || i < j);
    return a > b || (!(b > a) && i < j);
}

/* A warp per token. */
__global__ void __launch_bounds__(32)
    choose_kernel(struct mat logits, struct mat weight, int32_t *expert, bool normalise)
{
    SMEM(choose_smem, s);
    int lane = (int)threadIdx.x, n = logits.cols, k = weight.cols;
    size_t t = blockIdx.x;
    const float *from = static_cast<const float *>(logits.p) + t * (size_t)logits.ld;
    float *to = static_cast<float *>(weight.p) + t * (size_t)weight.ld, max = -INFINITY, sum = 0;
    bool broken = false;
    for (int e = lane; e < n; e += 32) {
        s.logit[e] = from[e];
        s.taken[e] = 0;
        broken = broken || !(from[e] < INFINITY);
        max = fmaxf(max, from[e]);
    }
    max = warp_max(max);
    broken = warp_sum(broken ? 1 : 0) > 0;
    __syncwarp();
    for (int j = 0; j < k; j++) {
        float best = NAN;
        int id = n;
        for (int e = lane; e < n; e += 32)
            if (!s.taken[e] && (id == n || before(s.logit[e], e, best, id))) best = s.logit[e], id = e;
        for (int m = 16; m; m >>= 1) {
            float other = __shfl_xor_sync(FULL_WARP, best, m);
            int at = __shfl_xor_sync(FULL_WARP, id, m);
            if (at < n && (id == n || before(other, at, best, id))) best = other, id = at;
        }
        if (lane == id % 32) s.taken[id] = 1; /* the lane that reads it: lanes share nothing here */
    }
    for (int e = lane; e < n; e += 32)
        if (!normalise || s.taken[e]) sum += expf(s.logit[e] - max);
    sum = warp_sum(sum);
    for (int e = lane, at = 0; e - lane < n; e += 32) {
        int mine = e < n ? s.taken[e] : 0, upto = warp_scan(mine, lane);
        if (mine) {
            expert[t * (size_t)k + (size_t)(at + upto - 1)] = e;
            to[at + upto - 1] = broken ? NAN : expf(s.logit[e] - max) / sum;
        }
        at += __shfl_sync(FULL_WARP, upto, 31);
    }
}

/* ---- their rows -------------------------------------------------------------------------------------------------- */

struct place_smem {
    block_part<int> part;
    int warp[PLACE_THREADS / 32];
};

/* A block per expert: the choices of lower experts come before its own. A thread has n / PLACE_THREADS neighbouring
 * choices. */
__global__ void __launch_bounds__(PLACE_THREADS)
    place_kernel(const int32_t *expert, int n, int k, int32_t *place, int32_t *token, int32_t *start)
{
    SMEM(place_smem, s);
    int e = (int)blockIdx.x, tid = (int)threadIdx.x, each = (n + PLACE_THREADS - 1) / PLACE_THREADS;
    int first = tid * each < n ? tid * each : n, end = first + each < n ? first + each : n, less = 0, own = 0;
    for (int i = first; i < end; i++) {
        less += expert[i] < e;
        own += expert[i] == e;
    }
    less = block_sum(less, s.part);
    int upto = warp_scan(own, tid % 32);
    if (tid % 32 == 31) s.warp[tid / 32] = upto;
    __syncthreads();
    int row = less + upto - own;
    for (int w = 0; w < tid / 32; w++) row += s.warp[w];
    for (int i = first; i < end; i++)
        if (expert[i] == e) {
            place[i] = row;
            token[row++] = i / k;
        }
    if (tid == 0) start[e] = less;
    if (tid == 0 && blockIdx.x + 1 == gridDim.x) start[e + 1] = n;
}

/* ---- the sum ----------------------------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(COMBINE_THREADS)
    combine_kernel(struct mat y, struct mat x, struct mat weight, const int32_t *place, int k, struct mat shared,
                   struct mat gate)
{
    size_t t = blockIdx.x;
    int c = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    if (c >= y.cols) return;
    float sum = 0;
    if (shared.p) {
        float by = gate.p ? 1 / (1 + expf(-static_cast<const float *>(gate.p)[t * (size_t)gate.ld])) : 1;
        sum = __fmul_rn(by, static_cast<const float *>(shared.p)[t * (size_t)shared.ld + (size_t)c]);
    }
    for (int j = 0; j < k; j++) {
        float by = weight.p ? static_cast<const float *>(weight.p)[t * (size_t)weight.ld + (size_t)j] : 1;
        size_t row = (size_t)place[t * (size_t)k + (size_t)j];
        sum = __fadd_rn(sum, __fmul_rn(by, static_cast<const float *>(x.p)[row * (size_t)x.ld + (size_t)c]));
    }
    static_cast<float *>(y.p)[t * (size_t)y.ld + (size_t)c] = sum;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

struct combine_back_smem {
    block_part<float> part;
};

/* A block per token. */
__global__ void __launch_bounds__(COMBINE_THREADS) combine_back_kernel(struct combine_back_args a)
{
    SMEM(combine_back_smem, s);
    size_t t = blockIdx.x;
    int C = a.dy.cols;
    auto row = [](const struct mat &m, size_t r) { return static_cast<float *>(m.p) + r * (size_t)m.ld; };
    const float *dy = row(a.dy, t);
    float by = a.gate.p ? 1 / (1 + expf(-row(a.gate, t)[0])) : 1;
    for (int j = 0; j < a.k; j++) {
        size_t at = (size_t)a.place[t * (size_t)a.k + (size_t)j];
        const float *x = row(a.x, at);
        float *dx = row(a.dx, at), weight = row(a.weight, t)[j], dot = 0;
        for (int c = (int)threadIdx.x; c < C; c += COMBINE_THREADS) {
            dot = fmaf(dy[c], x[c], dot);
            dx[c] = weight * dy[c];
        }
        dot = block_sum(dot, s.part);
        if (threadIdx.x == 0) row(a.dweight, t)[j] = dot;
    }
    if (a.dgate.p) {
        float dot = 0;
        for (int c = (int)threadIdx.x; c < C; c += COMBINE_THREADS) dot = fmaf(dy[c], row(a.shared, t)[c], dot);
        dot = block_sum(dot, s.part);
        if (threadIdx.x == 0) row(a.dgate, t)[0] = dot * by * (1 - by);
    }
    if (a.dshared.p)
        for (int c = (int)threadIdx.x; c < C; c += COMBINE_THREADS) row(a.dshared, t)[c] = by * dy[c];
}

/* A warp per token. */
__global__ void __launch_bounds__(32) route_back_kernel(struct route_back_args a)
{
    int lane = (int)threadIdx.x, n = a.dlogits.cols, k = a.weight.cols;
    size_t t = blockIdx.x;
    const float *logit = static_cast<const float *>(a.logits.p) + t * (size_t)a.logits.ld;
    const float *w = static_cast<const float *>(a.weight.p) + t * (size_t)a.weight.ld;
    const float *dw = static_cast<const float *>(a.dweight.p) + t * (size_t)a.dweight.ld;
    float *out = static_cast<float *>(a.dlogits.p) + t * (size_t)a.dlogits.ld, mean = 0, max = -INFINITY, sum = 0;
    for (int j = lane; j < k; j += 32) mean = fmaf(w[j], dw[j], mean);
    mean = warp_sum(mean);
    if (!a.normalise) {
        for (int e = lane; e < n; e += 32) max = fmaxf(max, logit[e]);
        max = warp_max(max);
        for (int e = lane; e < n; e += 32) sum += expf(logit[e] - max);
        sum = warp_sum(sum);
    }
    for (int e = lane; e < n; e += 32) out[e] = a.normalise ? 0 : -mean * expf(logit[e] - max) / sum;
    __syncwarp();
    for (int j = lane; j < k; j += 32) out[a.expert[t * (size_t)k + (size_t)j]] = w[j] * (dw[j] - mean);
}

} // namespace

void gpu_combine_back(struct dev *head, const struct combine_back_args *a)
{
    if (a->dy.rows == 0) return;
    LAUNCH(gpu_of(head), "combine_back", combine_back_kernel, dim3((unsigned)a->dy.rows), dim3(COMBINE_THREADS),
           sizeof(combine_back_smem), *a);
}

void gpu_route_back(struct dev *head, const struct route_back_args *a)
{
    if (a->dlogits.rows == 0) return;
    LAUNCH(gpu_of(head), "route_back", route_back_kernel, dim3((unsigned)a->dlogits.rows), dim3(32), 0, *a);
}

void gpu_route(struct dev *head, const struct route_args *a)
{
    gpu_dev *d = gpu_of(head);
    int T = a->logits.rows, n = a->logits.cols, k = a->weight.cols;
    assert(n <= EXPERTS_MAX && k <= n);
    if (T)
        LAUNCH(d, "route", choose_kernel, dim3((unsigned)T), dim3(32), sizeof(choose_smem), a->logits, a->weight,
               a->expert, a->normalise);
    LAUNCH(d, "route", place_kernel, dim3((unsigned)n), dim3(PLACE_THREADS), sizeof(place_smem), a->expert, T * k, k,
           a->place, a->token, a->start);
}

void gpu_combine(struct dev *head, const struct combine_args *a)
{
    if (a->y.rows == 0) return;
    LAUNCH(gpu_of(head), "combine", combine_kernel,
           dim3((unsigned)a->y.rows, blocks_for((size_t)a->y.cols, COMBINE_THREADS)), dim3(COMBINE_THREADS), 0, a->y,
           a->x, a->weight, a->place, a->k, a->shared, a->gate);
}

} // namespace GPU_NAMESPACE
