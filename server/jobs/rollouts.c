#include "server/jobs/rollouts.h"

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/data/dataset.h"
#include "engine/serve/engine.h"
#include "server/access/client.h"
#include "server/bridge/bridge.h"
#include "server/rewards/rewards.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <uv.h>

enum {
    TICK_MS = 100, /* requests that the engine had no room for are submitted again */
    POLL_MS = 50,  /* the trainer looks for a command */
    FAILURES = 3,  /* of a text, which is submitted again after each */
};

/* A text under way, or done. */
struct flight {
    struct round *round;
    struct gen *gen; /* NULL before and after it runs */
    uint64_t seed;
    int n_prompt, room, n;
    int32_t *id; /* (n_prompt + room) owned, as the next */
    float *logprob;
    struct buf text;
    double score; /* of a text that is judged */
    int failures; /* the engine could not finish it */
    bool again;   /* it waits to be submitted once more */
    bool truncated;
};

/* The texts of a step, to be sampled or to be judged by an adapter.  The loop's from the time that it is posted; when
 * it is over the trainer's again. */
struct round {
    struct rollouts *of;
    struct flight *flight;            /* (n) owned */
    int n, next, flying, done, again; /* next: the first that was never submitted */
    float temperature;
    const char *judge; /* the adapter that gives the texts scores; NULL: they are sampled */
    bool refused;      /* the engine had no room: waits for the next answer, or tick */
    struct err e;
    bool over, left; /* under the lock; left: the trainer has gone */
};

struct rollouts {
    struct rollouts_config c;
    char name[80]; /* of the adapter */
    uint64_t client;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    struct round *round; /* under the lock: that the loop has */
    uv_async_t wake;
    uv_timer_t tick;
    int handles;
};

static void round_free(struct round *w)
{
    for (int i = 0; i < w->n; i++) {
        free(w->flight[i].id);
        free(w->flight[i].logprob);
        buf_free(&w->flight[i].text);
    }
    free(w->flight);
    free(w);
}

/* ---- loop -------------------------------------------------------------------------------------------------------- */

static void drop_flights(struct round *w)
{
    for (int i = 0; i < w->n; i++) {
        bridge_cancel(w->flight[i].gen);
        w->flight[i].gen = NULL;
    }
    w->flying = 0;
}

/* It is the trainer's again, which may free it at once. */
static void round_over(struct round *w)
{
    struct rollouts *r = w->of;
    drop_flights(w);
    uv_timer_stop(&r->tick);
    pthread_mutex_lock(&r->lock);
    r->round = NULL;
    bool left = w->left;
    w->over = true;
    pthread_cond_signal(&r->ended);
    pthread_mutex_unlock(&r->lock);
    if (left) round_free(w);
}

static void pump(struct round *w);

/* Once more from its start, with the same seed.  @return false: it has failed too often. */
static bool retry(struct round *w, struct flight *f)
{
    if (engine_lost(w->of->c.engine) || f->failures == FAILURES) return false;
    f->failures++;
    f->again = true;
    f->n = 0;
    buf_clear(&f->text);
    w->again++;
    return true;
}

static void on_done(struct flight *f, const struct event *ev)
{
    struct round *w = f->round;
    const struct engine_info *info = engine_info(w->of->c.engine);
    f->gen = NULL;
    f->truncated = ev->finish == FINISH_LENGTH && !(f->n && engine_ends_text(info, f->id[f->n_prompt + f->n - 1]));
    w->flying--;
    w->refused = false;
    if (ev->finish == FINISH_ERROR && retry(w, f)) {
        pump(w);
        return;
    }
    w->done++;
    if (ev->finish == FINISH_ERROR)
        err_set(&w->e, engine_lost(w->of->c.engine) ? ERR_LOST : ERR_IO, "a text could not be %s: %s",
                w->judge ? "judged" : "sampled", ev->error ? ev->error : "?");
    else if (ev->finish == FINISH_CANCELLED || ev->finish == FINISH_ABORTED || ev->finish == FINISH_TIMEOUT)
        err_set(&w->e, ERR_FULL, "a text was stopped before its end");
    pump(w);
}

static void on_event(void *arg, const struct event *ev, const struct event_batch *batch)
{
    struct flight *f = arg;
    if (ev->kind == EV_TOKEN && f->n < f->room) {
        f->id[f->n_prompt + f->n] = ev->token;
        f->logprob[f->n++] = ev->logprob;
        buf_append(&f->text, batch->text + ev->text, ev->gen_len);
    }
    if (ev->kind == EV_EMBEDDING) f->score = (double)batch->values[ev->values];
    if (ev->kind == EV_DONE) on_done(f, ev);
}

