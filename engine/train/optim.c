#include "engine/train/optim.h"

#include "engine/base/mem.h"
#include "engine/train/exchanger.h"
#include "kernels/comm.h"
#include "kernels/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGN_FLOATS = 16,
    BLOCK = 256,     /* of adamw_8bit */
    SLICE = 1 << 19, /* floats per pass of the gate: about a millisecond of adamw */
};

#define ADAMW_FLOATS 7.0      /* floats moved per parameter: four read, three written */
#define ADAMW_8BIT_FLOATS 8.0 /* fewer are moved, but codes are searched */
#define BUS 40.0              /* the time of a float over the bus, in those of one in the device's memory */

void optim_init(struct optim *o, struct dev *d, struct scheduler_gate *gate)
{
    *o = (struct optim){.d = d, .gate = gate, .adding = "other", .adding_layer = -1, .adding_whole = true};
}

void optim_read_in_place(struct optim *o, bool whole)
{
    o->adding_whole = whole;
}

void optim_group(struct optim *o, const char *name)
{
    o->adding_layer = -1;
    snprintf(o->adding, sizeof o->adding, "%s", name);
}

static size_t current_group(struct optim *o)
{
    size_t i = 0;
    while (i < o->n_groups && strcmp(o->group[i].name, o->adding) != 0) i++;
    if (i < o->n_groups) return i;
    mem_grow(&o->group, &o->cap_groups, i + 1, sizeof *o->group);
    o->group[i] = (struct train_group_norm){0};
    memcpy(o->group[i].name, o->adding, sizeof o->adding);
    return o->n_groups++;
}

void optim_group_layer(struct optim *o, int layer)
{
    char name[TRAIN_GROUP_NAME_MAX];
    snprintf(name, sizeof name, "layer.%d", layer);
    optim_group(o, name);
    o->adding_layer = layer;
}

/* Floats `at` and after belong to the current group. */
static void add_range(struct optim *o, size_t at, size_t n)
{
    size_t last = o->n_ranges - 1, group = current_group(o);
    if (o->n_ranges && o->range[last].group == group) {
        o->range[last].n += n;
        return;
    }
    mem_grow(&o->range, &o->cap_ranges, o->n_ranges + 1, sizeof *o->range);
    o->range[o->n_ranges].from = at;
    o->range[o->n_ranges].n = n;
    o->range[o->n_ranges++].group = group;
}

/* @return the offset of n more parameters; their moments are the last of their kind. */
static size_t add_values(struct optim *o, size_t n, bool is_8bit)
{
    size_t at = o->n, align = is_8bit ? BLOCK : ALIGN_FLOATS, padded = (n + align - 1) / align * align;
    o->n += padded;
    *(is_8bit ? &o->n_8bit : &o->n_f32) += padded;
    o->trained += n;
    add_range(o, at, o->n - at);
    return at;
}

size_t optim_add_muon(struct optim *o, size_t n)
{
    return add_values(o, n, false);
}

static struct shard_unit unit_of(struct optim *o, size_t from, size_t n)
{
    return (struct shard_unit){
        .from = from, .n = n, .group = current_group(o), .whole = o->adding_whole, .layer = o->adding_layer};
}

void optim_add_matrix(struct optim *o, size_t at, int rows, int cols)
{
    struct shard_unit u = unit_of(o, at, (size_t)rows * (size_t)cols);
    u.moments = at;
    u.matrix = true;
    shards_add(&o->s, &u);
    muon_add(&o->muon, at, rows, cols);
}

size_t optim_add(struct optim *o, size_t n, bool decay)
{
    bool is_8bit = o->states_8bit && n >= OPTIM_8BIT_LEAST;
    size_t moments = is_8bit ? o->n_8bit : o->n_f32, at = add_values(o, n, is_8bit);
    struct shard_unit u = unit_of(o, at, o->n - at);
    u.moments = moments;
    u.decay = decay;
    u.is_8bit = is_8bit;
    shards_add(&o->s, &u);
    return at;
}

