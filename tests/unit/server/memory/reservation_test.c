/* server/memory/reservation.c, and what json.c reserves with it: a tree's memory is known before one node is made, is
 * no less than what the allocator gives for it, and comes back. */
#include "server/memory/reservation.h"

#include "server/api/chat_format.h"
#include "server/json/check.h"
#include "server/json/json.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static size_t taken, peak, calls; /* by cJSON: now, at most, ever */

/* What the allocator has taken, its own words included. */
static size_t chunk(void *p)
{
    return malloc_usable_size(p) + sizeof(size_t);
}

static void *count_alloc(size_t n)
{
    void *p = malloc(n);
    if (p) taken += chunk(p);
    if (taken > peak) peak = taken;
    calls++;
    return p;
}

static void count_free(void *p)
{
    if (p) taken -= chunk(p);
    free(p);
}

static size_t in_use(void)
{
    struct reservation_stats s;
    reservation_stats(&s);
    return s.used;
}

static struct buf repeat(const char *open, const char *item, const char *comma, const char *close, int n)
{
    struct buf b = {0};
    buf_str(&b, open);
    for (int i = 0; i < n; i++) {
        if (i) buf_str(&b, comma);
        buf_str(&b, item);
    }
    buf_str(&b, close);
    return b;
}

static struct buf nested(int depth, int n)
{
    struct buf one = repeat("", "[", "", "", depth), shut = repeat("", "]", "", "", depth);
    buf_append(&one, shut.data, shut.len);
    struct buf all = repeat("[", one.data, ",", "]", n);
    buf_free(&one);
    buf_free(&shut);
    return all;
}

enum { SHAPES = 9 };

static struct buf shape(int i)
{
    struct buf text = {0}, out;
    for (int k = 0; i == 7 && k < 10000; k++) buf_str(&text, "\\u0041\\n");
    switch (i) {
    case 0: return repeat("[", "0", ",", "]", 50000);
    case 1: return repeat("{", "\"\":0", ",", "}", 50000);
    case 2: return repeat("[", "\"\"", ",", "]", 50000);
    case 3: return repeat("[", "{\"some_key\":\"a text of 23 bytes....\"}", ",", "]", 10000);
    case 4: return nested(60, 500);
    case 5: return repeat("[", "{}", ",", "]", 50000);
    case 6: return repeat("[", "1e5", ",", "]", 50000); /* keeps its literal */
    case 7: out = repeat("[\"", text.data, "", "\"]", 10); break;
    default: out = repeat("[", "12345678901234567890,true,null,\"\\u00e9\\u00e9\\u00e9\"", ",", "]", 5000); break;
    }
    buf_free(&text);
    return out;
}

static void a_tree_takes_what_is_reserved(void **state)
{
    (void)state;
    struct err e = {0};
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = count_alloc, .free_fn = count_free});
    for (int i = 0; i < SHAPES; i++) {
        struct buf text = shape(i);
        taken = peak = 0;
        cJSON *tree = json_parse_body(text.data, text.len, &e);
        assert_non_null(tree);
        if (json_reserved(tree) < peak)
            print_error("shape %d: %zu reserved, %zu taken\n", i, json_reserved(tree), peak);
        assert_true(json_reserved(tree) >= peak);
        assert_int_equal(in_use(), json_reserved(tree));
        json_free(tree);
        assert_int_equal(in_use(), 0);
        buf_free(&text);
    }
    cJSON_InitHooks(NULL);
}

static unsigned chance(unsigned n)
{
    static uint32_t state = 15;
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

static void random_text(struct buf *b)
{
    static const char *const pieces[] = {"a", "some text", "\xc3\xa9", "\\n", "\\u00e9", "\\ud83d\\ude00", " "};
    buf_char(b, '"');
    for (unsigned n = chance(8) * chance(5); n; n--) buf_str(b, pieces[chance(sizeof pieces / sizeof *pieces)]);
    buf_char(b, '"');
}

/* Half of them keep their literals. */
static void random_number(struct buf *b)
{
    static const char *const numbers[] = {"0",  "7",    "123456", "0.5",    "-12.25",           "1.0",
                                          "-0", "-0.0", "1e16",   "5e-324", "9007199254740993", "100.00"};
    unsigned i = chance(sizeof numbers / sizeof *numbers + 2);
    if (i < sizeof numbers / sizeof *numbers) {
        buf_str(b, numbers[i]);
        return;
    }
    buf_char(b, '1');
    for (unsigned n = chance(chance(8) ? 60 : 300); n; n--) buf_char(b, (char)('0' + chance(10)));
    if (i & 1) buf_str(b, ".0");
}

static void random_value(struct buf *b, int depth)
{
    unsigned kind = chance(depth < 6 ? 8 : 5), n = chance(7);
    bool object = kind == 5;
    if (kind < 3) {
        random_number(b);
    } else if (kind == 3) {
        random_text(b);
    } else if (kind == 4) {
        buf_str(b, chance(2) ? "true" : "null");
    } else {
        buf_char(b, object ? '{' : '[');
        for (unsigned i = 0; i < n; i++) {
            if (i) buf_char(b, ',');
            if (object) random_text(b);
            if (object) buf_char(b, ':');
            random_value(b, depth + 1);
        }
        buf_char(b, object ? '}' : ']');
    }
}

/* Texts, names and numbers of any length together: literals are part of what is reserved. */
static void random_trees_take_what_is_reserved(void **state)
{
    (void)state;
    size_t literals = 0, closest = 0;
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = count_alloc, .free_fn = count_free});
    for (int i = 0; i < 3000; i++) {
        struct err e = {0};
        struct json_size size;
        struct buf text = {0};
        buf_char(&text, '[');
        random_value(&text, 0);
        buf_char(&text, ']');
        assert_int_equal(json_measure(text.data, text.len, SIZE_MAX, &size, &e), ERR_OK);
        literals += size.wrapped;
        taken = peak = 0;
        cJSON *tree = json_parse_body(text.data, text.len, &e);
        assert_non_null(tree);
        if (json_reserved(tree) < peak)
            print_error("%s: %zu reserved, %zu taken\n", text.data, json_reserved(tree), peak);
        assert_true(json_reserved(tree) >= peak);
        if (100 * peak / json_reserved(tree) > closest) closest = 100 * peak / json_reserved(tree);
        json_free(tree);
        assert_int_equal(taken, 0);
        buf_free(&text);
    }
    assert_true(literals > 1000);
    assert_true(closest > 50); /* what is reserved is near what is taken */
    assert_int_equal(in_use(), 0);
    cJSON_InitHooks(NULL);
}

