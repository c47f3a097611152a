/* The driver.  An open loop's arrivals come from a timerfd, since libuv's timers know milliseconds only; everything
 * that need not be exact (limits of time, slow readers' pauses, retries, users that think) is looked at every TICK_MS.
 *
 *   due --issue--> sent --events--> whole answer, or why not --finish--> stats
 */
#include "loadtest/run.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "loadtest/schedule.h"
#include "loadtest/sse.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { TICK_MS = 10, SIDE_PATIENCE_S = 20, BURST = 256 };

static const uint64_t NEVER = UINT64_MAX;

struct run;

/* One arrival, from when it is due to its end. */
struct request {
    struct run *run;
    struct request *next, *prev; /* open ones */
    struct record rec;
    struct call call;
    struct sse_reader sse;
    uint64_t *gaps; /* ns */
    size_t n_gaps, gaps_cap;
    uint64_t first_piece; /* with text or without */
    uint64_t wake;        /* when to read on, or to ask again; 0: does not wait */
    int events, user;     /* user: of a closed run, else -1 */
    bool waiting_to_retry, whole, leave;
    enum outcome trouble; /* found in the stream; OUT_OK: none */
};

struct run {
    struct run_result *result;
    const struct options *options;
    const struct target *target;
    struct client *client;
    struct side *side;
    struct stats *stats;
    struct schedule schedule;
    uv_loop_t *loop;
    uv_poll_t due;
    uv_timer_t tick;
    int timer_fd;
    uint64_t start, next_at, last_end, last_arrival, ended, progress;
    bool arrivals_over, stopped;
    struct request *open; /* the newest first */
    int n_open, n_users;
    uint64_t *users; /* when each asks next; NEVER: while it waits for an answer */
};

volatile sig_atomic_t run_interrupted;

static uint64_t since_start(const struct run *r, uint64_t clock)
{
    return clock > r->start ? clock - r->start : 0;
}

static uint64_t run_now(const struct run *r)
{
    return since_start(r, clock_now());
}

static void issue(struct run *, uint64_t intended, int user);

static bool closed_is_over(const struct run *r, uint64_t now)
{
    const struct options *o = r->options;
    return (o->duration > 0 && (double)now * 1e-9 >= o->duration) ||
           (o->requests && r->schedule.index >= (uint64_t)o->requests);
}

/* ---- a request's end --------------------------------------------------------------------------------------------- */

static void user_is_free(struct run *r, const struct request *q, uint64_t now)
{
    /* after a failure a moment's rest: a server that refuses at once would be asked without end */
    double rest = q->rec.outcome == OUT_OK || q->rec.outcome == OUT_LEFT || q->rec.outcome == OUT_REFUSED ? 0 : 0.1;
    if (rest < r->options->think) rest = r->options->think;
    r->users[q->user] = now + (uint64_t)(rest * 1e9);
    if (rest > 0 || r->arrivals_over || closed_is_over(r, now)) return;
    issue(r, now, q->user);
}

static void finish(struct request *q, enum outcome outcome)
{
    struct run *r = q->run;
    struct record *rec = &q->rec;
    uint64_t now = run_now(r);
    client_drop(&q->call);
    rec->outcome = outcome;
    rec->status = q->call.status ? q->call.status : rec->status;
    if (q->call.sent) rec->sent = since_start(r, q->call.sent);
    if (!rec->first) rec->first = q->first_piece;
    if (rec->tokens < 1) rec->tokens = rec->pieces;
    if (outcome != OUT_OK || !rec->end) rec->end = now;
    rec->gaps = q->gaps;
    rec->n_gaps = (int)q->n_gaps;
    stats_add(r->stats, rec);
    r->last_end = now;
    if (q->next) q->next->prev = q->prev;
    *(q->prev ? &q->prev->next : &r->open) = q->next;
    r->n_open--;
    if (q->user >= 0) user_is_free(r, q, now);
    sse_reader_free(&q->sse);
    free(q->gaps);
    free(q);
}

/* A rejected request may be asked again when the server said when. */
static bool retry_later(struct request *q)
{
    struct run *r = q->run;
    if (!r->options->retry || q->rec.attempts > r->options->retries || r->stopped) return false;
    double wait = q->call.retry_after >= 0 ? q->call.retry_after : 1;
    q->wake = run_now(r) + (uint64_t)(wait * 1e9);
    q->waiting_to_retry = true;
    return true;
}

