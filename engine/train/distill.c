#include "engine/train/distill.h"

#include "engine/base/mem.h"
#include "engine/model/layer.h"
#include "engine/train/divergence.h"
#include "engine/train/model.h"
#include "engine/train/op_chunks.h"
#include "kernels/trace.h"

#include <math.h>
#include <stdlib.h>

struct heap_item {
    float v;
    int32_t id;
};

double distill_bytes(int k, int targets, int rows)
{
    return (double)rows * (k + 1.0) * 4 * sizeof(float) + 2.0 * targets * k * sizeof(float);
}

static void *host(size_t n, size_t size, bool *failed)
{
    void *p = calloc(n ? n : 1, size);
    *failed |= !p;
    return p;
}

int distill_open(struct distill *s, struct dev *d, int k, int vocab, double beta, int targets, int rows, struct err *e)
{
    size_t picked = (size_t)rows * ((size_t)k + 1), kept = (size_t)targets * (size_t)k;
    bool failed = false;
    *s = (struct distill){.k = k, .vocab = vocab, .beta = beta, .rows = rows, .d = d};
    s->id = host(kept, sizeof *s->id, &failed);
    s->logprob = host(kept, sizeof *s->logprob, &failed);
    if (!dev_host_memory(d)) s->logits = host((size_t)rows * (size_t)vocab, sizeof *s->logits, &failed);
    s->index = host(picked, sizeof *s->index, &failed);
    s->value = host(picked, sizeof *s->value, &failed);
    s->factor = host((size_t)rows, sizeof *s->factor, &failed);
    s->loss = host((size_t)rows, sizeof *s->loss, &failed);
    s->heap = host((size_t)k, sizeof *s->heap, &failed);
    s->at = d->ops->alloc(d, picked * sizeof *s->at);
    s->picked = d->ops->alloc(d, picked * sizeof *s->picked);
    if (!failed && s->at && s->picked) return 0;
    return err_set(e, ERR_NOMEM, "no memory for the teacher's %d likeliest tokens of %d targets", k, targets);
}

void distill_close(struct distill *s)
{
    if (s->at) s->d->ops->free(s->d, s->at);
    if (s->picked) s->d->ops->free(s->d, s->picked);
    free(s->id);
    free(s->logprob);
    free(s->logits);
    free(s->index);
    free(s->value);
    free(s->factor);
    free(s->loss);
    free(s->heap);
    *s = (struct distill){0};
}

/* ---- the teacher ------------------------------------------------------------------------------------------------- */

/* Less likely: by the logit, then the higher id. */
static bool less(struct heap_item a, struct heap_item b)
{
    return a.v < b.v || (a.v == b.v && a.id > b.id);
}

static void sink(struct heap_item *h, int n, int i)
{
    struct heap_item x = h[i];
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && less(h[child + 1], h[child])) child++;
        if (!less(h[child], x)) break;
        h[i] = h[child];
    }
    h[i] = x;
}

static int by_likelihood(const void *a, const void *b)
{
    const struct heap_item *x = a, *y = b;
    return less(*y, *x) ? -1 : less(*x, *y);
}

/* The k largest logits of a row, in falling order. */
static void find_likeliest(struct heap_item *h, int k, const float *v, int vocab)
{
    for (int i = 0; i < k; i++) h[i] = (struct heap_item){v[i], i};
    for (int i = k / 2 - 1; i >= 0; i--) sink(h, k, i);
    for (int i = k; i < vocab; i++) {
        struct heap_item x = {v[i], i};
        if (!less(h[0], x)) continue;
        h[0] = x;
        sink(h, k, 0);
    }
    qsort(h, (size_t)k, sizeof *h, by_likelihood);
}

static double log_sum(const float *v, int n, float most)
{
    double sum = exp((double)(v[0] - most));
    for (int i = 1; i < n; i++) sum += exp((double)(v[i] - most));
    return (double)most + log(sum);
}

void distill_record(struct distill *s, struct op_chunks c, struct mat logits, int from)
{
    size_t V = (size_t)s->vocab, k = (size_t)s->k;
    if (s->dry || c.d->ops->finish(c.d)) return;
    if (s->logits) chunked_download(c, s->logits, logits.p, (size_t)logits.rows * V);
    for (int r = 0; r < logits.rows; r++) {
        scheduler_gate_pass(c.gate); /* a row of a large vocabulary takes a millisecond */
        const float *v = (s->logits ? s->logits : (const float *)logits.p) + (size_t)r * V;
        find_likeliest(s->heap, s->k, v, s->vocab);
        double all = log_sum(v, s->vocab, s->heap[0].v);
        size_t to = ((size_t)from + (size_t)r) * k;
        for (size_t i = 0; i < k; i++) {
            s->id[to + i] = s->heap[i].id;
            s->logprob[to + i] = (float)((double)s->heap[i].v - all);
        }
    }
}

