/* POST /embed and /similarity, and POST / with such bodies: vectors and cosines as Text Embeddings Inference has them.
 */
#include "server/api/embed_exchange.h"
#include "server/api/routes.h"

/* The cosine of a and b, which are of length 1, or zeros. */
static double cosine(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum < -1 ? -1 : sum > 1 ? 1 : sum;
}

static bool write_tei(void *arg, struct buf *out)
{
    struct embed_exchange *x = arg;
    if (!x->written && !x->written_values) buf_char(out, '[');
    while (x->written < x->params.n && out->len < REPLY_CHUNK_BYTES) {
        if (x->written && !x->written_values) buf_char(out, ',');
        embed_put_values(x, out);
    }
    if (x->written < x->params.n) return true;
    buf_char(out, ']');
    return false;
}

static bool write_similarities(void *arg, struct buf *out)
{
    struct embed_exchange *x = arg;
    const struct embed_params *p = &x->params;
    int end = x->written + 1 + REPLY_CHUNK_BYTES / p->dimensions; /* dot products per chunk */
    if (!x->written) buf_char(out, '[');
    for (; x->written < p->n - 1 && x->written < end; x->written++)
        buf_printf(out, x->written ? ",%.9g" : "%.9g",
                   cosine(embed_vector(x, 0), embed_vector(x, x->written + 1), p->dimensions));
    if (x->written < p->n - 1) return true;
    buf_char(out, ']');
    return false;
}

static void answer_vectors(struct embed_exchange *x)
{
    embed_reply_chunks(x, write_tei);
}

static void answer_similarities(struct embed_exchange *x)
{
    embed_reply_chunks(x, write_similarities);
}

void api_embed(struct http_req *req)
{
    embed_exchange_begin(req, EMBED_TEI, answer_vectors);
}

void api_similarity(struct http_req *req)
{
    embed_exchange_begin(req, EMBED_SIMILARITY, answer_similarities);
}
