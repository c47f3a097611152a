/* The reference's log-probabilities when they are lost and computed again from a model whose adapters were trained. */
#include "tests/unit/engine/train/train_rig.h"

/* Pairs that follow a rule, or their answers one by one. */
static struct dataset *preferences(uint64_t n, int vocab, bool singles)
{
    struct dataset *from = rows_make(n, vocab, 5), *s = calloc(1, sizeof *s);
    assert_non_null(s);
    for (uint64_t i = 0; i + 1 < n; i += singles ? 1 : 2) {
        int32_t id[ROW_TOKENS_MAX];
        uint8_t trained[ROW_TOKENS_MAX];
        int len = 0, second = 0;
        for (uint64_t k = i; k < i + (singles ? 1 : 2); k++) {
            int most = from->row[k].n < 24 ? from->row[k].n : 24;
            if (k > i) second = len;
            for (int j = 0; j < most; j++, len++) id[len] = from->id[k][j], trained[len] = j > 1;
        }
        rows_add_preference(s, id, trained, len, second,
                            !singles ? DATASET_UNLABELLED
                            : i % 2  ? DATASET_UNDESIRABLE
                                     : DATASET_DESIRABLE);
    }
    free(from);
    return s;
}

static void lose_reference(const char *job)
{
    char *dir = path_to(job), *reference = file_join(dir, "reference");
    assert_int_equal(access(reference, F_OK), 0);
    remove_tree(reference);
    free(reference);
    free(dir);
}

/* Adapters of experts and of the router are no part of the reference, no more than the others. */
static void test_computed_again(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        enum train_method method;
    } cases[] = {{"mixtral", TRAIN_DPO}, {"qwen2-moe", TRAIN_KTO}, {"llama-gqa", TRAIN_DPO}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model m = open_model(cases[i].model, "cpu", 1);
        struct dataset *data = preferences(32, m.c.vocab, cases[i].method == TRAIN_KTO);
        struct train_params p = params(cases[i].method);
        p.batch_tokens = 128;
        p.targets = TARGET_ALL | (model_experts(&m.c).count ? TARGET_PARAMETERS : 0);
        struct run whole = run_job(&m, data, &p, "whole", -1);
        assert_int_equal(whole.last, TRAIN_SUCCEEDED);
        assert_true(whole.steps > 4);
        struct run r = run_job(&m, data, &p, "broken", 3);
        assert_int_equal(r.last, TRAIN_PAUSED);
        lose_reference("broken");
        r = run_job(&m, data, &p, "broken", -1);
        assert_int_equal(r.last, TRAIN_SUCCEEDED);
        assert_int_equal(r.resumed, 3);
        assert_true(r.loss[0] == whole.loss[3]); /* to the bit */
        same_result("whole", "broken", cases[i].model);
        remove_tree(scratch);
        free(data);
        model_close(&m);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_computed_again)};
    rig_begin(argc, argv);
    int failed = cmocka_run_group_tests_name("reference", tests, NULL, NULL);
    remove_tree(scratch);
    return failed;
}
