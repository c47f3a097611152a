#include "server/jobs/job_data.h"

#include "engine/base/cpus.h"
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/api/app.h"
#include "server/api/served_model.h"
#include "server/hub/hub.h"
#include "server/json/json.h"
#include "server/store/data_dir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *inline_name(char out[static 80], const char *job_id, enum data_kind kind, bool eval)
{
    snprintf(out, 80, "%s%s.%s", job_id, eval ? "-eval" : "", kind == DATA_ROWS ? "json" : "txt");
    return out;
}

/* The path of a file with the spec's data, owned by the caller; NULL and *e. */
static char *ref_path(const char *dir, const struct data_spec *d, int i, struct err *e)
{
    const char *name = d->ref[i].name;
    if (d->kind == DATA_PATH) return data_find(dir, name, e);
    char *path = data_path(dir, "files", name);
    if (access(path, R_OK) == 0) return path;
    err_set(e, ERR_NOT_FOUND, "%s: the file was deleted", name);
    free(path);
    return NULL;
}

/* Appends the files of a data set of the Hugging Face hub, downloaded into its cache where they are missing. */
static int add_hub(const struct data_ref *ref, double weight, const atomic_bool *stop, struct dataset_source **out,
                   int *n, struct err *e)
{
    struct hub h;
    char **path = NULL;
    int found = 0;
    hub_open(&h);
    h.wants = HUB_DATA;
    h.stop = stop;
    int rc = hub_find_data(&h, ref->name, &path, &found, e);
    hub_close(&h);
    if (!rc && *n + found > DATASET_SOURCES_MAX)
        rc = err_set(e, ERR_INVALID, "%s: more than %d files", ref->name, DATASET_SOURCES_MAX);
    *out = mem_resize(*out, (size_t)*n + (size_t)found + 1, sizeof **out);
    for (int i = 0; i < found && !rc; i++)
        (*out)[(*n)++] = (struct dataset_source){.path = path[i], .set = ref->set, .weight = weight};
    for (int i = 0; i < found && rc; i++) free(path[i]);
    free(path);
    return rc;
}

/* The sources of a spec's data, one for each file or one of inline rows; sources_free. */
static int sources_of(const char *dir, const char *job_id, const struct data_spec *d, bool eval,
                      const atomic_bool *stop, struct dataset_source **out, int *n, struct err *e)
{
    char name[80];
    *n = 0;
    *out = mem_array(d->n_refs ? (size_t)d->n_refs : 1, sizeof **out);
    if (!d->n_refs) {
        char *path = data_path(dir, "inline", inline_name(name, job_id, d->kind, eval));
        (*out)[(*n)++] = (struct dataset_source){.path = path, .name = eval ? "validation" : "dataset"};
    }
    for (int i = 0; i < d->n_refs; i++) {
        double weight = d->n_weights ? d->weight[d->ref[i].set] : 0;
        if (d->kind == DATA_PATH && hub_is_data(d->ref[i].name)) {
            if (add_hub(&d->ref[i], weight, stop, out, n, e)) return e->code;
            continue;
        }
        char *path = ref_path(dir, d, i, e);
        if (!path) return e->code;
        *out = mem_resize(*out, (size_t)*n + 1, sizeof **out);
        (*out)[(*n)++] =
            (struct dataset_source){.path = path, .name = d->ref[i].name, .set = d->ref[i].set, .weight = weight};
    }
    return 0;
}

static void sources_free(struct dataset_source *v, int n)
{
    for (int i = 0; i < n; i++) free((char *)v[i].path);
    free(v);
}

int job_data_save(const char *dir, const char *job_id, const struct data_spec *d, bool eval, struct err *e)
{
    char name[80];
    if (!d->inline_) return 0;
    char *path = data_path(dir, "inline", inline_name(name, job_id, d->kind, eval));
    struct buf rows = {0};
    if (d->kind == DATA_ROWS) json_put_value(&rows, d->inline_, ",", ":");
    const char *text = d->kind == DATA_ROWS ? rows.data : d->inline_->valuestring;
    int rc = data_mkdir(dir, "inline", NULL, e);
    if (!rc) rc = data_write(path, text, strlen(text), e);
    buf_free(&rows);
    free(path);
    return rc;
}

void job_data_remove(const char *dir, const char *job_id)
{
    for (int i = 0; i < 4; i++) {
        char name[80];
        char *path = data_path(dir, "inline", inline_name(name, job_id, i & 1 ? DATA_ROWS : DATA_TEXT, i & 2));
        data_remove(path);
        free(path);
    }
}

#define CACHE_BYTES ((uint64_t)8 << 30) /* of all prepared sets together */

int job_data_open(const struct app *app, const struct served_model *m, const char *job_id, const struct data_spec *d,
                  bool eval, const struct train_params *p, const struct job_data_hooks *hooks, const char *dir,
                  struct dataset **out, struct dataset_report *report, struct err *e)
{
    char *cache = data_path(dir, "cache", NULL);
    struct dataset_source *source;
    const atomic_bool *stop = hooks->stop ? hooks->stop : &app->stopping;
    int n, rc = sources_of(dir, job_id, d, eval, stop, &source, &n, e);
    struct dataset_options options = {
        .format = train_data_format(p->method, d->format),
        .map = d->map,
        .n_map = d->n_map,
        .max_length = p->max_length,
        .seed = p->seed,
        .train_on_prompt = d->train_on_prompt,
        .keep_duplicates = d->keep_duplicates,
        .no_eos = d->no_eos,
        .cache_dir = cache,
        .cache_bytes = CACHE_BYTES,
        .threads = cpus_available(), /* as far as serving leaves them */
        .background = true,
        .progress = hooks->progress,
        .cancelled = hooks->cancelled,
        .arg = hooks->arg,
    };
    /* the same code and template as serving, so that training prompts match those of requests */
    const struct chat_format *chat = &m->chat;
    if (!rc && chat->broken) rc = err_set(e, ERR_INVALID, "%s", chat->reason);
    if (!rc)
        rc = dataset_open_all(out, source, n, &options, engine_tokenizer(m->engine), chat->template,
                              m->info->n_eos ? m->info->eos[0] : -1, report, e);
    sources_free(source, n);
    free(cache);
    return rc;
}

int job_data_open_texts(const struct served_model *m, const char *path, const struct train_params *p,
                        const struct job_data_hooks *hooks, const char *dir, struct dataset **out,
                        struct dataset_report *report, struct err *e)
{
    char *cache = data_path(dir, "cache", NULL);
    struct dataset_source source = {.path = path, .name = "texts"};
    struct dataset_options options = {
        .format = DATASET_TOKENS,
        .max_length = p->max_length,
        .seed = p->seed,
        .no_eos = true,
        .cache_dir = cache,
        .cache_bytes = CACHE_BYTES,
        .threads = cpus_available(),
        .background = true,
        .progress = hooks->progress,
        .cancelled = hooks->cancelled,
        .arg = hooks->arg,
    };
    int rc = dataset_open(out, &source, &options, engine_tokenizer(m->engine), NULL, -1, report, e);
    free(cache);
    return rc;
}
