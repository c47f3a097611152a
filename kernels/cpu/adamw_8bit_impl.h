/* The pass of the optimizer whose moments have 8 bits (dynamic8.h): block by block in f32.  The arithmetic of a step is
 * that of row_adamw. */
#include <float.h>

/* A map in registers; nf4_codes looks its tables up by the low four bits. */
struct map {
    vt slope, base, scale, shift, low, high;
    const struct dynamic8 *t;
};

static struct map map_of(const struct dynamic8 *t)
{
    return (struct map){v_table(t->slope),
                        v_table(t->base),
                        v_table(t->scale),
                        v_table(t->shift),
                        v_table(t->low),
                        v_table(t->high),
                        t};
}

/* The values of entries, whose numbers are whole floats. */
INLINE vf map_values(const struct map *m, vf number)
{
    vi bits = v_bits(v_add(number, v_set1(0.5f))), exponent = i_shr(bits, 23);
    vf mantissa = i_float(i_or(i_and(bits, i_set1(0x7fffff)), i_set1(0x3f800000)));
    return v_fma(mantissa, nf4_codes(m->slope, exponent), nf4_codes(m->base, exponent));
}

/* The numbers of the entries nearest to magnitudes of 0 to 1. */
INLINE vf map_numbers(const struct map *m, vf x)
{
    const vf one = v_set1(1), whole = v_set1(0x1.8p23f); /* adding it rounds to an integer */
    vf class = whole;
    for (int i = 0; i < DYNAMIC8_CLASSES; i++)
        class = v_add(class, v_select(v_lt(v_set1(m->t->bound[i]), x), one, v_zero()));
    vi at = v_bits(class);
    vf number = v_fma(x, nf4_codes(m->scale, at), nf4_codes(m->shift, at));
    number = v_sub(v_add(v_sub(number, v_set1(0.5f)), whole), whole);
    return v_min(v_max(number, nf4_codes(m->low, at)), nf4_codes(m->high, at));
}

/* Stores whole floats of 0 to 255 as bytes. */
INLINE void codes_store(uint8_t *to, vf code)
{
    int8_t low[16]; /* less 128, which a store may saturate to */
    i_store_i8(low, i_sub(i_and(v_bits(v_add(code, v_set1(0x1p23f))), i_set1(255)), i_set1(128)));
    for (int i = 0; i < 16; i++) to[i] = (uint8_t)(low[i] ^ -128);
}

/* The codes of first moments divided by their scale, and of second ones. */
INLINE vf codes_signed(const struct map *m, vf x)
{
    vf number = map_numbers(m, i_float(i_and(v_bits(x), i_set1(0x7fffffff)))), zero = v_set1(DYNAMIC8_ZERO);
    return v_select(v_lt(x, v_zero()), v_sub(zero, v_min(number, zero)), v_add(zero, number));
}

INLINE vf codes_unsigned(const struct map *m, vf x)
{
    vf least = v_select(v_lt(v_zero(), x), v_set1(1), v_zero()); /* what is above 0 is not rounded to it */
    return v_max(v_sub(map_numbers(m, x), v_set1(m->t->first)), least);
}

INLINE vf signed_values(const struct map *m, const uint8_t *code)
{
    vf number = v_sub(v_load_u8(code), v_set1(DYNAMIC8_ZERO)), minus = v_sub(v_zero(), number);
    vf value = map_values(m, v_max(number, minus));
    return v_select(v_lt(number, v_zero()), v_sub(v_zero(), value), value);
}

INLINE vf unsigned_values(const struct map *m, const uint8_t *code)
{
    return map_values(m, v_add(v_load_u8(code), v_set1(m->t->first)));
}

static float v_largest(vf x)
{
    float lane[16], most = 0;
    v_store(lane, x);
    for (int i = 0; i < 16; i++) most = lane[i] > most ? lane[i] : most;
    return most;
}

/* The factors of a step. */
struct adamw_8bit_step {
    vf grad_scale, keep, beta1, new1, beta2, new2, lr, eps, root_bias2;
};

