/* Renders the metrics in Prometheus' text format, under the names tandem_*.  Loop thread.  A scrape is a few hundred
 * lines and takes well under a millisecond. */
#include "server/jobs/jobs.h"
#include "server/memory/reservation.h"
#include "server/metrics/metrics.h"
#include "server/metrics/prometheus_text.h"
#include "server/net/http.h"
#include "server/ops/nvml.h"
#include "server/ops/process.h"
#include "server/store/store.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define N_OF(a) ((int)(sizeof(a) / sizeof *(a)))

/* A counter with one label, which has fixed values. */
static void put_by(struct buf *out, const char *name, const char *help, const char *label, const char *const *values,
                   const uint64_t *counts, int n)
{
    prometheus_head(out, name, "counter", help);
    for (int i = 0; i < n; i++) prometheus_by(out, name, label, values[i], (double)counts[i]);
}

static void put_requests(const struct metrics *m, struct buf *out)
{
    static const char name[] = "tandem_requests_total", duration[] = "tandem_http_request_duration_seconds";
    char labels[160];
    prometheus_head(out, name, "counter",
                    "HTTP requests by route and status; 499: the client disconnected before the answer.");
    for (int r = 0; r <= METRICS_ROUTES; r++) {
        if (r >= m->n_routes && r < METRICS_ROUTES) continue;
        for (int s = 0, code; (code = metrics_status(s)) >= 0; s++) {
            if (!m->requests[r][s]) continue;
            char status[16] = "other";
            if (code) snprintf(status, sizeof status, "%d", code);
            snprintf(labels, sizeof labels, "route=\"%s\",status=\"%s\"", r < METRICS_ROUTES ? m->routes[r] : "other",
                     status);
            prometheus_sample(out, name, labels, (double)m->requests[r][s]);
        }
    }
    prometheus_head(out, duration, "histogram",
                    "Time from a complete request head to the last byte of the answer, streams included.");
    for (int r = 0; r <= METRICS_ROUTES; r++) {
        if ((r >= m->n_routes && r < METRICS_ROUTES) || !histogram_count(&m->duration[r])) continue;
        snprintf(labels, sizeof labels, "route=\"%s\"", r < METRICS_ROUTES ? m->routes[r] : "other");
        prometheus_histogram(out, duration, labels, &m->duration[r], metrics_duration_bounds);
    }
}

static void put_ends(const struct metrics *m, const struct http_server_stats *h, struct buf *out)
{
    uint64_t rejected[REJECT_REASONS];
    memcpy(rejected, m->rejected, sizeof rejected);
    if (h) rejected[REJECT_MEMORY] += h->no_memory;
    static const char name[] = "tandem_requests_finished_total";
    prometheus_head(out, name, "counter", "Generations that ended, by finish reason.");
    for (int i = 0; i < N_OF(m->finished); i++)
        if (metrics_finish_name(i)) prometheus_by(out, name, "reason", metrics_finish_name(i), (double)m->finished[i]);
    put_by(out, "tandem_requests_rejected_total", "Requests refused before they generated anything, by reason.",
           "reason", metrics_reject_names, rejected, REJECT_REASONS);
    put_by(out, "tandem_requests_aborted_total", "Generations stopped before they were complete, by reason.", "reason",
           metrics_abort_names, m->aborted, ABORT_REASONS);
    const struct prometheus_row rows[] = {
        {"tandem_constraint_cache_hits_total", "counter", "Constraints found in the cache of compiled grammars.",
         (double)m->grammar_hits},
        {"tandem_constraint_errors_total", "counter", "Constraints that failed to compile.", (double)m->grammar_failed},
    };
    prometheus_rows(out, rows, N_OF(rows));
}

static void put_step(const struct engine_stats *s, struct buf *out)
{
    static const struct {
        const char *name, *help;
        const double *bounds;
        size_t at;
    } rows[] = {
        {"tandem_step_duration_seconds", "Duration of an engine step in seconds.", engine_step_seconds_bounds,
         offsetof(struct engine_stats, step_seconds)},
        {"tandem_step_tokens", "Tokens per engine step; the limit is tandem_step_token_budget.",
         engine_step_tokens_bounds, offsetof(struct engine_stats, step_tokens)},
        {"tandem_step_sequences", "Sequences per engine step; the limit is tandem_step_sequence_limit.",
         engine_step_seqs_bounds, offsetof(struct engine_stats, step_seqs)},
    };
    for (int i = 0; i < N_OF(rows); i++) {
        const struct histogram *h = (const struct histogram *)((const char *)s + rows[i].at);
        prometheus_head(out, rows[i].name, "histogram", rows[i].help);
        prometheus_histogram(out, rows[i].name, "", h, rows[i].bounds);
    }
}

