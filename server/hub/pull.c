#include "server/hub/pull.h"

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "server/hub/download.h"
#include "server/hub/fetch.h"
#include "server/hub/listing.h"
#include "server/json/json.h"

#include <stdlib.h>
#include <string.h>

enum { INDEX_MAX = 64 << 20 };

struct choice {
    const struct hub_file **v; /* owned; of the listing */
    int n;
    const char *gguf; /* the file that is opened; NULL: the directory */
};

static void choose(struct choice *c, const struct hub_file *f)
{
    for (int i = 0; i < c->n; i++)
        if (c->v[i] == f) return;
    c->v[c->n++] = f;
}

static int get_listing(const struct hub *h, const struct repo_name *r, struct listing *l, struct err *e)
{
    struct buf url = {0}, text = {0};
    struct fetch f;
    buf_printf(&url, "%s/api/%s%s/revision/", h->endpoint, h->wants == HUB_DATA ? "" : "models/", r->id);
    repo_url_encode(&url, r->revision, "");
    buf_str(&url, "?blobs=true");
    int rc = fetch_text(h, url.data, r, r->id, LISTING_BYTES, &text, &f, e);
    if (!rc && listing_parse(l, text.data ? text.data : "", text.len, e))
        rc = err_prefix(e, "%s: what the hub says of it", r->id);
    buf_free(&text);
    buf_free(&url);
    return rc;
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

static int choose_gguf(struct choice *c, const struct listing *l, const char *quant, struct err *e)
{
    const char **names = mem_array((size_t)l->n + 1, sizeof *names);
    bool *chosen = mem_array((size_t)l->n + 1, sizeof *chosen);
    int first = -1;
    for (int i = 0; i < l->n; i++) names[i] = l->v[i].name;
    int n = repo_gguf(names, l->n, quant, chosen, &first, e);
    for (int i = 0; n > 0 && i < l->n; i++)
        if (chosen[i]) choose(c, &l->v[i]);
    if (n > 0) c->gguf = l->v[first].name;
    if (n > 0 && n != repo_gguf_parts(c->gguf))
        n = err_set(e, ERR_NOT_FOUND, "%.200s: %d of its %d parts are there", c->gguf, n, repo_gguf_parts(c->gguf));
    free(names);
    free(chosen);
    return n < 0 ? n : 0;
}

static bool any_ends_with(const struct listing *l, const char *end)
{
    for (int i = 0; i < l->n; i++)
        if (repo_ends_with(l->v[i].name, end)) return true;
    return false;
}

/* A repository without the files of a model that is read. */
static int say_no_weights(const struct listing *l, struct err *e)
{
    if (any_ends_with(l, ".bin") || any_ends_with(l, ".pth") || any_ends_with(l, ".pt"))
        return err_set(e, ERR_UNSUPPORTED,
                       "its weights are there as PyTorch's pickles only (.bin, .pth), which are not read; "
                       "https://huggingface.co/spaces/safetensors/convert makes safetensors of them");
    return err_set(e, ERR_UNSUPPORTED, "there are neither safetensors nor a GGUF file in it");
}

static bool has_adapter(const struct listing *l)
{
    return listing_find(l, "adapter_config.json") && listing_find(l, "adapter_model.safetensors");
}

static bool has_model(const struct listing *l)
{
    return listing_find(l, "model.safetensors") || listing_find(l, "model.safetensors.index.json") || has_adapter(l);
}

static int choose_adapter(struct choice *c, const struct listing *l, struct err *e)
{
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors"};
    if (!has_adapter(l))
        return err_set(e, ERR_UNSUPPORTED,
                       "not an adapter: adapter_config.json or adapter_model.safetensors is missing");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) choose(c, listing_find(l, names[i]));
    return 0;
}

static int choose_data(struct choice *c, const struct listing *l, const char *file, struct err *e)
{
    const char **names = mem_array((size_t)l->n + 1, sizeof *names);
    bool *chosen = mem_array((size_t)l->n + 1, sizeof *chosen);
    for (int i = 0; i < l->n; i++) names[i] = l->v[i].name;
    int n = repo_data(names, l->n, file, chosen, e);
    for (int i = 0; n > 0 && i < l->n; i++)
        if (chosen[i]) c->v[c->n++] = &l->v[i];
    free(names);
    free(chosen);
    return n < 0 ? n : 0;
}

