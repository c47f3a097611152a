#include "engine/serve/kv_published.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/serve/sched.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1024 }; /* pages in a batch while everything is posted */

static const char scheme[] = "tandem KV events 1"; /* what a change of hashes must change */

/* A page of the pool, by its number there. */
struct node {
    uint64_t serial; /* 0: not in the tree */
    uint64_t hash;
    int32_t root, parent;      /* parent: ~root of a first page */
    int32_t child, next, prev; /* the first child; the parent's other children; -1: none */
    int32_t chain;             /* the next page in the same bucket of serials, -1: last */
};

/* The base model, or a version of an adapter. */
struct root {
    uint64_t id; /* the parent of its first pages (kv.h) */
    uint64_t hash, version;
    int32_t child;
    bool used;
    char adapter[ADAPTER_NAME_MAX + 1];
};

struct kv_published {
    struct kv_pool *pool;
    struct adapters *adapters;
    struct kv_event_sink *sink;
    struct kv_watch watch;
    char *model;
    int pages, n_nodes;
    struct node *node; /* (pages) */
    int32_t *bucket;   /* (mask + 1) */
    uint32_t mask;
    struct root *root; /* (n_roots); the first is the base model's */
    size_t n_roots, cap_roots;
    unsigned resync; /* the sink's, when it was last told everything */
    bool lost;       /* the sink does not know what is cached: nothing is collected until it was told everything */
    /* what is to be posted */
    struct kv_event *event;
    uint64_t *hash;
    int32_t *token;
    size_t n_events, cap_events, n_hashes, cap_hashes, n_tokens, cap_tokens;
    int32_t last_root; /* of the last event */
};

/* ---- hashes ------------------------------------------------------------------------------------------------------ */

/* 64 bits, never 0. */
static uint64_t hash_end(struct sha256 *s)
{
    unsigned char digest[SHA256_BYTES];
    uint64_t h;
    sha256_end(s, digest);
    memcpy(&h, digest, sizeof h);
    return h ? h : 1;
}

static uint64_t root_hash(const char *model, const char *adapter)
{
    struct sha256 s;
    sha256_start(&s);
    sha256_add(&s, scheme, sizeof scheme);
    sha256_add(&s, model, strlen(model) + 1);
    sha256_add(&s, adapter, strlen(adapter) + 1);
    return hash_end(&s);
}

static uint64_t page_hash(uint64_t before, const int32_t *tokens)
{
    struct sha256 s;
    sha256_start(&s);
    sha256_add(&s, &before, sizeof before);
    sha256_add(&s, tokens, KV_PAGE * sizeof *tokens);
    return hash_end(&s);
}

/* ---- what is to be posted ---------------------------------------------------------------------------------------- */

static void empty(struct kv_published *p)
{
    p->n_events = p->n_hashes = p->n_tokens = 0;
}

static bool post(struct kv_published *p)
{
    const struct kv_event_batch b = {.model = p->model,
                                     .page_tokens = KV_PAGE,
                                     .v = p->event,
                                     .n = p->n_events,
                                     .n_hashes = p->n_hashes,
                                     .n_tokens = p->n_tokens,
                                     .hashes = p->hash,
                                     .tokens = p->token};
    bool taken = p->sink->post(p->sink->arg, &b);
    empty(p);
    return taken;
}

static struct kv_event *add_event(struct kv_published *p, enum kv_event_kind kind)
{
    mem_grow(&p->event, &p->cap_events, p->n_events + 1, sizeof *p->event);
    struct kv_event *e = &p->event[p->n_events++];
    *e = (struct kv_event){.kind = kind, .hash = p->n_hashes, .token = p->n_tokens};
    return e;
}

static void add_hash(struct kv_published *p, struct kv_event *e, uint64_t hash)
{
    mem_grow(&p->hash, &p->cap_hashes, p->n_hashes + 1, sizeof *p->hash);
    p->hash[p->n_hashes++] = hash;
    e->pages++;
}

static struct kv_event *last_event(struct kv_published *p, enum kv_event_kind kind)
{
    struct kv_event *e = p->n_events ? &p->event[p->n_events - 1] : NULL;
    return e && e->kind == kind ? e : NULL;
}

static uint64_t hash_before(const struct kv_published *p, const struct node *n)
{
    return n->parent < 0 ? 0 : p->node[n->parent].hash;
}

