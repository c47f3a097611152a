/* The KV cache: its memory, and the op that fills it. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/rope.cuh"
#include "kernels/cuda/warp.cuh"

#include <cfloat>
#include <cstdlib>

namespace GPU_NAMESPACE {
namespace {

enum { HEAD_DIM_MAX = 512 };

/* Computes everything but the memory. @return false for a shape that the kernels do not support or that is too
 * large. */
bool plan(gpu_kv *kv, const struct kv_shape *s)
{
    *kv = {};
    if (s->layers < 1 || s->pages < 1 || s->kv_heads < 1 || s->head_dim < 1 || s->head_dim > HEAD_DIM_MAX) return false;
    if (s->t != DT_F32 && s->t != DT_F16 && s->t != DT_BF16 && s->t != DT_I8) return false;
    size_t one = dtype_bytes(s->t, 1), row = ((size_t)s->head_dim * one + 15) / 16 * 16;
    kv->shape = *s;
    kv->dim_pad = (int)(row / one);
    kv->v_at = row * KV_PAGE;
    kv->scale_at = 2 * kv->v_at;
    kv->block_bytes = kv->scale_at + (s->t == DT_I8 ? 2 * KV_PAGE * sizeof(float) : 0);
    size_t blocks = (size_t)s->layers * (size_t)s->pages; /* both below 2^31 */
    return !__builtin_mul_overflow(blocks, (size_t)s->kv_heads, &blocks) &&
           !__builtin_mul_overflow(blocks, kv->block_bytes, &kv->bytes);
}

} // namespace

size_t gpu_kv_page_bytes(const struct kv_shape *s)
{
    gpu_kv kv;
    struct kv_shape one = *s;
    one.pages = 1;
    return plan(&kv, &one) ? kv.bytes : 0;
}

struct kv *gpu_kv_open(struct dev *head, const struct kv_shape *s)
{
    gpu_kv *kv = static_cast<gpu_kv *>(malloc(sizeof *kv));
    if (!kv || !plan(kv, s) || !(kv->data = static_cast<uint8_t *>(gpu_alloc(head, kv->bytes)))) {
        free(kv);
        return nullptr;
    }
    return reinterpret_cast<struct kv *>(kv);
}

void gpu_kv_close(struct dev *head, struct kv *p)
{
    gpu_kv *kv = reinterpret_cast<gpu_kv *>(p);
    if (!kv) return;
    gpu_free(head, kv->data);
    free(kv);
}

/* The blocks of a page are adjacent within a layer. */
void gpu_kv_save(struct dev *head, const struct kv *p, int page, void *host)
{
    const gpu_kv *kv = kv_of(p);
    size_t part = (size_t)kv->shape.kv_heads * kv->block_bytes, layer = part * (size_t)kv->shape.pages;
    for (size_t l = 0; l < (size_t)kv->shape.layers; l++)
        gpu_download(head, static_cast<uint8_t *>(host) + l * part, kv->data + l * layer + (size_t)page * part, part);
}

void gpu_kv_load(struct dev *head, struct kv *p, int page, const void *host)
{
    const gpu_kv *kv = kv_of(p);
    size_t part = (size_t)kv->shape.kv_heads * kv->block_bytes, layer = part * (size_t)kv->shape.pages;
    for (size_t l = 0; l < (size_t)kv->shape.layers; l++)
        gpu_upload(head, kv->data + l * layer + (size_t)page * part, static_cast<const uint8_t *>(host) + l * part,
                   part);
}

/* ---- rope_kv -------------------------------------------------------------------------------------------------------
 */

