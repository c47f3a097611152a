#include "loadtest/side.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "loadtest/fetch.h"
#include "loadtest/gauges.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POLL_MS = 250 };

/* idle -> POSTed -> has an id: polled until it is over -> idle */
struct job {
    struct side *side;
    struct fetch fetch;
    char id[64]; /* "" : none */
    bool cancelling;
    int number;
};

struct side {
    uv_timer_t sample, poll;
    struct client *client;
    const struct target *target;
    const struct options *options;
    struct stats *stats;
    uint64_t start;
    struct fetch metrics;
    struct job *jobs; /* options->train_jobs */
    struct train_counts counts;
    bool stopping;
};

/* ---- gauges ------------------------------------------------------------------------------------------------------ */

static void on_metrics(struct fetch *f, int status)
{
    struct side *s = f->user;
    if (status != 200 || !f->body.data) return;
    struct gauge g = {.at = (double)(clock_now() - s->start) * 1e-9};
    gauges_read(&g, f->body.data);
    stats_gauge(s->stats, &g);
}

static void on_sample(uv_timer_t *t)
{
    struct side *s = t->data;
    if (!s->metrics.busy) fetch_start(&s->metrics, s->client, s->target, "GET", "/metrics", NULL);
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

static void note(struct side *s, const char *text, size_t n)
{
    char *to = s->counts.error;
    if (*to || !text) return;
    for (size_t i = 0; i < n && i < sizeof s->counts.error - 1; i++) /* it goes into reports */
        *to++ = text[i] < 0x20 || text[i] > 0x7e ? ' ' : text[i];
}

static char *job_body(const struct side *s, int number)
{
    struct buf b = {0};
    buf_str(&b, "{\"serve_as\":\"loadtest\",\"dataset\":{\"rows\":[");
    for (int i = 0; i < s->options->train_rows; i++) {
        struct ask a = {.text = (uint64_t)number << 32 | (unsigned)i};
        buf_printf(&b, "%s{\"prompt\":\"%d ", i ? "," : "", i);
        ask_put_prompt(&b, &a, 8);
        buf_str(&b, "\",\"completion\":\" ");
        a.text ^= 0x5555;
        ask_put_prompt(&b, &a, 16);
        buf_str(&b, "\"}");
    }
    buf_printf(
        &b,
        "]},\"hyperparameters\":{\"epochs\":1000,\"max_steps\":%d,\"batch_tokens\":256,\"max_length\":64,\"lora_r\":4,"
        "\"lora_alpha\":8}}",
        s->options->train_steps);
    return b.data;
}

static void on_started(struct fetch *f, int status)
{
    struct job *j = f->user;
    struct train_counts *n = &j->side->counts;
    cJSON *json = f->body.data ? cJSON_ParseWithLength(f->body.data, f->body.len) : NULL;
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(json, "id");
    if (status >= 200 && status < 300 && cJSON_IsString(id) && strlen(id->valuestring) < sizeof j->id) {
        n->started++;
        snprintf(j->id, sizeof j->id, "%s", id->valuestring);
    } else {
        n->refused++;
        note(j->side, f->body.data ? f->body.data : "no answer", f->body.data ? f->body.len : 9);
    }
    cJSON_Delete(json);
}

static void on_state(struct fetch *f, int status)
{
    struct job *j = f->user;
    struct train_counts *n = &j->side->counts;
    cJSON *json = f->body.data ? cJSON_ParseWithLength(f->body.data, f->body.len) : NULL;
    const cJSON *state = cJSON_GetObjectItemCaseSensitive(json, "status");
    const char *text = cJSON_IsString(state) ? state->valuestring : "";
    int *over = !strcmp(text, "succeeded")   ? &n->succeeded
                : !strcmp(text, "failed")    ? &n->failed
                : !strcmp(text, "cancelled") ? &n->cancelled
                : status == 404              ? &n->lost
                                             : NULL;
    if (over == &n->failed) note(j->side, f->body.data, f->body.len);
    if (over) {
        ++*over;
        j->id[0] = 0;
    }
    cJSON_Delete(json);
}

static void on_cancelled(struct fetch *f, int status)
{
    (void)f;
    (void)status; /* it is polled until it is over */
}

static void job_turn(struct job *j)
{
    struct side *s = j->side;
    char path[128];
    j->fetch.user = j;
    if (j->fetch.busy) return;
    if (!j->id[0]) {
        if (s->stopping) return;
        char *body = job_body(s, s->counts.started * 100 + j->number);
        j->fetch.done = on_started;
        j->cancelling = false;
        fetch_start(&j->fetch, s->client, s->target, "POST", "/train", body);
        free(body);
        return;
    }
    bool cancel = s->stopping && !j->cancelling;
    j->cancelling |= cancel;
    snprintf(path, sizeof path, "/train/%s%s", j->id, cancel ? "/cancel" : "");
    j->fetch.done = cancel ? on_cancelled : on_state;
    fetch_start(&j->fetch, s->client, s->target, cancel ? "POST" : "GET", path, NULL);
}

static void on_poll(uv_timer_t *t)
{
    struct side *s = t->data;
    for (int i = 0; i < s->options->train_jobs; i++) job_turn(&s->jobs[i]);
}

/* ---- the interface ----------------------------------------------------------------------------------------------- */

struct side *side_open(uv_loop_t *loop, struct client *client, const struct target *target, const struct options *o,
                       struct stats *stats, uint64_t start)
{
    struct side *s = mem_zalloc(sizeof *s);
    s->client = client, s->target = target, s->options = o, s->stats = stats, s->start = start;
    CHECK(uv_timer_init(loop, &s->sample) == 0 && uv_timer_init(loop, &s->poll) == 0);
    s->sample.data = s->poll.data = s;
    s->metrics.done = on_metrics;
    s->metrics.user = s;
    s->jobs = mem_array((size_t)o->train_jobs, sizeof *s->jobs);
    for (int i = 0; i < o->train_jobs; i++) s->jobs[i].side = s, s->jobs[i].number = i;
    uint64_t every = (uint64_t)ceil(o->metrics_every * 1000);
    if (every) uv_timer_start(&s->sample, on_sample, 0, every);
    if (o->train_jobs) uv_timer_start(&s->poll, on_poll, 0, POLL_MS);
    return s;
}

void side_stop(struct side *s)
{
    s->stopping = true;
    uv_timer_stop(&s->sample);
}

bool side_over(const struct side *s)
{
    for (int i = 0; i < s->options->train_jobs; i++)
        if (s->jobs[i].id[0] || s->jobs[i].fetch.busy) return false;
    return !s->metrics.busy;
}

void side_close(struct side *s)
{
    fetch_free(&s->metrics);
    for (int i = 0; i < s->options->train_jobs; i++) {
        s->counts.lost += s->jobs[i].id[0] != 0;
        fetch_free(&s->jobs[i].fetch);
    }
    uv_close((uv_handle_t *)&s->sample, NULL);
    uv_close((uv_handle_t *)&s->poll, NULL);
}

void side_free(struct side *s)
{
    free(s->jobs);
    free(s);
}

const struct train_counts *side_train(const struct side *s)
{
    return &s->counts;
}
