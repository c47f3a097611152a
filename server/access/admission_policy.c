#include "server/access/admission_policy.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "server/access/fair_share.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIN_WORTH 60.0     /* seconds that a bucket holds */
#define PREFILL_WINDOW 4.0 /* half-life of the prefill rate, in seconds of steps */
#define BYTES_WINDOW (1024.0 * 1024)
#define FIRST_BYTES 4096.0   /* weight of the initial guess (one token per 4 bytes), in bytes */
#define RATIO_MIN (1.0 / 16) /* tokens per byte: a lower bound for text; the rest of a body is ignored */
#define QUEUE_RETRY_MAX 120.0

enum { ENDS = 16 /* sequences that the mean residence averages over */ };

static const struct policy_bodies first_bodies = {FIRST_BYTES, FIRST_BYTES / 4};

void policy_init(struct admission_policy *a, const struct policy_limits *limits)
{
    *a = (struct admission_policy){.limits = *limits, .bodies = first_bodies};
    a->clients = mem_array((size_t)POLICY_SETS * POLICY_WAYS, sizeof *a->clients);
    a->last.slots = limits->max_seqs;
}

void policy_free(struct admission_policy *a)
{
    for (int i = 0; i < POLICY_SETS * POLICY_WAYS; i++) free(a->clients[i].name);
    free(a->clients);
    *a = (struct admission_policy){0};
}

/* ---- clients ----------------------------------------------------------------------------------------------------- */

/* FNV-1a */
static uint32_t hash_of(const char *name)
{
    uint32_t h = 0x811c9dc5u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 0x01000193u;
    return h;
}

struct policy_client *policy_client(struct admission_policy *a, const char *name, uint64_t now)
{
    uint32_t hash = hash_of(name);
    struct policy_client *place = NULL;
    for (int i = 0; i < POLICY_WAYS; i++) {
        struct policy_client *k = &a->clients[hash % POLICY_SETS * POLICY_WAYS + (uint32_t)i];
        if (k->name && k->hash == hash && strcmp(k->name, name) == 0) {
            k->used = now;
            return k;
        }
        /* a free entry, or the least recently used */
        if (!k->name ? !place || place->name : !k->users && (!place || (place->name && k->used < place->used)))
            place = k;
    }
    if (!place) return NULL;
    free(place->name);
    *place = (struct policy_client){.name = mem_strdup(name), .hash = hash, .used = now, .bodies = first_bodies};
    return place;
}

/* @return the bucket's level now. */
static double bucket_fill(struct policy_bucket *b, double per_minute, uint64_t now)
{
    double full = per_minute / 60 * MIN_WORTH;
    if (full < 1) full = 1;
    if (!b->at)
        b->level = full;
    else if (now > b->at)
        b->level += (double)(now - b->at) * 1e-9 * per_minute / 60;
    if (b->level > full) b->level = full; /* also when the limit was lowered */
    b->at = now ? now : 1;
    return b->level;
}

/* @return seconds until it holds `want`; 0: it does.  want beyond its capacity: seconds until it is full. */
static double bucket_wait(struct policy_bucket *b, double per_minute, double want, uint64_t now)
{
    double full = per_minute / 60 * MIN_WORTH, level = bucket_fill(b, per_minute, now);
    if (want > full) want = full > 1 ? full : 1;
    return level >= want - 1e-6 ? 0 : (want - level) * 60 / per_minute;
}

void policy_charge(struct policy_client *k, const struct policy_key_limits *per, double tokens, uint64_t now)
{
    if (!k || !(per->tokens_per_minute > 0)) return;
    bucket_fill(&k->tokens, per->tokens_per_minute, now);
    k->tokens.level -= tokens;
}

/* ---- estimates --------------------------------------------------------------------------------------------------- */

void policy_observe(struct admission_policy *a, const struct policy_sample *s)
{
    if (s->prefill_ns > a->last.prefill_ns && s->prefill_tokens >= a->last.prefill_tokens) {
        a->prefill_tokens += (double)(s->prefill_tokens - a->last.prefill_tokens);
        a->prefill_seconds += (double)(s->prefill_ns - a->last.prefill_ns) * 1e-9;
    }
    while (a->prefill_seconds > 2 * PREFILL_WINDOW) {
        a->prefill_tokens /= 2;
        a->prefill_seconds /= 2;
    }
    a->last = *s;
}

