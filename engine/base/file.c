#include "engine/base/file.h"

#include "engine/base/buf.h"
#include "engine/base/mapped.h"
#include "engine/base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif

int file_open(const char *path, size_t *size, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO would wait for its writer */
    if (fd < 0) return err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: %s", path, strerror(errno));
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return err_set(e, ERR_IO, "%s: not a regular file", path);
    }
    *size = (size_t)st.st_size;
    return fd;
}

int file_map(struct file_map *m, const char *path, struct err *e)
{
    *m = (struct file_map){0};
    size_t size;
    int fd = file_open(path, &size, e);
    if (fd < 0) return fd;
    if (size) {
        void *p = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            close(fd);
            return err_set(e, ERR_IO, "%s: cannot map %zu bytes: %s", path, size, strerror(errno));
        }
        /* on file systems with large pages: reads 2 MiB at a time, with one fault and one TLB entry for them */
        madvise(p, size, MADV_HUGEPAGE);
        m->data = p;
        m->size = size;
        mapped_add(p, size, path);
    }
    close(fd);
    return 0;
}

void file_unmap(struct file_map *m)
{
    mapped_remove(m->data);
    if (m->data) munmap((void *)m->data, m->size);
    *m = (struct file_map){0};
}

void file_forget(const struct file_map *m, size_t at, size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), from = at / page * page;
    if (n) madvise((char *)m->data + from, at + n - from, MADV_DONTNEED);
}

int file_read(const char *path, size_t limit, char **data, size_t *size, struct err *e)
{
    size_t n, got = 0;
    int fd = file_open(path, &n, e);
    if (fd < 0) return fd;
    char *p = NULL;
    int rc = 0;
    if (n > limit)
        rc = err_set(e, ERR_INVALID, "%s: %zu bytes is more than the limit of %zu", path, n, limit);
    else if (!(p = mem_try_alloc(n + 1)))
        rc = err_set(e, ERR_NOMEM, "%s: no memory for %zu bytes", path, n);
    while (!rc && got < n) {
        ssize_t r = read(fd, p + got, n - got);
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0)
            rc = err_set(e, ERR_IO, "%s: %s", path, r ? strerror(errno) : "became shorter while it was read");
        else
            got += (size_t)r;
    }
    close(fd);
    if (rc) {
        free(p);
        return rc;
    }
    p[n] = 0;
    *data = p;
    *size = n;
    return 0;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int file_glob(const char *pattern, size_t limit, char ***paths, size_t *n, struct err *e)
{
    glob_t found = {0};
    struct stat st;
    int got = glob(pattern, GLOB_NOSORT, NULL, &found), rc = 0;
    *paths = NULL;
    *n = 0;
    if (got == GLOB_NOMATCH) return 0;
    if (got) return err_set(e, got == GLOB_NOSPACE ? ERR_NOMEM : ERR_IO, "%.300s: the files cannot be listed", pattern);
    *paths = mem_array(found.gl_pathc, sizeof **paths);
    for (size_t i = 0; i < found.gl_pathc; i++)
        if (stat(found.gl_pathv[i], &st) || !S_ISDIR(st.st_mode)) (*paths)[(*n)++] = mem_strdup(found.gl_pathv[i]);
    globfree(&found);
    qsort(*paths, *n, sizeof **paths, by_bytes);
    if (*n > limit) {
        rc = err_set(e, ERR_INVALID, "%.300s: matches %zu files, more than %zu", pattern, *n, limit);
        while (*n) free((*paths)[--*n]);
    }
    if (!*n) {
        free(*paths);
        *paths = NULL;
    }
    return rc;
}

char *file_join(const char *dir, const char *name)
{
    size_t a = strlen(dir), b = strlen(name);
    char *p = mem_alloc(a + b + 2);
    memcpy(p, dir, a);
    if (a && dir[a - 1] != '/') p[a++] = '/';
    memcpy(p + a, name, b + 1);
    return p;
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

static int io_error(struct err *e, const char *path)
{
    return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
}

int file_write_all(int fd, const void *data, size_t bytes)
{
    const size_t most = 1u << 30;
    for (const char *p = data; bytes;) {
        ssize_t n = write(fd, p, bytes < most ? bytes : most);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENOSPC; /* the file accepts no more bytes, without an error code */
        if (n <= 0) return -1;
        p += n;
        bytes -= (size_t)n;
    }
    return 0;
}

int file_write_sync(const char *path, const void *data, size_t bytes, struct err *e)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), rc = 0;
    if (fd < 0) return io_error(e, path);
    if (file_write_all(fd, data, bytes)) rc = io_error(e, path);
    if (!rc && fsync(fd)) rc = io_error(e, path);
    if (close(fd) && !rc) rc = io_error(e, path);
    return rc;
}

int file_replace(const char *path, const void *data, size_t bytes, struct err *e)
{
    struct buf tmp = {0};
    buf_printf(&tmp, "%s.tmp", path);
    int rc = file_write_sync(tmp.data, data, bytes, e);
    if (!rc && rename(tmp.data, path)) rc = io_error(e, path);
    if (rc) unlink(tmp.data);
    buf_free(&tmp);
    return rc;
}

int dir_sync(const char *path, struct err *e)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;
    if (fd < 0) return io_error(e, path);
    if (fsync(fd)) rc = io_error(e, path);
    close(fd);
    return rc;
}

void dir_sync_parent(const char *path)
{
    char *p = mem_strdup(path), *slash = strrchr(p, '/');
    struct err ignored = {0};
    if (slash) slash[slash == p] = 0; /* "/" stays */
    dir_sync(slash ? p : ".", &ignored);
    free(p);
}

int dir_make(const char *path, struct err *e)
{
    char *p = mem_strdup(path);
    int rc = 0;
    for (char *at = p + 1; !rc; at++) {
        char was = *at;
        if (was && was != '/') continue;
        *at = 0;
        if (mkdir(p, 0755) == 0)
            dir_sync_parent(p);
        else if (errno != EEXIST)
            rc = io_error(e, p);
        *at = was;
        if (!was) break;
    }
    struct stat st;
    if (!rc && (stat(path, &st) || !S_ISDIR(st.st_mode))) rc = err_set(e, ERR_IO, "%s: not a directory", path);
    free(p);
    return rc;
}

void dir_remove(const char *path)
{
    DIR *d = opendir(path);
    for (struct dirent *f; d && (f = readdir(d));) {
        if (strcmp(f->d_name, ".") == 0 || strcmp(f->d_name, "..") == 0) continue;
        unlinkat(dirfd(d), f->d_name, 0);
    }
    if (d) closedir(d);
    rmdir(path);
}

int dir_replace(const char *dir, const char *to, struct err *e)
{
    if (rename(dir, to) == 0) return dir_sync_parent(to), 0;
    if (errno != ENOTEMPTY && errno != EEXIST) return io_error(e, to);
    if (syscall(SYS_renameat2, AT_FDCWD, dir, AT_FDCWD, to, RENAME_EXCHANGE) == 0) { /* dir: the old one now */
        dir_sync_parent(to);
        dir_remove(dir);
        return 0;
    }
    struct buf old = {0}; /* the file system does not support the exchange */
    buf_printf(&old, "%s.old", to);
    dir_remove(old.data);
    int rc = rename(to, old.data) ? io_error(e, to) : 0;
    if (!rc && rename(dir, to)) {
        rc = io_error(e, to);
        rename(old.data, to);
    }
    if (!rc) dir_remove(old.data);
    dir_sync_parent(to);
    buf_free(&old);
    return rc;
}
