#include "server/api/model_table.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/crash.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/access/admission.h"
#include "server/access/client.h"
#include "server/api/app.h"
#include "server/api/model_finder.h"
#include "server/api/models.h"
#include "server/bridge/bridge.h"
#include "server/bridge/grammar_cache.h"
#include "server/config/settings.h"
#include "server/memory/reservation.h"
#include "server/net/http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <uv.h>

#define SECOND UINT64_C(1000000000)

enum {
    BACK_OFF_MAX = 60, /* seconds after a failed load, doubled with each from 1 on */
    BUSY_MS = 20,      /* until a model whose last requests are being cancelled is looked at again */
};

/* How long a model runs before it yields to one that waits: so many times what loading took, within these bounds. */
#define SHARE_LOADS 4
#define SHARE_MIN (SECOND / 4)
#define SHARE_MAX (30 * SECOND)

enum operation { OP_NONE, OP_ESTIMATE, OP_LOAD, OP_UNLOAD };

const char *const model_state_names[MODEL_STATES] = {"unloaded", "loading", "loaded", "unloading", "failed"};

struct model_table {
    struct model_table_config with;
    struct served_model **v; /* (n), each owned: never freed before the table */
    size_t n, cap;
    struct model_wait waits; /* head of a ring, the oldest first */
    int n_waits;

    /* the operation in progress, and what its thread reads and writes */
    enum operation op;
    uv_thread_t thread;
    bool threaded; /* it was started */
    uv_async_t over;
    struct model_loading loading;
    struct engine_memory estimate;
    struct bridge *bridge; /* of the engine that is closed; NULL: it never had one */
    uint64_t began;

    uv_timer_t timer;
    struct model_totals totals;
    struct engine_stats retired; /* of the engines that were closed */
    bool draining, ending;
    void (*closed)(void *);
    void *closed_arg;
    int handles; /* open */
};

static void kick(struct model_table *t);
static void on_timer(uv_timer_t *timer);

static double seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

int model_table_count(const struct model_table *t)
{
    return (int)t->n;
}

struct served_model *model_table_at(const struct model_table *t, int i)
{
    return t->v[i];
}

struct served_model *model_table_named(const struct model_table *t, const char *name)
{
    for (size_t i = 0; i < t->n; i++)
        if ((t->v[i]->name && strcmp(t->v[i]->name, name) == 0) || (t->v[i]->id && strcmp(t->v[i]->id, name) == 0))
            return t->v[i];
    return NULL;
}

/* The model that has, or had when it was loaded last, an adapter of this name. */
static struct served_model *with_adapter(const struct model_table *t, const char *name)
{
    struct err none = {0};
    for (size_t i = 0; i < t->n; i++)
        if (t->v[i]->engine && engine_adapter_check(t->v[i]->engine, name, &none) == 0) return t->v[i];
    for (size_t i = 0; i < t->n; i++)
        if (!t->v[i]->engine && served_adapter_find(t->v[i], name)) return t->v[i];
    return NULL;
}

struct served_model *model_table_find(struct model_table *t, const char *name, bool *adapter)
{
    struct served_model *m = NULL;
    if (adapter) *adapter = false;
    if (!name || !*name) return t->v[0];
    if ((m = model_table_named(t, name)) || models_is_served(t->with.app->set, name)) return m ? m : t->v[0];
    if ((m = with_adapter(t, name))) {
        if (adapter) *adapter = true;
        return m;
    }
    return models_is_any(t->with.app->set, name) ? t->v[0] : NULL;
}

void model_table_put_names(const struct model_table *t, struct buf *out)
{
    for (size_t i = 0; i < t->n && out->len < 240; i++)
        if (t->v[i]->name) buf_printf(out, "%s`%.100s`", out->len ? ", " : "", t->v[i]->name);
}

/* ---- the waiting ------------------------------------------------------------------------------------------------- */

