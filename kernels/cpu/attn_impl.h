/* Attention of a block of query rows over one split of the context, four pages (a granule of 64 positions) at a
 * time, in order.
 *
 * A page has sixteen tokens, and K is stored with tokens in lanes, so the scores of a page are one vector per row.
 * Softmax is online: a granule rescales the earlier sums only when it raises the maximum. A row's arithmetic over a
 * granule depends only on the row and on the part of the granule that it may see, never on the other rows, so a
 * prompt gives the same bits however it is chunked. Rows that see only part of a page (the diagonal, the edge of the
 * window) multiply its V separately: 0 * V is not 0 when V holds a NaN or infinity left by an earlier owner of the
 * page.
 *
 * With a bf16 cache q and the weights of V are rounded to bf16 too, and are multiplied and summed in pairs as the
 * bf16 instructions do. With an int8 cache too. bf16 holds such integers exactly: where ATTN_WIDENS, a granule is
 * expanded to bf16 once for all rows; else the same products are added as floats, in the same order. */

enum { GRANULE_PAGES = 4, GRANULE = GRANULE_PAGES * KV_PAGE };
_Static_assert(ATTN_SPLIT_PAGES % GRANULE_PAGES == 0, "splits are whole granules");
_Static_assert(GRANULE_PAGES % ATTN_P == 0, "granules are whole passes");

INLINE vf kv_load(const void *p, enum dtype t, size_t i)
{
    if (t == DT_I8) return v_load_i8((const int8_t *)p + i);
    return row_load((const uint8_t *)p + i * (t == DT_F32 ? 4 : 2), t, 0);
}

/* Sixteen pairs of bf16, the first of each from `even`: the upper half of a small integer's float is its bf16. */
INLINE vi i8_pairs(const int8_t *even, const int8_t *odd)
{
    return i_or(i_shr(v_bits(v_load_i8(even)), 16), v_bits(v_load_i8(odd)));
}

/* The blocks of a granule's pages in memory. */
struct attn_pages {
    const uint8_t *k[GRANULE_PAGES], *v[GRANULE_PAGES];
    const float *k_scale[GRANULE_PAGES], *v_scale[GRANULE_PAGES];
};

/* A granule of an int8 cache as one of bf16: room for K and V of its pages, which lie one behind the other. */
struct attn_wide {
    _Alignas(64) uint16_t value[2 * GRANULE_PAGES * HEAD_DIM_MAX * KV_PAGE];
};

/* What to prefetch while a granule is computed: in decoding the cache comes from memory. `share` bytes of each page
 * of the next granule, page after page, because memory is fastest when read in order: the scores prefetch the first
 * half of the pages, the values the other half. */
struct attn_next {
    const uint8_t *page[GRANULE_PAGES];
    size_t share;
};

/* Element i of a sum as pairs are added: the second of a pair comes first. An odd n's last one is alone. */
INLINE int in_pairs(enum dtype t, int i, int n)
{
    return t == DT_I8 && (i ^ 1) < n ? i ^ 1 : i;
}

/* The rows of one register block: q as the kernels read it, [head_dim][R], for bf16 [head_dim / 2][R] pairs; and the
 * weights of V over a granule, one row after the other: f32, for bf16 pairs. */
struct attn_rows {
    int n;
    const uint32_t *q;
    uint32_t weight[ATTN_R][GRANULE];
    struct attn_part *part;
    struct attn_next next;
    vf score[ATTN_R][GRANULE_PAGES];
};

#define FOR_AR UNROLL for (int r = 0; r < R; r++)
#define FOR_AP UNROLL for (int p = 0; p < P; p++)

/* Prefetches every second of P addresses that are `apart` bytes from each other, or all when these are whole cache
 * lines. */
INLINE void attn_prefetch(const uint8_t *ahead, size_t apart, const int P)
{
    FOR_AP
    if (p % 2 == 0 || apart > 32) __builtin_prefetch((const uint8_t *)((uintptr_t)ahead + (size_t)p * apart), 0, 2);
}

