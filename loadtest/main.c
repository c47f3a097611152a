/* tandem-loadtest: sends requests to a server when they are due, and says how it bore them. */
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "loadtest/fetch.h"
#include "loadtest/report.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

struct session {
    struct options options;
    struct place place;
    struct target target;
    struct trace trace;
    uv_loop_t loop;
    struct client *client;
    char *model, *model_json; /* owned; NULL: not known */
    FILE *samples;
    struct run_result *runs;
    int n;
};

static int complain(const struct err *e)
{
    fprintf(stderr, "tandem-loadtest: %s\n", e->msg);
    return e->code == ERR_INVALID || e->code == ERR_UNSUPPORTED ? EXIT_USAGE : 1;
}

static void on_signal(int number)
{
    signal(number, SIG_DFL); /* the second one ends it at once */
    run_interrupted = 1;
}

/* As many connections as the system lets us have. */
static void raise_file_limit(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l)) return;
    l.rlim_cur = l.rlim_max;
    setrlimit(RLIMIT_NOFILE, &l);
}

/* ---- the model's name -------------------------------------------------------------------------------------------- */

struct asked {
    bool over;
    int status;
};

static void on_models(struct fetch *f, int status)
{
    struct asked *a = f->user;
    a->over = true;
    a->status = status;
}

static void on_wake(uv_timer_t *t)
{
    (void)t;
}

/* Texts of the server go into reports: what is not plain ASCII is replaced. */
static char *plain_text(const char *s)
{
    char *copy = mem_strdup(s);
    for (char *p = copy; *p; p++)
        if (*p < 0x20 || *p > 0x7e) *p = '?';
    return copy;
}

static void set_model(struct session *s, const char *name)
{
    cJSON *text = cJSON_CreateString(name);
    s->model_json = cJSON_PrintUnformatted(text);
    s->model = plain_text(name);
    s->target.model = s->model_json;
    cJSON_Delete(text);
}

/* Asks the server which model it has.  False when it cannot be reached at all. */
static bool ask_model(struct session *s)
{
    struct asked a = {0};
    struct fetch f = {.done = on_models, .user = &a};
    fetch_start(&f, s->client, &s->target, "GET", "/v1/models", NULL);
    uint64_t end = clock_now() + 30000000000u;
    uv_timer_t wake; /* so that the loop turns while nothing comes */
    uv_timer_init(&s->loop, &wake);
    uv_timer_start(&wake, on_wake, 100, 100);
    while (!a.over && clock_now() < end) uv_run(&s->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&wake, NULL);
    uv_run(&s->loop, UV_RUN_NOWAIT); /* it lies on this stack */
    cJSON *json = a.status == 200 && f.body.data ? cJSON_ParseWithLength(f.body.data, f.body.len) : NULL;
    const cJSON *data = cJSON_GetObjectItemCaseSensitive(json, "data");
    const cJSON *id = cJSON_IsArray(data) ? cJSON_GetObjectItemCaseSensitive(data->child, "id") : NULL;
    if (cJSON_IsString(id)) set_model(s, id->valuestring);
    cJSON_Delete(json);
    bool reached = f.call.sent != 0;
    fetch_free(&f);
    return reached;
}

/* ---- the runs ---------------------------------------------------------------------------------------------------- */

static int open_server(struct session *s, struct err *e)
{
    const struct options *o = &s->options;
    if (place_parse(&s->place, o->url, e)) return e->code;
    s->target = (struct target){.api = (enum api_kind)o->api,
                                .host = s->place.authority,
                                .base = s->place.base,
                                .key = o->key && *o->key ? o->key : NULL,
                                .headers = o->headers.data ? o->headers.data : "",
                                .temperature = o->temperature,
                                .ignore_eos = !o->natural_end,
                                .exact = o->exact,
                                .keep_alive = !o->fresh};
    if (s->target.key && strpbrk(s->target.key, "\r\n")) return err_set(e, ERR_INVALID, "--key has a line break");
    s->client = client_open(&s->loop, s->place.host, s->place.port, e);
    if (!s->client) return e->code;
    if (o->model)
        set_model(s, o->model);
    else if (!ask_model(s))
        return err_set(e, ERR_IO, "no server answers at %s", s->place.authority);
    return 0;
}

