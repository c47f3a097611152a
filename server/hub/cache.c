#include "server/hub/cache.h"

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "server/json/json.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { INDEX_MAX = 64 << 20, FILES_MAX = 20000, DEPTH_MAX = 4 };

char *cache_repo(const struct hub *h, const char *id)
{
    struct buf path = {0};
    buf_printf(&path, "%s/", h->cache);
    repo_folder(&path, id);
    return path.data;
}

static bool has(const char *dir, const char *name)
{
    char *path = file_join(dir, name);
    bool there = access(path, R_OK) == 0; /* follows links: a link whose blob is gone is not there */
    free(path);
    return there;
}

/* ---- the commit of a revision ---------------------------------------------------------------------------------- */

bool cache_commit(const char *repo, const char *revision, char commit[COMMIT_DIGITS + 1])
{
    struct buf path = {0};
    struct err none = {0};
    char *text = NULL;
    size_t n;
    if (repo_commit_good(revision)) return memcpy(commit, revision, COMMIT_DIGITS + 1), true;
    buf_printf(&path, "%s/refs/%s", repo, revision);
    bool good = file_read(path.data, 256, &text, &n, &none) == 0;
    if (good) text[strcspn(text, " \r\n")] = 0;
    good = good && repo_commit_good(text);
    if (good) memcpy(commit, text, COMMIT_DIGITS + 1);
    free(text);
    buf_free(&path);
    return good;
}

/* ---- what a snapshot has --------------------------------------------------------------------------------------- */

static void collect(const char *dir, const char *prefix, int depth, struct cache_names *out)
{
    DIR *d = opendir(dir);
    for (struct dirent *f; d && out->n < FILES_MAX && (f = readdir(d));) {
        if (f->d_name[0] == '.') continue;
        struct buf name = {0};
        char *path = file_join(dir, f->d_name);
        struct stat st;
        buf_printf(&name, "%s%s", prefix, f->d_name);
        bool there = stat(path, &st) == 0;
        if (there && S_ISREG(st.st_mode)) {
            mem_grow(&out->v, &out->cap, (size_t)out->n + 1, sizeof *out->v);
            out->v[out->n++] = mem_strdup(name.data);
        } else if (there && S_ISDIR(st.st_mode) && depth < DEPTH_MAX) {
            buf_char(&name, '/');
            collect(path, name.data, depth + 1, out);
        }
        buf_free(&name);
        free(path);
    }
    if (d) closedir(d);
}

void cache_collect(const char *snapshot, struct cache_names *out)
{
    collect(snapshot, "", 0, out);
}

void cache_names_free(struct cache_names *s)
{
    for (int i = 0; i < s->n; i++) free(s->v[i]);
    free(s->v);
    *s = (struct cache_names){0};
}

/* Whether all files are there that model.safetensors.index.json names. */
static bool index_whole(const char *dir)
{
    char *path = file_join(dir, "model.safetensors.index.json"), *text = NULL;
    size_t n;
    struct err none = {0};
    bool whole = false;
    cJSON *tree = file_read(path, INDEX_MAX, &text, &n, &none) == 0 ? json_parse(text, n, &none) : NULL;
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(tree, "weight_map"), *item;
    if (cJSON_IsObject(map) && map->child) {
        const char *last = "";
        whole = true;
        cJSON_ArrayForEach(item, map)
        {
            if (!cJSON_IsString(item) || strcmp(last, item->valuestring) == 0) continue;
            last = item->valuestring;
            whole = whole && repo_file_good(last) && has(dir, last);
        }
    }
    json_free(tree);
    free(text);
    free(path);
    return whole;
}

static bool has_tokenizer(const char *dir)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer.model", "vocab.json",
                                        "vocab.txt",      "spiece.model",    "sentencepiece.bpe.model"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (has(dir, names[i])) return true;
    return false;
}

static bool adapter_whole(const char *dir)
{
    return has(dir, "adapter_config.json") && has(dir, "adapter_model.safetensors");
}

static bool model_whole(const char *dir)
{
    return has(dir, "config.json") && has_tokenizer(dir) && (has(dir, "model.safetensors") || index_whole(dir));
}

/* The GGUF file that is meant.  @return its path, or NULL: none, or parts of it are missing; *e: several match */
static char *gguf_path(const char *dir, const char *quant, struct err *e)
{
    struct cache_names s = {0};
    struct err why = {0};
    int first;
    char *path = NULL;
    collect(dir, "", 0, &s);
    bool *chosen = mem_array((size_t)s.n + 1, sizeof *chosen);
    int n = repo_gguf((const char *const *)s.v, s.n, quant, chosen, &first, &why);
    if (s.v && n > 0 && n == repo_gguf_parts(s.v[first]))
        path = file_join(dir, s.v[first]);
    else if (why.code == ERR_INVALID)
        *e = why;
    free(chosen);
    cache_names_free(&s);
    return path;
}

