/* Delivers engine events to loop callbacks, and runs clients' jobs on the thread pool.  Loop thread only, except
 * on_notify (engine thread) and work_tokenize (pool thread). */
#include "server/bridge/bridge.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/crash.h"
#include "engine/base/mem.h"
#include "server/access/admission.h"
#include "server/access/client.h"
#include "server/bridge/encode.h"
#include "server/bridge/work_queue.h"
#include "server/metrics/metrics.h"
#include "server/net/http.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <uv.h>

/* Of libuv's four threads; the other is for work outside the clients' queue: uploads, training jobs, a driver query
 * that hangs.  Not more than processors: one client's jobs use one slot less, which leaves a processor to engine
 * steps. */
enum { WORK_SLOTS = 3 };

static int work_slots(void)
{
    unsigned n = uv_available_parallelism();
    return n < 2 ? 2 : n < WORK_SLOTS ? (int)n : WORK_SLOTS;
}

struct gen {
    struct gen *next, *prev; /* bridge.gens, a ring */
    struct bridge *bridge;
    gen_fn *fn; /* NULL: the client disconnected, so req and view.adapter are invalid */
    void *arg;
    struct admission_handle *handle; /* NULL: the daemon's own; */
    struct http_req *req;            /* likewise */
    struct gen_view view;            /* except req and paused */
    bool begun;                      /* its first event arrived */
    bool background;                 /* as http_req has it */
    bool paused;
};

struct token_job {
    struct bridge *bridge;
    const struct tokenizer *tokenizer;
    char *text; /* owned */
    size_t len;
    struct reservation held; /* for it */
    unsigned flags;
    tokenize_done_fn *done; /* NULL: the client disconnected; */
    _Atomic bool gone;      /* the same, for the pool */
    void *arg;
    struct tokenization out;
};

struct bridge {
    uv_loop_t *loop;
    uv_async_t async;
    struct metrics *metrics;
    struct engine *engine; /* owned once started; NULL before */
    const struct tokenizer *tokenizer;
    int max_jobs;
    bool separate_caches;
    enum engine_hold hold;
    uint64_t held_last; /* with HOLD_NEW: the newest generation that is not held */
    uint64_t n_holds;   /* engine_hold's last */
    struct bridge_wait *waits;
    struct gen gens;         /* head of the ring */
    struct work_queue *work; /* shared by the bridges of a process */
    bool owns_work;
    int n_gens, n_jobs; /* n_jobs: on the pool and waiting for it */
    void (*on_idle)(void *);
    void *idle_arg;
    void (*on_lost)(void *);
    void *lost_arg;
    bool closing;
    void (*on_closed)(void *);
    void *closed_arg;
};

static void drain_events(uv_async_t *async);

static void on_notify(void *arg)
{
    struct bridge *b = arg;
    uv_async_send(&b->async); /* coalesces: one wake-up for any number of batches */
}

static struct bridge *open_with(uv_loop_t *loop, struct metrics *m, struct work_queue *work)
{
    struct bridge *b = mem_zalloc(sizeof *b);
    b->loop = loop;
    b->metrics = m;
    b->work = work;
    b->gens.next = b->gens.prev = &b->gens;
    CHECK(uv_async_init(loop, &b->async, drain_events) == 0);
    b->async.data = b;
    return b;
}

struct bridge *bridge_open(uv_loop_t *loop, struct metrics *m)
{
    struct bridge *b = open_with(loop, m, mem_zalloc(sizeof *b->work));
    work_queue_init(b->work, work_slots());
    b->owns_work = true;
    return b;
}

struct bridge *bridge_open_beside(const struct bridge *first)
{
    struct bridge *b = open_with(first->loop, first->metrics, first->work);
    b->max_jobs = first->max_jobs;
    return b;
}

struct engine *bridge_release_engine(struct bridge *b)
{
    CHECK(bridge_active(b) == 0);
    struct engine *engine = b->engine;
    b->engine = NULL;
    return engine;
}

