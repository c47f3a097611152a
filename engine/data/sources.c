#include "engine/data/sources.h"

#include "engine/base/file.h"
#include "engine/base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int dataset_weight_split(char *text, double *weight, struct err *e)
{
    char *colon = strrchr(text, ':'), *end;
    *weight = 0;
    if (!colon || !colon[1] || strspn(colon + 1, "0123456789.eE+-") != strlen(colon + 1)) return 0;
    double v = strtod(colon + 1, &end);
    if (*end) return 0;
    if (!(v > 0) || !isfinite(v) || v > 1e9)
        return err_set(e, ERR_INVALID, "%.200s: the weight must be above 0 and at most 1e9", text);
    *weight = v;
    *colon = 0;
    return 0;
}

int dataset_sources_add_set(struct dataset_sources *s, char *const *paths, size_t n, double weight, struct err *e)
{
    if (n > DATASET_SOURCES_MAX - (size_t)s->n)
        return err_set(e, ERR_INVALID, "more than %d files", DATASET_SOURCES_MAX);
    if (s->n && n && (weight > 0) != (s->v[0].weight > 0))
        return err_set(e, ERR_INVALID, "%.100s has %s weight and %.100s has %s: either all have one, or none",
                       s->v[0].path, weight > 0 ? "no" : "a", paths[0], weight > 0 ? "one" : "none");
    mem_grow(&s->v, &s->cap, (size_t)s->n + n, sizeof *s->v);
    for (size_t i = 0; i < n; i++) {
        char *path = mem_strdup(paths[i]);
        s->v[s->n++] = (struct dataset_source){.path = path, .name = path, .set = s->sets, .weight = weight};
    }
    s->sets += n > 0;
    return 0;
}

/* The files that a pattern means. */
static int add_pattern(struct dataset_sources *s, const char *pattern, double weight, struct err *e)
{
    char **path;
    size_t n;
    int rc = file_glob(pattern, DATASET_SOURCES_MAX, &path, &n, e);
    if (!rc && !n) rc = err_set(e, ERR_NOT_FOUND, "%.200s: no file matches", pattern);
    if (!rc) rc = dataset_sources_add_set(s, path, n, weight, e);
    for (size_t i = 0; i < n; i++) free(path[i]);
    free(path);
    return rc;
}

int dataset_sources_add(struct dataset_sources *s, const char *text, struct err *e)
{
    char *name = mem_strdup(text);
    double weight = 0;
    int rc = access(text, F_OK) ? dataset_weight_split(name, &weight, e) : 0;
    if (!rc && strpbrk(name, "*?[") && access(name, F_OK))
        rc = add_pattern(s, name, weight, e);
    else if (!rc)
        rc = dataset_sources_add_set(s, &name, 1, weight, e);
    free(name);
    return rc;
}

void dataset_sources_free(struct dataset_sources *s)
{
    for (int i = 0; i < s->n; i++) free((char *)s->v[i].path);
    free(s->v);
    *s = (struct dataset_sources){0};
}