static void put_queue(const struct metrics_view *v, struct buf *out)
{
    const struct engine_stats *s = v->stats;
    const struct engine_info *i = v->info;
    const struct prometheus_row rows[] = {
        {"tandem_requests_running", "gauge", "Requests in an engine slot, including paused ones.", s->running},
        {"tandem_requests_waiting", "gauge", "Requests in the engine's queue, without a slot.", s->waiting},
        {"tandem_requests_paused", "gauge", "Requests suspended because the client reads too slowly.", s->paused},
        {"tandem_oldest_waiting_seconds", "gauge",
         "Age of the oldest request without its first token; 0: no such request.", v->oldest_waiting},
        {"tandem_steps_total", "counter", "Engine steps executed.", (double)s->steps},
        {"tandem_failed_steps_total", "counter", "Engine steps that ended in a device error.", (double)s->failed_steps},
        {"tandem_last_step_seconds", "gauge", "Duration of the last engine step.", (double)s->last_step_ns * 1e-9},
        {"tandem_step_running_seconds", "gauge", "Time since the current engine step began; 0: the engine is idle.",
         v->step_running},
        {"tandem_step_token_budget", "gauge", "Maximum tokens per engine step.", i->max_batch_tokens},
        {"tandem_step_sequence_limit", "gauge", "Maximum sequences that run at once (engine slots).", i->max_seqs},
    };
    prometheus_rows(out, rows, N_OF(rows));
}

/* Of a model that is divided over ranks; nothing otherwise. */
static void put_ranks(const struct metrics_view *v, struct buf *out)
{
    static const char *const names[] = {"tandem_comm_operations_total", "tandem_comm_sent_bytes_total",
                                        "tandem_comm_seconds_total"};
    static const char *const help[] = {"Operations between the ranks of the model, by kind, as rank 0 counts them.",
                                       "Bytes that rank 0 sent in them.",
                                       "Time that rank 0 spent in them, waiting for other ranks included."};
    if (v->info->ranks < 2) return;
    const struct prometheus_row row = {"tandem_ranks", "gauge", "Ranks that the model is divided over.", v->info->ranks};
    prometheus_rows(out, &row, 1);
    for (int k = 0; k < N_OF(names); k++) {
        prometheus_head(out, names[k], "counter", help[k]);
        for (int i = 0; i < COMM_OPS; i++) {
            const struct comm_profile *p = &v->stats->ranks[i];
            double value = k == 0 ? (double)p->calls : k == 1 ? (double)p->sent_bytes : p->seconds;
            if (p->calls) prometheus_by(out, names[k], "op", engine_comm_op(i), value);
        }
    }
}

static void put_tokens(const struct metrics_view *v, struct buf *out)
{
    const struct engine_stats *s = v->stats;
    const struct prometheus_row rows[] = {
        {"tandem_prompt_tokens_total", "counter",
         "Prompt tokens of scheduled requests, both prefix cache hits and computed ones.", (double)s->prompt_tokens},
        {"tandem_generated_tokens_total", "counter", "Generated tokens, sampled and forced.",
         (double)s->generated_tokens},
        {"tandem_decode_tokens_total", "counter",
         "Generated tokens processed in engine steps; tandem_step_tokens also counts prompt tokens and recomputed "
         "tokens.",
         (double)s->decode_tokens},
        {"tandem_forced_tokens_total", "counter",
         "Generated tokens forced by a constraint (one possible token), not sampled.", (double)s->forced_tokens},
        {"tandem_speculation_saved_steps_total", "counter",
         "Engine steps that the accepted tokens would have taken, each shared by its sequences.", s->saved_steps},
        {"tandem_prefix_query_tokens_total", "counter", "Prompt tokens looked up in the prefix cache.",
         (double)s->prefix_query_tokens},
        {"tandem_prefix_hit_tokens_total", "counter", "Prompt tokens found in the prefix cache.",
         (double)s->prefix_hit_tokens},
        {"tandem_preemptions_total", "counter",
         "Times a request was preempted: its KV pages were freed, to be recomputed later.", (double)s->preemptions},
        {"tandem_constraint_held_rows_total", "counter",
         "Times a sequence was not sampled in a step because its constraint's token mask was not ready.",
         (double)s->held_rows},
        {"tandem_kv_pages", "gauge", "Pages in the KV cache.", s->pages_total},
        {"tandem_kv_pages_used", "gauge", "KV cache pages in use by requests.", s->pages_used},
        {"tandem_kv_pages_cached", "gauge", "Free KV cache pages that hold a reusable prefix.", s->pages_cached},
        {"tandem_kv_page_tokens", "gauge", "Tokens per KV cache page.", v->info->page_tokens},
        {"tandem_kv_usage_ratio", "gauge", "Fraction of KV cache pages in use by requests, 0 to 1.",
         s->pages_total ? (double)s->pages_used / s->pages_total : 0},
        {"tandem_train_device_seconds_total", "counter", "Device time given to fine-tuning.",
         (double)s->train_ns * 1e-9},
    };
    prometheus_rows(out, rows, N_OF(rows));
}

