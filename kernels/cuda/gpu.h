/* The only CUDA header that the files of this folder include: nvcc gets the CUDA runtime, a host compiler the shim
 * (kernels/simt), so the same sources are the device `cuda` and the device `simt`.
 *
 * A kernel is launched with LAUNCH, keeps its shared memory in one struct (SMEM), and uses PTX through ptx.cuh.
 * Everything is in namespace GPU_NAMESPACE, since one binary may have both devices. */
#ifndef TANDEM_KERNELS_CUDA_GPU_H
#define TANDEM_KERNELS_CUDA_GPU_H

#ifdef __CUDACC__

#include <cuda_runtime.h>

#define GPU_NAMESPACE cuda_device
#define SMEM(T, name)                                                                                                  \
    extern __shared__ __align__(128) unsigned char smem_raw_[];                                                        \
    T &name = *reinterpret_cast<T *>(smem_raw_)
/* Dynamic shared memory, sized by the launcher, in bytes; 128-byte aligned. */
#define SMEM_BYTES(name)                                                                                               \
    extern __shared__ __align__(128) unsigned char smem_raw_[];                                                        \
    unsigned char *name = smem_raw_

/* Before a loop whose variable indexes registers; on a host it would only enlarge the code. */
#define UNROLL _Pragma("unroll")

#else

#include "kernels/simt/cudart.h"

#define UNROLL

#define GPU_NAMESPACE simt_device
#define SMEM(T, name) T &name = *reinterpret_cast<T *>(simt::shared_memory())
#define SMEM_BYTES(name) unsigned char *name = simt::shared_memory()
namespace simt_device {
using namespace simt_runtime;
}

#endif

#include "kernels/dev.h"
#include "kernels/num.h"

#include <cstdint>

#define FULL_WARP 0xffffffffu

/* #pragma unroll(WHOLE): registers of a GPU cannot be indexed, so loops over them must be unrolled; a host compiler
 * would only take long over it. */
#ifdef __CUDACC__
constexpr int WHOLE = 128;
#else
constexpr int WHOLE = 1;
#endif

#endif
