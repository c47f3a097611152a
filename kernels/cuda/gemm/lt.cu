/* See lt.h. A row-major C = op(A) op(B) is a column-major C' = op(B)' op(A)': cuBLASLt's first matrix is our b, and
 * its rows are our columns. */
#include "kernels/cuda/gemm/lt_state.h"

#ifdef __CUDACC__
#include <dlfcn.h>
#endif

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace GPU_NAMESPACE {

/* Whether the library rejects this shape. INVALID_VALUE counts too: some shapes return it in place of NOT_SUPPORTED.
 * A failure of the device has other status codes. */
bool lt_refuses(cublasStatus_t s)
{
    return s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE || s == CUBLAS_STATUS_ARCH_MISMATCH;
}

bool lt_check(gpu_dev *d, const char *op, cublasStatus_t s)
{
    if (s == CUBLAS_STATUS_SUCCESS) return true;
    dev_fail(&d->head, op, "cuBLASLt: %s", lt_state_of(d)->f.GetStatusString(s));
    return false;
}

/* ---- shapes --------------------------------------------------------------------------------------------------------
 */

namespace {

/* Rounds up to a multiple of a quarter of the largest power of two not above n. */
int round_extent(int n)
{
    int unit = 1;
    while (unit <= n / 8) unit *= 2;
    return n > INT32_MAX - unit ? n : (n + unit - 1) / unit * unit;
}

/* Alignment of the data at p with lines of `line` bytes. */
int alignment(const void *p, size_t line)
{
    size_t n = (size_t)(uintptr_t)p | line;
    return n % 16 == 0 ? 16 : n % 8 == 0 ? 8 : n % 4 == 0 ? 4 : n % 2 == 0 ? 2 : 1;
}

} // namespace

lt_key lt_key_of(const lt_args *a)
{
    size_t one = dtype_bytes(a->t, 1), k = a->t == DT_I8 ? (size_t)a->K : 0, n = a->t == DT_I8 ? (size_t)a->N : 0;
    lt_class c = {.t = a->t,
                  .ta = a->ta,
                  .tb = a->tb,
                  .align_a = alignment(a->a, (size_t)a->lda * one | k),
                  .align_b = alignment(a->b, (size_t)a->ldb * one | k),
                  .align_c = alignment(a->c, ((size_t)a->ldc | n) * 4),
                  .adds = a->t != DT_I8 && a->beta != 0,
                  .bias = a->bias != nullptr,
                  .M = a->M,
                  .N = a->N,
                  .K = a->K};
    return {c, a->lda, a->ldb, a->ldc, a->whole ? a->whole : a->N};
}

lt_class lt_class_of(const lt_key *k)
{
    lt_class c = k->c;
    c.M = round_extent(c.M), c.N = round_extent(k->whole), c.K = round_extent(c.K);
    return c;
}

lt_class lt_race_class(const lt_race *r)
{
    return {.t = LT_RACE, .M = round_extent(r->M), .N = round_extent(r->N), .K = round_extent(r->K)};
}

/* ---- plans ---------------------------------------------------------------------------------------------------------
 */

namespace {

void plan_clear(lt_state *s, lt_plan *p)
{
    if (p->desc) s->f.MatmulDescDestroy(p->desc);
    for (cublasLtMatrixLayout_t l : {p->a, p->b, p->c})
        if (l) s->f.MatrixLayoutDestroy(l);
    *p = {};
}

/* Describes a row-major (rows, cols) matrix with lines ld apart in the library's column-major terms. */
bool make_layout(gpu_dev *d, const char *op, cublasLtMatrixLayout_t *l, cudaDataType_t t, int rows, int cols, int ld)
{
    return lt_check(d, op, lt_state_of(d)->f.MatrixLayoutCreate(l, t, (uint64_t)cols, (uint64_t)rows, (int64_t)ld));
}

template <class T> bool set_desc(gpu_dev *d, const char *op, lt_plan *p, cublasLtMatmulDescAttributes_t which, T v)
{
    return lt_check(d, op, lt_state_of(d)->f.MatmulDescSetAttribute(p->desc, which, &v, sizeof v));
}

} // namespace

/* Heuristics depend on the alignment of the bias pointer, so set a bias before asking for suggestions. */
bool lt_set_bias(gpu_dev *d, const char *op, lt_plan *p, const float *bias)
{
    if (p->bias == bias) return true;
    p->bias = nullptr;
    if (!set_desc(d, op, p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void *>(bias))) return false;
    p->bias = bias;
    return true;
}

lt_plan *lt_plan_get(gpu_dev *d, const char *op, const lt_args *a, const lt_key *key)
{
    lt_state *s = lt_state_of(d);
    lt_plan *p = s->plans + lt_hash(&key->c.t, sizeof *key / sizeof(int)) % LT_PLANS;
    if (p->used && !memcmp(&p->key, key, sizeof *key)) return p;
    plan_clear(s, p);
    cudaDataType_t t = a->t == DT_F32    ? CUDA_R_32F
                       : a->t == DT_BF16 ? CUDA_R_16BF
                       : a->t == DT_F16  ? CUDA_R_16F
                                         : CUDA_R_8I;
    bool whole = t == CUDA_R_8I;
    cudaDataType_t sum = whole ? CUDA_R_32I : CUDA_R_32F;
    cublasComputeType_t compute = whole ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F;
    /* the library's op on our b, whose row-major (K, N) it reads as (N, K) */
    bool ok = lt_check(d, op, s->f.MatmulDescCreate(&p->desc, compute, sum)) &&
              set_desc(d, op, p, CUBLASLT_MATMUL_DESC_TRANSA, (int32_t)(a->tb ? CUBLAS_OP_T : CUBLAS_OP_N)) &&
              set_desc(d, op, p, CUBLASLT_MATMUL_DESC_TRANSB, (int32_t)(a->ta ? CUBLAS_OP_T : CUBLAS_OP_N)) &&
              make_layout(d, op, &p->a, t, a->tb ? a->N : a->K, a->tb ? a->K : a->N, a->ldb) &&
              make_layout(d, op, &p->b, t, a->ta ? a->K : a->M, a->ta ? a->M : a->K, a->lda) &&
              make_layout(d, op, &p->c, sum, a->M, a->N, a->ldc);
    if (ok && a->bias)
        ok = set_desc(d, op, p, CUBLASLT_MATMUL_DESC_EPILOGUE, (uint32_t)CUBLASLT_EPILOGUE_BIAS) &&
             set_desc(d, op, p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, (int32_t)CUDA_R_32F);
    if (!ok) {
        plan_clear(s, p);
        return nullptr;
    }
    p->key = *key;
    p->used = true;
    return p;
}

cublasStatus_t lt_run(gpu_dev *d, const lt_plan *p, const lt_args *a, const cublasLtMatmulAlgo_t *algo)
{
    lt_state *s = lt_state_of(d);
    int32_t one = 1, none = 0;
    bool whole = a->t == DT_I8;
    const void *alpha = whole ? (const void *)&one : &a->alpha, *beta = whole ? (const void *)&none : &a->beta;
    cublasStatus_t e = s->f.Matmul(s->handle, p->desc, alpha, a->b, p->a, a->a, p->b, beta, a->c, p->c, a->c, p->c,
                                   algo, s->workspace, LT_WORKSPACE, d->stream);
    if (lt_refuses(e)) cudaGetLastError(); /* or the next launch would report the error of this attempt */
    return e;
}

int lt_suggestions(gpu_dev *d, const char *op, const lt_plan *p, cublasLtMatmulHeuristicResult_t *r, int wanted)
{
    lt_state *s = lt_state_of(d);
    const lt_class *c = &p->key.c;
    uint64_t bytes = LT_WORKSPACE;
    int n = 0;
    const struct {
        cublasLtMatmulPreferenceAttributes_t which;
        int align;
    } each[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, c->align_b},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, c->align_a},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c->align_c},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c->align_c}};
    if (!lt_check(d, op,
                  s->f.MatmulPreferenceSetAttribute(s->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                                    sizeof bytes)))
        return 0;
    for (const auto &one : each) {
        uint32_t align = (uint32_t)one.align;
        if (!lt_check(d, op, s->f.MatmulPreferenceSetAttribute(s->preference, one.which, &align, sizeof align)))
            return 0;
    }
    cublasStatus_t e =
        s->f.MatmulAlgoGetHeuristic(s->handle, p->desc, p->a, p->b, p->c, p->c, s->preference, wanted, r, &n);
    if (lt_refuses(e) || !lt_check(d, op, e)) return 0;
    int good = 0;
    for (int i = 0; i < n; i++)
        if (r[i].state == CUBLAS_STATUS_SUCCESS && r[i].workspaceSize <= LT_WORKSPACE) r[good++] = r[i];
    return good;
}

