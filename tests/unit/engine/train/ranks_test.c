/* Ranks that are threads of this process, each with a model of its own: the bytes of one rank with as many slots,
 * whatever the device; and what they agree on. */
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/train/grad_slots.h"
#include "engine/train/ranks.h"
#include "engine/train/train_state.h"
#include "kernels/comm.h"
#include "tests/unit/engine/train/train_rig.h"

#include <pthread.h>

enum { RANKS_MAX = 8, PATIENCE = 300 };

struct rank {
    struct comm *comm;
    const char *model, *device, *name;
    struct train_params p;
    const struct dataset *data;
    int64_t pause_at;
    void (*event)(struct rank *, const struct train_event *); /* NULL: nothing more */
    int saves;
    struct run run;
    struct err e;
};

static void on_rank_event(void *arg, const struct train_event *e)
{
    struct rank *r = arg;
    on_event(&r->run, e);
    r->saves += e->kind == TRAIN_CHECKPOINT;
    if (r->event) r->event(r, e);
}

static void *train_rank(void *arg)
{
    struct rank *r = arg;
    struct model m;
    char *dir = file_join(fixtures, r->model), *at = path_to(r->name), *out = file_join(at, "out");
    if (!model_load(&m, dir, r->device, 1, NULL, false, &r->e)) {
        struct train_job job = {
            .p = r->p, .data = r->data, .base_name = "base", .dir = at, .out = out, .comm = r->comm};
        r->run = (struct run){.pause_at = r->pause_at, .resumed = -1};
        r->run.t = train_open(&job, &m, NULL, &r->e);
        if (r->run.t) train_run(r->run.t, on_rank_event, r);
        train_free(r->run.t);
        model_close(&m);
    }
    comm_close(r->comm);
    free(dir);
    free(at);
    free(out);
    return NULL;
}

/* Trains on so many ranks; change: called for each of them before; NULL: nothing. */
static void train_on(int ranks, const struct rank *job, struct rank out[RANKS_MAX], void (*change)(struct rank *, int))
{
    struct comm *comm[RANKS_MAX];
    pthread_t thread[RANKS_MAX];
    assert_true(comm_open_local(ranks, PATIENCE, comm));
    for (int i = 0; i < ranks; i++) {
        out[i] = *job;
        out[i].comm = comm[i];
        if (change) change(&out[i], i);
        assert_int_equal(pthread_create(&thread[i], NULL, train_rank, &out[i]), 0);
    }
    for (int i = 0; i < ranks; i++) pthread_join(thread[i], NULL);
}

static struct rank job_of(const char *model, enum train_method method, const struct dataset *data, const char *name)
{
    struct rank r = {.model = model, .device = "cpu", .name = name, .p = params(method), .data = data, .pause_at = -1};
    r.p.grad_slots = 4;
    r.p.eval_fraction = 0.1;
    r.p.eval_steps = 3;
    return r;
}

static void all_last(const struct rank *r, int ranks, enum train_event_kind kind)
{
    for (int i = 0; i < ranks; i++)
        if (r[i].run.last != kind) fail_msg("rank %d of %d: %s %s", i, ranks, r[i].run.text, r[i].e.msg);
}

static void test_any_number(void **state)
{
    (void)state;
    static const struct {
        const char *model, *device;
        enum train_method method;
    } of[] = {{"llama-gqa", "cpu", TRAIN_LORA}, {"gpt2", "cpu", TRAIN_FULL}}; /* simt is of one thread */
    for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
        struct dataset *data = rows_make(30, 256, 5);
        struct rank job = job_of(of[k].model, of[k].method, data, "1"), r[RANKS_MAX];
        job.device = of[k].device;
        if (of[k].method == TRAIN_FULL) regularise(&job.p);
        train_on(1, &job, r, NULL);
        all_last(r, 1, TRAIN_SUCCEEDED);
        double loss = r->run.loss[1], norm = r->run.norm[1], eval = r->run.eval_loss[0];
        for (int ranks = 2; ranks <= 4; ranks *= 2) {
            job.name = ranks == 2 ? "2" : "4";
            train_on(ranks, &job, r, NULL);
            all_last(r, ranks, TRAIN_SUCCEEDED);
            same_result("1", job.name, of[k].model);
            for (int i = 0; i < ranks; i++)
                assert_true(r[i].run.loss[1] == loss && r[i].run.norm[1] == norm && r[i].run.eval_loss[0] == eval);
        }
        remove_tree(scratch);
        free(data);
    }
}

