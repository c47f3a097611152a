/* The engine's memory on a device that has its own: simt, the CUDA kernels on the CPU.  Nothing is taken after the
 * start, what does not fit is refused, a copy that fails publishes nothing, and a device that is lost ends everything.
 *
 *   simt_memory_test FIXTURES/models */
#include "tests/unit/engine/serve/simt_rig.h"

/* ---- a device that is lost -------------------------------------------------------------------------------------- */

static void test_lost(void **state)
{
    (void)state;
    struct reply right[ASKS], y[ASKS];
    struct engine_stats s;
    struct engine *g = open_engine(config("simt"));
    generate(g, 0, ASKS, right);

    /* one has begun and pauses, one never began, one runs: that one ends with the device's words, and the others end,
     * too */
    uint64_t begun = submit(g, 1, &y[1]);
    while (y[1].n < 3) engine_step_once(g, false), take(g);
    engine_pause(g, begun);
    engine_pause(g, submit(g, 2, &y[2]));
    submit(g, 0, &y[0]);
    while (y[0].n < 3) engine_step_once(g, false), take(g);
    assert_true(y[1].n >= 3 && y[1].n < TOKENS && y[2].n == 0);
    log_set_level(LOG_ERROR + 1);
    simt_fail_launch(3); /* in the sampling: the step itself is one graph */
    run_out(g, y, ASKS);
    for (int i = 0; i < ASKS; i++) assert_int_equal(y[i].finish, FINISH_ERROR);
    assert_non_null(strstr(y[0].error, "an illegal memory access was encountered"));
    assert_string_equal(y[1].error, "the device was lost");
    assert_true(engine_lost(g));
    engine_stats_read(g, &s);
    assert_true(s.failed_steps == 1 && s.device_lost);

    /* what comes then ends as well, and nothing is asked of the device */
    uint64_t launches = simt_counts().launches;
    generate(g, 0, 1, y);
    assert_int_equal(y[0].finish, FINISH_ERROR);
    assert_string_equal(y[0].error, "the device was lost");
    struct train_job job = {0};
    struct train_plan plan;
    struct err e = {0};
    assert_int_equal(engine_train_plan(g, &job, &plan, &e), ERR_FULL);
    char adapter[1100];
    snprintf(adapter, sizeof adapter, "%s/../adapters/" ADAPTER, fixtures);
    assert_int_equal(engine_adapter_load(g, "late", adapter, NULL, &e), ERR_FULL);
    assert_int_equal(simt_counts().launches, launches);
    engine_close(g);
    log_set_level(LOG_INFO);

    simt_new_process();
    g = open_engine(config("simt"));
    generate(g, 0, ASKS, y);
    for (int i = 0; i < ASKS; i++) assert_same(&right[i], &y[i], true);
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
    bool last =
        ev->kind == TRAIN_FAILED || ev->kind == TRAIN_SUCCEEDED || ev->kind == TRAIN_PAUSED || ev->kind == TRAIN_LOST;
    if (!last) return;
    snprintf(t->text, sizeof t->text, "%s", ev->text ? ev->text : "");
    atomic_store(&t->last, (int)ev->kind + 1);
}

static int train(struct engine *g, const struct dataset *data, const char *dir, struct told *t)
{
    struct err e = {0};
    char out[128];
    snprintf(out, sizeof out, "%s/out", dir);
    struct train_job job = {.data = data, .dir = dir, .out = out, .base_name = "base"};
    train_params_default(&job.p, TRAIN_LORA);
    job.p.max_steps = 4;
    job.p.save_steps = 1;
    job.p.batch_tokens = 32;
    job.p.max_length = 16;
    job.p.lora_r = 4;
    *t = (struct told){0};
    if (engine_train_start(g, &job, note, t, &e)) fail_msg("%s", e.msg);
    while (!atomic_load(&t->last)) engine_step_once(g, false), take(g);
    return atomic_load(&t->last) - 1;
}

