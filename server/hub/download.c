#include "server/hub/download.h"

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/model_dir.h"
#include "server/hub/cache.h"
#include "server/hub/fetch.h"
#include "server/hub/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { AT_ONCE = 8, POLL_MS = 100, SPARE_BYTES = 16 << 20, BLOCK_BYTES = 1 << 20 };
#define LOCK_AGAIN_NS UINT64_C(200000000)

/* A file on its way:
 *
 *   WAITING --lock--> RUNNING --all bytes, digest right--> DONE
 *      ^                |
 *      +-- BACKOFF <----+  a failure that may pass; lock and bytes stay */
enum item_state { ITEM_WAITING, ITEM_RUNNING, ITEM_BACKOFF, ITEM_DONE };

struct item {
    const struct download *d;
    struct hub_file file;
    enum item_state state;
    int lock, fd;
    uint64_t have;     /* bytes of the file so far */
    uint64_t again_at; /* of WAITING and BACKOFF */
    uint64_t most;     /* bytes that `have` has ever been */
    int tries;         /* failures since it last grew beyond that */
    bool mismatched;   /* the digest was wrong once */
    EVP_MD_CTX *digest;
    struct fetch fetch;
    struct err e; /* of the sink */
};

/* ---- paths ------------------------------------------------------------------------------------------------------- */

static char *repo_path(const struct download *d, const char *part, const char *name)
{
    struct buf path = {0};
    char *repo = cache_repo(d->hub, d->name->id);
    buf_printf(&path, "%s/%s%s%s", repo, part, *name ? "/" : "", name);
    free(repo);
    return path.data;
}

char *download_snapshot(const struct download *d)
{
    return repo_path(d, "snapshots", d->commit);
}

static char *blob_path(const struct item *m, const char *suffix)
{
    char *path = repo_path(m->d, "blobs", m->file.etag);
    struct buf whole = {0};
    buf_printf(&whole, "%s%s", path, suffix);
    free(path);
    return whole.data;
}

static char *lock_path(const struct download *d, const char *etag)
{
    struct buf path = {0};
    buf_printf(&path, "%s/.locks/", d->hub->cache);
    repo_folder(&path, d->name->id);
    if (*etag) buf_printf(&path, "/%s.lock", etag);
    return path.data;
}

static char *pointer_path(const struct item *m)
{
    char *snapshot = download_snapshot(m->d), *path = file_join(snapshot, m->file.name);
    free(snapshot);
    return path;
}

/* The tag of a directory that backups may omit (https://bford.info/cachedir), as huggingface_hub writes it. */
static void tag_cache(const struct hub *h)
{
    static const char text[] = "Signature: 8a477f597d28d172789f06886806bc55\n# This directory is a cache.\n";
    struct err none = {0};
    char *path = file_join(h->cache, "CACHEDIR.TAG");
    if (access(path, F_OK)) file_write_sync(path, text, sizeof text - 1, &none);
    free(path);
}

static int make(char *path, struct err *e)
{
    int rc = dir_make(path, e);
    free(path);
    return rc;
}

int download_prepare(const struct download *d, struct err *e)
{
    int rc = make(repo_path(d, "blobs", ""), e);
    if (!rc) rc = make(download_snapshot(d), e);
    if (!rc) rc = make(lock_path(d, ""), e);
    if (!rc) tag_cache(d->hub);
    return rc;
}

int download_publish(const struct download *d, struct err *e)
{
    struct buf temporary = {0};
    int rc = 0;
    if (strcmp(d->name->revision, d->commit) == 0) return 0;
    char *path = repo_path(d, "refs", d->name->revision), *slash = strrchr(path, '/'), *was = NULL;
    size_t n = 0;
    bool right = file_read(path, COMMIT_DIGITS + 1, &was, &n, e) == 0 && strcmp(was, d->commit) == 0;
    free(was);
    if (right) { /* nothing is written, then: the cache may be read-only */
        free(path);
        return 0;
    }
    *slash = 0;
    rc = dir_make(path, e);
    *slash = '/';
    buf_printf(&temporary, "%s.%d.tmp", path, (int)getpid());
    if (!rc) rc = file_write_sync(temporary.data, d->commit, strlen(d->commit), e);
    if (!rc && rename(temporary.data, path)) rc = err_set(e, ERR_IO, "%.300s: %s", path, strerror(errno));
    buf_free(&temporary);
    free(path);
    return rc;
}

