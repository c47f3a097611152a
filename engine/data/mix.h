/* The rows of several prepared sources as one set: without duplicates, and mixed by weight (dataset.h).  Pure. */
#ifndef TANDEM_ENGINE_DATA_MIX_H
#define TANDEM_ENGINE_DATA_MIX_H

#include "engine/data/cache.h"

enum { MIX_ROW_BITS = 40 };

/* Zero-initialise; mix_free. */
struct mix {
    uint64_t *place; /* (rows) of each row, its part and its number there; owned */
    uint64_t rows, hash;
};

struct mix_options {
    uint64_t seed;
    bool keep_duplicates;
};

static inline int mix_part(uint64_t place)
{
    return (int)(place >> MIX_ROW_BITS);
}

static inline uint64_t mix_row(uint64_t place)
{
    return place & (((uint64_t)1 << MIX_ROW_BITS) - 1);
}

/* part and source (n): what was prepared and what it came from.  Counts what is left out, and drawn, in the report. */
int mix_make(struct mix *, const struct cache *part, const struct dataset_source *source, int n,
             const struct mix_options *, struct dataset_report *, struct err *e);
void mix_free(struct mix *);

#endif
