/* A small server for test_protocol.py and test_connections.py: the real HTTP code with handlers that do what a test
 * wants to see.
 *
 * Flags set the limits and time-outs; the port is printed as "port N".  SIGTERM drains, SIGINT closes at once; a clean
 * end exits with 0.  Single thread. */
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "server/json/json.h"
#include "server/net/conn.h"
#include "server/net/tls.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <uv.h>

struct app {
    uv_loop_t loop;
    struct http_server *server;
    uv_signal_t term, interrupt;
    unsigned closed, gone, done, drains; /* on_close calls; status 0; on_done calls; on_drain calls */
    size_t most_queued;
};

/* ---- a request's own memory and timer -------------------------------------------------------------------------- */

struct job {
    struct app *app;
    struct http_req *req; /* NULL once the exchange is over */
    uv_timer_t timer;
    long left, size;
};

static long query_number(const struct http_req *req, const char *name, long otherwise)
{
    char key[32];
    snprintf(key, sizeof key, "%s=", name);
    const char *at = strstr(req->query, key);
    return at ? atol(at + strlen(key)) : otherwise;
}

static void on_timer_closed(uv_handle_t *h)
{
    free(h->data);
}

static void job_close(struct http_req *req)
{
    struct job *job = req->user;
    job->app->closed++;
    job->req = NULL;
    uv_close((uv_handle_t *)&job->timer, on_timer_closed);
}

static struct job *job_new(struct http_req *req)
{
    struct job *job = mem_zalloc(sizeof *job);
    job->app = req->app;
    job->req = req;
    uv_timer_init(&job->app->loop, &job->timer);
    job->timer.data = job;
    req->user = job;
    req->on_close = job_close;
    return job;
}

static void note_queue(struct app *app, const struct http_req *req)
{
    const struct conn *c = (const struct conn *)((const char *)req - offsetof(struct conn, req));
    if (sock_queued(c) > app->most_queued) app->most_queued = sock_queued(c);
}

/* ---- handlers -------------------------------------------------------------------------------------------------- */

static void hello(struct http_req *req)
{
    http_reply(req, 200, "text/plain", "hello\n", 6);
}

static void echo(struct http_req *req)
{
    http_reply(req, 200, http_header(req, "Content-Type"), req->body, req->body_len);
}

static void put_field(struct buf *b, const char *name, const char *value)
{
    buf_printf(b, "%s\"%s\":", b->len > 1 ? "," : "", name);
    if (value) {
        json_put_string(b, value, strlen(value));
    } else {
        buf_str(b, "null");
    }
}

/* What the handler was given, as JSON. */
static void info(struct http_req *req)
{
    static const char *const methods[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "OTHER"};
    struct buf b = {0};
    buf_char(&b, '{');
    put_field(&b, "method", methods[req->method]);
    put_field(&b, "path", req->path);
    put_field(&b, "query", req->query);
    put_field(&b, "body", req->body);
    put_field(&b, "host", http_header(req, "hOsT"));
    put_field(&b, "x_test", http_header(req, "X-Test"));
    buf_char(&b, '}');
    http_set_header(req, "X-Odd", "a\r\nb");
    http_reply(req, 200, "application/json", b.data, b.len);
    buf_free(&b);
}

static void never(struct http_req *req)
{
    job_new(req);
}

static void later_fire(uv_timer_t *timer)
{
    struct job *job = timer->data;
    http_reply(job->req, 200, "text/plain", "later\n", 6);
}

static void later(struct http_req *req)
{
    uv_timer_start(&job_new(req)->timer, later_fire, (uint64_t)query_number(req, "ms", 50), 0);
}

static void slow_fire(uv_timer_t *timer)
{
    struct job *job = timer->data;
    char text[32];
    http_write(job->req, text, (size_t)snprintf(text, sizeof text, "data: %ld\n\n", job->left));
    if (--job->left <= 0) {
        uv_timer_stop(timer);
        http_end(job->req);
    }
}

/* One event every `ms`, n of them. */
static void slow(struct http_req *req)
{
    struct job *job = job_new(req);
    job->left = query_number(req, "n", 5);
    uint64_t ms = (uint64_t)query_number(req, "ms", 20);
    http_start(req, 200, "text/event-stream");
    uv_timer_start(&job->timer, slow_fire, ms, ms);
}