/* Zeros without --kv-disk. */
static void put_kv_disk(const struct metrics_view *v, struct buf *out)
{
    static const char removed[] = "tandem_kv_disk_removed_pages_total";
    const struct kv_disk_stats *s = &v->stats->kv_disk;
    const struct prometheus_row rows[] = {
        {"tandem_kv_disk_pages", "gauge", "KV pages on disk.", (double)s->pages},
        {"tandem_kv_disk_bytes", "gauge", "Bytes of KV pages on disk.", (double)s->bytes},
        {"tandem_kv_disk_limit_bytes", "gauge", "Limit of tandem_kv_disk_bytes (option kv-disk-size).",
         (double)s->limit},
        {"tandem_kv_disk_hit_pages_total", "counter", "KV pages of prompts read from disk.", (double)s->hits},
        {"tandem_kv_disk_miss_pages_total", "counter", "KV pages of prompts found neither in memory nor on disk.",
         (double)s->misses},
        {"tandem_kv_disk_written_pages_total", "counter", "KV pages written to disk.", (double)s->written},
        {"tandem_kv_disk_dropped_pages_total", "counter",
         "KV pages not written: others were still being written, or the device failed.", (double)s->dropped},
        {"tandem_kv_disk_write_errors_total", "counter", "Failed writes to the directory of kv-disk.",
         (double)s->write_errors},
        {"tandem_kv_disk_loads_total", "counter", "Requests that waited for KV pages from disk.", (double)s->loads},
        {"tandem_kv_disk_load_seconds_total", "counter", "Time that these requests waited.", (double)s->load_ns * 1e-9},
    };
    prometheus_rows(out, rows, N_OF(rows));
    prometheus_head(out, removed, "counter", "KV pages removed from disk, by reason.");
    prometheus_by(out, removed, "reason", "evicted", (double)s->evicted);
    prometheus_by(out, removed, "reason", "expired", (double)s->expired);
    prometheus_by(out, removed, "reason", "corrupt", (double)s->corrupt);
}

/* Zeros without --kv-events. */
static void put_kv_events(const struct metrics_view *v, struct buf *out)
{
    const struct prometheus_row rows[] = {
        {"tandem_kv_event_batches_total", "counter", "Batches of KV events that were published.",
         (double)v->kv_event_batches},
        {"tandem_kv_event_batches_refused_total", "counter",
         "Batches not published because too many waited; everything cached was published later.",
         (double)v->kv_event_batches_refused},
        {"tandem_kv_event_replays_total", "counter", "Requests of subscribers for batches that they missed.",
         (double)v->kv_event_replays},
        {"tandem_kv_event_resyncs_total", "counter",
         "Times that everything cached was to be published, for new subscribers and those that missed too much.",
         (double)v->kv_event_resyncs},
    };
    prometheus_rows(out, rows, N_OF(rows));
}

/* On a GPU: bytes of device memory that training uses: reserved after startup, less those of adapters. */
static double taken_by_training(const struct metrics_view *v)
{
    const struct engine_info *i = v->info;
    size_t others = i->device_base + v->stats->adapter_bytes;
    return v->stats->device_used > others ? (double)(v->stats->device_used - others) : 0;
}

