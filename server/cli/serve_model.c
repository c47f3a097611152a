#include "server/cli/serve_model.h"

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/model/options.h"
#include "server/api/adapter_dir.h"
#include "server/api/app.h"
#include "server/api/model_table.h"
#include "server/api/tokenizer_info.h"
#include "server/cli/cmd.h"
#include "server/cli/ranks.h"
#include "server/json/json.h"
#include "server/kvevents/publisher.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- which there are ----------------------------------------------------------------------------------------------
 */

/* A name can stand in a URL and in a list: a letter or digit, then also '.', '_', ':', '-', '/'. */
static bool is_name(const char *s, size_t n)
{
    static const char more[] = "._:-/";
    if (!n || n > ADAPTER_NAME_MAX) return false;
    for (size_t i = 0; i < n; i++) {
        bool plain = (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z') || (s[i] >= '0' && s[i] <= '9');
        if (!plain && (!i || !memchr(more, s[i], sizeof more - 1))) return false;
    }
    return true;
}

/* "a=models/one,b=ORG/NAME" */
static int add_listed(struct app *app, struct err *e)
{
    for (const char *at = app->set->models; *at;) {
        size_t n = strcspn(at, ",");
        const char *equals = memchr(at, '=', n);
        if (!equals || equals + 1 == at + n || !is_name(at, (size_t)(equals - at)))
            return err_set(e, ERR_INVALID,
                           "--models: \"%.*s\" is not NAME=DIR, with a NAME of letters, digits and ._:-/",
                           (int)(n < 100 ? n : 100), at);
        char *name = mem_strndup(at, (size_t)(equals - at)),
             *where = mem_strndup(equals + 1, n - (size_t)(equals + 1 - at));
        bool known = model_table_named(app->models, name) != NULL;
        if (known) err_set(e, ERR_INVALID, "--models: %.100s is there twice", name);
        if (!known) model_table_add(app->models, name, where);
        free(name);
        free(where);
        if (known) return e->code;
        at += n + (at[n] == ',');
    }
    return 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* A folder with config.json, or a GGUF file, under its name without ".gguf". */
static bool is_model(const char *path, const char *file, size_t *name)
{
    struct stat st;
    size_t n = strlen(file);
    *name = n;
    if (stat(path, &st)) return false;
    if (S_ISREG(st.st_mode)) {
        *name = n > 5 ? n - 5 : 0;
        return n > 5 && strcmp(file + n - 5, ".gguf") == 0;
    }
    char *config = file_join(path, "config.json");
    bool there = S_ISDIR(st.st_mode) && access(config, R_OK) == 0;
    free(config);
    return there;
}

static bool is_same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* All but that of --model. */
static int add_folder(struct app *app, struct err *e)
{
    struct dirent **v = NULL;
    const char *root = app->set->models_dir;
    const char *first = settings_given(app->set, "model") ? app->set->model : "";
    if (!*root) return 0;
    int n = scandir(root, &v, NULL, by_name);
    if (n < 0) return err_set(e, ERR_NOT_FOUND, "--models-dir: %.200s is no directory that can be read", root);
    for (int i = 0; i < n; i++) {
        char *path = file_join(root, v[i]->d_name);
        size_t len;
        if (v[i]->d_name[0] != '.' && is_model(path, v[i]->d_name, &len) && !is_same_file(path, first)) {
            char *name = mem_strndup(v[i]->d_name, len);
            if (!is_name(name, len))
                log_warn(
                    "model left out: path=%s reason=\"its name has other characters than letters, digits and ._:-\"",
                    path);
            else if (!model_table_named(app->models, name))
                model_table_add(app->models, name, path);
            free(name);
        }
        free(path);
        free(v[i]);
    }
    free(v);
    return 0;
}

int serve_models_add(struct app *app, struct err *e)
{
    const struct settings *set = app->set;
    bool several = *set->models || *set->models_dir;
    if (settings_given(set, "model") || !several) model_table_add(app->models, NULL, set->model)->main = true;
    if (add_listed(app, e) || add_folder(app, e)) return e->code;
    if (!model_table_count(app->models))
        return err_set(e, ERR_NOT_FOUND,
                       "--models-dir: %.200s has no model: folders with config.json and files *.gguf are models",
                       set->models_dir);
    app->model = model_table_at(app->models, 0);
    return 0;
}

/* ---- opening one ---------------------------------------------------------------------------------------------------
 */

/* The settings as they are for this model.  Borrows all: not to be freed. */
static struct settings settings_of(const struct app *app, const struct served_model *m)
{
    struct settings s = *app->set;
    if (m->main) return s;
    s.model = m->where;
    s.model_dir = m->dir;
    s.model_name = m->name;
    if (m == app->model) return s;
    s.served_model_name = s.chat_template = s.adapters = (char *)"";
    s.draft_dir = NULL; /* of the default model's vocabulary */
    return s;
}

char *serve_model_find(struct app *app, const struct served_model *m, struct err *e)
{
    struct hub hub;
    struct hub_found f = {0};
    struct hub_printer printer = {0};
    if (m->main) return mem_strdup(settings_model_dir(app->set));
    hub_open(&hub);
    hub.wants = HUB_MODEL;
    hub.stop = &app->stopping;
    hub.check = model_worth_loading;
    hub.report = hub_print_progress;
    hub.report_arg = &printer;
    char *dir = hub_resolve(&hub, m->where, &f, e) ? NULL : f.path;
    hub_print_end(&printer);
    if (dir && f.name) log_info("model found on the hub: model=%s repository=%s", m->name, f.name);
    if (dir) f.path = NULL;
    hub_found_free(&f);
    hub_close(&hub);
    return dir;
}

static struct engine_config engine_config_of(const struct app *app, const struct settings *s)
{
    struct engine_config c = cmd_engine_config(s);
    /* Admission counts waiting and running sequences and admits up to twice its limit, for clients and in the
     * background, and an evaluation has at most as many, so the engine's own limit is never reached. */
    c.max_queue = 5 * (c.max_queue + c.max_seqs);
    c.record_steps = true;
    c.turn = app->turn;
    c.kv_events = kv_publisher_sink(app->kv_events);
    return c;
}

void serve_model_estimate(struct app *app, struct served_model *m, struct engine_memory *out, struct err *e)
{
    const struct settings s = settings_of(app, m);
    const struct engine_config c = engine_config_of(app, &s);
    engine_estimate(&c, out, e);
}

/* ---- its adapters -------------------------------------------------------------------------------------------------
 */

/* The last part of a path or of a name on the hub. */
static const char *last_part(const char *s)
{
    const char *slash = strrchr(s, '/');
    return slash && slash[1] ? slash + 1 : s;
}

static char *read_field(const char *dir, const char *file, const char *field)
{
    struct err e = {0};
    char *path = file_join(dir, file), *text = NULL, *out = NULL;
    size_t n = 0;
    if (file_read(path, 1 << 20, &text, &n, &e) == 0) {
        cJSON *tree = json_parse(text, n, &e);
        const char *value = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tree, field));
        if (value && *value) out = mem_strdup(value);
        json_free(tree);
    }
    free(text);
    free(path);
    return out;
}

