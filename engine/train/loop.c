/* The training loop: steps, micro-batches, guards, evaluation, early stopping. */
#include "engine/base/clock.h"
#include "engine/train/ckpt.h"
#include "engine/train/train_state.h"
#include "kernels/rng.h"

#include <math.h>
#include <string.h>

enum {
    STREAM_DROPOUT = 11, /* random stream of the seed */
    BAD_IN_A_ROW = 3,    /* consecutive steps with a non-finite loss or gradient before falling back */
    GOOD_PARTS = 20,     /* parts of a job: by default a checkpoint is made at the end of each part... */
    GOOD_LEAST = 50,     /* ... of at least this many steps... */
    GOOD_MOST = 500,     /* ... and at most this many */
    NORM_WARNINGS = 5,   /* per run */
    LOCATED = 4,         /* per run: skipped steps that are replayed to find where they broke */
    NORM_LARGE = 100,    /* a gradient norm above this is worth a warning */
};

/* With several ranks, what they have agreed on. */
static enum outcome asked(struct train *t)
{
    int c = t->job.comm ? t->agreed : atomic_load(&t->command);
    return c == TRAIN_PAUSE ? PAUSED : c == TRAIN_CANCEL ? CANCELLED : GO_ON;
}

/* What a part of the job ended with that has an error, maybe for a command that it saw. */
static enum outcome ended(const struct train *t, const struct err *e)
{
    if (e->code == ERR_LOST) return FAILED;
    return t->seen == TRAIN_PAUSE ? PAUSED : t->seen == TRAIN_CANCEL ? CANCELLED : FAILED;
}

/* The objective of a step of `next`'s rows. */
static int begin_objective(struct train *t, struct prefetch *next, int64_t step, struct err *e)
{
    bool eval = next == t->next_eval;
    t->objective.known = eval ? t->eval_reference.v : t->reference.v;
    return t->preferences && t->objective.singles ? train_reference_kl(t, eval, step, e) : 0;
}

/* Runs the micro-batches of a slot of a step; with back also adds to the gradients of the mean loss over the step's
 * targets. */
static enum outcome run_slot(struct train *t, struct prefetch *next, int64_t step, int slot, bool back,
                             struct step_sums *sum, bool *ran, struct err *e)
{
    const struct prefetched *b;
    uint32_t unit = 0;
    do {
        enum outcome o = asked(t);
        if (o != GO_ON) return o;
        b = prefetch_take(next, step, (uint32_t)slot, unit);
        step_clock_read(t->tm.clock, TRAIN_DATA);
        if (!b->n_units) break;
        t->objective.rows = b->n_rows;
        t->objective.chosen_tokens = b->chosen_tokens;
        if (!back) train_any_runs(t, true);
        *ran = true;
        if (t->distills) train_teacher_run(t, &b->micro, next == t->next_eval);
        struct train_loss l = train_model_run(&t->tm, &b->micro, back, (float)(1 / (double)b->targets));
        step_clock_read(t->tm.clock, TRAIN_BACKWARD);
        if (train_device_failed(t, e)) return FAILED;
        if (t->preferences) objective_add(&t->objective, &b->micro, t->tm.host_loss, &sum->preferences);
        /* one by one, so that the sum is the same for micro-batches of any size */
        for (int i = 0; i < b->micro.n_targets; i++) sum->loss += (double)t->tm.host_loss[i];
        sum->hits += l.hits;
        sum->micro_batches++;
        sum->tokens += b->micro.n_tokens;
        unit = b->to;
    } while (unit < b->n_units);
    if (slot == 0) {
        sum->targets += b->targets;
        sum->rows += b->n_rows;
    }
    return GO_ON;
}

/* At stage 2, after a layer's backward pass. */
static void sum_layer(void *arg, int layer)
{
    struct train *t = arg;
    step_clock_read(t->tm.clock, TRAIN_BACKWARD);
    grad_slots_layer(&t->slots, &t->o, layer);
    step_clock_read(t->tm.clock, TRAIN_RANKS);
}

