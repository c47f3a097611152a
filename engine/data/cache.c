#include "engine/data/cache.h"

#include "engine/base/buf.h"
#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/mapped.h"
#include "engine/base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[8] = "TNDMDATA";
enum { ROW_HEAD = 7 }; /* numbers before the ids of a row */
static const char suffix[] = ".tokens", part_suffix[] = ".part";

static char *cache_path(const char *dir, const unsigned char *key)
{
    struct buf b = {0};
    buf_printf(&b, "%s/", dir);
    for (int i = 0; i < 16; i++) buf_printf(&b, "%02x", key[i]);
    buf_str(&b, suffix);
    return b.data;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static bool same_file(int fd, const char *path)
{
    struct stat a, b;
    return !fstat(fd, &a) && !stat(path, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Retries every 20 ms while another writer holds the lock, which it does as long as the data set is open: until it has
 * renamed the file. */
static int part_lock(int fd, const char *path, const struct dataset_options *o, struct err *e)
{
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS) return 0; /* a file system without locks */
        if (errno != EWOULDBLOCK && errno != EINTR) return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
        if (!same_file(fd, path)) return 0;
        if (o->cancelled && o->cancelled(o->arg)) return err_set(e, ERR_FULL, "cancelled");
        usleep(20000);
    }
    return 0;
}

/* Only one writer at a time writes a part; the part of a writer that died is taken over. */
static int part_open(const char *path, const struct dataset_options *o, struct err *e)
{
    for (int tries = 0; tries < 100; tries++) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0) return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
        int rc = part_lock(fd, path, o, e);
        if (rc) {
            close(fd);
            return rc;
        }
        if (same_file(fd, path)) { /* else its writer has renamed it, or it was removed by a sweep */
            if (!ftruncate(fd, 0)) return fd;
            err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
            close(fd);
            return ERR_IO;
        }
        close(fd);
    }
    return err_set(e, ERR_IO, "%s: somebody else keeps writing it", path);
}

static int unlinked_open(struct err *e)
{
    const char *dir = getenv("TMPDIR");
    char *path = file_join(dir && *dir ? dir : "/tmp", "tandem-data-XXXXXX");
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    else
        unlink(path);
    free(path);
    return fd < 0 ? ERR_IO : fd;
}

static int write_failed(const struct cache_writer *w, struct err *e)
{
    return err_set(e, ERR_IO, "%s: %s", w->part ? w->part : "the temporary file of the data set", strerror(errno));
}

int cache_start(struct cache_writer *w, const char *dir, const unsigned char key[SHA256_BYTES],
                const struct dataset_options *o, struct err *e)
{
    *w = (struct cache_writer){.fd = -1, .max_bytes = o->max_bytes, .at = CACHE_HEADER_BYTES};
    memcpy(w->key, key, sizeof w->key);
    sha256_start(&w->hash);
    if (dir) {
        if (mkdir(dir, 0700) < 0 && errno != EEXIST) return err_set(e, ERR_IO, "%s: %s", dir, strerror(errno));
        w->place = cache_path(dir, key);
        struct buf part = {0};
        buf_printf(&part, "%s%s", w->place, part_suffix);
        w->part = part.data;
    }
    int rc = w->fd = w->part ? part_open(w->part, o, e) : unlinked_open(e);
    if (rc >= 0) {
        static const char zeros[CACHE_HEADER_BYTES];
        rc = 0;
        w->file = fdopen(w->fd, "w");
        if (!w->file || fwrite(zeros, 1, sizeof zeros, w->file) != sizeof zeros) rc = write_failed(w, e);
    }
    if (rc) cache_abandon(w);
    return rc;
}

static int put(struct cache_writer *w, const void *p, size_t n, struct err *e)
{
    if (w->at + n > w->max_bytes)
        return err_set(e, ERR_FULL, "the prepared data set takes more than the limit of %.1f MB",
                       (double)w->max_bytes / 1e6);
    if (n && fwrite(p, 1, n, w->file) != n) return write_failed(w, e);
    w->crc = crc32c(w->crc, p, n);
    w->at += n;
    return 0;
}

static int no_memory(const struct cache_writer *w, struct err *e)
{
    return err_set(e, ERR_NOMEM, "no memory for the tables of more than %llu rows", (unsigned long long)w->rows);
}

int cache_add(struct cache_writer *w, const struct dataset_row *r, bool unique, struct err *e)
{
    unsigned char digest[SHA256_BYTES];
    uint32_t n = (uint32_t)r->n;
    uint64_t first = seen_digest(r, digest);
    int is_new = unique ? seen_add(&w->seen, first) : 1;
    if (is_new < 0) return no_memory(w, e);
    if (!is_new) return 0;
    sha256_add(&w->hash, digest, sizeof digest);
    if (!mem_try_grow(&w->offset, &w->cap_offset, w->rows + 1, sizeof *w->offset)) return no_memory(w, e);
    w->offset[w->rows] = w->at;
    uint32_t head[ROW_HEAD] = {
        n, 0, r->line, r->logprob != NULL, (uint32_t)r->second, (uint32_t)r->label, (uint32_t)r->n_fields};
    for (uint32_t i = 0; i < n; i++) head[1] += r->trained[i];
    int rc = put(w, head, sizeof head, e);
    if (!rc) rc = put(w, r->id, n * sizeof *r->id, e);
    if (!rc && r->logprob) rc = put(w, r->logprob, n * sizeof *r->logprob, e);
    if (!rc) rc = put(w, r->trained, n, e);
    if (!rc && r->fields) rc = put(w, r->fields, (size_t)r->n_fields, e);
    if (!rc) rc = put(w, "\0\0\0", -(n + head[6]) & 3, e);
    if (rc) return rc;
    w->rows++;
    return 1;
}

