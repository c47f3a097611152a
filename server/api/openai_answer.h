/* OpenAI's answers as JSON text: whole, and chunk by chunk.  Pure: any thread. */
#ifndef TANDEM_SERVER_API_OPENAI_ANSWER_H
#define TANDEM_SERVER_API_OPENAI_ANSWER_H

#include "engine/base/buf.h"
#include "server/api/choice.h"
#include "server/api/openai_params.h"

#include <stdint.h>

/* fields common to every object of one answer */
struct openai_head {
    enum openai_route route;
    const struct openai_params *params;
    const char *id, *model, *fingerprint;
    int64_t created; /* time() */
};

struct openai_usage {
    int64_t prompt, completion;
    int64_t reasoning; /* of the completion's, within thoughts */
    int64_t cached;    /* prompt tokens found in the prefix cache; -1: not known yet */
};

enum openai_chunk {
    CHUNK_ROLE,  /* chat: the first of a choice */
    CHUNK_FIRST, /* others: as the next, the first of a choice */
    CHUNK_TEXT,  /* the text that choice_clear then drops; completions: with finish_reason when it is over */
    CHUNK_END,   /* chat: finish_reason */
};

/* {"id":...,"choices":[one],...}; usage may be NULL */
void openai_put_chunk(struct buf *out, const struct openai_head *, enum openai_chunk, const struct choice *, int index,
                      const struct openai_usage *usage);
/* stream_options.include_usage: the last one, without choices */
void openai_put_usage_chunk(struct buf *out, const struct openai_head *, const struct openai_usage *);
/* choices: (n), in the order of their indices */
void openai_put_whole(struct buf *out, const struct openai_head *, struct choice *const *choices, int n,
                      const struct openai_usage *);

#endif