/* Runs this rank's slots of a step; sum: of each. */
static enum outcome run_step(struct train *t, struct prefetch *next, int64_t step, bool back,
                             struct step_sums sum[GRAD_SLOTS_MAX], struct err *e)
{
    bool together = back && t->o.s.grads; /* the ranks sum each slot: also one that has failed takes part */
    bool gathered = t->o.s.values; /* and gather the weights of each pass: also one that has nothing to compute */
    enum outcome o = begin_objective(t, next, step, e) ? FAILED : GO_ON;
    t->tm.layer_done = together ? sum_layer : NULL;
    t->tm.layer_arg = t;
    for (int i = 0; i < t->slots.count && (o == GO_ON || together); i++) {
        int slot = grad_slots_number(&t->slots, i);
        bool ran = false;
        if (o == GO_ON) o = run_slot(t, next, step, slot, back, &sum[slot], &ran, e);
        if (gathered && back && !ran) train_skim(t, true);
        if ((o != GO_ON && !together) || !back) continue;
        grad_slots_end(&t->slots, &t->o);
        if (together)
            step_clock_read(t->tm.clock, TRAIN_RANKS);
        else if (t->slots.count > 1)
            step_clock_read(t->tm.clock, TRAIN_OPTIMIZER);
    }
    t->tm.layer_done = NULL;
    while (!back && train_any_runs(t, false)) train_skim(t, false);
    return o;
}

/* The same, with smaller micro-batches when memory is short. */
static enum outcome fit_step(struct train *t, struct prefetch *next, int64_t step, bool back,
                             struct step_sums sum[GRAD_SLOTS_MAX], struct err *e)
{
    struct step_sums before[GRAD_SLOTS_MAX];
    enum outcome o;
    if (back && t->o.s.grads) return run_step(t, next, step, back, sum, e); /* of which there is no second try */
    memcpy(before, sum, sizeof before);
    while ((o = run_step(t, next, step, back, sum, e)) == FAILED && train_fit_less(t, e)) {
        memcpy(sum, before, sizeof before);
        train_emit_warnings(t);
        if (back) grad_slots_begin(&t->slots, &t->o);
    }
    return o;
}

/* Says where in the step before st.step the first value is that is not finite; "": unknown. */
static const char *locate(struct train *t)
{
    if (t->samples || t->distills) return ""; /* its texts, or the teacher's tokens, are gone */
    int64_t step = t->st.step - 1;
    if (t->where_step == step) return t->where.data;
    buf_clear(&t->where);
    buf_str(&t->where, "");
    t->where_step = step;
    t->located++;
    train_locate(t, step, &t->where);
    return t->where.data;
}

/* After three consecutive bad steps: halves the learning rate and resumes from the last good checkpoint, made before
 * them; done at most once.  Later checkpoints are deleted, since their steps will be repeated with other results. */
static enum outcome go_back(struct train *t, struct err *e)
{
    struct train_state was = t->st;
    if (was.fallbacks > 0) {
        const char *where = t->where_step >= was.step - BAD_IN_A_ROW ? t->where.data : locate(t);
        err_set(e, ERR_INVALID,
                "%d steps in a row without a finite loss and gradient, again after the learning rate was halved%s%s",
                BAD_IN_A_ROW, *where ? ": " : "", where);
        return FAILED;
    }
    if (!t->ckpt_dir) return err_set(e, ERR_INVALID, "%d steps in a row without a finite loss", BAD_IN_A_ROW), FAILED;
    scheduler_gate_leave(t->gate); /* while the checkpoint is read */
    bool first = train_ranks_first(t->job.comm);
    if (train_share_state(t, first ? train_load(t, was.good, e) : 0, e)) return FAILED;
    if (t->saved < 0) return err_set(e, ERR_IO, "the checkpoint of step %lld is gone", (long long)was.good), FAILED;
    if (first) ckpt_delete_after(t->ckpt_dir, t->saved);
    t->st.skipped = was.skipped;
    t->st.seconds = was.seconds;
    t->st.fallbacks = was.fallbacks + 1;
    t->st.rate_scale = was.rate_scale / 2;
    t->st.bad = 0;
    t->saved = -1;
    t->where_step = -1;
    train_warn(t,
               "%d steps in a row without a finite loss and gradient: the learning rate is halved, back to step %lld",
               BAD_IN_A_ROW, (long long)t->st.step);
    return GO_ON;
}

/* The group with the largest gradient. */
static const struct train_group_norm *largest_group(const struct train *t)
{
    const struct train_group_norm *g = t->o.group;
    for (size_t i = 1; i < t->o.n_groups; i++)
        if (t->o.group[i].norm > g->norm) g = &t->o.group[i];
    return g;
}

