/* What a teacher that is another model says of the rows of a data set: for each trained token the k likeliest tokens in
 * its place, and their log-probabilities.
 *
 * A head, then a record for each row, in any order, in the bytes of this machine.  A record is whole, or it is not
 * there: what follows the last whole one is ignored, and written anew.  No locks; any thread. */
#ifndef TANDEM_ENGINE_TRAIN_TEACHER_FILE_H
#define TANDEM_ENGINE_TRAIN_TEACHER_FILE_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dataset;

enum { TEACHER_FILE_K_MAX = 32 };

/* teacher: of a model, which another one's differs from; 0: any. */
struct teacher_file_of {
    const struct dataset *set;
    uint64_t teacher;
    int k; /* 1 .. TEACHER_FILE_K_MAX */
};

struct teacher_file {
    struct file_map map;
    uint64_t *at;         /* (rows) where a row's record is; 0: it has none; owned */
    uint64_t rows, known; /* known: those that have one */
    uint64_t hash;        /* of the records, whatever their order */
    size_t whole;         /* bytes that are good; 0: the head is not, or it is of other data or another teacher */
    int k;
};

/* A file that is not there has no records.  @return 0, or ERR_IO, ERR_NOMEM; then nothing is to be closed. */
int teacher_file_open(struct teacher_file *, const char *path, const struct teacher_file_of *, struct err *);
void teacher_file_close(struct teacher_file *); /* zeroed is allowed */
/* The record of a row that has one: (n_trained, k) each, as long as the file is open. */
void teacher_file_row(const struct teacher_file *, uint64_t row, const int32_t **id, const float **logprob);

/* What is to be appended to a file: its head; the record of a row with n trained tokens. */
void teacher_file_put_head(struct buf *, const struct teacher_file_of *);
void teacher_file_put(struct buf *, int k, uint32_t row, uint32_t n, const int32_t *id, const float *logprob);

#endif
