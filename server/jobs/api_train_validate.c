/* POST /train/validate: reports what a job would do, without running it.  The store thread reads and checks the
 * request, a pool thread prepares the data (in the cache, for later jobs with the same data), the loop answers. */
#include "server/jobs/api_train.h"

#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/api/model_table.h"
#include "server/bridge/bridge.h"
#include "server/config/settings.h"
#include "server/jobs/job_data.h"
#include "server/jobs/job_report.h"
#include "server/jobs/routes.h"
#include "server/jobs/split_report.h"
#include "server/json/json.h"
#include "server/net/http.h"
#include "server/store/data_dir.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AT_ONCE = 2, ROWS = 3, ROWS_MAX = 20 };

struct validation {
    struct app *app;
    struct served_model *served; /* used while the pool works; NULL: not yet */
    struct http_req *req;        /* NULL once closed */
    atomic_bool gone;            /* the same for the pool thread */
    struct train_spec spec;
    char id[DATA_ID_MAX]; /* of the inline data, which is stored until the answer */
    char *from, *teacher;
    int rows;
    struct train_split_question split; /* gpus 0: it is not asked how the job could be divided */
    double tokens_per_s;               /* measured by an earlier job of this method; NAN: none */
    char speed_job[48];
    /* the result */
    struct err e;
    struct dataset_report report, eval_report;
    struct train_plan plan;
    struct err plan_error;
    struct buf splits; /* JSON, or empty */
    struct buf preview;
};

static void validation_free(struct validation *v)
{
    train_spec_free(&v->spec);
    buf_free(&v->preview);
    buf_free(&v->splits);
    free(v->from);
    free(v->teacher);
    free(v);
}

/* ---- the store thread ------------------------------------------------------------------------------------------ */

/* A rate of the query, in units of `unit`; 0: it is not there. */
static bool read_rate(const char *query, const char *name, double unit, double *out, struct err *e)
{
    char text[32], *end;
    if (!query_get(query, name, text, sizeof text)) return true;
    double v = strtod(text, &end);
    if (end == text || *end || !(v > 0 && v <= 1e6)) {
        err_set(e, ERR_INVALID, "%s: must be a number above 0 and at most 1000000", name);
        return false;
    }
    *out = v * unit;
    return true;
}

/* gpus=8x80G, link=12.5, tflops=400: as of tandem plan. */
static bool read_split(const char *query, struct train_split_question *q, struct err *e)
{
    char gpus[48];
    if (!query_get(query, "gpus", gpus, sizeof gpus)) return true;
    return !split_gpus_parse(gpus, &q->gpus, &q->memory, e) && read_rate(query, "link", 1e9, &q->link, e) &&
           read_rate(query, "tflops", 1e12, &q->flops, e);
}

static void check(struct store_request *c, struct db *db)
{
    struct validation *v = c->user;
    struct train_limits lim = train_limits_of(c);
    struct err e = {0};
    int64_t rows;
    if (!query_int(c->query, "rows", 0, ROWS_MAX, ROWS, &rows, &e) || !read_split(c->query, &v->split, &e)) {
        store_request_fail(c, 422, "validation", NULL, "%s", e.msg);
        return;
    }
    v->rows = (int)rows;
    cJSON *tree = store_request_object(c);
    if (!tree) return;
    train_spec_free(&v->spec);
    int status = train_spec_read(&v->spec, tree, &lim, &e);
    if (!v->id[0]) data_id(v->id, "validate-"); /* kept when a batch of works is repeated */
    if (status) {
        store_request_fail(c, status, "validation", NULL, "Input validation error: %s", e.msg);
    } else if (train_check(c, db, &v->spec)) {
        if (job_data_save(db->dir, v->id, &v->spec.data, false, &e) ||
            job_data_save(db->dir, v->id, &v->spec.eval, true, &e))
            store_request_fail(c, 507, "storage", NULL, "the rows could not be stored: %s", e.msg);
        if (v->spec.from && !v->from) v->from = data_path(db->dir, "adapters", v->spec.from);
        if (v->spec.teacher && !v->spec.teacher_model && !v->teacher)
            v->teacher = data_path(db->dir, "adapters", v->spec.teacher);
    }
    v->spec.data.inline_ = v->spec.eval.inline_ = NULL;
    json_free(tree);
    v->tokens_per_s = NAN;
    sqlite3_stmt *q =
        db_query(db,
                 "SELECT last ->> '$.tokens_per_s', id FROM job_rows WHERE method = ? AND last IS NOT NULL"
                 " ORDER BY seq DESC LIMIT 1",
                 "t", train_spec_method(&v->spec));
    if (db_step(db, q)) {
        v->tokens_per_s = db_double(q, 0);
        snprintf(v->speed_job, sizeof v->speed_job, "%s", db_text(q, 1));
        db_done(q);
    }
}

