/* Sixteen lanes on NEON with the int8 dot product (Armv8.2 DotProd), and with I8MM and BF16 where the level has them:
 * four registers for each vector.  Same names and same bits as vec_avx512.h. */
#ifndef TANDEM_KERNELS_CPU_VEC_H
#define TANDEM_KERNELS_CPU_VEC_H

#include "kernels/num.h"

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#if defined __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#define VEC_NAME "neonbf16"
#define VEC_SUFFIX(x) x##_neonbf16
enum { VEC_BF16 = 1 }; /* has a dot product of bf16 */
#define ATTN_WIDENS 1  /* int8 caches are expanded to bf16: see attn_impl.h */
#elif defined __ARM_FEATURE_MATMUL_INT8
#define VEC_NAME "i8mm"
#define VEC_SUFFIX(x) x##_i8mm
enum { VEC_BF16 = 0 };
#define ATTN_WIDENS 0
#else
#define VEC_NAME "neon"
#define VEC_SUFFIX(x) x##_neon
enum { VEC_BF16 = 0 };
#define ATTN_WIDENS 0
#endif
/* register blocks: rows of activations x vectors of sixteen outputs; there are 32 registers */
#ifdef TANDEM_SANITIZED /* instrumented, the large blocks take the compiler minutes */
enum { BLOCK_ROWS_F = 3, BLOCK_ROWS_I8 = 3, BLOCK_ROWS_I4 = 3, ATTN_ROWS = 5, ATTN_R = 3, ATTN_P = 1 };
enum { BLOCK_ROWS_F2 = 2, BLOCK_ROWS_I8_2 = 2, BLOCK_ROWS_I4_2 = 2, DOT_R = 2, DOT_N = 2 };
#else
enum { BLOCK_ROWS_F = 5, BLOCK_ROWS_I8 = 4, BLOCK_ROWS_I4 = 4 };
enum { DOT_R = 2, DOT_N = 2 };                                        /* rows x outputs of a dot product */
enum { ATTN_ROWS = 20, ATTN_R = 5, ATTN_P = 1 };                      /* rows of a task, rows x pages in registers */
enum { BLOCK_ROWS_F2 = 2, BLOCK_ROWS_I8_2 = 2, BLOCK_ROWS_I4_2 = 2 }; /* with both panels of a pair */
#endif
enum { BLOCK_ROWS_CODES = BLOCK_ROWS_I4, BLOCK_ROWS_CODES_2 = BLOCK_ROWS_I4_2 }; /* of DT_BLOCK */
enum { I8_BIAS = 0 };

typedef struct {
    float32x4_t a, b, c, d;
} vf;
typedef struct {
    int32x4_t a, b, c, d;
} vi;
typedef struct {
    uint8x16_t a, b, c, d;
} vb;
typedef struct {
    uint32x4_t a, b, c, d;
} vm; /* all ones or zeros in each lane */

// clang-format off
/* One line for each name, to be read as a table. */
#define INLINE static inline __attribute__((always_inline))
#define VEC_CALLED INLINE /* the longer functions, which the portable level does not inline */
#define ONE(t, f) ((t){f(x.a), f(x.b), f(x.c), f(x.d)})
#define TWO(t, f) ((t){f(x.a, y.a), f(x.b, y.b), f(x.c, y.c), f(x.d, y.d)})
#define THREE(t, f) ((t){f(x.a, y.a, z.a), f(x.b, y.b, z.b), f(x.c, y.c, z.c), f(x.d, y.d, z.d)})
#define QUARTERS(t, f, p, apart) ((t){f(p), f((p) + (apart)), f((p) + 2 * (apart)), f((p) + 3 * (apart))})

