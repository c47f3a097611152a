#include "server/net/request_note.h"

#include "engine/base/clock.h"
#include "server/metrics/metrics.h"

void request_note_event(struct request_note *n, const struct event *ev)
{
    if (ev->kind == EV_TOKEN) {
        n->generated++;
        if (!n->first_token) n->first_token = clock_now();
    }
    if (ev->kind != EV_DONE) return;
    const struct request_times *t = &ev->times;
    uint64_t queue = t->submitted && t->scheduled > t->submitted ? t->scheduled - t->submitted : 0;
    uint64_t prefill = t->scheduled && t->first_token > t->scheduled ? t->first_token - t->scheduled : 0;
    n->ended++;
    n->prompt += (uint64_t)ev->n_prompt;
    n->cached += (uint64_t)ev->n_cached;
    n->finish = metrics_finish_name(ev->finish);
    if (queue > n->queue_ns) n->queue_ns = queue;
    if (prefill > n->prefill_ns) n->prefill_ns = prefill;
}