void bridge_max_jobs(struct bridge *b, int max_jobs)
{
    b->max_jobs = max_jobs;
}

int bridge_start(struct bridge *b, struct engine *engine, int max_jobs, struct err *e)
{
    b->engine = engine;
    b->tokenizer = engine_tokenizer(engine);
    b->max_jobs = max_jobs;
    return engine_start(engine, on_notify, b, e);
}

void bridge_separate_caches(struct bridge *b, bool on)
{
    b->separate_caches = on;
}

static void gen_free(struct gen *g)
{
    g->prev->next = g->next;
    g->next->prev = g->prev;
    g->bridge->n_gens--;
    if (g->handle) admission_handle_drop(g->handle);
    free(g);
}

static void on_async_closed(uv_handle_t *h)
{
    struct bridge *b = h->data;
    void (*done)(void *) = b->on_closed;
    void *arg = b->closed_arg;
    if (b->owns_work) {
        work_queue_free(b->work);
        free(b->work);
    }
    free(b);
    if (done) done(arg);
}

/* Not before the last pool job has ended: jobs read the engine's tokenizer. */
static void close_when_quiet(struct bridge *b)
{
    if (!b->closing || b->n_jobs) return;
    b->closing = false;
    engine_close(b->engine); /* joins its thread: no notify after this */
    b->engine = NULL;
    while (b->gens.next != &b->gens) gen_free(b->gens.next); /* NOLINT(clang-analyzer-unix.Malloc): it is taken out */
    uv_close((uv_handle_t *)&b->async, on_async_closed);
}

void bridge_close(struct bridge *b, void (*done)(void *), void *arg)
{
    b->on_idle = NULL;
    b->closing = true;
    b->on_closed = done;
    b->closed_arg = arg;
    for (struct gen *g = b->gens.next; g != &b->gens; g = g->next) bridge_cancel(g);
    close_when_quiet(b);
}

/* ---- generations ----------------------------------------------------------------------------------------------- */

/* Submits on behalf of g->req, or of the daemon. */
static struct gen *submit(struct bridge *b, struct gen *g, struct gen_request r, struct err *e)
{
    r.user = g;
    if (b->separate_caches) r.cache_tenant = r.client;
    g->bridge = b;
    g->view.adapter = r.adapter;
    g->view.submitted = clock_now();
    g->view.n_prompt = r.n_prompt;
    g->view.max_new = r.pooling.n ? 0 : r.max_new_tokens;
    g->view.priority = r.priority;
    g->view.constrained = r.grammar != NULL;
    g->view.pooled = r.pooling.n > 0;
    g->view.id = engine_submit(b->engine, &r, e);
    if (!g->view.id) {
        free(g);
        return NULL;
    }
    g->next = &b->gens;
    g->prev = b->gens.prev;
    g->prev->next = g->next->prev = g;
    b->n_gens++;
    return g;
}

struct gen *bridge_submit(struct bridge *b, const struct gen_request *r, struct admission_handle *handle,
                          struct http_req *req, gen_fn *fn, void *arg, struct err *e)
{
    struct gen *g = mem_zalloc(sizeof *g);
    struct gen_request copy = *r;
    copy.client = client_id(req);
    g->fn = fn;
    g->arg = arg;
    g->req = req;
    g->background = req->background;
    g->view.received = req->received;
    if (!submit(b, g, copy, e)) return NULL;
    if (!r->pooling.n) metrics_observe(b->metrics, HIST_MAX_NEW, r->max_new_tokens);
    req->note.sequences++;
    req->note.adapter = r->adapter;
    g->handle = handle;
    admission_handle_submitted(handle, r->n_prompt);
    return g;
}