static void add_stored(struct kv_published *p, int32_t page)
{
    const struct node *n = &p->node[page];
    struct kv_event *e = last_event(p, KV_STORED);
    if (!e || p->last_root != n->root || p->hash[p->n_hashes - 1] != hash_before(p, n)) {
        const struct root *r = &p->root[n->root];
        e = add_event(p, KV_STORED);
        e->parent = hash_before(p, n);
        e->version = r->version;
        memcpy(e->adapter, r->adapter, sizeof e->adapter);
        p->last_root = n->root;
    }
    add_hash(p, e, n->hash);
    mem_grow(&p->token, &p->cap_tokens, p->n_tokens + KV_PAGE, sizeof *p->token);
    memcpy(p->token + p->n_tokens, kv_tokens(p->pool, page), KV_PAGE * sizeof *p->token);
    p->n_tokens += KV_PAGE;
}

static void add_removed(struct kv_published *p, uint64_t hash)
{
    struct kv_event *e = last_event(p, KV_REMOVED);
    add_hash(p, e ? e : add_event(p, KV_REMOVED), hash);
}

/* ---- the tree ---------------------------------------------------------------------------------------------------- */

static int32_t *bucket_of(const struct kv_published *p, uint64_t serial)
{
    return &p->bucket[(uint32_t)serial & p->mask]; /* serials are consecutive */
}

static int32_t find(const struct kv_published *p, uint64_t serial)
{
    int32_t i = *bucket_of(p, serial);
    while (i >= 0 && p->node[i].serial != serial) i = p->node[i].chain;
    return i;
}

static int32_t *children_of(struct kv_published *p, int32_t parent)
{
    return parent < 0 ? &p->root[~parent].child : &p->node[parent].child;
}

/* The page after this one, parents before their children; -1: it was the last of its root. */
static int32_t next_page(const struct kv_published *p, int32_t page)
{
    if (p->node[page].child >= 0) return p->node[page].child;
    while (page >= 0 && p->node[page].next < 0) page = p->node[page].parent;
    return page < 0 ? -1 : p->node[page].next;
}

static void insert(struct kv_published *p, int32_t page, uint64_t serial, int32_t parent, uint64_t hash)
{
    int32_t *first = children_of(p, parent), *bucket = bucket_of(p, serial);
    p->node[page] = (struct node){.serial = serial,
                                  .hash = hash,
                                  .root = parent < 0 ? ~parent : p->node[parent].root,
                                  .parent = parent,
                                  .child = -1,
                                  .next = *first,
                                  .prev = -1,
                                  .chain = *bucket};
    if (*first >= 0) p->node[*first].prev = page;
    *first = *bucket = page;
    p->n_nodes++;
}

static void take_out(struct kv_published *p, int32_t page)
{
    struct node *n = &p->node[page];
    int32_t *link = bucket_of(p, n->serial);
    if (n->next >= 0) p->node[n->next].prev = n->prev;
    if (n->prev >= 0)
        p->node[n->prev].next = n->next;
    else
        *children_of(p, n->parent) = n->next;
    while (*link != page) link = &p->node[*link].chain;
    *link = n->chain;
    n->serial = 0;
    p->n_nodes--;
}

/* With its descendants, those first. */
static void remove_page(struct kv_published *p, int32_t page)
{
    for (int32_t at = page, parent;; at = parent) {
        while (p->node[at].child >= 0) at = p->node[at].child;
        parent = p->node[at].parent;
        if (!p->lost) add_removed(p, p->node[at].hash);
        take_out(p, at);
        if (at == page) return;
    }
}

/* ---- roots ------------------------------------------------------------------------------------------------------- */

static bool is_adapter(uint64_t parent)
{
    return parent >> 63;
}

static uint64_t version_of(uint64_t id)
{
    return id & ~(UINT64_C(3) << 62); /* adapter_root */
}

static int32_t add_root(struct kv_published *p, uint64_t id, const char *adapter)
{
    size_t i = 0;
    while (i < p->n_roots && p->root[i].used) i++;
    if (i == p->n_roots) mem_grow(&p->root, &p->cap_roots, ++p->n_roots, sizeof *p->root);
    struct root *r = &p->root[i];
    *r = (struct root){.id = id, .version = version_of(id), .child = -1, .used = true};
    strncpy(r->adapter, adapter, sizeof r->adapter - 1);
    r->hash = root_hash(p->model, adapter);
    return (int32_t)i;
}

/* -1: a page behind this parent is not told of. */
static int32_t find_root(struct kv_published *p, uint64_t id)
{
    char name[ADAPTER_NAME_MAX + 1];
    if (id & SEQ_FAR) return -1;
    for (size_t i = 0; i < p->n_roots; i++)
        if (p->root[i].used && p->root[i].id == id) return (int32_t)i;
    return adapters_current(p->adapters, version_of(id), name) ? add_root(p, id, name) : -1;
}