static void unlink_wait(struct model_table *t, struct model_wait *w)
{
    w->prev->next = w->next; /* NOLINT(clang-analyzer-core.NullDereference): it is in the ring */
    w->next->prev = w->prev; /* NOLINT(clang-analyzer-core.NullDereference): it is in the ring */
    w->next = w->prev = NULL;
    t->n_waits--;
}

static void end_wait(struct model_table *t, struct model_wait *w, const struct err *e)
{
    unlink_wait(t, w);
    if (!e->code) w->model->users++;
    w->fn(w->arg, e);
}

/* Ends all waits for a model, or (NULL) for any; those that last as long as it takes too. */
static void end_waits(struct model_table *t, const struct served_model *m, const struct err *e)
{
    bool found = true;
    while (found) { /* from the start again: fn may have cancelled others */
        found = false;
        for (struct model_wait *w = t->waits.next; w != &t->waits && !found; w = w->next) {
            found = !m || w->model == m;
            if (found) {
                end_wait(t, w, e);
                break;
            }
        }
    }
}

static bool is_usable(const struct served_model *m)
{
    return m->state == MODEL_LOADED && !m->yields;
}

static bool is_resting(const struct served_model *m, uint64_t now)
{
    return m->state == MODEL_FAILED && now < m->retry_at;
}

/* Ends the waits that need not, or must not, go on. */
static void settle_waits(struct model_table *t, uint64_t now)
{
    bool found = true;
    while (found) {
        found = false;
        for (struct model_wait *w = t->waits.next; w != &t->waits; w = w->next) {
            struct err e = {0};
            if (is_resting(w->model, now))
                e = w->model->failure;
            else if (w->until && now >= w->until)
                err_set(&e, ERR_FULL, "the model %.100s could not be loaded within %g s: %s", w->model->name,
                        seconds(w->until - w->since),
                        w->model->state == MODEL_LOADING ? "it is still loading" : "others use the memory");
            else if (!is_usable(w->model))
                continue;
            found = true;
            end_wait(t, w, &e);
            break;
        }
    }
}

bool model_use(struct model_table *t, struct served_model *m)
{
    (void)t;
    if (!is_usable(m)) return false;
    m->users++;
    return true;
}

void model_use_as_is(struct served_model *m)
{
    m->users++;
}

void model_use_again(struct served_model *m)
{
    CHECK(m->users > 0);
    m->users++;
}

/* All requests of the background have half of the places.  A client has at most as many as are left: one alone about
 * half, two a third each; so there is always one for who comes next. */
static bool has_place(const struct model_table *t, const struct model_wait *one)
{
    int most = t->with.max_waiting, same = 0;
    for (const struct model_wait *w = t->waits.next; w != &t->waits; w = w->next)
        same += w->background == one->background && (w->background || w->client == one->client);
    if (t->n_waits >= most) return false;
    return one->background ? same < (most + 1) / 2 : same <= most - t->n_waits;
}

bool model_wait_for(struct model_table *t, struct served_model *m, struct model_wait *w, const struct http_req *req,
                    model_wait_fn *fn, void *arg)
{
    uint64_t now = clock_now();
    *w = (struct model_wait){.model = m, .since = now, .fn = fn, .arg = arg};
    if (req) {
        w->until = now + (uint64_t)(t->with.longest_wait * 1e9);
        w->client = client_id(req);
        w->background = req->background;
    }
    if (t->draining || (req && !has_place(t, w))) return false;
    w->next = &t->waits;
    w->prev = t->waits.prev;
    w->prev->next = w->next->prev = w;
    t->n_waits++;
    kick(t);
    return true;
}

void model_wait_cancel(struct model_table *t, struct model_wait *w)
{
    if (!w->next) return;
    unlink_wait(t, w);
    kick(t);
}

void model_release(struct model_table *t, struct served_model *m)
{
    CHECK(m->users > 0);
    m->users--;
    m->last_used = clock_now();
    if (t->n_waits || (!m->users && (t->with.idle > 0 || m->yields || t->closed))) kick(t);
}

