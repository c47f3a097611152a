/* The engine on a device whose memory is not the host's: simt, the CUDA kernels on the CPU.  Texts are the cpu's, a
 * batch changes none, replayed steps have the bits of those that are not, a step waits for the device once, nothing is
 * taken after the start, and a device that is lost is opened anew, once.
 *
 *   simt_test FIXTURES/models */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/engine.h"
#include "engine/engine_state.h"
#include "engine/ready.h"
#include "engine/turn.h"
#include "kernels/dev.h"
#include "tests/train/rows.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *fixtures;

static const char *use_adapter; /* of requests */

#define ADAPTER "qwen2--ours-patterns"

enum { TOKENS = 12, ASKS = 3 };

struct reply {
    int n;
    int32_t ids[TOKENS];
    float logprobs[TOKENS];
    enum finish_reason finish;
    char error[256];
    bool done;
};

static struct engine_config config(const char *device)
{
    static char model[1024];
    snprintf(model, sizeof model, "%s/qwen2", fixtures);
    return (struct engine_config){.model = model,
                                  .device = device,
                                  .threads = 1,
                                  .kv_type = "f32",
                                  .activations = "f32",
                                  .max_seqs = 4,
                                  .max_batch_tokens = 32,
                                  .max_lora_rank = 8,
                                  .no_prefix_cache = true, /* the same steps every time */
                                  .kv_pages = 64};
}

static struct engine *open_engine(struct engine_config c)
{
    struct err e = {0};
    struct engine *g = engine_open(&c, &e);
    if (!g) fail_msg("%s", e.msg);
    return g;
}

static struct dev *device_of(struct engine *g)
{
    return engine_setup(g)->model.d;
}

/* Prompts of one, two and many tokens; the third is sampled. */
static uint64_t submit(struct engine *g, int i, struct reply *y)
{
    int32_t prompt[40];
    struct err e = {0};
    for (int k = 0; k < 40; k++) prompt[k] = (k * 7 + i * 3 + 1) % 280;
    struct gen_request q = {.prompt = prompt,
                            .n_prompt = i == 0   ? 1
                                        : i == 1 ? 19
                                                 : 40,
                            .max_new_tokens = TOKENS,
                            .ignore_eos = true,
                            .sampling = {.temperature = 1, .top_p = 0.9f, .typical_p = 1, .repetition = 1.1f},
                            .adapter = use_adapter,
                            .user = y};
    q.sampling.sample = i == 2;
    q.sampling.seed = 11;
    *y = (struct reply){0};
    uint64_t id = engine_submit(g, &q, &e);
    if (!id) fail_msg("%s", e.msg);
    return id;
}

static void take(struct engine *g)
{
    struct event_batch *all = engine_events(g);
    for (struct event_batch *b = all; b; b = b->next)
        for (int i = 0; i < b->n; i++) {
            struct reply *y = b->v[i].user;
            if (b->v[i].kind == EV_TOKEN) {
                y->ids[y->n] = b->v[i].token;
                y->logprobs[y->n++] = b->v[i].logprob;
            }
            if (b->v[i].kind != EV_DONE) continue;
            y->done = true;
            y->finish = b->v[i].finish;
            snprintf(y->error, sizeof y->error, "%s", b->v[i].error ? b->v[i].error : "");
        }
    engine_events_done(g, all);
}

static void run_out(struct engine *g, const struct reply *y, int n)
{
    for (int i = 0; i < n;) {
        engine_turn(g, false);
        take(g);
        while (i < n && y[i].done) i++;
    }
}

static void generate(struct engine *g, int from, int n, struct reply *y)
{
    for (int i = 0; i < n; i++) submit(g, from + i, &y[i]);
    run_out(g, y, n);
}

static void assert_same(const struct reply *a, const struct reply *b, bool bits)
{
    assert_int_equal(a->finish, FINISH_LENGTH);
    assert_int_equal(b->finish, FINISH_LENGTH);
    assert_int_equal(a->n, TOKENS);
    assert_memory_equal(a->ids, b->ids, sizeof a->ids);
    if (bits) assert_memory_equal(a->logprobs, b->logprobs, sizeof a->logprobs);
    for (int i = 0; i < TOKENS; i++) assert_float_equal(a->logprobs[i], b->logprobs[i], 1e-4f);
}

