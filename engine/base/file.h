/* Whole files: mapped read-only, read into memory with a limit, or written so that they stay; and directories made,
 * exchanged and deleted.  Paths come from the operator, contents from anybody.  What is made is 0755 and 0644, less the
 * umask. */
#ifndef TANDEM_BASE_FILE_H
#define TANDEM_BASE_FILE_H

#include "engine/base/err.h"

#include <stddef.h>

struct file_map {
    const char *data; /* size bytes, read-only; NULL when size is 0 */
    size_t size;
};

/* A regular file to read, and its size: whatever else is there (a FIFO, which would wait for its writer, a device, a
 * socket, a directory) is ERR_IO at once.  The descriptor is the caller's; < 0: an err code, and *e. */
int file_open(const char *path, size_t *size, struct err *e);
/* Becoming shorter while it is mapped ends the daemon with a message that names it (base/mapped.h, base/crash.h). */
int file_map(struct file_map *m, const char *path, struct err *e);
void file_unmap(struct file_map *m);

/* The file's bytes with a NUL after them; free() it.  ERR_INVALID past `limit`. */
int file_read(const char *path, size_t limit, char **data, size_t *size, struct err *e);

/* dir "/" name, owned by the caller. */
char *file_join(const char *dir, const char *name);

/* ---- writing; ERR_IO with the path and the system's reason ---- */

/* Writes all bytes to a blocking descriptor.  @return 0, or -1 with errno set, also where write() returns 0 */
int file_write_all(int fd, const void *data, size_t bytes);
/* Writes and syncs a file. */
int file_write_sync(const char *path, const void *data, size_t bytes, struct err *e);
/* Writes `path`.tmp, syncs it and renames it: there is the old file or the whole new one.  The name is durable after
 * dir_sync. */
int file_replace(const char *path, const void *data, size_t bytes, struct err *e);
int dir_make(const char *path, struct err *e); /* with its parents, durably; fine when it is there */
int dir_sync(const char *path, struct err *e);
/* The directory that `path` is in: a rename is kept by it.  Where it fails, a crash now may lose the name, not what has
 * it. */
void dir_sync_parent(const char *path);
void dir_remove(const char *path); /* with the files in it; no directories in it */
/* dir becomes `to`, in one step even where that is there already; what it was is deleted. */
int dir_replace(const char *dir, const char *to, struct err *e);

#endif
