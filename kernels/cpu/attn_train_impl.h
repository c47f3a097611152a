/* Attention of whole sequences, forward and backward, in blocks of TILE query rows by TILE keys (after Dao,
 * FlashAttention-2, arXiv 2307.08691). Scores are not stored; the backward recomputes them from lse.
 *
 * All five matrix multiplications use one kernel, tile_mul: each element of a result is one chain over k, in order,
 * whatever register block computes it. Blocks are counted from a sequence's first row, so that its bits do not
 * depend on other sequences. */

/* c (rows of R, P vectors of columns) = or += a b over K.  a(r, k) is a[r * a_row + k * a_k]. */
struct tile_mul {
    float *c;
    const float *a, *b;
    int c_ld, a_row, a_k, b_ld, K;
    bool add;
};

INLINE void tile_mul_block(const struct tile_mul *m, const int R, const int P)
{
    vf acc[ATTN_R][ATTN_P];
    const float *a = m->a, *b = m->b;
    int a_row = m->a_row, a_k = m->a_k, b_ld = m->b_ld;
    FOR_AR FOR_AP acc[r][p] = v_zero();
    if (m->add) FOR_AR FOR_AP acc[r][p] = v_load(m->c + (size_t)r * m->c_ld + p * 16);
    for (int k = 0; k < m->K; k++, a += a_k, b += b_ld) {
        vf bk[ATTN_P];
        FOR_AP bk[p] = v_load(b + p * 16);
        FOR_AR
        {
            vf ar = v_set1(a[(size_t)r * a_row]);
            FOR_AP acc[r][p] = v_fma(ar, bk[p], acc[r][p]);
        }
    }
    FOR_AR FOR_AP v_store(m->c + (size_t)r * m->c_ld + p * 16, acc[r][p]);
}

#define TILE_P_CASE(n)                                                                                                 \
    case n:                                                                                                            \
        if ((n) <= ATTN_P) tile_mul_block(m, R, (n) <= ATTN_P ? (n) : 1);                                              \
        break;
#define TILE_P_SWITCH(p)                                                                                               \
    switch (p) {                                                                                                       \
        TILE_P_CASE(1)                                                                                                 \
        TILE_P_CASE(2)                                                                                                 \
        TILE_P_CASE(3)                                                                                                 \
        TILE_P_CASE(4)                                                                                                 \
    }

static void tile_mul_panel(const struct tile_mul *m, int rows, int vectors)
{
    ATTN_SWITCH(rows, TILE_P_SWITCH(vectors))
}

/* Any number of vectors, few rows. */
static void tile_mul(struct tile_mul m, int rows, int vectors)
{
    int panels = (vectors + ATTN_P - 1) / ATTN_P;
    float *c = m.c;
    const float *b = m.b;
    for (int i = 0; i < panels; i++) {
        int from = vectors * i / panels, to = vectors * (i + 1) / panels;
        m.c = c + from * 16;
        m.b = b + from * 16;
        tile_mul_panel(&m, rows, to - from);
    }
}

/* Divides n rows into as few register blocks as possible, of about equal size. */
#define FOR_ROW_BLOCKS(n, from, to)                                                                                    \
    for (int blocks = ((n) + ATTN_R - 1) / ATTN_R, block = 0, from = 0, to = 0;                                        \
         from = (n)*block / (blocks ? blocks : 1), to = (n) * (block + 1) / (blocks ? blocks : 1), block < blocks;     \
         block++)

/* The keys [from, to) of a block, the first of which is key0, that row `row` of the sequence sees. */
struct tile_sight {
    int from, to;
};

INLINE struct tile_sight tile_sees(const struct attn_head *h, int row, int key0)
{
    int first = h->window && row - h->window + 1 > 0 ? row - h->window + 1 : 0, end = row + 1;
    if (h->rows) end = h->window && h->window < h->rows - row ? row + h->window : h->rows;
    return (struct tile_sight){clamp(first - key0, 0, TILE), clamp(end - key0, 0, TILE)};
}

INLINE vm tile_mask(struct tile_sight s, int vector)
{
    int from = clamp(s.from - vector * 16, 0, 16), to = clamp(s.to - vector * 16, 0, 16);
    return m_from(from < to ? ((1u << to) - 1) & ~((1u << from) - 1) : 0);
}

