/* Files and folders under --data-dir: names that are safe, paths that stay inside, writes that are durable.
 *
 *     jobs.sqlite, lock          db.c
 *     files/ID                   uploads; outputs of batches and evaluations
 *     inline/JOB.json|.txt       rows that came with the request
 *     cache/                     prepared data sets (dataset.h), bounded
 *     checkpoints/JOB/           the trainer's own directory (train.h), its unpublished result
 *     adapters/NAME/             published results; models/NAME/ those of full training
 *     adapters-before/NAME/      what a job's result replaced there
 *     tensorboard/JOB/           event files
 *     tinker/RUN/                weights that clients saved (server/tinker/checkpoints.h)
 *     feedback/MODEL/SET/        rows of feedback (row_files.h)
 *     crashes/TIME-PID.txt       crash reports (engine/base/crash.h)
 *
 * Any thread; on the loop only functions that access no file (names, paths, the time). */
#ifndef TANDEM_SERVER_STORE_DATA_DIR_H
#define TANDEM_SERVER_STORE_DATA_DIR_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DATA_ID_MAX = 40, DATA_NAME_MAX = 100 };

/* prefix and 20 random characters of [0-9a-z]. */
void data_id(char out[static DATA_ID_MAX], const char *prefix);
/* @return whether an adapter may have this name: a letter or digit, then up to 99 of letters, digits, '.', '_', '-',
 * ':'. */
bool data_name_ok(const char *name);

/* "DIR/a/b", owned by the caller; b NULL: "DIR/a". */
char *data_path(const char *dir, const char *a, const char *b);
/* @return the real path, owned by the caller, of a regular file that the operator put into the data directory; path:
 * relative to it, or absolute and inside.  NULL and *e: it leads outside (by .. or a link), does not exist, is not a
 * regular file, or is the daemon's own (jobs.sqlite, lock, all in files/, inline/, cache/, checkpoints/, tensorboard/,
 * crashes/, tinker/, a file of feedback/ that still grows). */
char *data_find(const char *dir, const char *path, struct err *e);
/* The same of all files that a pattern (* ? [abc]) matches, at most `limit`, or of the one file of that name: paths as
 * data_find takes them, sorted; (*n) strings and the array are the caller's.  @return 0; or an err code, also when
 * there is none. */
int data_find_all(const char *dir, const char *pattern, size_t limit, char ***path, size_t *n, struct err *e);

/* Creates DIR/a (and DIR/a/b) if missing, durably. */
int data_mkdir(const char *dir, const char *a, const char *b, struct err *e);
/* Writes atomically and durably: temporary file, fsync, rename, fsync of the directory. */
int data_write(const char *path, const void *p, size_t n, struct err *e);
/* After a rename: syncs the parent directory of `path`. */
int data_sync_parent(const char *path, struct err *e);
/* Removes a file, or a directory recursively; links are removed, not followed.  A missing path is not an error. */
void data_remove(const char *path);
/* Calls fn for every name in DIR/a.  @return 0, also where there is no such directory; ERR_IO: errno says why. */
int data_list(const char *dir, const char *a, void (*fn)(void *arg, const char *name), void *arg);
int64_t data_now_ms(void);

#endif