/* What opening finds out about products is all that requests need: they try nothing. */
static void test_measured(void **state)
{
    (void)state;
    char dir[] = "/tmp/tandem-measured-XXXXXX", path[128];
    struct stat opened, used;
    struct reply y[ASKS];
    assert_non_null(mkdtemp(dir));
    setenv("XDG_CACHE_HOME", dir, 1);
    setenv("SIMT_LT_TRIES", "1", 1);
    struct engine_config c = config("simt");
    c.max_batch_tokens = 48;
    struct engine *g = open_engine(c);
    snprintf(path, sizeof path, "%s/tandem/cublaslt-simt-130000", dir);
    assert_int_equal(stat(path, &opened), 0);
    generate(g, 0, ASKS, y);
    assert_int_equal(stat(path, &used), 0);
    assert_true(opened.st_ino == used.st_ino && opened.st_size == used.st_size);
    engine_close(g);
    unsetenv("SIMT_LT_TRIES");
    unsetenv("XDG_CACHE_HOME");
    *strrchr(path, '/') = 0;
    dir_remove(path);
    dir_remove(dir);
}

static void test_texts(void **state)
{
    (void)state;
    struct reply cpu[ASKS], together[ASKS], alone[ASKS];
    struct engine *g = open_engine(config("cpu"));
    generate(g, 0, ASKS, cpu);
    engine_close(g);
    g = open_engine(config("simt"));
    size_t before, after;
    struct dev_memory m;
    device_of(g)->ops->memory(device_of(g), &m);
    before = m.used;
    assert_int_equal(m.largest, m.budget - m.used); /* the rest is held, in one piece */
    struct simt_counts start = simt_counts();
    generate(g, 0, ASKS, together);
    for (int i = 0; i < ASKS; i++) generate(g, i, 1, &alone[i]);
    device_of(g)->ops->memory(device_of(g), &m);
    after = m.used;
    assert_int_equal(before, after); /* nothing is taken once it runs */
    assert_int_equal(simt_counts().memory, start.memory);
    const struct engine_info *info = engine_info(g);
    assert_true(info->device_base == before && info->device_budget == m.budget && m.budget < m.total);
    assert_int_equal(info->weight_bytes + info->kv_bytes + info->workspace_bytes, before);
    engine_close(g);
    for (int i = 0; i < ASKS; i++) {
        assert_same(&cpu[i], &together[i], false);
        assert_same(&alone[i], &together[i], false); /* few rows and many go to different kernels */
    }
}

static void test_replay(void **state)
{
    (void)state;
    struct reply replayed[ASKS], eager[ASKS];
    struct engine *g = open_engine(config("simt"));
    struct dev *d = device_of(g);
    struct simt_counts start = simt_counts(), end;
    generate(g, 0, ASKS, replayed);
    end = simt_counts();
    assert_true(end.graphs > start.graphs);
    assert_true(end.replays - start.replays > end.graphs - start.graphs);

    /* the same numbers again: nothing new is recorded, and every step of them waits once */
    struct reply y;
    generate(g, 0, 1, &y);
    submit(g, 0, &y);
    while (y.n < 2) engine_turn(g, false), take(g);
    for (int k = 0; k < 4; k++) {
        start = simt_counts();
        engine_turn(g, false);
        end = simt_counts();
        take(g);
        assert_int_equal(end.syncs - start.syncs, 1);
        assert_int_equal(end.replays - start.replays, 1);
        assert_int_equal(end.graphs, start.graphs);
    }
    run_out(g, &y, 1);

    /* a longer context has wider tables of pages: another graph */
    int32_t prompt[200];
    struct err e = {0};
    for (int k = 0; k < 200; k++) prompt[k] = k % 280;
    struct gen_request q = {.prompt = prompt, .n_prompt = 140, .max_new_tokens = 6, .ignore_eos = true, .user = &y};
    q.sampling.repetition = 1;
    start = simt_counts();
    y = (struct reply){0};
    assert_true(engine_submit(g, &q, &e) != 0);
    run_out(g, &y, 1);
    assert_int_equal(simt_counts().graphs - start.graphs, 1);

    struct dev_ops plain = *d->ops;
    const struct dev_ops *own = d->ops;
    plain.replay = NULL;
    d->ops = &plain;
    start = simt_counts();
    generate(g, 0, ASKS, eager);
    assert_int_equal(simt_counts().replays, start.replays);
    d->ops = own;
    engine_close(g);
    for (int i = 0; i < ASKS; i++) assert_same(&replayed[i], &eager[i], true);
}

