/* The passes over a vocabulary that sampling consists of. */

/* The largest value; NaN when there is one. */
static float row_max(const float *z, int n)
{
    vf max = v_set1(-INFINITY);
    uint32_t ordered = 0xffff;
    FOR_LANES(i, n)
    {
        vf x = v_load_n(z + i, left);
        if (left < 16) x = v_select(m_first(left), x, v_set1(-INFINITY));
        ordered &= m_bits(v_eq(x, x));
        max = v_max(x, max);
    }
    return ordered == 0xffff ? v_hmax(max) : NAN;
}

/* The first index from `from` on with z >= at_least, or n. */
static int row_find_ge(const float *z, int from, int n, float at_least)
{
    vf bound = v_set1(at_least);
    for (int i = from; i < n; i += 16) {
        uint32_t hit = m_bits(v_ge(v_load_n(z + i, n - i), bound)) & (n - i < 16 ? (1u << (n - i)) - 1 : 0xffff);
        if (hit) return i + __builtin_ctz(hit);
    }
    return n;
}

static void row_exp_scaled(float *p, const float *z, int n, float max, float inv_t)
{
    vf m = v_set1(max), s = v_set1(inv_t);
    FOR_LANES(i, n) v_store_n(p + i, v_exp(v_mul(v_sub(v_load_n(z + i, left), m), s)), left);
}

/* f32 lanes over 4096 elements, whose sums are added in double: a vocabulary of 150k keeps seven digits. */
static double row_exp_sum(const float *z, int n, float max, float inv_t)
{
    double total = 0;
    vf m = v_set1(max), s = v_set1(inv_t);
    for (int at = 0; at < n; at += 4096) {
        int end = n - at < 4096 ? n - at : 4096;
        vf sum = v_zero();
        FOR_LANES(i, end)
        {
            vf e = v_exp(v_mul(v_sub(v_load_n(z + at + i, left), m), s));
            sum = v_add(sum, left < 16 ? v_select(m_first(left), e, v_zero()) : e);
        }
        total += (double)v_sum(sum);
    }
    return total;
}
