/* The order of clients' jobs on the thread pool, and who is a client. */
#include "server/access/client.h"
#include "server/access/fair_share.h"
#include "server/access/keys.h"
#include "server/bridge/work_queue.h"
#include "server/net/http.h"
#include "server/net/peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { HOG = 7, OTHER = 8, THIRD = 9 };

static void test_one_client_runs_in_order(void **state)
{
    struct work_queue q;
    struct work_job j[4];
    work_queue_init(&q, 3);
    for (int i = 0; i < 4; i++) work_queue_add(&q, HOG, &j[i]);
    assert_ptr_equal(work_queue_next(&q), &j[0]);
    assert_ptr_equal(work_queue_next(&q), &j[1]);
    assert_null(work_queue_next(&q)); /* a slot stays free for others */
    work_queue_end(&q, &j[1], 5);
    assert_ptr_equal(work_queue_next(&q), &j[2]);
    work_queue_end(&q, &j[0], 5);
    assert_ptr_equal(work_queue_next(&q), &j[3]);
    work_queue_end(&q, &j[2], 5);
    work_queue_end(&q, &j[3], 5);
    assert_null(work_queue_next(&q));
    work_queue_free(&q);
}

/* However much one client has waiting, another's job is next, and finds a slot. */
static void test_a_newcomer_does_not_wait_for_a_hog(void **state)
{
    struct work_queue q;
    struct work_job hog[100], own[2];
    work_queue_init(&q, 3);
    for (int i = 0; i < 100; i++) work_queue_add(&q, HOG, &hog[i]);
    assert_ptr_equal(work_queue_next(&q), &hog[0]);
    assert_ptr_equal(work_queue_next(&q), &hog[1]);
    work_queue_add(&q, OTHER, &own[0]);
    work_queue_add(&q, OTHER, &own[1]);
    assert_ptr_equal(work_queue_next(&q), &own[0]);
    assert_null(work_queue_next(&q)); /* all slots run */
    work_queue_end(&q, &hog[0], 1000);
    assert_ptr_equal(work_queue_next(&q), &own[1]); /* one each: who used less time is next */
    work_queue_end(&q, &own[0], 10);
    work_queue_end(&q, &own[1], 10);
    int n = 2;
    for (struct work_job *w = &hog[1]; n <= 100; n++) {
        work_queue_end(&q, w, 1000);
        w = work_queue_next(&q);
    }
    work_queue_free(&q);
}

/* With one slot the time is shared: short jobs go before long ones until both clients used as much. */
static void test_time_is_shared(void **state)
{
    struct work_queue q;
    struct work_job longs[20], shorts[200];
    uint64_t used[2] = {0};
    work_queue_init(&q, 1);
    for (int i = 0; i < 20; i++) work_queue_add(&q, HOG, &longs[i]);
    for (int i = 0; i < 200; i++) work_queue_add(&q, OTHER, &shorts[i]);
    for (int i = 0; i < 100; i++) {
        struct work_job *w = work_queue_next(&q);
        bool is_long = w >= longs && w < longs + 20;
        uint64_t ns = is_long ? 1000 : 100;
        used[!is_long] += ns;
        work_queue_end(&q, w, ns);
        uint64_t gap = used[0] > used[1] ? used[0] - used[1] : used[1] - used[0];
        assert_true(gap <= 1000);
    }
    for (struct work_job *w; (w = work_queue_next(&q));) work_queue_end(&q, w, 1);
    work_queue_free(&q);
}

/* Who comes back is not ahead by what others used meanwhile. */
static void test_absence_saves_nothing_up(void **state)
{
    struct work_queue q;
    struct work_job a[50], b[50];
    work_queue_init(&q, 1);
    for (int i = 0; i < 50; i++) work_queue_add(&q, HOG, &a[i]);
    for (int i = 0; i < 20; i++) work_queue_end(&q, work_queue_next(&q), 1000);
    for (int i = 0; i < 50; i++) work_queue_add(&q, OTHER, &b[i]);
    int n = 0;
    for (int i = 0; i < 20; i++) {
        struct work_job *w = work_queue_next(&q);
        n += w >= b && w < b + 50;
        work_queue_end(&q, w, 1000);
    }
    assert_in_range(n, 9, 11);
    for (struct work_job *w; (w = work_queue_next(&q));) work_queue_end(&q, w, 1);
    work_queue_free(&q);
}

