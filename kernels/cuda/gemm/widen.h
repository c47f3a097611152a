/* A packed weight's values as a matrix that a dense product takes. */
#ifndef TANDEM_KERNELS_CUDA_GEMM_WIDEN_H
#define TANDEM_KERNELS_CUDA_GEMM_WIDEN_H

#include "kernels/cuda/device.h"

namespace GPU_NAMESPACE {

/* Rows first .. first + rows - 1 of w as f32, or rounded to bf16 (half): where they are, 16-byte aligned, and how far
 * apart in elements.  They lie in AREA_W, or where the weight does when its type is the wanted one.  NULL: the device
 * has failed. */
const void *widen_rows(gpu_dev *, const char *op, const gpu_weight *w, int first, int rows, bool half, int *ld);

} // namespace GPU_NAMESPACE

#endif