static enum outcome judge_bad(int status)
{
    if (status == 429 || status == 503) return OUT_REJECTED;
    return status >= 400 && status < 500 ? OUT_REFUSED : OUT_ACCEPTED;
}

static enum outcome judge(const struct request *q, enum call_end end)
{
    int status = q->call.status;
    if (end == CALL_CONNECT) return OUT_CONNECT;
    if (end == CALL_GARBAGE) return OUT_GARBAGE;
    if (end == CALL_CLOSED) return OUT_CLOSED;
    if (q->rec.ask.kind == ASK_BAD) return judge_bad(status);
    if (status == 429 || status == 503) return OUT_REJECTED;
    if (status != 200) return OUT_HTTP;
    if (q->trouble != OUT_OK) return q->trouble;
    if (!q->whole) return q->events ? OUT_CLOSED : OUT_GARBAGE; /* cut short, or no stream of events at all */
    return q->rec.pieces ? OUT_OK : OUT_EMPTY;
}

static void on_end(struct call *call, enum call_end end)
{
    struct request *q = call->user;
    if (call->got && !q->rec.answered) q->rec.answered = since_start(q->run, call->got);
    enum outcome outcome = judge(q, end);
    if (outcome == OUT_REJECTED && retry_later(q)) return;
    finish(q, outcome);
}

/* ---- its answer -------------------------------------------------------------------------------------------------- */

static void take_piece(struct request *q, const struct api_event *v, uint64_t now)
{
    struct run *r = q->run;
    struct record *rec = &q->rec;
    if (rec->pieces) {
        mem_grow(&q->gaps, &q->gaps_cap, q->n_gaps + 1, sizeof *q->gaps);
        q->gaps[q->n_gaps++] = now - rec->last;
    } else {
        q->first_piece = now;
    }
    rec->pieces++;
    rec->window_pieces += now >= r->stats->warm && now <= r->stats->until;
    if (v->text && !rec->first) rec->first = now;
    rec->last = now;
    stats_moment(r->stats, now)->pieces++;
}

static void on_event(void *user, const char *data, size_t n, bool error)
{
    struct request *q = user;
    struct api_event v;
    uint64_t now = since_start(q->run, q->call.got);
    q->events++;
    if (!api_read_event(q->run->target->api, data, n, &v))
        q->trouble = error ? OUT_ERROR_EVENT : OUT_GARBAGE;
    else if (v.error || error)
        q->trouble = OUT_ERROR_EVENT;
    if (v.tokens >= 0) q->rec.tokens = v.tokens;
    if (v.prompt >= 0) q->rec.prompt_tokens = v.prompt;
    if (v.token) take_piece(q, &v, now);
    if (v.last && !q->whole) {
        q->whole = true;
        q->rec.end = now;
    }
    if (q->rec.ask.kind == ASK_DISCONNECT && q->events >= q->rec.ask.leave_after) q->leave = true;
}

static void on_body(struct call *call, const char *p, size_t n)
{
    struct request *q = call->user;
    struct run *r = q->run;
    if (!q->rec.answered) q->rec.answered = since_start(r, call->got);
    if (call->status != 200 || q->rec.ask.kind == ASK_BAD) return;
    if (!sse_read(&q->sse, p, n)) {
        finish(q, OUT_GARBAGE);
        return;
    }
    if (q->leave) {
        finish(q, OUT_LEFT);
        return;
    }
    if (q->rec.ask.kind != ASK_SLOW) return;
    client_pause(call);
    q->wake = since_start(r, call->got) + (uint64_t)(r->options->slow_ms * 1e6);
}

/* ---- its beginning ----------------------------------------------------------------------------------------------- */

static void ask_server(struct request *q)
{
    struct buf bytes = {0};
    api_put_ask(&bytes, q->run->target, &q->rec.ask);
    q->rec.attempts++;
    q->call = (struct call){.on_body = on_body, .on_end = on_end, .user = q};
    q->call.fresh = q->run->options->fresh;
    if (q->rec.ask.kind == ASK_SLOW) q->call.fresh = true, q->call.receive_buffer = 4096;
    client_send(q->run->client, &q->call, &bytes);
}