static void look_at_norm(struct train *t, double norm)
{
    const struct train_group_norm *g = largest_group(t);
    bool zero = norm == 0 && t->st.step > 1 && !t->samples; /* where all texts of a prompt are as good */
    if ((!zero && norm <= NORM_LARGE) || t->norm_warnings >= NORM_WARNINGS) return;
    t->norm_warnings++;
    if (zero)
        train_warn(t, "the gradient is exactly zero: nothing is learnt");
    else
        train_warn(
            t,
            "the gradient's norm is %.3g, of %s alone %.3g: above %d training is unstable; a lower learning rate "
            "may help",
            norm, g->name, g->norm, NORM_LARGE);
}

static double seconds_since(uint64_t start)
{
    return (double)(clock_now() - start) * 1e-9;
}

static void update(struct train *t, double rate, double norm)
{
    double limit = t->p.max_grad_norm, scale = 1;
    if (limit > 0) scale = fmin(1, limit / (norm + 1e-6)); /* as torch.nn.utils.clip_grad_norm_ */
    optim_step(&t->o, &t->p, rate, scale, ++t->st.updates);
    if (!t->o.comm) {
        train_use(t, t->o.p);
        return;
    }
    step_clock_read(&t->clock, TRAIN_OPTIMIZER);
    double exchanging = train_gather_seconds(t);
    uint64_t start = clock_now();
    train_use(t, t->o.p);
    double share = (train_gather_seconds(t) - exchanging) / fmax(seconds_since(start), 1e-9);
    step_clock_divide(&t->clock, TRAIN_RANKS, fmin(share, 1), TRAIN_OPTIMIZER);
}

static const double WAITS_LITTLE = 0.02; /* of its steps' time */

/* A job that waits for serving is slower then for other reasons than the machine's. */
static double speed_of_job(const struct train *t)
{
    const struct train_usage *u = &t->usage;
    return u->part[TRAIN_WAIT] > WAITS_LITTLE * u->seconds ? 0 : speed_ratio(&t->speed);
}

/* The step is done: its time and its work. */
static double count_step(struct train *t, const struct step_sums *sum)
{
    struct train_usage *u = &t->usage;
    double took = step_clock_end(&t->clock);
    for (int i = 0; i < TRAIN_PARTS; i++) u->part[i] += t->clock.part[i];
    u->seconds += took;
    u->steps++;
    u->micro_batches += sum->micro_batches;
    u->rows += sum->rows;
    u->tokens += sum->tokens;
    u->cpu_seconds += (double)t->clock.cpu * 1e-9;
    train_note_ranks(t);
    double computing = t->clock.part[TRAIN_FORWARD] + t->clock.part[TRAIN_BACKWARD];
    if (computing > 0) speed_add(&t->speed, (double)sum->tokens / computing);
    u->speed_ratio = speed_of_job(t);
    train_note_peaks(t, false);
    return took;
}

/* Samples the step's texts and takes its optimizer steps, but the last one, whose gradient is left to the caller. */
static enum outcome sampled_step(struct train *t, struct step_sums *sum, struct err *e)
{
    int rc = rollout_sample(t, e);
    if (!rc) scheduler_gate_pass(t->gate); /* what follows may be the norm of no text's gradient */
    step_clock_read(&t->clock, TRAIN_WAIT);
    for (int i = 0; i < t->p.iterations && !rc; i++) {
        if (i) {
            if (asked(t) == CANCELLED) return t->torn = true, CANCELLED;
            double norm = optim_grad_norm(&t->o);
            if (!isfinite(norm) || train_device_failed(t, e)) break;
            update(t, optim_rate(&t->p, t->st.step, t->plan.steps) * t->st.rate_scale, norm);
            optim_zero_grad(&t->o);
            step_clock_read(&t->clock, TRAIN_OPTIMIZER);
        }
        sum->policy =
            (struct rollout_sums){.computed = sum->policy.computed, .micro_batches = sum->policy.micro_batches};
        rc = rollout_gradients(t, i == 0, &sum->policy, e);
    }
    sum->loss = sum->policy.loss;
    sum->hits = sum->policy.hits;
    sum->targets = sum->policy.tokens;
    sum->tokens = sum->policy.computed;
    sum->micro_batches = sum->policy.micro_batches;
    sum->rows = t->rollout.task.n;
    if (!rc) return e->code ? FAILED : GO_ON;
    return ended(t, e);
}