/* The model whose adapter the directory is: as the job that trained it says, or as its configuration does; the default
 * one where they name none that is here. */
static const struct served_model *base_of(const struct app *app, const char *dir)
{
    const struct served_model *m = NULL;
    char *job = read_field(dir, "tandem.json", "base"),
         *config = job ? NULL : read_field(dir, "adapter_config.json", "base_model_name_or_path");
    const char *name = job ? job : config;
    if (name && !(m = model_table_named(app->models, name))) m = model_table_named(app->models, last_part(name));
    for (int i = 0; name && !m && i < model_table_count(app->models); i++) {
        const struct served_model *one = model_table_at(app->models, i);
        if (strcmp(one->where, name) == 0 || strcmp(last_part(one->where), last_part(name)) == 0) m = one;
    }
    free(job);
    free(config);
    return m ? m : app->model;
}

struct choice {
    const struct app *app;
    const struct served_model *model;
};

static bool is_wanted(void *arg, const char *dir)
{
    const struct choice *c = arg;
    return base_of(c->app, dir) == c->model;
}

/* Those that clients loaded, again. */
static void load_kept(const struct served_model *m, struct engine *engine)
{
    for (size_t i = 0; i < m->n_adapters; i++) {
        struct err e = {0}, none = {0};
        const struct served_adapter *a = &m->adapters[i];
        if (a->dir && engine_adapter_check(engine, a->name, &none) != 0 &&
            engine_adapter_load(engine, a->name, a->dir, NULL, &e))
            log_warn("adapter left out name=%s model=%s reason=\"%s\"", a->name, m->name, e.msg);
    }
}

/* ---- loading -------------------------------------------------------------------------------------------------------
 */

static double seconds_since(uint64_t start)
{
    return (double)(clock_now() - start) * 1e-9;
}

/* @return whether this device can have several models. */
static int check_device(const struct app *app, const struct engine *engine, struct err *e)
{
    bool told = app->set->gpu_memory_bytes && app->set->models_memory;
    if (!engine_info(engine)->device_budget || told || model_table_count(app->models) < 2) return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "several models on a GPU: set --gpu-memory-bytes to what each of them may take, and --models-memory "
                   "to what all that are loaded may; a share of the free memory would leave none to the second");
}

void serve_model_load_first(struct app *app, struct model_loading *l, const struct hub *hub)
{
    struct served_model *m = l->model;
    struct choice choice = {app, m};
    uint64_t start = clock_now();
    if (!m->dir) m->dir = mem_strdup(settings_model_dir(app->set)); /* of --model: found before */
    const struct settings s = settings_of(app, m);
    struct engine_config c = engine_config_of(app, &s);
    if (chat_open(&m->chat, &s, &l->e)) return;
    l->template_seconds = seconds_since(start);
    if (app->ranks && ranks_begin(app->ranks, &c, &l->e)) return;
    size_t named = strcspn(s.served_model_name, ",");
    char *name = named ? mem_strndup(s.served_model_name, named) : NULL;
    c.kv_events_model = name;
    l->engine = engine_open(&c, &l->e);
    free(name);
    if (app->ranks) app->ranks->opened = l->engine != NULL;
    start = clock_now();
    bool several = model_table_count(app->models) > 1;
    if (l->engine && (check_device(app, l->engine, &l->e) ||
                      adapter_dir_load_all(&s, hub, l->engine, several ? is_wanted : NULL, &choice, &l->e))) {
        engine_close(l->engine);
        l->engine = NULL;
    }
    if (!l->engine) return;
    served_model_prepare(m, l->engine);
    load_kept(m, l->engine);
    tokenizer_info_load(&s, m, l->engine);
    l->adapters_seconds = seconds_since(start);
}

void serve_model_load(struct app *app, struct model_loading *l)
{
    struct hub hub;
    hub_open(&hub);
    serve_model_load_first(app, l, &hub);
    hub_close(&hub);
}
