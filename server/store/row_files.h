/* Rows that come one by one, as files of the data directory (data_dir.h) that a job can read while more come.
 *
 *     feedback/MODEL/SET/KIND.open           where rows are appended; nobody else reads it
 *     feedback/MODEL/SET/KIND-000001.jsonl   rows that never change again
 *
 * A job identifies its rows by the bytes of their files, so a file that a job can name must not grow: row_files_seal
 * gives what came so far its final name, and the next row begins a new file.
 *
 * An appended row is on the disk when the call returns.  A crash while it is written leaves whole rows, and at most a
 * part of one behind them, which the next call cuts off.  Of one data directory all calls are made by one thread: the
 * store's, but for row_files_list, which any thread may call. */
#ifndef TANDEM_SERVER_STORE_ROW_FILES_H
#define TANDEM_SERVER_STORE_ROW_FILES_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <stddef.h>
#include <stdint.h>

#define ROW_FILES "feedback"
enum { ROW_FILE_BYTES = 64 << 20 /* a file that is as long is sealed */ };

/* One line of a file, with its '\n'. */
struct row_file_line {
    const char *kind; /* letters */
    const char *text; /* len bytes */
    size_t len;
};

/* Appends n lines to files of the set: all of them, or after an error none (a crash may leave some, see above).
 * model, set: names that data_name_ok accepts.  max_bytes: of all files together.  @return 0; ERR_FULL: they would be
 * more; ERR_IO. */
int row_files_append(const char *dir, const char *model, const char *set, const struct row_file_line *, int n,
                     uint64_t max_bytes, struct err *e);
/* Seals the files that a job's path may mean: those of all sets whose folder the pattern's folder matches.  A path that
 * leads elsewhere is fine. */
int row_files_seal(const char *dir, const char *pattern, struct err *e);
/* Removes a set.  @return 0; ERR_NOT_FOUND, ERR_IO. */
int row_files_remove(const char *dir, const char *model, const char *set, struct err *e);

/* All files of one kind in a set. */
struct row_files_kind {
    const char *model, *set, *kind; /* valid inside the callback */
    uint64_t rows, bytes;
    int files;
};
/* Calls fn for each, in no order.  Reads the files. */
void row_files_list(const char *dir, void (*fn)(void *arg, const struct row_files_kind *), void *arg);

#endif
