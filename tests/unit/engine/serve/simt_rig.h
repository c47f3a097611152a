/* The engine on simt: what its tests share.  Requests of fixed prompts, and a table of ops that a test may change.
 *
 * The including test has `fixtures`, the directory of models. */
#ifndef TANDEM_TESTS_UNIT_ENGINE_SERVE_SIMT_RIG_H
#define TANDEM_TESTS_UNIT_ENGINE_SERVE_SIMT_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/serve/engine.h"
#include "engine/serve/engine_state.h"
#include "engine/serve/manual_step.h"
#include "engine/serve/warmup.h"
#include "kernels/dev.h"
#include "tests/train/rows.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *fixtures;

static const char *use_adapter; /* of requests */

#define ADAPTER "qwen2--ours-patterns"

enum { TOKENS = 12, ASKS = 3 };

struct reply {
    int n;
    int32_t ids[TOKENS];
    float logprobs[TOKENS];
    enum finish_reason finish;
    char error[256];
    bool done;
};

static inline struct engine_config config(const char *device)
{
    static char model[1024];
    snprintf(model, sizeof model, "%s/qwen2", fixtures);
    return (struct engine_config){.model = model,
                                  .device = device,
                                  .threads = 1,
                                  .kv_type = "f32",
                                  .activations = "f32",
                                  .max_seqs = 4,
                                  .max_batch_tokens = 32,
                                  .max_lora_rank = 8,
                                  .no_prefix_cache = true, /* the same steps every time */
                                  .watch_device = true,
                                  .kv_pages = 64};
}

static inline struct engine *open_engine(struct engine_config c)
{
    struct err e = {0};
    struct engine *g = engine_open(&c, &e);
    if (!g) fail_msg("%s", e.msg);
    return g;
}

static inline struct dev *device_of(struct engine *g)
{
    return engine_setup(g)->model.d;
}

/* Prompts of one, two and many tokens; the third is sampled. */
static inline uint64_t submit(struct engine *g, int i, struct reply *y)
{
    int32_t prompt[40];
    struct err e = {0};
    for (int k = 0; k < 40; k++) prompt[k] = (k * 7 + i * 3 + 1) % 280;
    struct gen_request q = {.prompt = prompt,
                            .n_prompt = i == 0   ? 1
                                        : i == 1 ? 19
                                                 : 40,
                            .max_new_tokens = TOKENS,
                            .ignore_eos = true,
                            .sampling = {.temperature = 1, .top_p = 0.9f, .typical_p = 1, .repetition = 1.1f},
                            .adapter = use_adapter,
                            .user = y};
    q.sampling.sample = i == 2;
    q.sampling.seed = 11;
    *y = (struct reply){0};
    uint64_t id = engine_submit(g, &q, &e);
    if (!id) fail_msg("%s", e.msg);
    return id;
}

static inline void take(struct engine *g)
{
    struct event_batch *all = engine_events(g);
    for (struct event_batch *b = all; b; b = b->next)
        for (int i = 0; i < b->n; i++) {
            struct reply *y = b->v[i].user;
            if (b->v[i].kind == EV_TOKEN) {
                y->ids[y->n] = b->v[i].token;
                y->logprobs[y->n++] = b->v[i].logprob;
            }
            if (b->v[i].kind != EV_DONE) continue;
            y->done = true;
            y->finish = b->v[i].finish;
            snprintf(y->error, sizeof y->error, "%s", b->v[i].error ? b->v[i].error : "");
        }
    engine_events_done(g, all);
}

static inline void run_out(struct engine *g, const struct reply *y, int n)
{
    for (int i = 0; i < n;) {
        engine_step_once(g, false);
        take(g);
        while (i < n && y[i].done) i++;
    }
}

static inline void generate(struct engine *g, int from, int n, struct reply *y)
{
    for (int i = 0; i < n; i++) submit(g, from + i, &y[i]);
    run_out(g, y, n);
}

static inline void assert_same(const struct reply *a, const struct reply *b, bool bits)
{
    assert_int_equal(a->finish, FINISH_LENGTH);
    assert_int_equal(b->finish, FINISH_LENGTH);
    assert_int_equal(a->n, TOKENS);
    assert_memory_equal(a->ids, b->ids, sizeof a->ids);
    if (bits) assert_memory_equal(a->logprobs, b->logprobs, sizeof a->logprobs);
    for (int i = 0; i < TOKENS; i++) assert_float_equal(a->logprobs[i], b->logprobs[i], 1e-4f);
}

/* ---- other ops ----------------------------------------------------------------------------------------------------
 */

/* A table of ops that differs in a few from the device's own, and what its functions know. */
static struct {
    struct dev_ops ops;
    const struct dev_ops *own;
    struct engine *g;
    int reserves, failed, uploads;
} patched;

static inline void use_patched(struct engine *g)
{
    memset(&patched, 0, sizeof patched);
    patched.g = g;
    patched.own = device_of(g)->ops;
    patched.ops = *patched.own;
    device_of(g)->ops = &patched.ops;
}

static inline void use_own(struct engine *g)
{
    device_of(g)->ops = patched.own;
}

#endif
