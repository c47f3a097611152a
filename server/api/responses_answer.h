/* Answers of /v1/responses as JSON text: whole, and as the events of a stream.  Pure: any thread.
 *
 * The items of an answer, in this order: reasoning, message, calls (choice.h finds them).  A stream closes each before
 * the next begins; `sequence_number` counts its events from 0. */
#ifndef TANDEM_SERVER_API_RESPONSES_ANSWER_H
#define TANDEM_SERVER_API_RESPONSES_ANSWER_H

#include "engine/base/buf.h"
#include "server/api/choice.h"
#include "server/api/openai_answer.h"
#include "server/api/responses_params.h"

enum responses_item { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL, ITEM_CUSTOM };

/* The position of a stream.  Zero-initialise; responses_stream_free. */
struct responses_stream {
    int64_t sequence; /* of the next event */
    int n_items;      /* begun so far; the open one is the last */
    enum responses_item open;
    struct buf text;       /* the open item's: of a call, its arguments */
    struct buf name;       /* a call's, as the model wrote it */
    char id[TOOL_ID_SIZE]; /* a call's */
    struct buf output;     /* the items that are done, separated by commas */
    char keepalive[96];    /* the event that responses_keepalive made */
};

/* The whole answer. */
void responses_put_whole(struct buf *out, const struct openai_head *, const struct responses_request *,
                         const struct choice *, const struct openai_usage *);

/* response.created and response.in_progress */
void responses_put_start(struct buf *out, struct responses_stream *, const struct openai_head *,
                         const struct responses_request *);
/* The events of what the choice has ready (choice_ready); choice_clear then drops it. */
void responses_put_ready(struct buf *out, struct responses_stream *, const struct openai_head *,
                         const struct responses_request *, const struct choice *);
/* response.completed or response.incomplete. */
void responses_put_end(struct buf *out, struct responses_stream *, const struct openai_head *,
                       const struct responses_request *, const struct choice *, const struct openai_usage *);
/* response.failed: an error in the middle of a stream. */
void responses_put_failed(struct buf *out, struct responses_stream *, const struct openai_head *,
                          const struct responses_request *, const char *code, const char *msg);
/* The next sign of life: an event, because clients stop waiting for a stream that has none, whatever its comments. */
const char *responses_keepalive(struct responses_stream *);
void responses_stream_free(struct responses_stream *);

#endif
