/* Gradients do not depend on how they are computed: on threads, on what is recomputed, on how the gate cuts the ops
 * (bit for bit), or on which rows share a micro-batch (to 1e-5).  And all of it for layers as no family here has them:
 * norms after the branches, windows, two rope tables, softcaps, sinks and scales. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/model/model.h"
#include "engine/train/full.h"
#include "engine/train/lora.h"
#include "engine/train/model.h"
#include "engine/train/optim.h"
#include "engine/train/params.h"
#include "engine/train/rows.h"
#include "tests/model/odd_family.h"
#include "tests/train/rows.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *fixtures;

/* ---- the gradient of a whole set of rows ------------------------------------------------------------------------- */

struct way {
    const char *device;
    int threads;
    bool full, recompute, half;
    bool apart;          /* each row a micro-batch of its own */
    bool moved_b;        /* b is not zero */
    unsigned targets;    /* 0: all */
    double dropout;      /* full: of the residual stream */
    enum dtype quantize; /* the base's weights */
    int odd;             /* not 0: layers that no family has, in one of two orders; see make_odd */
    enum dtype exact;    /* not DT_NONE: the forward pass is serving's, with a cache of this type */
    bool served;         /* the loss is compared with that by serving's forward pass */
    struct scheduler_gate *gate;
    const float *along; /* the parameters are moved by `by` times this; NULL: not */
    double by;
};

struct gradient {
    size_t n;
    float *g; /* owned */
    double loss;
    size_t a, da_zero; /* floats of lora a's; of their gradients that are zero */
    size_t bytes;
};

/* A copy of the device's, to be freed. */
static float *values_of(struct dev *d, const float *device, size_t n)
{
    float *host = mem_array(n, sizeof *host);
    d->ops->download(d, host, device, n * sizeof *host);
    return host;
}

/* ---- layers that no family has ----------------------------------------------------------------------------------- */

struct odd {
    float *post; /* (4, hidden) weights of norms after branches, and their biases */
};

/* Norms after both branches, and before them in one kind of layer; a window and a rope table of its own in the other;
 * softcaps, sinks and scales, far from neutral.  Parallel layers keep their norms. */
static struct odd make_odd(struct model *m, int order)
{
    struct model_config *c = &m->c;
    bool parallel = block_parallel(&c->block[0]), rotates = c->rope[0].rot > 0;
    size_t C = (size_t)c->hidden;
    for (int k = 0; k < 2; k++) {
        struct block *b = &c->block[k];
        if (!parallel) b->norms = k ? NORMS_AFTER : NORMS_BOTH;
        b->residual_scale = k ? 0.75f : 1;
        b->softcap = k ? 1.5f : 0;
        b->scale *= 1.25f;
        b->window = k ? 7 : 0;
        b->rope = k && rotates;
    }
    if (rotates) {
        c->rope[1] = c->rope[0];
        c->rope[1].theta = 50;
        c->n_ropes = 2;
    }
    for (int l = 0; l < c->layers; l++) c->kind[l] = (uint8_t)((l + order) % 2);
    c->embed_scale = 3;
    c->logit_scale = 1.5f;
    c->logit_softcap = 2;
    struct odd o = {m->d->ops->alloc(m->d, 4 * C * sizeof(float))};
    float *host = mem_array(4 * C, sizeof *host);
    for (size_t i = 0; i < 4 * C; i++)
        host[i] = i < 2 * C ? 0.6f + 0.1f * (float)(i % 9) : 0.05f * (float)(i % 5) - 0.1f;
    m->d->ops->upload(m->d, o.post, host, 4 * C * sizeof *host);
    free(host);
    return o;
}

/* Lends the weights to layers that have none of their own, or takes them back. */
static void use_odd(const struct odd *o, const struct model_config *c, struct weights *w, bool lend)
{
    size_t C = (size_t)c->hidden;
    for (int l = 0; o->post && l < c->layers; l++) {
        struct layer_weights *lw = &w->layer[l];
        bool bias = c->norm == NORM_LAYER;
        if (lw->post1_w && lw->post1_w != o->post) continue;
        lw->sinks = lend ? o->post : NULL; /* (H), of the same values */
        lw->post1_w = lend ? o->post : NULL;
        lw->post2_w = lend ? o->post + C : NULL;
        lw->post1_b = lend && bias ? o->post + 2 * C : NULL;
        lw->post2_b = lend && bias ? o->post + 3 * C : NULL;
    }
}

