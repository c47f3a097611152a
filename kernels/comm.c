/* The operations of comm.h, made of messages between two ranks. */
#include "kernels/comm.h"

#include "kernels/comm_transport.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MESSAGE = 1 << 22,    /* bytes of a message at most */
    SUM_FLOATS = 1 << 20, /* floats that a rank sums at once, of all ranks together */
    SUM_LEAST = 1 << 10,  /* and of each rank at least */
    BUSY = 200,
    YIELD = 500, /* tests of a transfer before the thread gives way, before it sleeps */
};

static const double SLEEP = 50e-6, SLEEP_MOST = 1e-3; /* seconds between tests; after a second, the larger one */

/* What a comm and its groups share. */
struct line {
    struct comm_transport t;
    double timeout; /* seconds */
    int patient;    /* above 0: there is none now */
    float *sums;    /* (ranks, sum_floats) */
    size_t sum_floats;
    enum comm_op op; /* the current one, and its bytes */
    size_t bytes;
    uint64_t start, sent_before;
    void (*listen)(void *arg, enum comm_op, uint64_t sent, uint64_t start, uint64_t end);
    void *listen_arg;
    bool failed;
    char error[COMM_WHY_BYTES + 160];
    struct comm_profile profile[COMM_OPS];
};

struct comm {
    struct line *line;
    int base, rank, ranks; /* the transport's ranks from base on */
};

const char *comm_op_name(enum comm_op op)
{
    static const char *const names[COMM_OPS] = {"all-reduce", "reduce-scatter", "all-gather", "broadcast",
                                                "all-to-all", "send",           "receive"};
    return names[op];
}

struct comm *comm_new(const struct comm_transport *t, double timeout_s)
{
    size_t ranks = (size_t)t->ranks, floats = SUM_FLOATS / ranks > SUM_LEAST ? SUM_FLOATS / ranks : SUM_LEAST;
    struct comm *c = calloc(1, sizeof *c);
    struct line *l = calloc(1, sizeof *l);
    float *sums = calloc(ranks * floats, sizeof *sums);
    if (!c || !l || !sums) {
        t->close(t->state, false);
        free(c);
        free(l);
        free(sums);
        return NULL;
    }
    *l = (struct line){.t = *t, .timeout = timeout_s, .sums = sums, .sum_floats = floats};
    c->line = l;
    c->rank = t->rank;
    c->ranks = t->ranks;
    return c;
}

struct comm *comm_group(const struct comm *c, int first, int ranks)
{
    struct comm *g = calloc(1, sizeof *g);
    if (g) *g = (struct comm){c->line, c->base + first, c->rank - first, ranks};
    return g;
}

void comm_group_close(struct comm *g)
{
    free(g);
}

int comm_rank(const struct comm *c)
{
    return c->rank;
}

int comm_ranks(const struct comm *c)
{
    return c->ranks;
}

bool comm_any_thread(const struct comm *c)
{
    return !c->line->t.one_thread;
}

const char *comm_error(const struct comm *c)
{
    return c->line->failed ? c->line->error : NULL;
}

double comm_timeout(const struct comm *c)
{
    return c->line->timeout;
}

bool comm_others_failed(const struct comm *c)
{
    return c->line->t.others_failed && c->line->t.others_failed(c->line->t.state);
}

void comm_wait_long(struct comm *c, bool on)
{
    c->line->patient += on ? 1 : -1;
}

void comm_close(struct comm *c)
{
    if (!c) return;
    struct line *l = c->line;
    l->t.close(l->t.state, l->failed);
    free(l->sums);
    free(l);
    free(c);
}

struct comm_profile comm_profile(const struct comm *c, enum comm_op op)
{
    return c->line->profile[op];
}

