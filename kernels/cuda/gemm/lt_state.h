/* State shared by lt.cu, lt_found.cu, lt_try.cu and their tests; not included elsewhere. */
#ifndef TANDEM_KERNELS_CUDA_GEMM_LT_STATE_H
#define TANDEM_KERNELS_CUDA_GEMM_LT_STATE_H

#include "kernels/cuda/gemm/lt.h"

#ifdef __CUDACC__
#include "kernels/cuda/gemm/cublaslt_api.h"
#else
#include "kernels/simt/cublaslt.h"
#endif

namespace GPU_NAMESPACE {

#ifdef __CUDACC__
using namespace cublaslt_api;
enum { LT_WORKSPACE = 32 << 20 }; /* NVIDIA's recommendation for Hopper */
#else
enum { LT_WORKSPACE = 64 << 10 };
#endif

enum {
    LT_PLANS = 512, /* direct-mapped: a later shape may replace an earlier one */
    LT_CLASSES = 1024,
    LT_TRIES = 6 /* suggestions that are timed */
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

struct lt_functions {
#define X(name) decltype(&cublasLt##name) name;
    LT_FUNCTIONS(X)
#undef X
};

/* The key of an algorithm: extents rounded up, and whatever else decides whether it may run. adds: beta is not 0.
 * align: in bytes, of the matrix and of its lines together, at most 16 (no algorithm asks for more); for int8 also
 * of K, and of N as the line length of C, since these must be multiples too. */
struct lt_class {
    int t, ta, tb, align_a, align_b, align_c, adds, bias, M, N, K;
};

/* t of the class of a race, whose `algo` holds the number of the faster implementation. */
enum { LT_RACE = 64 };

struct lt_found {
    lt_class c;
    bool used, refused; /* refused: the library does not support it; not stored in the file */
    cublasLtMatmulAlgo_t algo;
    int64_t asked; /* last use, by lt_state's count; for a class of the file not used yet, minus its line */
};

struct lt_key {
    lt_class c; /* with exact extents */
    int lda, ldb, ldc, whole;
};

struct lt_plan {
    lt_key key;
    bool used, chosen, settled; /* chosen: algo is set; settled: and will not change */
    bool refused;               /* the library does not support it: settled then, lt_plain is used */
    cublasLtMatmulDesc_t desc;
    const float *bias;              /* of the current GEMM */
    cublasLtMatrixLayout_t a, b, c; /* the library's matrix a is our b */
    cublasLtMatmulAlgo_t algo;
};

/* An autotuning request recorded in reserve: the largest shape of a class. */
struct lt_request {
    lt_class c;
    bool used;
    lt_args a;    /* its pointers are meaningless */
    lt_race race; /* when the request is a race */
};

struct lt_state {
    lt_functions f;
    void *library; /* never closed: it registers kernels, which must not be unloaded while a failed context remains */
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    void *workspace;
    bool tuning; /* in lt_tune, which writes the file once at its end */
    void *cold;  /* while tuning: memory as large as L2, to evict the cache; NULL: not enough memory */
    bool tries;  /* autotuning is on, and its results are kept in `file` */
    char file[400];
    lt_plan plans[LT_PLANS];
    lt_found classes[LT_CLASSES];
    int64_t asked; /* clock for lt_found.asked: number of look-ups */
    lt_request requests[LT_CLASSES];
};

static inline lt_state *lt_state_of(gpu_dev *d)
{
    return static_cast<lt_state *>(d->lt);
}

/* ---- lt.cu ----------------------------------------------------------------------------------------------------- */

/* Whether the status means that the library does not support this GEMM, as opposed to a failure. */
bool lt_refuses(cublasStatus_t);
/* @return false when s is an error; the device then fails with it. */
bool lt_check(gpu_dev *, const char *op, cublasStatus_t s);
lt_key lt_key_of(const lt_args *);
lt_class lt_class_of(const lt_key *);
lt_class lt_race_class(const lt_race *);
/* Sets the bias of each of our columns, which are the library's rows. @return false when the device has failed. */
bool lt_set_bias(gpu_dev *, const char *op, lt_plan *, const float *bias);
/* The cached plan of this shape, made if need be, possibly without an algorithm yet. NULL: the device has failed. */
lt_plan *lt_plan_get(gpu_dev *, const char *op, const lt_args *, const lt_key *);
cublasStatus_t lt_run(gpu_dev *, const lt_plan *, const lt_args *, const cublasLtMatmulAlgo_t *);
/* The library's suggestions for a plan. @return their number; 0 when it has none or the device has failed. */
int lt_suggestions(gpu_dev *, const char *op, const lt_plan *, cublasLtMatmulHeuristicResult_t *, int wanted);

/* ---- lt_found.cu: tuned classes, of this run and of earlier ones ------------------------------------------------ */

uint32_t lt_hash(const int *p, size_t n);
/* The entry of a class, valid until the next lt_class_note; NULL: not tuned. */
lt_found *lt_class_find(lt_state *, const lt_class *);
/* Stores the result for a class. When the table is full it replaces the least recently used class, preferably one
 * from the file that this process has not used. */
void lt_class_note(lt_state *, const lt_class *, bool refused, const cublasLtMatmulAlgo_t *);
/* Sets s->file and makes its directories; an empty name when there is no place for a cache. */
void lt_name_file(lt_state *, const char *device_name);
/* Adds the classes of the file that the table lacks, as far as there is room. A file that is unreadable or has
 * another format changes nothing. */
void lt_load_found(lt_state *);
/* Atomically replaces the file by the table, merged with what other processes have written since, most recently used
 * first. On failure nothing is stored, without an error. */
void lt_save_found(lt_state *);

/* ---- lt_try.cu --------------------------------------------------------------------------------------------------- */

/* Times the library's suggestions and sets p->algo to the fastest, or p->refused when none runs. Overwrites C and
 * synchronises. @return false when the device has failed. */
bool lt_try(gpu_dev *, const char *op, lt_plan *p, const lt_args *);
/* Records a GEMM, or a race, of the dry run as an autotuning request. */
void lt_request_add(gpu_dev *, const lt_request *);

} // namespace GPU_NAMESPACE

#endif