enum { SERVED_PAGES = 4 }; /* of a sequence */

/* What serving needs for micro-batches of so many tokens. */
static void reserve_served(struct model *m, int max_tokens)
{
    struct err e = {0};
    struct model_reserve r = {
        .pages = 64 * SERVED_PAGES, .max_len = 64, .max_tokens = max_tokens, .max_rows = max_tokens, .kv_type = DT_F32};
    assert_int_equal(model_reserve(m, &r, &e), 0);
}

/* -log p of the micro-batch's targets by serving's forward pass.  On a device whose memory is the host's. */
static double served_loss(struct model *m, const struct micro *b)
{
    enum { LD = SERVED_PAGES };
    int32_t slot[256], kv_len[64], pages[64 * LD], start[64];
    int n_pages = 0;
    assert_true(b->n_tokens <= 256 && b->n_seqs <= 63);
    for (int s = 0; s < b->n_seqs; s++) {
        start[s] = b->q_start[s];
        kv_len[s] = b->q_start[s + 1] - b->q_start[s];
        assert_true(kv_len[s] <= LD * KV_PAGE);
        for (int i = 0; i < LD; i++) pages[s * LD + i] = n_pages + i;
        for (int i = 0; i < kv_len[s]; i++) slot[start[s] + i] = (n_pages + i / KV_PAGE) * KV_PAGE + i % KV_PAGE;
        n_pages += LD;
    }
    model_forward(m, &(struct step_batch){.n_tokens = b->n_tokens,
                                          .n_seqs = b->n_seqs,
                                          .n_rows = b->n_targets,
                                          .pages_ld = LD,
                                          .id = b->id,
                                          .pos = b->pos,
                                          .slot = slot,
                                          .q_start = b->q_start,
                                          .kv_len = kv_len,
                                          .pages = pages,
                                          .row = b->row});
    if (m->d->ops->finish(m->d)) fail_msg("%s: %s", m->d->error.op, m->d->error.msg);
    double sum = 0;
    for (int t = 0; t < b->n_targets; t++) {
        const float *z = (const float *)m->logits.p + (size_t)t * (size_t)m->c.vocab;
        double most = -INFINITY, all = 0;
        for (int v = 0; v < m->c.vocab; v++) most = fmax(most, (double)z[v]);
        for (int v = 0; v < m->c.vocab; v++) all += exp((double)z[v] - most);
        sum += log(fmax(all, 1e-300)) + most - (double)z[b->target[t]];
    }
    return sum;
}

/* Moves the parameters as the way says. */
static void move(struct optim *o, const struct way *w)
{
    float *p = values_of(o->d, o->p, o->n);
    for (size_t i = 0; w->moved_b && !w->full && i < o->n; i++)
        if (p[i] == 0) p[i] = 0.01f * (float)((int)(i % 7) - 3);
    for (size_t i = 0; w->along && i < o->n; i++) p[i] += (float)(w->by * (double)w->along[i]);
    o->d->ops->upload(o->d, o->p, p, o->n * sizeof *p);
    free(p);
}

static struct gradient gradient_of(const char *name, const struct dataset *data, const struct way *w)
{
    struct err e = {0};
    struct model m;
    char *dir = name[0] == '/' ? mem_strdup(name) : file_join(fixtures, name);
    struct quantize_how how = {.type = w->quantize};
    assert_int_equal(model_load(&m, dir, w->device ? w->device : "cpu", w->threads ? w->threads : 1, &how, false, &e),
                     0);
    free(dir);
    m.d->bf16_x = w->half;
    struct odd odd = {0};
    if (w->odd) odd = make_odd(&m, w->odd);
    m.own = m.c;
    use_odd(&odd, &m.c, &m.w, true);
    struct train_params p;
    train_params_default(&p, w->full ? TRAIN_FULL : TRAIN_LORA);
    p.f32 = !w->half;
    p.max_length = 64;
    p.batch_tokens = 4096;
    p.micro_tokens = w->apart ? 1 : 4096;
    p.lora_r = 3;
    if (w->targets) p.targets = w->targets;
    struct optim o;
    struct train_lora lora = {0};
    struct train_full full = {0};
    optim_init(&o, m.d, w->gate);
    if (w->full) {
        assert_int_equal(train_full_open(&full, &m, &p, &o, &e), 0);
    } else {
        assert_int_equal(train_lora_open(&lora, &m.c, &p, NULL, &o, &e), 0);
    }
    assert_int_equal(optim_alloc(&o, false, &e), 0);
    if (w->full) {
        assert_int_equal(train_full_bind(&full, &p, &o, &e), 0);
    } else {
        train_lora_bind(&lora, &o);
    }
    move(&o, w);
    if (w->along && w->full) train_full_use(&full, &o, o.p);

