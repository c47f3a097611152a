#include "server/api/rank_answer.h"

#include "engine/base/mem.h"
#include "server/json/json.h"
#include "server/store/data_dir.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct rank {
    int index;
    double score;
};

/* The best first; of equals the first. */
static int rank_order(const void *a, const void *b)
{
    const struct rank *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    return x->index - y->index;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Probabilities of n labels: of each by itself where there is one, or where they do not exclude each other. */
static void probabilities(const struct embedder *m, const float *v, double *out)
{
    double most = -INFINITY, sum = 0;
    for (int i = 0; i < m->n_labels; i++) most = (double)v[i] > most ? (double)v[i] : most;
    for (int i = 0; i < m->n_labels; i++) sum += out[i] = exp((double)v[i] - most);
    for (int i = 0; i < m->n_labels; i++)
        out[i] = m->n_labels == 1 || m->multi_label ? sigmoid((double)v[i]) : out[i] / sum;
}

static void put_text(struct buf *out, const char *s)
{
    json_put_string(out, s, strlen(s));
}

static void put_head(struct buf *out, const char *prefix, const char *model)
{
    char id[DATA_ID_MAX];
    data_id(id, prefix);
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"list\",\"created\":%lld,\"model\":", id,
               (long long)data_now_ms() / 1000);
    put_text(out, model);
}

static void put_usage(struct buf *out, uint64_t tokens)
{
    buf_printf(out, ",\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu}}", (unsigned long long)tokens,
               (unsigned long long)tokens);
}

/* Pairs by their score, as vLLM, Jina and Cohere have it, or TEI. */
static void write_ranks(struct buf *out, const struct embed_params *p, const struct rank *v)
{
    bool tei = p->shape == EMBED_RANK;
    int n = p->top_n && p->top_n < p->n ? p->top_n : p->n;
    buf_char(out, '[');
    for (int i = 0; i < n; i++) {
        buf_printf(out, "%s{\"index\":%d", i ? "," : "", v[i].index);
        if (p->documents) {
            buf_str(out, tei ? ",\"text\":" : ",\"document\":{\"text\":");
            put_text(out, p->inputs[v[i].index].pair);
            if (!tei) buf_char(out, '}');
        }
        buf_printf(out, ",\"%s\":%.9g}", tei ? "score" : "relevance_score", v[i].score);
    }
    buf_char(out, ']');
}

static void write_scores(struct buf *out, const struct embed_params *p, const struct rank *v)
{
    for (int i = 0; i < p->n; i++)
        buf_printf(out, "%s{\"index\":%d,\"object\":\"score\",\"score\":%.9g}", i ? "," : "", i, v[i].score);
}

static void write_pairs(struct buf *out, const struct embed_params *p, const struct embedder *m, const float *values,
                        const char *model, uint64_t tokens)
{
    struct rank *v = mem_array((size_t)p->n, sizeof *v);
    /* a cross-encoder's own activation is sentence-transformers' business; TEI has the sigmoid for all */
    bool raw = p->raw_scores || (m->raw_scores && p->shape != EMBED_RANK);
    for (int i = 0; i < p->n; i++) v[i] = (struct rank){i, raw ? (double)values[i] : sigmoid((double)values[i])};
    if (p->shape != EMBED_SCORE) qsort(v, (size_t)p->n, sizeof *v, rank_order);
    if (p->shape == EMBED_RANK) {
        write_ranks(out, p, v);
    } else {
        bool score = p->shape == EMBED_SCORE;
        put_head(out, score ? "score-" : "rerank-", model);
        buf_str(out, score ? ",\"data\":[" : ",\"results\":");
        if (score) {
            write_scores(out, p, v);
            buf_char(out, ']');
        } else {
            write_ranks(out, p, v);
        }
        put_usage(out, tokens);
    }
    free(v);
}

static void write_classes(struct buf *out, const struct embed_params *p, const struct embedder *m, const float *values,
                          const char *model, uint64_t tokens)
{
    double *probs = mem_array((size_t)m->n_labels, sizeof *probs);
    put_head(out, "classify-", model);
    buf_str(out, ",\"data\":[");
    for (int i = 0; i < p->n; i++) {
        int best = 0;
        probabilities(m, values + (size_t)i * (size_t)m->n_labels, probs);
        for (int k = 1; k < m->n_labels; k++)
            if (probs[k] > probs[best]) best = k;
        buf_printf(out, "%s{\"index\":%d,\"label\":", i ? "," : "", i);
        put_text(out, m->labels[best]);
        buf_str(out, ",\"probs\":[");
        for (int k = 0; k < m->n_labels; k++) buf_printf(out, k ? ",%.9g" : "%.9g", probs[k]);
        buf_printf(out, "],\"num_classes\":%d}", m->n_labels);
    }
    buf_char(out, ']');
    put_usage(out, tokens);
    free(probs);
}

/* TEI's: each input's labels, the best first. */
static void write_predictions(struct buf *out, const struct embed_params *p, const struct embedder *m,
                              const float *values)
{
    struct rank *v = mem_array((size_t)m->n_labels, sizeof *v);
    double *probs = mem_array((size_t)m->n_labels, sizeof *probs);
    if (p->list) buf_char(out, '[');
    for (int i = 0; i < p->n; i++) {
        const float *of = values + (size_t)i * (size_t)m->n_labels;
        probabilities(m, of, probs);
        for (int k = 0; k < m->n_labels; k++) v[k] = (struct rank){k, p->raw_scores ? (double)of[k] : probs[k]};
        qsort(v, (size_t)m->n_labels, sizeof *v, rank_order);
        buf_str(out, i ? ",[" : "[");
        for (int k = 0; k < m->n_labels; k++) {
            buf_printf(out, "%s{\"score\":%.9g,\"label\":", k ? "," : "", v[k].score);
            put_text(out, m->labels[v[k].index]);
            buf_char(out, '}');
        }
        buf_char(out, ']');
    }
    if (p->list) buf_char(out, ']');
    free(v);
    free(probs);
}

void rank_answer_write(struct buf *out, const struct embed_params *p, const struct embedder *m, const float *values,
                       const char *model, uint64_t tokens)
{
    if (p->shape == EMBED_CLASSIFY)
        write_classes(out, p, m, values, model, tokens);
    else if (p->shape == EMBED_PREDICT)
        write_predictions(out, p, m, values);
    else
        write_pairs(out, p, m, values, model, tokens);
}
