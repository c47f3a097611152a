/* Messages to the engine thread: posted by any thread, handled between steps. */
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/serve/engine_state.h"
#include "engine/serve/kv_published.h"
#include "engine/serve/kv_tier.h"

#include <stdlib.h>

void engine_post(struct engine *g, struct msg msg)
{
    struct msg *m = mem_alloc(sizeof *m);
    uint64_t idle = 0;
    *m = msg;
    /* Before the message is sent, since the loop iteration that handles it resets busy_since to 0. */
    atomic_compare_exchange_strong(&g->busy_since, &idle, clock_now());
    mailbox_send(&g->inbox, &m->mail);
}

void engine_send(struct engine *g, enum msg_kind kind, uint64_t id, struct request *r)
{
    engine_post(g, (struct msg){.kind = kind, .id = id, .request = r});
}

/* Whether the next step generates this request's next token. */
static bool decodes(const struct engine *g, const struct request *r)
{
    const struct seq *q = &r->seq;
    bool next = q->n_computed < q->n_known && q->n_computed >= q->first_row;
    return g->hold != HOLD_ALL && r->n_generated && q->state == SEQ_RUNNING && next && !q->paused && !q->blocked;
}

void engine_end_if_idle(struct engine *g, struct request *r)
{
    if (r->ending && !decodes(g, r)) engine_end_request(g, r, r->ending, -1, NULL);
}

static void handle_request(struct engine *g, struct request *r, enum msg_kind kind)
{
    switch (kind) {
    case MSG_CANCEL: engine_end_request(g, r, FINISH_CANCELLED, -1, NULL); return;
    case MSG_MASK: r->seq.blocked = false; return;
    case MSG_EXPIRE: r->ending = FINISH_TIMEOUT; break;
    case MSG_ABORT: r->ending = FINISH_ABORTED; break;
    default: r->seq.paused = kind == MSG_PAUSE;
    }
    engine_end_if_idle(g, r);
}

/* @return false when the engine thread is to stop. */
static bool handle(struct engine *g, const struct msg *m)
{
    if (m->kind == MSG_STOP) return false;
    if (m->kind == MSG_WAKE) return true;
    if (m->kind == MSG_ADAPTER) {
        engine_adapter_publish(g, m->load);
        engine_adapter_answer(g, m->load);
        return true;
    }
    if (m->kind == MSG_SWEEP) {
        engine_adapters_sweep(g);
        kv_published_sweep(g->published);
        return true;
    }
    if (m->kind == MSG_HOLD) {
        engine_take_hold(g, (enum engine_hold)m->id);
        return true;
    }
    if (m->kind == MSG_FORGET) {
        kv_forget(g->pool);
        return true;
    }
    if (m->kind == MSG_SUBMIT) {
        engine_add_request(g, m->request);
        return true;
    }
    struct request *r = engine_find_request(g, m->id);
    if (r) handle_request(g, r, m->kind); /* NULL: the request has ended meanwhile */
    return true;
}

bool engine_take_inbox(struct engine *g, bool wait)
{
    bool go_on = true;
    struct mail *next, *m = mailbox_take_until(&g->inbox, wait, kv_tier_deadline(g));
    atomic_store(&g->busy_since, clock_now());
    for (; m; m = next) {
        next = m->next;
        go_on &= handle(g, (struct msg *)m);
        free(m);
    }
    return go_on;
}
