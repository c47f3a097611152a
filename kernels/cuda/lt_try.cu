/* Which algorithm is fastest: found by trying the library's suggestions. */
#include "kernels/cuda/lt_state.h"

namespace GPU_NAMESPACE {
namespace {

enum { TIMED_RUNS = 3 }; /* of each */

/* Milliseconds of TIMED_RUNS products, or -1 when it cannot run. */
float time_algo(gpu_dev *d, const char *op, const lt_plan *p, const lt_args *a, const cublasLtMatmulAlgo_t *algo,
                cudaEvent_t from, cudaEvent_t to)
{
    float ms = -1;
    cublasStatus_t s = lt_run(d, p, a, algo);
    if (s == CUBLAS_STATUS_SUCCESS && gpu_check(d, op, cudaEventRecord(from, d->stream)))
        for (int i = 0; i < TIMED_RUNS && s == CUBLAS_STATUS_SUCCESS; i++) s = lt_run(d, p, a, algo);
    if (lt_refuses(s) || !lt_check(d, op, s)) return -1;
    bool ok = gpu_check(d, op, cudaEventRecord(to, d->stream)) && gpu_check(d, op, cudaEventSynchronize(to)) &&
              gpu_check(d, op, cudaEventElapsedTime(&ms, from, to));
    return ok ? ms : -1;
}

} // namespace

bool lt_try(gpu_dev *d, const char *op, lt_plan *p, const lt_args *a)
{
    cublasLtMatmulHeuristicResult_t r[LT_TRIES];
    cudaEvent_t from = nullptr, to = nullptr;
    int n = lt_suggestions(d, op, p, r, LT_TRIES);
    float best = -1;
    if (d->head.error.op || !gpu_check(d, op, cudaEventCreateWithFlags(&from, 0)) ||
        !gpu_check(d, op, cudaEventCreateWithFlags(&to, 0)))
        n = 0;
    for (int i = 0; i < n && !d->head.error.op; i++) {
        if (r[i].state != CUBLAS_STATUS_SUCCESS || r[i].workspaceSize > LT_WORKSPACE) continue;
        float ms = time_algo(d, op, p, a, &r[i].algo, from, to);
        if (ms < 0 || (best >= 0 && ms >= best)) continue;
        best = ms;
        p->algo = r[i].algo;
    }
    if (from) cudaEventDestroy(from);
    if (to) cudaEventDestroy(to);
    p->refused = best < 0;
    return !d->head.error.op;
}

} // namespace GPU_NAMESPACE