/* ---- the link in the snapshot ------------------------------------------------------------------------------------ */

/* snapshots/COMMIT/a/b -> ../../../blobs/ETAG */
static int link_blob(const struct item *m, struct err *e)
{
    struct buf to = {0};
    char *path = pointer_path(m), *slash = strrchr(path, '/');
    *slash = 0;
    int rc = dir_make(path, e);
    *slash = '/';
    buf_str(&to, "../../");
    for (const char *p = m->file.name; *p; p++)
        if (*p == '/') buf_str(&to, "../");
    buf_printf(&to, "blobs/%s", m->file.etag);
    if (!rc) {
        unlink(path); /* a link to a blob that is gone */
        if (symlink(to.data, path) && errno != EEXIST) rc = err_set(e, ERR_IO, "%.300s: %s", path, strerror(errno));
    }
    buf_free(&to);
    free(path);
    return rc;
}

/* Whether the snapshot has the file, in its whole size. */
static bool is_there(const struct item *m)
{
    struct stat st;
    char *path = pointer_path(m);
    bool there = stat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == m->file.size;
    free(path);
    return there;
}

static bool blob_there(const struct item *m)
{
    struct stat st;
    char *path = blob_path(m, "");
    bool there = stat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == m->file.size;
    if (!there) unlink(path); /* of another size: damaged */
    free(path);
    return there;
}

/* ---- digests ----------------------------------------------------------------------------------------------------- */

static void digest_begin(struct item *m)
{
    bool lfs = strlen(m->file.etag) == 64;
    if (!m->digest) m->digest = EVP_MD_CTX_new();
    EVP_DigestInit_ex(m->digest, lfs ? EVP_sha256() : EVP_sha1(), NULL);
    if (lfs) return;
    char head[40]; /* git hashes "blob SIZE", a NUL and the bytes: git-hash-object(1) */
    int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)m->file.size);
    EVP_DigestUpdate(m->digest, head, (size_t)n + 1);
}

