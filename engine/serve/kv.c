#include "engine/serve/kv.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "kernels/rng.h"

#include <stdlib.h>
#include <string.h>

struct page {
    int32_t ref;
    int32_t prev, next;      /* free list; meaningful while ref is 0 */
    int32_t chain;           /* next page in the same hash bucket, -1: last */
    uint64_t serial, parent; /* serial 0: not registered */
    uint64_t salt;
    int32_t tokens[KV_PAGE];
};

struct kv_pool {
    int n, n_free, n_cached; /* n_cached: free and registered */
    int32_t head, tail;      /* free list, least recently used first; -1: empty */
    uint64_t next_serial, seed, lookups;
    struct page *page;
    int32_t *bucket; /* mask + 1 heads of chains */
    uint32_t mask;
    void (*evict)(void *arg, int32_t page, uint64_t serial);
    void *evict_arg;
    const struct kv_watch *watch;
};

struct kv_pool *kv_pool_new(int pages, uint64_t hash_seed)
{
    CHECK(pages > 0);
    struct kv_pool *p = mem_zalloc(sizeof *p);
    p->n = p->n_free = pages;
    p->next_serial = 1;
    p->seed = hash_seed;
    p->page = mem_array((size_t)pages, sizeof *p->page);
    for (p->mask = 15; p->mask < (uint32_t)pages; p->mask = p->mask * 2 + 1) {
    }
    p->bucket = mem_array((size_t)p->mask + 1, sizeof *p->bucket);
    memset(p->bucket, 0xff, ((size_t)p->mask + 1) * sizeof *p->bucket);
    for (int i = 0; i < pages; i++)
        p->page[i] = (struct page){.prev = i - 1, .next = i + 1 < pages ? i + 1 : -1, .chain = -1};
    p->tail = pages - 1;
    return p;
}

void kv_pool_free(struct kv_pool *p)
{
    if (!p) return;
    free(p->page);
    free(p->bucket);
    free(p);
}

int kv_pages(const struct kv_pool *p)
{
    return p->n;
}

int kv_available(const struct kv_pool *p)
{
    return p->n_free;
}

int kv_cached(const struct kv_pool *p)
{
    return p->n_cached;
}

/* ---- free list ---- */

static void list_remove(struct kv_pool *p, int32_t i)
{
    struct page *g = &p->page[i];
    if (g->prev >= 0)
        p->page[g->prev].next = g->next;
    else
        p->head = g->next;
    if (g->next >= 0)
        p->page[g->next].prev = g->prev;
    else
        p->tail = g->prev;
    p->n_free--;
    if (g->serial) p->n_cached--;
}

static void list_add(struct kv_pool *p, int32_t i)
{
    struct page *g = &p->page[i];
    if (g->serial) { /* cached prefixes are allocated last */
        g->prev = p->tail;
        g->next = -1;
        if (p->tail >= 0)
            p->page[p->tail].next = i;
        else
            p->head = i;
        p->tail = i;
        p->n_cached++;
    } else {
        g->prev = -1;
        g->next = p->head;
        if (p->head >= 0)
            p->page[p->head].prev = i;
        else
            p->tail = i;
        p->head = i;
    }
    p->n_free++;
}

/* ---- prefix table ---- */

static uint32_t bucket_of(const struct kv_pool *p, uint64_t parent, uint64_t salt, const int32_t *tokens)
{
    uint64_t h = rng_mix(rng_mix(p->seed ^ parent) ^ salt);
    for (int i = 0; i < KV_PAGE; i += 2)
        h = rng_mix(h ^ ((uint64_t)(uint32_t)tokens[i] << 32 | (uint32_t)tokens[i + 1]));
    return (uint32_t)h & p->mask;
}

static bool is_of(const struct page *g, uint64_t parent, uint64_t salt, const int32_t *tokens)
{
    return g->parent == parent && g->salt == salt && !memcmp(g->tokens, tokens, sizeof g->tokens);
}

static int32_t find(const struct kv_pool *p, uint32_t bucket, uint64_t parent, uint64_t salt, const int32_t *tokens)
{
    int32_t i = p->bucket[bucket];
    while (i >= 0 && !is_of(&p->page[i], parent, salt, tokens)) i = p->page[i].chain;
    return i;
}

static void unregister(struct kv_pool *p, int32_t i)
{
    struct page *g = &p->page[i];
    int32_t *link = &p->bucket[bucket_of(p, g->parent, g->salt, g->tokens)];
    while (*link != i) link = &p->page[*link].chain;
    *link = g->chain;
    g->chain = -1;
    g->serial = 0;
}

