/* Rows that come one by one, as files (row_files.h). */
#include "server/store/row_files.h"

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/store/data_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OPEN ".open"
#define SEALED ".jsonl"
enum { BLOCK = 64 << 10, KIND_MAX = 32, LINES_MAX = 8 };

static int failed(const char *path, struct err *e)
{
    return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
}

/* ---- the files there are ----------------------------------------------------------------------------------------- */

/* A file as its name says: "kto.open", "kto-000001.jsonl". */
struct named {
    char kind[KIND_MAX + 1];
    int number; /* 0: open */
};

static bool name_read(struct named *out, const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz");
    char *end;
    if (!n || n > KIND_MAX) return false;
    *out = (struct named){0};
    memcpy(out->kind, name, n);
    if (strcmp(name + n, OPEN) == 0) return true;
    if (name[n] != '-' || name[n + 1] < '0' || name[n + 1] > '9') return false;
    long number = strtol(name + n + 1, &end, 10);
    out->number = (int)number;
    return number > 0 && number < 100000000 && strcmp(end, SEALED) == 0;
}

/* A visit of every folder of a set. */
struct walk {
    const char *dir;
    void (*set)(struct walk *, const char *model, const char *set, const char *path);
    const char *model;
    void *arg;
    struct err *e; /* the first folder that cannot be read; NULL: those are left out */
};

static void unread(struct walk *w, const char *path)
{
    if (w->e && !w->e->code) failed(path, w->e);
}

static void visit_set(void *arg, const char *name)
{
    struct walk *w = arg;
    struct buf path = {0};
    buf_printf(&path, "%s/" ROW_FILES "/%s/%s", w->dir, w->model, name);
    w->set(w, w->model, name, path.data);
    buf_free(&path);
}

static void visit_model(void *arg, const char *name)
{
    struct walk *w = arg;
    char *inside = file_join(ROW_FILES, name);
    w->model = name;
    if (data_list(w->dir, inside, visit_set, w)) unread(w, inside);
    free(inside);
}

static uint64_t size_of(const char *folder, const char *name)
{
    struct stat st;
    char *path = file_join(folder, name);
    bool there = stat(path, &st) == 0 && S_ISREG(st.st_mode);
    free(path);
    return there ? (uint64_t)st.st_size : 0;
}

static void add_sizes(struct walk *w, const char *model, const char *set, const char *path)
{
    (void)model, (void)set;
    uint64_t *sum = w->arg;
    DIR *d = opendir(path);
    for (struct dirent *f; d && (f = readdir(d));) *sum += size_of(path, f->d_name);
    if (d) closedir(d);
}

static uint64_t all_bytes(const char *dir)
{
    uint64_t sum = 0;
    struct walk w = {.dir = dir, .set = add_sizes, .arg = &sum};
    data_list(dir, ROW_FILES, visit_model, &w);
    return sum;
}

/* ---- appending --------------------------------------------------------------------------------------------------- */

/* Cuts off what a crash left behind the last whole row. */
static int repair(int fd, off_t *size)
{
    char block[BLOCK];
    off_t end = *size;
    while (end > 0) {
        size_t n = end < (off_t)sizeof block ? (size_t)end : sizeof block;
        if (pread(fd, block, n, end - (off_t)n) != (ssize_t)n) return -1;
        const char *last = memrchr(block, '\n', n);
        end -= last ? (off_t)(n - (size_t)(last - block) - 1) : (off_t)n;
        if (last) break;
    }
    if (end == *size) return 0;
    *size = end;
    return ftruncate(fd, end);
}

static char *open_path(const char *folder, const char *kind)
{
    struct buf p = {0};
    buf_printf(&p, "%s/%s" OPEN, folder, kind);
    return p.data;
}

/* A file to which a line was appended. */
struct appended {
    char *path; /* owned */
    int fd;
    off_t size; /* before; -1: not known, and nothing was appended */
};