    if (w->full) use_odd(&odd, &m.c, &full.w, true);

    struct train_rows rows = {0}, none = {0};
    struct train_job job = {.data = data};
    uint64_t left_out;
    struct train_params q = p;
    q.micro_tokens = p.micro_tokens;
    assert_int_equal(train_rows_open(&rows, &none, &job, &q, m.c.vocab, -1, &left_out, &e), 0);
    struct train_model t = {.c = &m.c,
                            .w = w->full ? &full.w : &m.w,
                            .d = m.d,
                            .gate = w->gate,
                            .site = w->full ? NULL : lora.site,
                            .grads = w->full ? &full.g : NULL,
                            .dropout = w->full ? 0 : (float)w->dropout,
                            .residual_dropout = w->full ? (float)w->dropout : 0,
                            .dropout_seed = 5,
                            .half = w->half,
                            .recompute = w->recompute,
                            .exact = {.kv_type = w->exact},
                            .max_tokens = microbatches_micro_max(rows.batches)};
    size_t largest;
    struct gradient out = {.n = o.n, .bytes = train_model_bytes(&t, &largest)};
    size_t inputs = ((size_t)m.c.layers + 1) * (size_t)t.max_tokens * (size_t)m.c.hidden * sizeof(float);
    assert_true(largest >= inputs && largest < out.bytes);
    assert_int_equal(train_model_open(&t, 64, &e), 0);
    struct microbatches_step s = train_rows_step(&rows, 0);
    assert_int_equal(s.n_rows, rows.n);
    double targets = (double)train_rows_targets(&rows, &s);
    struct micro micro;
    micro_open(&micro, t.max_tokens, m.c.near_len);
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < s.n_micro; i++) {
        micro_fill(&micro, &rows, &s, i, i + 1, tokens);
        if (w->served && i == 0) reserve_served(&m, t.max_tokens);
        double loss = train_model_run(&t, &micro, true, (float)(1 / targets)).sum, other;
        if (w->served && !(fabs(loss - (other = served_loss(&m, &micro))) <= 1e-5 * loss))
            fail_msg("%s: the loss is %.9g in training, %.9g in serving", name, loss, other);
        out.loss += loss / targets;
        tokens += (uint64_t)micro.n_tokens;
    }
    if (m.d->error.op) fail_msg("%s: %s: %s", name, m.d->error.op, m.d->error.msg);
    out.g = values_of(m.d, o.g, o.n);
    for (int i = 0; !w->full && i < m.c.layers * LORA_GEMMS; i++)
        for (size_t k = 0; k < (size_t)lora.site[i].r * (size_t)lora.site[i].k; k++) {
            out.a++;
            out.da_zero += out.g[(size_t)(lora.site[i].da - o.g) + k] == 0;
        }
    micro_close(&micro);
    train_model_close(&t);
    train_rows_close(&rows);
    train_rows_close(&none);
    train_lora_close(&lora);
    if (w->full) use_odd(&odd, &m.c, &full.w, false);
    train_full_close(&full);
    optim_free(&o);
    use_odd(&odd, &m.c, &m.w, false);
    if (odd.post) m.d->ops->free(m.d, odd.post);
    model_close(&m);
    return out;
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

/* Largest difference, of the largest value. */
static double difference(const struct gradient *a, const struct gradient *b)
{
    double most = 0, size = 0;
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i++) {
        most = fmax(most, fabs((double)a->g[i] - (double)b->g[i]));
        size = fmax(size, fabs((double)a->g[i]));
        if (isnan(a->g[i]) || isnan(b->g[i])) return NAN;
    }
    return most / size;
}

