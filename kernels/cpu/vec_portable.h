/* Sixteen lanes in plain C: arrays and loops for the compiler to vectorise. Same names and same bits as
 * vec_avx512.h. Slow without a fused multiply-add in the base instruction set; meant to be correct. Little-endian,
 * as the packed weights are. */
#ifndef TANDEM_KERNELS_CPU_VEC_H
#define TANDEM_KERNELS_CPU_VEC_H

#include "kernels/num.h"

#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#define VEC_NAME "portable"
#define VEC_SUFFIX(x) x##_portable
#define VEC_CALLED static __attribute__((noinline))
#define VEC_NO_UNROLL /* vectors are loops already: unrolling blocks of them takes the compiler minutes */
enum { BLOCK_ROWS_F = 2, BLOCK_ROWS_I8 = 8, BLOCK_ROWS_I4 = 8 };
enum { BLOCK_ROWS_F2 = 1, BLOCK_ROWS_I8_2 = 4, BLOCK_ROWS_I4_2 = 1 };
enum { BLOCK_ROWS_CODES = 2, BLOCK_ROWS_CODES_2 = 1 }; /* of DT_BLOCK, with a kernel for each kind of codes */
enum { ATTN_ROWS = 8, ATTN_R = 2, ATTN_P = 1, DOT_R = 1, DOT_N = 1 };
enum { I8_BIAS = 0 };
enum { VEC_BF16 = 0 }; /* no dot product of bf16 */

#define ATTN_WIDENS 0 /* int8 caches are expanded to bf16: see attn_impl.h */

typedef struct {
    float f[16];
} vf;
typedef struct {
    int32_t i[16];
} vi;
typedef struct {
    vi even, odd; /* sixteen-bit halves: the bytes 0 and 2 of each lane, and 1 and 3 */
} vb;
typedef uint32_t vm;

// clang-format off
/* One line for each name, to be read as a table. */
#define INLINE static inline __attribute__((always_inline))
#define EACH for (int l = 0; l < 16; l++)
#define MAP_F(expr)                                                                                                    \
    vf r;                                                                                                              \
    EACH r.f[l] = (expr);                                                                                              \
    return r
#define MAP_I(expr)                                                                                                    \
    vi r;                                                                                                              \
    EACH r.i[l] = (expr);                                                                                              \
    return r
#define MAP_M(expr)                                                                                                    \
    vm r = 0;                                                                                                          \
    EACH r |= (uint32_t)(expr) << l;                                                                                   \
    return r

INLINE vf v_set1(float x) { MAP_F(x); }
INLINE vf v_zero(void) { return v_set1(0); }
INLINE vf v_load(const float *p) { MAP_F(p[l]); }
INLINE void v_store(float *p, vf a) { EACH p[l] = a.f[l]; }
INLINE vm m_first(int n) { return n >= 16 ? 0xffff : (1u << n) - 1; }
INLINE vf v_load_n(const float *p, int n) { MAP_F(l < n ? p[l] : 0); }
INLINE void v_store_n(float *p, vf a, int n)
{
    for (int l = 0; l < n && l < 16; l++) p[l] = a.f[l];
}
INLINE vf v_load_bf16(const uint16_t *p) { MAP_F(bf16_to_f32(p[l])); }
INLINE vf v_load_f16(const uint16_t *p) { MAP_F(f16_to_f32(p[l])); }
INLINE vf v_load_i8(const int8_t *p) { MAP_F((float)p[l]); }
INLINE vf v_load_u8(const uint8_t *p) { MAP_F((float)p[l]); }
INLINE vf v_add(vf a, vf b) { MAP_F(a.f[l] + b.f[l]); }
INLINE vf v_sub(vf a, vf b) { MAP_F(a.f[l] - b.f[l]); }
INLINE vf v_mul(vf a, vf b) { MAP_F(a.f[l] * b.f[l]); }
INLINE vf v_div(vf a, vf b) { MAP_F(a.f[l] / b.f[l]); }
INLINE vf v_sqrt(vf a) { MAP_F(__builtin_sqrtf(a.f[l])); }
INLINE vf v_fma(vf a, vf b, vf c) { MAP_F(__builtin_fmaf(a.f[l], b.f[l], c.f[l])); }
INLINE vf v_fnma(vf a, vf b, vf c) { MAP_F(__builtin_fmaf(-a.f[l], b.f[l], c.f[l])); }
INLINE vf v_min(vf a, vf b) { MAP_F(a.f[l] < b.f[l] ? a.f[l] : b.f[l]); }
INLINE vf v_max(vf a, vf b) { MAP_F(a.f[l] > b.f[l] ? a.f[l] : b.f[l]); }
INLINE vi v_bits(vf a) { MAP_I((int32_t)f32_bits(a.f[l])); }
INLINE vf i_float(vi a) { MAP_F(f32_from_bits((uint32_t)a.i[l])); }
INLINE vm v_lt(vf a, vf b) { MAP_M(a.f[l] < b.f[l]); }
INLINE vm v_ge(vf a, vf b) { MAP_M(a.f[l] >= b.f[l]); }
INLINE vm v_eq(vf a, vf b) { MAP_M(a.f[l] == b.f[l]); }
INLINE uint32_t m_bits(vm m) { return m; }
INLINE vm m_from(uint32_t bits) { return bits; }
INLINE vf v_select(vm m, vf yes, vf no) { MAP_F(m >> l & 1 ? yes.f[l] : no.f[l]); }

