/* server/tinker/checkpoints.c: who may copy saved weights, of which only so many are a client's, what a copy shares, and
 * what is left of deleted ones. */
#include "server/tinker/checkpoints.h"

#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "server/store/data_dir.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { PLENTY = 1000 };

static char *dir;
static int no_link; /* errno of the file system's link(); 0: it has one */

int __real_link(const char *from, const char *to);
int __wrap_link(const char *from, const char *to);
int __wrap_link(const char *from, const char *to)
{
    if (!no_link) return __real_link(from, to);
    errno = no_link;
    return -1;
}

static int make_dir(void **state)
{
    static char name[] = "/tmp/tandem-weights-XXXXXX";
    (void)state;
    strcpy(name, "/tmp/tandem-weights-XXXXXX");
    dir = mkdtemp(name);
    no_link = 0;
    return dir ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    data_remove(dir);
    return 0;
}

static struct checkpoint named(const char *run, const char *name, const char *owner)
{
    struct checkpoint c = {0};
    snprintf(c.run, sizeof c.run, "%s", run);
    snprintf(c.name, sizeof c.name, "%s", name);
    snprintf(c.owner, sizeof c.owner, "%s", owner);
    return c;
}

static void put_file(struct buf *manifest, const char *folder, const char *name, const char *text)
{
    struct err e = {0};
    char *path = file_join(folder, name);
    assert_int_equal(file_write_sync(path, text, strlen(text), &e), 0);
    buf_printf(manifest, "file %s %zu %08x\n", name, strlen(text), (unsigned)crc32c(0, text, strlen(text)));
    free(path);
}

/* Weights of RUN/weights/x, as tuner_files.h writes them. */
static void save(const char *run, const char *owner, const char *weights)
{
    struct checkpoint c = named(run, "x", owner);
    struct buf m = {0}, note = {0};
    struct err e = {0};
    char *folder = checkpoint_dir(dir, &c), *path = file_join(folder, "manifest");
    assert_int_equal(dir_make(folder, &e), 0);
    buf_str(&m, "tandem tuner 1\nsteps 3\n");
    buf_printf(&note, "{\"owner\":\"%s\",\"base_model\":\"demo\",\"rank\":2,\"created\":1}\n", owner);
    put_file(&m, folder, "adapter_model.safetensors", weights);
    put_file(&m, folder, "checkpoint.json", note.data);
    buf_printf(&m, "end %08x\n", (unsigned)crc32c(0, m.data, m.len));
    assert_int_equal(file_write_sync(path, m.data, m.len, &e), 0);
    buf_free(&m);
    buf_free(&note);
    free(folder);
    free(path);
}

static struct err last; /* of copy() */

/* tinker://from/weights/x as tinker://to/weights/x. */
static int copy(const char *from, const char *to, const char *owner, size_t most)
{
    struct checkpoint f = named(from, "x", ""), t = named(to, "x", owner);
    last = (struct err){0};
    int rc = checkpoint_copy(dir, &f, &t, most, &last);
    checkpoint_free(&f);
    return rc;
}

static struct stat status(const char *run, const char *file)
{
    struct checkpoint c = named(run, "x", "");
    struct stat st = {0};
    char *folder = checkpoint_dir(dir, &c), *path = file_join(folder, file);
    if (stat(path, &st)) st.st_ino = 0;
    free(folder);
    free(path);
    return st;
}

static void test_who_may_copy(void **state)
{
    struct checkpoint c = named("run", "x", "ann");
    (void)state;
    save("run", "ann", "weights");
    assert_int_equal(copy("run", "a", "bob", PLENTY), ERR_NOT_FOUND);
    assert_non_null(strstr(last.msg, "`source_path`: there are no weights at tinker://run/weights/x"));
    assert_int_equal(checkpoint_publish(dir, &c, true, &last), 0);
    assert_int_equal(copy("run", "a", "bob", PLENTY), 0);
    assert_int_equal(checkpoint_publish(dir, &c, false, &last), 0);
    assert_int_equal(copy("run", "b", "bob", PLENTY), ERR_NOT_FOUND);
    assert_int_equal(copy("run", "b", "ann", PLENTY), 0);
    assert_int_equal(checkpoint_expire(dir, &c, 1, &last), 0);
    assert_int_equal(copy("run", "c", "ann", PLENTY), ERR_NOT_FOUND);
    assert_int_equal(copy("no", "c", "ann", PLENTY), ERR_NOT_FOUND);
}