/* ---- padding ----------------------------------------------------------------------------------------------------- */

static void test_sizes(void **state)
{
    (void)state;
    static const int ends[] = {1, 2, 4, 8, 16, 32, 64, 128, 256}; /* where the kernels of products change, and more */
    for (int max = 1; max <= 600; max += max < 70 ? 1 : 53) {
        int spare = batch_pad_pages(max) * KV_PAGE;
        for (int n = 1; n <= max; n++) {
            int to = batch_padded(n, max);
            assert_true(n <= to && to <= max && to - n <= spare && batch_padded(to, max) == to);
            for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) assert_true((n <= ends[i]) == (to <= ends[i]));
        }
    }
}

enum { MANY = 20, STEPS = 3 };

struct many {
    float *logits; /* (STEPS, MANY, vocab) */
    int sizes[STEPS];
};

/* Steps of n texts that all decode, of which some want no logits. */
static void many_steps(struct engine *g, int n, struct many *out)
{
    struct dev *d = device_of(g);
    struct setup *s = engine_setup(g);
    size_t vocab = (size_t)s->info.vocab;
    struct seq seq[MANY];
    struct plan_item item[MANY];
    int32_t tokens[MANY][24], page[MANY][2];
    out->logits = calloc(STEPS * MANY * vocab, sizeof *out->logits);
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < 24; k++) tokens[i][k] = (i * 37 + k * 11 + 5) % 280;
        page[i][0] = 2 * i;
        page[i][1] = 2 * i + 1;
        seq[i] = (struct seq){.tokens = tokens[i], .pages = page[i], .n_pages = 2};
    }
    for (int step = 0; step < STEPS; step++) {
        int rows = 0;
        for (int i = 0; i < n; i++) {
            item[i] = (struct plan_item){&seq[i], step, 1, step != 1 || i % 3};
            rows += item[i].rows;
        }
        batch_build(&g->batch, d, &(struct plan){.v = item, .n = n, .n_tokens = n, .n_rows = rows});
        out->sizes[step] = g->batch.n_tokens;
        model_forward(&s->model, &g->batch);
        assert_int_equal(d->ops->finish(d), 0);
        d->ops->download(d, out->logits + (size_t)step * MANY * vocab, s->model.logits.p,
                         (size_t)rows * vocab * sizeof *out->logits);
    }
}

/* The same bits with and without padding, in steps of few rows and of many, for each kind of weights. */
static void test_padding(void **state)
{
    (void)state;
    static const char *const kinds[] = {NULL, "int8", "int4-nearest"};
    static const int sizes[] = {3, 5, 9, 17};
    struct engine_config c = config("simt");
    c.max_seqs = MANY;
    for (size_t k = 0; k < 3; k++) {
        c.quantize = kinds[k];
        struct engine *g = open_engine(c);
        size_t bytes = STEPS * MANY * (size_t)engine_info(g)->vocab * sizeof(float);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            struct many plain, padded;
            int n = sizes[i], pad_page = g->batch.pad_page;
            assert_int_equal(pad_page, engine_info(g)->pages);
            many_steps(g, n, &padded);
            g->batch.pad_page = -1;
            many_steps(g, n, &plain);
            g->batch.pad_page = pad_page;
            for (int step = 0; step < STEPS; step++) {
                assert_int_equal(plain.sizes[step], n);
                assert_int_equal(padded.sizes[step], batch_padded(n, MANY));
            }
            assert_memory_equal(plain.logits, padded.logits, bytes);
            free(plain.logits);
            free(padded.logits);
        }
        engine_close(g);
    }
}

