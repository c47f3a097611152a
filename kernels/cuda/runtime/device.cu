/* The device: opening, the sticky error, and the table of ops. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm/lt.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

namespace GPU_NAMESPACE {
namespace {

#ifdef __CUDACC__
const char DEVICE_NAME[] = "cuda";
enum { REPLAY_MS = 1000 };
#else
const char DEVICE_NAME[] = "simt";
enum { REPLAY_MS = 0 };
#endif

thread_local int current = -1; /* caches this thread's current CUDA device; -1: unknown */

cudaError_t use_device(int index)
{
    current = -1;
    return cudaSetDevice(index);
}

/* Errors of a single call; after any other the context is unusable (CUDA Runtime API, cudaError). */
bool is_passing(cudaError_t e)
{
    switch (e) {
    case cudaErrorInvalidValue:
    case cudaErrorMemoryAllocation:
    case cudaErrorInvalidConfiguration:
    case cudaErrorNotReady: return true;
#ifdef __CUDACC__
    case cudaErrorLaunchOutOfResources:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorNotSupported:
    case cudaErrorGraphExecUpdateFailure: return true;
#endif
    default: return e >= 900 && e < 910; /* cudaErrorStreamCapture... */
    }
}

} // namespace

bool gpu_check(gpu_dev *d, const char *op, cudaError_t e)
{
    if (e == cudaSuccess) return true;
    cudaGetLastError();
    if (!is_passing(e)) __atomic_store_n(&d->lost, true, __ATOMIC_RELAXED);
    dev_fail(&d->head, op, "%s", cudaGetErrorString(e));
    d->head.error.lost = d->lost;
    return false;
}

bool gpu_alive(gpu_dev *d, const char *op)
{
    if (d->lost) {
        dev_fail(&d->head, op, "the device is lost");
        d->head.error.lost = true;
    }
    if (d->head.error.op) return false;
    if (d->comm && !gpu_comm_alive(d, op)) return false;
    if (current != d->index && !gpu_check(d, op, cudaSetDevice(d->index))) return false;
    current = d->index;
    return true;
}

bool gpu_ready(gpu_dev *d, const char *op, const void *kernel, size_t smem)
{
    if (!gpu_alive(d, op)) return false;
    if (smem > d->shared_max) {
        dev_fail(&d->head, op, "a block needs %zu bytes of shared memory, this device has %zu", smem, d->shared_max);
        return false;
    }
    if (d->measuring) return false;
#ifdef __CUDACC__
    if (smem > 48 << 10) /* the maximum: the attribute is shared, and a smaller limit would break captured graphs */
        return gpu_check(d, op,
                         cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)d->shared_max));
#else
    (void)kernel;
#endif
    return true;
}

bool gpu_early(gpu_dev *d)
{
    bool early = d->early && !d->weights_written;
    d->weights_written = false;
    return early;
}

/* ---- opening -------------------------------------------------------------------------------------------------------
 */

namespace {

int gpu_finish(struct dev *head)
{
    gpu_dev *d = gpu_of(head);
    if (!head->error.op && gpu_alive(d, "finish")) gpu_settle(d, "finish");
    if (!head->error.op) return 0;
    gpu_forget_staged(d);
    return -1;
}

bool gpu_lost(const struct dev *head)
{
    return __atomic_load_n(&reinterpret_cast<const gpu_dev *>(head)->lost, __ATOMIC_RELAXED);
}

/* Destroys the CUDA objects that opening created. */
void device_close(gpu_dev *d)
{
    gpu_comm_close(&d->head);
    gpu_graphs_close(d);
    lt_close(d);
    gpu_memory_close(d);
    if (d->stream) cudaStreamDestroy(d->stream);
    d->stream = nullptr;
    cudaGetLastError();
}

bool device_open(gpu_dev *d, char why[160])
{
    cudaDeviceProp p;
    cudaError_t e = use_device(d->index);
    if (!e) e = cudaGetDeviceProperties(&p, d->index);
    if (!e) e = cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking);
    if (e) {
        snprintf(why, 160, "CUDA device %d: %s", d->index, cudaGetErrorString(e));
        return false;
    }
    const char *early = getenv("TANDEM_GPU_EARLY");
    d->early = p.major >= 9 && !(early && !strcmp(early, "0"));
    d->weights_written = false;
    d->n_sm = p.multiProcessorCount;
    d->l2_bytes = (size_t)p.l2CacheSize;
    d->shared_max = p.sharedMemPerBlockOptin;
    snprintf(d->head.level, sizeof d->head.level, "sm_%d%d", p.major, p.minor);
    return gpu_memory_open(d, why) && lt_open(d, p.name, why);
}

void gpu_close(struct dev *head)
{
    gpu_dev *d = gpu_of(head);
    dev_clear_error(head);
    use_device(d->index);
    device_close(d);
    free(d);
}

