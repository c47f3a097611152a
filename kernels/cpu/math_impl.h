/* exp and the activations on sixteen lanes, written with the vec_*.h names only. */
#ifndef TANDEM_KERNELS_CPU_MATH_IMPL_H
#define TANDEM_KERNELS_CPU_MATH_IMPL_H

#include <math.h>

/* exp(x), relative error about 1e-7: x = n ln2 + r, a polynomial for e^r, n added to the exponent. 0 below -87.3
 * (subnormal results are not worth their cost), infinity above 88.4, NaN for NaN. */
VEC_CALLED vf v_exp(vf x)
{
    const vf magic = v_set1(0x1.8p23f); /* adding it rounds to an integer, to even */
    vf t = v_fma(x, v_set1(1.44269504088896341f), magic), n = v_sub(t, magic);
    vf r = v_fnma(n, v_set1(0.693145751953125f), x);
    r = v_fnma(n, v_set1(1.42860682030941723e-6f), r);
    vf p = v_set1(1.3981999e-3f);
    p = v_fma(p, r, v_set1(8.3334519e-3f));
    p = v_fma(p, r, v_set1(4.1665795e-2f));
    p = v_fma(p, r, v_set1(1.6666665e-1f));
    p = v_fma(p, r, v_set1(0.5f));
    p = v_fma(p, r, v_set1(1.0f));
    p = v_fma(p, r, v_set1(1.0f));
    vi scale = i_shl(i_sub(v_bits(t), v_bits(magic)), 23);
    vf e = i_float(i_add(v_bits(p), scale));
    e = v_select(v_lt(x, v_set1(-87.3f)), v_zero(), e);
    e = v_select(v_lt(v_set1(88.37f), x), v_set1(INFINITY), e);
    return v_select(v_eq(x, x), e, x);
}

/* 2^x for -126 <= x <= 126, relative error about 1e-7: x = n + r, a polynomial for 2^r, n added to the exponent. */
VEC_CALLED vf v_exp2_within(vf x)
{
    const vf magic = v_set1(0x1.8p23f); /* adding it rounds to an integer, to even, in the low bits */
    vf t = v_add(x, magic), r = v_sub(x, v_sub(t, magic));
    vf p = v_set1(1.5403530e-4f);
    p = v_fma(p, r, v_set1(1.3333558e-3f));
    p = v_fma(p, r, v_set1(9.6181291e-3f));
    p = v_fma(p, r, v_set1(5.5504109e-2f));
    p = v_fma(p, r, v_set1(2.4022651e-1f));
    p = v_fma(p, r, v_set1(6.9314718e-1f));
    p = v_fma(p, r, v_set1(1.0f));
    return i_float(i_add(v_bits(p), i_shl(v_bits(t), 23)));
}

/* 2^x for x <= 0; below -126 it is 2^-126; NaN for NaN. */
VEC_CALLED vf v_exp2_negative(vf x)
{
    return v_exp2_within(v_max(v_set1(-126.0f), x));
}

VEC_CALLED vf v_sigmoid(vf x)
{
    vf one = v_set1(1.0f), minus = v_mul(x, v_set1(-1.44269504f));
    minus = v_min(v_set1(126.0f), v_max(v_set1(-126.0f), minus));
    return v_div(one, v_add(one, v_exp2_within(minus)));
}

/* tanh(x), relative error about 1e-7: an odd polynomial near 0 (Cephes' tanhf), else 1 - 2 / (1 + e^2x). */
VEC_CALLED vf v_tanh(vf x)
{
    vf one = v_set1(1.0f), square = v_mul(x, x), p = v_set1(-5.70498872745e-3f);
    vi sign = i_and(v_bits(x), i_set1(INT32_MIN));
    vf size = i_float(i_and(v_bits(x), i_set1(INT32_MAX)));
    p = v_fma(p, square, v_set1(2.06390887954e-2f));
    p = v_fma(p, square, v_set1(-5.37397155531e-2f));
    p = v_fma(p, square, v_set1(1.33314422036e-1f));
    p = v_fma(p, square, v_set1(-3.33332819422e-1f));
    p = v_fma(v_mul(p, square), x, x);
    vf e = v_exp2_within(v_min(v_set1(126.0f), v_mul(size, v_set1(2.88539008f))));
    vf large = v_sub(one, v_div(v_set1(2.0f), v_add(e, one)));
    return v_select(v_lt(size, v_set1(0.625f)), p, i_float(i_or(v_bits(large), sign)));
}

