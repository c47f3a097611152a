/* Kernels that make one pass over a row: norms, adds, activations, embedding, rotation, quantisation. A sum over a
 * row is kept in sixteen lanes, lane i adding the elements i mod 16 in order, and folded once at the end. */

#define FOR_LANES(i, n) for (int i = 0, left; (left = (n)-i) > 0; i += 16)

INLINE vf row_load(const void *p, enum dtype t, int i)
{
    if (t == DT_F32) return v_load((const float *)p + i);
    return t == DT_BF16 ? v_load_bf16((const uint16_t *)p + i) : v_load_f16((const uint16_t *)p + i);
}

static void row_norm(float *out, const float *x, int n, const float *w, const float *b, float eps, enum norm_kind kind)
{
    float mean = 0;
    if (kind == NORM_LAYER) {
        vf sum = v_zero();
        FOR_LANES(i, n) sum = v_add(sum, v_load_n(x + i, left));
        mean = v_sum(sum) / (float)n;
    }
    vf square = v_zero(), m = v_set1(mean);
    FOR_LANES(i, n)
    {
        vf c = v_sub(v_load_n(x + i, left), m);
        if (left < 16) c = v_select(m_first(left), c, v_zero());
        square = v_fma(c, c, square);
    }
    vf inv = v_set1(1.0f / sqrtf(v_sum(square) / (float)n + eps));
    FOR_LANES(i, n)
    {
        vf c = v_mul(v_sub(v_load_n(x + i, left), m), inv);
        v_store_n(out + i, v_fma(c, v_load_n(w + i, left), b ? v_load_n(b + i, left) : v_zero()), left);
    }
}

static void row_add(float *x, const float *y, int n)
{
    FOR_LANES(i, n) v_store_n(x + i, v_add(v_load_n(x + i, left), v_load_n(y + i, left)), left);
}

static void row_act(float *x, int n, enum act_kind act)
{
    FOR_LANES(i, n) v_store_n(x + i, v_act(v_load_n(x + i, left), act), left);
}

/* x = tanh(x * scale) * cap */
static void row_softcap(float *x, int n, float scale, float cap)
{
    vf s = v_set1(scale), c = v_set1(cap);
    FOR_LANES(i, n) v_store_n(x + i, v_mul(v_tanh(v_mul(v_load_n(x + i, left), s)), c), left);
}

static void row_act_mul(float *out, const float *gu, int n, enum act_kind act)
{
    FOR_LANES(i, n)
    {
        vf gate = v_act(v_load_n(gu + i, left), act);
        v_store_n(out + i, v_mul(gate, v_act_up(v_load_n(gu + n + i, left), act)), left);
    }
}

INLINE float one_float(const void *p, enum dtype t, int i)
{
    if (t == DT_F32) return ((const float *)p)[i];
    return t == DT_BF16 ? bf16_to_f32(((const uint16_t *)p)[i]) : f16_to_f32(((const uint16_t *)p)[i]);
}

static void row_embed(float *out, const void *row, enum dtype t, float scale, const void *pos_row, enum dtype pos_t,
                      int n)
{
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        vf x = v_mul(row_load(row, t, i), v_set1(scale));
        if (pos_row) x = v_add(x, row_load(pos_row, pos_t, i));
        v_store(out + i, x);
    }
    for (; i < n; i++) out[i] = one_float(row, t, i) * scale + (pos_row ? one_float(pos_row, pos_t, i) : 0.0f);
}

/* pairs (i, i + rot / 2); back: by the opposite angle */
INLINE void rope_pairs(float *head, int rot, const float *cosines, const float *sines, bool back)
{
    int half = rot / 2;
    FOR_LANES(i, half)
    {
        vf x0 = v_load_n(head + i, left), x1 = v_load_n(head + half + i, left);
        vf c = v_load_n(cosines + i, left), s = v_load_n(sines + i, left);
        if (back) s = v_sub(v_zero(), s);
        v_store_n(head + i, v_fnma(x1, s, v_mul(x0, c)), left);
        v_store_n(head + half + i, v_fma(x0, s, v_mul(x1, c)), left);
    }
}

static void row_rope(float *head, int rot, const float *cosines, const float *sines)
{
    rope_pairs(head, rot, cosines, sines, false);
}

static void row_rope_back(float *head, int rot, const float *cosines, const float *sines)
{
    rope_pairs(head, rot, cosines, sines, true);
}

/* to bf16 or f16, n padded to a multiple of 16 */
static void row_halve(uint16_t *out, enum dtype t, const float *x, int n)
{
    FOR_LANES(i, n)
    {
        vf v = v_load_n(x + i, left);
        if (t == DT_BF16)
            v_store_bf16(out + i, v);
        else
            v_store_f16(out + i, v);
    }
}

/* Converts columns from..to of one of R rows, from a multiple of 16 on, to bf16: two at a time, R words apart, zeros
 * past n. */
