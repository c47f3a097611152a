#include "engine/serve/kv_tier.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/kvstore/pager.h"
#include "engine/serve/engine_state.h"
#include "engine/serve/kv_name.h"

#include <stdlib.h>
#include <string.h>

enum {
    QUEUE_MAX = 1 << 16,    /* pages that wait to be copied */
    BUSY_BYTES = 4 << 20,   /* copied out in an iteration while requests run, at least a page */
    IDLE_BYTES = 32 << 20,  /* and while none does; also copied in for a request that waits */
    EXPLORE = 16,           /* one of so many refused loads is done all the same, to measure again */
    WAIT_NS_MIN = 500000000 /* see WAIT_NS_MAX */
};
/* A request waits for its pages as long as computing them would take, within limits; when that is not known yet, which
 * is so after a restart, as long as they keep coming. */
static const uint64_t WAIT_NS_MAX = UINT64_C(30000000000), STALL_NS = UINT64_C(5000000000);
static const uint64_t FLUSH_NS = UINT64_C(5000000000); /* at the end, for all pages */

struct queued {
    int32_t page; /* -1: done */
    uint64_t serial;
    struct kv_name name, parent;
    uint32_t depth;
};

/* The request whose pages are being read. */
struct load {
    struct request *r;       /* NULL: none */
    uint64_t tag;            /* of its jobs */
    int first, n;            /* pages [first, n) are wanted; those before were in memory */
    int asked, have;         /* pages before these were requested; are in memory */
    int placed;              /* pages from have on that were copied in, and are not registered yet */
    int32_t *page;           /* (n) references to [0, have) */
    uint64_t serial;         /* of page have - 1 */
    uint64_t started, moved; /* clock; moved: when the last page came */
    bool failed;             /* the next page cannot be had */
    bool spoilt;             /* the device failed after some of `placed` were copied in */
};

struct kv_tier {
    struct content_files files;
    uint64_t stamp; /* of the files before they were read */

    struct pager *pager;
    struct kv_name model;
    unsigned char secret[KV_SECRET_BYTES];
    size_t page_bytes;
    bool always; /* load whatever it takes */

    struct queued *queue; /* ring of `cap` from `head` on */
    int cap, head, n;
    int32_t *at;            /* (pages) place in the queue, -1: none */
    struct page_job *saved; /* copied out, to be submitted when the device has finished */
    bool more;              /* kv_tier_ready */

    struct load load;
    struct request *waiting, **waiting_end; /* by arrival; the first is load.r once it has begun */
    struct page_job *arrived;               /* read, not yet copied in */

    double ns_per_byte; /* of loads: moving mean, 0: unknown */
    unsigned refused;
    uint64_t hits, misses, dropped, failures, loads, load_ns;
};

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

int kv_tier_prepare(struct kv_tier **out, const struct engine_config *c, struct err *e)
{
    *out = NULL;
    if (!c->kv_disk || !*c->kv_disk) return 0;
    struct kv_tier *t = mem_zalloc(sizeof *t);
    bool quantizes = c->quantize && *c->quantize && strcmp(c->quantize, "none") != 0;
    int rc = kv_dir_secret(c->kv_disk, t->secret, e);
    if (!rc) rc = content_files_find(&t->files, c->model, quantizes, e);
    t->stamp = content_stamp(&t->files);
    t->waiting_end = &t->waiting;
    if (rc)
        kv_tier_free(t);
    else
        *out = t;
    return rc;
}

void kv_tier_free(struct kv_tier *t)
{
    if (!t) return;
    pager_close(t->pager);
    content_files_free(&t->files);
    free(t->load.page);
    free(t->queue);
    free(t->at);
    free(t);
}

static void wake(void *arg)
{
    engine_send(arg, MSG_WAKE, 0, NULL);
}

static void save_evicted(void *arg, int32_t page, uint64_t serial);

static int open_store(struct engine *g, struct kv_tier *t, const struct engine_config *c, struct err *e)
{
    int rc = kv_model_name(&t->model, &g->s, c, &t->files, e);
    if (rc) return rc;
    if (content_stamp(&t->files) != t->stamp)
        return err_set(e, ERR_IO, "the model's files changed while they were read: start again");
    struct kv_store_config sc = {.dir = c->kv_disk,
                                 .model = t->model,
                                 .page_bytes = t->page_bytes,
                                 .limit = c->kv_disk_bytes ? c->kv_disk_bytes : (uint64_t)10 << 30,
                                 .ttl = c->kv_disk_ttl};
    struct kv_store *s = kv_store_open(&sc, e);
    if (!s) return e->code;
    struct kv_store_stats now;
    kv_store_stats(s, &now);
    log_write(LOG_INFO, "kv-disk dir=%s pages=%llu bytes=%llu limit=%llu", c->kv_disk, (unsigned long long)now.pages,
              (unsigned long long)now.bytes, (unsigned long long)now.limit);
    t->pager = pager_open(s, t->page_bytes, wake, g, e);
    return t->pager ? 0 : e->code;
}