/* A block of n parameters, whose codes are at m_code and v_code, 256 of each, and its scales. */
static void adamw_8bit_block(const struct adamw_8bit_step *s, const struct map *map_m, const struct map *map_v,
                             float *p, const float *grad, uint8_t *m_code, uint8_t *v_code, float *m_scale,
                             float *v_scale, int n)
{
    float m[DYNAMIC8_BLOCK], v[DYNAMIC8_BLOCK];
    vf most_m = v_zero(), most_v = v_zero(), old_m = v_set1(*m_scale), old_v = v_set1(*v_scale), top = v_set1(FLT_MAX);
    FOR_LANES(i, n)
    {
        vf g = v_mul(v_load_n(grad + i, left), s->grad_scale);
        vf was_m = v_mul(signed_values(map_m, m_code + i), old_m),
           was_v = v_mul(unsigned_values(map_v, v_code + i), old_v);
        vf new_m = v_fma(g, s->new1, v_mul(was_m, s->beta1));
        vf new_v = v_min(v_fma(v_mul(g, g), s->new2, v_mul(was_v, s->beta2)), top);
        vf step = v_div(v_mul(s->lr, new_m), v_fma(v_sqrt(new_v), s->root_bias2, s->eps));
        v_store_n(p + i, v_sub(v_mul(v_load_n(p + i, left), s->keep), step), left);
        if (left < 16) {
            new_m = v_select(m_first(left), new_m, v_zero());
            new_v = v_select(m_first(left), new_v, v_zero());
        }
        most_m = v_max(most_m, i_float(i_and(v_bits(new_m), i_set1(0x7fffffff))));
        most_v = v_max(most_v, new_v);
        v_store(m + i, new_m);
        v_store(v + i, new_v);
    }
    *m_scale = v_largest(most_m);
    *v_scale = v_largest(most_v);
    vf by_m = v_set1(*m_scale > 0 ? *m_scale : 1), by_v = v_set1(*v_scale > 0 ? *v_scale : 1);
    FOR_LANES(i, n)
    {
        codes_store(m_code + i, codes_signed(map_m, v_div(v_load(m + i), by_m)));
        codes_store(v_code + i, codes_unsigned(map_v, v_div(v_load(v + i), by_v)));
    }
}

/* from: a multiple of DYNAMIC8_BLOCK */
static void row_adamw_8bit(const struct adamw_8bit_args *a, const struct dynamic8 tables[2], size_t from, size_t to)
{
    struct adamw_8bit_step s = {v_set1((float)a->grad_scale),
                                v_set1((float)(1 - a->lr * a->decay)),
                                v_set1((float)a->beta1),
                                v_set1((float)(1 - a->beta1)),
                                v_set1((float)a->beta2),
                                v_set1((float)(1 - a->beta2)),
                                v_set1((float)(a->lr / a->bias1)),
                                v_set1((float)a->eps),
                                v_set1((float)(1 / sqrt(a->bias2)))};
    struct map map_m = map_of(&tables[0]), map_v = map_of(&tables[1]);
    for (size_t at = from; at < to; at += DYNAMIC8_BLOCK) {
        size_t b = at / DYNAMIC8_BLOCK, n = to - at < DYNAMIC8_BLOCK ? to - at : DYNAMIC8_BLOCK;
        uint8_t m[DYNAMIC8_BLOCK], v[DYNAMIC8_BLOCK];
        bool whole = n == DYNAMIC8_BLOCK; /* else vectors would go beyond the end */
        if (!whole) memcpy(m, a->m + at, n), memcpy(v, a->v + at, n);
        adamw_8bit_block(&s, &map_m, &map_v, a->p + at, a->g + at, whole ? a->m + at : m, whole ? a->v + at : v,
                         a->m_scale + b, a->v_scale + b, (int)n);
        if (!whole) memcpy(a->m + at, m, n), memcpy(a->v + at, v, n);
    }
}
