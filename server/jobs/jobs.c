/* The runner's states (jobs.h).  Loop thread, except the claim's function on the store thread. */
#include "server/jobs/job_run.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/api/adapters.h"
#include "server/api/model_table.h"
#include "server/config/settings.h"
#include "server/jobs/batch_db.h"
#include "server/jobs/evaluation_db.h"
#include "server/jobs/job_db.h"
#include "server/jobs/job_report.h"
#include "server/jobs/job_texts.h"
#include "server/jobs/rollouts.h"
#include "server/jobs/teacher_answers.h"
#include "server/json/json.h"
#include "server/store/data_dir.h"
#include "server/store/db_views.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RETRY_MS = 2000, ATTEMPTS_MAX = 5, LOADS_MAX = 6 };

/* ---- sweeping: files without a row ---------------------------------------------------------------------------- */

struct sweep {
    struct store_work work; /* first */
    struct jobs *jobs;
    struct db *db;
    const char *folder;
    struct buf orphans; /* paths, each with its terminating 0; removed after the commit */
};

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static bool is_known(struct sweep *s, const char *name)
{
    char id[64];
    snprintf(id, sizeof id, "%.*s", (int)strcspn(name, "."), name);
    if (strcmp(s->folder, "files") == 0)
        return db_number(s->db, 0,
                         "SELECT (SELECT count(*) FROM files WHERE id = ?1) + (SELECT count(*) FROM batches"
                         " WHERE ?1 IN (output_id, errors_id) AND status IN " BATCH_ACTIVE ")",
                         "t", name) > 0;
    if (ends_with(id, "-eval")) id[strlen(id) - 5] = 0;
    /* inline data is needed until the job is in a final state */
    if (strcmp(s->folder, "inline") == 0)
        return !strstr(name, ".tmp") &&
               db_number(s->db, 0,
                         "SELECT (SELECT count(*) FROM jobs WHERE id = ?1 AND status NOT IN ('succeeded', 'cancelled'))"
                         " + (SELECT count(*) FROM evaluations WHERE id = ?1 AND status IN " EVALUATION_ACTIVE ")",
                         "t", id) > 0;
    return db_number(s->db, 0, "SELECT count(*) FROM jobs WHERE id = ?", "t", id) > 0;
}

static void sweep_one(void *arg, const char *name)
{
    struct sweep *s = arg;
    if (is_known(s, name) || s->db->e.code) return;
    char *path = data_path(s->db->dir, s->folder, name);
    buf_append(&s->orphans, path, strlen(path) + 1);
    free(path);
}

static int on_sweep(struct store_work *w, struct db *db)
{
    static const char *const folders[] = {"inline", "checkpoints", "tensorboard"};
    struct sweep *s = (struct sweep *)w;
    const struct buf *found = &s->jobs->found;
    struct err e = {0};
    s->db = db;
    buf_clear(&s->orphans);
    db_optional_begin(db);
    db_views_check(db);
    if (!db_optional_end(db, &e)) log_warn("the jobs' rows were not looked through: %s", e.msg);
    db_run(db,
           "DELETE FROM files WHERE expires < ? AND NOT EXISTS(SELECT 1 FROM jobs"
           " WHERE status IN ('queued', 'running', 'paused') AND instr(spec, files.id) > 0)"
           " AND NOT EXISTS(SELECT 1 FROM batches WHERE input_file = files.id AND status IN " BATCH_ACTIVE ")"
           " AND NOT EXISTS(SELECT 1 FROM evaluations WHERE file = files.id AND status IN " EVALUATION_ACTIVE ")",
           "i", data_now_ms() / 1000);
    s->folder = "files"; /* from the list made by jobs_list_uploads: the folder now also contains running uploads */
    for (const char *p = found->data; p && p < found->data + found->len; p += strlen(p) + 1) sweep_one(s, p);
    for (int i = 0; i < 3; i++) {
        s->folder = folders[i];
        data_list(db->dir, s->folder, sweep_one, s);
    }
    db->jobs_changed = true;
    return 0;
}