void policy_record_end(struct admission_policy *a, double seconds, uint64_t now)
{
    double weight = a->n_ended < ENDS ? 1 / (double)(a->n_ended + 1) : 1.0 / ENDS;
    a->residence += (seconds - a->residence) * weight;
    a->n_ended++;
    a->quiet_since = now;
}

void policy_record_tokens(struct admission_policy *a, struct policy_client *client, uint64_t bytes, int64_t tokens)
{
    struct policy_bodies *b = client ? &client->bodies : &a->bodies;
    b->bytes += (double)bytes;
    b->tokens += (double)tokens;
    while (b->bytes > 2 * BYTES_WINDOW) {
        b->bytes /= 2;
        b->tokens /= 2;
    }
}

int64_t policy_estimate_tokens(const struct admission_policy *a, const struct policy_client *client, uint64_t bytes,
                               int prompts)
{
    const struct policy_bodies *b = client ? &client->bodies : &a->bodies;
    double ratio = b->tokens / b->bytes, most = a->limits.max_prompt ? (double)a->limits.max_prompt * prompts : 1e15;
    double tokens = (double)bytes * (ratio < RATIO_MIN ? RATIO_MIN : ratio > 1 ? 1 : ratio);
    if (tokens > most) tokens = most;
    return tokens < 1 ? 1 : (int64_t)tokens;
}

/* @return the mean residence of a running sequence in seconds, by current knowledge. */
static double residence_now(const struct admission_policy *a, uint64_t now)
{
    double quiet = now > a->quiet_since ? (double)(now - a->quiet_since) * 1e-9 : 0;
    if (!a->active || !a->quiet_since) quiet = 0;
    return a->residence > quiet ? a->residence : quiet;
}

static double prefill_time(const struct admission_policy *a, double tokens)
{
    return a->prefill_tokens > 0 ? tokens * a->prefill_seconds / a->prefill_tokens : 0;
}

/* @return estimated seconds until `ends` of the active sequences have ended. */
static double ends_time(const struct admission_policy *a, int ends, uint64_t now)
{
    if (ends <= 0) return 0;
    return ends * residence_now(a, now) / (a->last.running > 0 ? a->last.running : 1);
}

/* The load that an arriving request finds: active sequences and queued prompt tokens of all clients, and its own
 * client's. */
struct queue_load {
    int active, own_active, clients; /* clients: including its own */
    int64_t queued, own_queued;
};

static struct queue_load load_before(const struct admission_policy *a, const struct policy_request *request)
{
    const struct policy_client *c = request->client;
    struct queue_load w = {
        .active = a->active - request->held_n, .queued = a->queued - request->held_tokens, .clients = 1};
    w.own_active = w.active;
    w.own_queued = w.queued;
    if (!c) return w;
    w.own_active = c->active - request->held_n;
    w.own_queued = c->queued - request->held_tokens;
    w.clients = a->n_present + !c->active;
    return w;
}

/* @return the part of `all` served no later than the client's `own`, when `clients` are served round-robin. */
static double served_before(double all, double own, int clients)
{
    return own * clients < all ? own * clients : all;
}

static double wait_after(const struct admission_policy *a, const struct queue_load *w, int64_t tokens, uint64_t now)
{
    int ends = (int)served_before(w->active + 1 - a->last.slots, w->own_active + 1, w->clients);
    double prompts = served_before((double)(w->queued + tokens), (double)(w->own_queued + tokens), w->clients);
    double slot = ends_time(a, ends, now), prefill = prefill_time(a, prompts);
    return slot > prefill ? slot : prefill;
}

double policy_estimate_wait(const struct admission_policy *a, int64_t tokens, uint64_t now)
{
    const struct queue_load all = load_before(a, &(struct policy_request){0});
    return wait_after(a, &all, tokens, now);
}

/* @return seconds until at least half of the queue is done, or `part` of it where the request needs more.  By then
 * there is room for several refused requests. */
static double retry_queue(const struct admission_policy *a, double part, uint64_t now)
{
    double slots = ends_time(a, a->active - a->last.slots, now), prompts = prefill_time(a, (double)a->queued);
    double all = slots > prompts ? slots : prompts;
    double retry = all * (part < 0.5 ? 0.5 : part > 1 ? 1 : part);
    return retry > QUEUE_RETRY_MAX ? QUEUE_RETRY_MAX : retry;
}

