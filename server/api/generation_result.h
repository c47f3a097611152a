/* The result of one generation, gathered from its events, for answers that are sent whole.  Any one thread. */
#ifndef TANDEM_SERVER_API_GENERATION_RESULT_H
#define TANDEM_SERVER_API_GENERATION_RESULT_H

#include "engine/base/buf.h"
#include "engine/serve/engine.h"

struct generation_token {
    int32_t id;
    float logprob; /* NAN for the first prompt token */
    bool special;
    uint32_t text, text_len; /* bytes of result.text */
    uint32_t top;
    int n_top; /* entries of result.top from `top` on */
    uint32_t scored;
    int n_scored; /* likewise, the event's */
};

struct generation_result {
    struct generation_token *prompt, *tokens; /* owned; prompt is empty unless prompt_logprobs was requested */
    size_t n_prompt, prompt_cap, n_tokens, tokens_cap;
    struct top_token *top; /* owned */
    size_t n_top, top_cap;
    struct buf text;      /* token texts, one after the other */
    struct buf generated; /* the generated text */
    double sum_logprob;   /* of the generated tokens */
    struct event done;    /* the EV_DONE; kind is EV_DONE once it is over */
};

/* Allocates the memory for an event before it is added, because clients control the length of an answer.  @return false
 * when there is none. */
__attribute__((warn_unused_result)) bool result_room(struct generation_result *, const struct event *);
/* Bytes that an event adds to a result, at most: its buffers double, and both exist while one is copied. */
size_t result_event_bytes(const struct event *);
/* @return the approximate size of the answer, bytes. */
size_t result_bytes(const struct generation_result *);
void result_add(struct generation_result *, const struct event *, const struct event_batch *);
void result_free(struct generation_result *);
/* mean log probability per generated token; -inf without tokens */
double result_mean_logprob(const struct generation_result *);

#endif