int kv_tier_open(struct engine *g, struct kv_tier *t, const struct engine_config *c, struct err *e)
{
    struct err why = {0};
    if (!t) return 0;
    if (!g->sched.c.prefix_cache) {
        log_write(LOG_WARN, "kv-disk is not used: %s",
                  g->s.info.embedder->encoder ? "the model is an encoder, which keeps no keys and values"
                                              : "prefix-cache is off");
        kv_tier_free(t);
        return 0;
    }
    t->page_bytes = g->s.info.page_bytes;
    t->always = c->kv_disk_always;
    t->cap = kv_pages(g->pool) < QUEUE_MAX ? kv_pages(g->pool) : QUEUE_MAX;
    t->queue = mem_array((size_t)t->cap, sizeof *t->queue);
    t->at = mem_array((size_t)kv_pages(g->pool), sizeof *t->at);
    memset(t->at, 0xff, (size_t)kv_pages(g->pool) * sizeof *t->at);
    if (open_store(g, t, c, &why)) {
        if (e) *e = why;
        kv_tier_free(t);
        return why.code;
    }
    g->tier = t;
    kv_pool_on_evict(g->pool, save_evicted, g);
    return 0;
}

int engine_kv_disk_seed(const char *dir, uint64_t *seed, struct err *e)
{
    static const char purpose[] = "clients";
    unsigned char secret[KV_SECRET_BYTES], digest[SHA256_BYTES];
    struct sha256 s;
    int rc = kv_dir_secret(dir, secret, e);
    if (rc) return rc;
    sha256_start(&s);
    sha256_add(&s, secret, sizeof secret);
    sha256_add(&s, purpose, sizeof purpose);
    sha256_end(&s, digest);
    memcpy(seed, digest, sizeof *seed);
    return 0;
}

void kv_tier_close(struct engine *g)
{
    if (!g->tier) return;
    kv_pool_on_evict(g->pool, NULL, NULL);
    pager_close(g->tier->pager);
    g->tier->pager = NULL;
}

