/* tandem serve: listens at once, loads the model on a pool thread, serves until SIGTERM or SIGINT, drains.
 *
 *   listening --loaded--> ready --signal--> draining --idle, or --drain-timeout, or a second signal--> closing
 *
 * Liveness (/health) holds from the first moment; readiness (/ready) only in `ready`.  While draining, the port stays
 * open and new work is refused with 503, so that a balancer sees why; every answer closes its connection; the port
 * closes when the last generation is done.  (On a socket from the service manager nothing is accepted before `ready`,
 * and it is closed at the signal: clients wait in its backlog for the next process.)  SIGHUP reloads (reload.h).  A
 * training job writes its checkpoint at the signal, and continues at the next start; event streams end with the
 * generations.  A batch drops its lines at the signal.  Closing order: connections, batches, evaluations, job runner,
 * store, thread pool, engine. Loop thread, except work_load. */
#include "engine/base/clock.h"
#include "engine/base/crash.h"
#include "engine/base/log.h"
#include "engine/base/meminfo.h"
#include "engine/model/options.h"
#include "engine/serve/device_turn.h"
#include "engine/serve/engine.h"
#include "server/access/admission.h"
#include "server/access/client.h"
#include "server/access/credentials.h"
#include "server/api/answered.h"
#include "server/api/app.h"
#include "server/api/model_dispatch.h"
#include "server/api/model_table.h"
#include "server/bridge/bridge.h"
#include "server/cli/cmd.h"
#include "server/cli/ranks.h"
#include "server/cli/serve_memory.h"
#include "server/cli/serve_model.h"
#include "server/cli/serve_report.h"
#include "server/cli/serve_routes.h"
#include "server/config/settings.h"
#include "server/jobs/batches.h"
#include "server/jobs/evaluations.h"
#include "server/jobs/jobs.h"
#include "server/kvevents/publisher.h"
#include "server/memory/reservation.h"
#include "server/metrics/metrics.h"
#include "server/net/http.h"
#include "server/net/sse.h"
#include "server/ops/device_watch.h"
#include "server/ops/health.h"
#include "server/ops/process.h"
#include "server/ops/reload.h"
#include "server/ops/request_log.h"
#include "server/ops/sd_notify.h"
#include "server/ops/service.h"
#include "server/ops/socket_activation.h"
#include "server/ops/watchdog.h"
#include "server/store/store.h"
#include "server/tinker/tinker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

static const char usage[] = "tandem serve [--model DIR] [options]";
static const char about[] =
    "Serves a model over HTTP: OpenAI's routes below /v1/, Text Generation Inference's /generate, and /train.";

enum { GRACE_MS = 1000, STOP_MS = 20000 };

struct server {
    struct app app;
    struct settings *settings; /* app.set; work_load writes where the model is, before anything reads it */
    uv_loop_t loop;
    uv_signal_t sigterm, sigint, sighup;
    uv_timer_t drain_timer;
    uv_work_t load;
    struct model_loading first; /* set by work_load, moved by after_load */
    struct hub hub;             /* by work_load */
    struct hub_printer printer;
    uint64_t started;
    struct reload reload;
    struct ranks ranks;
    bool activated; /* the listening socket comes from the service manager */
    char host[64];  /* address that it listens on */
    bool closing;
    int status; /* of the process */
};

/* ---- loading --------------------------------------------------------------------------------------------------- */

static void stop_now(struct server *s);
static void on_device_lost(void *arg);

static double seconds_since(uint64_t start)
{
    return (double)(clock_now() - start) * 1e-9;
}

static void report_download(void *arg, const struct hub_progress *p)
{
    struct server *s = arg;
    double share = p->total ? 100 * (double)p->done / (double)p->total : 100;
    sd_notify_status("downloading %s: %.0f%%", p->name, share);
    hub_print_progress(&s->printer, p);
}

static int find_model(struct server *s)
{
    hub_open(&s->hub);
    s->hub.report = report_download;
    s->hub.report_arg = s;
    s->hub.check = model_worth_loading;
    return cmd_find_model(s->settings, &s->hub, &s->first.e);
}