static void divide(struct rank *r, int zero)
{
    r->p.zero = zero;
    r->p.micro_tokens = 512; /* a slot is one micro-batch */
}

static void divide_1(struct rank *r, int rank)
{
    (void)rank;
    divide(r, 1);
}

static void divide_2(struct rank *r, int rank)
{
    (void)rank;
    divide(r, 2);
}

static void divide_3(struct rank *r, int rank)
{
    (void)rank;
    divide(r, 3);
}

/* What is divided over the ranks does not change a bit, of values, moments of all kinds, averages, adapters, and the
 * gradients of layers with experts. */
static void test_divided(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        enum train_method method;
        enum train_optimizer optimizer;
        double average;
    } of[] = {{"llama-gqa", TRAIN_LORA, OPTIMIZER_ADAMW, 0},
              {"gpt2", TRAIN_FULL, OPTIMIZER_ADAMW_8BIT, 0.9},
              {"qwen3-moe", TRAIN_FULL, OPTIMIZER_MUON, 0.9},
              {"llama-gqa", TRAIN_FULL, OPTIMIZER_ADAMW, 0}};
    for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
        struct dataset *data = rows_make(30, 256, 5);
        struct rank job = job_of(of[k].model, of[k].method, data, "1"), r[RANKS_MAX];
        job.p.optimizer = of[k].optimizer;
        job.p.ema_decay = of[k].average;
        job.p.micro_tokens = 512;
        train_on(1, &job, r, NULL);
        all_last(r, 1, TRAIN_SUCCEEDED);
        double norm = r->run.norm[1], eval = r->run.eval_loss[0];
        for (int ranks = 2; ranks <= 4; ranks *= 2)
            for (int zero = 1; zero <= 3; zero++) {
                void (*const change[])(struct rank *, int) = {NULL, divide_1, divide_2, divide_3};
                char name[8];
                snprintf(name, sizeof name, "%d-%d", ranks, zero);
                job.name = name;
                train_on(ranks, &job, r, change[zero]);
                all_last(r, ranks, TRAIN_SUCCEEDED);
                same_result("1", name, of[k].model);
                for (int i = 0; i < ranks; i++) assert_true(r[i].run.norm[1] == norm && r[i].run.eval_loss[0] == eval);
            }
        remove_tree(scratch);
        free(data);
    }
}

static void pause_second(struct rank *r, int rank)
{
    if (rank == 1) r->pause_at = 3;
}

static void pause_at_2(struct rank *r, int rank)
{
    divide(r, 2);
    pause_second(r, rank);
}

static void pause_at_3(struct rank *r, int rank)
{
    divide(r, 3);
    pause_second(r, rank);
}

/* A checkpoint has the whole state, whatever was divided: another number of ranks goes on, at another stage. */
static void test_divided_and_paused(void **state)
{
    (void)state;
    static const enum train_optimizer of[] = {OPTIMIZER_ADAMW_8BIT, OPTIMIZER_MUON};
    for (size_t k = 0; k < 2; k++) {
        struct dataset *data = rows_make(30, 256, 5);
        struct rank job = job_of("llama-gqa", TRAIN_FULL, data, "whole"), r[RANKS_MAX];
        job.p.optimizer = of[k];
        job.p.ema_decay = 0.9;
        job.p.micro_tokens = 512;
        train_on(1, &job, r, NULL);
        all_last(r, 1, TRAIN_SUCCEEDED);
        void (*const change[])(struct rank *, int) = {divide_3, NULL, divide_2};
        const int ranks[] = {2, 1, 2};
        for (int i = 0; i < 3; i++) {
            job.name = i == 0 ? "to 2" : i == 1 ? "to 1" : "to 2 again";
            train_on(4, &job, r, i ? pause_at_3 : pause_at_2);
            all_last(r, 4, TRAIN_PAUSED);
            train_on(ranks[i], &job, r, change[i]);
            all_last(r, ranks[i], TRAIN_SUCCEEDED);
            assert_int_equal(r->run.resumed, 3);
            same_result("whole", job.name, "divided");
        }
        remove_tree(scratch);
        free(data);
    }
}

/* The second rank's clock says so before each step. */
static void late(struct rank *r, const struct train_event *e)
{
    bool now = comm_rank(r->comm) == 1 || e->step % 2 == 0;
    if (e->kind == TRAIN_STEP && now) r->run.t->saved_at = clock_now() - 3600000000000ull;
}

