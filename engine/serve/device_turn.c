#include "engine/serve/device_turn.h"

#include "engine/base/mem.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

struct device_turn {
    pthread_mutex_t lock;
    pthread_cond_t given;
    uint64_t next, serving; /* under lock: the next number to be handed out; the one whose turn it is */
};

struct device_turn *device_turn_new(void)
{
    struct device_turn *t = mem_zalloc(sizeof *t);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->given, NULL);
    return t;
}

void device_turn_free(struct device_turn *t)
{
    if (!t) return;
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->given);
    free(t);
}

void device_turn_take(struct device_turn *t)
{
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    uint64_t mine = t->next++;
    while (t->serving != mine) pthread_cond_wait(&t->given, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

void device_turn_give(struct device_turn *t)
{
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    t->serving++;
    pthread_cond_broadcast(&t->given); /* few wait: one for each engine */
    pthread_mutex_unlock(&t->lock);
}

bool device_turn_wanted(struct device_turn *t)
{
    if (!t) return false;
    pthread_mutex_lock(&t->lock);
    bool wanted = t->next - t->serving > 1;
    pthread_mutex_unlock(&t->lock);
    return wanted;
}
