/* Exchanges between the simulated devices of ranks that are threads: what they move, in graphs too, and how they fail.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/comm_device.h"
#include "kernels/dev.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 4, LONG = 120 /* seconds */ };

/* Checks run on threads, where cmocka's may not fail. */
#define WANT(r, what)                                                                                                  \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "%s:%d: rank %d: %s (%s; %s)\n", __FILE__, __LINE__, (r)->rank, #what,                     \
                    (r)->d->error.op ? (r)->d->error.msg : "no error",                                                 \
                    comm_error((r)->c) ? comm_error((r)->c) : "no error between hosts");                               \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

struct rank {
    int rank, ranks;
    struct comm *c;
    struct dev *d;
    void (*work)(struct rank *);
    pthread_t thread;
};

static void *run(void *arg)
{
    struct rank *r = arg;
    char name[16], why[160];
    snprintf(name, sizeof name, "simt:%d", r->rank);
    r->d = dev_open(&(struct dev_config){.name = name, .memory_bytes = 128 << 20}, why);
    if (!r->d) fprintf(stderr, "%s\n", why), abort();
    r->work(r);
    dev_close(r->d);
    return NULL;
}

static void on_ranks(int ranks, double timeout, void (*work)(struct rank *))
{
    struct rank r[RANKS_MAX];
    struct comm *c[RANKS_MAX];
    assert_true(comm_open_local(ranks, timeout, c));
    for (int i = 0; i < ranks; i++) {
        r[i] = (struct rank){.rank = i, .ranks = ranks, .c = c[i], .work = work};
        assert_int_equal(pthread_create(&r[i].thread, NULL, run, &r[i]), 0);
    }
    for (int i = 0; i < ranks; i++) pthread_join(r[i].thread, NULL);
    for (int i = 0; i < ranks; i++) comm_close(c[i]);
}

static void open_exchanges(struct rank *r)
{
    char why[COMM_WHY_BYTES] = "";
    bool open = comm_device_open(r->c, r->d, why);
    if (!open) fprintf(stderr, "%s\n", why);
    WANT(r, open);
}

/* ---- what is exchanged ------------------------------------------------------------------------------------------- */

static float value(int row, int col, int seed)
{
    return (float)(row * 1000 + col + seed * 100000);
}

static int from_of(int cols, int ranks, int rank)
{
    return cols * rank / ranks;
}

/* A rank's part, its rows `gap` floats apart, and memory for the whole. */
struct sheet {
    int rows, cols;
    struct mat part, whole;
    void *memory; /* of the part: its matrix begins `gap` floats later */
};

static void fill(struct rank *r, struct sheet *s, int seed)
{
    int from = from_of(s->cols, r->ranks, r->rank);
    size_t floats = (size_t)s->rows * (size_t)s->part.ld + 1;
    float *v = calloc(floats, sizeof *v);
    for (int i = 0; i < s->rows; i++)
        for (int k = 0; k < s->part.cols; k++) v[i * s->part.ld + k] = value(i, from + k, seed);
    r->d->ops->upload(r->d, s->part.p, v, (floats - 1) * sizeof *v);
    free(v);
}

static struct sheet sheet_open(struct rank *r, int rows, int cols, int gap)
{
    struct sheet s = {.rows = rows, .cols = cols};
    int n = from_of(cols, r->ranks, r->rank + 1) - from_of(cols, r->ranks, r->rank);
    s.memory = r->d->ops->alloc(r->d, ((size_t)rows * (size_t)(n + gap) + (size_t)gap) * sizeof(float));
    s.part = mat_f32((float *)s.memory + gap, rows, n);
    s.part.ld = n + gap;
    s.whole = mat_f32(r->d->ops->alloc(r->d, (size_t)rows * (size_t)cols * sizeof(float)), rows, cols);
    WANT(r, s.memory && s.whole.p);
    return s;
}

static void sheet_close(struct rank *r, struct sheet *s)
{
    r->d->ops->free(r->d, s->memory);
    r->d->ops->free(r->d, s->whole.p);
}