/* What is done before the first request leaves nothing to be noted down, and no trace in the texts. */
static void test_ready(void **state)
{
    (void)state;
    struct reply cold[ASKS], warm[ASKS];
    struct engine_config c = config("simt");
    c.max_total_tokens = 128;
    struct engine *g = open_engine(c);
    generate(g, 0, ASKS, cold);
    engine_close(g);
    g = open_engine(c);
    struct simt_counts start = simt_counts(), end;
    ready_steps(&g->batch, &engine_setup(g)->model, 60 * 1000);
    end = simt_counts();
    assert_int_equal(end.graphs - start.graphs, 3); /* of 1, 2 and 4 texts */
    generate(g, 0, ASKS, warm);
    assert_int_equal(simt_counts().graphs, end.graphs);
    assert_true(simt_counts().replays > end.replays);
    engine_close(g);
    for (int i = 0; i < ASKS; i++) assert_same(&cold[i], &warm[i], true);
}

/* ---- other ops ----------------------------------------------------------------------------------------------------
 */

/* A table of ops that differs in a few from the device's own, and what its functions know. */
static struct {
    struct dev_ops ops;
    const struct dev_ops *own;
    struct engine *g;
    int reserves, failed, reopens;
    bool in_time;              /* nobody may think that a restart hangs */
    struct reply *late;        /* asked for while the device is opened anew, and its adapter unloaded */
    struct engine_stats stats; /* at the end of the turn that opened it anew */
    bool turned;
} patched;

static void use_patched(struct engine *g)
{
    memset(&patched, 0, sizeof patched);
    patched.g = g;
    patched.own = device_of(g)->ops;
    patched.ops = *patched.own;
    device_of(g)->ops = &patched.ops;
}

static void use_own(struct engine *g)
{
    device_of(g)->ops = patched.own;
}

/* What others do meanwhile. */
static int reopen(struct dev *d, char why[160])
{
    struct err e = {0};
    patched.reopens++;
    patched.in_time = engine_busy_since(patched.g) > clock_now() + 10ull * 1000 * 1000 * 1000;
    if (patched.late) {
        submit(patched.g, 2, patched.late);
        if (engine_adapter_unload(patched.g, use_adapter, &e)) fail_msg("%s", e.msg);
    }
    return patched.own->reopen(d, why);
}

static void end_of_turn(struct engine *g)
{
    if (!patched.reopens || patched.turned) return;
    patched.turned = true;
    engine_stats_read(g, &patched.stats);
    take(g);
}

/* ---- a norm's work for the product that comes next -------------------------------------------------------------- */

static void norm_alone(struct dev *d, const struct norm_args *a)
{
    struct norm_args alone = *a;
    alone.next = NULL;
    patched.own->norm(d, &alone);
}

static void add_norm_alone(struct dev *d, const struct add_norm_args *a)
{
    struct add_norm_args alone = *a;
    alone.next = NULL;
    patched.own->add_norm(d, &alone);
}

/* Requests of which one has an adapter, where the model has one; -> kernels launched for them */
static uint64_t generate_int(const char *model, const char *quantize, bool alone, struct reply *y)
{
    char path[1024], adapter[1100];
    struct err e = {0};
    struct engine_config c = config("simt");
    snprintf(path, sizeof path, "%s/%s", fixtures, model);
    snprintf(adapter, sizeof adapter, "%s/../adapters/" ADAPTER, fixtures);
    c.model = path;
    c.quantize = quantize;
    bool adapted = !strcmp(model, "qwen2");
    struct engine *g = open_engine(c);
    log_set_level(LOG_ERROR);
    if (adapted && engine_adapter_load(g, "a", adapter, NULL, &e)) fail_msg("%s", e.msg);
    log_set_level(LOG_INFO);
    use_patched(g);
    if (alone) patched.ops.norm = norm_alone, patched.ops.add_norm = add_norm_alone;
    uint64_t start = simt_counts().launches;
    for (int i = 0; i < ASKS; i++) {
        use_adapter = adapted && i == 1 ? "a" : NULL;
        submit(g, i, &y[i]);
    }
    use_adapter = NULL;
    run_out(g, y, ASKS);
    uint64_t launches = simt_counts().launches - start;
    use_own(g);
    engine_close(g);
    return launches;
}