void kv_tier_content(const struct engine *g, struct adapter *a)
{
    if (g->tier) kv_adapter_content(a, a->content);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* The names of the request's first n pages, whose tokens are known. */
static const struct kv_name *names_of(const struct kv_tier *t, struct request *r, int n)
{
    const struct seq *q = &r->seq;
    if (r->names_far != sched_is_far(q)) r->n_names = 0;
    r->names_far = sched_is_far(q);
    if (n <= r->n_names) return r->names;
    r->names = mem_resize(r->names, (size_t)n + 1, sizeof *r->names); /* the root before them */
    if (!r->n_names)
        r->names[0] =
            kv_root_name(t->secret, &t->model, r->adapter ? r->adapter->content : NULL, q->salt, r->names_far);
    for (; r->n_names < n; r->n_names++)
        r->names[r->n_names + 1] = kv_next_name(&r->names[r->n_names], q->tokens + r->n_names * KV_PAGE);
    return r->names;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static double ns_per_prefill_token(const struct engine *g)
{
    return g->now.prefill_tokens ? (double)g->now.prefill_ns / (double)g->now.prefill_tokens : 0;
}

/* How long computing the pages [first, first + n) would take, 0: unknown.  Attention adds to each token what it costs
 * to read the text before it. */
static double compute_ns(const struct engine *g, int first, int n)
{
    const struct model_config *c = &g->s.model.c;
    double middle = (first + n / 2.0) * KV_PAGE, parameters = (double)g->s.info.parameters;
    double attention = 2.0 * c->layers * c->heads * c->head_dim * middle / (parameters > 0 ? parameters : 1);
    return ns_per_prefill_token(g) * n * KV_PAGE * (1 + attention);
}

/* Whether n pages from `first` on are read faster than they are computed, as far as is known. */
static bool reads_faster(const struct engine *g, int first, int n)
{
    const struct kv_tier *t = g->tier;
    double compute = compute_ns(g, first, n);
    return t->always || t->ns_per_byte <= 0 || compute <= 0 || t->ns_per_byte * (double)t->page_bytes * n < compute;
}

static void enqueue(struct kv_tier *t, int32_t page, uint64_t serial, const struct kv_name *names, int depth)
{
    if (t->at[page] >= 0 && t->queue[t->at[page]].serial == serial) return;
    if (t->n == t->cap) {
        t->dropped++;
        return;
    }
    int at = (t->head + t->n++) % t->cap;
    if (t->at[page] >= 0) t->queue[t->at[page]].page = -1; /* what it held before is gone */
    t->queue[at] = (struct queued){page, serial, names[depth + 1], names[depth], (uint32_t)depth};
    t->at[page] = at;
}

void kv_tier_failed(struct engine *g)
{
    struct kv_tier *t = g->tier;
    if (!t) return;
    for (struct page_job *j = t->saved, *next; j; j = next) {
        next = j->next;
        pager_give(t->pager, j);
        t->dropped++;
    }
    t->saved = NULL;
    t->load.spoilt |= t->load.placed > 0;
}

/* The device failed while it copied pages: they are lost, and no request ends for that. */
static void copies_failed(struct engine *g)
{
    struct dev *d = g->s.model.d;
    if (g->tier->failures++ == 0)
        log_error("kv-disk: the device failed to copy pages; later failures are only counted op=%s error=\"%s\"",
                  d->error.op ? d->error.op : "?", d->error.msg);
    if (!d->ops->lost || !d->ops->lost(d)) dev_clear_error(d); /* else engine_check_device finds it */
    g->now.failed_steps++;
    kv_tier_failed(g);
}

/* Copies the page out of the device, which does nothing after an error.  @return false: no buffer is free. */
static bool save(struct engine *g, const struct queued *w)
{
    struct kv_tier *t = g->tier;
    struct dev *d = g->s.model.d;
    struct page_job *j = pager_take(t->pager, JOB_WRITE);
    if (!j) return false;
    bool failed = d->error.op; /* of another's op, who has not seen it yet */
    if (!failed) d->ops->kv_save(d, g->s.model.kv, w->page, j->page);
    if (d->error.op) {
        pager_give(t->pager, j);
        t->dropped++;
        if (!failed) copies_failed(g);
        return true;
    }
    j->name = w->name;
    j->parent = w->parent;
    j->depth = w->depth;
    j->next = t->saved;
    t->saved = j;
    return true;
}

void kv_tier_submit(struct engine *g)
{
    struct kv_tier *t = g->tier;
    struct page_job *in_order = NULL, *next;
    if (!t || !t->saved) return;
    if (g->s.model.d->ops->finish(g->s.model.d)) {
        copies_failed(g);
        return;
    }
    for (struct page_job *j = t->saved; j; j = next) { /* the last copied is the first in the list */
        next = j->next;
        j->next = in_order;
        in_order = j;
    }
    t->saved = NULL;
    for (; in_order; in_order = next) {
        next = in_order->next;
        pager_submit(t->pager, in_order);
    }
}

/* Called by the pool before it gives a registered page away. */
static void save_evicted(void *arg, int32_t page, uint64_t serial)
{
    struct engine *g = arg;
    struct kv_tier *t = g->tier;
    int at = t->at[page];
    if (at < 0) return;
    if (t->queue[at].serial == serial && !engine_lost(g) && !save(g, &t->queue[at])) t->dropped++;
    t->queue[at].page = -1;
    t->at[page] = -1;
}

/* Copies queued pages, at most so many bytes but at least a page. */
static void save_queued(struct engine *g, size_t bytes)
{
    struct kv_tier *t = g->tier;
    struct kv_store *store = pager_store(t->pager);
    size_t copied = 0;
    while (t->n) {
        struct queued *w = &t->queue[t->head];
        bool held = w->page >= 0 && kv_serial(g->pool, w->page) == w->serial;
        if (held && kv_store_prefix(store, &w->name, 1) == 0) {
            if (copied && copied + t->page_bytes > bytes) {
                t->more = true;
                return;
            }
            if (!save(g, w)) return; /* the pager wakes this thread */
            copied += t->page_bytes;
        }
        if (w->page >= 0) t->at[w->page] = -1;
        t->head = (t->head + 1) % t->cap;
        t->n--;
    }
}

static void forget_load(struct engine *, struct request *);

void kv_tier_leave(struct engine *g, struct request *r)
{
    struct kv_tier *t = g->tier;
    const struct seq *q = &r->seq;
    if (!t) return;
    if (r->loading) forget_load(g, r);
    int n = q->n_registered;
    if (!n || engine_lost(g)) return;
    const struct kv_name *names = names_of(t, r, n);
    uint64_t serial = q->root;
    bool worth = reads_faster(g, 0, n);
    for (int i = 0; i < n; i++) {
        int32_t page = kv_peek(g->pool, serial, q->salt, q->tokens + i * KV_PAGE, &serial);
        if (page < 0) break;
        if (!kv_store_use(pager_store(t->pager), &names[i + 1]) && worth) enqueue(t, page, serial, names, i);
    }
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

void kv_tier_arrive(struct engine *g, struct request *r)
{
    struct kv_tier *t = g->tier;
    struct seq *q = &r->seq;
    if (!t || engine_lost(g)) return;
    int n = sched_prefix_end(&g->sched, q) / KV_PAGE, m = 0;
    if (n <= 0) return;
    const struct kv_name *names = names_of(t, r, n) + 1;
    uint64_t serial = q->root;
    while (m < n && kv_peek(g->pool, serial, q->salt, q->tokens + m * KV_PAGE, &serial) >= 0) m++;
    int k = kv_store_prefix(pager_store(t->pager), names + m, n - m);
    t->misses += (uint64_t)(n - m - k);
    if (!k || (!reads_faster(g, m, k) && ++t->refused % EXPLORE)) return;
    double wait = compute_ns(g, m, k);
    if (wait <= 0) wait = (double)WAIT_NS_MAX;
    if (wait < WAIT_NS_MIN) wait = WAIT_NS_MIN;
    r->load_until = clock_now() + (wait < (double)WAIT_NS_MAX ? (uint64_t)wait : WAIT_NS_MAX);
    r->load_pages = m + k;
    r->loading = q->blocked = true;
    r->load_next = NULL;
    *t->waiting_end = r;
    t->waiting_end = &r->load_next;
}

static void begin(struct engine *g, struct request *r)
{
    struct kv_tier *t = g->tier;
    struct load *l = &t->load;
    const struct seq *q = &r->seq;
    *l = (struct load){.r = r, .tag = l->tag + 1, .n = r->load_pages, .serial = q->root};
    l->started = l->moved = clock_now();
    l->page = mem_array((size_t)l->n, sizeof *l->page);
    for (; l->have < l->n; l->have++) {
        int32_t page = kv_lookup(g->pool, l->serial, q->salt, q->tokens + l->have * KV_PAGE, &l->serial);
        if (page < 0) break;
        l->page[l->have] = page;
    }
    l->first = l->asked = l->have;
}

/* Ends the load: its pages are cached ones now, the end of the prefix to be evicted first. */
static void end(struct engine *g)
{
    struct kv_tier *t = g->tier;
    struct load *l = &t->load;
    int n = l->have - l->first;
    uint64_t ns = clock_now() - l->started;
    for (int i = l->have; i > 0; i--) kv_unref(g->pool, l->page[i - 1]);
    free(l->page);
    l->page = NULL;
    l->r = NULL;
    if (n <= 0) return;
    double each = (double)ns / ((double)n * (double)t->page_bytes);
    t->ns_per_byte = t->ns_per_byte > 0 ? 0.7 * t->ns_per_byte + 0.3 * each : each;
    t->loads++;
    t->load_ns += ns;
}

/* Takes the request out of the list of those that wait. */
static void forget_load(struct engine *g, struct request *r)
{
    struct kv_tier *t = g->tier;
    struct request **link = &t->waiting;
    if (t->load.r == r) end(g);
    while (*link && *link != r) link = &(*link)->load_next;
    CHECK(*link == r);
    *link = r->load_next;
    if (!r->load_next) t->waiting_end = link;
    r->loading = r->seq.blocked = false;
}

/* Asks for the next pages. */
static void ask(struct kv_tier *t)
{
    struct load *l = &t->load;
    struct page_job *j;
    while (!l->failed && l->asked < l->n && (j = pager_take(t->pager, JOB_READ))) {
        j->name = l->r->names[l->asked + 1];
        j->tag = l->tag;
        j->index = l->asked++;
        pager_submit(t->pager, j);
    }
}

/* Copies a page that was read into one of the pool.  Some free pages are left, so that running requests can grow. */
static void place(struct engine *g, const struct page_job *j)
{
    struct load *l = &g->tier->load;
    int32_t page = j->right && kv_available(g->pool) > g->sched.n_running + 1 ? kv_alloc(g->pool) : -1;
    if (page < 0) {
        l->failed = true;
        return;
    }
    g->s.model.d->ops->kv_load(g->s.model.d, g->s.model.kv, page, j->page);
    l->page[l->have + l->placed++] = page;
}

/* Registers the pages that were placed, once the device has them. */
static void register_placed(struct engine *g)
{
    struct load *l = &g->tier->load;
    if (!l->placed) return;
    const struct seq *q = &l->r->seq;
    l->moved = clock_now();
    if (g->s.model.d->ops->finish(g->s.model.d)) copies_failed(g);
    bool right = !l->spoilt;
    l->spoilt = false;
    for (; l->placed && right; l->placed--, l->have++) {
        l->serial = kv_register(g->pool, l->page[l->have], l->serial, q->salt, q->tokens + l->have * KV_PAGE);
        g->tier->hits++;
    }
    l->failed |= !right;
    while (l->placed) kv_unref(g->pool, l->page[l->have + --l->placed]);
}

/* Copies in what arrived, some bytes of it. */
static void take_arrived(struct engine *g)
{
    struct kv_tier *t = g->tier;
    struct load *l = &t->load;
    size_t copied = 0;
    for (;;) {
        if (!t->arrived) t->arrived = pager_done(t->pager);
        struct page_job *j = t->arrived;
        bool ours = j && l->r && j->tag == l->tag && !l->failed;
        t->more |= ours && copied && copied + t->page_bytes > IDLE_BYTES;
        if (!j || t->more) break;
        t->arrived = j->next;
        if (ours) {
            place(g, j);
            copied += t->page_bytes;
        }
        pager_give(t->pager, j);
    }
    register_placed(g);
}

uint64_t kv_tier_deadline(const struct engine *g)
{
    const struct kv_tier *t = g->tier;
    if (!t || !t->waiting) return 0;
    uint64_t until = t->load.r ? t->load.moved + STALL_NS : UINT64_MAX;
    for (const struct request *r = t->waiting; r; r = r->load_next)
        if (r->load_until < until) until = r->load_until;
    return until;
}

/* Also those behind the one whose pages are read. */
static void forget_late(struct engine *g)
{
    uint64_t now = clock_now();
    for (struct request *r = g->tier->waiting, *next; r; r = next) {
        next = r->load_next;
        if (now >= r->load_until) forget_load(g, r);
    }
}

static void run_loads(struct engine *g)
{
    struct kv_tier *t = g->tier;
    struct load *l = &t->load;
    take_arrived(g);
    forget_late(g);
    while (t->waiting) {
        if (!l->r) begin(g, t->waiting);
        bool starved = kv_available(g->pool) < g->sched.n_running, stalled = clock_now() >= l->moved + STALL_NS;
        if (!l->failed && l->have < l->n && !starved && !stalled) {
            ask(t);
            return;
        }
        forget_load(g, t->waiting);
    }
}

void kv_tier_run(struct engine *g)
{
    struct kv_tier *t = g->tier;
    if (!t) return;
    t->more = false;
    if (engine_lost(g)) {
        while (t->waiting) forget_load(g, t->waiting);
        return;
    }
    run_loads(g);
    save_queued(g, g->sched.n_running ? BUSY_BYTES : IDLE_BYTES);
    kv_tier_submit(g);
}

bool kv_tier_ready(const struct engine *g)
{
    return g->tier && g->tier->more;
}

void kv_tier_flush(struct engine *g)
{
    struct kv_tier *t = g->tier;
    uint64_t until = clock_now() + FLUSH_NS;
    if (!t || engine_lost(g)) return;
    while (t->waiting) forget_load(g, t->waiting);
    for (uint32_t i = 0; i <= g->id_mask; i++)
        for (struct request *r = g->by_id[i]; r; r = r->next) kv_tier_leave(g, r);
    do {
        save_queued(g, SIZE_MAX / 2);
        kv_tier_submit(g);
    } while (pager_flush(t->pager, until) && t->n);
}

void kv_tier_publish(struct engine *g)
{
    const struct kv_tier *t = g->tier;
    if (!t) return;
    g->now.kv_disk = (struct kv_disk_stats){.on = true,
                                            .hits = t->hits,
                                            .misses = t->misses,
                                            .dropped = t->dropped,
                                            .loads = t->loads,
                                            .load_ns = t->load_ns};
}

void kv_tier_read(const struct engine *g, struct kv_disk_stats *out)
{
    struct kv_store_stats s;
    if (!g->tier) return;
    kv_store_stats(pager_store(g->tier->pager), &s);
    out->on = true;
    out->pages = s.pages;
    out->bytes = s.bytes;
    out->limit = s.limit;
    out->written = s.written;
    out->evicted = s.evicted;
    out->expired = s.expired;
    out->corrupt = s.corrupt;
    out->write_errors = s.write_errors;
}
