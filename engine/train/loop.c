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
    SAVE_SECONDS = 120,  /* between checkpoints when save_steps is 0 */
    GOOD_PARTS = 20,     /* parts of a job: by default a checkpoint is made at the end of each part... */
    GOOD_LEAST = 50,     /* ... of at least this many steps... */
    GOOD_MOST = 500,     /* ... and at most this many */
    NORM_WARNINGS = 5,   /* per run */
    LOCATED = 4,         /* per run: skipped steps that are replayed to find where they broke */
    NORM_LARGE = 100,    /* a gradient norm above this is worth a warning */
};

enum outcome { GO_ON, DONE, PAUSED, CANCELLED, FAILED };

static enum outcome asked(struct train *t)
{
    int c = atomic_load(&t->command);
    return c == TRAIN_PAUSE ? PAUSED : c == TRAIN_CANCEL ? CANCELLED : GO_ON;
}

struct sums {
    double loss; /* sum over all targets */
    int64_t hits, targets, tokens, rows, micro_batches;
    struct objective_sums preferences;
};

/* The objective of a step of `next`'s rows. */
static int begin_objective(struct train *t, struct prefetch *next, int64_t step, struct err *e)
{
    bool eval = next == t->next_eval;
    t->objective.known = eval ? t->eval_reference.v : t->reference.v;
    return t->preferences && t->objective.singles ? train_reference_kl(t, eval, step, e) : 0;
}