/* ---- division ---------------------------------------------------------------------------------------------------- */

/* This rank's slices of a unit are updated; together with those before, where they are one stretch. */
static void add_segment(struct optim *o, const struct shard_unit *u)
{
    size_t at = shards_part(&o->s, u, o->s.part), n = shards_part(&o->s, u, o->s.part + 1) - at;
    size_t g = o->s.grads ? u->own : u->from + at, last = o->n_segments - 1;
    bool follows = o->n_segments && o->segment[last].decay == u->decay && o->segment[last].is_8bit == u->is_8bit &&
                   o->segment[last].p + o->segment[last].n == u->own && o->segment[last].g + o->segment[last].n == g &&
                   o->segment[last].moments + o->segment[last].n == u->own_moments;
    if (!n) return;
    if (follows) {
        o->segment[last].n += n;
        return;
    }
    mem_grow(&o->segment, &o->cap_segments, o->n_segments + 1, sizeof *o->segment);
    o->segment[o->n_segments].p = u->own;
    o->segment[o->n_segments].g = g;
    o->segment[o->n_segments].n = n;
    o->segment[o->n_segments].moments = u->own_moments;
    o->segment[o->n_segments].is_8bit = u->is_8bit;
    o->segment[o->n_segments++].decay = u->decay;
}

/* The matrices of muon are those of the units, in their order: the rank's own are kept. */
static void keep_matrices(struct optim *o)
{
    struct muon_matrix *m = o->muon.matrix;
    size_t kept = 0, seen = 0;
    for (size_t i = 0; i < o->s.n_units; i++) {
        const struct shard_unit *u = &o->s.unit[i];
        if (!u->matrix) continue;
        struct muon_matrix own = m[seen++];
        if (u->owner >= 0 && u->owner != o->s.part) continue;
        own.p = u->own;
        own.m = u->own_moments;
        if (o->s.grads) own.g = u->own;
        m[kept++] = own;
    }
    o->muon.n = kept;
}

void optim_divide_for(struct optim *o, int stage, int slices, int parts, int part)
{
    if (o->s.n_units) o->s.unit[o->s.n_units - 1].n += o->n - o->s.n; /* padding after a matrix */
    o->s.n = o->n;
    shards_divide(&o->s, stage, slices, parts, part);
    for (size_t i = 0; i < o->s.n_units; i++)
        if (!o->s.unit[i].matrix) add_segment(o, &o->s.unit[i]);
    keep_matrices(o);
}

void optim_divide(struct optim *o, struct comm *c, int stage, int slices)
{
    optim_divide_for(o, stage, slices, c ? comm_ranks(c) : 1, c ? comm_rank(c) : 0);
    o->comm = o->s.divided ? c : NULL;
}

float *optim_grad(const struct optim *o, size_t at)
{
    if (!o->s.grads) return o->g + at;
    const struct shard_unit *u = shards_at(&o->s, at);
    return o->pass + u->grads_at + (at - u->from);
}

