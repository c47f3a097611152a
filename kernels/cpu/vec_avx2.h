/* Sixteen lanes on AVX2 + FMA + F16C: two registers for each vector.  Same names and same bits as vec_avx512.h. */
#ifndef TANDEM_KERNELS_CPU_VEC_H
#define TANDEM_KERNELS_CPU_VEC_H

#include "kernels/num.h"

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVXVNNI__
#define VEC_NAME "avxvnni"
#define VEC_SUFFIX(x) x##_avxvnni
enum { I8_BIAS = 128 }; /* added to activations for int8 weights: vpdpbusd multiplies unsigned by signed */
#else
#define VEC_NAME "avx2"
#define VEC_SUFFIX(x) x##_avx2
enum { I8_BIAS = 0 };
#endif
#ifdef TANDEM_SANITIZED /* instrumented, the large blocks take the compiler minutes */
enum { BLOCK_ROWS_F = 3, BLOCK_ROWS_I8 = 3, BLOCK_ROWS_I4 = 3, ATTN_ROWS = 5, ATTN_R = 3, ATTN_P = 1 };
enum { BLOCK_ROWS_F2 = 2, BLOCK_ROWS_I8_2 = 2, BLOCK_ROWS_I4_2 = 2, DOT_R = 2, DOT_N = 2 };
#else
#ifdef __AVXVNNI__ /* needs no registers but the sums', a weight's and an activation's */
enum { BLOCK_ROWS_I8 = 6, BLOCK_ROWS_I8_2 = 3 };
#else
enum { BLOCK_ROWS_I8 = 4, BLOCK_ROWS_I8_2 = 2 };
#endif
enum { BLOCK_ROWS_F = 5, BLOCK_ROWS_I4 = 4 };
enum { DOT_R = 2, DOT_N = 2 };                   /* rows x outputs of a dot product */
enum { ATTN_ROWS = 20, ATTN_R = 5, ATTN_P = 1 }; /* rows of a task, rows x pages in registers */
enum { BLOCK_ROWS_F2 = 2, BLOCK_ROWS_I4_2 = 1 }; /* with both panels of a pair, as BLOCK_ROWS_I8_2 */
#endif
enum { BLOCK_ROWS_CODES = BLOCK_ROWS_I4, BLOCK_ROWS_CODES_2 = BLOCK_ROWS_I4_2 }; /* of DT_BLOCK */
enum { VEC_BF16 = 0 };                                                           /* no dot product of bf16 */

#define ATTN_WIDENS 0 /* int8 caches are expanded to bf16: see attn_impl.h */

typedef struct {
    __m256 a, b;
} vf;
typedef struct {
    __m256i a, b;
} vi;
typedef vi vb;
typedef vf vm; /* all ones or zeros in each lane */

// clang-format off
/* One line for each name, to be read as a table. */
#define INLINE static inline __attribute__((always_inline))
#define VEC_CALLED INLINE /* the longer functions, which the portable level does not inline */
#define PAIR(t, f) ((t){f(x.a, y.a), f(x.b, y.b)})

