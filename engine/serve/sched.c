/* The plan of a step: which sequences get how much of the token budget. */
#include "engine/serve/sched.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/serve/sched_clients.h"
#include "engine/serve/sched_parts.h"

#include <limits.h>
#include <stdlib.h>

static void list_init(struct seq *head)
{
    head->next = head->prev = head;
}

void sched_init(struct sched *s, const struct sched_config *c, struct kv_pool *kv)
{
    CHECK(c->max_seqs > 0 && c->max_batch_tokens >= c->max_seqs && c->max_rows >= c->max_seqs);
    *s = (struct sched){.c = *c, .kv = kv};
    list_init(&s->waiting);
    list_init(&s->running);
    s->plan.v = mem_array((size_t)c->max_seqs, sizeof *s->plan.v);
    s->clients = sched_clients_new(2 * (int64_t)c->max_batch_tokens);
}

void sched_free(struct sched *s)
{
    free(s->plan.v);
    s->plan.v = NULL;
    sched_clients_free(s->clients);
    s->clients = NULL;
}

/* ---- running sequences ---- */

/* @return for how many of its next n tokens q needs logits. */
static int rows_of(const struct seq *q, int n)
{
    int from = q->first_row > q->n_computed ? q->first_row : q->n_computed, end = q->n_computed + n;
    return end > from ? end - from : 0;
}

/* @return n, or fewer so that the rows of logits suffice. */
static int most_tokens(const struct seq *q, int n, int rows_left)
{
    int over = rows_of(q, n) - rows_left;
    return over > 0 ? n - over : n;
}

/* Adds as much of the running sequence q to the plan as budgets and pages allow, keeping `others` tokens and rows in
 * reserve. */
static void plan_add(struct sched *s, struct seq *q, int others)
{
    struct plan *p = &s->plan;
    int n = q->n_known - q->n_computed, room = s->budget - p->n_tokens - others;
    if (n > room) n = room;
    if (!q->no_rows) n = most_tokens(q, n, s->c.max_rows - p->n_rows - others);
    if (n <= 0 || (s->c.whole && n < q->n_known - q->n_computed)) return;
    if (!sched_grow(s, q, q->n_computed + n)) return;
    int rows = q->no_rows ? 0 : rows_of(q, n);
    q->planned = s->step;
    p->v[p->n++] = (struct plan_item){q, q->n_computed, n, rows, 0};
    p->n_tokens += n;
    p->n_rows += rows;
    client_charge(s->clients, q->owner, n + rows);
}

static void plan_running(struct sched *s, enum plan_pass pass)
{
    /* Later sequences of PASS_SEVERAL.  One token and one row are kept for each, which is possible since max_seqs
     * exceeds neither limit. */
    int others = 0;
    for (struct seq *q = s->running.next; pass == PASS_SEVERAL && q != &s->running; q = q->next)
        others += seq_pass(q) == pass && !sched_held_back(s, q->owner);
    for (struct seq *q = s->running.next, *next; q != &s->running; q = next) {
        next = q->next;
        if (seq_pass(q) != pass || q->planned == s->step || sched_held_back(s, q->owner)) continue;
        if (others) others--;
        plan_add(s, q, others);
        /* sched_grow may have preempted `next`, which is in the waiting list then: start over */
        if (next->state == SEQ_WAITING) next = s->running.next;
    }
}

/* ---- the next sequence to start ---- */

/* The client's first waiting sequence that may run; NULL when it did not fit in this step.  Later ones do not overtake
 * it, so a client's large requests are not starved by its small ones. */
static struct seq *first_ready(const struct sched *s, const struct sched_client *c)
{
    struct seq *q = c->first;
    while (q && (q->paused || q->blocked)) q = q->own_next;
    return q && q->tried == s->step ? NULL : q;
}

static bool starts_first(const struct sched *s, const struct seq *a, const struct seq *b)
{
    if (a->priority != b->priority) return a->priority < b->priority;
    if (a->owner->n_running != b->owner->n_running) return a->owner->n_running < b->owner->n_running;
    int64_t x = seq_served(s, a), y = seq_served(s, b);
    return x != y ? x < y : a->arrival < b->arrival;
}

