/* What is said of an answer, and the rows of training data that it becomes.  Pure: any thread. */
#ifndef TANDEM_SERVER_JOBS_FEEDBACK_ROWS_H
#define TANDEM_SERVER_JOBS_FEEDBACK_ROWS_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "server/api/answered.h"
#include "server/json/json.h"
#include "server/store/row_files.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

enum { FEEDBACK_BETTER_MAX = 256 << 10, /* bytes of a better answer */ FEEDBACK_ROW_MAX = 4 << 20 /* as dataset.h */ };
#define FEEDBACK_SET "default"

/* The body of POST /feedback; texts are the tree's. */
struct feedback {
    const char *id, *better, *set;
    int choice;
    bool has_rating;
    double rating; /* -1 .. 1 */
};

/* @return 0, or ERR_INVALID with the field's name in *e. */
int feedback_read(struct feedback *, const cJSON *tree, struct err *e);

/* What a row says beside its answer. */
struct feedback_source {
    const struct tokenizer *tokenizer;
    int32_t end; /* of a text, where the answer has no end of its own; -1: none */
    const char *adapter;
    int64_t time; /* seconds */
};

enum { FEEDBACK_ROWS = 3 };

/* Zero-initialise; feedback_rows_free. */
struct feedback_rows {
    struct buf text[FEEDBACK_ROWS];
    struct row_file_line line[FEEDBACK_ROWS]; /* (n) */
    int n;
};

/* The rows, as docs/feedback.md has them: a rating that is not 0 gives one for KTO, a better answer a pair of
 * preferences and one for supervised training.  rating, better: whether to make these.  @return 0, or ERR_INVALID. */
int feedback_rows_make(struct feedback_rows *, const struct feedback *, const struct answered_choice *,
                       const struct feedback_source *, bool rating, bool better, struct err *e);
void feedback_rows_free(struct feedback_rows *);

#endif
