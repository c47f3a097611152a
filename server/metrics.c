/* Counters, histograms and their text exposition.  Loop thread only; nothing here allocates but the text. */
#include "server/metrics.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "server/http.h"
#include "server/jobs.h"
#include "server/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* status codes with a series of their own; the rest count as "other" */
static const int statuses[] = {200, 204, 400, 401, 403, 404, 405, 408, 411, 413, 414, 415,
                               417, 422, 424, 429, 431, 499, 500, 501, 503, 505};
enum { N_STATUSES = sizeof statuses / sizeof *statuses };
_Static_assert((int)N_STATUSES < (int)METRICS_STATUSES, "one place is for the others");

static const char *const finish_names[] = {
    [FINISH_NONE] = NULL,
    [FINISH_LENGTH] = "length",
    [FINISH_EOS] = "eos_token",
    [FINISH_STOP] = "stop_sequence",
    [FINISH_EMBEDDED] = "embedding",
    [FINISH_CANCELLED] = "cancelled",
    [FINISH_ERROR] = "error",
};
static const char *const reject_names[] = {"overloaded", "validation", "loading", "draining", "unauthorized", "forbidden"};

static const struct {
    const char *name, *help;
    double bounds[METRICS_BUCKETS]; /* ascending; 0 ends them */
} hists[HISTOGRAMS] = {
    [HIST_TTFT] = {"tandem_time_to_first_token_seconds",
                   "From the request's head to its first token.",
                   {.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 80, 160}},
    [HIST_ITL] = {"tandem_inter_token_latency_seconds",
                  "Between two tokens of one request.",
                  {.0005, .001, .002, .003, .005, .0075, .01, .015, .02, .03, .05, .075, .1, .15, .25, .5, 1, 2.5, 10}},
    [HIST_E2E] = {"tandem_e2e_request_latency_seconds",
                  "From the request's head to its last token.",
                  {.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 240, 480, 960}},
    [HIST_QUEUE] = {"tandem_queue_time_seconds",
                    "From submission to the first step that computes the request.",
                    {.0005, .001, .005, .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}},
    [HIST_PROMPT] = {"tandem_request_prompt_tokens",
                     "Prompt tokens of a request.",
                     {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000}},
    [HIST_GENERATED] = {"tandem_request_generated_tokens",
                        "Generated tokens of a request.",
                        {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000}},
};

void metrics_init(struct metrics *m)
{
    *m = (struct metrics){.start_unix_ns = clock_unix()};
}

void metrics_add_route(struct metrics *m, const char *path)
{
    for (int i = 0; i < m->n_routes; i++)
        if (strcmp(m->routes[i], path) == 0) return;
    CHECK(m->n_routes < METRICS_ROUTES);
    m->routes[m->n_routes++] = path;
}

void metrics_request(struct metrics *m, const char *path, int status)
{
    int route = 0, slot = 0;
    if (status == 0) status = 499;
    while (route < m->n_routes && (!path || strcmp(m->routes[route], path) != 0)) route++;
    while (slot < N_STATUSES && statuses[slot] != status) slot++;
    m->requests[route == m->n_routes ? METRICS_ROUTES : route][slot]++;
}

void metrics_reject(struct metrics *m, enum reject_reason why)
{
    m->rejected[why]++;
}

void metrics_observe(struct metrics *m, enum histogram_id id, double value)
{
    const double *b = hists[id].bounds;
    int i = 0;
    while (i < METRICS_BUCKETS && b[i] > 0 && value > b[i]) i++;
    m->hist[id].counts[i < METRICS_BUCKETS && b[i] > 0 ? i : METRICS_BUCKETS]++;
    m->hist[id].sum += value;
}

void metrics_finish(struct metrics *m, const struct event *done, uint64_t received, uint64_t now)
{
    m->finished[done->finish]++;
    metrics_observe(m, HIST_PROMPT, done->n_prompt);
    if (done->finish != FINISH_EMBEDDED) metrics_observe(m, HIST_GENERATED, done->n_generated);
    metrics_observe(m, HIST_E2E, (double)(now - received) * 1e-9);
    const struct request_times *t = &done->times;
    if (t->scheduled >= t->submitted && t->submitted)
        metrics_observe(m, HIST_QUEUE, (double)(t->scheduled - t->submitted) * 1e-9);
}

/* ---- text ------------------------------------------------------------------------------------------------------ */