static void refused_before_a_node_is_made(void **state)
{
    (void)state;
    reservation_budget(4 << 20);
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = count_alloc, .free_fn = count_free});
    for (int i = 0; i < SHAPES; i++) {
        struct err e = {0};
        struct buf text = shape(i), body = {0};
        buf_str(&body, "{\"known\":1,\"large\":[");
        for (int k = 0; k < 20; k++) {
            if (k) buf_char(&body, ',');
            buf_append(&body, text.data, text.len);
        }
        buf_str(&body, "]}");
        calls = 0;
        assert_null(json_parse_body(body.data, body.len, &e));
        assert_int_equal(calls, 0);
        assert_int_equal(e.code, ERR_NOMEM);
        assert_int_equal(reservation_status(&e, 400), 413);
        assert_true(strncmp(e.msg, "large: ", 7) == 0); /* the field that is too large */
        assert_non_null(strstr(e.msg, "--request-memory"));
        assert_int_equal(in_use(), 0);
        buf_free(&text);
        buf_free(&body);
    }
    cJSON_InitHooks(NULL);
    reservation_budget(0);
}

static void the_budget_is_shared(void **state)
{
    (void)state;
    struct err e = {0};
    struct reservation a = {0}, b = {0};
    struct reservation_stats before, after;
    reservation_stats(&before);
    reservation_budget(1000);
    assert_true(reserve(&a, 600, "a", &e));
    assert_false(reserve(&b, 500, "the answer", &e));
    assert_int_equal(e.code, ERR_FULL);
    assert_int_equal(reservation_status(&e, 400), 503);
    assert_non_null(strstr(e.msg, "the answer"));
    assert_int_equal(b.bytes, 0);
    assert_false(reserve(&b, 1001, "the answer", &e));
    assert_int_equal(reservation_status(&e, 400), 413);
    assert_true(reserve(&b, 400, "b", &e));
    assert_false(reserve(&b, SIZE_MAX - 100, "b", NULL));
    assert_int_equal(in_use(), 1000);
    reservation_shrink(&a, 100);
    assert_true(reserve_up_to(&b, 450, "b", &e) == false); /* in steps of 64 KiB, which are not there */
    reservation_free(&a);
    reservation_free(&b);
    reservation_free(&b);
    assert_int_equal(in_use(), 0);
    reservation_stats(&after);
    assert_int_equal(after.refused - before.refused, 4);
    reservation_budget(1 << 20);
    assert_true(reserve_up_to(&a, 1, "a", &e));
    size_t step = a.bytes;
    assert_true(step > 1 && reserve_up_to(&a, step, "a", &e) && a.bytes == step);
    reservation_free(&a);
    reservation_budget(0);
    assert_int_equal(reservation_status(&(struct err){.code = ERR_INVALID}, 400), 400);
}

static void the_default(void **state)
{
    (void)state;
    size_t mib = 1 << 20, gib = 1 << 30;
    assert_int_equal(reservation_default(1600 * mib, 400 * mib), 400 * mib);  /* a quarter of the limit */
    assert_int_equal(reservation_default(1600 * mib, 1400 * mib), 100 * mib); /* half of what is left */
    assert_int_equal(reservation_default(100 * mib, 200 * mib), 16 * mib);    /* the least */
    assert_int_equal(reservation_default(1000 * gib, gib), 4 * gib);          /* the most */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tree_takes_what_is_reserved),
        cmocka_unit_test(random_trees_take_what_is_reserved),
        cmocka_unit_test(refused_before_a_node_is_made),
        cmocka_unit_test(the_budget_is_shared),

        cmocka_unit_test(the_default),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
