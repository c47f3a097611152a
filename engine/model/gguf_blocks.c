#include "engine/model/gguf_blocks.h"

#include "engine/base/check.h"
#include "kernels/num.h"

#include <math.h>
#include <string.h>

/* ---- layouts ----------------------------------------------------------------------------------------------------- */

#define FROM_0_3 0, 1, 2, 3
#define FROM_0_15 FROM_0_3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#define FROM_0_31 FROM_0_15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
#define FROM_MINUS_4 -4, -3, -2, -1, 0, 1, 2, 3
#define FROM_MINUS_8 -8, -7, -6, -5, FROM_MINUS_4, 4, 5, 6, 7
#define FROM_MINUS_16 -16, -15, -14, -13, -12, -11, -10, -9, FROM_MINUS_8, 8, 9, 10, 11, 12, 13, 14, 15
#define FROM_MINUS_32                                                                                                  \
    -32, -31, -30, -29, -28, -27, -26, -25, -24, -23, -22, -21, -20, -19, -18, -17, FROM_MINUS_16, 16, 17, 18, 19, 20, \
        21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
/* of IQ4_NL and IQ4_XS */
#define NONLINEAR -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
/* e2m1, doubled; the scale is halved */
#define E2M1 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12

/* Q8_0's codes are its values as two's complement. */
#define SIXTEEN(n)                                                                                                     \
    n, (n) + 1, (n) + 2, (n) + 3, (n) + 4, (n) + 5, (n) + 6, (n) + 7, (n) + 8, (n) + 9, (n) + 10, (n) + 11, (n) + 12,  \
        (n) + 13, (n) + 14, (n) + 15
#define BYTES                                                                                                          \
    SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48), SIXTEEN(64), SIXTEEN(80), SIXTEEN(96), SIXTEEN(112),            \
        SIXTEEN(-128), SIXTEEN(-112), SIXTEEN(-96), SIXTEEN(-80), SIXTEEN(-64), SIXTEEN(-48), SIXTEEN(-32),            \
        SIXTEEN(-16)

static const struct block_layout layouts[GGML_TYPES] = {
    [GGML_Q4_0] = {4, 32, 32, 18, .value = {FROM_MINUS_8}},
    [GGML_Q4_1] = {4, 32, 32, 20, .super_min = true, .value = {FROM_0_15}},
    [GGML_Q5_0] = {5, 32, 32, 22, .value = {FROM_MINUS_16}},
    [GGML_Q5_1] = {5, 32, 32, 24, .super_min = true, .value = {FROM_0_31}},
    [GGML_Q8_0] = {8, 32, 32, 34, .value = {BYTES}},
    [GGML_IQ4_NL] = {4, 32, 32, 18, .value = {NONLINEAR}},
    [GGML_MXFP4] = {4, 32, 32, 17, .value = {E2M1}},
    [GGML_Q2_K] = {2, 256, 16, 84, .sub_scale = true, .sub_min = true, .super_min = true, .value = {FROM_0_3}},
    [GGML_Q3_K] = {3, 256, 16, 110, .sub_scale = true, .value = {FROM_MINUS_4}},
    [GGML_Q4_K] = {4, 256, 32, 144, .sub_scale = true, .sub_min = true, .super_min = true, .value = {FROM_0_15}},
    [GGML_Q5_K] = {5, 256, 32, 176, .sub_scale = true, .sub_min = true, .super_min = true, .value = {FROM_0_31}},
    [GGML_Q6_K] = {6, 256, 16, 210, .sub_scale = true, .value = {FROM_MINUS_32}},
    [GGML_IQ4_XS] = {4, 256, 32, 136, .sub_scale = true, .value = {NONLINEAR}},
};

const struct block_layout *gguf_block_layout(enum ggml_type t)
{
    return (unsigned)t < GGML_TYPES && layouts[t].bits ? &layouts[t] : NULL;
}

/* ---- blocks of 32 ------------------------------------------------------------------------------------------------ */