/* ---- the student ------------------------------------------------------------------------------------------------- */

/* The logits as a table of single numbers. */
static struct mat flat(struct mat logits)
{
    return (struct mat){logits.p, DT_F32, logits.rows * logits.cols, 1, 1};
}

/* Which numbers of the logits are needed. */
static void choose(struct distill *s, const struct train_model *m, int n, int from)
{
    for (int r = 0; r < n; r++) {
        int32_t *to = s->index + (size_t)r * ((size_t)s->k + 1);
        const int32_t *id = s->id + ((size_t)from + (size_t)r) * (size_t)s->k;
        for (int i = 0; i < s->k; i++) to[i] = r * s->vocab + id[i];
        to[s->k] = r * s->vocab + m->b->target[from + r];
    }
}

/* op softcap's derivative, by what it wrote. */
static double cap_slope(const struct model_config *c, double z)
{
    double scale = c->logit_scale > 0 ? (double)c->logit_scale : 1, cap = (double)c->logit_softcap;
    return cap > 0 ? scale * (1 - z / cap * (z / cap)) : scale;
}

/* s->value: the logits that were chosen; they become what the gradient has beside the cross-entropy's.  lse: the
 * logarithm of the row's sum of exp. */
static void weigh_row(struct distill *s, const struct train_model *m, int r, int from, double lse, double *student,
                      double *slope)
{
    int k = s->k;
    float *value = s->value + (size_t)r * ((size_t)k + 1);
    const int32_t *at = s->index + (size_t)r * ((size_t)k + 1);
    double sum = 0;
    for (int i = 0; i < k; i++) student[i] = (double)value[i] - lse;
    s->loss[r] = (float)divergence(s->beta, k, k < s->vocab, s->logprob + ((size_t)from + (size_t)r) * (size_t)k,
                                   student, slope);
    for (int i = 0; i < k; i++) sum += slope[i];
    /* (softmax - onehot) * -sum, which has the target's sum too much */
    s->factor[r] = (float)(-sum * (double)s->scale);
    for (int i = 0; i <= k; i++) {
        double v = i < k ? slope[i] - (at[i] == at[k] ? sum : 0) : -sum;
        for (int j = 0; i == k && j < k; j++)
            if (at[j] == at[k]) v = 0;
        double z = (double)value[i], by = layer_changes_logits(m->c) ? cap_slope(m->c, z) : 1;
        value[i] = (float)(v * by * (double)s->scale);
    }
}

void distill_weigh(struct distill *s, struct op_chunks c, struct train_model *m, struct mat logits, int from, bool back)
{
    size_t n = (size_t)logits.rows, picked = n * ((size_t)s->k + 1);
    struct dev *d = m->d;
    struct mat values = mat_f32(s->picked, (int)picked, 1);
    choose(s, m, logits.rows, from);
    d->ops->upload(d, s->at, s->index, picked * sizeof *s->at);
    chunked_rows(c, (struct rows_args){values, flat(logits), s->at});
    chunked_cross_entropy(c, (struct cross_entropy_args){logits, m->target + from, NULL, m->loss + from, m->hit + from,
                                                         false, m->c->logit_scale, m->c->logit_softcap});
    if (d->ops->finish(d)) return;
    d->ops->download(d, s->value, s->picked, picked * sizeof *s->value);
    d->ops->download(d, s->loss, m->loss + from, n * sizeof *s->loss);
    double *student = mem_array((size_t)s->k, sizeof *student), *slope = mem_array((size_t)s->k, sizeof *slope);
    for (int r = 0; r < logits.rows; r++) {
        double lse = (double)s->loss[r] + (double)s->value[(size_t)r * ((size_t)s->k + 1) + (size_t)s->k];
        weigh_row(s, m, r, from, lse, student, slope);
    }
    free(student);
    free(slope);
    if (!back) return;
    d->ops->upload(d, m->scale + from, s->factor, n * sizeof *s->factor);
    d->ops->upload(d, s->picked, s->value, picked * sizeof *s->value);
}

void distill_correct(struct distill *s, struct op_chunks c, struct train_model *m, struct mat logits, int from,
                     bool back)
{
    size_t n = (size_t)logits.rows, picked = n * ((size_t)s->k + 1);
    if (back)
        chunked_embed_back(
            c, (struct embed_back_args){.dtable = flat(logits), .dx = mat_f32(s->picked, (int)picked, 1), .id = s->at});
    m->d->ops->upload(m->d, m->loss + from, s->loss, n * sizeof *s->loss);
}