static uint32_t bits_of(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static void same_bits(const char *name, const char *what, const struct gradient *a, const struct gradient *b)
{
    assert_int_equal(a->n, b->n);
    size_t off = 0;
    for (size_t i = 0; i < a->n; i++) off += bits_of(a->g[i]) != bits_of(b->g[i]);
    if (off || a->loss != b->loss)
        fail_msg("%s: %s: %zu of %zu gradients differ, by %g; losses %.17g and %.17g", name, what, off, a->n,
                 difference(a, b), a->loss, b->loss);
}

static char odd_dir[] = "/tmp/train_odd.XXXXXX"; /* the model of tests/model/odd_family.h */
static const char *const models[] = {"llama-gqa", "mistral", "qwen2",     "qwen3",   "gpt2",  "phi",
                                     odd_dir,     "gemma3",  "phi4-mini", "granite", "olmo2", "gpt-neox"};
enum { N_MODELS = sizeof models / sizeof *models };

static void compare_model(const char *name, uint64_t seed, const struct way *a, const struct way *b, const char *what,
                          double tolerance)
{
    struct dataset *data = rows_make(9, 288, seed);
    struct gradient ga = gradient_of(name, data, a), gb = gradient_of(name, data, b);
    if (tolerance == 0)
        same_bits(name, what, &ga, &gb);
    else if (!(difference(&ga, &gb) <= tolerance) || !(fabs(ga.loss - gb.loss) <= 1e-5 * ga.loss))
        fail_msg("%s: %s: gradients are %g apart; losses %g and %g", name, what, difference(&ga, &gb), ga.loss,
                 gb.loss);
    free(ga.g);
    free(gb.g);
    free(data);
}

static void compare(const struct way *a, const struct way *b, const char *what, double tolerance)
{
    for (int i = 0; i < N_MODELS; i++)
        for (int full = 0; full < 2; full++) {
            struct way wa = *a, wb = *b;
            wa.full = wb.full = full;
            compare_model(models[i], 1 + (uint64_t)i, &wa, &wb, what, tolerance);
        }
}

/* ---- the cases --------------------------------------------------------------------------------------------------- */

static void test_b_zero_means_da_zero(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        struct dataset *data = rows_make(5, 288, 9);
        struct gradient g = gradient_of(models[i], data, &(struct way){.dropout = 0.1});
        assert_true(g.a > 0);
        assert_int_equal(g.da_zero, g.a);
        size_t set = 0;
        for (size_t k = 0; k < g.n; k++) set += g.g[k] != 0;
        assert_true(set > 0);
        free(g.g);
        g = gradient_of(models[i], data, &(struct way){.moved_b = true});
        assert_true(g.da_zero < g.a / 2);
        free(g.g);
        free(data);
    }
}

static void test_recomputed(void **state)
{
    (void)state;
    compare(&(struct way){.moved_b = true}, &(struct way){.moved_b = true, .recompute = true}, "recomputed", 0);
    compare(&(struct way){.moved_b = true, .dropout = 0.3},
            &(struct way){.moved_b = true, .dropout = 0.3, .recompute = true}, "recomputed with dropout", 0);
    for (int odd = 1; odd <= 2; odd++)
        compare(&(struct way){.moved_b = true, .dropout = 0.3, .odd = odd},
                &(struct way){.moved_b = true, .dropout = 0.3, .odd = odd, .recompute = true}, "recomputed, odd", 0);
}

static void test_as_served(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++)
        for (int odd = 0; odd <= 2; odd++)
            for (int full = 0; full < 2; full++) {
                struct dataset *data = rows_make(5, 288, 6);
                struct gradient g =
                    gradient_of(models[i], data, &(struct way){.odd = odd, .served = true, .full = full});
                free(g.g);
                free(data);
            }
}

static void test_threads(void **state)
{
    (void)state;
    compare(&(struct way){.moved_b = true}, &(struct way){.moved_b = true, .threads = 2}, "two threads", 0);
    compare(&(struct way){.half = true, .moved_b = true}, &(struct way){.half = true, .moved_b = true, .threads = 3},
            "three threads, bf16", 0);
    compare(&(struct way){.half = true, .moved_b = true, .exact = DT_F16},
            &(struct way){.half = true, .moved_b = true, .exact = DT_F16, .threads = 3}, "three threads, exact", 0);
}

static void test_packed(void **state)
{
    (void)state;
    compare(&(struct way){.moved_b = true}, &(struct way){.moved_b = true, .apart = true}, "rows apart", 1e-5);
}

static void test_devices(void **state)
{
    (void)state;
    compare(&(struct way){.moved_b = true, .device = "ref"}, &(struct way){.moved_b = true}, "ref and cpu", 1e-4);
    compare(&(struct way){.moved_b = true, .odd = 1, .device = "ref"}, &(struct way){.moved_b = true, .odd = 1},
            "ref and cpu, odd", 1e-4);
}

