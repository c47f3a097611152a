/* Which files are mapped where.  A page that its file no longer has, because it became shorter, or that the disk cannot
 * give, is SIGBUS to whoever reads it; base/crash.c then names the file. */
#ifndef TANDEM_BASE_MAPPED_H
#define TANDEM_BASE_MAPPED_H

#include <stddef.h>

/* Any thread.  Beyond MAPPED_MAX mappings, further ones have no name. */
enum { MAPPED_MAX = 256 };
void mapped_add(const void *data, size_t size, const char *path);
void mapped_remove(const void *data);
/* The file behind an address, or NULL.  For signal handlers, too. */
const char *mapped_find(const void *address);

#endif