static void work_load(uv_work_t *w)
{
    struct server *s = w->data;
    crash_thread_begin();
    jobs_list_uploads(s->app.jobs);
    if (find_model(s) == 0) serve_model_load_first(&s->app, &s->first, &s->hub);
}

static void note_startup(struct server *s)
{
    struct metrics *m = &s->app.metrics;
    const struct engine_info *i = s->app.model->info;
    metrics_startup(m, STARTUP_TEMPLATE, s->first.template_seconds);
    metrics_startup(m, STARTUP_WEIGHTS, i->weights_seconds);
    metrics_startup(m, STARTUP_TOKENIZER, i->tokenizer_seconds);
    metrics_startup(m, STARTUP_MEMORY, i->memory_seconds);
    metrics_startup(m, STARTUP_ADAPTERS, s->first.adapters_seconds);
    metrics_startup(m, STARTUP_READY, seconds_since(s->started));
}

static void set_state(struct server *s, enum serving_state state)
{
    s->app.state = state;
    if (state == SERVING_DRAINING) {
        atomic_store(&s->app.stopping, true);
        model_table_drain(s->app.models);
        tinker_drain(s->app.tinker);
    }
    admission_state(s->app.admission, state);
    admission_state(s->app.background, state);
}

/* Sets the memory budget of requests; before the model is loaded, without its size. */
static void set_request_memory(const struct app *app)
{
    const struct engine_info *i = app->model ? app->model->info : NULL;
    size_t model = i && !i->device_budget ? i->weight_bytes + i->kv_bytes : 0, asked = app->set->request_memory;
    if (model) model += i->draft_weight_bytes + i->draft_kv_bytes;
    if (app->models) { /* what all that are loaded may take */
        struct model_totals t;
        model_table_totals(app->models, &t);
        if (t.budget > model && (!i || !i->device_budget)) model = t.budget;
    }
    reservation_budget(asked ? asked : process_request_memory(model));
}

static void watch_engine(struct app *app, const struct engine *engine, bool opened)
{
    if (opened)
        watchdog_engine_opened(app->watchdog, engine);
    else
        watchdog_engine_closes(app->watchdog, engine);
}

/* The default model is loaded, or is to be loaded by the first request. */
static void set_ready(struct server *s)
{
    struct app *app = &s->app;
    set_request_memory(app);
    set_state(s, SERVING_READY);
    watchdog_ready(app->watchdog);
    http_server_accept(app->http);
    crash_modules();
    if (app->model->info) note_startup(s);
    jobs_ready(s->app.jobs);
    batches_ready(s->app.batches);
    evaluations_ready(s->app.evaluations);
}

static void announce(struct server *s)
{
    const struct app *app = &s->app;
    const char *name = app->model->info ? app->model->info->model_id : app->model->name;
    char url[SERVE_URL];
    serve_url(url, app->set, s->host, http_server_port(app->http));
    sd_notify_status("serving %s on %s", name, url);
    sd_notify_ready();
    if (log_get_format() == LOG_JSON) {
        serve_report_log(app, url);
        return;
    }
    serve_report_print(app, s->started);
    fprintf(stderr,
            "console    %s/\n"
            "try        curl -N %s%s/generate -d "
            "'{\"inputs\":\"Once upon a time\",\"parameters\":{\"max_new_tokens\":60},\"stream\":true}'\n",
            url, app->credentials.keys ? "-H \"Authorization: Bearer $KEY\" " : "", url);
    log_info("ready model=%s url=%s", name, url);
}

static void after_load(uv_work_t *w, int status)
{
    struct server *s = w->data;
    struct err *e = &s->first.e;
    (void)status;
    hub_close(&s->hub);
    if (!s->first.engine || model_table_adopt(s->app.models, &s->first, e)) {
        log_error("the model could not be loaded: %s", e->msg);
        engine_close(s->first.engine);
        served_model_drop(s->app.model);
        s->status = 1;
        stop_now(s);
        return;
    }
    set_ready(s);
    announce(s);
}

/* Nothing is loaded at the start: --models or --models-dir without --model. */
static void work_nothing(uv_work_t *w)
{
    struct server *s = w->data;
    crash_thread_begin();
    jobs_list_uploads(s->app.jobs);
    find_model(s); /* no model, but a draft of the default one */
}