/* score[r][at + p] = q[r] . K[p] over head_dim, lanes are the tokens of page p */
INLINE void attn_scores(struct attn_rows *rows, const uint8_t *const *k, int at, enum dtype t, int head_dim,
                        const int R, const int P)
{
    enum { HALF = GRANULE_PAGES / 2 };
    vf acc[ATTN_R][ATTN_P];
    const uint32_t *q = rows->q;
    const int steps = t == DT_BF16 ? (head_dim + 1) / 2 : head_dim;
    const size_t share = rows->next.share, apart = share / (size_t)(HALF * steps);
    /* A pass over all pages prefetches the first page in its first half, then the second. */
    const int middle = P > HALF ? steps / 2 : steps;
    const uintptr_t ahead[2] = {(uintptr_t)rows->next.page[at / HALF] + (size_t)(at % HALF) * (share / HALF),
                                (uintptr_t)rows->next.page[1] - (size_t)middle * apart * P};
    FOR_AR FOR_AP acc[r][p] = v_zero();
    if (t == DT_BF16)
        for (int c = 0; c < steps; c++, q += R) {
            vi kc[ATTN_P];
            FOR_AP kc[p] = i_load(k[p] + (size_t)c * 64);
            attn_prefetch((const uint8_t *)(ahead[c >= middle] + (size_t)c * apart * P), apart, P);
            FOR_AR FOR_AP acc[r][p] = v_dot_bf16(acc[r][p], kc[p], q[r]);
        }
    else
        for (int c = 0; c < steps; c++) {
            int at_c = in_pairs(t, c, steps);
            vf kc[ATTN_P];
            FOR_AP kc[p] = kv_load(k[p], t, (size_t)at_c * KV_PAGE);
            attn_prefetch((const uint8_t *)(ahead[c >= middle] + (size_t)c * apart * P), apart, P);
            FOR_AR FOR_AP acc[r][p] = v_fma(v_set1(f32_from_bits(q[at_c * R + r])), kc[p], acc[r][p]);
        }
    FOR_AR FOR_AP rows->score[r][at + p] = acc[r][p];
}

/* The positions [from, to) of n pages, the first of them page `at` of the granule. */
struct attn_span {
    const uint8_t *const *v;
    int at, n, from, to;
};

/* out[r0 + r] += weight[r0 + r][i] * V[i] over the positions i of the span in order, for P vectors of features from
 * c on. */
