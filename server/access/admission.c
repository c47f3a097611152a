#include "server/access/admission.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/access/admission_policy.h"
#include "server/access/client.h"
#include "server/access/keys.h"
#include "server/config/settings.h"
#include "server/json/json.h"
#include "server/metrics/metrics.h"
#include "server/net/http.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#define SECOND UINT64_C(1000000000)
#define TIMEOUT_MS_MAX INT64_C(86400000)

enum { DRAINING_RETRY = 5, LOADING_RETRY = 1, CLIENTS_SHOWN = 100 };

struct admission_handle {
    struct admission_handle *next, *prev; /* admission.watched; NULL: not in it */
    struct admission *of;
    int refs; /* the exchange, and each of its sequences at the engine */
    bool closed;
    int n;             /* sequences it is admitted for */
    int left;          /* sequences not yet submitted to the engine */
    bool submitted;    /* at least one was */
    int64_t tokens;    /* queued prompt tokens */
    int64_t pending;   /* those of sequences at the engine */
    int64_t charged;   /* prompt tokens taken from its client's bucket */
    uint64_t body;     /* bytes */
    uint64_t deadline; /* clock_now(); 0: none */
    void (*late)(void *);
    void *arg;
    struct policy_client *client;
    struct policy_key_limits per;
    int priority_max;
};

struct admission {
    struct admission_needs with;
    enum serving_state state;
    const struct engine **engines; /* (n_engines) those that are open */
    size_t n_engines, cap;
    int longest;                         /* tokens of a request that any of them took; 0: none was open yet */
    uint64_t prefill_tokens, prefill_ns; /* of those that were closed */
    struct admission_policy admit;
    struct admission_handle watched; /* head of a ring, the earliest deadline first */
    uv_timer_t timer;                /* runs only while a handle is watched */
};

/* ---- life -------------------------------------------------------------------------------------------------------- */

struct admission *admission_open(const struct admission_needs *with)
{
    const struct settings *set = with->set;
    struct admission *a = mem_zalloc(sizeof *a);
    a->with = *with;
    a->watched.next = a->watched.prev = &a->watched;
    policy_init(&a->admit, &(struct policy_limits){.max_seqs = set->max_seqs,
                                                   .max_queue = set->max_queue,
                                                   .max_tokens = INT64_MAX,
                                                   .max_wait = with->background ? 0 : set->max_wait});
    CHECK(uv_timer_init(with->loop, &a->timer) == 0);
    a->timer.data = a;
    return a;
}

/* The default (0): the tokens of max_queue requests of moderate length, at least those of two requests of maximum
 * length. */
static int64_t queue_tokens(const struct settings *set, int longest)
{
    int64_t usual = (int64_t)set->max_queue * 512, two = 2 * (int64_t)longest;
    return set->max_queue_tokens ? set->max_queue_tokens : usual > two ? usual : two;
}

static void on_timer_closed(uv_handle_t *h)
{
    struct admission *a = h->data;
    policy_free(&a->admit);
    free(a->engines);
    free(a);
}

void admission_close(struct admission *a)
{
    CHECK(a->watched.next == &a->watched);
    uv_close((uv_handle_t *)&a->timer, on_timer_closed);
}

/* ---- load -------------------------------------------------------------------------------------------------------- */

static void observe(struct admission *a)
{
    struct policy_sample now = {.prefill_tokens = a->prefill_tokens, .prefill_ns = a->prefill_ns};
    bool crowded = false;
    if (!a->longest) return;
    bool background = a->with.background;
    a->admit.limits.max_wait = background ? 0 : a->with.set->max_wait; /* a reload may change these */
    a->admit.limits.max_tokens = background ? INT64_MAX : queue_tokens(a->with.set, a->longest);
    for (size_t i = 0; i < a->n_engines; i++) {
        struct engine_stats s;
        engine_stats_read(a->engines[i], &s);
        now.running += s.running;
        now.prefill_tokens += s.prefill_tokens;
        now.prefill_ns += s.prefill_ns;
        /* with more than nine tenths of the pages in use, no further sequence can start even if slots are free */
        crowded = crowded || (s.running > 0 && s.pages_used > s.pages_total / 10 * 9);
    }
    now.slots = crowded ? now.running : a->admit.limits.max_seqs;
    policy_observe(&a->admit, &now);
}

void admission_state(struct admission *a, enum serving_state state)
{
    a->state = state;
}