INLINE vf v_set1(float x) { return (vf){vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x)}; }
INLINE vf v_zero(void) { return v_set1(0); }
INLINE vf v_load(const float *p) { return QUARTERS(vf, vld1q_f32, p, 4); }
INLINE void v_store(float *p, vf x)
{
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
    vst1q_f32(p + 8, x.c);
    vst1q_f32(p + 12, x.d);
}
INLINE vm m_first(int n)
{
    const int32x4_t lane = {0, 1, 2, 3};
    return (vm){vcltq_s32(lane, vdupq_n_s32(n)), vcltq_s32(lane, vdupq_n_s32(n - 4)), vcltq_s32(lane, vdupq_n_s32(n - 8)),
                vcltq_s32(lane, vdupq_n_s32(n - 12))};
}
/* There are no masked loads and stores: what is left of a row goes through memory. */
static __attribute__((noinline)) vf v_load_some(const float *p, int n)
{
    float some[16] = {0};
    for (int i = 0; i < n; i++) some[i] = p[i];
    return v_load(some);
}
static __attribute__((noinline)) void v_store_some(float *p, vf x, int n)
{
    float some[16];
    v_store(some, x);
    for (int i = 0; i < n; i++) p[i] = some[i];
}
INLINE vf v_load_n(const float *p, int n) { return n >= 16 ? v_load(p) : v_load_some(p, n); }
INLINE void v_store_n(float *p, vf x, int n)
{
    if (n >= 16)
        v_store(p, x);
    else
        v_store_some(p, x, n);
}
INLINE float32x4_t four_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
INLINE vf v_load_bf16(const uint16_t *p) { return QUARTERS(vf, four_bf16, p, 4); }
INLINE float32x4_t four_f16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
INLINE vf v_load_f16(const uint16_t *p) { return QUARTERS(vf, four_f16, p, 4); }
INLINE vf v_load_i8(const int8_t *p)
{
    int8x16_t x = vld1q_s8(p);
    int16x8_t low = vmovl_s8(vget_low_s8(x)), high = vmovl_high_s8(x);
    return (vf){vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))};
}
INLINE vf v_load_u8(const uint8_t *p)
{
    uint8x16_t x = vld1q_u8(p);
    uint16x8_t low = vmovl_u8(vget_low_u8(x)), high = vmovl_high_u8(x);
    return (vf){vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_high_u16(low)),
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_high_u16(high))};
}
INLINE vf v_add(vf x, vf y) { return TWO(vf, vaddq_f32); }
INLINE vf v_sub(vf x, vf y) { return TWO(vf, vsubq_f32); }
INLINE vf v_mul(vf x, vf y) { return TWO(vf, vmulq_f32); }
INLINE vf v_div(vf x, vf y) { return TWO(vf, vdivq_f32); }
INLINE vf v_sqrt(vf x) { return ONE(vf, vsqrtq_f32); }
INLINE vf v_fma(vf y, vf z, vf x) { return THREE(vf, vfmaq_f32); }  /* y z + x */
INLINE vf v_fnma(vf y, vf z, vf x) { return THREE(vf, vfmsq_f32); } /* x - y z */
/* vminq_f32 would return a NaN whichever operand it is */
INLINE float32x4_t four_min(float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); }
INLINE float32x4_t four_max(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
INLINE vf v_min(vf x, vf y) { return TWO(vf, four_min); }
INLINE vf v_max(vf x, vf y) { return TWO(vf, four_max); }
INLINE vi v_bits(vf x) { return ONE(vi, vreinterpretq_s32_f32); }
INLINE vf i_float(vi x) { return ONE(vf, vreinterpretq_f32_s32); }
INLINE vm v_lt(vf x, vf y) { return TWO(vm, vcltq_f32); }
INLINE vm v_ge(vf x, vf y) { return TWO(vm, vcgeq_f32); }
INLINE vm v_eq(vf x, vf y) { return TWO(vm, vceqq_f32); }
INLINE uint32_t m_bits(vm m)
{
    const uint32x4_t bit = {1, 2, 4, 8};
    uint32x4_t low = vorrq_u32(vandq_u32(m.a, bit), vandq_u32(m.b, vshlq_n_u32(bit, 4)));
    uint32x4_t high = vorrq_u32(vandq_u32(m.c, vshlq_n_u32(bit, 8)), vandq_u32(m.d, vshlq_n_u32(bit, 12)));
    return vaddvq_u32(vorrq_u32(low, high));
}
INLINE vm m_from(uint32_t bits)
{
    const uint32x4_t bit = {1, 2, 4, 8};
    return (vm){vtstq_u32(vdupq_n_u32(bits), bit), vtstq_u32(vdupq_n_u32(bits >> 4), bit), vtstq_u32(vdupq_n_u32(bits >> 8), bit),
                vtstq_u32(vdupq_n_u32(bits >> 12), bit)};
}
INLINE vf v_select(vm x, vf y, vf z) { return THREE(vf, vbslq_f32); } /* y where x is set */

INLINE vi i_set1(int32_t x) { return (vi){vdupq_n_s32(x), vdupq_n_s32(x), vdupq_n_s32(x), vdupq_n_s32(x)}; }
INLINE vi i_zero(void) { return i_set1(0); }
INLINE vi i_load(const void *p) { return QUARTERS(vi, vld1q_s32, (const int32_t *)p, 4); }
INLINE vi i_add(vi x, vi y) { return TWO(vi, vaddq_s32); }
INLINE vi i_sub(vi x, vi y) { return TWO(vi, vsubq_s32); }
INLINE vi i_and(vi x, vi y) { return TWO(vi, vandq_s32); }
INLINE vi i_max(vi x, vi y) { return TWO(vi, vmaxq_s32); }
INLINE vi i_or(vi x, vi y) { return TWO(vi, vorrq_s32); }
/* operators: the intrinsics with numbers in the instruction want literal ones */
INLINE int32x4_t four_shr(int32x4_t x, int n) { return vreinterpretq_s32_u32(vreinterpretq_u32_s32(x) >> (uint32_t)n); }
INLINE vi i_shr(vi x, int n) { return (vi){four_shr(x.a, n), four_shr(x.b, n), four_shr(x.c, n), four_shr(x.d, n)}; } /* zeros come in */
INLINE vi i_sar(vi x, int n) { return (vi){x.a >> n, x.b >> n, x.c >> n, x.d >> n}; } /* the sign comes in */
INLINE vi i_shl(vi x, int n) { return (vi){x.a << n, x.b << n, x.c << n, x.d << n}; }
INLINE vf i_to_f(vi x) { return ONE(vf, vcvtq_f32_s32); }
INLINE int8x16_t i_bytes(vi x)
{
    int16x8_t low = vmovn_high_s32(vmovn_s32(x.a), x.b), high = vmovn_high_s32(vmovn_s32(x.c), x.d);
    return vmovn_high_s16(vmovn_s16(low), high);
}
INLINE void i_store_i8(int8_t *p, vi x) { vst1q_s8(p, i_bytes(x)); }
/* lane i += a.hi w[i].hi, then += a.lo w[i].lo.  BFDOT and BFMMLA round to odd and do not fuse; these two are fused multiply-adds
 * like any other. */
INLINE vf v_dot_bf16(vf acc, vi w, uint32_t a)
{
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
    bfloat16x8_t both = vreinterpretq_bf16_u32(vdupq_n_u32(a));
#define DOT(q) vbfmlalbq_f32(vbfmlaltq_f32(acc.q, vreinterpretq_bf16_s32(w.q), both), vreinterpretq_bf16_s32(w.q), both)
    return (vf){DOT(a), DOT(b), DOT(c), DOT(d)};
#undef DOT
#else
    vi high = i_set1((int32_t)0xffff0000), both = i_set1((int32_t)a);
    acc = v_fma(i_float(i_and(both, high)), i_float(i_and(w, high)), acc);
    return v_fma(i_float(i_shl(both, 16)), i_float(i_shl(w, 16)), acc);
#endif
}
INLINE uint16x4_t four_f16_of(float32x4_t x) { return vreinterpret_u16_f16(vcvt_f16_f32(x)); }
INLINE void v_store_f16(uint16_t *p, vf x) /* sixteen floats to f16, to nearest even */
{
    vst1q_u16(p, vcombine_u16(four_f16_of(x.a), four_f16_of(x.b)));
    vst1q_u16(p + 8, vcombine_u16(four_f16_of(x.c), four_f16_of(x.d)));
}
/* sixteen floats to bf16, to nearest even; returns them rounded */
INLINE uint16x4_t four_bf16_of(float32x4_t x)
{
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
    return vreinterpret_u16_bf16(vcvt_bf16_f32(x));
#else
    uint32x4_t u = vreinterpretq_u32_f32(x), high = vshrq_n_u32(u, 16);
    uint32x4_t r = vaddq_u32(vaddq_u32(u, vandq_u32(high, vdupq_n_u32(1))), vdupq_n_u32(0x7fff));
    return vmovn_u32(vbslq_u32(vceqq_f32(x, x), vshrq_n_u32(r, 16), vorrq_u32(high, vdupq_n_u32(0x40))));
#endif
}
INLINE vf v_store_bf16(uint16_t *p, vf x)
{
    vst1q_u16(p, vcombine_u16(four_bf16_of(x.a), four_bf16_of(x.b)));
    vst1q_u16(p + 8, vcombine_u16(four_bf16_of(x.c), four_bf16_of(x.d)));
    return v_load_bf16(p);
}
INLINE int32x4_t four_pairs(float32x4_t low, float32x4_t high)
{
    uint16x4_t l = four_bf16_of(low), h = four_bf16_of(high);
    return vreinterpretq_s32_u16(vcombine_u16(vzip1_u16(l, h), vzip2_u16(l, h)));
}
INLINE vi v_pair_bf16(vf x, vf y) { return TWO(vi, four_pairs); } /* both rounded to bf16, side by side in each lane, x low */
INLINE void four_transpose(float *to, size_t ld_to, const float *from, size_t ld_from) /* 4 x 4 */
{
    uint32x4_t r[4], t[4];
    for (int i = 0; i < 4; i++) r[i] = vld1q_u32((const uint32_t *)(from + (size_t)i * ld_from));
    for (int i = 0; i < 4; i += 2) {
        t[i] = vtrn1q_u32(r[i], r[i + 1]);
        t[i + 1] = vtrn2q_u32(r[i], r[i + 1]);
    }
    for (int c = 0; c < 2; c++) {
        uint64x2_t x = vreinterpretq_u64_u32(t[c]), y = vreinterpretq_u64_u32(t[c + 2]);
        vst1q_u64((uint64_t *)(to + (size_t)c * ld_to), vtrn1q_u64(x, y));
        vst1q_u64((uint64_t *)(to + (size_t)(c + 2) * ld_to), vtrn2q_u64(x, y));
    }
}
/* the 16 x 16 words at `from`, rows ld_from words apart, transposed to `to`, rows ld_to words apart */
INLINE void w_transpose(float *to, size_t ld_to, const float *from, size_t ld_from)
{
    for (size_t i = 0; i < 16; i += 4)
        for (size_t k = 0; k < 16; k += 4) four_transpose(to + k * ld_to + i, ld_to, from + i * ld_from + k, ld_from);
}
/* 32 floats to bf16 side by side */
INLINE void v_store_2_bf16(uint16_t *p, vf x, vf y)
{
    v_store_bf16(p, x);
    v_store_bf16(p + 16, y);
}
/* two rows of 32 16-bit values as columns side by side: 0 .. 15 and 16 .. 31 */
INLINE void w_zip(void *first, void *second, const void *even, const void *odd)
{
    for (int i = 0; i < 4; i++) {
        uint16x8_t e = vld1q_u16((const uint16_t *)even + 8 * i), o = vld1q_u16((const uint16_t *)odd + 8 * i);
        uint16_t *to = (uint16_t *)(i < 2 ? first : second) + i % 2 * 16;
        vst1q_u16(to, vzip1q_u16(e, o));
        vst1q_u16(to + 8, vzip2q_u16(e, o));
    }
}
/* sixteen bytes as four words, `apart` bytes from each other; bias is 0 on these levels */
INLINE void i_store_i8_words(int8_t *p, int apart, vi x, int bias)
{
    int8_t b[16];
    i_store_i8(b, x);
    for (int i = 0; i < 4; i++) memcpy(p + (size_t)i * apart, b + 4 * i, 4);
}
INLINE int32_t i_hsum(vi x) { return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d))); }

