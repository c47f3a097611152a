/* Evaluates a model on rows of one kind: texts (perplexity), questions with choices (the likeliest), prompts with
 * references (generated texts).  The public header of engine/eval.
 *
 * The rows are read once and are immutable: any thread.  An evaluation runs them through an engine that the caller
 * drives: evaluation_submit hands it requests while it has room, evaluation_take gets their events, both on the thread
 * that owns the engine.  Several evaluations, of several adapters, may run on one engine at once.  Results do not
 * depend on what else the engine runs. */
#ifndef TANDEM_ENGINE_EVAL_EVALUATION_H
#define TANDEM_ENGINE_EVAL_EVALUATION_H

#include "engine/base/err.h"
#include "engine/eval/match.h"
#include "engine/serve/engine.h"
#include "engine/template/chat_template.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum evaluation_kind {
    EVALUATION_TEXT,      /* {"text"}, a string, or a plain text file, which is one text */
    EVALUATION_CHOICE,    /* {"prompt", "choices", "answer"} */
    EVALUATION_GENERATION /* {"prompt" or "messages", "reference"} */
};

enum {
    EVALUATION_ROWS_MAX = 1 << 20,
    EVALUATION_ROW_BYTES = 4 << 20,
    EVALUATION_FILE_BYTES = 256 << 20,
    EVALUATION_PLAIN_BYTES = 64 << 20,    /* of a plain text file, which is one row */
    EVALUATION_LIST_MAX = 64,             /* choices or references of a row */
    EVALUATION_REFERENCE_BYTES = 1 << 16, /* of one choice or reference */
    EVALUATION_ANSWER_BYTES = 1 << 16     /* that are kept of a generated text */
};

/* ---- rows -------------------------------------------------------------------------------------------------------- */

struct evaluation_row {
    uint64_t line;         /* 1-based; in an array the number of the element */
    const cJSON *id;       /* its field "id", a string or a number; NULL: none */
    const char *prompt;    /* the text of EVALUATION_TEXT; NULL: messages */
    const cJSON *messages; /* a list */
    const char **list;     /* (n) choices or references */
    int n, answer;         /* answer: which choice is right */
    cJSON *json;           /* what the pointers point into; owned, as list */
};

struct evaluation_rows {
    enum evaluation_kind kind;
    char *name;               /* of the file, for messages */
    struct evaluation_row *v; /* owned */
    size_t n, cap;
};

/* Reads the first `limit` rows of a file (0: all) of JSON lines, of a JSON array, or of plain text (.txt, .text, .md).
 * An error names file, line and field.  name: what the file is called, copied; NULL: its path.  Free with
 * evaluation_rows_free, also after an error. */
int evaluation_rows_read(struct evaluation_rows *, const char *path, const char *name, size_t limit, struct err *e);
void evaluation_rows_free(struct evaluation_rows *);

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Strings are borrowed until the evaluation is closed. */
struct evaluation_options {
    int max_new_tokens;      /* of a generated text */
    const char *const *stop; /* texts that end it, and do not belong to it */
    int n_stop;
    int window;            /* tokens seen at once of a text, and at most of a question; 0: what the engine allows */
    const char *delimiter; /* between a prompt and a choice */
    bool special;          /* the tokenizer puts its tokens (bos...) before prompts that are texts */
    const char *extract;   /* a regex: what it finds in a generated text is scored instead; NULL: all of it */
    bool extract_last;     /* the last match instead of the first */
    unsigned ignore;       /* by exact_match: MATCH_CASE... */
    bool stem;             /* ROUGE stems words */
    const char *model;     /* the model's directory or file */
    const struct chat_template *chat; /* for messages; NULL: the plain layout */
};

struct evaluation;

/* adapter: a name that is loaded, or NULL.  NULL and *e on failure. */
struct evaluation *evaluation_open(const struct evaluation_rows *, const struct evaluation_options *, struct engine *,
                                   const char *adapter, struct err *e);
/* After its last event, or after its engine was closed, which its results outlive.  NULL is allowed. */
void evaluation_close(struct evaluation *);

/* Submits requests until the engine's queue is full or all are submitted.  An error names the row. */
int evaluation_submit(struct evaluation *, struct err *e);
/* Takes an event whose `user` came from evaluation_submit: finds its evaluation. */
int evaluation_take(const struct event *, const struct event_batch *, struct err *e);

/* The same in pieces, for a caller whose thread must not tokenise or score: one request.  evaluation_next,
 * evaluation_part_score and evaluation_part_drop work on the evaluation: any thread, one at a time.  The other two only
 * touch the part: the engine's owner, while the evaluation is on another thread. */
struct evaluation_part;
/* Prepares the next request.  NULL: there are no more, or *e is set, which names the row. */
struct evaluation_part *evaluation_next(struct evaluation *, struct err *e);
const struct gen_request *evaluation_part_request(const struct evaluation_part *); /* valid as long as the part */
/* @return whether it was the last event. */
bool evaluation_part_take(struct evaluation_part *, const struct event *, const struct event_batch *);
/* After its last event: scores what came, and frees the part. */
int evaluation_part_score(struct evaluation_part *, struct err *e);
void evaluation_part_drop(struct evaluation_part *); /* frees one that does not run; its evaluation never ends */

struct evaluation_progress {
    double work, done; /* in rows; a part of one counts as its share */
    size_t rows_done;
    uint64_t tokens;  /* prompt and generated, of finished requests */
    size_t truncated; /* prompts that were cut on the left to fit */
};
struct evaluation_progress evaluation_progress(const struct evaluation *);
bool evaluation_is_done(const struct evaluation *);

/* ---- results ----------------------------------------------------------------------------------------------------- */

struct evaluation_metric {
    const char *name;
    bool less_is_better;
};
/* @return how many metrics rows of that kind have. */
int evaluation_metrics(enum evaluation_kind, const struct evaluation_metric **);

/* What the model made of one row. */
struct evaluation_answer {
    double *logprob;           /* CHOICE: (n) of each choice, in nats; TEXT: (1) of the text */
    int choice;                /* CHOICE: the likeliest */
    char *text;                /* GENERATION: the generated text without a stop text */
    char *prediction;          /* GENERATION: what was scored of it */
    bool cut;                  /* GENERATION: the text was longer than EVALUATION_ANSWER_BYTES */
    int n_scored;              /* TEXT: tokens that were scored */
    int n_prompt, n_generated; /* tokens, of the row's last request */
    enum finish_reason finish;
    int pending; /* requests that have not ended */
};
const struct evaluation_answer *evaluation_answer(const struct evaluation *, size_t row);
double evaluation_row_score(const struct evaluation *, size_t row, int metric);

struct evaluation_score {
    double value, low, high;          /* of all rows, and the 95 % interval of its bootstrap */
    double gain, gain_low, gain_high; /* less the first subject's, over the same resamples */
};
/* Scores of n finished evaluations of the same rows; out: (n, metrics).  The bootstrap draws as many rows as there are,
 * with replacement, `resamples` times; the interval leaves out a fortieth of the resamples at either end.  resamples 0:
 * low and high are NAN.  @return 0, or ERR_NOMEM. */
int evaluation_compare(const struct evaluation *const *subjects, int n, int resamples, uint64_t seed,
                       struct evaluation_score *out, struct err *e);

#endif
