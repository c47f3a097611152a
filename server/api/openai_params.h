/* The bodies of POST /v1/completions, /v1/chat/completions and /inference/v1/generate: reads and checks them, and
 * converts them to a gen_request. OpenAI's fields and vLLM's additions.  A null field counts as absent, an unknown one
 * is ignored, and an unsupported one that would change the text is refused by name.  Pure: any thread. */
#ifndef TANDEM_SERVER_API_OPENAI_PARAMS_H
#define TANDEM_SERVER_API_OPENAI_PARAMS_H

#include "engine/serve/engine.h"
#include "server/memory/reservation.h"
#include "server/schema/constraint.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* OPENAI_TOKENS: vLLM's /inference/v1/generate, whose prompt and answer are token ids (tokens_params.h) */
enum openai_route { OPENAI_COMPLETIONS, OPENAI_CHAT, OPENAI_TOKENS };

/* n, and best_of, of one prompt: OpenAI's limit */
enum { OPENAI_N_MAX = 128, OPENAI_TOP_MAX = 20, OPENAI_DEFAULT_TOKENS = 16 };
/* log-probabilities of prompts (echo, prompt_logprobs) in one answer, which is held in memory */
enum { OPENAI_PROMPT_ENTRIES_MAX = 1024 * 1024 };

struct openai_limits {
    int max_stop, max_choices; /* the server's options; max_choices: prompts x best_of */
    size_t longest_token;      /* bytes */
    const struct engine_info *info;
    bool messages; /* a body of messages_to_chat: `stop_sequences`, and its words for a prompt that is too long */
    bool at_most;  /* max_tokens is an upper limit, not a demand for so much room */
};

/* one prompt of a completions request: a text or token ids; points into the tree */
struct openai_prompt {
    const char *text; /* NULL: ids */
    const cJSON *ids; /* the array's first element */
    size_t len;       /* bytes, or ids */
};

enum tool_choice { TOOL_CHOICE_NONE, TOOL_CHOICE_AUTO, TOOL_CHOICE_REQUIRED, TOOL_CHOICE_NAMED };

struct openai_params {
    cJSON *tree;      /* owned; the strings below point into it */
    const char *code; /* error code of a refusal, in OpenAI's format; static */
    const char *model;
    bool stream, include_usage, continuous_usage;
    bool echo;
    bool keep_stop;      /* include_stop_str_in_output */
    bool keep_special;   /* !skip_special_tokens */
    bool add_special;    /* let the tokenizer add its own tokens */
    bool nothing_wanted; /* max_tokens 0, with echo: one token is generated and dropped */
    int logprobs;        /* alternatives for every token; -1: no log-probabilities */
    int prompt_logprobs; /* likewise for every token of a prompt, in an answer that is not streamed */
    /* OPENAI_TOKENS, in an answer that is not streamed: log-probabilities of given ids in the prompt's places */
    const cJSON *scored;    /* the first of them, or of the lists of them, one for each row; in the tree; NULL: none */
    int n_scored;           /* of the longest list */
    int64_t score_start;    /* the first row: that behind so many tokens and one */
    bool return_ids;        /* the answer has the ids of prompt and text */
    bool tokens_as_ids;     /* log-probabilities have "token_id:7" in place of a token's text */
    const char *request_id; /* OPENAI_TOKENS; NULL: not given */
    int n, best_of;
    bool has_seed;
    int64_t max_tokens; /* 0: not given */
    const char *max_tokens_field;
    int64_t truncate;   /* number of last tokens of a prompt to keep; 0: all */
    int64_t timeout_ms; /* 0: none */

    struct openai_prompt *prompts; /* (n_prompts), owned; completions */
    int n_prompts;                 /* chat: 1 */

    cJSON *messages;         /* chat; normalised by chat_messages_check */
    const cJSON *tools;      /* NULL: none, or tool_choice none */
    cJSON *template_kwargs;  /* NULL: none */
    int64_t think_budget;    /* tokens of thoughts; -1: no limit */
    bool hide_thoughts;      /* the answer does not have them */
    struct reservation held; /* for template_kwargs */
    const char **tool_names; /* (n_tools), owned */
    int n_tools;
    enum tool_choice tool_choice;
    const char *tool_name; /* TOOL_CHOICE_NAMED */
    bool parallel_tool_calls, add_generation_prompt, continue_final;

    struct constraint_request constraint; /* owned */

    int64_t prompt_entries; /* log-probabilities of prompts in the answer, as openai_params_fit counts them */

    struct gen_request gen; /* filled except prompt, max_new_tokens, seed, grammar and user; points into this struct */
    const char *stop[ENGINE_STOP_MAX];
    int32_t stop_ids[ENGINE_STOP_MAX];
    struct logit_bias *bias; /* owned */
};

/* @return 0, or the HTTP status of the refusal with its message in *e and the field at fault in *param (NULL: none).
 * Free with openai_params_free in both cases. */
int openai_params_parse(struct openai_params *, enum openai_route, const struct openai_limits *, const char *body,
                        size_t len, struct err *e, const char **param);
/* Applies the length rules to a prompt of n tokens; call it once for each.  Sets gen.n_prompt and gen.max_new_tokens
 * for it.  As above. */
int openai_params_fit(struct openai_params *, enum openai_route, const struct openai_limits *, size_t n, struct err *e,
                      const char **param);
/* The ids to score of a prompt of n tokens that fits: (n - 1 - score_start, n_scored), -1: none; to be freed. */
int32_t *openai_params_scored(const struct openai_params *, size_t n);
void openai_params_free(struct openai_params *);

#endif
