#include "server/bridge/work_queue.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "server/access/fair_share.h"

#include <stdlib.h>

struct work_client {
    struct work_client *next;
    uint64_t id, ns; /* ns: used by its jobs; only differences count */
    int n_waiting, n_running;
    struct work_job *first, *last; /* waiting */
    uint64_t since;                /* order of its latest start; breaks ties: least recent first */
};

void work_queue_init(struct work_queue *q, int slots)
{
    *q = (struct work_queue){.slots = slots};
}

void work_queue_free(struct work_queue *q)
{
    CHECK(!q->n_clients && !q->n_waiting && !q->n_running);
}

static struct work_client *find(const struct work_queue *q, uint64_t id)
{
    struct work_client *c = q->clients;
    while (c && c->id != id) c = c->next;
    return c;
}

static struct work_client *find_or_make(struct work_queue *q, uint64_t id)
{
    struct work_client *c = find(q, id);
    if (c) return c;
    c = mem_zalloc(sizeof *c);
    c->id = id;
    for (const struct work_client *o = q->clients; o; o = o->next)
        if (o == q->clients || o->ns < c->ns) c->ns = o->ns;
    c->next = q->clients;
    q->clients = c;
    q->n_clients++;
    return c;
}

static void drop_client(struct work_queue *q, struct work_client *c)
{
    struct work_client **at = &q->clients;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    q->n_clients--;
    free(c);
}

void work_queue_add(struct work_queue *q, uint64_t client, struct work_job *j)
{
    struct work_client *c = find_or_make(q, client);
    j->client = c;
    j->next = NULL;
    if (c->first)
        c->last->next = j;
    else
        c->first = j;
    c->last = j;
    c->n_waiting++;
    q->n_waiting++;
}

static bool before(const struct work_client *a, const struct work_client *b)
{
    if (a->n_running != b->n_running) return a->n_running < b->n_running;
    return a->ns != b->ns ? a->ns < b->ns : a->since < b->since;
}

struct work_job *work_queue_next(struct work_queue *q)
{
    int most = q->slots > 1 ? q->slots - 1 : 1;
    struct work_client *best = NULL;
    if (q->n_running >= q->slots) return NULL;
    for (struct work_client *c = q->clients; c; c = c->next)
        if (c->first && c->n_running < most && (!best || before(c, best))) best = c;
    if (!best) return NULL;
    struct work_job *j = best->first;
    best->first = j->next;
    best->n_waiting--;
    best->n_running++;
    best->since = ++q->order;
    q->n_waiting--;
    q->n_running++;
    return j;
}

void work_queue_end(struct work_queue *q, struct work_job *j, uint64_t ns)
{
    struct work_client *c = j->client;
    CHECK(c && c->n_running > 0);
    j->client = NULL;
    c->ns += ns;
    c->n_running--;
    q->n_running--;
    if (!c->n_running && !c->first) drop_client(q, c);
}

bool work_queue_has_room(const struct work_queue *q, uint64_t client, int limit)
{
    const struct work_client *c = find(q, client);
    return fair_share_fits(q->n_waiting + q->n_running, c ? c->n_waiting + c->n_running : 0, 1, limit,
                           q->n_clients + !c);
}
