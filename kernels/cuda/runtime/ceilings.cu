/* Peak rates of the GPU, timed by CUDA events: device-to-device copies, and large GEMMs by cuBLASLt. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm/lt.h"
#include "kernels/cuda/runtime/ceilings.h"

#include <algorithm>

namespace GPU_NAMESPACE {
namespace {

#ifdef __CUDACC__
enum { SIDE = 8192, SIDE_F32 = 4096, SIDE_MIN = 1024, RUNS = 10, ROUNDS = 7, WARM_UPS = 3 };
const size_t COPY_MAX = SIZE_MAX;
#else /* the figures mean nothing */
enum { SIDE = 64, SIDE_F32 = 32, SIDE_MIN = 32, RUNS = 1, ROUNDS = 1, WARM_UPS = 1 };
const size_t COPY_MAX = 1 << 20;
#endif

/* Seconds per call of fn: the median of ROUNDS measurements of RUNS calls each; 0 when the device has failed. */
template <class F> double seconds_of(gpu_dev *d, F fn)
{
    cudaEvent_t from, to;
    double took[ROUNDS] = {};
    bool ok = gpu_check(d, "ceilings", cudaEventCreateWithFlags(&from, 0));
    if (!ok) return 0;
    ok = gpu_check(d, "ceilings", cudaEventCreateWithFlags(&to, 0));
    for (int i = 0; i < WARM_UPS && ok; i++) ok = fn();
    for (int round = 0; round < ROUNDS && ok; round++) {
        float ms = 0;
        cudaEventRecord(from, d->stream);
        for (int i = 0; i < RUNS && ok; i++) ok = fn();
        cudaEventRecord(to, d->stream);
        ok = ok && gpu_check(d, "ceilings", cudaEventSynchronize(to)) &&
             gpu_check(d, "ceilings", cudaEventElapsedTime(&ms, from, to));
        took[round] = (double)ms * 1e-3 / (double)RUNS;
    }
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    std::sort(took, took + ROUNDS);
    return ok ? took[ROUNDS / 2] : 0;
}

/* Fills with random values: with zeros the multipliers use less power, and so run faster, than in real use. */
void fill(gpu_dev *d, void *p, size_t bytes, enum dtype t)
{
    enum { CHUNK = 1 << 20 };
    static uint32_t chunk[CHUNK / 4];
    uint32_t state = 1;
    for (uint32_t &w : chunk) {
        state = state * 1664525u + 1013904223u;
        w = t == DT_I8     ? state ^ state >> 15
            : t == DT_BF16 ? (state & 0x807f807fu) | 0x3f003f00u /* 0.5 to 1, of both signs */
                           : (state & 0x807fffffu) | 0x3f000000u;
    }
    for (size_t at = 0; at < bytes; at += CHUNK)
        gpu_upload(&d->head, static_cast<uint8_t *>(p) + at, chunk, std::min((size_t)CHUNK, bytes - at));
}

/* Multiply-adds per second of the GEMM of two square matrices; 0 when out of memory or the device has failed. */
double gemm_rate(gpu_dev *d, enum dtype t, int side)
{
    size_t n = (size_t)side * (size_t)side, bytes = dtype_bytes(t, n);
    void *a = gpu_alloc(&d->head, bytes), *b = gpu_alloc(&d->head, bytes), *c = gpu_alloc(&d->head, n * 4);
    double seconds = 0;
    if (a && b && c) {
        fill(d, a, bytes, t);
        fill(d, b, bytes, t);
        lt_args args = {t, side, side, side, a, side, false, b, side, true, c, side, 1, 0, 0};
        seconds = seconds_of(d, [&] { return lt_multiply(d, "ceilings", &args); });
    }
    bool room = a && b && c;
    gpu_free(&d->head, a);
    gpu_free(&d->head, b);
    gpu_free(&d->head, c);
    if (!room && side > SIDE_MIN) return gemm_rate(d, t, side / 2);
    return seconds > 0 ? (double)n * side / seconds : 0;
}

} // namespace

static int gpu_ceilings(struct dev *head, size_t bytes, struct ceilings *out)
{
    gpu_dev *d = gpu_of(head);
    size_t half = std::min(bytes, COPY_MAX) / 2;
    uint8_t *p = static_cast<uint8_t *>(gpu_alloc(head, 2 * half));
    if (!p) return -1;
    double seconds = seconds_of(d, [&] {
        return gpu_check(d, "ceilings", cudaMemcpyAsync(p + half, p, half, cudaMemcpyDeviceToDevice, d->stream));
    });
    gpu_free(head, p);
    out->read_bytes = 2 * half;
    out->read_bytes_per_s = seconds > 0 ? (double)(2 * half) / seconds : 0;
    out->int8_macs_per_s = out->int4_macs_per_s = gemm_rate(d, DT_I8, SIDE);
    out->bf16_macs_per_s = gemm_rate(d, DT_BF16, SIDE);
    out->f32_macs_per_s = gemm_rate(d, DT_F32, SIDE_F32);
    return 0;
}

} // namespace GPU_NAMESPACE

#ifdef __CUDACC__
int cuda_ceilings(struct dev *d, size_t bytes, struct ceilings *out)
#else
int simt_ceilings(struct dev *d, size_t bytes, struct ceilings *out)
#endif
{
    return GPU_NAMESPACE::gpu_ceilings(d, bytes, out);
}