struct gen *bridge_submit_own(struct bridge *b, const struct gen_request *r, uint64_t client, gen_fn *fn, void *arg,
                              struct err *e)
{
    struct gen *g = mem_zalloc(sizeof *g);
    struct gen_request copy = *r;
    copy.client = client;
    copy.priority = INT_MAX;
    g->fn = fn;
    g->arg = arg;
    g->background = true;
    g->view.received = clock_now();
    return submit(b, g, copy, e);
}

void bridge_cancel(struct gen *g)
{
    if (!g || !g->fn) return;
    g->fn = NULL;
    engine_cancel(g->bridge->engine, g->view.id);
}

void bridge_expire(struct gen *g)
{
    if (g) engine_expire(g->bridge->engine, g->view.id);
}

void bridge_stop_all(struct bridge *b)
{
    for (struct gen *g = b->gens.next; g != &b->gens; g = g->next) engine_cancel(b->engine, g->view.id);
}

void bridge_pause(struct gen *g)
{
    if (g->paused) return;
    g->paused = true;
    engine_pause(g->bridge->engine, g->view.id);
}

void bridge_resume(struct gen *g)
{
    if (!g->paused) return;
    g->paused = false;
    engine_resume(g->bridge->engine, g->view.id);
}

static void check_idle(struct bridge *b)
{
    if (bridge_active(b) || !b->on_idle) return;
    void (*fn)(void *) = b->on_idle;
    b->on_idle = NULL;
    fn(b->idle_arg);
}

static void finish_gen(struct gen *g, const struct event *ev, const struct event_batch *batch, uint64_t now)
{
    struct bridge *b = g->bridge;
    metrics_finish(b->metrics, ev, g->background ? 0 : g->view.received, now);
    if (ev->finish == FINISH_CANCELLED) metrics_abort(b->metrics, g->fn ? ABORT_SHUTDOWN : ABORT_CLIENT);
    if (ev->finish == FINISH_TIMEOUT) metrics_abort(b->metrics, ABORT_DEADLINE);
    if (ev->finish == FINISH_ERROR) metrics_abort(b->metrics, ABORT_ERROR);
    if (g->handle) admission_handle_done(g->handle, ev, g->begun);
    g->handle = NULL;
    gen_fn *fn = g->fn;
    void *arg = g->arg;
    gen_free(g);
    if (fn) fn(arg, ev, batch);
}

static void dispatch(const struct event *ev, const struct event_batch *batch, uint64_t now)
{
    struct gen *g = ev->user;
    struct gen_view *v = &g->view;
    if (g->fn && g->req) request_note_event(&g->req->note, ev);
    if (ev->kind == EV_DONE) {
        finish_gen(g, ev, batch, now);
        return;
    }
    if (!g->begun) {
        g->begun = true;
        if (g->handle) admission_handle_begun(g->handle, g->view.n_prompt);
    }
    if (ev->kind == EV_TOKEN) {
        uint64_t since = v->last_token ? v->last_token : v->received;
        if (!g->background)
            metrics_observe(g->bridge->metrics, v->last_token ? HIST_ITL : HIST_TTFT, (double)(now - since) * 1e-9);
        if (!v->first_token) v->first_token = now;
        v->last_token = now;
        v->n_generated++;
    }
    if (g->fn) g->fn(g->arg, ev, batch);
}

/* ---- holding --------------------------------------------------------------------------------------------------- */

/* Calls those for whom it is so, or all. */
static void end_waits(struct bridge *b, bool resumed)
{
    const struct gen *oldest = b->gens.next;
    for (struct bridge_wait **link = &b->waits, *w; (w = *link);) {
        bool held = (oldest == &b->gens || oldest->view.id > w->last) && engine_holds_taken(b->engine) >= w->hold;
        if (!held && !resumed) {
            link = &w->next;
            continue;
        }
        *link = w->next;
        w->fn(w->arg, !held); /* may free w, and answers only its own exchange */
    }
}

