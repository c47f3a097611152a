/* The public API of engine.h: opening, closing and the functions for other threads.  The engine thread's loop is in
 * loop.c. */
#include "engine/serve/engine.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/model/truncate.h"
#include "engine/serve/engine_state.h"
#include "engine/serve/kv_published.h"
#include "engine/serve/kv_tier.h"
#include "engine/serve/warmup.h"
#include "engine/train/job_order.h"
#include "kernels/rng.h"

#include <stdlib.h>
#include <string.h>

#ifdef TANDEM_DEBUG
enum { DEBUG = 1 };
#else
enum { DEBUG = 0 };
#endif

/* ---- opening and closing ---------------------------------------------------------------------------------------- */

/* Called on the trainer thread when it waits for the device. */
static void wake_engine(void *arg)
{
    engine_send(arg, MSG_WAKE, 0, NULL);
}

/* Called on the masker thread when the mask of a held request is ready. */
static void mask_ready(void *arg, uint64_t id)
{
    engine_send(arg, MSG_MASK, id, NULL);
}

struct engine *engine_open(const struct engine_config *c, struct err *e)
{
    enum speculate speculate;
    if (speculate_parse(c->speculate, &speculate, e)) return NULL;
    struct kv_tier *tier;
    if (kv_tier_prepare(&tier, c, e)) return NULL;
    struct engine *g = mem_zalloc(sizeof *g);
    if (setup_open(&g->s, c, ENGINE_MORE_ROWS, e)) {
        kv_tier_free(tier);
        free(g);
        return NULL;
    }
    const struct engine_info *m = &g->s.info;
    if (warmup_device(&g->batch, &g->s, e)) {
        kv_tier_free(tier);
        setup_close(&g->s);
        free(g);
        return NULL;
    }
    if (g->s.model.d->ops->memory) {
        struct dev_memory taken;
        g->s.model.d->ops->memory(g->s.model.d, &taken);
        g->s.info.device_budget = taken.budget; /* the largest budget that could be reserved */
        g->s.info.device_base = g->stats.device_used = taken.used;
        g->s.info.workspace_bytes = taken.used - m->weight_bytes - m->kv_bytes - m->draft_weight_bytes -
                                    m->draft_kv_bytes; /* all but weights and cache */
    }
    mailbox_init(&g->inbox);
    events_init(&g->events);
    pthread_mutex_init(&g->stats_lock, NULL);
    debug_state_init(&g->look);
    pthread_mutex_init(&g->load_lock, NULL);
    pthread_cond_init(&g->load_done, NULL);
    adapters_init(&g->adapters, m->max_adapters, m->max_lora_rank);
    g->pool = kv_pool_new(m->pages, rng_mix(clock_unix()));
    const struct sched_config limits = {
        .max_seqs = m->max_seqs,
        .max_batch_tokens = m->max_batch_tokens,
        .max_rows = g->s.max_rows,
        .prefix_cache = !c->no_prefix_cache && !m->embedder->encoder,
        .whole = m->embedder->encoder,
        .max_prefill_tokens = m->max_prefill_tokens,
        .near_len = g->s.model.c.near_len,
    };
    sched_init(&g->sched, &limits, g->pool);
    g->published =
        kv_published_new(g->pool, &g->adapters, c->kv_events, c->kv_events_model ? c->kv_events_model : m->model_id);
    g->rows = mem_array((size_t)g->s.max_rows, sizeof *g->rows);
    g->outs = mem_array((size_t)g->s.max_rows, sizeof *g->outs);
    g->scores = mem_array((size_t)g->s.max_rows * ENGINE_TOP_MAX, sizeof *g->scores);
    g->seqs = mem_array((size_t)m->max_seqs, sizeof *g->seqs);
    g->hidden = mem_array((size_t)m->hidden * HIDDEN_ROWS, sizeof *g->hidden);
    for (g->id_mask = 63; g->id_mask < (uint32_t)(m->max_seqs + m->max_queue); g->id_mask = g->id_mask * 2 + 1) {
    }
    g->by_id = mem_array((size_t)g->id_mask + 1, sizeof *g->by_id);
    g->speculate = speculate;
    g->no_draft = !g->s.draft;
    if (speculate != SPECULATE_OFF && c->history_bytes)
        g->history = history_new(c->history_bytes, rng_mix(clock_unix()));
    g->stats.pages_total = g->now.pages_total = m->pages;
    g->share = (struct train_quantum){.budget_ns = 1e9 * (c->train_itl_budget > 0 ? c->train_itl_budget : 0.05),
                                      .slowdown = c->train_slowdown >= 1 ? c->train_slowdown : 1.2};
    g->turn = c->turn;
    g->gate = scheduler_gate_new(g->s.model.d, wake_engine, g);
    if (c->watch_device || DEBUG) g->watch = device_owner_new(g->s.model.d, g->gate);
    trainer_init(&g->training, &g->s, g->gate, c->trains, wake_engine, g);
    g->masker = masker_new(g->s.tokenizer, m->vocab, m->eos, m->n_eos, mask_ready, g);
    if (kv_tier_open(g, tier, c, e) == 0) return g;
    engine_close(g);
    return NULL;
}

