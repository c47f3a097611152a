#include "kernels/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

bool arena_open(struct arena *a, size_t bytes)
{
    enum { FIRST = 64 };
    *a = (struct arena){.bytes = bytes, .v = malloc(FIRST * sizeof *a->v), .n = 1, .cap = FIRST};
    if (!a->v) return false;
    a->v[0] = (struct arena_block){0, bytes, false};
    return true;
}

void arena_close(struct arena *a)
{
    free(a->v);
    *a = (struct arena){0};
}

/* Makes room in the list for one more block. */
static bool grow(struct arena *a)
{
    if (a->n < a->cap) return true;
    struct arena_block *v = a->cap > SIZE_MAX / 2 / sizeof *v ? NULL : realloc(a->v, 2 * a->cap * sizeof *v);
    if (!v) return false;
    a->v = v;
    a->cap *= 2;
    return true;
}

static void remove_block(struct arena *a, size_t i)
{
    memmove(a->v + i, a->v + i + 1, (a->n - i - 1) * sizeof *a->v);
    a->n--;
}

bool arena_take(struct arena *a, size_t bytes, size_t *at)
{
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < a->n; i++)
        if (!a->v[i].taken && a->v[i].bytes >= bytes && (best == SIZE_MAX || a->v[i].bytes < a->v[best].bytes))
            best = i;
    if (best == SIZE_MAX || !grow(a)) return false;
    struct arena_block *b = &a->v[best];
    size_t size = bytes ? (bytes - 1) / ARENA_ALIGN * ARENA_ALIGN : 0;
    size = b->bytes - size > ARENA_ALIGN ? size + ARENA_ALIGN : b->bytes; /* the last block's tail has no alignment */
    if (size < b->bytes) {
        memmove(b + 1, b, (a->n - best) * sizeof *b);
        a->n++;
        b[1].at += size;
        b[1].bytes -= size;
        b->bytes = size;
    }
    b->taken = true;
    a->used += size;
    *at = b->at;
    return true;
}

size_t arena_give(struct arena *a, size_t at)
{
    size_t low = 0, high = a->n; /* the last block that begins at or before `at` is in [low, high) */
    while (high - low > 1) {
        size_t mid = low + (high - low) / 2;
        if (a->v[mid].at <= at)
            low = mid;
        else
            high = mid;
    }
    if (low >= a->n || a->v[low].at != at || !a->v[low].taken) return 0;
    size_t bytes = a->v[low].bytes;
    a->v[low].taken = false;
    a->used -= bytes;
    if (low + 1 < a->n && !a->v[low + 1].taken) {
        a->v[low].bytes += a->v[low + 1].bytes;
        remove_block(a, low + 1);
    }
    if (low && !a->v[low - 1].taken) {
        a->v[low - 1].bytes += a->v[low].bytes;
        remove_block(a, low);
    }
    return bytes;
}

size_t arena_largest(const struct arena *a)
{
    size_t most = 0;
    for (size_t i = 0; i < a->n; i++)
        if (!a->v[i].taken && a->v[i].bytes > most) most = a->v[i].bytes;
    return most;
}
