/* The activation functions, as act_kind names them, in f32. */
#ifndef TANDEM_KERNELS_CUDA_ACT_CUH
#define TANDEM_KERNELS_CUDA_ACT_CUH

#include "kernels/cuda/gpu.h"

namespace GPU_NAMESPACE {

/* In gated ops x is the gate. */
__device__ inline float act_value(float x, enum act_kind act)
{
    switch (act) {
    case ACT_SILU: return x / (1 + expf(-x));
    case ACT_GELU_TANH: return 0.5f * x * (1 + tanhf(0.79788456080286535588f * (x + 0.044715f * x * x * x)));
    case ACT_GELU_ERF: return 0.5f * x * (1 + erff(x * 0.70710678118654752440f));
    case ACT_RELU: return x < 0 ? 0 : x;
    case ACT_SWIGLU_CLAMPED: x = x > 7 ? 7 : x; return x / (1 + expf(-1.702f * x));
    }
    return x;
}

/* What multiplies the activation of the gate. */
__device__ inline float act_up(float up, enum act_kind act)
{
    return act != ACT_SWIGLU_CLAMPED ? up : 1 + (up > 7 ? 7 : up < -7 ? -7 : up);
}

/* The derivative of act_up. */
__device__ inline float act_up_slope(float up, enum act_kind act)
{
    return act == ACT_SWIGLU_CLAMPED && fabsf(up) > 7 ? 0 : 1;
}

/* Returns the derivative of act_value (0 for RELU at 0), and the function's value in *value. */
__device__ inline float act_slope(float x, enum act_kind act, float *value)
{
    *value = x;
    switch (act) {
    case ACT_SILU: {
        float s = 1 / (1 + expf(-x));
        *value = x * s;
        return s * (1 + x * (1 - s));
    }
    case ACT_GELU_TANH: {
        float t = tanhf(0.79788456080286535588f * (x + 0.044715f * x * x * x));
        *value = 0.5f * x * (1 + t);
        return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.79788456080286535588f * (1 + 3 * 0.044715f * x * x);
    }
    case ACT_GELU_ERF: {
        float below = 0.5f * erfcf(-x * 0.70710678118654752440f); /* the normal distribution's CDF at x */
        *value = x * below;
        return below + x * expf(-0.5f * x * x) * 0.39894228040143267794f;
    }
    case ACT_RELU: *value = x > 0 ? x : 0; return x > 0 ? 1 : 0;
    case ACT_SWIGLU_CLAMPED: {
        float g = x > 7 ? 7 : x, s = 1 / (1 + expf(-1.702f * g));
        *value = g * s;
        return x > 7 ? 0 : s * (1 + 1.702f * g * (1 - s));
    }
    }
    return 1;
}

} // namespace GPU_NAMESPACE

#endif
