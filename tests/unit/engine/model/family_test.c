/* A family is rows of data: one that nobody made is added, loaded and computed without another line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/model/model.h"
#include "tests/model/odd_family.h"

#include <math.h>
#include <stdlib.h>

enum { T = 23, CHUNK = 9 };

static char dir[] = "/tmp/odd_family.XXXXXX";

static int make_model(void **state)
{
    (void)state;
    if (!mkdtemp(dir)) return -1;
    model_family_add(&odd_family);
    odd_family_write(dir);
    return 0;
}

static int remove_model(void **state)
{
    (void)state;
    model_family_add(NULL);
    dir_remove(dir);
    return 0;
}

static void test_config(void **state)
{
    (void)state;
    struct model_config c;
    struct err e = {0};
    if (model_config_read(dir, &c, &e)) fail_msg("%s", e.msg);
    assert_string_equal(c.family->model_type, "odd");
    for (int l = 0; l < c.layers; l++) {
        const struct block *b = model_block(&c, l);
        assert_true(b->norms == NORMS_AFTER && b->gated && b->window == (l == 2 ? 5 : 0));
    }
    assert_true(c.logit_softcap == 2.5f);
}

/* The text in chunks, so that the window and the softcap meet the cache too. */
static void compare(const char *device)
{
    int32_t id[T], pos[T], slot[T], page[(T + KV_PAGE - 1) / KV_PAGE], row[CHUNK];
    double *want = mem_array((size_t)T * ODD_VOCAB, sizeof *want);
    for (int t = 0; t < T; t++) id[t] = t * 37 % ODD_VOCAB, pos[t] = slot[t] = t;
    for (int i = 0; i < (T + KV_PAGE - 1) / KV_PAGE; i++) page[i] = i;
    for (int i = 0; i < CHUNK; i++) row[i] = i;
    odd_family_logits(id, T, want);
    struct model m;
    struct err e = {0};
    if (model_load(&m, dir, device, 2, NULL, false, &e)) fail_msg("%s: %s", device, e.msg);
    struct model_reserve r = {.pages = 2, .max_len = 32, .max_tokens = CHUNK, .max_rows = CHUNK, .kv_type = DT_F32};
    assert_int_equal(model_reserve(&m, &r, &e), 0);
    for (int at = 0, n; at < T; at += n) {
        n = T - at < CHUNK ? T - at : CHUNK;
        int32_t q_start[] = {0, n}, len = at + n;
        model_forward(&m, &(struct step_batch){.n_tokens = n,
                                               .n_seqs = 1,
                                               .n_rows = n,
                                               .pages_ld = 2,
                                               .id = id + at,
                                               .pos = pos + at,
                                               .slot = slot + at,
                                               .q_start = q_start,
                                               .kv_len = &len,
                                               .pages = page,
                                               .row = row});
        if (m.d->ops->finish(m.d)) fail_msg("%s: %s: %s", device, m.d->error.op, m.d->error.msg);
        for (int i = 0; i < n * ODD_VOCAB; i++) {
            double got = (double)((const float *)m.logits.p)[i], wanted = want[at * ODD_VOCAB + i];
            if (!(fabs(got - wanted) <= 1e-4))
                fail_msg("%s: logit %d of token %d is %g, not %g", device, i % ODD_VOCAB, at + i / ODD_VOCAB, got,
                         wanted);
        }
    }
    model_close(&m);
    free(want);
}

static void test_served(void **state)
{
    (void)state;
    compare("ref");
    compare("cpu");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_config), cmocka_unit_test(test_served)};
    return cmocka_run_group_tests_name("model_family", tests, make_model, remove_model);
}
