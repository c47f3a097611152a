#include "server/jobs/job_data.h"

#include "engine/serve/engine.h"
#include "server/api/app.h"
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

char *job_data_path(const char *dir, const char *job_id, const struct data_spec *d, bool eval, struct err *e)
{
    char name[80];
    if (d->kind == DATA_PATH) return data_find(dir, d->ref, e);
    if (d->kind != DATA_FILE) return data_path(dir, "inline", inline_name(name, job_id, d->kind, eval));
    char *path = data_path(dir, "files", d->ref);
    if (access(path, R_OK) == 0) return path;
    err_set(e, ERR_NOT_FOUND, "%s: the file was deleted", d->ref);
    free(path);
    return NULL;
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

int job_data_open(const struct app *app, const char *job_id, const struct data_spec *d, bool eval, int max_length,
                  const struct job_data_hooks *hooks, const char *dir, struct dataset **out,
                  struct dataset_report *report, struct err *e)
{
    char *path = job_data_path(dir, job_id, d, eval, e), *cache = data_path(dir, "cache", NULL);
    int rc = path ? (e->code = 0) : e->code;
    struct dataset_source source = {.path = path, .name = d->ref ? d->ref : eval ? "validation" : "dataset"};
    struct dataset_options options = {
        .format = d->format,
        .max_length = max_length,
        .train_on_prompt = d->train_on_prompt,
        .keep_duplicates = d->keep_duplicates,
        .no_eos = d->no_eos,
        .cache_dir = cache,
        .cache_bytes = CACHE_BYTES,
        .threads = 1, /* the other cores serve requests */
        .progress = hooks->progress,
        .cancelled = hooks->cancelled,
        .arg = hooks->arg,
    };
    /* the same code and template as serving, so that training prompts match those of requests */
    const struct chat_format *chat = &app->chat;
    if (!rc && chat->broken) rc = err_set(e, ERR_INVALID, "%s", chat->reason);
    if (!rc)
        rc = dataset_open(out, &source, &options, engine_tokenizer(app->engine), chat->template,
                          app->info->n_eos ? app->info->eos[0] : -1, report, e);
    free(path);
    free(cache);
    return rc;
}
