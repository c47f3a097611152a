/* Training data: rows of token ids with a loss mask, from files in any of the usual formats.
 *
 * dataset_open detects the format, streams the rows, renders and tokenises them on several threads into a cache file
 * that is mapped, keyed by the content, the tokenizer, the template and the options, so that opening it again does not
 * read the rows again.  Each file has a cache file of its own.  Immutable afterwards: any thread. */
#ifndef TANDEM_ENGINE_DATA_DATASET_H
#define TANDEM_ENGINE_DATA_DATASET_H

#include "engine/base/err.h"
#include "engine/tokenizer/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dataset;
struct chat_template;

enum dataset_format {
    DATASET_AUTO,
    DATASET_TEXT,       /* {"text"}, or a plain text file: split at the end-of-text mark, else at blank lines */
    DATASET_COMPLETION, /* {"prompt", "completion"} (strings, or lists of messages); or "prompt_ids", "completion_ids"
                           and "logprobs"? of these */
    DATASET_ALPACA,     /* {"instruction", "input"?, "output", "system"?, "history"?} */
    DATASET_MESSAGES,   /* {"messages": [{"role", "content", "weight"?}], "tools"?}; loss_weight as weight */
    DATASET_SHAREGPT,   /* {"conversations": [{"from", "value"}], "system"?} */
    DATASET_TOKENS,     /* {"input_ids", "labels"?, "logprobs"?} */
    DATASET_PREFERENCE, /* {"prompt"?, "chosen", "rejected"}: as in completion; without a prompt it is what both begin
                           with; or "prompt_ids", "chosen_ids", "rejected_ids" */
    DATASET_UNPAIRED,   /* as completion, with "label", a boolean */
    DATASET_PROMPTS     /* {"prompt"} (a string, or messages) or {"messages"}, up to where the model is to answer; the
                           row's other fields are for those who judge the answer */
};

struct dataset_source {
    const char *path;        /* a file: .jsonl, .json (an array), .txt; or NULL and */
    const char *inline_json; /* the text of a JSON array of rows */
    size_t inline_bytes;
    const char *name; /* its name in messages */
    int set;          /* sources with the same number are one set when sets are mixed: 0, 1... */
    double weight;    /* of its set; 0 in all sources: not mixed */
};

enum { DATASET_SOURCES_MAX = 4096 };

/* The field `to` of a row is called `from` in the data. */
struct dataset_field {
    const char *to, *from;
};

enum { DATASET_MAP_MAX = 16 };

/* @return 0; or ERR_INVALID when a field is unknown or occurs twice, or there are too many. */
int dataset_map_check(const struct dataset_field *, int n, struct err *e);

struct dataset_options {
    enum dataset_format format;
    const struct dataset_field *map; /* (n_map) */
    int n_map;
    int max_length; /* >= 2.  Longer rows are truncated and counted in the report; plain text is split into chunks of
                       this length */
    bool train_on_prompt;  /* loss on everything, not only completions and assistant turns */
    bool keep_duplicates;  /* keep rows with equal ids and mask */
    bool no_eos;           /* do not end texts and completions with the end-of-text token */
    uint64_t seed;         /* of the rows that are drawn when sets are mixed */
    const char *cache_dir; /* created when missing; NULL: an unlinked temporary file */
    uint64_t cache_bytes;  /* limit for all prepared sets in cache_dir, least recently used are removed; 0: 64 GiB */
    int threads;           /* 0 and 1: only the caller's */
    bool background;       /* these threads run only on cores that nothing else wants */
    size_t max_row_bytes;  /* 0: 4 MiB */
    uint64_t max_rows;     /* 0: 50 M */
    uint64_t max_bytes;    /* of the source, and of the prepared set; 0: 16 GiB */
    void (*progress)(void *arg, double fraction); /* called on the caller's thread; NULL: none */
    bool (*cancelled)(void *arg);                 /* polled; true: dataset_open ends with an error; NULL: never */
    void *arg;
};

struct dataset_problem {
    uint64_t line;   /* 1-based; for an array the number of the element */
    uint32_t source; /* which of the sources */
    char what[120];
};

enum { DATASET_PROBLEMS_MAX = 20 };

/* Counts of rows by outcome, of all sources together.  seen = kept + skipped + duplicates.  Mixed: `drawn` rows with
 * drawn_tokens tokens make up the set; else both are 0. */