static void on_swept(struct store_work *w, struct db *db)
{
    struct sweep *s = (struct sweep *)w;
    const struct buf *v = &s->orphans;
    if (!w->undone) {
        for (const char *p = v->data; p && p < v->data + v->len; p += strlen(p) + 1) {
            log_info("removing what no job or file owns: path=%s", p);
            data_remove(p);
        }
        job_sweep_checkpoints(db);
    }
    buf_free(&s->orphans);
}

/* ---- claiming the next job ------------------------------------------------------------------------------------- */

struct claim {
    struct store_work work; /* first */
    struct jobs *jobs;
    struct run *run; /* NULL: no job is queued */
    bool again;      /* a job was finished without running: look for another */
};

/* Applies a command that was stored while the job was not running. */
static bool settle_wanted(struct db *db, int64_t seq, const char *wanted)
{
    if (strcmp(wanted, "cancel") == 0)
        job_set_state(db, seq, JOB_CANCELLED, NULL, NULL);
    else if (strcmp(wanted, "pause") == 0)
        job_set_state(db, seq, JOB_PAUSED, NULL, NULL);
    else
        return false;
    return true;
}

static struct run *run_new(struct jobs *jobs, sqlite3_stmt *q, struct err *e)
{
    struct run *r = mem_zalloc(sizeof *r);
    struct train_limits lim = {
        .model_id = "", .weight_type = "", .max_model_len = INT_MAX, .max_lora_rank = INT_MAX, .stored = true};
    r->jobs = jobs;
    r->app = jobs->app;
    r->stride = 1;
    r->seq = db_int(q, 0);
    snprintf(r->id, sizeof r->id, "%s", db_text(q, 1));
    r->resumed = !db_null(q, 4);
    r->reached = db_int(q, 7);
    const char *spec = db_text(q, 3);
    cJSON *tree = NULL;
    if (db_null(q, 3))
        err_set(e, ERR_INVALID, "what this job is to do is damaged in jobs.sqlite (column spec)");
    else
        tree = json_parse(spec, strlen(spec), e);
    if (tree) train_spec_read(&r->spec, tree, &lim, e);
    json_free(tree);
    r->e = *e;
    return r;
}

static int on_claim(struct store_work *w, struct db *db)
{
    struct claim *c = (struct claim *)w;
    char wanted[16];
    c->again = false;
    sqlite3_stmt *q = db_query(db,
                               "SELECT seq, id, coalesce(wanted, ''), spec, started, status = 'running', attempts, "
                               "coalesce(step, 0) FROM job_rows"
                               " WHERE status IN ('running', 'queued') ORDER BY status = 'queued', seq LIMIT 1",
                               "");
    if (!db_step(db, q)) return 0;
    int64_t seq = db_int(q, 0);
    snprintf(wanted, sizeof wanted, "%s", db_text(q, 2));
    bool running = db_int(q, 5), crashes = running && db_int(q, 6) >= ATTEMPTS_MAX;
    struct err e = {0};
    if (c->run) run_free(c->run); /* from an attempt whose transaction failed */
    c->run = run_new(c->jobs, q, &e);
    db_done(q);
    c->again = settle_wanted(db, seq, wanted);
    if (!c->again && crashes) {
        c->again = true;
        job_set_state(db, seq, JOB_FAILED, "crashed",
                      "the daemon crashed or was killed each time it ran this job; resume it to try once more");
    }
    if (c->again) {
        run_free(c->run);
        c->run = NULL;
        return 0;
    }
    c->run->again = running;
    if (running) {
        job_event(
            db, seq,
            &(struct job_event){
                .kind = "log", .level = "info", .step = -1, .message = "The daemon was restarted; the job goes on"});
    } else
        job_set_state(db, seq, JOB_RUNNING, NULL, NULL);
    db_run(db, "UPDATE jobs SET phase = 'preparing' WHERE seq = ?", "i", seq);
    return 0;
}

static void on_prepared(uv_work_t *w, int status);
static void on_retry(uv_timer_t *t);

/* The base is loaded: whether the job can run on it. */
static int check_base(const struct run *r, struct err *e)
{
    const struct engine_info *i = r->served->info;
    if (train_method_suits(r->spec.p.method, i->weight_type, e)) return e->code;
    if (r->spec.p.max_length > i->max_model_len)
        return err_set(e, ERR_INVALID, "max_length: the model that is served now has %d positions", i->max_model_len);
    if (train_length_suits(&r->spec.p, i->max_total_tokens, e)) return e->code;
    if (r->spec.p.method != TRAIN_FULL && r->spec.p.lora_r > i->max_lora_rank)
        return err_set(e, ERR_INVALID, "lora_r: %d, and --max-lora-rank of this server is %d", r->spec.p.lora_r,
                       i->max_lora_rank);
    return 0;
}

