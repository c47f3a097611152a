#include "engine/train/tuner_files.h"

#include "engine/base/buf.h"
#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/model/adapter.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MANIFEST_MAX = 1 << 16, NAME_MAX_BYTES = 64, END_BYTES = sizeof "end 01234567\n" - 1 };

static const char HEAD[] = "tandem tuner 1\n";

/* ---- writing -------------------------------------------------------------------------------------------------------
 */

static int add_line(struct buf *manifest, const char *dir, const char *name, struct err *e)
{
    struct file_map map;
    char *path = file_join(dir, name);
    int rc = file_map(&map, path, e);
    if (!rc) buf_printf(manifest, "file %s %zu %08" PRIx32 "\n", name, map.size, crc32c(0, map.data, map.size));
    if (!rc) file_unmap(&map);
    free(path);
    return rc;
}

static void begin_manifest(struct buf *m, int64_t steps)
{
    buf_printf(m, "%ssteps %" PRId64 "\n", HEAD, steps);
}

static int add_file(struct buf *m, const char *dir, const struct tuner_file *file, struct err *e)
{
    char *path = file_join(dir, file->name);
    int rc = file_write_sync(path, file->data, file->bytes, e);
    buf_printf(m, "file %s %zu %08" PRIx32 "\n", file->name, file->bytes, crc32c(0, file->data, file->bytes));
    free(path);
    return rc;
}

static int end_manifest(struct buf *m, const char *dir, struct err *e)
{
    char *path = file_join(dir, "manifest");
    buf_printf(m, "end %08" PRIx32 "\n", crc32c(0, m->data, m->len));
    int rc = file_write_sync(path, m->data, m->len, e);
    free(path);
    return rc ? rc : dir_sync(dir, e);
}

static int write_all(const char *tmp, int64_t steps, const struct tuner_file *file, int n, struct err *e)
{
    struct buf m = {0};
    begin_manifest(&m, steps);
    int rc = add_line(&m, tmp, ADAPTER_CONFIG, e);
    if (!rc) rc = add_line(&m, tmp, ADAPTER_WEIGHTS, e);
    for (int i = 0; i < n && !rc; i++) rc = add_file(&m, tmp, &file[i], e);
    if (!rc) rc = end_manifest(&m, tmp, e);
    buf_free(&m);
    return rc;
}

/* Where a file system cannot exchange two names, dir_replace moves the old directory aside first; a crash then leaves
 * it there. */
static void finish_replacing(const char *dir)
{
    struct buf old = {0};
    buf_printf(&old, "%s.old", dir);
    if (access(dir, F_OK) && !access(old.data, F_OK) && !rename(old.data, dir)) dir_sync_parent(dir);
    buf_free(&old);
}

/* What is to be renamed to dir: *tmp, which there is not; its parents are created. */
static int name_beside(const char *dir, struct buf *tmp, struct err *e)
{
    const char *name = strrchr(dir, '/') + 1;
    char *parent = mem_strndup(dir, (size_t)(name - dir) - 1);
    buf_printf(tmp, "%s/.tmp-%s", parent, name);
    int rc = dir_make(parent, e);
    dir_remove(tmp->data);
    free(parent);
    return rc;
}

int tuner_files_write(const char *dir, const struct adapter *a, const struct model_config *c, const char *base_name,
                      int64_t steps, const struct tuner_file *file, int n, struct err *e)
{
    struct buf tmp = {0};
    int rc = name_beside(dir, &tmp, e);
    if (!rc) rc = adapter_write(a, c, base_name, tmp.data, e);
    if (!rc) rc = write_all(tmp.data, steps, file, n, e);
    if (!rc) rc = dir_replace(tmp.data, dir, e);
    if (rc) dir_remove(tmp.data);
    buf_free(&tmp);
    return rc;
}

/* ---- reading -------------------------------------------------------------------------------------------------------
 */

static int damaged(struct err *e, const char *dir, const char *name)
{
    return err_set(e, ERR_INVALID, "%s: the file %s is damaged", dir, name);
}

/* @return the manifest's lines of files, to be freed, and *steps. */
static char *read_manifest(const char *dir, int64_t *steps, struct err *e)
{
    char *text = NULL, end[16] = "";
    size_t n = 0;
    finish_replacing(dir);
    char *path = file_join(dir, "manifest");
    int rc = file_read(path, MANIFEST_MAX, &text, &n, e);
    free(path);
    if (rc) return NULL;
    if (n > END_BYTES) snprintf(end, sizeof end, "end %08" PRIx32 "\n", crc32c(0, text, n - END_BYTES));
    bool whole = n > END_BYTES && !memcmp(text + n - END_BYTES, end, END_BYTES) &&
                 !strncmp(text, HEAD, sizeof HEAD - 1) &&
                 sscanf(text + sizeof HEAD - 1, "steps %" SCNd64, steps) == 1 && *steps >= 0;
    if (whole) return text;
    free(text);
    damaged(e, dir, "manifest");
    return NULL;
}

