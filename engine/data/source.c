#include "engine/data/source.h"

#include "engine/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 128 << 10 };

static int packing_find(struct source *s, struct err *e)
{
    unsigned char head[PACKING_HEAD];
    ssize_t n = pread(s->fd, head, sizeof head, 0);
    if (n < 0) return err_set(e, ERR_IO, "%s: %s", s->name, strerror(errno));
    s->packing = packing_of(head, (size_t)n);
    if (s->packing == PACKED_NOT) return 0;
    s->block = mem_alloc(BLOCK);
    s->unpack = unpack_new(s->packing);
    return s->unpack ? 0 : err_set(e, ERR_NOMEM, "%s: no memory to decompress it", s->name);
}

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
    return packing_find(s, e);
}

/* A compressed file may hold so many times its size, and a little more: text has less than a tenth of that, a file made
 * to exhaust the disk more. */
enum { UNPACKED_LEAST = 64 << 20, UNPACKED_RATIO = 200 };

int source_open(struct source *s, const struct dataset_source *from, uint64_t max_bytes, struct err *e)
{
    const char *name = from->name ? from->name : from->path ? from->path : "the rows";
    *s = (struct source){.fd = -1, .name = name, .max_bytes = max_bytes};
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
    uint64_t unpacked = UNPACKED_LEAST + UNPACKED_RATIO * s->size;
    if (!rc && s->unpack && unpacked < max_bytes) s->max_bytes = unpacked;
    if (rc) source_close(s);
    return rc;
}

void source_close(struct source *s)
{
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
    unpack_free(s->unpack);
    free(s->block);
    s->unpack = NULL;
    s->block = NULL;
}

static int unchanged(const struct source *s, struct err *e)
{
    struct stat st;
    if (fstat(s->fd, &st) < 0) return err_set(e, ERR_IO, "%s: %s", s->name, strerror(errno));
    if ((uint64_t)st.st_size == s->size && s->taken == s->size && st.st_mtim.tv_sec == s->changed_s &&
        st.st_mtim.tv_nsec == s->changed_ns)
        return 0;
    return err_set(e, ERR_IO, "%s: changed while it was read", s->name);
}

/* Up to n bytes of the file.  @return their number; 0 at the end of a file that has not changed; or an err code. */
static ssize_t file_take(struct source *s, void *p, size_t n, struct err *e)
{
    for (;;) {
        ssize_t got = read(s->fd, p, n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return err_set(e, ERR_IO, "%s: %s", s->name, strerror(errno));
        s->taken += (uint64_t)got;
        return got ? got : unchanged(s, e);
    }
}

static int damaged(const struct source *s, const char *why, struct err *e)
{
    return err_set(e, ERR_INVALID, "%s: byte %llu: the %s data are damaged: %s", s->name,
                   (unsigned long long)(s->taken - s->left), packing_name(s->packing), why);
}

/* Some of the decompressed bytes; 0 at the end. */
static ssize_t unpacked_some(struct source *s, unsigned char *p, size_t n, struct err *e)
{
    for (;;) {
        size_t made = 0;
        if (!s->left) {
            ssize_t got = file_take(s, s->block, BLOCK, e);
            if (got < 0) return got;
            s->next = s->block;
            s->left = (size_t)got;
        }
        bool end = !s->left;
        const char *wrong = unpack_step(s->unpack, &s->next, &s->left, p, n, &made);
        if (wrong) return damaged(s, wrong, e);
        s->at += made;
        if (s->at > s->max_bytes)
            return err_set(e, ERR_INVALID, "%s: decompressed it has more than the limit of %.1f MB", s->name,
                           (double)s->max_bytes / 1e6);
        if (made) return (ssize_t)made;
        if (end) return unpack_is_whole(s->unpack) ? 0 : damaged(s, "they are cut off", e);
    }
}

/* Full blocks up to the end, whatever members the file consists of: a file's kind is told by its first block. */
static ssize_t unpacked_read(struct source *s, unsigned char *p, size_t n, struct err *e)
{
    size_t have = 0;
    while (have < n) {
        ssize_t got = unpacked_some(s, p + have, n - have, e);
        if (got < 0) return got;
        if (!got) break;
        have += (size_t)got;
    }
    return (ssize_t)have;
}

ssize_t source_read(struct source *s, void *p, size_t n, struct err *e)
{
    if (s->unpack) return unpacked_read(s, p, n, e);
    ssize_t got;
    if (s->text) {
        got = (ssize_t)(n < s->size - s->at ? n : s->size - s->at);
        memcpy(p, s->text + s->at, (size_t)got);
        s->taken += (uint64_t)got;
    } else {
        got = file_take(s, p, n, e);
    }
    if (got > 0) s->at += (uint64_t)got;
    return got;
}

int source_rewind(struct source *s, struct err *e)
{
    s->at = s->taken = s->left = 0;
    if (s->unpack) unpack_restart(s->unpack);
    if (!s->text && lseek(s->fd, 0, SEEK_SET) < 0) return err_set(e, ERR_IO, "%s: %s", s->name, strerror(errno));
    return 0;
}

double source_progress(const struct source *s)
{
    return (double)s->taken / (double)s->size;
}

static bool ends_with(const char *name, size_t n, const char *suffix)
{
    size_t m = strlen(suffix);
    return n > m && !strncasecmp(name + n - m, suffix, m);
}

bool source_is_named(const struct source *s, const char *suffix)
{
    static const char *const packed[] = {".gz", ".gzip", ".zst", ".zstd"};
    size_t n = strlen(s->name);
    for (size_t i = 0; s->packing != PACKED_NOT && i < sizeof packed / sizeof *packed; i++) {
        if (!ends_with(s->name, n, packed[i])) continue;
        n -= strlen(packed[i]);
        break;
    }
    return ends_with(s->name, n, suffix);
}
