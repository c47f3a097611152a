/* Attention of a block of query rows over one split of the context, page by page in order.
 *
 * A page is sixteen tokens and K lies with tokens in lanes, so the scores of a page are one vector per row.  Softmax is
 * online: a page rescales what came before only when it raises the maximum.  A row's arithmetic over a page depends
 * only on the row and on the part of the page it may see, never on the rows beside it, so a prompt gives the same bits
 * in any chunks.  Rows that see only part of a page (the diagonal, the edge of the window) multiply V on their own: 0 *
 * V is not nothing when V is what an earlier owner of the page left behind. */

INLINE vf kv_load(const void *p, enum dtype t, size_t i)
{
    if (t == DT_I8) return v_load_i8((const int8_t *)p + i);
    return row_load((const uint8_t *)p + i * (t == DT_F32 ? 4 : 2), t, 0);
}

/* score[r] = q[r] . K over head_dim, lanes are the page's tokens */
INLINE void attn_scores(vf *score, const float *const *q, const void *k, enum dtype t, int head_dim, const int R)
{
    vf acc[R_MAX];
    FOR_R acc[r] = v_zero();
    for (int c = 0; c < head_dim; c++) {
        vf kc = kv_load(k, t, (size_t)c * KV_PAGE);
        FOR_R acc[r] = v_fma(v_set1(q[r][c]), kc, acc[r]);
    }
    FOR_R score[r] = acc[r];
}

/* out[r] += weight[r][i] * V[i] for the places i in [from, to), in order */
INLINE void attn_values(struct attn_part *part, const float (*weight)[KV_PAGE], const void *v, enum dtype t,
                        int dim_pad, int from, int to, const int R)
{
    for (int c = 0; c < dim_pad; c += 16) {
        vf acc[R_MAX];
        FOR_R acc[r] = v_load(part[r].out + c);
        for (int i = from; i < to; i++) {
            vf vi_c = kv_load(v, t, (size_t)i * dim_pad + c);
            FOR_R acc[r] = v_fma(v_set1(weight[r][i]), vi_c, acc[r]);
        }
        FOR_R v_store(part[r].out + c, acc[r]);
    }
}

/* Folds one page's scores into the row's running maximum and sum; leaves the weights of V. */
INLINE void attn_softmax(struct attn_part *part, float weight[KV_PAGE], vf score, uint32_t seen, int dim_pad,
                         const float *v_scale)
{
    score = v_select(m_from(seen), score, v_set1(-INFINITY));
    float max = v_hmax(score);
    if (max > part->max) {
        vf fade = v_exp(v_set1(part->max - max)); /* 0 on the row's first page */
        part->max = max;
        v_store(part->sum, v_mul(v_load(part->sum), fade));
        for (int c = 0; c < dim_pad; c += 16) v_store(part->out + c, v_mul(v_load(part->out + c), fade));
    }
    vf p = v_exp(v_sub(score, v_set1(part->max)));
    v_store(part->sum, v_add(v_load(part->sum), p));
    v_store(weight, v_scale ? v_mul(p, v_load(v_scale)) : p);
}

/* the two kernels of each type, for a run-time number of rows */
#define ATTN_TYPE(name, t)                                                                                             \
    static void attn_scores_##name(vf *score, const float *const *q, const void *k, int head_dim, int n)               \
    {                                                                                                                  \
        BLOCK_SWITCH(n, ATTN_ROWS, attn_scores(score, q, k, t, head_dim, R))                                           \
    }                                                                                                                  \
    static void attn_values_##name(struct attn_part *part, const float(*weight)[KV_PAGE], const void *v, int dim_pad,  \
                                   int from, int to, int n)                                                            \
    {                                                                                                                  \
        BLOCK_SWITCH(n, ATTN_ROWS, attn_values(part, weight, v, t, dim_pad, from, to, R))                              \
    }
ATTN_TYPE(f32, DT_F32)
ATTN_TYPE(bf16, DT_BF16)
ATTN_TYPE(f16, DT_F16)
ATTN_TYPE(i8, DT_I8)

static const struct attn_kernels {
    void (*scores)(vf *score, const float *const *q, const void *k, int head_dim, int n);
    void (*values)(struct attn_part *part, const float (*weight)[KV_PAGE], const void *v, int dim_pad, int from, int to,
                   int n);
} attn_kernels[DT_COUNT] = {[DT_F32] = {attn_scores_f32, attn_values_f32},
                            [DT_BF16] = {attn_scores_bf16, attn_values_bf16},
                            [DT_F16] = {attn_scores_f16, attn_values_f16},
                            [DT_I8] = {attn_scores_i8, attn_values_i8}};

