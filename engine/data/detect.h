/* Detects the kind of a data set's file and the format of its rows. */
#ifndef TANDEM_ENGINE_DATA_DETECT_H
#define TANDEM_ENGINE_DATA_DETECT_H

#include "engine/base/sha256.h"
#include "engine/data/scan.h"

struct detected {
    enum scan_kind kind;
    enum dataset_format format;
    const char *mark[SCAN_MARKS];
    uint64_t bytes;                      /* decompressed */
    unsigned char content[SHA256_BYTES]; /* of all of them */
};

/* Reads the whole source once.  eot: the spelling of the token that ends a text, or NULL.  An error names what was
 * found and the known formats. */
int detect(struct source *, const struct dataset_options *, const char *eot, struct detected *, struct err *e);

#endif