static void test_ahead(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen2", "phi"}, *const types[] = {"int8", "int4"};
    for (int i = 0; i < 4; i++) {
        struct reply ahead[ASKS], alone[ASKS];
        uint64_t with = generate_int(models[i / 2], types[i % 2], false, ahead);
        uint64_t without = generate_int(models[i / 2], types[i % 2], true, alone);
        print_message("%s %s: %d launches, %d without\n", models[i / 2], types[i % 2], (int)with, (int)without);
        assert_true(with < without);
        for (int k = 0; k < ASKS; k++) assert_same(&ahead[k], &alone[k], true);
    }
}

/* ---- a device that is lost -------------------------------------------------------------------------------------- */

static void test_lost(void **state)
{
    (void)state;
    struct reply right[ASKS], y[ASKS];
    struct engine_stats s;
    struct engine *g = open_engine(config("simt"));
    generate(g, 0, ASKS, right);

    /* one has begun and pauses, one never began, one runs: that one ends with the device's words, the others as if
     * nothing had been */
    uint64_t begun = submit(g, 1, &y[1]), waits;
    while (y[1].n < 3) engine_turn(g, false), take(g);
    engine_pause(g, begun);
    waits = submit(g, 2, &y[2]);
    engine_pause(g, waits);
    submit(g, 0, &y[0]);
    while (y[0].n < 3) engine_turn(g, false), take(g);
    assert_true(y[1].n >= 3 && y[1].n < TOKENS && y[2].n == 0);
    use_patched(g);
    patched.ops.reopen = reopen;
    simt_fail_launch(3); /* in the sampling: the step itself is one graph */
    while (!y[0].done) engine_turn(g, false), take(g);
    simt_fail_launch(-1);
    assert_int_equal(y[0].finish, FINISH_ERROR);
    assert_non_null(strstr(y[0].error, "an illegal memory access was encountered"));
    engine_stats_read(g, &s);
    assert_true(s.failed_steps == 1 && s.device_restarts == 1 && !s.device_lost && !engine_lost(g));
    assert_true(patched.reopens == 1 && patched.in_time);
    use_own(g);
    engine_resume(g, begun);
    engine_resume(g, waits);
    run_out(g, y + 1, 2);
    for (int i = 1; i < ASKS; i++) assert_same(&right[i], &y[i], false); /* computed again in other steps */
    generate(g, 0, ASKS, y);
    for (int i = 0; i < ASKS; i++) assert_same(&right[i], &y[i], true);

    /* again so soon: for good.  What waits ends, too, and so does what comes */
    for (int i = 0; i < ASKS; i++) submit(g, i, &y[i]);
    engine_turn(g, false);
    take(g);
    simt_fail_launch(0);
    run_out(g, y, ASKS);
    simt_fail_launch(-1);
    for (int i = 0; i < ASKS; i++) assert_int_equal(y[i].finish, FINISH_ERROR);
    assert_true(engine_lost(g));
    generate(g, 0, 1, y);
    assert_int_equal(y[0].finish, FINISH_ERROR);
    assert_string_equal(y[0].error, "the device was lost");
    engine_stats_read(g, &s);
    assert_true(s.device_restarts == 1 && s.device_lost);
    struct train_job job = {0};
    struct train_plan plan;
    struct err e = {0};
    assert_int_equal(engine_train_plan(g, &job, &plan, &e), ERR_FULL);
    engine_close(g);
}

/* ---- lost by training ------------------------------------------------------------------------------------------- */

struct told {
    _Atomic int last; /* the last event's kind, + 1 */
    char text[256];
};

