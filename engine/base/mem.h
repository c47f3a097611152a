/* Allocation that cannot fail quietly.
 *
 * mem_alloc & co. abort when the system has no memory left: nothing of a sane size can be done then.  For sizes
 * that an outsider chooses (a body, a file), use mem_try_alloc and answer the NULL.  Free with free(). */
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

#endif
