/* A conversation with a model: its messages so far, and the prompt made from them.  Any one thread. */
#ifndef TANDEM_SERVER_CLI_CONVERSATION_H
#define TANDEM_SERVER_CLI_CONVERSATION_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/template/chat_template.h"
#include "engine/tokenizer/tokenizer.h"

#include <cjson/cJSON.h>
#include <stdbool.h>

/* Zero-initialise, set tokenizer and chat; conversation_free. */
struct conversation {
    const struct tokenizer *tokenizer;
    const struct chat_template *chat; /* NULL and not plain: no chat turns, only a text that the model continues */
    bool plain;                       /* without a template: lines "role: content" */
    cJSON *messages;                  /* owned: the system's, if any, then user and assistant alternating */
    struct buf text;                  /* without chat turns */
};

void conversation_free(struct conversation *);
bool conversation_has_turns(const struct conversation *);
/* Removes all messages except the system's. */
void conversation_reset(struct conversation *);
/* Sets the system's message; NULL or "": none.  A no-op without chat turns. */
void conversation_system(struct conversation *, const char *text);
/* Adds a message.  Without chat turns, a user's begins a new text unless it is empty, and an assistant's is appended to
 * the text. */
void conversation_user(struct conversation *, const char *text, size_t n);
void conversation_assistant(struct conversation *, const char *text, size_t n);
/* Removes the last message: a user's that got no answer. */
void conversation_undo(struct conversation *);

/* @return the prompt's *n ids (1 to `most`; owned by the caller), or NULL and *e.  Drops the oldest turns if the prompt
 * does not fit, but never the system's message or the last turn; *forgotten: number of messages dropped. */
int32_t *conversation_prompt(struct conversation *, int most, int *n, int *forgotten, struct err *e);

#endif
