/* The lines of a batch's input, in OpenAI's format, one JSON object each:
 *
 *     {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
 *
 * Opening reads the whole file once and keeps where each line is and its custom_id; bodies are read again when their
 * turn comes.  Reading takes time that grows with the file: on a pool thread.  No state is shared. */
#ifndef TANDEM_SERVER_JOBS_BATCH_LINES_H
#define TANDEM_SERVER_JOBS_BATCH_LINES_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/file.h"
#include "server/memory/reservation.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_req;

enum {
    BATCH_LINES_MAX = 50000, /* of a file of /v1/batches, as OpenAI has it */
    BATCH_CUSTOM_ID_MAX = 512,
    BATCH_ERRORS_MAX = 100, /* errors of one file that are listed */
};

/* The routes that a line may name. */
struct batch_endpoint {
    const char *path;
    void (*handler)(struct http_req *);
};
extern const struct batch_endpoint batch_endpoints[];
extern const int batch_n_endpoints;
/* @return its index; -1: there is no such endpoint. */
int batch_endpoint_find(const char *path);

struct batch_line {
    size_t at, len;   /* bytes in the file, without the line's end */
    size_t custom_id; /* offset in batch_lines.ids */
    int number;       /* in the file, from 1 */
    int endpoint;
    bool done; /* it is answered */
};

struct batch_lines {
    struct file_map map;
    struct batch_line *v;
    size_t n, cap;
    struct buf ids;   /* custom ids, each with a terminating 0 */
    size_t *by_id;    /* (n) lines in the order of their custom ids */
    struct buf wrong; /* what is wrong in the file: elements of OpenAI's list of errors, with commas; empty: nothing */
    int n_wrong;
    char first_wrong[256];   /* the first of them, for people */
    struct reservation held; /* for the above */
};

struct batch_limits {
    int endpoint; /* that every line must name; -1: any */
    size_t lines, line_bytes;
};

/* @return 0 with *l filled, if the file's content is wrong also l->wrong; ERR_FULL and others of reserve or file_map
 * with *e.  Free with batch_lines_free in all cases. */
int batch_lines_open(struct batch_lines *l, const char *path, const struct batch_limits *, struct err *e);
void batch_lines_free(struct batch_lines *);
const char *batch_custom_id(const struct batch_lines *, size_t i);
/* Appends the body of line i, as JSON.  @return 0, or an error of json_parse_body. */
int batch_line_body(const struct batch_lines *, size_t i, struct buf *out, struct err *e);

/* Reads the first `bytes` bytes of an output file, and sets `done` of the lines that they answer.  *good, *bad: the
 * numbers of its lines with and without a status below 400 (not cleared).  @return 0, or *e: a line is no answer, or to
 * no line of the input. */
int batch_lines_mark(struct batch_lines *, const char *output, size_t bytes, int *good, int *bad, struct err *e);

#endif
