/* Removing from the cache of the hub (cache.h): a model, or one of its revisions. */
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "server/hub/cache.h"
#include "server/hub/lock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { REMOVE_DEPTH = 32 };

/* Whether another process downloads a file of it now. */
static bool is_locked(const struct hub *h, const char *folder)
{
    struct buf dir = {0};
    buf_printf(&dir, "%s/.locks/%s", h->cache, folder);
    DIR *d = opendir(dir.data);
    bool locked = false;
    for (struct dirent *f; d && !locked && (f = readdir(d));) {
        if (f->d_name[0] == '.') continue;
        struct err none = {0};
        char *path = file_join(dir.data, f->d_name);
        int lock = lock_try(path, &none);
        locked = lock == -1;
        if (lock >= 0) close(lock);
        free(path);
    }
    if (d) closedir(d);
    buf_free(&dir);
    return locked;
}

/* Removes what is in a directory, without following links.  @return whether all of it is gone */
static bool remove_tree(int parent, const char *name, int depth, uint64_t *bytes)
{
    struct stat st;
    if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW)) return errno == ENOENT;
    if (!S_ISDIR(st.st_mode)) {
        if (unlinkat(parent, name, 0)) return false;
        if (S_ISREG(st.st_mode) && st.st_nlink == 1) *bytes += (uint64_t)st.st_size;
        return true;
    }
    int fd = depth < REMOVE_DEPTH ? openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d && fd >= 0) close(fd);
    if (!d) return false;
    bool gone = true;
    for (struct dirent *f; (f = readdir(d));)
        if (strcmp(f->d_name, ".") && strcmp(f->d_name, "..")) gone &= remove_tree(fd, f->d_name, depth + 1, bytes);
    closedir(d);
    return unlinkat(parent, name, AT_REMOVEDIR) == 0 && gone;
}