static void put_memory(const struct metrics_view *v, struct buf *out)
{
    static const char name[] = "tandem_memory_bytes";
    const struct engine_info *i = v->info;
    const struct prometheus_row rows[] = {
        {"tandem_kv_cache_bytes", "gauge", "Size of the KV cache.", (double)i->kv_bytes},
        {"tandem_weight_bytes", "gauge", "Size of the model's weights in memory.", (double)i->weight_bytes},
        {"tandem_model_load_seconds", "gauge", "Time taken to load the model.", i->load_seconds},
        {"tandem_threads", "gauge", "Threads that compute on the CPU.", i->threads},
        {"tandem_memory_budget_bytes", "gauge", "GPU memory that tandem may use; 0 on the cpu device.",
         (double)i->device_budget},
        {"tandem_memory_taken_bytes", "gauge", "GPU memory in use, of tandem_memory_budget_bytes.",
         (double)v->stats->device_used},
    };
    prometheus_rows(out, rows, N_OF(rows));
    prometheus_head(out, name, "gauge", "Memory on the model's device by purpose.");
    prometheus_by(out, name, "part", "weights", (double)i->weight_bytes);
    prometheus_by(out, name, "part", "kv_cache", (double)i->kv_bytes);
    prometheus_by(out, name, "part", "workspace", (double)i->workspace_bytes);
    if (i->draft_model)
        prometheus_by(out, name, "part", "draft",
                      (double)(i->draft_weight_bytes + i->draft_kv_bytes + i->draft_workspace_bytes));
    prometheus_by(out, name, "part", "adapters", (double)v->stats->adapter_bytes);
    if (i->device_budget) prometheus_by(out, name, "part", "training", taken_by_training(v));
}

static void put_speculation(const struct engine_stats *s, struct buf *out)
{
    const struct prometheus_row rows[] = {
        {"tandem_speculation_history_bytes", "gauge", "Earlier texts kept for speculation.", (double)s->history_bytes},
        {"tandem_draft_steps_total", "counter", "Steps of the draft model for candidates.", (double)s->draft_steps},
        {"tandem_draft_seconds_total", "counter", "Time of the draft model.", (double)s->draft_ns * 1e-9},
        {"tandem_draft_prompt_tokens_total", "counter", "Tokens of prompts that the draft model computed.",
         (double)s->draft_prompt_tokens},
    };
    put_by(out, "tandem_speculated_tokens_total", "Candidate tokens computed (speculation), by where they came from.",
           "source", speculate_source_names, s->proposed_by, SPECULATE_SOURCES);
    put_by(out, "tandem_speculated_tokens_accepted_total", "Candidate tokens that were right, likewise.", "source",
           speculate_source_names, s->accepted_by, SPECULATE_SOURCES);
    prometheus_rows(out, rows, N_OF(rows));
}

static void put_adapters(const struct metrics_view *v, struct buf *out)
{
    static const char name[] = "tandem_adapter_requests";
    int running = 0, all = 0;
    for (int i = 0; i < v->n_adapters; i++) {
        running += v->adapters[i].running;
        all += v->adapters[i].requests;
    }
    const struct prometheus_row rows[] = {
        {"tandem_adapters", "gauge", "LoRA adapters loaded.", v->stats->adapters},
        {"tandem_adapter_limit", "gauge", "Maximum LoRA adapters loaded at once.", v->info->max_adapters},
        {"tandem_adapter_bytes", "gauge", "Memory of LoRA adapters, including replaced ones that requests still use.",
         (double)v->stats->adapter_bytes},
    };
    prometheus_rows(out, rows, N_OF(rows));
    prometheus_head(out, name, "gauge", "Requests that use a LoRA adapter, by state.");
    prometheus_by(out, name, "state", "running", running);
    prometheus_by(out, name, "state", "waiting", all - running);
}

static void put_model(const struct metrics_view *v, struct buf *out)
{
    const struct engine_info *i = v->info;
    const struct {
        const char *label, *value;
    } labels[] = {{"model_id", i->model_id}, {"model_name", v->model_name},   {"family", i->family},
                  {"device", i->device},     {"weight_type", i->weight_type}, {"kv_type", i->kv_type}};
    prometheus_head(out, "tandem_model_info", "gauge", "The served model; the value is always 1.");
    buf_str(out, "tandem_model_info{");
    for (int k = 0; k < N_OF(labels); k++) {
        if (k) buf_char(out, ',');
        prometheus_label(out, labels[k].label, labels[k].value);
    }
    buf_str(out, "} 1\n");
}

/* 0: there is none. */
static double or_none(double loss)
{
    return isnan(loss) ? 0 : loss;
}