INLINE vb b_load(const uint8_t *p) { return QUARTERS(vb, vld1q_u8, p, 16); }
INLINE uint8x16_t low_nibbles(uint8x16_t x) { return vandq_u8(x, vdupq_n_u8(15)); }
INLINE vb b_low(vb x) { return ONE(vb, low_nibbles); }
INLINE vb b_high(vb x) { return (vb){vshrq_n_u8(x.a, 4), vshrq_n_u8(x.b, 4), vshrq_n_u8(x.c, 4), vshrq_n_u8(x.d, 4)}; }
INLINE int8x16_t four_activations(const int8_t *a)
{
    int32_t four;
    memcpy(&four, a, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
}
INLINE vi i_dot_s(vi acc, vb w, const int8_t *a)
{
    int8x16_t four = four_activations(a);
#define DOT(q) vdotq_s32(acc.q, vreinterpretq_s8_u8(w.q), four)
    return (vi){DOT(a), DOT(b), DOT(c), DOT(d)};
#undef DOT
}
INLINE vi i_dot_u(vi acc, vb w, const int8_t *a) { return i_dot_s(acc, w, a); } /* weights are at most 63 */

#ifdef __ARM_FEATURE_MATMUL_INT8
/* Products of matrices: two rows of activations by the weights of two outputs, eight columns at a time.  x and y, which were the
 * sums of the rows, then hold those of both: x of the outputs 0, 1, 4, 5, 8, ..., y of 2, 3, 6, 7, 10, ... */
#define VEC_MATRICES
#define HALVES(zip, q) vreinterpretq_s32_s64(zip(vreinterpretq_s64_s32(x->q), vreinterpretq_s64_s32(y->q)))
#define ZIPPED(zip, q) vreinterpretq_u8_u32(zip(vreinterpretq_u32_u8(x.q), vreinterpretq_u32_u8(y.q)))
#define MATRIX(q) vmmlaq_s32(acc.q, a, vreinterpretq_s8_u8(w.q))
INLINE void i_pair(vi *x, vi *y) /* there, and back */
{
    vi low = {HALVES(vzip1q_s64, a), HALVES(vzip1q_s64, b), HALVES(vzip1q_s64, c), HALVES(vzip1q_s64, d)};
    *y = (vi){HALVES(vzip2q_s64, a), HALVES(vzip2q_s64, b), HALVES(vzip2q_s64, c), HALVES(vzip2q_s64, d)};
    *x = low;
}
/* the weights of x's outputs and of y's; here x are the weights of columns 0 .. 3, y of 4 .. 7 */
INLINE vb b_zip_x(vb x, vb y) { return (vb){ZIPPED(vzip1q_u32, a), ZIPPED(vzip1q_u32, b), ZIPPED(vzip1q_u32, c), ZIPPED(vzip1q_u32, d)}; }
INLINE vb b_zip_y(vb x, vb y) { return (vb){ZIPPED(vzip2q_u32, a), ZIPPED(vzip2q_u32, b), ZIPPED(vzip2q_u32, c), ZIPPED(vzip2q_u32, d)}; }
INLINE int8x16_t two_rows(const int8_t *first, const int8_t *then) /* four columns of both rows, and the next four */
{
    int32x2_t f = vreinterpret_s32_s8(vld1_s8(first)), t = vreinterpret_s32_s8(vld1_s8(then));
    return vreinterpretq_s8_s32(vcombine_s32(vzip1_s32(f, t), vzip2_s32(f, t)));
}
INLINE vi i_dot_two(vi acc, vb w, int8x16_t a) { return (vi){MATRIX(a), MATRIX(b), MATRIX(c), MATRIX(d)}; }
#undef HALVES
#undef ZIPPED
#undef MATRIX
#endif

/* Bytes of block weights: see vec_avx512.h. */
typedef uint8x16_t vl;
INLINE void b_store(uint8_t *p, vb x)
{
    vst1q_u8(p, x.a);
    vst1q_u8(p + 16, x.b);
    vst1q_u8(p + 32, x.c);
    vst1q_u8(p + 48, x.d);
}
INLINE vb b_or(vb x, vb y) { return TWO(vb, vorrq_u8); }
enum { W_LESS = 128 };
INLINE uint8x16_t less_128(uint8x16_t x) { return veorq_u8(x, vdupq_n_u8(128)); }
INLINE vb b_wide(vb x) { return ONE(vb, less_128); }
INLINE vi i_dot_w(vi acc, vb w, const int8_t *a) { return i_dot_s(acc, w, a); }
INLINE uint8x16_t shifted_bits(uint8x16_t x, int left, uint8_t mask)
{
    return vandq_u8(left > 0 ? x << (uint8_t)left : x >> (uint8_t)-left, vdupq_n_u8(mask));
}
#define SHIFTED(left, mask) ((vb){shifted_bits(x.a, left, mask), shifted_bits(x.b, left, mask), shifted_bits(x.c, left, mask), shifted_bits(x.d, left, mask)})
INLINE vb b_second(vb x, int i) { return SHIFTED(4 - i, 16); }
INLINE vb b_fourth(vb x, int i) { return SHIFTED(4 - 2 * i, 48); }
INLINE vl b_table(const uint8_t *table, int wide) { return veorq_u8(vld1q_u8(table), vdupq_n_u8(wide ? W_LESS : 0)); }
INLINE vb b_look(vl t, vb w) { return (vb){vqtbl1q_u8(t, w.a), vqtbl1q_u8(t, w.b), vqtbl1q_u8(t, w.c), vqtbl1q_u8(t, w.d)}; }

typedef uint8x16x4_t vt; /* sixteen floats */
enum { BLOCK_ROWS_NF4 = 3, BLOCK_ROWS_NF4_2 = 1 };
INLINE vt v_table(const float p[16]) { return vld1q_u8_x4((const uint8_t *)p); }
INLINE vt nf4_table(void) { return v_table(nf4_code); }
INLINE vi nf4_next(vi w) { return i_shr(w, 4); }
INLINE float32x4_t four_codes(vt t, int32x4_t w) /* the four bytes of float c are 4 c and on */
{
    uint32x4_t code = vandq_u32(vreinterpretq_u32_s32(w), vdupq_n_u32(15));
    uint32x4_t at = vmlaq_u32(vdupq_n_u32(0x03020100), code, vdupq_n_u32(0x04040404));
    return vreinterpretq_f32_u8(vqtbl4q_u8(t, vreinterpretq_u8_u32(at)));
}
INLINE vf nf4_codes(vt t, vi w) { return (vf){four_codes(t, w.a), four_codes(t, w.b), four_codes(t, w.c), four_codes(t, w.d)}; }

INLINE float v_sum(vf x)
{
    float32x4_t c = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    float32x2_t e = vadd_f32(vget_low_f32(c), vget_high_f32(c));
    return vget_lane_f32(e, 0) + vget_lane_f32(e, 1);
}
INLINE float v_hmax(vf x)
{
    float32x4_t c = four_max(four_max(x.a, x.c), four_max(x.b, x.d));
    c = four_max(c, vextq_f32(c, c, 2));
    return vgetq_lane_f32(four_max(c, vextq_f32(c, c, 1)), 0);
}
INLINE int32_t i_hmax(vi x) { return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.a, x.b), vmaxq_s32(x.c, x.d))); }

#undef ONE
#undef TWO
#undef THREE
#undef QUARTERS
#undef SHIFTED

// clang-format on

#endif
