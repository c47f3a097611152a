#include "server/cli/bench_training.h"

#include "server/cli/bench_training_report.h"
#include "server/cli/cmd.h"
#include "server/jobs/train_params.h"

enum { STEPS = 8 };

int bench_training_run(const struct bench_training_run *r, struct buf *text, struct buf *json, struct err *e)
{
    const struct settings *s = r->settings;
    struct bench_training t;
    struct bench_report report = {.repeat = s->repeat};
    struct bench_training_config c = {
        .model = cmd_model_options(s),
        .cpus = s->cpus,
        .p = *r->p,
        .batch = r->batch,
        .length = r->length,
        .n_batches = r->n_batches,
        .n_lengths = r->n_lengths,
        .any_length = !settings_given(s, "lengths"),
        .steps = settings_given(s, "repeat") ? s->repeat : STEPS,
        .switches = s->switches,
        .progress = r->progress,
    };
    bench_system_read(&report.system); /* before the device may bind this thread to a core */
    int rc = bench_training(&c, &t, e);
    report.device = t.device;
    report.threads = t.threads;
    report.before = t.before;
    report.after = t.after;
    if (!rc) bench_training_json(json, &report, s->method, &t);
    if (!rc) bench_training_text(text, &report, s->method, &t);
    bench_training_free(&t);
    return rc;
}