/* Whether it is time for a checkpoint is up to rank 0's clock alone. */
static void test_saved_by_the_clock(void **state)
{
    (void)state;
    void (*const change[])(struct rank *, int) = {NULL, divide_1, divide_2};
    struct dataset *data = rows_make(30, 256, 5);
    struct rank job = job_of("llama-gqa", TRAIN_LORA, data, "whole"), r[RANKS_MAX];
    job.p.eval_fraction = 0;
    job.p.micro_tokens = 512;
    train_on(1, &job, r, NULL);
    all_last(r, 1, TRAIN_SUCCEEDED);
    int steps = r->run.steps;
    assert_true(steps > 4 && r->saves == 2);
    job.event = late;
    for (int zero = 0; zero <= 2; zero++) {
        job.name = zero == 0 ? "0" : zero == 1 ? "1" : "2";
        train_on(2, &job, r, change[zero]);
        all_last(r, 2, TRAIN_SUCCEEDED);
        assert_int_equal(r[0].saves, 2 + (steps - 1) / 2); /* before the first step, every second one, after the last */
        assert_int_equal(r[1].saves, 0);
        same_result("whole", job.name, "saved by the clock");
    }
    remove_tree(scratch);
    free(data);
}

/* A file is where the checkpoints were. */
static void spoil(struct rank *r, const struct train_event *e)
{
    if (comm_rank(r->comm) || e->kind != TRAIN_STEP || e->step != 2) return;
    struct err why = {0};
    char *dir = path_to(r->name), *file = file_join(dir, "checkpoints");
    remove_tree(file);
    if (file_write_sync(file, "x", 1, &why)) fail_msg("%s", why.msg);
    free(dir);
    free(file);
}

static void pause_soon(struct rank *r, int rank)
{
    if (rank == 1) r->pause_at = 2;
}

static void pause_soon_divided(struct rank *r, int rank)
{
    pause_soon(r, rank);
    divide(r, 2);
}

/* The checkpoint of a pause cannot be written, which rank 0 alone sees. */
static void test_paused_and_unwritable(void **state)
{
    (void)state;
    struct dataset *data = rows_make(30, 256, 5);
    struct rank job = job_of("llama-gqa", TRAIN_LORA, data, "full"), r[RANKS_MAX];
    job.event = spoil;
    for (int zero = 0; zero <= 2; zero += 2) {
        train_on(4, &job, r, zero ? pause_soon_divided : pause_soon);
        all_last(r, 4, TRAIN_FAILED);
        for (int i = 0; i < 4; i++)
            if (!strstr(r[i].run.text, "rank 0: the checkpoint could not be written")) fail_msg("%s", r[i].run.text);
        remove_tree(scratch);
    }
    free(data);
}

/* Rank 0 cannot read its checkpoints, and the others wait for it: all end with its reason. */
static void test_divided_and_unreadable(void **state)
{
    (void)state;
    struct dataset *data = rows_make(30, 256, 5);
    struct rank job = job_of("llama-gqa", TRAIN_LORA, data, "no"), r[RANKS_MAX];
    struct err e = {0};
    char *dir = path_to("no"), *file = file_join(dir, "checkpoints");
    if (dir_make(dir, &e) || file_write_sync(file, "x", 1, &e)) fail_msg("%s", e.msg);
    train_on(4, &job, r, divide_1);
    for (int i = 0; i < 4; i++)
        if (!strstr(r[i].e.msg, "rank 0: ") || !strstr(r[i].e.msg, file)) fail_msg("rank %d: \"%s\"", i, r[i].e.msg);
    free(dir);
    free(file);
    remove_tree(scratch);
    free(data);
}

static void several_micro_batches(struct rank *r, int rank)
{
    (void)rank;
    r->p.zero = 2;
    r->p.batch_tokens = 512;
    r->p.micro_tokens = r->p.max_length = 32;
}

static void test_micro_batches_of_a_slot(void **state)
{
    (void)state;
    struct dataset *data = rows_make(30, 256, 5);
    struct rank job = job_of("llama-gqa", TRAIN_LORA, data, "no"), r[RANKS_MAX];
    train_on(2, &job, r, several_micro_batches);
    assert_non_null(strstr(r->e.msg, "zero 2 wants the rows of each slot in one micro-batch"));
    remove_tree(scratch);
    free(data);
}

