/* A batch's lines in flight and its rounds (batch_run.h).
 *
 *     file --round (pool)--> ready --> in flight --> answered --round (pool), commit--> done */
#include "server/jobs/batch_run.h"

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/api/app.h"
#include "server/api/served_model.h"
#include "server/config/settings.h"
#include "server/json/json.h"
#include "server/metrics/metrics.h"
#include "server/net/local.h"
#include "server/store/data_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#define BATCH_ANSWER "{\"id\":\"batch_req_" /* how every line of an output begins */

enum {
    TICK_MS = 200,          /* answers are written this often, and refused lines asked again */
    ATTEMPTS_FAILED = 3,    /* tries of a line that the engine fails at */
    ATTEMPTS_REFUSED = 150, /* of one that is refused although nothing else is in flight, without a deadline: 30 s */
    READY_BYTES = 8 << 20,  /* bodies read ahead, and as many in flight */
    UNWRITTEN_BYTES = 16 << 20,
    EXPIRED_BYTES = 1 << 20, /* of lines without an answer, a round */
};

/* A line on its way. */
struct task {
    struct task *next, *prev; /* ready, or in flight: a ring */
    struct batch_run *run;
    size_t line; /* index in lines */
    int failures, refusals;
    struct buf body;
    struct local *local; /* in flight */
};

struct sink {
    char *path; /* owned; NULL: none */
    int fd;
    int64_t end;          /* committed bytes */
    struct buf unwritten; /* whole lines */
    struct buf writing;   /* the round's */
};

enum { SINK_OUTPUT, SINK_ERRORS, SINKS };

struct batch_run {
    struct batch_job job;
    struct app *app;
    char *input, *client; /* owned */
    struct batch_lines lines;
    struct sink sink[SINKS];
    struct task ready, flying; /* ring heads */
    struct task again;         /* likewise: refused lines, whose bodies are to be read again */
    int n_ready, n_flying, window;
    size_t ready_bytes, flying_bytes;
    size_t next;       /* line to read next */
    size_t expired;    /* lines before it have an answer, once it ends as expired */
    int good, bad;     /* answered, committed or not */
    int n_left;        /* lines not answered */
    bool ending;       /* no line is started any more */
    enum batch_end as; /* then: how it ends */
    bool refused;      /* a line was refused: waits for the next answer, or tick */
    bool due;          /* the time to write has come */

    uv_timer_t tick;
    uv_work_t work;
    bool busy;                                /* a round is on the pool, or is being committed */
    bool waiting;                             /* for the next tick, before another round */
    bool repeat;                              /* the last round was not committed: the next one writes the same again */
    bool logged;                              /* and that was logged */
    struct batch_progress committed, writing; /* writing: after the round */
    struct err e;                             /* of the round, or of opening */
    bool reads;                               /* the round reads lines: */
    struct task read;                         /* ring of new tasks */
    size_t read_to;                           /* the line behind them */
    int n_read;
};

/* ---- rings ----------------------------------------------------------------------------------------------------- */

static void ring_init(struct task *head)
{
    head->next = head->prev = head;
}

static void ring_insert(struct task *before, struct task *t)
{
    t->prev = before->prev;
    t->next = before;
    t->prev->next = t->next->prev = t;
}

static void ring_remove(struct task *t)
{
    t->prev->next = t->next;
    t->next->prev = t->prev;
}

static void task_free(struct task *t)
{
    buf_free(&t->body);
    free(t);
}

static void ring_free(struct task *head)
{
    for (struct task *t = head->next, *next; t != head; t = next) {
        next = t->next;
        task_free(t);
    }
    ring_init(head);
}

/* ---- rounds: pool thread --------------------------------------------------------------------------------------- */

