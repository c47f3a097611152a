/* A conversation with a model: what was said so far, and the prompt that follows from it.  Any one thread. */
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
    const struct chat_template *chat; /* NULL and not plain: no turns, only a text that the model continues */
    bool plain;                       /* instead of a template: lines "role: content" */
    cJSON *messages;                  /* owned: the system's, where there is one, then user and assistant in turn */
    struct buf text;                  /* where there are no turns */
};

void conversation_free(struct conversation *);
bool conversation_has_turns(const struct conversation *);
/* Forgets everything but the system's message. */
void conversation_reset(struct conversation *);
/* The system's message from now on; NULL or "": none.  Nothing without turns. */
void conversation_system(struct conversation *, const char *text);
/* One more turn.  Where there are none, a user's is the beginning of a new text unless it is empty, and an assistant's
 * is the next part of it. */
void conversation_user(struct conversation *, const char *text, size_t n);
void conversation_assistant(struct conversation *, const char *text, size_t n);
/* Takes the last turn back: the user's, for which there was no answer. */
void conversation_undo(struct conversation *);

/* The ids (*n of them, 1 to `most`; free them) after which the answer comes.  What does not fit is forgotten, the
 * oldest turns first, but never the system's message nor the last turn; *forgotten: messages.  NULL and *e. */
int32_t *conversation_prompt(struct conversation *, int most, int *n, int *forgotten, struct err *e);

#endif
