/* CRC-32C: known answers, and both ways the same at every length and alignment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/crc32c.h"

#include <string.h>

static void test_known(void **state)
{
    /* RFC 3720, B.4 */
    unsigned char zeros[32] = {0}, ones[32], up[32];
    memset(ones, 0xff, sizeof ones);
    for (int i = 0; i < 32; i++) up[i] = (unsigned char)i;
    assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283);
    assert_int_equal(crc32c(0, zeros, 32), 0x8a9136aa);
    assert_int_equal(crc32c(0, ones, 32), 0x62a8ab43);
    assert_int_equal(crc32c(0, up, 32), 0x46dd794e);
    assert_int_equal(crc32c(0, "", 0), 0);
}

static void test_both_ways(void **state)
{
    unsigned char data[400];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 197 + i / 7);
    for (size_t from = 0; from < 9; from++)
        for (size_t n = 0; n + from <= sizeof data; n += n < 40 ? 1 : 31) {
            uint32_t want = crc32c_portable(7, data + from, n);
            assert_int_equal(crc32c(7, data + from, n), want);
            assert_int_equal(crc32c(crc32c(7, data + from, n / 3), data + from + n / 3, n - n / 3), want);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_known), cmocka_unit_test(test_both_ways)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
