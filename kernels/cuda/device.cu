/* The device itself: opening, memory, copies, waiting, and the table of its ops. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/lt.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace GPU_NAMESPACE
{

struct pending_out {
    void *host;
    const uint8_t *pinned;
    size_t at, bytes; /* at: in staged */
    bool sent;
};

namespace
{

enum { STAGE_BYTES = 16 << 20, STAGE_ALIGN = 256, PENDING_MAX = 64 };

#ifdef __CUDACC__
const char DEVICE_NAME[] = "cuda";
#else
const char DEVICE_NAME[] = "simt";
#endif

} // namespace

bool gpu_check(gpu_dev *d, const char *op, cudaError_t e)
{
    if (e == cudaSuccess) return true;
    dev_fail(&d->head, op, "%s", cudaGetErrorString(e));
    return false;
}

bool gpu_ready(gpu_dev *d, const char *op, const void *kernel, size_t smem)
{
    if (d->head.error.op) return false;
    if (smem > d->shared_max) {
        dev_fail(&d->head, op, "a block needs %zu bytes of shared memory, this device has %zu", smem, d->shared_max);
        return false;
    }
#ifdef __CUDACC__
    if (smem > 48 << 10)
        return gpu_check(d, op, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
#else
    (void)kernel;
#endif
    return true;
}

/* ---- memory -------------------------------------------------------------------------------------------------------- */

void *gpu_alloc(struct dev *head, size_t bytes)
{
    gpu_dev *d = gpu_of(head);
    void *p = nullptr;
    if (bytes > SIZE_MAX / 2 || cudaMalloc(&p, bytes ? bytes : 1) != cudaSuccess) {
        cudaGetLastError(); /* of memory that is not there: not the device's failure */
        return nullptr;
    }
    gpu_check(d, "alloc", cudaMemsetAsync(p, 0, bytes, d->stream));
    return p;
}

void gpu_free(struct dev *head, void *p)
{
    if (p) gpu_check(gpu_of(head), "free", cudaFree(p));
}

void *gpu_scratch(gpu_dev *d, const char *op, enum area area, size_t bytes)
{
    auto &s = d->scratch[area];
    if (bytes <= s.bytes) return s.p;
    gpu_free(&d->head, s.p);
    s.p = gpu_alloc(&d->head, bytes + bytes / 4);
    s.bytes = s.p ? bytes + bytes / 4 : 0;
    if (!s.p) dev_fail(&d->head, op, "no memory for %zu bytes of scratch", bytes);
    return s.p;
}

/* ---- copies -------------------------------------------------------------------------------------------------------- */

namespace
{

/* Waits, hands results out, and takes the staging memory back. */
bool settle(gpu_dev *d, const char *op)
{
    if (!gpu_check(d, op, cudaStreamSynchronize(d->stream))) return false;
    for (int i = 0; i < d->n_pending; i++)
        if (d->pending[i].sent) memcpy(d->pending[i].host, d->pending[i].pinned, d->pending[i].bytes);
    d->n_pending = 0;
    d->stage_at = 0;
    return true;
}

/* An aligned place of the staging memory, or SIZE_MAX.  What it held before has been copied. */
size_t stage_take(gpu_dev *d, const char *op, size_t bytes)
{
    size_t size = (bytes + STAGE_ALIGN - 1) / STAGE_ALIGN * STAGE_ALIGN;
    if (d->head.error.op) return SIZE_MAX;
    if (size > STAGE_BYTES) {
        dev_fail(&d->head, op, "%zu bytes are more than the %d that a step may send", bytes, (int)STAGE_BYTES);
        return SIZE_MAX;
    }
    if (d->stage_at + size > STAGE_BYTES && !settle(d, op)) return SIZE_MAX;
    size_t at = d->stage_at;
    d->stage_at += size;
    return at;
}

} // namespace

const void *gpu_stage(gpu_dev *d, const char *op, const void *host, size_t bytes)
{
    size_t at = stage_take(d, op, bytes);
    if (at == SIZE_MAX) return nullptr;
    memcpy(d->pinned + at, host, bytes);
    bool ok = gpu_check(
        d, op, cudaMemcpyAsync(d->staged + at, d->pinned + at, bytes, cudaMemcpyHostToDevice, d->stream));
    return ok ? d->staged + at : nullptr;
}

void *gpu_stage_out(gpu_dev *d, const char *op, void *host, size_t bytes)
{
    if (d->n_pending == PENDING_MAX && !settle(d, op)) return nullptr;
    size_t at = stage_take(d, op, bytes);
    if (at == SIZE_MAX) return nullptr;
    d->pending[d->n_pending++] = {host, d->pinned + at, at, bytes, false};
    return d->staged + at;
}

void gpu_send_outs(gpu_dev *d)
{
    for (int i = 0; i < d->n_pending; i++) {
        pending_out *o = &d->pending[i];
        if (o->sent) continue;
        o->sent = true;
        gpu_check(d, "copy", cudaMemcpyAsync(d->pinned + o->at, d->staged + o->at, o->bytes, cudaMemcpyDeviceToHost,
                                             d->stream));
    }
}

/* Small pieces go by the staging memory, so that the caller may change his at once and nobody waits. */
void gpu_upload(struct dev *head, void *device, const void *host, size_t bytes)
{
    gpu_dev *d = gpu_of(head);
    if (bytes == 0) return;
    if (bytes <= STAGE_BYTES / 4) {
        size_t at = stage_take(d, "upload", bytes);
        if (at == SIZE_MAX) return;
        memcpy(d->pinned + at, host, bytes);
        gpu_check(d, "upload", cudaMemcpyAsync(device, d->pinned + at, bytes, cudaMemcpyHostToDevice, d->stream));
        return;
    }
    if (gpu_check(d, "upload", cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, d->stream)))
        settle(d, "upload");
}

