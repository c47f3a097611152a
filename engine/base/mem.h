/* Allocation that cannot fail quietly.
 *
 * mem_alloc & co. never return NULL.  When the system refuses memory, a daemon gives back its reserve, a part at a
 * time, and tries again; then it waits ten seconds for others to free something; then it aborts, since nothing of a
 * sane size can be done any more.  So what is under way ends as it should, and what would begin is refused while the
 * reserve is not whole, or nothing can be had at all (server/net/conn.c).  Commands that open no reserve abort at once.
 * For sizes that an outsider chooses (a body, a file), use mem_try_alloc and answer the NULL.  Free with free(). */
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
/* The same for sizes that an outsider chooses.  False: no memory, and *items is as it was. */
__attribute__((warn_unused_result)) bool mem_try_grow(void *items, size_t *capacity, size_t need, size_t size);

/* ---- the reserve: address space and the promise of memory for it, never touched; any thread ---- */

void mem_reserve_open(void); /* once, before there are threads */
/* The reserve was needed and cannot be made whole again, nor could malloc give as much. */
bool mem_is_short(void);
/* Could so many bytes be had now?  Asked before work that takes them in small pieces. */
bool mem_available(size_t bytes);

#endif
