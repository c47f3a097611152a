/* An engine that a test drives: requests in, events out.  The including test says what it keeps of an event. */
#ifndef TANDEM_TESTS_UNIT_ENGINE_SERVE_ENGINE_RIG_H
#define TANDEM_TESTS_UNIT_ENGINE_SERVE_ENGINE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/serve/engine.h"

#include <semaphore.h>
#include <stdio.h>
#include <string.h>

/* v->user is what the request gave; defined by the including file */
static void take_event(const struct event_batch *b, const struct event *v);

struct rig {
    struct engine *g;
    sem_t wake;
    int left;
};

static void wake(void *arg)
{
    sem_post(&((struct rig *)arg)->wake);
}

/* of the trained model in the directory of models */
static inline struct engine_config base_config(const char *fixtures)
{
    static char model[1024];
    snprintf(model, sizeof model, "%s/tinystories-656k", fixtures);
    return (struct engine_config){.model = model,
                                  .threads = 2,
                                  .kv_cache_bytes = 64 << 20,
                                  .max_seqs = 40,
                                  .kv_type = "f32",
                                  .watch_device = true};
}

static void rig_start(struct rig *r, struct engine *g)
{
    struct err e = {0};
    *r = (struct rig){.g = g};
    sem_init(&r->wake, 0, 0);
    assert_int_equal(engine_start(g, wake, r, &e), 0);
}

static void rig_open(struct rig *r, struct engine_config c)
{
    struct err e = {0};
    struct engine *g = engine_open(&c, &e);
    if (!g) fail_msg("%s", e.msg);
    rig_start(r, g);
}

static void rig_close(struct rig *r)
{
    engine_close(r->g);
    sem_destroy(&r->wake);
}

/* handles what is there; true when something was */
static bool pump(struct rig *r)
{
    struct event_batch *all = engine_events(r->g);
    for (struct event_batch *b = all; b; b = b->next)
        for (int i = 0; i < b->n; i++) {
            take_event(b, &b->v[i]);
            r->left -= b->v[i].kind == EV_DONE;
        }
    engine_events_done(r->g, all);
    return all != NULL;
}

static void run_out(struct rig *r)
{
    while (r->left) {
        sem_wait(&r->wake);
        pump(r);
    }
}

static inline int encode(struct rig *r, const char *text, int32_t *ids)
{
    struct tokens t = {0};
    struct err e;
    assert_int_equal(tokenizer_encode(engine_tokenizer(r->g), text, strlen(text), TOKENIZE_SPECIAL, &t, &e), 0);
    for (size_t i = 0; i < t.n; i++) ids[i] = t.v[i].id;
    int n = (int)t.n;
    tokens_free(&t);
    return n;
}

#endif
