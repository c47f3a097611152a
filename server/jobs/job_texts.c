#include "server/jobs/job_texts.h"

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/data/dataset.h"
#include "engine/serve/engine.h"
#include "server/access/client.h"
#include "server/api/app.h"
#include "server/api/served_model.h"
#include "server/bridge/bridge.h"
#include "server/config/settings.h"
#include "server/store/data_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

enum {
    TICK_MS = 200,    /* requests that the engine had no room for are submitted again */
    TEXT_PROMPT = 32, /* of a row without a prompt of its own: its first tokens, at most half of them */
    HEAD_MAX = 256,
};

/* A text on its way. */
struct flight {
    struct flight *next, *prev; /* a ring */
    struct job_texts *t;
    struct gen *gen;
    uint64_t row;
    int n_prompt, n, max;
    int32_t *id; /* (max) behind it in memory */
};

struct job_texts {
    struct job_texts_task task;
    uint64_t client, rows, next, n_done;
    int window, n_flying;
    struct flight flying; /* head of the ring */
    struct buf lines;     /* of texts that are done, not yet written */
    bool stopped, closing;
    bool refused; /* the engine had no room: waits for the next answer, or tick */
    bool busy;    /* work is on the pool, which owns what follows */
    struct err e;

    bool open, whole; /* whole: the data set is there */
    int fd;
    long *at;          /* (rows) offset of each row's line in the file; -1: it has none */
    uint64_t n_before; /* lines of an earlier process */
    struct buf writing;
    bool wrote;
    struct err work_error;
    uv_work_t work;
    uv_timer_t tick;
};

/* ---- the files: pool thread ------------------------------------------------------------------------------------- */

/* The first line: texts that were made otherwise are not used. */
static void head_line(const struct job_texts *t, char out[static HEAD_MAX])
{
    const struct job_texts_task *k = &t->task;
    snprintf(out, HEAD_MAX,
             "{\"data\":\"%016llx\",\"rows\":%llu,\"max_new_tokens\":%d,\"max_length\":%d,\"temperature\":%.17g,"
             "\"seed\":%llu}\n",
             (unsigned long long)dataset_hash(k->prompts), (unsigned long long)t->rows, k->max_new_tokens,
             k->max_length, k->temperature, (unsigned long long)k->seed);
}

/* @return the row of a whole line, or -1. */
static int64_t line_row(const struct job_texts *t, const char *line, ssize_t n)
{
    unsigned long long row;
    int end = 0;
    if (n < 3 || strcmp(line + n - 3, "]}\n") || sscanf(line, "{\"row\":%llu,%n", &row, &end) != 1 || !end) return -1;
    return row < t->rows ? (int64_t)row : -1;
}

/* Finds the lines of an earlier process.  @return the bytes that are good; what follows was not written whole. */
static long read_lines(struct job_texts *t, FILE *f)
{
    char *line = NULL, head[HEAD_MAX];
    size_t cap = 0;
    long good = 0;
    head_line(t, head);
    for (ssize_t n; (n = getline(&line, &cap, f)) > 0; good += n) {
        if (!good && strcmp(line, head)) break;
        int64_t row = good ? line_row(t, line, n) : -1;
        if (good && row < 0) break;
        if (row < 0) continue;
        t->n_before += t->at[row] < 0;
        t->at[row] = good;
    }
    free(line);
    return good;
}

static int file_error(const char *path, struct err *e)
{
    return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
}

static void work_open(uv_work_t *w)
{
    struct job_texts *t = w->data;
    const char *path = t->task.lines;
    struct err *e = &t->work_error;
    char head[HEAD_MAX];
    FILE *f;
    t->at = mem_array((size_t)t->rows + 1, sizeof *t->at);
    for (uint64_t i = 0; i < t->rows; i++) t->at[i] = -1;
    t->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (t->fd < 0 || !(f = fopen(path, "re"))) {
        file_error(path, e);
        return;
    }
    long good = read_lines(t, f);
    fclose(f);
    if (ftruncate(t->fd, good) || lseek(t->fd, good, SEEK_SET) < 0) {
        file_error(path, e);
        return;
    }
    head_line(t, head);
    if (!good && (file_write_all(t->fd, head, strlen(head)) || fdatasync(t->fd))) file_error(path, e);
    if (!e->code) data_sync_parent(path, e);
}

static void work_write(uv_work_t *w)
{
    struct job_texts *t = w->data;
    if (file_write_all(t->fd, t->writing.data, t->writing.len) || fdatasync(t->fd))
        file_error(t->task.lines, &t->work_error);
    t->wrote = !t->work_error.code;
    buf_clear(&t->writing);
}