struct dataset_report {
    enum dataset_format format; /* of the first source */
    uint64_t drawn, drawn_tokens;
    uint64_t seen, kept, skipped, duplicates, truncated, tokens, trained_tokens, longest;
    bool from_cache;
    int n_problems; /* the first ones */
    struct dataset_problem problem[DATASET_PROBLEMS_MAX];
};

/* t: for rows of messages (NULL: the plain "role: content" layout that serving uses as well).  eos: the id that ends a
 * text.  @return 0 on success; on failure a negative code and *e is set: no such file, no usable row, no trained token,
 * an unknown format... */
int dataset_open(struct dataset **, const struct dataset_source *, const struct dataset_options *,
                 const struct tokenizer *, const struct chat_template *t, int32_t eos, struct dataset_report *,
                 struct err *e);
/* The same of n sources, 1 .. DATASET_SOURCES_MAX: their rows in that order, without those that an earlier source has.
 *
 * Mixed, the set has as many rows as all sources together, and each set's share of them is its weight's share.  A set
 * with fewer rows repeats them, all equally often but for a rest, which is drawn by the seed; a set with more rows
 * gives a part of them, drawn by the seed. */
int dataset_open_all(struct dataset **, const struct dataset_source *, int n, const struct dataset_options *,
                     const struct tokenizer *, const struct chat_template *t, int32_t eos, struct dataset_report *,
                     struct err *e);
void dataset_free(struct dataset *);

/* A set for other processes of this program: put(arg, ..) is called for each of its pieces, and there get(arg, ..) for
 * the same ones, of the same sizes.  *out NULL and *e on failure; then, too, get is called for all of them, unless what
 * came is no data set. */
void dataset_send(const struct dataset *, void (*put)(void *arg, const void *, size_t), void *arg);
int dataset_receive(struct dataset **out, void (*get)(void *arg, void *, size_t), void *arg, struct err *e);

enum dataset_label { DATASET_UNLABELLED, DATASET_DESIRABLE, DATASET_UNDESIRABLE };

/* A pair of preferences is two sequences, one after the other: the prompt with the chosen answer, the prompt with the
 * rejected one; each has n of its own within 2 .. max_length, and trained tokens. */
struct dataset_row {
    const int32_t *id;
    const uint8_t *trained; /* trained[i]: id[i] is a target (predicted from the ids before it); trained[0] is 0 */
    const float *logprob;   /* (n) that sampling gave the ids, not above 0; NAN: unknown; NULL: of all */
    int n;                  /* 2 .. max_length; of a pair: of both */
    int second;             /* of a pair: where the rejected sequence begins; 0: no pair */
    enum dataset_label label;
    int n_trained;      /* >= 1; of a prompt 0, and n is 1 .. max_length - 1 */
    const char *fields; /* (n_fields) of a prompt: the row as JSON; not terminated; NULL: the row is no prompt */
    int n_fields;
    uint32_t line; /* where the row begins in its file, 1-based; of an array the number of the element */
};
/* The chosen or the rejected sequence of a pair as a row of its own; of another row that itself, and nothing (n 0). */
struct dataset_row dataset_row_answer(const struct dataset_row *, bool rejected);
uint64_t dataset_rows(const struct dataset *);
struct dataset_row dataset_row(const struct dataset *, uint64_t i);
/* @return the name of its source; NULL: the set has one source. */
const char *dataset_row_source(const struct dataset *, uint64_t i);
/* @return a number that only the repetitions of the row share. */
uint64_t dataset_row_origin(const struct dataset *, uint64_t i);
uint64_t dataset_hash(const struct dataset *); /* of ids and masks; a checkpoint stores it to identify its data */

const char *dataset_format_name(enum dataset_format); /* "text", "completion"... */
int dataset_format_parse(const char *name);           /* also "auto"; -1: no such format */

/* The tokens of an answer (valid UTF-8) that follows a prompt, as training makes them of a row where the prompt's are
 * fixed; no end of the text is added.  Any thread. */
int dataset_encode_answer(const struct tokenizer *, const char *text, size_t n, struct tokens *out, struct err *);

/* A row's text in segments that are trained or not, for display by POST /train/validate. */
struct dataset_segment {
    char *text; /* owned by the preview; valid UTF-8 */
    size_t bytes;
    int tokens;
    bool trained;
};
struct dataset_preview {
    struct dataset_segment *v;
    int n;
};
/* Fills *out; dataset_preview_free. */
void dataset_preview(const struct dataset_row *, const struct tokenizer *, struct dataset_preview *out);
void dataset_preview_free(struct dataset_preview *);

#endif
