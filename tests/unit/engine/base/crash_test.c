/* Reports of the end: each case is a child that ends in its way; its status, its stderr and its file are looked at. */
#include "engine/base/crash.h"

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/flight.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];

struct end {
    int status; /* of waitpid */
    char *said, *file;
};

/* ---- ways to end ----------------------------------------------------------------------------------------------- */

static void end_by_check(void)
{
    int three = 3;
    CHECK(three == 4);
}

static void end_by_null(void)
{
    volatile int *nothing = NULL;
    *nothing = 1;
}

static void end_by_call(void)
{
    void (*volatile nowhere)(void) = (void (*)(void))(uintptr_t)16;
    nowhere();
}

static void end_by_division(void)
{
    volatile int seven = 7, zero = 0;
    volatile int v = seven / zero;
    (void)v;
    raise(SIGFPE); /* a division by 0 is no error for 64-bit Arm */
}

static void *crash_in_thread(void *arg)
{
    (void)arg;
    pthread_setname_np(pthread_self(), "the-culprit");
    crash_thread_begin();
    end_by_null();
    return NULL;
}

static void *bystander(void *arg)
{
    sigset_t open, usr2;
    pthread_setname_np(pthread_self(), "a-bystander");
    sigemptyset(&open);
    sigemptyset(&usr2);
    sigaddset(&usr2, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &usr2, NULL);
    for (;; sigsuspend(&open)) atomic_fetch_add((_Atomic int *)arg, 1); /* again after each signal */
    return NULL;
}

static void end_in_thread(void)
{
    _Atomic int ready = 0;
    pthread_t a, b;
    pthread_create(&a, NULL, bystander, &ready);
    while (!atomic_load(&ready)) {
    }
    pthread_create(&b, NULL, crash_in_thread, NULL);
    pthread_join(b, NULL);
}

__attribute__((noinline)) static int eat_stack(int depth)
{
    volatile char block[4096];
    block[depth % 4096] = (char)depth;
    return depth < 0 ? 0 : eat_stack(depth + 1) + block[depth % 4096];
}

static void *overflow(void *arg)
{
    stack_t first, second;
    (void)arg;
    crash_thread_begin();
    sigaltstack(NULL, &first);
    crash_thread_begin(); /* nothing more: the pool's threads do it with each work */
    sigaltstack(NULL, &second);
    if (first.ss_sp == second.ss_sp) eat_stack(1);
    return NULL;
}

static void end_by_overflow(void)
{
    pthread_t t;
    pthread_create(&t, NULL, overflow, NULL);
    pthread_join(t, NULL);
}

/* A page of a mapped file that is not there any more. */
static void end_by_truncation(void)
{
    struct file_map m;
    struct err e;
    char *path = file_join(dir, "weights"), block[16384] = "x";
    if (file_write_sync(path, block, sizeof block, &e) || file_map(&m, path, &e) || truncate(path, 1)) _exit(78);
    volatile char last = m.data[sizeof block - 1];
    (void)last;
}

static void end_well(void)
{
    _Atomic int seen = 0;
    pthread_t t;
    pthread_create(&t, NULL, bystander, &seen);
    while (atomic_load(&seen) < 1) usleep(100);
    kill(getpid(), SIGUSR2); /* stacks, and on it goes */
    while (atomic_load(&seen) < 2) usleep(100);
    crash_stacks("asked by the test");
    while (atomic_load(&seen) < 3) usleep(100);
    exit(0);
}

/* ---- watching them --------------------------------------------------------------------------------------------- */

static void record_flight(void)
{
    uint64_t now = clock_now();
    for (int i = 0; i < FLIGHT_STEPS + 5; i++) {
        flight_begin(now, 2, 30 + i, 2, 0);
        flight_request(0, 1001, 7, 29 + i);
        flight_request(1, 1002, 9, 1);
        flight_request(FLIGHT_REQUESTS, 1, 1, 1); /* is not kept */
        if (i < FLIGHT_STEPS + 4) flight_end(now + 2500000);
    }
    flight_counts(5, 2, 1);
}

static void child(void (*fn)(void), int out, const char *data)
{
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    dup2(out, STDERR_FILENO);
    crash_open(data, "9.8.7");
    crash_config("port = 8080\nmodel = models/demo\n");
    record_flight();
    fn();
    _exit(77);
}

/* The one file in DIR/crashes, deleted after reading; NULL: none. */
static char *take_file(void)
{
    char *folder = file_join(dir, "crashes"), *text = NULL;
    DIR *d = opendir(folder);
    struct err e;
    size_t n;
    for (struct dirent *f; d && (f = readdir(d));) {
        if (f->d_name[0] == '.') continue;
        char *path = file_join(folder, f->d_name);
        assert_null(text);
        assert_int_equal(file_read(path, 1 << 20, &text, &n, &e), 0);
        unlink(path);
        free(path);
    }
    if (d) closedir(d);
    free(folder);
    return text;
}

static struct end watch(void (*fn)(void), const char *data)
{
    struct end end = {0};
    struct buf said = {0};
    char block[4096];
    int fd[2];
    assert_int_equal(pipe(fd), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) child(fn, fd[1], data);
    close(fd[1]);
    for (ssize_t n; (n = read(fd[0], block, sizeof block)) > 0;) buf_append(&said, block, (size_t)n);
    close(fd[0]);
    assert_int_equal(waitpid(pid, &end.status, 0), pid);
    buf_append(&said, "", 0);
    end.said = said.data;
    end.file = take_file();
    return end;
}

static void end_free(struct end *end)
{
    free(end->said);
    free(end->file);
}

