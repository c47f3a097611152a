#include "engine/base/file.h"

#include "engine/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_regular(const char *path, size_t *size, struct err *e)
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
    int fd = open_regular(path, &size, e);
    if (fd < 0) return fd;
    if (size) {
        void *p = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            close(fd);
            return err_set(e, ERR_IO, "%s: cannot map %zu bytes: %s", path, size, strerror(errno));
        }
        /* where the file system has large pages: read 2 MiB at a time, and one fault and one TLB entry for them */
        madvise(p, size, MADV_HUGEPAGE);
        m->data = p;
        m->size = size;
    }
    close(fd);
    return 0;
}

void file_unmap(struct file_map *m)
{
    if (m->data) munmap((void *)m->data, m->size);
    *m = (struct file_map){0};
}

int file_read(const char *path, size_t limit, char **data, size_t *size, struct err *e)
{
    size_t n, got = 0;
    int fd = open_regular(path, &n, e);
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

char *file_join(const char *dir, const char *name)
{
    size_t a = strlen(dir), b = strlen(name);
    char *p = mem_alloc(a + b + 2);
    memcpy(p, dir, a);
    if (a && dir[a - 1] != '/') p[a++] = '/';
    memcpy(p + a, name, b + 1);
    return p;
}