static void big_more(struct http_req *req)
{
    struct job *job = req->user;
    static char block[16384];
    memset(block, 'x', sizeof block);
    bool room = true;
    while (room && job->left > 0) {
        size_t n = job->left < (long)sizeof block ? (size_t)job->left : sizeof block;
        room = http_write(req, block, n);
        job->left -= (long)n;
    }
    note_queue(job->app, req);
    if (job->left <= 0) http_end(req);
}

static void big_drain(struct http_req *req)
{
    struct job *job = req->user;
    job->app->drains++;
    if (job->left > 0) big_more(req);
}

/* A stream of `bytes`, produced only as the client reads. */
static void big(struct http_req *req)
{
    struct job *job = job_new(req);
    job->left = query_number(req, "bytes", 1000000);
    req->on_drain = big_drain;
    http_start(req, 200, "application/octet-stream");
    big_more(req);
}

/* The same bytes as one answer. */
static void blob(struct http_req *req)
{
    size_t n = (size_t)query_number(req, "bytes", 1000000);
    char *p = http_alloc(req, n);
    memset(p, 'y', n);
    http_reply(req, 200, "application/octet-stream", p, n);
    note_queue(req->app, req);
}

/* Many small writes in one loop iteration. */
static void burst(struct http_req *req)
{
    http_start(req, 200, "text/event-stream");
    for (long n = query_number(req, "n", 100); n > 0; n--) http_write(req, "data: x\n\n", 9);
    http_end(req);
}

static void abort_stream(struct http_req *req)
{
    http_start(req, 200, "text/plain");
    http_write(req, "partial", 7);
    http_abort(req);
}

static void failing(struct http_req *req)
{
    http_set_header(req, "Content-Length", "7");
    http_reply_error(req, 422, "validation", "bad \"%s\"\n", req->path);
}

static void empty(struct http_req *req)
{
    http_reply(req, 204, NULL, NULL, 0);
}

static void stats(struct http_req *req)
{
    const struct app *app = req->app;
    const struct http_server_stats *s = http_server_stats(app->server);
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    struct buf b = {0};
    buf_printf(&b, "{\"open\":%d,\"accepted\":%llu,\"rejected\":%llu,\"evicted\":%llu,\"requests\":%llu,", s->open,
               (unsigned long long)s->accepted, (unsigned long long)s->rejected, (unsigned long long)s->evicted,
               (unsigned long long)s->requests);
    buf_printf(&b, "\"bytes_in\":%llu,\"bytes_out\":%llu,\"closed\":%u,\"gone\":%u,\"done\":%u,\"drains\":%u,",
               (unsigned long long)s->bytes_in, (unsigned long long)s->bytes_out, app->closed, app->gone, app->done,
               app->drains);
    buf_printf(&b, "\"most_queued\":%zu,\"cpu_us\":%lld,\"switches\":%ld}", app->most_queued,
               (long long)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000 + used.ru_utime.tv_usec +
                   used.ru_stime.tv_usec,
               used.ru_nvcsw);
    http_reply(req, 200, "application/json", b.data, b.len);
    buf_free(&b);
}

static const struct http_route routes[] = {
    {HTTP_M_GET, "/", hello, 0},
    {HTTP_M_GET, "/hello", hello, 0},
    {HTTP_M_POST, "/echo", echo, 0},
    {HTTP_M_POST, "/small", echo, 100},
    {HTTP_M_GET, "/info", info, 0},
    {HTTP_M_POST, "/info", info, 0},
    {HTTP_M_PUT, "/info", info, 0},
    {HTTP_M_DELETE, "/info", info, 0},
    {HTTP_M_GET, "/files/*", info, 0},
    {HTTP_M_GET, "/never", never, 0},
    {HTTP_M_POST, "/never", never, 0},
    {HTTP_M_GET, "/later", later, 0},
    {HTTP_M_GET, "/slow", slow, 0},
    {HTTP_M_GET, "/big", big, 0},
    {HTTP_M_GET, "/blob", blob, 0},
    {HTTP_M_GET, "/burst", burst, 0},
    {HTTP_M_GET, "/abort", abort_stream, 0},
    {HTTP_M_GET, "/fail", failing, 0},
    {HTTP_M_GET, "/empty", empty, 0},
    {HTTP_M_GET, "/stats", stats, 0},
};

