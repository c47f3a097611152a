/* See lt.h.  Row-major C = op(A) op(B) is column-major C' = op(B)' op(A)': the library's first matrix is our b, its
 * rows are our columns. */
#include "kernels/cuda/lt.h"

#ifdef __CUDACC__
#include "kernels/cuda/cublaslt_api.h"
#include <dlfcn.h>
using namespace cublaslt_api;
#else
#include "kernels/simt/cublaslt.h"
#endif

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/stat.h>
#include <unistd.h>

namespace GPU_NAMESPACE {
namespace {

#ifdef __CUDACC__
enum { WORKSPACE = 32 << 20 }; /* what NVIDIA advises for Hopper */
#else
enum { WORKSPACE = 64 << 10 };
#endif

enum {
    PLANS = 512, /* kept by place: a later shape may take an earlier one's */
    CLASSES = 1024,
    TRIES = 6,     /* suggestions that are tried */
    TIMED_RUNS = 3 /* of each */
};

#define LT_FUNCTIONS(X)                                                                                                \
    X(Create)                                                                                                          \
    X(Destroy)                                                                                                         \
    X(GetVersion)                                                                                                      \
    X(GetStatusString)                                                                                                 \
    X(MatmulDescCreate)                                                                                                \
    X(MatmulDescDestroy)                                                                                               \
    X(MatmulDescSetAttribute)                                                                                          \
    X(MatrixLayoutCreate)                                                                                              \
    X(MatrixLayoutDestroy)                                                                                             \
    X(MatmulPreferenceCreate)                                                                                          \
    X(MatmulPreferenceDestroy)                                                                                         \
    X(MatmulPreferenceSetAttribute)                                                                                    \
    X(MatmulAlgoGetHeuristic)                                                                                          \
    X(MatmulAlgoCheck)                                                                                                 \
    X(Matmul)

struct functions {
#define X(name) decltype(&cublasLt##name) name;
    LT_FUNCTIONS(X)
#undef X
};

/* What an algorithm belongs to: extents rounded up, and the least alignment in bytes of pointers and lines. */
struct shape_class {
    int t, ta, tb, align, M, N, K;
};

struct found {
    shape_class c;
    bool used;
    cublasLtMatmulAlgo_t algo;
};

struct plan_key {
    shape_class c; /* with the extents as they are */
    int lda, ldb, ldc, whole, adds;
};

struct plan {
    plan_key key;
    bool used, chosen, settled; /* chosen: algo is one; settled: and stays */
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c; /* the library's a is our b */
    cublasLtMatmulAlgo_t algo;
};

struct lt_state {
    functions f;
    void *library; /* stays open: it has kernels of its own, which may not go from under a context that has failed */
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    void *workspace;
    bool tries; /* tries algorithms and keeps what it finds in `file` */
    char file[400];
    plan plans[PLANS];
    found classes[CLASSES];
};

lt_state *state_of(gpu_dev *d)
{
    return static_cast<lt_state *>(d->lt);
}

bool lt_check(gpu_dev *d, const char *op, cublasStatus_t s)
{
    if (s == CUBLAS_STATUS_SUCCESS) return true;
    dev_fail(&d->head, op, "cuBLASLt: %s", state_of(d)->f.GetStatusString(s));
    return false;
}

/* ---- shapes --------------------------------------------------------------------------------------------------------
 */

/* up to a multiple of a quarter of the power of two below it */
int round_extent(int n)
{
    int unit = 1;
    while (unit <= n / 8) unit *= 2;
    return n > INT32_MAX - unit ? n : (n + unit - 1) / unit * unit;
}

int alignment(size_t n)
{
    return n % 16 == 0 ? 16 : n % 8 == 0 ? 8 : n % 4 == 0 ? 4 : n % 2 == 0 ? 2 : 1;
}

plan_key key_of(const lt_args *a)
{
    size_t one = dtype_bytes(a->t, 1);
    size_t all = (size_t)(uintptr_t)a->a | (size_t)(uintptr_t)a->b | (size_t)(uintptr_t)a->c | (size_t)a->lda * one |
                 (size_t)a->ldb * one | (size_t)a->ldc * 4;
    return {{a->t, a->ta, a->tb, alignment(all), a->M, a->N, a->K},
            a->lda,
            a->ldb,
            a->ldc,
            a->whole ? a->whole : a->N,
            a->t != DT_I8 && a->beta != 0};
}

shape_class class_of(const plan_key *k)
{
    shape_class c = k->c;
    c.M = round_extent(c.M), c.N = round_extent(k->whole), c.K = round_extent(c.K);
    return c;
}

/* FNV-1a over whole ints */
uint32_t hash_ints(const int *p, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint32_t)p[i]) * 16777619u;
    return h ^ h >> 15;
}

