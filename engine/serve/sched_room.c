/* KV pages: which waiting sequence is admitted, which running one is preempted for it. */
#include "engine/serve/sched_clients.h"
#include "engine/serve/sched_parts.h"

/* Does a's client hold more pages than b's though it was served no less?  Its only running sequence goes on: a large
 * request would otherwise begin anew whenever a short one comes. */
static bool crowds_out(const struct sched *s, const struct seq *a, const struct seq *b)
{
    return a->owner->n_running > 1 && a->owner->n_pages > b->owner->n_pages && seq_served(s, a) >= seq_served(s, b);
}

/* true when a should give up its pages before b does */
static bool worse(const struct sched *s, const struct seq *a, const struct seq *b)
{
    if (a->paused != b->paused) return a->paused;
    if (a->priority == b->priority && a->owner != b->owner) {
        if (crowds_out(s, a, b)) return true;
        if (crowds_out(s, b, a)) return false;
    }
    return seq_before(b, a);
}

static void plan_drop(struct sched *s, const struct seq *q)
{
    struct plan *p = &s->plan;
    for (int i = 0; i < p->n; i++) {
        if (p->v[i].seq != q) continue;
        client_charge(s->clients, q->owner, -(p->v[i].n + p->v[i].rows));
        p->n_tokens -= p->v[i].n;
        p->n_rows -= p->v[i].rows;
        for (p->n--; i < p->n; i++) p->v[i] = p->v[i + 1];
        return;
    }
}

static void preempt(struct sched *s, struct seq *q)
{
    plan_drop(s, q);
    q->planned = 0;
    sched_leave(s, q);
    sched_wait(s, q); /* by its old arrival: it comes back before those that came later */
    s->plan.n_preempted++;
}

static struct seq *worst_running(struct sched *s)
{
    struct seq *w = NULL;
    for (struct seq *q = s->running.next; q != &s->running; q = q->next)
        if (!w || worse(s, q, w)) w = q;
    return w;
}

bool sched_grow(struct sched *s, struct seq *q, int tokens)
{
    while (q->n_pages * KV_PAGE < tokens) {
        int32_t page = kv_alloc(s->kv);
        if (page >= 0) {
            seq_add_page(q, page);
            continue;
        }
        struct seq *w = worst_running(s);
        preempt(s, w);
        if (w == q) return false;
    }
    return true;
}

/* Tokens of q that may come from the cache: those whose logits are wanted may not.  The last token is always computed:
 * its logits, or its hidden state, are. */
static int prefix_end(const struct sched *s, const struct seq *q)
{
    return !s->c.prefix_cache || q->no_prefix ? 0 : q->no_rows ? q->n_known - 1 : q->first_row;
}

static void take_prefix(struct sched *s, struct seq *q)
{
    int end = prefix_end(s, q);
    while ((q->n_pages + 1) * KV_PAGE <= end) {
        int32_t page = kv_lookup(s->kv, q->serial, q->tokens + q->n_pages * KV_PAGE, &q->serial);
        if (page < 0) break;
        seq_add_page(q, page);
    }
    q->n_registered = q->n_pages;
    q->n_computed = q->n_pages * KV_PAGE;
}

/* Pages q still needs, and one for each running sequence to grow into: admitting more would only cause preemptions. */
static int pages_wanted(const struct sched *s, const struct seq *q)
{
    return (q->n_known + KV_PAGE - 1) / KV_PAGE - q->n_pages + s->n_running;
}

/* Must r give its pages to q?  Also where r's client holds more than its part of all pages with several sequences, was
 * served no less than q's, and q's would not hold more than its part even then. */
static bool yields_to(const struct sched *s, const struct seq *r, const struct seq *q)
{
    if (r->paused || r->priority > q->priority) return true;
    if (r->priority < q->priority || r->owner->n_running < 2 || r->blocked) return false;
    if (r->owner == q->owner) return false;
    int64_t part = kv_pages(s->kv) / s->clients->n;
    return r->owner->n_pages > part && q->owner->n_pages + pages_wanted(s, q) <= part &&
           seq_served(s, r) >= seq_served(s, q);
}

/* Pages q could have if all that yield to it gave theirs up.  (Shared pages are counted more than once: an upper
 * bound.) */
static int pages_in_reach(struct sched *s, const struct seq *q)
{
    int pages = kv_available(s->kv);
    for (const struct seq *r = s->running.next; r != &s->running; r = r->next)
        if (yields_to(s, r, q)) pages += r->n_pages + 1;
    return pages;
}

static struct seq *worst_yielding(struct sched *s, const struct seq *q)
{
    struct seq *w = NULL;
    for (struct seq *r = s->running.next; r != &s->running; r = r->next)
        if (yields_to(s, r, q) && (!w || worse(s, r, w))) w = r;
    return w;
}

/* Did q not fit before, and has nothing changed since that could let it fit?  One look into the table, whatever the
 * length of its prefix, and none of its pages becomes used more recently. */
static bool still_too_large(struct sched *s, struct seq *q)
{
    int n = q->n_found;
    if (q->missed < 0) return false;
    if ((n + 1) * KV_PAGE <= prefix_end(s, q) && kv_known(s->kv, q->found, q->tokens + n * KV_PAGE, &q->found))
        return false;
    return pages_in_reach(s, q) - s->n_running <= q->missed;
}

/* Takes the pages of its prefix, and makes room for the rest of it.  False: there is too little. */
static bool make_room(struct sched *s, struct seq *q)
{
    int missed = pages_in_reach(s, q) - s->n_running;
    take_prefix(s, q);
    bool fits = pages_in_reach(s, q) >= pages_wanted(s, q);
    while (fits && kv_available(s->kv) < pages_wanted(s, q)) {
        struct seq *w = worst_yielding(s, q);
        if (w)
            preempt(s, w);
        else
            fits = false;
    }
    if (fits) return true;
    q->n_found = q->n_pages;
    q->found = q->serial;
    q->missed = missed > 0 ? missed : 0;
    sched_release_pages(s, q);
    return false;
}

bool sched_admit(struct sched *s, struct seq *q)
{
    if (s->n_running >= s->c.max_seqs || still_too_large(s, q) || !make_room(s, q)) return false;
    seq_remove(q);
    seq_unqueue(q);
    s->n_waiting--;
    seq_insert(&s->running, q);
    s->n_running++;
    q->owner->n_running++;
    q->state = SEQ_RUNNING;
    if (!q->admitted) q->n_cached = q->n_computed;
    q->admitted = true;
    return true;
}

/* Of the client that has most running, and more than one beyond q's: its youngest.  NULL: no client has. */
static struct seq *youngest_of_most(const struct sched *s, const struct seq *q)
{
    struct seq *w = NULL;
    for (struct seq *r = s->running.next; r != &s->running; r = r->next) {
        if (r->priority != q->priority || r->owner->n_running <= q->owner->n_running + 1) continue;
        if (!w || r->owner->n_running > w->owner->n_running ||
            (r->owner->n_running == w->owner->n_running && seq_before(w, r)))
            w = r;
    }
    return w;
}

void sched_displace(struct sched *s, struct seq *q)
{
    struct seq *w = worst_running(s);
    if (!w->paused && w->priority <= q->priority) w = youngest_of_most(s, q);
    if (!w) return;
    int pages = pages_in_reach(s, q) + (yields_to(s, w, q) ? 0 : w->n_pages + 1);
    bool in_vain = pages < pages_wanted(s, q) || (q->missed >= 0 && pages - s->n_running <= q->missed);
    if (!in_vain) preempt(s, w);
}