static void put_training(const struct jobs_view *j, double floor, struct buf *out)
{
    const struct train_event *last = &j->last;
    struct train_sampled sampled = train_sampled();
    bool runs = last->kind == TRAIN_STEP;
    const struct prometheus_row rows[] = {
        {"tandem_train_step", "gauge", "Optimizer steps completed by the running job; 0 without a running job.",
         runs ? (double)last->step : 0},
        {"tandem_train_steps_planned", "gauge", "Planned optimizer steps of the running job.",
         runs ? (double)last->steps : 0},
        {"tandem_train_loss", "gauge", "Training loss of the running job's last step.", runs ? last->loss : 0},
        {"tandem_train_learning_rate", "gauge", "Learning rate of the running job's last step.",
         runs ? last->learning_rate : 0},
        {"tandem_train_grad_norm", "gauge", "Gradient norm of the running job's last step, before clipping.",
         runs ? last->grad_norm : 0},
        {"tandem_train_tokens_per_second", "gauge", "Tokens per second in the running job's last step.",
         runs ? last->tokens_per_s : 0},
        {"tandem_train_rows_per_second", "gauge", "Rows per second in the running job's last step.",
         runs ? last->rows_per_s : 0},
        {"tandem_train_reward", "gauge", "Mean reward in the running job's last step; 0 unless its method is grpo.",
         runs ? or_none(last->rewards.reward) : 0},
        {"tandem_train_reward_std", "gauge", "Mean deviation of the rewards of a prompt's texts in that step.",
         runs ? or_none(last->rewards.reward_std) : 0},
        {"tandem_train_reward_zero_std_ratio", "gauge",
         "Share of the prompts of that step whose texts all had the same reward.",
         runs ? or_none(last->rewards.zero_std) : 0},
        {"tandem_train_kl", "gauge", "Distance to the reference in that step, of methods that compute it.",
         runs ? or_none(last->rewards.kl) : 0},
        {"tandem_train_completion_tokens", "gauge", "Mean tokens of a text that was sampled for that step.",
         runs ? or_none(last->rewards.length) : 0},
        {"tandem_train_tokens_per_second_floor", "gauge",
         "Training speed below which an alert is due (option train-speed-floor); 0: none.", floor},
        {"tandem_train_eval_loss", "gauge",
         "Loss of the last evaluation, of the running job or else of the last one; 0: none.", or_none(j->eval_loss)},
        {"tandem_train_best_eval_loss", "gauge", "Least evaluation loss of that job; 0: none.",
         or_none(j->best_eval_loss)},
        {"tandem_train_evaluations_since_best", "gauge", "Evaluations of that job since its best one.",
         (double)j->evals_since_best},
        {"tandem_train_peak_host_bytes", "gauge", "Most resident memory of the process, as last read by that job.",
         (double)j->peak_host},
        {"tandem_train_peak_device_bytes", "gauge",
         "Most GPU memory in use during that job, serving's included; 0 on the cpu device.", (double)j->peak_device},
        {"tandem_train_eta_seconds", "gauge", "Estimated time until the running job ends.", runs ? last->eta_s : 0},
        {"tandem_train_steps_total", "counter", "Optimizer steps since the start, of all jobs.", (double)j->steps},
        {"tandem_train_tokens_total", "counter", "Tokens processed by training, of all jobs.", (double)j->tokens},
        {"tandem_train_trained_tokens_total", "counter",
         "Tokens of tandem_train_tokens_total that the loss was computed on.", (double)j->trained_tokens},
        {"tandem_train_sampled_tokens_total", "counter",
         "Tokens trained on whose data give the log-probability that sampling gave them.", (double)sampled.tokens},
        {"tandem_train_sampled_mismatches_total", "counter",
         "Of these, tokens whose log-probability in training has other bits.", (double)sampled.differing},
        {"tandem_train_skipped_steps_total", "counter",
         "Optimizer steps skipped because the loss or gradient was not finite.", (double)j->skipped},
    };
    prometheus_head(out, "tandem_train_jobs", "gauge", "Fine-tuning jobs by status.");
    for (int i = 0; i < JOB_STATES; i++)
        prometheus_by(out, "tandem_train_jobs", "status", job_state_names[i], j->counts[i]);
    prometheus_rows(out, rows, N_OF(rows));
}

