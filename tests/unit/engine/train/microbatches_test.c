/* Steps and micro-batches: every row once an epoch, budgets kept, the same from any point on; and their planning. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/train/microbatches.h"
#include "engine/train/params.h"
#include "engine/train/rows.h"
#include "kernels/rng.h"
#include "tests/train/rows.h"

#include <stdlib.h>
#include <string.h>

static uint32_t *lengths(uint32_t n, uint32_t most, uint64_t seed)
{
    uint32_t *v = mem_array(n, sizeof *v);
    for (uint32_t i = 0; i < n; i++) v[i] = 1 + (uint32_t)(rng_at(seed, i) % most);
    return v;
}

static uint64_t tokens_of(const uint32_t *length, const uint32_t *row, uint32_t from, uint32_t to)
{
    uint64_t sum = 0;
    for (uint32_t i = from; i < to; i++) sum += length[row[i]];
    return sum;
}

/* All micro-batches are in slots, none of which has more tokens than another without its last row. */
static void check_slots(const struct microbatches_step *s, const uint32_t *length, uint32_t slots)
{
    assert_true(s->slot[0] == 0 && s->slot[slots] == s->n_micro);
    uint64_t least = UINT64_MAX, most = 0;
    for (uint32_t i = 0; i < slots; i++) {
        uint32_t from = s->slot[i], to = s->slot[i + 1], shortest = UINT32_MAX;
        assert_true(from <= to && (to > from || s->n_rows < slots));
        uint64_t tokens = from < to ? tokens_of(length, s->row, s->start[from], s->start[to]) : 0;
        for (uint32_t k = s->start[from]; k < s->start[to]; k++)
            if (length[s->row[k]] < shortest) shortest = length[s->row[k]];
        if (tokens < least) least = tokens;
        if (tokens && tokens - shortest > most) most = tokens - shortest;
    }
    assert_true(most <= least);
}

static void check_step(const struct microbatches *b, const struct microbatches_step *s, const uint32_t *length,
                       const struct microbatches_options *o, uint8_t *seen, uint32_t n)
{
    assert_true(s->n_rows >= 1 && s->n_micro >= 1);
    assert_int_equal(s->start[0], 0);
    assert_int_equal(s->start[s->n_micro], s->n_rows);
    uint64_t all = tokens_of(length, s->row, 0, s->n_rows);
    assert_true(all <= (uint64_t)o->batch_tokens || s->n_rows == 1);
    for (uint32_t i = 0; i < s->n_micro; i++) {
        uint32_t from = s->start[i], to = s->start[i + 1];
        uint64_t sum = tokens_of(length, s->row, from, to);
        assert_true(from < to);
        assert_true(sum <= (uint64_t)o->micro_tokens || to - from == 1);
        assert_true(sum <= (uint64_t)microbatches_micro_max(b));
    }
    check_slots(s, length, o->slots ? (uint32_t)o->slots : 1);
    for (uint32_t i = 0; i < s->n_rows; i++) {
        assert_true(s->row[i] < n);
        assert_int_equal(seen[s->row[i]]++, 0);
    }
}

static const struct microbatches_options kinds[] = {
    {.batch_tokens = 256, .micro_tokens = 256, .packing = true},
    {.batch_tokens = 1000, .micro_tokens = 64, .packing = true},
    {.batch_tokens = 100, .micro_tokens = 300},
    {.batch_tokens = 500, .micro_tokens = 50, .by_length = true},
    {.batch_tokens = 16, .micro_tokens = 16, .by_length = true},
    {.batch_tokens = 300, .micro_tokens = 128, .in_order = true},
    {.batch_tokens = 1000, .micro_tokens = 64, .packing = true, .slots = 8},
    {.batch_tokens = 500, .micro_tokens = 500, .by_length = true, .slots = 4},
    {.batch_tokens = 300, .micro_tokens = 40, .in_order = true, .slots = 64},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static void test_every_row_once(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 63, 1000};
    for (int k = 0; k < N_KINDS; k++)
        for (size_t z = 0; z < 4; z++)
            for (uint32_t most = 1; most <= 200; most = most * 7 + 3) {
                uint32_t n = sizes[z], *length = lengths(n, most, z + 10);
                uint8_t *seen = mem_array(n, 1);
                struct microbatches_options o = kinds[k];
                o.seed = 5;
                struct microbatches *b = microbatches_new(length, n, &o);
                for (uint32_t epoch = 0; epoch < 3; epoch++) {
                    uint32_t steps = microbatches_epoch(b, epoch);
                    memset(seen, 0, n);
                    for (uint32_t i = 0; i < steps; i++) {
                        struct microbatches_step s = microbatches_step(b, i);
                        check_step(b, &s, length, &o, seen, n);
                    }
                    for (uint32_t i = 0; i < n; i++) assert_int_equal(seen[i], 1);
                }
                microbatches_free(b);
                free(seen);
                free(length);
            }
}

