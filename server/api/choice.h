/* One choice of an OpenAI answer while it is generated: turns events into text and log-probabilities, in chunks for a
 * stream or all at the end; the same code does both, so both give the same text.  Pure: any one thread.
 *
 * The engine's text ends with the stop text, OpenAI's before it.  So a suffix of the text that may be the start of a
 * stop text is buffered until the next events decide. */
#ifndef TANDEM_SERVER_API_CHOICE_H
#define TANDEM_SERVER_API_CHOICE_H

#include "engine/base/buf.h"
#include "engine/serve/engine.h"
#include "server/api/openai_params.h"
#include "server/api/tool_calls.h"

#include <stdbool.h>
#include <stddef.h>

struct choice_config {
    const struct openai_params *params;
    const struct tokenizer *tokenizer;
    enum openai_route route;
    enum tool_format tools;          /* TOOL_FORMAT_NONE: nothing is a call */
    enum reasoning_format reasoning; /* chats; REASONING_NONE: nothing is a thought */
    bool thinking;                   /* the prompt ended within thoughts */
};

/* Zero-initialise; choice_init, choice_free. */
struct choice {
    const struct choice_config *c;
    struct buf text; /* text not sent yet (in a whole answer with a parser, `answer` has it) */
    struct buf held;
    struct buf thoughts; /* likewise; they come before the text */
    /* contents of the logprobs arrays, without brackets; completions: all four, others: tokens, with objects */
    struct buf tokens, values, top, offsets;
    struct buf ids;             /* return_token_ids: of the tokens not sent yet, likewise */
    struct buf prompt;          /* prompt_logprobs, likewise; only the first choice of a prompt has them */
    struct buf scores;          /* prompt_logprob_token_ids, likewise */
    const struct choice *first; /* that choice; NULL: this one */
    const int32_t *prompt_ids;  /* (n_prompt_ids), the caller's; they outlive it */
    size_t n_prompt_ids;
    size_t chars; /* characters of text before the next token */
    double sum_logprob;
    int n_tokens;
    enum finish_reason finish;
    int stop_index; /* as in struct event; -1 */
    struct event done;
    struct tool_parser *parser; /* NULL: text is text */
    struct tool_answer answer;  /* not stream: the calls, thoughts and text; stream: calls not sent yet */
};

/* echo: the text (n bytes) that the answer begins with */
void choice_init(struct choice *, const struct choice_config *, const char *echo, size_t n);
void choice_free(struct choice *);
/* Allocates the memory for an event before choice_add (of an unusually long token, for most of it), because clients
 * control the length of an answer.  @return false when there is none. */
__attribute__((warn_unused_result)) bool choice_room(struct choice *, const struct event *);
/* Bytes of memory that an event adds, at most: the buffers double, and both exist while one is copied. */
size_t choice_event_bytes(const struct choice *, const struct event *);
/* @return its approximate size in the answer, bytes. */
size_t choice_bytes(const struct choice *);
/* One event of the generation, the EV_DONE included. */
void choice_add(struct choice *, const struct event *, const struct event_batch *);
/* A whole answer's text, and its thoughts. */
const struct buf *choice_text(const struct choice *);
const struct buf *choice_thoughts(const struct choice *);
/* @return whether a stream has a chunk to send: thoughts, text, log-probabilities and at most one call. */
bool choice_ready(const struct choice *);
/* Drops the contents of a chunk that was sent. */
void choice_clear(struct choice *);
/* @return the mean log-probability of its tokens, by which best_of ranks */
double choice_score(const struct choice *);
/* "stop", "length", "tool_calls", "timeout" */
const char *choice_finish_name(const struct choice *);

/* {"tokens":[...],...} or {"content":[...]} of the tokens not sent yet; null when not requested */
void choice_put_logprobs(struct buf *out, const struct choice *);
/* vLLM's [null,{"7":{"logprob":-1.5,"rank":1,"decoded_token":" a"},...},...], of all alternatives and the token itself
 */
void choice_put_prompt_logprobs(struct buf *out, const struct choice *);
/* vLLM's [[-1.5,null],...]: of the given ids, a list for each row */
void choice_put_scores(struct buf *out, const struct choice *);
/* [7,8]: of its prompt, and of its tokens that were not sent yet */
void choice_put_prompt_ids(struct buf *out, const struct choice *);
void choice_put_ids(struct buf *out, const struct choice *);
/* vLLM's: the stop text or id that ended it, or null */
void choice_put_stop_reason(struct buf *out, const struct choice *);

#endif