static struct gen_request request_of(const struct round *w, const struct flight *f)
{
    if (w->judge)
        return (struct gen_request){.prompt = f->id,
                                    .n_prompt = f->n_prompt,
                                    .pooling = {{POOLING_LAST}, 1},
                                    .score = true,
                                    .adapter = w->judge};
    return (struct gen_request){.prompt = f->id,
                                .n_prompt = f->n_prompt,
                                .max_new_tokens = f->room,
                                .adapter = w->of->name,
                                .sampling = {.sample = true,
                                             .temperature = w->temperature,
                                             .top_p = 1,
                                             .typical_p = 1,
                                             .repetition = 1,
                                             .seed = f->seed}};
}

/* @return false: not now, or never (w->e). */
static bool launch(struct round *w, struct flight *f)
{
    struct rollouts *r = w->of;
    struct gen_request q = request_of(w, f);
    struct err e = {0};
    f->gen = bridge_submit_own(r->c.bridge, &q, r->client, on_event, f, &e);
    w->flying += f->gen != NULL;
    w->refused = !f->gen;
    if (!f->gen && e.code != ERR_FULL && e.code != ERR_NOMEM) { /* what is short now may not be later */
        w->e = e;
        err_prefix(&w->e, w->judge ? "a text cannot be judged" : "a text cannot be sampled");
    }
    return f->gen != NULL;
}

static struct flight *next_flight(const struct round *w)
{
    for (int i = 0; w->again && i < w->next; i++)
        if (w->flight[i].again) return &w->flight[i];
    return w->next < w->n ? &w->flight[w->next] : NULL;
}

static void pump(struct round *w)
{
    int window = engine_info(w->of->c.engine)->max_seqs;
    struct flight *f;
    while (!w->e.code && !w->refused && w->flying < window && !mem_is_short() && (f = next_flight(w)) && launch(w, f)) {
        w->again -= f->again;
        w->next += !f->again;
        f->again = false;
    }
    if (w->e.code || w->done == w->n) round_over(w);
}

/* @return the round, unless it is left; that is freed. */
static struct round *take_round(struct rollouts *r)
{
    pthread_mutex_lock(&r->lock);
    struct round *w = r->round;
    bool left = w && w->left;
    pthread_mutex_unlock(&r->lock);
    if (left) round_over(w);
    return left ? NULL : w;
}

static void go_on(struct rollouts *r)
{
    struct round *w = take_round(r);
    if (w) w->refused = false;
    if (w) pump(w);
}

static void on_tick(uv_timer_t *tick)
{
    go_on(tick->data);
}

static void on_wake(uv_async_t *wake)
{
    struct rollouts *r = wake->data;
    uv_timer_start(&r->tick, on_tick, TICK_MS, TICK_MS); /* round_over ends it */
    go_on(r);
}

struct rollouts *rollouts_open(const struct rollouts_config *c)
{
    struct rollouts *r = mem_zalloc(sizeof *r);
    r->c = *c;
    snprintf(r->name, sizeof r->name, "@grpo-%.60s", c->job);
    r->client = client_id_of("trainings of the daemon");
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&r->ended, &clock);
    pthread_condattr_destroy(&clock);
    CHECK(uv_async_init(c->loop, &r->wake, on_wake) == 0);
    CHECK(uv_timer_init(c->loop, &r->tick) == 0);
    r->wake.data = r->tick.data = r;
    r->handles = 2;
    return r;
}

static void on_closed(uv_handle_t *h)
{
    struct rollouts *r = h->data;
    if (--r->handles) return;
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->ended);
    free(r);
}

void rollouts_close(struct rollouts *r)
{
    struct err e = {0};
    take_round(r);
    engine_adapter_unload(r->c.engine, r->name, &e); /* it may never have been there */
    uv_close((uv_handle_t *)&r->wake, on_closed);
    uv_close((uv_handle_t *)&r->tick, on_closed);
}

/* ---- trainer ----------------------------------------------------------------------------------------------------- */

static struct round *round_empty(struct rollouts *r, const struct train_rollout *task)
{
    struct round *w = mem_zalloc(sizeof *w);
    *w = (struct round){.of = r, .n = task->n, .temperature = (float)task->temperature};
    w->flight = mem_array((size_t)w->n, sizeof *w->flight);
    return w;
}

static struct round *round_new(struct rollouts *r, const struct train_rollout *task)
{
    struct round *w = round_empty(r, task);
    for (int i = 0; i < w->n; i++) {
        const struct train_text *x = &task->text[i];
        struct flight *f = &w->flight[i];
        *f = (struct flight){.round = w, .seed = x->seed, .n_prompt = x->n_prompt, .room = x->room};
        f->id = mem_array((size_t)x->n_prompt + (size_t)x->room, sizeof *f->id);
        f->logprob = mem_array((size_t)x->room, sizeof *f->logprob);
        memcpy(f->id, x->id, (size_t)x->n_prompt * sizeof *f->id);
        buf_str(&f->text, "");
    }
    return w;
}

