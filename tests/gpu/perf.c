/* The forward pass of whole models, op by op on random weights, beside what the device can do: decoding at several
 * batch sizes and prefill.  Needs kernels/ alone, so that it builds on a GPU machine without the daemon's libraries.
 *
 *     perf DEVICE [--tiny] [--one] [--no-graphs] [MODEL...]
 *
 *     models: llama-3.1-8b distilgpt2; --tiny: a small one, to try the program itself; --one: only the decoding of one
 *     sequence, and of llama-3.1-8b in int4 alone, to compare with TANDEM_GPU_EARLY=0; --no-graphs: every kernel is
 * launched by itself
 *
 * Then attention as training has it, forward and backward, beside the rate of large products.
 *
 * Prints Markdown tables.  A step is what the engine does for one: embedding, layers (replayed as a graph where the
 * device can), the head, greedy sampling, and the wait for the tokens; its time is the host's, from one such wait to
 * the next, the median of all.  The ceilings are by the device's clock (kernels/ceilings.h), before and after. */
#include "kernels/ceilings.h"
#include "kernels/num.h"
#include "kernels/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct shape {
    const char *name;
    int layers, hidden, inter, heads, kv_heads, dim, vocab;
    bool gated; /* gate and up, rotary positions; else GPT-2's */
};

static const struct shape shapes[] = {
    {"llama-3.1-8b", 32, 4096, 14336, 32, 8, 128, 128256, true},
    {"distilgpt2", 6, 768, 3072, 12, 12, 64, 50257, false},
    {"tiny", 2, 128, 256, 4, 2, 32, 300, true},
};

struct layer {
    struct weight *qkv, *o, *up, *down;
};

struct model {
    struct dev *d;
    struct shape s;
    enum dtype t;
    struct layer *layer;
    struct weight *head;
    void *table;
    float *ones, *cos, *sin; /* cos, sin (max_len, dim / 2) */
    size_t weight_bytes;     /* read in a step */
    double macs;             /* of the weights, a token without the head */
    int max_len;
};

struct run {
    struct model *m;
    int T, n_seqs, len; /* rows, sequences, positions of each at the end */
    struct kv *kv;
    int32_t *ids, *pos, *slot, *q_start, *kv_len, *pages, *last;
    int pages_ld;
    float *x, *h, *y, *qkv, *att, *tmp, *act, *logits;
    struct sample_row *rows;
    struct sample_out *out;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "perf: %s\n", what);
    exit(1);
}

static void *room(struct dev *d, size_t bytes)
{
    void *p = d->ops->alloc(d, bytes);
    if (!p) die("not enough memory on the device");
    return p;
}

static void *host(size_t bytes)
{
    void *p = calloc(bytes ? bytes : 1, 1);
    if (!p) die("not enough memory");
    return p;
}

static int32_t *ints(struct dev *d, int n, int (*value)(int i, int arg), int arg)
{
    int32_t *v = host((size_t)n * sizeof *v), *p = room(d, (size_t)n * sizeof *v);
    for (int i = 0; i < n; i++) v[i] = value(i, arg);
    d->ops->upload(d, p, v, (size_t)n * sizeof *v);
    free(v);
    return p;
}

/* ---- the model ------------------------------------------------------------------------------------------------- */

/* Random bytes that are small values in every type, made once for the largest matrix. */
static const void *noise(enum dtype t, size_t bytes)
{
    static uint8_t *p;
    static size_t have;
    static enum dtype of;
    uint32_t state = 7;
    if (p && have >= bytes && of == t) return p;
    free(p);
    p = host(have = bytes);
    of = t;
    for (size_t i = 0; i + 1 < bytes; i += 2) {
        state = state * 1664525u + 1013904223u;
        uint16_t w = (uint16_t)(state >> 16);
        if (t == DT_BF16) w = (uint16_t)((w & 0x807f) | 0x3c00); /* about 0.01, of both signs */
        if (t == DT_F8) w &= 0xbfbf;                             /* no NaN */
        if (t == DT_I8 && (w & 0xff) == 0x80) w ^= 1;
        if (t == DT_I8 && w >> 8 == 0x80) w ^= 0x100;
        memcpy(p + i, &w, 2);
    }
    return p;
}

