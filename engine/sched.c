#include "engine/sched.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"

#include <stdlib.h>

/* ---- lists ---- */

static void list_init(struct seq *head)
{
    head->next = head->prev = head;
}

static void list_insert(struct seq *before, struct seq *s)
{
    s->next = before;
    s->prev = before->prev;
    before->prev->next = s;
    before->prev = s;
}

static void list_remove(struct seq *s)
{
    s->prev->next = s->next;
    s->next->prev = s->prev;
    s->next = s->prev = NULL;
}

/* true when a should be served before b */
static bool before(const struct seq *a, const struct seq *b)
{
    return a->priority != b->priority ? a->priority < b->priority : a->arrival < b->arrival;
}

/* true when a should give up its pages before b does */
static bool worse(const struct seq *a, const struct seq *b)
{
    return a->paused != b->paused ? a->paused : before(b, a);
}

void sched_init(struct sched *s, const struct sched_config *c, struct kv_pool *kv)
{
    CHECK(c->max_seqs > 0 && c->max_batch_tokens >= c->max_seqs && c->max_rows >= c->max_seqs);
    *s = (struct sched){.c = *c, .kv = kv};
    list_init(&s->waiting);
    list_init(&s->running);
    s->plan.v = mem_array((size_t)c->max_seqs, sizeof *s->plan.v);
}

void sched_free(struct sched *s)
{
    free(s->plan.v);
    s->plan.v = NULL;
}

static void wait_insert(struct sched *s, struct seq *q)
{
    struct seq *at = s->waiting.prev; /* most arrive last */
    while (at != &s->waiting && before(q, at)) at = at->prev;
    list_insert(at->next, q);
    q->state = SEQ_WAITING;
    s->n_waiting++;
}

static void release_pages(struct sched *s, struct seq *q)
{
    /* last page first: in the free list the end of a prefix is then taken before its beginning */
    while (q->n_pages) kv_unref(s->kv, q->pages[--q->n_pages]);
    q->n_computed = q->n_registered = 0;
    q->serial = q->root;
}

void sched_add(struct sched *s, struct seq *q)
{
    CHECK(q->state == SEQ_IDLE && q->n_known > 0);
    q->n_pages = q->n_computed = q->n_registered = q->n_cached = 0;
    q->serial = q->root;
    q->planned = 0;
    q->admitted = false;
    wait_insert(s, q);
}

static void leave(struct sched *s, struct seq *q)
{
    list_remove(q);
    if (q->state == SEQ_WAITING)
        s->n_waiting--;
    else
        s->n_running--;
    release_pages(s, q);
    q->state = SEQ_IDLE;
}

void sched_remove(struct sched *s, struct seq *q)
{
    if (q->state != SEQ_IDLE) leave(s, q);
}

/* ---- preemption ---- */

static void plan_drop(struct plan *p, const struct seq *q)
{
    for (int i = 0; i < p->n; i++) {
        if (p->v[i].seq != q) continue;
        p->n_tokens -= p->v[i].n;
        p->n_rows -= p->v[i].rows;
        for (p->n--; i < p->n; i++) p->v[i] = p->v[i + 1];
        return;
    }
}

static void preempt(struct sched *s, struct seq *q)
{
    plan_drop(&s->plan, q);
    q->planned = 0;
    leave(s, q);
    wait_insert(s, q); /* by its old arrival: it comes back before those that came later */
    s->plan.n_preempted++;
}

void sched_restart(struct sched *s)
{
    while (s->running.next != &s->running) preempt(s, s->running.next);
    s->plan.n = s->plan.n_tokens = s->plan.n_rows = 0;
}

static struct seq *worst_running(struct sched *s)
{
    struct seq *w = NULL;
    for (struct seq *q = s->running.next; q != &s->running; q = q->next)
        if (!w || worse(q, w)) w = q;
    return w;
}

/* Gives q pages for its first `tokens` tokens, taking them from worse sequences if it must.  False: q was the worst
 * itself and was preempted. */
static bool grow(struct sched *s, struct seq *q, int tokens)
{
    while (q->n_pages * KV_PAGE < tokens) {
        int32_t page = kv_alloc(s->kv);
        if (page >= 0) {
            q->pages[q->n_pages++] = page;
            continue;
        }
        struct seq *w = worst_running(s);
        preempt(s, w);
        if (w == q) return false;
    }
    return true;
}

