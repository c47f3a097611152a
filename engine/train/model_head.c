/* The end of the model in training: from the last layer's output to the losses, and back (model.h). */
#include "engine/train/model_head.h"

#include "engine/model/layer.h"
#include "engine/train/op_chunks.h"

static struct mat first(struct mat m, int rows)
{
    m.rows = rows;
    return m;
}

/* c (+)= alpha a b, or a b^T */
static void gemm(struct train_model *m, struct mat c, struct mat a, struct mat b, bool tb, float alpha, bool accumulate)
{
    struct op_chunks chunks = {m->d, m->gate, m->watch};
    chunked_gemm(chunks,
                 (struct gemm_args){
                     .c = c, .a = a, .b = b, .tb = tb, .accumulate = accumulate, .half = m->half, .alpha = alpha});
}

/* The site of the LM head, whose input h has no dropout. */
static void head_site(struct train_model *m, struct mat logits, struct mat h)
{
    struct op_chunks chunks = {m->d, m->gate, m->watch};
    const struct site *s = train_site(m, 0, GEMM_LM_HEAD);
    if (!s->r) return;
    struct mat xa = first(m->head_xa, h.rows);
    gemm(m, xa, h, mat_f32(s->a, s->r, s->k), true, 1, false);
    if (m->exact.kv_type != DT_NONE)
        train_exact_adapt(chunks, s, 0, logits, h);
    else
        gemm(m, logits, xa, mat_f32(s->part->b, s->part->n, s->r), true, s->part->scale, true);
}

/* dh += */
static void head_site_back(struct train_model *m, struct mat h, struct mat dlogits, struct mat dh)
{
    struct op_chunks chunks = {m->d, m->gate, m->watch};
    const struct site *s = train_site(m, 0, GEMM_LM_HEAD);
    if (!s->r) return;
    struct mat du = {m->du.p, DT_F32, h.rows, s->r, s->r};
    gemm(m, du, dlogits, mat_f32(s->part->b, s->part->n, s->r), false, s->part->scale, false);
    /* their rows are targets, all of one unit */
    chunked_weight_grad(chunks, s->part->db, dlogits, first(m->head_xa, h.rows), s->part->scale, m->half);
    chunked_weight_grad(chunks, s->da, du, h, 1, m->half);
    gemm(m, dh, du, mat_f32(s->a, s->r, s->k), false, 1, true);
}

/* The rows of up to head_rows targets from `from` on, and their norms. */
static void head_input(struct train_model *m, int from, struct mat x, struct mat h)
{
    struct op_chunks chunks = {m->d, m->gate, m->watch};
    size_t before = (size_t)m->c->layers * (size_t)m->max_tokens * (size_t)m->c->hidden;
    if (m->watch) m->watch->layer = m->c->layers, m->watch->target = from;
    chunked_rows(chunks, (struct rows_args){x, mat_f32(m->x + before, m->b->n_tokens, m->c->hidden), m->row + from});
    chunked_norm(chunks, (struct norm_args){h, x, m->w->norm_w, m->w->norm_b, m->c->eps, m->c->norm});
}

/* Adds the gradient dh of the norms of these rows to dx, at their tokens. */
static void head_input_back(struct train_model *m, int from, struct mat x, struct mat dh, struct mat dx)
{
    struct op_chunks chunks = {m->d, m->gate, m->watch};
    const struct model_grads *g = m->grads;
    chunked_norm_back(chunks, (struct norm_back_args){dh, x, dh, m->w->norm_w, m->c->eps, m->c->norm, false,
                                                      g ? g->norm_w : NULL, g ? g->norm_b : NULL});
    /* scatters: row[t] are distinct */
    chunked_embed_back(chunks, (struct embed_back_args){.dtable = dx, .dx = dh, .id = m->row + from});
}

/* What head does, of a head of scores: loss = -h score^T, without rounding. */
static void score_head(struct train_model *m, int from, int n, bool back, struct mat dx)
{
    struct op_chunks chunks = {m->d, m->gate, m->watch};
    struct mat x = first(m->hx, n), h = first(m->hh, n), dh = first(m->hd, n),
               w = mat_f32((float *)m->score, 1, h.cols);
    head_input(m, from, x, h);
    chunked_gemm(chunks,
                 (struct gemm_args){.c = mat_f32(m->loss + from, n, 1), .a = h, .b = w, .tb = true, .alpha = -1});
    if (!back) return;
    struct mat factor = mat_f32(m->scale + from, n, 1);
    chunked_weight_grad(chunks, m->dscore, factor, h, -1, false);
    chunked_gemm(chunks, (struct gemm_args){.c = dh, .a = factor, .b = w, .alpha = -1});
    head_input_back(m, from, x, dh, dx);
}

/* Computes the losses of up to head_rows targets from `from` on; with back, adds the gradient with respect to the last
 * layer's output at their tokens to dx. */
static void head(struct train_model *m, int from, int n, bool back, struct mat dx)
{
    struct op_chunks chunks = {m->d, m->gate, m->watch};
    const struct weights *w = m->w;
    const struct model_grads *g = m->grads;
    struct mat x = first(m->hx, n), h = first(m->hh, n), dh = first(m->hd, n), logits = first(m->logits, n);
    head_input(m, from, x, h);
    chunked_linear(chunks, (struct linear_args){logits, h, w->head, w->head_b}, true);
    head_site(m, logits, h);
    if (layer_changes_logits(m->c))
        chunked_softcap(chunks, (struct softcap_args){logits, m->c->logit_scale, m->c->logit_softcap});
    if (m->distill && m->distill->records) {
        distill_record(m->distill, chunks, logits, from);
        return;
    }
    if (m->distill) distill_weigh(m->distill, chunks, m, logits, from, back);
    chunked_cross_entropy(chunks, (struct cross_entropy_args){logits, m->target + from, back ? m->scale + from : NULL,
                                                              m->loss + from, m->hit + from, back, m->c->logit_scale,
                                                              m->c->logit_softcap});
    if (m->distill) distill_correct(m->distill, chunks, m, logits, from, back);
    if (!back) return;
    if (g) {
        chunked_weight_grad(chunks, g->head, logits, h, 1, m->half);
        chunked_col_sum(chunks, (struct col_sum_args){logits, g->head_b});
    }
    chunked_linear_back(chunks, (struct linear_back_args){dh, logits, w->head, false}, true);
    head_site_back(m, h, logits, dh);
    head_input_back(m, from, x, dh, dx);
}

/* The losses of all targets.  Without gradients of the head or of scores there is no sum over tokens, and units are no
 * bounds. */
void train_heads(struct train_model *m, bool back, struct mat dx)
{
    const struct micro *b = m->b;
    bool sums = m->grads || m->score || train_site(m, 0, GEMM_LM_HEAD)->r;
    int units = sums ? b->n_units : 1;
    for (int i = 0; i < units; i++)
        for (int end = sums ? b->unit_target[i + 1] : b->n_targets, from = sums ? b->unit_target[i] : 0, n; from < end;
             from += n) {
            n = end - from < m->head_rows ? end - from : m->head_rows;
            (m->score ? score_head : head)(m, from, n, back, dx);
        }
}
