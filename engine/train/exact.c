#include "engine/train/exact.h"

#include "engine/base/mem.h"
#include "engine/model/model.h"
#include "engine/train/model.h"
#include "engine/train/train.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Pages beyond those of one sequence of all tokens: each sequence begins a page of its own. */
enum { MORE_PAGES = 64, TABLE_TIMES = 4 };

enum dtype train_exact_kv_type(const struct model *m)
{
    return m->kv_type != DT_NONE ? m->kv_type : m->d->ops->kv_type;
}

static int pages_of(int tokens)
{
    return (tokens + KV_PAGE - 1) / KV_PAGE;
}

static size_t table_ints(const struct train_exact *x)
{
    return (size_t)TABLE_TIMES * (size_t)x->pages;
}

static struct kv_shape shape_of(const struct train_exact *x, const struct model_config *c)
{
    return (struct kv_shape){1, x->pages, c->kv_heads, c->head_dim, x->kv_type};
}

size_t train_exact_take(struct train_exact *x, const struct model_config *c, struct dev *d, int tokens, int embed_r,
                        void *(*take)(void *arg, size_t n, size_t size), void *arg)
{
    if (x->kv_type == DT_NONE) return 0;
    x->pages = pages_of(tokens) + MORE_PAGES;
    size_t T = (size_t)tokens, sizes[] = {T, T, T + 1, table_ints(x), T + 2};
    int32_t **arrays[] = {&x->slot, &x->kv_len, &x->start, &x->table, &x->some};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) *arrays[i] = take(arg, sizes[i], sizeof(int32_t));
    x->embed_r = embed_r;
    if (embed_r) x->identity = take(arg, (size_t)embed_r * (size_t)embed_r, sizeof *x->identity);
    struct kv_shape shape = shape_of(x, c);
    return (size_t)x->pages * d->ops->kv_page_bytes(&shape);
}

bool train_exact_open(struct train_exact *x, const struct model_config *c, struct dev *d, int tokens)
{
    if (x->kv_type == DT_NONE) return true;
    size_t n = (size_t)tokens + 2;
    struct kv_shape shape = shape_of(x, c);
    x->host = mem_array(n > table_ints(x) ? n : table_ints(x), sizeof *x->host);
    for (int i = 0; i < x->embed_r; i++) {
        static const float one = 1;
        d->ops->upload(d, x->identity + (size_t)i * (size_t)(x->embed_r + 1), &one, sizeof one); /* the rest is zero */
    }
    x->kv = d->ops->kv_open(d, &shape);
    return x->kv != NULL;
}

