/* The bytes of a data set: a file read in blocks, or a text in memory.  Never mapped: a file that is truncated while it
 * is read must cause an error, not a signal. */
#ifndef TANDEM_ENGINE_DATA_SOURCE_H
#define TANDEM_ENGINE_DATA_SOURCE_H

#include "engine/base/err.h"
#include "engine/data/dataset.h"

#include <sys/types.h>

struct source {
    const char *name; /* for messages; borrowed */
    const char *text; /* in memory, borrowed; else NULL and */
    int fd;           /* owned */
    uint64_t size;    /* as found when it was opened */
    uint64_t at;      /* bytes read so far */
    int64_t changed_s, changed_ns;
};

int source_open(struct source *, const struct dataset_source *, uint64_t max_bytes, struct err *e);
void source_close(struct source *);

/* Reads up to n bytes.  @return their number; 0 at the end; or an err code, also at the end when the file has changed
 * since it was opened. */
ssize_t source_read(struct source *, void *p, size_t n, struct err *e);
int source_rewind(struct source *, struct err *e);

#endif