static uint32_t header_crc(const struct cache_header *h)
{
    struct cache_header copy;
    memcpy(&copy, h, sizeof copy);
    copy.header_crc = 0;
    return crc32c(0, &copy, sizeof copy);
}

static void use_map(struct cache *c, void *p, size_t size)
{
    c->data = p;
    c->size = size;
    c->header = p;
    mapped_add(p, size, "a prepared data set");
}

static int map_file(struct cache *c, int fd, size_t size, struct err *e)
{
    void *p = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return err_set(e, ERR_IO, "cannot map the prepared data set: %s", strerror(errno));
    use_map(c, p, size);
    if (c->header->index_at < size) c->offset = (const uint64_t *)(c->data + c->header->index_at);
    return 0;
}

static int name_it(struct cache_writer *w, struct err *e)
{
    if (fsync(w->fd) < 0 || rename(w->part, w->place) < 0) return write_failed(w, e);
    char *dir = mem_strndup(w->place, (size_t)(strrchr(w->place, '/') - w->place));
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(dir);
    free(w->part);
    w->part = NULL;
    return 0;
}

int cache_finish(struct cache_writer *w, const struct dataset_report *report, struct cache *c, struct err *e)
{
    struct cache_header h;
    memset(&h, 0, sizeof h); /* including padding */
    memcpy(h.magic, magic, sizeof magic);
    h.version = CACHE_VERSION;
    memcpy(h.key, w->key, sizeof h.key);
    memcpy(&h.report, report, sizeof h.report);
    int rc = put(w, "\0\0\0\0", -w->at & 7, e);
    h.index_at = w->at;
    h.rows = w->rows;
    if (!rc) rc = put(w, w->offset, w->rows * sizeof *w->offset, e);
    unsigned char digest[SHA256_BYTES];
    sha256_end(&w->hash, digest);
    memcpy(&h.hash, digest, sizeof h.hash);
    h.bytes = w->at;
    h.body_crc = w->crc;
    h.header_crc = header_crc(&h);
    if (!rc && (fflush(w->file) || pwrite(w->fd, &h, sizeof h, 0) != (ssize_t)sizeof h)) rc = write_failed(w, e);
    if (!rc && w->part) rc = name_it(w, e);
    return rc ? rc : map_file(c, w->fd, (size_t)h.bytes, e);
}

void cache_abandon(struct cache_writer *w)
{
    if (w->part && w->fd >= 0) unlink(w->part);
    if (w->file)
        fclose(w->file);
    else if (w->fd >= 0)
        close(w->fd);
    free(w->part);
    free(w->place);
    free(w->offset);
    seen_free(&w->seen);
    *w = (struct cache_writer){.fd = -1};
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static const char *rows_check(const struct cache *c)
{
    uint64_t end = CACHE_HEADER_BYTES;
    for (uint64_t i = 0; i < c->header->rows; i++) {
        uint32_t head[ROW_HEAD];
        if (c->offset[i] != end || end + sizeof head > c->header->index_at) return "its index is wrong";
        memcpy(head, c->data + end, sizeof head);
        uint64_t bytes = (uint64_t)head[0] + head[6];
        end += sizeof head + (head[3] ? 8 : 4) * (uint64_t)head[0] + ((bytes + 3) & ~(uint64_t)3);
        bool pair = !head[4] || (head[4] >= 2 && head[4] < head[0] && head[0] - head[4] >= 2);
        bool prompt = head[6] > 0 && head[6] <= INT32_MAX && !head[1] && !head[4];
        if (head[0] < (prompt ? 1 : 2) || (head[6] && !prompt) || head[3] > 1 || !pair ||
            head[5] > DATASET_UNDESIRABLE || end > c->header->index_at)
            return "a row is wrong";
    }
    return NULL;
}

static const char *what_is_wrong(struct cache *c, const unsigned char *key)
{
    const struct cache_header *h = c->header;
    if (memcmp(h->magic, magic, sizeof magic) != 0) return "not a prepared data set";
    if (h->version != CACHE_VERSION) return "of another version";
    if (h->header_crc != header_crc(h)) return "its header is damaged";
    if (memcmp(h->key, key, SHA256_BYTES) != 0) return "of other data";
    if (h->bytes != c->size || h->index_at % 8 || h->index_at < CACHE_HEADER_BYTES || h->index_at > h->bytes ||
        h->rows != (h->bytes - h->index_at) / 8 || !h->rows)
        return "its size is wrong";
    if (crc32c(0, c->data + CACHE_HEADER_BYTES, c->size - CACHE_HEADER_BYTES) != h->body_crc) return "it is damaged";
    return rows_check(c);
}

int cache_open(struct cache *c, const char *dir, const unsigned char key[SHA256_BYTES], struct err *e)
{
    *c = (struct cache){0};
    char *path = cache_path(dir, key);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), rc = 0;
    struct stat st;
    const char *wrong = NULL;
    if (fd < 0)
        rc = err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: %s", path, strerror(errno));
    else if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size < CACHE_HEADER_BYTES)
        wrong = "it is too short";
    else if (!(rc = map_file(c, fd, (size_t)st.st_size, e)))
        wrong = what_is_wrong(c, key);
    if (wrong) rc = err_set(e, ERR_INVALID, "%s: %s", path, wrong);
    if (fd >= 0 && !rc) futimens(fd, NULL); /* marks it as used now */
    if (fd >= 0) close(fd);
    if (rc) cache_close(c);
    free(path);
    return rc;
}

