/* The training loop: steps, micro-batches, guards, evaluation, early stopping, checkpoints, events. */
#include "engine/train/train.h"

#include "engine/base/buf.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/meminfo.h"
#include "engine/model/model.h"
#include "engine/train/ckpt.h"
#include "engine/train/full.h"
#include "engine/train/lora.h"
#include "engine/train/model.h"
#include "engine/train/op_chunks.h"
#include "engine/train/optim.h"
#include "engine/train/params.h"
#include "engine/train/rows.h"
#include "engine/train/scheduler_gate.h"
#include "kernels/rng.h"
#include "kernels/trace.h"

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STREAM_DROPOUT = 11, /* of the seed */
    BAD_IN_A_ROW = 3,    /* steps without a finite loss and gradient before going back */
    SAVE_SECONDS = 120,  /* between checkpoints where save_steps does not say */
    GOOD_PARTS = 20,     /* of a job; at the end of each it makes one in any case... */
    GOOD_LEAST = 50,     /* ... but not of fewer steps than these, nor... */
    GOOD_MOST = 500,     /* ... of more */
    NORM_WARNINGS = 5,   /* per run */
    NORM_LARGE = 100,    /* a gradient norm above it means trouble */
    ARRAYS = 4,          /* of the optimizer in a checkpoint */
};

/* What a checkpoint holds beside the arrays; eight bytes each, no padding. */
struct state {
    int64_t step;    /* done */
    int64_t updates; /* of them not skipped */
    int64_t tokens, trained, skipped;
    int64_t bad;       /* skipped in a row, until now */
    int64_t fallbacks; /* times it went back to a checkpoint for that */
    int64_t good; /* step of the checkpoint it would go back to: the newest that depends on no clock and no pause */
    int64_t evaluated; /* step of the last evaluation; -1 */
    int64_t worse;     /* evaluations without improvement, until now */
    int64_t best_step; /* -1: none */
    int64_t stopped;   /* early */
    double best_loss, best_accuracy;
    double rate_scale;
    double seconds;
};

struct train {
    struct train_job job; /* its texts are ours */
    struct train_params p;
    struct model *model;
    struct dev *d;
    struct scheduler_gate *gate;
    bool lora_method, bf16_x; /* as the device had it */
    bool took;                /* memory of the device */

    struct optim o;
    struct train_lora lora;
    struct train_full full;
    struct train_model tm;
    struct train_rows rows, eval;
    struct micro micro;
    struct train_plan plan;
    struct state st;

    float *host[ARRAYS]; /* p, m, v, avg as the host sees them: the device's own, or copies for checkpoints */
    float *best;         /* the best evaluated p, or avg; NULL without evaluation */
    char *ckpt_dir;
    uint64_t hash;
    int64_t saved;     /* step of the newest checkpoint; -1 */
    uint64_t saved_at; /* clock */
    bool resumed;
    struct buf warnings; /* of open */

    train_event_fn *fn;
    void *arg;
    double run_seconds; /* of the steps of this run */
    int64_t run_steps;
    int norm_warnings;
    atomic_int command;
};

enum outcome { GO_ON, DONE, PAUSED, CANCELLED, FAILED };

/* ---- events ------------------------------------------------------------------------------------------------------ */

static struct train_event event_of(const struct train *t, enum train_event_kind kind)
{
    const struct state *s = &t->st;
    int64_t total = t->plan.steps;
    int epoch = train_rows_epoch(&t->rows, s->step < total ? s->step : total - 1);
    double in_epoch = (double)(s->step - t->rows.before[epoch]) / (double)t->rows.whole[epoch];
    return (struct train_event){
        .kind = kind,
        .step = s->step,
        .steps = total,
        .epoch = epoch + in_epoch,
        .loss = NAN,
        .accuracy = NAN,
        .grad_norm = NAN,
        .tokens = s->tokens,
        .trained_tokens = s->trained,
        .seconds = s->seconds,
        .eta_s = t->run_steps ? t->run_seconds / (double)t->run_steps * (double)(total - s->step) : NAN,
        .skipped = s->skipped,
        .eval_loss = NAN,
        .eval_accuracy = NAN,
        .plan = &t->plan,
    };
}