namespace {

enum { ROPE_WARPS = 4 };

/* The position of one head's k or v of a token in its block. */
struct kv_slot {
    uint8_t *row;
    float *step;
};

/* Calls f(i) for each element of this lane: the pairs of the rotation, then the rest. The same lane gets the same
 * elements each time, so that it may read what it wrote without a barrier. */
template <class F> __device__ inline void lane_elements(int lane, int half, int dim, F f)
{
    for (int i = lane; i < half; i += 32) {
        f(i);
        f(i + half);
    }
    for (int i = 2 * half + lane; i < dim; i += 32) f(i);
}

/* Stores one head in the cache's type; one warp. */
__device__ void store_head(kv_slot to, const float *x, int half, int dim, enum dtype t)
{
    int lane = (int)threadIdx.x % 32;
    if (t == DT_F32) return lane_elements(lane, half, dim, [=](int i) { reinterpret_cast<float *>(to.row)[i] = x[i]; });
    if (t == DT_BF16)
        return lane_elements(lane, half, dim,
                             [=](int i) { reinterpret_cast<uint16_t *>(to.row)[i] = f32_to_bf16(x[i]); });
    if (t == DT_F16)
        return lane_elements(lane, half, dim,
                             [=](int i) { reinterpret_cast<uint16_t *>(to.row)[i] = f32_to_f16(x[i]); });
    float amax = 0;
    bool finite = true;
    lane_elements(lane, half, dim, [&](int i) {
        finite = finite && fabsf(x[i]) <= FLT_MAX;
        amax = fmaxf(amax, fabsf(x[i]));
    });
    amax = warp_max(amax);
    finite = __all_sync(FULL_WARP, finite);
    bool some = finite && amax >= QUANT_AMAX_MIN;
    float inv = some ? 127.0f / amax : 0;
    if (lane == 0) *to.step = !finite ? NAN : some ? amax / 127.0f : 0;
    lane_elements(lane, half, dim, [=](int i) {
        reinterpret_cast<int8_t *>(to.row)[i] = some ? (int8_t)__float2int_rn(x[i] * inv) : (int8_t)0;
    });
}

/* Reads one head back from the cache; the warp that stored it. */
__device__ void load_head(kv_slot from, float *x, int half, int dim, enum dtype t)
{
    int lane = (int)threadIdx.x % 32;
    float step = 0;
    if (t == DT_I8 && lane == 0) step = *from.step;
    step = __shfl_sync(FULL_WARP, step, 0);
    lane_elements(lane, half, dim, [=](int i) {
        x[i] = t == DT_I8 ? (float)reinterpret_cast<int8_t *>(from.row)[i] * step : load_float(from.row, t, (size_t)i);
    });
}

/* One warp for each head of a token: rotates q and k, stores k and v. */
__global__ void __launch_bounds__(ROPE_WARPS * 32)
    rope_kv_kernel(struct mat qkv, int heads, int kv_heads, int dim, int half, const float *cosines, const float *sines,
                   const int32_t *pos, const int32_t *slot, gpu_kv kv, int layer, bool rounds)
{
    int lane = (int)threadIdx.x % 32, h = (int)(blockIdx.y * ROPE_WARPS + threadIdx.x / 32);
    size_t turn = half ? (size_t)pos[blockIdx.x] * (size_t)half : 0;
    launch_next();
    bool whole = half % 4 == 0 && (reinterpret_cast<uintptr_t>(cosines) | reinterpret_cast<uintptr_t>(sines)) % 16 == 0;
    if (threadIdx.x == 0 && blockIdx.y == 0 && half && whole) {
        prefetch_l2(cosines + turn, (unsigned)half * (unsigned)sizeof *cosines);
        prefetch_l2(sines + turn, (unsigned)half * (unsigned)sizeof *sines);
    }
    wait_for_previous();
    if (h >= heads + 2 * kv_heads) return;
    float *x = static_cast<float *>(qkv.p) + (size_t)blockIdx.x * (size_t)qkv.ld + (size_t)h * (size_t)dim;
    if (half && h < heads + kv_heads) rope_head(x, lane, half, cosines, sines, turn, 1);
    if (h < heads && rounds && kv.shape.t == DT_BF16)
        lane_elements(lane, half, dim, [=](int i) { x[i] = bf16_to_f32(f32_to_bf16(x[i])); });
    if (h < heads) return;
    bool is_v = h >= heads + kv_heads;
    int g = h - heads - (is_v ? kv_heads : 0), at = slot[blockIdx.x], place = at % KV_PAGE;
    size_t block = ((size_t)layer * (size_t)kv.shape.pages + (size_t)(at / KV_PAGE)) * (size_t)kv_heads + (size_t)g;
    uint8_t *p = kv.data + block * kv.block_bytes;
    kv_slot to = {p + (is_v ? kv.v_at : 0) + kv.v_at / KV_PAGE * (size_t)place,
                  reinterpret_cast<float *>(p + kv.scale_at) + (is_v ? KV_PAGE : 0) + place};
    int turned = is_v ? 0 : half;
    store_head(to, x, turned, dim, kv.shape.t);
    if (rounds) load_head(to, x, turned, dim, kv.shape.t);
}

} // namespace

void gpu_rope_kv(struct dev *head, const struct rope_kv_args *a)
{
    if (a->qkv.rows == 0) return;
    LAUNCH_EARLY(gpu_of(head), "rope_kv", rope_kv_kernel,
                 dim3((unsigned)a->qkv.rows, blocks_for((size_t)(a->heads + 2 * a->kv_heads), ROPE_WARPS)),
                 dim3(ROPE_WARPS * 32), 0, a->qkv, a->heads, a->kv_heads, a->head_dim, a->rot / 2, a->cos, a->sin,
                 a->pos, a->slot, *kv_of(a->kv), a->layer, a->rounds);
}

} // namespace GPU_NAMESPACE
