/* Integers of any size (jinja_int.h). */
#include "engine/template/jinja_int.h"

#include <gmp.h>
#include <math.h>
#include <string.h>

_Static_assert(GMP_NUMB_BITS == 64, "a 64-bit magnitude is one limb");

enum { LIMBS_MAX = JINJA_INT_BITS / GMP_NUMB_BITS };

struct jbig {
    bool negative;
    size_t n; /* limbs, the last of which is not 0 */
    const mp_limb_t *v;
};

/* Any integer as sign and limbs; valid as long as the struct is. */
struct number {
    bool negative;
    size_t n; /* 0: zero */
    const mp_limb_t *v;
    mp_limb_t own;
};

static void number_of(struct number *x, struct jv v)
{
    if (v.type == J_BIG) {
        *x = (struct number){v.big->negative, v.big->n, v.big->v, 0};
        return;
    }
    int64_t i = v.type == J_BOOL ? v.b : v.i;
    *x = (struct number){.negative = i < 0, .n = i != 0, .own = i < 0 ? 0 - (uint64_t)i : (uint64_t)i};
    x->v = &x->own;
}

static __attribute__((noreturn)) void too_large(struct jinja *j)
{
    jinja_fail(j, "integers of more than %d bits are not supported", JINJA_INT_BITS);
}

/* Room for n limbs.  Every result that is not checked afterwards has at most twice the limit's, plus a few. */
static mp_limb_t *limbs(struct jinja *j, size_t n)
{
    if (n > 2 * LIMBS_MAX + 2) too_large(j);
    jinja_work(j, n / 8);
    return jinja_array(j, n + 1, sizeof(mp_limb_t));
}

/* The value of v[0, n), which may begin with zeros; v is the arena's. */
static struct jv make(struct jinja *j, bool negative, const mp_limb_t *v, size_t n)
{
    while (n && !v[n - 1]) n--;
    if (n > LIMBS_MAX) too_large(j);
    uint64_t low = n ? v[0] : 0;
    if (n <= 1 && low <= (uint64_t)INT64_MAX) return jv_int(negative ? -(int64_t)low : (int64_t)low);
    if (n == 1 && negative && low == (uint64_t)INT64_MAX + 1) return jv_int(INT64_MIN);
    struct jbig *big = jinja_alloc(j, sizeof *big);
    *big = (struct jbig){negative, n, v};
    return (struct jv){.type = J_BIG, .big = big};
}

bool jint_is(struct jv v)
{
    return v.type == J_INT || v.type == J_BOOL || v.type == J_BIG;
}

bool jint_below_zero(struct jv v)
{
    struct number x;
    number_of(&x, v);
    return x.negative;
}

static int compare_size(const struct number *a, const struct number *b)
{
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    return a->n ? mpn_cmp(a->v, b->v, (mp_size_t)a->n) : 0;
}

int jint_compare(struct jv a, struct jv b)
{
    struct number x, y;
    number_of(&x, a);
    number_of(&y, b);
    if (x.negative != y.negative) return x.negative ? -1 : 1;
    int c = compare_size(&x, &y);
    return x.negative ? -c : c;
}

int jint_compare_double(struct jinja *j, struct jv a, double b)
{
    if (isinf(b)) return b < 0 ? 1 : -1;
    int c = jint_compare(a, jint_of_double(j, b));
    double fraction = b - trunc(b);
    return c ? c : fraction > 0 ? -1 : fraction < 0;
}

/* ---- arithmetic ------------------------------------------------------------------------------------------------ */

static struct jv add(struct jinja *j, const struct number *a, const struct number *b)
{
    int order = compare_size(a, b);
    const struct number *large = order < 0 ? b : a, *small = order < 0 ? a : b;
    mp_limb_t *r = limbs(j, large->n + 1);
    if (!small->n) {
        memcpy(r, large->v, large->n * sizeof *r);
        return make(j, large->negative, r, large->n);
    }
    if (a->negative == b->negative)
        r[large->n] = mpn_add(r, large->v, (mp_size_t)large->n, small->v, (mp_size_t)small->n);
    else
        mpn_sub(r, large->v, (mp_size_t)large->n, small->v, (mp_size_t)small->n);
    return make(j, large->negative, r, large->n + 1);
}

static struct jv multiply(struct jinja *j, const struct number *a, const struct number *b)
{
    const struct number *large = a->n < b->n ? b : a, *small = a->n < b->n ? a : b;
    if (!small->n) return jv_int(0);
    mp_limb_t *r = limbs(j, a->n + b->n);
    jinja_work(j, a->n * b->n / 16);
    mpn_mul(r, large->v, (mp_size_t)large->n, small->v, (mp_size_t)small->n);
    return make(j, a->negative != b->negative, r, a->n + b->n);
}

