/* Conversations: normalises a request's messages and renders them with the model's chat template.  Any thread. */
#ifndef TANDEM_SERVER_API_CHAT_FORMAT_H
#define TANDEM_SERVER_API_CHAT_FORMAT_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/template/chat_template.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/api/tool_calls.h"
#include "server/schema/constraint.h"

#include <cjson/cJSON.h>
#include <stdbool.h>

struct openai_params;
struct settings;
struct tokenizer;

/* The chat format of the server; constant once the model is loaded. */
struct chat_format {
    struct chat_template *template; /* owned; NULL: plain, or none */
    bool plain;                     /* "role: content" lines, for models trained without a template */
    enum tool_format tools;         /* the model's format of tool calls */
    enum reasoning_format reasoning;
    bool short_ids;   /* the template takes ids of calls of nine characters only */
    bool broken;      /* the model's own template is invalid */
    char reason[400]; /* no template and not plain: the reason, and what to do */
};

/* --chat-template, or the model's own.  An error only for the option's file: a model whose own template is invalid is
 * served, and chat requests get the reason.  Zero-initialise; release with chat_close. */
int chat_open(struct chat_format *, const struct settings *, struct err *e);
void chat_close(struct chat_format *);

/* Checks the messages (a non-empty array) and normalises them for templates: contents become strings (a list of text
 * parts is joined by line breaks; the assistant's may be null or absent) and "developer" becomes "system". */
int chat_messages_check(cJSON *messages, struct err *e);
/* Appends the prompt that the model continues; changes messages and variables to what the template takes.  Reserves
 * memory for rendering according to the size of the body. */
int chat_render(const struct chat_format *, struct openai_params *, size_t body_len, struct buf *out, struct err *e);
int chat_render_input(const struct chat_format *, struct chat_input *, size_t body_len, struct buf *out, struct err *e);

/* @return the format of this answer's calls: the model's; Hermes' if it has none and a call is required. */
enum tool_format chat_tool_format(const struct chat_format *, const struct openai_params *);
/* Where tool_choice requires a call, sets the constraint for it: a call of p->tool_name, or calls of any tools.  Leads
 * JSON that is asked for to where the model's format has its answers. */
int chat_tool_constraint(const struct chat_format *, const struct openai_params *, const struct tokenizer *,
                         struct constraint_request *, struct err *e);
/* Where the model may call, and a tool has a format of its text (custom tools of /v1/responses): sets the constraint
 * that its calls are such, unless it is too large. */
int chat_calls_constraint(const struct chat_format *, const struct openai_params *, const struct tokenizer *,
                          struct constraint_request *, struct err *e);

#endif
