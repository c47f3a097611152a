/* Allocator bookkeeping for one large range of device memory; never touches the memory itself. Best fit, the lowest
 * address among equals; a freed block is merged with its free neighbours. Taking and giving back are O(blocks). Not
 * locked. */
#ifndef TANDEM_KERNELS_ARENA_H
#define TANDEM_KERNELS_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { ARENA_ALIGN = 256 }; /* bytes: alignment of blocks and of their sizes, except the size of the last block */

struct arena_block {
    size_t at, bytes;
    bool taken;
};

struct arena {
    size_t bytes, used;
    struct arena_block *v; /* (n) the whole range, by address; no two neighbouring blocks are free */
    size_t n, cap;
};

/* Starts with one free block of `bytes` > 0. @return false when there is no memory for the list. */
bool arena_open(struct arena *, size_t bytes);
void arena_close(struct arena *);
/* Takes `bytes` (at least one) and sets *at to their offset. @return false, with nothing changed, when no free block
 * is large enough. */
bool arena_take(struct arena *, size_t bytes, size_t *at);
/* Frees the block that begins at offset `at`. @return its size, rounded as taken; 0 when no taken block begins
 * there. */
size_t arena_give(struct arena *, size_t at);
size_t arena_largest(const struct arena *); /* bytes of the largest free block */

#ifdef __cplusplus
}
#endif

#endif