void comm_on_op(struct comm *c, void (*fn)(void *arg, enum comm_op, uint64_t sent, uint64_t start, uint64_t end),
                void *arg)
{
    c->line->listen = fn;
    c->line->listen_arg = arg;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double now(void)
{
    return 1e-9 * (double)now_ns();
}

static void fail(struct comm *c, const char *why)
{
    if (c->line->failed) return;
    c->line->failed = true;
    snprintf(c->line->error, sizeof c->line->error, "rank %d of %d: %s of %zu bytes: %s", c->line->t.rank,
             c->line->t.ranks, comm_op_name(c->line->op), c->line->bytes, why);
    c->line->t.fail(c->line->t.state);
}

void comm_fail(struct comm *c, const char *why)
{
    if (c->line->failed) return;
    c->line->failed = true;
    snprintf(c->line->error, sizeof c->line->error, "rank %d of %d: %s", c->line->t.rank, c->line->t.ranks, why);
    c->line->t.fail(c->line->t.state);
}

static void begin(struct comm *c, enum comm_op op, size_t bytes)
{
    c->line->op = op;
    c->line->bytes = bytes;
    c->line->profile[op].calls++;
    c->line->start = now_ns();
    c->line->sent_before = c->line->profile[op].sent_bytes;
}

static void end(struct comm *c)
{
    struct comm_profile *p = &c->line->profile[c->line->op];
    uint64_t end = now_ns();
    p->seconds += 1e-9 * (double)(end - c->line->start);
    if (c->line->listen)
        c->line->listen(c->line->listen_arg, c->line->op, p->sent_bytes - c->line->sent_before, c->line->start, end);
}

void comm_note(struct comm *c, enum comm_op op, uint64_t sent, uint64_t start, uint64_t end)
{
    struct comm_profile *p = &c->line->profile[op];
    p->calls++;
    p->sent_bytes += sent;
    p->seconds += 1e-9 * (double)(end - start);
    if (c->line->listen) c->line->listen(c->line->listen_arg, op, sent, start, end);
}

static void give_way(int tests, double waited)
{
    if (tests < BUSY) return;
    if (tests < BUSY + YIELD) {
        sched_yield();
        return;
    }
    double seconds = waited < 1 ? SLEEP : SLEEP_MOST;
    nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL);
}

/* A transfer, or NULL when it is done. */
struct half {
    struct comm_transfer *transfer;
    int peer;
};

/* @return whether one of them ended. */
static bool look(struct comm *c, struct half h[2])
{
    bool moved = false;
    for (int i = 0; i < 2 && !c->line->failed; i++) {
        char why[COMM_WHY_BYTES] = "";
        int done = h[i].transfer ? c->line->t.test(c->line->t.state, h[i].transfer, why) : 0;
        if (done < 0) fail(c, why);
        if (done <= 0) continue;
        h[i].transfer = NULL;
        moved = true;
    }
    return moved;
}

static void late(struct comm *c, const struct half h[2])
{
    char why[COMM_WHY_BYTES];
    bool receiving = h[1].transfer != NULL;
    snprintf(why, sizeof why, "%s rank %d for %g s", receiving ? "nothing came from" : "nothing was taken by",
             h[receiving].peer, c->line->timeout);
    fail(c, why);
}

/* Waits for both: h[0] sends, h[1] receives.  Time in which this thread did not run (the job was stopped and goes on)
 * counts as a second at most. */