void bridge_hold(struct bridge *b, enum engine_hold hold)
{
    if (hold == HOLD_NEW && b->hold != HOLD_NEW) b->held_last = b->gens.prev == &b->gens ? 0 : b->gens.prev->view.id;
    b->hold = hold;
    b->n_holds = engine_hold(b->engine, hold);
    if (hold == HOLD_NONE) end_waits(b, true);
}

enum engine_hold bridge_held(const struct bridge *b)
{
    return b->hold;
}

void bridge_abort_all(struct bridge *b)
{
    for (const struct gen *g = b->gens.next; g != &b->gens; g = g->next)
        if (!g->background) engine_abort(b->engine, g->view.id);
}

void bridge_when_held(struct bridge *b, struct bridge_wait *w)
{
    w->last = b->hold == HOLD_NEW ? b->held_last : 0;
    w->hold = b->n_holds;
    w->next = b->waits;
    b->waits = w;
    end_waits(b, false);
}

void bridge_wait_cancel(struct bridge *b, struct bridge_wait *w)
{
    for (struct bridge_wait **link = &b->waits; *link; link = &(*link)->next)
        if (*link == w) {
            *link = w->next;
            return;
        }
}

static void check_lost(struct bridge *b)
{
    if (!b->on_lost || !b->engine || !engine_lost(b->engine)) return;
    void (*fn)(void *) = b->on_lost;
    b->on_lost = NULL;
    fn(b->lost_arg);
}

static void drain_events(uv_async_t *async)
{
    struct bridge *b = async->data;
    struct event_batch *list = b->engine ? engine_events(b->engine) : NULL;
    if (!list) {
        end_waits(b, false);
        check_lost(b);
        return;
    }
    uint64_t now = clock_now();
    for (struct event_batch *batch = list; batch; batch = batch->next)
        for (int i = 0; i < batch->n; i++) dispatch(&batch->v[i], batch, now);
    engine_events_done(b->engine, list);
    end_waits(b, false);
    check_lost(b);
    check_idle(b);
}

/* ---- room ------------------------------------------------------------------------------------------------------ */

bool bridge_has_room(const struct bridge *b, uint64_t client)
{
    return (!b->engine || engine_has_room(b->engine)) && work_queue_has_room(b->work, client, b->max_jobs);
}

uint64_t bridge_oldest_waiting(const struct bridge *b)
{
    for (const struct gen *g = b->gens.next; g != &b->gens; g = g->next)
        if (!g->view.first_token && g->fn && !g->background) return g->view.submitted;
    return 0;
}

int bridge_list(const struct bridge *b, struct gen_view *out, int max)
{
    int n = 0;
    for (const struct gen *g = b->gens.next; g != &b->gens && n < max; g = g->next) {
        struct gen_view *v = &out[n++];
        *v = g->view;
        v->req = g->fn ? g->req : NULL;
        if (!g->fn) v->adapter = NULL;
        v->paused = g->paused;
    }
    return n;
}

int bridge_active(const struct bridge *b)
{
    return b->n_gens + b->n_jobs;
}

void bridge_on_lost(struct bridge *b, void (*fn)(void *), void *arg)
{
    b->on_lost = fn;
    b->lost_arg = arg;
}

void bridge_on_idle(struct bridge *b, void (*fn)(void *), void *arg)
{
    if (b->hold) bridge_hold(b, HOLD_NONE); /* held ones would never be over */
    b->on_idle = fn;
    b->idle_arg = arg;
    check_idle(b);
}

/* ---- work on the pool ------------------------------------------------------------------------------------------ */

struct pool_job {
    struct work_job queued; /* first: work_queue_next returns its address */
    uv_work_t work;
    struct bridge *bridge;
    void (*run)(void *), (*done)(void *);
    void *arg;
    uint64_t ns; /* its running time */
};

static void start_jobs(struct bridge *b);

enum { POOL_NICE = 5 };

