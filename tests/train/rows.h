/* Rows in memory for the tests of the trainer, which asks a data set for its rows, their number and a hash only: this
 * is all of a struct dataset, and stands in for engine/data/dataset.c in these programs. */
#ifndef TANDEM_TESTS_TRAIN_ROWS_H
#define TANDEM_TESTS_TRAIN_ROWS_H

#include "engine/data/dataset.h"

enum { ROWS_MAX = 64, ROW_TOKENS_MAX = 64 };

struct dataset {
    uint64_t n, hash;   /* n beyond ROWS_MAX: they are repeated */
    const char *source; /* that dataset_row_source says */
    struct dataset_row row[ROWS_MAX];
    int32_t id[ROWS_MAX][ROW_TOKENS_MAX];
    uint8_t trained[ROWS_MAX][ROW_TOKENS_MAX];
};

/* Adds a row of n tokens; n_trained is counted. */
void rows_add(struct dataset *, const int32_t *id, const uint8_t *trained, int n);
/* The same, of a pair whose rejected sequence begins at `second` (0: no pair), or with a label. */
void rows_add_preference(struct dataset *, const int32_t *id, const uint8_t *trained, int n, int second,
                         enum dataset_label label);
/* The same, of a prompt of n tokens. */
void rows_add_prompt(struct dataset *, const int32_t *id, int n);
/* n rows of 4 to 40 tokens that follow a rule, a third of each not trained; free() it. */
struct dataset *rows_make(uint64_t n, int vocab, uint64_t seed);

#endif
