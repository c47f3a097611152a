#include "engine/files/model_file.h"

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/files/gguf_model.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcasecmp(s + n - m, end) == 0;
}

/* Whether a name is that of a model's file: of a split model only the first, and no projector beside it. */
static bool names_model(const char *name)
{
    size_t n = strlen(name);
    enum { SUFFIX = 20 }; /* -00001-of-00002.gguf */
    if (!ends_with(name, ".gguf") || strncasecmp(name, "mmproj", 6) == 0) return false;
    bool split = n > SUFFIX && name[n - SUFFIX] == '-' && strncmp(name + n - SUFFIX + 6, "-of-", 4) == 0;
    return !split || strncmp(name + n - SUFFIX, "-00001", 6) == 0;
}

/* The only model in a directory; *n: how many there are. */
static char *only_model(const char *dir, int *n)
{
    char *found = NULL;
    DIR *d = opendir(dir);
    *n = 0;
    for (struct dirent *f; d && (f = readdir(d));) {
        if (!names_model(f->d_name)) continue;
        if (!found) found = file_join(dir, f->d_name);
        ++*n;
    }
    if (d) closedir(d);
    if (*n == 1) return found;
    free(found);
    return NULL;
}

static bool has_file(const char *dir, const char *name)
{
    char *path = file_join(dir, name);
    bool has = access(path, F_OK) == 0;
    free(path);
    return has;
}

/* *n: GGUF models in the directory, where that matters */
static char *gguf_of(const char *model, int *n)
{
    struct stat st;
    *n = 0;
    if (stat(model, &st)) return NULL;
    if (S_ISREG(st.st_mode)) return ends_with(model, ".gguf") ? mem_strdup(model) : NULL;
    static const char *const others[] = {"model.safetensors", "model.safetensors.index.json", "adapter_config.json"};
    if (!S_ISDIR(st.st_mode)) return NULL;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (has_file(model, others[i])) return NULL;
    return only_model(model, n);
}

char *model_file_gguf(const char *model)
{
    int n;
    return gguf_of(model, &n);
}

static int from_gguf(const char *path, const char *name, size_t limit, char **data, size_t *size, struct err *e)
{
    static const struct {
        const char *name;
        int (*make)(const struct gguf *, struct buf *, struct err *);
    } files[] = {{"config.json", gguf_config_json},
                 {"generation_config.json", gguf_generation_json},
                 {"tokenizer.json", gguf_tokenizer_json},
                 {"tokenizer_config.json", gguf_tokenizer_config_json}};
    size_t i = 0, n = sizeof files / sizeof *files;
    while (i < n && strcmp(files[i].name, name)) i++;
    if (i == n) return err_set(e, ERR_NOT_FOUND, "%.200s has no %s", path, name);
    struct gguf *g = gguf_open(path, e);
    if (!g) return e ? e->code : ERR_INVALID;
    struct buf out = {0};
    int rc = files[i].make(g, &out, e);
    if (!rc && out.len > limit) rc = err_set(e, ERR_INVALID, "%s of it is larger than %zu bytes", name, limit);
    gguf_close(g);
    if (rc) {
        buf_free(&out);
        return e ? err_prefix(e, "%.200s", path) : rc;
    }
    *data = out.data;
    *size = out.len;
    return 0;
}

int model_file_read(const char *model, const char *name, size_t limit, char **data, size_t *size, struct err *e)
{
    int n;
    char *gguf = gguf_of(model, &n), *path = file_join(model, name);
    int rc = gguf    ? from_gguf(gguf, name, limit, data, size, e)
             : n > 1 ? err_set(e, ERR_INVALID, "%.200s: a directory of %d GGUF models: name one of its files", model, n)
                     : file_read(path, limit, data, size, e);
    free(gguf);
    free(path);
    return rc;
}
