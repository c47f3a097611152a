#include "server/hub/listing.h"

#include "engine/base/mem.h"
#include "server/hub/repo.h"
#include "server/json/check.h"
#include "server/json/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TREE_BYTES = 512 << 20 };

void listing_free(struct listing *l)
{
    for (int i = 0; i < l->n; i++) free(l->v[i].name);
    free(l->v);
    *l = (struct listing){0};
}

const struct hub_file *listing_find(const struct listing *l, const char *name)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->v[i].name, name) == 0) return &l->v[i];
    return NULL;
}

static bool digest_good(const char *s, size_t digits)
{
    return s && strlen(s) == digits && strspn(s, "0123456789abcdef") == digits;
}

bool listing_describe(struct hub_file *f, int64_t size, const char *etag)
{
    if (size < 0 || (uint64_t)size > LISTING_FILE_BYTES || (!digest_good(etag, 40) && !digest_good(etag, 64)))
        return false;
    f->size = (uint64_t)size;
    snprintf(f->etag, sizeof f->etag, "%s", etag);
    return true;
}

/* One of "siblings".  Without blobId nothing is known but the name: some mirrors of the hub list no more. */
static int read_file(struct hub_file *f, const cJSON *obj, int index, struct err *e)
{
    char path[48], lfs_path[64];
    snprintf(path, sizeof path, "siblings[%d]", index);
    snprintf(lfs_path, sizeof lfs_path, "siblings[%d].lfs", index);
    if (!cJSON_IsObject(obj)) return err_set(e, ERR_INVALID, "%s: expected an object", path);
    struct json_at at = {obj, path, e};
    const char *name = NULL, *id = NULL, *sha256 = NULL;
    const cJSON *lfs = NULL;
    int64_t size = 0;
    json_get_string(&at, "rfilename", &name);
    json_get_string(&at, "blobId", &id);
    json_get_object(&at, "lfs", &lfs);
    json_get_int(&at, "size", 0, (int64_t)LISTING_FILE_BYTES, &size);
    if (lfs) {
        struct json_at in = {lfs, lfs_path, e};
        json_get_string(&in, "sha256", &sha256);
        json_get_int(&in, "size", 0, (int64_t)LISTING_FILE_BYTES, &size);
    }
    if (e->code) return e->code;
    if (!name) return err_set(e, ERR_INVALID, "%s.rfilename is missing", path);
    if (!repo_file_good(name))
        return err_set(e, ERR_INVALID, "%s.rfilename: \"%.100s\" is no name of a file inside a repository", path, name);
    if (lfs && !digest_good(sha256, 64))
        return err_set(e, ERR_INVALID, "%s.sha256: expected 64 hexadecimal digits", lfs_path);
    if (!lfs && id && !digest_good(id, 40))
        return err_set(e, ERR_INVALID, "%s.blobId: expected 40 hexadecimal digits", path);
    f->name = mem_strdup(name);
    f->size = (uint64_t)size;
    snprintf(f->etag, sizeof f->etag, "%s", lfs ? sha256 : id ? id : "");
    return 0;
}

static int read_all(struct listing *l, const cJSON *top, struct err *e)
{
    struct json_at at = {top, "", e};
    const char *sha = NULL;
    const cJSON *files = NULL, *item;
    if (!cJSON_IsObject(top)) return err_set(e, ERR_INVALID, "expected an object");
    json_get_string(&at, "sha", &sha);
    json_get_array(&at, "siblings", &files);
    if (e->code) return e->code;
    if (!sha || !repo_commit_good(sha)) return err_set(e, ERR_INVALID, "sha: expected 40 hexadecimal digits");
    if (!files) return err_set(e, ERR_INVALID, "siblings is missing");
    memcpy(l->commit, sha, sizeof l->commit);
    int n = cJSON_GetArraySize(files), i = 0;
    if (n > LISTING_FILES)
        return err_set(e, ERR_INVALID, "siblings: %d files; at most %d are possible", n, LISTING_FILES);
    l->v = mem_array((size_t)n + 1, sizeof *l->v);
    cJSON_ArrayForEach(item, files)
    {
        if (read_file(&l->v[i], item, i, e)) return e->code;
        l->n = ++i;
    }
    return 0;
}

int listing_parse(struct listing *l, const char *text, size_t n, struct err *e)
{
    struct json_size size;
    *l = (struct listing){0};
    e->code = 0;
    if (n > LISTING_BYTES) return err_set(e, ERR_INVALID, "more than %d MiB", LISTING_BYTES >> 20);
    if (json_measure(text, n, TREE_BYTES, &size, e)) return e->code = ERR_INVALID;
    cJSON *tree = json_parse(text, n, e);
    if (!tree) return e->code;
    int rc = read_all(l, tree, e);
    json_free(tree);
    if (rc) listing_free(l);
    return rc;
}
