/* Events of a trainer, and its device errors. */
#include "engine/base/clock.h"
#include "engine/base/meminfo.h"
#include "engine/train/train_state.h"
#include "kernels/trace.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

enum { PEAKS_NS = 1000000000 }; /* reading the host's takes longer than a short step should */

const struct train_rewards train_no_rewards = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};

bool train_event_is_last(enum train_event_kind k)
{
    return k == TRAIN_PAUSED || k == TRAIN_CANCELLED || k == TRAIN_LOST || k == TRAIN_FAILED || k == TRAIN_SUCCEEDED;
}

struct train_event train_event_of(const struct train *t, enum train_event_kind kind)
{
    const struct train_state *s = &t->st;
    int64_t total = t->plan.steps;
    int epoch = train_rows_epoch(&t->rows, s->step < total ? s->step : total - 1);
    double in_epoch = (double)(s->step - t->rows.before[epoch]) / (double)t->rows.whole[epoch];
    return (struct train_event){
        .kind = kind,
        .step = s->step,
        .steps = total,
        .epoch = epoch + in_epoch,
        .loss = NAN,
        .rewards = train_no_rewards,
        .accuracy = NAN,
        .grad_norm = NAN,
        .tokens = s->tokens,
        .trained_tokens = s->trained,
        .seconds = s->seconds,
        .eta_s = t->usage.steps ? t->usage.seconds / (double)t->usage.steps * (double)(total - s->step) : NAN,
        .skipped = s->skipped,
        .eval_loss = NAN,
        .eval_accuracy = NAN,
        .best_eval_loss = s->best_step >= 0 ? s->best_loss : NAN,
        .best_step = s->best_step,
        .evals_since_best = s->worse,
        .plan = &t->plan,
        .usage = t->usage,
        .rank_memory = t->rank_memory,
    };
}

const char *train_part_name(enum train_part p)
{
    static const char *const names[] = {"data", "forward", "backward", "optimizer", "wait", "ranks", "other"};
    return names[p];
}

int train_rewards_list(const struct train_rewards *r, struct train_reward out[TRAIN_REWARDS])
{
    const struct train_reward all[TRAIN_REWARDS] = {{"rewards/chosen", r->chosen},
                                                    {"rewards/rejected", r->rejected},
                                                    {"rewards/accuracies", r->accuracies},
                                                    {"rewards/margins", r->margins},
                                                    {"kl", r->kl},
                                                    {"reward", r->reward},
                                                    {"reward_std", r->reward_std},
                                                    {"frac_reward_zero_std", r->zero_std},
                                                    {"completions/mean_length", r->length},
                                                    {"completions/clipped_ratio", r->truncated},
                                                    {"clip_ratio", r->clipped}};
    int n = 0;
    for (int i = 0; i < TRAIN_REWARDS; i++)
        if (!isnan(all[i].v)) out[n++] = all[i];
    return n;
}

size_t train_memory_used(const struct train *t)
{
    struct dev_memory m;
    if (dev_host_memory(t->d) || !t->d->ops->memory) return memory_private();
    t->d->ops->memory(t->d, &m);
    return m.used;
}

void train_note_peaks(struct train *t, bool now)
{
    uint64_t at = clock_now();
    size_t used = 0;
    if (!dev_host_memory(t->d) && t->d->ops->memory) {
        used = train_memory_used(t);
        if (used > t->usage.device_peak) t->usage.device_peak = used;
    }
    if (!now && t->usage.host_peak && at - t->peaks_at < PEAKS_NS) return;
    t->usage.host_peak = memory_peak();
    if (!used) used = train_memory_used(t);
    if (used > t->before + t->memory.taken) t->memory.taken = used - t->before;
    t->peaks_at = at;
}

void train_emit(struct train *t, enum train_event_kind kind, const char *text)
{
    train_note_peaks(t, true);
    struct train_event e = train_event_of(t, kind);
    e.text = text;
    t->fn(t->arg, &e);
}

void train_warn(struct train *t, const char *fmt, ...)
{
    char text[480];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    train_emit(t, TRAIN_WARNING, text);
}

void train_emit_warnings(struct train *t)
{
    if (t->warnings.len) train_emit(t, TRAIN_WARNING, t->warnings.data);
    buf_clear(&t->warnings);
}

bool train_device_failed(struct train *t, struct err *e)
{
    return scheduler_gate_failed(t->gate, t->d, e);
}