static enum outcome compute_step(struct train *t, struct step_sums *sum, struct err *e)
{
    struct step_sums slot[GRAD_SLOTS_MAX] = {0};
    grad_slots_begin(&t->slots, &t->o);
    step_clock_read(&t->clock, TRAIN_OPTIMIZER);
    t->tm.clock = &t->clock;
    enum outcome o = t->samples ? sampled_step(t, sum, e) : fit_step(t, t->next, t->st.step, true, slot, e);
    t->tm.clock = NULL; /* evaluations are not part of steps */
    o = train_gather_sums(t, o, slot, sum, e);
    if (o == GO_ON) o = train_reduce_gradients(t, e);
    if (t->job.comm) step_clock_read(&t->clock, TRAIN_RANKS);
    return o;
}

static double loss_of(const struct train *t, const struct step_sums *sum)
{
    if (t->samples) return sum->loss;
    return t->preferences ? objective_loss(&sum->preferences) : sum->loss / (double)sum->targets;
}

/* Of the next token; of scores, of which text of a pair has the higher one. */
static double accuracy_of(const struct train *t, const struct step_sums *sum)
{
    if (t->tm.score) return (double)sum->preferences.accurate / (double)sum->preferences.rows;
    return sum->targets ? (double)sum->hits / (double)sum->targets : NAN;
}

static enum outcome train_step(struct train *t, struct err *e)
{
    struct step_sums sum = {0};
    step_clock_start(&t->clock);
    t->tm.dropout_seed = rng_at(t->p.seed, (uint64_t)STREAM_DROPOUT << 48 | (uint64_t)t->st.step);
    enum outcome o = compute_step(t, &sum, e);
    if (o != GO_ON) return o;
    double norm = optim_grad_norm(&t->o), loss = loss_of(t, &sum);
    double rate = optim_rate(&t->p, t->st.step, t->plan.steps) * t->st.rate_scale;
    bool good = isfinite(loss) && isfinite(norm);
    int failed = train_device_failed(t, e) ? e->code : 0;
    if (t->o.comm) scheduler_gate_leave(t->gate);
    if (t->o.comm) failed = ranks_agree(t->o.comm, failed, e); /* the update exchanges values */
    if (failed) return FAILED;
    if (good) update(t, rate, norm);
    step_clock_read(&t->clock, TRAIN_OPTIMIZER);
    if (train_device_failed(t, e)) return FAILED;

    double took = count_step(t, &sum);
    t->st.step++;
    t->st.tokens += sum.tokens;
    t->st.trained += sum.targets;
    t->st.seconds += took;
    t->st.bad = good ? 0 : t->st.bad + 1;
    t->st.skipped += !good;
    struct train_event ev = train_event_of(t, TRAIN_STEP);
    ev.loss = loss;
    if (t->preferences) ev.rewards = objective_rewards(&t->objective, &sum.preferences);
    if (t->samples) ev.rewards = rollout_rewards(t, &sum.policy);
    ev.accuracy = accuracy_of(t, &sum);
    ev.grad_norm = norm;
    ev.group_norm = t->o.group;
    ev.n_group_norms = t->o.n_groups;
    ev.learning_rate = rate;
    ev.tokens_per_s = (double)sum.tokens / took;
    ev.rows_per_s = (double)sum.rows / took;
    ev.macs_per_s = ev.tokens_per_s * t->plan.macs_per_token;
    memcpy(ev.part, t->clock.part, sizeof ev.part);
    ev.host_use = (double)t->clock.cpu * 1e-9 / (took * t->cores);
    ev.device_use = (ev.part[TRAIN_FORWARD] + ev.part[TRAIN_BACKWARD] + ev.part[TRAIN_OPTIMIZER]) / took;
    t->fn(t->arg, &ev);
    if (good) {
        look_at_norm(t, norm);
        return GO_ON;
    }
    const char *where = t->st.bad == 1 && t->located < LOCATED ? locate(t) : "";
    train_warn(t, "step %lld is skipped: its %s is not finite%s%s", (long long)t->st.step,
               isfinite(loss) ? "gradient" : "loss", *where ? ": " : "", where);
    return t->st.bad >= BAD_IN_A_ROW ? go_back(t, e) : GO_ON;
}

