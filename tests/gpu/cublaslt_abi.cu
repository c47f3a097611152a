/* kernels/cuda/gemm/cublaslt_api.h against NVIDIA's header, where there is one: it compiles, or they differ. */
#include <cublasLt.h>

#include "kernels/cuda/gemm/cublaslt_api.h"

#include <cstddef>

#define SAME(name) static_assert((int)::name == (int)cublaslt_api::name, #name)
#define FITS(type) static_assert(sizeof(::type) == sizeof(cublaslt_api::type), #type)
#define PLACED(type, field) static_assert(offsetof(::type, field) == offsetof(cublaslt_api::type, field), #field)

SAME(CUBLAS_STATUS_SUCCESS);
SAME(CUBLAS_STATUS_INVALID_VALUE);
SAME(CUBLAS_STATUS_ARCH_MISMATCH);
SAME(CUBLAS_STATUS_NOT_SUPPORTED);
SAME(CUBLAS_OP_N);
SAME(CUBLAS_OP_T);
SAME(CUBLAS_COMPUTE_32F);
SAME(CUBLAS_COMPUTE_32I);
SAME(CUBLASLT_MATMUL_DESC_TRANSA);
SAME(CUBLASLT_MATMUL_DESC_TRANSB);
SAME(CUBLASLT_MATMUL_DESC_EPILOGUE);
SAME(CUBLASLT_MATMUL_DESC_BIAS_POINTER);
SAME(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
SAME(CUBLASLT_EPILOGUE_BIAS);
SAME(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SAME(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
SAME(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
SAME(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
FITS(cublasStatus_t);
FITS(cublasOperation_t);
FITS(cublasComputeType_t);
FITS(cublasLtEpilogue_t);
FITS(cublasLtMatmulAlgo_t);
FITS(cublasLtMatmulHeuristicResult_t);
PLACED(cublasLtMatmulHeuristicResult_t, algo);
PLACED(cublasLtMatmulHeuristicResult_t, workspaceSize);
PLACED(cublasLtMatmulHeuristicResult_t, state);
