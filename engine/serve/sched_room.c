/* KV pages: which waiting sequence is admitted, which running one is preempted for it. */
#include "engine/serve/sched_clients.h"
#include "engine/serve/sched_parts.h"

/* Whether a's client holds more pages than b's although it was served no less.  A client's only running sequence is
 * exempt: otherwise a large request would restart whenever a short one arrives. */
static bool crowds_out(const struct sched *s, const struct seq *a, const struct seq *b)
{
    return a->owner->n_running > 1 && a->owner->n_pages > b->owner->n_pages && seq_served(s, a) >= seq_served(s, b);
}

/* true when a should be preempted before b */
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
    sched_unlink(s, q);
    sched_wait(s, q); /* with its original arrival, so it is ahead of later requests */
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

int sched_prefix_end(const struct sched *s, const struct seq *q)
{
    return !s->c.prefix_cache || q->no_prefix ? 0 : q->no_rows ? q->n_known - 1 : q->first_row;
}

static void take_prefix(struct sched *s, struct seq *q)
{
    int end = sched_prefix_end(s, q);
    while ((q->n_pages + 1) * KV_PAGE <= end) {
        int32_t page = kv_lookup(s->kv, q->serial, q->salt, q->tokens + q->n_pages * KV_PAGE, &q->serial);
        if (page < 0) break;
        seq_add_page(q, page);
    }
    q->n_registered = q->n_pages;
    q->n_computed = q->n_pages * KV_PAGE;
}

/* Pages q still needs, plus one for each running sequence to grow: admitting beyond that would only cause preemptions.
 */
static int pages_wanted(const struct sched *s, const struct seq *q)
{
    return (q->n_known + KV_PAGE - 1) / KV_PAGE - q->n_pages + s->n_running;
}

/* Whether r must yield its pages to q.  Also true when r's client runs several sequences, holds more than its share of
 * all pages and was served no less than q's, and q's client would still be within its share. */
static bool yields_to(const struct sched *s, const struct seq *r, const struct seq *q)
{
    if (r->paused || r->priority > q->priority) return true;
    if (r->priority < q->priority || r->owner->n_running < 2 || r->blocked) return false;
    if (r->owner == q->owner) return false;
    int64_t part = kv_pages(s->kv) / s->clients->n;
    return r->owner->n_pages > part && q->owner->n_pages + pages_wanted(s, q) <= part &&
           seq_served(s, r) >= seq_served(s, q);
}

/* Pages q would get if every sequence that yields to it were preempted.  (Shared pages are counted more than once: an
 * upper bound.) */
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

/* Whether q did not fit earlier and nothing has changed since that could make it fit.  One lookup whatever the length
 * of its prefix, and the eviction order of its pages stays. */
static bool still_too_large(struct sched *s, struct seq *q)
{
    int n = q->n_found;
    if (q->missed < 0) return false;
    if ((n + 1) * KV_PAGE <= sched_prefix_end(s, q) &&
        kv_contains(s->kv, q->found, q->salt, q->tokens + n * KV_PAGE, &q->found))
        return false;
    return pages_in_reach(s, q) - s->n_running <= q->missed;
}

/* Takes the cached pages of its prefix and preempts for the rest.  @return false: not enough pages. */
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

/* The youngest sequence of the client with the most running sequences, if it runs at least two more than q's.  NULL: no
 * client does. */
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

void sched_preempt_for(struct sched *s, struct seq *q)
{
    struct seq *w = worst_running(s);
    if (!w->paused && w->priority <= q->priority) w = youngest_of_most(s, q);
    if (!w) return;
    int pages = pages_in_reach(s, q) + (yields_to(s, w, q) ? 0 : w->n_pages + 1);
    bool in_vain = pages < pages_wanted(s, q) || (q->missed >= 0 && pages - s->n_running <= q->missed);
    if (!in_vain) preempt(s, w);
}