/* A step asked for on its own is the one that comes in turn. */
static void test_continue_anywhere(void **state)
{
    (void)state;
    uint32_t n = 300, *length = lengths(n, 60, 1);
    for (int k = 0; k < N_KINDS; k++) {
        struct microbatches *a = microbatches_new(length, n, &kinds[k]), *b = microbatches_new(length, n, &kinds[k]);
        for (uint32_t epoch = 0; epoch < 3; epoch++) {
            uint32_t steps = microbatches_epoch(a, epoch);
            for (uint32_t i = 0; i < steps; i++) {
                struct microbatches_step x = microbatches_step(a, i);
                if (i % 5 == 0) microbatches_epoch(b, 9);
                assert_int_equal(microbatches_epoch(b, epoch), steps);
                struct microbatches_step y = microbatches_step(b, i);
                assert_int_equal(x.n_rows, y.n_rows);
                assert_int_equal(x.n_micro, y.n_micro);
                assert_memory_equal(x.row, y.row, x.n_rows * sizeof *x.row);
                assert_memory_equal(x.start, y.start, (x.n_micro + 1) * sizeof *x.start);
                size_t ends = (size_t)(kinds[k].slots ? kinds[k].slots : 1) + 1;
                assert_memory_equal(x.slot, y.slot, ends * sizeof *x.slot);
            }
        }
        microbatches_free(a);
        microbatches_free(b);
    }
    free(length);
}

static void test_micro_max(void **state)
{
    (void)state;
    const uint32_t length[] = {5, 9, 3};
    struct microbatches_options o = {.batch_tokens = 100, .micro_tokens = 50, .packing = true};
    struct microbatches *b = microbatches_new(length, 3, &o);
    assert_int_equal(microbatches_micro_max(b), 17); /* all there are */
    microbatches_free(b);
    o.micro_tokens = 12;
    b = microbatches_new(length, 3, &o);
    assert_int_equal(microbatches_micro_max(b), 12);
    microbatches_free(b);
    o.micro_tokens = 4;
    b = microbatches_new(length, 3, &o);
    assert_int_equal(microbatches_micro_max(b), 9); /* the longest row */
    microbatches_free(b);
}

static uint64_t set_hash(const struct microbatches_step *s)
{
    uint64_t h = 0;
    for (uint32_t i = 0; i < s->n_rows; i++) h += rng_mix(s->row[i]);
    return h;
}

/* The rows of a step are the same however it is cut, others in another epoch and for another seed. */
static void test_what_matters(void **state)
{
    (void)state;
    uint32_t n = 400, *length = lengths(n, 50, 2);
    struct microbatches_options o = {.seed = 1, .batch_tokens = 400, .micro_tokens = 400, .packing = true};
    struct microbatches *a = microbatches_new(length, n, &o);
    o.micro_tokens = 64;
    struct microbatches *b = microbatches_new(length, n, &o);
    o.packing = false;
    struct microbatches *c = microbatches_new(length, n, &o);
    o.seed = 2;
    struct microbatches *other = microbatches_new(length, n, &o);
    uint32_t steps = microbatches_epoch(a, 1), same_seed = 0, same_epoch = 0;
    assert_int_equal(microbatches_epoch(b, 1), steps);
    assert_int_equal(microbatches_epoch(c, 1), steps);
    uint32_t others = microbatches_epoch(other, 1);
    for (uint32_t i = 0; i < steps; i++) {
        struct microbatches_step x = microbatches_step(a, i), y = microbatches_step(b, i), z = microbatches_step(c, i);
        assert_int_equal(set_hash(&x), set_hash(&y));
        assert_int_equal(set_hash(&x), set_hash(&z));
        if (i >= others) continue;
        struct microbatches_step w = microbatches_step(other, i);
        same_seed += set_hash(&x) == set_hash(&w);
    }
    uint32_t next = microbatches_epoch(b, 2);
    for (uint32_t i = 0; i < steps && i < next; i++) {
        struct microbatches_step x = microbatches_step(a, i), y = microbatches_step(b, i);
        same_epoch += set_hash(&x) == set_hash(&y);
    }
    assert_true(same_seed < 2 && same_epoch < 2);
    microbatches_free(a);
    microbatches_free(b);
    microbatches_free(c);
    microbatches_free(other);
    free(length);
}