INLINE vi i_load(const void *p)
{
    vi r;
    memcpy(r.i, p, 64);
    return r;
}
INLINE vi i_set1(int32_t x) { MAP_I(x); }
INLINE vi i_zero(void) { return i_set1(0); }
INLINE vi i_add(vi a, vi b) { MAP_I((int32_t)((uint32_t)a.i[l] + (uint32_t)b.i[l])); }
INLINE vi i_sub(vi a, vi b) { MAP_I((int32_t)((uint32_t)a.i[l] - (uint32_t)b.i[l])); }
INLINE vi i_and(vi a, vi b) { MAP_I(a.i[l] & b.i[l]); }
INLINE vi i_max(vi a, vi b) { MAP_I(a.i[l] > b.i[l] ? a.i[l] : b.i[l]); }
INLINE vi i_or(vi a, vi b) { MAP_I(a.i[l] | b.i[l]); }
INLINE vi i_shr(vi a, int n) { MAP_I((int32_t)((uint32_t)a.i[l] >> n)); } /* zeros come in */
INLINE vi i_sar(vi a, int n) { MAP_I(a.i[l] >> n); }                      /* the sign comes in */
INLINE vi i_shl(vi a, int n) { MAP_I((int32_t)((uint32_t)a.i[l] << n)); }
INLINE vf i_to_f(vi a) { MAP_F((float)a.i[l]); }
INLINE void i_store_i8(int8_t *p, vi a) { EACH p[l] = (int8_t)a.i[l]; }
/* lane i += a.hi w[i].hi, then += a.lo w[i].lo: what vdpbf16ps does, but for subnormal numbers */
INLINE vf v_dot_bf16(vf acc, vi w, uint32_t a)
{
    float high = f32_from_bits(a & 0xffff0000u), low = f32_from_bits(a << 16);
    MAP_F(__builtin_fmaf(low, f32_from_bits((uint32_t)w.i[l] << 16),
                         __builtin_fmaf(high, f32_from_bits((uint32_t)w.i[l] & 0xffff0000u), acc.f[l])));
}
INLINE void v_store_f16(uint16_t *p, vf x) { EACH p[l] = f32_to_f16(x.f[l]); } /* to nearest even */
/* sixteen floats to bf16, to nearest even; returns them rounded */
INLINE vf v_store_bf16(uint16_t *p, vf x)
{
    EACH p[l] = f32_to_bf16(x.f[l]);
    return v_load_bf16(p);
}
INLINE vi v_pair_bf16(vf low, vf high) /* both rounded to bf16, side by side in each lane */
{
    MAP_I((int32_t)(f32_to_bf16(low.f[l]) | (uint32_t)f32_to_bf16(high.f[l]) << 16));
}
/* the 16 x 16 words at `from`, rows ld_from words apart, transposed to `to`, rows ld_to words apart */
INLINE void w_transpose(float *to, size_t ld_to, const float *from, size_t ld_from)
{
    for (size_t i = 0; i < 16; i++)
        for (size_t k = 0; k < 16; k++) memcpy(to + k * ld_to + i, from + i * ld_from + k, 4);
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
    for (int i = 0; i < 32; i++) {
        uint8_t *to = (uint8_t *)(i < 16 ? first : second) + i % 16 * 4;
        memcpy(to, (const uint8_t *)even + 2 * i, 2);
        memcpy(to + 2, (const uint8_t *)odd + 2 * i, 2);
    }
}
/* sixteen bytes as four words, `apart` bytes from each other; bias is 0 on this level */
INLINE void i_store_i8_words(int8_t *p, int apart, vi a, int bias) { EACH p[l / 4 * apart + l % 4] = (int8_t)a.i[l]; }
INLINE int32_t i_hsum(vi a)
{
    int32_t sum = 0;
    EACH sum += a.i[l];
    return sum;
}

