/* Hash table of the live requests by id.  Engine thread only. */
#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/serve/engine_state.h"
#include "engine/serve/kv_tier.h"

static struct request **find_link(struct engine *g, uint64_t id)
{
    struct request **link = &g->by_id[id & g->id_mask];
    while (*link && (*link)->id != id) link = &(*link)->next;
    return link;
}

void engine_drop_request(struct engine *g, struct request *r)
{
    if (r) draft_release(g->s.draft, &r->draft);
    if (r && adapters_release(&g->adapters, r->adapter)) engine_adapters_sweep(g);
    request_free(r);
}

void engine_end_request(struct engine *g, struct request *r, enum finish_reason why, int stop_index, const char *error)
{
    if (!r->times.scheduled)
        atomic_fetch_sub(&g->queued, 1);
    else if (r->adapter)
        adapters_run(&g->adapters, r->adapter, -1);
    kv_tier_leave(g, r);
    sched_remove(&g->sched, &r->seq);
    struct request **link = find_link(g, r->id);
    CHECK(*link == r);
    *link = r->next;
    engine_remember(g, r, why);
    request_done(r, why, stop_index, error, &g->events, clock_now());
    engine_drop_request(g, r);
}

struct request *engine_find_request(struct engine *g, uint64_t id)
{
    return *find_link(g, id);
}

void engine_schedule(struct engine *g, struct request *r)
{
    sched_add(&g->sched, &r->seq);
    kv_tier_arrive(g, r);
}

void engine_add_request(struct engine *g, struct request *r)
{
    r->next = g->by_id[r->id & g->id_mask];
    g->by_id[r->id & g->id_mask] = r;
    if (g->hold != HOLD_NEW) engine_schedule(g, r);
}

void engine_end_preempted(struct engine *g)
{
    for (struct seq *q = g->sched.waiting.next, *next; q != &g->sched.waiting; q = next) {
        next = q->next;
        struct request *r = (struct request *)q;
        if (r->ending) engine_end_request(g, r, r->ending, -1, NULL);
    }
}

void engine_drop_all(struct engine *g)
{
    for (uint32_t i = 0; i <= g->id_mask; i++)
        while (g->by_id[i]) {
            struct request *r = g->by_id[i];
            g->by_id[i] = r->next;
            sched_remove(&g->sched, &r->seq);
            engine_drop_request(g, r);
        }
}
