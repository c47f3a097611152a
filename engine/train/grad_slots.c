#include "engine/train/grad_slots.h"

#include "engine/train/exchange.h"
#include "engine/train/exchanger.h"

enum { CHUNK = 1 << 19 }; /* floats per pass of the gate */

int grad_slots_init(struct grad_slots *s, int slots, int rank, int ranks, int stage, struct err *e)
{
    *s = (struct grad_slots){.all = slots, .first = 0, .count = slots, .stride = 1, .next = -1, .pending = -1};
    if (ranks < 1 || slots % ranks)
        return err_set(e, ERR_INVALID, "grad_slots: %d slots cannot be divided over %d ranks: both are powers of two",
                       slots, ranks);
    s->count = slots / ranks;
    s->first = stage > 1 ? rank : rank * s->count;
    s->stride = stage > 1 ? ranks : 1;
    return 0;
}

int grad_slots_number(const struct grad_slots *s, int i)
{
    return s->first + i * s->stride;
}

static size_t floats_of(const struct optim *o)
{
    return o->s.grads ? o->s.own : o->n;
}

size_t grad_slots_bytes(const struct grad_slots *s, const struct optim *o)
{
    return (size_t)grad_slots_levels(s) * floats_of(o) * sizeof(float);
}

int grad_slots_levels(const struct grad_slots *s)
{
    int n = 0;
    while (1 << n < s->count) n++;
    return n;
}

int grad_slots_alloc(struct grad_slots *s, struct optim *o, struct err *e)
{
    for (int i = 0; i < grad_slots_levels(s); i++)
        if (!(s->level[i] = o->d->ops->alloc(o->d, (floats_of(o) + 1) * sizeof(float))))
            return err_set(e, ERR_NOMEM, "no memory for the gradients of %d slots", s->count);
    return 0;
}

void grad_slots_free(struct grad_slots *s, struct dev *d)
{
    for (int i = 0; i < GRAD_SLOT_LEVELS; i++)
        if (s->level[i]) d->ops->free(d, s->level[i]);
    *s = (struct grad_slots){0};
}

/* y = x + beta y, of n */
static void add(struct optim *o, float *y, const float *x, size_t n, double beta)
{
    for (size_t i = 0, k; i < n; i += k) {
        k = n - i < CHUNK ? n - i : CHUNK;
        scheduler_gate_pass(o->gate);
        scheduler_gate_cost(o->gate, WORK_STATE, 3 * (double)k);
        op_axpby(o->d, (struct axpby_args){y + i, x + i, k, 1, beta});
    }
}

void grad_slots_begin(struct grad_slots *s, struct optim *o)
{
    s->done = 0;
    s->next = s->layers - 1;
    optim_zero_grad(o);
}

/* ---- stage 2 ----------------------------------------------------------------------------------------------------- */

/* The rank's slices of a unit, which are summed over the ranks, are added to those of the slots before. */
static void add_unit(struct grad_slots *s, struct optim *o, const struct shard_unit *u)
{
    float *g = o->pass + u->grads_at;
    size_t at = shards_part(&o->s, u, o->s.part), n = shards_part(&o->s, u, o->s.part + 1) - at;
    int level = 0;
    for (; s->done >> level & 1; level++) add(o, g + at, s->level[level] + u->own, n, 1);
    add(o, (s->done + 1 == s->count ? o->g : s->level[level]) + u->own, g + at, n, 0); /* a copy */
    scheduler_gate_pass(o->gate);
    dev_zero(o->d, g, u->n);
}

/* The units of a layer, -1: of none.  With `reduce` they are summed over the ranks first. */
static void add_layer(struct grad_slots *s, struct optim *o, int layer, bool reduce)
{
    for (size_t i = 0; i < o->s.n_units; i++) {
        const struct shard_unit *u = &o->s.unit[i];
        if (u->layer != layer) continue;
        if (reduce) exchange_reduce(o, u, o->pass + u->grads_at);
        add_unit(s, o, u);
    }
}

/* On the exchanger's thread. */
static void sum_layer(void *optim, int layer)
{
    struct optim *o = optim;
    for (size_t i = 0; i < o->s.n_units; i++)
        if (o->s.unit[i].layer == layer) exchange_sum(o, &o->s.unit[i], o->pass + o->s.unit[i].grads_at);
}

static void settle(struct grad_slots *s, struct optim *o)
{
    if (s->pending < 0) return;
    exchanger_wait(o->exchanger, s->which);
    add_layer(s, o, s->pending, false);
    s->pending = -1;
}

/* The place of a layer is that of the one before the last, which is settled when the last one is complete. */
void grad_slots_layer(struct grad_slots *s, struct optim *o, int layer)
{
    for (; s->next >= layer && s->next >= 0; s->next--) {
        settle(s, o);
        if (!o->exchanger) {
            add_layer(s, o, s->next, true);
            continue;
        }
        s->pending = s->next;
        scheduler_gate_settle(o->gate, o->d);
        s->which = exchanger_start(o->exchanger, sum_layer, o, s->pending);
    }
}

static void end_of_pass(struct grad_slots *s, struct optim *o)
{
    grad_slots_layer(s, o, 0);
    settle(s, o);
    add_layer(s, o, -1, true);
    s->next = s->layers - 1;
    s->done++;
}

/* ------------------------------------------------------------------------------------------------------------------ */

void grad_slots_end(struct grad_slots *s, struct optim *o)
{
    int level = 0;
    if (o->s.grads) {
        end_of_pass(s, o);
        return;
    }
    for (; s->done >> level & 1; level++) add(o, o->g, s->level[level], o->n, 1);
    if (++s->done == s->count) return;
    add(o, s->level[level], o->g, o->n, 0); /* a copy */
    optim_zero_grad(o);
}
