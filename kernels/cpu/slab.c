/* Slabs: mappings of huge pages that the weights of a device share. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>

#ifdef TANDEM_SANITIZED /* each weight from the heap: see cpu_map */
enum { SLAB_BYTES = 0 };
#else
enum { SLAB_BYTES = 64 << 20 };
#endif
enum { ALONE = SLAB_BYTES / 4, ALIGN = 64 }; /* a weight of more bytes has a slab to itself */

static struct slab *slab_open(size_t bytes)
{
    struct slab *s = malloc(sizeof *s);
    if (!s) return NULL;
    *s = (struct slab){.p = cpu_map(bytes), .bytes = bytes};
    if (s->p) return s;
    free(s);
    return NULL;
}

struct slab *slab_take(struct slab **list, size_t bytes, uint8_t **p)
{
    struct slab *s = *list;
    if (!s || s->bytes - s->used < bytes) {
        bool alone = bytes > ALONE;
        s = alone ? NULL : slab_open(SLAB_BYTES);
        if (!s && !(s = slab_open(bytes))) return NULL; /* with little address space left a small one may fit */
        struct slab **at = alone && *list ? &(*list)->next : list; /* the first slab is the one that has room */
        s->next = *at;
        *at = s;
    }
    *p = s->p + s->used;
    s->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (s->used > s->bytes) s->used = s->bytes;
    s->weights++;
    return s;
}

void slab_give(struct slab **list, struct slab *s)
{
    if (--s->weights) return;
    while (*list != s) list = &(*list)->next;
    *list = s->next;
    cpu_unmap(s->p, s->bytes);
    free(s);
}
