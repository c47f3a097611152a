/* The body of POST /v1/responses: OpenAI's newer form of a conversation, rewritten as the body of a chat
 * (openai_params.h), so that everything behind it is shared.  Pure: any thread.
 *
 *   instructions                    the first message, of role system; system and developer messages that follow it
 *                                   directly are joined to it
 *   role system, developer, later   a user's message in its place, as in messages_params.h
 *   function_call, custom_tool_call the assistant's tool_calls
 *   ..._output                      a message of role tool
 *   reasoning                       the assistant's reasoning_content
 *   a tool in a `namespace`         a function SPACE__NAME, and back in the answer
 *   a `custom` tool                 a function with one text, `input`; a format of regex syntax becomes its pattern,
 * and any format's definition stands in its description
 *
 * Nothing is kept between requests, so fields that refer to an earlier answer are refused by name.  Hosted tools
 * (web_search and others) and unknown items are left out.  Unknown fields are ignored. */
#ifndef TANDEM_SERVER_API_RESPONSES_PARAMS_H
#define TANDEM_SERVER_API_RESPONSES_PARAMS_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "server/memory/reservation.h"

#include <stdbool.h>
#include <stddef.h>

struct responses_tool {
    char *flat;   /* the function's name in the chat; owned */
    size_t space; /* length of the namespace that it begins with, before "__"; 0: none */
    bool custom;
};

/* What the answer needs of its request.  Zero-initialise; responses_request_free. */
struct responses_request {
    struct buf echo; /* the answer's members that repeat the request, each with a comma before it */
    struct responses_tool *tools;
    size_t n_tools;
    struct buf skipped; /* types of tools and items that were left out, separated by commas; empty: none */
    bool thoughts;      /* include reasoning.encrypted_content */
    struct reservation held;
};

/* text: the chat's body; held: for it.  @return false and *e (also of memory, reservation.h).  Free all three in both
 * cases. */
bool responses_to_chat(const char *body, size_t len, struct buf *text, struct reservation *held,
                       struct responses_request *, struct err *e, const char **param);
/* The tool that a call names; NULL: none. */
const struct responses_tool *responses_tool_find(const struct responses_request *, const char *flat);
void responses_request_free(struct responses_request *);

/* Thoughts as reasoning.encrypted_content begin with this.  They are not encrypted: the client may read what it got. */
#define RESPONSES_THOUGHTS "tandem:"

#endif
