/* Operations over ranks against plain sums and copies: ranks that are threads, and, started by mpirun with the argument
 * "mpi", ranks that are processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/comm.h"
#include "kernels/rng.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 8, ALL = 120 /* seconds */ };

/* Checks run on threads, where cmocka's may not fail. */
#define WANT(c, what)                                                                                                  \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "%s:%d: rank %d of %d: %s (%s)\n", __FILE__, __LINE__, comm_rank(c), comm_ranks(c), #what, \
                    comm_error(c) ? comm_error(c) : "no error");                                                       \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Values whose sum depends on the order. */
static float value(int rank, size_t i)
{
    double v = rng_uniform(17 + (uint64_t)rank, i) - 0.5;
    return (float)(i % 3 ? v : v * 1e6);
}

static float *values(int rank, size_t n)
{
    float *v = malloc((n + 1) * sizeof *v);
    for (size_t i = 0; i < n; i++) v[i] = value(rank, i);
    return v;
}

/* The definition of comm.h, of ranks [from, to). */
static float tree(int from, int to, size_t i)
{
    int half = 1;
    if (to - from == 1) return value(from, i);
    while (2 * half < to - from) half *= 2;
    return tree(from, from + half, i) + tree(from + half, to, i);
}

static void check_sums(struct comm *c, size_t n)
{
    int ranks = comm_ranks(c), rank = comm_rank(c);
    float *v = values(rank, n), *part = malloc((n + 1) * sizeof *part);
    comm_all_reduce(c, v, n);
    for (size_t i = 0; i < n; i++) WANT(c, v[i] == tree(0, ranks, i));
    free(v);
    v = values(rank, n * (size_t)ranks);
    comm_reduce_scatter(c, v, part, n);
    for (size_t i = 0; i < n; i++) WANT(c, part[i] == tree(0, ranks, (size_t)rank * n + i));
    free(v);
    free(part);
}

static void check_copies(struct comm *c, size_t n)
{
    int ranks = comm_ranks(c), rank = comm_rank(c);
    size_t all = n * (size_t)ranks;
    float *own = values(rank, all), *out = calloc(all + 1, sizeof *out);
    comm_all_gather(c, own, out, n * sizeof *own);
    for (size_t i = 0; i < all; i++) WANT(c, out[i] == value((int)(i / n), i % n));
    memset(out, 0, all * sizeof *out);
    if (n) memcpy(out + (size_t)rank * n, own, n * sizeof *own); /* in place */
    comm_all_gather(c, out + (size_t)rank * n, out, n * sizeof *own);
    for (size_t i = 0; i < all; i++) WANT(c, out[i] == value((int)(i / n), i % n));
    comm_all_to_all(c, own, out, n * sizeof *own);
    for (size_t i = 0; i < all; i++) WANT(c, out[i] == value((int)(i / n), (size_t)rank * n + i % n));
    for (int root = 0; root < ranks; root++) {
        float *v = values(rank, n);
        comm_broadcast(c, v, n * sizeof *v, root);
        for (size_t i = 0; i < n; i++) WANT(c, v[i] == value(root, i));
        free(v);
    }
    if (ranks > 1 && rank == ranks - 1) comm_send(c, own, n * sizeof *own, 0);
    if (ranks > 1 && rank == 0) comm_receive(c, out, n * sizeof *own, ranks - 1);
    for (size_t i = 0; ranks > 1 && rank == 0 && i < n; i++) WANT(c, out[i] == value(ranks - 1, i));
    free(own);
    free(out);
}

/* Parts of n floats that differ in size, the first one empty where there are several. */
static void check_parts(struct comm *c, size_t n)
{
    int ranks = comm_ranks(c), rank = comm_rank(c);
    size_t from[RANKS_MAX + 1] = {0}, bytes[RANKS_MAX + 1];
    for (int r = 1; r <= ranks; r++) from[r] = r < ranks ? n * (size_t)(r * r - 1) / (size_t)(ranks * ranks) : n;
    for (int r = 0; r <= ranks; r++) bytes[r] = from[r] * sizeof(float);
    float *v = values(rank, n);
    comm_reduce_parts(c, v, from);
    for (size_t i = 0; i < n; i++)
        WANT(c, v[i] == (i >= from[rank] && i < from[rank + 1] ? tree(0, ranks, i) : value(rank, i)));
    comm_gather_parts(c, v, bytes);
    for (size_t i = 0; i < n; i++) WANT(c, v[i] == tree(0, ranks, i));
    free(v);
}

/* Larger than what a rank sums at once, and than a message. */
static void check_large(struct comm *c)
{
    size_t n = ((size_t)1 << 20) + 77;
    float *v = values(comm_rank(c), n);
    comm_all_reduce(c, v, n);
    for (size_t i = 0; i < n; i += 101) WANT(c, v[i] == tree(0, comm_ranks(c), i));
    free(v);
    v = values(comm_rank(c), 3 * n);
    comm_broadcast(c, v, 3 * n * sizeof *v, comm_ranks(c) - 1);
    for (size_t i = 0; i < 3 * n; i += 101) WANT(c, v[i] == value(comm_ranks(c) - 1, i));
    free(v);
}

static void check_profile(struct comm *c)
{
    struct comm_profile p = comm_profile(c, COMM_ALL_REDUCE);
    uint64_t sent = p.sent_bytes, others = (uint64_t)comm_ranks(c) - 1;
    float v[8] = {0};
    comm_all_reduce(c, v, 8);
    p = comm_profile(c, COMM_ALL_REDUCE);
    WANT(c, p.calls > 1 && p.seconds > 0);
    WANT(c, 8 % comm_ranks(c) || p.sent_bytes - sent == 2 * others * sizeof v / (uint64_t)comm_ranks(c));
}

