#include "engine/base/mem.h"

#include "engine/base/check.h"
#include "engine/base/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* ---- the reserve -------------------------------------------------------------------------------------------------
 * Mapped, not from malloc: unmapped memory is available to every thread and arena. */

enum { SLICES = 16, WAITS = 2000, WAIT_NS = 5 * 1000 * 1000 };
#define SLICE ((size_t)2 << 20)

static struct {
    pthread_mutex_t lock;
    bool open;
    void *slice[SLICES]; /* NULL: given back */
    _Atomic int missing;
} reserve = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool fill(void)
{
    pthread_mutex_lock(&reserve.lock);
    for (int i = 0; i < SLICES; i++) {
        if (reserve.slice[i]) continue;
        void *p = mmap(NULL, SLICE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) break;
        reserve.slice[i] = p;
        atomic_fetch_sub(&reserve.missing, 1);
    }
    pthread_mutex_unlock(&reserve.lock);
    return atomic_load(&reserve.missing) == 0;
}

void mem_reserve_open(void)
{
    if (reserve.open) return;
    reserve.open = true;
    atomic_store(&reserve.missing, SLICES);
    fill();
}

bool mem_available(size_t bytes)
{
    void *volatile p = malloc(bytes); /* volatile: otherwise the compiler removes both calls */
    free(p);
    return p != NULL;
}

/* Under an address space limit, malloc may keep freed memory for itself, which is as good as the reserve. */
bool mem_is_short(void)
{
    return atomic_load_explicit(&reserve.missing, memory_order_relaxed) && !fill() && !mem_available(SLICES * SLICE);
}

/* Returns at least `bytes` of the reserve to the system.  @return false: the reserve is smaller. */
static bool give_back(size_t bytes)
{
    size_t given = 0;
    pthread_mutex_lock(&reserve.lock);
    bool enough = bytes <= (size_t)(SLICES - atomic_load(&reserve.missing)) * SLICE;
    for (int i = 0; i < SLICES && enough && given <= bytes; i++) {
        if (!reserve.slice[i]) continue;
        munmap(reserve.slice[i], SLICE);
        reserve.slice[i] = NULL;
        atomic_fetch_add(&reserve.missing, 1);
        given += SLICE;
    }
    pthread_mutex_unlock(&reserve.lock);
    return given > 0;
}

/* Handles the `tries`-th refusal of `bytes` by the system.  @return false: give up. */
static bool make_room(size_t bytes, int tries)
{
    if (!reserve.open || tries > WAITS) return false;
    if (tries == 0) log_warn("memory is short: no room for %zu bytes; using the reserve", bytes);
    if (!give_back(bytes)) nanosleep(&(struct timespec){.tv_nsec = WAIT_NS}, NULL);
    return true;
}

/* ---- allocation -------------------------------------------------------------------------------------------------- */

/* zero is allowed only with old NULL */
static void *insist(void *old, size_t bytes, bool zero)
{
    if (!bytes) bytes = 1;
    for (int tries = 0;; tries++) {
        void *p = zero ? calloc(1, bytes) : realloc(old, bytes);
        if (p) return p;
        if (make_room(bytes, tries)) continue;
        fputs("tandem: out of memory\n", stderr);
        abort();
    }
}

void *mem_alloc(size_t bytes)
{
    return insist(NULL, bytes, false);
}

void *mem_zalloc(size_t bytes)
{
    return insist(NULL, bytes, true);
}

void *mem_array(size_t count, size_t size)
{
    size_t bytes;
    CHECK(!__builtin_mul_overflow(count, size, &bytes));
    return insist(NULL, bytes, true);
}

void *mem_resize(void *old, size_t count, size_t size)
{
    size_t bytes;
    CHECK(!__builtin_mul_overflow(count, size, &bytes));
    return insist(old, bytes, false);
}

char *mem_strndup(const char *s, size_t n)
{
    char *p = mem_alloc(n + 1);
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}

char *mem_strdup(const char *s)
{
    return mem_strndup(s, strlen(s));
}

void *mem_try_alloc(size_t bytes)
{
    return malloc(bytes ? bytes : 1);
}

static size_t next_capacity(size_t capacity, size_t need)
{
    size_t next = capacity ? capacity : 16;
    while (next < need) {
        CHECK(next <= SIZE_MAX / 2);
        next *= 2;
    }
    return next;
}

void mem_grow(void *items, size_t *capacity, size_t need, size_t size)
{
    if (need <= *capacity) return;
    size_t next = next_capacity(*capacity, need);
    void *old;
    memcpy(&old, items, sizeof old);
    void *grown = mem_resize(old, next, size);
    memcpy(items, &grown, sizeof grown);
    *capacity = next;
}

bool mem_try_grow(void *items, size_t *capacity, size_t need, size_t size)
{
    size_t next, bytes;
    if (need <= *capacity) return true;
    if (need > SIZE_MAX / 2) return false;
    next = next_capacity(*capacity, need);
    if (__builtin_mul_overflow(next, size, &bytes)) return false;
    void *old;
    memcpy(&old, items, sizeof old);
    void *grown = realloc(old, bytes);
    if (!grown) return false;
    memcpy(items, &grown, sizeof grown);
    *capacity = next;
    return true;
}
