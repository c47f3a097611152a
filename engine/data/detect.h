/* What kind of file a data set is, and in which format its rows are. */
#ifndef TANDEM_ENGINE_DATA_DETECT_H
#define TANDEM_ENGINE_DATA_DETECT_H

#include "engine/base/sha256.h"
#include "engine/data/scan.h"

struct detected {
    enum scan_kind kind;
    enum dataset_format format;
    const char *mark[SCAN_MARKS];
    unsigned char content[SHA256_BYTES]; /* of all bytes */
};

/* Reads the whole source once.  eot: the spelling of the token that ends a text, or NULL.  An error names what was seen
 * and what is known. */
int detect(struct source *, const struct dataset_options *, const char *eot, struct detected *, struct err *e);

#endif