/* erfc(x) for x >= 0, relative error about 1e-6 in f32 (the Chebyshev fit of Numerical Recipes, section 6.2) */
VEC_CALLED vf v_erfc(vf x)
{
    static const float c[] = {0.17087277f,  -0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f,
                              -0.18628806f, 0.09678418f,  0.37409196f, 1.00002368f,  -1.26551223f};
    vf one = v_set1(1.0f), t = v_div(one, v_fma(x, v_set1(0.5f), one)), p = v_set1(c[0]);
    for (int i = 1; i < 10; i++) p = v_fma(p, t, v_set1(c[i]));
    return v_mul(t, v_exp(v_fnma(x, x, p)));
}

/* min(x, 7), the bound of ACT_SWIGLU_CLAMPED; NaN for NaN */
INLINE vf v_clamp_above(vf x)
{
    vf bound = v_set1(7.0f);
    return v_select(v_lt(bound, x), bound, x);
}

/* In gated ops x is the gate. */
VEC_CALLED vf v_act(vf x, enum act_kind act)
{
    switch (act) {
    case ACT_SILU: return v_mul(x, v_sigmoid(x));
    case ACT_GELU_TANH: { /* 1 + tanh(u) = 2 sigmoid(2u) */
        vf u = v_fma(v_mul(v_mul(x, x), x), v_set1(0.044715f), x);
        return v_mul(x, v_sigmoid(v_mul(u, v_set1(1.5957691216057308f))));
    }
    case ACT_GELU_ERF: { /* through erfc, so that large negative x keep their precision */
        vf size = i_float(i_and(v_bits(x), i_set1(INT32_MAX)));
        vf tail = v_mul(v_mul(x, v_set1(0.5f)), v_erfc(v_mul(size, v_set1(0.70710678118654752f))));
        return v_select(v_lt(x, v_zero()), tail, v_sub(x, tail));
    }
    case ACT_RELU: return v_select(v_lt(x, v_zero()), v_zero(), x);
    case ACT_SWIGLU_CLAMPED: x = v_clamp_above(x); return v_mul(x, v_sigmoid(v_mul(x, v_set1(1.702f))));
    }
    return x;
}

/* What multiplies the activation of the gate. */
INLINE vf v_act_up(vf up, enum act_kind act)
{
    if (act != ACT_SWIGLU_CLAMPED) return up;
    up = v_clamp_above(up);
    return v_add(v_select(v_lt(up, v_set1(-7.0f)), v_set1(-7.0f), up), v_set1(1.0f));
}

/* v_act(x) and its derivative */
VEC_CALLED vf v_act_slope(vf x, enum act_kind act, vf *value)
{
    vf one = v_set1(1.0f);
    switch (act) {
    case ACT_SILU: {
        vf s = v_sigmoid(x);
        *value = v_mul(x, s);
        return v_fma(*value, v_sub(one, s), s);
    }
    case ACT_GELU_TANH: { /* x s(2u), with 2u' = 1.5957691 (1 + 3 * 0.044715 x^2) */
        vf square = v_mul(x, x), u = v_fma(v_mul(square, x), v_set1(0.044715f), x);
        vf s = v_sigmoid(v_mul(u, v_set1(1.5957691216057308f)));
        *value = v_mul(x, s);
        vf du = v_fma(square, v_set1(0.21406941126f), v_set1(1.5957691216057308f));
        return v_fma(v_mul(*value, v_sub(one, s)), du, s);
    }
    case ACT_GELU_ERF: { /* Phi(x) + x phi(x) */
        vf size = i_float(i_and(v_bits(x), i_set1(INT32_MAX)));
        vf tail = v_mul(v_set1(0.5f), v_erfc(v_mul(size, v_set1(0.70710678118654752f))));
        vf below = v_select(v_lt(x, v_zero()), tail, v_sub(one, tail));
        vf density = v_mul(v_exp(v_mul(v_mul(x, x), v_set1(-0.5f))), v_set1(0.39894228040143268f));
        *value = v_mul(x, below);
        return v_fma(x, density, below);
    }
    case ACT_RELU: {
        vm above = v_lt(v_zero(), x);
        *value = v_select(v_lt(x, v_zero()), v_zero(), x);
        return v_select(above, one, v_zero());
    }
    case ACT_SWIGLU_CLAMPED: {
        vf g = v_clamp_above(x), s = v_sigmoid(v_mul(g, v_set1(1.702f)));
        *value = v_mul(g, s);
        vf slope = v_fma(v_mul(*value, v_sub(one, s)), v_set1(1.702f), s);
        return v_select(v_lt(v_set1(7.0f), x), v_zero(), slope);
    }
    }
    *value = x;
    return one;
}

/* The derivative of v_act_up. */
INLINE vf v_up_slope(vf up, enum act_kind act)
{
    vf one = v_set1(1.0f), slope = v_select(v_lt(v_set1(7.0f), up), v_zero(), one);
    return act != ACT_SWIGLU_CLAMPED ? one : v_select(v_lt(up, v_set1(-7.0f)), v_zero(), slope);
}

#endif