static void wait_for(struct comm *c, struct half h[2])
{
    double waited = 0, at = now();
    for (int tests = 0; !c->line->failed && (h[0].transfer || h[1].transfer); tests++) {
        bool moved = look(c, h);
        double then = at;
        at = now();
        waited = moved ? 0 : waited + (at - then < 1 ? at - then : 1);
        if (moved) tests = 0;
        if (waited > c->line->timeout && !c->line->patient && !c->line->failed) late(c, h);
        give_way(tests, waited);
    }
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Sends to one rank while it receives from one, which may be the same or another; of 0 bytes: neither. */
static void transfer(struct comm *c, const void *out, size_t out_bytes, int to, void *in, size_t in_bytes, int from)
{
    const char *send = out;
    char *receive = in, why[COMM_WHY_BYTES] = "";
    while ((out_bytes || in_bytes) && !c->line->failed) {
        size_t ns = smaller(out_bytes, MESSAGE), nr = smaller(in_bytes, MESSAGE);
        struct half h[2] = {{NULL, c->base + to}, {NULL, c->base + from}};
        if (nr && !(h[1].transfer = c->line->t.receive(c->line->t.state, receive, nr, h[1].peer, why))) fail(c, why);
        if (ns && !c->line->failed && !(h[0].transfer = c->line->t.send(c->line->t.state, send, ns, h[0].peer, why)))
            fail(c, why);
        wait_for(c, h);
        c->line->profile[c->line->op].sent_bytes += ns;
        if (ns) send += ns, out_bytes -= ns;
        if (nr) receive += nr, in_bytes -= nr;
    }
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

/* In round k a rank sends to the one k after it, and receives from the one k before it. */
static int after(const struct comm *c, int k)
{
    return (c->rank + k) % c->ranks;
}

static int before(const struct comm *c, int k)
{
    return (c->rank - k + c->ranks) % c->ranks;
}

/* The tree of comm.h over v (ranks, stride); the sums of n floats are in v's first row. */
static void tree_sum(float *v, int ranks, size_t stride, size_t n)
{
    for (int half = 1; half < ranks; half *= 2)
        for (int i = 0; i + half < ranks; i += 2 * half) {
            float *to = v + (size_t)i * stride;
            const float *from = v + (size_t)(i + half) * stride;
            for (size_t k = 0; k < n; k++) to[k] += from[k];
        }
}

/* Part `i` of n floats in equal parts, the last ones smaller. */
static size_t part_at(size_t n, size_t each, int i)
{
    return smaller(n, each * (size_t)i);
}

/* Sums of at most ranks sum_floats: each rank sums a part, and sends it to all. */
static void reduce_some(struct comm *c, float *v, size_t n)
{
    size_t ranks = (size_t)c->ranks, each = (n + ranks - 1) / ranks;
    size_t at = part_at(n, each, c->rank), own = part_at(n, each, c->rank + 1) - at;
    memcpy(c->line->sums + (size_t)c->rank * c->line->sum_floats, v + at, own * sizeof *v);
    for (int k = 1; k < c->ranks; k++) {
        int to = after(c, k), from = before(c, k);
        size_t there = part_at(n, each, to), n_there = part_at(n, each, to + 1) - there;
        transfer(c, v + there, n_there * sizeof *v, to, c->line->sums + (size_t)from * c->line->sum_floats,
                 own * sizeof *v, from);
    }
    if (c->line->failed) return;
    tree_sum(c->line->sums, c->ranks, c->line->sum_floats, own);
    memcpy(v + at, c->line->sums, own * sizeof *v);
    for (int k = 1; k < c->ranks; k++) {
        int to = after(c, k), from = before(c, k);
        size_t there = part_at(n, each, from), n_there = part_at(n, each, from + 1) - there;
        transfer(c, v + at, own * sizeof *v, to, v + there, n_there * sizeof *v, from);
    }
}

void comm_all_reduce(struct comm *c, float *v, size_t n)
{
    size_t most = (size_t)c->ranks * c->line->sum_floats;
    begin(c, COMM_ALL_REDUCE, n * sizeof *v);
    for (size_t i = 0; i < n && !c->line->failed; i += most) reduce_some(c, v + i, smaller(most, n - i));
    end(c);
}

void comm_reduce_scatter(struct comm *c, const float *in, float *out, size_t n)
{
    begin(c, COMM_REDUCE_SCATTER, n * sizeof *in);
    for (size_t i = 0, some; i < n && !c->line->failed; i += some) {
        some = smaller(c->line->sum_floats, n - i);
        memcpy(c->line->sums + (size_t)c->rank * c->line->sum_floats, in + (size_t)c->rank * n + i, some * sizeof *in);
        for (int k = 1; k < c->ranks; k++) {
            int to = after(c, k), from = before(c, k);
            transfer(c, in + (size_t)to * n + i, some * sizeof *in, to,
                     c->line->sums + (size_t)from * c->line->sum_floats, some * sizeof *in, from);
        }
        if (c->line->failed) break;
        tree_sum(c->line->sums, c->ranks, c->line->sum_floats, some);
        memcpy(out + i, c->line->sums, some * sizeof *in);
    }
    end(c);
}

void comm_all_gather(struct comm *c, const void *in, void *out, size_t bytes)
{
    char *blocks = out, *own = blocks + (size_t)c->rank * bytes;
    begin(c, COMM_ALL_GATHER, bytes);
    if (in != own && bytes) memcpy(own, in, bytes);
    for (int k = 1; k < c->ranks; k++)
        transfer(c, own, bytes, after(c, k), blocks + (size_t)before(c, k) * bytes, bytes, before(c, k));
    end(c);
}

bool comm_all_ok(struct comm *c, bool ok)
{
    bool all[COMM_RANKS_MAX] = {0};
    comm_all_gather(c, &ok, all, sizeof ok);
    for (int r = 0; r < c->ranks; r++) ok = ok && all[r];
    return ok && !c->line->failed;
}

/* Of rank r's part, the floats that round i of a reduction sums: *n from the index returned on. */
static size_t round_at(const struct comm *c, const size_t *from, int r, size_t i, size_t *n)
{
    size_t whole = from[r + 1] - from[r], at = smaller(whole, i);
    *n = smaller(c->line->sum_floats, whole - at);
    return from[r] + at;
}

void comm_reduce_parts(struct comm *c, float *v, const size_t *from)
{
    size_t most = 0, rank = (size_t)c->rank;
    for (int r = 0; r < c->ranks; r++)
        if (from[r + 1] - from[r] > most) most = from[r + 1] - from[r];
    begin(c, COMM_REDUCE_SCATTER, from[c->ranks] * sizeof *v);
    for (size_t i = 0; i < most && !c->line->failed; i += c->line->sum_floats) {
        size_t own, some, at = round_at(c, from, c->rank, i, &own);
        memcpy(c->line->sums + rank * c->line->sum_floats, v + at, own * sizeof *v);
        for (int k = 1; k < c->ranks; k++) {
            size_t there = round_at(c, from, after(c, k), i, &some);
            transfer(c, v + there, some * sizeof *v, after(c, k),
                     c->line->sums + (size_t)before(c, k) * c->line->sum_floats, own * sizeof *v, before(c, k));
        }
        if (c->line->failed) break;
        tree_sum(c->line->sums, c->ranks, c->line->sum_floats, own);
        memcpy(v + at, c->line->sums, own * sizeof *v);
    }
    end(c);
}

void comm_gather_parts(struct comm *c, void *v, const size_t *from)
{
    char *at = v;
    int rank = c->rank;
    begin(c, COMM_ALL_GATHER, from[c->ranks]);
    for (int k = 1; k < c->ranks; k++) {
        int to = after(c, k), other = before(c, k);
        transfer(c, at + from[rank], from[rank + 1] - from[rank], to, at + from[other], from[other + 1] - from[other],
                 other);
    }
    end(c);
}

void comm_all_to_all(struct comm *c, const void *in, void *out, size_t bytes)
{
    const char *from = in;
    char *to = out;
    size_t own = (size_t)c->rank * bytes;
    begin(c, COMM_ALL_TO_ALL, bytes);
    if (bytes) memcpy(to + own, from + own, bytes);
    for (int k = 1; k < c->ranks; k++)
        transfer(c, from + (size_t)after(c, k) * bytes, bytes, after(c, k), to + (size_t)before(c, k) * bytes, bytes,
                 before(c, k));
    end(c);
}

/* A binomial tree: whoever has a message sends it on to ranks at ever smaller distances. */
static void broadcast_some(struct comm *c, void *v, size_t bytes, int root)
{
    int ranks = c->ranks, place = (c->rank - root + ranks) % ranks, distance = 1;
    while (distance < ranks && !(place & distance)) distance *= 2;
    if (place) transfer(c, NULL, 0, 0, v, bytes, (place - distance + root) % ranks);
    while ((distance /= 2) > 0)
        if (place + distance < ranks) transfer(c, v, bytes, (place + distance + root) % ranks, NULL, 0, 0);
}

void comm_broadcast(struct comm *c, void *v, size_t bytes, int root)
{
    char *at = v;
    begin(c, COMM_BROADCAST, bytes);
    for (size_t i = 0; i < bytes && !c->line->failed; i += MESSAGE)
        broadcast_some(c, at + i, smaller(MESSAGE, bytes - i), root);
    end(c);
}

void comm_send(struct comm *c, const void *v, size_t bytes, int to)
{
    begin(c, COMM_SEND, bytes);
    transfer(c, v, bytes, to, NULL, 0, 0);
    end(c);
}

void comm_receive(struct comm *c, void *v, size_t bytes, int from)
{
    begin(c, COMM_RECEIVE, bytes);
    transfer(c, NULL, 0, 0, v, bytes, from);
    end(c);
}