struct begin_work {
    struct store_work work; /* first */
    struct run *run;
    bool fitted;
    bool slots; /* grad_slots was chosen */
};

static int on_begin(struct store_work *w, struct db *db)
{
    const struct begin_work *b = (const struct begin_work *)w;
    if (b->run->again) /* from here on what ends the daemon may be this job */
        db_run(db, "UPDATE jobs SET attempts = attempts + 1 WHERE seq = ?", "i", b->run->seq);
    if (b->slots)
        db_run(db, "UPDATE jobs SET spec = json_set(spec, '$.hyperparameters.grad_slots', ?) WHERE seq = ?", "ni",
               b->run->spec.p.grad_slots, b->run->seq);
    if (b->fitted)
        db_run(db, "UPDATE jobs SET spec = json_set(spec, '$.hyperparameters.max_length', ?) WHERE seq = ?", "ni",
               b->run->spec.p.max_length, b->run->seq);
    return 0;
}

static void on_begun(struct store_work *w)
{
    struct run *r = ((struct begin_work *)w)->run;
    free(w);
    CHECK(uv_queue_work(r->jobs->retry.loop, &r->work, run_prepare, on_prepared) == 0);
}

/* What it needs could not be loaded now: waits until the table tries that again, a few times. */
static void wait_again(struct run *r, const struct err *e, bool may_pass)
{
    char text[sizeof e->msg + 80];
    uint64_t now = clock_now(), at = r->needs->retry_at, ms = at > now ? (at - now) / 1000000 + 1 : 0;
    if (!may_pass || ++r->loads > LOADS_MAX) {
        run_finish(r, JOB_FAILED, "model_load_failed", e->msg);
        return;
    }
    if (ms < RETRY_MS) ms = RETRY_MS;
    snprintf(text, sizeof text, "The model could not be loaded, and is tried again in %llu s: %s",
             (unsigned long long)(ms + 999) / 1000, e->msg);
    run_log(r, "warn", text);
    r->rests = true;
    uv_timer_start(&r->jobs->retry, on_retry, ms, 0);
}

static void begin_training(struct run *r);

static void on_loaded(void *arg, const struct err *e)
{
    struct run *r = arg;
    struct err wrong = {0};
    if (e->code == ERR_LOST) { /* the daemon ends */
        jobs_drain(r->jobs);
        run_stop_early(r);
        return;
    }
    if (e->code) {
        wait_again(r, e, e->code == ERR_IO || e->code == ERR_NOMEM || e->code == ERR_FULL);
        return;
    }
    r->uses = true;
    model_hold(r->needs);
    if (r->needs != r->served) {
        run_ask(r);
        return;
    }
    r->phase = RUN_PREPARING;
    if (r->told) { /* it was loaded before, and let go for the teacher */
        r->job.base_name = r->served->info->base_name;
        begin_training(r);
        return;
    }
    r->vocab = r->served->info->vocab;
    int most = r->served->info->max_model_len, total = r->served->info->max_total_tokens;
    if (r->spec.p.method == TRAIN_GRPO && total < most) most = total;
    bool fitted = r->spec.fit_length && r->spec.p.max_length > most;
    if (fitted) r->spec.p.max_length = most;
    if (check_base(r, &wrong)) {
        run_finish(r, JOB_FAILED, "invalid", wrong.msg);
        return;
    }
    bool slots = run_choose_slots(r);
    struct begin_work *b = mem_zalloc(sizeof *b);
    *b = (struct begin_work){.work = {.run = on_begin, .done = on_begun}, .run = r, .fitted = fitted, .slots = slots};
    store_send(r->app->store, &b->work);
}

