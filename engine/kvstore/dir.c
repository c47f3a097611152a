#include "engine/kvstore/dir.h"

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const names[] = {"pages", "index", "lock"}; /* in the order in which they are removed */
enum { N_NAMES = sizeof names / sizeof *names };

static int failed(struct err *e, const char *path, const char *name)
{
    return err_set(e, ERR_IO, "--kv-disk: %s%s%s: %s", path, *name ? "/" : "", name, strerror(errno));
}

static int make_dir(const char *path, struct err *e)
{
    if (mkdir(path, 0700) == 0 || errno == EEXIST) return 0;
    return failed(e, path, "");
}

/* Opens a regular file of this user, and nothing that a name of another could lead to.  @return its descriptor, -1 and
 * errno. */
static int open_own(int dir, const char *name, int flags)
{
    struct stat st;
    int fd = openat(dir, name, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0) return -1;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && fchmod(fd, 0600) == 0) return fd;
    close(fd);
    errno = EPERM;
    return -1;
}

/* ---- the secret ---- */

static bool read_secret(int dir, unsigned char secret[KV_SECRET_BYTES])
{
    int fd = open_own(dir, "secret", O_RDONLY);
    if (fd < 0) return false;
    bool whole = read(fd, secret, KV_SECRET_BYTES) == KV_SECRET_BYTES;
    close(fd);
    return whole;
}

/* Of several processes that make one at the same time, the first wins. */
static bool write_secret(int dir, const unsigned char secret[KV_SECRET_BYTES])
{
    char name[48];
    snprintf(name, sizeof name, "secret.%ld", (long)getpid());
    unlinkat(dir, name, 0);
    int fd = open_own(dir, name, O_WRONLY | O_CREAT | O_EXCL);
    if (fd < 0) return false;
    bool done = file_write_all(fd, secret, KV_SECRET_BYTES) == 0;
    done = fsync(fd) == 0 && done;
    close(fd);
    if (done && linkat(dir, name, dir, "secret", 0) && errno != EEXIST) done = renameat(dir, name, dir, "secret") == 0;
    unlinkat(dir, name, 0);
    return done;
}

int kv_dir_secret(const char *path, unsigned char secret[KV_SECRET_BYTES], struct err *e)
{
    int rc = make_dir(path, e);
    if (rc) return rc;
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) return failed(e, path, "");
    bool there = read_secret(dir, secret);
    if (!there) {
        struct stat st;
        if (fstatat(dir, "secret", &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_size != KV_SECRET_BYTES)
            unlinkat(dir, "secret", 0); /* cut short by a crash: what was named with it is lost */
        there = getrandom(secret, KV_SECRET_BYTES, 0) == KV_SECRET_BYTES && write_secret(dir, secret) &&
                read_secret(dir, secret);
    }
    if (!there) failed(e, path, "secret");
    close(dir);
    return there ? 0 : ERR_IO;
}

/* ---- a folder ---- */

/* The lock file says which process holds it. */
static bool is_ours(int lock)
{
    char text[24] = "";
    ssize_t n = pread(lock, text, sizeof text - 1, 0);
    return n > 0 && strtol(text, NULL, 10) == (long)getpid();
}

static void sign(int lock)
{
    char text[24];
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(lock, 0) || pwrite(lock, text, (size_t)n, 0) != n)
        log_warn("kv-disk: its lock does not say whose it is");
}

