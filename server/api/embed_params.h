/* The body of a request for embeddings, read and checked: OpenAI's fields, then vLLM's, then `pooling`; or those of
 * Text Embeddings Inference (TEI).  Loop thread. */
#ifndef TANDEM_SERVER_API_EMBED_PARAMS_H
#define TANDEM_SERVER_API_EMBED_PARAMS_H

#include "engine/serve/engine.h"
#include "server/api/embed_shape.h"
#include "server/memory/reservation.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    EMBED_INPUTS_MAX = 2048,            /* per request; OpenAI's limit */
    EMBED_VALUES_MAX = 4 * 1024 * 1024, /* inputs x dimensions of one answer, to bound its memory */
};

struct embed_limits {
    const struct embedder *embedder;     /* of the model */
    int hidden, vocab, max_total_tokens; /* hidden: values of a vector */
    int types;                           /* of tokens */
    size_t longest_token;                /* bytes */
    struct poolings pooling;             /* default of requests */
};

/* either text or ids; ids after embed_input_tokenize */
struct embed_input {
    const char *text, *pair; /* point into the tree; text NULL: ids were given; pair NULL: one text */
    size_t len, pair_len;
    int32_t *ids;         /* owned */
    unsigned char *types; /* (n) token types, likewise; NULL: all 0 */
    size_t n, skip;       /* skip: of the ids, the first that are not pooled */
};

struct embed_params {
    enum embed_shape shape;
    cJSON *tree;                /* owned */
    const char *model;          /* points into it; NULL: not given */
    struct embed_input *inputs; /* owned; n */
    int n;
    size_t n_ids; /* in all inputs given as ids */
    bool base64, normalize, special;
    struct poolings pooling;
    const char *prompt; /* put in front of every text; NULL: none */
    size_t n_prompt;    /* its tokens, where they are not pooled; 0: not counted yet */
    int dimensions;     /* 1 .. hidden */
    int64_t truncate;   /* tokens of an input to keep; 0: all */
    bool keep_first;    /* truncation keeps the first tokens, not the last */
    int priority;
    int64_t timeout_ms; /* 0: none */
    /* of a classifier's shapes */
    int top_n;                        /* results, at most; 0: all */
    bool documents, raw_scores, list; /* texts are returned; no activation; the answer is a list of lists */
    const char *field;                /* of a refusal: the field at fault; NULL: the body */
};

/* @return 0, or the HTTP status of the refusal with its message in *e.  Free with embed_params_free in both cases. */
int embed_params_parse(struct embed_params *, enum embed_shape, const struct embed_limits *, const char *body,
                       size_t len, struct err *e);
void embed_params_free(struct embed_params *);
/* The parts of embed_params_parse for the shapes of a classifier (rank_params.c).  @return 0, or a code with *e. */
int rank_params_read(struct embed_params *, const struct embed_limits *, struct err *e);
/* Sets input i to a text, and the second one of a pair or NULL; for rank_params.c. */
int embed_take_text(struct embed_params *, int i, const char *text, const char *pair, const struct embed_limits *,
                    struct err *e);
/* Sets input i to a list of token ids. */
int embed_take_ids(struct embed_params *, const cJSON *list, int i, const struct embed_limits *, struct err *e);
int embed_count_inputs(struct embed_params *, int n, struct err *e);
bool embed_shape_ranks(enum embed_shape);
/* @return the HTTP status for a refused field: OpenAI's or TEI's. */
int embed_refusal(enum embed_shape);

/* Tokenises input i (ids reserved in *held) and truncates the ids as `truncate` requests.  Any thread.  0, or
 * embed_refusal, 413 or 503 with *e. */
int embed_input_tokenize(struct embed_params *, int i, const struct tokenizer *, const struct embed_limits *,
                         struct reservation *held, struct err *e);

#endif