static struct weight *matrix(struct model *m, int n, int k, bool gate_up, bool per_token)
{
    int group = m->t == DT_NF4 ? 64 : m->t == DT_F8 ? 128 : m->t != DT_I4 ? 0 : k % 128 ? 32 : 128;
    int groups = group ? (k + group - 1) / group : 1;
    size_t bytes = dtype_bytes(m->t, (size_t)n * (size_t)(group ? groups * group : k));
    size_t scales = (size_t)n * (size_t)groups;
    float *scale = host(scales * sizeof *scale);
    for (size_t i = 0; i < scales; i++) {
        if (m->t == DT_I4)
            ((uint16_t *)scale)[i] = f32_to_f16(0.002f);
        else
            scale[i] = 0.0002f;
    }
    struct weight_src src = {m->t,   gate_up ? n / 2 : n, k, group, noise(m->t, bytes), m->t == DT_BF16 ? NULL : scale,
                             gate_up};
    struct weight *w = m->d->ops->weight_pack(m->d, (const struct weight_src[]){src, src}, gate_up ? 2 : 1);
    free(scale);
    if (!w) die("not enough memory for the weights");
    m->weight_bytes += m->d->ops->weight_bytes(w);
    if (per_token) m->macs += (double)n * k;
    return w;
}

static struct model model_make(struct dev *d, struct shape s, enum dtype t, int max_len)
{
    struct model m = {.d = d, .s = s, .t = t, .max_len = max_len};
    int q = (s.heads + 2 * s.kv_heads) * s.dim;
    m.layer = host((size_t)s.layers * sizeof *m.layer);
    for (int l = 0; l < s.layers; l++)
        m.layer[l] =
            (struct layer){matrix(&m, q, s.hidden, false, true), matrix(&m, s.hidden, s.heads * s.dim, false, true),
                           matrix(&m, s.gated ? 2 * s.inter : s.inter, s.hidden, s.gated, true),
                           matrix(&m, s.hidden, s.inter, false, true)};
    m.head = matrix(&m, s.vocab, s.hidden, false, false);
    size_t table = dtype_bytes(DT_BF16, (size_t)s.vocab * (size_t)s.hidden);
    m.table = room(d, table);
    d->ops->upload(d, m.table, noise(DT_BF16, table), table);
    size_t turns = (size_t)max_len * (size_t)(s.dim / 2);
    float *v = host((turns > (size_t)s.hidden ? turns : (size_t)s.hidden) * sizeof *v);
    for (int i = 0; i < s.hidden; i++) v[i] = 1;
    d->ops->upload(d, m.ones = room(d, (size_t)s.hidden * 4), v, (size_t)s.hidden * 4);
    for (size_t i = 0; i < turns; i++) v[i] = 0.7071f;
    d->ops->upload(d, m.cos = room(d, turns * 4), v, turns * 4);
    d->ops->upload(d, m.sin = room(d, turns * 4), v, turns * 4);
    free(v);
    if (d->ops->finish(d)) die(d->error.msg);
    return m;
}

static void model_free(struct model *m)
{
    struct dev *d = m->d;
    for (int l = 0; l < m->s.layers; l++) {
        struct layer *y = m->layer + l;
        d->ops->weight_free(d, y->qkv), d->ops->weight_free(d, y->o);
        d->ops->weight_free(d, y->up), d->ops->weight_free(d, y->down);
    }
    d->ops->weight_free(d, m->head);
    void *all[] = {m->table, m->ones, m->cos, m->sin};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) d->ops->free(d, all[i]);
    free(m->layer);
}

/* ---- a step ---------------------------------------------------------------------------------------------------- */

static int its_index(int i, int arg)
{
    return i * arg;
}

static int constant(int i, int arg)
{
    return arg;
}

static int some_id(int i, int vocab)
{
    return (int)((unsigned)i * 7919u % (unsigned)vocab);
}

