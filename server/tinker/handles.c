#include "server/tinker/handles.h"

#include "engine/base/mem.h"
#include "server/net/request_id.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool handles_add(struct handles *t, struct handle *h, uint64_t client, size_t most)
{
    char random[REQUEST_ID_MAX + 1];
    size_t slot = 0;
    if (t->used >= most) return false;
    while (slot < t->n && t->v[slot]) slot++;
    if (slot == t->n) {
        mem_grow(&t->v, &t->cap, t->n + 1, sizeof(struct handle *));
        t->n++;
    }
    request_id_make(random);
    snprintf(h->id, sizeof h->id, "%zu-%.32s", slot, random);
    h->client = client;
    h->slot = slot;
    t->v[slot] = h;
    t->used++;
    return true;
}

struct handle *handles_find(const struct handles *t, const char *id, uint64_t client)
{
    char *end;
    if (!id || *id < '0' || *id > '9') return NULL;
    unsigned long slot = strtoul(id, &end, 10);
    struct handle *h = *end == '-' && slot < t->n ? t->v[slot] : NULL;
    return h && h->client == client && !strcmp(h->id, id) ? h : NULL;
}

void handles_remove(struct handles *t, struct handle *h)
{
    t->v[h->slot] = NULL;
    t->used--;
}

void handles_free(struct handles *t)
{
    free(t->v);
    *t = (struct handles){0};
}