static void note(void *arg, const struct train_event *ev)
{
    struct told *t = arg;
    bool last = ev->kind == TRAIN_FAILED || ev->kind == TRAIN_SUCCEEDED || ev->kind == TRAIN_PAUSED;
    if (!last) return;
    snprintf(t->text, sizeof t->text, "%s", ev->text ? ev->text : "");
    atomic_store(&t->last, (int)ev->kind + 1);
}

static int train(struct engine *g, const struct dataset *data, const char *dir, struct told *t)
{
    struct err e = {0};
    struct train_job job = {.data = data, .dir = dir};
    train_params_default(&job.p, TRAIN_LORA);
    job.p.max_steps = 2;
    job.p.batch_tokens = 32;
    job.p.max_length = 16;
    job.p.lora_r = 4;
    *t = (struct told){0};
    if (engine_train_start(g, &job, note, t, &e)) fail_msg("%s", e.msg);
    while (!atomic_load(&t->last)) {
        engine_turn(g, false);
        end_of_turn(g);
    }
    return atomic_load(&t->last) - 1;
}

static void test_training(void **state)
{
    (void)state;
    struct reply right[ASKS], y[ASKS], held, late;
    struct engine_stats s;
    struct told told;
    char dir[] = "/tmp/tandem-simt-XXXXXX", other[64], adapter[1100];
    struct err e = {0};
    if (!mkdtemp(dir)) fail();
    snprintf(other, sizeof other, "%s/other", dir);
    snprintf(adapter, sizeof adapter, "%s/../adapters/" ADAPTER, fixtures);
    struct engine *g = open_engine(config("simt"));
    if (engine_adapter_load(g, "a", adapter, NULL, &e)) fail_msg("%s", e.msg);
    struct dataset *data = rows_make(8, engine_info(g)->vocab, 3);
    use_adapter = "a";
    generate(g, 0, ASKS, right);
    engine_stats_read(g, &s);
    size_t used = s.device_used;
    struct simt_counts start = simt_counts();
    if (train(g, data, dir, &told) != TRAIN_SUCCEEDED) fail_msg("%s", told.text);
    generate(g, 0, ASKS, y);
    for (int i = 0; i < ASKS; i++) assert_same(&right[i], &y[i], true);
    engine_stats_read(g, &s);
    assert_int_equal(s.device_restarts, 0);
    assert_int_equal(s.device_used, used);                /* the job gave everything back */
    assert_int_equal(simt_counts().memory, start.memory); /* and the system was asked for nothing */

    /* of an adapter that is unloaded in the middle: one request was there, one is on its way */
    if (engine_adapter_load(g, "b", adapter, NULL, &e)) fail_msg("%s", e.msg);
    use_adapter = "b";
    engine_pause(g, submit(g, 1, &held));
    use_patched(g);
    patched.ops.reopen = reopen;
    patched.late = &late;
    log_set_level(LOG_ERROR + 1);
    simt_fail_launch(150);
    assert_int_equal(train(g, data, other, &told), TRAIN_FAILED);
    simt_fail_launch(-1);
    log_set_level(LOG_INFO);
    use_own(g);
    assert_non_null(strstr(told.text, "device"));
    assert_true(patched.turned && patched.in_time);
    assert_true(patched.stats.device_restarts == 1 && !patched.stats.device_lost);
    assert_true(held.done && held.finish == FINISH_ERROR); /* told in that turn: the next may be far */
    assert_string_equal(held.error, "the device was lost");
    run_out(g, &late, 1);
    assert_int_equal(late.finish, FINISH_ERROR);
    assert_string_equal(late.error, "the device was lost");
    use_adapter = "a";
    generate(g, 0, ASKS, y);
    for (int i = 0; i < ASKS; i++) assert_same(&right[i], &y[i], true);
    engine_stats_read(g, &s);
    struct dev_memory m;
    device_of(g)->ops->memory(device_of(g), &m);
    assert_true(m.used == used && m.largest == m.budget - m.used); /* held again */
    assert_int_equal(s.device_used, used);
    assert_int_equal(s.failed_steps, 0);
    use_adapter = NULL;
    engine_close(g);
    free(data);
    dir_remove(dir);
}