/* Has the model that it needs loaded, and held. */
static void load_needed(struct run *r)
{
    struct app *app = r->app;
    struct err e = {0};
    if (r->needs->state == MODEL_FAILED && clock_now() < r->needs->retry_at) {
        wait_again(r, &r->needs->failure, true); /* for others; this job has not tried */
    } else if (model_use(app->models, r->needs)) {
        on_loaded(r, &e);
    } else if (!model_wait_for(app->models, r->needs, &r->wait, NULL, on_loaded, r)) {
        e.code = ERR_LOST;
        on_loaded(r, &e);
    }
}

static void let_go(struct run *r)
{
    if (!r->uses) return;
    r->uses = false;
    model_unhold(r->needs);
    model_release(r->app->models, r->needs);
}

void run_change_model(struct run *r, struct served_model *to)
{
    let_go(r);
    r->phase = RUN_WAITING;
    r->needs = to;
    load_needed(r);
}

/* Finds the model that it trains, and has it loaded for as long as the job needs it. */
static void begin_run(struct run *r)
{
    struct app *app = r->app;
    struct err e = {0};
    r->served = r->spec.base ? model_table_named(app->models, r->spec.base) : app->model;
    if (r->spec.base && !r->served) {
        err_set(&e, ERR_INVALID, "base: the job is for the model %.100s, and this server has %.100s: resume it there",
                r->spec.base, app->model->id);
        run_finish(r, JOB_FAILED, "invalid", e.msg);
        return;
    }
    r->needs = r->served;
    load_needed(r);
}

static void retry_later(struct jobs *j);

static void on_claimed(struct store_work *w)
{
    struct claim *c = (struct claim *)w;
    struct jobs *j = c->jobs;
    j->claiming = false;
    if (w->e.code) {
        if (c->run) run_free(c->run);
        if (!j->stopping) retry_later(j);
    } else if (c->run && j->stopping) {
        run_free(c->run); /* still `running` in its row: the next process continues it */
    } else if (c->run) {
        struct run *r = c->run;
        j->current = r;
        jobs_notify(j, r->seq);
        log_info("training: job=%s serve_as=%s resumed=%s", r->id, r->spec.serve_as, r->resumed ? "true" : "false");
        r->work.data = r;
        if (r->e.code)
            run_finish(r, JOB_FAILED, "invalid", r->e.msg);
        else
            begin_run(r);
    } else if (c->again) {
        jobs_kick(j);
    }
    free(c);
    if (j->stopping) jobs_stop(j, j->stopped, j->stopped_arg);
}

void jobs_kick(struct jobs *j)
{
    if (!j->ready || j->current || j->claiming || j->stopping) return;
    j->claiming = true;
    struct claim *c = mem_zalloc(sizeof *c);
    *c = (struct claim){.work = {.run = on_claim, .done = on_claimed}, .jobs = j};
    store_send(j->app->store, &c->work);
}

/* ---- while it runs --------------------------------------------------------------------------------------------- */

void run_stop_early(struct run *r)
{
    if (r->wanted == TRAIN_CANCEL) {
        run_finish(r, JOB_CANCELLED, NULL, NULL);
    } else {
        struct train_event ev = {.kind = TRAIN_PAUSED};
        run_on_event(r, &ev);
    }
}

/* Ends a job that waits for a model. */
static void stop_waiting(struct run *r)
{
    if (r->phase != RUN_WAITING || (!r->wait.next && !r->rests)) return;
    if (r->rests) uv_timer_stop(&r->jobs->retry);
    r->rests = false;
    model_wait_cancel(r->app->models, &r->wait);
    run_stop_early(r);
}

struct report_work {
    struct store_work work; /* first */
    struct run *run;
    struct buf report, message;
};

static int on_report(struct store_work *w, struct db *db)
{
    struct report_work *p = (struct report_work *)w;
    struct buf data = {0};
    db_run(db, "UPDATE jobs SET report = ?, prepared = 1 WHERE seq = ?", "ti", p->report.data, p->run->seq);
    buf_printf(&data, "\"report\":%s", p->report.data);
    job_event(
        db, p->run->seq,
        &(struct job_event){.kind = "log", .level = "info", .message = p->message.data, .step = -1, .data = data.data});
    buf_free(&data);
    return 0;
}

static void on_reported(struct store_work *w)
{
    struct report_work *p = (struct report_work *)w;
    jobs_notify(p->run->jobs, p->run->seq);
    buf_free(&p->report);
    buf_free(&p->message);
    free(p);
}

