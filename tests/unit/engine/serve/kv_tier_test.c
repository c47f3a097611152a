/* The disk tier of the KV cache: a prefix that comes back from disk gives the bits that computing it gives, after a
 * restart, after eviction, of adapters and salts; what is damaged is computed.
 *
 *   kv_tier_test FIXTURES_DIR [ROUNDS of damage] */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/serve/engine_state.h"
#include "engine/serve/kv_tier.h"
#include "engine/serve/manual_step.h"
#include "tests/unit/engine/kvstore/scratch.h"
#include "tests/unit/engine/serve/engine_rig.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TOKENS = 12, LONG = 200, TEXTS = 6 };

static const char *fixtures;
#ifdef TANDEM_SANITIZED
static int rounds = 3; /* sanitizers are slow */
#else
static int rounds = 8;
#endif

struct reply {
    int n, n_cached;
    int32_t ids[TOKENS];
    float logprobs[TOKENS];
    enum finish_reason finish;
};

static void take_event(const struct event_batch *b, const struct event *v)
{
    struct reply *y = v->user;
    if (v->kind == EV_TOKEN) {
        y->ids[y->n] = v->token;
        y->logprobs[y->n++] = v->logprob;
    }
    if (v->kind != EV_DONE) return;
    y->n_cached = v->n_cached;
    y->finish = v->finish;
}

static struct engine_config config_of(const char *model, bool disk)
{
    static char path[2][1024];
    snprintf(path[disk], sizeof path[disk], "%s/%s", fixtures, model);
    return (struct engine_config){.model = path[disk],
                                  .threads = 1,
                                  .kv_pages = 200,
                                  .max_seqs = 8,
                                  .max_batch_tokens = 64,
                                  .max_lora_rank = 16,
                                  .watch_device = true,
                                  .kv_disk = disk ? dir : NULL,
                                  .kv_disk_always = true};
}

/* What makes requests differ. */
struct ask {
    int text, n;
    const char *adapter, *salt;
    uint64_t tenant;
};

static uint64_t submit(struct rig *r, struct ask a, struct reply *y)
{
    int32_t prompt[256];
    struct err e = {0};
    for (int k = 0; k < a.n; k++) prompt[k] = (k * 7 + k / 16 * 5 + a.text * 31 + 1) % 280;
    struct gen_request q = {.prompt = prompt,
                            .n_prompt = a.n,
                            .max_new_tokens = TOKENS,
                            .ignore_eos = true,
                            .sampling = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition = 1},
                            .adapter = a.adapter,
                            .cache_salt = a.salt,
                            .cache_tenant = a.tenant,
                            .user = y};
    q.sampling.sample = a.text % 2;
    q.sampling.seed = 5;
    *y = (struct reply){0};
    uint64_t id = engine_submit(r->g, &q, &e);
    if (!id) fail_msg("%s", e.msg);
    r->left++;
    return id;
}

static struct reply generate(struct rig *r, struct ask a)
{
    struct reply y;
    submit(r, a, &y);
    run_out(r);
    assert_int_equal(y.finish, FINISH_LENGTH);
    return y;
}

static void assert_same(const struct reply *a, const struct reply *b)
{
    assert_int_equal(a->n, TOKENS);
    assert_memory_equal(a->ids, b->ids, sizeof a->ids);
    assert_memory_equal(a->logprobs, b->logprobs, sizeof a->logprobs);
}

static struct kv_disk_stats stats(struct rig *r)
{
    struct engine_stats s;
    engine_stats_read(r->g, &s);
    return s.kv_disk;
}

/* Until so many pages are on disk. */
static void await_pages(struct rig *r, uint64_t n)
{
    while (stats(r).pages < n) usleep(1000);
}

static void load_adapter(struct rig *r, const char *name)
{
    char path[1200];
    struct err e = {0};
    snprintf(path, sizeof path, "%s/../adapters/%s", fixtures, name);
    if (engine_adapter_load(r->g, "a", path, NULL, &e)) fail_msg("%s", e.msg);
}