static void put_head(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_one(struct buf *out, const char *name, const char *type, const char *help, double value)
{
    put_head(out, name, type, help);
    buf_printf(out, "%s %.17g\n", name, value);
}

static void put_label(struct buf *out, const char *name, const char *value)
{
    buf_printf(out, "%s=\"", name);
    for (; *value; value++) {
        if (*value == '\n')
            buf_str(out, "\\n");
        else if (*value == '"' || *value == '\\')
            buf_printf(out, "\\%c", *value);
        else
            buf_char(out, *value);
    }
    buf_char(out, '"');
}

static void put_requests(const struct metrics *m, struct buf *out)
{
    put_head(out, "tandem_requests_total", "counter", "HTTP requests answered; status 499: the client left first.");
    for (int r = 0; r <= METRICS_ROUTES; r++) {
        if (r >= m->n_routes && r < METRICS_ROUTES) continue;
        for (int s = 0; s <= N_STATUSES; s++) {
            if (!m->requests[r][s]) continue;
            char code[8] = "other";
            if (s < N_STATUSES) snprintf(code, sizeof code, "%d", statuses[s]);
            buf_printf(out, "tandem_requests_total{route=\"%s\",status=\"%s\"} %llu\n",
                       r < METRICS_ROUTES ? m->routes[r] : "other", code, (unsigned long long)m->requests[r][s]);
        }
    }
    put_head(out, "tandem_requests_finished_total", "counter", "Generations that ended, by reason.");
    for (int i = FINISH_LENGTH; i <= FINISH_ERROR; i++)
        buf_printf(out, "tandem_requests_finished_total{reason=\"%s\"} %llu\n", finish_names[i],
                   (unsigned long long)m->finished[i]);
    put_head(out, "tandem_requests_rejected_total", "counter", "Generations refused before they started, by reason.");
    for (int i = 0; i < REJECT_REASONS; i++)
        buf_printf(out, "tandem_requests_rejected_total{reason=\"%s\"} %llu\n", reject_names[i],
                   (unsigned long long)m->rejected[i]);
}

static void put_histogram(const struct metrics *m, enum histogram_id id, struct buf *out)
{
    const struct histogram *h = &m->hist[id];
    const char *name = hists[id].name;
    uint64_t sum = 0;
    put_head(out, name, "histogram", hists[id].help);
    for (int i = 0; i < METRICS_BUCKETS && hists[id].bounds[i] > 0; i++) {
        sum += h->counts[i];
        buf_printf(out, "%s_bucket{le=\"%g\"} %llu\n", name, hists[id].bounds[i], (unsigned long long)sum);
    }
    sum += h->counts[METRICS_BUCKETS];
    buf_printf(out, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.17g\n%s_count %llu\n", name, (unsigned long long)sum, name,
               h->sum, name, (unsigned long long)sum);
}

static void put_engine(const struct engine_stats *s, const struct engine_info *info, struct buf *out)
{
    const struct {
        const char *name, *type, *help;
        double value;
    } rows[] = {
        {"tandem_requests_running", "gauge", "Requests that hold a slot, paused ones among them.", s->running},
        {"tandem_requests_waiting", "gauge", "Requests in the queue.", s->waiting},
        {"tandem_requests_paused", "gauge", "Requests not computed because their client does not read.", s->paused},
        {"tandem_prompt_tokens_total", "counter", "Prompt tokens computed.", (double)s->prompt_tokens},
        {"tandem_train_device_seconds_total", "counter", "Time that training had the device.",
         (double)s->train_ns * 1e-9},
        {"tandem_generated_tokens_total", "counter", "Tokens generated.", (double)s->generated_tokens},
        {"tandem_prefix_query_tokens_total", "counter", "Prompt tokens looked up in the prefix cache.",
         (double)s->prefix_query_tokens},
        {"tandem_prefix_hit_tokens_total", "counter", "Prompt tokens found in the prefix cache.",
         (double)s->prefix_hit_tokens},
        {"tandem_preemptions_total", "counter", "Requests that lost their pages and were recomputed.",
         (double)s->preemptions},
        {"tandem_steps_total", "counter", "Engine steps.", (double)s->steps},
        {"tandem_last_step_seconds", "gauge", "Duration of the last engine step.", (double)s->last_step_ns * 1e-9},
        {"tandem_kv_pages", "gauge", "Pages of the key-value pool.", s->pages_total},
        {"tandem_kv_pages_used", "gauge", "Pages held by requests.", s->pages_used},
        {"tandem_kv_pages_cached", "gauge", "Free pages that hold a known prefix.", s->pages_cached},
        {"tandem_kv_usage_ratio", "gauge", "Pages held by requests, of all.",
         s->pages_total ? (double)s->pages_used / s->pages_total : 0},
        {"tandem_kv_cache_bytes", "gauge", "Memory of the key-value pool.", (double)info->kv_bytes},
        {"tandem_weight_bytes", "gauge", "Memory of the weights.", (double)info->weight_bytes},
        {"tandem_adapters", "gauge", "LoRA adapters that requests can name.", s->adapters},
        {"tandem_adapter_bytes", "gauge", "Memory of the LoRA adapters, replaced ones in use included.",
         (double)s->adapter_bytes},
        {"tandem_model_load_seconds", "gauge", "Time the model took to load.", info->load_seconds},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        put_one(out, rows[i].name, rows[i].type, rows[i].help, rows[i].value);
    put_head(out, "tandem_model_info", "gauge", "The model that is served.");
    buf_str(out, "tandem_model_info{");
    put_label(out, "model_id", info->model_id);
    buf_char(out, ',');
    put_label(out, "family", info->family);
    buf_char(out, ',');
    put_label(out, "device", info->device);
    buf_char(out, ',');
    put_label(out, "weight_type", info->weight_type);
    buf_char(out, ',');
    put_label(out, "kv_type", info->kv_type);
    buf_str(out, "} 1\n");
}

static void put_training(const struct jobs_view *j, struct buf *out)
{
    const struct train_event *last = &j->last;
    bool runs = last->kind == TRAIN_STEP;
    const struct {
        const char *name, *type, *help;
        double value;
    } rows[] = {
        {"tandem_train_step", "gauge", "Optimizer steps done of the job that runs; 0 when none does.",
         runs ? (double)last->step : 0},
        {"tandem_train_steps_planned", "gauge", "Its steps in all.", runs ? (double)last->steps : 0},
        {"tandem_train_loss", "gauge", "Training loss of its last step.", runs ? last->loss : 0},
        {"tandem_train_learning_rate", "gauge", "Learning rate of its last step.", runs ? last->learning_rate : 0},
        {"tandem_train_grad_norm", "gauge", "Gradient norm of its last step, before clipping.",
         runs ? last->grad_norm : 0},
        {"tandem_train_tokens_per_second", "gauge", "Tokens trained a second in its last step.",
         runs ? last->tokens_per_s : 0},
        {"tandem_train_eta_seconds", "gauge", "Time it has left, as estimated.", runs ? last->eta_s : 0},
        {"tandem_train_steps_total", "counter", "Optimizer steps of all jobs.", (double)j->steps},
        {"tandem_train_tokens_total", "counter", "Tokens of all steps.", (double)j->tokens},
        {"tandem_train_trained_tokens_total", "counter", "Those of them that the loss was computed on.",
         (double)j->trained_tokens},
        {"tandem_train_skipped_steps_total", "counter", "Steps skipped for a loss or gradient that was not finite.",
         (double)j->skipped},
    };
    put_head(out, "tandem_train_jobs", "gauge", "Fine-tuning jobs by state.");
    for (int i = 0; i < JOB_STATES; i++)
        buf_printf(out, "tandem_train_jobs{status=\"%s\"} %d\n", job_state_names[i], j->counts[i]);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        put_one(out, rows[i].name, rows[i].type, rows[i].help, rows[i].value);
}

static void put_http(const struct http_server_stats *h, struct buf *out)
{
    put_one(out, "tandem_connections", "gauge", "Open connections.", h->open);
    put_one(out, "tandem_connections_accepted_total", "counter", "Connections accepted.", (double)h->accepted);
    put_one(out, "tandem_connections_rejected_total", "counter", "Connections refused at the limit.",
            (double)h->rejected);
    put_one(out, "tandem_http_received_bytes_total", "counter", "Bytes read from clients.", (double)h->bytes_in);
    put_one(out, "tandem_http_sent_bytes_total", "counter", "Bytes written to clients.", (double)h->bytes_out);
}

static int count_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = -3; /* ".", ".." and the directory itself */
    if (!d) return 0;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static void put_process(const struct metrics *m, struct buf *out)
{
    char text[200] = "";
    unsigned long virtual_pages = 0, resident_pages = 0;
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t n = read(fd, text, sizeof text - 1);
        close(fd);
        char *rest = text;
        if (n > 0) virtual_pages = strtoul(text, &rest, 10), resident_pages = strtoul(rest, NULL, 10);
    }
    double page = (double)sysconf(_SC_PAGESIZE);
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    put_one(out, "process_resident_memory_bytes", "gauge", "Resident memory.", (double)resident_pages * page);
    put_one(out, "process_virtual_memory_bytes", "gauge", "Virtual memory.", (double)virtual_pages * page);
    put_one(out, "process_cpu_seconds_total", "counter", "User and system CPU time.",
            (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
                (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6);
    put_one(out, "process_open_fds", "gauge", "Open file descriptors.", count_fds());
    put_one(out, "process_max_fds", "gauge", "Limit of open file descriptors.", (double)files.rlim_cur);
    put_one(out, "process_start_time_seconds", "gauge", "Start of the process, seconds since the epoch.",
            (double)m->start_unix_ns * 1e-9);
}

void metrics_render(const struct metrics *m, const struct metrics_view *v, struct buf *out)
{
    put_head(out, "tandem_build_info", "gauge", "The program.");
    buf_printf(out, "tandem_build_info{version=\"%s\",compiler=\"%s\"} 1\n", TANDEM_VERSION, __VERSION__);
    put_one(out, "tandem_ready", "gauge", "1 while requests are accepted.", v->ready);
    put_requests(m, out);
    if (v->stats && v->info) put_engine(v->stats, v->info, out);
    for (int i = 0; i < HISTOGRAMS; i++) put_histogram(m, (enum histogram_id)i, out);
    if (v->jobs) put_training(v->jobs, out);
    if (v->http) put_http(v->http, out);
    put_process(m, out);
}
