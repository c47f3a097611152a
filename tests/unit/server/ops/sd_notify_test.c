/* What the service manager hears and hands over: the datagrams of sd_notify.h, the socket of socket_activation.h.
 * sd_notify_open reads the environment once in a process, so each case runs in a child of its own. */
#include "server/ops/sd_notify.h"
#include "server/ops/socket_activation.h"

#include "engine/base/clock.h"

#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* The manager's end, at a path or, with '@', abstract.  The name goes into NOTIFY_SOCKET. */
static int manager_open(const char *name)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    size_t n = strlen(name);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    memcpy(at.sun_path, name, n);
    if (name[0] == '@') at.sun_path[0] = 0;
    assert_int_equal(bind(fd, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)), 0);
    setenv("NOTIFY_SOCKET", name, 1);
    return fd;
}

static const char *heard(int fd)
{
    static char text[1024];
    ssize_t n = recv(fd, text, sizeof text - 1, MSG_DONTWAIT);
    text[n > 0 ? n : 0] = 0;
    return text;
}

/* fn in a child; 0 is what it is to return */
static void in_child(int (*fn)(void))
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) _exit(fn());
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static int say_everything(void)
{
    sd_notify_open();
    if (!sd_notify_wanted() || sd_notify_watchdog_us() != 3000000) return 1;
    sd_notify_status("loading %s\nREADY=1", "x");
    sd_notify_ready();
    sd_notify_reloading();
    sd_notify_alive();
    sd_notify_more_time(1.5);
    sd_notify_stopping(90);
    return 0;
}

static void hear_everything(int fd)
{
    setenv("WATCHDOG_USEC", "3000000", 1);
    uint64_t before = clock_now() / 1000;
    unsigned long long us = 0;
    in_child(say_everything);
    assert_string_equal(heard(fd), "STATUS=loading x READY=1"); /* one line, whatever the text */
    assert_string_equal(heard(fd), "READY=1");
    assert_int_equal(sscanf(heard(fd), "RELOADING=1\nMONOTONIC_USEC=%llu", &us), 1);
    assert_in_range(us, before, clock_now() / 1000);
    assert_string_equal(heard(fd), "WATCHDOG=1");
    assert_string_equal(heard(fd), "EXTEND_TIMEOUT_USEC=1500000");
    assert_string_equal(heard(fd), "STOPPING=1\nEXTEND_TIMEOUT_USEC=90000000");
    assert_string_equal(heard(fd), "");
    close(fd);
    unsetenv("WATCHDOG_USEC");
    unsetenv("NOTIFY_SOCKET");
}

static void test_path(void **state)
{
    char name[64];
    (void)state;
    snprintf(name, sizeof name, "/tmp/tandem-notify-%d", (int)getpid());
    unlink(name);
    hear_everything(manager_open(name));
    unlink(name);
}

static void test_abstract(void **state)
{
    char name[64];
    (void)state;
    snprintf(name, sizeof name, "@tandem-notify-%d", (int)getpid());
    hear_everything(manager_open(name));
}

static int nobody(void)
{
    sd_notify_open();
    sd_notify_ready(); /* harmless */
    return sd_notify_wanted() || sd_notify_watchdog_us();
}

static void test_nobody_listens(void **state)
{
    (void)state;
    char name[200];
    unsetenv("NOTIFY_SOCKET");
    setenv("WATCHDOG_USEC", "1000000", 1);
    in_child(nobody);
    const char *wrong[] = {"", "/", "vsock:2:1", "relative"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv("NOTIFY_SOCKET", wrong[i], 1);
        in_child(nobody);
    }
    memset(name, 'x', sizeof name);
    name[0] = '/', name[sizeof name - 1] = 0; /* longer than an address can be */
    setenv("NOTIFY_SOCKET", name, 1);
    in_child(nobody);
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
}

static int anothers_watchdog(void)
{
    sd_notify_open();
    sd_notify_alive(); /* to a socket that is not there: no error, no wait */
    return !sd_notify_wanted() || sd_notify_watchdog_us();
}

static void test_the_watchdog_of_another_process(void **state)
{
    (void)state;
    setenv("NOTIFY_SOCKET", "/tmp/tandem-there-is-no-such-socket", 1);
    setenv("WATCHDOG_USEC", "1000000", 1);
    setenv("WATCHDOG_PID", "1", 1);
    in_child(anothers_watchdog);
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

/* ---- activation ------------------------------------------------------------------------------------------------ */

enum handed { TCP, TCP_SILENT, UNIX_SOCKET, NO_SOCKET };

static void hand_over(enum handed what, const char *count)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char pid[32];
    int fd = what == NO_SOCKET ? dup(0) : socket(what == UNIX_SOCKET ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
    if (what == TCP || what == TCP_SILENT) bind(fd, (struct sockaddr *)&at, sizeof at);
    if (what == TCP) listen(fd, 1);
    dup2(fd, 3);
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    setenv("LISTEN_PID", pid, 1);
    setenv("LISTEN_FDS", count, 1);
}

/* rc of socket_activation_take in a child that was handed `what` */
static int take(enum handed what, const char *count, int *fd)
{
    struct err e;
    hand_over(what, count);
    int rc = socket_activation_take(fd, &e);
    return getenv("LISTEN_FDS") || getenv("LISTEN_PID") ? 100 : rc;
}

static int take_tcp(void)
{
    char host[64];
    int fd;
    if (take(TCP, "1", &fd) || fd != 3) return 1;
    socket_activation_host(fd, host, sizeof host);
    return strcmp(host, "127.0.0.1") != 0;
}

static int take_wrong(void)
{
    int fd;
    return take(TCP, "2", &fd) != ERR_INVALID || take(TCP_SILENT, "1", &fd) != ERR_INVALID ||
           take(UNIX_SOCKET, "1", &fd) != ERR_INVALID || take(NO_SOCKET, "1", &fd) != ERR_INVALID || fd != -1;
}

static int take_none(void)
{
    struct err e;
    int fd = 7;
    if (take(TCP, "0", &fd) || fd != -1) return 1;
    setenv("LISTEN_FDS", "1", 1); /* meant for another process */
    setenv("LISTEN_PID", "1", 1);
    return socket_activation_take(&fd, &e) || fd != -1 || getenv("LISTEN_FDS");
}

static void test_activation(void **state)
{
    (void)state;
    in_child(take_tcp);
    in_child(take_wrong);
    in_child(take_none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_path),           cmocka_unit_test(test_abstract),
        cmocka_unit_test(test_nobody_listens), cmocka_unit_test(test_the_watchdog_of_another_process),
        cmocka_unit_test(test_activation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