static void send_report(struct run *r)
{
    struct report_work *p = mem_zalloc(sizeof *p);
    p->work = (struct store_work){.run = on_report, .done = on_reported};
    p->run = r;
    job_put_report(&p->report, &r->report, &r->spec.data);
    buf_printf(&p->message, "Data: %llu rows kept, %llu skipped, %llu duplicates, %llu truncated; %llu tokens",
               (unsigned long long)r->report.kept, (unsigned long long)r->report.skipped,
               (unsigned long long)r->report.duplicates, (unsigned long long)r->report.truncated,
               (unsigned long long)r->report.tokens);
    store_send(r->app->store, &p->work);
}

static void on_published(uv_work_t *w, int status)
{
    struct run *r = w->data;
    (void)status;
    struct err e = r->e;
    if (e.code) {
        run_finish(r, JOB_FAILED, r->error_code, e.msg);
        return;
    }
    if (r->withheld) {
        run_log(r, "warn",
                "Not published: no evaluation was better than the first, of what requests get without this job");
        run_finish(r, JOB_SUCCEEDED, NULL, NULL);
        return;
    }
    if (r->spec.p.method != TRAIN_FULL) adapters_supersede(r->app, r->served, r->spec.serve_as);
    char text[160];
    snprintf(text, sizeof text, "New fine-tuned model created: %s", r->spec.serve_as);
    run_log(r, "info", text);
    if (r->spec.draft.on && r->acceptance > 0) {
        snprintf(text, sizeof text, "Of held-out texts the draft would have chosen %.1f %% of the tokens",
                 100 * r->acceptance);
        run_log(r, "info", text);
    }
    run_finish(r, JOB_SUCCEEDED, NULL, NULL);
}

static void publish(struct run *r)
{
    r->phase = RUN_PUBLISHING;
    CHECK(uv_queue_work(r->jobs->retry.loop, &r->work, run_publish, on_published) == 0);
}

/* The texts of a draft are there. */
static void on_generated(void *arg, const struct err *e)
{
    struct run *r = arg;
    r->texts = NULL;
    r->phase = RUN_PREPARING;
    if (!e->code)
        CHECK(uv_queue_work(r->jobs->retry.loop, &r->work, run_prepare_texts, on_prepared) == 0);
    else if (served_models_lost(
                 r->app)) /* maybe by one of its texts: it counts as a crash, also if the daemon drains */
        run_on_event(r, &(struct train_event){.kind = TRAIN_LOST, .text = "while it generated texts"});
    else if (r->wanted != TRAIN_GO_ON || atomic_load(&r->interrupted))
        run_stop_early(r);
    else
        run_finish(r, JOB_FAILED, "generation_failed", e->msg);
}

static void begin_rollouts(struct run *r)
{
    r->rollouts = rollouts_open(&(struct rollouts_config){.loop = r->app->loop,
                                                          .bridge = r->served->bridge,
                                                          .engine = r->served->engine,
                                                          .rewards = r->rewards,
                                                          .data = r->data,
                                                          .job = r->id});
    r->job.rollout = rollouts_make;
    r->job.rollout_arg = r->rollouts;
}

static void begin_training(struct run *r)
{
    struct err e = {0};
    r->phase = RUN_TRAINING;
    if (r->rewards) begin_rollouts(r);
    if (engine_train_start(r->served->engine, &r->job, run_on_event, r, &e))
        run_finish(r, JOB_FAILED, "training_failed", e.msg);
}

static void on_prepared(uv_work_t *w, int status)
{
    struct run *r = w->data;
    struct err e = r->e;
    (void)status;
    if (e.code && (r->wanted != TRAIN_GO_ON || atomic_load(&r->interrupted))) {
        run_stop_early(r);
        return;
    }
    if (e.code) {
        run_finish(r, JOB_FAILED, r->error_code, e.msg);
        return;
    }
    if (r->published) {
        publish(r);
        return;
    }
    if (!r->spec.draft.on || r->has_texts) send_report(r);
    if (r->wanted != TRAIN_GO_ON) {
        run_stop_early(r);
        return;
    }
    if (r->spec.draft.on && !r->has_texts) {
        r->phase = RUN_GENERATING;
        run_generate(r, on_generated);
        return;
    }
    if (r->answers && !r->told)
        run_find_teacher(r);
    else
        begin_training(r);
}

