/* Dequantises a packed weight to a matrix for a dense GEMM. */
#ifndef TANDEM_KERNELS_CUDA_GEMM_DEQUANTISE_H
#define TANDEM_KERNELS_CUDA_GEMM_DEQUANTISE_H

#include "kernels/cuda/device.h"

namespace GPU_NAMESPACE {

/* Rows first .. first + rows - 1 of w as f32, or rounded to bf16 (half): their address, 16-byte aligned, and in *ld
 * their stride in elements. They are in AREA_W, or the weight's own memory when it already has the requested type.
 * NULL: the device has failed. */
const void *dequantise_rows(gpu_dev *, const char *op, const gpu_weight *w, int first, int rows, bool half, int *ld);

} // namespace GPU_NAMESPACE

#endif
