/* Plans a job before anything is computed: checks parameters, counts steps, estimates memory. */
#include "engine/base/cpus.h"
#include "engine/base/meminfo.h"
#include "engine/train/base_layers.h"
#include "engine/train/train_state.h"
#include "kernels/comm.h"
#include "kernels/trace.h"

#include <math.h>

static int check_base(const struct train *t, struct err *e)
{
    enum dtype type = t->model->w.type;
    bool is_float = !t->model->c.quant.name[0] && (type == DT_F32 || type == DT_BF16 || type == DT_F16);
    if (t->p.method == TRAIN_QLORA && is_float)
        return err_set(e, ERR_INVALID, "method qlora wants a quantised base; this one is %s: use lora, or --quantize",
                       dtype_name(type));
    if (t->p.method == TRAIN_FULL && !is_float)
        return err_set(e, ERR_INVALID, "method full wants a base of floats; this one is %s", dtype_name(type));
    if (t->p.method == TRAIN_FULL && t->job.from)
        return err_set(e, ERR_INVALID, "from: an adapter cannot be gone on from with method full");
    return 0;
}

static const double GIB = 1024.0 * 1024 * 1024;

/* With an estimate of the memory per row of data. */
static size_t scratch_bytes(const struct train *t)
{
    const size_t ROW_BYTES = 40;
    return train_model_scratch(&t->model->c, t->tm.max_tokens, t->p.max_length) + ROW_BYTES * (t->rows.n + t->eval.n);
}

/* The memory available to training: the device's own, or the host's; at most so many MiB, 0: all. */
static size_t room_for(struct dev *d, int mib, size_t *block)
{
    size_t room = dev_host_memory(d) ? *block = memory_available() : dev_memory_left(d, block);
    size_t limit = mib ? (size_t)mib << 20 : SIZE_MAX;
    if (*block > limit) *block = limit;
    return room < limit ? room : limit;
}

/* The bytes of the whole job with micro-batches of so many tokens; *largest: of the largest array of activations. */
static double bytes_of(struct train *t, int tokens, bool recompute, size_t *largest)
{
    struct train_plan *p = &t->plan;
    p->micro_tokens = t->tm.max_tokens = tokens;
    p->recompute = t->tm.recompute = recompute;
    p->activation_bytes = train_model_bytes(&t->tm, largest) + scratch_bytes(t);
    if (t->distills) {
        size_t of_teacher;
        p->activation_bytes += train_teacher_bytes(t, tokens, &of_teacher);
        if (of_teacher > *largest) *largest = of_teacher;
    }
    return (double)p->state_bytes + (double)p->activation_bytes;
}

/* Chooses the tokens of a micro-batch, and whether activations are recomputed, which costs more time than smaller
 * micro-batches do.  @return the bytes of the job, with the least that it can do with when even that does not fit. */
static double fit(struct train *t, size_t room, size_t block, size_t *largest)
{
    const double KEPT = 0.6, ALL = 0.95; /* of the free memory: activations are kept only where much stays free */
    bool last = t->p.recompute != RECOMPUTE_OFF, again = t->p.recompute == RECOMPUTE_ON;
    for (;; again = true) {
        double share = t->p.recompute == RECOMPUTE_AUTO && !again ? KEPT : ALL, need;
        for (int tokens = train_fit_most(t);; tokens = train_fit_half(t, tokens)) {
            need = bytes_of(t, tokens, again, largest);
            if (need <= share * (double)room && (tokens == t->unit || *largest <= block)) return need;
            if (tokens == t->unit) break;
        }
        if (again == last) return need;
    }
}

static const char *less_activations(const struct train *t)
{
    bool automatic = t->p.micro_tokens == MICRO_TOKENS_AUTO, off = t->p.recompute == RECOMPUTE_OFF;
    return automatic ? off ? "let recompute be auto, or lower max_length" : "lower max_length"
           : off     ? "let recompute and micro_tokens be auto, or lower micro_tokens and max_length"
                     : "let micro_tokens be auto, or lower micro_tokens and max_length";
}

/* The refusal when most of what a job needs is the reference's log-probabilities, of kto for each epoch. */
static int less_reference(const struct train *t, double need, double room, struct err *e)
{
    return err_set(e, ERR_NOMEM,
                   "training needs %.2f GiB (%.2f for the reference's log-probabilities of %llu rows and %d epochs), "
                   "%.2f GiB are available: %s",
                   need / GIB, (double)t->plan.reference_bytes / GIB, (unsigned long long)t->rows.n + t->eval.n,
                   t->rows.epochs, room / GIB,
                   t->objective.singles && t->rows.epochs > 1 ? "lower epochs" : "train on fewer rows");
}

/* The largest allocations are arrays of all trained parameters, or of activations (activations: bytes of the largest of
 * these).  The scratch memory of ops is known less precisely. */