int cache_remove(const struct hub *h, const char *id, uint64_t *bytes, struct err *e)
{
    struct buf folder = {0};
    struct stat st;
    char same[REPO_NAME_MAX + 1];
    repo_folder(&folder, id);
    *bytes = 0;
    int rc = 0, cache = open(h->cache, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool is_name = repo_of_folder(folder.data, same) && strcmp(same, id) == 0 && repo_file_good(folder.data);
    if (!is_name || cache < 0 || fstatat(cache, folder.data, &st, AT_SYMLINK_NOFOLLOW))
        rc = err_set(e, ERR_NOT_FOUND, "%.100s is not in %.200s; `tandem models` lists what is", id, h->cache);
    else if (is_locked(h, folder.data))
        rc = err_set(e, ERR_FULL, "%s is being downloaded by another process", id);
    else if (!remove_tree(cache, folder.data, 0, bytes))
        rc = err_set(e, ERR_IO, "%s: not all of it could be removed: %s", id, strerror(errno));
    if (cache >= 0) close(cache);
    buf_free(&folder);
    return rc;
}

/* ---- a revision -------------------------------------------------------------------------------------------------- */

struct blobs {
    char **v; /* owned: names in blobs/ */
    size_t n, cap;
};

static void blobs_free(struct blobs *b)
{
    for (size_t i = 0; i < b->n; i++) free(b->v[i]);
    free(b->v);
}

static bool blobs_have(const struct blobs *b, const char *name)
{
    for (size_t i = 0; i < b->n; i++)
        if (strcmp(b->v[i], name) == 0) return true;
    return false;
}

/* The blobs that the links of a snapshot lead to: the last parts of "../../blobs/ETAG". */
static void add_blobs(int parent, const char *name, int depth, struct blobs *out)
{
    int fd = depth < REMOVE_DEPTH ? openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    for (struct dirent *f; d && (f = readdir(d));) {
        char to[512];
        struct stat st;
        if (!strcmp(f->d_name, ".") || !strcmp(f->d_name, "..")) continue;
        if (fstatat(fd, f->d_name, &st, AT_SYMLINK_NOFOLLOW)) continue;
        ssize_t n = S_ISLNK(st.st_mode) ? readlinkat(fd, f->d_name, to, sizeof to - 1) : -1;
        if (S_ISDIR(st.st_mode)) add_blobs(fd, f->d_name, depth + 1, out);
        if (n <= 0) continue;
        to[n] = 0;
        const char *last = strrchr(to, '/');
        mem_grow(&out->v, &out->cap, out->n + 1, sizeof *out->v);
        out->v[out->n++] = mem_strdup(last ? last + 1 : to);
    }
    if (d) closedir(d);
}

/* Of all snapshots but one.  @return how many there are */
static int add_other_blobs(int repo, const char *commit, struct blobs *out)
{
    int fd = openat(repo, "snapshots", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), n = 0;
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    for (struct dirent *f; d && (f = readdir(d));) {
        if (f->d_name[0] == '.' || strcmp(f->d_name, commit) == 0) continue;
        add_blobs(fd, f->d_name, 0, out);
        n++;
    }
    if (d) closedir(d);
    return n;
}

/* Removes the refs that name the commit: branches may have parts, refs/pr/1. */
static void remove_refs(int parent, const char *name, const char *commit, int depth)
{
    int fd = depth < REMOVE_DEPTH ? openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    for (struct dirent *f; d && (f = readdir(d));) {
        char text[COMMIT_DIGITS];
        if (!strcmp(f->d_name, ".") || !strcmp(f->d_name, "..")) continue;
        int file = openat(fd, f->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        bool same = file >= 0 && read(file, text, sizeof text) == COMMIT_DIGITS && !memcmp(text, commit, COMMIT_DIGITS);
        if (file >= 0) close(file);
        if (same)
            unlinkat(fd, f->d_name, 0);
        else
            remove_refs(fd, f->d_name, commit, depth + 1);
    }
    if (d) closedir(d);
}

static int remove_snapshot(int repo, const char *commit, uint64_t *bytes, struct err *e)
{
    struct blobs own = {0}, others = {0};
    int snapshots = openat(repo, "snapshots", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int blobs = openat(repo, "blobs", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    add_blobs(snapshots, commit, 0, &own);
    add_other_blobs(repo, commit, &others);
    remove_refs(repo, "refs", commit, 0); /* first: no name finds half a snapshot */
    bool gone = snapshots >= 0 && remove_tree(snapshots, commit, 0, bytes);
    for (size_t i = 0; gone && blobs >= 0 && i < own.n; i++)
        if (!blobs_have(&others, own.v[i])) gone = remove_tree(blobs, own.v[i], REMOVE_DEPTH, bytes);
    int rc = gone ? 0 : err_set(e, ERR_IO, "not all of it could be removed: %s", strerror(errno));
    if (snapshots >= 0) close(snapshots);
    if (blobs >= 0) close(blobs);
    blobs_free(&own);
    blobs_free(&others);
    return rc;
}

int cache_remove_revision(const struct hub *h, const struct repo_name *r, uint64_t *bytes, struct err *e)
{
    struct blobs others = {0};
    struct buf folder = {0};
    struct stat st;
    char *path = cache_repo(h, r->id), commit[COMMIT_DIGITS + 1], *snapshots = file_join(path, "snapshots");
    int rc = 0, repo = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC),
        dir = open(snapshots, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    repo_folder(&folder, r->id);
    *bytes = 0;
    bool there = repo >= 0 && dir >= 0 && cache_commit(path, r->revision, commit) &&
                 fstatat(dir, commit, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
    if (!there)
        rc = err_set(e, ERR_NOT_FOUND, "%s: revision %.100s is not in %.200s", r->id, r->revision, h->cache);
    else if (is_locked(h, folder.data))
        rc = err_set(e, ERR_FULL, "%s is being downloaded by another process", r->id);
    else if (!add_other_blobs(repo, commit, &others))
        rc = cache_remove(h, r->id, bytes, e); /* its only one */
    else if (remove_snapshot(repo, commit, bytes, e))
        rc = err_prefix(e, "%s", r->id);
    if (repo >= 0) close(repo);
    if (dir >= 0) close(dir);
    blobs_free(&others);
    buf_free(&folder);
    free(snapshots);
    free(path);
    return rc;
}