/* |a| / |b|, both in new limbs: a->n - b->n + 1 of the quotient, b->n of the rest */
static void divide_sizes(struct jinja *j, const struct number *a, const struct number *b, mp_limb_t **q, mp_limb_t **r)
{
    *q = limbs(j, a->n - b->n + 1);
    *r = limbs(j, b->n);
    jinja_work(j, a->n * b->n / 16);
    mpn_tdiv_qr(*q, *r, 0, a->v, (mp_size_t)a->n, b->v, (mp_size_t)b->n);
}

/* Towards minus infinity: a rest that is not 0 has b's sign. */
static struct jv divide(struct jinja *j, int op, const struct number *a, const struct number *b)
{
    struct jv q = jv_int(0), r;
    if (a->n < b->n) {
        mp_limb_t *copy = limbs(j, a->n);
        memcpy(copy, a->v, a->n * sizeof *copy);
        r = make(j, a->negative, copy, a->n);
    } else {
        mp_limb_t *whole, *rest;
        divide_sizes(j, a, b, &whole, &rest);
        q = make(j, a->negative != b->negative, whole, a->n - b->n + 1);
        r = make(j, a->negative, rest, b->n);
    }
    struct number left, divisor = *b, one, quotient;
    number_of(&left, r);
    if (left.n && left.negative != divisor.negative) {
        r = add(j, &left, &divisor);
        number_of(&quotient, q);
        number_of(&one, jv_int(-1));
        q = add(j, &quotient, &one);
    }
    return op == OP_MOD ? r : q;
}

static size_t bits(const struct number *a)
{
    return a->n ? mpn_sizeinbase(a->v, (mp_size_t)a->n, 2) : 0;
}

/* |a| >> shift of at most 64 bits, the lowest set where something was lost: rounds as all of it would */
static uint64_t top_bits(const mp_limb_t *v, size_t n, size_t shift)
{
    size_t at = shift / 64, by = shift % 64;
    uint64_t low = at < n ? v[at] : 0, high = at + 1 < n ? v[at + 1] : 0;
    uint64_t top = by ? low >> by | high << (64 - by) : low;
    bool lost = by && low << (64 - by);
    for (size_t i = 0; i < at && !lost; i++) lost = v[i] != 0;
    return top | lost;
}

static double to_double(const struct number *a)
{
    size_t n = bits(a), shift = n > 64 ? n - 64 : 0;
    if (n > 1024) return a->negative ? -INFINITY : INFINITY;
    double d = ldexp((double)top_bits(a->v, a->n, shift), (int)shift);
    return a->negative ? -d : d;
}

double jint_double(struct jv v)
{
    struct number x;
    number_of(&x, v);
    return to_double(&x);
}

/* a / b, rounded once: the quotient is computed to more bits than a double has. */
static struct jv true_divide(struct jinja *j, const struct number *a, const struct number *b)
{
    if (!b->n) jinja_fail(j, "division by zero");
    bool negative = a->negative != b->negative;
    if (!a->n) return jv_float(negative ? -0.0 : 0);
    size_t n = bits(a), m = bits(b), up = m + 66 > n ? (m + 66 - n + 63) / 64 : 0;
    if (n <= 53 && m <= 53) {
        double q = (double)a->v[0] / (double)b->v[0];
        return jv_float(negative ? -q : q);
    }
    mp_limb_t *wide = limbs(j, a->n + up), *q, *r;
    memcpy(wide + up, a->v, a->n * sizeof *wide);
    struct number shifted = {.n = a->n + up, .v = wide};
    divide_sizes(j, &shifted, b, &q, &r);
    struct number quotient = {.n = shifted.n - b->n + 1, .v = q};
    while (quotient.n && !q[quotient.n - 1]) quotient.n--;
    bool rest = false;
    for (size_t i = 0; i < b->n && !rest; i++) rest = r[i] != 0;
    size_t have = bits(&quotient), shift = have > 64 ? have - 64 : 0;
    uint64_t top = top_bits(q, quotient.n, shift) | rest;
    double d = ldexp((double)top, (int)shift - (int)(64 * up));
    if (isinf(d)) jinja_fail(j, "integer division result too large for a float");
    return jv_float(negative ? -d : d);
}