static bool digest_right(struct item *m, char got[ETAG_MAX + 1])
{
    unsigned char v[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    EVP_DigestFinal_ex(m->digest, v, &n);
    for (unsigned i = 0; i < n && i < ETAG_MAX / 2; i++) snprintf(got + 2 * i, 3, "%02x", v[i]);
    return strcmp(got, m->file.etag) == 0;
}

/* ---- the bytes --------------------------------------------------------------------------------------------------- */

static void set_have(struct item *m, uint64_t have)
{
    m->d->progress->now.done += have - m->have; /* wraps when it shrinks */
    m->have = have;
}

static int start_over(struct item *m, struct err *e)
{
    set_have(m, 0);
    digest_begin(m);
    if (ftruncate(m->fd, 0) || lseek(m->fd, 0, SEEK_SET))
        return err_set(e, ERR_IO, "%.200s: %s", m->file.name, strerror(errno));
    return 0;
}

/* Opens ETAG.incomplete and takes what an earlier download left into the digest. */
static int open_incomplete(struct item *m, struct err *e)
{
    char *path = blob_path(m, ".incomplete");
    m->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (m->fd < 0) err_set(e, ERR_IO, "%.300s: %s", path, strerror(errno));
    free(path);
    if (m->fd < 0) return e->code;
    digest_begin(m);
    char *block = mem_alloc(BLOCK_BYTES);
    ssize_t n;
    uint64_t have = 0;
    while (have <= m->file.size && (n = read(m->fd, block, BLOCK_BYTES)) > 0) {
        EVP_DigestUpdate(m->digest, block, (size_t)n);
        have += (uint64_t)n;
    }
    free(block);
    if (have > m->file.size) return start_over(m, e);
    set_have(m, have);
    return 0;
}

static bool take_bytes(void *arg, const char *data, size_t n)
{
    struct item *m = arg;
    struct progress *p = m->d->progress;
    if (m->fetch.status == 200 && m->have && !m->fetch.taken) { /* it ignores ranges */
        if (start_over(m, &m->e)) return false;
    } else if (m->fetch.status == 206 && !m->fetch.taken && m->fetch.range_begin != (int64_t)m->have) {
        err_set(&m->e, ERR_IO, "%.200s: bytes from %lld instead of %llu", m->file.name, (long long)m->fetch.range_begin,
                (unsigned long long)m->have);
        return false;
    }
    m->fetch.taken = true;
    if (n > m->file.size - m->have) {
        err_set(&m->e, ERR_IO, "%.200s: more than the %llu bytes that the hub lists", m->file.name,
                (unsigned long long)m->file.size);
        return false;
    }
    if (file_write_all(m->fd, data, n)) {
        err_set(&m->e, ERR_IO, "%.200s: %s", m->file.name, strerror(errno));
        return false;
    }
    EVP_DigestUpdate(m->digest, data, n);
    set_have(m, m->have + n);
    p->loaded += n;
    if (m->have > m->most) m->most = m->have, m->tries = 0;
    return true;
}

/* ---- one file ---------------------------------------------------------------------------------------------------- */

static void release(struct item *m)
{
    if (m->fd >= 0) close(m->fd);
    if (m->lock >= 0) close(m->lock);
    m->fd = m->lock = -1;
}

static int finish(struct item *m, struct err *e)
{
    m->state = ITEM_DONE;
    set_have(m, m->file.size);
    m->d->progress->now.files_done++;
    int rc = is_there(m) ? 0 : link_blob(m, e);
    release(m);
    return rc;
}

static void begin_request(struct item *m, CURLM *multi)
{
    struct buf url = {0};
    buf_printf(&url, "%s/%s/resolve/%s/", m->d->hub->endpoint, m->d->name->id, m->d->commit);
    repo_url_encode(&url, m->file.name, "/");
    fetch_open(&m->fetch, m->d->hub, url.data, m->have, false, take_bytes, m);
    buf_free(&url);
    curl_multi_add_handle(multi, m->fetch.easy);
    m->state = ITEM_RUNNING;
}

static void end_request(struct item *m, CURLM *multi)
{
    if (!m->fetch.easy) return;
    curl_multi_remove_handle(multi, m->fetch.easy);
    fetch_close(&m->fetch);
}

/* All bytes are there.  @return 0 also when they are wrong for the first time: they are loaded again. */
static int verify(struct item *m, CURLM *multi, struct err *e)
{
    char got[ETAG_MAX + 1] = "";
    char *incomplete = blob_path(m, ".incomplete"), *blob = blob_path(m, "");
    int rc = 0;
    bool right = digest_right(m, got);
    if (right && (fsync(m->fd) || rename(incomplete, blob)))
        rc = err_set(e, ERR_IO, "%.300s: %s", blob, strerror(errno));
    else if (right)
        rc = finish(m, e);
    else if (m->mismatched) {
        unlink(incomplete);
        rc = err_set(e, ERR_INVALID, "%.150s: damaged twice: its checksum is %s, and the hub lists %s", m->file.name,
                     got, m->file.etag);
    } else {
        m->mismatched = true;
        rc = start_over(m, e);
        if (!rc) begin_request(m, multi);
    }
    free(incomplete);
    free(blob);
    return rc;
}

/* Takes the lock and begins, if the file is not there by now. */
static int begin(struct item *m, CURLM *multi, struct err *e)
{
    if (m->state == ITEM_BACKOFF) return begin_request(m, multi), 0;
    if (is_there(m)) return finish(m, e);
    char *path = lock_path(m->d, m->file.etag);
    m->lock = lock_try(path, e);
    free(path);
    if (m->lock < -1) return m->lock = -1, e->code;
    if (m->lock < 0) {
        m->again_at = clock_now() + LOCK_AGAIN_NS;
        return 0;
    }
    if (blob_there(m)) return finish(m, e);
    int rc = open_incomplete(m, e);
    if (rc) return rc;
    if (m->have == m->file.size) return verify(m, multi, e);
    begin_request(m, multi);
    return 0;
}

/* The answer has ended before the file.  said: in the length that it announced, so that it is another file than the
 * listing's; otherwise as if the connection had been lost. */
static int on_short(struct item *m, bool said, struct err *e)
{
    char head[64] = "";
    ssize_t n = pread(m->fd, head, sizeof head - 1, 0);
    bool pointer = n > 0 && model_dir_lfs_pointer(head, (size_t)n);
    err_set(e, ERR_IO, "%.200s: ends after %llu of the %llu bytes that the hub lists%s", m->file.name,
            (unsigned long long)m->have, (unsigned long long)m->file.size,
            pointer ? ": what is served is a git-lfs pointer, not the file" : "");
    if (said && start_over(m, e) == 0) return e->code; /* of no use for resuming */
    if (said || ++m->tries >= FETCH_TRIES) return e->code;
    m->state = ITEM_BACKOFF;
    m->again_at = clock_now() + fetch_delay_ns(&m->fetch, m->tries);
    return 0;
}

static int on_end(struct item *m, CURLcode code, CURLM *multi, struct err *e)
{
    struct err why = {0};
    enum fetch_end end = fetch_end(&m->fetch, code, m->d->name, m->file.name, &why);
    if (m->e.code) { /* the sink's: too many bytes, or a disk that is full */
        *e = m->e;
        end_request(m, multi);
        return e->code;
    }
    if (end == FETCH_FOLLOW) { /* libcurl wants the handle to be added anew */
        curl_multi_remove_handle(multi, m->fetch.easy);
        curl_multi_add_handle(multi, m->fetch.easy);
        return 0;
    }
    uint64_t delay = fetch_delay_ns(&m->fetch, m->tries + 1);
    curl_off_t length = -1;
    curl_easy_getinfo(m->fetch.easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    end_request(m, multi);
    if (end == FETCH_DONE && m->have == m->file.size) return verify(m, multi, e);
    if (end == FETCH_DONE) return on_short(m, length >= 0, e);
    if (end == FETCH_FAILED || ++m->tries >= FETCH_TRIES) {
        *e = why;
        return e->code;
    }
    m->state = ITEM_BACKOFF;
    m->again_at = clock_now() + delay;
    return 0;
}

/* ---- all files --------------------------------------------------------------------------------------------------- */

static int begin_some(struct item *v, int n, CURLM *multi, struct err *e)
{
    int running = 0, waiting = 0;
    uint64_t t = clock_now();
    for (int i = 0; i < n; i++) running += v[i].state == ITEM_RUNNING || v[i].state == ITEM_BACKOFF;
    for (int i = 0; i < n; i++) {
        bool begins = v[i].state == ITEM_BACKOFF || (v[i].state == ITEM_WAITING && running < AT_ONCE);
        if (!begins || t < v[i].again_at) {
            waiting += v[i].state == ITEM_WAITING;
            continue;
        }
        bool was = v[i].state == ITEM_BACKOFF;
        if (begin(&v[i], multi, e)) return e->code;
        running += !was && v[i].state == ITEM_RUNNING;
        waiting += v[i].state == ITEM_WAITING;
    }
    v->d->progress->now.waiting = waiting && !running;
    return 0;
}

static int take_ends(CURLM *multi, struct err *e)
{
    CURLMsg *msg;
    int left, rc = 0;
    while (!rc && (msg = curl_multi_info_read(multi, &left))) {
        struct item *m;
        CURLcode code = msg->data.result;
        if (msg->msg != CURLMSG_DONE) continue;
        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, (char **)&m);
        rc = on_end(m, code, multi, e);
    }
    return rc;
}

static int run(struct item *v, int n, CURLM *multi, struct err *e)
{
    const struct download *d = v->d;
    for (;;) {
        int handles, done = 0, rc = begin_some(v, n, multi, e);
        if (!rc && curl_multi_perform(multi, &handles)) rc = err_set(e, ERR_IO, "libcurl does not go on");
        if (!rc) rc = take_ends(multi, e);
        if (rc) return rc;
        if (d->hub->stop && *d->hub->stop)
            return err_set(e, ERR_IO,
                           "interrupted; what was downloaded stays, and the same command goes on from there");
        for (int i = 0; i < n; i++) done += v[i].state == ITEM_DONE;
        progress_update(d->progress, d->hub, false);
        if (done == n) return 0;
        curl_multi_poll(multi, NULL, 0, POLL_MS, &handles);
    }
}

/* Asks for size and digest of a file where the listing has none. */
static int describe(struct item *m, struct err *e)
{
    struct buf url = {0};
    struct fetch f;
    if (*m->file.etag) return 0;
    buf_printf(&url, "%s/%s/resolve/%s/", m->d->hub->endpoint, m->d->name->id, m->d->commit);
    repo_url_encode(&url, m->file.name, "/");
    int rc = fetch_text(m->d->hub, url.data, m->d->name, m->file.name, 0, NULL, &f, e);
    buf_free(&url);
    if (!rc && !listing_describe(&m->file, f.size, f.etag))
        rc = err_set(e, ERR_INVALID, "%.200s: the hub says neither its size nor its checksum", m->file.name);
    return rc;
}

static int check_room(const struct download *d, const struct item *v, int n, struct err *e)
{
    struct statvfs fs;
    struct buf text = {0};
    uint64_t need = 0;
    for (int i = 0; i < n; i++) {
        struct stat st;
        char *blob = blob_path(&v[i], ""), *incomplete = blob_path(&v[i], ".incomplete");
        if (stat(blob, &st)) {
            need += v[i].file.size;
            if (stat(incomplete, &st) == 0 && (uint64_t)st.st_size < v[i].file.size) need -= (uint64_t)st.st_size;
        }
        free(blob);
        free(incomplete);
    }
    char *repo = cache_repo(d->hub, d->name->id);
    int rc = 0;
    if (need && statvfs(repo, &fs) == 0 && need + SPARE_BYTES > (uint64_t)fs.f_bavail * fs.f_frsize) {
        progress_bytes(&text, (double)need);
        buf_str(&text, ", and ");
        progress_bytes(&text, (double)fs.f_bavail * (double)fs.f_frsize);
        rc = err_set(e, ERR_FULL, "%s: its files need %s are free in %.200s", d->name->id, text.data, d->hub->cache);
    }
    buf_free(&text);
    free(repo);
    return rc;
}

int download_files(const struct download *d, const struct hub_file *const *files, int n, struct err *e)
{
    struct item *v = mem_array((size_t)n + 1, sizeof *v);
    int rc = 0;
    for (int i = 0; i < n && !rc; i++) {
        v[i] = (struct item){.d = d, .file = *files[i], .lock = -1, .fd = -1};
        rc = describe(&v[i], e);
        d->progress->now.total += v[i].file.size;
        d->progress->now.files++;
    }
    if (!rc) rc = check_room(d, v, n, e);
    CURLM *multi = !rc && n ? curl_multi_init() : NULL;
    if (multi) rc = run(v, n, multi, e);
    for (int i = 0; i < n && v[i].d; i++) {
        end_request(&v[i], multi);
        release(&v[i]);
        EVP_MD_CTX_free(v[i].digest);
    }
    if (multi) curl_multi_cleanup(multi);
    free(v);
    return rc;
}