INLINE vf v_zero(void) { return (vf){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
INLINE vf v_set1(float x) { return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE vf v_load(const float *p) { return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE void v_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
INLINE vi i_first(int n)
{
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return (vi){_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane), _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lane)};
}
INLINE vm m_first(int n)
{
    vi m = i_first(n);
    return (vm){_mm256_castsi256_ps(m.a), _mm256_castsi256_ps(m.b)};
}
INLINE vf v_load_n(const float *p, int n)
{
    vi m = i_first(n);
    return (vf){_mm256_maskload_ps(p, m.a), n > 8 ? _mm256_maskload_ps(p + 8, m.b) : _mm256_setzero_ps()};
}
INLINE void v_store_n(float *p, vf x, int n)
{
    vi m = i_first(n);
    _mm256_maskstore_ps(p, m.a, x.a);
    if (n > 8) _mm256_maskstore_ps(p + 8, m.b, x.b);
}
INLINE __m256 half_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
INLINE vf v_load_bf16(const uint16_t *p) { return (vf){half_bf16(p), half_bf16(p + 8)}; }
INLINE vf v_load_f16(const uint16_t *p)
{
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
INLINE __m256 half_i8(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
INLINE vf v_load_i8(const int8_t *p) { return (vf){half_i8(p), half_i8(p + 8)}; }
INLINE __m256 half_u8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
INLINE vf v_load_u8(const uint8_t *p) { return (vf){half_u8(p), half_u8(p + 8)}; }
INLINE vf v_add(vf x, vf y) { return PAIR(vf, _mm256_add_ps); }
INLINE vf v_sub(vf x, vf y) { return PAIR(vf, _mm256_sub_ps); }
INLINE vf v_mul(vf x, vf y) { return PAIR(vf, _mm256_mul_ps); }
INLINE vf v_div(vf x, vf y) { return PAIR(vf, _mm256_div_ps); }
INLINE vf v_sqrt(vf x) { return (vf){_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
INLINE vf v_fma(vf x, vf y, vf c) { return (vf){_mm256_fmadd_ps(x.a, y.a, c.a), _mm256_fmadd_ps(x.b, y.b, c.b)}; }
INLINE vf v_fnma(vf x, vf y, vf c) { return (vf){_mm256_fnmadd_ps(x.a, y.a, c.a), _mm256_fnmadd_ps(x.b, y.b, c.b)}; }
INLINE vf v_min(vf x, vf y) { return PAIR(vf, _mm256_min_ps); }
INLINE vf v_max(vf x, vf y) { return PAIR(vf, _mm256_max_ps); }
INLINE vi v_bits(vf x) { return (vi){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
INLINE vf i_float(vi x) { return (vf){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
INLINE vm v_lt(vf x, vf y) { return (vm){_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)}; }
INLINE vm v_ge(vf x, vf y) { return (vm){_mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ)}; }
INLINE vm v_eq(vf x, vf y) { return (vm){_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ)}; }
INLINE uint32_t m_bits(vm m) { return (uint32_t)_mm256_movemask_ps(m.a) | (uint32_t)_mm256_movemask_ps(m.b) << 8; }
INLINE vm m_from(uint32_t bits)
{
    __m256i low = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128), high = _mm256_slli_epi32(low, 8);
    __m256i all = _mm256_set1_epi32((int)bits);
    return (vm){_mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, low), low)),
                _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, high), high))};
}
INLINE vf v_select(vm m, vf yes, vf no)
{
    return (vf){_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)};
}

INLINE vi i_zero(void) { return (vi){_mm256_setzero_si256(), _mm256_setzero_si256()}; }
INLINE vi i_load(const void *p)
{
    return (vi){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1)};
}
INLINE vi i_set1(int32_t x) { return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
INLINE vi i_add(vi x, vi y) { return PAIR(vi, _mm256_add_epi32); }
INLINE vi i_sub(vi x, vi y) { return PAIR(vi, _mm256_sub_epi32); }
INLINE vi i_and(vi x, vi y) { return PAIR(vi, _mm256_and_si256); }
INLINE vi i_max(vi x, vi y) { return PAIR(vi, _mm256_max_epi32); }
INLINE vi i_or(vi x, vi y) { return PAIR(vi, _mm256_or_si256); }
INLINE vi i_shr(vi x, int n) { return (vi){_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)}; } /* zeros come in */
INLINE vi i_sar(vi x, int n) { return (vi){_mm256_srai_epi32(x.a, n), _mm256_srai_epi32(x.b, n)}; } /* the sign */
INLINE vi i_shl(vi x, int n) { return (vi){_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)}; }
INLINE vf i_to_f(vi x) { return (vf){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
INLINE void i_store_i8(int8_t *p, vi x)
{
    __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}
/* lane i += a.hi w[i].hi, then += a.lo w[i].lo: what vdpbf16ps does, but for subnormal numbers */
INLINE vf v_dot_bf16(vf acc, vi w, uint32_t a)
{
    vi high = i_set1((int32_t)0xffff0000), both = i_set1((int32_t)a);
    acc = v_fma(i_float(i_and(both, high)), i_float(i_and(w, high)), acc);
    return v_fma(i_float(i_shl(both, 16)), i_float(i_shl(w, 16)), acc);
}
INLINE void v_store_f16(uint16_t *p, vf x) /* sixteen floats to f16, to nearest even */
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *)p + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* sixteen floats to bf16, to nearest even; returns them rounded */
INLINE __m256i half_bf16_of(__m256 x)
{
    __m256i u = _mm256_castps_si256(x), high = _mm256_srli_epi32(u, 16), one = _mm256_set1_epi32(1);
    __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_and_si256(high, one)), _mm256_set1_epi32(0x7fff));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(r, 16), _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
}
INLINE vf v_store_bf16(uint16_t *p, vf x)
{
    vi r = {half_bf16_of(x.a), half_bf16_of(x.b)};
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(_mm256_packus_epi32(r.a, r.b), 0xd8));
    return i_float(i_shl(r, 16));
}
INLINE vi v_pair_bf16(vf low, vf high) /* both rounded to bf16, side by side in each lane */
{
    vi l = {half_bf16_of(low.a), half_bf16_of(low.b)}, h = {half_bf16_of(high.a), half_bf16_of(high.b)};
    return i_or(l, i_shl(h, 16));
}
INLINE void half_transpose(float *to, size_t ld_to, const float *from, size_t ld_from) /* 8 x 8 */
{
    __m256i r[8], t[8];
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_si256((const __m256i *)(from + (size_t)i * ld_from));
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) { /* r[i + c]: columns c and c + 4 of rows i .. i + 3 */
        r[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int c = 0; c < 4; c++) {
        t[c] = _mm256_permute2x128_si256(r[c], r[4 + c], 0x20);
        t[c + 4] = _mm256_permute2x128_si256(r[c], r[4 + c], 0x31);
    }
    for (int i = 0; i < 8; i++) _mm256_storeu_si256((__m256i *)(to + (size_t)i * ld_to), t[i]);
}
/* the 16 x 16 words at `from`, rows ld_from words apart, transposed to `to`, rows ld_to words apart */
INLINE void w_transpose(float *to, size_t ld_to, const float *from, size_t ld_from)
{
    for (size_t i = 0; i < 16; i += 8)
        for (size_t k = 0; k < 16; k += 8) half_transpose(to + k * ld_to + i, ld_to, from + i * ld_from + k, ld_from);
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
    for (int i = 0; i < 2; i++) {
        __m256i e = _mm256_loadu_si256((const __m256i *)even + i), o = _mm256_loadu_si256((const __m256i *)odd + i);
        __m256i l = _mm256_unpacklo_epi16(e, o), h = _mm256_unpackhi_epi16(e, o), *to = i ? second : first;
        _mm256_storeu_si256(to, _mm256_permute2x128_si256(l, h, 0x20));
        _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(l, h, 0x31));
    }
}
/* sixteen bytes as four words, `apart` bytes from each other; bias 0, or 128 to be added to each */
INLINE void i_store_i8_words(int8_t *p, int apart, vi x, int bias)
{
    int8_t b[16];
    i_store_i8(b, x);
    for (int i = 0; i < 4; i++) {
        uint32_t w;
        memcpy(&w, b + 4 * i, 4);
        w ^= (uint32_t)bias * 0x01010101u;
        memcpy(p + (size_t)i * apart, &w, 4);
    }
}
INLINE int32_t i_hsum(vi x)
{
    __m256i b = _mm256_add_epi32(x.a, x.b);
    __m128i c = _mm_add_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    c = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4e));
    c = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0xb1));
    return _mm_cvtsi128_si32(c);
}