/* A line as a row of the data set. */
static int put_row(const char *line, FILE *out)
{
    int n_prompt = 0, at = 0;
    if (sscanf(line, "{\"row\":%*u,\"prompt\":%d,\"input_ids\":[%n", &n_prompt, &at) != 1 || !at) return -1;
    const char *ids = line + at, *end = strchr(ids, ']');
    if (!end) return -1;
    fprintf(out, "{\"input_ids\":[%.*s],\"labels\":[", (int)(end - ids), ids);
    for (int i = 0; ids < end; i++) {
        size_t n = strcspn(ids, ",]");
        if (i < n_prompt)
            fprintf(out, "%s-100", i ? "," : "");
        else
            fprintf(out, "%s%.*s", i ? "," : "", (int)n, ids);
        ids += n + 1;
    }
    return fputs("]}\n", out) < 0 ? -1 : 0;
}

/* The rows in their order, so that the data set does not depend on when each text was done. */
static void work_finish(uv_work_t *w)
{
    struct job_texts *t = w->data;
    struct err *e = &t->work_error;
    char *part = mem_strdup(t->task.out), *line = NULL;
    size_t cap = 0;
    part = mem_resize(part, strlen(part) + 8, 1);
    strcat(part, ".part");
    FILE *in = fopen(t->task.lines, "re"), *out = fopen(part, "we");
    if (!in || !out) file_error(in ? part : t->task.lines, e);
    t->n_before = 0;
    for (uint64_t i = 0; i < t->rows; i++) t->at[i] = -1;
    if (!e->code) read_lines(t, in);
    for (uint64_t i = 0; i < t->rows && !e->code; i++) {
        bool good = t->at[i] >= 0 && fseek(in, t->at[i], SEEK_SET) == 0 && getline(&line, &cap, in) > 0;
        if (!good || put_row(line, out)) err_set(e, ERR_IO, "%s: row %llu is missing", part, (unsigned long long)i);
    }
    free(line);
    if (in) fclose(in);
    bool failed = out && (fflush(out) || ferror(out) || fsync(fileno(out)));
    if (out) failed = fclose(out) != 0 || failed;
    if (!e->code && (failed || rename(part, t->task.out))) file_error(part, e);
    if (!e->code) data_sync_parent(t->task.out, e);
    t->whole = !e->code;
    free(part);
}

/* ---- requests in flight ------------------------------------------------------------------------------------------ */

static void pump(struct job_texts *t);

static void finish_flight(struct flight *f)
{
    f->prev->next = f->next;
    f->next->prev = f->prev;
    f->t->n_flying--;
    free(f);
}

static void put_line(struct flight *f)
{
    struct buf *b = &f->t->lines;
    buf_printf(b, "{\"row\":%llu,\"prompt\":%d,\"input_ids\":[", (unsigned long long)f->row, f->n_prompt);
    for (int i = 0; i < f->n; i++) buf_printf(b, "%s%d", i ? "," : "", f->id[i]);
    buf_str(b, "]}\n");
}

static void on_event(void *arg, const struct event *ev, const struct event_batch *batch)
{
    struct flight *f = arg;
    struct job_texts *t = f->t;
    (void)batch;
    if (ev->kind == EV_TOKEN && f->n < f->max) f->id[f->n++] = ev->token;
    if (ev->kind != EV_DONE) return;
    if (ev->finish == FINISH_ERROR && !engine_lost(t->task.served->engine))
        err_set(&t->e, ERR_IO, "a text could not be generated: %s", ev->error ? ev->error : "?");
    else if (ev->finish == FINISH_ERROR || ev->finish == FINISH_CANCELLED || ev->finish == FINISH_TIMEOUT)
        t->stopped = true;
    else
        put_line(f), t->n_done++;
    finish_flight(f);
    t->refused = false;
    t->task.progress(t->task.arg, (double)t->n_done / (double)t->rows);
    pump(t);
}

/* The prompt of a row: what is before its first trained token; of a text its beginning. */
static int prompt_of(const struct job_texts *t, const struct dataset_row *row)
{
    int n = 0, most = t->task.max_length - 1;
    while (n < row->n && !row->trained[n]) n++;
    if (n < 2) n = row->n / 2 < TEXT_PROMPT ? row->n / 2 : TEXT_PROMPT;
    if (n < 1) n = 1;
    return n < most ? n : most;
}