/* ---- choosing ------------------------------------------------------------------------------------------------------
 */

namespace {

bool fits(gpu_dev *d, const lt_plan *p, const cublasLtMatmulAlgo_t *algo)
{
    lt_state *s = lt_state_of(d);
    cublasLtMatmulHeuristicResult_t r;
    return s->f.MatmulAlgoCheck(s->handle, p->desc, p->a, p->b, p->c, p->c, algo, &r) == CUBLAS_STATUS_SUCCESS &&
           r.workspaceSize <= LT_WORKSPACE;
}

/* Whether autotuning is possible: C may be written several times, and the stream may be synchronised. */
bool may_try(gpu_dev *d, const lt_plan *p)
{
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    return lt_state_of(d)->tries && !p->key.c.adds && cudaStreamIsCapturing(d->stream, &capturing) == cudaSuccess &&
           capturing == cudaStreamCaptureStatusNone;
}

void note_class(lt_state *s, const lt_class *c, const lt_plan *p)
{
    lt_class_note(s, c, p->refused, &p->algo);
    if (s->tries && !s->tuning && !p->refused) lt_save_found(s);
}

/* Sets p's algorithm, or marks it refused. While autotuning is not possible p gets the first suggestion, and is
 * tuned later. @return false when the device has failed. */
bool choose(gpu_dev *d, const char *op, lt_plan *p, const lt_args *a)
{
    lt_state *s = lt_state_of(d);
    lt_class c = lt_class_of(&p->key);
    const lt_found *f = lt_class_find(s, &c);
    if (f && f->refused) {
        p->refused = p->settled = true;
    } else if (f && fits(d, p, &f->algo)) {
        p->algo = f->algo;
        p->settled = true;
    } else if (!f && may_try(d, p)) {
        if (!lt_try(d, op, p, a)) return false;
        p->settled = true;
        note_class(s, &c, p);
    } else if (!p->chosen) {
        cublasLtMatmulHeuristicResult_t r;
        p->refused = lt_suggestions(d, op, p, &r, 1) == 0;
        if (d->head.error.op) return false;
        if (!p->refused) p->algo = r.algo;
        p->settled = !s->tries || p->key.c.adds || f || p->refused;
        if (p->refused && !f) note_class(s, &c, p);
    }
    return p->chosen = true;
}

/* p's algorithm was refused at run time: runs the GEMM with the first suggestion that is not, which p keeps. @return
 * false when there is none, or the device has failed. */
bool run_another(gpu_dev *d, const char *op, lt_plan *p, const lt_args *a)
{
    cublasLtMatmulHeuristicResult_t r[LT_TRIES];
    int n = lt_suggestions(d, op, p, r, LT_TRIES);
    p->settled = true;
    for (int i = 0; i < n; i++) {
        cublasStatus_t e = lt_run(d, p, a, &r[i].algo);
        if (lt_refuses(e)) continue;
        p->algo = r[i].algo;
        return lt_check(d, op, e);
    }
    p->refused = true;
    lt_class c = lt_class_of(&p->key);
    cublasLtMatmulAlgo_t none = {};
    /* not for a class that is tuned: other shapes of it may still run */
    if (!lt_class_find(lt_state_of(d), &c)) lt_class_note(lt_state_of(d), &c, true, &none);
    return false;
}

bool bias_after(gpu_dev *d, const char *op, const lt_args *a)
{
    lt_args unbiased = *a;
    unbiased.bias = nullptr;
    if (!lt_multiply(d, op, &unbiased)) return false;
    lt_add_bias(d, op, a);
    return !d->head.error.op;
}

} // namespace

