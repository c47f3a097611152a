/* Presets become options, which those given beside them win over. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/cli/train_preset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Expands the words; -> the result in one line, in *said what was said, or *e. */
static char *expanded(const char *line, struct buf *said, struct err *e)
{
    char text[256], *argv[32], **out = NULL, *save;
    int argc = 0;
    snprintf(text, sizeof text, "%s", line);
    for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save)) argv[argc++] = w;
    int n = train_preset_expand(argc, argv, &out, said, e);
    struct buf joined = {0};
    for (int i = 0; i < n; i++) buf_printf(&joined, "%s%s", i ? " " : "", out[i]);
    free(out);
    return joined.data;
}

static void assert_expanded(const char *line, const char *want, const char *want_said)
{
    struct buf said = {0};
    struct err e = {0};
    char *got = expanded(line, &said, &e);
    assert_string_equal(got, want);
    if (want_said)
        assert_string_equal(said.data, want_said);
    else
        assert_null(said.data);
    free(got);
    buf_free(&said);
}

static void test_without(void **state)
{
    (void)state;
    assert_expanded("train --data a --lora-r 4", "train --data a --lora-r 4", NULL);
}

static void test_one(void **state)
{
    (void)state;
    const char *said = "preset basic: --epochs=1 --batch-tokens=2048 --lora-r=8 --lora-alpha=16\n";
    assert_expanded("train --preset basic --data a",
                    "train --data a --epochs=1 --batch-tokens=2048 --lora-r=8 --lora-alpha=16", said);
    assert_expanded("train --data a --preset=basic",
                    "train --data a --epochs=1 --batch-tokens=2048 --lora-r=8 --lora-alpha=16", said);
}

static void test_own_options_win(void **state)
{
    (void)state;
    assert_expanded("train --preset basic,8b --lora_r=4 --quantize int4",
                    "train --lora_r=4 --quantize int4 --epochs=1 --batch-tokens=2048 --lora-alpha=16 --method=qlora",
                    "preset basic: --epochs=1 --batch-tokens=2048 (--lora-r=8: yours) --lora-alpha=16\n"
                    "preset 8b: --method=qlora (--quantize=int8: yours)\n");
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"train --preset", "--preset wants a value"},
        {"train --preset best", "--preset: \"best\" is none of basic advanced ultra 1b 8b 70b"},
        {"train --preset basic,", "--preset: \"\" is none of basic advanced ultra 1b 8b 70b"},
        {"--preset 1b --preset 1b --preset 1b --preset 1b --preset 1b", "--preset is given more than 4 times"},
        {"--preset 1b,1b,1b,1b,1b,1b,1b", "--preset: too many names"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct buf said = {0};
        struct err e = {0};
        assert_null(expanded(bad[i][0], &said, &e));
        assert_string_equal(e.msg, bad[i][1]);
        buf_free(&said);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without),
        cmocka_unit_test(test_one),
        cmocka_unit_test(test_own_options_win),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
