/* Number formats: their names and sizes, and bit-exact conversion of bf16 and f16 to f32 and back, and of e4m3 to f32.
 * Usable from C, C++ and CUDA.  Rounding is to nearest, ties to even; NaN stays NaN. */
#ifndef TANDEM_KERNELS_NUM_H
#define TANDEM_KERNELS_NUM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define NUM_FN static __host__ __device__ inline
#else
#define NUM_FN static inline
#endif

/* DT_F8 is e4m3fn of OCP's 8-bit floating point specification 1.0. */
enum dtype { DT_NONE, DT_F32, DT_BF16, DT_F16, DT_I8, DT_I4, DT_NF4, DT_BLOCK, DT_F8, DT_COUNT };

static inline const char *dtype_name(enum dtype t)
{
    static const char *const names[DT_COUNT] = {"none", "f32", "bf16", "f16", "int8", "int4", "nf4", "block", "fp8"};
    return (unsigned)t < DT_COUNT ? names[t] : "?";
}

/* bytes of n elements; int4 and nf4 pack two to a byte, block has a byte for each code (struct weight_block) */
NUM_FN size_t dtype_bytes(enum dtype t, size_t n)
{
    switch (t) {
    case DT_F32: return n * 4;
    case DT_BF16:
    case DT_F16: return n * 2;
    case DT_I8:
    case DT_F8:
    case DT_BLOCK: return n;
    case DT_I4:
    case DT_NF4: return (n + 1) / 2;
    default: return 0;
    }
}

/* The sixteen values of nf4, ascending: quantiles of the normal distribution, scaled to -1 .. 1, with an exact zero.
 * (Dettmers et al., QLoRA, arXiv 2305.14314, appendix E; the bits are those bitsandbytes 0.50 stores as quant_map.) */
static const float nf4_code[16] = {-1.0f,
                                   -0.6961928009986877f,
                                   -0.5250730514526367f,
                                   -0.39491748809814453f,
                                   -0.28444138169288635f,
                                   -0.18477343022823334f,
                                   -0.09105003625154495f,
                                   0.0f,
                                   0.07958029955625534f,
                                   0.16093020141124725f,
                                   0.24611230194568634f,
                                   0.33791524171829224f,
                                   0.44070982933044434f,
                                   0.5626170039176941f,
                                   0.7229568362236023f,
                                   1.0f};

NUM_FN float f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

NUM_FN uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

NUM_FN float bf16_to_f32(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}

NUM_FN uint16_t f32_to_bf16(float f)
{
    uint32_t u = f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40); /* quiet NaN */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

NUM_FN float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 31u, man = h & 1023u;
    if (exp == 31) return f32_from_bits(sign | 0x7f800000u | (man << 13));
    if (exp) return f32_from_bits(sign | ((exp + 112) << 23) | (man << 13));
    float f = (float)man * 0x1p-24f; /* subnormal */
    return sign ? -f : f;
}

/* sign, 4 bits of exponent with bias 7, 3 of fraction; no infinity, 0x7f and 0xff are NaN */
NUM_FN float e4m3_to_f32(uint8_t c)
{
    float f = f32_from_bits((uint32_t)(c & 0x7f) << 20) * 0x1p120f; /* exact: the exponent has its new bias */
    if ((c & 0x7f) == 0x7f) f = f32_from_bits(0x7fc00000u);
    return c & 0x80 ? -f : f;
}

NUM_FN uint16_t f32_to_f16(float f)
{
    uint32_t u = f32_bits(f), sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (mag >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds past the largest f16 */
    if (mag < 0x38800000u) {                                   /* subnormal: the addition does the rounding */
        uint32_t r = f32_bits(f32_from_bits(mag) + 0.5f) - 0x3f000000u;
        return (uint16_t)(sign | r);
    }
    uint32_t r = mag + 0xfffu + ((mag >> 13) & 1);
    return (uint16_t)(sign | ((r - 0x38000000u) >> 13));
}

#endif
