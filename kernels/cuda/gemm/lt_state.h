/* What lt.cu, lt_found.cu and lt_try.cu share; their tests look at it, nobody else does. */
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
enum { LT_WORKSPACE = 32 << 20 }; /* what NVIDIA advises for Hopper */
#else
enum { LT_WORKSPACE = 64 << 10 };
#endif

enum {
    LT_PLANS = 512, /* kept by place: a later shape may take an earlier one's */
    LT_CLASSES = 1024,
    LT_TRIES = 6 /* suggestions that are tried */
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

/* What an algorithm belongs to: extents rounded up, and what else decides whether it may run.  adds: beta is not 0.
 * align: in bytes, of the matrix and of its lines together, 16 where it is more (no algorithm asks for more); of int8
 * also of K, and of N as lines of C, since those have to be multiples. */
struct lt_class {
    int t, ta, tb, align_a, align_b, align_c, adds, bias, M, N, K;
};

/* t of a race's class, whose `algo` is the number of the faster way */
enum { LT_RACE = 64 };

struct lt_found {
    lt_class c;
    bool used, refused; /* refused: the library has no way for it; not kept in the file */
    cublasLtMatmulAlgo_t algo;
    int64_t asked; /* when, by lt_state's count; of what the file has and nobody asked for, minus its line there */
};

struct lt_key {
    lt_class c; /* with the extents as they are */
    int lda, ldb, ldc, whole;
};

struct lt_plan {
    lt_key key;
    bool used, chosen, settled; /* chosen: algo is one; settled: and stays */
    bool refused;               /* the library has no way: settled then, on the tiles of ours */
    cublasLtMatmulDesc_t product;
    const float *bias;              /* that product has */
    cublasLtMatrixLayout_t a, b, c; /* the library's a is our b */
    cublasLtMatmulAlgo_t algo;
};

/* What reserve was shown of a class: the largest. */
struct lt_wish {
    lt_class c;
    bool used;
    lt_args a;    /* its pointers mean nothing */
    lt_race race; /* of a race */
};

struct lt_state {
    lt_functions f;
    void *library; /* stays open: it has kernels of its own, which may not go from under a context that has failed */
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    void *workspace;
    bool tuning; /* in lt_tune, which writes the file when it is done */
    void *cold;  /* then: memory as large as L2, NULL: there is no room */
    bool tries;  /* tries algorithms and keeps what it finds in `file` */
    char file[400];
    lt_plan plans[LT_PLANS];
    lt_found classes[LT_CLASSES];
    int64_t asked; /* how often for a class */
    lt_wish wishes[LT_CLASSES];
};

static inline lt_state *lt_state_of(gpu_dev *d)
{
    return static_cast<lt_state *>(d->lt);
}

/* ---- lt.cu ----------------------------------------------------------------------------------------------------- */

/* Whether the library does not do this product, as against being broken. */
bool lt_refuses(cublasStatus_t);
/* false: s is an error, and the device fails with it */
bool lt_check(gpu_dev *, const char *op, cublasStatus_t s);
lt_key lt_key_of(const lt_args *);
lt_class lt_class_of(const lt_key *);
lt_class lt_race_class(const lt_race *);
/* Of each of our columns, which are the library's rows.  false: the device has failed. */
bool lt_set_bias(gpu_dev *, const char *op, lt_plan *, const float *bias);
/* The plan of this shape, made if need be, without an algorithm yet. NULL: the device has failed. */
lt_plan *lt_plan_get(gpu_dev *, const char *op, const lt_args *, const lt_key *);
cublasStatus_t lt_run(gpu_dev *, const lt_plan *, const lt_args *, const cublasLtMatmulAlgo_t *);
/* The library's suggestions for a plan; 0: it has none, or the device has failed. */
int lt_suggestions(gpu_dev *, const char *op, const lt_plan *, cublasLtMatmulHeuristicResult_t *, int wanted);

/* ---- lt_found.cu: what was found, in this run and in earlier ones --------------------------------------------------
 */

uint32_t lt_hash(const int *p, size_t n);
/* The entry of a class, until the next is noted; NULL: nothing is known of it. */
lt_found *lt_class_find(lt_state *, const lt_class *);
/* What is known of a class from now on.  Where the table is full it is forgotten of the class that was not asked for
 * for longest: one of the file's that this process has no use for, if there is one. */
void lt_class_note(lt_state *, const lt_class *, bool refused, const cublasLtMatmulAlgo_t *);
/* s->file, its folders made; an empty name where there is no place for it */
void lt_name_file(lt_state *, const char *device_name);
/* Adds what the file has and the table has not, as far as it has room.  A file that cannot be read or is none of ours
 * changes nothing. */
void lt_load_found(lt_state *);
/* Writes the table, and what others have put into the file since, as a new file in its place, what was asked for last
 * first.  Where that cannot be nothing is kept, and everything works. */
void lt_save_found(lt_state *);

/* ---- lt_try.cu --------------------------------------------------------------------------------------------------- */

/* Puts the fastest suggestion into p->algo; refused when none runs.  Writes C and waits.  false: the device has failed.
 */
bool lt_try(gpu_dev *, const char *op, lt_plan *p, const lt_args *);
/* Notes a product, or a race, that reserve shows. */
void lt_wish_for(gpu_dev *, const lt_wish *);

} // namespace GPU_NAMESPACE

#endif
