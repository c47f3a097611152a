#include "engine/train/exchange.h"

#include "engine/train/op_chunks.h"
#include "kernels/comm.h"

static struct op_chunks chunks_of(const struct optim *o)
{
    return (struct op_chunks){o->d, o->gate, NULL};
}

/* The ranks' parts of a unit, in floats or bytes. */
static void parts_of(const struct optim *o, const struct shard_unit *u, size_t size, size_t from[COMM_RANKS_MAX + 1])
{
    for (int r = 0; r <= o->s.parts; r++) from[r] = shards_part(&o->s, u, r) * size;
}

static void copy(struct optim *o, float *to, const float *from, size_t n)
{
    enum { SLICE = 1 << 19 }; /* floats per pass of the gate */
    for (size_t i = 0, k; i < n; i += k) {
        k = n - i < SLICE ? n - i : SLICE;
        scheduler_gate_pass(o->gate);
        scheduler_gate_cost(o->gate, WORK_STATE, 2 * (double)k);
        op_axpby(o->d, (struct axpby_args){to + i, from + i, k, 1, 0});
    }
}

void exchange_sum(struct optim *o, const struct shard_unit *u, float *g)
{
    size_t from[COMM_RANKS_MAX + 1];
    parts_of(o, u, 1, from);
    comm_reduce_parts(o->comm, g, from);
}

void exchange_reduce(struct optim *o, const struct shard_unit *u, float *g)
{
    size_t at = shards_part(&o->s, u, o->s.part), n = shards_part(&o->s, u, o->s.part + 1) - at;
    if (!o->comm) return;
    if (!o->staged) {
        scheduler_gate_settle(o->gate, o->d);
        exchange_sum(o, u, g);
        return;
    }
    chunked_download(chunks_of(o), o->staged, g, u->n);
    scheduler_gate_leave(o->gate);
    exchange_sum(o, u, o->staged);
    chunked_upload(chunks_of(o), g + at, o->staged + at, n);
}

void exchange_gather(struct optim *o, const struct shard_unit *u, const float *values)
{
    size_t from[COMM_RANKS_MAX + 1], at = shards_part(&o->s, u, o->s.part);
    size_t n = shards_part(&o->s, u, o->s.part + 1) - at;
    float *to = u->whole ? o->whole + u->whole_at : optim_grad(o, u->from);
    if (!o->staged) copy(o, to + at, values + u->own, n);
    if (!o->comm) return;
    parts_of(o, u, sizeof *values, from);
    if (!o->staged) {
        scheduler_gate_settle(o->gate, o->d);
        comm_gather_parts(o->comm, to, from);
        return;
    }
    chunked_download(chunks_of(o), o->staged + at, values + u->own, n);
    scheduler_gate_leave(o->gate);
    comm_gather_parts(o->comm, o->staged, from);
    chunked_upload(chunks_of(o), to, o->staged, u->n);
}

void exchange_gather_whole(struct optim *o, const float *values)
{
    for (size_t i = 0; i < o->s.n_units; i++)
        if (o->s.unit[i].whole) exchange_gather(o, &o->s.unit[i], values);
}

void exchange_set(struct optim *o, size_t at, const float *host, size_t n)
{
    const struct shard_unit *u = shards_at(&o->s, at);
    size_t first = shards_part(&o->s, u, o->s.part), begin = u->from + first;
    size_t end = u->from + shards_part(&o->s, u, o->s.part + 1);
    size_t from = begin > at ? begin : at, to = end < at + n ? end : at + n;
    if (from < to) chunked_upload(chunks_of(o), o->p + u->own + (from - begin), host + (from - at), to - from);
}

void exchange_take_whole(struct optim *o)
{
    for (size_t i = 0; i < o->s.n_units && o->s.divided; i++) {
        const struct shard_unit *u = &o->s.unit[i];
        size_t at = shards_part(&o->s, u, o->s.part), n = shards_part(&o->s, u, o->s.part + 1) - at;
        if (u->whole) copy(o, o->p + u->own, o->whole + u->whole_at + at, n);
    }
}
