/* Events of a trainer, and its device errors. */
#include "engine/train/train_state.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

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

void train_emit(struct train *t, enum train_event_kind kind, const char *text)
{
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
    struct dev_error w;
    if (t->gate ? !scheduler_gate_error(t->gate, &w) : !t->d->error.op) return false;
    if (!t->gate) {
        w = t->d->error;
        dev_clear_error(t->d);
    }
    err_set(e, w.lost ? ERR_LOST : ERR_NOMEM, "device: op %s: %s", w.op, w.msg);
    return true;
}
