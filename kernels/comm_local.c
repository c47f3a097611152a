/* Ranks that are threads of one process, for tests: a message is copied by whichever of its two ends comes second. */
#include "kernels/comm_transport.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One end of a message. */
struct comm_transfer {
    void *data;
    size_t bytes;
    bool done, wrong;
    struct comm_transfer *next; /* in its channel */
};

/* The ends from one rank to another that wait for their other end: all of them sends, or all of them receives. */
struct channel {
    struct comm_transfer *first, **last;
    bool sends;
};

struct group {
    pthread_mutex_t lock;
    int ranks, open;
    bool failed;              /* a rank has; nothing is copied any more */
    struct channel channel[]; /* (ranks, ranks) from, to */
};

/* A rank, and its ends that are not done: comm.c has two at once. */
struct place {
    struct group *g;
    int rank;
    struct comm_transfer *mine[2];
};

static void append(struct channel *c, struct comm_transfer *t, bool sends)
{
    if (!c->first) c->last = &c->first;
    c->sends = sends;
    *c->last = t;
    c->last = &t->next;
}

/* Meets the first end that waits in the channel, or waits there. */
static void meet(struct channel *c, struct comm_transfer *t, bool sends)
{
    struct comm_transfer *other = c->first;
    if (!other || c->sends == sends) {
        append(c, t, sends);
        return;
    }
    c->first = other->next;
    t->done = other->done = true;
    t->wrong = other->wrong = t->bytes != other->bytes;
    if (!t->wrong && sends) memcpy(other->data, t->data, t->bytes);
    if (!t->wrong && !sends) memcpy(t->data, other->data, t->bytes);
}

static struct comm_transfer *start(struct place *p, void *data, size_t bytes, int from, int to, bool sends, char *why)
{
    struct group *g = p->g;
    struct comm_transfer *t = calloc(1, sizeof *t);
    if (!t) {
        snprintf(why, COMM_WHY_BYTES, "no memory");
        return NULL;
    }
    *t = (struct comm_transfer){.data = data, .bytes = bytes};
    p->mine[p->mine[0] != NULL] = t;
    pthread_mutex_lock(&g->lock);
    if (!g->failed) meet(&g->channel[from * g->ranks + to], t, sends);
    pthread_mutex_unlock(&g->lock);
    return t;
}

static struct comm_transfer *local_send(void *state, const void *data, size_t bytes, int to, char why[COMM_WHY_BYTES])
{
    struct place *p = state;
    return start(p, (void *)data, bytes, p->rank, to, true, why);
}

static struct comm_transfer *local_receive(void *state, void *data, size_t bytes, int from, char why[COMM_WHY_BYTES])
{
    struct place *p = state;
    return start(p, data, bytes, from, p->rank, false, why);
}

static int local_test(void *state, struct comm_transfer *t, char why[COMM_WHY_BYTES])
{
    struct place *p = state;
    pthread_mutex_lock(&p->g->lock);
    bool done = t->done, wrong = t->wrong, failed = p->g->failed;
    pthread_mutex_unlock(&p->g->lock);
    if (wrong) return snprintf(why, COMM_WHY_BYTES, "the other rank has a message of another size"), -1;
    if (!done) return failed ? snprintf(why, COMM_WHY_BYTES, "another rank has failed"), -1 : 0;
    p->mine[t == p->mine[1]] = NULL;
    free(t);
    return 1;
}

static void local_fail(void *state)
{
    struct group *g = ((struct place *)state)->g;
    pthread_mutex_lock(&g->lock);
    g->failed = true;
    pthread_mutex_unlock(&g->lock);
}

static bool local_others_failed(void *state)
{
    struct group *g = ((struct place *)state)->g;
    pthread_mutex_lock(&g->lock);
    bool failed = g->failed;
    pthread_mutex_unlock(&g->lock);
    return failed;
}

static void leave(struct group *g)
{
    pthread_mutex_lock(&g->lock);
    bool last = --g->open == 0;
    pthread_mutex_unlock(&g->lock);
    if (!last) return;
    pthread_mutex_destroy(&g->lock);
    free(g);
}

/* Ends that are not done are those of a group that has failed, in which nobody looks for them. */
static void local_close(void *state, bool failed)
{
    struct place *p = state;
    (void)failed;
    free(p->mine[0]);
    free(p->mine[1]);
    leave(p->g);
    free(p);
}

static struct comm *open_rank(struct group *g, int rank, double timeout_s)
{
    struct place *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    *p = (struct place){.g = g, .rank = rank};
    g->open++;
    struct comm_transport t = {.rank = rank,
                               .ranks = g->ranks,
                               .state = p,
                               .send = local_send,
                               .receive = local_receive,
                               .test = local_test,
                               .fail = local_fail,
                               .others_failed = local_others_failed,
                               .close = local_close};
    return comm_new(&t, timeout_s);
}

bool comm_open_local(int ranks, double timeout_s, struct comm **out)
{
    if (ranks < 1 || ranks > COMM_RANKS_MAX) return false;
    struct group *g = calloc(1, sizeof *g + (size_t)ranks * (size_t)ranks * sizeof *g->channel);
    if (!g) return false;
    g->ranks = ranks;
    g->open = 1; /* this function */
    pthread_mutex_init(&g->lock, NULL);
    int n = 0;
    while (n < ranks && (out[n] = open_rank(g, n, timeout_s))) n++;
    for (int i = 0; n < ranks && i < n; i++) comm_close(out[i]);
    leave(g);
    return n == ranks;
}