static void after_nothing(uv_work_t *w, int status)
{
    struct server *s = w->data;
    (void)status;
    hub_close(&s->hub);
    if (s->first.e.code) {
        log_error("the server could not be started: %s", s->first.e.msg);
        s->status = 1;
        stop_now(s);
        return;
    }
    set_ready(s);
    announce(s);
}

/* ---- stopping -------------------------------------------------------------------------------------------------- */

static void on_bridge_closed(void *arg)
{
    struct server *s = arg;
    alarm(0);
    admission_close(s->app.admission);
    admission_close(s->app.background);
    device_watch_close(s->app.device_watch);
    device_turn_free(s->app.turn);
    watchdog_close(s->app.watchdog);
    uv_timer_stop(&s->drain_timer);
    uv_close((uv_handle_t *)&s->drain_timer, NULL); /* nothing is left in the loop: uv_run returns */
}

static void on_models_closed(void *arg)
{
    struct server *s = arg;
    kv_publisher_close(s->app.kv_events);
    bridge_close(s->app.bridge, on_bridge_closed, s);
}

static void on_store_closed(void *arg)
{
    struct server *s = arg;
    if (s->status == EXIT_DEVICE_LOST) { /* closing the engine would ask a lost device for its memory */
        fflush(NULL);
        _exit(s->status);
    }
    /* pool jobs read the engines: an engine is closed when its bridge has none left */
    model_table_close(s->app.models, on_models_closed, s);
}

static void on_jobs_stopped(void *arg)
{
    struct server *s = arg;
    jobs_free(s->app.jobs);
    store_close(s->app.store, on_store_closed, s);
}

static void on_evaluations_stopped(void *arg)
{
    struct server *s = arg;
    evaluations_free(s->app.evaluations);
    jobs_stop(s->app.jobs, on_jobs_stopped, s);
}

static void on_batches_stopped(void *arg)
{
    struct server *s = arg;
    batches_free(s->app.batches);
    evaluations_stop(s->app.evaluations, on_evaluations_stopped, s);
}

static void on_tinker_closed(void *arg)
{
    struct server *s = arg;
    batches_stop(s->app.batches, on_batches_stopped, s);
}

/* The trainer, or preparing its data, does not stop in time.  Nothing is lost: everything acknowledged is committed,
 * and the job continues at the next start as after a crash. */
static void on_stop_timeout(uv_timer_t *t)
{
    struct server *s = t->data;
    log_warn("training, or the reading of a data set, did not stop in time: ending without it");
    _exit(s->status);
}

/* The last connection has closed: closes everything that connections used.  At the end the loop thread joins the engine
 * thread; a step that hangs would block it and its timers, so SIGALRM then kills the process, which is not a clean
 * end. */
static void close_rest(void *arg)
{
    struct server *s = arg;
    sse_hub_close(s->app.sse);
    signal(SIGALRM, SIG_DFL);
    alarm(STOP_MS / 1000 + 1);
    uv_timer_start(&s->drain_timer, on_stop_timeout, STOP_MS, 0);
    tinker_close(s->app.tinker, on_tinker_closed, s);
}

static void stop_now(struct server *s)
{
    if (s->closing) return;
    s->closing = true;
    set_state(s, SERVING_DRAINING);
    batches_drain(s->app.batches); /* its lines use the server */
    evaluations_drain(s->app.evaluations);
    http_server_close(s->app.http, close_rest, s);
}

static void on_connections_gone(void *arg)
{
    stop_now(arg);
}

/* No generation runs any more; only answers to slow readers remain. */
static void on_generations_done(void *arg)
{
    struct server *s = arg;
    jobs_end_streams(s->app.jobs);
    if (!s->closing) http_server_drain(s->app.http, on_connections_gone, s);
}

/* The bridge of a model where something is in progress, or that of the daemon; NULL: there is none. */
static struct bridge *active_bridge(const struct app *app)
{
    for (int i = 0; i < model_table_count(app->models); i++) {
        struct bridge *b = model_table_at(app->models, i)->bridge;
        if (b && bridge_active(b)) return b;
    }
    return bridge_active(app->bridge) ? app->bridge : NULL;
}

