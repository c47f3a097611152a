/* Sixteen lanes on AVX-512 (F, BW, VL, DQ, VNNI, and BF16 where the level has it).  The vec_*.h define the same
 * names with the same results, bit for bit: `vf` 16 floats, `vi` 16 int32, `vb` 64 bytes, `vm` a mask; every
 * multiply-add is fused, every reduction folds the upper half onto the lower, min and max return the second operand
 * when one is NaN. */
#ifndef TANDEM_KERNELS_CPU_VEC_H
#define TANDEM_KERNELS_CPU_VEC_H

#include "kernels/num.h"

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX512BF16__
#define VEC_NAME "avx512bf16"
#define VEC_SUFFIX(x) x##_avx512bf16
enum { VEC_BF16 = 1 }; /* has a dot product of bf16 */
#else
#define VEC_NAME "avx512"
#define VEC_SUFFIX(x) x##_avx512
enum { VEC_BF16 = 0 };
#endif
/* register blocks: rows of activations x vectors of sixteen outputs */
#ifdef TANDEM_SANITIZED /* instrumented, the large blocks take the compiler minutes */
enum { BLOCK_ROWS_F = 3, BLOCK_ROWS_I8 = 3, BLOCK_ROWS_I4 = 3, ATTN_ROWS = 5, ATTN_R = 3, ATTN_P = 1 };
enum { BLOCK_ROWS_F2 = 2, BLOCK_ROWS_I8_2 = 2, BLOCK_ROWS_I4_2 = 2, DOT_R = 2, DOT_N = 2 };
#else
enum { BLOCK_ROWS_F = 12, BLOCK_ROWS_I8 = 12, BLOCK_ROWS_I4 = 6 };
enum { DOT_R = 4, DOT_N = 4 };                                          /* rows x outputs of a dot product */
enum { ATTN_ROWS = 24, ATTN_R = 6, ATTN_P = 4 };                        /* rows of a task, rows x pages in registers */
enum { BLOCK_ROWS_F2 = 12, BLOCK_ROWS_I8_2 = 12, BLOCK_ROWS_I4_2 = 6 }; /* with both panels of a pair */
#endif
enum { BLOCK_ROWS_CODES = BLOCK_ROWS_I4, BLOCK_ROWS_CODES_2 = BLOCK_ROWS_I4_2 }; /* of DT_BLOCK */
enum { I8_BIAS = 128 }; /* added to activations for int8 weights: vpdpbusd multiplies unsigned by signed */

#define ATTN_WIDENS 1 /* int8 caches are expanded to bf16: see attn_impl.h */

typedef __m512 vf;
typedef __m512i vi;
typedef __m512i vb;
typedef __mmask16 vm;

// clang-format off
/* One line for each name, to be read as a table. */
#define INLINE static inline __attribute__((always_inline))
#define VEC_CALLED INLINE /* the longer functions, which the portable level does not inline */

INLINE vf v_zero(void) { return _mm512_setzero_ps(); }
INLINE vf v_set1(float x) { return _mm512_set1_ps(x); }
INLINE vf v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
INLINE vm m_first(int n) { return (vm)(n >= 16 ? 0xffff : (1u << n) - 1); } /* lanes 0 .. n-1; n >= 0 */
INLINE vf v_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(m_first(n), p); }
INLINE void v_store_n(float *p, vf a, int n) { _mm512_mask_storeu_ps(p, m_first(n), a); }
INLINE vf v_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
INLINE vf v_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INLINE vf v_load_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
INLINE vf v_load_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
INLINE vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf v_sqrt(vf a) { return _mm512_sqrt_ps(a); }
INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }   /* a b + c */
INLINE vf v_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); } /* c - a b */
INLINE vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vi v_bits(vf a) { return _mm512_castps_si512(a); }
INLINE vf i_float(vi a) { return _mm512_castsi512_ps(a); } /* the bits */
INLINE vm v_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
INLINE vm v_ge(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
INLINE vm v_eq(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
INLINE uint32_t m_bits(vm m) { return m; }
INLINE vm m_from(uint32_t bits) { return (vm)bits; }
INLINE vf v_select(vm m, vf yes, vf no) { return _mm512_mask_blend_ps(m, no, yes); }

INLINE vi i_zero(void) { return _mm512_setzero_si512(); }
INLINE vi i_load(const void *p) { return _mm512_loadu_si512(p); }
INLINE vi i_set1(int32_t x) { return _mm512_set1_epi32(x); }
INLINE vi i_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
INLINE vi i_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
INLINE vi i_and(vi a, vi b) { return _mm512_and_si512(a, b); }
INLINE vi i_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
INLINE vi i_or(vi a, vi b) { return _mm512_or_si512(a, b); }
INLINE vi i_shl(vi a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
INLINE vi i_shr(vi a, int n) { return _mm512_srli_epi32(a, (unsigned)n); } /* zeros come in */
INLINE vi i_sar(vi a, int n) { return _mm512_srai_epi32(a, (unsigned)n); } /* the sign comes in */
INLINE vf i_to_f(vi a) { return _mm512_cvtepi32_ps(a); }
INLINE void i_store_i8(int8_t *p, vi a) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a)); }
/* lane i += a.hi w[i].hi, then += a.lo w[i].lo: what vdpbf16ps does, but for subnormal numbers */
INLINE vf v_dot_bf16(vf acc, vi w, uint32_t a)
{
#ifdef __AVX512BF16__
    return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)_mm512_set1_epi32((int)a));