struct line {
    char name[NAME_MAX_BYTES];
    size_t bytes;
    uint32_t sum;
};

static bool next_line(const char **at, struct line *l)
{
    while ((*at = strchr(*at, '\n'))) {
        ++*at;
        if (sscanf(*at, "file %63s %zu %" SCNx32, l->name, &l->bytes, &l->sum) == 3) return true;
    }
    return false;
}

static int map_file(const char *dir, const struct line *l, struct file_map *map, struct err *e)
{
    struct err why = {0};
    char *path = file_join(dir, l->name);
    int rc = file_map(map, path, &why);
    free(path);
    if (rc && rc != ERR_NOT_FOUND) return *e = why, rc;
    if (rc) return damaged(e, dir, l->name);
    if (map->size == l->bytes && crc32c(0, map->data, map->size) == l->sum) return 0;
    file_unmap(map);
    return damaged(e, dir, l->name);
}

int tuner_files_check(const char *dir, int64_t *steps, struct err *e)
{
    struct line l;
    struct file_map map;
    char *text = read_manifest(dir, steps, e);
    int rc = text ? 0 : e->code;
    for (const char *at = text; !rc && next_line(&at, &l);)
        if (!(rc = map_file(dir, &l, &map, e))) file_unmap(&map);
    free(text);
    return rc;
}

int tuner_files_read(const char *dir, const char *name, char **data, size_t *bytes, int64_t *total, struct err *e)
{
    struct line l, found = {0};
    struct file_map map;
    int64_t steps, sum = 0;
    char *text = read_manifest(dir, &steps, e);
    if (!text) return e->code;
    for (const char *at = text; next_line(&at, &l); sum += (int64_t)l.bytes)
        if (!strcmp(l.name, name)) found = l;
    free(text);
    if (total) *total = sum;
    if (!found.name[0]) return err_set(e, ERR_NOT_FOUND, "%s has no file %s", dir, name);
    if (map_file(dir, &found, &map, e)) return e->code;
    *data = mem_alloc(map.size + 1);
    if (map.size) memcpy(*data, map.data, map.size);
    (*data)[map.size] = 0;
    *bytes = map.size;
    file_unmap(&map);
    return 0;
}

/* ---- sharing -------------------------------------------------------------------------------------------------------
 */

/* The file system has no further name for the file, or none for any. */
static bool cannot_link(int error)
{
    return error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK;
}

static int share_file(struct buf *m, const char *dir, const char *tmp, const struct line *l, struct err *e)
{
    struct file_map map;
    if (map_file(dir, l, &map, e)) return e->code;
    char *from = file_join(dir, l->name), *to = file_join(tmp, l->name);
    if (link(from, to)) {
        if (cannot_link(errno))
            file_write_sync(to, map.data, map.size, e);
        else
            err_set(e, ERR_IO, "%s cannot be shared: %s", from, strerror(errno));
    }
    file_unmap(&map);
    buf_printf(m, "file %s %zu %08" PRIx32 "\n", l->name, l->bytes, l->sum);
    free(from);
    free(to);
    return e->code;
}

static int share_all(const char *dir, const char *tmp, const struct tuner_file *file, struct err *e)
{
    struct buf m = {0};
    struct line l;
    int64_t steps;
    char *text = read_manifest(dir, &steps, e);
    if (!text) return e->code;
    begin_manifest(&m, steps);
    int rc = dir_make(tmp, e);
    for (const char *at = text; !rc && next_line(&at, &l);)
        rc = strcmp(l.name, file->name) ? share_file(&m, dir, tmp, &l, e) : add_file(&m, tmp, file, e);
    if (!rc) rc = end_manifest(&m, tmp, e);
    buf_free(&m);
    free(text);
    return rc;
}

int tuner_files_share(const char *dir, const char *to, const struct tuner_file *file, struct err *e)
{
    struct buf tmp = {0};
    int rc = name_beside(to, &tmp, e);
    if (!rc) rc = share_all(dir, tmp.data, file, e);
    if (!rc) rc = dir_replace(tmp.data, to, e);
    if (rc) dir_remove(tmp.data);
    buf_free(&tmp);
    return rc;
}
