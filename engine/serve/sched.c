#include "engine/serve/sched.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/serve/sched_clients.h"

#include <limits.h>
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

static int64_t served(const struct sched *s, const struct seq *q)
{
    return client_served(s->clients, q->owner);
}

/* Does a's client hold more pages than b's though it was served no less?  Its only running sequence goes on: a large
 * request would otherwise begin anew whenever a short one comes. */
static bool crowds_out(const struct sched *s, const struct seq *a, const struct seq *b)
{
    return a->owner->n_running > 1 && a->owner->n_pages > b->owner->n_pages && served(s, a) >= served(s, b);
}

/* true when a should give up its pages before b does */
static bool worse(const struct sched *s, const struct seq *a, const struct seq *b)
{
    if (a->paused != b->paused) return a->paused;
    if (a->priority == b->priority && a->owner != b->owner) {
        if (crowds_out(s, a, b)) return true;
        if (crowds_out(s, b, a)) return false;
    }
    return before(b, a);
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

/* Into its client's list of those that wait. */
static void own_insert(struct seq *q)
{
    struct sched_client *c = q->owner;
    struct seq *at = c->last;
    while (at && before(q, at)) at = at->own_prev;
    q->own_prev = at;
    q->own_next = at ? at->own_next : c->first;
    *(q->own_next ? &q->own_next->own_prev : &c->last) = q;
    *(at ? &at->own_next : &c->first) = q;
}

static void own_remove(struct seq *q)
{
    *(q->own_next ? &q->own_next->own_prev : &q->owner->last) = q->own_prev;
    *(q->own_prev ? &q->own_prev->own_next : &q->owner->first) = q->own_next;
    q->own_next = q->own_prev = NULL;
}

static void wait_insert(struct sched *s, struct seq *q)
{
    struct seq *at = s->waiting.prev; /* most arrive last */
    while (at != &s->waiting && before(q, at)) at = at->prev;
    list_insert(at->next, q);
    own_insert(q);
    q->state = SEQ_WAITING;
    q->n_found = 0;
    q->found = q->root;
    q->missed = -1;
    s->n_waiting++;
}

static void add_page(struct seq *q, int32_t page)
{
    q->pages[q->n_pages++] = page;
    q->owner->n_pages++;
}

static void release_pages(struct sched *s, struct seq *q)
{
    /* last page first: in the free list the end of a prefix is then taken before its beginning */
    q->owner->n_pages -= q->n_pages;
    while (q->n_pages) kv_unref(s->kv, q->pages[--q->n_pages]);
    q->n_computed = q->n_registered = 0;
    q->serial = q->root;
}

void sched_add(struct sched *s, struct seq *q)
{
    CHECK(q->state == SEQ_IDLE && q->n_known > 0);
    q->n_pages = q->n_computed = q->n_registered = q->n_cached = 0;
    q->serial = q->root;
    q->planned = q->tried = 0;
    q->admitted = false;
    q->owner = client_enter(s->clients, q->client);
    wait_insert(s, q);
}

/* Off the list that it is in. */
static void leave(struct sched *s, struct seq *q)
{
    list_remove(q);
    if (q->state == SEQ_WAITING) {
        own_remove(q);
        s->n_waiting--;
    } else {
        q->owner->n_running--;
        s->n_running--;
    }
    release_pages(s, q);
    q->state = SEQ_IDLE;
}

void sched_remove(struct sched *s, struct seq *q)
{
    if (q->state == SEQ_IDLE) return;
    leave(s, q);
    client_leave(s->clients, q->owner);
    q->owner = NULL;
}

/* ---- preemption ---- */

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
    leave(s, q);
    wait_insert(s, q); /* by its old arrival: it comes back before those that came later */
    s->plan.n_preempted++;
}

static struct seq *worst_running(struct sched *s)
{
    struct seq *w = NULL;
    for (struct seq *q = s->running.next; q != &s->running; q = q->next)
        if (!w || worse(s, q, w)) w = q;
    return w;
}

/* Gives q pages for its first `tokens` tokens, taking them from worse sequences if it must.  False: q was the worst
 * itself and was preempted. */