static void test_what_a_copy_is(void **state)
{
    struct checkpoint c = named("copy", "x", "");
    (void)state;
    save("run", "ann", "weights");
    save("other", "ann", "other weights");
    assert_int_equal(copy("run", "copy", "ann", PLENTY), 0);
    assert_int_equal(status("copy", "adapter_model.safetensors").st_ino,
                     status("run", "adapter_model.safetensors").st_ino);
    assert_int_equal(checkpoint_read(dir, &c, "ann", true, &last), 0);
    assert_string_equal(c.source, "tinker://run/weights/x");
    assert_string_equal(c.base, "demo");
    assert_int_equal(c.rank, 2);
    checkpoint_free(&c);
    assert_int_equal(copy("run", "copy", "ann", PLENTY), 0); /* the same request again */
    assert_int_equal(copy("other", "copy", "ann", PLENTY), ERR_INVALID);
    assert_int_equal(copy("other", "run", "ann", PLENTY), ERR_INVALID);
    assert_non_null(strstr(last.msg, "there are weights called x of run already"));
}

static void test_without_links(void **state)
{
    const int none[] = {EPERM, EOPNOTSUPP, EMLINK};
    (void)state;
    save("run", "ann", "weights");
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        char run[8];
        snprintf(run, sizeof run, "copy%zu", i);
        struct checkpoint c = named(run, "x", "");
        no_link = none[i];
        assert_int_equal(copy("run", run, "ann", PLENTY), 0);
        assert_int_equal(status(run, "adapter_model.safetensors").st_size, sizeof "weights" - 1);
        assert_true(status(run, "adapter_model.safetensors").st_ino !=
                    status("run", "adapter_model.safetensors").st_ino);
        assert_int_equal(checkpoint_read(dir, &c, "ann", true, &last), 0);
        checkpoint_free(&c);
    }
    no_link = EIO;
    assert_int_equal(copy("run", "no", "ann", PLENTY), ERR_IO);
    assert_int_equal(status("no", "manifest").st_ino, 0);
}

enum { COPIERS = 8, COPIES = 12, ROOM = 5 };

static void *copier(void *arg)
{
    for (int i = 0; i < COPIES; i++) {
        char to[32];
        snprintf(to, sizeof to, "copy-%d-%d", *(int *)arg, i);
        struct checkpoint f = named("run", "x", ""), t = named(to, "x", "ann");
        struct err e = {0};
        checkpoint_copy(dir, &f, &t, ROOM, &e);
        checkpoint_free(&f);
    }
    return NULL;
}

static void test_limit(void **state)
{
    pthread_t thread[COPIERS];
    int number[COPIERS];
    size_t n;
    (void)state;
    save("run", "ann", "weights");
    for (int i = 0; i < COPIERS; i++) {
        number[i] = i;
        assert_int_equal(pthread_create(&thread[i], NULL, copier, &number[i]), 0);
    }
    for (int i = 0; i < COPIERS; i++) pthread_join(thread[i], NULL);
    struct checkpoint *v = checkpoint_list(dir, NULL, "ann", &n);
    assert_int_equal(n, ROOM);
    for (size_t i = 0; i < n; i++) checkpoint_free(&v[i]);
    free(v);
    assert_int_equal(copy("run", "more", "ann", ROOM), ERR_INVALID);
    assert_memory_equal(last.msg, "you have 5 saved weights already", sizeof "you have 5 saved weights already" - 1);
}

static bool there(const char *path)
{
    char *full = file_join(dir, path);
    bool is = !access(full, F_OK);
    free(full);
    return is;
}

static void test_nothing_is_left(void **state)
{
    struct checkpoint c = named("copy", "x", "ann");
    (void)state;
    save("run", "ann", "weights");
    assert_int_equal(copy("run", "copy", "ann", PLENTY), 0);
    assert_int_equal(checkpoint_delete(dir, &c, &last), 0);
    assert_false(there("tinker/copy"));
    assert_true(there("tinker/run/weights/x/manifest"));
    assert_int_equal(data_mkdir(dir, "tinker/empty", "weights", &last), 0);
    c = named("run", "x", "ann");
    assert_int_equal(checkpoint_expire(dir, &c, 1, &last), 0);
    checkpoints_sweep(dir);
    assert_false(there("tinker/run"));
    assert_false(there("tinker/empty"));
    save("run", "ann", "weights");
    assert_int_equal(copy("run", "copy", "ann", PLENTY), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_who_may_copy, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_what_a_copy_is, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_without_links, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_limit, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_nothing_is_left, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
