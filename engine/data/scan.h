/* Finds the rows of a data set: a scanner that holds one block of the file at a time and recognises only JSON's strings
 * and brackets, so that files of any size can be streamed.  The content of a row is checked elsewhere (json.h, row.h).
 */
#ifndef TANDEM_ENGINE_DATA_SCAN_H
#define TANDEM_ENGINE_DATA_SCAN_H

#include "engine/base/buf.h"
#include "engine/data/source.h"

enum scan_kind {
    SCAN_LINES,      /* one row per line; empty lines are skipped */
    SCAN_ARRAY,      /* the elements of a JSON array */
    SCAN_MEMBER,     /* the elements of the array that is the member "data" of an object */
    SCAN_MARKED,     /* texts that end at one of two marks */
    SCAN_PARAGRAPHS, /* texts that end at blank lines */
};

enum {
    SCAN_MARKS = 2,
    SCAN_MARK_MAX = 64,       /* bytes of a mark */
    SCAN_TEXT_MAX = 256 << 10 /* a longer text is returned in chunks of about this many bytes */
};

struct scan {
    struct source *source; /* borrowed */
    enum scan_kind kind;
    size_t max_row;               /* bytes longest row of JSON that is kept */
    const char *mark[SCAN_MARKS]; /* NULL: none; of at most SCAN_MARK_MAX bytes */
    char *block;                  /* owned */
    size_t at, n;
    uint64_t line;    /* of block[at], 1-based */
    uint64_t element; /* rows so far, for arrays */
    bool started, ended, inside;
};

struct scan_row {
    uint64_t line;  /* or the number of the element, 1-based */
    bool too_large; /* its bytes were not kept */
    bool goes_on;   /* a chunk of a text, not its last one */
    bool is_rest;   /* a chunk of a text, not its first one */
};

void scan_open(struct scan *, struct source *, enum scan_kind, size_t max_row);
void scan_close(struct scan *);
/* Appends a row's bytes to *bytes.  @return 1; 0: no more rows; or an err code. */
/* Whether text[0, n), which may be truncated, is an object with a list "data". */
bool scan_has_member(const char *text, size_t n);
int scan_next(struct scan *, struct buf *bytes, struct scan_row *, struct err *e);

#endif