/* A command to one rank is all ranks'; another number of them goes on. */
static void test_paused(void **state)
{
    (void)state;
    struct dataset *data = rows_make(30, 256, 5);
    struct rank job = job_of("llama-gqa", TRAIN_LORA, data, "whole"), r[RANKS_MAX];
    train_on(1, &job, r, NULL);
    all_last(r, 1, TRAIN_SUCCEEDED);
    job.name = "broken";
    train_on(4, &job, r, pause_second);
    all_last(r, 4, TRAIN_PAUSED);
    train_on(2, &job, r, NULL);
    all_last(r, 2, TRAIN_SUCCEEDED);
    assert_true(r[0].run.resumed == 3 && r[1].run.resumed == 3);
    same_result("whole", "broken", "paused on 4 ranks, ended on 2");
    remove_tree(scratch);
    free(data);
}

static void other_seed(struct rank *r, int rank)
{
    if (rank == 2) r->p.seed = 7;
}

static void other_rate(struct rank *r, int rank)
{
    if (rank == 1) r->p.learning_rate = -1;
}

static void other_level(struct rank *r, int rank)
{
    r->device = rank ? "cpu:portable" : "ref";
}

/* One rank fails, or has something else: all of them end, with that rank's reason. */
static void test_failing_together(void **state)
{
    (void)state;
    static const struct {
        void (*change)(struct rank *, int);
        const char *says;
    } of[] = {{other_seed, "rank 2 has another job than rank 0"},
              {other_rate, "rank 1: learning_rate must be"},
              {other_level, "rank 1 computes on cpu portable and rank 0 on ref"}};
    struct dataset *data = rows_make(30, 256, 5);
    for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
        struct rank job = job_of("llama-gqa", TRAIN_LORA, data, "no"), r[RANKS_MAX];
        train_on(4, &job, r, of[k].change);
        for (int i = 0; i < 4; i++)
            if (!strstr(r[i].e.msg, of[k].says)) fail_msg("rank %d: \"%s\", not \"%s\"", i, r[i].e.msg, of[k].says);
    }
    remove_tree(scratch);
    free(data);
}

static void no_step_is_finite(struct rank *r, int rank)
{
    (void)rank;
    r->p.learning_rate = 1;
    r->p.schedule = SCHEDULE_CONSTANT;
    r->p.max_grad_norm = 0;
    r->p.lora_alpha = 4096;
    r->p.save_steps = 1;
    r->p.epochs = 30;
}

static void no_step_is_finite_divided(struct rank *r, int rank)
{
    no_step_is_finite(r, rank);
    r->p.zero = 1;
}

static void no_step_is_finite_gathered(struct rank *r, int rank)
{
    no_step_is_finite(r, rank);
    divide(r, 3);
}

/* At stage 3 the ranks replay such a step together, also to say where it broke. */
static void test_way_back_gathered(void **state)
{
    (void)state;
    struct dataset *data = rows_make(30, 256, 5);
    struct rank job = job_of("llama-gqa", TRAIN_FULL, data, "nan"), r[RANKS_MAX], one[RANKS_MAX];
    job.p.micro_tokens = 512;
    job.p.weight_decay = 10; /* the weights grow by a factor of nine in each step */
    train_on(1, &job, one, no_step_is_finite);
    job.name = "nan1";
    train_on(2, &job, r, no_step_is_finite_gathered);
    assert_true(one->run.last == TRAIN_FAILED && strstr(one->run.text, "again after the learning rate was halved"));
    all_last(r, 2, TRAIN_FAILED);
    assert_string_equal(r[0].run.text, one->run.text);
    assert_string_equal(r[1].run.text, one->run.text);
    assert_memory_equal(r[1].run.rate, one->run.rate, sizeof r->run.rate);
    remove_tree(scratch);
    free(data);
}

/* Back to a checkpoint, which rank 0 alone reads. */
static void test_way_back(void **state)
{
    (void)state;
    struct dataset *data = rows_make(30, 256, 5);
    struct rank job = job_of("llama-gqa", TRAIN_LORA, data, "nan"), r[RANKS_MAX], one[RANKS_MAX];
    train_on(1, &job, one, no_step_is_finite);
    job.name = "nan1";
    train_on(2, &job, r, no_step_is_finite_divided);
    all_last(r, 2, one->run.last);
    assert_string_equal(r[1].run.text, one->run.text);
    assert_memory_equal(r[1].run.rate, one->run.rate, sizeof r->run.rate);
    job.name = "nan2";
    train_on(2, &job, r, no_step_is_finite);
    assert_true(one->run.last == TRAIN_FAILED && strstr(one->run.text, "again after the learning rate was halved"));
    all_last(r, 2, one->run.last);
    assert_int_equal(r[0].run.steps, one->run.steps);
    assert_string_equal(r[0].run.text, one->run.text);
    assert_memory_equal(r[0].run.rate, one->run.rate, sizeof r->run.rate);
    remove_tree(scratch);
    free(data);
}