static bool any_served(const struct session *s)
{
    for (int i = 0; i < s->n; i++)
        if (s->runs[i].stats->outcomes[OUT_OK]) return true;
    return false;
}

static void run_all(struct session *s)
{
    const struct options *o = &s->options;
    int n = o->n_sweep ? o->n_sweep : 1;
    const struct trace *trace = s->trace.n ? &s->trace : NULL;
    s->runs = mem_array((size_t)n, sizeof *s->runs);
    for (; s->n < n; s->n++) {
        int users = o->n_sweep ? o->sweep[s->n] : o->arrivals == ARRIVE_CLOSED ? o->concurrency : 0;
        run_load(&s->runs[s->n], &s->loop, s->client, &s->target, o, trace, users, s->samples);
        if (s->runs[s->n].interrupted) {
            s->n++;
            break;
        }
    }
}

static int write_text(const char *path, const struct buf *text, struct err *e)
{
    FILE *f = strcmp(path, "-") ? fopen(path, "w") : stdout;
    if (!f) return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    bool whole = fwrite(text->data, 1, text->len, f) == text->len;
    whole = (f == stdout ? fflush(f) : fclose(f)) == 0 && whole;
    return whole ? 0 : err_set(e, ERR_IO, "%s: cannot write: %s", path, strerror(errno));
}

static int write_reports(const struct session *s, double unix_time, struct err *e)
{
    const struct options *o = &s->options;
    struct report p = {.options = o, .model = s->model, .runs = s->runs, .n = s->n, .unix_time = unix_time};
    const struct {
        const char *path;
        void (*put)(struct buf *, const struct report *);
    } forms[] = {
        {o->json && !strcmp(o->json, "-") ? NULL : "-", report_text}, {o->json, report_json}, {o->html, report_html}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct buf text = {0};
        if (!forms[i].path) continue;
        forms[i].put(&text, &p);
        write_text(forms[i].path, &text, e);
        buf_free(&text);
    }
    return e->code;
}

static void close_all(struct session *s)
{
    if (s->client) client_close(s->client);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    uv_loop_close(&s->loop);
    client_free(s->client);
    for (int i = 0; i < s->n; i++) run_result_free(&s->runs[i]);
    free(s->runs);
    free(s->model);
    free(s->model_json);
    trace_free(&s->trace);
    options_free(&s->options);
}

static int load(struct session *s, struct err *e)
{
    const struct options *o = &s->options;
    if (o->samples && !(s->samples = fopen(o->samples, "w"))) {
        err_set(e, ERR_IO, "%s: %s", o->samples, strerror(errno));
        return complain(e);
    }
    if (open_server(s, e)) return complain(e);
    double unix_time = (double)clock_unix() * 1e-9;
    run_all(s);
    if (s->samples && fclose(s->samples)) err_set(e, ERR_IO, "%s: cannot write", o->samples);
    s->samples = NULL;
    if (write_reports(s, unix_time, e) || e->code) return complain(e);
    if (s->runs[s->n - 1].interrupted) return EXIT_INTERRUPTED;
    return any_served(s) ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct session s = {0};
    struct err e = {0};
    int code = options_parse(&s.options, argc, argv, &e);
    if (code) {
        options_free(&s.options);
        return code > 0 ? 0 : complain(&e);
    }
    if (s.options.trace && trace_read(&s.trace, s.options.trace, &e)) {
        options_free(&s.options);
        return complain(&e);
    }
    uv_loop_init(&s.loop);
    signal(SIGPIPE, SIG_IGN);
    if (s.options.dry_run) {
        run_print_schedule(stdout, &s.options, s.trace.n ? &s.trace : NULL);
    } else {
        signal(SIGINT, on_signal);
        signal(SIGTERM, on_signal);
        raise_file_limit();
        code = load(&s, &e);
    }
    close_all(&s);
    return code;
}