/* n_seqs sequences at position len, one new token each; or, n_seqs 0, one sequence of len tokens. */
static struct run run_make(struct model *m, int n_seqs, int len)
{
    struct dev *d = m->d;
    struct shape s = m->s;
    bool prefill = n_seqs == 0;
    struct run r = {.m = m, .T = prefill ? len : n_seqs, .n_seqs = prefill ? 1 : n_seqs, .len = len};
    r.pages_ld = (len + KV_PAGE - 1) / KV_PAGE;
    struct kv_shape k = {s.layers, r.n_seqs * r.pages_ld, s.kv_heads, s.dim, d->ops->kv_type};
    if (!(r.kv = d->ops->kv_open(d, &k))) die("not enough memory for the cache");
    size_t T = (size_t)r.T, wide = (size_t)(s.gated ? 2 * s.inter : s.inter);
    r.ids = ints(d, r.T, some_id, s.vocab);
    r.pos = prefill ? ints(d, r.T, its_index, 1) : ints(d, r.T, constant, len - 1);
    r.slot = prefill ? ints(d, r.T, its_index, 1) : NULL;
    if (!prefill) {
        int32_t *v = host(T * sizeof *v);
        for (int i = 0; i < r.T; i++) v[i] = i * r.pages_ld * KV_PAGE + len - 1;
        d->ops->upload(d, r.slot = room(d, T * sizeof *v), v, T * sizeof *v);
        free(v);
    }
    r.q_start = ints(d, r.n_seqs + 1, its_index, prefill ? len : 1);
    r.kv_len = ints(d, r.n_seqs, constant, len);
    r.pages = ints(d, r.n_seqs * r.pages_ld, its_index, 1);
    r.last = ints(d, 1, constant, r.T - 1);
    r.x = room(d, T * (size_t)s.hidden * 4), r.h = room(d, T * (size_t)s.hidden * 4);
    r.y = room(d, T * (size_t)s.hidden * 4);
    r.qkv = room(d, T * (size_t)((s.heads + 2 * s.kv_heads) * s.dim) * 4);
    r.att = room(d, T * (size_t)(s.heads * s.dim) * 4);
    r.tmp = room(d, T * wide * 4), r.act = room(d, T * (size_t)s.inter * 4);
    r.logits = room(d, (size_t)r.n_seqs * (size_t)s.vocab * 4);
    r.rows = host((size_t)r.n_seqs * sizeof *r.rows), r.out = host((size_t)r.n_seqs * sizeof *r.out);
    for (int i = 0; i < r.n_seqs; i++)
        r.rows[i] = (struct sample_row){.top_p = 1, .typical_p = 1, .repetition = 1, .forced = -1};
    return r;
}

static void run_free(struct run *r)
{
    struct dev *d = r->m->d;
    void *all[] = {r->ids, r->pos, r->slot, r->q_start, r->kv_len, r->pages, r->last,  r->x,
                   r->h,   r->y,   r->qkv,  r->att,     r->tmp,    r->act,   r->logits};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) d->ops->free(d, all[i]);
    d->ops->kv_close(d, r->kv);
    free(r->rows), free(r->out);
}