void admission_engine_opened(struct admission *a, const struct engine *engine)
{
    const struct engine_info *i = engine_info(engine);
    mem_grow(&a->engines, &a->cap, a->n_engines + 1, sizeof *a->engines);
    a->engines[a->n_engines++] = engine;
    if (i->max_total_tokens > a->longest) a->longest = i->max_total_tokens;
    a->admit.limits.max_seqs = i->max_seqs;
    a->admit.limits.max_prompt = a->longest;
    observe(a);
}

void admission_engine_closes(struct admission *a, const struct engine *engine)
{
    struct engine_stats s;
    for (size_t i = 0; i < a->n_engines; i++) {
        if (a->engines[i] != engine) continue;
        engine_stats_read(engine, &s);
        a->prefill_tokens += s.prefill_tokens;
        a->prefill_ns += s.prefill_ns;
        a->engines[i] = a->engines[--a->n_engines];
        return;
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void set_retry_after(struct http_req *req, int seconds)
{
    char text[16];
    snprintf(text, sizeof text, "%d", seconds);
    http_set_header(req, "Retry-After", text);
}

static bool below_v1(const struct http_req *req)
{
    return http_speaks_openai(req->path) || strncmp(req->path, "/v1/", 4) == 0;
}

static void reply_invalid(struct http_req *req, const char *msg)
{
    metrics_reject(req->admission->with.metrics, REJECT_VALIDATION);
    http_reply_error(req, below_v1(req) ? 400 : 422, below_v1(req) ? "invalid_value" : "validation", "%s%s",
                     below_v1(req) ? "" : "Input validation error: ", msg);
}

void admission_reply_late(struct http_req *req)
{
    metrics_reject(req->admission->with.metrics, REJECT_DEADLINE);
    http_reply_error(req, 504, "timeout", "Request timed out: " ADMISSION_LATE);
}

/* request: what was refused */
static void reply_refusal(struct http_req *req, enum policy_verdict v, const struct policy_request *request,
                          double retry)
{
    static const struct {
        enum reject_reason reason;
        int status;
        const char *type, *text;
    } rows[] = {
        [POLICY_KEY_CONCURRENCY] = {REJECT_KEY_CONCURRENCY, 429, "rate_limit_exceeded",
                                    "this key's limit of requests at once is reached"},
        [POLICY_KEY_RATE] = {REJECT_KEY_RATE, 429, "rate_limit_exceeded",
                             "this key's limit of requests in a minute is reached"},
        [POLICY_KEY_TOKENS] = {REJECT_KEY_TOKENS, 429, "rate_limit_exceeded",
                               "this key's limit of tokens in a minute is reached"},
        [POLICY_QUEUE_FULL] = {REJECT_QUEUE_FULL, 429, "overloaded", "Model is overloaded"},
        [POLICY_QUEUE_TOKENS] = {REJECT_QUEUE_TOKENS, 429, "overloaded",
                                 "Model is overloaded: the prompts that wait are too long"},
        [POLICY_WAIT] = {REJECT_QUEUE_WAIT, 429, "overloaded", "Model is overloaded: the wait would be too long"},
        [POLICY_DEADLINE] = {REJECT_DEADLINE, 504, "timeout",
                             "Request timed out: its deadline would pass before the first token"},
    };
    const struct settings *set = req->admission->with.set;
    char text[160];
    if (v == POLICY_TOO_MANY || v == POLICY_KEY_TOO_MANY) {
        if (v == POLICY_TOO_MANY)
            snprintf(text, sizeof text, "%d texts at once are more than the %d that may run and wait here", request->n,
                     set->max_seqs + set->max_queue);
        else
            snprintf(text, sizeof text, "%d texts at once are more than the %d that this key may have", request->n,
                     request->per.max_concurrent);
        reply_invalid(req, text);
        return;
    }
    metrics_reject(req->admission->with.metrics, rows[v].reason);
    set_retry_after(req, policy_seconds(retry));
    http_reply_error(req, rows[v].status, rows[v].type, "%s", rows[v].text);
}

void admission_reply_memory(struct http_req *req, const char *what)
{
    metrics_reject(req->admission->with.metrics, REJECT_MEMORY);
    set_retry_after(req, 1);
    http_reply_error(req, 503, "memory", "%s; try again", what);
}

void admission_reply_full(struct http_req *req)
{
    struct admission *a = req->admission;
    observe(a);
    reply_refusal(req, POLICY_QUEUE_FULL, NULL, policy_estimate_wait(&a->admit, 0, clock_now()));
}

static bool refuses_state(const struct admission *a, struct http_req *req)
{
    if (a->state == SERVING_READY) return false;
    bool loading = a->state == SERVING_LOADING;
    metrics_reject(req->admission->with.metrics, loading ? REJECT_LOADING : REJECT_DRAINING);
    set_retry_after(req, loading ? LOADING_RETRY : DRAINING_RETRY);
    http_reply_error(req, 503, loading ? "loading" : "draining", "%s",
                     loading ? "the model is loading" : "the server is shutting down");
    return true;
}

/* ---- admission --------------------------------------------------------------------------------------------------- */

/* Sets the client of a request and the limits of its key.  @return false: the table of clients has no free entry. */
static bool set_client(struct admission *a, const struct http_req *req, struct policy_request *request, uint64_t now)
{
    const struct key *k = req->key;
    char name[CLIENT_NAME];
    if (k)
        request->per = (struct policy_key_limits){
            .requests_per_minute = k->requests_per_minute,
            .tokens_per_minute = k->tokens_per_minute,
            .max_concurrent = k->max_concurrent,
        };
    client_name(req, name);
    request->client = policy_client(&a->admit, name, now);
    return request->client != NULL;
}

/* *deadline: the header's deadline, or the server's if that is earlier; 0: none.  @return false when the header is not
 * a number. */
static bool read_deadline(const struct http_req *req, double request_timeout, uint64_t *deadline)
{
    const char *text = http_header(req, "X-Request-Timeout");
    char *end;
    *deadline = request_timeout > 0 ? req->received + (uint64_t)(request_timeout * SECOND) : 0;
    if (!text) return true;
    long long ms = strtoll(text, &end, 10);
    if (end == text || *end || *text < '0' || *text > '9' || ms < 1 || ms > TIMEOUT_MS_MAX) return false;
    uint64_t own = req->received + (uint64_t)ms * (SECOND / 1000);
    if (!*deadline || own < *deadline) *deadline = own;
    return true;
}

static double seconds_left(uint64_t deadline, uint64_t now)
{
    return !deadline ? 0 : deadline > now ? (double)(deadline - now) * 1e-9 : -1;
}

/* Fills *request for n sequences; the body, of `bytes` bytes, is not parsed yet.  @return false when it
 * has answered. */
static bool decide_unread(struct admission *a, struct http_req *req, int n, uint64_t bytes,
                          struct policy_request *request, uint64_t *deadline)
{
    uint64_t now = clock_now();
    double retry = 0;
    if (!read_deadline(req, a->with.background ? 0 : a->with.set->request_timeout, deadline)) {
        reply_invalid(req, "X-Request-Timeout: expected milliseconds, a whole number from 1 to 86400000");
        return false;
    }
    *request = (struct policy_request){
        .n = n,
        .time_left = seconds_left(*deadline, now),
    };
    if (request->time_left < 0) { /* it was received too slowly */
        admission_reply_late(req);
        return false;
    }
    observe(a);
    bool place = set_client(a, req, request, now);
    if (n) request->tokens = policy_estimate_tokens(&a->admit, request->client, bytes, 1);
    enum policy_verdict v = place ? policy_decide(&a->admit, request, now, &retry) : POLICY_QUEUE_FULL;
    if (v != POLICY_YES) reply_refusal(req, v, request, retry);
    return v == POLICY_YES;
}

bool admission_gate(struct http_req *req, uint64_t length)
{
    struct admission *a = req->admission;
    struct policy_request request;
    uint64_t deadline;
    return refuses_state(a, req) || !decide_unread(a, req, 1, length, &request, &deadline);
}

bool admission_refuses(struct http_req *req, const struct admission_light_request *what)
{
    struct admission *a = req->admission;
    struct policy_request request;
    uint64_t deadline;
    if (refuses_state(a, req)) return true;
    if (!what || !what->works) return false;
    if (!decide_unread(a, req, 0, 0, &request, &deadline)) return true;
    if (!a->with.pool_has_room(a->with.pool, client_id(req))) {
        admission_reply_full(req);
        return true;
    }
    policy_admit(&a->admit, &request, clock_now());
    return false;
}

struct admission_handle *admission_enter(struct http_req *req)
{
    struct admission *a = req->admission;
    struct policy_request request;
    uint64_t deadline;
    if (refuses_state(a, req) || !decide_unread(a, req, 1, req->body_len, &request, &deadline)) return NULL;
    if (!a->with.pool_has_room(a->with.pool, client_id(req))) {
        admission_reply_full(req);
        return NULL;
    }
    policy_admit(&a->admit, &request, clock_now());
    struct admission_handle *t = mem_zalloc(sizeof *t);
    *t = (struct admission_handle){
        .of = a,
        .refs = 1,
        .n = request.n,
        .tokens = request.tokens,
        .charged = request.tokens,
        .body = req->body_len,
        .deadline = deadline,
        .client = request.client,
        .per = request.per,
        .priority_max = a->with.background ? INT_MAX
                        : req->key         ? req->key->priority_max
                                           : INT_MIN,
    };
    t->client->users++;
    return t;
}

/* ---- deadlines --------------------------------------------------------------------------------------------------- */

static void arm(struct admission *a);

static void unwatch(struct admission_handle *t)
{
    if (!t->next) return;
    t->prev->next = t->next;
    t->next->prev = t->prev;
    t->next = t->prev = NULL;
}

static void on_timer(uv_timer_t *timer)
{
    struct admission *a = timer->data;
    uint64_t now = clock_now();
    while (a->watched.next != &a->watched && a->watched.next->deadline <= now) {
        struct admission_handle *t = a->watched.next;
        unwatch(t);
        t->late(t->arg); /* may close it */
    }
    arm(a);
}

static void arm(struct admission *a)
{
    const struct admission_handle *t = a->watched.next;
    uint64_t now = clock_now();
    if (t == &a->watched) {
        uv_timer_stop(&a->timer);
        return;
    }
    uv_update_time(a->with.loop); /* the timer counts from the loop's cached time, set when the loop woke up */
    uv_timer_start(&a->timer, on_timer,
                   t->deadline > now ? (t->deadline - now + SECOND / 1000 - 1) / (SECOND / 1000) : 0, 0);
}

static void watch(struct admission_handle *t)
{
    struct admission *a = t->of;
    if (!t->deadline || !t->late || t->closed) return;
    struct admission_handle *at = a->watched.prev; /* most deadlines are later than those before them */
    while (at != &a->watched && at->deadline > t->deadline) at = at->prev;
    t->prev = at;
    t->next = at->next;
    t->prev->next = t->next->prev = t;
    if (t->prev == &a->watched) arm(a);
}

void admission_handle_watch(struct admission_handle *t, void (*late)(void *), void *arg)
{
    CHECK(!t->late);
    t->late = late;
    t->arg = arg;
    watch(t);
}

/* ---- a handle ---------------------------------------------------------------------------------------------------- */

bool admission_handle_reserve(struct admission_handle *t, struct http_req *req,
                              const struct admission_handle_need *need)
{
    struct admission *a = t->of;
    uint64_t now = clock_now(), deadline = 0;
    double retry = 0;
    if (need->timeout_ms) deadline = req->received + (uint64_t)need->timeout_ms * (SECOND / 1000);
    if (deadline && (!t->deadline || deadline < t->deadline)) t->deadline = deadline;
    struct policy_request request = {
        .n = need->at_once,
        .tokens = policy_estimate_tokens(&a->admit, t->client, t->body, need->sequences / need->copies) * need->copies,
        .held_n = t->n,
        .held_tokens = t->tokens,
        .time_left = seconds_left(t->deadline, now),
        .client = t->client,
        .per = t->per,
    };
    if (request.time_left < 0) {
        admission_reply_late(req);
        return false;
    }
    observe(a);
    enum policy_verdict v = policy_decide(&a->admit, &request, now, &retry);
    if (v != POLICY_YES) {
        reply_refusal(req, v, &request, retry);
        return false;
    }
    policy_admit(&a->admit, &request, now);
    t->n = request.n;
    t->left = need->sequences;
    t->charged += request.tokens - t->tokens;
    t->tokens = request.tokens;
    return true;
}

void admission_handle_tokens(struct admission_handle *t, int64_t prompt, int64_t all)
{
    struct admission *a = t->of;
    policy_record_tokens(&a->admit, t->client, t->body, prompt);
    policy_charge(t->client, &t->per, (double)(all - t->charged), clock_now());
    policy_release(&a->admit, t->client, 0, t->tokens - all);
    t->tokens = t->charged = all;
}

int admission_handle_priority(const struct admission_handle *t, int wanted)
{
    return wanted < t->priority_max ? t->priority_max : wanted;
}

/* Drops a reference.  With the last one, returns what the handle still holds and frees it. */
static void handle_unref(struct admission_handle *t)
{
    struct admission *a = t->of;
    if (--t->refs) return;
    policy_release(&a->admit, t->client, t->n, t->tokens);
    if (!t->submitted) policy_charge(t->client, &t->per, -(double)t->charged, clock_now()); /* nothing was computed */
    t->client->users--;
    free(t);
}

/* `tokens` of its prompt tokens are no longer queued. */
static void release_tokens(struct admission_handle *t, int64_t tokens)
{
    policy_release(&t->of->admit, t->client, 0, tokens);
    t->tokens -= tokens;
}

/* Returns the sequences it was admitted for that are neither at the engine nor to be submitted. */
static void release_sequences(struct admission_handle *t, int running)
{
    int needed = running + t->left;
    if (t->n <= needed) return;
    policy_release(&t->of->admit, t->client, t->n - needed, 0);
    t->n = needed;
}

void admission_handle_close(struct admission_handle *t)
{
    if (!t) return;
    t->closed = true;
    t->left = 0;
    unwatch(t);
    release_tokens(t, t->tokens - t->pending);
    release_sequences(t, t->refs - 1);
    handle_unref(t);
}

void admission_handle_submitted(struct admission_handle *t, int prompt_tokens)
{
    t->refs++;
    t->left--;
    t->pending += prompt_tokens;
    t->submitted = true;
}

void admission_handle_begun(struct admission_handle *t, int prompt_tokens)
{
    t->pending -= prompt_tokens;
    release_tokens(t, prompt_tokens);
}

void admission_handle_done(struct admission_handle *t, const struct event *done, bool begun)
{
    uint64_t now = clock_now();
    if (!begun) admission_handle_begun(t, done->n_prompt);
    policy_charge(t->client, &t->per, done->n_generated, now);
    if (done->times.scheduled && done->times.done > done->times.scheduled)
        policy_record_end(&t->of->admit, (double)(done->times.done - done->times.scheduled) * 1e-9, now);
    release_sequences(t, t->refs - 1 - !t->closed);
    handle_unref(t);
}

void admission_handle_drop(struct admission_handle *t)
{
    handle_unref(t);
}

/* ---- gauges ------------------------------------------------------------------------------------------------------ */

static void put_gauge(struct buf *out, const char *name, const char *help, double value)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s gauge\n%s %.17g\n", name, help, name, name, value);
}

void admission_put_metrics(struct admission *a, struct buf *out)
{
    const struct admission_policy *p = &a->admit;
    observe(a);
    int waiting = p->active - p->limits.max_seqs;
    put_gauge(out, "tandem_queue_sequences", "Admitted sequences that wait for an engine slot.",
              waiting > 0 ? waiting : 0);
    put_gauge(out, "tandem_queue_sequences_limit", "Limit of tandem_queue_sequences.", p->limits.max_queue);
    put_gauge(out, "tandem_queue_clients", "Clients with admitted sequences.", p->n_present);
    put_gauge(out, "tandem_queue_tokens", "Prompt tokens of admitted requests without their first token.",
              (double)p->queued);
    if (a->longest)
        put_gauge(out, "tandem_queue_tokens_limit", "Limit of tandem_queue_tokens.", (double)p->limits.max_tokens);
    put_gauge(out, "tandem_queue_wait_seconds", "Estimated time to first token of a request that arrives now.",
              policy_estimate_wait(p, 0, clock_now()));
}

/* ---- active clients
 * ------------------------------------------------------------------------------------------------- */

static int by_share(const void *a, const void *b)
{
    const struct policy_client *const *x = a, *const *y = b;
    if ((*x)->active != (*y)->active) return (*y)->active - (*x)->active;
    return (*x)->queued != (*y)->queued ? ((*x)->queued < (*y)->queued ? 1 : -1) : strcmp((*x)->name, (*y)->name);
}

void admission_put_clients(const struct admission *a, struct buf *out)
{
    const struct admission_policy *p = &a->admit;
    const struct policy_client **v = mem_array((size_t)p->n_present + 1, sizeof *v);
    int n = 0;
    for (int i = 0; i < POLICY_SETS * POLICY_WAYS && n < p->n_present; i++)
        if (p->clients[i].active > 0) v[n++] = &p->clients[i];
    qsort(v, (size_t)n, sizeof *v, by_share);
    buf_char(out, '[');
    for (int i = 0; i < n && i < CLIENTS_SHOWN; i++) {
        buf_str(out, i ? ",{\"client\":" : "{\"client\":");
        json_put_string(out, v[i]->name, strlen(v[i]->name));
        buf_printf(out, ",\"sequences\":%d,\"queued_tokens\":%lld}", v[i]->active, (long long)v[i]->queued);
    }
    buf_char(out, ']');
    free(v);
}