static bool grow(struct sched *s, struct seq *q, int tokens)
{
    while (q->n_pages * KV_PAGE < tokens) {
        int32_t page = kv_alloc(s->kv);
        if (page >= 0) {
            add_page(q, page);
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
    client_charge(s->clients, q->owner, n + rows);
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

/* Not in this step, so that a client with fewer sequences goes on. */
static bool held_back(const struct sched *s, const struct sched_client *c)
{
    return s->pace.alone && c->n_seqs > s->pace.fewest;
}

static void plan_running(struct sched *s, enum turn turn)
{
    int others = 0; /* that generate: there is a token and a row for each, max_seqs being the least of both */
    for (struct seq *q = s->running.next; turn == TURN_SOME && q != &s->running; q = q->next)
        others += turn_of(q) == turn && !held_back(s, q->owner);
    for (struct seq *q = s->running.next, *next; q != &s->running; q = next) {
        next = q->next;
        if (turn_of(q) != turn || q->planned == s->step || held_back(s, q->owner)) continue;
        if (others) others--;
        plan_add(s, q, others);
        /* what grow() preempted may be `next` itself, which then stands in the waiting list: begin again */
        if (next->state == SEQ_WAITING) next = s->running.next;
    }
}

/* Every so many steps one is computed without the clients that have more, which measures what they add. */
enum { PACE_MEASURE = 128, PACE_MEASURE_FIRST = 8 };

static void pace_begin(struct sched *s)
{
    struct sched_pace *p = &s->pace;
    int most = 0;
    p->fewest = INT_MAX;
    p->alone = false;
    for (const struct seq *q = s->running.next; q != &s->running; q = q->next) {
        enum turn turn = turn_of(q);
        if ((turn == TURN_ONE || turn == TURN_SOME) && q->owner->n_seqs < p->fewest) p->fewest = q->owner->n_seqs;
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
        add_page(q, page);
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
    return r->owner->n_pages > part && q->owner->n_pages + pages_wanted(s, q) <= part && served(s, r) >= served(s, q);
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
    release_pages(s, q);
    return false;
}

/* Tries to start the waiting sequence q; may preempt those that yield to it.  False: no room now. */
static bool admit(struct sched *s, struct seq *q)
{
    if (s->n_running >= s->c.max_seqs || still_too_large(s, q) || !make_room(s, q)) return false;
    list_remove(q);
    own_remove(q);
    s->n_waiting--;
    list_insert(&s->running, q);
    s->n_running++;
    q->owner->n_running++;
    q->state = SEQ_RUNNING;
    if (!q->admitted) q->n_cached = q->n_computed;
    q->admitted = true;
    return true;
}

/* ---- whose turn it is ---- */

/* The first of a client's that waits and may run. */
static struct seq *first_ready(const struct sched *s, const struct sched_client *c)
{
    struct seq *q = c->first;
    while (q && (q->paused || q->blocked)) q = q->own_next;
    return q && q->tried == s->step ? NULL
                                    : q; /* of one client in order: what is large is not starved by what is small */
}

static bool has_turn_before(const struct sched *s, const struct seq *a, const struct seq *b)
{
    if (a->priority != b->priority) return a->priority < b->priority;
    if (a->owner->n_running != b->owner->n_running) return a->owner->n_running < b->owner->n_running;
    int64_t x = served(s, a), y = served(s, b);
    return x != y ? x < y : a->arrival < b->arrival;
}

/* The waiting sequence whose turn it is to start; NULL: none.  `passed`: one that had its turn in this step and found
 * no pages.  Another client's goes past it while that client is not a window ahead: so it does not starve. */
static struct seq *next_waiting(const struct sched *s, const struct seq *passed)
{
    struct seq *best = NULL;
    for (const struct sched_client *c = s->clients->ring.next; c != &s->clients->ring; c = c->next) {
        struct seq *q = held_back(s, c) ? NULL : first_ready(s, c);
        if (!q || (best && has_turn_before(s, best, q))) continue;
        if (passed && (q->priority != passed->priority || served(s, q) >= served(s, passed) + s->clients->window))
            continue;
        best = q;
    }
    return best;
}

/* The running sequence with a prompt to compute whose turn it is; NULL: none. */
static struct seq *next_started(const struct sched *s)
{
    struct seq *best = NULL;
    for (struct seq *q = s->running.next; q != &s->running; q = q->next) {
        if (turn_of(q) != TURN_PROMPT || q->planned == s->step || q->tried == s->step) continue;
        if (held_back(s, q->owner)) continue;
        if (!best || served(s, q) < served(s, best)) best = q;
    }
    return best;
}

/* Started prompts come before waiting ones, but for those of clients that were served less. */
static bool starts_before(const struct sched *s, const struct seq *waiting, const struct seq *started)
{
    if (!waiting || !started) return waiting != NULL;
    return waiting->priority <= started->priority && served(s, waiting) < served(s, started);
}

/* Whose first token a step brings waits for all of the step.  So beside a prompt that ends in it, clients that have
 * more sequences get no more of it than beside those that decode. */
struct pace {
    int least; /* sequences of the client with the fewest that has such a prompt */
    int bulk;  /* prompt tokens of clients with more, since */
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

/* Gives the prompts what is left of the budget. */
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
        if (q == waiting && !admit(s, q)) {
            if (!passed) passed = q;
            continue;
        }
        plan_prompt(s, &pace, q);
        /* It lost the pages it was just given, so nothing may be left in the plan: it is tried again, for the engine
         * sleeps after a step that has nothing to compute. */
        if (q->state == SEQ_WAITING) q->tried = 0;
    }
}

/* Of the client that has most running, and more than one beyond q's: its youngest.  NULL: no client has. */
static struct seq *youngest_of_most(const struct sched *s, const struct seq *q)
{
    struct seq *w = NULL;
    for (struct seq *r = s->running.next; r != &s->running; r = r->next) {
        if (r->priority != q->priority || r->owner->n_running <= q->owner->n_running + 1) continue;
        if (!w || r->owner->n_running > w->owner->n_running ||
            (r->owner->n_running == w->owner->n_running && before(w, r)))
            w = r;
    }
    return w;
}

/* All slots taken: the first that waits may take the place of one that is paused or matters less, or of a client that
 * has more.  Before the plan is filled, so that a full budget does not keep it out. */
static void displace(struct sched *s)
{
    if (!s->n_waiting || s->n_running < s->c.max_seqs) return;
    struct seq *q = next_waiting(s, NULL);
    if (!q) return;
    struct seq *w = worst_running(s);
    if (!w->paused && w->priority <= q->priority) w = youngest_of_most(s, q);
    if (!w) return;
    int pages = pages_in_reach(s, q) + (yields_to(s, w, q) ? 0 : w->n_pages + 1);
    bool in_vain = pages < pages_wanted(s, q) || (q->missed >= 0 && pages - s->n_running <= q->missed);
    if (!in_vain) preempt(s, w);
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

/* The virtual time goes on with the least served client of the plan. */
static void advance(struct sched *s)
{
    int64_t least = INT64_MAX;
    for (int i = 0; i < s->plan.n; i++)
        if (served(s, s->plan.v[i].seq) < least) least = served(s, s->plan.v[i].seq);
    if (s->plan.n) clients_advance(s->clients, least);
}

const struct plan *sched_step(struct sched *s)
{
    struct plan *p = &s->plan;
    p->n = p->n_tokens = p->n_rows = p->n_preempted = 0;
    s->step++;
    s->budget = s->c.max_batch_tokens;
    displace(s);
    pace_begin(s);
    plan_running(s, TURN_ONE);
    plan_running(s, TURN_SOME);
    if (p->n && s->c.max_prefill_tokens && s->budget - p->n_tokens > s->c.max_prefill_tokens)
        s->budget = p->n_tokens + s->c.max_prefill_tokens;
    plan_prompts(s);
    advance(s);
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
            CHECK(q->own_next ? before(q, q->own_next) && q->own_next->own_prev == q : q == c->last);
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
