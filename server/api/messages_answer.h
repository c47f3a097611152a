/* Answers of /v1/messages as JSON text, in Anthropic's form: whole, and as the events of a stream.  Pure: any thread.
 *
 * The blocks of an answer, in this order: thinking, text, tool_use (choice.h finds them).  A stream closes each
 * before the next begins. */
#ifndef TANDEM_SERVER_API_MESSAGES_ANSWER_H
#define TANDEM_SERVER_API_MESSAGES_ANSWER_H

#include "engine/base/buf.h"
#include "server/api/choice.h"
#include "server/api/openai_answer.h"

/* a stream's sign of life (struct sse.keepalive) */
#define MESSAGES_PING "event: ping\ndata: {\"type\":\"ping\"}\n\n"

/* The position of a stream.  Zero-initialise. */
struct messages_stream {
    int n_blocks; /* begun so far; the open one is the last */
    enum { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_TOOL } open;
};

/* The whole answer. */
void messages_put_whole(struct buf *out, const struct openai_head *, const struct choice *,
                        const struct openai_usage *);

/* message_start, and a ping */
void messages_put_start(struct buf *out, const struct openai_head *, const struct openai_usage *);
/* The events of what the choice has ready (choice_ready); choice_clear then drops it. */
void messages_put_ready(struct buf *out, struct messages_stream *, const struct choice *);
/* message_delta and message_stop. */
void messages_put_end(struct buf *out, struct messages_stream *, const struct choice *, const struct openai_usage *);
/* An error in the middle of a stream. */
void messages_put_error_event(struct buf *out, int status, const char *msg);

#endif