static void put_batches(const struct metrics *m, bool running, struct buf *out)
{
    static const char *const outcomes[BATCH_LINE_OUTCOMES] = {"completed", "failed", "expired"};
    static const char lines[] = "tandem_batch_lines_total";
    prometheus_one(out, "tandem_batch_running", "gauge", "1 while a batch runs, else 0.", running);
    prometheus_head(out, lines, "counter", "Lines of batches that were answered, by outcome.");
    for (int i = 0; i < BATCH_LINE_OUTCOMES; i++)
        prometheus_by(out, lines, "outcome", outcomes[i], (double)m->batch_lines[i]);
}

static void put_http(const struct http_server_stats *h, struct buf *out)
{
    const struct prometheus_row rows[] = {
        {"tandem_connections", "gauge", "Open client connections.", h->open},
        {"tandem_connections_accepted_total", "counter", "Client connections accepted.", (double)h->accepted},
        {"tandem_connections_rejected_total", "counter", "Connections refused because of the connection limit.",
         (double)h->rejected},
        {"tandem_connections_evicted_total", "counter", "Idle connections closed to make room for new ones.",
         (double)h->evicted},
        {"tandem_http_received_bytes_total", "counter", "Bytes read from clients.", (double)h->bytes_in},
        {"tandem_http_sent_bytes_total", "counter", "Bytes written to clients.", (double)h->bytes_out},
    };
    prometheus_rows(out, rows, N_OF(rows));
}

static void put_reservations(struct buf *out)
{
    struct reservation_stats r;
    reservation_stats(&r);
    const struct prometheus_row rows[] = {
        {"tandem_request_memory_bytes", "gauge", "Memory reserved for requests: bodies, texts, tokens and answers.",
         (double)r.used},
        {"tandem_request_memory_peak_bytes", "gauge", "Peak of tandem_request_memory_bytes since the start.",
         (double)r.peak},
        {"tandem_request_memory_limit_bytes", "gauge", "Limit of tandem_request_memory_bytes (option request-memory).",
         (double)r.budget},
        {"tandem_request_memory_refused_total", "counter", "Reservations of request memory refused at the limit.",
         (double)r.refused},
    };
    prometheus_rows(out, rows, N_OF(rows));
}

static void put_startup(const struct metrics *m, struct buf *out)
{
    static const char name[] = "tandem_startup_seconds";
    prometheus_head(out, name, "gauge", "Startup time by phase; phase ready: the total, until requests were accepted.");
    for (int i = 0; i < STARTUP_PHASES; i++)
        if (m->startup[i] > 0) prometheus_by(out, name, "phase", metrics_startup_names[i], m->startup[i]);
}

void metrics_render(const struct metrics *m, const struct metrics_view *v, struct buf *out)
{
    prometheus_head(out, "tandem_build_info", "gauge", "Version and compiler of this build; the value is always 1.");
    buf_printf(out, "tandem_build_info{version=\"%s\",compiler=\"%s\"} 1\n", TANDEM_VERSION, __VERSION__);
    prometheus_one(out, "tandem_ready", "gauge", "1 while requests are accepted, else 0.", v->ready);
    prometheus_one(out, "tandem_memory_limit_bytes", "gauge",
                   "Memory limit of the process: the smallest of its cgroups' limits, or the machine's memory.",
                   v->memory_limit);
    prometheus_one(out, "tandem_tls_certificate_expiry_timestamp_seconds", "gauge",
                   "Expiry time of the TLS certificate in seconds since the epoch; 0: no certificate.",
                   v->certificate_expires);
    put_requests(m, out);
    put_ends(m, v->http, out);
    if (v->stats && v->info) {
        put_queue(v, out);
        put_ranks(v, out);
        put_tokens(v, out);
        put_speculation(v->stats, out);
        put_step(v->stats, out);
        put_memory(v, out);
        put_kv_disk(v, out);
        put_kv_events(v, out);
        put_adapters(v, out);
        put_model(v, out);
    }
    for (int i = 0; i < HISTOGRAMS; i++) {
        prometheus_head(out, metrics_hists[i].name, "histogram", metrics_hists[i].help);
        prometheus_histogram(out, metrics_hists[i].name, "", &m->hist[i], metrics_hists[i].bounds);
    }
    if (v->jobs) put_training(v->jobs, v->train_speed_floor, out);
    put_batches(m, v->batch_running, out);
    if (v->http) put_http(v->http, out);
    put_reservations(out);
    put_startup(m, out);
    if (v->devices) nvml_render(v->devices, out);
    process_render(out, (double)m->start_unix_ns * 1e-9);
    if (v->vllm) metrics_render_vllm(m, v, out);
}