static void check(struct rank *r, const struct sheet *s, int seed)
{
    size_t bytes = (size_t)s->rows * (size_t)s->cols * sizeof(float);
    float *v = malloc(bytes);
    r->d->ops->download(r->d, v, s->whole.p, bytes);
    WANT(r, r->d->ops->finish(r->d) == 0);
    for (int i = 0; i < s->rows; i++)
        for (int k = 0; k < s->cols; k++) WANT(r, v[i * s->cols + k] == value(i, k, seed));
    free(v);
}

static void joins_and_collects(struct rank *r)
{
    static const int rows[] = {1, 2, 7, 33}, each[] = {1, 3, 4, 20}, wide[] = {7, 12, 61};
    open_exchanges(r);
    WANT(r, strncmp(comm_device_name(r->d), "NCCL 2.", 7) == 0);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++) {
            struct sheet s = sheet_open(r, rows[i], each[k] * r->ranks, k % 2 ? 5 : 0);
            fill(r, &s, k);
            comm_device_join(r->d, s.part, s.whole);
            check(r, &s, k);
            sheet_close(r, &s);
        }
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 3; k++) { /* parts of two sizes */
            struct sheet s = sheet_open(r, rows[i], wide[k], 0);
            fill(r, &s, k);
            comm_device_collect(r->d, s.part, s.whole);
            if (r->rank == 0) check(r, &s, k);
            WANT(r, r->d->ops->finish(r->d) == 0);
            sheet_close(r, &s);
        }
    struct comm_profile joined = comm_profile(r->c, COMM_ALL_GATHER);
    uint64_t floats = (uint64_t)(1 + 2 + 7 + 33) * (1 + 3 + 4 + 20) * (uint64_t)(r->ranks - 1);
    WANT(r, joined.sent_bytes > floats * sizeof(float) && joined.calls >= 16); /* and what opening sent */
    WANT(r, comm_profile(r->c, r->rank ? COMM_SEND : COMM_RECEIVE).calls == 12);
}

static void test_exchanges(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= RANKS_MAX; ranks++) on_ranks(ranks, LONG, joins_and_collects);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

struct step {
    struct rank *r;
    struct sheet s;
};

static void forward(void *arg)
{
    struct step *s = arg;
    comm_device_join(s->r->d, s->s.part, s->s.whole);
    op_softcap(s->r->d, (struct softcap_args){s->s.whole, 1, 0});
    comm_device_collect(s->r->d, mat_f32(s->s.part.p, s->s.part.rows, s->s.part.cols), s->s.whole);
}

static void replays(struct rank *r)
{
    enum { TIMES = 5, ROWS = 3, COLS = 24 };
    open_exchanges(r);
    struct step step = {r, sheet_open(r, ROWS, COLS, 0)};
    WANT(r, r->d->ops->reserve(r->d, forward, &step) == 0);
    struct comm_profile before = comm_profile(r->c, COMM_ALL_GATHER);
    for (int i = 0; i < TIMES; i++) {
        fill(r, &step.s, i);
        r->d->ops->replay(r->d, 7, forward, &step);
        check(r, &step.s, i);
    }
    struct comm_profile after = comm_profile(r->c, COMM_ALL_GATHER);
    uint64_t one = ROWS * COLS / (uint64_t)r->ranks * (uint64_t)(r->ranks - 1) * sizeof(float);
    /* those of graphs count like others; beside them the ranks say once that they have captured */
    WANT(r, after.calls - before.calls == TIMES + 1);
    WANT(r, after.sent_bytes - before.sent_bytes == TIMES * one + (uint64_t)(r->ranks - 1));
    WANT(r, comm_profile(r->c, r->rank ? COMM_SEND : COMM_RECEIVE).calls == TIMES);
    sheet_close(r, &step.s);
}

static void test_graphs(void **state)
{
    (void)state;
    struct simt_counts start = simt_counts(), end;
    on_ranks(2, LONG, replays);
    on_ranks(3, LONG, replays);
    end = simt_counts();
    assert_int_equal(end.graphs - start.graphs, 2 + 3);
    assert_int_equal(end.replays - start.replays, 4 * (2 + 3)); /* the second time, and all later ones */
}