struct many_rows {
    struct dev *d;
    float *logits;
};

/* Scratch of requests, more than they have: nothing runs. */
static void choose_many(void *arg)
{
    enum { ROWS = 2048, WORDS = 512 };
    struct many_rows *m = arg;
    struct sample_row *row = calloc(ROWS, sizeof *row);
    struct sample_out *out = calloc(ROWS, sizeof *out);
    for (int i = 0; i < ROWS; i++)
        row[i] = (struct sample_row){.temperature = 1, .top_p = 0.9f, .typical_p = 1, .repetition = 1, .forced = -1};
    op_sample(m->d, (struct sample_args){mat_f32(m->logits, ROWS, WORDS), row, out});
    free(row);
    free(out);
}

/* While a job is opened all the memory goes to somebody else. */
static int no_room(struct dev *d, void (*fn)(void *), void *ctx)
{
    (void)fn;
    (void)ctx;
    struct dev_memory m;
    d->ops->memory(d, &m);
    void *all = d->ops->alloc(d, m.budget - m.used);
    assert_non_null(all);
    patched.reserves++;
    patched.failed += patched.own->reserve(d, choose_many, &(struct many_rows){d, all}) != 0;
    d->ops->free(d, all);
    return patched.failed ? -1 : 0;
}

/* Memory that is there, but nowhere enough of it together for an array of all parameters. */
static void refuse_piece(struct engine *g, const struct dataset *data)
{
    enum { BLOCKS = 4096, BLOCK = 64 << 10 };
    struct dev *d = device_of(g);
    struct train_job job = {.data = data};
    struct train_plan plan;
    struct dev_memory m;
    struct err e = {0};
    void *block[BLOCKS];
    int n = 0;
    while (n < BLOCKS && (block[n] = d->ops->alloc(d, BLOCK))) n++;
    assert_true(n > 100 && n < BLOCKS);
    for (int i = 0; i < n; i += 2) d->ops->free(d, block[i]);
    d->ops->memory(d, &m);
    assert_true(m.largest < 2 * BLOCK && m.budget - m.used > 256 * BLOCK);
    train_params_default(&job.p, TRAIN_FULL);
    job.p.max_steps = 2;
    job.p.batch_tokens = 32;
    job.p.max_length = 16;
    assert_int_equal(engine_train_plan(g, &job, &plan, &e), ERR_NOMEM);
    if (!strstr(e.msg, "are free in one piece")) fail_msg("%s", e.msg);
    for (int i = 1; i < n; i += 2) d->ops->free(d, block[i]);
    e = (struct err){0};
    if (engine_train_plan(g, &job, &plan, &e)) fail_msg("%s", e.msg);
}

/* Where the system has no piece so large several are held, and what is said of them is true. */
static void test_pieces(void **state)
{
    (void)state;
    struct told told;
    struct dev_memory before, m;
    char dir[] = "/tmp/tandem-simt-XXXXXX";
    if (!mkdtemp(dir)) fail();
    struct engine_config c = config("simt");
    c.gpu_memory_bytes = 192 << 20;
    simt_largest_piece(48 << 20);
    struct engine *g = open_engine(c);
    struct dev *d = device_of(g);
    struct dataset *data = rows_make(8, engine_info(g)->vocab, 3);
    d->ops->memory(d, &before);
    assert_true(before.largest <= 48 << 20 && before.largest < before.budget - before.used);
    struct simt_counts start = simt_counts();
    assert_null(d->ops->alloc(d, before.largest + 1));
    void *p = d->ops->alloc(d, before.largest), *q = d->ops->alloc(d, 1000);
    assert_true(p && q);
    d->ops->memory(d, &m);
    assert_int_equal(m.used, before.used + before.largest + 1024);
    d->ops->free(d, p);
    d->ops->free(d, q);
    refuse_piece(g, data);
    if (train(g, data, dir, &told) != TRAIN_SUCCEEDED) fail_msg("%s", told.text);
    d->ops->memory(d, &m);
    assert_true(m.used == before.used && m.largest == before.largest);
    assert_int_equal(simt_counts().memory, start.memory);
    simt_largest_piece(SIZE_MAX);
    engine_close(g);
    free(data);
    dir_remove(dir);
}

