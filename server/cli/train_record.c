#include "server/cli/train_record.h"

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/train/board.h"
#include "server/cli/train_compare.h"
#include "server/jobs/job_report.h"
#include "server/jobs/train_params.h"
#include "server/json/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double unix_now(void)
{
    return (double)clock_unix() * 1e-9;
}

void train_record_init(struct train_record *r, const struct settings *s, const struct train_params *p)
{
    *r = (struct train_record){
        .s = s, .p = *p, .started = unix_now(), .eval_loss = NAN, .best_eval_loss = NAN, .best_step = -1};
}

void train_record_close(struct train_record *r)
{
    tfevents_close(r->board);
    buf_free(&r->norms);
    buf_free(&r->usage);
    free(r->rank_memory);
}

bool train_record_event(struct train_record *r, const struct train_event *ev, struct err *e)
{
    if (ev->kind == TRAIN_PLAN && ev->plan) r->plan = *ev->plan;
    if (ev->kind == TRAIN_STEP) {
        r->last = *ev;
        buf_clear(&r->norms);
        job_put_norms(&r->norms, ev);
    }
    if (ev->kind == TRAIN_SUCCEEDED) {
        buf_clear(&r->usage);
        job_put_usage(&r->usage, ev);
        free(r->rank_memory);
        r->rank_memory = NULL;
        if (ev->rank_memory) {
            r->rank_memory = mem_array((size_t)ev->usage.ranks, sizeof *r->rank_memory);
            memcpy(r->rank_memory, ev->rank_memory, (size_t)ev->usage.ranks * sizeof *r->rank_memory);
        }
    }
    if (ev->kind == TRAIN_EVAL) r->eval_loss = ev->eval_loss;
    r->best_eval_loss = ev->best_eval_loss;
    r->best_step = ev->best_step;
    if ((ev->kind != TRAIN_STEP && ev->kind != TRAIN_EVAL) || !r->s->tensorboard || r->board_failed) return true;
    e->code = 0;
    if (!r->board) r->board = tfevents_open(r->s->tensorboard, ev->step, e);
    if (r->board) train_board_add(r->board, ev, e);
    r->board_failed = e->code != 0;
    return !r->board_failed;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void put_text(struct buf *b, const char *name, const char *text)
{
    buf_printf(b, ",\"%s\":", name);
    if (text && *text)
        json_put_string(b, text, strlen(text));
    else
        buf_str(b, "null");
}

static void put_number(struct buf *b, const char *name, double v)
{
    buf_printf(b, ",\"%s\":", name);
    json_put_number(b, v);
}

static void put_data(struct buf *b, const char *name, const struct string_list *files, const struct settings *s)
{
    buf_printf(b, ",\"%s\":", name);
    if (!files->n) {
        buf_str(b, "null");
        return;
    }
    buf_str(b, "{\"path\":[");
    for (int i = 0; i < files->n; i++) {
        if (i) buf_char(b, ',');
        json_put_string(b, files->v[i], strlen(files->v[i]));
    }
    buf_printf(b, "],\"train_on_prompt\":%s,\"keep_duplicates\":%s", s->train_on_prompt ? "true" : "false",
               s->keep_duplicates ? "true" : "false");
    put_text(b, "format", s->format);
    put_text(b, "map", s->map);
    buf_char(b, '}');
}

static void put_last(struct buf *b, const struct train_event *ev)
{
    buf_printf(b, ",\"step\":%lld,\"steps\":%lld", (long long)ev->step, (long long)ev->steps);
    put_number(b, "epoch", ev->epoch);
    put_number(b, "loss", ev->loss);
    put_number(b, "accuracy", ev->accuracy);
    struct train_reward r[TRAIN_REWARDS];
    for (int i = 0, n = train_rewards_list(&ev->rewards, r); i < n; i++) put_number(b, r[i].name, r[i].v);
    put_number(b, "grad_norm", ev->grad_norm);
    put_number(b, "learning_rate", ev->learning_rate);
    put_number(b, "skipped_steps", (double)ev->skipped);
    buf_str(b, ",\"step_seconds\":");
    job_put_parts(b, ev->part);
}

/* What the first rank sent, by operation, and what each rank took. */
static void put_ranks(struct buf *b, const struct train_usage *u, const struct train_rank_memory *memory)
{
    buf_printf(b, ",\"ranks\":%d,\"sent_bytes\":%lld,\"link_seconds\":%.6f,\"communication\":{", u->ranks,
               (long long)u->sent_bytes, u->link_seconds);
    const char *comma = "";
    for (int i = 0; i < TRAIN_COLLECTIVES; i++) {
        const struct train_collective *c = &u->collective[i];
        if (!c->calls) continue;
        buf_printf(b, "%s\"%s\":{\"calls\":%lld,\"sent_bytes\":%lld,\"seconds\":%.6f", comma, train_collective_name(i),
                   (long long)c->calls, (long long)c->sent_bytes, c->seconds);
        put_number(b, "bytes_per_second", c->seconds > 0 ? (double)c->sent_bytes / c->seconds : 0);
        buf_char(b, '}');
        comma = ",";
    }
    buf_str(b, "},\"rank_memory\":[");
    for (int i = 0; memory && i < u->ranks; i++)
        buf_printf(b, "%s{\"planned_bytes\":%zu,\"taken_bytes\":%zu}", i ? "," : "", memory[i].planned,
                   memory[i].taken);
    buf_char(b, ']');
}

void train_record_put(struct buf *b, const struct train_record *r)
{
    const struct settings *s = r->s;
    buf_printf(b, "{\"object\":\"train.record\",\"version\":\"%s\",\"status\":\"succeeded\"", TANDEM_VERSION);
    buf_printf(b, ",\"started_at\":%.3f,\"finished_at\":%.3f", r->started, unix_now());
    put_text(b, "method", train_method_names[r->p.method]);
    put_text(b, "base", settings_model_dir(s));
    put_text(b, "from", s->from);
    put_data(b, "dataset", &s->train_data, s);
    put_data(b, "validation", &s->eval_data, s);
    buf_printf(b, ",\"options\":{\"threads\":%d", s->threads);
    put_text(b, "device", s->device);
    put_text(b, "quantize", s->quantize);
    put_text(b, "cpus", s->cpus);
    buf_str(b, "},\"hyperparameters\":");
    train_params_put(b, &r->p);
    buf_str(b, ",\"plan\":{");
    job_put_plan(b, &r->plan);
    buf_char(b, '}');
    if (r->last.kind == TRAIN_STEP) {
        put_last(b, &r->last);
        buf_printf(b, ",\"grad_norms\":%s", r->norms.data);
    }
    put_number(b, "eval_loss", r->eval_loss);
    put_number(b, "best_eval_loss", r->best_eval_loss);
    if (r->best_step >= 0) buf_printf(b, ",\"best_step\":%lld", (long long)r->best_step);
    const struct train_usage *u = &r->last.usage;
    if (u->ranks > 1) put_ranks(b, u, r->rank_memory);
    buf_printf(b, ",\"usage\":%s", r->usage.len ? r->usage.data : "null");
    if (s->cost_per_hour > 0) put_number(b, "cost_per_hour", s->cost_per_hour);
    buf_str(b, "}\n");
}

int train_record_write(const struct train_record *r, const char *dir, struct err *e)
{
    struct buf text = {0};
    char *path = file_join(dir, TRAIN_RECORD_FILE);
    train_record_put(&text, r);
    int rc = file_replace(path, text.data, text.len, e);
    free(path);
    buf_free(&text);
    return rc;
}