static bool at_end(const struct train *t)
{
    return t->st.step >= t->plan.steps || t->st.stopped;
}

static bool eval_due(const struct train *t)
{
    int64_t step = t->st.step;
    if (!t->best || t->st.evaluated == step) return false;
    if (step == 0) return t->p.eval_on_start;
    if (step >= t->plan.steps) return true;
    if (t->p.eval_steps) return step % t->p.eval_steps == 0;
    return t->rows.before[train_rows_epoch(&t->rows, step)] == step;
}

static void keep_best(struct train *t)
{
    chunked_download(train_chunks(t), t->best, train_device_array(t, train_result_array(t)), t->o.s.own);
}

/* What others do meanwhile is no time of the evaluation's. */
static void between_batches(struct train *t)
{
    uint64_t start = clock_now();
    if (!t->job.between) return;
    t->job.between(t->job.between_arg);
    t->usage.eval_seconds -= seconds_since(start);
}

static enum outcome evaluate(struct train *t, struct err *e)
{
    struct step_sums sum = {0}, slot[GRAD_SLOTS_MAX] = {0};
    float dropout = t->tm.dropout, residual = t->tm.residual_dropout;
    enum outcome o = GO_ON;
    t->tm.dropout = t->tm.residual_dropout = 0;
    if (t->o.avg) train_full_use(&t->full, &t->o, t->o.avg);
    for (int64_t i = 0; i < t->eval.before[1] && o == GO_ON; i++) {
        if (i) between_batches(t);
        o = fit_step(t, t->next_eval, i, false, slot, e);
        o = train_agree(t, o, 0, e); /* each rank has the same batches */
        if (t->job.comm && o == GO_ON) o = asked(t);
    }
    t->tm.dropout = dropout;
    t->tm.residual_dropout = residual;
    if (t->o.avg) train_full_use(&t->full, &t->o, t->o.p);
    if (o == GO_ON) o = train_gather_sums(t, o, slot, &sum, e);
    if (o != GO_ON) return o;
    double loss = loss_of(t, &sum), accuracy = accuracy_of(t, &sum);
    struct train_state *s = &t->st;
    bool best = isfinite(loss) && (s->best_step < 0 || loss < s->best_loss - t->p.min_improvement);
    s->evaluated = s->step;
    s->worse = best ? 0 : s->worse + 1;
    if (best) {
        s->best_step = s->step;
        s->best_loss = loss;
        s->best_accuracy = accuracy;
        keep_best(t);
    }
    s->stopped = t->p.patience > 0 && s->worse >= t->p.patience;
    struct train_event ev = train_event_of(t, TRAIN_EVAL);
    ev.eval_loss = loss;
    if (t->preferences) ev.rewards = objective_rewards(&t->objective, &sum.preferences);
    ev.eval_accuracy = accuracy;
    ev.best = best;
    t->fn(t->arg, &ev);
    return GO_ON;
}

/* Whether an uninterrupted run of this job would also make a checkpoint at this step. */
static bool good_due(const struct train *t, bool evaluated)
{
    int64_t every = t->p.save_steps, part = t->plan.steps / GOOD_PARTS;
    if (!every) every = part < GOOD_LEAST ? GOOD_LEAST : part > GOOD_MOST ? GOOD_MOST : part;
    if (t->st.bad || t->st.good == t->st.step || !t->ckpt_dir)
        return false; /* bad: the checkpoint from before must remain */
    return evaluated || t->st.step % every == 0;
}

static bool save_due(const struct train *t)
{
    if (t->saved == t->st.step || !t->ckpt_dir) return false;
    if (t->saved < 0 || at_end(t)) return true;
    return !t->st.bad && !t->p.save_steps && (t->job.comm ? t->agreed_late : train_save_late(t));
}

static int save(struct train *t, struct err *e)
{
    uint64_t start = clock_now();
    int rc = train_save(t, e);
    t->usage.checkpoint_seconds += seconds_since(start);
    return rc;
}

