#include "server/json/names.h"

#include <string.h>

enum { NAME_MAX_BYTES = 40 };

/* Levenshtein's; longer names are never near. */
static int distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    int row[NAME_MAX_BYTES + 1];
    if (n > NAME_MAX_BYTES || m > NAME_MAX_BYTES) return NAME_MAX_BYTES;
    for (size_t j = 0; j <= m; j++) row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[m];
}

const char *name_nearest(const char *name, const char *const *names, int n)
{
    int best = 2 + (int)strlen(name) / 3;
    const char *found = NULL;
    for (int i = 0; i < n; i++) {
        int d = distance(name, names[i]);
        /* a part of a name of at least 4 letters is near, whatever its edit distance */
        if (strlen(name) >= 4 && strstr(names[i], name)) d = d > 1 ? 1 : d;
        if (d < best) best = d, found = names[i];
    }
    return found;
}

bool json_only(struct json_at *at, const char *const *names, int n)
{
    for (const cJSON *c = at->obj->child; c; c = c->next) {
        int i = 0;
        while (i < n && strcmp(c->string, names[i]) != 0) i++;
        if (i < n) continue;
        const char *near = name_nearest(c->string, names, n);
        const char *dot = *at->path ? "." : "";
        if (near)
            err_set(at->e, ERR_INVALID, "%s%s%.60s: unknown field; did you mean `%s`?", at->path, dot, c->string, near);
        else
            err_set(at->e, ERR_INVALID, "%s%s%.60s: unknown field", at->path, dot, c->string);
        return false;
    }
    return true;
}
