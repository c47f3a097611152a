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
    enum tool_format tools; /* TOOL_FORMAT_NONE: text is text */
    bool thinking;          /* the prompt ended with <think> */
};

/* Zero-initialise; choice_init, choice_free. */
struct choice {
    const struct choice_config *c;
    struct buf text; /* what can be sent and was not yet (a whole answer with tools has it in `answer`) */
    struct buf held;
    /* what stands between the brackets of the arrays of logprobs; completions: all four, chat: tokens has objects */
    struct buf tokens, values, top, offsets;
    size_t chars; /* characters of text before the next token */
    double sum_logprob;
    int n_tokens;
    enum finish_reason finish;
    int stop_index; /* as in struct event; -1 */
    struct event done;
    struct tool_parser *parser; /* NULL without tools */
    struct tool_answer answer;  /* not stream: the calls, and the text beside them; stream: calls not sent yet */
};

/* echo: the text (n bytes) that the answer begins with */
void choice_init(struct choice *, const struct choice_config *, const char *echo, size_t n);
void choice_free(struct choice *);
/* Memory for an event that is then added (of a token longer than most, for most of it); false: there is none.  How long
 * an answer becomes, clients choose. */
__attribute__((warn_unused_result)) bool choice_room(struct choice *, const struct event *);
/* Bytes of memory that an event adds, at most: the buffers double, and both exist while one is copied. */
size_t choice_event_bytes(const struct choice *, const struct event *);
/* What it will take in the answer, about, in bytes. */
size_t choice_bytes(const struct choice *);
/* One event of the generation, the EV_DONE included. */
void choice_add(struct choice *, const struct event *, const struct event_batch *);
/* A stream has something to send: a chunk holds text, log-probabilities and at most one call. */
bool choice_ready(const struct choice *);
/* A chunk was sent: drops what it held. */
void choice_clear(struct choice *);
/* mean log-probability of its tokens: what best_of ranks by */
double choice_score(const struct choice *);
/* "stop", "length", "tool_calls", "timeout" */
const char *choice_finish_name(const struct choice *);

/* {"tokens":[...],...} or {"content":[...]} of what was not taken yet; null when none were asked for */
void choice_put_logprobs(struct buf *out, const struct choice *);
/* vLLM's: the stop text or id that ended it, or null */
void choice_put_stop_reason(struct buf *out, const struct choice *);

#endif