/* lane i += the sum of the products of the low and of the high sixteen bits of x[i] and y[i]. */
INLINE vi i_madd16(vi acc, vi x, vi y)
{
#ifdef __SSE2__ /* in every x86-64; gcc does not find the instruction by itself */
    for (int i = 0; i < 16; i += 4) {
        __m128i s = _mm_madd_epi16(_mm_loadu_si128((__m128i *)(x.i + i)), _mm_loadu_si128((__m128i *)(y.i + i)));
        _mm_storeu_si128((__m128i *)(acc.i + i), _mm_add_epi32(_mm_loadu_si128((__m128i *)(acc.i + i)), s));
    }
    return acc;
#else
    MAP_I(acc.i[l] + (int16_t)x.i[l] * (int16_t)y.i[l] + (x.i[l] >> 16) * (y.i[l] >> 16));
#endif
}
INLINE vb b_load(const uint8_t *p)
{
    int16_t low[32], high[32];
    vb r;
    memcpy(low, p, 64);
    for (int i = 0; i < 32; i++) high[i] = (int16_t)(low[i] >> 8), low[i] = (int16_t)((int16_t)((uint16_t)low[i] << 8) >> 8);
    memcpy(r.even.i, low, 64);
    memcpy(r.odd.i, high, 64);
    return r;
}
INLINE vb b_low(vb w) { return (vb){i_and(w.even, i_set1(0x000f000f)), i_and(w.odd, i_set1(0x000f000f))}; }
INLINE vb b_high(vb w)
{
    for (int l = 0; l < 16; l++) w.even.i[l] >>= 4, w.odd.i[l] >>= 4;
    return b_low(w);
}
INLINE vi two_bytes(int8_t low, int8_t high) { return i_set1((int32_t)((uint32_t)(uint16_t)low | (uint32_t)high << 16)); }
INLINE vi i_dot_s(vi acc, vb w, const int8_t *a)
{
    return i_madd16(i_madd16(acc, w.even, two_bytes(a[0], a[2])), w.odd, two_bytes(a[1], a[3]));
}
INLINE vi i_dot_u(vi acc, vb w, const int8_t *a) { return i_dot_s(acc, w, a); }

/* Bytes of block weights: see vec_avx512.h. A byte of 128 or more is a negative half here, as b_load makes it. */
enum { W_LESS = 128 };
typedef struct {
    int8_t t[16];
} vl;
INLINE void b_store(uint8_t *p, vb w)
{
    EACH p[4 * l] = (uint8_t)w.even.i[l], p[4 * l + 1] = (uint8_t)w.odd.i[l];
    EACH p[4 * l + 2] = (uint8_t)(w.even.i[l] >> 16), p[4 * l + 3] = (uint8_t)(w.odd.i[l] >> 16);
}
INLINE vb b_or(vb x, vb y) { return (vb){i_or(x.even, y.even), i_or(x.odd, y.odd)}; }
INLINE vi half_wide(vi x) { MAP_I(x.i[l] ^ (int32_t)0xff80ff80); }
INLINE vb b_wide(vb w) { return (vb){half_wide(w.even), half_wide(w.odd)}; }
INLINE vi i_dot_w(vi acc, vb w, const int8_t *a) { return i_dot_s(acc, w, a); }
INLINE vi half_bits(vi x, int left, int32_t mask) { return i_and(left > 0 ? i_shl(x, left) : i_shr(x, -left), i_set1(mask)); }
INLINE vb b_second(vb w, int i) { return (vb){half_bits(w.even, 4 - i, 0x00100010), half_bits(w.odd, 4 - i, 0x00100010)}; }
INLINE vb b_fourth(vb w, int i)
{
    return (vb){half_bits(w.even, 4 - 2 * i, 0x00300030), half_bits(w.odd, 4 - 2 * i, 0x00300030)};
}
INLINE vl b_table(const uint8_t *table, int wide)
{
    vl r;
    EACH r.t[l] = (int8_t)(table[l] ^ (wide ? 128 : 0));
    return r;
}
INLINE vi half_look(const vl *t, vi x) { MAP_I((int32_t)((uint32_t)(uint16_t)t->t[x.i[l] & 15] | (uint32_t)t->t[x.i[l] >> 16 & 15] << 16)); }
INLINE vb b_look(vl table, vb w) { return (vb){half_look(&table, w.even), half_look(&table, w.odd)}; }

typedef const float *vt;
enum { BLOCK_ROWS_NF4 = 2, BLOCK_ROWS_NF4_2 = 1 };
INLINE vt v_table(const float p[16]) { return p; }
INLINE vt nf4_table(void) { return nf4_code; }
INLINE vi nf4_next(vi w) { MAP_I((int32_t)((uint32_t)w.i[l] >> 4)); }
INLINE vf nf4_codes(vt t, vi w) { MAP_F(t[w.i[l] & 15]); }

INLINE float v_sum(vf a)
{
    for (int half = 8; half; half /= 2)
        for (int l = 0; l < half; l++) a.f[l] += a.f[l + half];
    return a.f[0];
}
INLINE float v_hmax(vf a)
{
    for (int half = 8; half; half /= 2)
        for (int l = 0; l < half; l++) a.f[l] = a.f[l] > a.f[l + half] ? a.f[l] : a.f[l + half];
    return a.f[0];
}
INLINE int32_t i_hmax(vi a)
{
    int32_t m = a.i[0];
    EACH m = m > a.i[l] ? m : a.i[l];
    return m;
}

#undef EACH
#undef MAP_F
#undef MAP_I
#undef MAP_M

// clang-format on

#endif
