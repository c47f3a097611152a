/* Answered requests, kept for feedback (answered.h). */
#include "server/api/answered.h"

#include "engine/base/fnv.h"
#include "engine/base/mem.h"
#include "engine/serve/engine.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* With what it is found by, so that a search reads this array and little else. */
struct slot {
    struct answered *answer;
    uint64_t client, id, header_id; /* hashes of the ids */
};

struct answered_ring {
    struct slot v[ANSWERED_REQUESTS]; /* from `first` on, n of them, oldest first */
    int first, n;
    size_t bytes; /* of these and of the drafts */
    size_t max_bytes;
};

struct answered_draft {
    struct answered_ring *ring;
    struct answered_choice *v; /* (n) */
    int n;
    size_t bytes;
    bool full; /* there was no room: it will not be kept */
};

/* ---- entries ----------------------------------------------------------------------------------------------------- */

static void choices_free(struct answered_choice *v, int n)
{
    for (int i = 0; i < n; i++) {
        free(v[i].ids);
        free(v[i].logprob);
    }
    free(v);
}

void answered_release(struct answered *a)
{
    if (!a || atomic_fetch_sub(&a->refs, 1) > 1) return;
    for (int i = 0; i < a->n_prompts; i++) free(a->prompts[i]);
    free(a->prompts);
    choices_free(a->choice, a->n_choices);
    free(a->adapter);
    free(a);
}

static struct slot *at(struct answered_ring *r, int i)
{
    return &r->v[(r->first + i) % ANSWERED_REQUESTS];
}

static uint64_t hash_of(const char *id)
{
    return fnv1a(FNV1A_START, id, strlen(id));
}

static void drop_oldest(struct answered_ring *r)
{
    struct answered *a = at(r, 0)->answer;
    r->first = (r->first + 1) % ANSWERED_REQUESTS;
    r->n--;
    r->bytes -= a->bytes;
    answered_release(a);
}

/* @return whether so many bytes more fit, which are counted then. */
static bool take(struct answered_ring *r, size_t bytes)
{
    if (bytes > r->max_bytes) return false;
    while (r->n && r->bytes > r->max_bytes - bytes) drop_oldest(r);
    if (r->bytes > r->max_bytes - bytes) return false;
    r->bytes += bytes;
    return true;
}

struct answered_ring *answered_open(size_t max_bytes)
{
    struct answered_ring *r = mem_zalloc(sizeof *r);
    r->max_bytes = max_bytes;
    return r;
}

void answered_close(struct answered_ring *r)
{
    while (r && r->n) drop_oldest(r);
    free(r);
}

struct answered *answered_find(struct answered_ring *r, uint64_t client, const char *id)
{
    uint64_t hash = hash_of(id);
    for (int i = r->n - 1; i >= 0; i--) {
        const struct slot *s = at(r, i);
        struct answered *a = s->answer;
        if (s->client != client || (s->id != hash && s->header_id != hash)) continue;
        if (strcmp(a->id, id) != 0 && strcmp(a->header_id, id) != 0) continue;
        atomic_fetch_add(&a->refs, 1);
        return a;
    }
    return NULL;
}

struct answered_totals answered_totals(const struct answered_ring *r)
{
    return (struct answered_totals){.requests = r->n, .bytes = r->bytes, .max_bytes = r->max_bytes};
}

/* ---- drafts ------------------------------------------------------------------------------------------------------ */

struct answered_draft *answered_begin(struct answered_ring *r, int n)
{
    size_t bytes = sizeof(struct answered_draft) + (size_t)n * sizeof(struct answered_choice);
    if (!r || !take(r, bytes)) return NULL;
    struct answered_draft *d = mem_zalloc(sizeof *d);
    *d = (struct answered_draft){.ring = r, .v = mem_array((size_t)n, sizeof *d->v), .n = n, .bytes = bytes};
    return d;
}

/* @return whether there is room for one more token. */
static bool grow(struct answered_draft *d, struct answered_choice *c)
{
    if (c->n < c->capacity) return true;
    int capacity = c->capacity ? 2 * c->capacity : 16;
    size_t more = (size_t)(capacity - c->capacity) * (sizeof *c->ids + sizeof *c->logprob);
    if (c->capacity > INT_MAX / 4 || !take(d->ring, more)) return false;
    c->ids = mem_resize(c->ids, (size_t)capacity, sizeof *c->ids);
    c->logprob = mem_resize(c->logprob, (size_t)capacity, sizeof *c->logprob);
    c->capacity = capacity;
    d->bytes += more;
    return true;
}

void answered_add(struct answered_draft *d, int sequence, const struct event *ev)
{
    if (!d || d->full || ev->kind != EV_TOKEN) return;
    struct answered_choice *c = &d->v[sequence];
    if (!grow(d, c)) {
        d->full = true;
        return;
    }
    c->ids[c->n] = ev->token;
    c->logprob[c->n++] = ev->logprob;
    c->ended = ev->finish == FINISH_EOS;
    c->full = ev->finish == FINISH_LENGTH;
}

void answered_drop(struct answered_draft *d)
{
    if (!d) return;
    d->ring->bytes -= d->bytes;
    choices_free(d->v, d->n);
    free(d);
}

/* Moves the answers to the entry, with their prompts. */
static void move_choices(struct answered *a, struct answered_draft *d, const struct answered_facts *f)
{
    int each = d->n / f->n_prompts;
    a->n_choices = f->n_choices;
    a->choice = mem_array((size_t)a->n_choices, sizeof *a->choice);
    for (int i = 0; i < a->n_choices; i++) {
        int from = f->order ? f->order[i] : i;
        a->choice[i] = d->v[from];
        struct answered_choice *c = &a->choice[i];
        if (c->full && f->info) c->ended = engine_ends_text(f->info, c->ids[c->n - 1]);
        a->choice[i].prompt = a->prompts[from / each];
        a->choice[i].n_prompt = (int)f->prompt[from / each].n;
        d->v[from] = (struct answered_choice){0};
    }
}

void answered_keep(struct answered_draft *d, const struct answered_facts *f)
{
    if (!d) return;
    size_t bytes = sizeof(struct answered) + (f->adapter ? strlen(f->adapter) + 1 : 0);
    struct answered_ring *r = d->ring;
    for (int i = 0; i < f->n_prompts; i++) bytes += sizeof(int32_t *) + f->prompt[i].n * sizeof(int32_t);
    if (d->full || !take(r, bytes)) {
        answered_drop(d);
        return;
    }
    struct answered *a = mem_zalloc(sizeof *a);
    atomic_init(&a->refs, 1);
    a->served = f->served;
    a->adapter = f->adapter ? mem_strdup(f->adapter) : NULL;
    a->bytes = bytes + d->bytes;
    snprintf(a->id, sizeof a->id, "%s", f->id);
    snprintf(a->header_id, sizeof a->header_id, "%s", f->header_id);
    a->n_prompts = f->n_prompts;
    a->prompts = mem_array((size_t)f->n_prompts, sizeof *a->prompts);
    for (int i = 0; i < f->n_prompts; i++) {
        a->prompts[i] = mem_array(f->prompt[i].n, sizeof **a->prompts);
        memcpy(a->prompts[i], f->prompt[i].ids, f->prompt[i].n * sizeof **a->prompts);
    }
    move_choices(a, d, f);
    d->bytes = 0; /* they are the entry's */
    answered_drop(d);
    if (r->n == ANSWERED_REQUESTS) drop_oldest(r);
    *at(r, r->n++) = (struct slot){a, f->client, hash_of(a->id), hash_of(a->header_id)};
}
