/* Lists of waiting and running sequences, and the pages each holds. */
#include "engine/base/check.h"
#include "engine/serve/sched_clients.h"
#include "engine/serve/sched_parts.h"

void seq_insert(struct seq *before, struct seq *s)
{
    s->next = before;
    s->prev = before->prev;
    before->prev->next = s;
    before->prev = s;
}

void seq_remove(struct seq *s)
{
    s->prev->next = s->next;
    s->next->prev = s->prev;
    s->next = s->prev = NULL;
}

bool seq_before(const struct seq *a, const struct seq *b)
{
    return a->priority != b->priority ? a->priority < b->priority : a->arrival < b->arrival;
}

int64_t seq_served(const struct sched *s, const struct seq *q)
{
    return client_served(s->clients, q->owner);
}

/* Inserts it into its client's list of waiting sequences. */
static void own_insert(struct seq *q)
{
    struct sched_client *c = q->owner;
    struct seq *at = c->last;
    while (at && seq_before(q, at)) at = at->own_prev;
    q->own_prev = at;
    q->own_next = at ? at->own_next : c->first;
    *(q->own_next ? &q->own_next->own_prev : &c->last) = q;
    *(at ? &at->own_next : &c->first) = q;
}

void seq_unqueue(struct seq *q)
{
    *(q->own_next ? &q->own_next->own_prev : &q->owner->last) = q->own_prev;
    *(q->own_prev ? &q->own_prev->own_next : &q->owner->first) = q->own_next;
    q->own_next = q->own_prev = NULL;
}

bool sched_lengthen(const struct sched *s, struct seq *q)
{
    if (!s->c.near_len || q->n_known <= s->c.near_len || sched_is_far(q)) return false;
    q->root |= SEQ_FAR;
    return true;
}

void sched_wait(struct sched *s, struct seq *q)
{
    struct seq *at = s->waiting.prev; /* most sequences belong at the end */
    while (at != &s->waiting && seq_before(q, at)) at = at->prev;
    seq_insert(at->next, q);
    own_insert(q);
    q->state = SEQ_WAITING;
    q->n_found = 0;
    q->found = q->root;
    q->missed = -1;
    s->n_waiting++;
}

void seq_add_page(struct seq *q, int32_t page)
{
    q->pages[q->n_pages++] = page;
    q->owner->n_pages++;
}

void sched_release_pages(struct sched *s, struct seq *q)
{
    /* last page first, so that the free list evicts the end of a prefix before its beginning */
    q->owner->n_pages -= q->n_pages;
    while (q->n_pages) kv_unref(s->kv, q->pages[--q->n_pages]);
    q->n_computed = q->n_registered = 0;
    q->serial = q->root;
}

void sched_add(struct sched *s, struct seq *q)
{
    CHECK(q->state == SEQ_IDLE && q->n_known > 0);
    q->n_pages = q->n_computed = q->n_registered = q->n_cached = 0;
    sched_lengthen(s, q);
    q->serial = q->root;
    q->planned = q->tried = 0;
    q->admitted = false;
    q->owner = client_enter(s->clients, q->client);
    sched_wait(s, q);
}

void sched_unlink(struct sched *s, struct seq *q)
{
    seq_remove(q);
    if (q->state == SEQ_WAITING) {
        seq_unqueue(q);
        s->n_waiting--;
    } else {
        q->owner->n_running--;
        s->n_running--;
    }
    sched_release_pages(s, q);
    q->state = SEQ_IDLE;
}

void sched_remove(struct sched *s, struct seq *q)
{
    if (q->state == SEQ_IDLE) return;
    sched_unlink(s, q);
    client_leave(s->clients, q->owner);
    q->owner = NULL;
}

enum plan_pass seq_pass(const struct seq *q)
{
    int rest = q->n_known - q->n_computed;
    if (q->paused || q->blocked || rest <= 0) return PASS_NONE;
    if (rest == 1) return PASS_ONE;
    return q->generates && q->n_computed >= q->first_row ? PASS_SEVERAL : PASS_PROMPT;
}
