/* Conversations: a request's messages put in order, and rendered by the model's chat template.  Any thread. */
#ifndef TANDEM_SERVER_API_CHAT_FORMAT_H
#define TANDEM_SERVER_API_CHAT_FORMAT_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/template/chat_template.h"
#include "server/api/tool_calls.h"
#include "server/schema/constraint.h"

#include <cjson/cJSON.h>
#include <stdbool.h>

struct openai_params;
struct settings;

/* How the server talks; constant once the model is loaded. */
struct chat_format {
    struct chat_template *template; /* owned; NULL: plain, or none */
    bool plain;                     /* "role: content" lines, as models without a template are trained */
    enum tool_format tools;         /* how the model writes calls */
    bool broken;                    /* the model's own template cannot be read */
    char reason[400];               /* neither: why, and what to do */
};

/* --chat-template, or the model's own.  An error only when the option's file is at fault: a model whose own template
 * cannot be read is served, and says so when it is asked to chat.  Zero-initialise; chat_close. */
int chat_open(struct chat_format *, const struct settings *, struct err *e);
void chat_close(struct chat_format *);

/* Checks the messages (an array that is not empty) and makes of them what templates expect: contents are strings (a
 * list of text parts is joined by line breaks; the assistant's may be null or absent) and "developer" is "system". */
int chat_messages_check(cJSON *messages, struct err *e);
/* Appends the page that the model is to continue.  What the template may take is reserved, by the size of the body. */
int chat_render(const struct chat_format *, const struct openai_params *, size_t body_len, struct buf *out,
                struct err *e);
int chat_render_input(const struct chat_format *, struct chat_input *, size_t body_len, struct buf *out, struct err *e);

/* How this answer's calls are written: the model's way; where it has none and a call is demanded, Hermes'. */
enum tool_format chat_tool_format(const struct chat_format *, const struct openai_params *);
/* Where tool_choice demands a call, the ask that makes the answer one: of p->tool_name, or of any tool. */
int chat_tool_ask(const struct chat_format *, const struct openai_params *, struct constraint_ask *, struct err *e);

#endif