/* Its adapter has one of the engine's slots until then. */
static void end_rollouts(struct run *r)
{
    if (r->rollouts) rollouts_close(r->rollouts);
    r->rollouts = NULL;
}

static void run_end(struct run *r)
{
    struct jobs *j = r->jobs;
    CHECK(j->current == r);
    j->current = NULL;
    j->view.last = (struct train_event){0};
    end_rollouts(r);
    let_go(r);
    run_free(r);
    if (j->stopping)
        jobs_stop(j, j->stopped, j->stopped_arg);
    else
        jobs_kick(j);
}

/* What stays in the view when the job ends. */
static void view_record(struct jobs_view *v, const struct train_event *ev)
{
    bool full = ev->kind == TRAIN_PLAN || ev->kind == TRAIN_STEP || ev->kind == TRAIN_EVAL ||
                ev->kind == TRAIN_PAUSED || ev->kind == TRAIN_SUCCEEDED;
    if (!full) return; /* others may be notes of the runner, without figures */
    if (ev->kind == TRAIN_PLAN || ev->kind == TRAIN_EVAL) v->eval_loss = ev->eval_loss;
    v->best_eval_loss = ev->best_eval_loss;
    v->evals_since_best = ev->evals_since_best;
    v->peak_host = ev->usage.host_peak;
    v->peak_device = ev->usage.device_peak;
}

void jobs_on_event(struct run *r, const struct train_event *ev)
{
    struct jobs_view *v = &r->jobs->view;
    view_record(v, ev);
    if (ev->kind == TRAIN_STEP) {
        if (ev->step == 1) v->tokens += (uint64_t)ev->tokens, v->trained_tokens += (uint64_t)ev->trained_tokens;
        int64_t tokens = ev->tokens - v->last.tokens, trained = ev->trained_tokens - v->last.trained_tokens;
        if (v->last.kind == TRAIN_STEP && tokens > 0)
            v->tokens += (uint64_t)tokens, v->trained_tokens += (uint64_t)trained;
        v->steps++;
        /* events have totals since the job's start: after a pause or restart the first event's total was already
         * counted */
        bool known = v->last.kind == TRAIN_STEP || ev->step == 1;
        if (known && ev->skipped > v->last.skipped) v->skipped += (uint64_t)(ev->skipped - v->last.skipped);
        v->last = *ev;
    } else if (ev->kind == TRAIN_LOST) {
        r->jobs->stopping = true; /* the process is about to end: no other job starts */
        run_end(r);
    } else if (ev->kind == TRAIN_PAUSED) {
        run_end(r);
    } else if (ev->kind == TRAIN_SUCCEEDED) {
        end_rollouts(r); /* the result may need the slot */
        publish(r);
    }
}

void jobs_on_finished(struct run *r, enum job_state state, const char *code, const char *text)
{
    if (state == JOB_FAILED)
        log_warn("training failed: job=%s code=%s error=\"%s\"", r->id, code ? code : "failed", text);
    else
        log_info("training ended: job=%s state=%s", r->id, job_state_names[state]);
    run_end(r);
}

void jobs_command(struct jobs *j, int64_t seq, enum train_command command)
{
    struct run *r = j->current;
    if (!r || r->seq != seq || j->stopping) return;
    r->wanted = command;
    if (command != TRAIN_GO_ON) atomic_store(&r->interrupted, true);
    if (r->phase == RUN_TRAINING) engine_train_command(r->served->engine, command);
    if (command != TRAIN_GO_ON) stop_waiting(r);
    if (r->texts && command != TRAIN_GO_ON) job_texts_stop(r->texts);
    if (r->asks && command != TRAIN_GO_ON) teacher_answers_stop(r->asks);
}

/* ---- a final state that cannot be written, a base that cannot be loaded now -------------------------------------- */

static void on_retry(uv_timer_t *t)
{
    struct jobs *j = t->data;
    struct store_work *w = j->retry_work;
    j->retry_work = NULL;
    if (w) {
        store_send(j->app->store, w);
    } else if (j->current && j->current->rests) {
        j->current->rests = false;
        load_needed(j->current);
    } else {
        jobs_kick(j);
    }
}