static void restart_of(const char *model, const char *kv_type, const char *device)
{
    struct engine_config plain = config_of(model, false), disk = config_of(model, true);
    struct reply want[TEXTS], got;
    struct rig r;
    plain.kv_type = disk.kv_type = kv_type;
    plain.device = disk.device = device;
    plain.no_prefix_cache = true;
    int n = device ? 2 : TEXTS;
    rig_open(&r, plain);
    int most = engine_info(r.g)->max_total_tokens - TOKENS, len = most < LONG ? most : LONG;
    for (int i = 0; i < n; i++) want[i] = generate(&r, (struct ask){.text = i, .n = len - 7 * i});
    rig_close(&r);
    for (int run = 0; run < 3; run++) {
        disk.max_batch_tokens = 64 - 16 * run; /* other chunks, and a part of the text in memory */
        rig_open(&r, disk);
        for (int i = 0; i < n; i++) {
            if (run == 2) generate(&r, (struct ask){.text = i, .n = 100});
            got = generate(&r, (struct ask){.text = i, .n = len - 7 * i});
            assert_same(&got, &want[i]);
            assert_int_equal(got.n_cached, run ? (len - 7 * i - 1) / 16 * 16 : 0);
        }
        struct kv_disk_stats s = stats(&r);
        assert_true(run ? s.hits > 0 && s.loads >= (uint64_t)n : s.hits == 0);
        assert_int_equal(s.corrupt + s.write_errors, 0);
        rig_close(&r);
    }
}

static void test_restart(void **state)
{
    restart_of("qwen2", "f32", NULL);
}

static void test_restart_types(void **state)
{
    restart_of("qwen2", "int8", NULL); /* another model on disk: what is there is not found */
    restart_of("qwen2-bf16", "bf16", NULL);
    restart_of("llama-dynamic", "f16", NULL); /* texts beyond its first positions have other keys */
    restart_of("gemma3", "f32", "ref");
}

static void test_restart_simt(void **state)
{
    char why[160];
    struct dev *d = dev_open(&(struct dev_config){.name = "simt"}, why);
    if (!d) skip();
    dev_close(d);
    restart_of("qwen2", "f16", "simt");
}

/* More texts than memory holds: they come back from disk in the same process. */
static void test_eviction(void **state)
{
    struct engine_config c = config_of("qwen2", true);
    struct reply first[TEXTS], again;
    struct rig r;
    c.kv_pages = 40; /* of 14 a text */
    rig_open(&r, c);
    for (int i = 0; i < TEXTS; i++) first[i] = generate(&r, (struct ask){.text = i, .n = LONG});
    await_pages(&r, TEXTS * ((LONG + TOKENS - 1) / 16));
    for (int i = 0; i < TEXTS; i++) {
        again = generate(&r, (struct ask){.text = i, .n = LONG});
        assert_same(&again, &first[i]);
    }
    struct kv_disk_stats s = stats(&r);
    assert_true(s.hits >= TEXTS * 8);
    assert_int_equal(s.dropped, 0);
    rig_close(&r);
}

/* Many at once, some cancelled while their pages are read, in a pool that is too small for all. */
static void test_together(void **state)
{
    struct engine_config c = config_of("qwen2", true);
    struct reply want[TEXTS], got[3 * TEXTS];
    struct rig r;
    rig_open(&r, c);
    for (int i = 0; i < TEXTS; i++) want[i] = generate(&r, (struct ask){.text = i, .n = LONG});
    rig_close(&r);
    for (int run = 0; run < 2; run++) {
        c.kv_pages = run ? 30 : 60;
        rig_open(&r, c);
        uint64_t id[3 * TEXTS];
        for (int i = 0; i < 3 * TEXTS; i++) id[i] = submit(&r, (struct ask){.text = i % TEXTS, .n = LONG}, &got[i]);
        for (int i = 1; i < 3 * TEXTS; i += 4) engine_cancel(r.g, id[i]);
        run_out(&r);
        for (int i = 0; i < 3 * TEXTS; i++) {
            assert_int_equal(got[i].finish == FINISH_LENGTH || got[i].finish == FINISH_CANCELLED, true);
            if (got[i].finish == FINISH_LENGTH) assert_same(&got[i], &want[i % TEXTS]);
        }
        rig_close(&r);
    }
}

