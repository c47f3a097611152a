/* The engine's steps on a device whose memory is not the host's: simt, the CUDA kernels on the CPU.  Texts are the
 * cpu's, a batch changes none, neither does padding, replayed steps have the bits of those that are not, a step waits
 * for the device once, also where the model is divided over two devices.
 *
 *   simt_steps_test FIXTURES/models */
#include "engine/serve/followers.h"
#include "tests/unit/engine/serve/simt_rig.h"

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
    while (y.n < 2) engine_step_once(g, false), take(g);
    for (int k = 0; k < 4; k++) {
        start = simt_counts();
        engine_step_once(g, false);
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
        int spare = step_batch_pad_pages(max) * KV_PAGE;
        for (int n = 1; n <= max; n++) {
            int to = step_batch_padded(n, max);
            assert_true(n <= to && to <= max && to - n <= spare && step_batch_padded(to, max) == to);
            for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) assert_true((n <= ends[i]) == (to <= ends[i]));
        }
    }
}

enum { MANY = 40, STEPS = 3 };

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
    struct step_batch_seq seq[MANY];
    int32_t tokens[MANY][24], page[MANY][2];
    out->logits = calloc(STEPS * MANY * vocab, sizeof *out->logits);
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < 24; k++) tokens[i][k] = (i * 37 + k * 11 + 5) % 280;
        page[i][0] = 2 * i;
        page[i][1] = 2 * i + 1;
        seq[i] = (struct step_batch_seq){.tokens = tokens[i], .pages = page[i], .n_pages = 2, .n = 1};
    }
    for (int step = 0; step < STEPS; step++) {
        int rows = 0;
        for (int i = 0; i < n; i++) {
            seq[i].start = step;
            seq[i].rows = step != 1 || i % 3;
            rows += seq[i].rows;
        }
        step_batch_build(&g->batch, d, seq, n);
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
    static const struct {
        const char *quantize, *activations;
    } kinds[] = {{NULL, "f32"}, {"int8", "f32"}, {"int4-nearest", "f32"}, {"nf4", "f32"}, {"nf4", "bf16"}};
    static const int sizes[] = {3, 5, 9, 17, 33};
    struct engine_config c = config("simt");
    c.max_seqs = MANY;
    c.kv_pages = 2 * MANY;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        c.quantize = kinds[k].quantize;
        c.activations = kinds[k].activations;
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
                assert_int_equal(padded.sizes[step], step_batch_padded(n, MANY));
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
    use_patched(g);
    patched.ops.replay_most = 2; /* a device that keeps no more is shown no more */
    struct simt_counts start = simt_counts(), end;
    warmup_steps(&g->batch, &engine_setup(g)->model, 60 * 1000);
    assert_int_equal(simt_counts().graphs - start.graphs, 2);
    use_own(g);
    warmup_steps(&g->batch, &engine_setup(g)->model, 60 * 1000);
    end = simt_counts();
    assert_int_equal(end.graphs - start.graphs, 3); /* of 1, 2 and 4 texts */
    generate(g, 0, ASKS, warm);
    assert_int_equal(simt_counts().graphs, end.graphs);
    assert_true(simt_counts().replays > end.replays);
    engine_close(g);
    for (int i = 0; i < ASKS; i++) assert_same(&cold[i], &warm[i], true);
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

/* ---- two ranks, each with a device ------------------------------------------------------------------------------- */

static void generate_divided(struct reply *y, const char *exchange, bool replays)
{
    struct engine_config c = config("simt");
    struct err e = {0};
    struct reply one;
    struct followers *f = followers_begin(&c, 2, 300, &e);
    if (!f) fail_msg("%s", e.msg);
    struct engine *g = open_engine(c);
    struct simt_counts start = simt_counts(), end;
    assert_string_equal(engine_info(g)->exchange, exchange);
    generate(g, 0, ASKS, y);
    end = simt_counts();
    assert_int_equal(end.graphs - start.graphs > 0, replays);
    assert_int_equal((end.graphs - start.graphs) % 2, 0);

    generate(g, 0, 1, &one);
    submit(g, 0, &one);
    while (one.n < 2) engine_step_once(g, false), take(g);
    for (int k = 0; k < 4 && replays; k++) {
        start = simt_counts();
        engine_step_once(g, false);
        end = simt_counts();
        take(g);
        assert_int_equal(end.syncs - start.syncs, 2); /* once on each rank */
        assert_int_equal(end.replays - start.replays, 2);
    }
    run_out(g, &one, 1);
    engine_close(g);
    followers_end(f, true);
}

static void test_ranks(void **state)
{
    (void)state;
    struct reply whole[ASKS], divided[ASKS];
    struct engine *g = open_engine(config("simt"));
    generate(g, 0, ASKS, whole);
    engine_close(g);
    generate_divided(divided, "between the devices by NCCL 2.28.0", true);
    for (int i = 0; i < ASKS; i++) assert_same(&whole[i], &divided[i], true);
    setenv("SIMT_NCCL", "0", 1);
    generate_divided(divided, "through the host's memory: rank 0: SIMT_NCCL is 0", false);
    unsetenv("SIMT_NCCL");
    for (int i = 0; i < ASKS; i++) assert_same(&whole[i], &divided[i], true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts), cmocka_unit_test(test_measured), cmocka_unit_test(test_replay),
        cmocka_unit_test(test_sizes), cmocka_unit_test(test_padding),  cmocka_unit_test(test_ready),
        cmocka_unit_test(test_ahead), cmocka_unit_test(test_ranks),
    };
    setenv("SIMT_DEVICES", "2", 1);
    if (argc != 2) return fprintf(stderr, "usage: simt_steps_test FIXTURES/models\n"), 2;
    fixtures = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