INLINE void attn_values_at(const struct attn_rows *rows, int r0, const struct attn_span *s, enum dtype t, int dim_pad,
                           int c, bool part_of_page, const int R, const int P)
{
    enum { HALF = GRANULE_PAGES / 2 };
    vf acc[ATTN_R][ATTN_P];
    /* The part of the two shares that these P vectors prefetch, and a page's part of that. */
    const size_t share = rows->next.share, start = share * 2 * (size_t)c / (size_t)dim_pad;
    const size_t chunk = share * 8 * P / (size_t)dim_pad, apart = chunk / (KV_PAGE / (t == DT_BF16 ? 2 : 1) * P);
    FOR_AR FOR_AP acc[r][p] = v_load(rows->part[r0 + r].out + c + p * 16);
    for (int page = 0; page < s->n; page++) {
        size_t ask = start + (size_t)(s->at + page) * chunk, second = ask >= share;
        const uint8_t *ahead = rows->next.page[HALF + second] + (ask - second * share);
        if (t == DT_BF16) {
            int from = part_of_page ? s->from / 2 : 0, to = part_of_page ? (s->to + 1) / 2 : KV_PAGE / 2;
            for (int i = from; i < to; i++) {
                const uint32_t *weight = &rows->weight[r0][(s->at + page) * (KV_PAGE / 2) + i];
                vi v[ATTN_P];
                FOR_AP v[p] = i_load(s->v[page] + ((size_t)i * dim_pad + c + p * 16) * 4);
                attn_prefetch(ahead, apart, P);
                ahead = (const uint8_t *)((uintptr_t)ahead + apart * P);
                if (part_of_page) {
                    uint32_t seen = (2 * i >= s->from ? 0xffffu : 0) | (2 * i + 1 < s->to ? 0xffff0000u : 0);
                    FOR_AP v[p] = i_and(v[p], i_set1((int32_t)seen));
                }
                FOR_AR FOR_AP acc[r][p] = v_dot_bf16(acc[r][p], v[p], weight[r * GRANULE]);
            }
        } else {
            int from = part_of_page ? s->from / 2 * 2 : 0, to = part_of_page ? (s->to + 1) / 2 * 2 : KV_PAGE;
            for (int i = from; i < to; i++) {
                int pos = in_pairs(t, i, KV_PAGE);
                if (part_of_page && (pos < s->from || pos >= s->to)) continue;
                const uint32_t *weight = &rows->weight[r0][(s->at + page) * KV_PAGE + pos];
                vf v[ATTN_P];
                FOR_AP v[p] = kv_load(s->v[page], t, (size_t)pos * dim_pad + c + p * 16);
                attn_prefetch(ahead, apart, P);
                ahead = (const uint8_t *)((uintptr_t)ahead + apart * P);
                FOR_AR FOR_AP acc[r][p] = v_fma(v_set1(f32_from_bits(weight[r * GRANULE])), v[p], acc[r][p]);
            }
        }
    }
    FOR_AR FOR_AP v_store(rows->part[r0 + r].out + c + p * 16, acc[r][p]);
}

INLINE void attn_values(const struct attn_rows *rows, int r0, const struct attn_span *s, enum dtype t, int dim_pad,
                        bool part_of_page, const int R)
{
    int c = 0;
    for (; c + 16 * ATTN_P <= dim_pad; c += 16 * ATTN_P)
        attn_values_at(rows, r0, s, t, dim_pad, c, part_of_page, R, ATTN_P);
    for (; c < dim_pad; c += 16) attn_values_at(rows, r0, s, t, dim_pad, c, part_of_page, R, 1);
}

/* Expands the granule's pages and has *g point to the result; a page that comes again and again is expanded once. */
static void attn_widen(struct attn_wide *wide, struct attn_pages *g, int head_dim, int dim_pad)
{
    static const int8_t none[KV_PAGE]; /* the pair of an odd head_dim's last value */
    const uint8_t *before = NULL;
    uint16_t *to = wide->value;
    for (int p = 0; p < GRANULE_PAGES; p++) {
        const int8_t *k = (const int8_t *)g->k[p], *v = (const int8_t *)g->v[p];
        if (g->k[p] == before) {
            g->k[p] = g->k[p - 1];
            g->v[p] = g->v[p - 1];
            continue;
        }
        before = g->k[p];
        g->k[p] = (const uint8_t *)to;
        for (int c = 0; c < head_dim; c += 2, k += 2 * KV_PAGE, to += 2 * KV_PAGE)
            v_store((float *)to, i_float(i8_pairs(k, c + 1 < head_dim ? k + KV_PAGE : none)));
        g->v[p] = (const uint8_t *)to;
        for (int i = 0; i < KV_PAGE; i += 2, v += 2 * dim_pad)
            for (int c = 0; c < dim_pad; c += 16, to += 32)
                v_store((float *)to, i_float(i8_pairs(v + c, v + dim_pad + c)));
    }
}

/* Replaces the dot products of a granule by base-2 scores, -infinity where bit i of `seen` is not set; returns the
 * largest. */
