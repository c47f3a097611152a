/* Whole files: mapped read-only, read into memory with a limit, or written durably; and directories created, exchanged
 * and deleted.  Paths come from the operator, contents are untrusted.  Modes are 0755 and 0644, less the umask. */
#ifndef TANDEM_BASE_FILE_H
#define TANDEM_BASE_FILE_H

#include "engine/base/err.h"

#include <stddef.h>

struct file_map {
    const char *data; /* size bytes, read-only; NULL when size is 0 */
    size_t size;
};

/* Opens a regular file for reading and gets its size.  Anything else (a FIFO, which would block until it has a writer,
 * a device, a socket, a directory) is ERR_IO immediately.  @return a descriptor owned by the caller; < 0: an err code,
 * and *e is set. */
int file_open(const char *path, size_t *size, struct err *e);
/* Truncating the file while it is mapped ends the daemon with a message that names it (base/mapped.h, base/crash.h). */
int file_map(struct file_map *m, const char *path, struct err *e);
void file_unmap(struct file_map *m);
/* Bytes at .. at + n - 1 will not be read soon: their memory is given back, and read from the file again if need be. */
void file_forget(const struct file_map *m, size_t at, size_t n);

/* The file's bytes with a NUL after them; free() it.  ERR_INVALID past `limit`. */
int file_read(const char *path, size_t limit, char **data, size_t *size, struct err *e);

/* The paths that a pattern (* ? [abc]) matches, without directories, sorted by their bytes; (*n) strings and the array
 * are the caller's.  None is no error; more than `limit` is ERR_INVALID. */
int file_glob(const char *pattern, size_t limit, char ***paths, size_t *n, struct err *e);

/* dir "/" name, owned by the caller. */
char *file_join(const char *dir, const char *name);

/* ---- writing; ERR_IO with the path and the system's reason ---- */

/* Writes all bytes to a blocking descriptor.  @return 0, or -1 with errno set, also where write() returns 0 */
int file_write_all(int fd, const void *data, size_t bytes);
/* Writes and syncs a file. */
int file_write_sync(const char *path, const void *data, size_t bytes, struct err *e);
/* Writes `path`.tmp, syncs it and renames it: at any time the path has the old file or the complete new one.  The name
 * is durable after dir_sync. */
int file_replace(const char *path, const void *data, size_t bytes, struct err *e);
int dir_make(const char *path, struct err *e); /* with its parents, durably; no error when it exists */
int dir_sync(const char *path, struct err *e);
/* Syncs the directory that contains `path`, which makes a rename durable.  After a failure a crash may lose the new
 * name, but not the file's content. */
void dir_sync_parent(const char *path);
void dir_remove(const char *path); /* with the files in it; it must not contain directories */
/* Renames dir to `to`, atomically even if `to` exists; the old `to` is deleted. */
int dir_replace(const char *dir, const char *to, struct err *e);

#endif
