/* Slabs: weights of any sizes have zeroed memory of their own, until the last of a slab is given back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cpu/cpu.h"
#include "kernels/rng.h"

#include <string.h>

enum { OWNERS = 200, STEPS = 2000 };

struct owner {
    struct slab *slab; /* NULL: has nothing */
    uint8_t *p;
    size_t bytes;
};

static int slabs_in(const struct slab *s)
{
    int n = 0;
    for (; s; s = s->next) n++;
    return n;
}

/* The first and the last byte are written, and are still there when the memory is given back. */
static void take(struct slab **list, struct owner *o, size_t bytes, uint8_t mark)
{
    *o = (struct owner){.bytes = bytes};
    assert_non_null(o->slab = slab_take(list, bytes, &o->p));
    assert_int_equal((uintptr_t)o->p % 64, 0);
    assert_true(o->p >= o->slab->p && o->p + bytes <= o->slab->p + o->slab->bytes);
    for (size_t i = 0; i < bytes; i += i < 64 || i + 64 >= bytes ? 1 : 61) assert_int_equal(o->p[i], 0);
    o->p[0] = o->p[bytes - 1] = mark;
}

static void give(struct slab **list, struct owner *o, uint8_t mark)
{
    assert_true(o->p[0] == mark && o->p[o->bytes - 1] == mark);
    slab_give(list, o->slab);
    o->slab = NULL;
}

static void test_random(void **state)
{
    struct slab *list = NULL;
    struct owner owner[OWNERS] = {0};
    for (int step = 0; step < STEPS; step++) {
        uint64_t r = rng_at(5, (uint64_t)step);
        unsigned i = (unsigned)(r % OWNERS);
        size_t most = (size_t)1 << (r >> 32) % 20;
        if (owner[i].slab)
            give(&list, &owner[i], (uint8_t)(i + 1));
        else
            take(&list, &owner[i], 1 + (size_t)(r >> 8) % most, (uint8_t)(i + 1));
    }
    for (unsigned i = 0; i < OWNERS; i++)
        if (owner[i].slab) give(&list, &owner[i], (uint8_t)(i + 1));
    assert_null(list);
}

/* Large weights do not end a slab that has room, and leave it when they go. */
static void test_large(void **state)
{
    struct slab *list = NULL;
    struct owner small[2], large[2];
    take(&list, &large[0], (size_t)40 << 20, 9);
    take(&list, &small[0], 1000, 7);
    take(&list, &large[1], (size_t)100 << 20, 8);
    take(&list, &small[1], 1000, 6);
    assert_true(large[0].slab != small[0].slab && large[1].slab != small[0].slab && large[0].slab != large[1].slab);
#ifndef TANDEM_SANITIZED
    assert_ptr_equal(small[0].slab, small[1].slab);
    assert_int_equal(slabs_in(list), 3);
#endif
    give(&list, &large[1], 8);
    give(&list, &small[0], 7);
    give(&list, &large[0], 9);
    assert_int_equal(slabs_in(list), 1);
    give(&list, &small[1], 6);
    assert_null(list);
}

/* More than the system has is refused, and what there is stays as it was. */
static void test_too_large(void **state)
{
    struct slab *list = NULL;
    struct owner o;
    uint8_t *p;
    take(&list, &o, 5000, 3);
    assert_null(slab_take(&list, SIZE_MAX / 3, &p));
    assert_int_equal(slabs_in(list), 1);
    give(&list, &o, 3);
    assert_null(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_large),
                                       cmocka_unit_test(test_too_large)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