static int count_active(const struct app *app)
{
    int n = bridge_active(app->bridge);
    for (int i = 0; i < model_table_count(app->models); i++) {
        const struct bridge *b = model_table_at(app->models, i)->bridge;
        if (b) n += bridge_active(b);
    }
    return n;
}

static void wait_for_generations(void *arg)
{
    struct server *s = arg;
    if (s->closing) return; /* by a second signal: what waits for this is gone, or going */
    struct bridge *b = active_bridge(&s->app);
    if (b)
        bridge_on_idle(b, wait_for_generations, s);
    else
        on_generations_done(s);
}

static void on_grace_end(uv_timer_t *t)
{
    stop_now(t->data);
}

/* Cancels what still runs; clients get an error, and a moment to read it. */
static void on_drain_timeout(uv_timer_t *t)
{
    struct server *s = t->data;
    log_warn("drain timeout: requests cut off=%d", count_active(&s->app));
    uv_timer_start(&s->drain_timer, on_grace_end, GRACE_MS, 0);
    for (int i = 0; i < model_table_count(s->app.models); i++) {
        struct bridge *b = model_table_at(s->app.models, i)->bridge;
        if (b) bridge_stop_all(b);
    }
}

static void on_signal(uv_signal_t *h, int signum)
{
    struct server *s = h->data;
    if (s->app.state == SERVING_LOADING) {
        log_info("stopping: signal=%d, the model was still loading", signum);
        sd_notify_stopping(1);
        _exit(s->status); /* no state to lose, and loading cannot be interrupted */
    }
    if (s->app.state == SERVING_DRAINING) {
        if (!s->closing) log_warn("stopping at once: signal=%d again", signum);
        stop_now(s);
        return;
    }
    log_info("draining: signal=%d active=%d timeout_s=%g", signum, count_active(&s->app), s->app.set->drain_timeout);
    set_state(s, SERVING_DRAINING);
    sd_notify_stopping(s->app.set->drain_timeout + (GRACE_MS + STOP_MS + 5000) * 1e-3);
    sd_notify_status("draining: %d requests, for at most %g s", count_active(&s->app), s->app.set->drain_timeout);
    http_server_wind_down(s->app.http, !s->activated);
    jobs_drain(s->app.jobs); /* writes its checkpoint while requests end */
    batches_drain(s->app.batches);
    evaluations_drain(s->app.evaluations);
    uv_timer_start(&s->drain_timer, on_drain_timeout, (uint64_t)(s->app.set->drain_timeout * 1000), 0);
    wait_for_generations(s);
}

/* The device is lost: the process ends, so that its supervisor starts a new one.  Clients get a moment to read the
 * reason. */
static void on_device_lost(void *arg)
{
    struct server *s = arg;
    s->status = EXIT_DEVICE_LOST;
    if (s->app.state == SERVING_DRAINING) return; /* already ending: nothing is left to wait for */
    log_error("ending, for the supervisor to start a new process: status=%d", EXIT_DEVICE_LOST);
    set_state(s, SERVING_DRAINING);
    sd_notify_stopping((GRACE_MS + STOP_MS + 5000) * 1e-3);
    http_server_wind_down(s->app.http, !s->activated);
    jobs_drain(s->app.jobs);
    batches_drain(s->app.batches);
    evaluations_drain(s->app.evaluations);
    uv_timer_start(&s->drain_timer, on_grace_end, GRACE_MS, 0);
}

/* ---- SIGHUP ----------------------------------------------------------------------------------------------------- */

static void on_hangup(uv_signal_t *h, int signum)
{
    struct server *s = h->data;
    (void)signum;
    if (!s->closing) reload_all(&s->reload);
}

/* ---- starting -------------------------------------------------------------------------------------------------- */

static void on_request_done(void *arg, const struct http_req *req, int status, uint64_t duration_ns)
{
    struct app *app = arg;
    metrics_request(&app->metrics, req->route ? req->route->path : req->path, status, duration_ns);
    if (app->set->access_log) request_log(req, status, duration_ns);
}

