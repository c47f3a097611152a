#include "server/tinker/sample_answer.h"

#include "engine/base/mem.h"
#include "server/tinker/protobuf.h"
#include "server/tinker/tensors.h"

#include <math.h>
#include <stdlib.h>

/* Numbers of the fields in the package tinker_public. */
enum {
    RESPONSE_SEQUENCES = 1,
    RESPONSE_PROMPT_LOGPROBS,
    RESPONSE_TOPK_PROMPT,
    RESPONSE_CACHE_HIT,
    RESPONSE_TARGETS,
    RESPONSE_ALTERNATIVES
};
enum { SEQUENCE_STOP_REASON = 1, SEQUENCE_TOKENS, SEQUENCE_LOGPROBS, SEQUENCE_TOPK };
enum { TOPK_IDS = 1, TOPK_LOGPROBS, TOPK_K, TOPK_LENGTH };
enum { ALTERNATIVES_IDS = 1, ALTERNATIVES_LOGPROBS };
enum { STOPPED = 0, LENGTH = 1 };

static const float TOPK_EMPTY = -99999.0f; /* the log-probability of a cell without a token, whose id is 0 */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are little-endian on the wire");

size_t sample_answer_bytes(const struct sample_shape *s, const struct generation_result *r)
{
    size_t cell = sizeof(int32_t) + sizeof(float),
           k = (size_t)(s->topk_prompt > s->topk_sample ? s->topk_prompt : s->topk_sample);
    size_t drawn = (size_t)s->n_prompt * (size_t)s->alternatives * (sizeof(int64_t) + sizeof(float));
    return 256 + ((size_t)s->n_prompt + r->n_tokens) * cell * (1 + k) + drawn + prompt_targets_bytes(&s->targets);
}

/* n rows of k cells; `empty` rows without tokens come first. */
static void put_topk(struct buf *out, unsigned field, int k, size_t empty, const struct generation_token *v, size_t n,
                     const struct top_token *top)
{
    size_t cells = (empty + n) * (size_t)k, at = 0;
    struct buf b = {0};
    int32_t *id = mem_array(cells, sizeof *id);
    float *logprob = mem_array(cells, sizeof *logprob);
    for (size_t i = 0; i < empty + n; i++)
        for (int j = 0; j < k; j++, at++) {
            bool there = i >= empty && j < v[i - empty].n_top && top[v[i - empty].top + (uint32_t)j].id >= 0;
            struct top_token cell = {0, TOPK_EMPTY};
            if (there) cell = top[v[i - empty].top + (uint32_t)j];
            id[at] = cell.id;
            logprob[at] = cell.logprob;
        }
    protobuf_put_bytes(&b, TOPK_IDS, id, cells * sizeof *id);
    protobuf_put_bytes(&b, TOPK_LOGPROBS, logprob, cells * sizeof *logprob);
    protobuf_put_int(&b, TOPK_K, k);
    protobuf_put_int(&b, TOPK_LENGTH, (int64_t)(empty + n));
    protobuf_put_bytes(out, field, b.data, b.len);
    buf_free(&b);
    free(id);
    free(logprob);
}

/* What was drawn in the places of the prompt's tokens, behind the ids that were scored there. */
static void put_alternatives(struct buf *out, const struct sample_shape *s, const struct generation_result *r)
{
    size_t k = (size_t)s->alternatives, n = (size_t)s->n_prompt - 1, at = 0;
    int64_t *id = mem_array(n * k, sizeof *id), shape[2] = {(int64_t)n, s->alternatives};
    float *logprob = mem_array(n * k, sizeof *logprob);
    struct buf b = {0};
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < k; j++, at++) {
            const struct generation_token *t = &r->prompt[i + 1];
            struct top_token drawn = r->top[t->scored + (uint32_t)(t->n_scored - s->alternatives) + (uint32_t)j];
            id[at] = drawn.id;
            logprob[at] = drawn.logprob;
        }
    tensor_put(&b, ALTERNATIVES_IDS, TENSOR_I64, id, n * k * sizeof *id, shape);
    tensor_put(&b, ALTERNATIVES_LOGPROBS, TENSOR_F32, logprob, n * k * sizeof *logprob, shape);
    protobuf_put_bytes(out, RESPONSE_ALTERNATIVES, b.data, b.len);
    buf_free(&b);
    free(id);
    free(logprob);
}

void sample_put_prompt(struct buf *out, const struct sample_shape *s, const struct generation_result *r)
{
    size_t n = (size_t)s->n_prompt, missing = n > r->n_prompt ? n - r->n_prompt : 0;
    size_t empty = missing > (size_t)s->from ? missing : (size_t)s->from;
    if (s->prompt_logprobs) {
        float *v = mem_array(n, sizeof *v);
        for (size_t i = 0; i < n; i++) v[i] = i < empty ? NAN : r->prompt[i - missing].logprob;
        protobuf_put_bytes(out, RESPONSE_PROMPT_LOGPROBS, v, n * sizeof *v);
        free(v);
    }
    if (s->topk_prompt)
        put_topk(out, RESPONSE_TOPK_PROMPT, s->topk_prompt, empty, r->prompt + (empty - missing), n - empty, r->top);
    protobuf_put_int(out, RESPONSE_CACHE_HIT, r->done.n_cached);
    if (s->targets.rows) prompt_targets_put(out, RESPONSE_TARGETS, &s->targets, r);
    if (s->alternatives) put_alternatives(out, s, r);
}

void sample_put_text(struct buf *out, const struct sample_shape *s, const struct generation_result *r)
{
    struct buf b = {0};
    int32_t *id = mem_array(r->n_tokens, sizeof *id);
    float *logprob = mem_array(r->n_tokens, sizeof *logprob);
    for (size_t i = 0; i < r->n_tokens; i++) {
        id[i] = r->tokens[i].id;
        logprob[i] = r->tokens[i].logprob;
    }
    protobuf_put_int(&b, SEQUENCE_STOP_REASON, r->done.finish == FINISH_LENGTH ? LENGTH : STOPPED);
    protobuf_put_bytes(&b, SEQUENCE_TOKENS, id, r->n_tokens * sizeof *id);
    protobuf_put_bytes(&b, SEQUENCE_LOGPROBS, logprob, r->n_tokens * sizeof *logprob);
    if (s->topk_sample) put_topk(&b, SEQUENCE_TOPK, s->topk_sample, 0, r->tokens, r->n_tokens, r->top);
    protobuf_put_bytes(out, RESPONSE_SEQUENCES, b.data, b.len);
    buf_free(&b);
    free(id);
    free(logprob);
}