/* Each half of the ranks for itself, then all again. */
static void check_groups(struct comm *c)
{
    int ranks = comm_ranks(c), rank = comm_rank(c), half = ranks / 2;
    if (!half) return;
    bool low = rank < half;
    struct comm *g = low ? comm_group(c, 0, half) : comm_group(c, half, ranks - half);
    uint64_t calls = comm_profile(c, COMM_ALL_REDUCE).calls;
    WANT(c, g && comm_ranks(g) == (low ? half : ranks - half) && comm_rank(g) == (low ? rank : rank - half));
    check_sums(g, 1000);
    check_copies(g, 77);
    check_parts(g, 77);
    check_groups(g); /* of a group */
    WANT(c, comm_profile(c, COMM_ALL_REDUCE).calls > calls);
    comm_group_close(g);
    check_sums(c, 33);
}

static void check_all(struct comm *c)
{
    static const size_t sizes[] = {1, 0, 2, 3, 7, 64, 1000, 1023, 4099};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        check_sums(c, sizes[i]);
        check_copies(c, sizes[i]);
        check_parts(c, sizes[i]);
    }
    check_parts(c, ((size_t)1 << 20) + 77);
    check_large(c);
    check_profile(c);
    check_groups(c);
    WANT(c, !comm_error(c));
}

/* A failure in a group is one of the whole. */
static void fail_in_group(struct comm *c)
{
    if (comm_rank(c) == 3) return;
    struct comm *g = comm_rank(c) < 2 ? comm_group(c, 0, 2) : comm_group(c, 2, 2);
    float v[8] = {0};
    comm_all_reduce(g, v, 8);
    if (comm_rank(c) == 2)
        WANT(c,
             comm_error(c) && strstr(comm_error(c), "rank 2 of 4: all-reduce") && strstr(comm_error(c), "rank 3 for"));
    comm_group_close(g);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

typedef void rank_fn(struct comm *);
struct rank {
    struct comm *c;
    rank_fn *fn;
};

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    r->fn(r->c);
    comm_close(r->c);
    return NULL;
}

static void run(int ranks, double timeout, rank_fn *fn)
{
    struct comm *c[RANKS_MAX];
    struct rank r[RANKS_MAX];
    pthread_t thread[RANKS_MAX];
    assert_true(comm_open_local(ranks, timeout, c));
    for (int i = 0; i < ranks; i++) {
        assert_int_equal(comm_rank(c[i]), i);
        assert_int_equal(comm_ranks(c[i]), ranks);
        r[i] = (struct rank){c[i], fn};
        assert_int_equal(pthread_create(&thread[i], NULL, run_rank, &r[i]), 0);
    }
    for (int i = 0; i < ranks; i++) pthread_join(thread[i], NULL);
}

static void test_operations(void **state)
{
    (void)state;
    static const int ranks[] = {1, 2, 3, 4, 5, 8};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) run(ranks[i], ALL, check_all);
}

/* The last rank never comes: the others say so, and what they do afterwards does nothing. */
static void leave_one(struct comm *c)
{
    float v[4] = {1, 2, 3, 4};
    if (comm_rank(c) == comm_ranks(c) - 1) return;
    comm_all_reduce(c, v, 4);
    WANT(c, comm_error(c));
    WANT(c, strstr(comm_error(c), ": all-reduce of 16 bytes: "));
    WANT(c, strstr(comm_error(c), "nothing came from rank 2 for 0.2 s") ||
                strstr(comm_error(c), "another rank has failed"));
    v[0] = 5;
    comm_broadcast(c, v, sizeof v, 1);
    WANT(c, v[0] == 5 && strstr(comm_error(c), "all-reduce"));
}

static void test_a_rank_is_missing(void **state)
{
    (void)state;
    run(3, 0.2, leave_one);
}

static void test_a_rank_is_missing_in_a_group(void **state)
{
    (void)state;
    run(4, 0.2, fail_in_group);
}

static void send_another_size(struct comm *c)
{
    char v[16] = "";
    if (comm_rank(c) == 0)
        comm_send(c, v, 16, 1);
    else
        comm_receive(c, v, 8, 0);
    WANT(c, comm_error(c) && strstr(comm_error(c), "another size"));
}

static void test_sizes_differ(void **state)
{
    (void)state;
    run(2, ALL, send_another_size);
}

static void test_wrong_numbers(void **state)
{
    (void)state;
    struct comm *c[1];
    assert_false(comm_open_local(0, 1, c));
    assert_false(comm_open_local(COMM_RANKS_MAX + 1, 1, c));
}

/* ---- processes --------------------------------------------------------------------------------------------------- */

static int run_mpi(void)
{
    char why[COMM_WHY_BYTES] = "";
    struct comm *c = comm_launched() ? comm_open_mpi(ALL, why) : NULL;
    if (!c) return fprintf(stderr, "no MPI: %s\n", why), 1;
    check_all(c);
    printf("rank %d of %d: well\n", comm_rank(c), comm_ranks(c));
    comm_close(c);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations),
        cmocka_unit_test(test_a_rank_is_missing),
        cmocka_unit_test(test_a_rank_is_missing_in_a_group),
        cmocka_unit_test(test_sizes_differ),
        cmocka_unit_test(test_wrong_numbers),
    };
    if (argc > 1 && strcmp(argv[1], "mpi") == 0) return run_mpi();
    return cmocka_run_group_tests_name("comm", tests, NULL, NULL);
}