static int open_http(struct server *s, struct err *e)
{
    const struct settings *set = s->app.set;
    struct http_server_config c;
    int fd;
    if (socket_activation_take(&fd, e)) return e->code;
    http_server_defaults(&c);
    snprintf(s->host, sizeof s->host, "%s", set->host);
    if (fd >= 0) {
        s->activated = true;
        c.listen_fd = fd;
        socket_activation_host(fd, s->host, sizeof s->host);
    }
    c.host = s->host;
    c.port = set->port;
    c.routes = serve_routes;
    c.n_routes = serve_n_routes;
    c.app = &s->app;
    reload_http_config(set, &c);
    c.admission = s->app.admission;
    c.dispatch = model_dispatch;
    c.release_model = model_dispatch_release;
    credentials_config(&s->app.credentials, &c);
    s->app.http = http_server_open(&s->loop, &c, e);
    if (!s->app.http) return e->code;
    http_server_on_done(s->app.http, on_request_done);
    return 0;
}

static void open_signals(struct server *s)
{
    signal(SIGXFSZ, SIG_IGN); /* exceeding the file size limit is an error of write, instead of killing the process */
    uv_signal_init(&s->loop, &s->sigterm);
    uv_signal_init(&s->loop, &s->sigint);
    uv_signal_init(&s->loop, &s->sighup);
    uv_timer_init(&s->loop, &s->drain_timer);
    s->sigterm.data = s->sigint.data = s->sighup.data = s->drain_timer.data = s;
    uv_signal_start(&s->sigterm, on_signal, SIGTERM);
    uv_signal_start(&s->sigint, on_signal, SIGINT);
    uv_signal_start(&s->sighup, on_hangup, SIGHUP);
    /* The handlers stay until the process exits: closing them would restore the default action, and a second signal
     * would kill the process during a clean shutdown. */
    uv_unref((uv_handle_t *)&s->sigterm);
    uv_unref((uv_handle_t *)&s->sigint);
    uv_unref((uv_handle_t *)&s->sighup);
}

static bool pool_has_room(void *arg, uint64_t client)
{
    const struct app *app = arg;
    return bridge_has_room(app->bridge, client);
}

static void ignore(void *arg)
{
    (void)arg;
}

/* By default three quarters of the memory that is free now, where there are several models. */
static void open_models(struct server *s)
{
    const struct settings *set = s->app.set;
    bool several = *set->models || *set->models_dir;
    size_t memory = set->models_memory ? set->models_memory : several ? memory_available() / 4 * 3 : 0;
    s->app.models = model_table_open(&(struct model_table_config){
        .app = &s->app,
        .memory = memory,
        .max = set->models_max,
        .idle = set->model_idle,
        .longest_wait = set->model_wait,
        .max_waiting = set->max_queue,
        .find = serve_model_find,
        .estimate = serve_model_estimate,
        .load = serve_model_load,
        .watch = watch_engine,
        .lost = on_device_lost,
        .lost_arg = s,
    });
}

static int open_kv_events(struct server *s, struct err *e)
{
    const struct settings *set = s->app.set;
    if (!*set->kv_events) {
        if (!*set->kv_events_replay) return 0;
        return err_set(e, ERR_INVALID, "--kv-events-replay is for --kv-events, which is not given");
    }
    const struct kv_publisher_config c = {.endpoint = set->kv_events,
                                          .replay = set->kv_events_replay,
                                          .topic = set->kv_events_topic,
                                          .maps = strcmp(set->kv_events_format, "map") == 0,
                                          .several_models = model_table_count(s->app.models) > 1};
    s->app.kv_events = kv_publisher_open(&c, e);
    return s->app.kv_events ? 0 : e->code;
}