/* One rank captures what the other runs: NCCL does not allow it. */
static void captures_alone(struct rank *r)
{
    open_exchanges(r);
    struct step step = {r, sheet_open(r, 2, 8, 0)};
    WANT(r, r->d->ops->reserve(r->d, forward, &step) == 0);
    r->d->ops->replay(r->d, 1, forward, &step);
    WANT(r, r->d->ops->finish(r->d) == 0);
    if (r->rank == 0) {
        r->d->ops->replay(r->d, 1, forward, &step);
    } else { /* takes part in the agreement alone */
        bool all[2], ok = true;
        comm_all_gather(r->c, &ok, all, sizeof ok);
        forward(&step);
    }
    WANT(r, r->d->ops->finish(r->d) != 0);
    WANT(r, strstr(r->d->error.msg, "invalid usage") || strstr(r->d->error.msg, "another rank has failed"));
}

static void test_one_graph_too_few(void **state)
{
    (void)state;
    on_ranks(2, LONG, captures_alone);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* A rank whose device has failed in an op goes on exchanging, so that the others do; its error stays. */
static void one_op_fails(struct rank *r)
{
    open_exchanges(r);
    struct step step = {r, sheet_open(r, 2, 8, 0)};
    WANT(r, r->d->ops->reserve(r->d, forward, &step) == 0);
    for (int i = 0; i < 4; i++) {
        bool fails = r->rank == 1 && i % 2;
        fill(r, &step.s, i);
        if (fails) dev_fail(r->d, "op", "of the test");
        if (i < 2)
            forward(&step);
        else
            r->d->ops->replay(r->d, 3, forward, &step);
        WANT(r, (r->d->ops->finish(r->d) != 0) == fails);
        if (fails) WANT(r, strcmp(r->d->error.msg, "of the test") == 0);
        dev_clear_error(r->d);
        if (!fails) check(r, &step.s, i);
    }
    WANT(r, !comm_error(r->c));
}

static void test_an_op_fails(void **state)
{
    (void)state;
    on_ranks(2, LONG, one_op_fails);
}

static void is_stuck(struct rank *r)
{
    open_exchanges(r);
    struct sheet s = sheet_open(r, 4, 8, 0);
    comm_device_join(r->d, s.part, s.whole);
    WANT(r, r->d->ops->finish(r->d) != 0);
    WANT(r, comm_error(r->c) && r->d->error.op);
    bool late =
        strstr(r->d->error.msg, "all-gather of 64 bytes between devices: nothing came from the other ranks for 1 s");
    /* the other learns it from the first whose time is up */
    WANT(r, late || strstr(r->d->error.msg, "remote process exited") || strstr(r->d->error.msg, "another rank"));
    char rank[16];
    snprintf(rank, sizeof rank, "rank %d of 2: ", r->rank);
    WANT(r, strncmp(r->d->error.msg, rank, strlen(rank)) == 0);
    dev_clear_error(r->d);
    comm_device_join(r->d, s.part, s.whole); /* there is no way back */
    WANT(r, r->d->ops->finish(r->d) != 0);
}

static void test_stuck(void **state)
{
    (void)state;
    setenv("SIMT_NCCL", "stuck", 1);
    on_ranks(2, 1, is_stuck);
    unsetenv("SIMT_NCCL");
}

static void has_none(struct rank *r)
{
    char why[COMM_WHY_BYTES] = "";
    WANT(r, !comm_device_open(r->c, r->d, why));
    WANT(r, strcmp(why, "rank 0: SIMT_NCCL is 0") == 0);
    WANT(r, !r->d->error.op && !comm_error(r->c));
}

static void test_without_nccl(void **state)
{
    (void)state;
    setenv("SIMT_NCCL", "0", 1);
    on_ranks(3, LONG, has_none);
    unsetenv("SIMT_NCCL");
}

int main(void)
{
    setenv("SIMT_DEVICES", "4", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exchanges),   cmocka_unit_test(test_graphs), cmocka_unit_test(test_one_graph_too_few),
        cmocka_unit_test(test_an_op_fails), cmocka_unit_test(test_stuck),  cmocka_unit_test(test_without_nccl)};
    return cmocka_run_group_tests_name("comm_device", tests, NULL, NULL);
}