static void test_packing_is_tight(void **state)
{
    (void)state;
    uint32_t n = 2000, *length = lengths(n, 100, 3);
    uint64_t tokens = 0, micro = 0;
    struct microbatches_options o = {.batch_tokens = 8192, .micro_tokens = 512, .packing = true};
    struct microbatches *b = microbatches_new(length, n, &o);
    uint32_t steps = microbatches_epoch(b, 0);
    for (uint32_t i = 0; i < steps; i++) {
        struct microbatches_step s = microbatches_step(b, i);
        micro += s.n_micro;
        tokens += tokens_of(length, s.row, 0, s.n_rows);
    }
    assert_true((double)tokens > 0.97 * 512 * (double)(micro - steps)); /* the last of a step may be short */
    microbatches_free(b);
    free(length);
}

static void test_length_groups(void **state)
{
    (void)state;
    uint32_t n = 2000, *length = lengths(n, 100, 4), narrow = 0, row_total = 0;
    struct microbatches_options o = {.batch_tokens = 512, .micro_tokens = 512, .by_length = true};
    struct microbatches *b = microbatches_new(length, n, &o);
    uint32_t steps = microbatches_epoch(b, 0), rises = 0, last = 0;
    for (uint32_t i = 0; i < steps; i++) {
        struct microbatches_step s = microbatches_step(b, i);
        uint32_t low = UINT32_MAX, high = 0;
        for (uint32_t k = 0; k < s.n_rows; k++) {
            low = length[s.row[k]] < low ? length[s.row[k]] : low;
            high = length[s.row[k]] > high ? length[s.row[k]] : high;
        }
        narrow += high - low <= 10;
        row_total += s.n_rows;
        rises += high > last;
        last = high;
    }
    assert_int_equal(row_total, n);
    assert_true(narrow > steps * 3 / 4);
    assert_true(rises > steps / 4 && rises < steps * 3 / 4); /* not sorted as a whole */
    microbatches_free(b);
    free(length);
}

static bool stop_then(void *looks)
{
    return --*(int *)looks == 0;
}

/* A job of a thousand epochs is not planned to the end when somebody wants it stopped. */
static void test_stopped(void **state)
{
    (void)state;
    struct dataset *data = rows_make(8, 100, 3);
    struct train_params p;
    train_params_default(&p, TRAIN_LORA);
    p.epochs = 1000;
    p.micro_tokens = 512;
    for (int at = 1; at < 4; at++) {
        int looks = at;
        struct train_job job = {.data = data, .stop = stop_then, .stop_arg = &looks};
        struct train_rows rows = {0}, held_out = {0};
        struct err e = {0};
        uint64_t left_out;
        assert_int_equal(train_rows_open(&rows, &held_out, &job, &p, 100, -1, &left_out, &e), ERR_FULL);
        assert_string_equal(e.msg, "stopped before it began");
        assert_int_equal(looks, 0);
        train_rows_close(&rows);
        train_rows_close(&held_out);
    }
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row_once), cmocka_unit_test(test_continue_anywhere),
        cmocka_unit_test(test_what_matters),   cmocka_unit_test(test_packing_is_tight),
        cmocka_unit_test(test_length_groups),  cmocka_unit_test(test_micro_max),
        cmocka_unit_test(test_stopped),
    };
    return cmocka_run_group_tests_name("batches", tests, NULL, NULL);
}