/* Submits the text of the next row.  @return false: not now. */
static bool launch(struct job_texts *t)
{
    const struct job_texts_task *k = &t->task;
    const struct engine_info *m = k->served->info;
    struct dataset_row row = dataset_row(k->prompts, t->next);
    int n = prompt_of(t, &row), most = k->max_length < m->max_total_tokens ? k->max_length : m->max_total_tokens;
    if (n >= most) n = most - 1;
    int room = most - n < k->max_new_tokens ? most - n : k->max_new_tokens;
    struct flight *f = mem_zalloc(sizeof *f + (size_t)(n + room) * sizeof *f->id);
    *f = (struct flight){.t = t, .row = t->next, .n_prompt = n, .n = n, .max = n + room, .id = (int32_t *)(f + 1)};
    memcpy(f->id, row.id, (size_t)n * sizeof *f->id);
    struct gen_request q = {.prompt = f->id,
                            .n_prompt = n,
                            .max_new_tokens = room,
                            .sampling = {.sample = k->temperature > 0,
                                         .temperature = k->temperature > 0 ? (float)k->temperature : 1,
                                         .top_p = 1,
                                         .typical_p = 1,
                                         .repetition = 1,
                                         .seed = k->seed + t->next}};
    struct err e = {0};
    f->gen = bridge_submit_own(k->served->bridge, &q, t->client, on_event, f, &e);
    if (!f->gen) {
        if (e.code != ERR_FULL && e.code != ERR_NOMEM) t->e = e; /* what is short now may not be later */
        t->refused = true;
        free(f);
        return false;
    }
    f->next = &t->flying;
    f->prev = t->flying.prev;
    f->prev->next = f->next->prev = f;
    t->n_flying++;
    return true;
}

static void drop_flights(struct job_texts *t)
{
    for (struct flight *f = t->flying.next, *next; f != &t->flying; f = next) {
        next = f->next;
        bridge_cancel(f->gen);
        finish_flight(f);
    }
}

/* ---- life ----------------------------------------------------------------------------------------------------------
 */

static void on_closed(uv_handle_t *h)
{
    struct job_texts *t = h->data;
    buf_free(&t->lines);
    buf_free(&t->writing);
    free(t->at);
    free(t);
}

static void end(struct job_texts *t)
{
    t->closing = true;
    drop_flights(t); /* the error may be that of the newest one, which others precede */
    uv_timer_stop(&t->tick);
    if (t->fd >= 0) close(t->fd);
    if (!t->whole && !t->e.code) err_set(&t->e, ERR_FULL, "stopped");
    t->task.over(t->task.arg, &t->e);
    uv_close((uv_handle_t *)&t->tick, on_closed);
}

static void after_work(uv_work_t *w, int status)
{
    struct job_texts *t = w->data;
    (void)status;
    t->busy = false;
    if (t->work_error.code && !t->e.code) t->e = t->work_error;
    if (t->wrote) t->task.written(t->task.arg);
    t->wrote = false;
    if (!t->open) {
        t->open = true;
        t->n_done = t->n_before;
        if (t->n_before)
            log_info("texts for a draft: %llu of %llu are there", (unsigned long long)t->n_before,
                     (unsigned long long)t->rows);
    }
    pump(t);
}

static void begin(struct job_texts *t, uv_work_cb fn)
{
    t->busy = true;
    CHECK(uv_queue_work(t->task.app->loop, &t->work, fn, after_work) == 0);
}

/* Does whatever can be done now. */
static void pump(struct job_texts *t)
{
    if (t->closing || !t->open) return;
    if (t->stopped || t->e.code) drop_flights(t);
    while (!t->stopped && !t->e.code && !t->refused && t->next < t->rows && t->n_flying < t->window &&
           !mem_is_short()) {
        if (t->at[t->next] < 0 && !launch(t)) break;
        t->next++;
    }
    if (t->busy) return;
    bool failed = t->work_error.code != 0;
    if (t->lines.len && !failed) { /* also when it was stopped: what is done stays */
        struct buf empty = t->writing;
        t->writing = t->lines;
        t->lines = empty;
        begin(t, work_write);
    } else if (t->whole || t->stopped || t->e.code) {
        end(t);
    } else if (t->next == t->rows && !t->n_flying) {
        begin(t, work_finish);
    }
}

static void on_tick(uv_timer_t *tick)
{
    struct job_texts *t = tick->data;
    t->refused = false;
    pump(t);
}

struct job_texts *job_texts_start(const struct job_texts_task *task)
{
    struct job_texts *t = mem_zalloc(sizeof *t);
    const struct engine_info *m = task->served->info;
    int queue = task->app->set->max_queue;
    t->task = *task;
    t->client = client_id_of("drafts of the daemon");
    t->rows = dataset_rows(task->prompts);
    t->window = m->max_seqs + (queue < m->max_seqs ? queue : m->max_seqs);
    t->flying.next = t->flying.prev = &t->flying;
    t->fd = -1;
    t->work.data = t->tick.data = t;
    CHECK(uv_timer_init(task->app->loop, &t->tick) == 0);
    uv_timer_start(&t->tick, on_tick, TICK_MS, TICK_MS);
    begin(t, work_open);
    return t;
}

void job_texts_stop(struct job_texts *t)
{
    t->stopped = true;
    pump(t);
}
