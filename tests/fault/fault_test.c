/* The engine on a device and a page pool that fail: the n-th op, the n-th page, the n-th piece of the device's memory,
 * for every n that a small workload comes to.  What must hold each time: a request gets an error or its right answer,
 * bit for bit; nothing is held afterwards; the next requests get what they would have got without the failure.  A
 * training job fails with a reason, and taken up again it ends with the bytes of an unbroken run.
 *
 *   fault_test FIXTURES/models */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/model/model.h"
#include "engine/serve/kv.h"
#include "engine/serve/manual_step.h"
#include "engine/train/train.h"
#include "tests/fault/faulty.h"
#include "tests/train/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TANDEM_SANITIZED
enum { STRIDE = 7 }; /* sanitizers are slow: every seventh n */
#else
enum { STRIDE = 1 };
#endif

static const char *fixtures;
static char scratch[64];

/* ---- what fails -------------------------------------------------------------------------------------------------- */

/* Calls from the first-th on fail, `count` of them; 0: none. */
struct fault {
    int first, count, seen;
};

static struct fault op_fault, page_fault, memory_fault;

static bool fails(struct fault *f)
{
    f->seen++;
    return f->first && f->seen >= f->first && f->seen < f->first + f->count;
}

static void arm(struct fault *f, int first, int count)
{
    *f = (struct fault){.first = first, .count = count};
}

int32_t __real_kv_alloc(struct kv_pool *);
int32_t __wrap_kv_alloc(struct kv_pool *);

/* the linker's --wrap puts it in the place of kv_alloc */
int32_t __wrap_kv_alloc(struct kv_pool *p)
{
    return fails(&page_fault) ? -1 : __real_kv_alloc(p);
}

bool faulty_fails(enum faulty_kind kind)
{
    return fails(kind == FAULTY_OP ? &op_fault : &memory_fault);
}

static void nothing_fails(void)
{
    arm(&op_fault, 0, 0);
    arm(&page_fault, 0, 0);
    arm(&memory_fault, 0, 0);
}

/* ---- a small workload: a greedy request, a sampled one that wants its prompt's log-probabilities, an embedding ----
 */

enum { ASKS = 3, TOKENS = 48, VALUES = 512 };

struct answer {
    enum finish_reason finish;
    int n_tokens, n_prompt, n_values;
    int32_t token[TOKENS];
    float logprob[TOKENS], prompt_logprob[TOKENS], value[VALUES];
    const char *error;
};

static struct gen_request ask(int i, int32_t prompt[TOKENS])
{
    for (int k = 0; k < TOKENS; k++) prompt[k] = (k * 7 + i * 3 + 1) % 60;
    struct gen_request q = {.prompt = prompt,
                            .n_prompt = 20 + 9 * i,
                            .max_new_tokens = 7 - i,
                            .ignore_eos = true,
                            .sampling = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition = 1}};
    q.sampling.sample = i == 1;
    q.sampling.seed = 11;
    q.prompt_logprobs = i == 1;
    q.pooling = (struct poolings){{POOLING_MEAN}, i == 2};
    return q;
}

static void take(const struct event_batch *b, const struct event *v)
{
    struct answer *a = v->user;
    assert_int_equal(a->finish, FINISH_NONE);
    if (v->kind == EV_TOKEN) {
        a->token[a->n_tokens] = v->token;
        a->logprob[a->n_tokens++] = v->logprob;
    } else if (v->kind == EV_PROMPT) {
        a->prompt_logprob[a->n_prompt] = a->n_prompt ? v->logprob : 0; /* that of the first is no number */
        a->n_prompt++;
    } else if (v->kind == EV_EMBEDDING) {
        assert_in_range(v->n_values, 1, VALUES);
        a->n_values = v->n_values;
        memcpy(a->value, b->values + v->values, (size_t)v->n_values * sizeof *a->value);
    } else {
        a->finish = v->finish;
        a->error = v->error;
    }
}

/* Submits the workload and turns the engine until all of it has ended. */
static void work(struct engine *g, struct answer a[ASKS])
{
    int32_t prompt[TOKENS];
    struct err e = {0};
    memset(a, 0, ASKS * sizeof *a);
    for (int i = 0; i < ASKS; i++) {
        struct gen_request q = ask(i, prompt);
        q.user = &a[i];
        if (!engine_submit(g, &q, &e)) fail_msg("%s", e.msg);
    }
    for (int turns = 0, left = ASKS; left; turns++) {
        assert_in_range(turns, 0, 1000);
        engine_step_once(g, false);
        struct event_batch *all = engine_events(g);
        for (struct event_batch *b = all; b; b = b->next)
            for (int i = 0; i < b->n; i++) {
                take(b, &b->v[i]);
                left -= b->v[i].kind == EV_DONE;
            }
        engine_events_done(g, all);
    }
}