static void assert_has(const char *text, const char *part)
{
    assert_non_null(text);
    if (!strstr(text, part)) fail_msg("'%s' is not in:\n%s", part, text);
}

/* Ends by the signal, and the file has what stderr has. */
static struct end ends_by(int signum, void (*fn)(void))
{
    struct end end = watch(fn, dir);
    assert_true(WIFSIGNALED(end.status));
    assert_int_equal(WTERMSIG(end.status), signum);
    assert_has(end.file, "==== tandem crash report\nversion    9.8.7, build id ");
    assert_has(end.file, "==== end of report");
    assert_has(end.said, end.file);
    assert_has(end.said, "this report is also in ");
    return end;
}

static void test_check(void **state)
{
    (void)state;
    struct end end = ends_by(SIGABRT, end_by_check);
    assert_has(end.file, "signal     SIGABRT");
    assert_has(end.file, "message    ");
    assert_has(end.file, "end_by_check: impossible state: three == 4\n");
    assert_has(end.file, "---- requests: waiting 5, running 2, paused 1;");
    assert_has(end.file, "request 1001 position 7 tokens 65\nrequest 1002 position 9 tokens 1\n----");
    assert_has(end.file, "step 37 began ");
    assert_has(end.file, " ago, is running: requests 2 tokens 66 rows 2 preempted 0\n");
    assert_has(end.file, " ago, took 2.500: requests 2 tokens 65 rows 2 preempted 0\n");
    assert_has(end.file, "step 6 began ");
    assert_null(strstr(end.file, "step 5 began ")); /* the ring is full */
    assert_has(end.file, "---- configuration\nport = 8080\nmodel = models/demo\n");
    end_free(&end);
}

static void test_null(void **state)
{
    (void)state;
    struct end end = ends_by(SIGSEGV, end_by_null);
    assert_has(end.file, "signal     SIGSEGV code 1 at address 0x0\n");
    assert_has(end.file, "\n---- stack\n  0 0x");
    assert_has(end.file, "test_engine_base_crash+0x");
    assert_null(strstr(end.file, "message"));
    end_free(&end);
}

/* A jump to nowhere cannot be unwound: its caller is in the report all the same. */
static void test_bad_call(void **state)
{
    (void)state;
    struct end end = ends_by(SIGSEGV, end_by_call);
    assert_has(end.file, "at address 0x10\n");
    assert_has(end.file, "---- stack\n  0 0x10\n  1 0x");
    assert_has(strstr(end.file, "  1 0x"), "test_engine_base_crash+0x");
    end_free(&end);
}

static void test_division(void **state)
{
    (void)state;
    struct end end = ends_by(SIGFPE, end_by_division);
    end_free(&end);
}

static void test_thread(void **state)
{
    (void)state;
    struct end end = ends_by(SIGSEGV, end_in_thread);
    assert_has(end.file, " the-culprit of process ");
    assert_null(strstr(end.file, "a-bystander")); /* it is in the core dump */
    end_free(&end);
}

static void test_truncated_file(void **state)
{
    (void)state;
    struct end end = watch(end_by_truncation, dir);
    char *path = file_join(dir, "weights");
    unlink(path);
    assert_true(WIFEXITED(end.status));
    assert_int_equal(WEXITSTATUS(end.status), CRASH_EXIT_FILE);
    assert_has(end.said, path);
    assert_has(end.said, "was made shorter");
    assert_null(strstr(end.said, "crash report"));
    assert_null(end.file);
    free(path);
    end_free(&end);
}

static void test_stack_overflow(void **state)
{
    (void)state;
    struct end end = ends_by(SIGSEGV, end_by_overflow);
    end_free(&end);
}

static void test_no_directory(void **state)
{
    (void)state;
    struct end end = watch(end_by_null, NULL);
    assert_int_equal(WTERMSIG(end.status), SIGSEGV);
    assert_null(end.file);
    assert_has(end.said, "==== end of report");
    end_free(&end);
    end = watch(end_by_null, "/proc/nowhere");
    assert_int_equal(WTERMSIG(end.status), SIGSEGV);
    assert_has(end.said, "no report could be written to /proc/nowhere/crashes/");
    assert_has(end.said, "==== end of report");
    end_free(&end);
}

static void test_stacks_on_demand(void **state)
{
    (void)state;
    struct end end = watch(end_well, dir);
    assert_true(WIFEXITED(end.status));
    assert_int_equal(WEXITSTATUS(end.status), 0);
    assert_null(end.file);
    assert_has(end.said, "==== tandem stacks: asked for by SIGUSR2\n");
    char *second = strstr(end.said, "==== tandem stacks: asked by the test\n");
    assert_has(end.said, " a-bystander\n  0 0x"); /* with its stack */
    assert_has(second, " a-bystander\n  0 0x");
    end_free(&end);
}

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/tandem-crash-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char *folder = file_join(dir, "crashes");
    rmdir(folder);
    free(folder);
    return rmdir(dir);
}

int main(void)
{
#ifdef TANDEM_SANITIZED
    (void)setup, (void)teardown;
    (void)test_check, (void)test_null, (void)test_bad_call, (void)test_division, (void)test_thread;
    (void)test_stack_overflow, (void)test_truncated_file, (void)test_no_directory, (void)test_stacks_on_demand;
    return 77; /* skipped: the sanitizer reports */
#else
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_null),
        cmocka_unit_test(test_bad_call),
        cmocka_unit_test(test_division),
        cmocka_unit_test(test_thread),
        cmocka_unit_test(test_stack_overflow),
        cmocka_unit_test(test_truncated_file),
        cmocka_unit_test(test_no_directory),
        cmocka_unit_test(test_stacks_on_demand),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
#endif
}
