/* POST /classify and /predict, and POST / of a classifier: the scores of each label. */
#include "engine/base/mem.h"
#include "server/api/app.h"
#include "server/api/embed_exchange.h"
#include "server/api/routes.h"
#include "server/api/scores.h"
#include "server/api/served_model.h"

#include <math.h>
#include <stdlib.h>

/* Probabilities of n labels: of each by itself where there is one, or where they do not exclude each other. */
static void probabilities(const struct embedder *m, const float *v, double *out)
{
    double most = -INFINITY, sum = 0;
    for (int i = 0; i < m->n_labels; i++) most = (double)v[i] > most ? (double)v[i] : most;
    for (int i = 0; i < m->n_labels; i++) sum += out[i] = exp((double)v[i] - most);
    for (int i = 0; i < m->n_labels; i++)
        out[i] = m->n_labels == 1 || m->multi_label ? scores_sigmoid((double)v[i]) : out[i] / sum;
}

static void write_classes(struct buf *out, const struct embed_params *p, const struct embedder *m, const float *values,
                          const char *model, uint64_t tokens)
{
    double *probs = mem_array((size_t)m->n_labels, sizeof *probs);
    scores_put_head(out, "classify-", model);
    buf_str(out, ",\"data\":[");
    for (int i = 0; i < p->n; i++) {
        int best = 0;
        const float *v = values + (size_t)i * (size_t)m->n_labels;
        probabilities(m, v, probs);
        for (int k = 0; p->raw_scores && k < m->n_labels; k++) probs[k] = (double)v[k];
        for (int k = 1; k < m->n_labels; k++)
            if (probs[k] > probs[best]) best = k;
        buf_printf(out, "%s{\"index\":%d,\"label\":", i ? "," : "", i);
        scores_put_text(out, m->labels[best]);
        buf_str(out, ",\"probs\":[");
        for (int k = 0; k < m->n_labels; k++) buf_printf(out, k ? ",%.9g" : "%.9g", probs[k]);
        buf_printf(out, "],\"num_classes\":%d}", m->n_labels);
    }
    buf_char(out, ']');
    scores_put_usage(out, tokens);
    free(probs);
}

/* TEI's: each input's labels, the best first. */
static void write_predictions(struct buf *out, const struct embed_params *p, const struct embedder *m,
                              const float *values)
{
    struct score *v = mem_array((size_t)m->n_labels, sizeof *v);
    double *probs = mem_array((size_t)m->n_labels, sizeof *probs);
    if (p->list) buf_char(out, '[');
    for (int i = 0; i < p->n; i++) {
        const float *of = values + (size_t)i * (size_t)m->n_labels;
        probabilities(m, of, probs);
        for (int k = 0; k < m->n_labels; k++) v[k] = (struct score){k, p->raw_scores ? (double)of[k] : probs[k]};
        qsort(v, (size_t)m->n_labels, sizeof *v, scores_order);
        buf_str(out, i ? ",[" : "[");
        for (int k = 0; k < m->n_labels; k++) {
            buf_printf(out, "%s{\"score\":%.9g,\"label\":", k ? "," : "", v[k].score);
            scores_put_text(out, m->labels[v[k].index]);
            buf_char(out, '}');
        }
        buf_char(out, ']');
    }
    if (p->list) buf_char(out, ']');
    free(v);
    free(probs);
}

static void answer(struct embed_exchange *x)
{
    const struct embedder *m = x->limits.embedder;
    struct buf out = {0};
    if (x->params.shape == EMBED_CLASSIFY)
        write_classes(&out, &x->params, m, x->values, x->model.name, x->n_tokens);
    else
        write_predictions(&out, &x->params, m, x->values);
    embed_reply_whole(x, &out);
}

void api_classify(struct http_req *req)
{
    embed_exchange_begin(req, EMBED_CLASSIFY, answer);
}

void api_predict(struct http_req *req)
{
    embed_exchange_begin(req, EMBED_PREDICT, answer);
}

void api_predict_root(struct http_req *req)
{
    embed_exchange_begin(req, EMBED_PREDICT_ROOT, answer);
}
