/* The protocols that are spoken: OpenAI's completions and chat completions, and Text Generation Inference's
 * generate_stream.  Requests as bytes, events as what they say.  Pure.
 *
 * Written after platform.openai.com/docs/api-reference (completions, chat, streaming) with the extensions of vLLM's
 * server (ignore_eos, min_tokens), and TGI's docs/openapi.json. */
#ifndef TANDEM_LOADTEST_API_H
#define TANDEM_LOADTEST_API_H

#include "engine/base/buf.h"
#include "loadtest/scenario.h"

#include <stdbool.h>

enum api_kind { API_OPENAI, API_CHAT, API_TGI, API_KINDS };

extern const char *const api_names[API_KINDS]; /* openai, openai-chat, tgi */

/* Where requests go and what they have in common.  Texts are not owned. */
struct target {
    enum api_kind api;
    const char *host;    /* for the Host header, with the port */
    const char *base;    /* path before the routes, without a slash at its end; may be "" */
    const char *model;   /* OpenAI's `model` as JSON, with its quotes; NULL: left out */
    const char *key;     /* Authorization: Bearer; NULL: none */
    const char *headers; /* further header lines, each with its CRLF; "" */
    double temperature;  /* 0: greedy */
    bool ignore_eos;     /* ask for exactly `output` tokens */
    bool exact;          /* have the server cut the prompt to exactly `prompt` tokens */
    bool keep_alive;
};

/* A whole HTTP request with a body (NULL: none). */
void api_put_call(struct buf *out, const struct target *, const char *method, const char *path, const char *body,
                  size_t bytes);
/* The request of an ask; ASK_BAD: one with its fault. */
void api_put_ask(struct buf *out, const struct target *, const struct ask *);

enum { API_FAULTS = 10 };

struct api_event {
    bool token;         /* a piece of the answer */
    bool text;          /* ... that is not empty */
    bool last;          /* the answer is whole */
    bool error;         /* the server says that it failed */
    int tokens, prompt; /* the server's own count of generated and prompt tokens; -1: does not say */
};

/* Of the data of one event; false when it is not what this protocol sends. */
bool api_read_event(enum api_kind, const char *data, size_t n, struct api_event *out);

#endif