bool lt_multiply(gpu_dev *d, const char *op, const struct lt_args *a)
{
    if (d->head.error.op) return false;
    if (a->M <= 0 || a->N <= 0) return true;
    assert(d->lt && a->K > 0);
    assert(a->t != DT_I8 || (a->alpha == 1 && a->beta == 0 && !a->bias));
    if (reinterpret_cast<uintptr_t>(a->bias) % 16 != 0) return bias_after(d, op, a); /* epilogues need it aligned */
    lt_key key = lt_key_of(a);
    if (d->measuring) {
        lt_request w = {lt_class_of(&key), true, *a, {}};
        return lt_request_add(d, &w), true;
    }
    lt_plan *p = lt_plan_get(d, op, a, &key);
    if (!p || !lt_set_bias(d, op, p, a->bias) || (!p->settled && !choose(d, op, p, a))) return false;
    if (!p->refused) {
        cublasStatus_t e = lt_run(d, p, a, &p->algo);
        if (!lt_refuses(e)) return lt_check(d, op, e);
        if (run_another(d, op, p, a)) return true;
    }
    if (a->bias) return bias_after(d, op, a);
    lt_plain(d, op, a); /* launches nothing when the device has failed */
    return !d->head.error.op;
}

bool lt_offers(gpu_dev *d, const char *op, const struct lt_args *a)
{
    if (d->head.error.op || d->measuring) return true;
    lt_key key = lt_key_of(a);
    lt_plan *p = lt_plan_get(d, op, a, &key);
    if (!p || !lt_set_bias(d, op, p, a->bias) || (!p->settled && !choose(d, op, p, a))) return true; /* failed */
    return !p->refused;
}