static bool same(const struct answer *a, const struct answer *b)
{
    return a->finish == b->finish && a->n_tokens == b->n_tokens && a->n_prompt == b->n_prompt &&
           a->n_values == b->n_values && !memcmp(a->token, b->token, sizeof a->token) &&
           !memcmp(a->logprob, b->logprob, sizeof a->logprob) && !memcmp(a->value, b->value, sizeof a->value) &&
           !memcmp(a->prompt_logprob, b->prompt_logprob, sizeof a->prompt_logprob);
}

/* Each is right or ended with an error that says so; returns how many errors. */
static int judge(const struct answer *a, const struct answer *right, const char *what, int n)
{
    int errors = 0;
    for (int i = 0; i < ASKS; i++) {
        bool error = a[i].finish == FINISH_ERROR && a[i].error && *a[i].error;
        if (!error && !same(&a[i], &right[i])) fail_msg("%s %d: answer %d is wrong", what, n, i);
        errors += error;
    }
    return errors;
}

static void nothing_is_held(struct engine *g)
{
    struct engine_stats s;
    engine_stats_read(g, &s);
    assert_int_equal(s.pages_used, 0);
    assert_int_equal(s.running + s.waiting + s.paused, 0);
    assert_true(s.step_started == 0);
}

struct rig {
    struct engine *g;
    struct faulty f;
    struct answer right[ASKS];
};

static void rig_open(struct rig *r, const char *model, int pages)
{
    struct err e = {0};
    char *dir = file_join(fixtures, model);
    struct engine_config c = {
        .model = dir, .threads = 1, .kv_pages = pages, .max_seqs = 4, .max_batch_tokens = 24, .kv_type = "f32"};
    r->g = engine_open(&c, &e);
    if (!r->g) fail_msg("%s: %s", model, e.msg);
    free(dir);
    nothing_fails();
    faulty_open(&r->f, engine_setup(r->g)->model.d);
    work(r->g, r->right);
    assert_int_equal(judge(r->right, r->right, "without a fault", 0), 0);
    nothing_is_held(r->g);
}

static void rig_close(struct rig *r)
{
    faulty_close(&r->f, engine_setup(r->g)->model.d);
    engine_close(r->g);
}

static void the_next_is_right(struct rig *r, const char *what, int n)
{
    struct answer a[ASKS];
    nothing_is_held(r->g);
    work(r->g, a);
    if (judge(a, r->right, what, n)) fail_msg("%s %d: the next requests fail", what, n);
}

static void ops_fail(const char *model, int count)
{
    struct rig r;
    struct answer a[ASKS];
    rig_open(&r, model, 32);
    int n = 1;
    for (;; n += STRIDE) {
        arm(&op_fault, n, count);
        work(r.g, a);
        bool reached = op_fault.seen >= n;
        arm(&op_fault, 0, 0);
        int errors = judge(a, r.right, "op", n);
        if (!reached) break;
        assert_true(errors > 0);
        the_next_is_right(&r, "after op", n);
    }
    assert_true(n > 40); /* several steps of a model with layers */
    rig_close(&r);
}

static void test_ops(void **state)
{
    (void)state;
    ops_fail("llama-gqa", 1);
    ops_fail("gpt2", 3);
}

/* Pages that are refused for a while: nobody gets an error, and no bit changes. */
static void test_pages(void **state)
{
    (void)state;
    for (int pages = 6; pages <= 32; pages += 26) { /* with preemptions of its own, and without */
        struct rig r;
        struct answer a[ASKS];
        rig_open(&r, "llama-gqa", pages);
        int n = 1;
        for (bool reached = true; reached; n++) {
            arm(&page_fault, n, 1 + n % 3);
            work(r.g, a);
            reached = page_fault.seen >= n;
            arm(&page_fault, 0, 0);
            assert_int_equal(judge(a, r.right, "page", n), 0);
            the_next_is_right(&r, "after page", n);
        }
        assert_true(n > 5);
        rig_close(&r);
    }
}