/* A job that does not get what its ops take for themselves leaves to requests what they had. */
static void test_no_room(void **state)
{
    (void)state;
    struct reply right[ASKS], y[ASKS];
    struct dev_memory before, after;
    struct told told;
    char dir[] = "/tmp/tandem-simt-XXXXXX", again[64];
    if (!mkdtemp(dir)) fail();
    snprintf(again, sizeof again, "%s/again", dir);
    struct engine_config c = config("simt");
    c.gpu_memory_bytes = 192 << 20;
    struct engine *g = open_engine(c);
    struct dataset *data = rows_make(8, engine_info(g)->vocab, 3);
    generate(g, 0, ASKS, right);
    device_of(g)->ops->memory(device_of(g), &before);
    use_patched(g);
    patched.ops.reserve = no_room;
    assert_int_equal(train(g, data, dir, &told), TRAIN_FAILED);
    use_own(g);
    assert_true(patched.reserves == 1 && patched.failed == 1);
    assert_non_null(strstr(told.text, "scratch"));
    device_of(g)->ops->memory(device_of(g), &after);
    assert_int_equal(before.used, after.used);
    generate(g, 0, ASKS, y);
    for (int i = 0; i < ASKS; i++) assert_same(&right[i], &y[i], true);
    if (train(g, data, again, &told) != TRAIN_SUCCEEDED) fail_msg("%s", told.text);
    device_of(g)->ops->memory(device_of(g), &after);
    assert_int_equal(before.used, after.used);
    generate(g, 0, ASKS, y);
    for (int i = 0; i < ASKS; i++) assert_same(&right[i], &y[i], true);
    engine_close(g);
    free(data);
    dir_remove(dir);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void refused(struct engine_config c, const char *because)
{
    struct err e = {0};
    struct engine *g = engine_open(&c, &e);
    if (g) engine_close(g);
    assert_null(g);
    if (!strstr(e.msg, because)) fail_msg("\"%s\" does not say \"%s\"", e.msg, because);
}

static void test_budget(void **state)
{
    (void)state;
    struct engine_config c = config("simt");
    c.gpu_memory_bytes = 6ull << 30; /* simt has 4 GiB */
    refused(c, "lower --gpu-memory-bytes");
    c.gpu_memory_bytes = 1 << 20;
    refused(c, "are too few");
    c.gpu_memory_bytes = 128 << 20;
    c.kv_pages = 0;
    c.kv_cache_bytes = 4ull << 30;
    refused(c, "KV pages of");
    c.kv_cache_bytes = 0;
    struct engine *g = open_engine(c);
    const struct engine_info *i = engine_info(g);
    assert_true(i->device_budget == 128 << 20 && i->device_base <= i->device_budget && i->pages >= 2);
    engine_close(g);
}

static void test_names(void **state)
{
    (void)state;
    struct engine_config c = config("cuda:x");
    refused(c, "the number of a GPU");
    c = config("tpu");
    refused(c, "no device is called \"tpu\"");
    struct engine *g = open_engine(config("auto")); /* a GPU, or the cpu and why */
    const struct engine_info *i = engine_info(g);
    assert_true(strncmp(i->device, "cuda", 4) == 0 ? !*i->device_note : *i->device_note != 0);
    engine_close(g);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),   cmocka_unit_test(test_measured), cmocka_unit_test(test_replay),
        cmocka_unit_test(test_ahead),   cmocka_unit_test(test_budget),   cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_padding), cmocka_unit_test(test_ready),    cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_names),   cmocka_unit_test(test_no_room),  cmocka_unit_test(test_training),
        cmocka_unit_test(test_lost), /* the last: it leaves the runtime lost */
    };
    if (argc != 2) return fprintf(stderr, "usage: simt_test FIXTURES/models\n"), 2;
    fixtures = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