static void assert_same_result(const char *a, const char *b)
{
    char path[2][160], *bytes[2];
    size_t n[2];
    struct err e = {0};
    snprintf(path[0], sizeof *path, "%s/out/adapter_model.safetensors", a);
    snprintf(path[1], sizeof *path, "%s/out/adapter_model.safetensors", b);
    for (int i = 0; i < 2; i++)
        if (file_read(path[i], 1 << 28, &bytes[i], &n[i], &e)) fail_msg("%s", e.msg);
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(bytes[0], bytes[1], n[0]);
    free(bytes[0]), free(bytes[1]);
}

static void test_training(void **state)
{
    (void)state;
    struct reply right[ASKS], y[ASKS], held;
    struct engine_stats s;
    struct told told;
    char dir[] = "/tmp/tandem-simt-XXXXXX", one[64], other[64], adapter[1100];
    struct err e = {0};
    if (!mkdtemp(dir)) fail();
    snprintf(one, sizeof one, "%s/one", dir);
    snprintf(other, sizeof other, "%s/other", dir);
    snprintf(adapter, sizeof adapter, "%s/../adapters/" ADAPTER, fixtures);
    struct engine *g = open_engine(config("simt"));
    if (engine_adapter_load(g, "a", adapter, NULL, &e)) fail_msg("%s", e.msg);
    struct dataset *data = rows_make(8, engine_info(g)->vocab, 3);
    use_adapter = "a";
    generate(g, 0, ASKS, right);
    engine_stats_read(g, &s);
    size_t used = s.device_used;
    assert_int_equal(used, engine_info(g)->device_base + s.adapter_bytes);
    struct simt_counts start = simt_counts();
    if (train(g, data, one, &told) != TRAIN_SUCCEEDED) fail_msg("%s", told.text);
    uint64_t launches = simt_counts().launches - start.launches;
    generate(g, 0, ASKS, y);
    for (int i = 0; i < ASKS; i++) assert_same(&right[i], &y[i], true);
    engine_stats_read(g, &s);
    assert_int_equal(s.device_used, used);                /* the job gave everything back */
    assert_int_equal(simt_counts().memory, start.memory); /* and the system was asked for nothing */

    /* in its steps: the job ends without a verdict, a request that waits with an error */
    engine_pause(g, submit(g, 1, &held));
    log_set_level(LOG_ERROR + 1);
    simt_fail_launch((long)(launches * 3 / 4));
    assert_int_equal(train(g, data, other, &told), TRAIN_LOST);
    assert_non_null(strstr(told.text, "device"));
    run_out(g, &held, 1);
    assert_int_equal(held.finish, FINISH_ERROR);
    assert_string_equal(held.error, "the device was lost");
    assert_true(engine_lost(g));
    assert_int_equal(train(g, data, other, &told), TRAIN_LOST); /* begun again at once: as well */
    engine_close(g);
    log_set_level(LOG_INFO);
    use_adapter = NULL;

    /* another process goes on from the checkpoint and ends with the bytes of the unbroken job */
    simt_new_process();
    g = open_engine(config("simt"));
    start = simt_counts();
    if (train(g, data, other, &told) != TRAIN_SUCCEEDED) fail_msg("%s", told.text);
    assert_true(simt_counts().launches - start.launches < launches); /* not from the beginning */
    assert_same_result(one, other);
    engine_close(g);
    free(data);
    dir_remove(dir);
}

/* ---- the device between two threads ------------------------------------------------------------------------------ */

struct stops {
    struct engine *g;
    bool pauses; /* the job, when the next thing it does is an evaluation */
    int evals;
    struct told told;
};

static void pause_at_evaluation(void *arg, const struct train_event *ev)
{
    struct stops *s = arg;
    if (ev->kind == TRAIN_STEP && s->pauses) engine_train_command(s->g, TRAIN_PAUSE);
    s->evals += ev->kind == TRAIN_EVAL;
    note(&s->told, ev);
}

/* A job that was paused in an evaluation goes on with its uploads: inside the gate, beside steps of requests, as
 * device_owner.h checks at every call. */