INLINE float attn_mask(struct attn_rows *rows, int r, uint64_t seen, vf scale, const float *const *k_scale)
{
    vf max = v_set1(-INFINITY);
    for (int p = 0; p < GRANULE_PAGES; p++) {
        vf s = v_mul(rows->score[r][p], scale);
        if (k_scale) s = v_mul(s, v_load(k_scale[p]));
        if (~seen) s = v_select(m_from((uint32_t)(seen >> (16 * p)) & 0xffff), s, v_set1(-INFINITY));
        rows->score[r][p] = s;
        max = v_max(max, s);
    }
    return v_hmax(max);
}

/* Replaces the dot products of a granule by tanh(product * scale), times k_scale (of pages; NULL: none). */
static void attn_cap(struct attn_rows *rows, int r, float scale, const float *const *k_scale)
{
    for (int p = 0; p < GRANULE_PAGES; p++) {
        vf s = v_mul(rows->score[r][p], v_set1(scale));
        rows->score[r][p] = v_tanh(k_scale ? v_mul(s, v_load(k_scale[p])) : s);
    }
}

/* Folds a granule's scores, the largest of which is `top`, into the row's running maximum and sum; replaces them by
 * the weights of V, times v_scale (of pages; NULL: none) and then rounded to bf16. pairs: they are stored so. */
INLINE void attn_softmax(struct attn_rows *rows, int r, uint64_t seen, float top, const float *const *v_scale,
                         bool pairs, int dim_pad)
{
    struct attn_part *part = rows->part + r;
    vf sum = v_load(part->sum);
    if (top > part->max) {
        if (part->max > -INFINITY) {
            vf fade = v_exp2_negative(v_set1(part->max - top));
            sum = v_mul(sum, fade);
            for (int c = 0; c < dim_pad; c += 16) v_store(part->out + c, v_mul(v_load(part->out + c), fade));
        }
        part->max = top;
    }
    vf max = v_set1(part->max);
    for (int p = 0; p < GRANULE_PAGES; p++) {
        vf w = v_exp2_negative(v_sub(rows->score[r][p], max));
        vm sees = m_from((uint32_t)(seen >> (16 * p)) & 0xffff);
        if (~seen) w = v_select(sees, w, v_zero());
        uint16_t *pair = (uint16_t *)rows->weight[r] + p * KV_PAGE;
        if (pairs && !v_scale) { /* sums the rounded weights, so that the result is a weighted average */
            sum = v_add(sum, v_store_bf16(pair, w));
            continue;
        }
        sum = v_add(sum, w);
        uint16_t rounded[KV_PAGE];
        if (v_scale) w = v_mul(w, v_load(v_scale[p]));
        if (v_scale && ~seen) w = v_select(sees, w, v_zero()); /* a scale may be an earlier owner's NaN */
        if (v_scale) w = v_store_bf16(pairs ? pair : rounded, w);
        if (!pairs) v_store((float *)rows->weight[r] + p * KV_PAGE, w);
    }
    v_store(part->sum, sum);
}

/* Dispatches a run-time number of rows to the kernels of each type. */
#define ATTN_CASE(n, call)                                                                                             \
    case n:                                                                                                            \
        if ((n) <= ATTN_R) {                                                                                           \
            enum { R = (n) <= ATTN_R ? (n) : 1 };                                                                      \
            call;                                                                                                      \
        }                                                                                                              \
        break;
#define ATTN_SWITCH(rows, call)                                                                                        \
    switch (rows) {                                                                                                    \
        ATTN_CASE(1, call)                                                                                             \
        ATTN_CASE(2, call)                                                                                             \
        ATTN_CASE(3, call)                                                                                             \
        ATTN_CASE(4, call)                                                                                             \
        ATTN_CASE(5, call)                                                                                             \
        ATTN_CASE(6, call)                                                                                             \
    }
