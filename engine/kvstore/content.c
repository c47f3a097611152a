#include "engine/kvstore/content.h"

#include "engine/base/buf.h"
#include "engine/base/clock.h"
#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CHUNK = 4 << 20, /* hashed by one thread at a time */
    THREADS_MAX = 16,
    FILES_MAX = 4096,
    REMEMBERED_MAX = 1 << 20, /* bytes */
    SETTLED_NS = 2000 * 1000 * 1000,
};

/* ---- which files ---- */

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

static bool determines_weights(const char *name, bool all_json)
{
    if (ends_with(name, ".safetensors") || ends_with(name, ".gguf")) return true;
    return ends_with(name, ".json") && (all_json || strstr(name, "config.json")) &&
           (all_json || (strcmp(name, "generation_config.json") != 0 && strcmp(name, "tokenizer_config.json") != 0));
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void add_path(struct content_files *f, char *path)
{
    size_t cap = f->n;
    mem_grow(&f->path, &cap, f->n + 1, sizeof *f->path);
    f->path[f->n++] = path;
}

int content_files_find(struct content_files *f, const char *model, bool all_json, struct err *e)
{
    struct stat st;
    *f = (struct content_files){0};
    if (stat(model, &st)) return err_set(e, ERR_NOT_FOUND, "%s: %s", model, strerror(errno));
    const char *slash = strrchr(model, '/'),
               *of = S_ISDIR(st.st_mode) ? NULL : strstr(slash ? slash : model, "-00001-of-");
    if (!S_ISDIR(st.st_mode) && !of) {
        add_path(f, mem_strdup(model));
        return 0;
    }
    /* a directory, or the parts of a split GGUF file: those beside it whose names begin alike */
    char *dir = of ? slash ? mem_strndup(model, (size_t)(slash - model) + 1) : mem_strdup(".") : mem_strdup(model);
    const char *first = of && slash ? slash + 1 : model;
    DIR *d = opendir(dir);
    int rc = d ? 0 : err_set(e, ERR_IO, "%s: %s", dir, strerror(errno));
    for (struct dirent *x; d && !rc && (x = readdir(d));) {
        if (of ? strncmp(x->d_name, first, (size_t)(of - first)) != 0 : !determines_weights(x->d_name, all_json))
            continue;
        if (f->n == FILES_MAX) rc = err_set(e, ERR_UNSUPPORTED, "%s: more than %d files of weights", dir, FILES_MAX);
        add_path(f, file_join(dir, x->d_name));
    }
    if (d) closedir(d);
    free(dir);
    if (f->n) qsort(f->path, f->n, sizeof *f->path, by_name);
    return rc;
}

void content_files_free(struct content_files *f)
{
    for (size_t i = 0; i < f->n; i++) free(f->path[i]);
    free(f->path);
    *f = (struct content_files){0};
}

/* ---- what is remembered of one ---- */

struct stamp {
    uint64_t dev, inode, size, modified, changed; /* nanoseconds */
};

static uint64_t ns_of(struct timespec t)
{
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static bool stamp_of(const char *path, struct stamp *s)
{
    struct stat st;
    if (stat(path, &st)) return false;
    *s = (struct stamp){st.st_dev, st.st_ino, (uint64_t)st.st_size, ns_of(st.st_mtim), ns_of(st.st_ctim)};
    return true;
}

uint64_t content_stamp(const struct content_files *f)
{
    uint64_t h = f->n;
    for (size_t i = 0; i < f->n; i++) {
        struct stamp s = {0};
        stamp_of(f->path[i], &s);
        h = (h ^ crc32c(0, &s, sizeof s)) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
    }
    return h;
}

static void put_line(struct buf *b, const struct stamp *s, const unsigned char digest[SHA256_BYTES])
{
    size_t from = b->len;
    buf_printf(b, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " ", s->dev, s->inode, s->size,
               s->modified, s->changed);
    for (int i = 0; i < SHA256_BYTES; i++) buf_printf(b, "%02x", digest[i]);
    buf_printf(b, " %08x\n", crc32c(0, b->data + from, b->len - from));
}

/* Looks for the line that begins as put_line would write it. */
static bool recall(const char *text, const struct stamp *s, unsigned char digest[SHA256_BYTES])
{
    static const unsigned char zero[SHA256_BYTES];
    struct buf want = {0}, whole = {0};
    put_line(&want, s, zero);
    size_t known = want.len - 9 - 1 - 2 * SHA256_BYTES; /* up to the digest */
    bool found = false;
    for (const char *line = text; line && *line && !found; line = strchr(line, '\n'), line += line != NULL) {
        if (strncmp(line, want.data, known) != 0 || strlen(line) < want.len) continue;
        bool hex = true;
        for (int i = 0; i < SHA256_BYTES && hex; i++) {
            unsigned v;
            hex = sscanf(line + known + 2 * i, "%2x", &v) == 1;
            digest[i] = (unsigned char)v;
        }
        whole.len = 0;
        put_line(&whole, s, digest);
        found = hex && memcmp(line, whole.data, whole.len) == 0; /* with its checksum */
    }
    buf_free(&want);
    buf_free(&whole);
    return found;
}

/* ---- hashing ---- */

struct hashing {
    int fd;
    uint64_t size;
    _Atomic uint64_t next; /* chunk */
    _Atomic bool failed;
    unsigned char (*leaf)[SHA256_BYTES]; /* of each chunk */
};

static void *hash_chunks(void *arg)
{
    struct hashing *h = arg;
    char *part = mem_alloc(CHUNK);
    for (uint64_t i; !h->failed && (i = h->next++) * CHUNK < h->size;) {
        uint64_t at = i * CHUNK, left = h->size - at < CHUNK ? h->size - at : CHUNK, have = 0;
        struct sha256 s;
        while (have < left) {
            ssize_t n = pread(h->fd, part + have, left - have, (off_t)(at + have));
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) break;
            have += (uint64_t)n;
        }
        if (have < left) h->failed = true;
        sha256_start(&s);
        sha256_add(&s, part, have);
        sha256_end(&s, h->leaf[i]);
    }
    free(part);
    return NULL;
}

static int hash_file(const char *path, int threads, unsigned char digest[SHA256_BYTES], struct err *e)
{
    size_t size;
    int fd = file_open(path, &size, e), n = 0;
    if (fd < 0) return fd;
    size_t chunks = size / CHUNK + 1;
    struct hashing h = {.fd = fd, .size = size, .leaf = mem_array(chunks, SHA256_BYTES)};
    pthread_t thread[THREADS_MAX];
    if (threads > THREADS_MAX) threads = THREADS_MAX;
    while (n < threads - 1 && (size_t)n + 1 < chunks && !pthread_create(&thread[n], NULL, hash_chunks, &h)) n++;
    hash_chunks(&h);
    while (n) pthread_join(thread[--n], NULL);
    struct sha256 s;
    uint64_t bytes = size;
    sha256_start(&s);
    sha256_add(&s, &bytes, sizeof bytes);
    sha256_add(&s, h.leaf, chunks * SHA256_BYTES);
    sha256_end(&s, digest);
    free(h.leaf);
    close(fd);
    return h.failed ? err_set(e, ERR_IO, "%s: cannot be read to its end", path) : 0;
}

int content_add(struct sha256 *to, const struct content_files *f, const char *dir, int threads, struct err *e)
{
    char *memory = file_join(dir, "contents"), *text = NULL;
    size_t size = 0;
    struct buf now = {0};
    int rc = 0;
    uint64_t start = clock_now(), read = 0;
    if (file_read(memory, REMEMBERED_MAX, &text, &size, &(struct err){0})) text = NULL;
    for (size_t i = 0; i < f->n && !rc; i++) {
        unsigned char digest[SHA256_BYTES] = {0};
        struct stamp s = {0};
        const char *name = strrchr(f->path[i], '/');
        name = name ? name + 1 : f->path[i];
        uint64_t began = clock_unix();
        bool stamped = stamp_of(f->path[i], &s);
        if (!stamped || !text || !recall(text, &s, digest)) {
            rc = hash_file(f->path[i], threads, digest, e);
            read += stamped ? s.size : 0;
        }
        sha256_add(to, name, strlen(name) + 1);
        sha256_add(to, digest, sizeof digest);
        if (stamped && s.changed + SETTLED_NS < began) put_line(&now, &s, digest);
    }
    if (read && !rc && now.len && now.len < REMEMBERED_MAX / 2) {
        /* those of other models stay, as far as there is room */
        if (text && now.len + size < REMEMBERED_MAX) buf_append(&now, text, size);
        struct err why = {0};
        if (file_replace(memory, now.data, now.len, &why)) log_write(LOG_WARN, "kv-disk: %s", why.msg);
    }
    if (read >= (size_t)256 << 20 && !rc)
        log_write(LOG_INFO, "kv-disk: hashed the model's files, which is remembered bytes=%llu seconds=%.1f",
                  (unsigned long long)read, (double)(clock_now() - start) * 1e-9);
    free(memory);
    free(text);
    buf_free(&now);
    return rc;
}