/* The waiting sequence to start next; NULL: none.  `passed`: one that was tried in this step and got no pages, or
 * NULL.  A sequence of another client may overtake it only while that client was served less than a window more, so
 * that `passed` does not starve. */
static struct seq *next_waiting(const struct sched *s, const struct seq *passed)
{
    struct seq *best = NULL;
    for (const struct sched_client *c = s->clients->ring.next; c != &s->clients->ring; c = c->next) {
        struct seq *q = sched_held_back(s, c) ? NULL : first_ready(s, c);
        if (!q || (best && starts_first(s, best, q))) continue;
        if (passed &&
            (q->priority != passed->priority || seq_served(s, q) >= seq_served(s, passed) + s->clients->window))
            continue;
        best = q;
    }
    return best;
}

/* The running sequence that continues its prompt next, of the most urgent ones that of the least served client; NULL:
 * none. */
static struct seq *next_started(const struct sched *s)
{
    struct seq *best = NULL;
    for (struct seq *q = s->running.next; q != &s->running; q = q->next) {
        if (seq_pass(q) != PASS_PROMPT || q->planned == s->step || q->tried == s->step) continue;
        if (sched_held_back(s, q->owner)) continue;
        if (!best || q->priority < best->priority ||
            (q->priority == best->priority && seq_served(s, q) < seq_served(s, best)))
            best = q;
    }
    return best;
}

/* Started prompts come before waiting ones, unless the waiting one is more urgent or its client was served less. */
static bool starts_before(const struct sched *s, const struct seq *waiting, const struct seq *started)
{
    if (!waiting || !started) return waiting != NULL;
    if (waiting->priority != started->priority) return waiting->priority < started->priority;
    return seq_served(s, waiting) < seq_served(s, started);
}

/* A prompt that completes in a step waits for the whole step before its first token.  So in such a step clients with
 * more sequences get no more prompt tokens than in a step with decoding sequences. */
struct pace {
    int least; /* fewest sequences of a client with such a prompt */
    int bulk;  /* prompt tokens planned since for clients with more */
};

static int pace_room(const struct sched *s, const struct pace *pace, const struct seq *q)
{
    int room = s->budget - s->plan.n_tokens, rest = s->c.max_prefill_tokens - pace->bulk;
    return !s->c.max_prefill_tokens || q->owner->n_seqs <= pace->least || rest > room ? room : rest;
}

static void plan_prompt(struct sched *s, struct pace *pace, struct seq *q)
{
    int budget = s->budget, before = s->plan.n_tokens;
    s->budget = before + pace_room(s, pace, q);
    plan_add(s, q, 0);
    s->budget = budget;
    if (q->planned != s->step) return;
    const struct plan_item *it = &s->plan.v[s->plan.n - 1];
    if (q->owner->n_seqs > pace->least) pace->bulk += it->n;
    if (it->start + it->n == q->n_known && q->owner->n_seqs < pace->least) pace->least = q->owner->n_seqs;
}

/* Distributes the rest of the budget to prompts. */
static void plan_prompts(struct sched *s)
{
    struct pace pace = {.least = INT_MAX};
    struct seq *passed = NULL;
    while (s->plan.n_tokens < s->budget) {
        struct seq *started = next_started(s), *waiting = NULL;
        if (s->n_waiting && s->n_running < s->c.max_seqs) waiting = next_waiting(s, passed);
        if (!started && !waiting) break;
        struct seq *q = starts_before(s, waiting, started) ? waiting : started;
        q->tried = s->step;
        if (pace_room(s, &pace, q) <= 0) continue;
        if (q == waiting && !sched_admit(s, q)) {
            if (!passed) passed = q;
            continue;
        }
        plan_prompt(s, &pace, q);
        /* It lost the pages it was just given, so the plan may be empty.  Tries again, since the engine sleeps after an
         * empty plan. */
        if (q->state == SEQ_WAITING) q->tried = 0;
    }
}

/* When all slots are taken, the first waiting sequence may preempt for one.  Done before the plan is filled, so that a
 * full budget does not prevent it. */
static void displace(struct sched *s)
{
    if (!s->n_waiting || s->n_running < s->c.max_seqs) return;
    struct seq *q = next_waiting(s, NULL);
    if (q) sched_preempt_for(s, q);
}