static void test_room_is_shared(void **state)
{
    struct work_queue q;
    struct work_job hog[10], own[6];
    work_queue_init(&q, 2);
    for (int i = 0; i < 10; i++) {
        assert_true(work_queue_has_room(&q, HOG, 10)); /* all of it while nobody else is there */
        work_queue_add(&q, HOG, &hog[i]);
    }
    assert_false(work_queue_has_room(&q, HOG, 10));
    for (int i = 0; i < 5; i++) {
        assert_true(work_queue_has_room(&q, OTHER, 10));
        work_queue_add(&q, OTHER, &own[i]);
    }
    assert_false(work_queue_has_room(&q, OTHER, 10)); /* half of it is its share */
    assert_true(work_queue_has_room(&q, THIRD, 10));
    for (struct work_job *w; (w = work_queue_next(&q));) work_queue_end(&q, w, 1);
    work_queue_free(&q);
}

static void test_shares(void **state)
{
    assert_true(fair_share_fits(0, 0, 8, 8, 1));
    assert_false(fair_share_fits(8, 8, 1, 8, 1)); /* alone: the limit is the limit */
    assert_false(fair_share_fits(8, 8, 1, 8, 2)); /* its own, and nobody's else */
    assert_true(fair_share_fits(8, 0, 4, 8, 2));  /* up to half of it for the second */
    assert_false(fair_share_fits(8, 0, 5, 8, 2));
    assert_false(fair_share_fits(12, 4, 1, 8, 2));
    assert_true(fair_share_fits(12, 0, 1, 8, 100));  /* one place is within anybody's share */
    assert_false(fair_share_fits(16, 0, 1, 8, 100)); /* never more than twice the limit */
}

static const char *address(int family, const char *text)
{
    static char out[PEER_ADDRESS];
    struct sockaddr_in six_or_four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    if (family == AF_INET) {
        assert_int_equal(inet_pton(AF_INET, text, &six_or_four.sin_addr), 1);
        peer_address((struct sockaddr *)&six_or_four, out);
    } else {
        assert_int_equal(inet_pton(AF_INET6, text, &six.sin6_addr), 1);
        peer_address((struct sockaddr *)&six, out);
    }
    return out;
}

static void test_who_is_a_client(void **state)
{
    assert_string_equal(address(AF_INET, "192.0.2.7"), "192.0.2.7");
    assert_string_equal(address(AF_INET6, "::ffff:192.0.2.7"), "192.0.2.7");
    assert_string_equal(address(AF_INET6, "2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
    assert_string_equal(address(AF_INET6, "2001:db8:1:2:ffff::1"), "2001:db8:1:2::/64");
    struct sockaddr local = {.sa_family = AF_UNIX};
    char out[PEER_ADDRESS], name[CLIENT_NAME], same[CLIENT_NAME];
    peer_address(&local, out);
    assert_string_equal(out, "");

    struct key key = {.name = "192.0.2.7"}; /* a key's name may look like an address */
    struct http_req by_key = {.peer = "192.0.2.9", .key = &key}, by_address = {.peer = "192.0.2.7"};
    client_name(&by_key, name);
    client_name(&by_address, same);
    assert_string_equal(name, "key 192.0.2.7");
    assert_string_equal(same, "address 192.0.2.7");
    assert_int_not_equal(client_id(&by_key), client_id(&by_address));
    assert_int_equal(client_id(&by_address), client_id_of(same));
    assert_int_not_equal(client_id(&by_address), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_client_runs_in_order), cmocka_unit_test(test_a_newcomer_does_not_wait_for_a_hog),
        cmocka_unit_test(test_time_is_shared),           cmocka_unit_test(test_absence_saves_nothing_up),
        cmocka_unit_test(test_room_is_shared),           cmocka_unit_test(test_shares),
        cmocka_unit_test(test_who_is_a_client),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