/* What is due before a step. */
static enum outcome between_steps(struct train *t, struct err *e)
{
    bool due = eval_due(t);
    uint64_t start = clock_now();
    enum outcome o = due ? evaluate(t, e) : GO_ON;
    if (due) t->usage.eval_seconds += seconds_since(start);
    bool good = o == GO_ON && good_due(t, due);
    if (good) t->st.good = t->st.step;
    if (o == GO_ON && (good || save_due(t)) && save(t, e)) return FAILED;
    return o;
}

static enum outcome loop(struct train *t, struct err *e)
{
    /* The ranks agree before what only those do together whose step is done. */
    for (enum outcome o = GO_ON;; o = train_step(t, e), o = train_agree(t, o, t->clock.part[TRAIN_RANKS], e)) {
        if (o == GO_ON) o = between_steps(t, e);
        o = train_agree(t, o, 0, e);
        if (o == GO_ON && at_end(t)) return DONE;
        if (o == GO_ON && t->job.between) t->job.between(t->job.between_arg);
        if (o == GO_ON) o = asked(t);
        if (o != GO_ON) return o;
    }
}

static void open_prefetch(struct train *t)
{
    int tokens = t->tm.max_tokens, near = t->tm.c->near_len;
    bool several = train_fits_units(t);
    if (t->samples) return;
    t->next = prefetch_open(&t->rows, tokens, near, several, true);
    if (t->eval.n) t->next_eval = prefetch_open(&t->eval, tokens, near, several, true);
    uint32_t first = (uint32_t)t->slots.first, stride = (uint32_t)t->slots.stride;
    uint32_t end = first + stride * (uint32_t)t->slots.count;
    prefetch_slots(t->next, first, end, stride);
    if (t->next_eval) prefetch_slots(t->next_eval, first, end, stride);
}

/* The reference's log-probabilities, when they are needed. */
static enum outcome open_objective(struct train *t, struct err *e)
{
    if (t->samples) {
        t->tm.weigh = rollout_weigh;
        t->tm.weigh_arg = t;
        if (t->p.temperature != 1)
            train_warn(
                t,
                "temperature %g is that of sampling: ratio and loss are of the policy at temperature 1, which is "
                "not exactly the one that is sampled from",
                t->p.temperature);
    }
    if (!t->preferences) return GO_ON;
    t->tm.weigh = objective_weigh;
    t->tm.weigh_arg = &t->objective;
    return train_reference_open(t, e) ? ended(t, e) : GO_ON;
}

void train_run(struct train *t, train_event_fn *fn, void *arg)
{
    struct err e = {0};
    t->fn = fn;
    t->arg = arg;
    t->saved_at = clock_now();
    train_emit(t, TRAIN_PLAN, NULL);
    train_emit_warnings(t);
    if (t->p.offload_optimizer && !t->plan.offload)
        train_warn(t, "offload_optimizer changes nothing on the device %s, whose memory is the host's",
                   t->d->ops->name);
    if (t->resumed) train_emit(t, TRAIN_RESUMED, NULL);
    enum outcome o = open_objective(t, &e);
    open_prefetch(t);
    if (o == GO_ON) o = loop(t, &e);
    prefetch_close(t->next);
    prefetch_close(t->next_eval);
    t->next = t->next_eval = NULL;
    train_emit_warnings(t);
    if ((o == PAUSED || o == CANCELLED) && !t->torn && t->ckpt_dir && t->saved != t->st.step && save(t, &e)) o = FAILED;
    o = train_agree(t, o, 0, &e); /* rank 0 alone knows whether that worked */
    scheduler_gate_leave(t->gate);
    if (o == DONE || o == PAUSED) train_gather_memory(t);
    if (o == DONE && train_write_result(t, &e)) o = FAILED;
    if (o == DONE && t->ckpt_dir && train_ranks_first(t->job.comm)) ckpt_prune(t->ckpt_dir, 1, -1);
    train_emit(t,
               o == DONE                           ? TRAIN_SUCCEEDED
               : o == PAUSED                       ? TRAIN_PAUSED
               : o == FAILED && e.code == ERR_LOST ? TRAIN_LOST
               : o == FAILED                       ? TRAIN_FAILED
                                                   : TRAIN_CANCELLED,
               o == FAILED ? e.msg : NULL);
}

void train_command(struct train *t, enum train_command c)
{
    atomic_store(&t->command, (int)c);
}
