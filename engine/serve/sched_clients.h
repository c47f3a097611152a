/* The clients of the scheduler: how many sequences and pages each has, and how much service it received.  Part of
 * sched.h: pure. */
#ifndef TANDEM_ENGINE_SERVE_SCHED_CLIENTS_H
#define TANDEM_ENGINE_SERVE_SCHED_CLIENTS_H

#include <stdint.h>

struct seq;

/* Exists while the client has a waiting or running sequence. */
struct sched_client {
    uint64_t id;
    struct sched_client *next, *prev; /* ring of all clients */
    struct sched_client *chain;       /* next in its hash bucket */
    int n_seqs, n_running;
    int64_t n_pages;          /* held by its sequences; a shared page counts for each */
    int64_t served;           /* see client_served */
    struct seq *first, *last; /* its waiting sequences, by (priority, arrival) */
};

enum { CLIENT_BUCKETS = 256, CLIENTS_PAST = 1024 };

struct sched_clients {
    struct sched_client ring; /* head */
    int n;
    int64_t now;    /* virtual time: the service of the least served client of the last step */
    int64_t window; /* how far a client's service may differ from it */
    struct sched_client *bucket[CLIENT_BUCKETS];
    /* The service of clients that have left, by hash; a later one overwrites an earlier one of the same hash. */
    struct {
        uint64_t id;
        int64_t served;
    } past[CLIENTS_PAST];
};

struct sched_clients *sched_clients_new(int64_t window);
void sched_clients_free(struct sched_clients *); /* also frees the remaining clients */

/* Adds a sequence to the client, which is created if missing. */
struct sched_client *client_enter(struct sched_clients *, uint64_t id);
/* Removes a sequence; the client is freed with its last. */
void client_leave(struct sched_clients *, struct sched_client *);

/* @return the client's service in tokens, clamped to the virtual time +- window. */
int64_t client_served(const struct sched_clients *, const struct sched_client *);
void client_charge(struct sched_clients *, struct sched_client *, int64_t tokens);
/* Advances the virtual time to `least`; never moves it back. */
void clients_advance(struct sched_clients *, int64_t least);

#endif
