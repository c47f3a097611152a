/* tandem batch: answers a file of requests without a daemon (server/jobs/batch_run.h), with the routes' own handlers on
 * a loop that listens nowhere.  Main thread, which is the loop thread.
 *
 *   opening --> running --all answered, SIGINT or SIGTERM, an error--> closing: server, bridge, the rest */
#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/serve/engine.h"
#include "server/access/admission.h"
#include "server/api/adapter_dir.h"
#include "server/api/app.h"
#include "server/api/served_model.h"
#include "server/bridge/bridge.h"
#include "server/cli/cmd.h"
#include "server/cli/find_model.h"
#include "server/cli/train_progress.h"
#include "server/jobs/batch_run.h"
#include "server/net/http.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

static const char usage[] = "tandem batch IN OUT [--model DIR] [options]";
static const char about[] =
    "Answers the requests of IN, a line each in the format of OpenAI's batches, and appends the answers to OUT.  "
    "Lines\n"
    "that OUT answers already are left out: broken off, the same command goes on where it ended.";

enum { LINE_SECONDS = 10 }; /* between two lines of progress, where they are no terminal's */

struct offline {
    struct app app;
    struct served_model model; /* app.model */
    uv_loop_t loop;
    uv_signal_t signals[2];
    const char *out;
    struct batch_run *run; /* NULL: over */
    struct batch_progress first, now;
    uint64_t started, shown; /* clock_now() */
    bool begun, bar, line_open, stopped;
    enum batch_end end;
    struct err e;
};

/* ---- progress -------------------------------------------------------------------------------------------------- */

static void show(struct offline *o)
{
    uint64_t now = clock_now();
    int answered = o->now.good + o->now.bad, here = answered - o->first.good - o->first.bad;
    double seconds = (double)(now - o->started) * 1e-9, rate = seconds > 0 ? here / seconds : 0;
    char left[32];
    if (!o->bar && now - o->shown < LINE_SECONDS * UINT64_C(1000000000)) return;
    o->shown = now;
    o->line_open = o->bar;
    train_time_text(rate > 0 ? (o->now.total - answered) / rate : -1, left);
    fprintf(stderr, "%s%3.0f%%  %d of %d lines, %d failed  %.1f lines/s  %s left%s", o->bar ? "\r\033[K" : "",
            o->now.total ? 100.0 * answered / o->now.total : 100, answered, o->now.total, o->now.bad, rate, left,
            o->bar ? "" : "\n");
    fflush(stderr);
}

static void commit(void *arg, struct batch_run *run, const struct batch_progress *p)
{
    struct offline *o = arg;
    o->now = *p;
    show(o);
    batch_run_committed(run, true);
}

static void opened(void *arg, const struct batch_progress *p)
{
    struct offline *o = arg;
    o->first = o->now = *p;
    o->begun = true;
    o->started = o->shown = clock_now();
    if (p->good + p->bad) fprintf(stderr, "%d of %d lines are answered already\n", p->good + p->bad, p->total);
}

/* ---- the end --------------------------------------------------------------------------------------------------- */

static void on_bridge_closed(void *arg)
{
    struct offline *o = arg;
    served_model_clear(&o->app, o->app.model);
    free(o->app.model->name);
    free(o->app.model->id);
    admission_close(o->app.background);
}

static void on_server_closed(void *arg)
{
    struct offline *o = arg;
    admission_engine_closes(o->app.background, o->app.model->engine);
    bridge_close(o->app.bridge, on_bridge_closed, o);
}

static int report(const struct offline *o);

static void over(void *arg, enum batch_end end, const struct batch_progress *p, const struct err *e)
{
    struct offline *o = arg;
    o->run = NULL;
    o->end = end;
    o->e = *e;
    if (o->begun) o->now = *p;
    if (engine_lost(o->app.model->engine))
        _exit(report(o)); /* closing the engine would ask the device for its memory */
    for (int i = 0; i < 2; i++) uv_close((uv_handle_t *)&o->signals[i], NULL);
    o->app.state = SERVING_DRAINING;
    http_server_close(o->app.http, on_server_closed, o);
}

static void on_signal(uv_signal_t *h, int signum)
{
    struct offline *o = h->data;
    (void)signum;
    o->stopped = true;
    if (o->run) batch_run_end(o->run, BATCH_HALTED);
}

static void on_lost(void *arg)
{
    struct offline *o = arg;
    if (o->run) batch_run_end(o->run, BATCH_HALTED);
}

