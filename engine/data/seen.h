/* A set of 64-bit digests, to recognise rows that occur again.  One thread. */
#ifndef TANDEM_ENGINE_DATA_SEEN_H
#define TANDEM_ENGINE_DATA_SEEN_H

#include "engine/base/sha256.h"
#include "engine/data/dataset.h"

#include <stddef.h>
#include <stdint.h>

/* Zero-initialise; seen_free. */
struct seen {
    uint64_t *slot; /* (slots) open addressing, 0 free; owned */
    size_t slots, n;
};

/* @return 1: it is new; 0: it was there; ERR_NOMEM. */
int seen_add(struct seen *, uint64_t digest);
void seen_free(struct seen *);

/* The digest of a row, whole in *out.  @return its first 64 bits. */
uint64_t seen_digest(const struct dataset_row *, unsigned char out[SHA256_BYTES]);

#endif
