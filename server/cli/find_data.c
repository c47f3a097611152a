#include "server/cli/find_data.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

static int add_hub_data(struct dataset_sources *s, const char *text, const struct hub *h, struct err *e)
{
    char *name = mem_strdup(text), **path = NULL;
    double weight;
    int n = 0, rc = dataset_weight_split(name, &weight, e);
    if (!rc) rc = hub_find_data(h, name, &path, &n, e);
    if (!rc) rc = dataset_sources_add_set(s, path, (size_t)n, weight, e);
    for (int i = 0; i < n; i++) free(path[i]);
    free(path);
    free(name);
    return rc;
}

int cmd_find_data(struct dataset_sources *s, const struct string_list *names, const struct hub *h, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < names->n && !rc; i++) {
        const char *text = names->v[i];
        rc = hub_is_data(text) ? add_hub_data(s, text, h, e) : dataset_sources_add(s, text, e);
    }
    return rc;
}