/* The entry of a class, or the free one that it may take; NULL: the table is full. */
found *class_find(lt_state *s, const shape_class *c)
{
    uint32_t h = hash_ints(&c->t, sizeof *c / sizeof(int));
    for (uint32_t i = 0; i < CLASSES; i++) {
        found *f = s->classes + (h + i) % CLASSES;
        if (!f->used || !memcmp(&f->c, c, sizeof *c)) return f;
    }
    return nullptr;
}

/* ---- what earlier runs found ---------------------------------------------------------------------------------------
 */

/* $XDG_CACHE_HOME/tandem/cublaslt-DEVICE-VERSION, its folders made; an empty name where there is no such place */
void name_file(lt_state *s, const char *device_name)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char folder[256], device[64];
    size_t n = 0;
    if (!(cache && *cache) && !(home && *home)) return;
    int len = cache && *cache ? snprintf(folder, sizeof folder, "%s", cache)
                              : snprintf(folder, sizeof folder, "%s/.cache", home);
    if (len < 0 || (size_t)len + sizeof "/tandem" > sizeof folder) return;
    (void)mkdir(folder, 0777); /* what cannot be made shows when the file is written */
    memcpy(folder + len, "/tandem", sizeof "/tandem");
    (void)mkdir(folder, 0777);
    for (const char *p = device_name; *p && n + 1 < sizeof device; p++)
        device[n++] = (*p >= '0' && *p <= '9') || ((*p | 32) >= 'a' && (*p | 32) <= 'z') ? *p : '_';
    device[n] = 0;
    snprintf(s->file, sizeof s->file, "%s/cublaslt-%s-%zu", folder, device, s->f.GetVersion());
}

/* Lines of seven numbers and eight words; what follows a broken line is not looked at.  An algorithm that does not fit
 * is found out when it is to be used. */
void load_found(lt_state *s)
{
    FILE *in = s->file[0] ? fopen(s->file, "re") : nullptr;
    char line[512];
    if (!in) return;
    while (fgets(line, sizeof line, in)) {
        shape_class c;
        cublasLtMatmulAlgo_t algo = {};
        uint64_t *w = algo.data;
        int n =
            sscanf(line,
                   "%d %d %d %d %d %d %d %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64
                   " %" SCNx64 " %" SCNx64,
                   &c.t, &c.ta, &c.tb, &c.align, &c.M, &c.N, &c.K, w, w + 1, w + 2, w + 3, w + 4, w + 5, w + 6, w + 7);
        if (n != 15) break;
        if (found *f = class_find(s, &c)) *f = {c, true, algo};
    }
    fclose(in);
}

void save_found(const lt_state *s)
{
    char name[sizeof s->file + 16];
    if (!s->file[0]) return;
    snprintf(name, sizeof name, "%s.%d", s->file, (int)getpid());
    FILE *out = fopen(name, "we");
    if (!out) return;
    for (const found &f : s->classes) {
        if (!f.used) continue;
        const shape_class &c = f.c;
        fprintf(out, "%d %d %d %d %d %d %d", c.t, c.ta, c.tb, c.align, c.M, c.N, c.K);
        for (uint64_t w : f.algo.data) fprintf(out, " %" PRIx64, w);
        fputc('\n', out);
    }
    bool good = !ferror(out);
    if (fclose(out) || !good || rename(name, s->file)) (void)unlink(name);
}

/* ---- plans ---------------------------------------------------------------------------------------------------------
 */

void plan_clear(lt_state *s, plan *p)
{
    if (p->product) s->f.MatmulDescDestroy(p->product);
    for (cublasLtMatrixLayout_t l : {p->a, p->b, p->c})
        if (l) s->f.MatrixLayoutDestroy(l);
    *p = {};
}

/* a row-major (rows, cols) of lines ld apart as the library sees it */
bool make_layout(gpu_dev *d, const char *op, cublasLtMatrixLayout_t *l, cudaDataType_t t, int rows, int cols, int ld)
{
    return lt_check(d, op, state_of(d)->f.MatrixLayoutCreate(l, t, (uint64_t)cols, (uint64_t)rows, (int64_t)ld));
}

