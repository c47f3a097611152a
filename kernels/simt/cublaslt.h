/* The part of cuBLASLt that lt.cu uses, on the CPU: naive GEMMs that run when the stream does.
 *
 * Names and meanings are those of cuBLASLt 13 (docs.nvidia.com/cuda/cublas, "Using the cuBLASLt API"). What the real
 * library rejects (unsupported combinations of types, int8 in another form than TN or with extents that are not
 * multiples of 4, pointers and lines with less than the promised alignment) is rejected here too. Matrices are
 * column-major.
 *
 * For tests, the environment variable SIMT_LT_REFUSES: "suggest": the heuristics return nothing; "run": every GEMM
 * is rejected when it is to run; "first": the first suggestion of each GEMM is rejected; "bias": a GEMM with a bias
 * has no suggestion. */
#ifndef TANDEM_KERNELS_SIMT_CUBLASLT_H
#define TANDEM_KERNELS_SIMT_CUBLASLT_H

#include "kernels/simt/cudart.h"

namespace simt_runtime {

enum cublasStatus_t {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_ARCH_MISMATCH = 8,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
};
enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32I = 72 };
enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_8I = 3, CUDA_R_32I = 10, CUDA_R_16BF = 14 };
enum cublasLtMatmulDescAttributes_t {
    CUBLASLT_MATMUL_DESC_TRANSA = 3,
    CUBLASLT_MATMUL_DESC_TRANSB = 4,
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
    CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
    CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE = 26,
};
enum cublasLtEpilogue_t { CUBLASLT_EPILOGUE_DEFAULT = 1, CUBLASLT_EPILOGUE_BIAS = 4 };
enum cublasLtMatmulPreferenceAttributes_t {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8,
};

struct lt_desc {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    cublasOperation_t ta, tb;
    cublasLtEpilogue_t epilogue;
    const float *bias;
    int32_t bias_type; /* a cudaDataType_t, or -1: that of D */
};
struct lt_layout {
    cudaDataType_t t;
    uint64_t rows, cols;
    int64_t ld;
};
struct lt_preference {
    uint64_t workspace;
    uint32_t align[4]; /* of A, B, C and D */
};
typedef struct lt_handle *cublasLtHandle_t;
typedef lt_desc *cublasLtMatmulDesc_t;
typedef lt_layout *cublasLtMatrixLayout_t;
typedef lt_preference *cublasLtMatmulPreference_t;

struct cublasLtMatmulAlgo_t {
    uint64_t data[8]; /* 0: our algorithm, from 1; 1, 2: the alignment it requires of A and B, and of C */
};
struct cublasLtMatmulHeuristicResult_t {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
};

cublasStatus_t cublasLtCreate(cublasLtHandle_t *);
cublasStatus_t cublasLtDestroy(cublasLtHandle_t);
size_t cublasLtGetVersion();
const char *cublasLtGetStatusString(cublasStatus_t);

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t scale);
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t);
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *,
                                              size_t);
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *, cudaDataType_t, uint64_t rows, uint64_t cols,
                                          int64_t ld);
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t);
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *);
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                                    const void *, size_t);

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t, int wanted,
                                              cublasLtMatmulHeuristicResult_t *, int *got);
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *, cublasLtMatmulHeuristicResult_t *);
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t, const void *b, cublasLtMatrixLayout_t, const void *beta,
                              const void *c, cublasLtMatrixLayout_t, void *d, cublasLtMatrixLayout_t,
                              const cublasLtMatmulAlgo_t *, void *workspace, size_t workspace_bytes, cudaStream_t);

} // namespace simt_runtime

#endif
