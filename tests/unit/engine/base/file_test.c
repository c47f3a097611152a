/* Writing files: what write() did not take is written, and a write() that takes nothing is an error, not a loop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/model/safetensors.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What write() does to the descriptors of this test: of every third call nothing, interrupted; of the others `most`
 * bytes.  Before `calls` others it takes no more. */
static struct {
    bool on;
    size_t most;
    int calls, left, seen;
} disk;

ssize_t __real_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n);

ssize_t __wrap_write(int fd, const void *p, size_t n)
{
    if (!disk.on || fd <= STDERR_FILENO) return __real_write(fd, p, n);
    if (++disk.seen > 1000) fail_msg("write() is called for ever");
    errno = EINTR; /* also what an earlier call left: it says nothing about a call that returns 0 */
    if (disk.seen % 3 == 0) return -1;
    if (disk.left-- <= 0) return 0;
    return __real_write(fd, p, n < disk.most ? n : disk.most);
}

static void set_disk(size_t most, int calls)
{
    disk.on = true;
    disk.most = most;
    disk.left = calls;
    disk.seen = 0;
}

static char dir[] = "/tmp/tandem-file-XXXXXX";

static void test_whole(void **state)
{
    (void)state;
    char *path = file_join(dir, "whole"), text[1000], *got;
    struct err e = {0};
    size_t n;
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)('a' + i % 26);
    set_disk(7, 1000);
    if (file_write_sync(path, text, sizeof text, &e)) fail_msg("%s", e.msg);
    set_disk(300, 1000);
    if (file_replace(path, text, sizeof text, &e)) fail_msg("%s", e.msg);
    disk.on = false;
    if (file_read(path, sizeof text, &got, &n, &e)) fail_msg("%s", e.msg);
    assert_int_equal(n, sizeof text);
    assert_memory_equal(got, text, n);
    free(got);
    free(path);
}

static void test_nothing_taken(void **state)
{
    (void)state;
    char *path = file_join(dir, "full"), text[100] = {0};
    struct err e = {0};
    set_disk(10, 3);
    assert_int_equal(file_write_sync(path, text, sizeof text, &e), ERR_IO);
    assert_non_null(strstr(e.msg, "No space left"));
    set_disk(10, 3);
    e = (struct err){0};
    assert_int_equal(file_replace(path, text, sizeof text, &e), ERR_IO);
    assert_non_null(strstr(e.msg, "No space left"));

    set_disk(1000, 1);
    struct st_writer *w = st_writer_open(path, 1, 10, 64, &e);
    struct tensor t = {.name = "t", .type = TENSOR_F32, .n_dims = 1, .dims = {25}, .data = text, .bytes = sizeof text};
    int rc = !w ? e.code : st_writer_add(w, &t, 1, &e);
    if (w && !rc)
        rc = st_writer_finish(w, &e);
    else if (w)
        st_writer_abort(w);
    disk.on = false;
    assert_int_equal(rc, ERR_IO);
    assert_non_null(strstr(e.msg, "No space left"));
    free(path);
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    dir_remove(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_whole), cmocka_unit_test(test_nothing_taken)};
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
