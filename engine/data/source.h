/* The bytes of a data set: a file read in blocks, or a text in memory.  Never mapped: a file that is truncated while it
 * is read must cause an error, not a signal.  A file compressed with gzip or zstd gives what it holds. */
#ifndef TANDEM_ENGINE_DATA_SOURCE_H
#define TANDEM_ENGINE_DATA_SOURCE_H

#include "engine/base/err.h"
#include "engine/data/dataset.h"
#include "engine/data/unpack.h"

#include <sys/types.h>

struct source {
    const char *name; /* for messages; borrowed */
    const char *text; /* in memory, borrowed; else NULL and */
    int fd;           /* owned */
    uint64_t size;    /* of the file or text, as found when it was opened */
    uint64_t taken;   /* bytes of it read so far */
    uint64_t at;      /* bytes given so far: more or fewer when it is compressed */
    uint64_t max_bytes;
    int64_t changed_s, changed_ns;
    enum packing packing;
    struct unpack *unpack; /* owned; NULL: not compressed */
    unsigned char *block;  /* of compressed bytes; owned */
    const unsigned char *next;
    size_t left; /* bytes of the block from `next` on */
};

int source_open(struct source *, const struct dataset_source *, uint64_t max_bytes, struct err *e);
void source_close(struct source *);

/* Reads up to n bytes.  @return their number; 0 at the end; or an err code, also at the end when the file has changed
 * since it was opened, and when compressed data are damaged or hold more than max_bytes. */
ssize_t source_read(struct source *, void *p, size_t n, struct err *e);
int source_rewind(struct source *, struct err *e);
/* How much of it was read, 0 to 1. */
double source_progress(const struct source *);
/* Whether the name ends with the suffix, which may be followed by that of the compression (".jsonl.gz"). */
bool source_is_named(const struct source *, const char *suffix);

#endif
