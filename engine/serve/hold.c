/* Holding requests, aborting them, and forgetting prefixes: for trainers that change weights between texts. */
#include "engine/serve/engine_state.h"

/* ---- any thread ------------------------------------------------------------------------------------------------- */

uint64_t engine_hold(struct engine *g, enum engine_hold hold)
{
    engine_send(g, MSG_HOLD, hold, NULL);
    return ++g->n_holds;
}

uint64_t engine_holds_taken(const struct engine *g)
{
    return atomic_load(&g->n_held);
}

void engine_abort(struct engine *g, uint64_t id)
{
    engine_send(g, MSG_ABORT, id, NULL);
}

void engine_forget_prefixes(struct engine *g)
{
    engine_send(g, MSG_FORGET, 0, NULL);
}

/* ---- engine thread ---------------------------------------------------------------------------------------------- */

void engine_take_hold(struct engine *g, enum engine_hold hold)
{
    g->hold = hold;
    for (uint32_t i = 0; i <= g->id_mask; i++)
        for (struct request *r = g->by_id[i], *next; r; r = next) {
            next = r->next;
            /* what came in while only new ones were held joins the schedule, which orders it by priority and arrival */
            if (r->seq.state == SEQ_IDLE && hold != HOLD_NEW) engine_schedule(g, r);
            engine_end_if_idle(g, r); /* no next token comes */
        }
    atomic_fetch_add(&g->n_held, 1);
    if (g->events.notify) g->events.notify(g->events.arg);
}
