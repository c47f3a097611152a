#include "engine/data/source.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int file_open(struct source *s, const char *path, struct err *e)
{
    s->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO would wait for its writer */
    if (s->fd < 0)
        return err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: %s", s->name,
                       errno == ENOENT ? "no such file" : strerror(errno));
    struct stat st;
    if (fstat(s->fd, &st) < 0) return err_set(e, ERR_IO, "%s: %s", s->name, strerror(errno));
    if (!S_ISREG(st.st_mode)) return err_set(e, ERR_IO, "%s: not a regular file", s->name);
    s->size = (uint64_t)st.st_size;
    s->changed_s = st.st_mtim.tv_sec;
    s->changed_ns = st.st_mtim.tv_nsec;
    return 0;
}

int source_open(struct source *s, const struct dataset_source *from, uint64_t max_bytes, struct err *e)
{
    const char *name = from->name ? from->name : from->path ? from->path : "the rows";
    *s = (struct source){.fd = -1, .name = name};
    int rc = 0;
    if (from->path) {
        rc = file_open(s, from->path, e);
    } else if (from->inline_json) {
        s->text = from->inline_json;
        s->size = from->inline_bytes;
    } else {
        rc = err_set(e, ERR_INVALID, "no data set is given: neither a file nor rows");
    }
    if (!rc && !s->size) rc = err_set(e, ERR_INVALID, "%s: is empty", name);
    if (!rc && s->size > max_bytes)
        rc = err_set(e, ERR_INVALID, "%s: %.1f MB are more than the limit of %.1f MB", name, (double)s->size / 1e6,
                     (double)max_bytes / 1e6);
    if (rc) source_close(s);
    return rc;
}

void source_close(struct source *s)
{
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
}

static int unchanged(const struct source *s, struct err *e)
{
    struct stat st;
    if (fstat(s->fd, &st) < 0) return err_set(e, ERR_IO, "%s: %s", s->name, strerror(errno));
    if ((uint64_t)st.st_size == s->size && s->at == s->size && st.st_mtim.tv_sec == s->changed_s &&
        st.st_mtim.tv_nsec == s->changed_ns)
        return 0;
    return err_set(e, ERR_IO, "%s: changed while it was read", s->name);
}

ssize_t source_read(struct source *s, void *p, size_t n, struct err *e)
{
    if (s->text) {
        if (n > s->size - s->at) n = s->size - s->at;
        memcpy(p, s->text + s->at, n);
        s->at += n;
        return (ssize_t)n;
    }
    for (;;) {
        ssize_t got = read(s->fd, p, n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return err_set(e, ERR_IO, "%s: %s", s->name, strerror(errno));
        s->at += (uint64_t)got;
        return got ? got : unchanged(s, e);
    }
}

int source_rewind(struct source *s, struct err *e)
{
    s->at = 0;
    if (!s->text && lseek(s->fd, 0, SEEK_SET) < 0) return err_set(e, ERR_IO, "%s: %s", s->name, strerror(errno));
    return 0;
}
