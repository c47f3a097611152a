/* Requests for an embedding: the final norm's output for each position of the prompt, pooled to one vector.
 *
 * Each position is added once, in order.  A preempted request computes its prompt again, with the same bits, and
 * continues with the first position not yet added.  So the vector does not depend on chunks, batch or preemptions. */
#include "engine/serve/request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct request *request_new_pooled(const struct gen_request *g, const struct engine_info *m, struct err *e)
{
    if (g->n_prompt < 1) {
        err_set(e, ERR_INVALID, "`input` cannot be empty");
        return NULL;
    }
    if (g->n_prompt > m->max_total_tokens) {
        err_set(e, ERR_INVALID, "`input` must have at most %d tokens. Given: %d", m->max_total_tokens, g->n_prompt);
        return NULL;
    }
    if (request_check_ids(g, m, e)) return NULL;
    size_t n = (size_t)g->n_prompt, pages = (n + KV_PAGE - 1) / KV_PAGE, hidden = (size_t)m->hidden;
    struct request *r = calloc(1, sizeof *r + hidden * sizeof(double) + (n + pages) * sizeof(int32_t));
    if (!r) {
        err_set(e, ERR_NOMEM, "no memory for an input of %zu tokens", n);
        return NULL;
    }
    r->pooled = (double *)(r + 1);
    r->tokens = (int32_t *)(r->pooled + hidden);
    r->seq = (struct seq){.tokens = r->tokens,
                          .pages = r->tokens + n,
                          .n_known = g->n_prompt,
                          .priority = g->priority,
                          .client = g->client,
                          .no_rows = true,
                          .no_prefix = g->pooling == POOLING_MEAN};
    r->user = g->user;
    r->n_prompt = g->n_prompt;
    r->pooling = g->pooling;
    memcpy(r->tokens, g->prompt, n * sizeof *r->tokens);
    return r;
}

static enum finish_reason send(struct request *r, const struct engine_info *m, struct events *ev)
{
    struct event v = {.id = r->id, .user = r->user, .kind = EV_EMBEDDING, .n_values = m->hidden, .stop_index = -1};
    for (int i = 0; i < m->hidden; i++)
        if (!isfinite((float)r->pooled[i])) return FINISH_ERROR;
    float *out = events_values(ev, m->hidden, &v.values);
    for (int i = 0; i < m->hidden; i++) out[i] = (float)r->pooled[i];
    events_add(ev, &v);
    return FINISH_EMBEDDED;
}

enum finish_reason request_hidden(struct request *r, int pos, int n, const float *hidden, const struct engine_info *m,
                                  struct events *ev)
{
    for (int k = 0; k < n; k++, hidden += m->hidden) {
        if (r->pooling == POOLING_MEAN && pos + k == r->n_pooled) {
            for (int i = 0; i < m->hidden; i++) r->pooled[i] += (double)hidden[i];
            r->n_pooled++;
        } else if (r->pooling == POOLING_LAST && pos + k == r->n_prompt - 1) {
            for (int i = 0; i < m->hidden; i++) r->pooled[i] = (double)hidden[i];
        }
    }
    if (pos + n < r->n_prompt) return FINISH_NONE;
    for (int i = 0; r->pooling == POOLING_MEAN && i < m->hidden; i++) r->pooled[i] /= r->n_prompt;
    return send(r, m, ev);
}