static void test_separate(void **state)
{
    struct engine_config c = config_of("qwen2", true);
    const struct ask asks[] = {{.text = 1, .n = LONG},
                               {.text = 1, .n = LONG, .adapter = "a"},
                               {.text = 1, .n = LONG, .salt = "s"},
                               {.text = 1, .n = LONG, .salt = "t"},
                               {.text = 1, .n = LONG, .salt = "s", .tenant = 8},
                               {.text = 1, .n = LONG, .tenant = 9}};
    enum { N = sizeof asks / sizeof *asks };
    struct reply want[N], got;
    struct rig r;
    for (int i = 0; i < N; i++) { /* each in a process of its own, after those before */
        rig_open(&r, c);
        load_adapter(&r, "qwen2--ours-patterns");
        want[i] = generate(&r, asks[i]);
        assert_int_equal(want[i].n_cached, 0);
        if (!asks[i].adapter) assert_same(&want[i], &want[0]);
        rig_close(&r);
    }
    assert_memory_not_equal(want[0].logprobs, want[1].logprobs, sizeof want[0].logprobs);
    rig_open(&r, c);
    load_adapter(&r, "qwen2--rslora"); /* another of the same name */
    got = generate(&r, asks[1]);
    assert_int_equal(got.n_cached, 0);
    load_adapter(&r, "qwen2--ours-patterns"); /* another version of the same content */
    for (int i = 0; i < N; i++) {
        got = generate(&r, asks[i]);
        assert_same(&got, &want[i]);
        assert_int_equal(got.n_cached, (LONG - 1) / 16 * 16);
    }
    rig_close(&r);
}

/* The folder of the one model in dir. */
static void folder_path(char *out, size_t size, const char *file)
{
    DIR *d = opendir(dir);
    assert_non_null(d);
    *out = 0;
    for (struct dirent *x; (x = readdir(d));)
        if (strlen(x->d_name) == 32) snprintf(out, size, "%s/%s/%s", dir, x->d_name, file);
    closedir(d);
}

static void damage(int round)
{
    char path[512];
    struct stat st;
    folder_path(path, sizeof path, round % 3 == 1 ? "index" : "pages");
    int fd = open(path, O_RDWR);
    assert_int_equal(fstat(fd, &st), 0);
    if (round % 9 == 8) assert_int_equal(ftruncate(fd, chance(st.st_size)), 0);
    for (int k = 0; k < 20 && round % 9 != 8; k++) {
        unsigned char b;
        off_t at = chance(st.st_size);
        if (pread(fd, &b, 1, at) != 1) continue;
        b ^= (unsigned char)(1 << chance(8));
        assert_int_equal(pwrite(fd, &b, 1, at), 1);
    }
    close(fd);
}

static void test_damage(void **state)
{
    struct engine_config c = config_of("qwen2", true);
    struct reply want[TEXTS], got;
    struct rig r;
    uint64_t corrupt = 0, hits = 0;
    rig_open(&r, c);
    for (int i = 0; i < TEXTS; i++) want[i] = generate(&r, (struct ask){.text = i, .n = LONG});
    rig_close(&r);
    for (int round = 0; round < rounds; round++) {
        bool open = round % 2;
        if (!open) damage(round);
        rig_open(&r, c);
        if (open) damage(round);
        for (int i = 0; i < TEXTS; i++) {
            got = generate(&r, (struct ask){.text = i, .n = LONG});
            assert_same(&got, &want[i]);
        }
        struct kv_disk_stats s = stats(&r);
        corrupt += s.corrupt;
        hits += s.hits;
        rig_close(&r);
    }
    assert_true(corrupt > 0 && hits > 0);
}

/* ---- a device that fails to copy pages ---- */

static struct {
    struct dev_ops ops;
    const struct dev_ops *own;
    int saves, loads, every; /* one of so many saves fails */
    bool late;               /* not at once, but when it is waited for */
    bool fails;
} patched;

/* As on a GPU, nothing is copied after an error. */
static void failing_save(struct dev *d, const struct kv *kv, int page, void *host)
{
    if (d->error.op) return;
    if (++patched.saves % patched.every)
        patched.own->kv_save(d, kv, page, host);
    else if (patched.late)
        patched.fails = true;
    else
        dev_fail(d, "download", "an injected fault");
}

static void failing_load(struct dev *d, struct kv *kv, int page, const void *host)
{
    if (d->error.op) return;
    if (++patched.loads % 32)
        patched.own->kv_load(d, kv, page, host);
    else
        dev_fail(d, "upload", "an injected fault");
}

static int failing_finish(struct dev *d)
{
    if (patched.fails) dev_fail(d, "download", "an injected fault");
    patched.fails = false;
    patched.own->finish(d);
    return d->error.op ? -1 : 0;
}

static struct dev *open_failing(struct rig *r, const struct engine_config *c)
{
    struct err e = {0};
    struct engine *g = engine_open(c, &e);
    if (!g) fail_msg("%s", e.msg);
    struct dev *d = engine_setup(g)->model.d;
    patched.own = d->ops;
    patched.ops = *d->ops;
    patched.ops.kv_save = failing_save;
    patched.ops.kv_load = failing_load;
    patched.ops.finish = failing_finish;
    d->ops = &patched.ops;
    *r = (struct rig){.g = g};
    return d;
}