/* The device simt has the memory of none: what reads or writes the device's here would be wrong there. */
static void test_simt(void **state)
{
    (void)state;
    char why[160];
#ifdef TANDEM_SANITIZED /* minutes; the op table on simt runs there */
    skip();
#endif
    struct dev *d = dev_open(&(struct dev_config){.name = "simt"}, why);
    if (!d) {
        print_message("skipped: %s\n", why);
        skip();
    }
    dev_close(d);
    compare(&(struct way){.moved_b = true, .device = "simt"}, &(struct way){.moved_b = true}, "simt and cpu", 1e-4);
    compare(&(struct way){.moved_b = true, .odd = 1, .device = "simt"}, &(struct way){.moved_b = true, .odd = 1},
            "simt and cpu, odd", 1e-4);
}

/* Moved a little along the gradient, the loss changes by the gradient's square times that: what is computed is the
 * gradient of the loss that is computed.  k: for the message */
static void follows_gradient(const char *name, struct way w, size_t k)
{
    struct dataset *data = rows_make(4, 288, 7);
    w.device = "ref";
    struct gradient g = gradient_of(name, data, &w);
    double square = 0;
    for (size_t j = 0; j < g.n; j++) square += (double)g.g[j] * (double)g.g[j];
    w.along = g.g;
    w.by = 1e-3 / square; /* the loss changes by 0.001 each way */
    struct gradient up = gradient_of(name, data, &w);
    w.by = -w.by;
    struct gradient down = gradient_of(name, data, &w);
    double change = (up.loss - down.loss) / 2e-3;
    if (!(fabs(change - 1) < 5e-3))
        fail_msg("%s, way %zu: the loss changes by %g of what the gradient says", name, k, change);
    free(g.g);
    free(up.g);
    free(down.g);
    free(data);
}

static void test_differences(void **state)
{
    (void)state;
    static const struct way ways[] = {
        {.moved_b = true},
        {.moved_b = true, .dropout = 0.3},
        {.full = true},
        {.full = true, .dropout = 0.3},
        {.moved_b = true, .targets = TARGET_UP | TARGET_C_FC | TARGET_FC1 | TARGET_GATE_UP_PROJ | TARGET_DENSE_H_TO_4H},
        {.moved_b = true, .odd = 1},
        {.moved_b = true, .odd = 2},
        {.full = true, .odd = 1},
        {.full = true, .odd = 2, .dropout = 0.3}};
    for (int i = 0; i < N_MODELS; i++)
        for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) follows_gradient(models[i], ways[k], k);
}

/* All weights of models with experts: alone and below a shared expert, with weights that are normalised or not, beside
 * dense layers. */
static void test_experts(void **state)
{
    (void)state;
    static const char *const names[] = {"mixtral", "qwen2-moe", "qwen3-moe", "olmoe"};
    const struct way plain = {.full = true, .served = true}, half = {.full = true, .half = true, .dropout = 0.2};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct way threads = plain, again = half, apart = plain, ref = plain;
        threads.threads = 3;
        again.recompute = true;
        apart.apart = true;
        ref.device = "ref";
        compare_model(names[i], 11, &plain, &threads, "three threads", 0);
        compare_model(names[i], 11, &half, &again, "recomputed, bf16", 0);
        compare_model(names[i], 11, &plain, &apart, "rows apart", 1e-5);
        compare_model(names[i], 11, &plain, &ref, "ref and cpu", 1e-4);
        follows_gradient(names[i], (struct way){.full = true}, 0);
    }
}

/* Adapters of the embedding table and the head: beside others and alone; tied and not; with scaled embeddings. */
static void test_ends(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        unsigned targets;
    } cases[] = {{"llama-gqa", TARGET_ENDS | TARGET_ALL},    {"llama-gqa", TARGET_HEAD}, {"gpt2", TARGET_ENDS},
                 {"gemma3", TARGET_EMBEDDING | TARGET_DOWN}, {"granite", TARGET_ENDS},   {"gpt-neox", TARGET_ENDS}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *name = cases[i].model;
        const struct way w = {.moved_b = true, .targets = cases[i].targets};
        struct way again = w, threads = w, apart = w, ref = w;
        again.recompute = true;
        threads.threads = 3;
        apart.apart = true;
        ref.device = "ref";
        compare_model(name, 13, &w, &again, "ends, recomputed", 0);
        compare_model(name, 13, &w, &threads, "ends, three threads", 0);
        compare_model(name, 13, &w, &apart, "ends, rows apart", 1e-5);
        compare_model(name, 13, &w, &ref, "ends, ref and cpu", 1e-4);
        follows_gradient(name, w, i);
    }
}

