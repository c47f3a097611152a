/* Files as rows and as JSON, for /v1/files and for jobs that read them. */
#ifndef TANDEM_SERVER_JOBS_API_FILES_H
#define TANDEM_SERVER_JOBS_API_FILES_H

#include "server/api/store_request.h"

#define FILES_LIMIT ((size_t)512 * 1024 * 1024) /* of one upload, the form around it included */

/* Stores content that the daemon made (result files).  False and *e: neither row nor file is there.  After true the
 * file is to be removed if the transaction fails. */
bool file_add(struct db *, const char *filename, const char *purpose, const void *p, size_t n, char id[static 40],
              struct err *e);

#endif
