/* The arena against a model of it: a map of 256-byte lines, each free or of one owner. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/arena.h"
#include "kernels/rng.h"

#include <stdlib.h>
#include <string.h>

enum { LINES = 600, OWNERS = 200 };

struct model {
    int line[LINES]; /* owner + 1; 0: free */
    struct {
        size_t at;
        int lines; /* 0: has nothing */
    } owner[OWNERS];
};

static int run_of_free(const struct model *m, int from)
{
    int n = 0;
    while (from + n < LINES && !m->line[from + n]) n++;
    return n;
}

/* The first of the shortest runs of free lines that are long enough; -1: none. */
static int best_run(const struct model *m, int lines, int *longest)
{
    int best = -1, best_n = LINES + 1;
    *longest = 0;
    for (int i = 0, n; i < LINES; i += n ? n : 1) {
        n = run_of_free(m, i);
        *longest = n > *longest ? n : *longest;
        if (n >= lines && n < best_n) best = i, best_n = n;
    }
    return best;
}

/* Blocks are all of the piece in order, no two free ones beside each other, and say what the model says. */
static void check(const struct arena *a, const struct model *m)
{
    size_t at = 0, used = 0;
    for (size_t i = 0; i < a->n; i++) {
        const struct arena_block *b = &a->v[i];
        assert_true(b->at == at && b->bytes > 0 && at % ARENA_ALIGN == 0);
        if (i) assert_true(b->taken || a->v[i - 1].taken);
        for (size_t k = 0; k < b->bytes / ARENA_ALIGN; k++)
            assert_int_equal(m->line[b->at / ARENA_ALIGN + k] != 0, b->taken);
        at += b->bytes;
        if (b->taken) used += b->bytes;
    }
    assert_int_equal(at, a->bytes);
    assert_int_equal(used, a->used);
}

static void take(struct arena *a, struct model *m, int who, uint64_t random)
{
    int lines = 1 + (int)(random % (random >> 32 & 1 ? 8 : 90)), longest;
    size_t at = 1, bytes = (size_t)lines * ARENA_ALIGN - (random >> 40) % ARENA_ALIGN;
    int run = best_run(m, lines, &longest);
    assert_int_equal(arena_largest(a), (size_t)longest * ARENA_ALIGN);
    assert_int_equal(arena_take(a, bytes, &at), run >= 0);
    if (run < 0) return;
    assert_int_equal(at, (size_t)run * ARENA_ALIGN);
    m->owner[who].at = at;
    m->owner[who].lines = lines;
    for (int i = 0; i < lines; i++) m->line[run + i] = who + 1;
}

static void give(struct arena *a, struct model *m, int who)
{
    size_t at = m->owner[who].at;
    int lines = m->owner[who].lines;
    if (lines > 1) assert_int_equal(arena_give(a, at + ARENA_ALIGN), 0);
    assert_int_equal(arena_give(a, at + 1), 0);
    assert_int_equal(arena_give(a, at), (size_t)lines * ARENA_ALIGN);
    assert_int_equal(arena_give(a, at), 0);
    memset(m->line + at / ARENA_ALIGN, 0, (size_t)lines * sizeof *m->line);
    m->owner[who].lines = 0;
}

/* Mostly taking, then mostly giving, again and again: both a full piece and an empty one come up. */
static void test_random(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct arena a;
        struct model *m = calloc(1, sizeof *m);
        assert_true(arena_open(&a, (size_t)LINES * ARENA_ALIGN));
        for (uint64_t i = 0; i < 3000; i++) {
            uint64_t r = rng_mix(seed << 32 | i), random = rng_mix(r);
            int who = (int)(r % OWNERS);
            bool taking = r >> 40 & 3 ? i / 500 % 2 == 0 : i / 500 % 2 != 0;
            if (taking && !m->owner[who].lines)
                take(&a, m, who, random);
            else if (!taking && m->owner[who].lines)
                give(&a, m, who);
            if (i % 16 == 0) check(&a, m);
        }
        for (int who = 0; who < OWNERS; who++)
            if (m->owner[who].lines) give(&a, m, who);
        assert_true(a.n == 1 && a.used == 0 && arena_largest(&a) == a.bytes);
        arena_close(&a);
        free(m);
    }
}

/* A piece that ends within a line: the last block has what is left. */
static void test_ends(void **state)
{
    (void)state;
    struct arena a;
    size_t at, all = 10 * ARENA_ALIGN + 100;
    assert_true(arena_open(&a, all));
    assert_false(arena_take(&a, all + 1, &at));
    assert_false(arena_take(&a, SIZE_MAX, &at));
    assert_true(arena_take(&a, all, &at));
    assert_true(at == 0 && a.used == all && arena_largest(&a) == 0);
    assert_false(arena_take(&a, 1, &at));
    assert_int_equal(arena_give(&a, 0), all);
    assert_true(arena_take(&a, 0, &at)); /* a place of its own all the same */
    assert_true(at == 0 && a.used == ARENA_ALIGN);
    assert_true(arena_take(&a, 9 * ARENA_ALIGN, &at));
    assert_true(at == ARENA_ALIGN && arena_largest(&a) == 100);
    assert_false(arena_take(&a, 101, &at));
    assert_true(arena_take(&a, 100, &at));
    assert_true(at == 10 * ARENA_ALIGN && a.used == all);
    assert_int_equal(arena_give(&a, at), 100);
    arena_close(&a);
    assert_int_equal(arena_give(&a, 0), 0);
    assert_false(arena_take(&a, 1, &at));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_ends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
