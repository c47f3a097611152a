/* The formats of rows: which one a row is in, and the row as one of three things that training knows: a text of which
 * some stretches are trained on, a conversation of which some turns are, or token ids. */
#ifndef TANDEM_ENGINE_DATA_ROW_H
#define TANDEM_ENGINE_DATA_ROW_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/data/dataset.h"

#include <cjson/cJSON.h>

enum row_kind { ROW_TEXT, ROW_PAIR, ROW_TURNS, ROW_ALPACA, ROW_IDS };

/* What is borrowed lies in the row's JSON, which must outlive this. */
struct row {
    enum row_kind kind;
    const char *text, *prompt; /* TEXT: text; PAIR: prompt, then text */

    /* TURNS and ALPACA */
    cJSON *turns;           /* messages {"role", "content"...}, owned */
    unsigned char *trained; /* (n_turns) owned */
    int n_turns;
    const cJSON *tools, *extra; /* NULL: none */
    cJSON *own;                 /* parsed from a string of the row: tools lie in it; owned */

    /* ALPACA: the last question in its parts; alpaca_in may be empty */
    const char *instruction, *alpaca_in;

    /* IDS */
    int32_t *id;              /* (n) owned */
    unsigned char *is_target; /* (n) owned */
    int n;
};

/* DATASET_AUTO when it is none of them. */
enum dataset_format row_format(const cJSON *row);
/* Fills *out, or says what is wrong with the row.  vocab: ids must be below. */
int row_read(struct row *out, const cJSON *row, enum dataset_format, int vocab, struct err *e);
void row_free(struct row *);

/* Appends what was seen: "an object with the fields a, b", "a number"... */
void row_describe(struct buf *b, const cJSON *row);

#endif