static struct jv power(struct jinja *j, struct jv base, struct jv exponent)
{
    struct number b, e;
    number_of(&b, base);
    number_of(&e, exponent);
    if (e.negative) {
        double x = to_double(&b), y = to_double(&e);
        if (!b.n) jinja_fail(j, "0.0 cannot be raised to a negative power");
        if (isinf(x) || isinf(y)) jinja_fail(j, "int too large to convert to float");
        return jv_float(pow(x, y));
    }
    bool one = b.n == 1 && b.v[0] == 1;
    if (!e.n || (one && !b.negative)) return jv_int(1);
    if (!b.n) return jv_int(0);
    if (one) return jv_int(e.v[0] & 1 ? -1 : 1);
    if (e.n > 1 || e.v[0] > JINJA_INT_BITS || (bits(&b) - 1) * e.v[0] > JINJA_INT_BITS) too_large(j);
    struct jv r = jv_int(1);
    for (uint64_t left = e.v[0]; left; left >>= 1) {
        struct number x, y;
        number_of(&x, r);
        number_of(&y, base);
        if (left & 1) r = multiply(j, &x, &y);
        if (left > 1) base = multiply(j, &y, &y);
    }
    return r;
}

struct jv jint_binary(struct jinja *j, int op, struct jv a, struct jv b)
{
    struct number x, y;
    if (op == OP_POW) return power(j, a, b);
    number_of(&x, a);
    number_of(&y, b);
    if (op == OP_SUB) y.negative = !y.negative;
    switch (op) {
    case OP_ADD:
    case OP_SUB: return add(j, &x, &y);
    case OP_MUL: return multiply(j, &x, &y);
    case OP_DIV: return true_divide(j, &x, &y);
    default: break;
    }
    if (!y.n) jinja_fail(j, "integer division or modulo by zero");
    return divide(j, op, &x, &y);
}

struct jv jint_negative(struct jinja *j, struct jv v)
{
    return jint_binary(j, OP_SUB, jv_int(0), v);
}

/* ---- texts and floats ------------------------------------------------------------------------------------------ */

static __attribute__((noreturn)) void too_many_digits(struct jinja *j)
{
    jinja_fail(j, "an integer of more than %d digits", JINJA_INT_DIGITS);
}

struct jv jint_parse(struct jinja *j, const char *digits, size_t n, int base, bool negative)
{
    while (n > 1 && *digits == '0') digits++, n--;
    if (n > JINJA_INT_DIGITS) too_many_digits(j);
    unsigned char *values = jinja_alloc(j, n + 1);
    for (size_t i = 0; i < n; i++) {
        char c = digits[i];
        values[i] = (unsigned char)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    mp_limb_t *v = limbs(j, n / 10 + 2); /* a digit has at most 5.2 bits */
    jinja_work(j, n);
    return make(j, negative, v, (size_t)mpn_set_str(v, values, n, base));
}

char *jint_digits(struct jinja *j, struct jv v, int base)
{
    static const char names[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    struct number x;
    number_of(&x, v);
    size_t room = x.n ? mpn_sizeinbase(x.v, (mp_size_t)x.n, base) + 1 : 1, n = 0, zeros = 0;
    unsigned char *out = jinja_alloc(j, room + 1);
    jinja_work(j, room);
    if (x.n) {
        mp_limb_t *copy = limbs(j, x.n + 1);
        memcpy(copy, x.v, x.n * sizeof *copy);
        n = mpn_get_str(out, base, copy, (mp_size_t)x.n);
    }
    while (zeros + 1 < n && !out[zeros]) zeros++;
    if (base == 10 && n - zeros > JINJA_INT_DIGITS) too_many_digits(j);
    for (size_t i = 0; i < n; i++) out[i] = (unsigned char)names[out[i]];
    if (!n) out[n++] = '0';
    out[n] = 0;
    return (char *)out + zeros;
}

struct jv jint_of_double(struct jinja *j, double d)
{
    if (isnan(d)) jinja_fail(j, "cannot convert float NaN to integer");
    if (isinf(d)) jinja_fail(j, "cannot convert float infinity to integer");
    if (fabs(d) < 0x1p62) return jv_int((int64_t)d);
    int exponent;
    uint64_t mantissa = (uint64_t)ldexp(frexp(fabs(d), &exponent), 53);
    size_t shift = (size_t)(exponent - 53), at = shift / 64, by = shift % 64;
    mp_limb_t *v = limbs(j, at + 2);
    v[at] = mantissa << by;
    v[at + 1] = by ? mantissa >> (64 - by) : 0;
    return make(j, d < 0, v, at + 2);
}
