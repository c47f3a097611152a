#include "engine/serve/sched_clients.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "kernels/rng.h"

#include <stdlib.h>

struct sched_clients *sched_clients_new(int64_t window)
{
    struct sched_clients *all = mem_zalloc(sizeof *all);
    all->ring.next = all->ring.prev = &all->ring;
    all->window = window;
    return all;
}

static void unlink_client(struct sched_clients *all, struct sched_client *c)
{
    struct sched_client **at = &all->bucket[rng_mix(c->id) % CLIENT_BUCKETS];
    while (*at != c) at = &(*at)->chain;
    *at = c->chain;
    c->next->prev = c->prev;
    c->prev->next = c->next;
    all->n--;
}

void sched_clients_free(struct sched_clients *all)
{
    if (!all) return;
    for (struct sched_client *c = all->ring.next, *next; c != &all->ring; c = next) {
        next = c->next;
        free(c);
    }
    free(all);
}

struct sched_client *client_enter(struct sched_clients *all, uint64_t id)
{
    uint64_t hash = rng_mix(id);
    struct sched_client *c = all->bucket[hash % CLIENT_BUCKETS];
    while (c && c->id != id) c = c->chain;
    if (!c) {
        c = mem_zalloc(sizeof *c);
        c->id = id;
        c->served = all->past[hash % CLIENTS_PAST].id == id ? all->past[hash % CLIENTS_PAST].served : INT64_MIN;
        c->served = client_served(all, c);
        c->chain = all->bucket[hash % CLIENT_BUCKETS];
        all->bucket[hash % CLIENT_BUCKETS] = c;
        c->next = &all->ring;
        c->prev = all->ring.prev;
        c->prev->next = c->next->prev = c;
        all->n++;
    }
    c->n_seqs++;
    return c;
}

void client_leave(struct sched_clients *all, struct sched_client *c)
{
    CHECK(c->n_seqs > 0);
    if (--c->n_seqs) return;
    CHECK(!c->n_running && !c->n_pages && !c->first);
    uint64_t at = rng_mix(c->id) % CLIENTS_PAST;
    all->past[at].id = c->id;
    all->past[at].served = c->served;
    unlink_client(all, c);
    free(c);
}

int64_t client_served(const struct sched_clients *all, const struct sched_client *c)
{
    int64_t least = all->now - all->window, most = all->now + all->window;
    return c->served < least ? least : c->served > most ? most : c->served;
}

void client_charge(struct sched_clients *all, struct sched_client *c, int64_t tokens)
{
    c->served = client_served(all, c) + tokens;
}

void clients_advance(struct sched_clients *all, int64_t least)
{
    if (least > all->now) all->now = least;
}