enum cache_state cache_find(const struct hub *h, const struct repo_name *r, char **path, struct err *e)
{
    char *repo = cache_repo(h, r->id), commit[COMMIT_DIGITS + 1];
    struct buf dir = {0};
    struct stat st;
    enum cache_state state = CACHE_NONE;
    *path = NULL;
    if (cache_commit(repo, r->revision, commit)) buf_printf(&dir, "%s/snapshots/%s", repo, commit);
    if (dir.len && stat(dir.data, &st) == 0 && S_ISDIR(st.st_mode)) {
        state = CACHE_PARTIAL;
        bool data = h->wants == HUB_DATA;
        if (data && *r->quant && !strpbrk(r->quant, "*?[") && has(dir.data, r->quant)) state = CACHE_WHOLE;
        bool model = !data && h->wants != HUB_ADAPTER;
        if (!*r->quant &&
            ((model && model_whole(dir.data)) || (!data && h->wants != HUB_MODEL && adapter_whole(dir.data))))
            state = CACHE_WHOLE;
        else if (model && (*r->quant || !has(dir.data, "config.json") || !has_tokenizer(dir.data)))
            *path = gguf_path(dir.data, r->quant, e);
        if (*path) state = CACHE_WHOLE;
        if (!*path) *path = mem_strdup(dir.data);
    }
    buf_free(&dir);
    free(repo);
    return state;
}

/* ---- the list -------------------------------------------------------------------------------------------------- */

static void count_blobs(const char *repo, struct cache_entry *c)
{
    char *dir = file_join(repo, "blobs");
    DIR *d = opendir(dir);
    struct stat st;
    for (struct dirent *f; d && (f = readdir(d));) {
        if (f->d_name[0] == '.' || fstatat(dirfd(d), f->d_name, &st, 0) || !S_ISREG(st.st_mode)) continue;
        if (repo_ends_with(f->d_name, ".incomplete"))
            c->incomplete += (uint64_t)st.st_size;
        else
            c->bytes += (uint64_t)st.st_size;
        if (st.st_mtime > c->changed) c->changed = st.st_mtime;
    }
    if (d) closedir(d);
    free(dir);
}

static const char *kind_of(const char *snapshot, bool *whole)
{
    struct err none = {0};
    *whole = true;
    if (model_whole(snapshot)) return "model";
    if (adapter_whole(snapshot)) return "adapter";
    char *gguf = gguf_path(snapshot, "", &none);
    free(gguf);
    if (gguf || none.code) return "gguf";
    *whole = false;
    return has(snapshot, "config.json") ? "model" : has(snapshot, "adapter_config.json") ? "adapter" : "other";
}

static void look_at_snapshots(const char *repo, struct cache_entry *c)
{
    char *dir = file_join(repo, "snapshots");
    DIR *d = opendir(dir);
    c->kind = "other";
    for (struct dirent *f; d && (f = readdir(d));) {
        if (f->d_name[0] == '.') continue;
        char *snapshot = file_join(dir, f->d_name);
        bool whole;
        const char *kind = kind_of(snapshot, &whole);
        if (whole || !c->snapshots) c->kind = kind;
        c->whole |= whole;
        c->snapshots++;
        free(snapshot);
    }
    if (d) closedir(d);
    free(dir);
}

static int by_id(const void *a, const void *b)
{
    return strcmp(((const struct cache_entry *)a)->id, ((const struct cache_entry *)b)->id);
}

struct cache_entry *cache_list(const struct hub *h, int *n, struct err *e)
{
    struct cache_entry *v = mem_array(1, sizeof *v);
    size_t cap = 1;
    DIR *d = opendir(h->cache);
    *n = 0;
    if (!d && errno != ENOENT) {
        err_set(e, ERR_IO, "%.300s: %s", h->cache, strerror(errno));
        free(v);
        return NULL;
    }
    for (struct dirent *f; d && (f = readdir(d));) {
        struct cache_entry c = {0};
        if (!repo_of_folder(f->d_name, c.id)) continue;
        char *repo = file_join(h->cache, f->d_name);
        count_blobs(repo, &c);
        look_at_snapshots(repo, &c);
        mem_grow(&v, &cap, (size_t)*n + 1, sizeof *v);
        v[(*n)++] = c;
        free(repo);
    }
    if (d) closedir(d);
    qsort(v, (size_t)*n, sizeof *v, by_id);
    return v;
}