/* ---- the pool -------------------------------------------------------------------------------------------------- */

static bool is_gone(void *arg)
{
    struct validation *v = arg;
    return atomic_load(&v->gone);
}

static int open_data(struct validation *v, bool eval, struct dataset **out)
{
    const struct data_spec *d = eval ? &v->spec.eval : &v->spec.data;
    const char *dir = settings_data_dir(v->app->set); /* the pool does not access the store */
    return job_data_open(v->app, v->served, v->id, d, eval, &v->spec.p,
                         &(struct job_data_hooks){.cancelled = is_gone, .stop = &v->gone, .arg = v}, dir, out,
                         eval ? &v->eval_report : &v->report, &v->e);
}

static void put_segments(struct validation *v, const struct dataset_row *row)
{
    struct dataset_preview p;
    struct buf *b = &v->preview;
    dataset_preview(row, engine_tokenizer(v->served->engine), &p);
    for (int k = 0; k < p.n; k++) {
        buf_printf(b, "%s{\"trained\":%s,\"tokens\":%d,\"text\":", k ? "," : "", p.v[k].trained ? "true" : "false",
                   p.v[k].tokens);
        json_put_string(b, p.v[k].text, p.v[k].bytes);
        buf_char(b, '}');
    }
    dataset_preview_free(&p);
}

static void put_row(struct validation *v, const struct dataset *data, uint64_t i)
{
    struct dataset_row row = dataset_row(data, i), first = dataset_row_answer(&row, false),
                       second = dataset_row_answer(&row, true);
    struct buf *b = &v->preview;
    buf_printf(b, "%s{\"tokens\":%d,\"trained_tokens\":%d,", i ? "," : "", row.n, row.n_trained);
    if (row.label) buf_printf(b, "\"label\":%s,", row.label == DATASET_DESIRABLE ? "true" : "false");
    buf_str(b, "\"segments\":[");
    put_segments(v, &first);
    if (second.n) {
        buf_str(b, "],\"rejected\":[");
        put_segments(v, &second);
    }
    buf_str(b, "]}");
}

/* Of cards that need not be here. */
static void divide(struct validation *v)
{
    const char *type = v->served->info->weight_type;
    bool quantised = strcmp(type, "int8") == 0 || strcmp(type, "int4") == 0 || strcmp(type, "nf4") == 0;
    struct train_split_answer a;
    struct err e = {0};
    v->split.model = v->served->dir;
    v->split.quantize = quantised ? type : "none";
    v->split.p = v->spec.p;
    if (train_splits(&v->split, &a, &e))
        split_json_error(&v->splits, &e); /* the job itself is valid */
    else
        split_json(&v->splits, &v->split, &a);
}

static void work_validate(void *arg)
{
    struct validation *v = arg;
    struct dataset *data = NULL, *eval = NULL;
    if (open_data(v, false, &data) == 0 && v->spec.eval.kind && open_data(v, true, &eval))
        err_prefix(&v->e, "validation");
    if (!v->e.code) {
        uint64_t n = dataset_rows(data);
        for (uint64_t i = 0; i < n && i < (uint64_t)v->rows; i++) put_row(v, data, i);
        struct train_job job = {.p = v->spec.p,
                                .data = data,
                                .eval = eval,
                                .from = v->from,
                                .teacher = v->teacher,
                                .answers = v->spec.teacher_model ? "" : NULL,
                                .base_name = v->served->info->base_name,
                                .model_dir = v->served->dir};
        if (v->spec.draft.on)
            err_set(&v->plan_error, ERR_INVALID, "method draft has no plan before its texts are generated");
        else
            engine_train_plan(v->served->engine, &job, &v->plan, &v->plan_error);
        if (v->split.gpus && !v->plan_error.code) divide(v);
    }
    if (data) dataset_free(data);
    if (eval) dataset_free(eval);
    job_data_remove(settings_data_dir(v->app->set), v->id);
}

