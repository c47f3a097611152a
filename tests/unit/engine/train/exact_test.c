/* Exactly on policy: texts are sampled by an engine, several adapters and the base side by side in its batches; then a
 * trainer computes the same texts as whole sequences, and the log-probability of every sampled token has the same bits.
 *
 *   exact_test FIXTURES_DIR */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/model/adapter.h"
#include "engine/model/open.h"
#include "engine/serve/engine.h"
#include "engine/train/lora.h"
#include "engine/train/model.h"
#include "engine/train/optim.h"
#include "engine/train/params.h"
#include "engine/train/rows.h"

#include <math.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *fixtures;
static char root[] = "/tmp/tandem-exact-XXXXXX";

/* What is served and trained: a base, its cache, and adapters of it. */
struct setting {
    const char *model, *quantize, *kv_type, *activations;
    unsigned targets; /* of the adapters besides the one of q and v; 0: all of a layer's */
};

/* ---- adapters on the disk ---------------------------------------------------------------------------------------- */

static const struct kind {
    const char *name; /* NULL: the base itself */
    int r;
    bool attention; /* only q and v, or what the model has of it: gate and up are computed as without an adapter */
} kinds[] = {{"four", 4, false}, {"sixteen", 16, false}, {"attention", 4, true}, {NULL, 0, false}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void fill(float *p, size_t n, uint32_t *seed)
{
    for (size_t i = 0; i < n; i++) {
        *seed = *seed * 1664525 + 1013904223;
        p[i] = (float)(int32_t)*seed * 0x1p-33f;
    }
}

static char *adapter_path(const struct kind *k)
{
    return file_join(root, k->name);
}

static void write_adapter(const struct setting *s, const struct model_config *c, const struct kind *k)
{
    enum { ATTENTION = TARGET_Q | TARGET_V | TARGET_C_ATTN | TARGET_QUERY_KEY_VALUE | TARGET_QKV_PROJ };
    struct err e = {0};
    unsigned targets = k->attention ? ATTENTION : s->targets ? s->targets : TARGET_ALL;
    struct adapter *a = adapter_new(c, targets, k->r, 2.0 * k->r, false);
    uint32_t seed = (uint32_t)k->r + k->attention;
    for (int i = 0; i < a->layers * a->n_modules; i++) {
        const struct lora_module *m = &a->module[i % a->n_modules];
        size_t r = (size_t)a->pair[i].r * (size_t)lora_copies(m);
        if (!r) continue;
        fill(a->pair[i].a, r * (size_t)m->k, &seed);
        fill(a->pair[i].b, r * (size_t)m->n, &seed);
    }
    char *dir = adapter_path(k);
    dir_remove(dir);
    if (adapter_write(a, c, s->model, dir, &e)) fail_msg("%s: %s", s->model, e.msg);
    free(dir);
    adapter_free(a);
}

/* ---- sampling ---------------------------------------------------------------------------------------------------- */

enum { TEXTS = 24, TOKENS_MAX = 200, LENGTH_MAX = 380 };

struct text {
    const struct kind *kind;
    int32_t id[LENGTH_MAX];
    int n_prompt, n, want;
    float logprob[LENGTH_MAX]; /* of id[i], from n_prompt on */
};

static void wake(void *arg)
{
    sem_post(arg);
}

/* near_len: of the model.  No text grows across it: the tokens before would be of another text (decision 019). */
static void make_texts(struct text *t, int vocab, int most, int near_len)
{
    uint32_t seed = 5;
    for (int i = 0; i < TEXTS; i++) {
        t[i] = (struct text){.kind = &kinds[i % KINDS], .n_prompt = 1 + i * 29 % 97, .want = 40 + i * 53 % 130};
        if (t[i].n_prompt + t[i].want > most) t[i].n_prompt = 5, t[i].want = most - 5;
        if (t[i].n_prompt <= near_len && t[i].n_prompt + t[i].want > near_len) {
            bool far = i / KINDS % 2 && near_len + 1 + t[i].want <= most;
            t[i].n_prompt = far ? near_len + 1 : near_len - 9, t[i].want = far ? t[i].want : 9;
        }
        for (; t[i].n < t[i].n_prompt; t[i].n++)
            t[i].id[t[i].n] = (int32_t)((seed = seed * 1664525 + 1013904223) >> 8) % vocab;
    }
}

static int take_events(struct engine *g)
{
    int done = 0;
    struct event_batch *all = engine_events(g);
    for (struct event_batch *b = all; b; b = b->next)
        for (int i = 0; i < b->n; i++) {
            struct text *t = b->v[i].user;
            if (b->v[i].kind == EV_DONE && b->v[i].finish != FINISH_LENGTH)
                fail_msg("a text ended with %d: %s", b->v[i].finish, b->v[i].error ? b->v[i].error : "");
            done += b->v[i].kind == EV_DONE;
            if (b->v[i].kind != EV_TOKEN) continue;
            t->logprob[t->n] = b->v[i].logprob;
            t->id[t->n++] = b->v[i].token;
        }
    engine_events_done(g, all);
    return done;
}

static void sample(const struct setting *s, const char *dir, struct text *texts, int near_len)
{
    struct err e = {0};
    sem_t events;
    struct engine *g = engine_open(&(struct engine_config){.model = dir,
                                                           .quantize = s->quantize,
                                                           .kv_type = s->kv_type,
                                                           .activations = s->activations,
                                                           .kv_cache_bytes = 32 << 20,
                                                           .max_batch_tokens = 64,
                                                           .threads = 2},
                                   &e);
    if (!g) fail_msg("%s: %s", s->model, e.msg);
    sem_init(&events, 0, 0);
    assert_int_equal(engine_start(g, wake, &events, &e), 0);
    for (int i = 0; i < KINDS; i++) {
        char *path = kinds[i].name ? adapter_path(&kinds[i]) : NULL;
        if (path && engine_adapter_load(g, kinds[i].name, path, NULL, &e)) fail_msg("%s: %s", s->model, e.msg);
        free(path);
    }
    const struct engine_info *info = engine_info(g);
    int most = info->max_total_tokens < LENGTH_MAX ? info->max_total_tokens : LENGTH_MAX;
    make_texts(texts, info->vocab, most, near_len);
    for (int i = 0; i < TEXTS; i++) {
        struct gen_request q = {
            .prompt = texts[i].id,
            .n_prompt = texts[i].n_prompt,
            .max_new_tokens = texts[i].want,
            .ignore_eos = true,
            .adapter = texts[i].kind->name,
            .sampling =
                {.sample = true, .temperature = 0.9f, .top_p = 1, .typical_p = 1, .repetition = 1, .seed = (uint64_t)i},
            .user = &texts[i]};
        if (!engine_submit(g, &q, &e)) fail_msg("%s: %s", s->model, e.msg);
    }
    for (int left = TEXTS; left;) {
        sem_wait(&events);
        left -= take_events(g);
    }
    engine_close(g);
    sem_destroy(&events);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

/* The kind's texts as one micro-batch; the sampled tokens are its targets. */
static void batch_texts(struct micro *b, const struct text *texts, const struct kind *kind)
{
    b->n_units = 1;
    for (int i = 0; i < TEXTS; i++) {
        const struct text *t = &texts[i];
        if (t->kind != kind) continue;
        int first = rope_first_row(b->near_len, t->n);
        b->q_start[b->n_seqs++] = b->n_tokens;
        for (int k = 0; k + 1 < t->n; k++) {
            b->id[b->n_tokens] = t->id[k];
            b->pos[b->n_tokens] = first + k;
            if (k + 1 >= t->n_prompt) b->row[b->n_targets] = b->n_tokens, b->target[b->n_targets++] = t->id[k + 1];
            b->n_tokens++;
        }
        b->q_start[b->n_seqs] = b->n_tokens;
    }
    b->unit[1] = b->n_tokens;
    b->unit_target[1] = b->n_targets;
}

/* How many of the kind's sampled tokens have another log-probability in training. */
static int differing(const struct train_model *m, const struct text *texts, const struct kind *kind)
{
    int off = 0, at = 0;
    for (int i = 0; i < TEXTS; i++)
        for (int k = texts[i].n_prompt; texts[i].kind == kind && k < texts[i].n; k++, at++) {
            float trained = -m->host_loss[at];
            off += memcmp(&trained, &texts[i].logprob[k], sizeof trained) != 0;
        }
    assert_int_equal(at, m->b->n_targets);
    return off;
}

struct tally {
    int tokens, off, off_otherwise; /* otherwise: in the ordinary forward pass */
};

/* Trains the kind's adapter, or with none only computes the losses. */
static void train_texts(const struct setting *s, struct model *m, const struct text *texts, const struct kind *kind,
                        enum dtype kv_type, struct tally *tally)
{
    struct err e = {0};
    struct train_params p;
    struct optim o;
    struct train_lora lora = {0};
    struct micro b;
    enum { TOKENS = TEXTS * LENGTH_MAX };
    char *from = kind->name ? adapter_path(kind) : NULL;
    train_params_default(&p, TRAIN_LORA);
    optim_init(&o, m->d, NULL);
    if (from && train_lora_open(&lora, &m->c, &p, from, &o, &e)) fail_msg("%s: %s", s->model, e.msg);
    if (from) {
        assert_int_equal(optim_alloc(&o, false, &e), 0);
        train_lora_bind(&lora, &o);
        optim_start(&o);
    }
    micro_open(&b, TOKENS, m->c.near_len);
    batch_texts(&b, texts, kind);
    for (int exact = 0; exact < 2; exact++) {
        struct train_model t = {.c = &m->c,
                                .w = &m->w,
                                .d = m->d,
                                .site = lora.site,
                                .half = true,
                                .max_tokens = b.n_tokens,
                                .exact = {.kv_type = exact ? kv_type : DT_NONE}};
        assert_int_equal(train_model_open(&t, LENGTH_MAX, &e), 0);
        train_model_run(&t, &b, from, 1);
        if (m->d->error.op) fail_msg("%s: %s: %s", s->model, m->d->error.op, m->d->error.msg);
        int off = differing(&t, texts, kind);
        *(exact ? &tally->off : &tally->off_otherwise) += off;
        if (exact) tally->tokens += b.n_targets;
        if (exact && off)
            fail_msg("%s, %s, cache %s, adapter %s: %d of %d log-probabilities are not those of sampling", s->model,
                     s->quantize ? s->quantize : "its own type", dtype_name(kv_type), kind->name ? kind->name : "none",
                     off, b.n_targets);
        train_model_close(&t);
    }
    micro_close(&b);
    train_lora_close(&lora);
    optim_free(&o);
    free(from);
}

/* @return how many tokens were sampled; fails when one differs. */
static struct tally run_setting(const struct setting *s)
{
    struct err e = {0};
    struct model m;
    struct tally tally = {0};
    struct text *texts = mem_array(TEXTS, sizeof *texts);
    char *dir = file_join(fixtures, s->model);
    struct model_options o = {.dir = dir, .threads = 1, .quantize = s->quantize, .activations = s->activations};
    if (model_open_as(&m, &o, &(struct cpus){0}, &e)) fail_msg("%s: %s", s->model, e.msg);
    for (int i = 0; i < KINDS; i++)
        if (kinds[i].name) write_adapter(s, &m.c, &kinds[i]);
    sample(s, dir, texts, m.c.near_len);
    enum dtype kv_type;
    assert_int_equal(kv_type_parse(s->kv_type, &kv_type, &e), 0);
    if (kv_type == DT_NONE) kv_type = m.d->ops->kv_type;
    for (int i = 0; i < KINDS; i++) train_texts(s, &m, texts, &kinds[i], kv_type, &tally);
    model_close(&m);
    free(dir);
    free(texts);
    return tally;
}

/* ---- the cases --------------------------------------------------------------------------------------------------- */

/* Each type of weights with each type of cache, 10000 tokens and more.  In the ordinary pass some of them differ: else
 * this test could not fail. */
static void test_types(void **state)
{
    (void)state;
    static const struct setting settings[] = {
        {.model = "llama-gqa", .kv_type = "f32"},
        {.model = "llama-gqa", .quantize = "int8"},
        {.model = "llama-gqa", .quantize = "int4", .kv_type = "bf16"},
        {.model = "qwen2-bf16", .kv_type = "f16"},
        {.model = "qwen2-bf16", .kv_type = "int8", .activations = "bf16"},
        {.model = "llama-f16", .quantize = "int8", .kv_type = "int8"},
        {.model = "llama-nf4"},
    };
    int tokens = 0;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct tally t = run_setting(&settings[i]);
        print_message("%s %s, cache %s: %d tokens, %d differ; in the ordinary pass %d\n", settings[i].model,
                      settings[i].quantize ? settings[i].quantize : "",
                      settings[i].kv_type ? settings[i].kv_type : "auto", t.tokens, t.off, t.off_otherwise);
        assert_true(t.off_otherwise > 0);
        tokens += t.tokens;
    }
    assert_true(tokens >= 10000);
}

/* Windows, softcaps, sinks, biases, norms of heads, parallel layers, experts and their adapters, and adapters of the
 * embedding table and the head. */
static void test_families(void **state)
{
    (void)state;
    static const struct setting settings[] = {
        {.model = "gemma2"},
        {.model = "gemma3-bf16"},
        {.model = "mistral", .kv_type = "int8"},
        {.model = "qwen3"},
        {.model = "gpt2", .targets = TARGET_ALL | TARGET_ENDS},
        {.model = "gpt-neox"},
        {.model = "gpt-oss"},
        {.model = "phi"},
        {.model = "phi4-mini"},
        {.model = "granite", .targets = TARGET_ALL | TARGET_ENDS},
        {.model = "olmo2"},
        {.model = "smollm3-sliding"},
        {.model = "mixtral", .quantize = "int8"},
        {.model = "qwen2-moe", .targets = TARGET_ALL | TARGET_PARAMETERS},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) run_setting(&settings[i]);
}

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        char *dir = kinds[i].name ? adapter_path(&kinds[i]) : NULL;
        if (dir) dir_remove(dir);
        free(dir);
    }
    dir_remove(root);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_families),
    };
    fixtures = argc > 1 ? argv[1] : "tests/fixtures/models";
    return cmocka_run_group_tests_name("train_exact", tests, make_root, remove_root);
}