static void test_adapter_memory(void **state)
{
    (void)state;
    struct rig r;
    struct err e = {0};
    char dir[1200];
    rig_open(&r, "llama-gqa", 32);
    snprintf(dir, sizeof dir, "%s/../adapters/llama-gqa--qv", fixtures);
    int n = 1, rc = -1;
    for (; rc; n++) {
        arm(&memory_fault, n, 1);
        rc = engine_adapter_load(r.g, "qv", dir, NULL, &e);
        bool reached = memory_fault.seen >= n;
        arm(&memory_fault, 0, 0);
        assert_int_equal(rc, reached ? ERR_NOMEM : 0);
        struct engine_stats s;
        engine_stats_read(r.g, &s);
        assert_int_equal(s.adapters, rc == 0);
        assert_true((s.adapter_bytes > 0) == (rc == 0));
        the_next_is_right(&r, "after an adapter", n);
    }
    assert_true(n > 2);
    rig_close(&r);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

struct told {
    enum train_event_kind last;
    char text[512];
};

static void on_event(void *arg, const struct train_event *e)
{
    struct told *t = arg;
    t->last = e->kind;
    if (e->text) snprintf(t->text, sizeof t->text, "%s", e->text);
}

static void remove_tree(const char *path)
{
    char cmd[512];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", path);
    assert_int_equal(system(cmd), 0);
}

/* TRAIN_FAILED also for a job that could not be opened. */
static struct told train(struct model *m, const struct dataset *data, enum train_method method, const char *name)
{
    struct told told = {.last = TRAIN_FAILED};
    struct err e = {0};
    char *dir = file_join(scratch, name), *out = file_join(dir, "out");
    struct train_job job = {.data = data, .base_name = "base", .dir = dir, .out = out};
    train_params_default(&job.p, method);
    job.p.max_length = 48;
    job.p.batch_tokens = 128;
    job.p.epochs = 1;
    job.p.lora_r = 2;
    job.p.lora_alpha = 4;
    job.p.save_steps = 1;
    job.p.warmup_ratio = 0;
    struct train *t = train_open(&job, m, NULL, &e);
    if (t)
        train_run(t, on_event, &told);
    else
        snprintf(told.text, sizeof told.text, "%s", e.msg);
    train_free(t);
    free(dir);
    free(out);
    return told;
}

static char *result_of(const char *name, const char *file, size_t *n)
{
    struct err e = {0};
    char path[256], *p = NULL;
    snprintf(path, sizeof path, "%s/%s/out/%s", scratch, name, file);
    if (file_read(path, 1 << 28, &p, n, &e)) fail_msg("%s", e.msg);
    return p;
}

/* A job whose n-th op or piece of memory fails, for n in steps: it says why, and goes on to the right end. */
static void training_fails(const char *model, enum train_method method, struct fault *fault, int stride,
                           const char *file)
{
    struct model m;
    struct faulty f;
    struct err e = {0};
    char *dir = file_join(fixtures, model);
    if (model_load(&m, dir, "cpu", 1, NULL, false, &e)) fail_msg("%s: %s", model, e.msg);
    free(dir);
    struct dataset *data = rows_make(12, m.c.vocab, 3);
    nothing_fails();
    faulty_open(&f, m.d);
    size_t n_right, n_after;
    assert_int_equal(train(&m, data, method, "right").last, TRAIN_SUCCEEDED);
    char *right = result_of("right", file, &n_right);
    int total = fault->seen, rounds = 0;
    for (int n = 1; n <= total; n += stride, rounds++) {
        arm(fault, n, 1);
        struct told told = train(&m, data, method, "broken");
        arm(fault, 0, 0);
        if (told.last != TRAIN_SUCCEEDED) {
            assert_int_equal(told.last, TRAIN_FAILED);
            assert_true(told.text[0]);
            assert_null(m.d->error.op);
            told = train(&m, data, method, "broken");
            if (told.last != TRAIN_SUCCEEDED) fail_msg("%s, %d: not taken up again: %s", model, n, told.text);
        }
        char *after = result_of("broken", file, &n_after);
        if (n_after != n_right || memcmp(after, right, n_right)) fail_msg("%s, %d: other bytes", model, n);
        free(after);
        remove_tree(scratch);
    }
    assert_true(rounds > 1);
    free(right);
    free(data);
    faulty_close(&f, m.d);
    model_close(&m);
}

static void test_training_ops(void **state)
{
    (void)state;
    training_fails("llama-gqa", TRAIN_LORA, &op_fault, 23 * STRIDE, "adapter_model.safetensors");
    training_fails("gpt2", TRAIN_FULL, &op_fault, 31 * STRIDE, "model.safetensors");
}

static void test_training_memory(void **state)
{
    (void)state;
    training_fails("llama-gqa", TRAIN_LORA, &memory_fault, STRIDE, "adapter_model.safetensors");
    training_fails("gpt2", TRAIN_FULL, &memory_fault, STRIDE, "model.safetensors");
}

int main(int argc, char **argv)
{
    fixtures = argc > 1 ? argv[1] : "tests/fixtures/models";
    snprintf(scratch, sizeof scratch, "/tmp/tandem-fault-XXXXXX");
    if (!mkdtemp(scratch)) return 1;
    log_set_level(LOG_ERROR + 1); /* the engine complains of every failed step, as it should */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ops),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_adapter_memory),
        cmocka_unit_test(test_training_ops),
        cmocka_unit_test(test_training_memory),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove_tree(scratch);
    return failed;
}
