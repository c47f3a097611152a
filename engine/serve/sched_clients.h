/* The clients that the schedule shares between: what each has running, and how much it was served.  Part of the
 * schedule (sched.h): pure. */
#ifndef TANDEM_ENGINE_SERVE_SCHED_CLIENTS_H
#define TANDEM_ENGINE_SERVE_SCHED_CLIENTS_H

#include <stdint.h>

struct seq;

/* Known while it has a sequence that waits or runs. */
struct sched_client {
    uint64_t id;
    struct sched_client *next, *prev; /* all of them, a ring */
    struct sched_client *chain;       /* of its hash bucket */
    int n_seqs, n_running;
    int64_t n_pages;          /* that its sequences hold; shared ones count for each */
    int64_t served;           /* see client_served */
    struct seq *first, *last; /* that wait, by (priority, arrival) */
};

enum { CLIENT_BUCKETS = 256, CLIENTS_PAST = 1024 };

struct sched_clients {
    struct sched_client ring; /* head */
    int n;
    int64_t now;    /* the virtual time: what the least served client of the latest step was served */
    int64_t window; /* how far from it a client may be */
    struct sched_client *bucket[CLIENT_BUCKETS];
    /* What clients were served that have left; a place for each hash, the latest has it. */
    struct {
        uint64_t id;
        int64_t served;
    } past[CLIENTS_PAST];
};

struct sched_clients *sched_clients_new(int64_t window);
void sched_clients_free(struct sched_clients *); /* no client is left, or what is left is dropped */

/* One more sequence of the client. */
struct sched_client *client_enter(struct sched_clients *, uint64_t id);
/* One fewer; with the last the client is freed. */
void client_leave(struct sched_clients *, struct sched_client *);

/* Tokens that it was served, from `window` less than the virtual time to `window` more. */
int64_t client_served(const struct sched_clients *, const struct sched_client *);
void client_charge(struct sched_clients *, struct sched_client *, int64_t tokens);
/* The virtual time goes on, never back. */
void clients_advance(struct sched_clients *, int64_t least);

#endif
