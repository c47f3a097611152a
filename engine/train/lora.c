#include "engine/train/lora.h"

#include "engine/base/mem.h"
#include "engine/model/lora_weights.h"
#include "engine/train/exchange.h"
#include "kernels/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t a_floats(const struct lora_module *m, const struct lora_pair *p)
{
    return (size_t)p->r * (size_t)m->k * (size_t)lora_copies(m);
}

static size_t b_floats(const struct lora_module *m, const struct lora_pair *p)
{
    return (size_t)p->r * (size_t)m->n * (size_t)lora_copies(m);
}

static void normal(float *v, size_t n, uint64_t seed, double deviation)
{
    for (size_t i = 0; i < n; i++) {
        double a = 1 - rng_uniform(seed, 2 * i), b = rng_uniform(seed, 2 * i + 1);
        v[i] = (float)(deviation * sqrt(-2 * log(a)) * cos(2 * M_PI * b));
    }
}

/* kaiming_uniform_(a = sqrt(5)) of torch: +-sqrt(6 / (1 + 5) / k).  Of the embedding table a is zero, and b normal. */
static void init_pair(const struct lora_module *m, struct lora_pair *p, uint64_t seed)
{
    if (m->gemm == GEMM_EMBEDDING) {
        normal(p->b, b_floats(m, p), seed, 1);
        return;
    }
    double bound = 1 / sqrt(m->k);
    for (size_t i = 0; i < a_floats(m, p); i++) p->a[i] = (float)((2 * rng_uniform(seed, i) - 1) * bound);
}

enum { STREAM_SCORE = 31 }; /* random stream of the seed */

/* The head of scores of method reward; other methods have no use for one. */
static int add_score(struct train_lora *l, const struct train_params *t, struct optim *o, struct err *e)
{
    struct adapter *a = l->adapter;
    size_t n = (size_t)l->c->hidden;
    if (a->score && t->method != TRAIN_REWARD)
        return err_set(e, ERR_INVALID, "from: the adapter gives scores, which only method reward trains");
    if (t->method != TRAIN_REWARD) return 0;
    if (a->targets & TARGET_HEAD)
        return err_set(e, ERR_INVALID,
                       "from: the adapter adapts the output head, which method reward replaces by a head of scores");
    if (!a->score) {
        a->score = mem_array(n, sizeof *a->score);
        normal(a->score, n, rng_at(t->seed, (uint64_t)STREAM_SCORE << 48), 0.02);
    }
    optim_group(o, "score");
    l->score = optim_add(o, n, true);
    return 0;
}

static struct adapter *make(const struct model_config *c, const struct train_params *t, struct err *e)
{
    struct adapter *a = adapter_new(c, t->targets, t->lora_r, t->lora_alpha, t->use_rslora);
    if (!a) return err_set(e, ERR_NOMEM, "no memory for an adapter of rank %d", t->lora_r), NULL;
    a->dropout = t->lora_dropout;
    int inner = 0; /* modules of the layers: the others are random streams after theirs */
    while (inner < a->n_modules && !a->module[inner].end) inner++;
    for (int i = 0; i < a->layers * a->n_modules; i++) {
        int layer = i / a->n_modules, k = i % a->n_modules;
        int stream = k < inner ? layer * inner + k : a->layers * inner + k - inner;
        if (a->pair[i].r) init_pair(&a->module[k], &a->pair[i], rng_at(t->seed, (uint64_t)stream));
    }
    return a;
}

/* The pairs of one GEMM of one layer: each b, then all a's, contiguous.  Of experts there is one pair. */
static void add_site(struct train_lora *l, int layer, int gemm, struct optim *o)
{
    const struct adapter *a = l->adapter;
    struct site *s = &l->site[layer * LORA_GEMMS + gemm];
    size_t copies = 1;
    if (gemm == GEMM_EMBEDDING || gemm == GEMM_LM_HEAD)
        optim_group(o, gemm == GEMM_EMBEDDING ? "embeddings" : "head");
    else
        optim_group_layer(o, layer);
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < a->n_modules; i++) {
            const struct lora_module *m = &a->module[i];
            int at = layer * a->n_modules + i;
            const struct lora_pair *p = &a->pair[at];
            if ((int)m->gemm != gemm || !p->r) continue;
            if (half) {
                l->b[at] = optim_add(o, b_floats(m, p), true);
                continue;
            }
            s->part[s->n_parts++] =
                (struct site_part){.at = s->r, .r = p->r, .col = m->col, .n = m->n, .scale = p->scale};
            s->r += p->r;
            s->k = m->k;
            copies = (size_t)lora_copies(m);
        }
    if (!s->r) return;
    size_t start = optim_add(o, (size_t)s->r * (size_t)s->k * copies, true);
    for (int i = 0, n = 0; i < a->n_modules; i++)
        if ((int)a->module[i].gemm == gemm && a->pair[layer * a->n_modules + i].r)
            l->a[layer * a->n_modules + i] = start + (size_t)s->part[n++].at * (size_t)s->k;
}

