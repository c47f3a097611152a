/* The engine's memory on a device that has its own: simt, the CUDA kernels on the CPU.  Nothing is taken after the
 * start, what does not fit is refused, and a device that is lost is opened anew, once.
 *
 *   simt_memory_test FIXTURES/models */
#include "tests/unit/engine/simt_rig.h"

/* ---- a device that is lost -------------------------------------------------------------------------------------- */

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
    assert_int_equal(used, engine_info(g)->device_base + s.adapter_bytes);
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
 * train_watch.h checks at every call. */
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
                engine_turn(g, false);
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
        cmocka_unit_test(test_budget),  cmocka_unit_test(test_pieces),   cmocka_unit_test(test_names),
        cmocka_unit_test(test_no_room), cmocka_unit_test(test_training), cmocka_unit_test(test_paused_in_evaluation),
        cmocka_unit_test(test_lost), /* the last: it leaves the runtime lost */
    };
    if (argc != 2) return fprintf(stderr, "usage: simt_memory_test FIXTURES/models\n"), 2;
    fixtures = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
