/* Kernels of training that make one pass over a row: backward of norms and activations, softmax in place, dropout,
 * and the passes of the optimizer. Sums over a row as in rows_impl.h. */
#include "kernels/rng.h"

/* With xhat = (x - mean) inv and g = dy w: dx = inv (g - [mean(g)] - xhat mean(g xhat)), the bracket for LAYER only. */
static void row_norm_back(const struct norm_back_row *r)
{
    const float *x = r->x, *dy = r->dy, *w = r->w;
    int n = r->n;
    float mean = 0;
    if (r->kind == NORM_LAYER) {
        vf sum = v_zero();
        FOR_LANES(i, n) sum = v_add(sum, v_load_n(x + i, left));
        mean = v_sum(sum) / (float)n;
    }
    vf square = v_zero(), m = v_set1(mean), sum_g = v_zero(), sum_gx = v_zero();
    FOR_LANES(i, n)
    {
        vf c = v_sub(v_load_n(x + i, left), m), g = v_mul(v_load_n(dy + i, left), v_load_n(w + i, left));
        if (left < 16) c = v_select(m_first(left), c, v_zero());
        square = v_fma(c, c, square);
        sum_g = v_add(sum_g, g);
        sum_gx = v_fma(g, c, sum_gx);
    }
    float inv_f = 1.0f / sqrtf(v_sum(square) / (float)n + r->eps);
    vf inv = v_set1(inv_f), mean_g = v_set1(r->kind == NORM_LAYER ? v_sum(sum_g) / (float)n : 0.0f);
    vf mean_gx = v_set1(v_sum(sum_gx) * inv_f / (float)n);
    FOR_LANES(i, n)
    {
        vf xhat = v_mul(v_sub(v_load_n(x + i, left), m), inv), d = v_load_n(dy + i, left);
        if (r->dw) v_store_n(r->dw + i, v_fma(d, xhat, v_load_n(r->dw + i, left)), left);
        if (r->db) v_store_n(r->db + i, v_add(d, v_load_n(r->db + i, left)), left);
        vf g = v_mul(d, v_load_n(w + i, left));
        vf by = v_mul(inv, v_fnma(xhat, mean_gx, v_sub(g, mean_g)));
        v_store_n(r->dx + i, r->accumulate ? v_add(v_load_n(r->dx + i, left), by) : by, left);
    }
}

static void row_act_back(float *dx, const float *x, const float *dy, int n, enum act_kind act)
{
    FOR_LANES(i, n)
    {
        vf value, slope = v_act_slope(v_load_n(x + i, left), act, &value);
        v_store_n(dx + i, v_mul(v_load_n(dy + i, left), slope), left);
    }
}

static void row_act_mul_back(float *dgu, const float *gu, const float *dy, int n, enum act_kind act)
{
    FOR_LANES(i, n)
    {
        vf value, slope = v_act_slope(v_load_n(gu + i, left), act, &value);
        vf up = v_load_n(gu + n + i, left), d = v_load_n(dy + i, left);
        v_store_n(dgu + i, v_mul(v_mul(d, v_act_up(up, act)), slope), left);
        v_store_n(dgu + n + i, v_mul(v_mul(d, value), v_up_slope(up, act)), left);
    }
}

/* Sums in the order of row_exp_sum. */
static double row_exp_in_place(float *z, int n, float max)
{
    double total = 0;
    vf m = v_set1(max);
    for (int at = 0; at < n; at += 4096) {
        int end = n - at < 4096 ? n - at : 4096;
        vf sum = v_zero();
        FOR_LANES(i, end)
        {
            vf e = v_exp(v_sub(v_load_n(z + at + i, left), m));
            v_store_n(z + at + i, e, left);
            sum = v_add(sum, left < 16 ? v_select(m_first(left), e, v_zero()) : e);
        }
        total += (double)v_sum(sum);
    }
    return total;
}

static void row_scale(float *x, int n, float by)
{
    vf b = v_set1(by);
    FOR_LANES(i, n) v_store_n(x + i, v_mul(v_load_n(x + i, left), b), left);
}

/* The gradient of the loss with respect to softcap's input, without the target's term: with p = exp(z - max) * by, z
 * becomes p * scale * (1 - (z / cap)^2); without cap p * scale. */
static void row_loss_capped(float *z, int n, float max, float by, float cap, float scale)
{
    vf m = v_set1(max), b = v_set1(by), s = v_set1(scale), one = v_set1(1.0f);
    vf inv = v_set1(cap > 0 ? 1.0f / cap : 0.0f);
    FOR_LANES(i, n)
    {
        vf x = v_load_n(z + i, left), share = v_mul(x, inv), p = v_mul(v_exp(v_sub(x, m)), b);
        v_store_n(z + i, v_mul(p, v_mul(s, v_fnma(share, share, one))), left);
    }
}

static float row_dot(const float *x, const float *y, int n)
{
    vf sum = v_zero();
    FOR_LANES(i, n) sum = v_fma(v_load_n(x + i, left), v_load_n(y + i, left), sum);
    return v_sum(sum);
}

/* 64-bit integers: left to the compiler to vectorise. */
static void row_dropout(float *x, int n, const struct dropout_row *r)
{
    uint64_t stream = rng_mix(r->seed);
    for (int i = 0; i < n; i++) {
        uint64_t bits = rng_in(stream, r->first + (uint64_t)i) >> 11;
        x[i] = bits >= r->from ? x[i] * r->by : 0.0f;
    }
}

/* The square of a float is exact in double. */
static double row_square_sum(const float *x, size_t n)
{
    double lane[16] = {0}, sum = 0;
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int l = 0; l < 16; l++) lane[l] += (double)x[i + l] * x[i + l];
    for (int l = 0; i < n; i++, l++) lane[l] += (double)x[i] * x[i];
    for (int l = 0; l < 16; l++) sum += lane[l];
    return sum;
}

static void row_adamw(const struct adamw_args *a, size_t from, size_t to)
{
    vf grad_scale = v_set1((float)a->grad_scale), keep = v_set1((float)(1 - a->lr * a->decay));
    vf beta1 = v_set1((float)a->beta1), new1 = v_set1((float)(1 - a->beta1)), beta2 = v_set1((float)a->beta2);
    vf new2 = v_set1((float)(1 - a->beta2)), lr = v_set1((float)(a->lr / a->bias1)), eps = v_set1((float)a->eps);
    vf root_bias2 = v_set1((float)(1 / sqrt(a->bias2)));
    for (size_t i = from; i < to; i += 16) {
        int left = to - i < 16 ? (int)(to - i) : 16;
        vf g = v_mul(v_load_n(a->g + i, left), grad_scale);
        vf m = v_fma(g, new1, v_mul(v_load_n(a->m + i, left), beta1));
        vf v = v_fma(v_mul(g, g), new2, v_mul(v_load_n(a->v + i, left), beta2));
        vf step = v_div(v_mul(lr, m), v_fma(v_sqrt(v), root_bias2, eps));
        v_store_n(a->m + i, m, left);
        v_store_n(a->v + i, v, left);
        v_store_n(a->p + i, v_sub(v_mul(v_load_n(a->p + i, left), keep), step), left);
    }
}

static void row_axpby(float *y, const float *x, size_t n, float alpha, float beta)
{
    vf a = v_set1(alpha), b = v_set1(beta);
    for (size_t i = 0; i < n; i += 16) {
        int left = n - i < 16 ? (int)(n - i) : 16;
        vf ax = v_mul(v_load_n(x + i, left), a);
        v_store_n(y + i, beta == 0 ? ax : v_fma(v_load_n(y + i, left), b, ax), left);
    }
}