static void test_paused_in_evaluation(void **state)
{
    (void)state;
    static const struct {
        const char *device;
        enum train_method method;
    } cases[] = {{"cpu", TRAIN_LORA}, {"cpu", TRAIN_FULL}, {"simt", TRAIN_LORA}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[] = "/tmp/tandem-simt-XXXXXX";
        if (!mkdtemp(dir)) fail();
        struct engine *g = open_engine(config(cases[i].device));
        struct dataset *data = rows_make(8, engine_info(g)->vocab, 3);
        struct train_job job = {.data = data, .dir = dir};
        train_params_default(&job.p, cases[i].method);
        job.p.max_steps = 2;
        job.p.batch_tokens = 32;
        job.p.max_length = 16;
        job.p.lora_r = 4;
        if (cases[i].method == TRAIN_FULL) job.p.optimizer = OPTIMIZER_MUON, job.p.ema_decay = 0.5;
        job.p.eval_fraction = 0.25;
        job.p.eval_steps = 1;
        struct stops s = {.g = g, .pauses = true};
        for (int run = 0; run < 2; run++) {
            struct err e = {0};
            atomic_store(&s.told.last, 0);
            if (engine_train_start(g, &job, pause_at_evaluation, &s, &e)) fail_msg("%s", e.msg);
            while (!atomic_load(&s.told.last)) {
                struct reply y;
                generate(g, 0, 1, &y);
                engine_step_once(g, false);
            }
            if (atomic_load(&s.told.last) - 1 != (s.pauses ? TRAIN_PAUSED : TRAIN_SUCCEEDED))
                fail_msg("%s: %s", cases[i].device, s.told.text);
            assert_int_equal(s.evals, s.pauses ? 0 : 2);
            s.pauses = false;
        }
        engine_close(g);
        free(data);
        dir_remove(dir);
    }
}

/* ---- copies -------------------------------------------------------------------------------------------------------
 */

static void failing_upload(struct dev *d, void *to, const void *from, size_t bytes)
{
    patched.own->upload(d, to, from, bytes);
    patched.uploads++;
}

/* A copy is enqueued: that it failed is known when the device is waited for. */
static int failing_finish(struct dev *d)
{
    if (patched.uploads) dev_fail(d, "upload", "an injected fault");
    patched.uploads = 0;
    return patched.own->finish(d);
}

static void failing_download(struct dev *d, void *host, const void *device, size_t bytes)
{
    (void)host;
    (void)device;
    (void)bytes;
    dev_fail(d, "download", "an injected fault");
}

static void test_copies_fail(void **state)
{
    (void)state;
    struct reply right[ASKS], y[ASKS];
    struct dev_memory before, after;
    struct adapter_info any[1];
    struct err e = {0};
    char adapter[1100];
    snprintf(adapter, sizeof adapter, "%s/../adapters/" ADAPTER, fixtures);
    struct engine *g = open_engine(config("simt"));
    struct dev *d = device_of(g);
    generate(g, 0, ASKS, right);
    d->ops->memory(d, &before);

    /* an adapter whose copy failed is not there */
    use_patched(g);
    patched.ops.upload = failing_upload;
    patched.ops.finish = failing_finish;
    assert_int_equal(engine_adapter_load(g, "a", adapter, NULL, &e), ERR_IO);
    if (!strstr(e.msg, "an injected fault")) fail_msg("%s", e.msg);
    use_own(g);
    assert_null(d->error.op);
    assert_int_equal(engine_adapters_list(g, any, 1), 0);
    generate(g, 0, ASKS, y);
    for (int i = 0; i < ASKS; i++) assert_same(&right[i], &y[i], true);

    /* nor is a hidden state that could not be read; the error is that of no other request */
    int32_t prompt[3] = {1, 2, 3};
    struct gen_request q = {.prompt = prompt, .n_prompt = 3, .pooling = {{POOLING_MEAN}, 1}, .user = &y[0]};
    use_patched(g);
    patched.ops.download = failing_download;
    log_set_level(LOG_ERROR + 1);
    y[0] = (struct reply){0};
    if (!engine_submit(g, &q, &e)) fail_msg("%s", e.msg);
    run_out(g, y, 1);
    log_set_level(LOG_INFO);
    use_own(g);
    assert_int_equal(y[0].finish, FINISH_ERROR);
    assert_non_null(strstr(y[0].error, "an injected fault"));
    generate(g, 0, ASKS, y);
    for (int i = 0; i < ASKS; i++) assert_same(&right[i], &y[i], true);
    if (engine_adapter_load(g, "a", adapter, NULL, &e)) fail_msg("%s", e.msg);
    if (engine_adapter_unload(g, "a", &e)) fail_msg("%s", e.msg);
    engine_step_once(g, false);
    d->ops->memory(d, &after);
    assert_int_equal(before.used, after.used);
    engine_close(g);
}

