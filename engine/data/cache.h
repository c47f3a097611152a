/* The file of a prepared data set: rows of ids and masks, mapped.  It is written under a temporary name, synced and
 * renamed, so a file with the final name is complete; its crc32c is verified when it is opened.
 *
 *   header   one struct cache_header, 4096 bytes
 *   rows     each: uint32 n, uint32 n_trained, uint32 line, uint32 sampled, uint32 second, uint32 label, uint32 fields,
 *            int32 id[n], with sampled 1 float logprob[n], uint8 trained[n], char of the fields, padded to 4 bytes
 *   index    uint64 offset[rows] of the rows from the start of the file, 8-byte aligned
 * in the machine's byte order: a cache is not portable. */
#ifndef TANDEM_ENGINE_DATA_CACHE_H
#define TANDEM_ENGINE_DATA_CACHE_H

#include "engine/base/sha256.h"
#include "engine/data/dataset.h"
#include "engine/data/seen.h"

#include <stdio.h>

enum { CACHE_VERSION = 8, CACHE_HEADER_BYTES = 4096 };

struct cache_header {
    char magic[8]; /* "TNDMDATA" */
    uint32_t version, header_crc, body_crc, zero;
    unsigned char key[SHA256_BYTES];
    uint64_t bytes, rows, index_at, hash;
    struct dataset_report report;
};
_Static_assert(sizeof(struct cache_header) <= CACHE_HEADER_BYTES, "the header fits");

/* ---- writing ----------------------------------------------------------------------------------------------------- */

struct cache_writer {
    int fd;             /* owned; locked */
    FILE *file;         /* over fd, owned */
    char *part, *place; /* paths, owned; NULL: an unlinked file */
    uint64_t at, max_bytes;
    uint32_t crc;
    uint64_t *offset; /* owned */
    size_t rows, cap_offset;
    struct sha256 hash; /* of the rows' digests */
    struct seen seen;   /* of rows, to find duplicates */
    unsigned char key[SHA256_BYTES];
};

/* dir NULL: an unlinked file.  Waits while another writer prepares the same set, unless options->cancelled returns
 * true. */
int cache_start(struct cache_writer *, const char *dir, const unsigned char key[SHA256_BYTES],
                const struct dataset_options *, struct err *e);
/* n_trained is counted.  @return 1: written; 0: unique is set and an equal row exists; or an err code. */
int cache_add(struct cache_writer *, const struct dataset_row *, bool unique, struct err *e);
/* Writes index and header, syncs, renames the file to its final name and maps it. */
struct cache;
int cache_finish(struct cache_writer *, const struct dataset_report *, struct cache *, struct err *e);
void cache_abandon(struct cache_writer *); /* also after cache_finish */

/* ---- reading ----------------------------------------------------------------------------------------------------- */

struct cache {
    const unsigned char *data; /* mapped; NULL: none */
    size_t size;
    const struct cache_header *header;
    const uint64_t *offset;
};

/* @return 0; ERR_NOT_FOUND when there is none; ERR_INVALID when it is incomplete or has another key. */
int cache_open(struct cache *, const char *dir, const unsigned char key[SHA256_BYTES], struct err *e);
/* A copy of one that another process has, in an unlinked file.  @return where its bytes are to be written; NULL and *e */
void *cache_begin_copy(struct cache *, size_t bytes, struct err *e);
int cache_end_copy(struct cache *, struct err *e); /* when they are: ERR_INVALID as cache_open */
void cache_close(struct cache *);
struct dataset_row cache_row(const struct cache *, uint64_t i);

/* Removes prepared sets from `dir`, least recently used first, until the rest is at most max_bytes, and the leftovers
 * of writers that died.  Mapped files stay usable. */
void cache_sweep(const char *dir, uint64_t max_bytes);

#endif
