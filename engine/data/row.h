/* The formats of rows: detects a row's format, and converts it to one of three forms: a text with trained stretches, a
 * conversation with trained turns, or token ids. */
#ifndef TANDEM_ENGINE_DATA_ROW_H
#define TANDEM_ENGINE_DATA_ROW_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/data/dataset.h"

#include <cjson/cJSON.h>

enum row_kind { ROW_TEXT, ROW_PAIR, ROW_TURNS, ROW_ALPACA, ROW_IDS };

/* Borrowed pointers point into the row's JSON, which must outlive this struct. */
struct row {
    enum row_kind kind;
    const char *text, *prompt; /* TEXT: text; PAIR: prompt, then text */
    char *own_prompt;          /* owned, where the row has none as such */
    bool asks;                 /* a prompt without an answer: PAIR with an empty text, or TURNS */
    enum dataset_label label;

    /* TURNS and ALPACA */
    cJSON *turns;           /* messages {"role", "content"...}, owned */
    unsigned char *trained; /* (n_turns) owned */
    int n_turns;
    const cJSON *tools, *extra; /* NULL: none */
    cJSON *own;                 /* JSON parsed from a string of the row, which tools point into; owned */

    /* ALPACA: the parts of the last question; alpaca_in may be empty */
    const char *instruction, *alpaca_in;

    /* IDS */
    int32_t *id;              /* (n) owned */
    unsigned char *is_target; /* (n) owned */
    float *logprob;           /* (n) owned; NAN: not given; NULL: of none */
    int n;
};

/* DATASET_AUTO when it is none of them. */
enum dataset_format row_format(const cJSON *row);
/* Fills *out, or sets *e to what is wrong with the row.  vocab: ids must be below.  A row with ids of its prompt and
 * its answer (dataset.h) becomes ROW_IDS in any of the formats that have them. */
int row_read(struct row *out, const cJSON *row, enum dataset_format, int vocab, struct err *e);
/* The same for a row of DATASET_PREFERENCE: its two answers, each with the prompt. */
int row_read_pair(struct row *chosen, struct row *rejected, const cJSON *row, int vocab, struct err *e);
void row_free(struct row *);

/* Appends a description of the value: "an object with the fields a, b", "a number"... */
void row_describe(struct buf *b, const cJSON *row);

#endif
