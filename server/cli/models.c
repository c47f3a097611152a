/* tandem models: lists what is in the cache of the Hugging Face hub, and removes from it.  Main thread. */
#include "server/cli/cmd.h"
#include "server/hub/cache.h"
#include "server/hub/progress.h"
#include "server/json/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] = "tandem models [list] [--json]\n"
                            "       tandem models rm ORG/NAME[@REVISION] ...";
static const char about[] =
    "Lists the models and adapters in the cache of the Hugging Face hub with their sizes, or removes some of them.\n"
    "The cache is shared with huggingface_hub: HF_HUB_CACHE, or HF_HOME/hub, or ~/.cache/huggingface/hub.";

static void print_json(const struct hub *h, const struct cache_entry *v, int n)
{
    struct buf out = {0};
    buf_str(&out, "{\"cache\":");
    json_put_string(&out, h->cache, strlen(h->cache));
    buf_str(&out, ",\"models\":[");
    for (int i = 0; i < n; i++) {
        buf_printf(&out, "%s{\"id\":", i ? "," : "");
        json_put_string(&out, v[i].id, strlen(v[i].id));
        buf_printf(&out,
                   ",\"kind\":\"%s\",\"bytes\":%llu,\"incomplete_bytes\":%llu,\"snapshots\":%d,\"complete\":%s,"
                   "\"changed\":%lld}",
                   v[i].kind, (unsigned long long)v[i].bytes, (unsigned long long)v[i].incomplete, v[i].snapshots,
                   v[i].whole ? "true" : "false", (long long)v[i].changed);
    }
    buf_str(&out, "]}\n");
    fwrite(out.data, 1, out.len, stdout);
    buf_free(&out);
}

static void print_table(const struct hub *h, const struct cache_entry *v, int n)
{
    int width = 5;
    uint64_t total = 0;
    for (int i = 0; i < n; i++)
        if ((int)strlen(v[i].id) > width) width = (int)strlen(v[i].id);
    if (n) printf("%-*s  %-7s  %9s  %-10s\n", width, "model", "kind", "size", "changed");
    for (int i = 0; i < n; i++) {
        struct buf size = {0};
        char day[16] = "";
        struct tm t;
        progress_bytes(&size, (double)(v[i].bytes + v[i].incomplete));
        if (v[i].changed && localtime_r(&v[i].changed, &t)) strftime(day, sizeof day, "%Y-%m-%d", &t);
        printf("%-*s  %-7s  %9s  %-10s%s\n", width, v[i].id, v[i].kind, size.data, day,
               v[i].whole ? "" : "  incomplete");
        total += v[i].bytes + v[i].incomplete;
        buf_free(&size);
    }
    struct buf size = {0};
    progress_bytes(&size, (double)total);
    fprintf(stderr, "%d in %s: %s\n", n, h->cache, size.data);
    buf_free(&size);
}

static int list(const struct settings *s, const struct hub *h)
{
    struct err e = {0};
    int n;
    struct cache_entry *v = cache_list(h, &n, &e);
    if (!v) return cmd_fail(&e);
    if (s->json)
        print_json(h, v, n);
    else
        print_table(h, v, n);
    free(v);
    return 0;
}

/* A model, or one of its revisions. */
static int remove_one(const struct hub *h, const char *name, uint64_t *bytes, struct err *e)
{
    struct repo_name r;
    if (!strchr(name, '@')) return cache_remove(h, name, bytes, e);
    if (repo_parse(&r, name, h->endpoint, e)) return cache_remove_revision(h, &r, bytes, e);
    return e->code ? e->code : err_set(e, ERR_INVALID, "%.100s is not ORG/NAME@REVISION", name);
}

static int remove_all(const struct hub *h, char **names, int n)
{
    int status = 0;
    for (int i = 0; i < n; i++) {
        struct err e = {0};
        struct buf size = {0};
        uint64_t bytes = 0;
        if (remove_one(h, names[i], &bytes, &e)) {
            status = cmd_fail(&e);
            continue;
        }
        progress_bytes(&size, (double)bytes);
        fprintf(stderr, "%s: removed, %s\n", names[i], size.data);
        buf_free(&size);
    }
    return status;
}

static int wrong(const char *why)
{
    fprintf(stderr, "tandem: %s\nusage: %s\n", why, usage);
    return 2;
}

int cmd_models(int argc, char **argv)
{
    struct settings s = {0};
    struct hub h;
    int status = 0, words = 0;
    while (words < argc && argv[words][0] != '-') words++;
    bool removes = words && strcmp(argv[0], "rm") == 0;
    if (words && !removes && (strcmp(argv[0], "list") || words > 1)) return wrong("list, or rm ORG/NAME?");
    if (cmd_settings(&s, CMD_MODELS, argc - words, argv + words, usage, about, &status)) {
        hub_open(&h);
        status = !removes ? list(&s, &h) : words == 1 ? wrong("rm: which model?") : remove_all(&h, argv + 1, words - 1);
        hub_close(&h);
    }
    settings_free(&s);
    return status;
}
