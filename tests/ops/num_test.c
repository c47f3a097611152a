/* Tests of num.h, against arithmetic on doubles: every bf16 and f16 value, and rounding around every one of them. */
#include "tests/ops/harness.h"

#include "kernels/rng.h"

#include <math.h>

/* the value of a small float with the given widths, from its definition */
static double value_of(uint32_t h, int exp_bits, int man_bits)
{
    int exp = (int)(h >> man_bits) & ((1 << exp_bits) - 1), bias = (1 << (exp_bits - 1)) - 1;
    double man = h & ((1u << man_bits) - 1), sign = h >> (exp_bits + man_bits) ? -1 : 1;
    if (exp == (1 << exp_bits) - 1) return man != 0 ? NAN : sign * INFINITY;
    if (exp == 0) return sign * ldexp(man, 1 - bias - man_bits);
    return sign * ldexp(man + ldexp(1, man_bits), exp - bias - man_bits);
}

/* nearest, ties to even, by doubles: scale so that one unit in the last place is 1, and let nearbyint round */
static double rounded(double x, int exp_bits, int man_bits)
{
    int bias = (1 << (exp_bits - 1)) - 1, exp;
    frexp(x, &exp);
    exp -= 1;
    if (exp < 1 - bias) exp = 1 - bias;
    double unit = ldexp(1, exp - man_bits), y = nearbyint(x / unit) * unit;
    return fabs(y) >= ldexp(1, bias + 1) ? copysign(INFINITY, x) : y;
}

static bool same(double a, double b)
{
    return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b));
}

static void check_round(float x)
{
    double bf16 = isfinite(x) ? rounded((double)x, 8, 7) : (double)x;
    double f16 = isfinite(x) ? rounded((double)x, 5, 10) : (double)x;
    CHECK(same((double)bf16_to_f32(f32_to_bf16(x)), bf16), "bf16 of %.9g is %.9g, wanted %.9g", (double)x,
          (double)bf16_to_f32(f32_to_bf16(x)), bf16);
    CHECK(same((double)f16_to_f32(f32_to_f16(x)), f16), "f16 of %.9g is %.9g, wanted %.9g", (double)x,
          (double)f16_to_f32(f32_to_f16(x)), f16);
}

void test_numbers(void)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float bf16 = bf16_to_f32((uint16_t)h), f16 = f16_to_f32((uint16_t)h);
        CHECK(same((double)bf16, value_of(h, 8, 7)), "bf16 %04x is %.9g", h, (double)bf16);
        CHECK(same((double)f16, value_of(h, 5, 10)), "f16 %04x is %.9g", h, (double)f16);
        CHECK(isnan(bf16) || f32_to_bf16(bf16) == h, "bf16 %04x does not come back", h);
        CHECK(isnan(f16) || f32_to_f16(f16) == h, "f16 %04x does not come back", h);
        /* the halfway points to the next value of each format, and their neighbours */
        uint32_t middles[2] = {f32_bits(bf16) + 0x8000, f32_bits(f16) + 0x1000};
        for (int k = 0; k < 2; k++)
            for (uint32_t i = 0; i < 3; i++) check_round(f32_from_bits(middles[k] + i - 1));
    }
    for (uint64_t i = 0; i < 200000; i++) check_round(f32_from_bits((uint32_t)rng_at(3, i)));
    for (uint64_t i = 0; i < 10000; i++) {
        double u = rng_uniform(5, i);
        CHECK(u >= 0 && u < 1, "uniform %g", u);
    }
    CHECK(dtype_bytes(DT_I4, 5) == 3 && dtype_bytes(DT_NF4, 6) == 3 && dtype_bytes(DT_BF16, 5) == 10 &&
              dtype_bytes(DT_F32, 5) == 20,
          "dtype_bytes");
}