/* ---- main ------------------------------------------------------------------------------------------------------ */

static void on_done(void *arg, const struct http_req *req, int status, uint64_t duration_ns)
{
    struct app *app = arg;
    (void)req, (void)duration_ns;
    app->done++;
    app->gone += status == 0;
}

static void on_closed(void *arg)
{
    struct app *app = arg;
    http_server_free(app->server);
    app->server = NULL;
    uv_close((uv_handle_t *)&app->term, NULL);
    uv_close((uv_handle_t *)&app->interrupt, NULL);
}

static void on_drained(void *arg)
{
    struct app *app = arg;
    puts("drained");
    fflush(stdout);
    http_server_close(app->server, on_closed, app);
}

static void on_signal(uv_signal_t *h, int number)
{
    struct app *app = h->data;
    uv_signal_stop(h);
    if (number == SIGTERM) {
        http_server_drain(app->server, on_drained, app);
    } else {
        http_server_close(app->server, on_closed, app);
    }
}

/* --tls FILE: certificate and key in one; returned. */
static const char *read_flags(int argc, char **argv, struct http_server_config *config)
{
    config->cors_origin = "*";
    const char *cert = NULL;
    const struct {
        const char *name;
        int *number;
        size_t *size;
    } flags[] = {
        {"--port", &config->port, NULL},
        {"--max-connections", &config->max_connections, NULL},
        {"--header-timeout", &config->header_timeout_ms, NULL},
        {"--body-timeout", &config->body_timeout_ms, NULL},
        {"--idle-timeout", &config->idle_timeout_ms, NULL},
        {"--write-timeout", &config->write_timeout_ms, NULL},
        {"--max-header", NULL, &config->max_header_bytes},
        {"--max-body", NULL, &config->max_body_bytes},
        {"--max-buffered", NULL, &config->max_buffered_bytes},
        {"--high-water", NULL, &config->high_water},
        {"--low-water", NULL, &config->low_water},
    };
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--host") == 0) config->host = argv[i + 1];
        if (strcmp(argv[i], "--tls") == 0) cert = argv[i + 1];
        if (strcmp(argv[i], "--cors") == 0) config->cors_origin = *argv[i + 1] ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--nofile") == 0) {
            struct rlimit limit = {(rlim_t)atoi(argv[i + 1]), (rlim_t)atoi(argv[i + 1])};
            setrlimit(RLIMIT_NOFILE, &limit);
        }
        for (size_t f = 0; f < sizeof flags / sizeof *flags; f++) {
            if (strcmp(argv[i], flags[f].name) != 0) continue;
            if (flags[f].number) *flags[f].number = atoi(argv[i + 1]);
            if (flags[f].size) *flags[f].size = (size_t)atol(argv[i + 1]);
        }
    }
    return cert;
}

int main(int argc, char **argv)
{
    static struct app app;
    struct http_server_config config;
    struct err e = {0};
    http_server_defaults(&config);
    config.port = 0;
    config.routes = routes;
    config.n_routes = (int)(sizeof routes / sizeof *routes);
    config.app = &app;
    const char *cert = read_flags(argc, argv, &config);
    if (cert && !(config.tls = tls_open(cert, cert, &e))) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    uv_loop_init(&app.loop);
    app.server = http_server_open(&app.loop, &config, &e);
    if (!app.server) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    http_server_on_done(app.server, on_done);
    uv_signal_init(&app.loop, &app.term);
    uv_signal_init(&app.loop, &app.interrupt);
    app.term.data = app.interrupt.data = &app;
    uv_signal_start(&app.term, on_signal, SIGTERM);
    uv_signal_start(&app.interrupt, on_signal, SIGINT);
    printf("port %d\n", http_server_port(app.server));
    fflush(stdout);
    uv_run(&app.loop, UV_RUN_DEFAULT);
    tls_close(config.tls);
    return uv_loop_close(&app.loop) == 0 ? 0 : 2;
}
