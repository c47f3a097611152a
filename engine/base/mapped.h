/* The address ranges of mapped files.  Reading a page that is beyond the end of a truncated file, or that the disk
 * cannot deliver, raises SIGBUS; base/crash.c then names the file. */
#ifndef TANDEM_BASE_MAPPED_H
#define TANDEM_BASE_MAPPED_H

#include <stddef.h>

/* Any thread.  Mappings beyond MAPPED_MAX are not recorded. */
enum { MAPPED_MAX = 256 };
void mapped_add(const void *data, size_t size, const char *path);
void mapped_remove(const void *data);
/* The file mapped at an address, or NULL.  Async-signal-safe. */
const char *mapped_find(const void *address);

#endif
