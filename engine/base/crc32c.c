#include "engine/base/crc32c.h"

#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* table[k][b]: contribution of byte b to the checksum when k more bytes follow it ("slicing by 8") */
static uint32_t table[8][256];

static void fill_table(void)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t c = b;
        for (int i = 0; i < 8; i++) c = c >> 1 ^ (c & 1 ? 0x82f63b78u : 0);
        table[0][b] = c;
    }
    for (int k = 1; k < 8; k++)
        for (int b = 0; b < 256; b++) table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 255];
}

uint32_t crc32c_portable(uint32_t before, const void *p, size_t n)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const unsigned char *at = p;
    uint32_t c = ~before;
    pthread_once(&once, fill_table);
    for (; n >= 8; n -= 8, at += 8) {
        uint32_t low = c ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
        c = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^ table[4][low >> 24];
        c ^= table[3][at[4]] ^ table[2][at[5]] ^ table[1][at[6]] ^ table[0][at[7]];
    }
    for (; n; n--) c = c >> 8 ^ table[0][(c ^ *at++) & 255];
    return ~c;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t before, const void *p, size_t n)
{
    const unsigned char *at = p;
    uint64_t c = (uint32_t)~before, word;
    for (; n >= 8; n -= 8, at += 8) {
        memcpy(&word, at, 8);
        c = _mm_crc32_u64(c, word);
    }
    for (; n; n--) c = _mm_crc32_u8((uint32_t)c, *at++);
    return ~(uint32_t)c;
}

uint32_t crc32c(uint32_t before, const void *p, size_t n)
{
    return __builtin_cpu_supports("sse4.2") ? by_instruction(before, p, n) : crc32c_portable(before, p, n);
}
#else
uint32_t crc32c(uint32_t before, const void *p, size_t n)
{
    return crc32c_portable(before, p, n);
}
#endif