static int append(struct appended *a, const struct row_file_line *l, struct err *e)
{
    struct stat st;
    a->size = -1;
    a->fd = open(a->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (a->fd < 0 || fstat(a->fd, &st)) return failed(a->path, e);
    a->size = st.st_size;
    if (repair(a->fd, &a->size)) return failed(a->path, e);
    if (file_write_all(a->fd, l->text, l->len) || fsync(a->fd)) return failed(a->path, e);
    return a->size ? 0 : data_sync_parent(a->path, e);
}

/* Takes back what was appended. */
static void take_back(const struct appended *a)
{
    if (a->fd >= 0 && a->size >= 0 && ftruncate(a->fd, a->size)) log_error("%s: %s", a->path, strerror(errno));
}

static int make_folder(const char *dir, const char *model, const char *set, char **folder, struct err *e)
{
    char *inside = file_join(ROW_FILES, model);
    int rc = data_mkdir(dir, ROW_FILES, model, e);
    if (!rc) rc = data_mkdir(dir, inside, set, e);
    *folder = data_path(dir, inside, set);
    free(inside);
    return rc;
}

static int seal_kind(const char *folder, const char *kind, struct err *e);

int row_files_append(const char *dir, const char *model, const char *set, const struct row_file_line *v, int n,
                     uint64_t max_bytes, struct err *e)
{
    struct appended done[LINES_MAX];
    uint64_t more = 0, have = all_bytes(dir);
    char *folder = NULL;
    int rc = 0, made = 0;
    for (int i = 0; i < n; i++) more += v[i].len;
    if (n > LINES_MAX || have > max_bytes || more > max_bytes - have)
        return err_set(e, ERR_FULL, "the rows of feedback would take more than %llu bytes",
                       (unsigned long long)max_bytes);
    if (make_folder(dir, model, set, &folder, e)) {
        free(folder);
        return e->code;
    }
    for (; made < n && !rc; made++) {
        done[made] = (struct appended){.path = open_path(folder, v[made].kind), .fd = -1};
        rc = append(&done[made], &v[made], e);
    }
    for (int i = 0; i < made; i++) {
        if (rc) take_back(&done[i]);
        if (done[i].fd >= 0) close(done[i].fd);
        struct err again = {0}; /* the row is there all the same */
        if (!rc && done[i].size + (off_t)v[i].len >= ROW_FILE_BYTES && seal_kind(folder, v[i].kind, &again))
            log_warn("%s", again.msg);
        free(done[i].path);
    }
    free(folder);
    return rc;
}

/* ---- sealing ----------------------------------------------------------------------------------------------------- */

/* The number after those of all sealed files of the kind.  @return 0, or *e: the folder cannot be read. */
static int next_number(const char *folder, const char *kind, int *next, struct err *e)
{
    DIR *d = opendir(folder);
    if (!d) return failed(folder, e);
    *next = 1;
    errno = 0;
    for (struct dirent *f; (f = readdir(d));) {
        struct named name;
        if (name_read(&name, f->d_name) && strcmp(name.kind, kind) == 0 && name.number >= *next)
            *next = name.number + 1;
        errno = 0;
    }
    int rc = errno ? failed(folder, e) : 0;
    closedir(d);
    return rc;
}

/* Renames, but never over a file that is there: its rows were acknowledged. */
static int rename_new(const char *from, const char *to, struct err *e)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return failed(to, e);
    /* A file system that cannot do it at once.  Nobody else makes files here; and link and unlink would leave, after a
     * crash between them, a sealed file that grows. */
    struct stat st;
    if (lstat(to, &st) == 0) return err_set(e, ERR_IO, "%s: %s", to, strerror(EEXIST));
    return errno != ENOENT || rename(from, to) ? failed(to, e) : 0;
}

static int seal_kind(const char *folder, const char *kind, struct err *e)
{
    char *from = open_path(folder, kind);
    struct buf to = {0};
    struct stat st;
    int rc = 0, number = 0, fd = open(from, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT) {
        free(from);
        return 0;
    }
    off_t size = 0;
    if (fd < 0 || fstat(fd, &st) || (size = st.st_size, repair(fd, &size)) || fsync(fd)) rc = failed(from, e);
    if (fd >= 0) close(fd);
    if (!rc && size > 0) rc = next_number(folder, kind, &number, e);
    buf_printf(&to, "%s/%s-%06d" SEALED, folder, kind, number);
    if (!rc && size > 0) rc = rename_new(from, to.data, e);
    if (!rc && size > 0) rc = data_sync_parent(to.data, e);
    buf_free(&to);
    free(from);
    return rc;
}

