/* The end of a server: a client that connects when it drains already is accepted, and waited for shortly. */
#include "engine/base/err.h"
#include "server/net/http.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include <cmocka.h>

static void note(void *called)
{
    *(bool *)called = true;
}

static int connect_to(int port)
{
    const struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0 && connect(fd, (const struct sockaddr *)&at, sizeof at) == 0);
    return fd;
}

static void one_that_connects_late_does_not_hold_it_up(void **state)
{
    (void)state;
    uv_loop_t loop;
    struct err e = {0};
    struct http_server_config config;
    bool drained = false, closed = false;
    char byte;
    http_server_defaults(&config);
    config.port = 0;
    config.header_timeout_ms = 3600 * 1000;
    assert_int_equal(uv_loop_init(&loop), 0);
    struct http_server *s = http_server_open(&loop, &config, &e);
    assert_non_null(s);
    http_server_drain(s, note, &drained);
    int fd = connect_to(http_server_port(s));
    while (!drained) uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(http_server_stats(s)->accepted, 1);
    assert_int_equal(read(fd, &byte, 1), 0);
    close(fd);
    http_server_close(s, note, &closed);
    while (!closed) uv_run(&loop, UV_RUN_ONCE);
    http_server_free(s);
    assert_int_equal(uv_loop_close(&loop), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_that_connects_late_does_not_hold_it_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
