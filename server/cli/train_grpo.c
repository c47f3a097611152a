#include "server/cli/train_grpo.h"

#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/serve/engine.h"
#include "engine/template/chat_template.h"
#include "server/bridge/bridge.h"
#include "server/jobs/rollouts.h"
#include "server/jobs/train_spec.h"
#include "server/json/json.h"
#include "server/metrics/metrics.h"
#include "server/rewards/rewards.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

enum { REWARDS_BYTES = 256 << 10, JOBS = 4 };

struct sampled {
    const struct train_grpo_config *c;
    uv_loop_t loop;
    uv_async_t ended;
    uv_signal_t signals[2];
    struct metrics metrics;
    struct engine *engine;
    struct bridge *bridge;
    struct chat_template *template;
    struct rewards *rewards;
    struct dataset *data;
    struct rollouts *rollouts;
    char *base_name;
    struct train_job job;
};

static int read_rewards(struct sampled *s, struct err *e)
{
    unsigned char digest[SHA256_BYTES];
    struct sha256 h;
    char *text = NULL;
    size_t n = 0;
    if (!s->c->rewards) return err_set(e, ERR_INVALID, "--rewards is missing: a file with a JSON list of checks");
    if (file_read(s->c->rewards, REWARDS_BYTES, &text, &n, e)) return err_prefix(e, "--rewards");
    cJSON *list = json_parse(text, n, e);
    if (!list) err_prefix(e, "--rewards: %.200s", s->c->rewards);
    if (list) s->rewards = rewards_open(list, "rewards", e);
    for (int i = 0; s->rewards && i < REWARDS_MAX; i++) {
        const char *model = rewards_model(s->rewards, i);
        if (model)
            err_set(e, ERR_UNSUPPORTED, "--rewards: adapter %.80s: only a daemon that serves it can ask it", model);
    }
    json_free(list);
    sha256_start(&h);
    sha256_add(&h, text, n);
    sha256_end(&h, digest);
    memcpy(&s->job.rewards_hash, digest, sizeof s->job.rewards_hash);
    free(text);
    return e->code;
}

static int open_engine(struct sampled *s, struct err *e)
{
    const struct train_offline_config *c = s->c->job;
    const struct model_options *m = &c->model;
    struct engine_config config = {.model = m->dir,
                                   .device = m->device,
                                   .threads = m->threads,
                                   .cpus = c->cpus,
                                   .quantize = m->quantize,
                                   .activations = m->activations,
                                   .gpu_memory_bytes = m->gpu_memory_bytes,
                                   .gpu_memory_fraction = m->gpu_memory_fraction,
                                   .verify_weights = m->verify_weights,
                                   .max_adapters = 1};
    s->engine = engine_open(&config, e);
    if (!s->engine || engine_check_generates(s->engine, e)) return e->code;
    if (!c->chat_template || !*c->chat_template)
        s->template = chat_template_load(m->dir, e);
    else if (strcmp(c->chat_template, "plain") != 0)
        s->template = chat_template_load_file(m->dir, c->chat_template, e);
    return e->code;
}

static int open_data(struct sampled *s, struct err *e)
{
    const struct train_offline_config *c = s->c->job;
    const struct engine_info *info = engine_info(s->engine);
    char *cache = file_join(c->dir, "cache");
    struct dataset_options o = c->options;
    struct dataset_report report;
    o.max_length = c->p.max_length;
    o.seed = c->p.seed;
    o.format = train_data_format(c->p.method, o.format);
    o.cache_dir = cache;
    o.threads = info->threads;
    int rc = train_length_suits(&c->p, info->max_total_tokens, e);
    if (!rc) rc = dir_make(c->dir, e);
    if (!rc)
        rc = dataset_open_all(&s->data, c->data->v, c->data->n, &o, engine_tokenizer(s->engine), s->template,
                              info->n_eos ? info->eos[0] : -1, &report, e);
    if (!rc) s->c->opened(s->c->arg, &report);
    free(cache);
    return rc;
}

static void on_event(void *arg, const struct train_event *ev)
{
    struct sampled *s = arg;
    s->c->event(s->c->arg, ev);
    if (train_event_is_last(ev->kind)) uv_async_send(&s->ended);
}

/* The first signal requests a checkpoint; the next one ends the process. */
static void on_signal(uv_signal_t *h, int number)
{
    struct sampled *s = h->data;
    engine_train_command(s->engine, TRAIN_PAUSE);
    uv_signal_stop(h);
    signal(number, SIG_DFL);
}

static void close_all(struct sampled *s)
{
    for (int i = 0; i < 2; i++) uv_close((uv_handle_t *)&s->signals[i], NULL);
    uv_close((uv_handle_t *)&s->ended, NULL);
    if (s->rollouts) rollouts_close(s->rollouts);
    bridge_close(s->bridge, NULL, NULL);
}

static void on_ended(uv_async_t *ended)
{
    close_all(ended->data);
}

static void open_loop(struct sampled *s)
{
    static const int numbers[] = {SIGINT, SIGTERM};
    CHECK(uv_loop_init(&s->loop) == 0);
    CHECK(uv_async_init(&s->loop, &s->ended, on_ended) == 0);
    s->ended.data = s;
    for (int i = 0; i < 2; i++) {
        uv_signal_init(&s->loop, &s->signals[i]);
        s->signals[i].data = s;
        uv_signal_start(&s->signals[i], on_signal, numbers[i]);
    }
    metrics_init(&s->metrics);
    s->bridge = bridge_open(&s->loop, &s->metrics);
}

static int run(struct sampled *s, struct err *e)
{
    const struct train_offline_config *c = s->c->job;
    struct engine *engine = s->engine;
    open_loop(s);
    int rc = bridge_start(s->bridge, engine, JOBS, e); /* the engine is the bridge's */
    if (!rc)
        s->rollouts = rollouts_open(&(struct rollouts_config){.loop = &s->loop,
                                                              .bridge = s->bridge,
                                                              .engine = engine,
                                                              .rewards = s->rewards,
                                                              .data = s->data,
                                                              .job = "train"});
    s->base_name = mem_strdup(engine_info(engine)->base_name);
    s->job.p = c->p;
    s->job.data = s->data;
    s->job.from = c->from;
    s->job.base_name = s->base_name;
    s->job.model_dir = c->model.dir;
    s->job.dir = c->dir;
    s->job.out = c->out;
    s->job.rollout = rollouts_make;
    s->job.rollout_arg = s->rollouts;
    if (!rc) rc = engine_train_start(engine, &s->job, on_event, s, e);
    if (rc) close_all(s);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    uv_loop_close(&s->loop);
    s->engine = NULL;
    return rc;
}

int train_grpo(const struct train_grpo_config *c, struct err *e)
{
    struct sampled *s = mem_zalloc(sizeof *s); /* the metrics are large */
    s->c = c;
    int rc = read_rewards(s, e);
    if (!rc) rc = open_engine(s, e);
    if (!rc) rc = open_data(s, e);
    if (!rc) rc = run(s, e);
    engine_close(s->engine);
    if (s->data) dataset_free(s->data);
    chat_template_free(s->template);
    rewards_free(s->rewards);
    free(s->base_name);
    free(s);
    return rc;
}