void *cache_begin_copy(struct cache *c, size_t bytes, struct err *e)
{
    *c = (struct cache){0};
    int fd = bytes < CACHE_HEADER_BYTES || bytes > INT64_MAX ? err_set(e, ERR_INVALID, "a data set of %zu bytes", bytes)
                                                             : unlinked_open(e);
    if (fd < 0) return NULL;
    int failed = posix_fallocate(fd, 0, (off_t)bytes);
    void *p = failed ? NULL : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (!p || p == MAP_FAILED) {
        err_set(e, ERR_IO, "no room for %zu bytes of a data set: %s", bytes, strerror(failed ? failed : errno));
        return NULL;
    }
    use_map(c, p, bytes);
    return p;
}

int cache_end_copy(struct cache *c, struct err *e)
{
    if (c->header->index_at < c->size) c->offset = (const uint64_t *)(c->data + c->header->index_at);
    mprotect((void *)c->data, c->size, PROT_READ);
    const char *wrong = what_is_wrong(c, c->header->key);
    return wrong ? err_set(e, ERR_INVALID, "the data set of another rank: %s", wrong) : 0;
}

void cache_close(struct cache *c)
{
    mapped_remove(c->data);
    if (c->data) munmap((void *)c->data, c->size);
    *c = (struct cache){0};
}

struct dataset_row cache_row(const struct cache *c, uint64_t i)
{
    const unsigned char *p = c->data + c->offset[i];
    uint32_t head[ROW_HEAD];
    memcpy(head, p, sizeof head);
    const unsigned char *ids = p + sizeof head, *after = ids + head[0] * sizeof(int32_t);
    const unsigned char *trained = head[3] ? after + head[0] * sizeof(float) : after;
    return (struct dataset_row){
        .id = (const int32_t *)ids,
        .trained = trained,
        .logprob = head[3] ? (const float *)after : NULL,
        .n = (int)head[0],
        .n_trained = (int)head[1],
        .second = (int)head[4],
        .label = (enum dataset_label)head[5],
        .line = head[2],
        .fields = head[6] ? (const char *)trained + head[0] : NULL,
        .n_fields = (int)head[6],
    };
}

/* ---- sweeping ---------------------------------------------------------------------------------------------------- */

struct prepared {
    char *path;
    uint64_t bytes;
    struct timespec used;
};

static int by_use(const void *a, const void *b)
{
    const struct timespec *x = &((const struct prepared *)a)->used, *y = &((const struct prepared *)b)->used;
    if (x->tv_sec != y->tv_sec) return x->tv_sec < y->tv_sec ? 1 : -1;
    return (x->tv_nsec < y->tv_nsec) - (x->tv_nsec > y->tv_nsec);
}

/* A part whose writer is alive is locked. */
static void part_sweep(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return;
    if (!flock(fd, LOCK_EX | LOCK_NB) && same_file(fd, path)) unlink(path);
    close(fd);
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

void cache_sweep(const char *dir, uint64_t max_bytes)
{
    DIR *d = opendir(dir);
    struct prepared *v = NULL;
    size_t n = 0, cap = 0;
    for (struct dirent *entry; d && (entry = readdir(d));) {
        bool part = ends_with(entry->d_name, part_suffix);
        struct stat st;
        if (!part && !ends_with(entry->d_name, suffix)) continue;
        char *path = file_join(dir, entry->d_name);
        if (part) part_sweep(path);
        if (!part && !lstat(path, &st) && S_ISREG(st.st_mode)) {
            mem_grow(&v, &cap, n + 1, sizeof *v);
            v[n++] = (struct prepared){path, (uint64_t)st.st_size, st.st_mtim};
            path = NULL;
        }
        free(path);
    }
    if (d) closedir(d);
    if (n) qsort(v, n, sizeof *v, by_use);
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) {
        total += v[i].bytes;
        if (total > max_bytes) unlink(v[i].path);
        free(v[i].path);
    }
    free(v);
}
