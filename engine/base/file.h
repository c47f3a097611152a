/* Whole files: mapped read-only, or read into memory with a limit.  Paths come from the operator, contents from
 * anybody. */
#ifndef TANDEM_BASE_FILE_H
#define TANDEM_BASE_FILE_H

#include "engine/base/err.h"

#include <stddef.h>

struct file_map {
    const char *data; /* size bytes, read-only; NULL when size is 0 */
    size_t size;
};

int file_map(struct file_map *m, const char *path, struct err *e);
void file_unmap(struct file_map *m);

/* The file's bytes with a NUL after them; free() it.  ERR_INVALID past `limit`. */
int file_read(const char *path, size_t limit, char **data, size_t *size, struct err *e);

/* dir "/" name, owned by the caller. */
char *file_join(const char *dir, const char *name);

#endif