int train_lora_open(struct train_lora *l, const struct model_config *c, const struct train_params *t, const char *from,
                    struct optim *o, struct err *e)
{
    *l = (struct train_lora){.c = c, .adapter = from ? adapter_read(from, c, e) : make(c, t, e)};
    if (!l->adapter) return e->code;
    size_t pairs = (size_t)c->layers * (size_t)l->adapter->n_modules;
    l->site = mem_array((size_t)c->layers * LORA_GEMMS, sizeof *l->site);
    l->a = mem_array(pairs, sizeof *l->a);
    l->b = mem_array(pairs, sizeof *l->b);
    for (int layer = 0; layer < c->layers; layer++)
        for (int p = 0; p < LORA_GEMMS; p++) add_site(l, layer, p, o);
    if (l->adapter->targets & TARGET_PARAMETERS && t->lora_dropout > 0)
        return err_set(
            e, ERR_INVALID,
            "lora_dropout must be 0 for adapters of experts and routers: PEFT adapts them as parameters, which "
            "have no dropout");
    if (l->adapter->targets & TARGET_HEAD && t->lora_dropout > 0)
        return err_set(e, ERR_UNSUPPORTED, "lora_dropout must be 0 for an adapter of the output head");
    if (o->trained) return add_score(l, t, o, e);
    return err_set(e, ERR_INVALID, "targets: a %s model has none of these modules", c->family->model_type);
}

/* The embedding table's a is trained as a table of tokens, (k, r). */
static void upload_a(struct optim *o, size_t at, const struct lora_module *m, const struct lora_pair *p)
{
    if (m->gemm == GEMM_EMBEDDING)
        lora_table_upload(o->d, optim_value(o, o->p, at), m, p);
    else
        o->d->ops->upload(o->d, optim_value(o, o->p, at), p->a, a_floats(m, p) * sizeof *p->a);
}

static void upload_b(struct optim *o, size_t at, const struct lora_module *m, const struct lora_pair *p)
{
    size_t n = b_floats(m, p);
    float *b = m->by_head ? mem_array(n, sizeof *b) : NULL;
    if (b) lora_b_to_outputs(m, p->r, p->b, b);
    o->d->ops->upload(o->d, optim_value(o, o->p, at), b ? b : p->b, n * sizeof *p->b);
    free(b);
}

static void table_to_a(const float *table, const struct lora_module *m, struct lora_pair *p)
{
    size_t r = (size_t)p->r, k = (size_t)m->k;
    for (size_t t = 0; t < k; t++)
        for (size_t i = 0; i < r; i++) p->a[i * k + t] = table[t * r + i];
}

void train_lora_bind(struct train_lora *l, struct optim *o)
{
    const struct adapter *a = l->adapter;
    for (int layer = 0; layer < l->c->layers; layer++) {
        int seen[LORA_GEMMS] = {0};
        for (int i = 0; i < a->n_modules; i++) {
            const struct lora_module *m = &a->module[i];
            int at = layer * a->n_modules + i;
            const struct lora_pair *p = &a->pair[at];
            if (!p->r) continue;
            struct site *s = &l->site[layer * LORA_GEMMS + (int)m->gemm];
            struct site_part *part = &s->part[seen[m->gemm]++];
            if (part == s->part) s->a = optim_value(o, o->p, l->a[at]), s->da = optim_grad(o, l->a[at]);
            part->b = optim_value(o, o->p, l->b[at]);
            part->db = optim_grad(o, l->b[at]);
            upload_a(o, l->a[at], m, p);
            upload_b(o, l->b[at], m, p);
        }
    }
    if (a->score)
        o->d->ops->upload(o->d, optim_value(o, o->p, l->score), a->score, (size_t)l->c->hidden * sizeof *a->score);
    exchange_take_whole(o);
}

void train_lora_bind_score(const struct train_lora *l, const struct optim *o, struct train_model *m)
{
    if (!l->adapter->score) return;
    m->score = optim_value(o, o->p, l->score);
    m->dscore = optim_grad(o, l->score);
}

struct adapter *train_lora_adapter(struct train_lora *l, const float *p)
{
    struct adapter *a = l->adapter;
    for (int i = 0; i < a->layers * a->n_modules; i++) {
        const struct lora_module *m = &a->module[i % a->n_modules];
        const struct lora_pair *pair = &a->pair[i];
        if (!pair->r) continue;
        if (m->gemm == GEMM_EMBEDDING)
            table_to_a(p + l->a[i], m, &a->pair[i]);
        else
            memcpy(pair->a, p + l->a[i], a_floats(m, pair) * sizeof *p);
        lora_b_to_stored(m, pair->r, p + l->b[i], pair->b);
    }
    if (a->score) memcpy(a->score, p + l->score, (size_t)l->c->hidden * sizeof *p);
    return a;
}

int train_lora_write(struct train_lora *l, const float *p, const char *base_name, const char *dir, struct err *e)
{
    return adapter_write(train_lora_adapter(l, p), l->c, base_name, dir, e);
}

void train_lora_close(struct train_lora *l)
{
    adapter_free(l->adapter);
    free(l->site);
    free(l->a);
    free(l->b);
    *l = (struct train_lora){0};
}