static void retry_later(struct jobs *j)
{
    uv_timer_start(&j->retry, on_retry, RETRY_MS, 0);
}

void jobs_retry(struct jobs *j, struct store_work *w)
{
    CHECK(!j->retry_work);
    if (j->stopping) { /* lost with the process; the job is `running` in its row and will continue */
        run_abandon(w);
        run_end(j->current);
        return;
    }
    j->retry_work = w;
    retry_later(j);
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

struct jobs *jobs_open(struct app *app)
{
    struct jobs *j = mem_zalloc(sizeof *j);
    j->app = app;
    j->watches.next = j->watches.prev = &j->watches;
    CHECK(uv_timer_init(app->loop, &j->retry) == 0);
    j->retry.data = j;
    return j;
}

static void keep_name(void *arg, const char *name)
{
    buf_append(arg, name, strlen(name) + 1);
}

void jobs_list_uploads(struct jobs *j)
{
    data_list(settings_data_dir(j->app->set), "files", keep_name, &j->found);
}

void jobs_ready(struct jobs *j)
{
    j->ready = true;
    if (!store_exists(j->app->store)) return; /* the store was never used: create no directory */
    struct sweep *s = mem_zalloc(sizeof *s);
    *s = (struct sweep){.work = {.run = on_sweep, .settle = on_swept}, .jobs = j};
    store_send(j->app->store, &s->work);
    jobs_kick(j);
}

void jobs_drain(struct jobs *j)
{
    struct run *r = j->current;
    if (j->stopping) return;
    j->stopping = true;
    if (!r) return;
    atomic_store(&r->stopping, true);
    atomic_store(&r->interrupted, true);
    r->wanted = TRAIN_PAUSE;
    if (r->phase == RUN_TRAINING) engine_train_command(r->served->engine, TRAIN_PAUSE);
    stop_waiting(r);
    if (r->texts) job_texts_stop(r->texts);
    if (r->asks) teacher_answers_stop(r->asks);
}

void jobs_stop(struct jobs *j, void (*done)(void *), void *arg)
{
    jobs_drain(j);
    j->stopped = done;
    j->stopped_arg = arg;
    uv_timer_stop(&j->retry);
    if (j->retry_work) {
        struct store_work *w = j->retry_work;
        j->retry_work = NULL;
        store_send(j->app->store, w); /* retry */
        return;
    }
    if (j->claiming || j->current) return;
    if (j->stopped) {
        j->stopped = NULL;
        done(arg);
    }
}

static void on_timer_closed(uv_handle_t *h)
{
    struct jobs *j = h->data;
    buf_free(&j->found);
    free(j);
}

void jobs_free(struct jobs *j)
{
    uv_close((uv_handle_t *)&j->retry, on_timer_closed);
}

/* ---- watching -------------------------------------------------------------------------------------------------- */

void jobs_watch(struct jobs *j, struct job_watch *w)
{
    w->next = &j->watches;
    w->prev = j->watches.prev;
    w->prev->next = w->next->prev = w;
}

void jobs_unwatch(struct job_watch *w)
{
    if (!w->next) return;
    w->prev->next = w->next;
    w->next->prev = w->prev;
    w->next = w->prev = NULL;
}

void jobs_end_streams(struct jobs *j)
{
    for (struct job_watch *w = j->watches.next, *next; w != &j->watches; w = next) {
        next = w->next; /* end may unwatch only its own watch */
        w->end(w->arg);
    }
}

void jobs_notify(struct jobs *j, int64_t seq)
{
    /* fn only sends a work to the store, so the list does not change during the loop */
    for (struct job_watch *w = j->watches.next; w != &j->watches; w = w->next)
        if (w->seq == seq) w->fn(w->arg);
}

void jobs_view(const struct jobs *j, struct jobs_view *out)
{
    static const char *const phases[] = {
        [RUN_WAITING] = "preparing", [RUN_PREPARING] = "preparing", [RUN_GENERATING] = "generating",
        [RUN_ASKING] = "preparing",  [RUN_TRAINING] = "training",   [RUN_PUBLISHING] = "publishing"};
    *out = j->view;
    if (j->current) {
        out->running = j->current->id;
        out->phase = phases[j->current->phase];
    }
    store_job_counts(j->app->store, out->counts);
}
