/* The KV cache: its memory, and the op that fills it. */
#include "kernels/cuda/device.h"

#include <cstdlib>

namespace GPU_NAMESPACE
{
namespace
{

enum { HEAD_DIM_MAX = 512 };

/* Everything but the memory; false: a shape that the kernels do not take, or too large. */
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

} // namespace GPU_NAMESPACE