/* Only some products are trained, so the way back through the lowest layer ends early. */
static void test_few_targets(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        unsigned targets;
    } cases[] = {{"llama-gqa", TARGET_DOWN},
                 {"llama-gqa", TARGET_UP | TARGET_GATE},
                 {"llama-gqa", TARGET_O},
                 {"llama-gqa", TARGET_Q},
                 {"llama-gqa", TARGET_K | TARGET_V},
                 {"gpt-neox", TARGET_DENSE_4H_TO_H},
                 {"gpt-neox", TARGET_DENSE_H_TO_4H},
                 {"gpt-neox", TARGET_DENSE},
                 {"gpt-neox", TARGET_QUERY_KEY_VALUE},
                 {"gpt-neox", TARGET_QUERY_KEY_VALUE | TARGET_DENSE_H_TO_4H},
                 {"phi", TARGET_FC1},
                 {"olmo2", TARGET_O}};
    struct dataset *data = rows_make(5, 288, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *name = cases[i].model;
        struct way w = {.moved_b = true, .targets = cases[i].targets}, r = w, ref = w;
        r.recompute = true;
        ref.device = "ref";
        struct gradient a = gradient_of(name, data, &w), b = gradient_of(name, data, &r),
                        c = gradient_of(name, data, &ref);
        same_bits(name, "few targets, recomputed", &a, &b);
        if (!(difference(&a, &c) < 1e-4))
            fail_msg("%s, targets %u: ref and cpu differ by %g", name, cases[i].targets, difference(&a, &c));
        free(a.g);
        free(b.g);
        free(c.g);
    }
    free(data);
}

/* The gradient through a quantised base points about where that through the floats does. */
static void test_quantised_bases(void **state)
{
    (void)state;
    static const enum dtype types[] = {DT_I8, DT_I4};
    struct dataset *data = rows_make(5, 288, 4);
    struct gradient exact = gradient_of("llama-f16", data, &(struct way){.moved_b = true});
    static const double near[] = {0.1, 0.7};
    for (int i = 0; i < 2; i++) {
        struct gradient g = gradient_of("llama-f16", data, &(struct way){.moved_b = true, .quantize = types[i]});
        double dot = 0, aa = 0, bb = 0;
        for (size_t k = 0; k < g.n; k++) {
            dot += (double)g.g[k] * (double)exact.g[k];
            aa += (double)g.g[k] * (double)g.g[k];
            bb += (double)exact.g[k] * (double)exact.g[k];
        }
        if (!(1 - dot / sqrt(aa * bb) < near[i]))
            fail_msg("%s: the gradient's cosine to that of floats is %g", dtype_name(types[i]), dot / sqrt(aa * bb));
        free(g.g);
    }
    free(exact.g);
    free(data);
}

static atomic_bool give;

static void *giver(void *gate)
{
    while (atomic_load(&give)) scheduler_gate_grant(gate, 1000, NULL, NULL);
    scheduler_gate_open(gate);
    return NULL;
}

static void test_gate(void **state)
{
    (void)state;
    static const char *const names[] = {"llama-gqa", "llama-gqa", "llama-gqa", "llama-gqa", "tinystories-656k",
                                        "gpt2",      "qwen2-moe", "qwen2-moe", "mistral",   "qwen2-moe"};
    struct dataset *data = rows_make(5, 288, 3);
    /* from the third on whatever can be cut is, into rows, outputs, sequences, heads and experts */
    for (int i = 0; i < 10; i++) {
        const char *name = names[i];
        struct way w = {.moved_b = true, .full = i % 2, .dropout = i == 2 ? 0.1 : 0};
        if (i == 6 || i == 9) w.targets = TARGET_ALL | TARGET_PARAMETERS;
        if (i >= 8) w.full = false, w.exact = DT_BF16;
        struct gradient a = gradient_of(name, data, &w);
        pthread_t thread;
        w.gate = scheduler_gate_new(NULL, NULL, NULL);
        if (i >= 2) scheduler_gate_finest(w.gate, 0);
        atomic_store(&give, true);
        pthread_create(&thread, NULL, giver, w.gate);
        struct gradient b = gradient_of(name, data, &w);
        atomic_store(&give, false);
        scheduler_gate_leave(w.gate);
        pthread_join(thread, NULL);
        scheduler_gate_free(w.gate);
        same_bits(name, i < 2 ? "in turns" : "cut as fine as can be", &a, &b);
        free(a.g);
        free(b.g);
    }
    free(data);
}