void engine_close(struct engine *g)
{
    if (!g) return;
    if (g->started) {
        engine_send(g, MSG_STOP, 0, NULL);
        pthread_join(g->thread, NULL);
    }
    kv_tier_close(g);
    debug_state_stop(&g->look); /* before the trainer runs without the gate */
    trainer_close(&g->training);
    if (g->training.ranks) job_order_end(g->training.ranks);
    masker_stop(g->masker);
    pthread_mutex_lock(&g->load_lock);
    g->closing = true;
    pthread_mutex_unlock(&g->load_lock);
    struct mail *next;
    for (struct mail *m = mailbox_take(&g->inbox, false); m; m = next) {
        next = m->next;
        struct msg *left = (struct msg *)m;
        engine_drop_request(g, left->request);
        if (left->kind == MSG_ADAPTER) {
            err_set(&left->load->e, ERR_FULL, "the engine is closing");
            engine_adapter_answer(g, left->load);
        }
        free(m);
    }
    pthread_mutex_lock(&g->load_lock);
    while (g->n_loading) pthread_cond_wait(&g->load_done, &g->load_lock);
    pthread_mutex_unlock(&g->load_lock);
    kv_tier_free(g->tier);
    g->tier = NULL;
    engine_drop_all(g);
    masker_free(g->masker);
    debug_state_close(&g->look);
    device_owner_free(g->watch);
    scheduler_gate_free(g->gate);
    sched_free(&g->sched);
    kv_published_free(g->published);
    kv_pool_free(g->pool);
    history_free(g->history);
    step_batch_close(&g->batch, g->s.model.d);
    adapters_close(&g->adapters, &g->s.model);
    setup_close(&g->s);
    events_free(&g->events);
    mailbox_destroy(&g->inbox);
    pthread_mutex_destroy(&g->stats_lock);
    pthread_mutex_destroy(&g->load_lock);
    pthread_cond_destroy(&g->load_done);
    free(g->by_id);
    free(g->rows);
    free(g->outs);
    free(g->scores);
    free(g->hidden);
    free(g->seqs);
    free(g);
}

bool engine_ends_text(const struct engine_info *info, int32_t id)
{
    for (int i = 0; i < info->n_eos; i++)
        if (info->eos[i] == id) return true;
    return false;
}

const struct engine_info *engine_info(const struct engine *g)
{
    return &g->s.info;
}

const struct tokenizer *engine_tokenizer(const struct engine *g)
{
    return g->s.tokenizer;
}

/* ---- calls of other threads -------------------------------------------------------------------------------------- */

bool engine_has_room(const struct engine *g)
{
    return atomic_load(&g->queued) < g->s.info.max_queue;
}

/* @return the salt of the request's pages, 0 without salt and tenant.  64 bits of SHA-256: to meet another's salt by
 * trying takes 2^63 requests, and would show a time, never a wrong token. */
static uint64_t salt_of(const struct gen_request *r)
{
    struct sha256 s;
    unsigned char digest[SHA256_BYTES];
    uint64_t salt;
    if (!r->cache_salt && !r->cache_tenant) return 0;
    sha256_start(&s);
    sha256_add(&s, &r->cache_tenant, sizeof r->cache_tenant);
    if (r->cache_salt) sha256_add(&s, r->cache_salt, strlen(r->cache_salt));
    sha256_end(&s, digest);
    memcpy(&salt, digest, sizeof salt);
    return salt;
}

/* An adapter with a head of scores has no text to give. */
static int check_scores(const struct gen_request *spec, const struct adapter_version *a, struct err *e)
{
    if (spec->score && !(a && a->score))
        return err_set(e, ERR_INVALID, "only an adapter of method reward gives scores");
    if (!a || !a->score || spec->score) return 0;
    return err_set(e, ERR_INVALID, "adapter \"%s\" gives scores of texts: use /classify", a->info.name);
}