int kv_folder_open(struct kv_folder *f, const char *dir, const char *name, struct err *e)
{
    *f = (struct kv_folder){NULL, -1, -1, -1};
    int rc = make_dir(dir, e);
    if (rc) return rc;
    f->path = file_join(dir, name);
    struct stat st;
    int at = -1;
    if (make_dir(f->path, e)) goto fail;
    at = open(f->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (at < 0 || fstat(at, &st) || (st.st_uid != geteuid() && (errno = EPERM)) || fchmod(at, 0700)) {
        failed(e, f->path, "");
        goto fail;
    }
    if ((f->lock = open_own(at, "lock", O_RDWR | O_CREAT)) < 0) {
        failed(e, f->path, "lock");
        goto fail;
    }
    if (flock(f->lock, LOCK_EX | LOCK_NB)) {
        bool ours = is_ours(f->lock);
        err_set(e, ERR_FULL,
                ours ? "--kv-disk: %s is used for another model of this server with the same files: load one "
                       "of the two at a time, or name it once"
                     : "--kv-disk: %s is used by another tandem with the same model: give each a directory "
                       "of its own",
                dir);
        goto fail;
    }
    sign(f->lock);
    if ((f->index = open_own(at, "index", O_RDWR | O_CREAT)) < 0)
        failed(e, f->path, "index");
    else if ((f->pages = open_own(at, "pages", O_RDWR | O_CREAT)) < 0)
        failed(e, f->path, "pages");
    else
        return close(at), 0;
fail:
    if (at >= 0) close(at);
    kv_folder_close(f);
    return e->code;
}

void kv_folder_close(struct kv_folder *f)
{
    if (f->pages >= 0) close(f->pages);
    if (f->index >= 0) close(f->index);
    if (f->lock >= 0) close(f->lock); /* and with it the lock */
    free(f->path);
    *f = (struct kv_folder){NULL, -1, -1, -1};
}

/* ---- other models' folders ---- */

static bool is_folder(const char *name)
{
    return strlen(name) == KV_FOLDER_NAME - 1 && strspn(name, "0123456789abcdef") == KV_FOLDER_NAME - 1;
}

/* Bytes that its files take on the disk; *used: when its index last changed. */
static uint64_t folder_bytes(int dir, const char *name, int64_t *used)
{
    uint64_t bytes = 0;
    *used = 0;
    for (int i = 0; i < N_NAMES; i++) {
        char path[64];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", name, names[i]);
        if (fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode)) continue;
        bytes += (uint64_t)st.st_blocks * 512;
        if (st.st_mtim.tv_sec > *used) *used = st.st_mtim.tv_sec;
    }
    return bytes;
}

/* @return false: it is open, or not to be removed. */
static bool folder_remove(int dir, const char *name)
{
    int at = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int lock = at < 0 ? -1 : open_own(at, "lock", O_RDWR | O_CREAT);
    bool gone = lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0;
    for (int i = 0; gone && i < N_NAMES; i++) gone = unlinkat(at, names[i], 0) == 0 || errno == ENOENT;
    gone = gone && unlinkat(dir, name, AT_REMOVEDIR) == 0;
    if (lock >= 0) close(lock);
    if (at >= 0) close(at);
    return gone;
}

uint64_t kv_dir_room(const char *path, const char *own, uint64_t limit, uint64_t want)
{
    enum { TRIES = 64 };
    char kept[TRIES][KV_FOLDER_NAME]; /* found to be open */
    int n_kept = 0;
    uint64_t others = 0;
    for (;;) {
        DIR *d = opendir(path);
        if (!d) return want < limit ? want : limit;
        char oldest[KV_FOLDER_NAME] = "";
        int64_t first = INT64_MAX;
        others = 0;
        for (struct dirent *x; (x = readdir(d));) {
            int64_t used;
            if (!is_folder(x->d_name) || strcmp(x->d_name, own) == 0) continue;
            others += folder_bytes(dirfd(d), x->d_name, &used);
            bool open = false;
            for (int i = 0; i < n_kept; i++) open |= strcmp(kept[i], x->d_name) == 0;
            if (open || used >= first) continue;
            first = used;
            memcpy(oldest, x->d_name, sizeof oldest);
        }
        bool over = others >= limit || want > limit - others;
        bool remove = over && *oldest && n_kept < TRIES;
        if (remove && folder_remove(dirfd(d), oldest))
            log_write(LOG_INFO, "kv-disk: removed the pages of another model folder=%s", oldest);
        else if (remove)
            memcpy(kept[n_kept++], oldest, sizeof oldest);
        closedir(d);
        if (!remove) break;
    }
    uint64_t room = others < limit ? limit - others : 0;
    return want < room ? want : room;
}
