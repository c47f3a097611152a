/* SampleResponse: texts of one prompt as protobuf.  Pure; any thread. */
#ifndef TANDEM_SERVER_TINKER_SAMPLE_ANSWER_H
#define TANDEM_SERVER_TINKER_SAMPLE_ANSWER_H

#include "server/api/generation_result.h"
#include "server/tinker/prompt_targets.h"

struct sample_shape {
    bool prompt_logprobs;
    int topk_prompt, topk_sample; /* 0: none */
    int n_prompt;                 /* tokens; the result may have those from a later one on */
    int from;                     /* the first of them whose log-probability and most likely were asked for */
    int alternatives;             /* drawn for each but the first; 0: none */
    struct prompt_targets targets;
};

/* Of the whole prompt; the result of the first text has its events. */
void sample_put_prompt(struct buf *, const struct sample_shape *, const struct generation_result *);
void sample_put_text(struct buf *, const struct sample_shape *, const struct generation_result *);
/* @return bytes that the answer will have, at most. */
size_t sample_answer_bytes(const struct sample_shape *, const struct generation_result *);

#endif
