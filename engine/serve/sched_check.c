/* Invariants of a schedule between calls; for tests. */
#include "engine/base/check.h"
#include "engine/serve/sched_clients.h"
#include "engine/serve/sched_parts.h"

static void check_clients(const struct sched *s)
{
    int n_running = 0, n_waiting = 0, n = 0;
    for (const struct sched_client *c = s->clients->ring.next; c != &s->clients->ring; c = c->next, n++) {
        int running = 0, waiting = 0;
        int64_t pages = 0;
        for (const struct seq *q = s->running.next; q != &s->running; q = q->next) {
            running += q->owner == c;
            pages += q->owner == c ? q->n_pages : 0;
        }
        for (const struct seq *q = c->first; q; q = q->own_next, waiting++) {
            CHECK(q->state == SEQ_WAITING && q->owner == c && q->client == c->id);
            CHECK(q->own_next ? seq_before(q, q->own_next) && q->own_next->own_prev == q : q == c->last);
        }
        CHECK(running == c->n_running && pages == c->n_pages && running + waiting == c->n_seqs);
        n_running += running;
        n_waiting += waiting;
    }
    CHECK(n == s->clients->n && n_running == s->n_running && n_waiting == s->n_waiting);
}

void sched_check(const struct sched *s)
{
    int n = 0, held = 0;
    const struct seq *q;
    check_clients(s);
    for (q = s->waiting.next; q != &s->waiting; q = q->next, n++) {
        CHECK(q->state == SEQ_WAITING && q->n_pages == 0 && q->n_computed == 0);
        if (q->next != &s->waiting) CHECK(seq_before(q, q->next));
    }
    CHECK(n == s->n_waiting);
    n = 0;
    for (q = s->running.next; q != &s->running; q = q->next, n++) {
        CHECK(q->state == SEQ_RUNNING && q->n_computed <= q->n_known);
        CHECK(q->n_pages * KV_PAGE >= q->n_computed && q->n_registered <= q->n_pages);
        CHECK(!s->c.near_len || q->n_computed <= s->c.near_len || sched_is_far(q));
        held += q->n_pages;
    }
    CHECK(n == s->n_running && n <= s->c.max_seqs);
    CHECK(held >= kv_pages(s->kv) - kv_available(s->kv)); /* shared pages count once per holder */
    kv_check(s->kv);
}
