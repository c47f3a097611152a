#include "engine/train/objective.h"

#include <math.h>

struct objective objective_of(const struct train_params *p)
{
    static const enum preference_loss losses[] = {[TRAIN_DPO] = PREFERENCE_DPO,
                                                  [TRAIN_ORPO] = PREFERENCE_ORPO,
                                                  [TRAIN_SIMPO] = PREFERENCE_SIMPO,
                                                  [TRAIN_KTO] = PREFERENCE_KTO,
                                                  [TRAIN_REWARD] = PREFERENCE_REWARD};
    return (struct objective){.p = {.loss = losses[p->method],
                                    .beta = p->beta,
                                    .label_smoothing = p->label_smoothing,
                                    .gamma = p->gamma,
                                    .center = p->center,
                                    .desirable_weight = p->desirable_weight,
                                    .undesirable_weight = p->undesirable_weight},
                              .singles = p->method == TRAIN_KTO,
                              .reference = p->method == TRAIN_DPO || p->method == TRAIN_KTO,
                              .texts = p->method == TRAIN_ORPO};
}

struct preference_answer objective_answer(const struct micro *b, int i, const float *loss)
{
    struct preference_answer a = {0};
    for (int t = b->seq[i].target; t < b->seq[i + 1].target; t++) {
        if (!b->answer[t]) continue;
        a.sum -= (double)loss[t];
        a.n++;
    }
    return a;
}

/* The row whose sequences begin with sequence i. */
static struct preference_value value_of(const struct objective *o, const struct micro *b, int i, const float *loss)
{
    struct preference_answer a = objective_answer(b, i, loss), other;
    size_t row = b->seq[i].row;
    if (o->singles) {
        a.reference = o->known[row];
        return preference_single(&o->p, &a, !b->seq[i].undesirable, o->kl);
    }
    other = objective_answer(b, i + 1, loss);
    if (o->reference) {
        a.reference = o->known[2 * row];
        other.reference = o->known[2 * row + 1];
    }
    return preference_pair(&o->p, &a, &other);
}

static int sequences(const struct objective *o)
{
    return o->singles ? 1 : 2;
}

void objective_add(const struct objective *o, const struct micro *b, const float *loss, struct objective_sums *sum)
{
    for (int i = 0; i < b->n_seqs; i += sequences(o)) {
        struct preference_value v = value_of(o, b, i, loss);
        bool undesirable = o->singles && b->seq[i].undesirable;
        sum->loss += v.loss;
        sum->kl += o->kl;
        sum->chosen += v.chosen;
        sum->rejected += v.rejected;
        sum->rows++;
        sum->n_chosen += !undesirable;
        sum->n_rejected += !o->singles || undesirable;
        sum->accurate += v.chosen > v.rejected;
        if (!o->texts) continue;
        for (int t = b->seq[i].target; t < b->seq[i + 1].target; t++) sum->text_loss += (double)loss[t];
        sum->tokens += b->seq[i + 1].target - b->seq[i].target;
    }
}

/* The gradient of -log p of a sequence's targets; d: the derivative of the loss by the sum of its answer's log p. */
static void put_factors(const struct micro *b, int i, double d, double of_text, float *factor)
{
    for (int t = b->seq[i].target; t < b->seq[i + 1].target; t++) factor[t] = (float)(of_text - (b->answer[t] ? d : 0));
}

void objective_weigh(void *arg, const struct micro *b, const float *loss, float *factor)
{
    const struct objective *o = arg;
    double each = 1 / (double)o->rows, of_text = o->texts ? 1 / (double)o->chosen_tokens : 0;
    for (int i = 0; i < b->n_seqs; i += sequences(o)) {
        struct preference_value v = value_of(o, b, i, loss);
        if (o->singles) {
            put_factors(b, i, (v.d_chosen + v.d_rejected) * each, 0, factor);
            continue;
        }
        put_factors(b, i, v.d_chosen * each, of_text, factor);
        put_factors(b, i + 1, v.d_rejected * each, 0, factor);
    }
}

double objective_loss(const struct objective_sums *s)
{
    return s->loss / (double)s->rows + (s->tokens ? s->text_loss / (double)s->tokens : 0);
}

struct train_rewards objective_rewards(const struct objective *o, const struct objective_sums *s)
{
    struct train_rewards r = train_no_rewards;
    if (s->n_chosen) r.chosen = s->chosen / (double)s->n_chosen;
    if (s->n_rejected) r.rejected = s->rejected / (double)s->n_rejected;
    if (!o->singles) r.accuracies = (double)s->accurate / (double)s->rows;
    if (o->singles) r.kl = s->kl / (double)s->rows;
    r.margins = r.chosen - r.rejected;
    return r;
}
