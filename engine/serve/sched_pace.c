/* Measures how much clients with many sequences lengthen the steps of one with few (struct sched_pace), and leaves them
 * out of steps to compensate. */
#include "engine/serve/sched_clients.h"
#include "engine/serve/sched_parts.h"

#include <limits.h>

/* Interval of steps planned without the clients that have more sequences, which measure the time these add. */
enum { PACE_MEASURE = 128, PACE_MEASURE_FIRST = 8 };

bool sched_held_back(const struct sched *s, const struct sched_client *c)
{
    return s->pace.alone && c->n_seqs > s->pace.fewest;
}

void sched_pace_begin(struct sched *s)
{
    struct sched_pace *p = &s->pace;
    int most = 0;
    p->fewest = INT_MAX;
    p->alone = false;
    for (const struct seq *q = s->running.next; q != &s->running; q = q->next) {
        enum plan_pass pass = seq_pass(q);
        if ((pass == PASS_ONE || pass == PASS_SEVERAL) && q->owner->n_seqs < p->fewest) p->fewest = q->owner->n_seqs;
    }
    for (const struct sched_client *c = s->clients->ring.next; c != &s->clients->ring; c = c->next)
        if (c->n_seqs > most) most = c->n_seqs;
    if (most <= p->fewest) {
        p->fewest = INT_MAX;
        p->debt_ns = 0;
        return;
    }
    p->alone = p->debt_ns || s->step % (p->alone_ns ? PACE_MEASURE : PACE_MEASURE_FIRST) == 0;
}

void sched_took(struct sched *s, uint64_t ns)
{
    struct sched_pace *p = &s->pace;
    if (p->fewest == INT_MAX) return;
    bool decodes = s->plan.n_tokens == s->plan.n;
    if (p->alone && decodes) p->alone_ns = p->alone_ns ? p->alone_ns - p->alone_ns / 8 + ns / 8 : ns;
    if (!p->alone && p->alone_ns) p->debt_ns += ns;
    uint64_t paid = p->alone_ns / 2 + (p->alone ? 0 : p->alone_ns);
    p->debt_ns -= paid < p->debt_ns ? paid : p->debt_ns;
}