float *optim_value(const struct optim *o, float *values, size_t at)
{
    if (!o->s.divided) return values + at;
    const struct shard_unit *u = shards_at(&o->s, at);
    return o->whole + u->whole_at + (at - u->from);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

size_t optim_moment_floats(const struct optim *o)
{
    return o->s.own_f32 + o->s.own_8bit / sizeof(float) + o->s.own_8bit / BLOCK;
}

size_t optim_moment_floats_all(const struct optim *o)
{
    return o->n_f32 + o->n_8bit / sizeof(float) + o->n_8bit / BLOCK;
}

/* The doubles of o->sum. */
static size_t sums_of(const struct optim *o)
{
    return o->s.slices > 1 ? o->s.n_units * (size_t)o->s.slices : o->n_groups + 1;
}

static size_t grad_floats(const struct optim *o)
{
    return o->s.grads ? o->s.own : o->n;
}

size_t optim_bytes(const struct optim *o, bool average)
{
    size_t floats = o->s.own + grad_floats(o) + (average ? o->s.own : 0);
    if (o->s.divided) floats += o->s.whole;
    if (o->s.grads) floats += o->s.pass;
    return floats * sizeof(float) + sums_of(o) * sizeof *o->sum;
}

bool optim_moments_on_host(const struct optim *o)
{
    return o->offload && o->d->ops->alloc_host;
}

static void *alloc_moments(const struct optim *o)
{
    size_t bytes = optim_moment_floats(o) * sizeof(float);
    return (optim_moments_on_host(o) ? o->d->ops->alloc_host : o->d->ops->alloc)(o->d, bytes);
}

/* A unit's floats on the host, by way of which a device with its own memory exchanges them. */
static bool alloc_staged(struct optim *o)
{
    size_t most = 1;
    if (!o->s.divided || dev_host_memory(o->d)) return true;
    for (size_t i = 0; i < o->s.n_units; i++)
        if (o->s.unit[i].n > most) most = o->s.unit[i].n;
    return (o->staged = mem_try_alloc(most * sizeof *o->staged)) != NULL;
}

int optim_alloc(struct optim *o, bool average, struct err *e)
{
    if (!o->s.parts) optim_divide(o, NULL, 0, 1);
    const struct {
        float **array;
        size_t n;
        bool there;
    } of[] = {{&o->p, o->s.own, true},
              {&o->g, grad_floats(o), true},
              {&o->avg, o->s.own, average},
              {&o->whole, o->s.whole, o->s.divided},
              {&o->pass, o->s.pass, o->s.grads}};
    bool ok = (o->sum = o->d->ops->alloc(o->d, sums_of(o) * sizeof *o->sum)) != NULL;
    for (size_t i = 0; i < sizeof of / sizeof *of && ok; i++)
        ok = !of[i].there || (*of[i].array = o->d->ops->alloc(o->d, (of[i].n + 1) * sizeof(float))) != NULL;
    ok = ok && (o->m = alloc_moments(o)) && (o->v = alloc_moments(o)) && alloc_staged(o);
    if (ok && !o->s.divided) o->whole = o->p;
    if (ok && o->s.grads && dev_host_memory(o->d)) o->exchanger = exchanger_open(o->comm, o->gate);
    if (ok) return muon_alloc(&o->muon, o->d, e);
    return err_set(e, ERR_NOMEM, "no memory for %zu parameters with their gradients and moments", o->trained);
}

void optim_free(struct optim *o)
{
    exchanger_close(o->exchanger);
    void *arrays[] = {o->p, o->g, o->avg, o->sum, o->pass, o->s.divided ? o->whole : NULL}, *moments[] = {o->m, o->v};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        if (arrays[i]) o->d->ops->free(o->d, arrays[i]);
    for (size_t i = 0; i < sizeof moments / sizeof *moments; i++)
        if (moments[i]) (optim_moments_on_host(o) ? o->d->ops->free_host : o->d->ops->free)(o->d, moments[i]);
    muon_free(&o->muon, o->d);
    shards_free(&o->s);
    free(o->staged);
    free(o->segment);
    free(o->group);
    free(o->range);
    *o = (struct optim){0};
}

void dev_zero(struct dev *d, float *p, size_t n)
{
    static const float zeros[1 << 14];
    if (d->ops->zero) {
        d->ops->zero(d, p, n * sizeof *p);
        return;
    }
    for (size_t i = 0, k; i < n; i += k) {
        k = n - i < sizeof zeros / sizeof *zeros ? n - i : sizeof zeros / sizeof *zeros;
        d->ops->upload(d, p + i, zeros, k * sizeof *p);
    }
}

static void zero(struct optim *o, float *v, size_t n)
{
    for (size_t i = 0, k; i < n; i += k) {
        k = n - i < SLICE ? n - i : SLICE;
        scheduler_gate_pass(o->gate);
        scheduler_gate_cost(o->gate, WORK_STATE, (double)k);
        dev_zero(o->d, v + i, k);
    }
}

void optim_zero_grad(struct optim *o)
{
    zero(o, o->g, grad_floats(o));
    if (o->pass) zero(o, o->pass, o->s.pass);
}

/* ---- norms ------------------------------------------------------------------------------------------------------- */

static void add_squares(struct optim *o, const float *g, size_t n, double *sum)
{
    for (size_t i = 0, k; i < n; i += k) { /* of a fixed size, so that the order of summation is fixed */
        k = n - i < SLICE ? n - i : SLICE;
        scheduler_gate_pass(o->gate);
        scheduler_gate_cost(o->gate, WORK_STATE, (double)k);
        op_square_sum(o->d, (struct square_sum_args){g + i, k, sum});
    }
}

/* The sums of a unit's slices that this rank has. */
static void add_slices(struct optim *o, const struct shard_unit *u, double *sum)
{
    size_t begin = shards_part(&o->s, u, o->s.part);
    for (int i = 0; i < o->s.slices; i++) {
        size_t at = shards_slice(&o->s, u, i), n = shards_slice(&o->s, u, i + 1) - at;
        if (shards_owner(&o->s, u, i) != o->s.part) continue;
        add_squares(o, o->g + (o->s.grads ? u->own + at - begin : u->from + at), n, sum + i);
    }
}

/* Each rank's sums to all. */
static void gather_sums(struct optim *o, double *sum)
{
    size_t slices = (size_t)o->s.slices, n = o->s.n_units * slices;
    double *all = mem_array((size_t)o->s.parts * n, sizeof *all);
    scheduler_gate_leave(o->gate);
    comm_all_gather(o->comm, sum, all, n * sizeof *sum);
    for (size_t u = 0; u < o->s.n_units; u++)
        for (size_t i = 0; i < slices; i++)
            sum[u * slices + i] = all[(size_t)shards_owner(&o->s, &o->s.unit[u], (int)i) * n + u * slices + i];
    free(all);
}

/* With slots the sums are made slice by slice, so that they do not depend on which rank makes them. */
double optim_grad_norm(struct optim *o)
{
    size_t n = sums_of(o), slices = (size_t)o->s.slices;
    double all = 0, *sum = mem_array(n, sizeof *sum), *squares = mem_array(o->n_groups, sizeof *squares);
    scheduler_gate_pass(o->gate);
    o->d->ops->upload(o->d, o->sum, sum, n * sizeof *sum);
    if (slices > 1)
        for (size_t u = 0; u < o->s.n_units; u++) add_slices(o, &o->s.unit[u], o->sum + u * slices);
    else
        for (size_t r = 0; r < o->n_ranges; r++)
            add_squares(o, o->g + o->range[r].from, o->range[r].n, o->sum + o->range[r].group);
    o->d->ops->finish(o->d);
    o->d->ops->download(o->d, sum, o->sum, n * sizeof *sum);
    if (o->comm) gather_sums(o, sum);
    for (size_t i = 0; i < (slices > 1 ? n : o->n_groups); i++)
        squares[slices > 1 ? o->s.unit[i / slices].group : i] += sum[i];
    for (size_t i = 0; i < o->n_groups; i++) {
        o->group[i].norm = sqrt(squares[i]);
        all += squares[i];
    }
    free(sum);
    free(squares);
    return sqrt(all);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* average = decay * average + (1 - decay) * parameters.  The op's factors are f32: for keep >= 0.5, 1 - keep is exact,
 * so the factors sum to 1 and the average of constant parameters is exactly these. */
static void average(struct optim *o, double decay)
{
    float keep = (float)decay;
    for (size_t i = 0, k; i < o->s.own && o->avg; i += k) {
        k = o->s.own - i < SLICE ? o->s.own - i : SLICE;
        scheduler_gate_pass(o->gate);
        scheduler_gate_cost(o->gate, WORK_STATE, 3 * (double)k);
        op_axpby(o->d, (struct axpby_args){o->avg + i, o->p + i, k, 1 - (double)keep, keep});
    }
}

void optim_start(struct optim *o)
{
    average(o, 0);
}

/* The 8-bit moment `first` and those after it, and their scales, in an array of moments. */
static uint8_t *codes(const struct optim *o, float *moments, size_t first)
{
    return (uint8_t *)(moments + o->s.own_f32) + first;
}

static float *scales(const struct optim *o, float *moments, size_t first)
{
    return moments + o->s.own_f32 + o->s.own_8bit / sizeof(float) + first / BLOCK;
}

/* Of a's parameters, whose moments begin with number `moments`. */
static void adamw_8bit(struct optim *o, size_t moments, const struct adamw_args *a)
{
    op_adamw_8bit(o->d, (struct adamw_8bit_args){.p = a->p,
                                                 .g = a->g,
                                                 .m = codes(o, o->m, moments),
                                                 .v = codes(o, o->v, moments),
                                                 .m_scale = scales(o, o->m, moments),
                                                 .v_scale = scales(o, o->v, moments),
                                                 .n = a->n,
                                                 .lr = a->lr,
                                                 .beta1 = a->beta1,
                                                 .beta2 = a->beta2,
                                                 .eps = a->eps,
                                                 .decay = a->decay,
                                                 .bias1 = a->bias1,
                                                 .bias2 = a->bias2,
                                                 .grad_scale = a->grad_scale});
}

/* Of one parameter, in floats moved. */
static double cost_of(const struct optim *o, bool is_8bit)
{
    double bus = optim_moments_on_host(o) ? BUS * (is_8bit ? 1 : 4) : 0;
    return bus + (is_8bit ? ADAMW_8BIT_FLOATS : ADAMW_FLOATS);
}

void optim_step(struct optim *o, const struct train_params *t, double rate, double scale, int64_t step)
{
    struct muon_step u = {o->p, o->g, o->m, rate, t->weight_decay, scale, !t->f32};
    struct adamw_args a = {.lr = rate,
                           .beta1 = t->beta1,
                           .beta2 = t->beta2,
                           .eps = t->epsilon,
                           .bias1 = 1 - pow(t->beta1, (double)step),
                           .bias2 = 1 - pow(t->beta2, (double)step),
                           .grad_scale = scale};
    for (size_t s = 0; s < o->n_segments; s++) {
        size_t n = o->segment[s].n, moments = o->segment[s].moments;
        bool is_8bit = o->segment[s].is_8bit;
        a.decay = o->segment[s].decay ? t->weight_decay : 0;
        for (size_t i = 0; i < n; i += a.n) {
            a.n = n - i < SLICE ? n - i : SLICE;
            a.p = o->p + o->segment[s].p + i, a.g = o->g + o->segment[s].g + i, a.m = o->m + moments + i,
            a.v = o->v + moments + i;
            scheduler_gate_pass(o->gate);
            scheduler_gate_cost(o->gate, WORK_STATE, cost_of(o, is_8bit) * (double)a.n);
            if (is_8bit)
                adamw_8bit(o, moments + i, &a);
            else
                op_adamw(o->d, a);
        }
    }
    muon_step(&o->muon, o->d, o->gate, &u);
    average(o, fmin(t->ema_decay, (1 + (double)step) / (10 + (double)step)));
}

static int64_t optim_warmup(const struct train_params *t, int64_t steps)
{
    int64_t w = t->warmup_steps >= 0 ? t->warmup_steps : (int64_t)ceil(t->warmup_ratio * (double)steps);
    return w < steps ? w : steps;
}

double optim_rate(const struct train_params *t, int64_t step, int64_t steps)
{
    int64_t w = optim_warmup(t, steps);
    if (step < w) return t->learning_rate * (double)(step + 1) / (double)w;
    double done = steps > w ? (double)(step - w) / (double)(steps - w) : 0, part = 1;
    if (t->schedule == SCHEDULE_LINEAR) part = 1 - done;
    if (t->schedule == SCHEDULE_COSINE) part = 0.5 * (1 + cos(M_PI * done));
    return t->learning_rate * (t->min_lr_ratio + (1 - t->min_lr_ratio) * part);
}
