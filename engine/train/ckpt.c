#include "engine/train/ckpt.h"

#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MANIFEST_MAX = 1 << 16, END_BYTES = sizeof "end 01234567\n" - 1 };

/* ---- listing ----------------------------------------------------------------------------------------------------- */

void ckpt_name(int64_t step, char out[CKPT_NAME_MAX])
{
    snprintf(out, CKPT_NAME_MAX, "step-%010" PRId64, step);
}

static int64_t step_of(const char *name)
{
    int64_t step = -1;
    char again[CKPT_NAME_MAX];
    if (sscanf(name, "step-%" SCNd64, &step) != 1 || step < 0) return -1;
    ckpt_name(step, again);
    return strcmp(name, again) == 0 ? step : -1;
}

static int newer_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x > y ? -1 : x < y;
}

/* On a file system that cannot exchange two names, dir_replace first moves the old checkpoint of a step aside.  After a
 * crash it is moved back if the new one is missing, else deleted. */
static void finish_replacing(const char *dir)
{
    DIR *d = opendir(dir);
    for (struct dirent *f; d && (f = readdir(d));) {
        size_t n = strlen(f->d_name);
        if (n <= 4 || n - 4 >= CKPT_NAME_MAX || strcmp(f->d_name + n - 4, ".old")) continue;
        char name[CKPT_NAME_MAX] = "";
        memcpy(name, f->d_name, n - 4);
        if (step_of(name) < 0) continue;
        char *old = file_join(dir, f->d_name), *path = file_join(dir, name);
        if (access(path, F_OK) == 0)
            dir_remove(old);
        else if (rename(old, path) == 0)
            dir_sync(dir, NULL);
        free(old);
        free(path);
    }
    if (d) closedir(d);
}

/* The steps of all checkpoints, newest first; *n of them, the caller frees.  Deletes unfinished ones. */
static int64_t *list(const char *dir, int *n, struct err *e)
{
    int64_t *steps = NULL;
    size_t cap = 0;
    *n = 0;
    finish_replacing(dir);
    DIR *d = opendir(dir);
    if (!d && errno != ENOENT) err_set(e, ERR_IO, "%s: %s", dir, strerror(errno));
    for (struct dirent *f; d && (f = readdir(d));) {
        int64_t step = step_of(f->d_name);
        if (step >= 0) {
            mem_grow(&steps, &cap, (size_t)*n + 1, sizeof *steps);
            steps[(*n)++] = step;
        } else if (strncmp(f->d_name, ".tmp-", 5) == 0) {
            char *path = file_join(dir, f->d_name);
            dir_remove(path);
            free(path);
        }
    }
    if (d) closedir(d);
    if (*n) qsort(steps, (size_t)*n, sizeof *steps, newer_first);
    return steps;
}

static char *path_of(const char *dir, int64_t step)
{
    char name[CKPT_NAME_MAX];
    ckpt_name(step, name);
    return file_join(dir, name);
}

static char *part_path(const char *dir, const char *name)
{
    struct buf b = {0};
    buf_printf(&b, "%s/%s.bin", dir, name);
    return b.data;
}

static void remove_step(const char *dir, int64_t step)
{
    char *path = path_of(dir, step);
    dir_remove(path);
    free(path);
}

void ckpt_prune(const char *dir, int n, int64_t keep)
{
    int found;
    int64_t *steps = list(dir, &found, NULL);
    for (int i = n; i < found; i++)
        if (steps[i] != keep) remove_step(dir, steps[i]);
    free(steps);
}