/* Nothing that was not copied is written or used, and no request ends for it: but for the one whose step waited for a
 * copy that failed. */
static void test_copies_fail(void **state)
{
    struct engine_config c = config_of("qwen2", true), plain = config_of("qwen2", false);
    struct reply want[TEXTS], got;
    struct rig r;
    uint64_t hits = 0, dropped = 0;
    rig_open(&r, plain);
    for (int i = 0; i < TEXTS; i++) want[i] = generate(&r, (struct ask){.text = i, .n = LONG});
    rig_close(&r);
    log_set_level(LOG_ERROR + 1);
    for (int round = 0; round < 6; round++) {
        patched.late = round == 2;
        patched.every = 29;
        open_failing(&r, &c);
        rig_start(&r, r.g);
        for (int i = 0; i < TEXTS; i++) {
            submit(&r, (struct ask){.text = i, .n = LONG}, &got);
            run_out(&r);
            if (got.finish == FINISH_ERROR && patched.late) continue;
            assert_int_equal(got.finish, FINISH_LENGTH);
            assert_same(&got, &want[i]);
        }
        hits += stats(&r).hits;
        dropped += stats(&r).dropped;
        rig_close(&r);
    }
    log_set_level(LOG_INFO);
    assert_true(hits > 0 && dropped > 0 && patched.loads > 32);
}

static struct reply generate_here(struct rig *r, struct ask a)
{
    struct reply y;
    submit(r, a, &y);
    while (r->left) {
        engine_step_once(r->g, false);
        pump(r);
    }
    assert_int_equal(y.finish, FINISH_LENGTH);
    return y;
}

/* Pages that are evicted before they were copied: whoever sees the error of such a copy takes it for its own. */
static void test_evicted_copies_fail(void **state)
{
    struct engine_config c = config_of("qwen2", true);
    const struct ask a = {.text = 1, .n = LONG}, b = {.text = 2, .n = LONG};
    enum { PAGES = 40, EACH = (LONG + TOKENS - 1) / 16 };
    struct rig r;
    c.kv_pages = PAGES;
    for (int late = 0; late < 2; late++) {
        int32_t page[PAGES];
        int n = 0;
        uint64_t written = late ? EACH : 2 * EACH - 1;
        patched.saves = -1;
        patched.late = late;
        patched.every = late ? 1 : PAGES;
        struct dev *d = open_failing(&r, &c);
        struct reply want = generate_here(&r, a), got;
        log_set_level(LOG_ERROR + 1);
        while (kv_available(r.g->pool)) page[n++] = kv_alloc(r.g->pool);
        if (d->ops->finish(d)) engine_take_failure(r.g);
        log_set_level(LOG_INFO);
        while (n) kv_unref(r.g->pool, page[--n]);
        patched.every = INT_MAX;
        generate_here(&r, b);
        while (engine_step_once(r.g, false) || stats(&r).pages < written) usleep(1000);
        assert_int_equal(stats(&r).pages, written);
        engine_close(r.g);
        rig_open(&r, c);
        got = generate(&r, a);
        assert_same(&got, &want);
        assert_int_equal(got.n_cached, late ? 0 : (LONG - 1) / 16 * 16);
        rig_close(&r);
        tear_down(state);
        set_up(state);
    }
}

/* The process is killed at any time while it computes and writes; the next finds right pages or none. */
static void test_kill(void **state)
{
    struct engine_config c = config_of("qwen2", true), plain = config_of("qwen2", false);
    struct reply want[TEXTS], got;
    struct rig r;
    uint64_t hits = 0;
    rig_open(&r, plain);
    for (int i = 0; i < TEXTS; i++) want[i] = generate(&r, (struct ask){.text = i, .n = LONG});
    rig_close(&r);
    for (int round = 0; round < rounds; round++) {
        int told[2];
        char b;
        assert_int_equal(pipe(told), 0);
        pid_t child = fork();
        if (child == 0) {
            rig_open(&r, c);
            if (write(told[1], "", 1) != 1) _exit(1);
            for (int i = 0;; i = (i + 1) % TEXTS) generate(&r, (struct ask){.text = i, .n = LONG});
        }
        assert_int_equal(read(told[0], &b, 1), 1);
        usleep((unsigned)(chance(60000)));
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        close(told[0]);
        close(told[1]);
        rig_open(&r, c);
        for (int i = round % 2; i < TEXTS; i += 2) {
            got = generate(&r, (struct ask){.text = i, .n = LONG});
            assert_same(&got, &want[i]);
        }
        hits += stats(&r).hits;
        assert_int_equal(stats(&r).corrupt, 0); /* what was written before the kill is whole */
        rig_close(&r);
    }
    assert_true(hits > 0);
}