/* c = x b over head_dim, for the keys that some row of each register block sees: scores, and their gradients. */
static void tile_scores(const struct attn_tile *t, float *c, const float *x, const float *b, int key0)
{
    const struct attn_head *h = t->head;
    FOR_ROW_BLOCKS(t->n, from, to)
    {
        int seen = tile_sees(h, t->row0 + to - 1, key0).to;
        struct tile_mul m = {.c = c + from * TILE, .a = x + (size_t)from * h->dim_pad, .b = b, .c_ld = TILE};
        m.a_row = h->dim_pad, m.a_k = 1, m.b_ld = TILE, m.K = h->head_dim;
        tile_mul(m, to - from, (seen + 15) / 16);
    }
}

/* c += p b over the keys that some row of each register block sees. */
static void tile_values(const struct attn_tile *t, float *c, const float *p, const float *b, int key0)
{
    const struct attn_head *h = t->head;
    FOR_ROW_BLOCKS(t->n, from, to)
    {
        struct tile_mul m = {.c = c + (size_t)from * h->dim_pad, .a = p + from * TILE, .b = b, .c_ld = h->dim_pad};
        m.a_row = TILE, m.a_k = 1, m.b_ld = h->dim_pad, m.K = tile_sees(h, t->row0 + to - 1, key0).to, m.add = true;
        tile_mul(m, to - from, h->dim_pad / 16);
    }
}

/* c = or += p^T x over the rows that see some key of each register block. */
static void tile_keys(const struct attn_tile *t, float *c, const float *p, const float *x, int key0)
{
    const struct attn_head *h = t->head;
    int keys = t->row0 + t->n - key0 < TILE ? t->row0 + t->n - key0 : TILE;
    FOR_ROW_BLOCKS(keys, from, to)
    {
        int first = key0 + from - t->row0 > 0 ? key0 + from - t->row0 : 0; /* the first row that sees the first key */
        struct tile_mul m = {.c = c + (size_t)from * h->dim_pad, .a = p + first * TILE + from, .c_ld = h->dim_pad};
        m.b = x + (size_t)first * h->dim_pad, m.a_row = 1, m.a_k = TILE, m.b_ld = h->dim_pad, m.K = t->n - first;
        m.add = key0 < t->row0; /* the block on the diagonal is the first */
        tile_mul(m, to - from, h->dim_pad / 16);
    }
}

/* one row's online softmax, base 2 */
struct tile_row {
    float max, sum[16];
};

/* Turns the scores of a row into weights; rescales the row's `out` when the maximum rises. */
static void tile_softmax(struct tile_row *row, float *p, struct tile_sight s, vf scale, float *out, int dim_pad)
{
    vf top = v_set1(-INFINITY), score[TILE / 16];
    for (int i = 0; i < TILE / 16; i++) {
        vf x = v_mul(v_load(p + i * 16), scale);
        if (i * 16 < s.from || i * 16 + 16 > s.to) x = v_select(tile_mask(s, i), x, v_set1(-INFINITY));
        score[i] = x;
        top = v_max(top, x);
    }
    float highest = v_hmax(top);
    vf sum = v_load(row->sum);
    if (highest > row->max) {
        if (row->max > -INFINITY) {
            vf fade = v_exp2_negative(v_set1(row->max - highest));
            sum = v_mul(sum, fade);
            for (int c = 0; c < dim_pad; c += 16) v_store(out + c, v_mul(v_load(out + c), fade));
        }
        row->max = highest;
    }
    vf max = v_set1(row->max);
    for (int i = 0; i < TILE / 16; i++) {
        vf w = v_exp2_negative(v_sub(score[i], max));
        if (i * 16 < s.from || i * 16 + 16 > s.to) w = v_select(tile_mask(s, i), w, v_zero());
        v_store(p + i * 16, w);
        sum = v_add(sum, w);
    }
    v_store(row->sum, sum);
}

/* Replaces the dot products p of n rows by tanh(product * scale). */
static void tile_cap(float *p, int n, float scale)
{
    for (int i = 0; i < n * TILE; i += 16) v_store(p + i, v_tanh(v_mul(v_load(p + i), v_set1(scale))));
}

INLINE int tile_first_key(const struct attn_tile *t)
{
    int first = t->head->window ? t->row0 - t->head->window + 1 : 0;
    return first > 0 ? first / TILE * TILE : 0;
}