static void issue(struct run *r, uint64_t intended, int user)
{
    uint64_t now = run_now(r);
    struct request *q = mem_zalloc(sizeof *q);
    q->run = r;
    q->user = user;
    if (user >= 0) {
        r->users[user] = NEVER;
        r->schedule.index++;
    }
    q->rec.ask = schedule_ask(&r->schedule, r->schedule.index - 1);
    q->rec.intended = intended;
    q->rec.issued = now;
    q->sse.on_event = on_event;
    q->sse.user = q;
    q->next = r->open;
    if (r->open) r->open->prev = q;
    r->open = q;
    r->n_open++;
    r->last_arrival = intended;
    if (r->n_open > r->result->peak_open) r->result->peak_open = r->n_open;
    struct moment *m = stats_moment(r->stats, now);
    m->arrivals++;
    if (r->n_open > m->running) m->running = r->n_open;
    if (r->n_open > r->options->max_open)
        finish(q, OUT_LIMIT);
    else
        ask_server(q);
}

/* ---- arrivals ---------------------------------------------------------------------------------------------------- */

static void arm(struct run *r)
{
    uint64_t at = r->start + r->next_at;
    struct itimerspec when = {.it_value = {(time_t)(at / 1000000000u), (long)(at % 1000000000u)}};
    CHECK(timerfd_settime(r->timer_fd, TFD_TIMER_ABSTIME, &when, NULL) == 0);
}

static void on_due(uv_poll_t *p, int status, int events)
{
    struct run *r = p->data;
    uint64_t expired, now = run_now(r);
    (void)status;
    (void)events;
    if (read(r->timer_fd, &expired, sizeof expired) < 0 || r->arrivals_over) return;
    for (int i = 0; i < BURST && r->next_at <= now; i++) { /* not all at once: answers are read in between */
        issue(r, r->next_at, -1);
        if (!schedule_next(&r->schedule, &r->next_at)) {
            r->arrivals_over = true;
            return;
        }
    }
    arm(r);
}

static void turn_users(struct run *r, uint64_t now)
{
    for (int i = 0; i < r->n_users; i++) {
        if (r->users[i] > now) continue;
        if (closed_is_over(r, now)) break;
        issue(r, now, i);
    }
    r->arrivals_over = closed_is_over(r, now);
}

/* ---- the tick ---------------------------------------------------------------------------------------------------- */

static void look_after(struct request *q, uint64_t now)
{
    struct run *r = q->run;
    if ((double)(now - q->rec.intended) * 1e-9 > r->options->timeout && now > q->rec.intended) {
        finish(q, q->waiting_to_retry ? OUT_REJECTED : OUT_TIMEOUT);
    } else if (q->rec.ask.kind == ASK_DISCONNECT && !q->rec.ask.leave_after && q->call.sent) {
        finish(q, OUT_LEFT);
    } else if (q->wake && now >= q->wake) {
        q->wake = 0;
        if (!q->waiting_to_retry) {
            client_resume(&q->call);
            return;
        }
        q->waiting_to_retry = false;
        q->rec.answered = 0;
        ask_server(q);
    }
}

static void close_all(struct run *r)
{
    r->stopped = true;
    side_close(r->side);
    uv_close((uv_handle_t *)&r->due, NULL);
    uv_close((uv_handle_t *)&r->tick, NULL);
}

static void show_progress(struct run *r, uint64_t now)
{
    if (r->options->quiet || now - r->progress < 1000000000u || !isatty(2)) return;
    r->progress = now;
    const uint64_t *n = r->stats->outcomes;
    uint64_t errors = 0;
    for (int i = OUT_HTTP; i < OUTCOMES; i++) errors += n[i];
    fprintf(stderr, "\r%6.0f s  %d open, %llu served, %llu rejected, %llu errors \033[K", (double)now * 1e-9, r->n_open,
            (unsigned long long)n[OUT_OK], (unsigned long long)n[OUT_REJECTED], (unsigned long long)errors);
}

static void end_all(struct run *r, enum outcome outcome)
{
    for (struct request *q; (q = r->open);) {
        bool waits = q->waiting_to_retry; /* NOLINT(clang-analyzer-unix.Malloc): finish has taken the one before out */
        finish(q, waits ? OUT_REJECTED : outcome);
    }
}