/* Lowers the pool thread's priority: one client waits for a job, but all wait for the compute threads' steps. */
static void yield_to_steps(void)
{
    static _Thread_local bool lowered;
    if (!lowered) setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + POOL_NICE); /* on Linux: of the thread */
    lowered = true;
}

static void work_pool(uv_work_t *w)
{
    struct pool_job *j = w->data;
    uint64_t start = clock_now();
    crash_thread_begin();
    yield_to_steps();
    j->run(j->arg);
    j->ns = clock_now() - start;
}

static void after_pool(uv_work_t *w, int status)
{
    struct pool_job *j = w->data;
    struct bridge *b = j->bridge;
    CHECK(status == 0); /* it is never cancelled */
    if (j->queued.client) work_queue_end(b->work, &j->queued, j->ns);
    start_jobs(b); /* the thread is not idle while the loop is busy with the answer */
    b->n_jobs--;
    j->done(j->arg);
    free(j);
    check_idle(b);
    close_when_quiet(b);
}

static void start_job(struct pool_job *j)
{
    CHECK(uv_queue_work(j->bridge->loop, &j->work, work_pool, after_pool) == 0);
}

static void start_jobs(struct bridge *b)
{
    for (struct work_job *w; (w = work_queue_next(b->work));) start_job((struct pool_job *)w);
}

void bridge_work(struct bridge *b, uint64_t client, void (*work)(void *), void (*done)(void *), void *arg)
{
    struct pool_job *j = mem_zalloc(sizeof *j);
    *j = (struct pool_job){.bridge = b, .run = work, .done = done, .arg = arg};
    j->work.data = j;
    b->n_jobs++;
    if (client) {
        work_queue_add(b->work, client, &j->queued);
        start_jobs(b);
    } else {
        start_job(j);
    }
}

void bridge_render(struct bridge *b, uint64_t client, size_t bytes, void (*work)(void *), void (*done)(void *),
                   void *arg)
{
    enum { INLINE_BYTES = 256 * 1024 };
    if (bytes > INLINE_BYTES) {
        bridge_work(b, client, work, done, arg);
    } else {
        work(arg);
        done(arg);
    }
}

/* ---- tokenising ------------------------------------------------------------------------------------------------ */

static void free_tokenization(struct tokenization *t)
{
    tokens_free(&t->tokens);
    reservation_free(&t->held);
}

static void work_tokenize(void *arg)
{
    struct token_job *j = arg;
    if (atomic_load(&j->gone)) return;
    encode_reserved(j->tokenizer, j->text, j->len, j->flags, &j->out.tokens, &j->out.held, &j->out.err);
}

static void after_tokenize(void *arg)
{
    struct token_job *j = arg;
    if (j->done) j->done(j->arg, &j->out);
    free_tokenization(&j->out);
    reservation_free(&j->held);
    free(j->text);
    free(j);
}

struct token_job *bridge_tokenize(struct bridge *b, uint64_t client, const char *text, size_t n, unsigned flags,
                                  tokenize_done_fn *done, void *arg)
{
    struct tokenization t = {0};
    struct reservation held = {0};
    bool here = n <= TOKENIZE_INLINE_BYTES;
    if (here) encode_reserved(b->tokenizer, text, n, flags, &t.tokens, &t.held, &t.err);
    if (here || !reserve(&held, n, "the text", &t.err)) {
        done(arg, &t);
        free_tokenization(&t);
        return NULL;
    }
    struct token_job *j = mem_zalloc(sizeof *j);
    *j = (struct token_job){.bridge = b,
                            .tokenizer = b->tokenizer,
                            .text = mem_strndup(text, n),
                            .len = n,
                            .held = held,
                            .flags = flags,
                            .done = done,
                            .arg = arg};
    bridge_work(b, client, work_tokenize, after_tokenize, j);
    return j;
}

void bridge_tokenize_cancel(struct token_job *j)
{
    if (!j) return;
    j->done = NULL;
    atomic_store(&j->gone, true); /* the job stays queued and does nothing when it runs */
}