static void layers(void *ctx)
{
    struct run *r = ctx;
    struct model *m = r->m;
    struct dev *d = m->d;
    struct shape s = m->s;
    enum norm_kind kind = s.gated ? NORM_RMS : NORM_LAYER;
    const float *bias = s.gated ? NULL : m->ones;
    struct mat x = mat_f32(r->x, r->T, s.hidden), h = mat_f32(r->h, r->T, s.hidden),
               att = mat_f32(r->att, r->T, s.heads * s.dim);
    struct mat qkv = mat_f32(r->qkv, r->T, (s.heads + 2 * s.kv_heads) * s.dim), act = mat_f32(r->act, r->T, s.inter);
    struct mat y = mat_f32(r->y, r->T, s.hidden);
    struct mat tmp = mat_f32(r->tmp, r->T, s.gated ? 2 * s.inter : s.inter);
    op_embed(d, (struct embed_args){.out = x, .table = {m->table, DT_BF16, s.vocab, s.hidden, s.hidden}, .id = r->ids});
    op_norm(d, (struct norm_args){h, x, m->ones, bias, 1e-5f, kind, m->layer[0].qkv});
    for (int l = 0; l < s.layers; l++) {
        op_linear(d, (struct linear_args){.y = qkv, .x = h, .w = m->layer[l].qkv});
        op_rope_kv(d, (struct rope_kv_args){qkv, s.heads, s.kv_heads, s.dim, s.gated ? s.dim : 0, m->cos, m->sin,
                                            r->pos, r->slot, r->kv, l});
        op_attn(d, (struct attn_args){att, qkv, s.heads, s.kv_heads, s.dim, 0, 0.1f, r->n_seqs, r->q_start, r->kv_len,
                                      r->pages, r->pages_ld, r->kv, l, r->T / r->n_seqs});
        op_linear(d, (struct linear_args){.y = y, .x = att, .w = m->layer[l].o});
        op_add_norm(d, (struct add_norm_args){h, x, y, m->ones, bias, 1e-5f, kind, m->layer[l].up});
        if (s.gated) {
            op_gate_up(d, (struct gate_up_args){act, h, m->layer[l].up, NULL, ACT_SILU, tmp});
        } else {
            op_linear(d, (struct linear_args){.y = act, .x = h, .w = m->layer[l].up});
            op_act(d, (struct act_args){act, ACT_GELU_TANH});
        }
        op_linear(d, (struct linear_args){.y = y, .x = act, .w = m->layer[l].down});
        const struct weight *next = l + 1 < s.layers ? m->layer[l + 1].qkv : NULL;
        op_add_norm(d, (struct add_norm_args){h, x, y, m->ones, bias, 1e-5f, kind, next});
    }
    if (r->T != r->n_seqs) op_rows(d, (struct rows_args){mat_f32(r->x, 1, s.hidden), h, r->last});
    struct mat in = r->T != r->n_seqs ? mat_f32(r->x, 1, s.hidden) : h;
    op_linear(d, (struct linear_args){.y = mat_f32(r->logits, r->n_seqs, s.vocab), .x = in, .w = m->head});
}

