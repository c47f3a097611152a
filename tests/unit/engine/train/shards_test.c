/* How arrays are divided over ranks: every float and every moment has one owner, wherever it is; the slices do not
 * depend on the number of ranks; and what a rank keeps is about its share. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/train/shards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLICES = 8, BLOCK = 256 };

struct kind {
    size_t n;
    int layer;
    bool is_8bit, matrix, whole;
};

/* Two layers of several kinds, then an embedding table and norms of the layers. */
static const struct kind kinds[] = {
    {4096, 0, true, false, false},    {32, 0, false, false, true},      {999 * 16, 0, false, true, false},
    {2400, 0, false, true, false},    {5 * 256, 1, true, false, false}, {640, 1, false, true, false},
    {100000, -1, false, false, true}, {48, 0, false, false, true},      {16, 1, false, false, true},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void make(struct shards *s)
{
    size_t at = 0, moments[2] = {0};
    *s = (struct shards){0};
    for (int i = 0; i < KINDS; i++) {
        const struct kind *k = &kinds[i];
        shards_add(s, &(struct shard_unit){.from = at,
                                           .n = k->n,
                                           .moments = moments[k->is_8bit],
                                           .group = (size_t)(k->layer + 1),
                                           .is_8bit = k->is_8bit,
                                           .matrix = k->matrix,
                                           .whole = k->whole,
                                           .layer = k->layer});
        at += k->n;
        moments[k->is_8bit] += k->n;
    }
}

/* Each byte of the whole array once, at a place of its owner's that no other byte has. */
static void check_extents(const struct shard_extents *x, size_t bytes, int rank, size_t own_bytes)
{
    size_t at = 0;
    char *taken = calloc(own_bytes + 1, 1);
    for (size_t i = 0; i < x->n; i++) {
        assert_int_equal(x->v[i].at, at);
        assert_int_equal(shards_extent(x, at), i);
        assert_int_equal(shards_extent(x, at + x->v[i].bytes - 1), i);
        at += x->v[i].bytes;
        if (x->v[i].owner != rank) continue;
        assert_true(x->v[i].own + x->v[i].bytes <= own_bytes);
        for (size_t b = 0; b < x->v[i].bytes; b++) assert_int_equal(taken[x->v[i].own + b]++, 0);
    }
    assert_int_equal(at, bytes);
    free(taken);
}

static void test_every_float_has_one_owner(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= SLICES; ranks *= 2)
        for (int rank = 0; rank < ranks; rank++) {
            struct shards s;
            make(&s);
            shards_divide(&s, 1, SLICES, ranks, rank);
            assert_true(s.divided && !s.grads);
            check_extents(&s.extents[SHARD_VALUES], s.n * sizeof(float), rank, s.own * sizeof(float));
            check_extents(&s.extents[SHARD_MOMENTS],
                          s.n_f32 * sizeof(float) + s.n_8bit + s.n_8bit / BLOCK * sizeof(float), rank,
                          s.own_f32 * sizeof(float) + s.own_8bit + s.own_8bit / BLOCK * sizeof(float));
            assert_true(ranks > 2 || s.own * 2 < s.n + s.n / 4); /* of three matrices more ranks have none */
            for (size_t i = 0; i < s.n_units; i++) {
                const struct shard_unit *u = &s.unit[i];
                assert_ptr_equal(shards_at(&s, u->from), u);
                assert_ptr_equal(shards_at(&s, u->from + u->n - 1), u);
                assert_int_equal(shards_part(&s, u, ranks), u->n);
                for (int k = 0; k < SLICES; k++) {
                    size_t from = shards_slice(&s, u, k);
                    int owner = shards_owner(&s, u, k);
                    assert_true(from <= u->n && (!u->is_8bit || from % BLOCK == 0));
                    if (from < shards_slice(&s, u, k + 1))
                        assert_true(from >= shards_part(&s, u, owner) && from < shards_part(&s, u, owner + 1));
                }
            }
            shards_free(&s);
        }
}

static void test_one_rank_has_the_flat_arrays(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 2; stage++) {
        struct shards s;
        make(&s);
        shards_divide(&s, stage, SLICES, stage ? 1 : 4, 0);
        assert_true(!s.divided && !s.grads && s.own == s.n && s.own_f32 == s.n_f32 && s.own_8bit == s.n_8bit);
        for (size_t i = 0; i < s.n_units; i++)
            assert_true(s.unit[i].own == s.unit[i].from && s.unit[i].own_moments == s.unit[i].moments);
        shards_free(&s);
    }
}

/* Gradients of a pass: neighbouring layers apart, layers of the same parity in the same place, the rest alone. */
static void test_places_of_a_pass(void **state)
{
    (void)state;
    struct shards s;
    make(&s);
    shards_divide(&s, 2, SLICES, 2, 1);
    assert_true(s.grads);
    char *taken = calloc(s.pass, 1);
    for (size_t i = 0; i < s.n_units; i++)
        for (size_t k = 0; k < s.unit[i].n; k++) assert_int_equal(taken[s.unit[i].grads_at + k]++, 0);
    free(taken);
    shards_free(&s);
    size_t at = 0;
    for (int layer = 0; layer < 5; layer++, at += 160)
        shards_add(&s,
                   &(struct shard_unit){.from = at, .n = 160, .moments = at, .group = (size_t)layer, .layer = layer});
    shards_divide(&s, 2, SLICES, 2, 0);
    assert_int_equal(s.pass, 2 * 160);
    for (int layer = 0; layer < 5; layer++) assert_int_equal(s.unit[layer].grads_at, layer % 2 * 160);
    shards_free(&s);
}

static void test_matrices(void **state)
{
    (void)state;
    struct shards s;
    make(&s);
    shards_divide(&s, 1, SLICES, 2, 0);
    int owner[3], n = 0;
    for (size_t i = 0; i < s.n_units; i++)
        if (s.unit[i].matrix) owner[n++] = s.unit[i].owner;
    assert_true(n == 3 && owner[0] == 0 && owner[1] == 1 && owner[2] == 1); /* the one that has less so far */
    shards_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_float_has_one_owner),
        cmocka_unit_test(test_one_rank_has_the_flat_arrays),
        cmocka_unit_test(test_places_of_a_pass),
        cmocka_unit_test(test_matrices),
    };
    return cmocka_run_group_tests_name("shards", tests, NULL, NULL);
}
