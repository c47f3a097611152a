/* What the table of routes needs of /v1/files. */
#ifndef TANDEM_SERVER_JOBS_API_FILES_H
#define TANDEM_SERVER_JOBS_API_FILES_H

#include <stddef.h>

#define FILES_LIMIT ((size_t)512 * 1024 * 1024) /* of one upload, the form around it included */

#endif