static void row_halve_block(uint32_t *out, int R, const float *x, int n, int from, int to)
{
    for (int i = from; i < to; i += 16) {
        uint32_t pairs[8];
        v_store_bf16((uint16_t *)pairs, n > i ? v_load_n(x + i, n - i) : v_zero());
        for (int k = 0; k < 8; k++) out[(i / 2 + k) * R] = pairs[k];
    }
}

/* As in linear_args: q = round_half_even(x * (127 / amax)), zeros up to n_pad; step = amax / 127, 0 for a row of
 * zeros, NaN (and zeros) for a row that is not finite. */
struct quant {
    vf inv;
    float step;
    bool zero;    /* every q is 0 */
    bool outlier; /* amax is above QUANT_OUTLIER times the mean */
};

/* The largest absolute value is found on the bit patterns, where NaN is above infinity and infinity above all
 * others. */
INLINE struct quant quant_from(float amax)
{
    if (amax >= QUANT_AMAX_MIN && amax < INFINITY)
        return (struct quant){.inv = v_set1(127.0f / amax), .step = amax / 127.0f};
    return (struct quant){.inv = v_zero(), .step = amax < QUANT_AMAX_MIN ? 0.0f : NAN, .zero = true};
}

INLINE struct quant quant_of(const float *x, int n)
{
    vi amax_bits = i_zero(), magnitude = i_set1(INT32_MAX);
    vf sum = v_zero();
    FOR_LANES(i, n)
    {
        vi size = i_and(v_bits(v_load_n(x + i, left)), magnitude);
        amax_bits = i_max(amax_bits, size);
        sum = v_add(sum, i_float(size));
    }
    float amax = f32_from_bits((uint32_t)i_hmax(amax_bits));
    struct quant s = quant_from(amax);
    s.outlier = !s.zero && amax > v_sum(sum) * (QUANT_OUTLIER / (float)n);
    return s;
}

INLINE vi quant_round(vf x, vf inv)
{
    vf magic = v_set1(0x1.8p23f); /* adding it rounds to an integer, to even */
    return i_sub(v_bits(v_add(v_mul(x, inv), magic)), v_bits(magic));
}

/* The residual of x after quantisation, with a single rounding. */
INLINE vf quant_left(vf x, const struct quant *s)
{
    return v_fnma(i_to_f(quant_round(x, s->inv)), v_set1(s->step), x);
}

/* The quantisation of a finite row's residual. */
INLINE struct quant quant_of_rest(const float *x, int n, const struct quant *s)
{
    vi amax_bits = i_zero(), magnitude = i_set1(INT32_MAX);
    FOR_LANES(i, n) amax_bits = i_max(amax_bits, i_and(v_bits(quant_left(v_load_n(x + i, left), s)), magnitude));
    return quant_from(f32_from_bits((uint32_t)i_hmax(amax_bits)));
}

static void row_quantise(int8_t *q, float *step, const float *x, int n)
{
    struct quant s = quant_of(x, n);
    *step = s.step;
    if (s.zero) {
        memset(q, 0, (size_t)n);
        return;
    }
    int i = 0;
    for (; i + 16 <= n; i += 16) i_store_i8(q + i, quant_round(v_load(x + i), s.inv));
    if (i < n) {
        int8_t last[16];
        i_store_i8(last, quant_round(v_load_n(x + i, n - i), s.inv));
        memcpy(q + i, last, (size_t)(n - i));
    }
}

/* Quantises columns from..to of one of R rows, from a multiple of 16 on: four at a time, R words apart, + bias,
 * zeros past n. sums, unless NULL: sums[g * R] = `times` times the sum over columns [g * group, (g + 1) * group);
 * to - from is whole groups. With `rest`, quantises the residual of an outlier row instead. Returns whether the row is
 * an outlier. */
static bool row_quantise_block(int8_t *q, int R, float *step, int32_t *sums, int times, int group, const float *x,
                               int n, int from, int to, bool rest)
{
    struct quant first = quant_of(x, n), s = first;
    int bias = sums ? 0 : I8_BIAS, span = sums ? group : to - from;
    if (rest) s = quant_of_rest(x, n, &first);
    if (from == 0) *step = s.step; /* other threads may handle other columns of the row */
    for (int k = from; k < to; k += span) {
        vi sum = i_zero();
        for (int i = k; i < k + span; i += 16) {
            vi t = i_zero();
            if (!s.zero && i < n) {
                vf v = v_load_n(x + i, n - i);
                if (rest) v = quant_left(v, &first);
                t = quant_round(v, s.inv);
            }
            sum = i_add(sum, t);
            i_store_i8_words(q + (size_t)i * R, 4 * R, t, bias);
        }
        if (sums) sums[k / group * R] = times * i_hsum(sum);
    }
    return first.outlier;
}