static void step(struct run *r, uint64_t key)
{
    struct dev *d = r->m->d;
    if (d->ops->replay && key)
        d->ops->replay(d, key, layers, r);
    else
        layers(r);
    op_sample(d, (struct sample_args){mat_f32(r->logits, r->n_seqs, r->m->s.vocab), r->rows, r->out});
    if (d->ops->finish(d)) die(d->error.msg);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of the steps of about `seconds`, after warming up. */
static double time_steps(struct run *r, uint64_t key, double seconds)
{
    enum { MOST = 2000 };
    static double took[MOST];
    int n = 0;
    for (int i = 0; i < 4; i++) step(r, key);
    for (double begin = now(); n < MOST && (n < 5 || now() - begin < seconds);) {
        double at = now();
        step(r, key);
        took[n++] = now() - at;
    }
    qsort(took, (size_t)n, sizeof *took, by_value);
    return took[n / 2];
}

/* ---- the table ------------------------------------------------------------------------------------------------- */

static bool graphs = true;

static void measure(struct model *m, int n_seqs, int len, const struct ceilings *c, double seconds)
{
    static uint64_t keys;
    struct shape s = m->s;
    struct run r = run_make(m, n_seqs, len);
    double took = time_steps(&r, n_seqs && graphs ? ++keys : 0, seconds);
    double per_token = 2.0 * s.layers * s.kv_heads * s.dim * 2; /* bytes of the cache */
    double kv = n_seqs ? per_token * n_seqs * len : per_token * len;
    double seen = n_seqs ? (double)n_seqs * len : (double)len * (len + 1) / 2;
    double macs = m->macs * r.T + (double)r.n_seqs * s.vocab * s.hidden + seen * s.layers * s.heads * s.dim * 2;
    double unit = m->t == DT_BF16 || m->t == DT_F8 || m->t == DT_NF4 ? c->bf16_macs_per_s : c->int8_macs_per_s;
    double gb = ((double)m->weight_bytes + kv) / took;
    printf("| %s | %s | %s | %d | %d | %.3f | %.0f | %.0f | %.2f | %.1f | %.2f |\n", s.name, dtype_name(m->t),
           n_seqs ? "decode" : "prefill", r.n_seqs, len, took * 1e3, r.T / took, gb * 1e-9,
           c->read_bytes_per_s > 0 ? gb / c->read_bytes_per_s : 0, macs / took * 1e-12,
           unit > 0 ? macs / took / unit : 0);
    if (n_seqs && !s.gated)
        printf("| %s: %.0f samples/s of 50 tokens each | | | %d | | | | | | | |\n", s.name, n_seqs / took / 50, n_seqs);
    fflush(stdout);
    run_free(&r);
}

/* ---- attention of training --------------------------------------------------------------------------------------- */

struct train_shape {
    const char *name;
    int heads, kv_heads, dim, seqs, rows; /* rows: of each sequence */
};

static const struct train_shape train_shapes[] = {{"qwen2.5-0.5b", 14, 2, 64, 16, 512},
                                                  {"distilgpt2", 12, 12, 64, 16, 512},
                                                  {"llama-3.1-8b", 32, 8, 128, 4, 2048},
                                                  {"tiny", 4, 2, 32, 2, 33}};

/* seconds of a call of `op`, the best of several rows of calls */
static double time_calls(struct dev *d, void (*op)(struct dev *, const void *), const void *args, bool tiny)
{
    int calls = tiny ? 1 : 20;
    double best = 1e30;
    for (int i = 0; i < (tiny ? 1 : 6); i++) { /* the first warms up */
        double at = now();
        for (int k = 0; k < calls; k++) op(d, args);
        if (d->ops->finish(d)) die(d->error.msg);
        double took = (now() - at) / calls;
        if ((i || tiny) && took < best) best = took;
    }
    return best;
}

static void call_seq(struct dev *d, const void *args)
{
    d->ops->attn_seq(d, args);
}

static void call_back(struct dev *d, const void *args)
{
    d->ops->attn_back(d, args);
}

/* Of a whole micro-batch: two products forward, five backward, of what a row sees. */
static void measure_training(struct dev *d, const struct train_shape *s, const struct ceilings *c, bool tiny)
{
    int T = s->seqs * s->rows, q = s->heads * s->dim, wide = (s->heads + 2 * s->kv_heads) * s->dim;
    size_t n = (size_t)T * (size_t)wide, bytes = n * sizeof(float);
    float *values = host(bytes), *qkv = room(d, bytes), *dqkv = room(d, bytes),
          *lse = room(d, (size_t)T * (size_t)s->heads * 4);
    float *out = room(d, (size_t)T * (size_t)q * 4), *dout = room(d, (size_t)T * (size_t)q * 4);
    int32_t *start = ints(d, s->seqs + 1, its_index, s->rows);
    for (size_t i = 0; i < n; i++) values[i] = (float)((int)(i * 7919 % 2003) - 1001) * 0.001f;
    d->ops->upload(d, qkv, values, bytes);
    d->ops->upload(d, dout, values, (size_t)T * (size_t)q * 4);
    struct mat mqkv = mat_f32(qkv, T, wide), mo = mat_f32(out, T, q), ml = mat_f32(lse, T, s->heads);
    struct attn_seq_args seq = {.out = mo,
                                .lse = ml,
                                .qkv = mqkv,
                                .heads = s->heads,
                                .kv_heads = s->kv_heads,
                                .head_dim = s->dim,
                                .scale = 0.125f,
                                .n_seqs = s->seqs,
                                .q_start = start};
    struct attn_back_args back = {.dqkv = mat_f32(dqkv, T, wide),
                                  .dout = mat_f32(dout, T, q),
                                  .out = mo,
                                  .lse = ml,
                                  .qkv = mqkv,
                                  .heads = s->heads,
                                  .kv_heads = s->kv_heads,
                                  .head_dim = s->dim,
                                  .scale = 0.125f,
                                  .n_seqs = s->seqs,
                                  .q_start = start};
    double forward = time_calls(d, call_seq, &seq, tiny), backward = time_calls(d, call_back, &back, tiny);
    double macs = (double)T * (s->rows + 1) / 2 * q, rate = c->bf16_macs_per_s;
    printf("| %s | %d x %d | %.3f | %.1f | %.2f | %.3f | %.1f | %.2f |\n", s->name, s->seqs, s->rows, forward * 1e3,
           2 * macs / forward * 1e-12, rate > 0 ? 2 * macs / forward / rate : 0, backward * 1e3,
           5 * macs / backward * 1e-12, rate > 0 ? 5 * macs / backward / rate : 0);
    fflush(stdout);
    void *all[] = {qkv, dqkv, lse, out, dout, start};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) d->ops->free(d, all[i]);
    free(values);
}