static void *serve_requests(void *arg)
{
    train_scatter_end(arg);
    return NULL;
}

/* Rank 0 may spend any time between two requests: in syncing a file, deleting old ones, copying a model's. */
static void test_a_slow_file(void **state)
{
    (void)state;
    struct comm *comm[2];
    struct train *t[2];
    pthread_t other;
    assert_true(comm_open_local(2, 0.1, comm));
    for (int i = 0; i < 2; i++) {
        t[i] = mem_zalloc(sizeof *t[i]);
        t[i]->o.s.divided = true;
        t[i]->job.comm = comm[i];
    }
    comm_wait_long(comm[0], true); /* the other thread may be late */
    assert_int_equal(pthread_create(&other, NULL, serve_requests, t[1]), 0);
    usleep(500000);
    train_scatter_end(t[0]);
    pthread_join(other, NULL);
    for (int i = 0; i < 2; i++) {
        if (comm_error(comm[i])) fail_msg("%s", comm_error(comm[i]));
        comm_close(comm[i]);
        free(t[i]);
    }
}

static void test_slots(void **state)
{
    (void)state;
    struct grad_slots s;
    struct err e = {0};
    for (int ranks = 1; ranks <= 8; ranks *= 2)
        for (int rank = 0; rank < ranks; rank++) {
            assert_int_equal(grad_slots_init(&s, 8, rank, ranks, 0, &e), 0);
            assert_true(s.first == rank * 8 / ranks && s.count == 8 / ranks);
            assert_int_equal(1 << grad_slots_levels(&s), s.count);
        }
    assert_int_equal(grad_slots_init(&s, 8, 1, 4, 2, &e), 0);
    assert_true(grad_slots_number(&s, 0) == 1 && grad_slots_number(&s, 1) == 5 && s.count == 2);
    assert_int_equal(grad_slots_init(&s, 8, 0, 3, 0, &e), ERR_INVALID);
    assert_int_equal(grad_slots_init(&s, 8, 0, 16, 0, &e), ERR_INVALID);
    assert_int_equal(grad_slots_init(&s, 64, 0, 1, 0, &e), 0);
    assert_int_equal(grad_slots_levels(&s), GRAD_SLOT_LEVELS);
}

/* Sums of numbers that show their order: the tree's. */
static void test_tree(void **state)
{
    (void)state;
    char why[160];
    struct dev *d = dev_open(&(struct dev_config){.name = "cpu", .threads = 1}, why);
    struct optim o;
    struct err e = {0};
    optim_init(&o, d, NULL);
    optim_add(&o, 5, true);
    assert_int_equal(optim_alloc(&o, false, &e), 0);
    for (int count = 1; count <= 16; count *= 2) {
        struct grad_slots s;
        float v[16] = {0};
        assert_int_equal(grad_slots_init(&s, count, 0, 1, 0, &e), 0);
        assert_int_equal(grad_slots_alloc(&s, &o, &e), 0);
        for (int step = 0; step < 2; step++) {
            grad_slots_begin(&s, &o);
            for (int i = 0; i < count; i++) {
                assert_true(o.g[0] == 0 && o.g[4] == 0);
                v[i] = o.g[0] = o.g[4] = 1.0f / (float)(3 + i) * (i % 3 ? 1 : 1e6f);
                grad_slots_end(&s, &o);
            }
            for (int half = 1; half < count; half *= 2)
                for (int i = 0; i < count; i += 2 * half) v[i] += v[i + half];
            assert_true(o.g[0] == v[0] && o.g[4] == v[0] && o.g[1] == 0);
        }
        grad_slots_free(&s, d);
    }
    optim_free(&o);
    dev_close(d);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_tree),
        cmocka_unit_test(test_any_number),
        cmocka_unit_test(test_divided),
        cmocka_unit_test(test_divided_and_paused),
        cmocka_unit_test(test_saved_by_the_clock),
        cmocka_unit_test(test_paused_and_unwritable),
        cmocka_unit_test(test_divided_and_unreadable),
        cmocka_unit_test(test_a_slow_file),
        cmocka_unit_test(test_micro_batches_of_a_slot),
        cmocka_unit_test(test_paused),
        cmocka_unit_test(test_way_back),
        cmocka_unit_test(test_way_back_gathered),
        cmocka_unit_test(test_failing_together),
    };
    rig_begin(argc, argv);
    return cmocka_run_group_tests_name("ranks", tests, NULL, NULL);
}
