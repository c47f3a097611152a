/* Requests for an embedding: the final norm's output for each position of the prompt, pooled to one vector or to
 * several that are concatenated, which go through the layers behind the pooling that the model may have (embedder.h).
 *
 * Each position is added once, in order.  A preempted request computes its prompt again, with the same bits, and
 * continues with the first position not yet added.  So the vector does not depend on chunks, batch or preemptions. */
#include "engine/serve/request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool request_pools_last(const struct poolings *p)
{
    for (int i = 0; i < p->n; i++)
        if (p->v[i] != POOLING_LAST) return false;
    return true;
}

static int check_pooling(const struct gen_request *g, const struct engine_info *m, struct err *e)
{
    if (g->pool_from < 0 || g->pool_from >= g->n_prompt)
        return err_set(e, ERR_INVALID, "all %d tokens are left out of the pooling", g->n_prompt);
    if (g->score && (g->pooling.n != 1 || g->pooling.v[0] != POOLING_LAST))
        return err_set(e, ERR_INVALID, "a score is of the last token");
    if (g->pooling.n > POOLINGS_MAX || g->pooling.n * m->hidden != m->embedder->inputs)
        return err_set(e, ERR_INVALID, "pooling: %d vectors of %d values; the model takes %d values", g->pooling.n,
                       m->hidden, m->embedder->inputs);
    return 0;
}

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
    if (check_pooling(g, m, e) || request_check_ids(g, m, e)) return NULL;
    for (int i = 0; g->types && i < g->n_prompt; i++)
        if (g->types[i] >= (m->token_types ? m->token_types : 1)) {
            err_set(e, ERR_INVALID, "token type %d: the model has %d", g->types[i], m->token_types);
            return NULL;
        }
    size_t n = (size_t)g->n_prompt, pages = (n + KV_PAGE - 1) / KV_PAGE, values = (size_t)m->embedder->inputs;
    struct request *r =
        calloc(1, sizeof *r + values * sizeof(double) + (n + pages) * sizeof(int32_t) + (g->types ? n : 0));
    if (!r) {
        err_set(e, ERR_NOMEM, "no memory for an input of %zu tokens", n);
        return NULL;
    }
    r->pooled = (double *)(r + 1);
    r->tokens = (int32_t *)(r->pooled + values);
    r->seq = (struct seq){.tokens = r->tokens,
                          .pages = r->tokens + n,
                          .n_known = g->n_prompt,
                          .priority = g->priority,
                          .client = g->client,
                          .no_rows = true,
                          .no_prefix = !request_pools_last(&g->pooling) || m->embedder->encoder};
    if (g->types) {
        r->types = (unsigned char *)(r->tokens + n + pages);
        memcpy(r->types, g->types, n);
    }
    r->user = g->user;
    r->n_prompt = g->n_prompt;
    r->pooling = g->pooling;
    r->pool_from = g->pool_from;
    memcpy(r->tokens, g->prompt, n * sizeof *r->tokens);
    return r;
}

/* In f64, in order: a score does not depend on the machine's vectors. */
static float score_of(const struct request *r, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)r->score[i] * r->pooled[i];
    return (float)sum;
}

static enum finish_reason send(struct request *r, const struct engine_info *m, struct events *ev)
{
    struct event v = {.id = r->id,
                      .user = r->user,
                      .kind = EV_EMBEDDING,
                      .n_values = r->score ? 1 : m->embedder->size,
                      .stop_index = -1};
    for (int i = 0; i < m->embedder->inputs; i++)
        if (!isfinite((float)r->pooled[i])) return FINISH_ERROR;
    float *out = events_values(ev, v.n_values, &v.values);
    if (r->score)
        out[0] = score_of(r, m->hidden);
    else
        embedder_apply(m->embedder, r->pooled, out);
    for (int i = 0; i < v.n_values; i++)
        if (!isfinite(out[i])) return FINISH_ERROR;
    events_add(ev, &v);
    return FINISH_EMBEDDED;
}

/* Adds the hidden state h (C) of position pos to the vector of one pooling. */
static void pool(const struct request *r, enum pooling how, int pos, const float *h, int c, double *sum)
{
    bool first = pos == r->pool_from;
    if ((how == POOLING_FIRST && !first) || (how == POOLING_LAST && pos != r->n_prompt - 1)) return;
    double weight = how == POOLING_WEIGHTED ? pos + 1 : 1;
    for (int i = 0; i < c; i++) {
        if (how != POOLING_MAX)
            sum[i] += weight * (double)h[i];
        else if (first || (double)h[i] > sum[i])
            sum[i] = (double)h[i];
    }
}

/* What the sum is divided by.  The weights of POOLING_WEIGHTED count from the first position, pooled or not. */
static double divisor(const struct request *r, enum pooling how)
{
    double n = r->n_prompt, from = r->pool_from;
    switch (how) {
    case POOLING_MEAN: return n - from;
    case POOLING_ROOT: return sqrt(n - from);
    case POOLING_WEIGHTED: return (n * (n + 1) - from * (from + 1)) / 2;
    default: return 1;
    }
}

enum finish_reason request_hidden(struct request *r, int pos, int n, const float *hidden, const struct engine_info *m,
                                  struct events *ev)
{
    int c = m->hidden;
    bool last = request_pools_last(&r->pooling);
    for (int k = 0; k < n; k++, hidden += c) {
        if (pos + k != (last ? r->n_prompt - 1 : r->n_pooled)) continue;
        r->n_pooled++;
        if (pos + k < r->pool_from) continue;
        for (int i = 0; i < r->pooling.n; i++)
            pool(r, r->pooling.v[i], pos + k, hidden, c, r->pooled + (size_t)i * (size_t)c);
    }
    if (pos + n < r->n_prompt) return FINISH_NONE;
    for (int i = 0; i < r->pooling.n; i++) {
        double d = divisor(r, r->pooling.v[i]), *sum = r->pooled + (size_t)i * (size_t)c;
        for (int k = 0; d != 1 && k < c; k++) sum[k] /= d;
    }
    return send(r, m, ev);
}