/* Drops what a norm has quantised for the next GEMM (gpu_prequantised). Called by every op that may overwrite its
 * source, that is by all but those of the forward pass, whose outputs are known. */
void writes(gpu_dev *d, const struct mat &m)
{
    const struct mat &x = d->prequantised.x;
    const float *from = static_cast<const float *>(m.p), *rows = static_cast<const float *>(x.p);
    if (from < rows + (size_t)x.rows * (size_t)x.ld && rows < from + (size_t)m.rows * (size_t)m.ld)
        d->prequantised.data = nullptr;
}

template <class ARGS> void before(gpu_dev *d, const ARGS *a)
{
    if constexpr (std::is_same_v<ARGS, linear_args> || std::is_same_v<ARGS, gate_up_args> ||
                  std::is_same_v<ARGS, lora_args>)
        writes(d, a->y);
    else if constexpr (std::is_same_v<ARGS, rope_kv_args>)
        writes(d, a->qkv);
    else if constexpr (std::is_same_v<ARGS, attn_args> || std::is_same_v<ARGS, act_mul_args>)
        writes(d, a->out);
    else if constexpr (std::is_same_v<ARGS, head_norm_args> || std::is_same_v<ARGS, act_args> ||
                       std::is_same_v<ARGS, add_args>)
        writes(d, a->x);
    else
        d->prequantised.data = nullptr;
}

void fill_table(struct dev_ops *o)
{
    o->name = DEVICE_NAME;
    o->host_memory = false;
#define X(op)                                                                                                          \
    o->op = [](struct dev *d, const struct op##_args *a) {                                                             \
        before(gpu_of(d), a);                                                                                          \
        gpu_##op(d, a);                                                                                                \
    };
    OPS(X)
#undef X
    o->weight_pack = gpu_weight_pack;
    o->weight_free = gpu_weight_free;
    o->weight_update = gpu_weight_update;
    o->weight_bytes = gpu_weight_bytes;
    o->bf16_units = true;
    o->rounds_more = true;
    o->kv_type = DT_BF16;
    o->kv_page_bytes = gpu_kv_page_bytes;
    o->kv_open = gpu_kv_open;
    o->kv_close = gpu_kv_close;
    o->kv_save = gpu_kv_save;
    o->kv_load = gpu_kv_load;
    o->alloc = gpu_alloc;
    o->free = gpu_free;
    o->upload = gpu_upload;
    o->download = gpu_download;
    o->finish = gpu_finish;
    o->close = gpu_close;
    o->memory = gpu_memory;
    o->alloc_host = gpu_alloc_host;
    o->free_host = gpu_free_host;
    o->zero = gpu_zero;
    o->reserve = gpu_reserve;
    o->replay = gpu_replay;
    o->replay_ms = REPLAY_MS;
    o->replay_most = GRAPHS_MAX;
    o->hold = gpu_hold;
    o->trim = gpu_trim;
    o->lost = gpu_lost;
    o->comm_prepare = gpu_comm_prepare;
    o->comm_open = gpu_comm_open;
    o->comm_close = gpu_comm_close;
    o->comm_join = gpu_comm_join;
    o->comm_collect = gpu_comm_collect;
    o->comm_name = gpu_comm_name;
}

bool no_driver()
{
#ifdef __CUDACC__
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess && version == 0;
#else
    return false;
#endif
}

struct dev *gpu_open(int index, const struct dev_config *c, char why[160])
{
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || index < 0 || index >= n) {
        if (no_driver())
            snprintf(why, 160, "this machine has no NVIDIA driver, so no GPU can be used");
        else if (e != cudaSuccess)
            snprintf(why, 160, "no CUDA device can be used: %s", cudaGetErrorString(e));
        else
            snprintf(why, 160, "there is no CUDA device %d; this machine has %d", index, n);
        cudaGetLastError();
        return nullptr;
    }
    gpu_dev *d = static_cast<gpu_dev *>(calloc(1, sizeof *d));
    if (!d) return snprintf(why, 160, "out of memory"), nullptr;
    fill_table(&d->ops);
    compose_fill(&d->ops);
    d->head.ops = &d->ops;
    d->head.threads = 1;
    d->index = index;
    d->memory_bytes = c->memory_bytes;
    d->memory_fraction = c->memory_fraction > 0 ? c->memory_fraction : 0.9;
    if (device_open(d, why)) return &d->head;
    gpu_close(&d->head);
    return nullptr;
}

} // namespace
} // namespace GPU_NAMESPACE

#ifdef __CUDACC__
struct dev *cuda_open(int index, const struct dev_config *c, char why[160])
{
    return GPU_NAMESPACE::gpu_open(index, c, why);
}
#else
struct dev *simt_open(int index, const struct dev_config *c, char why[160])
{
    return GPU_NAMESPACE::gpu_open(index, c, why);
}
#endif
