/* The parts of a job that read and write files: preparing its data, publishing its result.  Pool threads. */
#include "server/jobs/job_run.h"

#include "engine/base/crash.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/sha256.h"
#include "engine/serve/engine.h"
#include "server/api/adapters.h"
#include "server/api/served_model.h"
#include "server/config/settings.h"
#include "server/jobs/job_data.h"
#include "server/jobs/job_texts.h"
#include "server/jobs/published.h"
#include "server/json/json.h"
#include "server/rewards/rewards.h"
#include "server/store/data_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void run_free(struct run *r)
{
    train_spec_free(&r->spec);
    if (r->data) dataset_free(r->data);
    if (r->eval) dataset_free(r->eval);
    rewards_free(r->rewards);
    free(r->dir);
    free(r->out);
    free(r->from);
    free(r->teacher);
    free(r->answers);
    free(r->target);
    free(r->before);
    free(r->start);
    free(r->lines);
    free(r->written);
    free(r);
}

bool run_choose_slots(struct run *r)
{
    struct train_params *p = &r->spec.p;
    int ranks = r->served->info->train_ranks;
    if (p->grad_slots || ranks < 2 || p->method == TRAIN_GRPO || r->spec.draft.on) return false;
    p->grad_slots = r->reached ? 1 : train_ranks_slots(ranks); /* with one it has begun */
    return true;
}

/* ---- preparing ------------------------------------------------------------------------------------------------- */

/* @return whether the job was cancelled or paused, or the daemon ends; unfinished data is prepared again later. */
static bool is_stopped(void *arg)
{
    struct run *r = arg;
    return atomic_load(&r->stopping) || atomic_load(&r->interrupted);
}

static int open_data(struct run *r, const struct data_spec *d, bool eval, struct dataset **out,
                     struct dataset_report *report)
{
    struct job_data_hooks hooks = {
        .progress = run_prepared, .cancelled = is_stopped, .stop = &r->interrupted, .arg = r};
    return job_data_open(r->app, r->served, r->id, d, eval, &r->spec.p, &hooks, settings_data_dir(r->app->set), out,
                         report, &r->e);
}

/* @return whether the served result is already this job's: a crash came between renaming it and storing the state. */
static bool is_published(const struct run *r)
{
    char *path = file_join(r->target, "tandem.json"), *text = NULL;
    size_t n;
    struct err e = {0};
    bool mine = false;
    if (file_read(path, 65536, &text, &n, &e) == 0) {
        struct buf wanted = {0};
        buf_printf(&wanted, "\"job\":\"%s\"", r->id);
        mine = strstr(text, wanted.data) != NULL;
        buf_free(&wanted);
    }
    free(text);
    free(path);
    return mine;
}

/* The model that becomes a draft: made of the served one, or one that is there. */
static int open_start(struct run *r)
{
    const char *dir = settings_data_dir(r->app->set);
    const struct draft_spec *d = &r->spec.draft;
    r->error_code = "invalid_draft";
    r->lines = file_join(r->dir, "texts.jsonl");
    r->written = file_join(r->dir, "texts-in-order.jsonl");
    r->has_texts = access(r->written, R_OK) == 0;
    r->start = d->init ? data_path(dir, "models", d->init) : file_join(r->dir, "start");
    char *weights = file_join(r->start, "model.safetensors");
    int rc = 0;
    if (!d->init && access(weights, R_OK)) /* written last */
        rc = engine_make_draft(r->served->dir, r->start, d->layers, &r->e);
    if (!rc) rc = engine_check_draft(r->served->engine, r->start, &r->e);
    if (rc) err_prefix(&r->e, d->init ? "draft.init" : "draft");
    free(weights);
    return rc;
}

static void fill_job(struct run *r)
{
    bool full = r->spec.p.method == TRAIN_FULL;
    if (r->spec.batch_size) r->spec.p.batch_tokens = train_batch_tokens(r->spec.batch_size, &r->report);
    r->e.code = 0;
    r->job = (struct train_job){
        .p = r->spec.p,
        .data = r->data,
        .eval = r->eval,
        .from = r->from,
        .teacher = r->teacher,
        .answers = r->answers,
        .base_name = r->served->info->base_name,
        .model_dir = r->start ? r->start
                     : full   ? r->served->dir
                              : NULL,
        .start = r->start,
        .dir = r->dir,
        .out = r->out,
    };
}

static int open_rewards(struct run *r)
{
    unsigned char digest[SHA256_BYTES];
    struct sha256 h;
    cJSON *list = json_parse(r->spec.rewards, strlen(r->spec.rewards), &r->e);
    if (list) r->rewards = rewards_open(list, "rewards", &r->e);
    json_free(list);
    sha256_start(&h);
    sha256_add(&h, r->spec.rewards, strlen(r->spec.rewards));
    sha256_end(&h, digest);
    memcpy(&r->job.rewards_hash, digest, sizeof r->job.rewards_hash);
    return r->e.code;
}