static void tell(struct train *t, enum train_event_kind kind, const char *text)
{
    struct train_event e = event_of(t, kind);
    e.text = text;
    t->fn(t->arg, &e);
}

__attribute__((format(printf, 2, 3))) static void warn(struct train *t, const char *fmt, ...)
{
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    tell(t, TRAIN_WARNING, text);
}

/* An op of this job failed.  Beside serving the gate has the error: the device's is of who has the device. */
static bool device_failed(struct train *t, struct err *e)
{
    struct dev_error w;
    if (t->gate ? !scheduler_gate_error(t->gate, &w) : !t->d->error.op) return false;
    if (!t->gate) {
        w = t->d->error;
        dev_clear_error(t->d);
    }
    err_set(e, w.lost ? ERR_LOST : ERR_NOMEM, "device: op %s: %s", w.op, w.msg);
    return true;
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

enum { PARTS_MAX = ARRAYS + 2 };

static struct op_chunks chunks_of(const struct train *t)
{
    return (struct op_chunks){t->d, t->gate};
}

/* NULL: there is none of it. */
static float *device_array(const struct train *t, int i)
{
    return i == 0 ? t->o.p : i == 1 ? t->o.m : i == 2 ? t->o.v : t->o.avg;
}

/* Which of them is evaluated and written. */
static int result_array(const struct train *t)
{
    return t->o.avg ? 3 : 0;
}

static int parts_of(struct train *t, struct ckpt_part part[PARTS_MAX])
{
    static const char *const names[ARRAYS] = {"parameters", "moment1", "moment2", "average"};
    int n = 0;
    part[n++] = (struct ckpt_part){"state", &t->st, sizeof t->st};
    for (int i = 0; i < ARRAYS; i++)
        if (t->host[i]) part[n++] = (struct ckpt_part){names[i], t->host[i], t->o.n * sizeof(float)};
    if (t->best) part[n++] = (struct ckpt_part){"best", t->best, t->o.n * sizeof(float)};
    return n;
}

static int save(struct train *t, struct err *e)
{
    struct ckpt_part part[PARTS_MAX];
    int n = parts_of(t, part);
    for (int i = 0; i < ARRAYS; i++)
        if (t->host[i] != device_array(t, i)) chunked_download(chunks_of(t), t->host[i], device_array(t, i), t->o.n);
    if (device_failed(t, e)) return e->code;
    scheduler_gate_leave(t->gate);
    tell(t, TRAIN_SAVING, NULL);
    int rc = ckpt_write(t->ckpt_dir, t->hash, t->st.step, t->st.good, part, n, e);
    if (rc) return err_prefix(e, "the checkpoint could not be written");
    t->saved = t->st.step;
    t->saved_at = clock_now();
    char name[CKPT_NAME_MAX];
    ckpt_name(t->st.step, name);
    char *path = file_join(t->ckpt_dir, name);
    tell(t, TRAIN_CHECKPOINT, path);
    free(path);
    return 0;
}

/* The newest checkpoint of step `most` or before, if there is one: t->saved >= 0. */
static int load(struct train *t, int64_t most, struct err *e)
{
    struct ckpt_part part[PARTS_MAX];
    int n = parts_of(t, part), rc = ckpt_read(t->ckpt_dir, t->hash, most, part, n, &t->saved, &t->warnings, e);
    if (rc || t->saved < 0) return rc;
    for (int i = 0; i < ARRAYS; i++)
        if (t->host[i] != device_array(t, i)) chunked_upload(chunks_of(t), device_array(t, i), t->host[i], t->o.n);
    if (!t->lora_method) train_full_use(&t->full, &t->o, t->o.p);
    return 0;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static enum outcome asked(struct train *t)
{
    int c = atomic_load(&t->command);
    return c == TRAIN_PAUSE ? PAUSED : c == TRAIN_CANCEL ? CANCELLED : GO_ON;
}

struct sums {
    double loss; /* of all targets */
    int64_t hits, targets, tokens;
};

/* The micro-batches of a step; with back their gradients, of the mean over the step's targets. */
static enum outcome run_step(struct train *t, struct train_rows *rows, int64_t step, bool back, struct sums *sum,
                             struct err *e)
{
    struct microbatches_step b = train_rows_step(rows, step);
    int64_t targets = train_rows_targets(rows, &b), tokens = 0;
    for (uint32_t i = 0; i < b.n_micro; i++) {
        enum outcome o = asked(t);
        if (o != GO_ON) return o;
        micro_fill(&t->micro, rows, &b, i, (uint64_t)tokens);
        struct train_loss l = train_model_run(&t->tm, &t->micro, back, (float)(1 / (double)targets));
        if (device_failed(t, e)) return FAILED;
        sum->loss += l.sum;
        sum->hits += l.hits;
        tokens += t->micro.n_tokens;
    }
    sum->targets += targets;
    sum->tokens += tokens;
    return GO_ON;
}

/* Three bad steps in a row: the learning rate is halved, and it goes on from the last good checkpoint, which none of
 * them had touched; once.  What was written since is of steps that will be done again, otherwise. */
static enum outcome go_back(struct train *t, struct err *e)
{
    struct state was = t->st;
    if (was.fallbacks > 0) {
        err_set(e, ERR_INVALID,
                "%d steps in a row without a finite loss and gradient, again after the learning rate was halved",
                BAD_IN_A_ROW);
        return FAILED;
    }
    scheduler_gate_leave(t->gate); /* while it is read */
    if (load(t, was.good, e)) return FAILED;
    if (t->saved < 0) return err_set(e, ERR_IO, "the checkpoint of step %lld is gone", (long long)was.good), FAILED;
    ckpt_forget(t->ckpt_dir, t->saved);
    t->st.skipped = was.skipped;
    t->st.seconds = was.seconds;
    t->st.fallbacks = was.fallbacks + 1;
    t->st.rate_scale = was.rate_scale / 2;
    t->st.bad = 0;
    t->saved = -1;
    warn(t, "%d steps in a row without a finite loss and gradient: the learning rate is halved, back to step %lld",
         BAD_IN_A_ROW, (long long)t->st.step);
    return GO_ON;
}

static void look_at_norm(struct train *t, double norm)
{
    bool zero = norm == 0 && t->st.step > 1;
    if ((!zero && norm <= NORM_LARGE) || t->norm_warnings >= NORM_WARNINGS) return;
    t->norm_warnings++;
    if (zero)
        warn(t, "the gradient is exactly zero: nothing is learnt");
    else
        warn(t, "the gradient's norm is %.3g: above %d training is unstable; a lower learning rate may help", norm,
             NORM_LARGE);
}

static void update(struct train *t, double rate, double norm)
{
    double limit = t->p.max_grad_norm, scale = 1;
    if (limit > 0) scale = fmin(1, limit / (norm + 1e-6)); /* as torch.nn.utils.clip_grad_norm_ */
    optim_step(&t->o, &t->p, rate, scale, ++t->st.updates);
    if (!t->lora_method) train_full_use(&t->full, &t->o, t->o.p);
}

static enum outcome train_step(struct train *t, struct err *e)
{
    uint64_t start = clock_now();
    struct sums sum = {0};
    t->tm.dropout_seed = rng_at(t->p.seed, (uint64_t)STREAM_DROPOUT << 48 | (uint64_t)t->st.step);
    optim_zero_grad(&t->o);
    enum outcome o = run_step(t, &t->rows, t->st.step, true, &sum, e);
    if (o != GO_ON) return o;
    double norm = optim_grad_norm(&t->o), loss = sum.loss / (double)sum.targets;
    double rate = optim_rate(&t->p, t->st.step, t->plan.steps) * t->st.rate_scale;
    bool good = isfinite(loss) && isfinite(norm);
    if (device_failed(t, e)) return FAILED;
    if (good) update(t, rate, norm);
    if (device_failed(t, e)) return FAILED;

    double took = (double)(clock_now() - start) * 1e-9;
    t->st.step++;
    t->st.tokens += sum.tokens;
    t->st.trained += sum.targets;
    t->st.seconds += took;
    t->st.bad = good ? 0 : t->st.bad + 1;
    t->st.skipped += !good;
    t->run_seconds += took;
    t->run_steps++;
    struct train_event ev = event_of(t, TRAIN_STEP);
    ev.loss = loss;
    ev.accuracy = (double)sum.hits / (double)sum.targets;
    ev.grad_norm = norm;
    ev.learning_rate = rate;
    ev.tokens_per_s = (double)sum.tokens / took;
    t->fn(t->arg, &ev);
    if (good) {
        look_at_norm(t, norm);
        return GO_ON;
    }
    warn(t, "step %lld is skipped: its %s is not finite", (long long)t->st.step, isfinite(loss) ? "gradient" : "loss");
    return t->st.bad >= BAD_IN_A_ROW ? go_back(t, e) : GO_ON;
}

/* ---- evaluation -------------------------------------------------------------------------------------------------- */

static bool at_end(const struct train *t)
{
    return t->st.step >= t->plan.steps || t->st.stopped;
}

static bool eval_due(const struct train *t)
{
    int64_t step = t->st.step;
    if (!t->best || step == 0 || t->st.evaluated == step) return false;
    if (step >= t->plan.steps) return true;
    if (t->p.eval_steps) return step % t->p.eval_steps == 0;
    return t->rows.before[train_rows_epoch(&t->rows, step)] == step;
}

static void keep_best(struct train *t)
{
    chunked_download(chunks_of(t), t->best, device_array(t, result_array(t)), t->o.n);
}

static enum outcome evaluate(struct train *t, struct err *e)
{
    struct sums sum = {0};
    float dropout = t->tm.dropout, residual = t->tm.residual_dropout;
    enum outcome o = GO_ON;
    t->tm.dropout = t->tm.residual_dropout = 0;
    if (t->o.avg) train_full_use(&t->full, &t->o, t->o.avg);
    for (int64_t i = 0; i < t->eval.before[1] && o == GO_ON; i++) o = run_step(t, &t->eval, i, false, &sum, e);
    t->tm.dropout = dropout;
    t->tm.residual_dropout = residual;
    if (t->o.avg) train_full_use(&t->full, &t->o, t->o.p);
    if (o != GO_ON) return o;
    double loss = sum.loss / (double)sum.targets, accuracy = (double)sum.hits / (double)sum.targets;
    struct state *s = &t->st;
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
    struct train_event ev = event_of(t, TRAIN_EVAL);
    ev.eval_loss = loss;
    ev.eval_accuracy = accuracy;
    ev.best = best;
    t->fn(t->arg, &ev);
    return GO_ON;
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

/* A checkpoint that an unbroken run of this job makes here, too. */
static bool good_due(const struct train *t, bool evaluated)
{
    int64_t every = t->p.save_steps, part = t->plan.steps / GOOD_PARTS;
    if (!every) every = part < GOOD_LEAST ? GOOD_LEAST : part > GOOD_MOST ? GOOD_MOST : part;
    if (t->st.bad || t->st.good == t->st.step) return false; /* bad: so that there is one from before */
    return evaluated || t->st.step % every == 0;
}

static bool save_due(const struct train *t)
{
    if (t->saved == t->st.step) return false;
    if (t->saved < 0 || at_end(t)) return true;
    return !t->st.bad && !t->p.save_steps && clock_now() - t->saved_at >= SAVE_SECONDS * 1000000000ull;
}

static enum outcome loop(struct train *t, struct err *e)
{
    for (;;) {
        bool due = eval_due(t);
        enum outcome o = due ? evaluate(t, e) : GO_ON;
        bool good = o == GO_ON && good_due(t, due);
        if (good) t->st.good = t->st.step;
        if (o == GO_ON && (good || save_due(t)) && save(t, e)) return FAILED;
        if (o == GO_ON && at_end(t)) return DONE;
        if (o == GO_ON) o = asked(t);
        if (o == GO_ON) o = train_step(t, e);
        if (o != GO_ON) return o;
    }
}

static int write_result(struct train *t, struct err *e)
{
    int last = result_array(t);
    const float *p = t->st.best_step >= 0 ? t->best : t->host[last], *on_device = device_array(t, last);
    if (!t->job.out) return 0;
    if (p == t->host[last] && p != on_device) {
        chunked_download(chunks_of(t), t->host[last], on_device, t->o.n);
        scheduler_gate_leave(t->gate);
    }
    if (device_failed(t, e)) return err_prefix(e, "the result could not be read");
    struct buf tmp = {0};
    buf_printf(&tmp, "%s.tmp", t->job.out);
    dir_remove(tmp.data);
    int rc = dir_make(tmp.data, e);
    if (!rc)
        rc = t->lora_method ? train_lora_write(&t->lora, p, t->job.base_name, tmp.data, e)
                            : train_full_write(&t->full, p, t->job.model_dir, tmp.data, e);
    if (!rc) rc = dir_sync(tmp.data, e);
    if (!rc) rc = dir_replace(tmp.data, t->job.out, e);
    if (rc) dir_remove(tmp.data);
    buf_free(&tmp);
    return rc ? err_prefix(e, "the result could not be written") : 0;
}

static void tell_warnings(struct train *t)
{
    if (t->warnings.len) tell(t, TRAIN_WARNING, t->warnings.data);
    buf_clear(&t->warnings);
}

void train_run(struct train *t, train_event_fn *fn, void *arg)
{
    struct err e = {0};
    t->fn = fn;
    t->arg = arg;
    t->saved_at = clock_now();
    tell(t, TRAIN_PLAN, NULL);
    tell_warnings(t);
    if (t->resumed) tell(t, TRAIN_RESUMED, NULL);
    enum outcome o = loop(t, &e);
    tell_warnings(t);
    if ((o == PAUSED || o == CANCELLED) && t->saved != t->st.step && save(t, &e)) o = FAILED;
    scheduler_gate_leave(t->gate);
    if (o == DONE && write_result(t, &e)) o = FAILED;
    if (o == DONE) ckpt_prune(t->ckpt_dir, 1, -1);
    tell(t,
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

/* ---- opening ----------------------------------------------------------------------------------------------------- */

const struct train_plan *train_plan(const struct train *t)
{
    return &t->plan;
}

static int check_base(const struct train *t, struct err *e)
{
    enum dtype type = t->model->w.type;
    bool is_float = !t->model->c.quant[0] && (type == DT_F32 || type == DT_BF16 || type == DT_F16);
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

/* What ops take for themselves, attention most of all (packed keys; gradients of the longest sequence, or of about a
 * thousand rows), and what is kept of each row of data. */
static size_t scratch_bytes(const struct train *t)
{
    const double SPARE = 1.25, ROW_BYTES = 40;
    const struct model_config *c = &t->model->c;
    double rows = t->tm.max_tokens, longest = t->p.max_length > 1024 ? t->p.max_length : 1024;
    int dim = (c->head_dim + 15) / 16 * 16;
    double wave = longest < rows ? longest : rows;
    double forward = rows * c->kv_heads * 2 * dim * 4, back = wave * dim * 4 * (2.0 * c->heads + 3.0 * c->kv_heads);
    return (size_t)((forward > back ? forward : back) * SPARE + ROW_BYTES * (double)(t->rows.n + t->eval.n));
}

/* What may be taken of the memory that training is planned in: the device's own, or the host's. */
static size_t room_for(struct dev *d, size_t *piece)
{
    if (!dev_host_memory(d)) return dev_memory_left(d, piece);
    return *piece = memory_available();
}

/* The largest pieces are arrays of all parameters that are trained, or of activations; activations: bytes of the
 * largest of these.  What ops take for themselves is not known so well. */
static int check_piece(const struct train *t, size_t piece, size_t activations, struct err *e)
{
    double state = (double)t->o.n * sizeof(float), need = fmax(state, (double)activations);
    if (need <= (double)piece) return 0;
    return err_set(e, ERR_NOMEM,
                   "training needs %.2f GiB in one piece for %s, %.2f are free in one piece: unload adapters, or %s",
                   need / GIB, state < need ? "activations" : "parameters", (double)piece / GIB,
                   state < need     ? "lower micro_tokens and max_length"
                   : t->lora_method ? "lower lora_r, or name fewer targets"
                                    : "use method lora");
}

/* Chooses whether activations are computed again, and refuses what does not fit. */
static int plan_memory(struct train *t, struct err *e)
{
    struct train_plan *p = &t->plan;
    int average = t->p.ema_decay > 0;
    /* a plan alone is made on any thread, the device not being its */
    bool own = !dev_host_memory(t->d);
    int copies = 4 + average + (t->eval.n && !own ? 1 : 0), host_copies = own ? 3 + average + (t->eval.n ? 1 : 0) : 0;
    size_t piece, largest, room = room_for(t->d, &piece);
    if ((double)host_copies * (double)t->o.n * 4 > 0.95 * (double)memory_available())
        return err_set(e, ERR_NOMEM, "training needs %.2f GiB of the host for %d copies of %zu parameters",
                       (double)host_copies * (double)t->o.n * 4 / GIB, host_copies, t->o.trained);
    p->weight_bytes = t->model->w.bytes;
    p->trainable = t->o.trained;
    p->state_bytes = (size_t)copies * t->o.n * sizeof(float) + muon_bytes(&t->o.muon);
    if (!t->lora_method) p->state_bytes += train_full_bytes(&t->full);
    t->tm.recompute = t->p.recompute == RECOMPUTE_ON;
    p->activation_bytes = train_model_bytes(&t->tm, &largest) + scratch_bytes(t);
    double need = (double)p->state_bytes + (double)p->activation_bytes;
    if (t->p.recompute == RECOMPUTE_AUTO && need > 0.6 * (double)room) {
        t->tm.recompute = true;
        p->activation_bytes = train_model_bytes(&t->tm, &largest) + scratch_bytes(t);
        need = (double)p->state_bytes + (double)p->activation_bytes;
    }
    p->recompute = t->tm.recompute;
    if (need <= 0.95 * (double)room) return check_piece(t, piece, largest, e);
    bool state = (double)p->state_bytes > need / 2;
    return err_set(
        e, ERR_NOMEM,
        "training needs %.2f GiB (%.2f for %zu parameters with gradients and moments, %.2f for activations of "
        "%d tokens), %.2f GiB are available: %s",
        need / GIB, (double)p->state_bytes / GIB, p->trainable, (double)p->activation_bytes / GIB, t->tm.max_tokens,
        (double)room / GIB,
        state                             ? t->lora_method ? "lower lora_r, or name fewer targets" : "use method lora"
        : t->p.recompute == RECOMPUTE_OFF ? "let recompute be auto, or lower micro_tokens and max_length"
                                          : "lower micro_tokens and max_length");
}

static void plan_steps(struct train *t)
{
    t->plan.steps = t->rows.before[t->rows.epochs];
    t->plan.rows = t->rows.n;
    t->plan.eval_rows = t->eval.n;
    t->plan.tokens_per_epoch = (int64_t)t->rows.tokens;
    t->plan.trained_tokens_per_epoch = (int64_t)t->rows.targets;
}

/* The largest micro-batch and step, which a device measures (see its reserve): nothing of it runs. */
static void largest_step(void *arg)
{
    struct train *t = arg;
    struct micro *b = &t->micro;
    int T = t->tm.max_tokens, len = t->p.max_length < T ? t->p.max_length : T, lengths[] = {len, 8};
    for (int k = 0; k < 2; k++) {
        b->n_tokens = b->n_targets = T;
        b->n_seqs = (T + lengths[k] - 1) / lengths[k];
        for (int i = 0; i <= b->n_seqs; i++) b->q_start[i] = i * lengths[k] < T ? i * lengths[k] : T;
        train_model_run(&t->tm, b, true, 1);
    }
    optim_grad_norm(&t->o);
    optim_step(&t->o, &t->p, 0, 1, 1);
    if (!t->lora_method) train_full_use(&t->full, &t->o, t->o.p);
}

/* While this thread has the device: it does not look at the gate in between, so that ops are not cut. */
static int reserve_scratch(struct train *t, struct err *e)
{
    scheduler_gate_pass(t->gate);
    t->tm.gate = t->o.gate = NULL;
    int failed = t->d->ops->reserve(t->d, largest_step, t);
    t->tm.gate = t->o.gate = t->gate;
    if (!failed) return 0;
    if (!device_failed(t, e)) err_set(e, ERR_NOMEM, "no memory for what the ops of training take for themselves");
    return e->code;
}

static int take_memory(struct train *t, struct err *e)
{
    scheduler_gate_pass(t->gate);
    t->took = true;
    int rc = optim_alloc(&t->o, t->p.ema_decay > 0, e);
    if (rc) return rc;
    for (int i = 0; i < ARRAYS; i++) {
        t->host[i] = device_array(t, i);
        if (!t->host[i] || t->d->ops->host_memory) continue;
        if (!(t->host[i] = mem_try_alloc(t->o.n * sizeof(float)))) rc = ERR_NOMEM;
    }
    if (t->eval.n && !(t->best = calloc(t->o.n, sizeof *t->best))) rc = ERR_NOMEM;
    if (rc) return err_set(e, rc, "no memory for copies of %zu parameters", t->o.trained);
    if (t->lora_method)
        train_lora_bind(&t->lora, &t->o);
    else
        rc = train_full_bind(&t->full, &t->p, &t->o, e);
    if (!rc) optim_start(&t->o);
    if (!rc) rc = train_model_open(&t->tm, t->p.max_length, e);
    micro_open(&t->micro, t->tm.max_tokens);
    if (!rc && t->d->ops->reserve) rc = reserve_scratch(t, e);
    scheduler_gate_leave(t->gate);
    return rc;
}

static void hash_job(struct train *t)
{
    float *p = t->host[0];
    if (p != t->o.p) {
        chunked_download(chunks_of(t), p, t->o.p, t->o.n);
        scheduler_gate_leave(t->gate);
    }
    t->hash = train_job_hash(&t->p, dataset_hash(t->job.data), t->job.eval ? dataset_hash(t->job.eval) : 0,
                             t->model->w.file, p, t->o.n);
    /* what the base is multiplied as is not in its file */
    t->hash = rng_mix(t->hash ^ rng_mix((uint64_t)t->model->w.type << 1 | t->d->bf16_x));
}

/* All that can be said without the device: nothing is computed or taken. */
static int plan_all(struct train *t, struct err *e)
{
    uint64_t left_out = 0;
    int rc = train_params_check(&t->p, &t->model->c, e);
    if (!rc) rc = check_base(t, e);
    if (!rc) rc = train_rows_open(&t->rows, &t->eval, &t->job, &t->p, t->model->c.vocab, &left_out, e);
    if (rc) return rc;
    if (left_out)
        buf_printf(&t->warnings, "%llu rows have no token to train on within max_length %d and are left out",
                   (unsigned long long)left_out, t->p.max_length);
    optim_init(&t->o, t->d, t->gate);
    rc = t->lora_method ? train_lora_open(&t->lora, &t->model->c, &t->p, t->job.from, &t->o, e)
                        : train_full_open(&t->full, t->model, &t->p, &t->o, e);
    if (rc) return rc;
    int most = microbatches_micro_max(t->rows.batches),
        most_eval = t->eval.n ? microbatches_micro_max(t->eval.batches) : 0;
    t->tm = (struct train_model){.c = &t->model->c,
                                 .w = t->lora_method ? &t->model->w : &t->full.w,
                                 .d = t->d,
                                 .gate = t->gate,
                                 .site = t->lora_method ? t->lora.site : NULL,
                                 .grads = t->lora_method ? NULL : &t->full.g,
                                 .dropout = (float)t->p.lora_dropout,
                                 .residual_dropout = (float)t->p.dropout,
                                 .half = !t->p.f32,
                                 .max_tokens = most > most_eval ? most : most_eval};
    plan_steps(t);
    return plan_memory(t, e);
}

static int open_all(struct train *t, struct err *e)
{
    scheduler_gate_leave(t->gate); /* until there is something to compute */
    int rc = plan_all(t, e);
    if (!rc) rc = take_memory(t, e);
    if (rc) return rc;
    hash_job(t);
    t->st = (struct state){.good = -1, .evaluated = -1, .best_step = -1, .rate_scale = 1};
    if (device_failed(t, e)) return e->code; /* of parameters that are not those of the job the hash says nothing */
    rc = load(t, INT64_MAX, e);
    scheduler_gate_leave(t->gate);
    t->resumed = t->saved >= 0;
    return rc;
}

static char *copy_text(const char *s)
{
    return s ? mem_strdup(s) : NULL;
}

static struct train *train_new(const struct train_job *job, struct model *m, struct scheduler_gate *gate)
{
    struct train *t = mem_zalloc(sizeof *t);
    *t = (struct train){.job = *job, .p = job->p, .model = m, .d = m->d, .gate = gate, .saved = -1};
    t->lora_method = job->p.method != TRAIN_FULL;
    t->job.from = copy_text(job->from);
    t->job.base_name = copy_text(job->base_name);
    t->job.model_dir = copy_text(job->model_dir);
    t->job.dir = copy_text(job->dir);
    t->job.out = copy_text(job->out);
    t->ckpt_dir = job->dir ? file_join(job->dir, "checkpoints") : NULL;
    t->bf16_x = m->d->bf16_x;
    return t;
}

int train_plan_job(const struct train_job *job, struct model *m, struct scheduler_gate *gate, struct train_plan *plan,
                   struct err *e)
{
    struct train *t = train_new(job, m, gate);
    int rc = plan_all(t, e);
    *plan = t->plan;
    train_free(t);
    return rc;
}

struct train *train_open(const struct train_job *job, struct model *m, struct scheduler_gate *gate, struct err *e)
{
    struct train *t = train_new(job, m, gate);
    if (t->p.f32 && !gate) m->d->bf16_x = false; /* nobody else computes on it */
    if (open_all(t, e)) {
        struct err lost = {0};
        if (device_failed(t, &lost) && lost.code == ERR_LOST)
            *e = lost;                             /* that comes first, whatever failed after it */
        if (t->took) scheduler_gate_pass(t->gate); /* it frees memory of the device */
        train_free(t);
        return NULL;
    }
    return t;
}

void train_free(struct train *t)
{
    if (!t) return;
    if (!t->gate) t->d->bf16_x = t->bf16_x;
    for (int i = 0; i < ARRAYS; i++)
        if (t->host[i] != device_array(t, i)) free(t->host[i]);
    train_model_close(&t->tm);
    train_lora_close(&t->lora);
    train_full_close(&t->full);
    optim_free(&t->o);
    train_rows_close(&t->rows);
    train_rows_close(&t->eval);
    micro_close(&t->micro);
    if (t->took && t->d->ops->trim) t->d->ops->trim(t->d);
    free(t->best);
    free(t->ckpt_dir);
    const char *texts[] = {t->job.from, t->job.base_name, t->job.model_dir, t->job.dir, t->job.out};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) free((char *)texts[i]);
    buf_free(&t->warnings);
    free(t);
}
