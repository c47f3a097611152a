#include "engine/train/optim.h"

#include "engine/base/mem.h"

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
    *o = (struct optim){.d = d, .gate = gate, .adding = "other"};
}

void optim_group(struct optim *o, const char *name)
{
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

size_t optim_add(struct optim *o, size_t n, bool decay)
{
    bool is_8bit = o->states_8bit && n >= OPTIM_8BIT_LEAST, follows = false;
    size_t moments = is_8bit ? o->n_8bit : o->n_f32, at = add_values(o, n, is_8bit), last = o->n_segments - 1;
    if (o->n_segments)
        follows = o->segment[last].decay == decay && o->segment[last].is_8bit == is_8bit &&
                  o->segment[last].from + o->segment[last].n == at;
    if (follows) {
        o->segment[last].n += o->n - at;
    } else {
        mem_grow(&o->segment, &o->cap_segments, o->n_segments + 1, sizeof *o->segment);
        o->segment[o->n_segments].from = at;
        o->segment[o->n_segments].n = o->n - at;
        o->segment[o->n_segments].moments = moments;
        o->segment[o->n_segments].is_8bit = is_8bit;
        o->segment[o->n_segments++].decay = decay;
    }
    return at;
}

size_t optim_moment_floats(const struct optim *o)
{
    return o->n_f32 + o->n_8bit / sizeof(float) + o->n_8bit / BLOCK;
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

int optim_alloc(struct optim *o, bool average, struct err *e)
{
    float **arrays[] = {&o->p, &o->g, &o->avg};
    bool ok = (o->sum = o->d->ops->alloc(o->d, (o->n_groups + 1) * sizeof *o->sum)) != NULL;
    for (size_t i = 0; i < (average ? 3 : 2) && ok; i++)
        ok = (*arrays[i] = o->d->ops->alloc(o->d, o->n * sizeof(float))) != NULL;
    ok = ok && (o->m = alloc_moments(o)) && (o->v = alloc_moments(o));
    if (ok) return muon_alloc(&o->muon, o->d, e);
    return err_set(e, ERR_NOMEM, "no memory for %zu parameters with their gradients and moments", o->trained);
}

void optim_free(struct optim *o)
{
    void *arrays[] = {o->p, o->g, o->avg, o->sum}, *moments[] = {o->m, o->v};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        if (arrays[i]) o->d->ops->free(o->d, arrays[i]);
    for (size_t i = 0; i < sizeof moments / sizeof *moments; i++)
        if (moments[i]) (optim_moments_on_host(o) ? o->d->ops->free_host : o->d->ops->free)(o->d, moments[i]);
    muon_free(&o->muon, o->d);
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

void optim_zero_grad(struct optim *o)
{
    for (size_t i = 0, k; i < o->n; i += k) {
        k = o->n - i < SLICE ? o->n - i : SLICE;
        scheduler_gate_pass(o->gate);
        scheduler_gate_cost(o->gate, WORK_STATE, (double)k);
        dev_zero(o->d, o->g + i, k);
    }
}

double optim_grad_norm(struct optim *o)
{
    double all = 0, *sum = mem_array(o->n_groups, sizeof *sum);
    o->d->ops->upload(o->d, o->sum, sum, o->n_groups * sizeof *sum);
    for (size_t r = 0; r < o->n_ranges; r++) {
        size_t from = o->range[r].from, end = from + o->range[r].n;
        for (size_t i = from, k; i < end; i += k) { /* of a fixed size, so that the order of summation is fixed */
            k = end - i < SLICE ? end - i : SLICE;
            scheduler_gate_pass(o->gate);
            scheduler_gate_cost(o->gate, WORK_STATE, (double)k);
            op_square_sum(o->d, (struct square_sum_args){o->g + i, k, o->sum + o->range[r].group});
        }
    }
    o->d->ops->finish(o->d);
    o->d->ops->download(o->d, sum, o->sum, o->n_groups * sizeof *sum);
    for (size_t i = 0; i < o->n_groups; i++) {
        o->group[i].norm = sqrt(sum[i]);
        all += sum[i];
    }
    free(sum);
    return sqrt(all);
}

/* average = decay * average + (1 - decay) * parameters.  The op's factors are f32: for keep >= 0.5, 1 - keep is exact,
 * so the factors sum to 1 and the average of constant parameters is exactly these. */
static void average(struct optim *o, double decay)
{
    float keep = (float)decay;
    for (size_t i = 0, k; i < o->n && o->avg; i += k) {
        k = o->n - i < SLICE ? o->n - i : SLICE;
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
    return (uint8_t *)(moments + o->n_f32) + first;
}

static float *scales(const struct optim *o, float *moments, size_t first)
{
    return moments + o->n_f32 + o->n_8bit / sizeof(float) + first / BLOCK;
}

/* Of n parameters from `from` on, whose moments begin with number `moments`; a: the step. */
static void adamw_8bit(struct optim *o, size_t from, size_t moments, size_t n, const struct adamw_args *a)
{
    op_adamw_8bit(o->d, (struct adamw_8bit_args){.p = o->p + from,
                                                 .g = o->g + from,
                                                 .m = codes(o, o->m, moments),
                                                 .v = codes(o, o->v, moments),
                                                 .m_scale = scales(o, o->m, moments),
                                                 .v_scale = scales(o, o->v, moments),
                                                 .n = n,
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
        size_t from = o->segment[s].from, n = o->segment[s].n, moments = o->segment[s].moments;
        bool is_8bit = o->segment[s].is_8bit;
        a.decay = o->segment[s].decay ? t->weight_decay : 0;
        for (size_t i = 0; i < n; i += a.n) {
            a.n = n - i < SLICE ? n - i : SLICE;
            a.p = o->p + from + i, a.g = o->g + from + i, a.m = o->m + moments + i, a.v = o->v + moments + i;
            scheduler_gate_pass(o->gate);
            scheduler_gate_cost(o->gate, WORK_STATE, cost_of(o, is_8bit) * (double)a.n);
            if (is_8bit)
                adamw_8bit(o, from + i, moments + i, a.n, &a);
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
