#include "engine/base/mem.h"

#include "engine/base/check.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void *or_die(void *p)
{
    if (!p) {
        fputs("tandem: out of memory\n", stderr);
        abort();
    }
    return p;
}

void *mem_alloc(size_t bytes)
{
    return or_die(malloc(bytes ? bytes : 1));
}

void *mem_zalloc(size_t bytes)
{
    return or_die(calloc(1, bytes ? bytes : 1));
}

void *mem_array(size_t count, size_t size)
{
    return or_die(calloc(count ? count : 1, size ? size : 1));
}

void *mem_resize(void *old, size_t count, size_t size)
{
    size_t bytes;
    CHECK(!__builtin_mul_overflow(count, size, &bytes));
    return or_die(realloc(old, bytes ? bytes : 1));
}

char *mem_strndup(const char *s, size_t n)
{
    char *p = mem_alloc(n + 1);
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}

char *mem_strdup(const char *s)
{
    return mem_strndup(s, strlen(s));
}

void *mem_try_alloc(size_t bytes)
{
    return malloc(bytes ? bytes : 1);
}

void mem_grow(void *items, size_t *capacity, size_t need, size_t size)
{
    if (need <= *capacity) return;
    size_t next = *capacity ? *capacity : 16;
    while (next < need) {
        CHECK(next <= SIZE_MAX / 2);
        next *= 2;
    }
    void *old;
    memcpy(&old, items, sizeof old);
    void *grown = mem_resize(old, next, size);
    memcpy(items, &grown, sizeof grown);
    *capacity = next;
}