static int write_sink(struct sink *s, struct err *e)
{
    size_t at = 0;
    while (at < s->writing.len) {
        ssize_t n = pwrite(s->fd, s->writing.data + at, s->writing.len - at, s->end + (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return err_set(e, ERR_IO, "%s: %s", s->path, strerror(n ? errno : ENOSPC));
        at += (size_t)n;
    }
    if (at && fdatasync(s->fd)) return err_set(e, ERR_IO, "%s: %s", s->path, strerror(errno));
    return 0;
}

/* Reads bodies of lines that were refused, then of lines that are not answered, until there are enough. */
static void read_tasks(struct batch_run *r)
{
    int most = 2 * r->window;
    size_t bytes = 0;
    struct err e = {0};
    for (struct task *t = r->read.next; t != &r->read; t = t->next) {
        if (batch_line_body(&r->lines, t->line, &t->body, &e)) return; /* no memory now: again in the next round */
        bytes += t->body.len;
    }
    for (; r->read_to < r->lines.n && r->n_read < most && bytes < READY_BYTES; r->read_to++) {
        if (r->lines.v[r->read_to].done) continue;
        struct task *t = mem_zalloc(sizeof *t);
        t->run = r;
        t->line = r->read_to;
        if (batch_line_body(&r->lines, t->line, &t->body, &e)) { /* no memory now: again in the next round */
            task_free(t);
            return;
        }
        bytes += t->body.len;
        ring_insert(&r->read, t);
        r->n_read++;
    }
}

static void work_round(uv_work_t *w)
{
    struct batch_run *r = w->data;
    r->e.code = 0;
    for (int i = 0; i < SINKS && !r->e.code; i++) write_sink(&r->sink[i], &r->e);
    if (r->reads) read_tasks(r);
}

/* The committed end of an output whose every whole line counts. */
static int64_t whole_lines(int fd)
{
    char block[65536];
    int64_t end = 0, at = 0;
    for (ssize_t n; (n = pread(fd, block, sizeof block, at)) > 0; at += n)
        for (ssize_t i = 0; i < n; i++)
            if (block[i] == '\n') end = at + i + 1;
    return end;
}

/* A file that ends with something else than the beginning of an answer is not a batch's, and is not cut. */
static int check_torn(const struct sink *s, struct err *e)
{
    char torn[sizeof BATCH_ANSWER];
    ssize_t n = pread(s->fd, torn, sizeof BATCH_ANSWER - 1, s->end);
    if (n <= 0 || memcmp(torn, BATCH_ANSWER, (size_t)n) == 0) return 0;
    return err_set(e, ERR_INVALID, "%s: what follows its last whole line is no answer", s->path);
}

static int open_sink(struct batch_run *r, struct sink *s)
{
    struct err *e = &r->e;
    if (!s->path) return 0;
    s->fd = open(s->path, O_RDWR | O_CREAT | O_CLOEXEC, 0640);
    if (s->fd < 0) return err_set(e, ERR_IO, "%s: %s", s->path, strerror(errno));
    struct stat st;
    if (fstat(s->fd, &st) || !S_ISREG(st.st_mode))
        return err_set(e, ERR_IO, "%s: is not a regular file, and could not be continued", s->path);
    if (r->job.whole && flock(s->fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return err_set(e, ERR_FULL, "%s: another process writes it", s->path);
    if (r->job.whole) s->end = whole_lines(s->fd);
    if (data_sync_parent(s->path, e)) return e->code;
    if (batch_lines_mark(&r->lines, s->path, (size_t)s->end, &r->good, &r->bad, e)) return e->code;
    if (r->job.whole && check_torn(s, e)) return e->code;
    if (ftruncate(s->fd, s->end)) return err_set(e, ERR_IO, "%s: %s", s->path, strerror(errno));
    return 0;
}

static void work_open(uv_work_t *w)
{
    struct batch_run *r = w->data;
    struct err *e = &r->e;
    if (batch_lines_open(&r->lines, r->input, &r->job.limits, e)) return;
    if (r->lines.n_wrong) {
        err_set(e, ERR_INVALID, "%.200s, %s", r->input, r->lines.first_wrong);
        return;
    }
    for (int i = 0; i < SINKS; i++)
        if (open_sink(r, &r->sink[i])) return;
}

/* ---- answers --------------------------------------------------------------------------------------------------- */

/* Appends JSON on one line: line breaks between its tokens become spaces (within strings they are escaped). */
static void put_flat(struct buf *out, const char *p, size_t n)
{
    size_t at = out->len;
    buf_append(out, p, n);
    for (; at < out->len; at++)
        if (out->data[at] == '\n' || out->data[at] == '\r') out->data[at] = ' ';
}

static struct sink *sink_of(struct batch_run *r, bool good)
{
    return &r->sink[good || !r->job.errors ? SINK_OUTPUT : SINK_ERRORS];
}

/* Appends what stands before the response of a line, and counts the line as answered. */
static struct buf *begin_answer(struct batch_run *r, size_t line, bool good)
{
    struct buf *out = &sink_of(r, good)->unwritten;
    const char *custom_id = batch_custom_id(&r->lines, line);
    char id[DATA_ID_MAX];
    data_id(id, "");
    CHECK(!r->lines.v[line].done);
    r->lines.v[line].done = true;
    r->n_left--;
    *(good ? &r->good : &r->bad) += 1;
    buf_printf(out, BATCH_ANSWER "%s\",\"custom_id\":", id);
    json_put_string(out, custom_id, strlen(custom_id));
    return out;
}

static void write_answer(struct batch_run *r, size_t line, const struct local_answer *a)
{
    bool good = a->status && a->status < 400;
    struct buf *out = begin_answer(r, line, good);
    r->app->metrics.batch_lines[good ? BATCH_LINE_COMPLETED : BATCH_LINE_FAILED]++;
    buf_printf(out, ",\"response\":{\"status_code\":%d,\"request_id\":", a->status ? a->status : 500);
    json_put_string(out, a->request_id, strlen(a->request_id));
    buf_str(out, ",\"body\":");
    put_flat(out, a->len ? a->body : "null", a->len ? a->len : 4);
    buf_str(out, "},\"error\":null}\n");
}

/* A part of the lines without an answer. */
static void write_expired(struct batch_run *r)
{
    const struct buf *out = &sink_of(r, false)->unwritten;
    for (; r->expired < r->lines.n && out->len < EXPIRED_BYTES; r->expired++) {
        size_t i = r->expired;
        if (r->lines.v[i].done) continue;
        r->app->metrics.batch_lines[BATCH_LINE_EXPIRED]++;
        buf_str(begin_answer(r, i, false),
                ",\"response\":null,\"error\":{\"code\":\"batch_expired\",\"message\":\"This request could not be "
                "executed before the completion window expired.\"}}\n");
    }
}

/* ---- lines in flight ------------------------------------------------------------------------------------------- */

static void pump(struct batch_run *r);

/* @return whether the answer says nothing of the line, which is to be asked again. */
static bool is_passing(const struct batch_run *r, struct task *t, int status)
{
    if (served_models_lost(r->app) || r->app->state != SERVING_READY) return status >= 500 || status == 0;
    if (status == 429 || status == 503) {
        if (!r->n_flying) t->refusals++;
        return r->job.deadline || t->refusals < ATTEMPTS_REFUSED;
    }
    return (status == 500 || status == 0) && ++t->failures < ATTEMPTS_FAILED;
}

static void on_answer(void *arg, const struct local_answer *a)
{
    struct task *t = arg;
    struct batch_run *r = t->run;
    t->local = NULL;
    ring_remove(t);
    r->n_flying--;
    r->flying_bytes -= r->lines.v[t->line].len;
    r->refused = false;
    if (is_passing(r, t, a->status)) {
        r->refused = true;
        ring_insert(&r->again, t); /* its body went with the exchange */
    } else {
        write_answer(r, t->line, a);
        task_free(t);
    }
    pump(r);
}

static void start_line(struct batch_run *r, struct task *t)
{
    const struct batch_line *line = &r->lines.v[t->line];
    const struct batch_endpoint *to = &batch_endpoints[line->endpoint];
    struct err e = {0};
    struct local_request request = {.path = to->path,
                                    .handler = to->handler,
                                    .model = "model",
                                    .admission = r->app->background,
                                    .client = r->client,
                                    .body = &t->body};
    if (!reserve(&request.held, t->body.len, "a batch's line", &e)) {
        r->refused = true;
        return;
    }
    ring_remove(t);
    r->n_ready--;
    r->ready_bytes -= t->body.len;
    ring_insert(&r->flying, t);
    r->n_flying++;
    r->flying_bytes += line->len;
    t->local = local_start(r->app->http, &request, on_answer, t);
}

static void drop_lines(struct batch_run *r)
{
    for (struct task *t = r->flying.next; t != &r->flying; t = t->next) local_cancel(t->local);
    ring_free(&r->flying);
    ring_free(&r->ready);
    ring_free(&r->again);
    r->n_flying = r->n_ready = 0;
    r->flying_bytes = r->ready_bytes = 0;
}

/* ---- rounds: loop thread ---------------------------------------------------------------------------------------- */

static bool has_unwritten(const struct batch_run *r)
{
    for (int i = 0; i < SINKS; i++)
        if (r->sink[i].unwritten.len || r->sink[i].writing.len) return true;
    return false;
}

static bool wants_lines(const struct batch_run *r)
{
    bool left = r->next < r->lines.n || r->again.next != &r->again;
    return !r->ending && r->n_ready < r->window && r->ready_bytes < READY_BYTES && left;
}

/* Moves what is answered into the round, and counts it as written. */
static void fill_round(struct batch_run *r)
{
    struct batch_progress *p = &r->writing;
    for (int i = 0; i < SINKS; i++) {
        struct buf spare = r->sink[i].writing;
        r->sink[i].writing = r->sink[i].unwritten;
        r->sink[i].unwritten = spare;
    }
    *p = r->committed;
    p->good = r->good;
    p->bad = r->bad;
    p->output_bytes += (int64_t)r->sink[SINK_OUTPUT].writing.len;
    p->errors_bytes += (int64_t)r->sink[SINK_ERRORS].writing.len;
}

static void after_round(uv_work_t *w, int status);

static void begin_round(struct batch_run *r, bool writes)
{
    r->busy = true;
    if (writes && !r->repeat) fill_round(r);
    if (writes) r->due = false;
    r->reads = wants_lines(r);
    ring_init(&r->read);
    r->n_read = 0;
    while (r->reads && r->again.next != &r->again) {
        struct task *t = r->again.next;
        ring_remove(t);
        ring_insert(&r->read, t);
        r->n_read++;
    }
    r->read_to = r->next;
    CHECK(uv_queue_work(r->app->loop, &r->work, work_round, after_round) == 0);
}

static void take_read(struct batch_run *r)
{
    struct task *first = r->ready.next; /* lines that were refused go first */
    while (r->read.next != &r->read) {
        struct task *t = r->read.next;
        ring_remove(t);
        if (!t->body.len) {
            ring_insert(&r->again, t);
            continue;
        }
        ring_insert(t->failures || t->refusals ? first : &r->ready, t);
        r->ready_bytes += t->body.len;
        r->n_ready++;
    }
    r->next = r->read_to;
    if (r->ending) drop_lines(r);
}

static void round_failed(struct batch_run *r)
{
    if (!r->logged && r->e.code) log_warn("a batch's answers cannot be written, and will be again: %s", r->e.msg);
    r->logged = true;
    r->busy = false;
    r->repeat = r->waiting = true;
    pump(r);
}

static void after_round(uv_work_t *w, int status)
{
    struct batch_run *r = w->data;
    (void)status;
    bool wrote = r->sink[SINK_OUTPUT].writing.len || r->sink[SINK_ERRORS].writing.len;
    bool none = r->reads && r->read_to == r->next, new = r->next < r->lines.n;
    take_read(r);
    if ((none && new) || r->again.next != &r->again) r->waiting = true; /* no memory */
    if (r->e.code) {
        round_failed(r);
    } else if (wrote) {
        r->job.commit(r->job.arg, r, &r->writing);
    } else {
        r->busy = false;
        pump(r);
    }
}

void batch_run_committed(struct batch_run *r, bool good)
{
    if (!good) {
        round_failed(r);
        return;
    }
    for (int i = 0; i < SINKS; i++) {
        r->sink[i].end += (int64_t)r->sink[i].writing.len;
        buf_clear(&r->sink[i].writing);
    }
    r->committed = r->writing;
    r->busy = r->repeat = r->logged = false;
    pump(r);
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

static void on_closed(uv_handle_t *h)
{
    free(h->data);
}

static void finish(struct batch_run *r, enum batch_end end)
{
    for (int i = 0; i < SINKS; i++) {
        struct sink *s = &r->sink[i];
        if (s->fd >= 0) close(s->fd);
        free(s->path);
        buf_free(&s->unwritten);
        buf_free(&s->writing);
    }
    batch_lines_free(&r->lines);
    free(r->input);
    free(r->client);
    uv_close((uv_handle_t *)&r->tick, on_closed);
    r->job.over(r->job.arg, end, &r->committed, &r->e);
}

/* Does whatever can be done now. */
static void pump(struct batch_run *r)
{
    size_t unwritten = r->sink[SINK_OUTPUT].unwritten.len + r->sink[SINK_ERRORS].unwritten.len;
    while (!r->ending && !r->refused && r->n_ready && r->n_flying < r->window && r->flying_bytes < READY_BYTES &&
           unwritten < UNWRITTEN_BYTES && !mem_is_short())
        start_line(r, r->ready.next);
    if (r->busy) return;
    bool given_up = r->ending && r->as == BATCH_HALTED && r->repeat;
    if (r->waiting && !given_up) return;
    if (r->ending && r->as == BATCH_EXPIRED && r->n_left) write_expired(r);
    bool rest = r->ending || !r->n_left, writes = has_unwritten(r) && (r->due || rest);
    if ((writes && !given_up) || wants_lines(r))
        begin_round(r, writes);
    else if (given_up || (rest && !writes))
        finish(r, r->ending ? r->as : BATCH_COMPLETED);
}

static void on_tick(uv_timer_t *t)
{
    struct batch_run *r = t->data;
    if (r->job.deadline && data_now_ms() >= r->job.deadline) batch_run_end(r, BATCH_EXPIRED);
    if (uv_is_closing((uv_handle_t *)t)) return;
    r->due = true;
    r->refused = r->waiting = false;
    pump(r);
}

static void after_open(uv_work_t *w, int status)
{
    struct batch_run *r = w->data;
    (void)status;
    r->busy = false;
    if (r->e.code) {
        finish(r, r->ending && r->as == BATCH_HALTED ? BATCH_HALTED : BATCH_FAILED);
        return;
    }
    r->n_left = (int)r->lines.n - r->good - r->bad;
    r->committed = (struct batch_progress){.total = (int)r->lines.n,
                                           .good = r->good,
                                           .bad = r->bad,
                                           .output_bytes = r->sink[SINK_OUTPUT].end,
                                           .errors_bytes = r->sink[SINK_ERRORS].end};
    if (r->job.opened) r->job.opened(r->job.arg, &r->committed);
    pump(r);
}

/* Lines in flight: those that run, and as many that wait, so that a place that falls free is taken in the next step. */
static int window_of(const struct app *app)
{
    int seqs = app->set->max_seqs, queue = app->set->max_queue;
    return seqs + (queue < seqs ? queue : seqs);
}

struct batch_run *batch_run_start(const struct batch_job *job)
{
    struct batch_run *r = mem_zalloc(sizeof *r);
    r->job = *job;
    r->app = job->app;
    r->window = window_of(job->app);
    r->input = mem_strdup(job->input);
    r->client = mem_strdup(job->client);
    r->sink[SINK_OUTPUT] = (struct sink){.path = mem_strdup(job->output), .fd = -1, .end = job->committed.output_bytes};
    r->sink[SINK_ERRORS] = (struct sink){
        .path = job->errors ? mem_strdup(job->errors) : NULL, .fd = -1, .end = job->committed.errors_bytes};
    ring_init(&r->ready);
    ring_init(&r->flying);
    ring_init(&r->again);
    r->work.data = r->tick.data = r;
    r->busy = true;
    CHECK(uv_timer_init(r->app->loop, &r->tick) == 0);
    uv_timer_start(&r->tick, on_tick, TICK_MS, TICK_MS);
    CHECK(uv_queue_work(r->app->loop, &r->work, work_open, after_open) == 0);
    return r;
}

void batch_run_share(struct batch_run *r, int batches)
{
    int window = window_of(r->app) / batches;
    r->window = window < 1 ? 1 : window;
}

void batch_run_end(struct batch_run *r, enum batch_end as)
{
    if (!r->ending || as == BATCH_HALTED) r->as = as;
    if (r->ending) return;
    r->ending = true;
    drop_lines(r);
    pump(r);
}