/* The plan of this shape, made if need be, without an algorithm yet. NULL: the device has failed. */
plan *plan_get(gpu_dev *d, const char *op, const lt_args *a, const plan_key *key)
{
    lt_state *s = state_of(d);
    plan *p = s->plans + hash_ints(&key->c.t, sizeof *key / sizeof(int)) % PLANS;
    if (p->used && !memcmp(&p->key, key, sizeof *key)) return p;
    plan_clear(s, p);
    cudaDataType_t t = a->t == DT_F32    ? CUDA_R_32F
                       : a->t == DT_BF16 ? CUDA_R_16BF
                       : a->t == DT_F16  ? CUDA_R_16F
                                         : CUDA_R_8I;
    bool whole = t == CUDA_R_8I;
    cudaDataType_t sum = whole ? CUDA_R_32I : CUDA_R_32F;
    /* the library's op on our b: what is row-major (K, N) is its (N, K) */
    int32_t op_first = a->tb ? CUBLAS_OP_T : CUBLAS_OP_N, op_second = a->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasComputeType_t compute = whole ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F;
    bool ok =
        lt_check(d, op, s->f.MatmulDescCreate(&p->product, compute, sum)) &&
        lt_check(d, op,
                 s->f.MatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSA, &op_first, sizeof op_first)) &&
        lt_check(d, op,
                 s->f.MatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSB, &op_second, sizeof op_second)) &&
        make_layout(d, op, &p->a, t, a->tb ? a->N : a->K, a->tb ? a->K : a->N, a->ldb) &&
        make_layout(d, op, &p->b, t, a->ta ? a->K : a->M, a->ta ? a->M : a->K, a->lda) &&
        make_layout(d, op, &p->c, sum, a->M, a->N, a->ldc);
    if (!ok) {
        plan_clear(s, p);
        return nullptr;
    }
    p->key = *key;
    p->used = true;
    return p;
}

cublasStatus_t run_plan(gpu_dev *d, const plan *p, const lt_args *a, const cublasLtMatmulAlgo_t *algo)
{
    lt_state *s = state_of(d);
    int32_t one = 1, none = 0;
    bool whole = a->t == DT_I8;
    const void *alpha = whole ? (const void *)&one : &a->alpha, *beta = whole ? (const void *)&none : &a->beta;
    return s->f.Matmul(s->handle, p->product, alpha, a->b, p->a, a->a, p->b, beta, a->c, p->c, a->c, p->c, algo,
                       s->workspace, WORKSPACE, d->stream);
}

