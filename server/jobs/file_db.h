/* Uploaded files and result files as rows and as JSON.  Store thread, inside a work. */
#ifndef TANDEM_SERVER_JOBS_FILE_DB_H
#define TANDEM_SERVER_JOBS_FILE_DB_H

#include "engine/base/buf.h"
#include "server/store/data_dir.h"
#include "server/store/db.h"

/* What file_put reads, in this order; the statement may have more behind. */
#define FILE_COLUMNS "id, created, bytes, filename, purpose, expires, seq"

/* Appends OpenAI's file object of the statement's row. */
void file_put(struct buf *, sqlite3_stmt *);
/* The same by id; false: there is no such file, or db->e. */
bool file_put_by_id(struct db *, struct buf *, const char *id);
/* lifetime: seconds after which the file is removed; 0: never. */
void file_add_row(struct db *, const char *id, uint64_t bytes, const char *filename, const char *purpose,
                  int64_t lifetime);
/* Stores content that the daemon made (result files).  False and *e: neither row nor file is there.  After true the
 * file is to be removed if the transaction fails. */
bool file_add(struct db *, const char *filename, const char *purpose, const void *p, size_t n, char id[static 40],
              struct err *e);

#endif