int lt_faster(gpu_dev *d, const struct lt_race *r)
{
    lt_state *s = lt_state_of(d);
    lt_request w = {lt_race_class(r), true, {}, *r};
    if (!s->tries) return -1;
    if (d->measuring) return lt_request_add(d, &w), -1;
    const lt_found *f = lt_class_find(s, &w.c);
    return f ? (int)f->algo.data[0] : -1;
}

/* ---- opening -------------------------------------------------------------------------------------------------------
 */

namespace {

#ifdef __CUDACC__
bool load_library(lt_state *s, char why[160])
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    for (const char *name : names)
        if (!s->library) s->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!s->library) {
        snprintf(why, 160,
                 "%s is not found: install cuBLAS (package libcublas-13-0) or put its folder in LD_LIBRARY_PATH",
                 names[0]);
        return false;
    }
    const char *missing = nullptr;
#define X(name)                                                                                                        \
    s->f.name = reinterpret_cast<decltype(s->f.name)>(dlsym(s->library, "cublasLt" #name));                            \
    if (!s->f.name) missing = "cublasLt" #name;
    LT_FUNCTIONS(X)
#undef X
    if (missing) snprintf(why, 160, "the libcublasLt of this machine has no %s", missing);
    return !missing;
}
#else
bool load_library(lt_state *s, char *)
{
#define X(name) s->f.name = cublasLt##name;
    LT_FUNCTIONS(X)
#undef X
    return true;
}
#endif

} // namespace

bool lt_open(gpu_dev *d, const char *device_name, char why[160])
{
    lt_state *s = static_cast<lt_state *>(calloc(1, sizeof *s));
    d->lt = s;
    if (!s) return snprintf(why, 160, "out of memory"), false;
    if (!load_library(s, why)) return false;
    cublasStatus_t e;
    if ((e = s->f.Create(&s->handle)) != CUBLAS_STATUS_SUCCESS ||
        (e = s->f.MatmulPreferenceCreate(&s->preference)) != CUBLAS_STATUS_SUCCESS) {
        snprintf(why, 160, "cuBLASLt does not open: %s", s->f.GetStatusString(e));
        return false;
    }
    s->workspace = gpu_alloc(&d->head, LT_WORKSPACE);
    if (!s->workspace) {
        snprintf(why, 160, "no device memory for the %d KiB that cuBLASLt works in", LT_WORKSPACE >> 10);
        return false;
    }
#ifdef __CUDACC__
    s->tries = true;
#else
    s->tries = getenv("SIMT_LT_TRIES") != nullptr; /* for tests: autotuning gains nothing on the CPU */
#endif
    if (s->tries) {
        lt_name_file(s, device_name);
        lt_load_found(s);
    }
    return true;
}

void lt_close(gpu_dev *d)
{
    lt_state *s = lt_state_of(d);
    if (!s) return;
    for (lt_plan &p : s->plans) plan_clear(s, &p);
    if (s->preference) s->f.MatmulPreferenceDestroy(s->preference);
    if (s->handle) s->f.Destroy(s->handle);
    gpu_free(&d->head, s->workspace);
    free(s);
    d->lt = nullptr;
}

} // namespace GPU_NAMESPACE
