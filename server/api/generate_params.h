/* The body of a TGI generate request: reads and checks it, and converts it to a gen_request.  Loop thread. */
#ifndef TANDEM_SERVER_API_GENERATE_PARAMS_H
#define TANDEM_SERVER_API_GENERATE_PARAMS_H

#include "engine/serve/engine.h"
#include "server/schema/constraint.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

enum generate_route { ROUTE_GENERATE, ROUTE_COMPAT, ROUTE_STREAM };

struct generate_limits {
    int max_best_of, max_stop, max_top_n; /* the server's options */
    int max_total_tokens, vocab;
    size_t longest_token; /* bytes */
};

struct generate_params {
    cJSON *tree; /* owned; the strings below point into it */
    const char *inputs;
    size_t inputs_len;
    bool stream, details, decoder_input_details, return_full_text;
    int best_of;
    bool has_seed;
    int64_t truncate;       /* 0: not requested */
    int64_t max_new_tokens; /* 0: as many as fit */
    int64_t timeout_ms;     /* 0: none */
    /* filled except prompt, max_new_tokens and user; points into this struct */
    struct gen_request gen;
    const char *stop[ENGINE_STOP_MAX];
    int32_t stop_ids[ENGINE_STOP_MAX];
    struct logit_bias *bias; /* owned */
    struct constraint_request constraint;
};

/* @return 0, or the HTTP status of the refusal with its message in *e.  Free with generate_params_free in both
 * cases. */
int generate_params_parse(struct generate_params *, enum generate_route, const struct generate_limits *,
                          const char *body, size_t len, struct err *e);
/* Applies the length rules, once the prompt's n tokens are known.  Sets *first to the first token to keep, and
 * gen.n_prompt and gen.max_new_tokens.  As above. */
int generate_params_fit(struct generate_params *, const struct generate_limits *, size_t n, size_t *first,
                        struct err *e);
void generate_params_free(struct generate_params *);

#endif