/* ---- the loop -------------------------------------------------------------------------------------------------- */

static void put_estimate(struct buf *b, const struct validation *v)
{
    const struct train_plan *p = &v->plan;
    /* the minimum: the last batch of an epoch is smaller, and max_steps may end the job early */
    double tokens = (double)p->tokens_per_epoch * v->spec.p.epochs, most = (double)p->steps * v->spec.p.batch_tokens;
    if (v->spec.p.max_steps > 0 && most < tokens) tokens = most;
    buf_printf(b, ",\"estimate\":{\"steps\":%lld,\"tokens\":", (long long)p->steps);
    json_put_number(b, tokens);
    buf_str(b, ",\"tokens_per_s\":");
    json_put_number(b, v->tokens_per_s);
    buf_str(b, ",\"seconds\":");
    json_put_number(b, v->tokens_per_s > 0 ? tokens / v->tokens_per_s : NAN);
    buf_str(b, ",\"based_on\":");
    if (v->tokens_per_s > 0)
        buf_printf(b, "\"%s\"}", v->speed_job);
    else
        buf_str(b, "null}");
}

static void answer(struct validation *v)
{
    struct buf b = {0};
    if (v->e.code || v->plan_error.code) {
        const struct err *e = v->e.code ? &v->e : &v->plan_error;
        store_request_reply_error(v->req, false, 422, "validation", "%s%s", v->e.code ? "dataset: " : "", e->msg);
        return;
    }
    buf_str(&b, "{\"object\":\"train.validation\",\"dataset\":");
    job_put_report(&b, &v->report, &v->spec.data);
    buf_str(&b, ",\"validation\":");
    if (v->spec.eval.kind)
        job_put_report(&b, &v->eval_report, &v->spec.eval);
    else
        buf_str(&b, "null");
    buf_str(&b, ",\"rows\":[");
    buf_append(&b, v->preview.data, v->preview.len);
    buf_str(&b, "],\"hyperparameters\":");
    train_params_put(&b, &v->spec.p);
    buf_str(&b, ",\"plan\":{");
    job_put_plan(&b, &v->plan);
    buf_char(&b, '}');
    put_estimate(&b, v);
    if (v->splits.len) buf_printf(&b, ",\"splits\":%s", v->splits.data);
    buf_char(&b, '}');
    http_reply(v->req, 200, "application/json", b.data, b.len);
    buf_free(&b);
}

static void on_validated(void *arg)
{
    struct validation *v = arg;
    v->app->validations--;
    model_release(v->app->models, v->served);
    if (v->req) {
        v->req->on_close = NULL;
        answer(v);
    }
    validation_free(v);
}

static void on_close(struct http_req *req)
{
    struct validation *v = req->user;
    v->req = NULL;
    atomic_store(&v->gone, true);
}

static void after_check(struct store_request *c)
{
    struct validation *v = c->user;
    if (c->status >= 400) {
        c->app->validations--;
        validation_free(v);
        return;
    }
    c->answered = true;
    v->app = c->app;
    v->served = c->served;
    model_use_again(v->served);
    v->req = c->req;
    if (v->req) {
        v->req->user = v;
        v->req->on_close = on_close;
    } else {
        atomic_store(&v->gone, true); /* only the inline data remains to be removed */
    }
    bridge_work(v->served->bridge, 0, work_validate, on_validated, v);
}

static void settle_check(struct store_request *c, struct db *db)
{
    struct validation *v = c->user;
    if (c->status >= 400 && v->id[0]) job_data_remove(db->dir, v->id);
}

void api_train_validate(struct http_req *req)
{
    struct app *app = req->app;
    if (train_refuses(req, false)) return;
    if (app->validations >= AT_ONCE) {
        http_set_header(req, "Retry-After", "2");
        store_request_reply_error(req, false, 429, "overloaded", "%d validations are running already", AT_ONCE);
        return;
    }
    app->validations++;
    struct store_request *c = store_request_new(req, false, check);
    store_request_take_body(c);
    c->user = mem_zalloc(sizeof(struct validation));
    c->settle = settle_check;
    c->after = after_check;
    store_request_send(c);
}
