/* The ranks of a job: what they gather, sum and share (train_state.h).  How their gradients are summed: grad_slots.h.
 */
#include "engine/base/mem.h"
#include "engine/train/base_layers.h"
#include "engine/train/exchange.h"
#include "engine/train/train_state.h"
#include "kernels/comm.h"
#include "kernels/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 20 }; /* gradients that are on the host at once, of a device with its own memory */

static int broken(const struct train *t, struct err *e)
{
    const char *why = comm_error(t->job.comm);
    return why ? err_set(e, ERR_IO, "%s", why) : 0;
}

/* What the other ranks are told of an outcome; 0: nothing failed here. */
static int code_of(enum outcome o, const struct err *e)
{
    return o != FAILED ? 0 : e->code ? e->code : ERR_IO;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static void add_preferences(struct objective_sums *to, const struct objective_sums *from)
{
    to->loss += from->loss;
    to->text_loss += from->text_loss;
    to->chosen += from->chosen;
    to->rejected += from->rejected;
    to->kl += from->kl;
    to->rows += from->rows;
    to->tokens += from->tokens;
    to->n_chosen += from->n_chosen;
    to->n_rejected += from->n_rejected;
    to->accurate += from->accurate;
}

static void add_slot(struct step_sums *to, const struct step_sums *from)
{
    to->loss += from->loss;
    to->targets += from->targets;
    to->rows += from->rows;
    to->hits += from->hits;
    to->tokens += from->tokens;
    to->micro_batches += from->micro_batches;
    add_preferences(&to->preferences, &from->preferences);
}

/* Each rank's slots to all. */
static void gather_slots(struct train *t, struct step_sums slot[GRAD_SLOTS_MAX])
{
    const struct grad_slots *s = &t->slots;
    struct step_sums own[GRAD_SLOTS_MAX], all[GRAD_SLOTS_MAX];
    int ranks = s->all / s->count;
    for (int i = 0; i < s->count; i++) own[i] = slot[grad_slots_number(s, i)];
    comm_all_gather(t->job.comm, own, all, (size_t)s->count * sizeof *own);
    for (int r = 0; r < ranks; r++)
        for (int i = 0; i < s->count; i++)
            slot[s->stride > 1 ? i * ranks + r : r * s->count + i] = all[r * s->count + i];
}

enum outcome train_gather_sums(struct train *t, enum outcome o, struct step_sums slot[GRAD_SLOTS_MAX],
                               struct step_sums *sum, struct err *e)
{
    struct comm *c = t->job.comm;
    if (c) {
        scheduler_gate_leave(t->gate); /* serving has the device while this rank waits for others */
        if (ranks_agree(c, code_of(o, e), e)) return FAILED;
        gather_slots(t, slot);
        if (broken(t, e)) return FAILED;
    }
    for (int i = 0; i < t->slots.all && o == GO_ON; i++) add_slot(sum, &slot[i]);
    return o;
}

/* By way of the host. */
static void reduce_chunks(struct train *t)
{
    float *host = mem_array(CHUNK, sizeof *host);
    for (size_t i = 0, n; i < t->o.n; i += n) {
        n = t->o.n - i < CHUNK ? t->o.n - i : CHUNK;
        chunked_download(train_chunks(t), host, t->o.g + i, n);
        scheduler_gate_leave(t->gate);
        comm_all_reduce(t->job.comm, host, n);
        chunked_upload(train_chunks(t), t->o.g + i, host, n);
    }
    free(host);
}

enum outcome train_reduce_gradients(struct train *t, struct err *e)
{
    if (!t->job.comm) return GO_ON;
    for (size_t i = 0; i < t->o.s.n_units && t->o.s.divided && !t->o.s.grads; i++)
        exchange_reduce(&t->o, &t->o.s.unit[i], t->o.g + t->o.s.unit[i].from);
    if (t->o.s.divided) return broken(t, e) ? FAILED : GO_ON; /* at stage 2 they were summed slot by slot */
    if (dev_host_memory(t->d)) {
        scheduler_gate_settle(t->gate, t->d);
        comm_all_reduce(t->job.comm, t->o.g, t->o.n);
    } else {
        reduce_chunks(t);
    }
    return broken(t, e) ? FAILED : GO_ON;
}

/* ---- weights that are gathered ----------------------------------------------------------------------------------- */

static void gather_layer(void *arg, int layer, int next, bool back)
{
    struct train *t = arg;
    step_clock_read(t->tm.clock, back ? TRAIN_BACKWARD : TRAIN_FORWARD);
    layer_gather_use(t->lora_method ? base_layers_gather(t->job.base) : &t->full.gather, layer, next);
    step_clock_read(t->tm.clock, TRAIN_RANKS);
}

void train_gather_layers(struct train *t, struct train_model *m)
{
    if (!t->o.s.values || (t->lora_method && !t->job.base)) return;
    m->layer_begins = gather_layer;
    m->begins_arg = t;
}

bool train_any_runs(struct train *t, bool own)
{
    struct comm *c = t->job.comm;
    bool all[COMM_RANKS_MAX], any = false;
    if (!t->o.s.values) return false;
    scheduler_gate_leave(t->gate);
    comm_all_gather(c, &own, all, sizeof own);
    for (int i = 0; i < comm_ranks(c); i++) any |= all[i];
    return any && !comm_error(c);
}

void train_skim(struct train *t, bool back)
{
    if (t->distills && !t->job.answers) train_model_skim(&t->teacher.tm, false);
    train_model_skim(&t->tm, back);
}

/* ---- agreement --------------------------------------------------------------------------------------------------- */

enum outcome train_agree(struct train *t, enum outcome o, double exchanged, struct err *e)
{
    struct {
        int64_t command, late;
        double exchanged;
    } own = {atomic_load(&t->command), train_save_late(t), exchanged}, *all;
    struct comm *c = t->job.comm;
    if (!c) return o;
    scheduler_gate_leave(t->gate);
    if (ranks_agree(c, code_of(o, e), e)) return FAILED;
    all = mem_array((size_t)comm_ranks(c), sizeof *all);
    comm_all_gather(c, &own, all, sizeof own);
    for (int i = 0; i < comm_ranks(c); i++) {
        if (all[i].command > t->agreed) t->agreed = (int)all[i].command;
        if (all[i].exchanged < exchanged) exchanged = all[i].exchanged; /* the others waited, too */
    }
    t->usage.link_seconds += exchanged;
    t->agreed_late = all->late;
    free(all);
    return broken(t, e) ? FAILED : o;
}

_Static_assert((int)TRAIN_COLLECTIVES == (int)COMM_OPS, "operations");

const char *train_collective_name(int i)
{
    return comm_op_name((enum comm_op)i);
}

double train_gather_seconds(const struct train *t)
{
    return comm_profile(t->job.comm, COMM_ALL_GATHER).seconds;
}

void train_gather_memory(struct train *t)
{
    struct comm *c = t->job.comm;
    if (!c || t->usage.ranks < 2) return;
    train_note_peaks(t, true);
    t->memory.planned = t->plan.state_bytes + t->plan.activation_bytes;
    free(t->rank_memory);
    t->rank_memory = mem_array((size_t)comm_ranks(c), sizeof *t->rank_memory);
    comm_all_gather(c, &t->memory, t->rank_memory, sizeof t->memory);
}

void train_note_ranks(struct train *t)
{
    struct comm *c = t->job.comm;
    t->usage.sent_bytes = 0;
    for (int i = 0; c && i < COMM_OPS; i++) {
        struct comm_profile p = comm_profile(c, (enum comm_op)i);
        t->usage.collective[i] = (struct train_collective){(int64_t)p.calls, (int64_t)p.sent_bytes, p.seconds};
        t->usage.sent_bytes += (int64_t)p.sent_bytes;
    }
    t->usage.ranks = c ? comm_ranks(c) : 1;
}

int train_same_job(struct train *t, struct err *e)
{
    static const char other[] = "has another job than rank 0: the data, the model or the parameters are others";
    struct rank_kind own = rank_kind_of(t->d);
    own.work[0] = t->hash;
    return t->job.comm ? ranks_compare(t->job.comm, &own, (const char *const[]){other, other}, e) : 0;
}

int train_share_reference(struct train *t, int64_t *done, int rc, struct err *e)
{
    struct comm *c = t->job.comm;
    struct reference *of[2] = {&t->reference, &t->eval_reference};
    if (!c) return rc;
    if (ranks_agree(c, rc, e)) return e->code;
    comm_broadcast(c, done, sizeof *done, 0);
    for (int i = 0; i < 2; i++) comm_broadcast(c, of[i]->v, of[i]->n * sizeof *of[i]->v, 0);
    return broken(t, e);
}

/* One of the arrays of a checkpoint. */
static void share_array(struct train *t, int i)
{
    float *device = train_device_array(t, i);
    size_t n = train_array_floats(t, i);
    comm_broadcast(t->job.comm, t->host[i], n * sizeof(float), 0);
    if (t->host[i] != device && !train_ranks_first(t->job.comm)) chunked_upload(train_chunks(t), device, t->host[i], n);
}

/* The arrays of all ranks are the same. */
static void share_arrays(struct train *t)
{
    struct comm *c = t->job.comm;
    for (int i = 0; i < ARRAYS; i++)
        if (t->host[i]) share_array(t, i);
    if (t->best) comm_broadcast(c, t->best, t->o.s.own * sizeof(float), 0);
    if (!t->lora_method && !train_ranks_first(c)) train_full_use(&t->full, &t->o, t->o.p);
}

/* Each rank has its own parts of them by now. */
static void use_parts(struct train *t)
{
    for (int i = 0; i < ARRAYS; i++)
        if (t->host[i] != train_device_array(t, i))
            chunked_upload(train_chunks(t), train_device_array(t, i), t->host[i], train_array_floats(t, i));
    train_use(t, t->o.p);
}

void train_use(struct train *t, float *values)
{
    if (!t->lora_method)
        train_full_use(&t->full, &t->o, values);
    else if (t->o.s.divided)
        exchange_gather_whole(&t->o, values);
}

int train_share_state(struct train *t, int rc, struct err *e)
{
    struct comm *c = t->job.comm;
    if (!c) return rc;
    train_scatter_end(t);
    if (ranks_agree(c, rc, e)) return e->code;
    comm_broadcast(c, &t->saved, sizeof t->saved, 0);
    if (broken(t, e)) return e->code;
    if (t->saved < 0) return 0;
    comm_broadcast(c, &t->st, sizeof t->st, 0);
    if (t->o.s.divided)
        use_parts(t);
    else
        share_arrays(t);
    return broken(t, e);
}