static void attn_tile(struct attn_tile *t)
{
    const struct attn_head *h = t->head;
    struct tile_row row[TILE];
    vf scale = v_set1((h->softcap > 0 ? h->softcap : h->scale) * 1.44269504f);
    for (int r = 0; r < t->n; r++) {
        row[r].max = h->sink * 1.44269504f;
        memset(row[r].sum, 0, sizeof row[r].sum);
        if (row[r].max != -INFINITY) row[r].sum[0] = 1;
    }
    memset(t->out, 0, (size_t)t->n * h->dim_pad * sizeof *t->out);
    for (int key0 = tile_first_key(t); tile_sees(h, t->row0 + t->n - 1, key0).to > 0; key0 += TILE) {
        size_t at = (size_t)(key0 / TILE) * h->stride;
        tile_scores(t, t->p, t->q, h->k_t + at, key0);
        if (h->softcap > 0) tile_cap(t->p, t->n, h->scale / h->softcap);
        for (int r = 0; r < t->n; r++)
            tile_softmax(&row[r], t->p + r * TILE, tile_sees(h, t->row0 + r, key0), scale,
                         t->out + (size_t)r * h->dim_pad, h->dim_pad);
        tile_values(t, t->out, t->p, h->v + at, key0);
    }
    for (int r = 0; r < t->n; r++) {
        float *out = t->out + (size_t)r * h->dim_pad, sum = v_sum(v_load(row[r].sum));
        vf inv = v_set1(1.0f / sum);
        for (int c = 0; c < h->dim_pad; c += 16) v_store(out + c, v_mul(v_load(out + c), inv));
        t->lse[r] = (float)(row[r].max * 0.69314718055994531 + log(sum));
    }
}

/* Replaces scores p by weights, exp(score scale - lse), and their gradients dp by scale * weight * (dp - delta).
 * Capped: p is tanh(score scale / softcap), weights are exp(p softcap - lse), and gradients are multiplied by 1 -
 * p^2. */
INLINE void tile_weights_of(const struct attn_tile *t, float *p, float *dp, int key0, const bool capped)
{
    const struct attn_head *h = t->head;
    vf scale = v_set1(h->scale), scale_2 = v_set1((capped ? h->softcap : h->scale) * 1.44269504f), one = v_set1(1.0f);
    for (int r = 0; r < t->n; r++, p += TILE, dp += TILE) {
        struct tile_sight s = tile_sees(h, t->row0 + r, key0);
        vf lse = v_set1(t->lse[r] * 1.44269504f), delta = v_set1(t->delta[r]);
        for (int i = 0; i < TILE; i += 16) {
            vf x = v_load(p + i), w = v_sub(v_mul(x, scale_2), lse), g;
            w = v_exp2_within(v_min(v_set1(126.0f), v_max(v_set1(-126.0f), w)));
            g = v_mul(v_mul(w, v_sub(v_load(dp + i), delta)), scale);
            if (capped) g = v_mul(g, v_fnma(x, x, one));
            if (i < s.from || i + 16 > s.to) {
                vm seen = tile_mask(s, i / 16);
                w = v_select(seen, w, v_zero());
                g = v_select(seen, g, v_zero());
            }
            v_store(p + i, w);
            v_store(dp + i, g);
        }
    }
}

static void tile_weights(const struct attn_tile *t, float *p, float *dp, int key0)
{
    tile_weights_of(t, p, dp, key0, false);
}

static void tile_weights_capped(const struct attn_tile *t, float *p, float *dp, int key0)
{
    tile_cap(p, t->n, t->head->scale / t->head->softcap);
    tile_weights_of(t, p, dp, key0, true);
}

static void attn_tile_back(struct attn_tile *t)
{
    const struct attn_head *h = t->head;
    float *p = t->p, *dp = p + TILE * TILE;
    memset(t->out, 0, (size_t)t->n * h->dim_pad * sizeof *t->out);
    for (int key0 = tile_first_key(t); key0 <= t->row0; key0 += TILE) {
        size_t at = (size_t)(key0 / TILE) * h->stride, sum_at = (size_t)key0 * h->dim_pad;
        tile_scores(t, p, t->q, h->k_t + at, key0);
        tile_scores(t, dp, t->dout, h->v_t + at, key0);
        (h->softcap > 0 ? tile_weights_capped : tile_weights)(t, p, dp, key0);
        tile_keys(t, h->dv + sum_at, p, t->dout, key0);
        tile_keys(t, h->dk + sum_at, dp, t->q, key0);
        tile_values(t, t->out, dp, h->k + at, key0);
    }
}