/* ---- the plan ---- */

/* How many of its next n tokens q wants the logits of. */
static int rows_of(const struct seq *q, int n)
{
    int from = q->first_row > q->n_computed ? q->first_row : q->n_computed, end = q->n_computed + n;
    return end > from ? end - from : 0;
}

/* n, or fewer: so many that there is room for their logits. */
static int most_tokens(const struct seq *q, int n, int rows_left)
{
    int over = rows_of(q, n) - rows_left;
    return over > 0 ? n - over : n;
}

/* Puts as much of q into the plan as budgets and pages allow, `others` tokens and rows left aside; q is running. */
static void plan_add(struct sched *s, struct seq *q, int others)
{
    struct plan *p = &s->plan;
    int n = q->n_known - q->n_computed, room = s->budget - p->n_tokens - others;
    if (n > room) n = room;
    if (!q->no_rows) n = most_tokens(q, n, s->c.max_rows - p->n_rows - others);
    if (n <= 0) return;
    if (!grow(s, q, q->n_computed + n)) return;
    int rows = q->no_rows ? 0 : rows_of(q, n);
    q->planned = s->step;
    p->v[p->n++] = (struct plan_item){q, q->n_computed, n, rows};
    p->n_tokens += n;
    p->n_rows += rows;
}

/* In which pass a running sequence gets its tokens: those that generate come before the rest of the prompts. */
enum turn { TURN_ONE, TURN_SOME, TURN_PROMPT, TURN_NONE };

static enum turn turn_of(const struct seq *q)
{
    int rest = q->n_known - q->n_computed;
    if (q->paused || q->blocked || rest <= 0) return TURN_NONE;
    if (rest == 1) return TURN_ONE;
    return q->generates && q->n_computed >= q->first_row ? TURN_SOME : TURN_PROMPT;
}

static void plan_running(struct sched *s, enum turn turn)
{
    int others = 0; /* that generate: there is a token and a row for each, max_seqs being the least of both */
    for (struct seq *q = s->running.next; turn == TURN_SOME && q != &s->running; q = q->next)
        others += turn_of(q) == turn;
    for (struct seq *q = s->running.next, *next; q != &s->running; q = next) {
        next = q->next;
        if (turn_of(q) != turn || q->planned == s->step) continue;
        if (others) others--;
        plan_add(s, q, others);
        /* what grow() preempted may be `next` itself, which then stands in the waiting list: begin again */
        if (next->state == SEQ_WAITING) next = s->running.next;
    }
}

/* Takes the known prefix of q from the cache, but for tokens whose logits are wanted.  The last token is always
 * computed: its logits, or its hidden state, are. */
static void take_prefix(struct sched *s, struct seq *q)
{
    int end = q->no_rows ? q->n_known - 1 : q->first_row;
    if (!s->c.prefix_cache || q->no_prefix) return;
    while ((q->n_pages + 1) * KV_PAGE <= end) {
        int32_t page = kv_lookup(s->kv, q->serial, q->tokens + q->n_pages * KV_PAGE, &q->serial);
        if (page < 0) break;
        q->pages[q->n_pages++] = page;
    }
    q->n_registered = q->n_pages;
    q->n_computed = q->n_pages * KV_PAGE;
}

static bool yields_to(const struct seq *running, const struct seq *q)
{
    return running->paused || running->priority > q->priority;
}

/* Pages q still needs, and one for each running sequence to grow into: admitting more would only cause preemptions. */
static int pages_wanted(const struct sched *s, const struct seq *q)
{
    return (q->n_known + KV_PAGE - 1) / KV_PAGE - q->n_pages + s->n_running;
}

/* Could q run if all that yield to it gave their pages up?  (Shared pages are counted more than once: an upper bound.)
 */
static bool could_fit(struct sched *s, const struct seq *q)
{
    int pages = kv_available(s->kv);
    for (const struct seq *r = s->running.next; r != &s->running; r = r->next)
        if (yields_to(r, q)) pages += r->n_pages + 1;
    return pages >= pages_wanted(s, q);
}