#else
    vi high = i_set1((int32_t)0xffff0000), both = i_set1((int32_t)a);
    acc = v_fma(i_float(i_and(both, high)), i_float(i_and(w, high)), acc);
    return v_fma(i_float(i_shl(both, 16)), i_float(i_shl(w, 16)), acc);
#endif
}
INLINE void v_store_f16(uint16_t *p, vf x) /* sixteen floats to f16, to nearest even */
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* sixteen floats to bf16, to nearest even; returns them rounded */
INLINE vf v_store_bf16(uint16_t *p, vf x)
{
#ifdef __AVX512BF16__
    __m256bh h = _mm512_cvtneps_pbh(x);
    memcpy(p, &h, 32);
    return i_float(i_shl(_mm512_cvtepu16_epi32((__m256i)h), 16));
#else
    vi u = v_bits(x), odd = i_and(_mm512_srli_epi32(u, 16), i_set1(1));
    vi r = _mm512_srli_epi32(i_add(i_add(u, odd), i_set1(0x7fff)), 16);
    r = _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_srli_epi32(u, 16), i_set1(0x40));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(r));
    return i_float(i_shl(r, 16));
#endif
}
INLINE vi i_bf16(vf x) /* x rounded to bf16, in the low half of each lane */
{
#ifdef __AVX512BF16__
    return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x));
#else
    vi u = v_bits(x), odd = i_and(_mm512_srli_epi32(u, 16), i_set1(1));
    vi r = _mm512_srli_epi32(i_add(i_add(u, odd), i_set1(0x7fff)), 16);
    return _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_srli_epi32(u, 16), i_set1(0x40));
#endif
}
INLINE vi v_pair_bf16(vf low, vf high) /* both rounded to bf16, side by side in each lane */
{
#ifdef __AVX512BF16__
    const __m512i side_by_side = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                                  6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(side_by_side, (__m512i)_mm512_cvtne2ps_pbh(high, low));
#else
    return i_or(i_bf16(low), i_shl(i_bf16(high), 16));
#endif
}
/* the 16 x 16 words at `from`, rows ld_from words apart, transposed to `to`, rows ld_to words apart */
INLINE void w_transpose(float *to, size_t ld_to, const float *from, size_t ld_from)
{
    __m512i r[16], t[16];
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(from + (size_t)i * ld_from);
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) { /* r[i + c]: in its four parts, columns c, c + 4, ... of rows i .. i + 3 */
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int c = 0; c < 4; c++) {
        __m512i a = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88), b = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
        __m512i e = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd), f = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
        t[c] = _mm512_shuffle_i32x4(a, b, 0x88);
        t[c + 8] = _mm512_shuffle_i32x4(a, b, 0xdd);
        t[c + 4] = _mm512_shuffle_i32x4(e, f, 0x88);
        t[c + 12] = _mm512_shuffle_i32x4(e, f, 0xdd);
    }
    for (int i = 0; i < 16; i++) _mm512_storeu_si512(to + (size_t)i * ld_to, t[i]);
}
/* 32 floats to bf16 side by side */
INLINE void v_store_2_bf16(uint16_t *p, vf x, vf y)
{
#ifdef __AVX512BF16__
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(y, x));
#else
    v_store_bf16(p, x);
    v_store_bf16(p + 16, y);
#endif
}
/* two rows of 32 16-bit values as columns side by side: 0 .. 15 and 16 .. 31 */
INLINE void w_zip(void *first, void *second, const void *even, const void *odd)
{
    const __m512i at = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5,
                                        36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    __m512i e = _mm512_loadu_si512(even), o = _mm512_loadu_si512(odd);
    _mm512_storeu_si512(first, _mm512_permutex2var_epi16(e, at, o));
    _mm512_storeu_si512(second, _mm512_permutex2var_epi16(e, _mm512_add_epi16(at, _mm512_set1_epi16(16)), o));
}
/* sixteen bytes as four words, `apart` bytes from each other; bias 0, or 128 to be added to each */
INLINE void i_store_i8_words(int8_t *p, int apart, vi a, int bias)
{
    __m128i b = _mm_xor_si128(_mm512_cvtepi32_epi8(a), _mm_set1_epi8((char)bias));
    int32_t w[4] = {_mm_cvtsi128_si32(b), _mm_extract_epi32(b, 1), _mm_extract_epi32(b, 2), _mm_extract_epi32(b, 3)};
    for (int i = 0; i < 4; i++) memcpy(p + (size_t)i * apart, w + i, 4);
}
INLINE int32_t i_hsum(vi a) { return _mm512_reduce_add_epi32(a); }