/* The prompts with the texts that were sampled, up to where a score is read. */
static struct round *round_judged(struct rollouts *r, const struct train_rollout *task, const char *adapter)
{
    struct round *w = round_empty(r, task);
    int32_t pad = engine_info(r->c.engine)->pad;
    w->judge = adapter;
    for (int i = 0; i < w->n; i++) {
        const struct train_text *x = &task->text[i];
        int n = x->n_prompt + x->n;
        while (n > 1 && x->id[n - 1] == pad) n--;
        w->flight[i] = (struct flight){.round = w, .n_prompt = n, .id = mem_array((size_t)n, sizeof *x->id)};
        memcpy(w->flight[i].id, x->id, (size_t)n * sizeof *x->id);
    }
    return w;
}

/* Hands the round to the loop.  @return whether it is over; else a command came, and the loop frees it. */
static bool await(struct rollouts *r, struct round *w, struct train *t)
{
    pthread_mutex_lock(&r->lock);
    r->round = w;
    uv_async_send(&r->wake);
    while (!w->over && !train_stopped(t)) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += POLL_MS * 1000000L;
        if (until.tv_nsec >= 1000000000L) until.tv_nsec -= 1000000000L, until.tv_sec++;
        pthread_cond_timedwait(&r->ended, &r->lock, &until);
    }
    bool over = w->over;
    w->left = !over;
    if (!over) uv_async_send(&r->wake);
    pthread_mutex_unlock(&r->lock);
    return over;
}

static void take_texts(struct round *w, struct train_rollout *task)
{
    for (int i = 0; i < w->n; i++) {
        struct flight *f = &w->flight[i];
        struct train_text *x = &task->text[i];
        memcpy(x->id + x->n_prompt, f->id + f->n_prompt, (size_t)f->n * sizeof *x->id);
        memcpy(x->logprob, f->logprob, (size_t)f->n * sizeof *x->logprob);
        x->n = f->n;
        x->truncated = f->truncated;
    }
}

struct judging {
    struct rollouts *r;
    struct train_rollout *task;
};

static bool is_stopped(void *arg)
{
    const struct judging *j = arg;
    return train_stopped(j->task->train);
}

static int score_by(void *arg, const char *adapter, double *value, struct err *e)
{
    struct judging *j = arg;
    struct round *w = round_judged(j->r, j->task, adapter);
    if (!await(j->r, w, j->task->train)) return err_set(e, ERR_FULL, "stopped");
    *e = w->e;
    for (int i = 0; i < w->n; i++) value[i] = w->flight[i].score;
    round_free(w);
    return e->code;
}

static int judge(struct rollouts *r, const struct round *w, struct train_rollout *task, struct err *e)
{
    struct reward_text *text = mem_array((size_t)w->n, sizeof *text);
    double *sum = mem_array((size_t)w->n, sizeof *sum);
    for (int i = 0; i < w->n; i++) {
        const struct flight *f = &w->flight[i];
        struct dataset_row row = dataset_row(r->c.data, task->text[i].row);
        text[i] = (struct reward_text){
            .text = f->text.data, .n = f->text.len, .tokens = f->n, .row = row.fields, .n_row = (size_t)row.n_fields};
    }
    struct judging j = {r, task};
    struct rewards_calls calls = {is_stopped, score_by, &j};
    int rc = rewards_score(r->c.rewards, text, w->n, &calls, sum, e);
    for (int i = 0; i < w->n && !rc; i++) task->text[i].reward = sum[i];
    free(text);
    free(sum);
    return rc;
}

/* What ends because the device was lost is no fault of the job, nor the end of one that was told to pause. */
static int note_lost(const struct rollouts *r, struct err *e)
{
    if (engine_lost(r->c.engine)) e->code = ERR_LOST;
    return e->code;
}

int rollouts_make(void *arg, struct train_rollout *task, struct err *e)
{
    struct rollouts *r = arg;
    if (engine_train_publish(r->c.engine, task->train, r->name, e)) return note_lost(r, e);
    struct round *w = round_new(r, task);
    if (!await(r, w, task->train)) return err_set(e, ERR_FULL, "stopped"), note_lost(r, e);
    *e = w->e;
    if (!e->code) {
        take_texts(w, task);
        judge(r, w, task, e);
    }
    round_free(w);
    return e->code ? note_lost(r, e) : 0;
}