INLINE vb b_load(const uint8_t *p)
{
    return (vb){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 32))};
}
INLINE vb b_low(vb w)
{
    __m256i m = _mm256_set1_epi8(15);
    return (vb){_mm256_and_si256(w.a, m), _mm256_and_si256(w.b, m)};
}
INLINE vb b_high(vb w)
{
    return b_low((vb){_mm256_srli_epi16(w.a, 4), _mm256_srli_epi16(w.b, 4)});
}
INLINE __m256i four_activations(const int8_t *a)
{
    int32_t four;
    memcpy(&four, a, 4);
    return _mm256_set1_epi32(four);
}
/* The sums of integers, added here and now: compilers add several products in another order, for which all of them must
 * be kept, and then spill registers. */
INLINE vi i_added(vi s)
{
#ifndef __AVXVNNI__
    __asm__("" : "+x"(s.a), "+x"(s.b));
#endif
    return s;
}
#ifdef __AVXVNNI__
INLINE __m256i half_dot_s(__m256i acc, __m256i w, __m256i a) { return _mm256_dpbusd_avx_epi32(acc, a, w); }
INLINE __m256i half_dot_u(__m256i acc, __m256i w, __m256i a) { return _mm256_dpbusd_avx_epi32(acc, w, a); }
#else
/* vpmaddubsw saturates at 32767.  It cannot here: weights are within +-128 and activations within +-127, so a pair is at
 * most 2 * 128 * 127 = 32512.  What a weight's absolute value costs is shared by the rows of a block. */
INLINE __m256i half_dot_s(__m256i acc, __m256i w, __m256i a)
{
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
/* here a pair is at most 2 * 15 * 127 = 3810 */
INLINE __m256i half_dot_u(__m256i acc, __m256i w, __m256i a)
{
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, a), _mm256_set1_epi16(1)));
}
/* Sums of products in 16 bits, two in a lane: what widens products to 32 bits is needed once for several of them.
 * Codes up to 2^bits - 1 add up to 2 * (2^bits - 1) * 127 a time: within SHORT_SUMS(bits) times that stays below
 * 32768. */
