/* Adapters by name: read on the caller's thread, uploaded to the device by the engine thread between two steps. */
#include "engine/serve/engine_state.h"
#include "engine/serve/kv_published.h"
#include "engine/serve/kv_tier.h"
#include "engine/train/tuner.h"

/* the engine thread, which owns the device */
void engine_adapter_publish(struct engine *g, struct adapter_load *l)
{
    if (engine_lost(g))
        err_set(&l->e, ERR_FULL, "the device was lost");
    else if (!model_reserve_adapters(&g->s.model, &l->e))
        adapters_publish(&g->adapters, &g->s.model, l->name, l->adapter, &l->version, &l->e);
    kv_published_sweep(g->published);
    engine_check_device(g);
}

void engine_adapters_sweep(struct engine *g)
{
    if (!engine_lost(g)) adapters_sweep(&g->adapters, &g->s.model);
}

void engine_adapter_answer(struct engine *g, struct adapter_load *l)
{
    pthread_mutex_lock(&g->load_lock);
    l->done = true;
    pthread_cond_broadcast(&g->load_done);
    pthread_mutex_unlock(&g->load_lock);
}

/* Has the engine thread upload the adapter between two steps, and waits for that. */
static void load_wait(struct engine *g, struct adapter_load *l)
{
    pthread_mutex_lock(&g->load_lock);
    if (g->closing) {
        err_set(&l->e, ERR_FULL, "the engine is closing");
        l->done = true;
    } else {
        engine_post(g, (struct msg){.kind = MSG_ADAPTER, .load = l});
    }
    while (!l->done) pthread_cond_wait(&g->load_done, &g->load_lock);
    pthread_mutex_unlock(&g->load_lock);
}

/* Loads in progress, for which engine_close waits. */
static void count_loading(struct engine *g, int more)
{
    pthread_mutex_lock(&g->load_lock);
    g->n_loading += more;
    pthread_cond_broadcast(&g->load_done);
    pthread_mutex_unlock(&g->load_lock);
}

int engine_adapter_load(struct engine *g, const char *name, const char *dir, uint64_t *version, struct err *e)
{
    if (name[0] == '@') return err_set(e, ERR_INVALID, "adapters whose name begins with '@' are the server's own");
    return engine_adapter_load_unlisted(g, name, dir, version, e);
}

int engine_adapter_load_unlisted(struct engine *g, const char *name, const char *dir, uint64_t *version, struct err *e)
{
    struct adapter_load l = {.name = name};
    count_loading(g, 1);
    if (adapters_read(&g->adapters, name, dir, &g->s.model.c, &l.adapter, &l.e) == 0) {
        kv_tier_content(g, l.adapter);
        if (g->started)
            load_wait(g, &l);
        else
            engine_adapter_publish(g, &l);
    }
    adapter_free(l.adapter);
    count_loading(g, -1);
    if (version) *version = l.version;
    if (l.e.code) *e = l.e;
    return l.e.code;
}

/* The adapter stays its trainer's. */
static int publish(struct engine *g, struct adapter *a, const char *name, struct err *e)
{
    struct adapter_load l = {.name = name, .adapter = a};
    count_loading(g, 1);
    kv_tier_content(g, l.adapter);
    load_wait(g, &l);
    count_loading(g, -1);
    if (l.e.code) *e = l.e;
    return l.e.code;
}

int engine_tuner_publish(struct engine *g, struct tuner *t, const char *name, struct err *e)
{
    struct adapter *a = adapters_check_new(&g->adapters, name, e) ? NULL : tuner_adapter(t, e);
    return a ? publish(g, a, name, e) : e->code;
}

int engine_train_publish(struct engine *g, struct train *t, const char *name, struct err *e)
{
    struct adapter *a = adapters_check_new(&g->adapters, name, e) ? NULL : train_adapter(t, e);
    return a ? publish(g, a, name, e) : e->code;
}

int engine_adapter_unload(struct engine *g, const char *name, struct err *e)
{
    bool buried;
    int rc = adapters_remove(&g->adapters, name, &buried, e);
    if (buried || (!rc && g->published)) engine_post(g, (struct msg){.kind = MSG_SWEEP});
    return rc;
}

int engine_adapters_list(const struct engine *g, struct adapter_info *out, int max)
{
    return adapters_list((struct adapters *)&g->adapters, out, max); /* the lock is the only thing written */
}

bool engine_adapter_scores(const struct engine *g, const char *name)
{
    return adapters_scores((struct adapters *)&g->adapters, name);
}

int engine_adapter_check(const struct engine *g, const char *name, struct err *e)
{
    return adapters_check((struct adapters *)&g->adapters, name, e);
}