#define ATTN_TYPE(name, t)                                                                                             \
    static void attn_scores_##name(struct attn_rows *rows, const uint8_t *const *k, int at, int head_dim)              \
    {                                                                                                                  \
        ATTN_SWITCH(rows->n, attn_scores(rows, k, at, t, head_dim, R, ATTN_P))                                         \
    }                                                                                                                  \
    static void attn_values_##name(const struct attn_rows *rows, const struct attn_span *s, int dim_pad)               \
    {                                                                                                                  \
        ATTN_SWITCH(rows->n, attn_values(rows, 0, s, t, dim_pad, false, R))                                            \
    }                                                                                                                  \
    static void attn_edge_##name(const struct attn_rows *rows, int r, const struct attn_span *s, int dim_pad)          \
    {                                                                                                                  \
        attn_values(rows, r, s, t, dim_pad, true, 1);                                                                  \
    }
ATTN_TYPE(f32, DT_F32)
ATTN_TYPE(bf16, DT_BF16)
ATTN_TYPE(f16, DT_F16)
#if ATTN_WIDENS
#define attn_scores_i8 attn_scores_bf16
#define attn_values_i8 attn_values_bf16
#define attn_edge_i8 attn_edge_bf16
#else
ATTN_TYPE(i8, DT_I8)
#endif

static const struct attn_kernels {
    void (*scores)(struct attn_rows *, const uint8_t *const *k, int at, int head_dim);
    void (*values)(const struct attn_rows *, const struct attn_span *, int dim_pad);
    void (*edge)(const struct attn_rows *, int r, const struct attn_span *, int dim_pad); /* row r, part of a page */
} attn_kernels[DT_COUNT] = {[DT_F32] = {attn_scores_f32, attn_values_f32, attn_edge_f32},
                            [DT_BF16] = {attn_scores_bf16, attn_values_bf16, attn_edge_bf16},
                            [DT_F16] = {attn_scores_f16, attn_values_f16, attn_edge_f16},
                            [DT_I8] = {attn_scores_i8, attn_values_i8, attn_edge_i8}};

/* Whether q and the weights of V are pairs of bf16. */
INLINE bool attn_pairs(const struct kv *kv)
{
    return kv->shape.t == DT_BF16 || (ATTN_WIDENS && kv->shape.t == DT_I8);
}

/* The positions that a row sees, [first, last]. */
struct attn_sight {
    int first, last;
};

static struct attn_sight attn_sees(const struct attn_block *b, int row)
{
    int pos = b->pos0 + row / b->group, window = b->a->window;
    return (struct attn_sight){window && pos >= window ? pos - window + 1 : 0, pos};
}

/* The blocks of a granule's pages. A page that no row sees is replaced by one that is seen: its scores are computed
 * and not used. */
static struct attn_pages attn_lookup(const struct attn_block *b, int granule, struct attn_sight seen)
{
    const struct kv *kv = b->a->kv;
    struct attn_pages g;
    for (int p = 0; p < GRANULE_PAGES; p++) {
        int page = granule * GRANULE_PAGES + p, low = seen.first / KV_PAGE, high = seen.last / KV_PAGE;
        page = page < low ? low : page > high ? high : page;
        g.k[p] = kv_block(kv, b->a->layer, b->pages[page], b->kv_head);
        g.v[p] = g.k[p] + kv->v_at;
        g.k_scale[p] = (const float *)(g.k[p] + kv->scale_at);
        g.v_scale[p] = g.k_scale[p] + KV_PAGE;
    }
    return g;
}

/* The positions that some row of the block sees. */
static struct attn_sight block_sees(const struct attn_block *b)
{
    return (struct attn_sight){attn_sees(b, b->row0).first, attn_sees(b, b->row0 + b->n_rows - 1).last};
}

/* The granule that this thread probably computes next. */
static struct attn_pages attn_next(const struct attn_block *b, int granule, struct attn_sight seen)
{
    if (granule < seen.last / GRANULE || !b->then) return attn_lookup(b, granule + 1, seen);
    struct attn_sight then = block_sees(b->then);
    return attn_lookup(b->then, then.first / GRANULE, then);
}