static int serve(struct server *s)
{
    struct err e = {0};
    serve_memory_open();
    set_request_memory(&s->app);
    metrics_init(&s->app.metrics);
    for (int i = 0; i < serve_n_routes; i++) metrics_add_route(&s->app.metrics, serve_routes[i].path);
    health_short_time_slices();
    process_files(s->app.set->max_connections);
    if (uv_loop_init(&s->loop)) return err_set(&e, ERR_IO, "no event loop"), cmd_fail(&e);
    struct admission_needs needs = {.set = s->app.set,
                                    .metrics = &s->app.metrics,
                                    .loop = &s->loop,
                                    .pool_has_room = pool_has_room,
                                    .pool = &s->app};
    s->app.admission = admission_open(&needs);
    needs.background = true;
    s->app.background = admission_open(&needs);
    s->app.loop = &s->loop;
    open_models(s);
    if (serve_models_add(&s->app, &e) || credentials_open(&s->app.credentials, s->app.set, &s->app.metrics, &e) ||
        open_kv_events(s, &e) || open_http(s, &e)) {
        kv_publisher_close(s->app.kv_events);
        credentials_close(&s->app.credentials);
        admission_close(s->app.admission);
        admission_close(s->app.background);
        model_table_close(s->app.models, ignore, NULL);
        uv_run(&s->loop, UV_RUN_DEFAULT);
        uv_loop_close(&s->loop);
        return cmd_fail(&e);
    }
    open_signals(s);
    s->app.bridge = bridge_open(&s->loop, &s->app.metrics);
    bridge_max_jobs(s->app.bridge, s->app.set->max_queue + s->app.set->max_seqs);
    s->app.store = store_open(&s->loop, settings_data_dir(s->app.set));
    s->app.jobs = jobs_open(&s->app);
    s->app.batches = batches_open(&s->app);
    s->app.evaluations = evaluations_open(&s->app);
    s->app.tinker = tinker_open(&s->app);
    if (s->app.set->feedback) s->app.answered = answered_open(s->app.set->feedback_memory);
    s->app.sse = sse_hub_open(&s->loop, s->app.set->sse_keepalive);
    s->app.watchdog = watchdog_open(&s->loop, s->app.set->step_timeout);
    char url[SERVE_URL];
    serve_url(url, s->app.set, s->host, http_server_port(s->app.http));
    if (log_get_format() == LOG_JSON)
        log_info("listening url=%s", url);
    else
        fprintf(stderr, "listening %s\n", url);
    metrics_startup(&s->app.metrics, STARTUP_LISTEN, seconds_since(s->started));
    s->app.device_watch = device_watch_open(s->app.bridge);
    s->load.data = s;
    s->first.model = s->app.model;
    if (model_table_count(s->app.models) > 1) s->app.turn = device_turn_new();
    if (s->app.model->main)
        uv_queue_work(&s->loop, &s->load, work_load, after_load);
    else
        uv_queue_work(&s->loop, &s->load, work_nothing, after_nothing);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    answered_close(s->app.answered);
    http_server_free(s->app.http);
    credentials_close(&s->app.credentials);
    ranks_close(&s->ranks);
    log_info("stopped");
    return s->status;
}

/* With --kv-disk clients have the same numbers after a restart, so that each finds its own prefixes again
 * (cache-per-key).  Opening the engine reports a directory that cannot be used. */
static void keep_clients(const struct settings *set)
{
    uint64_t seed;
    struct err e = {0};
    if (*set->kv_disk && engine_kv_disk_seed(set->kv_disk, &seed, &e) == 0) client_set_seed(seed);
}

/* A process of mpirun but the first. */
static int follow(struct server *s)
{
    int rc = find_model(s);
    hub_close(&s->hub);
    if (!rc) return ranks_follow(&s->ranks);
    cmd_fail(&s->first.e);
    ranks_close(&s->ranks); /* the others end, too */
    return 1;
}

int cmd_serve(int argc, char **argv)
{
    struct settings set;
    int status;
    if (cmd_settings(&set, CMD_SERVE, argc, argv, usage, about, &status)) {
        static struct server s;
        s.app.set = s.settings = &set;
        s.started = clock_now();
        s.reload = (struct reload){.app = &s.app, .live = &set, .argc = argc, .argv = argv};
        struct err e = {0};
        service_begin(&set);
        keep_clients(&set);
        s.app.ranks = &s.ranks;
        if (ranks_open(&s.ranks, &set, &e))
            status = cmd_fail(&e), ranks_close(&s.ranks);
        else
            status = ranks_follows(&s.ranks) ? follow(&s) : serve(&s);
    }
    settings_free(&set);
    return status;
}