int32_t kv_alloc(struct kv_pool *p)
{
    int32_t i = p->head;
    if (i < 0) return -1;
    if (p->page[i].serial && p->evict) p->evict(p->evict_arg, i, p->page[i].serial);
    if (p->page[i].serial && p->watch) p->watch->removed(p->watch->arg, i);
    list_remove(p, i);
    if (p->page[i].serial) unregister(p, i);
    p->page[i].ref = 1;
    return i;
}

static void kv_ref(struct kv_pool *p, int32_t i)
{
    if (p->page[i].ref++ == 0) list_remove(p, i);
}

void kv_unref(struct kv_pool *p, int32_t i)
{
    CHECK(i >= 0 && i < p->n && p->page[i].ref > 0);
    if (--p->page[i].ref == 0) list_add(p, i);
}

int32_t kv_lookup(struct kv_pool *p, uint64_t parent, uint64_t salt, const int32_t *tokens, uint64_t *serial)
{
    int32_t i = find(p, bucket_of(p, parent, salt, tokens), parent, salt, tokens);
    p->lookups++;
    if (i < 0) return -1;
    kv_ref(p, i);
    *serial = p->page[i].serial;
    return i;
}

bool kv_contains(struct kv_pool *p, uint64_t parent, uint64_t salt, const int32_t *tokens, uint64_t *serial)
{
    int32_t i = find(p, bucket_of(p, parent, salt, tokens), parent, salt, tokens);
    p->lookups++;
    if (i >= 0) *serial = p->page[i].serial;
    return i >= 0;
}

int32_t kv_peek(const struct kv_pool *p, uint64_t parent, uint64_t salt, const int32_t *tokens, uint64_t *serial)
{
    int32_t i = find(p, bucket_of(p, parent, salt, tokens), parent, salt, tokens);
    if (i >= 0) *serial = p->page[i].serial;
    return i;
}

uint64_t kv_serial(const struct kv_pool *p, int32_t page)
{
    return p->page[page].serial;
}

void kv_pool_on_evict(struct kv_pool *p, void (*fn)(void *arg, int32_t page, uint64_t serial), void *arg)
{
    p->evict = fn;
    p->evict_arg = arg;
}

void kv_pool_watch(struct kv_pool *p, const struct kv_watch *w)
{
    p->watch = w;
}

const int32_t *kv_tokens(const struct kv_pool *p, int32_t page)
{
    return p->page[page].tokens;
}

uint64_t kv_lookups(const struct kv_pool *p)
{
    return p->lookups;
}

uint64_t kv_register(struct kv_pool *p, int32_t i, uint64_t parent, uint64_t salt, const int32_t *tokens)
{
    CHECK(i >= 0 && i < p->n && p->page[i].ref > 0);
    struct page *g = &p->page[i];
    if (g->serial) return g->serial;
    uint32_t b = bucket_of(p, parent, salt, tokens);
    int32_t known = find(p, b, parent, salt, tokens);
    if (known >= 0) return p->page[known].serial;
    g->serial = p->next_serial++;
    g->parent = parent;
    g->salt = salt;
    memcpy(g->tokens, tokens, sizeof g->tokens);
    g->chain = p->bucket[b];
    p->bucket[b] = i;
    if (p->watch) p->watch->stored(p->watch->arg, i, g->serial, parent, salt);
    return g->serial;
}

void kv_forget(struct kv_pool *p)
{
    for (int32_t i = 0; i < p->n; i++) {
        if (!p->page[i].serial) continue;
        bool is_free = !p->page[i].ref;
        if (is_free) list_remove(p, i);
        unregister(p, i);
        if (is_free) list_add(p, i);
    }
    if (p->watch) p->watch->forgotten(p->watch->arg);
}

void kv_check(const struct kv_pool *p)
{
    int n_free = 0, n_cached = 0, n_known = 0, in_table = 0;
    for (int32_t i = p->head, prev = -1; i >= 0; prev = i, i = p->page[i].next) {
        CHECK(p->page[i].ref == 0 && p->page[i].prev == prev);
        n_free++;
        n_cached += p->page[i].serial != 0;
        CHECK(n_free <= p->n);
        if (p->page[i].next < 0) CHECK(p->tail == i);
    }
    CHECK(n_free == p->n_free && n_cached == p->n_cached);
    for (int32_t i = 0; i < p->n; i++) {
        CHECK(p->page[i].ref >= 0);
        n_free -= p->page[i].ref == 0;
        n_known += p->page[i].serial != 0;
    }
    CHECK(n_free == 0);
    for (uint32_t b = 0; b <= p->mask; b++)
        for (int32_t i = p->bucket[b]; i >= 0; i = p->page[i].chain) {
            CHECK(p->page[i].serial && bucket_of(p, p->page[i].parent, p->page[i].salt, p->page[i].tokens) == b);
            CHECK(++in_table <= p->n);
        }
    CHECK(in_table == n_known);
}
