/* TGI's answers as JSON text.  Pure: any thread. */
#ifndef TANDEM_SERVER_API_GENERATE_ANSWER_H
#define TANDEM_SERVER_API_GENERATE_ANSWER_H

#include "engine/base/buf.h"
#include "engine/serve/engine.h"
#include "server/api/generate_params.h"
#include "server/api/generation_result.h"

/* "length", "eos_token", "stop_sequence", "timeout", "cancelled", "error" */
const char *finish_name(enum finish_reason);

/* {"id","text","logprob","special"} */
void answer_put_token(struct buf *out, int32_t id, const char *text, size_t len, float logprob, bool special);
/* [{"id","text","logprob","special"},...] */
void answer_put_top(struct buf *out, const struct tokenizer *, const struct top_token *, int n);

/* One event of a stream.  `last` is the event's EV_DONE when it is the last token (then `text` is the whole generated
 * text), NULL before; `index` counts from 1. */
struct answer_event {
    const struct generate_params *params;
    const struct tokenizer *tokenizer;
    const struct event *token;
    const struct event_batch *batch;
    const struct event *last;
    const char *text;
    size_t text_len;
    int index;
};
void answer_put_event(struct buf *out, const struct answer_event *);

/* The whole answer: results[best] with the n - 1 others as best_of_sequences; seeds[i] was used for results[i]. */
void answer_put_whole(struct buf *out, const struct generate_params *, const struct tokenizer *,
                      const struct generation_result *results, const uint64_t *seeds, int n, int best);

#endif