static int check_block(const struct train *t, size_t block, size_t activations, struct err *e)
{
    double state = (double)(t->o.s.grads ? t->o.s.own : t->o.n) * sizeof(float),
           need = fmax(state, (double)activations);
    if (need <= (double)block) return 0;
    return err_set(
        e, ERR_NOMEM,
        "training needs a block of %.2f GiB for %s, the largest free block has %.2f GiB: unload adapters, or %s",
        need / GIB, state < need ? "activations" : "parameters", (double)block / GIB,
        state < need     ? less_activations(t)
        : t->lora_method ? "lower lora_r, or name fewer targets"
                         : "use method lora");
}

/* What bottleneck.c compares with the measured steps. */
static void note_machine(struct train *t, bool own_memory, size_t room)
{
    size_t largest;
    struct train_model kept = t->tm;
    kept.recompute = false;
    t->plan.kept_bytes = train_model_bytes(&kept, &largest) + scratch_bytes(t);
    t->plan.room_bytes = room;
    t->plan.most_tokens = train_fit_most(t);
    t->plan.threads = t->d->threads;
    t->plan.cores = own_memory ? 0 : cpus_available();
    t->plan.own_memory = own_memory;
}

/* Each weight once forward and once for the gradient of its input, all weights also for their own gradients, adapters
 * three times. */
static double macs_per_token(const struct train *t)
{
    const struct model_config *c = &t->model->c;
    double weights = (double)t->model->w.parameters, width = c->hidden;
    if (!c->tied) weights -= width * c->vocab; /* the embedding table is read, not multiplied */
    for (int l = 0; l < c->layers; l++) {
        const struct block *b = model_block(c, l);
        weights -= (double)(b->experts.count - b->experts.chosen) * b->experts.inter * width * (b->gated ? 3 : 2);
    }
    return t->lora_method ? 2 * weights + 3 * (double)t->plan.trainable : 3 * weights;
}

/* Beside a device with its own memory: copies of the parameters and their moments (bytes), and the reference. */
static int check_host(const struct train *t, double copies, struct err *e)
{
    double reference = (double)t->plan.reference_bytes, need = copies + reference, room = (double)memory_available();
    if (need <= 0.95 * room) return 0;
    if (reference > copies) return less_reference(t, need, room, e);
    return err_set(e, ERR_NOMEM, "training needs %.2f GiB of the host for copies of %zu parameters and their moments",
                   need / GIB, t->o.trained);
}

/* Chooses whether activations are recomputed, and rejects jobs that do not fit. */
static int plan_memory(struct train *t, struct err *e)
{
    struct train_plan *p = &t->plan;
    int average = t->p.ema_decay > 0;
    /* a plan without a job may be made on any thread, which must not use the device */
    bool own = !dev_host_memory(t->d);
    size_t values = t->o.s.own * sizeof(float); /* of this rank */
    int host_copies = own ? 1 + average + (t->eval.n ? 1 : 0) : 0;
    size_t block, largest, room = room_for(t->d, t->p.memory_mib, &block);
    p->moment_bytes = 2 * optim_moment_floats(&t->o) * sizeof(float);
    if (train_reference_bytes(t, &p->reference_bytes, e)) return e->code;
    if (own && check_host(t, (double)host_copies * (double)values + (double)p->moment_bytes, e)) return e->code;
    p->weight_bytes = t->model->w.bytes + (t->job.base ? base_layers_bytes(t->job.base) : 0);
    p->trainable = t->o.trained;
    p->macs_per_token = macs_per_token(t);
    p->offload = t->p.offload_optimizer && own;
    p->state_bytes = optim_bytes(&t->o, average) + grad_slots_bytes(&t->slots, &t->o) + muon_bytes(&t->o.muon);
    if (t->eval.n && !own) p->state_bytes += values;
    if (!p->offload) p->state_bytes += p->moment_bytes;
    if (!own) p->state_bytes += (size_t)p->texts * (size_t)t->p.max_length * 3 * sizeof(float); /* rollout.h */
    if (!t->lora_method) p->state_bytes += train_full_bytes(&t->full, &t->o);
    if (!own) p->state_bytes += p->reference_bytes;
    if (t->job.base) p->state_bytes += base_layers_buffers(t->job.base);
    double need = fit(t, room, block, &largest);
    note_machine(t, own, room);
    if (need <= 0.95 * (double)room) return check_block(t, block, largest, e);
    if (!own && (double)p->reference_bytes > need / 2) return less_reference(t, need, (double)room, e);
    bool state = (double)p->state_bytes > need / 2;
    return err_set(
        e, ERR_NOMEM,
        "training needs %.2f GiB (%.2f for %zu parameters with gradients and moments, %.2f for activations of "
        "%d tokens), %.2f GiB are available: %s",
        need / GIB, (double)p->state_bytes / GIB, p->trainable, (double)p->activation_bytes / GIB, t->tm.max_tokens,
        (double)room / GIB,
        state ? t->lora_method ? "lower lora_r, or name fewer targets" : "use method lora" : less_activations(t));
}

static void plan_steps(struct train *t)
{
    t->plan.steps = t->rows.before[t->rows.epochs];
    t->plan.rows = t->rows.n;
    t->plan.texts = t->samples ? t->p.samples * t->p.prompts_per_step : 0;
    t->plan.eval_rows = t->eval.n;
    t->plan.tokens_per_epoch = (int64_t)t->rows.tokens;
    t->plan.trained_tokens_per_epoch = (int64_t)t->rows.targets;
}