INLINE vb b_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
INLINE vb b_low(vb w) { return _mm512_and_si512(w, _mm512_set1_epi8(15)); }
INLINE vb b_high(vb w) { return _mm512_and_si512(_mm512_srli_epi16(w, 4), _mm512_set1_epi8(15)); }
INLINE vi four_bytes(const void *p)
{
    int32_t four;
    memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
}
/* lane i += dot of the four weights 4i..4i+3 with the four activations at a; `s`: int8 weights and activations +
 * I8_BIAS, `u`: weights 0..15 and signed activations */
INLINE vi i_dot_s(vi acc, vb w, const int8_t *a) { return _mm512_dpbusd_epi32(acc, four_bytes(a), w); }
INLINE vi i_dot_u(vi acc, vb w, const int8_t *a) { return _mm512_dpbusd_epi32(acc, w, four_bytes(a)); }

/* Bytes of block weights (block.h). b_wide: bytes up to 255 as i_dot_w takes them, which multiplies with signed
 * activations the weight less W_LESS. b_second, b_fourth: bits i, or 2i and 2i + 1, of each byte at 16 and above;
 * b_look: a table's bytes, b_table's with wide as b_wide makes them. */
enum { W_LESS = 0 };
typedef __m512i vl;
INLINE void b_store(uint8_t *p, vb w) { _mm512_storeu_si512(p, w); }
INLINE vb b_or(vb x, vb y) { return _mm512_or_si512(x, y); }
INLINE vb b_wide(vb w) { return w; }
INLINE vi i_dot_w(vi acc, vb w, const int8_t *a) { return i_dot_u(acc, w, a); }
INLINE vb b_second(vb w, int i)
{
    return _mm512_and_si512(i < 4 ? _mm512_slli_epi16(w, (unsigned)(4 - i)) : _mm512_srli_epi16(w, (unsigned)(i - 4)),
                            _mm512_set1_epi8(16));
}
INLINE vb b_fourth(vb w, int i)
{
    return _mm512_and_si512(i < 2 ? _mm512_slli_epi16(w, (unsigned)(4 - 2 * i)) : _mm512_srli_epi16(w, (unsigned)(2 * i - 4)),
                            _mm512_set1_epi8(48));
}
INLINE vl b_table(const uint8_t *table, int wide)
{
    (void)wide;
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table));
}
INLINE vb b_look(vl table, vb w) { return _mm512_shuffle_epi8(table, w); }

/* e4m3 codes, four in a lane: the even bytes, or with `odd` the others, as pairs of bf16. What adds the exponent's new
 * bias is another number for each of the eight subnormal codes. */
#define VEC_F8_PAIRS
INLINE vi i_f8_pairs(vi w, int odd)
{
    const __m512i subnormal = _mm512_set4_epi64(0x3bf03be03bd03bc0, 0x3b903b603af00000, 0x3bf03be03bd03bc0, 0x3b903b603af00000);
    __m512i x = odd ? w : _mm512_slli_epi16(w, 8), at = odd ? _mm512_srli_epi16(w, 8) : w;
    __m512i code = _mm512_and_si512(_mm512_srai_epi16(x, 4), _mm512_set1_epi16((short)0x87f0));
    __mmask32 low = _mm512_testn_epi16_mask(x, _mm512_set1_epi16(0x7800));
    return _mm512_add_epi16(code, _mm512_mask_permutexvar_epi16(_mm512_set1_epi16(0x3c00), low, at, subnormal));
}

/* nf4: a lane has eight weights, the first in its low nibble; next moves on by one, codes looks the current ones up */
typedef __m512 vt;
#ifdef TANDEM_SANITIZED
enum { BLOCK_ROWS_NF4 = 3, BLOCK_ROWS_NF4_2 = 2 };
#else
enum { BLOCK_ROWS_NF4 = 10, BLOCK_ROWS_NF4_2 = 10 };
#endif
INLINE vt v_table(const float p[16]) { return _mm512_loadu_ps(p); }
INLINE vt nf4_table(void) { return _mm512_loadu_ps(nf4_code); }
INLINE vi nf4_next(vi w) { return _mm512_srli_epi32(w, 4); }
INLINE vf nf4_codes(vt t, vi w) { return _mm512_permutexvar_ps(w, t); } /* vpermps reads the low four bits only */

INLINE float v_sum(vf a)
{
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
INLINE float v_hmax(vf a)
{
    __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
INLINE int32_t i_hmax(vi a) { return _mm512_reduce_max_epi32(a); }

// clang-format on

#endif
