/* The next micro-batch is prepared on another thread: what is taken is what micro_fill gives, in any order. */
#include "engine/base/mem.h"
#include "engine/train/params.h"
#include "engine/train/prefetch.h"
#include "tests/unit/engine/train/train_rig.h"

enum { VOCAB = 280 };

struct sets {
    struct dataset *data;
    struct train_rows rows, eval;
};

static void open_rows(struct sets *s, struct train_params *p)
{
    uint64_t left_out;
    struct err e = {0};
    *s = (struct sets){.data = rows_make(60, VOCAB, 3)};
    struct train_job job = {.p = *p, .data = s->data};
    if (train_rows_open(&s->rows, &s->eval, &job, p, VOCAB, -1, &left_out, &e)) fail_msg("%s", e.msg);
}

static void close_rows(struct sets *s)
{
    train_rows_close(&s->rows);
    train_rows_close(&s->eval);
    free(s->data);
}

static void same_micro(const struct micro *a, const struct micro *b)
{
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_int_equal(a->n_seqs, b->n_seqs);
    assert_int_equal(a->n_targets, b->n_targets);
    assert_int_equal(a->n_units, b->n_units);
    assert_int_equal(a->first, b->first);
    assert_memory_equal(a->id, b->id, (size_t)a->n_tokens * sizeof *a->id);
    assert_memory_equal(a->pos, b->pos, (size_t)a->n_tokens * sizeof *a->pos);
    assert_memory_equal(a->q_start, b->q_start, (size_t)a->n_seqs * sizeof *a->q_start);
    assert_memory_equal(a->target, b->target, (size_t)a->n_targets * sizeof *a->target);
    assert_memory_equal(a->unit, b->unit, (size_t)a->n_units * sizeof *a->unit);
}

static struct train_params small_steps(void)
{
    struct train_params p = params(TRAIN_LORA);
    p.batch_tokens = 300;
    p.micro_tokens = 48;
    p.epochs = 3;
    return p;
}

/* All micro-batches of three epochs, as they are without the prefetcher. */
static void test_in_order(void **state)
{
    (void)state;
    for (int several = 0; several < 2; several++) {
        struct train_params p = small_steps();
        struct sets here, there;
        open_rows(&here, &p);
        open_rows(&there, &p);
        int most = several ? 150 : 48, taken = 0;
        struct prefetch *f = prefetch_open(&there.rows, most, 64, several, true);
        struct micro want;
        micro_open(&want, most, 64);
        for (int64_t step = 0; step < here.rows.before[3]; step++) {
            struct microbatches_step b = train_rows_step(&here.rows, step);
            uint64_t tokens = 0;
            for (uint32_t i = 0; i < b.n_micro; taken++) {
                const struct prefetched *got = prefetch_take(f, step, 0, i);
                assert_int_equal(got->from, i);
                assert_true(got->to > i && (several || got->to == i + 1));
                assert_int_equal(got->n_units, b.n_micro);
                assert_int_equal(got->n_rows, b.n_rows);
                assert_int_equal(got->targets, train_rows_targets(&here.rows, &b));
                micro_fill(&want, &here.rows, &b, i, got->to, tokens);
                same_micro(&want, &got->micro);
                assert_true(want.n_tokens <= most);
                tokens += (uint64_t)want.n_tokens;
                i = got->to;
            }
        }
        assert_true(taken > 30);
        micro_close(&want);
        prefetch_close(f);
        close_rows(&here);
        close_rows(&there);
    }
}

/* A step that is repeated, one that is skipped, and smaller micro-batches in between. */
static void test_out_of_order(void **state)
{
    (void)state;
    static const int64_t steps[] = {0, 0, 5, 1, 2, 2, 9, 0};
    struct train_params p = small_steps();
    struct sets here, there;
    open_rows(&here, &p);
    open_rows(&there, &p);
    struct prefetch *f = prefetch_open(&there.rows, 200, 64, true, true);
    struct micro want;
    micro_open(&want, 200, 64);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        const struct prefetched *got = prefetch_take(f, steps[i], 0, 0);
        struct microbatches_step b = train_rows_step(&here.rows, steps[i]);
        micro_fill(&want, &here.rows, &b, 0, got->to, 0);
        same_micro(&want, &got->micro);
        if (i % 3 == 1) { /* the rows are the caller's */
            prefetch_wait(f);
            train_rows_step(&there.rows, 7);
        }
        if (i == 4) prefetch_limit(f, 60);
        assert_true(i < 5 || want.n_tokens <= 60);
    }
    micro_close(&want);
    prefetch_close(f);
    close_rows(&here);
    close_rows(&there);
    prefetch_close(NULL);
}

static void take_slots(uint32_t lowest, uint32_t end, uint32_t stride)
{
    struct train_params p = small_steps();
    struct sets here, there;
    p.grad_slots = 8;
    p.batch_tokens = 150;
    open_rows(&here, &p);
    open_rows(&there, &p);
    struct prefetch *f = prefetch_open(&there.rows, 48, 64, true, true);
    struct micro want;
    int empty = 0, taken = 0;
    micro_open(&want, 48, 64);
    prefetch_slots(f, lowest, end, stride);
    for (int64_t step = 0; step < here.rows.before[3]; step++) {
        struct microbatches_step b = train_rows_step(&here.rows, step);
        for (uint32_t slot = lowest; slot < end; slot += stride) {
            const struct prefetched *got;
            uint32_t from = 0, first = b.slot[slot];
            do {
                got = prefetch_take(f, step, slot, from);
                assert_int_equal(got->n_units, b.slot[slot + 1] - first);
                assert_int_equal(got->targets, train_rows_targets(&here.rows, &b));
                empty += !got->n_units;
                if (!got->n_units) break;
                uint64_t tokens = 0;
                for (uint32_t i = 0; i < first + from; i++) tokens += (uint64_t)train_rows_tokens(&here.rows, &b, i);
                micro_fill(&want, &here.rows, &b, first + from, first + got->to, tokens);
                same_micro(&want, &got->micro);
                from = got->to;
                taken++;
            } while (from < got->n_units);
        }
    }
    assert_true(empty > 0 && taken > 20);
    micro_close(&want);
    prefetch_close(f);
    close_rows(&here);
    close_rows(&there);
}

/* Those slots of each step that a rank has, some of them without rows. */
static void test_slots(void **state)
{
    (void)state;
    take_slots(2, 6, 1);
    take_slots(1, 8, 2);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_order),
        cmocka_unit_test(test_out_of_order),
        cmocka_unit_test(test_slots),
    };
    rig_begin(argc, argv);
    return cmocka_run_group_tests_name("prefetch", tests, NULL, NULL);
}