/* A request that waits behind another's load is computed when its time is over. */
static void test_late(void **state)
{
    struct engine_config c = config_of("qwen2", true);
    struct reply want[2], got[2];
    struct err e = {0};
    struct rig r;
    uint64_t id[2];
    rig_open(&r, c);
    for (int i = 0; i < 2; i++) want[i] = generate(&r, (struct ask){.text = i, .n = LONG});
    rig_close(&r);
    r = (struct rig){.g = engine_open(&c, &e)};
    if (!r.g) fail_msg("%s", e.msg);
    for (int i = 0; i < 2; i++) id[i] = submit(&r, (struct ask){.text = i, .n = LONG}, &got[i]);
    engine_step_once(r.g, false);
    struct request *first = engine_find_request(r.g, id[0]), *second = engine_find_request(r.g, id[1]);
    assert_true(first->loading && second->loading);
    assert_true(kv_tier_deadline(r.g) <= first->load_until);
    second->load_until = 1;
    assert_int_equal(kv_tier_deadline(r.g), 1);
    engine_step_once(r.g, false);
    assert_false(second->loading);
    while (r.left) {
        engine_step_once(r.g, false);
        pump(&r);
    }
    for (int i = 0; i < 2; i++) assert_same(&got[i], &want[i]);
    assert_true(got[0].n_cached > 0 && !got[1].n_cached);
    engine_close(r.g);
}

static void test_opening(void **state)
{
    struct engine_config c = config_of("qwen2", true);
    struct err e = {0};
    struct rig r;
    rig_open(&r, c);
    assert_null(engine_open(&c, &e));
    assert_non_null(strstr(e.msg, "another model of this server"));
    c.max_seqs = 4;
    rig_close(&r);
    c.kv_disk = "/proc/none";
    assert_null(engine_open(&c, &e));
    assert_non_null(strstr(e.msg, "--kv-disk: /proc/none"));
    c = config_of("qwen2", true);
    c.no_prefix_cache = true; /* it is not used, and says so */
    rig_open(&r, c);
    assert_false(stats(&r).on);
    rig_close(&r);
    uint64_t a, b;
    assert_int_equal(engine_kv_disk_seed(dir, &a, &e), 0);
    assert_int_equal(engine_kv_disk_seed(dir, &b, &e), 0);
    assert_true(a && a == b);
}

/* The program's file is replaced while it runs, as an update of its package does. */
static void test_replaced(void **state)
{
    char copy[80];
    snprintf(copy, sizeof copy, "%s/copy", dir);
    int from = open("/proc/self/exe", O_RDONLY), to = open(copy, O_WRONLY | O_CREAT, 0700);
    while (sendfile(to, from, NULL, 1 << 30) > 0) {
    }
    close(from);
    assert_int_equal(close(to), 0);
    pid_t child = fork();
    if (child == 0) {
        execl(copy, copy, fixtures, "replaced", dir, (char *)NULL);
        _exit(127);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* test_replaced's process.  @return its status */
static int run_replaced(const char *self, const char *of)
{
    struct err e = {0};
    snprintf(dir, sizeof dir, "%s", of);
    struct engine_config c = config_of("qwen2", true);
    if (unlink(self)) return 1;
    struct engine *g = engine_open(&c, &e);
    if (!g) fprintf(stderr, "%s\n", e.msg);
    engine_close(g);
    return !g;
}

int main(int argc, char **argv)
{
#define TEST(t) cmocka_unit_test_setup_teardown(t, set_up, tear_down)
    const struct CMUnitTest tests[] = {TEST(test_restart),  TEST(test_restart_types), TEST(test_restart_simt),
                                       TEST(test_eviction), TEST(test_together),      TEST(test_separate),
                                       TEST(test_damage),   TEST(test_copies_fail),   TEST(test_evicted_copies_fail),
                                       TEST(test_kill),     TEST(test_late),          TEST(test_opening),
                                       TEST(test_replaced)};
    if (argc < 2) return 2;
    fixtures = argv[1];
    if (argc > 3) return run_replaced(argv[0], argv[3]);
    if (argc > 2) rounds = atoi(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
