#include "engine/kvstore/index.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

void index_init(struct index *x)
{
    *x = (struct index){.free = -1, .mask = 1023};
    if (getrandom(&x->seed, sizeof x->seed, GRND_NONBLOCK) != sizeof x->seed) x->seed = (uintptr_t)x;
    pthread_mutex_init(&x->lock, NULL);
    x->bucket = mem_array((size_t)x->mask + 1, sizeof *x->bucket);
    memset(x->bucket, 0xff, ((size_t)x->mask + 1) * sizeof *x->bucket);
}

void index_destroy(struct index *x)
{
    pthread_mutex_destroy(&x->lock);
    free(x->slot);
    free(x->bucket);
}

static int32_t *bucket_of(const struct index *x, const struct kv_name *name)
{
    uint64_t h = x->seed, w;
    for (size_t i = 0; i < sizeof *name; i += sizeof w) {
        memcpy(&w, name->b + i, sizeof w);
        h = (h ^ w) * UINT64_C(0xbf58476d1ce4e5b9);
        h ^= h >> 31;
    }
    return &x->bucket[(h ^ h >> 32) & x->mask];
}

static bool same(const struct kv_name *a, const struct kv_name *b)
{
    return !memcmp(a, b, sizeof *a);
}

int32_t index_find(const struct index *x, const struct kv_name *name)
{
    int32_t i = *bucket_of(x, name);
    while (i >= 0 && !same(&x->slot[i].name, name)) i = x->slot[i].next;
    return i;
}

/* Twice as many buckets. */
static void rehash(struct index *x)
{
    uint32_t mask = x->mask * 2 + 1;
    free(x->bucket);
    x->mask = mask;
    x->bucket = mem_array((size_t)mask + 1, sizeof *x->bucket);
    memset(x->bucket, 0xff, ((size_t)mask + 1) * sizeof *x->bucket);
    for (int32_t i = 0; i < x->n; i++) {
        if (!x->slot[i].live) continue;
        int32_t *b = bucket_of(x, &x->slot[i].name);
        x->slot[i].next = *b;
        *b = i;
    }
}

int32_t index_extend(struct index *x)
{
    CHECK(x->n < INDEX_SLOTS_MAX);
    mem_grow(&x->slot, &x->cap, (size_t)x->n + 1, sizeof *x->slot);
    memset(&x->slot[x->n], 0, sizeof *x->slot);
    return x->n++;
}

int32_t index_take(struct index *x)
{
    int32_t i = x->free;
    if (i >= 0) x->free = x->slot[i].next;
    return i;
}

void index_give(struct index *x, int32_t i)
{
    x->slot[i].next = x->free;
    x->free = i;
}

void index_add(struct index *x, int32_t i, const struct index_entry *e)
{
    struct index_slot *s = &x->slot[i];
    s->name = e->name;
    s->parent = e->parent;
    s->used = e->used;
    s->uses = e->uses;
    s->depth = e->depth;
    s->marked = false;
    s->live = true;
    x->n_live++;
    int32_t *b = bucket_of(x, &s->name);
    s->next = *b;
    *b = i;
    if ((uint32_t)x->n_live > x->mask) rehash(x);
}

void index_remove(struct index *x, int32_t i)
{
    int32_t *link = bucket_of(x, &x->slot[i].name);
    while (*link != i) link = &x->slot[*link].next;
    *link = x->slot[i].next;
    x->slot[i].live = false;
    x->n_live--;
    index_give(x, i);
}

/* ---- what to evict ---- */

struct worth {
    double value;
    uint32_t depth;
    int32_t slot;
};

static int deepest_first(const void *a, const void *b)
{
    const struct worth *x = a, *y = b;
    return (x->depth < y->depth) - (x->depth > y->depth);
}

static int least_first(const void *a, const void *b)
{
    const struct worth *x = a, *y = b;
    if (x->value != y->value) return x->value < y->value ? -1 : 1;
    return deepest_first(a, b);
}

/* The time to compute a page grows with the text before it: attention at this depth takes about as long as the rest. */
enum { DEPTH_DOUBLES = 1024 };

static double value_of(const struct index_slot *s, uint64_t now)
{
    double age = now > s->used ? (double)(now - s->used) : 0;
    return (1 + (double)s->depth / DEPTH_DOUBLES) * s->uses / (age + 60);
}

int index_worst(const struct index *x, uint64_t now, int32_t *out, int most)
{
    int n = 0;
    struct worth *w = mem_try_alloc(((size_t)x->n_live + 1) * sizeof *w);
    int32_t *at = mem_try_alloc(((size_t)x->n + 1) * sizeof *at); /* where a slot is in w */
    if (!w || !at) {
        free(w);
        free(at);
        return 0;
    }
    for (int32_t i = 0; i < x->n; i++)
        if (x->slot[i].live) w[n++] = (struct worth){value_of(&x->slot[i], now), x->slot[i].depth, i};
    qsort(w, (size_t)n, sizeof *w, deepest_first);
    for (int i = 0; i < n; i++) at[w[i].slot] = i;
    for (int i = 0; i < n; i++) { /* each before the one that it follows */
        int32_t p = index_find(x, &x->slot[w[i].slot].parent);
        if (p >= 0 && x->slot[p].depth < w[i].depth && w[at[p]].value < w[i].value) w[at[p]].value = w[i].value;
    }
    qsort(w, (size_t)n, sizeof *w, least_first);
    if (most > n) most = n;
    for (int i = 0; i < most; i++) out[i] = w[i].slot;
    free(w);
    free(at);
    return most;
}