uint64_t engine_submit(struct engine *g, const struct gen_request *spec, struct err *e)
{
    if (!engine_has_room(g)) {
        err_set(e, ERR_FULL, "Model is overloaded");
        return 0;
    }
    struct adapter_version *adapter = spec->adapter ? adapters_acquire(&g->adapters, spec->adapter, e) : NULL;
    if (spec->adapter && !adapter) return 0;
    struct request *r = check_scores(spec, adapter, e) ? NULL : request_new(spec, &g->s.info, e);
    uint64_t id = g->last_id + 1;
    if (r && spec->grammar) {
        struct masked *m = masked_new(g->masker, spec->grammar, id, e);
        if (m) {
            request_mask(r, m);
        } else {
            request_free(r);
            r = NULL;
        }
    }
    if (!r) {
        if (adapters_release(&g->adapters, adapter)) engine_send(g, MSG_SWEEP, 0, NULL);
        return 0;
    }
    if (adapter) {
        r->adapter = adapter;
        if (spec->score) r->score = adapter->score;
        r->seq.lora = &adapter->lora;
        r->seq.root = adapter_root(adapter);
    }
    r->seq.salt = salt_of(spec);
    r->id = g->last_id = id;
    r->seq.arrival = r->id;
    r->times.submitted = clock_now();
    atomic_fetch_add(&g->queued, 1);
    engine_send(g, MSG_SUBMIT, id, r);
    return id;
}

void engine_cancel(struct engine *g, uint64_t id)
{
    engine_send(g, MSG_CANCEL, id, NULL);
}

void engine_expire(struct engine *g, uint64_t id)
{
    engine_send(g, MSG_EXPIRE, id, NULL);
}

void engine_pause(struct engine *g, uint64_t id)
{
    engine_send(g, MSG_PAUSE, id, NULL);
}

void engine_resume(struct engine *g, uint64_t id)
{
    engine_send(g, MSG_RESUME, id, NULL);
}

int engine_check_generates(const struct engine *g, struct err *e)
{
    return model_config_generates(&g->s.model.c, e);
}

static int check_trains(const struct engine *g, struct err *e)
{
    if (!g->s.model.shard) return model_config_generates(&g->s.model.c, e);
    return err_set(e, ERR_UNSUPPORTED,
                   "a model that is divided over ranks cannot be trained where it is served; mpirun -n N tandem train "
                   "trains on ranks");
}

int engine_train_start(struct engine *g, const struct train_job *job, train_event_fn *fn, void *arg, struct err *e)
{
    int rc = check_trains(g, e);
    return rc ? rc : trainer_start(&g->training, job, fn, arg, e);
}

int engine_check_draft(const struct engine *g, const char *dir, struct err *e)
{
    int ids, most = tokenizer_size(g->s.tokenizer), rc = draft_check_dir(g->s.tokenizer, dir, &ids, e);
    return rc || ids >= most ? rc : err_set(e, ERR_INVALID, "it has %d tokens, and the vocabulary %d", ids, most);
}

int engine_check_teacher(const struct engine *g, const char *dir, struct err *e)
{
    int rc = engine_check_generates(g, e);
    struct tokenizer *t = rc ? NULL : tokenizer_open_dir(dir, e);
    if (!t) return e->code;
    rc = draft_check_vocabulary(t, g->s.tokenizer, e);
    tokenizer_close(t);
    return rc;
}

int engine_make_draft(const char *model, const char *out, int layers, struct err *e)
{
    return model_truncate(model, out, layers, e);
}

int engine_train_plan(struct engine *g, const struct train_job *job, struct train_plan *plan, struct err *e)
{
    if (engine_lost(g)) return err_set(e, ERR_FULL, "the device was lost");
    if (check_trains(g, e)) return e->code;
    struct train_job on = *job;
    on.comm = trainer_ranks(&g->training, job);
    return train_plan_job(&on, &g->s.model, g->gate, plan, e);
}

int engine_trainer_call(struct engine *g, engine_trainer_fn *fn, void *arg, struct err *e)
{
    int rc = check_trains(g, e);
    return rc ? rc : trainer_call(&g->training, fn, arg, e);
}

void engine_train_command(struct engine *g, enum train_command c)
{
    trainer_command(&g->training, c);
}

struct event_batch *engine_events(struct engine *g)
{
    return events_take(&g->events);
}

void engine_events_done(struct engine *g, struct event_batch *b)
{
    events_return(&g->events, b);
}

uint64_t engine_busy_since(const struct engine *g)
{
    return atomic_load(&g->busy_since);
}

struct debug_state *engine_debug_state(const struct engine *g)
{
    return (struct debug_state *)&g->look; /* readers only write its lock */
}

void engine_poke(struct engine *g)
{
    wake_engine(g);
}