struct attn_row {
    const float *q;  /* (head_dim) */
    int first, last; /* positions it sees */
};

/* the places [*from, *to) of a page that a row sees; empty when *from >= *to */
INLINE void attn_seen(const struct attn_row *row, int page, int *from, int *to)
{
    *from = row->first - page * KV_PAGE;
    *to = row->last + 1 - page * KV_PAGE;
    *from = *from < 0 ? 0 : *from;
    *to = *to > KV_PAGE ? KV_PAGE : *to;
}

/* one page for n rows; `page` counts within the sequence */
static void attn_page(const struct attn_block *b, const struct attn_row *rows, struct attn_part *part, int page, int n)
{
    const struct kv *kv = b->a->kv;
    const struct attn_kernels *kernels = &attn_kernels[kv->shape.t];
    const uint8_t *block = kv_block(kv, b->a->layer, b->pages[page], b->kv_head);
    const float *scales = kv->shape.t == DT_I8 ? (const float *)(block + kv->scale_at) : NULL;
    vf score[ATTN_ROWS], scale = v_set1(b->a->scale);
    float weight[ATTN_ROWS][KV_PAGE];
    const float *q[ATTN_ROWS] = {0};
    int from, to;
    bool all = true;
    for (int r = 0; r < n; r++) q[r] = rows[r].q;
    kernels->scores(score, q, block, b->a->head_dim, n);
    for (int r = 0; r < n; r++) {
        attn_seen(rows + r, page, &from, &to);
        all = all && from == 0 && to == KV_PAGE;
        if (from >= to) continue;
        vf s = scales ? v_mul(score[r], v_load(scales)) : score[r];
        uint32_t seen = (0xffffu >> (KV_PAGE - to)) & (0xffffu << from);
        attn_softmax(part + r, weight[r], v_mul(s, scale), seen, kv->dim_pad, scales ? scales + KV_PAGE : NULL);
    }
    if (all) {
        kernels->values(part, (const float(*)[KV_PAGE])weight, block + kv->v_at, kv->dim_pad, 0, KV_PAGE, n);
        return;
    }
    for (int r = 0; r < n; r++) {
        attn_seen(rows + r, page, &from, &to);
        if (from >= to) continue;
        kernels->values(part + r, (const float(*)[KV_PAGE])weight + r, block + kv->v_at, kv->dim_pad, from, to, 1);
    }
}

static void attn_split(const struct attn_block *b, int split, struct attn_part *part)
{
    struct attn_row rows[ATTN_ROWS];
    int first = INT32_MAX, last = 0, n = b->n_rows;
    for (int r = 0; r < n; r++) {
        int token = (b->row0 + r) / b->group, head = b->kv_head * b->group + (b->row0 + r) % b->group;
        int pos = b->pos0 + token, window = b->a->window;
        rows[r] = (struct attn_row){.q = mat_row(&b->a->qkv, b->token0 + token) + (size_t)head * b->a->head_dim,
                                    .first = window && pos >= window ? pos - window + 1 : 0,
                                    .last = pos};
        first = rows[r].first < first ? rows[r].first : first;
        last = pos > last ? pos : last;
        part[r].max = -INFINITY;
        memset(part[r].sum, 0, sizeof part[r].sum);
        memset(part[r].out, 0, (size_t)b->a->kv->dim_pad * sizeof(float));
    }
    int page = split * ATTN_SPLIT_PAGES, end = page + ATTN_SPLIT_PAGES;
    page = first / KV_PAGE > page ? first / KV_PAGE : page;
    end = last / KV_PAGE + 1 < end ? last / KV_PAGE + 1 : end;
    for (; page < end; page++) attn_page(b, rows, part, page, n);
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
    vf keep = v_exp(v_set1(into->max - max)), take = v_exp(v_set1(part->max - max));
    into->max = max;
    v_store(into->sum, v_fma(v_load(into->sum), keep, v_mul(v_load(part->sum), take)));
    for (int c = 0; c < dim_pad; c += 16)
        v_store(into->out + c, v_fma(v_load(into->out + c), keep, v_mul(v_load(part->out + c), take)));
}

static void attn_finish(float *out, const struct attn_part *part, int head_dim)
{
    vf inv = v_set1(1.0f / v_sum(v_load(part->sum)));
    FOR_LANES(c, head_dim) v_store_n(out + c, v_mul(v_load(part->out + c), inv), left);
}