/* What is divided.  The base of an adapter that is served stays whole. */
static int stage_of(const struct train *t)
{
    return t->p.zero == 3 && t->lora_method && !t->job.base ? 2 : t->p.zero;
}

/* The slots of this rank. */
static int plan_ranks(struct train *t, struct err *e)
{
    struct comm *c = t->job.comm;
    int stage = c && comm_ranks(c) > 1 ? stage_of(t) : 0;
    int rc = grad_slots_init(&t->slots, t->p.grad_slots, c ? comm_rank(c) : 0, c ? comm_ranks(c) : 1, stage, e);
    t->slots.layers = t->model->c.layers;
    return rc;
}

/* At stage 2 no rank keeps its own gradients until another micro-batch adds to them. */
static int check_slots(struct train *t, struct err *e)
{
    const struct train_rows *r = &t->rows;
    for (int64_t step = 0; step < t->plan.steps && t->o.s.grads; step++) {
        struct microbatches_step s = train_rows_step(&t->rows, step);
        for (int k = 0; k < t->p.grad_slots; k++) {
            int tokens = 0, units = (int)(s.slot[k + 1] - s.slot[k]);
            for (uint32_t i = s.slot[k]; i < s.slot[k + 1]; i++) tokens += train_rows_tokens(r, &s, i);
            if (units < 2 || (train_fits_units(t) && tokens <= t->tm.max_tokens)) continue;
            return err_set(
                e, ERR_INVALID,
                "zero %d wants the rows of each slot in one micro-batch, and one of step %lld has %d tokens: "
                "raise micro_tokens or grad_slots, or let zero be 1",
                t->p.zero, (long long)step + 1, tokens);
        }
        if (t->job.stop && t->job.stop(t->job.stop_arg)) return err_set(e, ERR_FULL, "stopped");
    }
    return 0;
}

int train_make_plan(struct train *t, struct err *e)
{
    uint64_t left_out = 0;
    if (t->job.comm && !t->p.grad_slots) t->p.grad_slots = train_ranks_slots(comm_ranks(t->job.comm));
    int rc = train_params_check(&t->p, &t->model->c, e);
    if (!rc) rc = plan_ranks(t, e);
    if (!rc && t->preferences) t->objective = objective_of(&t->p);
    if (!rc) rc = check_base(t, e);
    if (!rc && t->samples) rc = rollout_rows_open(&t->rows, &t->job, &t->p, t->model->c.vocab, &left_out, e);
    if (!rc && !t->samples)
        rc = train_rows_open(&t->rows, &t->eval, &t->job, &t->p, t->model->c.vocab, t->model->c.pad, &left_out, e);
    if (rc) return rc;
    if (left_out && t->samples)
        buf_printf(&t->warnings, "%llu prompts leave no room for an answer within max_length %d and are left out",
                   (unsigned long long)left_out, t->p.max_length);
    else if (left_out)
        buf_printf(&t->warnings, "%llu rows have no token to train on within max_length %d and are left out",
                   (unsigned long long)left_out, t->p.max_length);
    optim_init(&t->o, t->d, t->gate);
    t->o.states_8bit = t->p.optimizer == OPTIMIZER_ADAMW_8BIT;
    t->o.offload = t->p.offload_optimizer;
    rc = t->lora_method ? train_lora_open(&t->lora, &t->model->c, &t->p, t->job.from, &t->o, e)
                        : train_full_open(&t->full, t->model, &t->p, &t->o, e);
    if (rc) return rc;
    optim_divide(&t->o, t->job.comm, stage_of(t), t->p.grad_slots);
    int most = t->samples ? train_unit_tokens(&t->p) : microbatches_micro_max(t->rows.batches),
        most_eval = t->eval.n ? microbatches_micro_max(t->eval.batches) : 0;
    if (t->preferences && t->objective.singles) {
        int crossed = train_rows_crossed_max(&t->rows), of_eval = train_rows_crossed_max(&t->eval);
        most = most > crossed ? most : crossed;
        most_eval = most_eval > of_eval ? most_eval : of_eval;
    }
    t->tm = (struct train_model){.c = &t->model->c,
                                 .w = t->lora_method ? &t->model->w : &t->full.w,
                                 .d = t->d,
                                 .gate = t->gate,
                                 .site = t->lora_method ? t->lora.site : NULL,
                                 .grads = t->lora_method ? NULL : &t->full.g,
                                 .dropout = (float)t->p.lora_dropout,
                                 .residual_dropout = (float)t->p.dropout,
                                 .half = !t->p.f32,
                                 .exact = {.kv_type = t->p.exact ? train_exact_kv_type(t->model) : DT_NONE},
                                 .max_tokens = most > most_eval ? most : most_eval};
    t->unit = t->tm.max_tokens;
    train_gather_layers(t, &t->tm);
    if (t->distills && train_teacher_plan(t, e)) return e->code;
    if (t->distills) train_gather_layers(t, &t->teacher.tm);
    plan_steps(t);
    rc = plan_memory(t, e);
    return rc ? rc : check_slots(t, e);
}
