/* The activation functions, as act_kind names them, in f32. */
#ifndef TANDEM_KERNELS_CUDA_ACT_CUH
#define TANDEM_KERNELS_CUDA_ACT_CUH

#include "kernels/cuda/gpu.h"

namespace GPU_NAMESPACE
{

__device__ inline float act_value(float x, enum act_kind act)
{
    switch (act) {
    case ACT_SILU: return x / (1 + expf(-x));
    case ACT_GELU_TANH: return 0.5f * x * (1 + tanhf(0.79788456080286535588f * (x + 0.044715f * x * x * x)));
    case ACT_GELU_ERF: return 0.5f * x * (1 + erff(x * 0.70710678118654752440f));
    case ACT_RELU: return x < 0 ? 0 : x;
    }
    return x;
}

} // namespace GPU_NAMESPACE

#endif
