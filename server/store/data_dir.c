/* Safe names, confined paths, durable writes (data_dir.h). */
#include "server/store/data_dir.h"

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "server/store/row_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

int64_t data_now_ms(void)
{
    return (int64_t)(clock_unix() / 1000000u);
}

void data_id(char out[static DATA_ID_MAX], const char *prefix)
{
    static const char alphabet[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    unsigned char random[20];
    if (getrandom(random, sizeof random, 0) != sizeof random) {
        uint64_t z = clock_unix() ^ (clock_now() << 17) ^ (uint64_t)getpid();
        for (size_t i = 0; i < sizeof random; i++) random[i] = (unsigned char)((z *= 0x9e3779b97f4a7c15u, z) >> 56);
    }
    int n = snprintf(out, DATA_ID_MAX - sizeof random, "%s", prefix);
    for (size_t i = 0; i < sizeof random; i++) out[n++] = alphabet[random[i] % 36]; /* a bias of 1 % is fine */
    out[n] = 0;
}

bool data_name_ok(const char *name)
{
    static const char alnum[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:";
    size_t n = strlen(name);
    return n >= 1 && n <= DATA_NAME_MAX && strspn(name, alnum) == n && !strchr("._-:", name[0]);
}

char *data_path(const char *dir, const char *a, const char *b)
{
    struct buf p = {0};
    buf_printf(&p, "%s/%s%s%s", dir, a, b ? "/" : "", b ? b : "");
    return p.data;
}

/* @return whether the path is one of the daemon's own files, which are not data. */
static bool is_own(const char *inside)
{
    static const char *const folders[] = {"files/", "inline/", "checkpoints/", "tensorboard/", "cache/", "crashes/", "tinker/"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (strncmp(inside, folders[i], strlen(folders[i])) == 0) return true;
    const char *end = strrchr(inside, '.');
    if (strncmp(inside, ROW_FILES "/", strlen(ROW_FILES "/")) == 0 && end && strcmp(end, ".open") == 0) return true;
    return strncmp(inside, "jobs.sqlite", 11) == 0 || strcmp(inside, "lock") == 0;
}

char *data_find(const char *dir, const char *path, struct err *e)
{
    char *root = realpath(dir, NULL), *real = NULL, *joined = NULL;
    struct stat st;
    if (!root) {
        err_set(e, ERR_NOT_FOUND, "the data directory %s: %s", dir, strerror(errno));
        return NULL;
    }
    size_t n = strlen(root);
    if (!*path) {
        err_set(e, ERR_INVALID, "the path is empty");
    } else {
        joined = *path == '/' ? mem_strdup(path) : file_join(root, path);
        real = realpath(joined, NULL);
        /* the error must not reveal whether a path outside exists */
        if (!real && strstr(path, "..")) {
            err_set(e, ERR_INVALID, "%.200s: not inside the data directory", path);
        } else if (!real) {
            bool outside = strncmp(joined, root, n) != 0 || joined[n] != '/';
            err_set(e, outside ? ERR_INVALID : ERR_NOT_FOUND, "%.200s: %s", path,
                    outside ? "not inside the data directory" : strerror(errno));
        } else if (strncmp(real, root, n) != 0 || real[n] != '/' || is_own(real + n + 1)) {
            err_set(e, ERR_INVALID, "%.200s: not inside the data directory", path);
        } else if (stat(real, &st) || !S_ISREG(st.st_mode)) {
            err_set(e, ERR_INVALID, "%.200s: not a regular file", path);
        } else {
            free(joined);
            free(root);
            return real;
        }
    }
    free(joined);
    free(real);
    free(root);
    return NULL;
}

/* Whether text that names no file may be matched with the files below the directory: no part of it begins with a dot,
 * which could match "..", and it is short, because glob takes stack for every part. */
static bool is_pattern(const char *text)
{
    enum { BYTES = 1024, PARTS = 16 };
    int parts = 0;
    if (strlen(text) > BYTES || *text == '/' || strchr(text, '\\') || !strpbrk(text, "*?[")) return false;
    for (const char *part = text; part; part = strchr(part, '/'), part = part ? part + 1 : NULL)
        if (*part == '.' || ++parts > PARTS) return false;
    return true;
}

/* What the pattern matches in the directory `root`, a real path; *path are relative to it. */
static int match(const char *root, const char *pattern, size_t limit, char ***path, size_t *n, struct err *e)
{
    struct buf all = {0};
    size_t skip = strlen(root) + 1, kept = 0;
    for (const char *c = root; *c; c++) buf_printf(&all, "%s%c", strchr("*?[\\", *c) ? "\\" : "", *c);
    buf_printf(&all, "/%s", pattern);
    int rc = file_glob(all.data, limit, path, n, e);
    buf_free(&all);
    if (rc) /* in the words of the client, who need not know where the directory is */
        err_set(e, rc, "%.200s: more than %zu files match, or they cannot be listed", pattern, limit);
    for (size_t i = 0; i < *n; i++) {
        char *one = (*path)[i], *real = is_own(one + skip) ? NULL : data_find(root, one, NULL);
        if (real) (*path)[kept++] = mem_strdup(one + skip);
        free(real);
        free(one);
    }
    *n = kept;
    return rc;
}

int data_find_all(const char *dir, const char *pattern, size_t limit, char ***path, size_t *n, struct err *e)
{
    char *one = data_find(dir, pattern, e);
    *path = NULL;
    *n = 0;
    if (!one && !is_pattern(pattern)) return e->code;
    e->code = 0;
    if (one) {
        free(one);
        *path = mem_array(1, sizeof **path);
        (*path)[(*n)++] = mem_strdup(pattern);
        return 0;
    }
    char *root = realpath(dir, NULL);
    int rc = root ? match(root, pattern, limit, path, n, e) : err_set(e, ERR_NOT_FOUND, "the data directory");
    free(root);
    if (!rc && !*n) rc = err_set(e, ERR_NOT_FOUND, "%.200s: no file matches", pattern);
    return rc;
}

static int make(const char *path, struct err *e)
{
    if (mkdir(path, 0750) == 0) return data_sync_parent(path, e);
    if (errno == EEXIST) return 0;
    return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
}

int data_mkdir(const char *dir, const char *a, const char *b, struct err *e)
{
    char *outer = data_path(dir, a, NULL), *inner = data_path(dir, a, b);
    int rc = make(outer, e);
    if (!rc && b) rc = make(inner, e);
    free(outer);
    free(inner);
    return rc;
}

int data_sync_parent(const char *path, struct err *e)
{
    char *parent = mem_strdup(path), *slash = strrchr(parent, '/');
    if (slash) *slash = 0;
    int fd = open(slash ? parent : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;
    if (fd < 0 || fsync(fd)) rc = err_set(e, ERR_IO, "%s: %s", parent, strerror(errno));
    if (fd >= 0) close(fd);
    free(parent);
    return rc;
}

int data_write(const char *path, const void *p, size_t n, struct err *e)
{
    struct buf temp = {0};
    buf_printf(&temp, "%s.tmp", path);
    int fd = open(temp.data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640), rc = 0;
    bool good = fd >= 0 && file_write_all(fd, p, n) == 0 && fsync(fd) == 0;
    if (!good) rc = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    if (fd >= 0 && close(fd) && good) rc = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    if (!rc && rename(temp.data, path)) rc = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    if (rc && fd >= 0) unlink(temp.data);
    if (!rc) rc = data_sync_parent(path, e);
    buf_free(&temp);
    return rc;
}

/* Recursion depth is bounded by what the daemon and the trainer write; paths longer than PATH_MAX are not removed. */
void data_remove(const char *path)
{
    struct stat st;
    if (lstat(path, &st)) return;
    if (!S_ISDIR(st.st_mode)) {
        unlink(path);
        return;
    }
    DIR *d = opendir(path);
    for (struct dirent *f; d && (f = readdir(d));) {
        if (strcmp(f->d_name, ".") == 0 || strcmp(f->d_name, "..") == 0) continue;
        char *inner = file_join(path, f->d_name);
        if (strlen(inner) < PATH_MAX) data_remove(inner);
        free(inner);
    }
    if (d) closedir(d);
    rmdir(path);
}

int data_list(const char *dir, const char *a, void (*fn)(void *arg, const char *name), void *arg)
{
    char *path = data_path(dir, a, NULL);
    DIR *d = opendir(path);
    int rc = d || errno == ENOENT || errno == ENOTDIR ? 0 : ERR_IO;
    for (struct dirent *f; d && (f = readdir(d));)
        if (strcmp(f->d_name, ".") != 0 && strcmp(f->d_name, "..") != 0) fn(arg, f->d_name);
    if (d) closedir(d);
    free(path);
    return rc;
}
