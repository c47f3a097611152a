/* The device memory of the model in training: what train_model_open allocates. */
#include "engine/base/mem.h"
#include "engine/train/model.h"

#include <stdlib.h>

enum { HEAD_BYTES = 64 << 20, HEAD_ROWS_MIN = 16 };

/* The same code counts the bytes (d NULL) and allocates them. */
struct take {
    struct train_model *m;
    bool count, failed;
    size_t bytes, largest; /* of all blocks; of the largest */
};

static void *take(struct take *t, size_t n, size_t size)
{
    size_t bytes = (n * size + 63) / 64 * 64;
    struct train_model *m = t->m;
    t->bytes += bytes;
    if (bytes > t->largest) t->largest = bytes;
    if (t->count || t->failed) return NULL;
    void *p = m->d->ops->alloc(m->d, bytes);
    t->failed = !p;
    if (!p) return NULL;
    mem_grow(&m->owned, &m->cap_owned, m->n_owned + 1, sizeof *m->owned);
    return m->owned[m->n_owned++] = p;
}

static struct mat take_mat(struct take *t, int rows, int cols)
{
    return mat_f32(take(t, (size_t)rows * (size_t)cols, sizeof(float)), rows, cols);
}

/* The maximum of what the kinds of blocks need. */
struct needs {
    bool bare, x2, post, gated, branch;
};

static struct needs needs_of(const struct train_model *m, int first, int n)
{
    struct needs all = {.branch = m->residual_dropout > 0};
    for (int l = first; l < first + n; l++) {
        const struct block *b = model_block(m->c, l);
        all.bare |= b->qk_norm;
        all.x2 |= !block_parallel(b);
        all.post |= block_norm_after(b);
        all.gated |= b->gated;
        all.branch |= block_norm_after(b) || b->residual_scale != 1 || b->norms == NORMS_PARALLEL_TWO;
    }
    return all;
}

/* layer: with recompute all layers share one set */
static void take_kept(struct take *t, int layer, struct kept *k)
{
    const struct train_model *m = t->m;
    const struct model_config *c = m->c;
    struct needs needs = needs_of(m, m->recompute ? 0 : layer, m->recompute ? c->layers : 1);
    int T = m->max_tokens, q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    k->qkv = take_mat(t, T, q + 2 * kv);
    if (needs.bare) k->bare = take_mat(t, T, q + kv);
    k->att = take_mat(t, T, q);
    k->lse = take_mat(t, T, c->heads);
    if (needs.x2) k->x2 = take_mat(t, T, c->hidden);
    if (needs.post) k->o = take_mat(t, T, c->hidden);
    if (needs.post) k->down = take_mat(t, T, c->hidden);
    if (c->inter) k->up = take_mat(t, T, needs.gated ? 2 * c->inter : c->inter);
    for (int p = 0; p < LAYER_GEMMS; p++) {
        int r = train_site(m, layer, (enum layer_gemm)p)->r;
        for (int l = 0; m->recompute && l < c->layers; l++) /* shared by all layers */
            if (train_site(m, l, (enum layer_gemm)p)->r > r) r = train_site(m, l, (enum layer_gemm)p)->r;
        if (r) k->xa[p] = take_mat(t, T, r);
    }
}

static void take_sites(struct take *t)
{
    struct train_model *m = t->m;
    int r = 0, k = 0;
    m->lowest = m->grads ? 0 : m->c->layers;
    for (int l = m->c->layers - 1; l >= 0; l--)
        for (int p = 0; p < LORA_GEMMS; p++) {
            const struct site *s = train_site(m, l, (enum layer_gemm)p);
            bool end = p == GEMM_EMBEDDING || p == GEMM_LM_HEAD;
            if (!s->r) continue;
            if (p != GEMM_LM_HEAD) m->lowest = p == GEMM_EMBEDDING ? -1 : l;
            if (p >= LAYER_GEMMS && !end) continue; /* experts.c has memory of its own */
            if (s->r > r) r = s->r;
            if (end) continue;
            if (s->k > k) k = s->k;
        }
    int embed_r = train_site(m, 0, GEMM_EMBEDDING)->r, head_r = train_site(m, 0, GEMM_LM_HEAD)->r;
    if (r) m->du = take_mat(t, m->max_tokens, r);
    if (embed_r) m->embed_xa = take_mat(t, m->max_tokens, embed_r);
    if (head_r) m->head_xa = take_mat(t, m->head_rows, head_r);
    if (k && m->dropout > 0) m->dropped = take_mat(t, m->max_tokens, k);
    if (needs_of(m, 0, m->c->layers).branch) m->branch = take_mat(t, m->max_tokens, m->c->hidden);
}

static void *take_for(void *arg, size_t n, size_t size)
{
    return take(arg, n, size);
}

