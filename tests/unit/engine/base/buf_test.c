/* Numbers as printf writes them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/buf.h"

static void test_decimals(void **state)
{
    static const int64_t edges[] = {0, 1, -1, 9, 10, -10, 99, 100, INT32_MIN, UINT32_MAX, INT64_MAX, INT64_MIN};
    struct buf ours = {0}, theirs = {0};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        buf_decimal(&ours, edges[i]);
        buf_printf(&theirs, "%lld", (long long)edges[i]);
    }
    for (uint64_t x = 1; x > 0 && x < UINT64_MAX / 3; x = x * 3 + 1) {
        buf_decimal(&ours, (int64_t)x);
        buf_printf(&theirs, "%lld", (long long)(int64_t)x);
    }
    assert_string_equal(ours.data, theirs.data);
    buf_free(&ours);
    buf_free(&theirs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_decimals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