static int clamp(int x, int low, int high)
{
    return x < low ? low : x > high ? high : x;
}

/* One granule for the rows row0 .. row0 + rows->n - 1. */
static void attn_granule(const struct attn_block *b, struct attn_rows *rows, int row0, int granule,
                         const struct attn_pages *g)
{
    const struct kv *kv = b->a->kv;
    const struct attn_kernels *kernels = &attn_kernels[kv->shape.t];
    bool int8 = kv->shape.t == DT_I8;
    float cap = b->a->softcap;
    int start = granule * GRANULE, full0 = 0, full1 = GRANULE_PAGES; /* pages that all rows see as a whole */
    int from[ATTN_R], to[ATTN_R];
    uint64_t seen[ATTN_R];
    float top[ATTN_R];
    vf scale = v_set1((cap > 0 ? cap : b->a->scale) * 1.44269504f);
    for (int at = 0; at < GRANULE_PAGES; at += ATTN_P) kernels->scores(rows, g->k + at, at, b->a->head_dim);
    for (int r = 0; r < rows->n; r++) {
        struct attn_sight sight = attn_sees(b, row0 + r);
        from[r] = clamp(sight.first - start, 0, GRANULE), to[r] = clamp(sight.last + 1 - start, 0, GRANULE);
        full0 = full0 > (from[r] + 15) / 16 ? full0 : (from[r] + 15) / 16;
        full1 = full1 < to[r] / 16 ? full1 : to[r] / 16;
        seen[r] = from[r] < to[r] ? (~0ull >> (GRANULE - to[r])) & (~0ull << from[r]) : 0;
        if (!seen[r]) continue;
        if (cap > 0) attn_cap(rows, r, b->a->scale / cap, int8 ? g->k_scale : NULL);
        top[r] = attn_mask(rows, r, seen[r], scale, int8 && !(cap > 0) ? g->k_scale : NULL);
    }
    for (int r = 0; r < rows->n; r++)
        if (seen[r]) attn_softmax(rows, r, seen[r], top[r], int8 ? g->v_scale : NULL, attn_pairs(kv), kv->dim_pad);
    for (int p = 0; p < GRANULE_PAGES; p++) {
        struct attn_span s = {.v = g->v + p, .at = p, .n = 1};
        if (p == full0 && full0 < full1) {
            s.n = full1 - full0;
            kernels->values(rows, &s, kv->dim_pad);
            p = full1 - 1;
            continue;
        }
        for (int r = 0; r < rows->n; r++) {
            s.from = clamp(from[r] - p * KV_PAGE, 0, KV_PAGE), s.to = clamp(to[r] - p * KV_PAGE, 0, KV_PAGE);
            if (s.from < s.to) kernels->edge(rows, r, &s, kv->dim_pad);
        }
    }
}

/* Stores q of rows row0 .. row0 + n - 1 in the kernels' layout. */
static void attn_take_q(const struct attn_block *b, uint32_t *q, int row0, int n)
{
    int dim = b->a->head_dim;
    for (int r = 0; r < n; r++) {
        int row = b->row0 + row0 + r, head = b->kv_head * b->group + row % b->group;
        const float *from = mat_row(&b->a->qkv, b->token0 + row / b->group) + (size_t)head * dim;
        enum dtype t = b->a->kv->shape.t;
        uint16_t rounded[HEAD_DIM_MAX + 16];
        if (t == DT_BF16 || t == DT_I8) row_halve(rounded, DT_BF16, from, dim);
        if (attn_pairs(b->a->kv)) {
            rounded[dim] = 0; /* pads an odd dim */
            for (int c = 0; c < (dim + 1) / 2; c++) memcpy(q + c * n + r, rounded + 2 * c, 4);
        } else {
            for (int c = 0; c < dim; c++) q[c * n + r] = t == DT_I8 ? (uint32_t)rounded[c] << 16 : f32_bits(from[c]);
        }
    }
}