static int report(const struct offline *o)
{
    double seconds = (double)(clock_now() - o->started) * 1e-9;
    int here = o->now.good + o->now.bad - o->first.good - o->first.bad;
    if (o->line_open) fputs("\r\033[K", stderr);
    if (o->end == BATCH_FAILED) return cmd_fail(&o->e);
    if (!o->begun) return EXIT_STOPPED;
    fprintf(stderr, "%s: %d of %d lines are answered, %d of them with an error; %d in %.2f s\n", o->out,
            o->now.good + o->now.bad, o->now.total, o->now.bad, here, seconds);
    if (o->end == BATCH_COMPLETED) return 0;
    fprintf(stderr, "the same command goes on with the rest\n");
    return o->stopped ? EXIT_STOPPED : EXIT_DEVICE_LOST;
}

/* ---- the beginning --------------------------------------------------------------------------------------------- */

static bool pool_has_room(void *arg, uint64_t client)
{
    const struct app *app = arg;
    return bridge_has_room(app->bridge, client);
}

static struct engine *open_engine(struct app *app, struct err *e)
{
    struct engine_config cfg = cmd_engine_config(app->set);
    struct hub_session c;
    cfg.max_queue = 2 * (cfg.max_queue + cfg.max_seqs); /* as many as admission lets in */
    cfg.max_prefill_tokens = cfg.max_batch_tokens;      /* nobody waits for a next token */
    if (chat_open(&app->model->chat, app->set, e)) return NULL;
    struct engine *engine = engine_open(&cfg, e);
    if (!engine) return NULL;
    hub_session_open(&c);
    int rc = adapter_dir_load_all(app->set, &c.hub, engine, NULL, NULL, e);
    hub_session_close(&c, 0, e);
    if (!rc) return engine;
    engine_close(engine);
    return NULL;
}

static void open_signals(struct offline *o)
{
    static const int numbers[] = {SIGINT, SIGTERM};
    for (int i = 0; i < 2; i++) {
        uv_signal_init(&o->loop, &o->signals[i]);
        o->signals[i].data = o;
        uv_signal_start(&o->signals[i], on_signal, numbers[i]);
    }
}

/* Opens what the routes' handlers use. */
static int open_app(struct offline *o, struct engine *engine, struct err *e)
{
    struct app *app = &o->app;
    struct http_server_config c;
    http_server_defaults(&c);
    c.host = NULL;
    c.app = app;
    CHECK(uv_loop_init(&o->loop) == 0);
    app->loop = &o->loop;
    metrics_init(&app->metrics);
    app->http = http_server_open(&o->loop, &c, e);
    app->background = admission_open(&(struct admission_needs){.set = app->set,
                                                               .metrics = &app->metrics,
                                                               .loop = &o->loop,
                                                               .pool_has_room = pool_has_room,
                                                               .pool = app,
                                                               .background = true});
    app->bridge = bridge_open(&o->loop, &app->metrics);
    int rc = bridge_start(app->bridge, engine, app->set->max_queue + app->set->max_seqs, e);
    if (rc) return rc;
    served_model_prepare(app->model, engine);
    served_model_set(app, app->model, app->bridge, engine);
    bridge_on_lost(app->bridge, on_lost, o);
    app->state = SERVING_READY;
    admission_state(app->background, SERVING_READY);
    return 0;
}

static int answer_file(const struct settings *set, const char *in, const char *out)
{
    static struct offline o;
    struct err e = {0};
    o.app.set = set;
    o.app.model = &o.model;
    o.out = out;
    o.bar = isatty(STDERR_FILENO);
    struct engine *engine = open_engine(&o.app, &e);
    if (!engine || open_app(&o, engine, &e)) return cmd_fail(&e);
    open_signals(&o);
    o.run = batch_run_start(&(struct batch_job){.app = &o.app,
                                                .input = in,
                                                .output = out,
                                                .client = "batch",
                                                .limits = {-1, SIZE_MAX, set->max_body_size},
                                                .whole = true,
                                                .opened = opened,
                                                .commit = commit,
                                                .over = over,
                                                .arg = &o});
    uv_run(&o.loop, UV_RUN_DEFAULT);
    http_server_free(o.app.http);
    uv_loop_close(&o.loop);
    return report(&o);
}

int cmd_batch(int argc, char **argv)
{
    struct settings s = {0};
    int status = 0, paths = 0;
    while (paths < argc && argv[paths][0] != '-') paths++;
    if (cmd_settings(&s, CMD_BATCH, argc - paths, argv + paths, usage, about, &status)) {
        if (paths == 2) {
            status = answer_file(&s, argv[0], argv[1]);
        } else {
            fprintf(stderr, "tandem: two files are needed, IN and OUT\nusage: %s\n", usage);
            status = 2;
        }
    }
    settings_free(&s);
    return status;
}