void ckpt_delete_after(const char *dir, int64_t step)
{
    int found;
    int64_t *steps = list(dir, &found, NULL);
    for (int i = 0; i < found && steps[i] > step; i++) remove_step(dir, steps[i]);
    free(steps);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static int stretches(int fd, const char *path, const struct ckpt_part *p, uint32_t *sum, struct err *e)
{
    int rc = 0;
    char *some = mem_try_alloc(CKPT_STRETCH);
    if (!some) return err_set(e, ERR_NOMEM, "no memory to write %s", path);
    for (size_t at = 0, n; at < p->bytes && !rc; at += n) {
        n = p->bytes - at < CKPT_STRETCH ? p->bytes - at : CKPT_STRETCH;
        rc = p->remote.get(p->remote.arg, at, n, some, e);
        if (!rc && file_write_all(fd, some, n)) rc = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
        *sum = crc32c(*sum, some, n);
    }
    free(some);
    return rc;
}

static int write_part(const char *path, const struct ckpt_part *p, uint32_t *sum, struct err *e)
{
    *sum = 0;
    if (p->data || !p->bytes) {
        *sum = crc32c(0, p->data, p->bytes);
        return file_write_sync(path, p->data, p->bytes, e);
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    int rc = stretches(fd, path, p, sum, e);
    if (!rc && fsync(fd)) rc = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    if (close(fd) && !rc) rc = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    return rc;
}

static int write_all(const char *tmp, uint64_t job, int64_t step, const struct ckpt_part *part, int n, struct err *e)
{
    struct buf m = {0};
    int rc = 0;
    buf_printf(&m, "tandem checkpoint 2\njob %016" PRIx64 "\nstep %" PRId64 "\n", job, step);
    for (int i = 0; i < n && !rc; i++) {
        char *path = part_path(tmp, part[i].name);
        uint32_t sum;
        rc = write_part(path, &part[i], &sum, e);
        buf_printf(&m, "part %s %zu %08" PRIx32 "\n", part[i].name, part[i].bytes, sum);
        free(path);
    }
    buf_printf(&m, "end %08" PRIx32 "\n", crc32c(0, m.data, m.len));
    char *path = file_join(tmp, "manifest");
    if (!rc) rc = file_write_sync(path, m.data, m.len, e);
    if (!rc) rc = dir_sync(tmp, e);
    free(path);
    buf_free(&m);
    return rc;
}

int ckpt_write(const char *dir, uint64_t job, int64_t step, int64_t keep, const struct ckpt_part *part, int n,
               struct err *e)
{
    char name[CKPT_NAME_MAX];
    struct buf tmp = {0};
    ckpt_name(step, name);
    buf_printf(&tmp, "%s/.tmp-%s", dir, name);
    char *path = path_of(dir, step);
    int rc = dir_make(dir, e);
    dir_remove(tmp.data);
    if (!rc) rc = dir_make(tmp.data, e);
    if (!rc) rc = write_all(tmp.data, job, step, part, n, e);
    if (!rc) rc = dir_replace(tmp.data, path, e);
    if (rc)
        dir_remove(tmp.data);
    else
        ckpt_prune(dir, CKPT_KEEP, keep);
    free(path);
    buf_free(&tmp);
    return rc;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Takes the next line of the form `word rest`, *rest NUL-terminated in place; false: the line has another form. */
static bool next_line(char **at, const char *word, char **rest)
{
    char *end = strchr(*at, '\n');
    size_t n = strlen(word);
    if (!end || strncmp(*at, word, n) || (*at)[n] != ' ') return false;
    *end = 0;
    *rest = *at + n + 1;
    *at = end + 1;
    return true;
}

/* @return what is wrong, in a few words; NULL: nothing.  *other: the checkpoint is complete, but of another job. */
static const char *check_manifest(char *text, size_t size, uint64_t job, int64_t step, const struct ckpt_part *part,
                                  int n, uint32_t *sum, bool *other)
{
    char *at = text, *rest, name[64];
    uint64_t its_job = 0;
    int64_t its_step = -1;
    char end[16] = "";
    if (size > END_BYTES) snprintf(end, sizeof end, "end %08" PRIx32 "\n", crc32c(0, text, size - END_BYTES));
    if (size <= END_BYTES || memcmp(text + size - END_BYTES, end, END_BYTES)) return "its manifest is damaged";
    if (!next_line(&at, "tandem", &rest) || strcmp(rest, "checkpoint 2"))
        return *other = true, "it was written by another version of tandem";
    if (!next_line(&at, "job", &rest) || sscanf(rest, "%" SCNx64, &its_job) != 1 || its_job != job)
        return *other = true, "it is of another job: the data, the model or the parameters were others";
    if (!next_line(&at, "step", &rest) || sscanf(rest, "%" SCNd64, &its_step) != 1 || its_step != step)
        return "its manifest is of another step";
    for (int i = 0; i < n; i++) {
        size_t bytes = 0;
        if (!next_line(&at, "part", &rest) || sscanf(rest, "%63s %zu %" SCNx32, name, &bytes, &sum[i]) != 3 ||
            strcmp(name, part[i].name) || bytes != part[i].bytes)
            return *other = true, "it has other arrays";
    }
    return strncmp(at, "end ", 4) ? (*other = true, "it has other arrays") : NULL;
}

/* Reads it stretch by stretch, and keeps none of it in memory. */
static uint32_t sum_of(const struct file_map *m)
{
    uint32_t sum = 0;
    for (size_t at = 0, n; at < m->size; at += n) {
        n = m->size - at < CKPT_STRETCH ? m->size - at : CKPT_STRETCH;
        sum = crc32c(sum, m->data + at, n);
        file_forget(m, at, n);
    }
    return sum;
}

static int put(const struct file_map *m, const struct ckpt_part *p, struct err *e)
{
    int rc = 0;
    if (p->data && p->bytes) memcpy(p->data, m->data, p->bytes);
    for (size_t at = 0, n; at < p->bytes && !p->data && !rc; at += n) {
        n = p->bytes - at < CKPT_STRETCH ? p->bytes - at : CKPT_STRETCH;
        rc = p->remote.put(p->remote.arg, at, n, m->data + at, e);
        file_forget(m, at, n);
    }
    return rc;
}

/* Reads one checkpoint into the parts.  @return what is wrong with it, or NULL. */
static const char *read_step(const char *path, uint64_t job, int64_t step, const struct ckpt_part *part, int n,
                             bool *other, struct err *io)
{
    struct err e = {0};
    char *text = NULL, *manifest = file_join(path, "manifest");
    size_t size = 0;
    uint32_t *sum = mem_array((size_t)n, sizeof *sum);
    struct file_map *map = mem_array((size_t)n, sizeof *map);
    int rc = file_read(manifest, MANIFEST_MAX, &text, &size, &e);
    const char *wrong = rc ? "it has no manifest" : NULL;
    if (rc && rc != ERR_NOT_FOUND && rc != ERR_INVALID) *io = e; /* out of descriptors or memory: it may be intact */
    if (!wrong) wrong = check_manifest(text, size, job, step, part, n, sum, other);
    for (int i = 0; i < n && !wrong; i++) {
        char *file = part_path(path, part[i].name);
        rc = file_map(&map[i], file, &e);
        if (rc || map[i].size != part[i].bytes) wrong = "a file of it is missing or cut short";
        if (rc && rc != ERR_NOT_FOUND) *io = e;
        if (!wrong && sum_of(&map[i]) != sum[i]) wrong = "a file of it is damaged";
        free(file);
    }
    for (int i = 0; i < n && !wrong && !io->code; i++) put(&map[i], &part[i], io);
    for (int i = 0; i < n; i++) file_unmap(&map[i]);
    free(map);
    free(sum);
    free(text);
    free(manifest);
    return wrong;
}

int ckpt_read(const char *dir, uint64_t job, int64_t most, const struct ckpt_part *part, int n, int64_t *step,
              struct buf *warnings, struct err *e)
{
    int found, rc = 0;
    struct err io = {0};
    int64_t *steps = list(dir, &found, &io);
    rc = io.code;
    *step = -1;
    for (int i = 0; i < found && *step < 0 && !rc; i++) {
        if (steps[i] > most) continue;
        char *path = path_of(dir, steps[i]);
        bool other = false;
        const char *wrong = read_step(path, job, steps[i], part, n, &other, &io);
        if (io.code) {
            rc = io.code;
        } else if (!wrong) {
            *step = steps[i];
        } else if (other) {
            rc = err_set(e, ERR_INVALID, "%s: %s", path, wrong);
        } else {
            buf_printf(warnings, "%s%s: %s; it is passed over", warnings->len ? "\n" : "", path, wrong);
            dir_remove(path);
        }
        free(path);
    }
    free(steps);
    if (io.code && e) *e = io;
    return rc;
}