static int choose_first(struct choice *c, const struct listing *l, const char *quant, struct err *e)
{
    bool gguf = *quant || (!has_model(l) && any_ends_with(l, ".gguf"));
    if (gguf) return choose_gguf(c, l, quant, e);
    if (!has_model(l)) return say_no_weights(l, e);
    for (int i = 0; i < l->n; i++)
        if (repo_small_file(l->v[i].name)) c->v[c->n++] = &l->v[i];
    return 0;
}

/* The files that the index of the snapshot names. */
static int choose_indexed(struct choice *c, const struct listing *l, const char *index, struct err *e)
{
    char *text = NULL;
    size_t n;
    if (file_read(index, INDEX_MAX, &text, &n, e)) return e->code;
    cJSON *tree = json_parse(text, n, e);
    free(text);
    if (!tree) return err_prefix(e, "model.safetensors.index.json");
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(tree, "weight_map"), *item;
    const char *last = "";
    int rc = cJSON_IsObject(map) ? 0 : err_set(e, ERR_INVALID, "model.safetensors.index.json: weight_map is missing");
    cJSON_ArrayForEach(item, map)
    {
        if (rc) break;
        const char *name = cJSON_GetStringValue(item);
        if (name && strcmp(name, last) == 0) continue;
        const struct hub_file *f = name ? listing_find(l, name) : NULL;
        if (f)
            choose(c, f);
        else
            rc = err_set(e, ERR_INVALID,
                         "model.safetensors.index.json: weight_map.%.80s: %.100s is no file of the repository",
                         item->string, name ? name : "a value that is not a string");
        last = f ? f->name : "";
    }
    json_free(tree);
    return rc;
}

static int choose_weights(struct choice *c, const struct listing *l, const char *snapshot, struct err *e)
{
    int rc = 0;
    bool single = listing_find(l, "model.safetensors") != NULL; /* read before an index */
    for (int i = 0; i < l->n; i++)
        if (repo_weights_file(l->v[i].name)) choose(c, &l->v[i]);
    if (!single && listing_find(l, "model.safetensors.index.json")) {
        char *index = file_join(snapshot, "model.safetensors.index.json");
        rc = choose_indexed(c, l, index, e);
        free(index);
    }
    return rc;
}

/* ---- the download ------------------------------------------------------------------------------------------------ */

/* A model that cannot be opened is refused before its weights are downloaded. */
static int check_model(const struct hub *h, const struct listing *l, const char *snapshot, struct err *e)
{
    bool adapter_alone = has_adapter(l) && !listing_find(l, "config.json");
    return h->check && !adapter_alone ? h->check(snapshot, e) : 0;
}

static int download_weights(const struct download *d, const struct listing *l, struct choice *c, struct err *e)
{
    char *snapshot = download_snapshot(d);
    c->n = 0;
    int rc = check_model(d->hub, l, snapshot, e);
    if (!rc) rc = choose_weights(c, l, snapshot, e);
    if (rc) err_prefix(e, "%s", d->name->id);
    free(snapshot);
    return rc ? rc : download_files(d, c->v, c->n, e);
}

static int download_all(const struct download *d, const struct listing *l, struct choice *c, struct err *e)
{
    int rc = download_prepare(d, e);
    if (!rc) rc = download_files(d, c->v, c->n, e);
    if (!rc && !c->gguf && d->hub->wants != HUB_ADAPTER && d->hub->wants != HUB_DATA) rc = download_weights(d, l, c, e);
    if (!rc) rc = download_publish(d, e); /* last: until then the name finds what it found before */
    return rc;
}

int pull(const struct hub *h, const struct repo_name *r, struct hub_found *f, struct err *e)
{
    struct listing l = {0};
    struct choice c = {0};
    struct progress p;
    int rc = get_listing(h, r, &l, e);
    if (rc) return rc;
    struct download d = {.hub = h, .name = r, .commit = l.commit, .progress = &p};
    c.v = mem_array((size_t)l.n + 1, sizeof(const struct hub_file *));
    progress_begin(&p, r->id);
    rc = h->wants == HUB_ADAPTER ? choose_adapter(&c, &l, e)
         : h->wants == HUB_DATA  ? choose_data(&c, &l, r->quant, e)
                                 : choose_first(&c, &l, r->quant, e);
    if (rc)
        err_prefix(e, "%s", r->id);
    else
        rc = download_all(&d, &l, &c, e);
    if (!rc) {
        char *snapshot = download_snapshot(&d);
        progress_update(&p, h, true);
        f->path = c.gguf ? file_join(snapshot, c.gguf) : mem_strdup(snapshot);
        f->name = mem_strdup(r->id);
        free(snapshot);
    }
    free(c.v);
    listing_free(&l);
    return rc;
}
