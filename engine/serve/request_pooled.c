/* Requests for an embedding: the final norm's output for each position of the prompt, pooled to one vector, which goes
 * through the layers behind the pooling that the model may have (embedder.h).
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
    for (int i = 0; g->types && i < g->n_prompt; i++)
        if (g->types[i] >= (m->token_types ? m->token_types : 1)) {
            err_set(e, ERR_INVALID, "token type %d: the model has %d", g->types[i], m->token_types);
            return NULL;
        }
    size_t n = (size_t)g->n_prompt, pages = (n + KV_PAGE - 1) / KV_PAGE, hidden = (size_t)m->hidden;
    struct request *r =
        calloc(1, sizeof *r + hidden * sizeof(double) + (n + pages) * sizeof(int32_t) + (g->types ? n : 0));
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
                          .no_prefix = g->pooling != POOLING_LAST || m->embedder->encoder};
    if (g->types) {
        r->types = (unsigned char *)(r->tokens + n + pages);
        memcpy(r->types, g->types, n);
    }
    r->user = g->user;
    r->n_prompt = g->n_prompt;
    r->pooling = g->pooling;
    memcpy(r->tokens, g->prompt, n * sizeof *r->tokens);
    return r;
}

static enum finish_reason send(struct request *r, const struct engine_info *m, struct events *ev)
{
    struct event v = {
        .id = r->id, .user = r->user, .kind = EV_EMBEDDING, .n_values = m->embedder->size, .stop_index = -1};
    for (int i = 0; i < m->hidden; i++)
        if (!isfinite((float)r->pooled[i])) return FINISH_ERROR;
    float *out = events_values(ev, v.n_values, &v.values);
    embedder_apply(m->embedder, r->pooled, out);
    for (int i = 0; i < v.n_values; i++)
        if (!isfinite(out[i])) return FINISH_ERROR;
    events_add(ev, &v);
    return FINISH_EMBEDDED;
}

/* Adds the hidden state of position `pos`, the next one. */
static void pool(struct request *r, const float *h, int n)
{
    double weight = r->pooling == POOLING_WEIGHTED ? r->n_pooled + 1 : 1;
    for (int i = 0; i < n; i++) {
        if (r->pooling != POOLING_MAX)
            r->pooled[i] += weight * (double)h[i];
        else if (!r->n_pooled || (double)h[i] > r->pooled[i])
            r->pooled[i] = (double)h[i];
    }
    r->n_pooled++;
}

/* What the sum is divided by. */
static double pooled_divisor(const struct request *r)
{
    double n = r->n_prompt;
    switch (r->pooling) {
    case POOLING_MEAN: return n;
    case POOLING_ROOT: return sqrt(n);
    case POOLING_WEIGHTED: return n * (n + 1) / 2;
    default: return 1;
    }
}

enum finish_reason request_hidden(struct request *r, int pos, int n, const float *hidden, const struct engine_info *m,
                                  struct events *ev)
{
    for (int k = 0; k < n; k++, hidden += m->hidden) {
        bool one = r->pooling == POOLING_LAST || r->pooling == POOLING_FIRST;
        int wanted = r->pooling == POOLING_LAST ? r->n_prompt - 1 : r->n_pooled;
        if (pos + k == wanted && !(one && r->n_pooled)) pool(r, hidden, m->hidden);
    }
    if (pos + n < r->n_prompt) return FINISH_NONE;
    double divisor = pooled_divisor(r);
    for (int i = 0; divisor != 1 && i < m->hidden; i++) r->pooled[i] /= divisor;
    return send(r, m, ev);
}