void kv_published_sweep(struct kv_published *p)
{
    char name[ADAPTER_NAME_MAX + 1];
    for (size_t i = 1; p && i < p->n_roots; i++) {
        struct root *r = &p->root[i];
        if (!r->used || adapters_current(p->adapters, r->version, name)) continue;
        while (r->child >= 0) remove_page(p, r->child);
        r->used = false;
    }
}

/* ---- the pool's calls -------------------------------------------------------------------------------------------- */

static void on_stored(void *arg, int32_t page, uint64_t serial, uint64_t parent, uint64_t salt)
{
    struct kv_published *p = arg;
    if (salt) return;
    bool first = !parent || is_adapter(parent) || parent == SEQ_FAR;
    int32_t before = first ? find_root(p, parent) : find(p, parent);
    if (before < 0) return;
    uint64_t hash = page_hash(first ? p->root[before].hash : p->node[before].hash, kv_tokens(p->pool, page));
    insert(p, page, serial, first ? ~before : before, hash);
    if (!p->lost) add_stored(p, page);
}

static void on_removed(void *arg, int32_t page)
{
    struct kv_published *p = arg;
    if (p->node[page].serial) remove_page(p, page);
}

/* Page by page too: some consumers pass over KV_CLEARED. */
static void remove_all(struct kv_published *p)
{
    for (size_t i = 0; i < p->n_roots; i++)
        while (p->root[i].used && p->root[i].child >= 0) remove_page(p, p->root[i].child);
    add_event(p, KV_CLEARED);
}

static void on_forgotten(void *arg)
{
    remove_all(arg);
}

/* ---- posting ----------------------------------------------------------------------------------------------------- */

/* Everything, in batches of some pages.  @return whether all were taken. */
static bool post_all(struct kv_published *p)
{
    empty(p);
    add_event(p, KV_CLEARED);
    for (size_t r = 0; r < p->n_roots; r++) {
        if (!p->root[r].used) continue;
        for (int32_t i = p->root[r].child; i >= 0; i = next_page(p, i)) {
            add_stored(p, i);
            if (p->n_hashes == CHUNK && !post(p)) return false;
        }
    }
    return !p->n_events || post(p);
}

void kv_published_flush(struct kv_published *p)
{
    if (!p) return;
    unsigned resync = atomic_load(&p->sink->resync);
    if (p->lost || p->resync != resync) {
        p->resync = resync;
        p->lost = !post_all(p);
    } else if (p->n_events) {
        p->lost = !post(p);
    }
}

struct kv_published *kv_published_new(struct kv_pool *pool, struct adapters *adapters, struct kv_event_sink *sink,
                                      const char *model)
{
    if (!sink) return NULL;
    struct kv_published *p = mem_zalloc(sizeof *p);
    p->pool = pool;
    p->adapters = adapters;
    p->sink = sink;
    p->model = mem_strdup(model);
    p->pages = kv_pages(pool);
    p->node = mem_array((size_t)p->pages, sizeof *p->node);
    for (p->mask = 15; p->mask < (uint32_t)p->pages; p->mask = p->mask * 2 + 1) {
    }
    p->bucket = mem_array((size_t)p->mask + 1, sizeof *p->bucket);
    memset(p->bucket, 0xff, ((size_t)p->mask + 1) * sizeof *p->bucket);
    add_root(p, 0, "");
    p->resync = atomic_load(&sink->resync);
    p->watch = (struct kv_watch){.arg = p, .stored = on_stored, .removed = on_removed, .forgotten = on_forgotten};
    kv_pool_watch(pool, &p->watch);
    p->lost = true;
    kv_published_flush(p);
    return p;
}

void kv_published_free(struct kv_published *p)
{
    if (!p) return;
    kv_pool_watch(p->pool, NULL);
    remove_all(p);
    post(p);
    free(p->event);
    free(p->hash);
    free(p->token);
    free(p->root);
    free(p->bucket);
    free(p->node);
    free(p->model);
    free(p);
}

int kv_published_check(const struct kv_published *p)
{
    int seen = 0;
    for (size_t r = 0; r < p->n_roots; r++)
        for (int32_t i = p->root[r].used ? p->root[r].child : -1; i >= 0; i = next_page(p, i)) {
            const struct node *n = &p->node[i];
            uint64_t before = n->parent < 0 ? p->root[~n->parent].hash : p->node[n->parent].hash;
            CHECK(n->serial && n->serial == kv_serial(p->pool, i) && find(p, n->serial) == i);
            CHECK(n->root == (int32_t)r && n->hash == page_hash(before, kv_tokens(p->pool, i)));
            CHECK(n->prev < 0 ? *children_of((struct kv_published *)p, n->parent) == i : p->node[n->prev].next == i);
            CHECK(++seen <= p->n_nodes);
        }
    CHECK(seen == p->n_nodes);
    return seen;
}