#define SHORT_SUMS(bits) ((bits) <= 4 ? 8 : (bits) == 5 ? 4 : 2)
INLINE vi s_dot_u(vi s, vb w, const int8_t *a)
{
    __m256i four = four_activations(a);
    return i_added((vi){_mm256_add_epi16(s.a, _mm256_maddubs_epi16(w.a, four)),
                        _mm256_add_epi16(s.b, _mm256_maddubs_epi16(w.b, four))});
}
INLINE vi i_add_short(vi acc, vi s)
{
    __m256i one = _mm256_set1_epi16(1);
    return (vi){_mm256_add_epi32(acc.a, _mm256_madd_epi16(s.a, one)),
                _mm256_add_epi32(acc.b, _mm256_madd_epi16(s.b, one))};
}
#endif
INLINE vi i_dot_s(vi acc, vb w, const int8_t *a)
{
    __m256i four = four_activations(a);
    return i_added((vi){half_dot_s(acc.a, w.a, four), half_dot_s(acc.b, w.b, four)});
}
INLINE vi i_dot_u(vi acc, vb w, const int8_t *a)
{
    __m256i four = four_activations(a);
    return i_added((vi){half_dot_u(acc.a, w.a, four), half_dot_u(acc.b, w.b, four)});
}

/* Bytes of block weights: see vec_avx512.h. */
typedef __m256i vl;
INLINE void b_store(uint8_t *p, vb w)
{
    _mm256_storeu_si256((__m256i *)p, w.a);
    _mm256_storeu_si256((__m256i *)(p + 32), w.b);
}
INLINE vb b_or(vb x, vb y) { return PAIR(vb, _mm256_or_si256); }
#ifdef __AVXVNNI__
enum { W_LESS = 0 };
INLINE vb b_wide(vb w) { return w; }
INLINE vi i_dot_w(vi acc, vb w, const int8_t *a) { return i_dot_u(acc, w, a); }
#else
enum { W_LESS = 128 };
INLINE vb b_wide(vb w)
{
    __m256i m = _mm256_set1_epi8(-128);
    return (vb){_mm256_xor_si256(w.a, m), _mm256_xor_si256(w.b, m)};
}
INLINE vi i_dot_w(vi acc, vb w, const int8_t *a) { return i_dot_s(acc, w, a); }
#endif
INLINE __m256i half_second(__m256i w, int i)
{
    return _mm256_and_si256(i < 4 ? _mm256_slli_epi16(w, 4 - i) : _mm256_srli_epi16(w, i - 4), _mm256_set1_epi8(16));
}
INLINE __m256i half_fourth(__m256i w, int i)
{
    return _mm256_and_si256(i < 2 ? _mm256_slli_epi16(w, 4 - 2 * i) : _mm256_srli_epi16(w, 2 * i - 4),
                            _mm256_set1_epi8(48));
}
INLINE vb b_second(vb w, int i) { return (vb){half_second(w.a, i), half_second(w.b, i)}; }
INLINE vb b_fourth(vb w, int i) { return (vb){half_fourth(w.a, i), half_fourth(w.b, i)}; }
INLINE vl b_table(const uint8_t *table, int wide)
{
    __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    return wide && W_LESS != 0 ? _mm256_xor_si256(t, _mm256_set1_epi8(-128)) : t;
}
INLINE vb b_look(vl table, vb w) { return (vb){_mm256_shuffle_epi8(table, w.a), _mm256_shuffle_epi8(table, w.b)}; }

typedef struct {
    __m256 low, high; /* codes 0..7 and 8..15 */
} vt;
enum { BLOCK_ROWS_NF4 = 3, BLOCK_ROWS_NF4_2 = 1 };
INLINE vt v_table(const float p[16]) { return (vt){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE vt nf4_table(void) { return (vt){_mm256_loadu_ps(nf4_code), _mm256_loadu_ps(nf4_code + 8)}; }
INLINE vi nf4_next(vi w) { return (vi){_mm256_srli_epi32(w.a, 4), _mm256_srli_epi32(w.b, 4)}; }
INLINE __m256 half_nf4(vt t, __m256i w) /* vpermps reads three bits; the fourth chooses the half, as a sign */
{
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(t.low, w), _mm256_permutevar8x32_ps(t.high, w),
                            _mm256_castsi256_ps(_mm256_slli_epi32(w, 28)));
}
INLINE vf nf4_codes(vt t, vi w) { return (vf){half_nf4(t, w.a), half_nf4(t, w.b)}; }

INLINE float v_sum(vf x)
{
    __m256 b = _mm256_add_ps(x.a, x.b);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
INLINE float v_hmax(vf x)
{
    __m256 b = _mm256_max_ps(x.a, x.b);
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
INLINE int32_t i_hmax(vi x)
{
    __m256i b = _mm256_max_epi32(x.a, x.b);
    __m128i c = _mm_max_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    c = _mm_max_epi32(c, _mm_shuffle_epi32(c, 0x4e));
    c = _mm_max_epi32(c, _mm_shuffle_epi32(c, 0xb1));
    return _mm_cvtsi128_si32(c);
}

#undef PAIR

// clang-format on

#endif
