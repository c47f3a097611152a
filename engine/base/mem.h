/* Allocation that cannot fail quietly.
 *
 * mem_alloc & co. never return NULL.  When the system refuses memory, a daemon releases its reserve part by part and
 * retries; then it waits up to ten seconds for other threads to free memory; then it aborts.  So running requests can
 * finish, and new ones are refused while the reserve is not whole (server/net/conn.c).  Commands that open no reserve
 * abort immediately.  For sizes controlled by a client or a file, use mem_try_alloc and handle NULL.  Free with free().
 */
#ifndef TANDEM_BASE_MEM_H
#define TANDEM_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

void *mem_alloc(size_t bytes);                          /* uninitialised */
void *mem_zalloc(size_t bytes);                         /* zeroed */
void *mem_array(size_t count, size_t size);             /* zeroed, overflow-checked */
void *mem_resize(void *old, size_t count, size_t size); /* realloc, overflow-checked, never NULL */
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n);
__attribute__((warn_unused_result)) void *mem_try_alloc(size_t bytes);

/* Grows *items (elements of `size` bytes) so that `need` fit; doubles the capacity.  Aborts on overflow. */
void mem_grow(void *items, size_t *capacity, size_t need, size_t size);
/* The same for sizes controlled by a client.  @return false: out of memory, and *items is unchanged. */
__attribute__((warn_unused_result)) bool mem_try_grow(void *items, size_t *capacity, size_t need, size_t size);

/* ---- the reserve: address space and the promise of memory for it, never touched; any thread ---- */

void mem_reserve_open(void); /* once, before threads are started */
/* Whether the reserve was used and can neither be restored nor be replaced by what malloc has free. */
bool mem_is_short(void);
/* Whether this many bytes could be allocated now.  For use before work that allocates them in small blocks. */
bool mem_available(size_t bytes);

#endif
