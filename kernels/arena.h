/* Which bytes of one large piece of memory are taken.  Bookkeeping alone: the memory is a device's, and none of it is
 * touched here.  Best fit, the lowest address among equals; what is given back joins its free neighbours.  Taking and
 * giving are O(blocks).  Not locked. */
#ifndef TANDEM_KERNELS_ARENA_H
#define TANDEM_KERNELS_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { ARENA_ALIGN = 256 }; /* bytes: blocks begin at multiples of it, and have such a size but for the piece's last */

struct arena_block {
    size_t at, bytes;
    bool taken;
};

struct arena {
    size_t bytes, used;
    struct arena_block *v; /* (n) all of the piece, by address; no two free ones are neighbours */
    size_t n, cap;
};

/* Of a piece of `bytes` > 0.  false: no memory for the list. */
bool arena_open(struct arena *, size_t bytes);
void arena_close(struct arena *);
/* *at: where `bytes` (at least one) begin now.  false, and nothing changed: there is no free block so large. */
bool arena_take(struct arena *, size_t bytes, size_t *at);
/* Gives back what begins at `at`; how many bytes that were, rounded as taken; 0: nothing taken begins there. */
size_t arena_give(struct arena *, size_t at);
size_t arena_largest(const struct arena *); /* bytes of the largest free block */

#ifdef __cplusplus
}
#endif

#endif
