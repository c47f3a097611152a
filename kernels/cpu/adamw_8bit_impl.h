/* The pass of the optimizer whose moments have 8 bits (dynamic8.h): block by block in f32.  The arithmetic is that of
 * row_adamw; codes are looked up one by one. */
#include <float.h>

static void codes_read(float *out, const uint8_t *code, const struct dynamic8 *t, float scale, int n)
{
    for (int i = 0; i < n; i++) out[i] = t->value[code[i]] * scale;
}

/* x: values with magnitudes up to `most` */
static void codes_write_signed(uint8_t *code, const float *x, const struct dynamic8 *t, float most, int n)
{
    float share[DYNAMIC8_BLOCK];
    vf by = v_set1(most > 0 ? most : 1);
    FOR_LANES(i, n) v_store_n(share + i, v_div(v_load_n(x + i, left), by), left);
    for (int i = 0; i < n; i++) {
        int up = dynamic8_nearest(t, fabsf(share[i])), down = up < DYNAMIC8_ZERO ? up : DYNAMIC8_ZERO;
        code[i] = (uint8_t)(share[i] < 0 ? DYNAMIC8_ZERO - down : DYNAMIC8_ZERO + up);
    }
}

/* x: 0 .. most; what is above 0 is not rounded to it */
static void codes_write_unsigned(uint8_t *code, const float *x, const struct dynamic8 *t, float most, int n)
{
    float share[DYNAMIC8_BLOCK];
    vf by = v_set1(most > 0 ? most : 1);
    FOR_LANES(i, n) v_store_n(share + i, v_div(v_load_n(x + i, left), by), left);
    for (int i = 0; i < n; i++) {
        int near = dynamic8_nearest(t, share[i]);
        code[i] = (uint8_t)(near + (near == 0 && share[i] > 0));
    }
}

static float v_largest(vf x)
{
    float lane[16], most = 0;
    v_store(lane, x);
    for (int i = 0; i < 16; i++) most = lane[i] > most ? lane[i] : most;
    return most;
}

/* from: a multiple of DYNAMIC8_BLOCK */
static void row_adamw_8bit(const struct adamw_8bit_args *a, const struct dynamic8 tables[2], size_t from, size_t to)
{
    vf grad_scale = v_set1((float)a->grad_scale), keep = v_set1((float)(1 - a->lr * a->decay));
    vf beta1 = v_set1((float)a->beta1), new1 = v_set1((float)(1 - a->beta1)), beta2 = v_set1((float)a->beta2);
    vf new2 = v_set1((float)(1 - a->beta2)), lr = v_set1((float)(a->lr / a->bias1)), eps = v_set1((float)a->eps);
    vf root_bias2 = v_set1((float)(1 / sqrt(a->bias2))), top = v_set1(FLT_MAX);
    vi positive = i_set1(0x7fffffff);
    for (size_t at = from; at < to; at += DYNAMIC8_BLOCK) {
        size_t b = at / DYNAMIC8_BLOCK;
        int n = to - at < DYNAMIC8_BLOCK ? (int)(to - at) : DYNAMIC8_BLOCK;
        float m[DYNAMIC8_BLOCK], v[DYNAMIC8_BLOCK], *p = a->p + at;
        vf most_m = v_zero(), most_v = v_zero();
        codes_read(m, a->m + at, &tables[0], a->m_scale[b], n);
        codes_read(v, a->v + at, &tables[1], a->v_scale[b], n);
        FOR_LANES(i, n)
        {
            vf g = v_mul(v_load_n(a->g + at + i, left), grad_scale);
            vf new_m = v_fma(g, new1, v_mul(v_load_n(m + i, left), beta1));
            vf new_v = v_min(v_fma(v_mul(g, g), new2, v_mul(v_load_n(v + i, left), beta2)), top);
            vf step = v_div(v_mul(lr, new_m), v_fma(v_sqrt(new_v), root_bias2, eps));
            v_store_n(p + i, v_sub(v_mul(v_load_n(p + i, left), keep), step), left);
            most_m = v_max(most_m, i_float(i_and(v_bits(new_m), positive)));
            most_v = v_max(most_v, new_v);
            v_store_n(m + i, new_m, left);
            v_store_n(v + i, new_v, left);
        }
        a->m_scale[b] = v_largest(most_m);
        a->v_scale[b] = v_largest(most_v);
        codes_write_signed(a->m + at, m, &tables[0], a->m_scale[b], n);
        codes_write_unsigned(a->v + at, v, &tables[1], a->v_scale[b], n);
    }
}