void train_exact_close(struct train_exact *x, struct dev *d)
{
    if (x->kv) d->ops->kv_close(d, x->kv);
    free(x->host);
    *x = (struct train_exact){.kv_type = x->kv_type};
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* Sequences first .. first + n - 1, whose pages are in the cache at the same time: rows row .. row + rows - 1 of the
 * micro-batch.  ld: pages of the longest. */
struct sequence_group {
    int first, n, row, rows, ld;
};

/* As many sequences from `first` on as there are pages and room in the table for. */
static struct sequence_group group_from(const struct train_exact *x, const struct micro *b, int first)
{
    struct sequence_group g = {.first = first, .row = b->q_start[first]};
    for (int pages = 0; first + g.n < b->n_seqs; g.n++) {
        int own = pages_of(b->q_start[first + g.n + 1] - b->q_start[first + g.n]), ld = own > g.ld ? own : g.ld;
        bool fits = pages + own <= x->pages && (size_t)ld * (size_t)(g.n + 1) <= table_ints(x);
        if (g.n && !fits) break;
        pages += own;
        g.ld = ld;
    }
    g.rows = b->q_start[first + g.n] - g.row;
    return g;
}

static int group_rows(const struct micro *b, const struct sequence_group *g, int i)
{
    return b->q_start[g->first + i + 1] - b->q_start[g->first + i];
}

/* The pages of a sequence are neighbours, so its slots are too. */
static void send_group(struct dev *d, struct train_exact *x, const struct micro *b, const struct sequence_group *g)
{
    int32_t *host = x->host;
    size_t n = (size_t)g->n, size = sizeof *host;
    for (int i = 0, page = 0, t = 0; i < g->n; page += pages_of(group_rows(b, g, i++)))
        for (int p = 0; p < group_rows(b, g, i); p++) host[t++] = page * KV_PAGE + p;
    d->ops->upload(d, x->slot, host, (size_t)g->rows * size);
    for (int i = 0; i < g->n; i++) host[i] = group_rows(b, g, i);
    d->ops->upload(d, x->kv_len, host, n * size);
    for (int i = 0; i <= g->n; i++) host[i] = b->q_start[g->first + i] - g->row;
    d->ops->upload(d, x->start, host, (n + 1) * size);
    for (int i = 0, page = 0; i < g->n; page += pages_of(group_rows(b, g, i++)))
        for (int k = 0; k < g->ld; k++) host[i * g->ld + k] = k < pages_of(group_rows(b, g, i)) ? page + k : page;
    d->ops->upload(d, x->table, host, n * (size_t)g->ld * size);
}

static void store_keys(struct op_chunks c, const struct train_exact *x, const struct layer *l, const int32_t *pos,
                       struct mat qkv)
{
    for (int r = 0, n; r < qkv.rows; r += n) {
        scheduler_gate_pass(c.gate);
        n = scheduler_gate_rows(c.gate, WORK_MOVE, qkv.rows - r, 4.0 * qkv.cols, 0);
        struct rope_kv_args a = layer_rope_kv(l, mat_rows(qkv, r, n), pos + r, x->slot + r, x->kv);
        a.layer = 0;
        a.rounds = true;
        op_rope_kv(c.d, a);
    }
    op_watch_wrote(c.watch, OP_rope_kv, NULL, qkv, false);
}

/* What one call computes: n whole sequences of the group from `seq` on, or, with n 0, rows from .. from + rows - 1 of
 * that one. */
struct attention_part {
    int seq, n, from, rows, most;
};

static double row_cost(const struct layer *l, int len)
{
    return (double)(l->b->window && l->b->window < len ? l->b->window : len) * l->c->head_dim * l->c->heads;
}

/* The part that begins at *seq and row *from of it; moves both to where the next one begins.  Passes the gate. */
static struct attention_part next_part(struct op_chunks c, const struct layer *l, const struct micro *b,
                                       const struct sequence_group *g, int *seq, int *from)
{
    struct attention_part p = {.seq = *seq, .from = *from};
    scheduler_gate_pass(c.gate);
    double room = scheduler_gate_max_cost(c.gate, WORK_ATTN), cost = 0;
    for (; !p.from && p.seq + p.n < g->n; p.n++) {
        int n = group_rows(b, g, p.seq + p.n);
        double one = n * row_cost(l, n);
        if (cost + one > room) break;
        cost += one;
        p.rows += n;
        p.most = n > p.most ? n : p.most;
    }
    *seq += p.n;
    if (p.n) {
        scheduler_gate_cost(c.gate, WORK_ATTN, cost);
        return p;
    }
    int len = group_rows(b, g, p.seq);
    p.most = p.rows = scheduler_gate_rows(c.gate, WORK_ATTN, len - p.from, row_cost(l, len), 0);
    *from += p.rows;
    if (*from == len) *from = 0, ++*seq;
    return p;
}

/* a: of the whole group.  Rows of a sequence see the tokens before them, as when a prompt is computed in chunks. */
static void run_part(struct op_chunks c, const struct train_exact *x, const struct micro *b,
                     const struct sequence_group *g, const struct attention_part *p, struct attn_args a)
{
    int32_t *host = x->host, row = b->q_start[g->first + p->seq] - g->row + p->from;
    if (p->n != g->n) {
        int seqs = p->n ? p->n : 1;
        for (int i = 0; i <= seqs; i++) host[i] = p->n ? b->q_start[g->first + p->seq + i] - g->row - row : i * p->rows;
        host[seqs + 1] = p->from + p->rows;
        c.d->ops->upload(c.d, x->some, host, ((size_t)seqs + 2) * sizeof *host);
        a.q_start = x->some;
        a.kv_len = p->n ? x->kv_len + p->seq : x->some + seqs + 1;
        a.n_seqs = seqs;
    }
    a.out = mat_rows(a.out, row, p->rows);
    a.qkv = mat_rows(a.qkv, row, p->rows);
    a.lse = mat_rows(a.lse, row, p->rows);
    a.pages = x->table + (size_t)p->seq * (size_t)g->ld;
    a.most_rows = p->most;
    op_attn(c.d, a);
}

void train_exact_begin(struct train_exact *x)
{
    x->at = NULL;
}

void train_exact_attention(struct op_chunks c, struct train_exact *x, const struct layer *l, const struct micro *b,
                           const int32_t *pos, struct mat qkv, struct mat out, struct mat lse)
{
    struct sequence_group g;
    for (int first = 0; first < b->n_seqs; first += g.n) {
        g = group_from(x, b, first);
        scheduler_gate_pass(c.gate);
        if (x->at != b || x->first != first) send_group(c.d, x, b, &g);
        x->at = b;
        x->first = first;
        store_keys(c, x, l, pos + g.row, mat_rows(qkv, g.row, g.rows));
        struct attn_args a = layer_attn(l);
        a.out = mat_rows(out, g.row, g.rows);
        a.qkv = mat_rows(qkv, g.row, g.rows);
        a.lse = mat_rows(lse, g.row, g.rows);
        a.n_seqs = g.n;
        a.q_start = x->start;
        a.kv_len = x->kv_len;
        a.pages_ld = g.ld;
        a.kv = x->kv;
        a.layer = 0;
        for (int seq = 0, from = 0; seq < g.n;) {
            struct attention_part p = next_part(c, l, b, &g, &seq, &from);
            run_part(c, x, b, &g, &p, a);
        }
    }
    op_watch_wrote(c.watch, OP_attn, NULL, out, false);
}

/* ---- counting ---------------------------------------------------------------------------------------------------- */

static atomic_ullong compared, differing;

void train_exact_count(const struct micro *b, const float *loss)
{
    unsigned long long off = 0;
    if (!b->n_sampled) return;
    for (int i = 0; i < b->n_targets; i++) {
        float trained = -loss[i];
        off += !isnan(b->sampled[i]) && trained != b->sampled[i];
    }
    atomic_fetch_add(&compared, (unsigned long long)b->n_sampled);
    atomic_fetch_add(&differing, off);
}

struct train_sampled train_sampled(void)
{
    return (struct train_sampled){atomic_load(&compared), atomic_load(&differing)};
}

/* ---- adapters ---------------------------------------------------------------------------------------------------- */

/* y += the parts' outputs for x */
static void add_parts(struct op_chunks c, const struct lora_part *part, int n_parts, double cost, struct mat y,
                      struct mat x)
{
    for (int row = 0, n; row < x.rows; row += n) {
        scheduler_gate_pass(c.gate);
        n = scheduler_gate_rows(c.gate, WORK_GEMM, x.rows - row, cost, 0);
        struct lora_group group = {0, n, n_parts, part};
        op_lora(c.d, (struct lora_args){mat_rows(y, row, n), mat_rows(x, row, n), &group, 1});
    }
    op_watch_wrote(c.watch, OP_lora, part->b, y, false);
}

void train_exact_embed(struct op_chunks c, const struct train_exact *x, const struct site *s, struct mat y,
                       struct mat xa)
{
    const struct site_part *t = s->part;
    struct lora_part part = {.a = x->identity, .b = t->b, .r = t->r, .n = t->n, .scale = t->scale};
    add_parts(c, &part, 1, (double)t->r * (t->r + t->n), y, xa);
}

void train_exact_adapt(struct op_chunks c, const struct site *s, int expert, struct mat y, struct mat x)
{
    struct lora_part part[SITE_PARTS] = {0}; /* a site has at least one */
    size_t e = (size_t)expert, r = (size_t)s->r, k = (size_t)s->k;
    for (int i = 0; i < s->n_parts; i++) {
        const struct site_part *t = &s->part[i];
        part[i] = (struct lora_part){.a = s->a + e * r * k + (size_t)t->at * k,
                                     .b = t->b + e * (size_t)t->n * (size_t)t->r,
                                     .r = t->r,
                                     .col = t->col,
                                     .n = t->n,
                                     .scale = t->scale};
    }
    add_parts(c, part, s->n_parts, (double)s->r * (s->k + y.cols), y, x);
}