void run_prepare(uv_work_t *w)
{
    struct run *r = w->data;
    const char *dir = settings_data_dir(r->app->set);
    bool full = r->spec.p.method == TRAIN_FULL;
    crash_thread_begin();
    r->error_code = "storage";
    r->dir = data_path(dir, "checkpoints", r->id);
    r->out = file_join(r->dir, "result");
    r->target = data_path(dir, full ? "models" : "adapters", r->spec.serve_as);
    if (!full) r->before = data_path(dir, "adapters-before", r->spec.serve_as);
    if (r->spec.from) r->from = data_path(dir, "adapters", r->spec.from);
    if (r->spec.teacher && !r->spec.teacher_model) r->teacher = data_path(dir, "adapters", r->spec.teacher);
    if (r->spec.teacher_model) r->answers = file_join(r->dir, "teacher");
    if (data_mkdir(dir, "checkpoints", r->id, &r->e) || data_mkdir(dir, full ? "models" : "adapters", NULL, &r->e) ||
        (!full && data_mkdir(dir, "adapters-before", NULL, &r->e)))
        return;
    r->published = is_published(r);
    if (r->published) return;
    if (r->spec.draft.on && open_start(r)) return;
    if (r->has_texts) {
        run_prepare_texts(w);
        return;
    }
    r->error_code = "invalid_dataset";
    if (open_data(r, &r->spec.data, false, &r->data, &r->report)) return;
    if (r->spec.draft.on) return; /* of prompts: their texts are made next */
    if (r->spec.eval.kind && open_data(r, &r->spec.eval, true, &r->eval, &r->eval_report)) {
        err_prefix(&r->e, "validation");
        return;
    }
    fill_job(r);
    if (r->spec.rewards && open_rewards(r)) r->error_code = "invalid";
    if (r->answers) run_open_answers(r);
}

void run_prepare_texts(uv_work_t *w)
{
    struct run *r = w->data;
    crash_thread_begin();
    r->error_code = "invalid_dataset";
    if (r->data) dataset_free(r->data);
    r->data = NULL;
    struct job_data_hooks hooks = {
        .progress = run_prepared, .cancelled = is_stopped, .stop = &r->interrupted, .arg = r};
    if (job_data_open_texts(r->served, r->written, &r->spec.p, &hooks, settings_data_dir(r->app->set), &r->data,
                            &r->report, &r->e))
        return;
    r->has_texts = true;
    fill_job(r);
}

void run_generate(struct run *r, void (*over)(void *run, const struct err *))
{
    char text[160];
    snprintf(text, sizeof text, "Generating texts for %llu prompts", (unsigned long long)dataset_rows(r->data));
    run_log(r, "info", text);
    struct job_texts_task task = {.app = r->app,
                                  .served = r->served,
                                  .prompts = r->data,
                                  .lines = r->lines,
                                  .out = r->written,
                                  .max_new_tokens = r->spec.draft.max_new_tokens,
                                  .max_length = r->spec.p.max_length,
                                  .temperature = r->spec.draft.temperature,
                                  .seed = r->spec.p.seed,
                                  .progress = run_prepared,
                                  .written = run_progressed,
                                  .over = over,
                                  .arg = r};
    r->texts = job_texts_start(&task);
}

/* ---- publishing ------------------------------------------------------------------------------------------------ */

static void publish_result(struct run *r, const struct served_model *by)
{
    struct buf about = {0};
    char *path = file_join(r->out, "tandem.json");
    buf_printf(&about, "{\"job\":\"%s\",\"base\":", r->id);
    json_put_string(&about, r->served->id, strlen(r->served->id));
    if (r->acceptance > 0) buf_printf(&about, ",\"acceptance\":%.6f", r->acceptance);
    buf_str(&about, "}\n");
    if (data_write(path, about.data, about.len, &r->e) == 0)
        published_put(by, r->spec.serve_as, r->out, r->target, r->before, &r->e);
    buf_free(&about);
    free(path);
}

void run_publish(uv_work_t *w)
{
    struct run *r = w->data;
    struct served_model *by = r->spec.p.method != TRAIN_FULL ? r->served : NULL;
    crash_thread_begin();
    r->e.code = 0;
    r->error_code = "publishing_failed";
    r->withheld = r->spec.gate && !r->published && r->best_step <= 0;
    if (r->withheld)
        data_remove(r->out);
    else if (!r->published)
        publish_result(r, by);
    else if (!by || adapters_publish_dir(by, r->spec.serve_as, r->target, &r->e) == 0)
        published_end(r->out, r->before);
    if (!r->e.code && r->answers) data_remove(r->answers);
}
