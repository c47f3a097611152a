/* The formats of rows: which one a row is in, and the row as one of three things that training knows: a text of which
 * some stretches are trained on, a conversation of which some turns are, or token ids. */
#ifndef TANDEM_DATASET_ROW_H
#define TANDEM_DATASET_ROW_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/dataset.h"

#include <cjson/cJSON.h>

/* A message's content, and whether its turn is trained on. */
enum row_kind { ROW_TEXT, ROW_PAIR, ROW_TURNS, ROW_ALPACA, ROW_IDS };

struct row {
    enum row_kind kind;
    const char *text, *prompt;           /* TEXT: text; PAIR: prompt, then text.  Borrowed from the JSON */
    cJSON *turns;                        /* TURNS and ALPACA: messages {"role", "content"...}, owned */
    const cJSON *tools, *extra;          /* borrowed; NULL: none */
    unsigned char *trained;              /* per turn, owned */
    int n_turns;                         /* */
    int32_t *id;                         /* IDS, owned */
    unsigned char *is_target;            /* per id, owned */
    int n;                               /* */
    const char *instruction, *alpaca_in; /* ALPACA: the last user turn in its parts; alpaca_in may be empty */
    cJSON *own;                          /* JSON that something above lies in, owned */
};

/* DATASET_AUTO when it is none of them. */
enum dataset_format row_format(const cJSON *row);
/* Fills *out, or says what is wrong with the row.  vocab: ids must be below. */
int row_read(struct row *out, const cJSON *row, enum dataset_format, int vocab, struct err *e);
void row_free(struct row *);

/* Appends what was seen: "an object with the fields a, b", "a number"... */
void row_describe(struct buf *b, const cJSON *row);

#endif