void gpu_download(struct dev *head, void *host, const void *device, size_t bytes)
{
    gpu_dev *d = gpu_of(head);
    if (bytes == 0) return;
    if (gpu_check(d, "download", cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, d->stream)))
        settle(d, "download");
}

void gpu_zero(struct dev *head, void *device, size_t bytes)
{
    gpu_dev *d = gpu_of(head);
    if (bytes) gpu_check(d, "zero", cudaMemsetAsync(device, 0, bytes, d->stream));
}

/* ---- the device ---------------------------------------------------------------------------------------------------- */

namespace
{

int gpu_finish(struct dev *head)
{
    gpu_dev *d = gpu_of(head);
    if (!head->error.op) settle(d, "finish");
    if (head->error.op) {
        d->n_pending = 0;
        return -1;
    }
    return 0;
}

void gpu_close(struct dev *head)
{
    gpu_dev *d = gpu_of(head);
    cudaSetDevice(d->index);
    lt_close(d);
    for (auto &s : d->scratch) cudaFree(s.p);
    if (d->staged) cudaFree(d->staged);
    if (d->pinned) cudaFreeHost(d->pinned);
    if (d->stream) cudaStreamDestroy(d->stream);
    free(d->pending);
    free(d);
}

void fill_table(struct dev_ops *o)
{
    o->name = DEVICE_NAME;
    o->host_memory = false;
#define X(op) o->op = gpu_##op;
    OPS(X)
#undef X
    o->weight_pack = gpu_weight_pack;
    o->weight_free = gpu_weight_free;
    o->weight_update = gpu_weight_update;
    o->weight_bytes = gpu_weight_bytes;
    o->bf16_units = true;
    o->kv_type = DT_BF16;
    o->kv_page_bytes = gpu_kv_page_bytes;
    o->kv_open = gpu_kv_open;
    o->kv_close = gpu_kv_close;
    o->alloc = gpu_alloc;
    o->free = gpu_free;
    o->upload = gpu_upload;
    o->download = gpu_download;
    o->zero = gpu_zero;
    o->finish = gpu_finish;
    o->close = gpu_close;
}

struct dev *gpu_open(int index, char why[160])
{
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || index < 0 || index >= n) {
        if (e != cudaSuccess)
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
    cudaDeviceProp p;
    void *pinned = nullptr, *staged = nullptr;
    d->pending = static_cast<pending_out *>(calloc(PENDING_MAX, sizeof *d->pending));
    bool ok = d->pending && (e = cudaSetDevice(index)) == cudaSuccess &&
              (e = cudaGetDeviceProperties(&p, index)) == cudaSuccess &&
              (e = cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking)) == cudaSuccess &&
              (e = cudaMallocHost(&pinned, STAGE_BYTES)) == cudaSuccess &&
              (e = cudaMalloc(&staged, STAGE_BYTES)) == cudaSuccess;
    d->pinned = static_cast<uint8_t *>(pinned);
    d->staged = static_cast<uint8_t *>(staged);
    if (!ok) {
        snprintf(why, 160, "CUDA device %d: %s", index, cudaGetErrorString(e));
        gpu_close(&d->head);
        cudaGetLastError();
        return nullptr;
    }
    if (!lt_open(d, p.name, why)) {
        gpu_close(&d->head);
        return nullptr;
    }
    d->n_sm = p.multiProcessorCount;
    d->shared_max = p.sharedMemPerBlockOptin;
    snprintf(d->head.level, sizeof d->head.level, "sm_%d%d", p.major, p.minor);
    return &d->head;
}

} // namespace
} // namespace GPU_NAMESPACE

#ifdef __CUDACC__
struct dev *cuda_open(int index, char why[160])
{
    return GPU_NAMESPACE::gpu_open(index, why);
}
#else
struct dev *simt_open(char why[160])
{
    return GPU_NAMESPACE::gpu_open(0, why);
}
#endif
