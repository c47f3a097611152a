/* A table of slots: written under a lock, read without one.  A slot is valid while `low` is set; `low` is set last. */
#include "engine/base/mapped.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct slot {
    _Atomic uintptr_t low; /* 0: free */
    size_t size;
    char path[256];
} slots[MAPPED_MAX];

static struct slot *slot_of(uintptr_t low)
{
    for (int i = 0; i < MAPPED_MAX; i++)
        if (atomic_load(&slots[i].low) == low) return &slots[i];
    return NULL;
}

void mapped_add(const void *data, size_t size, const char *path)
{
    pthread_mutex_lock(&lock);
    struct slot *s = slot_of(0);
    if (s) {
        s->size = size;
        snprintf(s->path, sizeof s->path, "%s", path);
        atomic_store(&s->low, (uintptr_t)data);
    }
    pthread_mutex_unlock(&lock);
}

void mapped_remove(const void *data)
{
    pthread_mutex_lock(&lock);
    struct slot *s = data ? slot_of((uintptr_t)data) : NULL;
    if (s) atomic_store(&s->low, 0);
    pthread_mutex_unlock(&lock);
}

const char *mapped_find(const void *address)
{
    for (int i = 0; i < MAPPED_MAX; i++) {
        uintptr_t low = atomic_load(&slots[i].low);
        if (low && (uintptr_t)address >= low && (uintptr_t)address - low < slots[i].size) return slots[i].path;
    }
    return NULL;
}
