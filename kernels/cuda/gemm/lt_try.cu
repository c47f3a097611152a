/* Autotuning: finds the fastest of the library's suggestions by timing them. */
#include "kernels/cuda/gemm/lt_state.h"

#include <algorithm>
#include <cstring>
#include <ctime>

namespace GPU_NAMESPACE {
namespace {

enum {
    TIMED_RUNS = 3, /* runs of each suggestion, when a run is short */
    LONG_TRIES = 3  /* suggestions that are timed when a run is long */
};
const float LONG_MS = 5;

struct stopwatch {
    cudaEvent_t at[2];
};

bool stopwatch_open(gpu_dev *d, const char *op, stopwatch *w)
{
    *w = {};
    return !d->head.error.op && gpu_check(d, op, cudaEventCreateWithFlags(&w->at[0], 0)) &&
           gpu_check(d, op, cudaEventCreateWithFlags(&w->at[1], 0));
}

void stopwatch_close(stopwatch *w)
{
    for (cudaEvent_t e : w->at)
        if (e) cudaEventDestroy(e);
}

/* Milliseconds of the work that run enqueues, the shortest of several, or -1 when run returns that it cannot or the
 * device has failed. A run that is long, or twice as long as best (-1: none yet), is not repeated. A first run is
 * not timed: the library may have to load its kernel. In a real step the matrices come from memory, so the cache is
 * overwritten before each run, where there is memory for that. */
template <class F> float time_runs(gpu_dev *d, const char *op, const stopwatch *w, float best, F run)
{
    const lt_state *s = lt_state_of(d);
    const cudaEvent_t *at = w->at;
    float least = -1;
    if (!run()) return -1;
    for (int i = 0; i < TIMED_RUNS; i++) {
        float ms = 0;
        if (s->cold && !gpu_check(d, op, cudaMemsetAsync(s->cold, 0, d->l2_bytes, d->stream))) return -1;
        if (!gpu_check(d, op, cudaEventRecord(at[0], d->stream)) || !run() ||
            !gpu_check(d, op, cudaEventRecord(at[1], d->stream)) || !gpu_check(d, op, cudaEventSynchronize(at[1])) ||
            !gpu_check(d, op, cudaEventElapsedTime(&ms, at[0], at[1])))
            return -1;
        if (least < 0 || ms < least) least = ms;
        if (ms > LONG_MS || (best >= 0 && ms > 2 * best)) break;
    }
    return least;
}

} // namespace

bool lt_try(gpu_dev *d, const char *op, lt_plan *p, const lt_args *a)
{
    cublasLtMatmulHeuristicResult_t r[LT_TRIES];
    stopwatch w;
    int n = lt_suggestions(d, op, p, r, LT_TRIES);
    float best = -1;
    if (!stopwatch_open(d, op, &w)) n = 0;
    for (int i = 0; i < n && !d->head.error.op; i++) {
        if (best > LONG_MS && i >= LONG_TRIES) break;
        float ms = time_runs(d, op, &w, best, [&] {
            bool ran = lt_run(d, p, a, &r[i].algo) == CUBLAS_STATUS_SUCCESS;
            if (!ran) cudaGetLastError(); /* clears the error of this suggestion; a failed device keeps its own */
            return ran;
        });
        if (ms < 0 || (best >= 0 && ms >= best)) continue;
        best = ms;
        p->algo = r[i].algo;
    }
    stopwatch_close(&w);
    p->refused = best < 0;
    return !d->head.error.op;
}

/* ---- requests recorded in reserve ------------------------------------------------------------------------------- */

namespace {

enum { OPERAND_ALIGN = 256 };
const size_t LEAST_MEMORY = 1 << 20;

double work_of(const lt_request *w)
{
    return w->c.t == LT_RACE ? (double)w->race.M * w->race.N * w->race.K : (double)w->a.M * w->a.N * w->a.K;
}

size_t rounded(size_t bytes)
{
    return (bytes + 2 * OPERAND_ALIGN - 1) / OPERAND_ALIGN * OPERAND_ALIGN; /* and room to misalign the matrix */
}

struct places {
    size_t a, b, c, bias, end;
};

/* Offsets, in bytes, of the matrices of a GEMM in memory of its own. */
places places_of(const lt_args *p)
{
    places at = {};
    at.b = at.a + rounded(dtype_bytes(p->t, (size_t)(p->ta ? p->K : p->M) * (size_t)p->lda));
    at.c = at.b + rounded(dtype_bytes(p->t, (size_t)(p->tb ? p->N : p->K) * (size_t)p->ldb));
    at.bias = at.c + rounded((size_t)p->M * (size_t)p->ldc * 4);
    at.end = at.bias + rounded(p->bias ? (size_t)p->N * sizeof(float) : 0);
    return at;
}

size_t memory_of(const lt_request *w)
{
    return w->c.t == LT_RACE ? w->race.bytes : places_of(&w->a).end;
}

/* The GEMM of a request with its matrices in `memory`, aligned no better than in the class. */
lt_args operands_in(const lt_request *w, uint8_t *memory)
{
    lt_args a = w->a;
    places at = places_of(&a);
    auto worse = [](int align) { return align < 16 ? align : 0; };
    a.a = memory + at.a + worse(w->c.align_a);
    a.b = memory + at.b + worse(w->c.align_b);
    a.c = memory + at.c + worse(w->c.align_c);
    if (a.bias) a.bias = reinterpret_cast<const float *>(memory + at.bias);
    return a;
}

/* Allocates memory for the largest request, or for as large a one as fits. NULL: none fits. */
uint8_t *take_memory(gpu_dev *d, lt_request *const *request, int n, size_t *bytes)
{
    size_t room = d->largest;
    for (;;) {
        *bytes = 0;
        for (int i = 0; i < n; i++) {
            size_t end = memory_of(request[i]);
            if (end <= room && end > *bytes) *bytes = end;
        }
        if (!*bytes) return nullptr;
        if (void *p = gpu_alloc(&d->head, *bytes)) return static_cast<uint8_t *>(p);
        if (d->head.error.op || *bytes < LEAST_MEMORY) return nullptr;
        room = *bytes / 2; /* within the budget, but the device has no block of this size */
    }
}

double now()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

} // namespace

void lt_request_add(gpu_dev *d, const lt_request *shown)
{
    lt_state *s = lt_state_of(d);
    if (!s->tries) return;
    uint32_t h = lt_hash(&shown->c.t, sizeof shown->c / sizeof(int));
    for (uint32_t i = 0; i < LT_CLASSES / 2; i++) {
        lt_request *w = s->requests + (h + i) % LT_CLASSES;
        if (w->used && memcmp(&w->c, &shown->c, sizeof w->c) != 0) continue;
        if (!w->used || work_of(shown) > work_of(w)) *w = *shown;
        return;
    }
}

void lt_requests_clear(gpu_dev *d)
{
    for (lt_request &w : lt_state_of(d)->requests) w.used = false;
}

namespace {

const char op[] = "cuBLASLt's trying";

bool is_known(lt_state *s, const lt_request *w)
{
    return lt_class_find(s, &w->c) != nullptr;
}

/* Autotunes one shape requested during reserve(). @return false when the device has failed. */
bool try_request(gpu_dev *d, const lt_request *w, uint8_t *memory)
{
    lt_state *s = lt_state_of(d);
    cublasLtMatmulAlgo_t algo = {};
    bool refused = false;
    if (w->c.t == LT_RACE) {
        stopwatch watch;
        float ms[2] = {-1, -1};
        bool ok = stopwatch_open(d, op, &watch);
        for (int way = 0; ok && way < 2; way++)
            ms[way] = time_runs(d, op, &watch, -1, [&] {
                w->race.run(d, op, &w->race, memory, way);
                return !d->head.error.op;
            });
        stopwatch_close(&watch);
        algo.data[0] = ms[1] < ms[0];
    } else {
        lt_args a = operands_in(w, memory);
        lt_key key = lt_key_of(&a);
        lt_plan *p = lt_plan_get(d, op, &a, &key);
        if (!p || !lt_set_bias(d, op, p, a.bias) || !lt_try(d, op, p, &a)) return false;
        p->settled = p->chosen = true;
        refused = p->refused;
        algo = p->algo;
    }
    if (d->head.error.op) return false;
    lt_class_note(s, &w->c, refused, &algo);
    if (!refused || !w->c.bias) return true;
    lt_request without = *w; /* the case in which lt_multiply adds the bias itself */
    without.a.bias = nullptr;
    without.c.bias = 0;
    return is_known(s, &without) || try_request(d, &without, memory);
}

} // namespace

void lt_tune(gpu_dev *d, double seconds)
{
    lt_state *s = lt_state_of(d);
    lt_request *request[LT_CLASSES];
    int n = 0;
    for (lt_request &w : s->requests)
        if (w.used && !is_known(s, &w)) request[n++] = &w;
    std::sort(request, request + n, [](const lt_request *a, const lt_request *b) { return work_of(a) > work_of(b); });
    size_t bytes = 0;
    uint8_t *memory = n && !d->head.error.op ? take_memory(d, request, n, &bytes) : nullptr;
    if (!memory) return;
    /* Any value but zeros, with which multipliers use less power, and so clock higher, than in real use. */
    bool ok = gpu_check(d, op, cudaMemsetAsync(memory, 0x3c, bytes, d->stream));
    double end = now() + seconds;
    s->tuning = true;
    s->cold = gpu_alloc(&d->head, d->l2_bytes);
    for (int i = 0; ok && i < n && now() < end; i++)
        if (memory_of(request[i]) <= bytes && !is_known(s, request[i])) ok = try_request(d, request[i], memory);
    s->tuning = false;
    gpu_free(&d->head, s->cold);
    s->cold = nullptr;
    gpu_free(&d->head, memory);
    lt_save_found(s);
}

} // namespace GPU_NAMESPACE