/* Runs the micro-batches of a step; with back also computes the gradients of the mean loss over the step's targets. */
static enum outcome run_step(struct train *t, struct prefetch *next, int64_t step, bool back, struct sums *sum,
                             struct err *e)
{
    const struct prefetched *b;
    uint32_t unit = 0;
    if (begin_objective(t, next, step, e)) return FAILED;
    do {
        enum outcome o = asked(t);
        if (o != GO_ON) return o;
        b = prefetch_take(next, step, unit);
        step_clock_read(t->tm.clock, TRAIN_DATA);
        t->objective.rows = b->n_rows;
        t->objective.chosen_tokens = b->chosen_tokens;
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
    sum->targets += b->targets;
    sum->rows += b->n_rows;
    return GO_ON;
}

/* The same, with smaller micro-batches when memory is short. */
static enum outcome fit_step(struct train *t, struct prefetch *next, int64_t step, bool back, struct sums *sum,
                             struct err *e)
{
    struct sums before = *sum;
    enum outcome o;
    while ((o = run_step(t, next, step, back, sum, e)) == FAILED && train_fit_less(t, e)) {
        *sum = before;
        train_emit_warnings(t);
        if (back) optim_zero_grad(&t->o);
    }
    return o;
}

/* Says where in the step before st.step the first value is that is not finite; "": unknown. */
static const char *locate(struct train *t)
{
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
    if (train_load(t, was.good, e)) return FAILED;
    if (t->saved < 0) return err_set(e, ERR_IO, "the checkpoint of step %lld is gone", (long long)was.good), FAILED;
    ckpt_delete_after(t->ckpt_dir, t->saved);
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
    bool zero = norm == 0 && t->st.step > 1;
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

static void update(struct train *t, double rate, double norm)
{
    double limit = t->p.max_grad_norm, scale = 1;
    if (limit > 0) scale = fmin(1, limit / (norm + 1e-6)); /* as torch.nn.utils.clip_grad_norm_ */
    optim_step(&t->o, &t->p, rate, scale, ++t->st.updates);
    if (!t->lora_method) train_full_use(&t->full, &t->o, t->o.p);
}

static const double WAITS_LITTLE = 0.02; /* of its steps' time */

/* A job that waits for serving is slower then for other reasons than the machine's. */
static double speed_of_job(const struct train *t)
{
    const struct train_usage *u = &t->usage;
    return u->part[TRAIN_WAIT] > WAITS_LITTLE * u->seconds ? 0 : speed_ratio(&t->speed);
}

/* The step is done: its time and its work. */
static double count_step(struct train *t, const struct sums *sum)
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
    double computing = t->clock.part[TRAIN_FORWARD] + t->clock.part[TRAIN_BACKWARD];
    if (computing > 0) speed_add(&t->speed, (double)sum->tokens / computing);
    u->speed_ratio = speed_of_job(t);
    train_note_peaks(t, false);
    return took;
}

static enum outcome compute_step(struct train *t, struct sums *sum, struct err *e)
{
    optim_zero_grad(&t->o);
    step_clock_read(&t->clock, TRAIN_OPTIMIZER);
    t->tm.clock = &t->clock;
    enum outcome o = fit_step(t, t->next, t->st.step, true, sum, e);
    t->tm.clock = NULL; /* evaluations are not part of steps */
    return o;
}

static double loss_of(const struct train *t, const struct sums *sum)
{
    return t->preferences ? objective_loss(&sum->preferences) : sum->loss / (double)sum->targets;
}

static enum outcome train_step(struct train *t, struct err *e)
{
    struct sums sum = {0};
    step_clock_start(&t->clock);
    t->tm.dropout_seed = rng_at(t->p.seed, (uint64_t)STREAM_DROPOUT << 48 | (uint64_t)t->st.step);
    enum outcome o = compute_step(t, &sum, e);
    if (o != GO_ON) return o;
    double norm = optim_grad_norm(&t->o), loss = loss_of(t, &sum);
    double rate = optim_rate(&t->p, t->st.step, t->plan.steps) * t->st.rate_scale;
    bool good = isfinite(loss) && isfinite(norm);
    if (train_device_failed(t, e)) return FAILED;
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
    ev.accuracy = (double)sum.hits / (double)sum.targets;
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
    chunked_download(train_chunks(t), t->best, train_device_array(t, train_result_array(t)), t->o.n);
}

static enum outcome evaluate(struct train *t, struct err *e)
{
    struct sums sum = {0};
    float dropout = t->tm.dropout, residual = t->tm.residual_dropout;
    enum outcome o = GO_ON;
    t->tm.dropout = t->tm.residual_dropout = 0;
    if (t->o.avg) train_full_use(&t->full, &t->o, t->o.avg);
    for (int64_t i = 0; i < t->eval.before[1] && o == GO_ON; i++) o = fit_step(t, t->next_eval, i, false, &sum, e);
    t->tm.dropout = dropout;
    t->tm.residual_dropout = residual;
    if (t->o.avg) train_full_use(&t->full, &t->o, t->o.p);
    if (o != GO_ON) return o;
    double loss = loss_of(t, &sum), accuracy = (double)sum.hits / (double)sum.targets;
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
    return !t->st.bad && !t->p.save_steps && clock_now() - t->saved_at >= SAVE_SECONDS * 1000000000ull;
}

static double seconds_since(uint64_t start)
{
    return (double)(clock_now() - start) * 1e-9;
}

static int save(struct train *t, struct err *e)
{
    uint64_t start = clock_now();
    int rc = train_save(t, e);
    t->usage.checkpoint_seconds += seconds_since(start);
    return rc;
}

static enum outcome loop(struct train *t, struct err *e)
{
    for (;;) {
        bool due = eval_due(t);
        uint64_t start = clock_now();
        enum outcome o = due ? evaluate(t, e) : GO_ON;
        if (due) t->usage.eval_seconds += seconds_since(start);
        bool good = o == GO_ON && good_due(t, due);
        if (good) t->st.good = t->st.step;
        if (o == GO_ON && (good || save_due(t)) && save(t, e)) return FAILED;
        if (o == GO_ON && at_end(t)) return DONE;
        if (o == GO_ON) o = asked(t);
        if (o == GO_ON) o = train_step(t, e);
        if (o != GO_ON) return o;
    }
}

static void open_prefetch(struct train *t)
{
    int tokens = t->tm.max_tokens, near = t->tm.c->near_len;
    bool several = train_fits_units(t);
    t->next = prefetch_open(&t->rows, tokens, near, several, true);
    if (t->eval.n) t->next_eval = prefetch_open(&t->eval, tokens, near, several, true);
}

/* The reference's log-probabilities, when they are needed. */
static enum outcome open_objective(struct train *t, struct err *e)
{
    if (!t->preferences) return GO_ON;
    t->tm.weigh = objective_weigh;
    t->tm.weigh_arg = &t->objective;
    if (!train_reference_open(t, e)) return GO_ON;
    return asked(t) != GO_ON ? asked(t) : FAILED;
}

void train_run(struct train *t, train_event_fn *fn, void *arg)
{
    struct err e = {0};
    t->fn = fn;
    t->arg = arg;
    t->saved_at = clock_now();
    train_emit(t, TRAIN_PLAN, NULL);
    train_emit_warnings(t);
    if (t->resumed) train_emit(t, TRAIN_RESUMED, NULL);
    enum outcome o = open_objective(t, &e);
    open_prefetch(t);
    if (o == GO_ON) o = loop(t, &e);
    prefetch_close(t->next);
    prefetch_close(t->next_eval);
    t->next = t->next_eval = NULL;
    train_emit_warnings(t);
    if ((o == PAUSED || o == CANCELLED) && t->ckpt_dir && t->saved != t->st.step && save(t, &e)) o = FAILED;
    scheduler_gate_leave(t->gate);
    if (o == DONE && train_write_result(t, &e)) o = FAILED;
    if (o == DONE && t->ckpt_dir) ckpt_prune(t->ckpt_dir, 1, -1);
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