/* Tries to start the waiting sequence q; may preempt paused and lower-priority ones.  False: no room now. */
static bool admit(struct sched *s, struct seq *q)
{
    if (s->n_running >= s->c.max_seqs) return false;
    take_prefix(s, q);
    if (!could_fit(s, q)) {
        release_pages(s, q);
        return false;
    }
    while (kv_available(s->kv) < pages_wanted(s, q)) {
        struct seq *w = worst_running(s);
        if (!w || !yields_to(w, q)) {
            release_pages(s, q);
            return false;
        }
        preempt(s, w);
    }
    list_remove(q);
    s->n_waiting--;
    list_insert(&s->running, q);
    s->n_running++;
    q->state = SEQ_RUNNING;
    if (!q->admitted) q->n_cached = q->n_computed;
    q->admitted = true;
    return true;
}

/* All slots taken: the first that waits may take the place of one that is paused or matters less.  Before the plan is
 * filled, so that a full budget does not keep it out. */
static void displace(struct sched *s)
{
    struct seq *q = s->waiting.next;
    while (q != &s->waiting && (q->paused || q->blocked)) q = q->next;
    if (q == &s->waiting || s->n_running < s->c.max_seqs) return;
    struct seq *w = worst_running(s);
    if (yields_to(w, q) && could_fit(s, q)) preempt(s, w);
}

/* Stable, and hardly ever more than a look: an item moves when an adapter is used. */
static void sort_by_root(struct plan *p)
{
    for (int i = 1; i < p->n; i++) {
        struct plan_item it = p->v[i];
        int k = i;
        for (; k > 0 && p->v[k - 1].seq->root > it.seq->root; k--) p->v[k] = p->v[k - 1];
        p->v[k] = it;
    }
}

const struct plan *sched_step(struct sched *s)
{
    struct plan *p = &s->plan;
    p->n = p->n_tokens = p->n_rows = p->n_preempted = 0;
    s->step++;
    s->budget = s->c.max_batch_tokens;
    displace(s);
    plan_running(s, TURN_ONE);
    plan_running(s, TURN_SOME);
    if (p->n && s->c.max_prefill_tokens && s->budget - p->n_tokens > s->c.max_prefill_tokens)
        s->budget = p->n_tokens + s->c.max_prefill_tokens;
    plan_running(s, TURN_PROMPT);
    for (struct seq *q = s->waiting.next, *next; q != &s->waiting && p->n_tokens < s->budget; q = next) {
        next = q->next;
        if (q->paused || q->blocked) continue;
        if (!admit(s, q)) break; /* in order: a large request is not starved by small ones behind it */
        plan_add(s, q, 0);
        next = s->waiting.next;
    }
    sort_by_root(p);
    return p;
}

static void register_pages(struct sched *s, struct seq *q)
{
    if (!s->c.prefix_cache) return;
    for (; (q->n_registered + 1) * KV_PAGE <= q->n_computed; q->n_registered++)
        q->serial = kv_register(s->kv, q->pages[q->n_registered], q->serial, q->tokens + q->n_registered * KV_PAGE);
}

void sched_commit(struct sched *s)
{
    for (int i = 0; i < s->plan.n; i++) {
        struct seq *q = s->plan.v[i].seq;
        q->n_computed += s->plan.v[i].n;
        register_pages(s, q);
    }
}

void sched_hold(struct sched *s, int i)
{
    struct plan_item *it = s->plan.v + i;
    CHECK(i < s->plan.n && it->n > 0 && it->rows > 0);
    it->n--;
    it->rows--;
    s->plan.n_tokens--;
    s->plan.n_rows--;
}

void sched_check(const struct sched *s)
{
    int n = 0, held = 0;
    const struct seq *q;
    for (q = s->waiting.next; q != &s->waiting; q = q->next, n++) {
        CHECK(q->state == SEQ_WAITING && q->n_pages == 0 && q->n_computed == 0);
        if (q->next != &s->waiting) CHECK(before(q, q->next));
    }
    CHECK(n == s->n_waiting);
    n = 0;
    for (q = s->running.next; q != &s->running; q = q->next, n++) {
        CHECK(q->state == SEQ_RUNNING && q->n_computed <= q->n_known);
        CHECK(q->n_pages * KV_PAGE >= q->n_computed && q->n_registered <= q->n_pages);
        held += q->n_pages;
    }
    CHECK(n == s->n_running && n <= s->c.max_seqs);
    CHECK(held >= kv_pages(s->kv) - kv_available(s->kv)); /* shared pages are held more than once */
    kv_check(s->kv);
}