/* An upload waits for one half of the staging memory at a time, never for the stream.  simt runs nothing that is not
 * waited for, so a half that is written too early shows in what arrives. */
static void test_staging(void **state)
{
    (void)state;
    enum { HALF = 16 << 20, HALVES = 6, BYTES = HALVES * HALF + 12345 };
    struct engine_config c = config("simt");
    c.gpu_memory_bytes = 256 << 20;
    struct engine *g = open_engine(c);
    struct dev *d = device_of(g);
    uint32_t *host = malloc(BYTES), *back = malloc(BYTES);
    char *p = d->ops->alloc(d, BYTES);
    assert_true(host && back && p);
    assert_int_equal(d->ops->finish(d), 0);
    for (uint32_t i = 0; i < BYTES / 4; i++) host[i] = i * 2654435761u;
    memset((char *)host + BYTES / 4 * 4, 7, BYTES % 4);
    struct simt_counts start = simt_counts();
    d->ops->upload(d, p, host, BYTES);
    struct simt_counts end = simt_counts();
    assert_int_equal(end.syncs, start.syncs);
    assert_int_equal(end.event_waits - start.event_waits, HALVES);
    d->ops->download(d, back, p, BYTES);
    assert_memory_equal(host, back, BYTES);

    /* small pieces, over several halves, each changed when it has been given */
    enum { PIECE = 1000 * 1000, PIECES = 40 };
    for (int i = 0; i < PIECES; i++) {
        memset(back, i + 1, PIECE);
        d->ops->upload(d, p + (size_t)i * PIECE, back, PIECE);
    }
    memset(back, 0, PIECE);
    d->ops->download(d, back, p, (size_t)PIECES * PIECE);
    for (int i = 0; i < PIECES * PIECE; i += 997) assert_int_equal(((uint8_t *)back)[i], i / PIECE + 1);
    d->ops->free(d, p);
    assert_null(d->error.op);
    free(host), free(back);
    engine_close(g);
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
    if (!strstr(e.msg, "the largest free block has")) fail_msg("%s", e.msg);
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
    simt_limit_allocation(48 << 20);
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
    simt_limit_allocation(SIZE_MAX);
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

    /* all of it: but for what the system needs, which then is no part of the budget */
    struct dev_memory m;
    c = config("simt");
    c.gpu_memory_fraction = 1;
    g = open_engine(c);
    device_of(g)->ops->memory(device_of(g), &m);
    assert_int_equal(m.budget, m.total - (512ull << 20));
    assert_int_equal(engine_info(g)->device_budget, m.budget);
    assert_int_equal(m.largest, m.budget - m.used);
    assert_null(device_of(g)->ops->alloc(device_of(g), m.largest + 1));
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
        cmocka_unit_test(test_budget),  cmocka_unit_test(test_pieces),      cmocka_unit_test(test_names),
        cmocka_unit_test(test_no_room), cmocka_unit_test(test_training),    cmocka_unit_test(test_lost),
        cmocka_unit_test(test_staging), cmocka_unit_test(test_copies_fail), cmocka_unit_test(test_paused_in_evaluation),
    };
    if (argc != 2) return fprintf(stderr, "usage: simt_memory_test FIXTURES/models\n"), 2;
    fixtures = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