static void measure_trainings(struct dev *d, const struct ceilings *c, bool tiny)
{
    printf("\n| attention of training | sequences | forward ms | T multiply-adds/s | of bf16's rate | backward ms "
           "| T multiply-adds/s | of bf16's rate |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (size_t i = 0; i < sizeof train_shapes / sizeof *train_shapes; i++)
        if (tiny == !strcmp(train_shapes[i].name, "tiny")) measure_training(d, train_shapes + i, c, tiny);
}

static void show_ceilings(struct dev *d, size_t bytes, struct ceilings *c, const char *when)
{
    if (dev_ceilings(d, bytes, c)) die("no memory to measure the ceilings");
    printf("\nCeilings %s: copy %.0f GB/s (read and written); multiply-adds int8 %.1f, bf16 %.1f, f32 %.1f T/s.\n\n",
           when, c->read_bytes_per_s * 1e-9, c->int8_macs_per_s * 1e-12, c->bf16_macs_per_s * 1e-12,
           c->f32_macs_per_s * 1e-12);
}

static void measure_model(struct dev *d, struct shape s, bool tiny, bool one, const struct ceilings *c)
{
    static const enum dtype types[] = {DT_NF4, DT_I4, DT_I8, DT_F8, DT_BF16};
    int prompt = tiny ? 33 : s.gated ? 2048 : 512, len = tiny ? 17 : s.gated ? 512 : 128;
    int from = !s.gated ? 4 : one ? 1 : 0, end = s.gated && one ? 2 : 5; /* one: of the large model int4 alone */
    for (int i = from; i < end; i++) {
        struct model m = model_make(d, s, types[i], prompt);
        measure(&m, 1, len, c, tiny ? 0 : 2);
        if (!one) measure(&m, tiny ? 3 : 64, len, c, tiny ? 0 : 2);
        if (!one && !tiny) measure(&m, 256, len, c, 2);
        if (!one) measure(&m, 0, prompt, c, tiny ? 0 : 2);
        model_free(&m);
    }
}

int main(int argc, char **argv)
{
    char why[160];
    bool tiny = false, one = false, all = true;
    if (argc < 2) die("usage: perf DEVICE [--tiny] [--one] [--no-graphs] [MODEL...]");
    for (int k = 2; k < argc; k++) {
        tiny = tiny || !strcmp(argv[k], "--tiny");
        one = one || !strcmp(argv[k], "--one");
        graphs = graphs && strcmp(argv[k], "--no-graphs") != 0;
        all = all && argv[k][0] == '-';
    }
    struct dev *d = dev_open(&(struct dev_config){.name = argv[1], .bf16_x = true}, why);
    if (!d) die(why);
    struct ceilings before, after;
    size_t bytes = tiny ? 1 << 20 : CEILINGS_READ_WANTED;
    printf("Device %s %s.%s\n", d->ops->name, d->level,
           strcmp(d->ops->name, "simt") ? "" : "  It is a CPU: the figures mean nothing.");
    const char *early = getenv("TANDEM_GPU_EARLY");
    if (early && !strcmp(early, "0")) printf("Every kernel waits for the end of the one before it.\n");
    if (!graphs) printf("Without graphs.\n");
    show_ceilings(d, bytes, &before, "before");
    printf("| model | weights | phase | sequences | context | step ms | tokens/s | GB/s | of copy | T multiply-adds/s "
           "| of the type's rate |\n"
           "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        bool named = all;
        for (int k = 2; k < argc; k++) named = named || !strcmp(argv[k], shapes[i].name);
        if (named && tiny == !strcmp(shapes[i].name, "tiny")) measure_model(d, shapes[i], tiny, one, &before);
    }
    measure_trainings(d, &before, tiny);
    show_ceilings(d, bytes, &after, "after");
    dev_close(d);
    return 0;
}