struct seal {
    const char *folder; /* pattern of a set's folder, below the data directory */
    struct err *e;
};

static void seal_set(struct walk *w, const char *model, const char *set, const char *path)
{
    struct seal *s = w->arg;
    struct buf inside = {0};
    buf_printf(&inside, ROW_FILES "/%s/%s", model, set);
    bool meant = fnmatch(s->folder, inside.data, FNM_PATHNAME) == 0;
    buf_free(&inside);
    DIR *d = meant ? opendir(path) : NULL;
    if (meant && !d && errno != ENOENT && errno != ENOTDIR) unread(w, path);
    for (struct dirent *f; d && (f = readdir(d));) {
        struct named name;
        if (name_read(&name, f->d_name) && !name.number && !s->e->code) seal_kind(path, name.kind, s->e);
    }
    if (d) closedir(d);
}

int row_files_seal(const char *dir, const char *pattern, struct err *e)
{
    const char *slash = strrchr(pattern, '/');
    if (strncmp(pattern, ROW_FILES "/", strlen(ROW_FILES "/")) != 0) return 0;
    char *folder = mem_strndup(pattern, (size_t)(slash - pattern));
    struct seal s = {.folder = folder, .e = e};
    struct walk w = {.dir = dir, .set = seal_set, .arg = &s, .e = e};
    if (data_list(dir, ROW_FILES, visit_model, &w)) unread(&w, ROW_FILES);
    free(folder);
    return e->code;
}

/* ---- listing, removing ------------------------------------------------------------------------------------------- */

/* Lines that end. */
static void count(const char *path, struct row_files_kind *k)
{
    char block[BLOCK];
    ssize_t n;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    while (fd >= 0 && (n = read(fd, block, sizeof block)) > 0) {
        k->bytes += (uint64_t)n;
        for (const char *p = block, *end = block + n; (p = memchr(p, '\n', (size_t)(end - p))); p++) k->rows++;
    }
    if (fd < 0) return;
    k->files++;
    close(fd);
}

struct listing {
    void (*fn)(void *arg, const struct row_files_kind *);
    void *arg;
};

static void list_set(struct walk *w, const char *model, const char *set, const char *path)
{
    enum { KINDS = 16 };
    struct listing *l = w->arg;
    char kinds[KINDS][KIND_MAX + 1];
    struct row_files_kind v[KINDS];
    int n = 0;
    DIR *d = opendir(path);
    for (struct dirent *f; d && (f = readdir(d));) {
        struct named name;
        int i = 0;
        if (!name_read(&name, f->d_name)) continue;
        while (i < n && strcmp(kinds[i], name.kind) != 0) i++;
        if (i == KINDS) continue;
        if (i == n) {
            memcpy(kinds[n], name.kind, sizeof name.kind);
            v[n++] = (struct row_files_kind){.model = model, .set = set, .kind = kinds[i]};
        }
        char *file = file_join(path, f->d_name);
        count(file, &v[i]);
        free(file);
    }
    if (d) closedir(d);
    for (int i = 0; i < n; i++) l->fn(l->arg, &v[i]);
}

void row_files_list(const char *dir, void (*fn)(void *arg, const struct row_files_kind *), void *arg)
{
    struct listing l = {fn, arg};
    struct walk w = {.dir = dir, .set = list_set, .arg = &l};
    data_list(dir, ROW_FILES, visit_model, &w);
}

int row_files_remove(const char *dir, const char *model, const char *set, struct err *e)
{
    struct stat st;
    char *inside = file_join(ROW_FILES, model), *path = data_path(dir, inside, set);
    bool there = data_name_ok(model) && data_name_ok(set) && lstat(path, &st) == 0;
    int rc = there ? 0 : err_set(e, ERR_NOT_FOUND, "there is no feedback %.100s/%.100s", model, set);
    if (there) {
        data_remove(path);
        rc = lstat(path, &st) == 0 ? err_set(e, ERR_IO, "%s: could not be removed", path) : data_sync_parent(path, e);
    }
    free(inside);
    free(path);
    return rc;
}