static float half(const uint8_t *p)
{
    return f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* Two codes to a byte: the low nibbles are the first half of the elements. */
static void nibbles(const uint8_t *q, int n, uint8_t *code)
{
    for (int i = 0; i < n; i++) code[i] = q[i] & 15, code[i + n] = q[i] >> 4;
}

/* A further bit for each of 32 codes. */
static void fifth_bits(const uint8_t *high, uint8_t *code)
{
    for (int i = 0; i < 32; i++) code[i] |= (uint8_t)((high[i / 8] >> i % 8 & 1) << 4);
}

float mxfp4_scale(uint8_t e)
{
    uint32_t bits = e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static void decode_32(enum ggml_type t, const uint8_t *b, struct block_row o)
{
    if (t == GGML_MXFP4) {
        *o.super_scale = mxfp4_scale(*b);
        nibbles(b + 1, 16, o.code);
        return;
    }
    bool minimum = layouts[t].super_min, fifth = t == GGML_Q5_0 || t == GGML_Q5_1;
    *o.super_scale = half(b);
    b += 2;
    if (minimum) *o.super_min = -half(b), b += 2;
    if (t == GGML_Q8_0) {
        memcpy(o.code, b, 32);
        return;
    }
    nibbles(b + (fifth ? 4 : 0), 16, o.code);
    if (fifth) fifth_bits(b, o.code);
}

/* ---- blocks of 256 ----------------------------------------------------------------------------------------------- */

/* Two bits of each of 256 codes, from 64 bytes. */
static void crumbs(const uint8_t *q, uint8_t *code)
{
    for (int i = 0; i < 256; i++) code[i] = q[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

static void decode_q2_k(const uint8_t *b, struct block_row o)
{
    for (int g = 0; g < 16; g++) o.sub_scale[g] = b[g] & 15, o.sub_min[g] = b[g] >> 4;
    crumbs(b + 16, o.code);
    *o.super_scale = half(b + 80);
    *o.super_min = half(b + 82);
}

static void decode_q3_k(const uint8_t *b, struct block_row o)
{
    const uint8_t *high = b, *s = b + 96;
    crumbs(b + 32, o.code);
    for (int i = 0; i < 256; i++) o.code[i] |= (uint8_t)((high[i % 32] >> i / 32 & 1) << 2);
    for (int g = 0; g < 16; g++) {
        int low = g < 8 ? s[g] & 15 : s[g - 8] >> 4, top = s[8 + g % 4] >> g / 4 * 2 & 3;
        o.sub_scale[g] = (int8_t)((low | top << 4) - 32);
    }
    *o.super_scale = half(b + 108);
}

/* Eight scales and eight minima of six bits in twelve bytes. */
static void six_bits(const uint8_t *s, struct block_row o)
{
    for (int g = 0; g < 4; g++) {
        o.sub_scale[g] = s[g] & 63;
        o.sub_min[g] = s[g + 4] & 63;
        o.sub_scale[g + 4] = (int8_t)((s[g + 8] & 15) | s[g] >> 6 << 4);
        o.sub_min[g + 4] = (uint8_t)(s[g + 8] >> 4 | s[g + 4] >> 6 << 4);
    }
}

static void decode_q45_k(bool five, const uint8_t *b, struct block_row o)
{
    const uint8_t *high = b + 16, *low = five ? b + 48 : b + 16;
    *o.super_scale = half(b);
    *o.super_min = half(b + 2);
    six_bits(b + 4, o);
    for (int c = 0; c < 4; c++) nibbles(low + c * 32, 32, o.code + c * 64);
    for (int i = 0; five && i < 256; i++) o.code[i] |= (uint8_t)((high[i % 32] >> i / 32 & 1) << 4);
}

static void decode_q6_k(const uint8_t *b, struct block_row o)
{
    for (int i = 0; i < 256; i++) {
        int part = i / 128, quarter = i % 128 / 32, l = i % 32;
        int low = b[part * 64 + quarter % 2 * 32 + l] >> quarter / 2 * 4 & 15;
        int high = b[128 + part * 32 + l] >> quarter * 2 & 3;
        o.code[i] = (uint8_t)(low | high << 4);
    }
    memcpy(o.sub_scale, b + 192, 16);
    *o.super_scale = half(b + 208);
}

static void decode_iq4_xs(const uint8_t *b, struct block_row o)
{
    int high = b[2] | b[3] << 8;
    *o.super_scale = half(b);
    for (int g = 0; g < 8; g++) {
        o.sub_scale[g] = (int8_t)(((b[4 + g / 2] >> g % 2 * 4 & 15) | (high >> 2 * g & 3) << 4) - 32);
        nibbles(b + 8 + g * 16, 16, o.code + g * 32);
    }
}

static void decode(enum ggml_type t, const uint8_t *b, struct block_row o)
{
    switch (t) {
    case GGML_Q2_K: decode_q2_k(b, o); break;
    case GGML_Q3_K: decode_q3_k(b, o); break;
    case GGML_Q4_K: decode_q45_k(false, b, o); break;
    case GGML_Q5_K: decode_q45_k(true, b, o); break;
    case GGML_Q6_K: decode_q6_k(b, o); break;
    case GGML_IQ4_XS: decode_iq4_xs(b, o); break;
    default: decode_32(t, b, o);
    }
}

void gguf_decode_row(enum ggml_type t, const uint8_t *blocks, int n, struct block_row o)
{
    const struct block_layout *l = gguf_block_layout(t);
    CHECK(l);
    for (int i = 0; i < n; i++, blocks += l->bytes) {
        decode(t, blocks, o);
        o.code += l->elements;
        o.super_scale++;
        if (l->super_min) o.super_min++;
        if (l->sub_scale) o.sub_scale += l->elements / l->group;
        if (l->sub_min) o.sub_min += l->elements / l->group;
    }
}

void gguf_dequantise_row(enum ggml_type t, const uint8_t *blocks, int n, float *out)
{
    const struct block_layout *l = gguf_block_layout(t);
    CHECK(l);
    for (int i = 0; i < n; i++, blocks += l->bytes, out += l->elements) {
        uint8_t code[256], sub_min[16] = {0};
        int8_t sub_scale[16] = {0};
        float super_scale = 0, super_min = 0;
        decode(t, blocks, (struct block_row){code, &super_scale, &super_min, sub_scale, sub_min});
        for (int k = 0; k < l->elements; k++) {
            int g = k / l->group;
            float scale = l->sub_scale ? super_scale * (float)sub_scale[g] : super_scale;
            float product = (float)l->value[code[k]] * scale;
            float minimum = !l->super_min ? 0 : l->sub_min ? super_min * (float)sub_min[g] : super_min;
            out[k] = l->super_min ? product - minimum : product;
        }
    }
}

/* ---- rounding ---------------------------------------------------------------------------------------------------- */

enum { BLOCK = 32 };

/* The reciprocal of a scale; 0 where it would overflow: the scale is 0 as f16 then. */
static float reciprocal(float d)
{
    float r = 1 / d;
    return d == 0 || isinf(r) ? 0 : r;
}

static bool put_scale(float d, uint8_t *b)
{
    uint16_t h = f32_to_f16(d);
    b[0] = (uint8_t)h, b[1] = (uint8_t)(h >> 8);
    return (h & 0x7fff) < 0x7c00;
}

static bool round_8(const float *x, uint8_t *b)
{
    float most = 0;
    for (int i = 0; i < BLOCK; i++) most = fmaxf(most, fabsf(x[i]));
    float d = most / 127, r = reciprocal(d);
    for (int i = 0; i < BLOCK; i++) b[2 + i] = (uint8_t)(int8_t)roundf(x[i] * r);
    return put_scale(d, b);
}

/* The value furthest from 0, the first of several, becomes -8. */
static bool round_4(const float *x, uint8_t *b)
{
    float most = x[0];
    int code[BLOCK];
    for (int i = 1; i < BLOCK; i++)
        if (fabsf(x[i]) > fabsf(most)) most = x[i];
    float d = most / -8, r = reciprocal(d);
    for (int i = 0; i < BLOCK; i++) {
        int c = (int)(x[i] * r + 8.5f);
        code[i] = c > 15 ? 15 : c;
    }
    for (int i = 0; i < BLOCK / 2; i++) b[2 + i] = (uint8_t)(code[i] | code[i + BLOCK / 2] << 4);
    return put_scale(d, b);
}

bool gguf_quantise_row(enum ggml_type t, const float *row, int n, uint8_t *blocks)
{
    bool ok = true;
    CHECK(t == GGML_Q8_0 || t == GGML_Q4_0);
    for (int i = 0; i < n; i++, row += BLOCK, blocks += layouts[t].bytes)
        ok &= t == GGML_Q8_0 ? round_8(row, blocks) : round_4(row, blocks);
    return ok;
}
