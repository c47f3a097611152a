/* Data files as they are named on a command line: files and patterns, with a weight or without. */
#ifndef TANDEM_ENGINE_DATA_SOURCES_H
#define TANDEM_ENGINE_DATA_SOURCES_H

#include "engine/data/dataset.h"

/* Zero-initialise; dataset_sources_free. */
struct dataset_sources {
    struct dataset_source *v; /* path and name are owned */
    int n, sets;
    size_t cap;
};

/* "NAME:0.7" -> "NAME" and 0.7; a text without a weight stays, with 0. */
int dataset_weight_split(char *text, double *weight, struct err *e);
/* Adds n files, copied, as one set; weight 0: none. */
int dataset_sources_add_set(struct dataset_sources *, char *const *paths, size_t n, double weight, struct err *e);
/* Adds one set: "FILE", "PATTERN" (* ? [abc], as in a shell: its files sorted by the bytes of their paths), or either
 * with ":WEIGHT".  A file whose whole name is `text` comes first.  @return 0, or an err code and *e. */
int dataset_sources_add(struct dataset_sources *, const char *text, struct err *e);
void dataset_sources_free(struct dataset_sources *);

#endif