/* A row's state before a split: nothing seen but, before the first split, the head's sink. */
static void attn_begin(const struct attn_block *b, int row, int split, struct attn_part *part)
{
    const float *sinks = split ? NULL : b->a->sinks;
    part->max = sinks ? sinks[b->kv_head * b->group + row % b->group] * 1.44269504f : -INFINITY;
    memset(part->sum, 0, sizeof part->sum);
    if (part->max != -INFINITY) part->sum[0] = 1;
    memset(part->out, 0, (size_t)b->a->kv->dim_pad * sizeof(float));
}

static void attn_split(const struct attn_block *b, int split, struct attn_part *part)
{
    enum { BLOCKS_MAX = (ATTN_ROWS + ATTN_R - 1) / ATTN_R };
    uint32_t q[ATTN_ROWS * HEAD_DIM_MAX];
    struct attn_wide wide; /* int8 */
    struct attn_rows rows[BLOCKS_MAX];
    int n = b->n_rows, n_blocks = (n + ATTN_R - 1) / ATTN_R, dim = b->a->head_dim;
    for (int i = 0; i < n_blocks; i++) {
        int row0 = n * i / n_blocks;
        rows[i].n = n * (i + 1) / n_blocks - row0;
        rows[i].part = part + row0;
        rows[i].q = q + (size_t)row0 * dim;
        attn_take_q(b, q + (size_t)row0 * dim, row0, rows[i].n);
    }
    for (int r = 0; r < n; r++) attn_begin(b, b->row0 + r, split, part + r);
    struct attn_sight seen = block_sees(b);
    int granule = split * (ATTN_SPLIT_PAGES / GRANULE_PAGES), end = granule + ATTN_SPLIT_PAGES / GRANULE_PAGES;
    granule = seen.first / GRANULE > granule ? seen.first / GRANULE : granule;
    end = seen.last / GRANULE + 1 < end ? seen.last / GRANULE + 1 : end;
    size_t share = b->a->kv->block_bytes / (size_t)n_blocks;
    for (; granule < end; granule++) {
        struct attn_pages g = attn_lookup(b, granule, seen), next = attn_next(b, granule, seen);
        if (ATTN_WIDENS && b->a->kv->shape.t == DT_I8) attn_widen(&wide, &g, dim, b->a->kv->dim_pad);
        for (int i = 0; i < n_blocks; i++) {
            rows[i].next.share = share;
            for (int p = 0; p < GRANULE_PAGES; p++) rows[i].next.page[p] = next.k[p] + (size_t)i * share;
        }
        for (int i = 0; i < n_blocks; i++) attn_granule(b, &rows[i], b->row0 + n * i / n_blocks, granule, &g);
    }
}

static void attn_merge(struct attn_part *into, const struct attn_part *part, int dim_pad)
{
    if (part->max == -INFINITY) return;
    if (into->max == -INFINITY) {
        into->max = part->max;
        memcpy(into->sum, part->sum, sizeof into->sum);
        memcpy(into->out, part->out, (size_t)dim_pad * sizeof(float));
        return;
    }
    float max = into->max > part->max ? into->max : part->max;
    vf keep = v_exp2_negative(v_set1(into->max - max)), take = v_exp2_negative(v_set1(part->max - max));
    into->max = max;
    v_store(into->sum, v_fma(v_load(into->sum), keep, v_mul(v_load(part->sum), take)));
    for (int c = 0; c < dim_pad; c += 16)
        v_store(into->out + c, v_fma(v_load(into->out + c), keep, v_mul(v_load(part->out + c), take)));
}

static float attn_finish(float *out, const struct attn_part *part, int head_dim)
{
    float sum = v_sum(v_load(part->sum));
    vf inv = v_set1(1.0f / sum);
    FOR_LANES(c, head_dim) v_store_n(out + c, v_mul(v_load(part->out + c), inv), left);
    return sum;
}
