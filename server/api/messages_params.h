/* The bodies of POST /v1/messages and /v1/messages/count_tokens: Anthropic's form of a conversation, rewritten as the
 * body of a chat (openai_params.h), so that everything behind it is shared.  Pure: any thread.
 *
 *   system (text or blocks)       the first message; system messages that follow it directly are joined to it
 *   role system later, ctx, msg   a user's message in its place: many templates refuse a later system message, and
 *                                 moving it to the front would change the cached prefix
 *   tool_result                   a message of role tool, before the rest of its user's message
 *   thinking, redacted_thinking   the assistant's reasoning_content; dropped
 *   tool_use                      the assistant's tool_calls
 *
 * Neighbouring messages of one role are joined, as Anthropic does.  The system's line "x-anthropic-billing-header: ..."
 * is dropped: it differs in every request, so that no prefix would ever be found in the cache.  Unknown fields are
 * ignored; blocks other than text are refused by name. */
#ifndef TANDEM_SERVER_API_MESSAGES_PARAMS_H
#define TANDEM_SERVER_API_MESSAGES_PARAMS_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "server/memory/reservation.h"

#include <stdbool.h>
#include <stddef.h>

/* A rewritten body. */
struct messages_chat {
    struct buf text;         /* JSON */
    struct reservation held; /* for it */
    const char *param;       /* of a refusal: the field at fault; static; NULL: none */
};

/* The field of Anthropic's that makes a server keep a conversation.  Its packages send it by themselves, and go on
 * without it after a refusal whose details have this code. */
#define MESSAGES_THREAD "thread"
#define MESSAGES_THREAD_DETAILS "{\"error_code\":\"thread_unsupported_request\",\"unsupported\":[]}"

/* count: a body of count_tokens, which needs no max_tokens.  @return false and *e (also of memory, reservation.h). Free
 * with messages_chat_free in both cases. */
bool messages_to_chat(const char *body, size_t len, bool count, struct messages_chat *out, struct err *e);
void messages_chat_free(struct messages_chat *);

#endif