/* 1 less the cosine of the angle between them. */
static double turned(const struct gradient *a, const struct gradient *b)
{
    double dot = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < a->n; i++) {
        dot += (double)a->g[i] * (double)b->g[i];
        aa += (double)a->g[i] * (double)a->g[i];
        bb += (double)b->g[i] * (double)b->g[i];
    }
    return 1 - dot / sqrt(aa * bb);
}

/* The gradients point about the same way. */
static void near_model(const char *name, const struct way *a, const struct way *b, double near)
{
    struct dataset *data = rows_make(9, 288, 21);
    struct gradient ga = gradient_of(name, data, a), gb = gradient_of(name, data, b);
    if (!(turned(&ga, &gb) <= near) || !(fabs(ga.loss - gb.loss) <= 1e-3 * ga.loss))
        fail_msg("%s, odd %d, a cache of %s: the gradients' cosine is 1 - %g; losses %g and %g", name, a->odd,
                 dtype_name(b->exact), turned(&ga, &gb), ga.loss, gb.loss);
    free(ga.g);
    free(gb.g);
    free(data);
}

/* In serving's forward pass the gradient is the ordinary one where nothing is rounded, about that where the cache is,
 * and that of the loss which is computed. */
static void test_exact(void **state)
{
    (void)state;
    static const enum dtype types[] = {DT_F32, DT_F16, DT_BF16, DT_I8};
    static const double near[] = {1e-9, 1e-3, 0.05, 0.05};
    for (int i = 0; i < N_MODELS; i++)
        for (int odd = 0; odd <= 2; odd++) {
            struct way w = {.moved_b = true, .odd = odd}, exact = w, again;
            for (int k = 0; k < (odd ? 1 : 4); k++) { /* what odd layers make of a rounded cache says little */
                exact.exact = types[k];
                again = exact;
                again.recompute = true;
                near_model(models[i], &w, &exact, near[k]);
                compare_model(models[i], 21, &exact, &again, "exact, recomputed", 0);
            }
            exact.exact = DT_F32;
            exact.full = again.full = true;
            follows_gradient(models[i], exact, (size_t)odd);
            exact.full = false;
            follows_gradient(models[i], exact, (size_t)odd);
        }
}

static void test_memory(void **state)
{
    (void)state;
    struct dataset *data = rows_make(9, 288, 3);
    struct gradient kept = gradient_of("qwen2", data, &(struct way){0}),
                    again = gradient_of("qwen2", data, &(struct way){.recompute = true});
    assert_true(again.bytes < kept.bytes);
    free(kept.g);
    free(again.g);
    free(data);
}

static int make_odd_family(void **state)
{
    (void)state;
    if (!mkdtemp(odd_dir)) return -1;
    model_family_add(&odd_family);
    odd_family_write(odd_dir);
    return 0;
}

static int remove_odd_family(void **state)
{
    (void)state;
    model_family_add(NULL);
    dir_remove(odd_dir);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest with_threads[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_gate),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_ends),
    };
    const struct CMUnitTest with_one[] = {
        cmocka_unit_test(test_b_zero_means_da_zero),
        cmocka_unit_test(test_recomputed),
        cmocka_unit_test(test_as_served),
        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_simt),
        cmocka_unit_test(test_few_targets),
        cmocka_unit_test(test_quantised_bases),
        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_differences),
    };
    fixtures = argc > 1 ? argv[1] : "tests/fixtures/models";
    int failed = cmocka_run_group_tests_name("train_model", with_threads, make_odd_family, remove_odd_family);
#ifdef TANDEM_SANITIZED_THREADS
    bool all = false; /* one thread races with no other */
#else
    bool all = true;
#endif
    strcpy(odd_dir + strlen(odd_dir) - 6, "XXXXXX"); /* for another folder */
    if (all)
        failed += cmocka_run_group_tests_name("train_model, one thread", with_one, make_odd_family, remove_odd_family);
    return failed;
}
