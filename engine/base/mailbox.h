/* A mailbox: many senders, one receiver that takes everything at once and handles it unlocked.
 *
 * Messages are intrusive: the sender allocates, the receiver frees.  Order is kept. */
#ifndef TANDEM_BASE_MAILBOX_H
#define TANDEM_BASE_MAILBOX_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct mail {
    struct mail *next;
};

struct mailbox {
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    struct mail *first, **end;
};

static inline void mailbox_init(struct mailbox *b)
{
    pthread_condattr_t monotonic;
    pthread_mutex_init(&b->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&b->arrived, &monotonic);
    pthread_condattr_destroy(&monotonic);
    b->first = NULL;
    b->end = &b->first;
}

static inline void mailbox_destroy(struct mailbox *b)
{
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->arrived);
}

static inline void mailbox_send(struct mailbox *b, struct mail *m)
{
    m->next = NULL;
    pthread_mutex_lock(&b->lock);
    *b->end = m;
    b->end = &m->next;
    pthread_cond_signal(&b->arrived);
    pthread_mutex_unlock(&b->lock);
}

/* Whether a message is waiting.  Any thread. */
static inline bool mailbox_waiting(struct mailbox *b)
{
    pthread_mutex_lock(&b->lock);
    bool waiting = b->first != NULL;
    pthread_mutex_unlock(&b->lock);
    return waiting;
}

/* Takes all waiting messages, oldest first; with `wait`, sleeps until there is one, or CLOCK_MONOTONIC (clock.h) shows
 * `until`; 0: for ever. */
static inline struct mail *mailbox_take_until(struct mailbox *b, bool wait, uint64_t until)
{
    struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    int rc = 0;
    pthread_mutex_lock(&b->lock);
    while (wait && !b->first && rc == 0)
        rc = until ? pthread_cond_timedwait(&b->arrived, &b->lock, &t) : pthread_cond_wait(&b->arrived, &b->lock);
    struct mail *m = b->first;
    b->first = NULL;
    b->end = &b->first;
    pthread_mutex_unlock(&b->lock);
    return m;
}

static inline struct mail *mailbox_take(struct mailbox *b, bool wait)
{
    return mailbox_take_until(b, wait, 0);
}

#endif
