/* A teacher that is another model: it is asked before the base is trained, so that the two need no room at once. */
#include "engine/base/file.h"
#include "engine/train/teacher_file.h"
#include "server/api/served_model.h"
#include "server/jobs/job_run.h"
#include "server/jobs/teacher_answers.h"

#include <stdio.h>
#include <stdlib.h>

/* Likeliest tokens that the teacher tells. */
static int top_k(const struct run *r)
{
    return r->spec.p.teacher_top_k < r->vocab ? r->spec.p.teacher_top_k : r->vocab;
}

static char *answers_path(const struct run *r, bool eval)
{
    return file_join(r->answers, eval ? "held-out" : "rows");
}

static bool is_told(struct run *r, bool eval)
{
    struct teacher_file_of of = {.set = eval ? r->eval : r->data, .k = top_k(r)};
    char *path = answers_path(r, eval);
    struct teacher_file f;
    bool all = !teacher_file_open(&f, path, &of, &r->e) && f.known == f.rows;
    if (!r->e.code) teacher_file_close(&f);
    free(path);
    return all;
}

void run_open_answers(struct run *r)
{
    r->error_code = "storage";
    if (dir_make(r->answers, &r->e)) return;
    r->told = is_told(r, false) && (!r->eval || is_told(r, true));
}

void run_find_teacher(struct run *r)
{
    struct served_model *teacher = model_table_named(r->app->models, r->spec.teacher);
    char text[200];
    if (teacher) {
        run_change_model(r, teacher);
        return;
    }
    snprintf(text, sizeof text, "teacher: this server has no model %.100s: resume the job where there is one",
             r->spec.teacher);
    run_finish(r, JOB_FAILED, "invalid_teacher", text);
}

static void on_told(void *arg, const struct err *e)
{
    struct run *r = arg;
    struct err why = *e;
    r->asks = NULL;
    if (e->code && served_models_lost(r->app)) {
        run_on_event(r, &(struct train_event){.kind = TRAIN_LOST, .text = "while the teacher was asked"});
    } else if (r->wanted != TRAIN_GO_ON || atomic_load(&r->interrupted)) {
        run_stop_early(r);
    } else if (e->code) {
        err_prefix(&why, "teacher %.100s", r->spec.teacher);
        run_finish(r, JOB_FAILED, "invalid_teacher", why.msg);
    } else if (r->eval && !r->asks_of_eval) {
        r->asks_of_eval = true;
        run_ask(r);
    } else {
        r->told = true;
        run_change_model(r, r->served);
    }
}

void run_ask(struct run *r)
{
    char text[320];
    const struct dataset *rows = r->asks_of_eval ? r->eval : r->data;
    r->phase = RUN_ASKING;
    if (r->wanted != TRAIN_GO_ON) {
        run_stop_early(r);
        return;
    }
    snprintf(text, sizeof text, "Asking %.200s about %llu %srows", r->spec.teacher,
             (unsigned long long)dataset_rows(rows), r->asks_of_eval ? "held-out " : "");
    run_log(r, "info", text);
    char *path = answers_path(r, r->asks_of_eval);
    struct teacher_answers_task task = {.app = r->app,
                                        .teacher = r->needs,
                                        .student = r->served,
                                        .vocab = r->vocab,
                                        .rows = rows,
                                        .path = path,
                                        .k = top_k(r),
                                        .progress = run_prepared,
                                        .written = run_progressed,
                                        .over = on_told,
                                        .arg = r};
    r->asks = teacher_answers_start(&task);
    free(path);
}
