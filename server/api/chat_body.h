/* The body of a chat (openai_params.h) while a request of another convention is rewritten as one: its messages and
 * tools. Neighbouring messages of one role are joined.  Pure: any thread.
 *
 * Of a message, its texts, thoughts and calls are gathered until another role begins. */
#ifndef TANDEM_SERVER_API_CHAT_BODY_H
#define TANDEM_SERVER_API_CHAT_BODY_H

#include "engine/base/buf.h"

#include <cjson/cJSON.h>
#include <stdbool.h>

/* Zero-initialise but for out; chat_body_free. */
struct chat_body {
    struct buf *out;
    const char *role; /* of the message that is being gathered; NULL: none */
    struct buf parts, thoughts, calls;
    int n_messages;
    bool open_ended; /* the last message is the assistant's, without calls: it can be continued */
};

void chat_body_begin(struct chat_body *, const char *role); /* a message; static text */
void chat_body_text(struct chat_body *, const char *text);  /* another part of its content; "" is none */
void chat_body_thought(struct chat_body *, const char *text);
/* A call of the assistant.  @return where its arguments go, a JSON value; then chat_body_call_end. */
struct buf *chat_body_call(struct chat_body *, const char *id, const char *name);
void chat_body_call_end(struct chat_body *);
/* What a tool gave: the texts added since chat_body_end. */
void chat_body_result(struct chat_body *, const char *call_id, bool failed);
void chat_body_end(struct chat_body *); /* writes the message gathered so far, if there is one */
void chat_body_free(struct chat_body *);

/* An entry of `tools`, up to its parameters, a JSON schema; then "}}". */
void chat_body_put_tool(struct buf *out, bool first, const char *name, const char *description);

/* A member that is a text, or NULL. */
const char *chat_body_text_of(const cJSON *object, const char *name);

/* Whether the prompt shows the tool only where a search has found it (defer_loading). */
bool chat_tool_deferred(const cJSON *tool);

#endif
