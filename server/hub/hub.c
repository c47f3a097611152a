#include "server/hub/hub.h"

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "server/hub/cache.h"
#include "server/hub/pull.h"
#include "server/hub/repo.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void hub_found_free(struct hub_found *f)
{
    free(f->path);
    free(f->name);
    *f = (struct hub_found){0};
}

static int say_offline(const struct hub *h, const struct repo_name *r, enum cache_state state, struct err *e)
{
    return err_set(
        e, ERR_NOT_FOUND,
        "%s: no such directory, and %s in the cache of the Hugging Face hub, %.200s; HF_HUB_OFFLINE is set, so "
        "nothing is downloaded",
        r->id, state == CACHE_PARTIAL ? "such a GGUF file is not" : "it is not", h->cache);
}

static int ask_hub(const struct hub *h, const struct repo_name *r, struct hub_found *f, struct err *e)
{
    int rc = pull(h, r, f, e);
    char *repo = cache_repo(h, r->id);
    /* a path that is mistyped has the form of a name: without the hub it may be either */
    if (rc && e->code == ERR_IO && access(repo, F_OK)) err_prefix(e, "no such directory, and not in the cache");
    free(repo);
    return rc;
}

/* In the cache, else from the hub. */
static int find(const struct hub *h, const struct repo_name *r, struct hub_found *f, struct err *e)
{
    struct err unclear = {0};
    enum cache_state state = cache_find(h, r, &f->path, &unclear);
    /* without the hub, the engine says what is missing */
    if (state == CACHE_WHOLE || (state == CACHE_PARTIAL && h->offline && (h->wants == HUB_DATA || !*r->quant))) {
        f->name = mem_strdup(r->id);
        return 0;
    }
    hub_found_free(f);
    if (!h->offline) return ask_hub(h, r, f, e);
    if (!unclear.code) return say_offline(h, r, state, e);
    *e = unclear;
    return err_prefix(e, "%s", r->id);
}

/* A name of one word, such as gpt2: old models have such names in the cache.  The hub is not asked, because a word may
 * as well be a mistyped path. */
static bool find_word(const struct hub *h, const char *text, struct hub_found *f)
{
    struct repo_name r = {.revision = "main"};
    struct err none = {0};
    size_t n = strlen(text);
    if (!n || n > REPO_NAME_MAX || text[0] == '.' || strchr(text, '/') || strstr(text, "--")) return false;
    memcpy(r.id, text, n + 1);
    if (cache_find(h, &r, &f->path, &none) == CACHE_WHOLE) f->name = mem_strdup(text);
    if (!f->name) hub_found_free(f);
    return f->name;
}

int hub_resolve(const struct hub *h, const char *text, struct hub_found *f, struct err *e)
{
    struct repo_name r;
    *f = (struct hub_found){0};
    e->code = 0;
    bool path = access(text, F_OK) == 0;
    if (!path && repo_parse(&r, text, h->endpoint, e)) return find(h, &r, f, e);
    if (e->code) return e->code;
    if (!path && find_word(h, text, f)) return 0;
    f->path = mem_strdup(text);
    return 0;
}

int hub_resolve_name(const struct hub *h, const char *text, struct hub_found *f, struct err *e)
{
    struct repo_name r;
    *f = (struct hub_found){0};
    e->code = 0;
    if (repo_parse(&r, text, h->endpoint, e)) return find(h, &r, f, e);
    return e->code ? e->code : err_set(e, ERR_INVALID, "%.200s is no name of the Hugging Face hub", text);
}

int hub_pull(const struct hub *h, const char *text, struct hub_found *f, struct err *e)
{
    struct repo_name r;
    *f = (struct hub_found){0};
    if (!repo_parse(&r, text, h->endpoint, e))
        return e->code ? e->code
                       : err_set(e, ERR_INVALID, "%.200s: a model of the Hugging Face hub is named ORG/NAME%s", text,
                                 strcmp(text, "gpt2") == 0 ? "; this one is openai-community/gpt2" : "");
    if (h->offline) return err_set(e, ERR_IO, "%s: HF_HUB_OFFLINE is set, so nothing is downloaded", r.id);
    return pull(h, &r, f, e);
}

/* ---- data sets --------------------------------------------------------------------------------------------------- */

bool hub_is_data(const char *text)
{
    return repo_is_data(text);
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int hub_find_data(const struct hub *given, const char *text, char ***paths, int *n, struct err *e)
{
    struct hub h = *given;
    struct repo_name r;
    struct hub_found f = {0};
    struct cache_names names = {0};
    h.wants = HUB_DATA;
    *paths = NULL;
    *n = 0;
    if (repo_parse_data(&r, text, e) || find(&h, &r, &f, e)) return e->code;
    cache_collect(f.path, &names);
    bool *chosen = mem_array((size_t)names.n + 1, sizeof *chosen);
    *paths = mem_array((size_t)names.n + 1, sizeof **paths);
    int rc = repo_data((const char *const *)names.v, names.n, r.quant, chosen, e);
    for (int i = 0; i < names.n && rc > 0; i++)
        if (chosen[i]) (*paths)[(*n)++] = file_join(f.path, names.v[i]);
    if (*n) qsort(*paths, (size_t)*n, sizeof **paths, by_bytes);
    if (rc < 0) {
        err_prefix(e, "%s", r.id);
        free(*paths);
        *paths = NULL;
    }
    free(chosen);
    cache_names_free(&names);
    hub_found_free(&f);
    return rc < 0 ? rc : 0;
}