/* The library's suggestions for a plan; 0: the device has failed. */
int suggestions(gpu_dev *d, const char *op, const plan *p, cublasLtMatmulHeuristicResult_t *r, int wanted)
{
    lt_state *s = state_of(d);
    uint64_t bytes = WORKSPACE;
    uint32_t align = (uint32_t)p->key.c.align;
    int n = 0;
    const cublasLtMatmulPreferenceAttributes_t each[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    if (!lt_check(d, op,
                  s->f.MatmulPreferenceSetAttribute(s->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                                    sizeof bytes)))
        return 0;
    for (auto which : each)
        if (!lt_check(d, op, s->f.MatmulPreferenceSetAttribute(s->preference, which, &align, sizeof align))) return 0;
    if (!lt_check(
            d, op,
            s->f.MatmulAlgoGetHeuristic(s->handle, p->product, p->a, p->b, p->c, p->c, s->preference, wanted, r, &n)))
        return 0;
    if (n == 0) dev_fail(&d->head, op, "cuBLASLt has no way to multiply this shape");
    return n;
}

bool fits(gpu_dev *d, const plan *p, const cublasLtMatmulAlgo_t *algo)
{
    lt_state *s = state_of(d);
    cublasLtMatmulHeuristicResult_t r;
    return s->f.MatmulAlgoCheck(s->handle, p->product, p->a, p->b, p->c, p->c, algo, &r) == CUBLAS_STATUS_SUCCESS &&
           r.workspaceSize <= WORKSPACE;
}

/* ---- trying --------------------------------------------------------------------------------------------------------
 */

bool may_try(gpu_dev *d, const lt_args *a)
{
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    return state_of(d)->tries && (a->t == DT_I8 || a->beta == 0) &&
           cudaStreamIsCapturing(d->stream, &capturing) == cudaSuccess && capturing == cudaStreamCaptureStatusNone;
}

/* Milliseconds of TIMED_RUNS products, or -1 when it cannot run. */
float time_algo(gpu_dev *d, const char *op, const plan *p, const lt_args *a, const cublasLtMatmulAlgo_t *algo,
                cudaEvent_t from, cudaEvent_t to)
{
    float ms = -1;
    if (run_plan(d, p, a, algo) != CUBLAS_STATUS_SUCCESS || !gpu_check(d, op, cudaEventRecord(from, d->stream)))
        return -1;
    for (int i = 0; i < TIMED_RUNS; i++)
        if (run_plan(d, p, a, algo) != CUBLAS_STATUS_SUCCESS) return -1;
    bool ok = gpu_check(d, op, cudaEventRecord(to, d->stream)) && gpu_check(d, op, cudaEventSynchronize(to)) &&
              gpu_check(d, op, cudaEventElapsedTime(&ms, from, to));
    return ok ? ms : -1;
}

/* Puts the fastest suggestion into p->algo. false: the device has failed. */
bool try_all(gpu_dev *d, const char *op, plan *p, const lt_args *a)
{
    cublasLtMatmulHeuristicResult_t r[TRIES];
    cudaEvent_t from = nullptr, to = nullptr;
    int n = suggestions(d, op, p, r, TRIES);
    bool ok = n > 0 && gpu_check(d, op, cudaEventCreateWithFlags(&from, 0)) &&
              gpu_check(d, op, cudaEventCreateWithFlags(&to, 0));
    float best = -1;
    for (int i = 0; ok && i < n; i++) {
        if (r[i].state != CUBLAS_STATUS_SUCCESS || r[i].workspaceSize > WORKSPACE) continue;
        float ms = time_algo(d, op, p, a, &r[i].algo, from, to);
        ok = !d->head.error.op;
        if (ms < 0 || (best >= 0 && ms >= best)) continue;
        best = ms;
        p->algo = r[i].algo;
    }
    if (from) cudaEventDestroy(from);
    if (to) cudaEventDestroy(to);
    if (ok && best < 0) dev_fail(&d->head, op, "cuBLASLt runs none of its %d suggestions", n);
    return ok && best >= 0;
}

/* Gives p an algorithm; the first suggestion where none may be tried, until one may. */
bool choose(gpu_dev *d, const char *op, plan *p, const lt_args *a)
{
    lt_state *s = state_of(d);
    shape_class c = class_of(&p->key);
    found *f = p->key.adds ? nullptr : class_find(s, &c);
    if (f && f->used && fits(d, p, &f->algo)) {
        p->algo = f->algo;
        p->settled = true;
    } else if (may_try(d, a) && !(f && f->used)) {
        if (!try_all(d, op, p, a)) return false;
        p->settled = true;
        if (f) *f = {c, true, p->algo};
        save_found(s);
    } else if (!p->chosen) {
        cublasLtMatmulHeuristicResult_t r;
        if (!suggestions(d, op, p, &r, 1)) return false;
        p->algo = r.algo;
        p->settled = !s->tries || p->key.adds || (f && f->used);
    }
    return p->chosen = true;
}

} // namespace

bool lt_multiply(gpu_dev *d, const char *op, const lt_args *a)
{
    if (d->head.error.op) return false;
    if (a->M <= 0 || a->N <= 0 || d->measuring) return true;
    assert(d->lt && a->K > 0);
    assert(a->t != DT_I8 || (!a->ta && a->tb && a->alpha == 1 && a->beta == 0 && a->K % 16 == 0 && a->N % 4 == 0));
    plan_key key = key_of(a);
    plan *p = plan_get(d, op, a, &key);
    if (!p || (!p->settled && !choose(d, op, p, a))) return false;
    return lt_check(d, op, run_plan(d, p, a, &p->algo));
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
    s->workspace = gpu_alloc(&d->head, WORKSPACE);
    if (!s->workspace) {
        snprintf(why, 160, "no device memory for the %d KiB that cuBLASLt works in", WORKSPACE >> 10);
        return false;
    }
#ifdef __CUDACC__
    s->tries = true;
#else
    s->tries = getenv("SIMT_LT_TRIES") != nullptr; /* for tests: there is nothing to be won here */
#endif
    if (s->tries) {
        name_file(s, device_name);
        load_found(s);
    }
    return true;
}

void lt_close(gpu_dev *d)
{
    lt_state *s = state_of(d);
    if (!s) return;
    for (plan &p : s->plans) plan_clear(s, &p);
    if (s->preference) s->f.MatmulPreferenceDestroy(s->preference);
    if (s->handle) s->f.Destroy(s->handle);
    gpu_free(&d->head, s->workspace);
    free(s);
    d->lt = nullptr;
}

} // namespace GPU_NAMESPACE