void model_hold(struct served_model *m)
{
    m->holds++;
}

void model_unhold(struct served_model *m)
{
    CHECK(m->holds > 0);
    m->holds--;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static size_t loaded_bytes(const struct model_table *t)
{
    size_t bytes = 0;
    for (size_t i = 0; i < t->n; i++)
        if (t->v[i]->state == MODEL_LOADED) bytes += t->v[i]->bytes;
    return bytes;
}

static int loaded_count(const struct model_table *t)
{
    int n = 0;
    for (size_t i = 0; i < t->n; i++) n += t->v[i]->state == MODEL_LOADED;
    return n;
}

static void operate(void *arg)
{
    struct model_table *t = arg;
    struct served_model *m = t->loading.model;
    crash_thread_begin();
    switch (t->op) {
    case OP_ESTIMATE: t->with.estimate(t->with.app, m, &t->estimate, &t->loading.e); break;
    case OP_LOAD: t->with.load(t->with.app, &t->loading); break;
    case OP_UNLOAD:
        engine_close(t->loading.engine);
        reservation_trim(); /* the allocator gives back what it freed */
        break;
    default: break;
    }
    crash_thread_end();
    uv_async_send(&t->over);
}

static void begin(struct model_table *t, enum operation op, struct served_model *m)
{
    t->op = op;
    t->began = clock_now();
    if (op != OP_UNLOAD) t->loading = (struct model_loading){.model = m};
    int rc = uv_thread_create(&t->thread, operate, t);
    t->threaded = rc == 0;
    if (t->threaded) return;
    if (op == OP_UNLOAD)
        engine_close(t->loading.engine); /* here, as it must be */
    else
        err_set(&t->loading.e, ERR_NOMEM, MODEL_NO_THREAD, uv_strerror(rc));
    uv_async_send(&t->over);
}

static void set_failed(struct model_table *t, struct served_model *m, const struct err *e)
{
    m->state = MODEL_FAILED;
    m->failure = *e;
    m->back_off = m->back_off ? 2 * m->back_off : 1;
    if (m->back_off > BACK_OFF_MAX) m->back_off = BACK_OFF_MAX;
    m->retry_at = clock_now() + (uint64_t)m->back_off * SECOND;
    t->totals.failures++;
    log_warn("model not loaded: model=%s retry_s=%d error=\"%s\"", m->name, m->back_off, e->msg);
}

static void on_found(void *arg, struct served_model *m, char *dir, const struct err *e)
{
    struct model_table *t = arg;
    m->state = MODEL_UNLOADED;
    m->dir = dir;
    if (!dir && !t->draining) set_failed(t, m, e);
    kick(t);
}

static void on_finder_closed(void *arg)
{
    struct model_table *t = arg;
    t->handles--;
    kick(t);
}

static void begin_find(struct model_table *t, struct served_model *m)
{
    t->handles++;
    m->state = MODEL_LOADING;
    model_finder_begin(t->with.app, m, t->with.find, on_found, on_finder_closed, t);
}

static int too_large(const struct model_table *t, const struct served_model *m, size_t bytes, struct err *e)
{
    if (!t->with.memory || bytes <= t->with.memory) return 0;
    return err_set(e, ERR_NOMEM,
                   "the model %.100s takes %.1f MiB of weights, KV cache and workspace, and --models-memory is %.1f "
                   "MiB: raise it, or lower --kv-cache-bytes, --max-seqs or --max-batch-tokens",
                   m->name ? m->name : "", (double)bytes / 0x1p20, (double)t->with.memory / 0x1p20);
}

/* A device's own memory is set aside as a whole: adapters and training take it later. */
static size_t bytes_of(const struct settings *set, const struct engine_info *i)
{
    if (!i->device_budget)
        return i->weight_bytes + i->kv_bytes + i->workspace_bytes + i->draft_weight_bytes + i->draft_kv_bytes +
               i->draft_workspace_bytes;
    return i->device_base > set->gpu_memory_bytes ? i->device_base : set->gpu_memory_bytes;
}

/* The names of --model are known once it is loaded: they must be nobody else's. */
static int check_names(const struct model_table *t, struct served_model *m, const struct engine_info *i, struct err *e)
{
    const char *names = t->with.app->set->served_model_name;
    if (m->name) return 0;
    if (!*names) names = i->model_id;
    for (const char *at = names; *at && !e->code;) {
        size_t n = strcspn(at, ",");
        char *name = mem_strndup(at, n);
        if (model_table_named(t, name))
            err_set(
                e, ERR_INVALID,
                "--model and one of --models or --models-dir are both named %.100s: choose another name for that of "
                "--model with --served-model-name",
                name);
        free(name);
        at += n + (at[n] == ',');
    }
    /* by the name of its folder it is found too, unless that is another one's */
    if (!e->code && model_table_named(t, i->model_id)) m->id = mem_strndup(names, strcspn(names, ","));
    return e->code;
}

int model_table_adopt(struct model_table *t, struct model_loading *l, struct err *e)
{
    struct app *app = t->with.app;
    struct served_model *m = l->model;
    const struct engine_info *i = engine_info(l->engine);
    size_t bytes = bytes_of(app->set, i);
    e->code = 0; /* what was tried and went well in the end may have left one */
    if (too_large(t, m, bytes, e) || check_names(t, m, i, e)) return e->code;
    struct bridge *b = bridge_open_beside(app->bridge);
    if (bridge_start(b, l->engine, app->set->max_queue + app->set->max_seqs, e)) {
        bridge_release_engine(b);
        bridge_close(b, NULL, NULL);
        return e->code;
    }
    bridge_separate_caches(b, app->set->cache_per_key);
    bridge_on_lost(b, t->with.lost, t->with.lost_arg);
    served_model_set(app, m, b, l->engine);
    m->bytes = m->need = bytes;
    m->estimated = true;
    m->state = MODEL_LOADED;
    m->yields = false;
    m->back_off = 0;
    m->loaded_at = m->last_used = clock_now();
    m->load_ns = t->op == OP_LOAD ? m->loaded_at - t->began : (uint64_t)(i->load_seconds * 1e9);
    m->loads++;
    t->totals.loads++;
    t->with.watch(app, l->engine, true);
    return 0;
}

static void after_estimate(struct model_table *t, struct served_model *m)
{
    struct err e = t->loading.e;
    const struct engine_memory *b = &t->estimate;
    m->state = MODEL_UNLOADED;
    m->need = b->weight_bytes + b->kv_bytes + b->workspace_bytes;
    m->estimated = !e.code;
    if (!e.code) too_large(t, m, m->need, &e);
    if (e.code) set_failed(t, m, &e);
}

/* A model took more than was estimated, and that does not fit: it is closed again, and then the estimate is right. */
static void undo_load(struct model_table *t, struct served_model *m, size_t bytes)
{
    log_warn("model larger than estimated: model=%s bytes=%zu estimate=%zu", m->name, bytes, m->need);
    served_model_drop(m);
    m->need = bytes;
    m->state = MODEL_UNLOADING;
    begin(t, OP_UNLOAD, m);
}

static void after_load(struct model_table *t, struct served_model *m)
{
    struct model_loading *l = &t->loading;
    struct err e = l->e;
    m->state = MODEL_UNLOADED;
    const struct engine_info *i = l->engine ? engine_info(l->engine) : NULL;
    size_t bytes = i ? bytes_of(t->with.app->set, i) : 0;
    if (i && bytes > m->need && t->with.memory && loaded_bytes(t) + bytes > t->with.memory) {
        undo_load(t, m, bytes);
        return;
    }
    if (i && model_table_adopt(t, l, &e)) { /* rare: too large alone, or no thread */
        engine_close(l->engine);
        l->engine = NULL;
    }
    if (l->engine) {
        log_info("model loaded: model=%s bytes=%zu seconds=%.3f", m->name, m->bytes, seconds(m->load_ns));
        return;
    }
    served_model_drop(m);
    set_failed(t, m, &e);
}

static void on_bridge_closed(void *arg)
{
    struct model_table *t = arg;
    t->handles--;
    kick(t);
}

static void after_unload(struct model_table *t, struct served_model *m)
{
    if (t->bridge) {
        t->handles++;
        bridge_close(t->bridge, on_bridge_closed, t);
        t->bridge = NULL;
    }
    m->state = MODEL_UNLOADED;
    log_info("model unloaded: model=%s seconds=%.3f", m->name, seconds(clock_now() - t->began));
}

static void on_over(uv_async_t *h)
{
    struct model_table *t = h->data;
    enum operation op = t->op;
    if (op == OP_NONE) return;
    if (t->threaded) uv_thread_join(&t->thread);
    t->op = OP_NONE;
    struct served_model *m = t->loading.model;
    if (op == OP_ESTIMATE)
        after_estimate(t, m);
    else if (op == OP_UNLOAD)
        after_unload(t, m);
    else {
        t->op = OP_LOAD; /* for its time */
        after_load(t, m);
        if (t->op == OP_LOAD) t->op = OP_NONE;
    }
    kick(t);
}

/* Nobody uses it, and its bridge is idle. */
static void begin_unload(struct model_table *t, struct served_model *m)
{
    struct app *app = t->with.app;
    struct engine_stats s;
    engine_stats_read(m->engine, &s);
    engine_stats_retire(&t->retired, &s);
    t->with.watch(app, m->engine, false);
    struct bridge *b = m->bridge;
    t->loading = (struct model_loading){.model = m, .engine = bridge_release_engine(b)};
    served_model_clear(app, m);
    t->bridge = b;
    m->state = MODEL_UNLOADING;
    m->yields = false;
    m->unloads++;
    t->totals.unloads++;
    begin(t, OP_UNLOAD, m);
}

/* Neither used nor held (hold.c). */
static bool is_unused(const struct served_model *m)
{
    return m->state == MODEL_LOADED && !m->users && !bridge_active(m->bridge) && bridge_held(m->bridge) == HOLD_NONE;
}

int model_unload(struct model_table *t, struct served_model *m, struct err *e)
{
    if (m->state != MODEL_LOADED) return err_set(e, ERR_NOT_FOUND, "the model %.100s is not loaded", m->name);
    if (t->op) return err_set(e, ERR_FULL, "another model is being loaded or unloaded: try again");
    if (!is_unused(m))
        return err_set(e, ERR_FULL, "the model %.100s is in use: %d requests or jobs%s", m->name, m->users,
                       bridge_held(m->bridge) == HOLD_NONE ? "" : ", and its generation is held");
    begin_unload(t, m);
    return 0;
}

/* ---- deciding ---------------------------------------------------------------------------------------------------- */

static bool fits(const struct model_table *t, const struct served_model *m)
{
    bool room = !t->with.memory || loaded_bytes(t) + m->need <= t->with.memory;
    return room && (!t->with.max || loaded_count(t) < t->with.max);
}

/* A job, an evaluation or hold.c keeps it loaded, for as long as that lasts. */
static bool is_kept(const struct served_model *m)
{
    return m->state == MODEL_LOADED && (m->holds || bridge_held(m->bridge) != HOLD_NONE);
}

/* Whether it would fit if all models that can be unloaded were. */
static bool may_fit(const struct model_table *t, const struct served_model *m)
{
    size_t bytes = m->need;
    int n = 1;
    for (size_t i = 0; i < t->n; i++) {
        if (!is_kept(t->v[i])) continue;
        bytes += t->v[i]->bytes;
        n++;
    }
    return (!t->with.memory || bytes <= t->with.memory) && (!t->with.max || n <= t->with.max);
}

static struct served_model *least_recent(const struct model_table *t)
{
    struct served_model *found = NULL;
    for (size_t i = 0; i < t->n; i++)
        if (is_unused(t->v[i]) && (!found || t->v[i]->last_used < found->last_used)) found = t->v[i];
    return found;
}

static uint64_t share_end(const struct served_model *m)
{
    uint64_t share = SHARE_LOADS * m->load_ns;
    return m->loaded_at + (share < SHARE_MIN ? SHARE_MIN : share > SHARE_MAX ? SHARE_MAX : share);
}

/* The model that yields next, if one may: the one that was loaded first. */
static struct served_model *next_to_yield(const struct model_table *t)
{
    struct served_model *found = NULL;
    for (size_t i = 0; i < t->n; i++) {
        struct served_model *m = t->v[i];
        bool may = m->state == MODEL_LOADED && !is_kept(m);
        if (may && (!found || m->loaded_at < found->loaded_at)) found = m;
    }
    return found;
}

static void sooner(uint64_t *due, uint64_t at)
{
    if (at && (!*due || at < *due)) *due = at;
}

/* For the oldest wait whose model may get room: begins an operation, or makes a model yield. */
static void make_room(struct model_table *t, uint64_t now, uint64_t *due)
{
    struct served_model *m = least_recent(t);
    if (m) {
        begin_unload(t, m);
        return;
    }
    bool yielding = false;
    for (size_t i = 0; i < t->n; i++) yielding = yielding || t->v[i]->yields;
    if (!yielding && (m = next_to_yield(t))) {
        if (now >= share_end(m))
            m->yields = yielding = true;
        else
            sooner(due, share_end(m));
    }
    if (yielding) sooner(due, now + BUSY_MS * (SECOND / 1000));
}

static void serve_waits(struct model_table *t, uint64_t now, uint64_t *due)
{
    bool first = true, needs = false;
    for (struct model_wait *w = t->waits.next; w != &t->waits && !t->op; w = w->next) {
        struct served_model *m = w->model;
        if ((m->state != MODEL_UNLOADED && m->state != MODEL_FAILED) || is_resting(m, now)) continue;
        struct err e = {0};
        if (!m->dir) {
            begin_find(t, m);
            continue;
        }
        needs = true;
        if (m->estimated && too_large(t, m, m->need, &e)) { /* as its last load showed */
            set_failed(t, m, &e);
            kick(t);
        } else if (!m->estimated) {
            m->state = MODEL_LOADING;
            begin(t, OP_ESTIMATE, m);
        } else if (fits(t, m)) {
            m->state = MODEL_LOADING;
            begin(t, OP_LOAD, m);
        } else if (!may_fit(t, m)) {
            continue; /* unloading others would not help it: the next one is served as if it were the first */
        } else if (first) {
            make_room(t, now, due);
        }
        first = false;
    }
    if (t->op) return;
    for (size_t i = 0; i < t->n; i++) { /* nobody waits for their room any more, or they cannot give it */
        struct served_model *m = t->v[i];
        if (m->yields && (!needs || is_kept(m))) m->yields = false, kick(t);
    }
}

static void unload_idle(struct model_table *t, uint64_t now, uint64_t *due)
{
    for (size_t i = 0; i < t->n && t->with.idle > 0; i++) {
        struct served_model *m = t->v[i];
        uint64_t at = m->last_used + (uint64_t)(t->with.idle * 1e9);
        if (m->state != MODEL_LOADED || m->users) continue;
        if (now < at)
            sooner(due, at);
        else if (bridge_held(m->bridge) != HOLD_NONE)
            sooner(due, now + SECOND);
        else if (bridge_active(m->bridge) || t->op)
            sooner(due, now + BUSY_MS * (SECOND / 1000));
        else
            begin_unload(t, m);
    }
}

static void on_handle_closed(uv_handle_t *h)
{
    struct model_table *t = h->data;
    if (--t->handles) return;
    void (*done)(void *) = t->closed;
    void *arg = t->closed_arg;
    for (size_t i = 0; i < t->n; i++) served_model_free(t->v[i]);
    free(t->v);
    free(t);
    done(arg);
}

/* Closes what is open: one model at a time, each once its last requests, which are cancelled, have ended, then the
 * table itself. */
static void end(struct model_table *t)
{
    for (size_t i = 0; i < t->n && !t->op; i++) {
        struct served_model *m = t->v[i];
        if (m->state != MODEL_LOADED) continue;
        if (m->users || bridge_active(m->bridge)) {
            bridge_stop_all(m->bridge);
            uv_timer_start(&t->timer, on_timer, BUSY_MS, 0);
            return;
        }
        begin_unload(t, m);
    }
    if (t->op || t->handles || t->ending) return;
    t->ending = true;
    t->handles = 2;
    uv_close((uv_handle_t *)&t->timer, on_handle_closed);
    uv_close((uv_handle_t *)&t->over, on_handle_closed);
}

static void on_timer(uv_timer_t *timer)
{
    struct model_table *t = timer->data;
    uint64_t now = clock_now(), due = 0;
    settle_waits(t, now);
    if (t->closed) {
        end(t);
        return;
    }
    if (!t->draining && !t->op) serve_waits(t, now, &due);
    if (!t->draining && !t->op) unload_idle(t, now, &due);
    for (const struct model_wait *w = t->waits.next; w != &t->waits; w = w->next) sooner(&due, w->until);
    if (uv_is_active((uv_handle_t *)timer)) return; /* somebody kicked meanwhile */
    if (due) uv_update_time(timer->loop);
    if (due) uv_timer_start(timer, on_timer, due > now ? (due - now) / (SECOND / 1000) + 1 : 0, 0);
}

static void kick(struct model_table *t)
{
    if (!t->ending) uv_timer_start(&t->timer, on_timer, 0, 0);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

struct model_table *model_table_open(const struct model_table_config *c)
{
    struct model_table *t = mem_zalloc(sizeof *t);
    t->with = *c;
    t->waits.next = t->waits.prev = &t->waits;
    CHECK(uv_timer_init(c->app->loop, &t->timer) == 0);
    CHECK(uv_async_init(c->app->loop, &t->over, on_over) == 0);
    t->timer.data = t->over.data = t;
    return t;
}

struct served_model *model_table_add(struct model_table *t, const char *name, const char *where)
{
    struct served_model *m = mem_zalloc(sizeof *m);
    m->name = name ? mem_strdup(name) : NULL;
    m->id = name ? mem_strdup(name) : NULL;
    m->where = mem_strdup(where);
    m->ready_time = (int64_t)time(NULL);
    mem_grow(&t->v, &t->cap, t->n + 1, sizeof *t->v);
    t->v[t->n++] = m;
    return m;
}

void model_table_drain(struct model_table *t)
{
    struct err e = {0};
    t->draining = true;
    err_set(&e, ERR_LOST, "the server is shutting down");
    end_waits(t, NULL, &e);
}

void model_table_close(struct model_table *t, void (*done)(void *), void *arg)
{
    model_table_drain(t);
    t->closed = done;
    t->closed_arg = arg;
    kick(t);
}

/* ---- together ---------------------------------------------------------------------------------------------------- */

void model_table_totals(const struct model_table *t, struct model_totals *out)
{
    *out = t->totals;
    out->bytes = loaded_bytes(t);
    out->loaded = loaded_count(t);
    out->waiting = t->n_waits;
    out->budget = t->with.memory;
}

void model_table_stats(const struct model_table *t, struct engine_stats *out)
{
    *out = t->retired;
    for (size_t i = 0; i < t->n; i++) {
        struct engine_stats s;
        if (!t->v[i]->engine) continue;
        engine_stats_read(t->v[i]->engine, &s);
        engine_stats_add(out, &s);
    }
}

bool model_table_lost(const struct model_table *t)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->v[i]->engine && engine_lost(t->v[i]->engine)) return true;
    return false;
}
