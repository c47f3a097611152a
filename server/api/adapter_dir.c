#include "server/api/adapter_dir.h"

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/api/models.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROOTS = 2 };

/* Owned by the caller; NULL: there is no such file.  Memory that realpath allocates itself could run out, which would
 * look the same. */
static char *real_path(const char *path)
{
    char real[PATH_MAX];
    return realpath(path, real) ? mem_strdup(real) : NULL;
}

/* real paths, owned by the caller; NULL where there is no such directory */
static void find_roots(const struct settings *s, char *root[ROOTS])
{
    char *trained = file_join(settings_data_dir(s), "adapters");
    root[0] = s->adapter_dir && *s->adapter_dir ? real_path(s->adapter_dir) : NULL;
    root[1] = real_path(trained);
    free(trained);
}

static bool inside(const char *path, const char *root)
{
    size_t n = strlen(root);
    while (n && root[n - 1] == '/') n--; /* "/" */
    return strncmp(path, root, n) == 0 && path[n] == '/' && path[n + 1];
}

/* @return whether a file of the adapter is a symbolic link that leads outside.  Links within root are allowed: the
 * Hugging Face cache has them (snapshots/REV/FILE -> ../../blobs/HASH). */
static bool leads_out(const char *dir, const char *root, struct err *e)
{
    static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors"};
    char *own = real_path(dir);
    bool out = false;
    for (size_t i = 0; own && i < sizeof files / sizeof *files && !out; i++) {
        char *path = file_join(dir, files[i]), *real = real_path(path);
        out = real && !inside(real, own) && !inside(real, root);
        if (out) err_set(e, ERR_INVALID, "%s is a link that leads out of the directory of adapters", files[i]);
        free(real);
        free(path);
    }
    free(own);
    return out;
}

/* @return the real path, if it is a directory inside root */
static char *find_in(const char *root, const char *path)
{
    struct stat st;
    char *joined = path[0] == '/' ? mem_strdup(path) : file_join(root, path), *real = real_path(joined);
    free(joined);
    if (real && inside(real, root) && stat(real, &st) == 0 && S_ISDIR(st.st_mode)) return real;
    free(real);
    return NULL;
}

char *adapter_dir_find(const struct settings *s, const char *path, struct err *e)
{
    char *root[ROOTS], *found = NULL;
    e->code = 0;
    find_roots(s, root);
    for (int i = 0; i < ROOTS; i++) {
        if (root[i] && !found && !e->code) {
            found = find_in(root[i], path);
            if (found && leads_out(found, root[i], e)) {
                free(found);
                found = NULL;
            }
        }
        free(root[i]);
    }
    if (!found && !e->code)
        err_set(e, ERR_NOT_FOUND, "%.200s is no directory within --adapter-dir or the data directory's adapters", path);
    return found;
}

int adapter_dir_check_name(const struct settings *s, const struct engine *engine, const char *name, struct err *e)
{
    if (!models_is_base(s, engine_info(engine), name)) return 0;
    return err_set(e, ERR_INVALID, "%.100s is the name of the model itself: an adapter needs another", name);
}

/* ---- at start ---- */

/* "a=dir/one,b=ORG/NAME" */
static int load_named(const struct settings *s, const struct hub *hub, struct engine *engine, struct err *e)
{
    struct hub adapters = *hub;
    adapters.wants = HUB_ADAPTER;
    for (const char *at = s->adapters; *at;) {
        size_t n = strcspn(at, ",");
        const char *equals = memchr(at, '=', n);
        if (!equals || equals == at || equals + 1 == at + n)
            return err_set(e, ERR_INVALID, "--adapters: \"%.*s\" is not NAME=DIR", (int)(n < 100 ? n : 100), at);
        char *name = mem_strndup(at, (size_t)(equals - at)),
             *dir = mem_strndup(equals + 1, n - (size_t)(equals + 1 - at));
        struct hub_found found = {0};
        int rc = adapter_dir_check_name(s, engine, name, e);
        if (!rc) rc = hub_resolve(&adapters, dir, &found, e);
        if (!rc) rc = engine_adapter_load(engine, name, found.path, NULL, e);
        if (rc) err_prefix(e, "--adapters: %.100s", name);
        hub_found_free(&found);
        free(name);
        free(dir);
        if (rc) return rc;
        at += n + (at[n] == ',');
    }
    return 0;
}

bool adapter_dir_names(const struct settings *s, const char *name)
{
    size_t len = strlen(name);
    for (const char *at = s->adapters ? s->adapters : ""; *at;) {
        size_t n = strcspn(at, ",");
        if (n > len && strncmp(at, name, len) == 0 && at[len] == '=') return true;
        at += n + (at[n] == ',');
    }
    return false;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void load_folder(const struct settings *s, const char *root, struct engine *engine, adapter_wanted_fn *wanted,
                        void *arg)
{
    struct dirent **v = NULL;
    int n = scandir(root, &v, NULL, by_name);
    for (int i = 0; i < n; i++) {
        char *dir = file_join(root, v[i]->d_name), *config = file_join(dir, "adapter_config.json");
        struct err e = {0};
        bool here = v[i]->d_name[0] != '.' && access(config, F_OK) == 0;
        bool new = here && (!wanted || wanted(arg, dir)) && engine_adapter_check(engine, v[i]->d_name, &e) != 0;
        if (new && (adapter_dir_check_name(s, engine, v[i]->d_name, &e) || leads_out(dir, root, &e) ||
                    engine_adapter_load(engine, v[i]->d_name, dir, NULL, &e)))
            log_warn("adapter left out name=%s reason=\"%s\"", v[i]->d_name, e.msg);
        free(config);
        free(dir);
        free(v[i]);
    }
    free(v);
}

int adapter_dir_load_all(const struct settings *s, const struct hub *hub, struct engine *engine,
                         adapter_wanted_fn *wanted, void *arg, struct err *e)
{
    int rc = s->adapters ? load_named(s, hub, engine, e) : 0;
    char *root[ROOTS];
    find_roots(s, root);
    /* trained adapters first: they take precedence over equal names in --adapter-dir */
    for (int i = ROOTS - 1; i >= 0; i--) {
        if (!rc && root[i]) load_folder(s, root[i], engine, wanted, arg);
        free(root[i]);
    }
    return rc;
}
