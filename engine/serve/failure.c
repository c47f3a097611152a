/* When the device fails: whose requests end.
 *
 * An error of one op ends the requests of its step.  After an error that the device keeps (an illegal address in a
 * kernel, a card that fell off the bus) every later call fails too, and CUDA does not promise that the same process can
 * ever use the device again: every request ends with an error, a training job stops at its last checkpoint
 * (TRAIN_LOST), and the daemon exits so that its supervisor starts a new process. */
#include "engine/base/log.h"
#include "engine/serve/engine_state.h"
#include "engine/serve/kv_tier.h"

#include <stdio.h>
#include <string.h>

static const char LOST[] = "the device was lost";

/* Stores the device's error text for the events of the affected requests.  Events may be read much later, so a text is
 * never overwritten; when the table is full, the text is only logged. */
static const char *failure_text(struct engine *g, const struct dev_error *err)
{
    const int max = (int)(sizeof g->failure / sizeof *g->failure);
    char text[sizeof *g->failure];
    snprintf(text, sizeof text, "the device failed in the step: %s: %s", err->op ? err->op : "?", err->msg);
    for (int i = 0; i < g->n_failures; i++)
        if (strcmp(g->failure[i], text) == 0) return g->failure[i];
    if (g->n_failures == max) return "the device failed in the step";
    return memcpy(g->failure[g->n_failures++], text, sizeof text);
}

/* For good: the device itself, or another rank of the model; jobs have ranks of their own (trainer_thread.h). */
static bool is_gone(const struct model *m)
{
    const struct dev *d = m->d;
    return (d->ops->lost && d->ops->lost(d)) || (m->shard && comm_error(m->shard->comm));
}

bool engine_check_device(struct engine *g)
{
    if (engine_lost(g) || (!is_gone(&g->s.model) && !atomic_load(&g->training.ranks_lost))) return false;
    log_error("the device is lost, or another rank, and the process with it: waiting=%d running=%d", g->sched.n_waiting,
              g->sched.n_running);
    g->now.device_lost = true;
    atomic_store(&g->lost, true);
    scheduler_gate_open(g->gate); /* no further steps; the trainer's next op fails, which ends its job */
    engine_end_all(g);
    if (g->events.notify) g->events.notify(g->events.arg); /* there may be no request whose EV_DONE would notify */
    return true;
}

const char *engine_take_failure(struct engine *g)
{
    struct dev *d = g->s.model.d;
    const char *text = failure_text(g, &d->error);
    log_error("step failed op=%s error=\"%s\"", d->error.op ? d->error.op : "?", d->error.msg);
    dev_clear_error(d);
    kv_tier_failed(g);
    g->now.failed_steps++;
    return text;
}

void engine_fail_step(struct engine *g, const struct plan *p)
{
    const char *text = engine_take_failure(g);
    for (int i = 0; i < p->n; i++) engine_end_request(g, (struct request *)p->v[i].seq, FINISH_ERROR, -1, text);
    engine_check_device(g);
}

void engine_end_all(struct engine *g)
{
    for (uint32_t i = 0; i <= g->id_mask; i++)
        while (g->by_id[i]) engine_end_request(g, g->by_id[i], FINISH_ERROR, -1, LOST);
}

bool engine_lost(const struct engine *g)
{
    return atomic_load(&g->lost);
}