static void take_all(struct take *t)
{
    struct train_model *m = t->m;
    const struct model_config *c = m->c;
    int T = m->max_tokens, q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    int ff = 2 * c->inter, attention = 2 * q + 2 * kv, ints = T + 1;
    m->head_rows = HEAD_BYTES / 4 / c->vocab < HEAD_ROWS_MIN ? HEAD_ROWS_MIN : HEAD_BYTES / 4 / c->vocab;
    if (m->head_rows > T) m->head_rows = T;
    m->n_kept = m->recompute ? 1 : c->layers;
    m->x = take(t, ((size_t)c->layers + 1) * (size_t)T * (size_t)c->hidden, sizeof(float));
    struct kept scratch;
    for (int i = 0; i < m->n_kept; i++) take_kept(t, i, t->count ? &scratch : &m->kept[i]);
    take_sites(t);
    train_experts_take(&m->experts, m->c, m->site, m->max_tokens, take_for, t);
    m->experts.half = m->half;
    m->experts.exact = m->exact.kv_type != DT_NONE;
    t->bytes += train_exact_take(&m->exact, m->c, m->d, T, train_site(m, 0, GEMM_EMBEDDING)->r, take_for, t);
    m->experts.grads = m->grads ? m->grads->layer : NULL;
    m->h = take_mat(t, T, c->hidden);
    m->dx = take_mat(t, T, c->hidden);
    m->dh = take_mat(t, T, c->hidden);
    m->area = take(t, (size_t)T * (size_t)(ff > attention ? ff : attention), sizeof(float));
    m->hx = take_mat(t, m->head_rows, c->hidden);
    m->hh = take_mat(t, m->head_rows, c->hidden);
    m->hd = take_mat(t, m->head_rows, c->hidden);
    m->logits = take_mat(t, m->head_rows, c->vocab);
    m->loss = take(t, (size_t)T, sizeof *m->loss);
    m->scale = take(t, (size_t)T, sizeof *m->scale);
    int32_t **arrays[] = {&m->hit, &m->iota, &m->id, &m->pos, &m->q_start, &m->row, &m->target, &m->some};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) *arrays[i] = take(t, (size_t)ints, sizeof(int32_t));
}

size_t train_model_bytes(const struct train_model *like, size_t *largest)
{
    struct train_model m = *like;
    struct take t = {.m = &m, .count = true};
    take_all(&t);
    *largest = t.largest;
    return t.bytes;
}

size_t train_model_scratch(const struct model_config *c, int tokens, int max_length)
{
    const double SPARE = 1.25;
    double rows = tokens, longest = max_length > 1024 ? max_length : 1024;
    int dim = (c->head_dim + 15) / 16 * 16;
    double wave = longest < rows ? longest : rows;
    double forward = rows * c->kv_heads * 2 * dim * 4, back = wave * dim * 4 * (2.0 * c->heads + 3.0 * c->kv_heads);
    return (size_t)((forward > back ? forward : back) * SPARE);
}

int train_model_open(struct train_model *m, int positions, struct err *e)
{
    struct take t = {.m = m};
    m->kept = mem_array(m->recompute ? 1 : (size_t)m->c->layers, sizeof *m->kept);
    take_all(&t);
    t.failed |= !t.failed && !train_exact_open(&m->exact, m->c, m->d, m->max_tokens);
    if (t.failed) return err_set(e, ERR_NOMEM, "no memory for the activations of %d tokens", m->max_tokens);
    size_t T = (size_t)m->max_tokens;
    m->host_loss = mem_array(T, sizeof *m->host_loss);
    m->host_hit = mem_array(T, sizeof *m->host_hit);
    for (size_t i = 0; i < T; i++) m->host_hit[i] = (int32_t)i;
    m->d->ops->upload(m->d, m->iota, m->host_hit, T * sizeof *m->iota);
    return rope_tables_open(m->c->rope, m->c->n_ropes, m->c->near_len, m->d, positions, m->rope, e);
}

int train_model_reopen(struct train_model *m, int max_tokens, int positions, struct err *e)
{
    struct train_model next = *m;
    train_model_close(m);
    next.max_tokens = max_tokens;
    next.kept = NULL;
    next.owned = NULL;
    next.n_owned = next.cap_owned = 0;
    next.host_loss = NULL;
    next.host_hit = NULL;
    next.b = NULL;
    next.experts = (struct train_experts){0};
    next.exact = (struct train_exact){.kv_type = next.exact.kv_type};
    for (int i = 0; i < ROPES_MAX; i++) next.rope[i] = (struct rope_table){0};
    *m = next;
    return train_model_open(m, positions, e);
}

void train_model_close(struct train_model *m)
{
    for (size_t i = 0; i < m->n_owned; i++) m->d->ops->free(m->d, m->owned[i]);
    rope_tables_close(m->d, m->rope);
    train_exact_close(&m->exact, m->d);
    free(m->owned);
    free(m->kept);
    free(m->host_loss);
    free(m->host_hit);
    *m = (struct train_model){0};
}