static void on_tick(uv_timer_t *t)
{
    struct run *r = t->data;
    uint64_t now = run_now(r);
    if (run_interrupted) r->arrivals_over = r->result->interrupted = true;
    if (r->n_users && !r->arrivals_over) turn_users(r, now);
    for (struct request *q = r->open, *next; q; q = next) {
        next = q->next; /* look_after ends q at most; a new one comes at the front */
        look_after(q, now);
    }
    struct moment *m = stats_moment(r->stats, now);
    if (r->n_open > m->running) m->running = r->n_open;
    show_progress(r, now);
    if (!r->arrivals_over) return;
    if (!r->ended) {
        r->ended = now;
        side_stop(r->side);
    }
    double waited = (double)(now - r->ended) * 1e-9;
    if (r->open && (waited >= r->options->drain || r->result->interrupted)) end_all(r, OUT_UNFINISHED);
    if (r->open) return;
    if (side_over(r->side) || r->result->interrupted || waited > r->options->drain + SIDE_PATIENCE_S) close_all(r);
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static void begin(struct run *r, int concurrency)
{
    const struct options *o = r->options;
    r->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    CHECK(r->timer_fd >= 0);
    CHECK(uv_poll_init(r->loop, &r->due, r->timer_fd) == 0 && uv_timer_init(r->loop, &r->tick) == 0);
    r->due.data = r->tick.data = r;
    r->start = clock_now();
    r->side = side_open(r->loop, r->client, r->target, o, r->stats, r->start);
    uv_timer_start(&r->tick, on_tick, 0, TICK_MS);
    if (concurrency) {
        r->n_users = concurrency;
        r->users = mem_array((size_t)concurrency, sizeof *r->users);
        for (int i = 0; i < concurrency; i++) r->users[i] = (uint64_t)(o->ramp * 1e9 * i / concurrency);
        return;
    }
    r->arrivals_over = !schedule_next(&r->schedule, &r->next_at);
    uv_poll_start(&r->due, UV_READABLE, on_due);
    if (!r->arrivals_over) arm(r);
}

void run_load(struct run_result *result, uv_loop_t *loop, struct client *client, const struct target *target,
              const struct options *o, const struct trace *trace, int concurrency, FILE *samples)
{
    uint64_t until = o->duration > 0 && !o->requests ? (uint64_t)(o->duration * 1e9) : NEVER;
    *result = (struct run_result){.concurrency = concurrency,
                                  .stats = stats_new(&o->slo, (uint64_t)(o->warmup * 1e9), until)};
    result->stats->samples = samples;
    struct run r = {
        .result = result, .options = o, .target = target, .client = client, .stats = result->stats, .loop = loop};
    schedule_init(&r.schedule, o, trace);
    struct client_counts before = *client_counts(client);
    double cpu = cpu_seconds();
    begin(&r, concurrency);
    /* Idle connections keep their handles: the loop is over when the run says so, not when it is empty. */
    while (!r.stopped) uv_run(loop, UV_RUN_ONCE);
    uv_run(loop, UV_RUN_NOWAIT); /* the closing callbacks of what lies on this stack */
    result->cpu_seconds = cpu_seconds() - cpu;
    result->seconds = (double)r.last_end * 1e-9;
    result->arrivals_seconds = (double)r.last_arrival * 1e-9;
    if (until == NEVER) result->stats->until = until = r.last_end;
    result->window_seconds = until > result->stats->warm ? (double)(until - result->stats->warm) * 1e-9 : 0;
    result->client = *client_counts(client);
    result->client.opened -= before.opened, result->client.reused -= before.reused,
        result->client.resent -= before.resent;
    result->train = *side_train(r.side);
    side_free(r.side);
    close(r.timer_fd);
    free(r.users);
    if (!o->quiet && isatty(2)) fputs("\r\033[K", stderr);
}

void run_result_free(struct run_result *result)
{
    stats_free(result->stats);
    result->stats = NULL;
}

void run_print_schedule(FILE *out, const struct options *o, const struct trace *trace)
{
    struct schedule s;
    uint64_t at = 0;
    schedule_init(&s, o, trace);
    bool closed = o->arrivals == ARRIVE_CLOSED;
    if (closed && !o->requests) return;
    while (closed ? s.index < (uint64_t)o->requests : schedule_next(&s, &at)) {
        if (closed) s.index++;
        struct ask a = schedule_ask(&s, s.index - 1);
        fprintf(out,
                "{\"index\":%llu,\"at\":%.9f,\"kind\":\"%s\",\"prompt_tokens\":%d,\"output_tokens\":%d,"
                "\"prefix_tokens\":%d,\"leave_after\":%d}\n",
                (unsigned long long)a.index, (double)at * 1e-9, ask_names[a.kind], a.prompt, a.output, a.prefix,
                a.leave_after);
    }
}