int policy_seconds(double retry)
{
    return !(retry > 1) ? 1 : retry > 3600 ? 3600 : (int)ceil(retry - 1e-6);
}

/* ---- the decision ------------------------------------------------------------------------------------------------ */

static enum policy_verdict decide_key(struct admission_policy *a, const struct policy_request *request, uint64_t now,
                                      double *retry)
{
    struct policy_client *k = request->client;
    const struct policy_key_limits *per = &request->per;
    if (!k) return POLICY_YES;
    if (per->max_concurrent > 0) {
        int others = k->active - request->held_n;
        if (request->n > per->max_concurrent) return POLICY_KEY_TOO_MANY;
        if (others + request->n > per->max_concurrent) {
            *retry = residence_now(a, now) * (others + request->n - per->max_concurrent) / others;
            return POLICY_KEY_CONCURRENCY;
        }
    }
    if (per->requests_per_minute > 0 && !request->held_n) {
        *retry = bucket_wait(&k->requests, per->requests_per_minute, 1, now);
        if (*retry > 0) return POLICY_KEY_RATE;
    }
    if (per->tokens_per_minute > 0) {
        double more = (double)(request->tokens - request->held_tokens);
        *retry = more > 0 ? bucket_wait(&k->tokens, per->tokens_per_minute, more, now) : 0;
        if (*retry > 0) return POLICY_KEY_TOKENS;
    }
    return POLICY_YES;
}

static bool tokens_fit(const struct policy_limits *l, const struct queue_load *w, int64_t tokens)
{
    if (w->queued <= 0 || fair_share_fits(w->queued, w->own_queued, tokens, l->max_tokens, w->clients)) return true;
    return w->own_queued <= 0 && w->clients > 1 && w->queued + tokens <= 2 * l->max_tokens;
}

enum policy_verdict policy_decide(struct admission_policy *a, const struct policy_request *request, uint64_t now,
                                  double *retry)
{
    const struct policy_limits *l = &a->limits;
    const struct queue_load w = load_before(a, request);
    int whole = l->max_seqs + l->max_queue;
    *retry = 0;
    if (request->n > whole) return POLICY_TOO_MANY;
    enum policy_verdict v = decide_key(a, request, now, retry);
    if (v != POLICY_YES || !request->n) return v;
    if (!fair_share_fits(w.active, w.own_active, request->n, whole, w.clients)) {
        *retry = retry_queue(a, (w.active + request->n - whole) / (double)l->max_queue, now);
        return POLICY_QUEUE_FULL;
    }
    if (!tokens_fit(l, &w, request->tokens)) {
        *retry = retry_queue(a, (double)(w.queued + request->tokens - l->max_tokens) / (double)w.queued, now);
        return POLICY_QUEUE_TOKENS;
    }
    if (w.active <= 0 || !a->n_ended) return POLICY_YES; /* nothing is ahead of it, or nothing is known */
    double before = wait_after(a, &w, 0, now), wait = wait_after(a, &w, request->tokens, now);
    if (l->max_wait > 0 && before > l->max_wait) {
        *retry = before - l->max_wait / 2;
        return POLICY_WAIT;
    }
    if (request->time_left > 0 && wait > request->time_left) {
        *retry = wait - request->time_left / 2;
        return POLICY_DEADLINE;
    }
    return POLICY_YES;
}

void policy_admit(struct admission_policy *a, const struct policy_request *request, uint64_t now)
{
    struct policy_client *k = request->client;
    if (!a->active) a->quiet_since = now;
    if (k && request->per.requests_per_minute > 0 && !request->held_n) {
        bucket_fill(&k->requests, request->per.requests_per_minute, now);
        k->requests.level -= 1;
    }
    policy_charge(k, &request->per, (double)(request->tokens - request->held_tokens), now);
    policy_release(a, k, request->held_n - request->n, request->held_tokens - request->tokens);
}

void policy_release(struct admission_policy *a, struct policy_client *c, int n, int64_t tokens)
{
    a->active -= n;
    a->queued -= tokens;
    if (c) {
        a->n_present += (c->active - n > 0) - (c->active > 0);
        c->active -= n;
        c->queued -= tokens;
    }
    CHECK(a->active >= 0 && a->queued >= 0 && a->n_present >= 0 && (!c || (c->active >= 0 && c->queued >= 0)));
}