/* Insertion sort: stable, and linear without adapters, since then no item moves. */
static void sort_by_root(struct plan *p)
{
    for (int i = 1; i < p->n; i++) {
        struct plan_item it = p->v[i];
        int k = i;
        for (; k > 0 && p->v[k - 1].seq->root > it.seq->root; k--) p->v[k] = p->v[k - 1];
        p->v[k] = it;
    }
}

/* The virtual time advances to the service of the least served client of the plan. */
static void advance(struct sched *s)
{
    int64_t least = INT64_MAX;
    for (int i = 0; i < s->plan.n; i++)
        if (seq_served(s, s->plan.v[i].seq) < least) least = seq_served(s, s->plan.v[i].seq);
    if (s->plan.n) clients_advance(s->clients, least);
}

/* Running texts that have become longer than near_len begin anew. */
static void lengthen(struct sched *s)
{
    for (struct seq *q = s->running.next; s->c.near_len && q != &s->running; q = q->next)
        if (sched_lengthen(s, q)) sched_release_pages(s, q);
}

static void fill(struct sched *s)
{
    struct plan *p = &s->plan;
    plan_running(s, PASS_ONE);
    plan_running(s, PASS_SEVERAL);
    if (p->n && s->c.max_prefill_tokens && s->budget - p->n_tokens > s->c.max_prefill_tokens)
        s->budget = p->n_tokens + s->c.max_prefill_tokens;
    plan_prompts(s);
}

const struct plan *sched_step(struct sched *s)
{
    struct plan *p = &s->plan;
    p->n = p->n_tokens = p->n_rows = p->n_preempted = 0;
    s->step++;
    s->budget = s->c.max_batch_tokens;
    lengthen(s);
    displace(s);
    sched_pace_begin(s);
    fill(s);
    if (!p->n && s->pace.alone) { /* who was to have the step has lost its pages; the engine sleeps after an empty plan */
        s->pace.alone = false;
        fill(s);
    }
    advance(s);
    sort_by_root(p);
    return p;
}

static void register_pages(struct sched *s, struct seq *q)
{
    if (!s->c.prefix_cache) return;
    for (; (q->n_registered + 1) * KV_PAGE <= q->n_computed; q->n_registered++)
        q->serial =
            kv_register(s->kv, q->pages[q->n_registered], q->serial, q->salt, q->tokens + q->n_registered * KV_PAGE);
}

void sched_commit(struct sched *s)
{
    for (int i = 0; i < s->plan.n; i++) {
        struct seq *q = s->plan.v[i].seq;
        q->n_computed += s->plan.v[i].n;
        register_pages(s, q);
    }
}

int sched_speculate(struct sched *s, int i, int n)
{
    struct plan *p = &s->plan;
    CHECK(i < p->n);
    struct plan_item *it = p->v + i;
    struct seq *q = it->seq;
    CHECK(it->rows > 0 && it->start + it->n == q->n_known && !it->drafts);
    int tokens = s->c.max_batch_tokens - p->n_tokens, rows = s->c.max_rows - p->n_rows;
    if (n > tokens) n = tokens;
    if (n > rows) n = rows;
    if (s->c.near_len && !sched_is_far(q) && n > s->c.near_len - q->n_known) n = s->c.near_len - q->n_known;
    /* pages are left for each running sequence to grow by one */
    while (n > 0 && q->n_pages * KV_PAGE < q->n_known + n) {
        int32_t page = kv_available(s->kv) > s->n_running ? kv_alloc(s->kv) : -1;
        if (page < 0)
            n = q->n_pages * KV_PAGE - q->n_known;
        else
            seq_add_page(q, page);
    }
    if (n <= 0) return 0;
    it->drafts = n;
    p->n_tokens += n;
    p->n_rows += n;
    return n;
}

void sched_accept(struct sched *s, struct seq *q)
{
    CHECK(q->n_computed < q->n_known && q->n_computed < q->n_pages * KV_PAGE);
    q->n_computed++;
    register_pages(s, q);
    client_charge(s->clients, q->owner, 2);
}

void sched_defer(struct sched *s, int i)
{
    struct plan_item *it = s->plan.v + i;
    CHECK(i < s->plan.n && it->n > 0 && it->rows > 0);
    it->n--;
    it->rows--;
    s->plan.n_tokens--;
    s->plan.n_rows--;
}
