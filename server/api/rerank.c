/* POST /rerank and /score: pairs of texts by the score that a classifier with one label gives them. */
#include "engine/base/mem.h"
#include "server/api/app.h"
#include "server/api/embed_exchange.h"
#include "server/api/routes.h"
#include "server/api/scores.h"
#include "server/api/served_model.h"

#include <stdlib.h>

/* Pairs by their score, as vLLM, Jina and Cohere have it, or TEI. */
static void write_ranks(struct buf *out, const struct embed_params *p, const struct score *v)
{
    bool tei = p->shape == EMBED_RANK;
    int n = p->top_n && p->top_n < p->n ? p->top_n : p->n;
    buf_char(out, '[');
    for (int i = 0; i < n; i++) {
        buf_printf(out, "%s{\"index\":%d", i ? "," : "", v[i].index);
        if (p->documents) {
            buf_str(out, tei ? ",\"text\":" : ",\"document\":{\"text\":");
            scores_put_text(out, p->inputs[v[i].index].pair);
            if (!tei) buf_char(out, '}');
        }
        buf_printf(out, ",\"%s\":%.9g}", tei ? "score" : "relevance_score", v[i].score);
    }
    buf_char(out, ']');
}

static void write_scores(struct buf *out, const struct embed_params *p, const struct score *v)
{
    for (int i = 0; i < p->n; i++)
        buf_printf(out, "%s{\"index\":%d,\"object\":\"score\",\"score\":%.9g}", i ? "," : "", i, v[i].score);
}

static void write_pairs(struct buf *out, const struct embed_params *p, const struct embedder *m, const float *values,
                        const char *model, uint64_t tokens)
{
    struct score *v = mem_array((size_t)p->n, sizeof *v);
    /* a cross-encoder's own activation is sentence-transformers' business; TEI has the sigmoid for all */
    bool raw = p->raw_scores || (m->raw_scores && p->shape != EMBED_RANK);
    for (int i = 0; i < p->n; i++)
        v[i] = (struct score){i, raw ? (double)values[i] : scores_sigmoid((double)values[i])};
    if (p->shape != EMBED_SCORE) qsort(v, (size_t)p->n, sizeof *v, scores_order);
    if (p->shape == EMBED_RANK) {
        write_ranks(out, p, v);
    } else {
        bool score = p->shape == EMBED_SCORE;
        scores_put_head(out, score ? "score-" : "rerank-", model);
        buf_str(out, score ? ",\"data\":[" : ",\"results\":");
        if (score) {
            write_scores(out, p, v);
            buf_char(out, ']');
        } else {
            write_ranks(out, p, v);
        }
        scores_put_usage(out, tokens);
    }
    free(v);
}

static void answer(struct embed_exchange *x)
{
    struct buf out = {0};
    write_pairs(&out, &x->params, x->served->info->embedder, x->values, x->model.name, x->n_tokens);
    embed_reply_whole(x, &out);
}

void api_rerank(struct http_req *req)
{
    embed_exchange_begin(req, EMBED_RERANK, answer);
}

void api_score(struct http_req *req)
{
    embed_exchange_begin(req, EMBED_SCORE, answer);
}
