/* Which algorithm is fastest: found by trying the library's suggestions. */
#include "kernels/cuda/lt_state.h"

#include <algorithm>
#include <cstring>
#include <ctime>

namespace GPU_NAMESPACE {
namespace {

enum {
    TIMED_RUNS = 3, /* of each, where one is short */
    LONG_TRIES = 3  /* suggestions that are tried where a run is long */
};
const float LONG_MS = 5;

/* Milliseconds of a product, or -1 when it cannot run.  A run that is long, or twice as long as best (-1: none yet), is
 * not repeated.  The one before it is not timed: the library may have to load its kernel. */
float time_algo(gpu_dev *d, const char *op, const lt_plan *p, const lt_args *a, const cublasLtMatmulAlgo_t *algo,
                const cudaEvent_t (&at)[2], float best)
{
    float ms = -1;
    cublasStatus_t s = lt_run(d, p, a, algo);
    for (int runs = 1;; runs = TIMED_RUNS) {
        if (s == CUBLAS_STATUS_SUCCESS && !gpu_check(d, op, cudaEventRecord(at[0], d->stream))) return -1;
        for (int i = 0; i < runs && s == CUBLAS_STATUS_SUCCESS; i++) s = lt_run(d, p, a, algo);
        if (lt_refuses(s) || !lt_check(d, op, s)) return -1;
        if (!gpu_check(d, op, cudaEventRecord(at[1], d->stream)) || !gpu_check(d, op, cudaEventSynchronize(at[1])) ||
            !gpu_check(d, op, cudaEventElapsedTime(&ms, at[0], at[1])))
            return -1;
        ms /= (float)runs;
        if (runs > 1 || ms > LONG_MS || (best >= 0 && ms > 2 * best)) return ms;
    }
}

} // namespace

bool lt_try(gpu_dev *d, const char *op, lt_plan *p, const lt_args *a)
{
    cublasLtMatmulHeuristicResult_t r[LT_TRIES];
    cudaEvent_t at[2] = {};
    int n = lt_suggestions(d, op, p, r, LT_TRIES);
    float best = -1;
    for (cudaEvent_t &e : at)
        if (d->head.error.op || !gpu_check(d, op, cudaEventCreateWithFlags(&e, 0))) n = 0;
    for (int i = 0; i < n && !d->head.error.op; i++) {
        if (r[i].state != CUBLAS_STATUS_SUCCESS || r[i].workspaceSize > LT_WORKSPACE) continue;
        if (best > LONG_MS && i >= LONG_TRIES) break;
        float ms = time_algo(d, op, p, a, &r[i].algo, at, best);
        if (ms < 0 || (best >= 0 && ms >= best)) continue;
        best = ms;
        p->algo = r[i].algo;
    }
    for (cudaEvent_t e : at)
        if (e) cudaEventDestroy(e);
    p->refused = best < 0;
    return !d->head.error.op;
}

/* ---- what reserve was shown
 * ------------------------------------------------------------------------------------------
 */

namespace {

enum { PLACE_ALIGN = 256 };
const size_t LEAST_MEMORY = 1 << 20;

double work_of(const lt_args *a)
{
    return (double)a->M * a->N * a->K;
}

size_t rounded(size_t bytes)
{
    return (bytes + 2 * PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN; /* and room for a worse alignment */
}

struct places {
    size_t a, b, c, bias, end;
};

/* where a product's matrices are in memory of its own, in bytes */
places places_of(const lt_args *p)
{
    places at = {};
    at.b = at.a + rounded(dtype_bytes(p->t, (size_t)(p->ta ? p->K : p->M) * (size_t)p->lda));
    at.c = at.b + rounded(dtype_bytes(p->t, (size_t)(p->tb ? p->N : p->K) * (size_t)p->ldb));
    at.bias = at.c + rounded((size_t)p->M * (size_t)p->ldc * 4);
    at.end = at.bias + rounded(p->bias ? (size_t)p->N * sizeof(float) : 0);
    return at;
}

/* The product of a wish with its matrices in `memory`, aligned no better than in the class. */
lt_args placed(const lt_wish *w, uint8_t *memory)
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

/* Memory for the largest wish, or for as large a one as there is room for.  NULL: for none. */
uint8_t *take_memory(gpu_dev *d, lt_wish *const *wish, int n, size_t *bytes)
{
    size_t room = d->budget - d->used;
    for (;;) {
        *bytes = 0;
        for (int i = 0; i < n; i++) {
            size_t end = places_of(&wish[i]->a).end;
            if (end <= room && end > *bytes) *bytes = end;
        }
        if (!*bytes) return nullptr;
        if (void *p = gpu_alloc(&d->head, *bytes)) return static_cast<uint8_t *>(p);
        if (d->head.error.op || *bytes < LEAST_MEMORY) return nullptr;
        room = *bytes / 2; /* the budget has room, the device has not in one piece */
    }
}

double now()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

} // namespace

void lt_wish_for(gpu_dev *d, const lt_args *a)
{
    lt_state *s = lt_state_of(d);
    if (!s->tries) return;
    lt_key key = lt_key_of(a);
    lt_class c = lt_class_of(&key);
    uint32_t h = lt_hash(&c.t, sizeof c / sizeof(int));
    for (uint32_t i = 0; i < LT_CLASSES / 2; i++) {
        lt_wish *w = s->wishes + (h + i) % LT_CLASSES;
        if (w->used && memcmp(&w->c, &c, sizeof c) != 0) continue;
        if (!w->used || work_of(a) > work_of(&w->a)) *w = {c, true, *a};
        return;
    }
}

void lt_forget_wishes(gpu_dev *d)
{
    for (lt_wish &w : lt_state_of(d)->wishes) w.used = false;
}

void lt_tune(gpu_dev *d, double seconds)
{
    static const char op[] = "cuBLASLt's trying";
    lt_state *s = lt_state_of(d);
    lt_wish *wish[LT_CLASSES];
    int n = 0, found = 0;
    for (lt_wish &w : s->wishes) {
        lt_found *f = w.used ? lt_class_find(s, &w.c) : nullptr;
        if (f && !f->used) wish[n++] = &w;
    }
    std::sort(wish, wish + n, [](const lt_wish *a, const lt_wish *b) { return work_of(&a->a) > work_of(&b->a); });
    size_t bytes = 0;
    uint8_t *memory = n && !d->head.error.op ? take_memory(d, wish, n, &bytes) : nullptr;
    /* anything but zeros, on which multipliers take less power than in use */
    if (memory) gpu_check(d, op, cudaMemsetAsync(memory, 0x3c, bytes, d->stream));
    double end = now() + seconds;
    for (int i = 0; memory && i < n && !d->head.error.op && now() < end; i++) {
        if (places_of(&wish[i]->a).end > bytes) continue;
        lt_args a = placed(wish[i], memory);
        lt_key key = lt_key_of(&a);
        lt_plan *p = lt_plan_get(d, op, &a, &key);
        if (!p || !lt_set_bias(d, op, p, a.bias) || !lt_try(d, op, p, &a)) break;
        lt_found *f = lt_class_find(s, &wish[i]->c);
        if (f) *f = {wish[i]->c, true, p->refused, p->algo};
        p->settled = p->chosen = true;
        found += f && !p->refused;
    }
    gpu_free(&d->head, memory);
    if (found) lt_save_found(s);
}

} // namespace GPU_NAMESPACE
