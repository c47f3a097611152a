/* The same metrics under vLLM's names, for tools that expect those: dashboards, autoscalers, and the endpoint pickers
 * of the Gateway API inference extension, which need the queue, the running requests, the cache's usage and layout
 * (cache_config_info) and the adapters in use (lora_requests_info).  Types and meanings are vLLM's (its
 * docs/design/metrics.md); the buckets are tandem's, which begin lower.  Loop thread. */
#include "engine/base/clock.h"
#include "server/metrics/metrics.h"
#include "server/metrics/prometheus_text.h"

#define N_OF(a) ((int)(sizeof(a) / sizeof *(a)))

/* Adds one label to the common ones.  Not a fixed buffer: an escaped model name has no length limit. */
static void put_by(struct buf *out, const char *name, const char *labels, const char *label, const char *value,
                   double number)
{
    struct buf all = {0};
    buf_printf(&all, "%s,%s=\"%s\"", labels, label, value);
    prometheus_sample(out, name, all.data, number);
    buf_free(&all);
}

/* model_name and engine, the labels of every series */
static void put_labels(const struct metrics_view *v, struct buf *out)
{
    prometheus_label(out, "model_name", v->model_name);
    buf_str(out, ",engine=\"0\"");
}

static void put_family(struct buf *out, const struct prometheus_row *r, const char *labels)
{
    prometheus_head(out, r->name, r->type, r->help);
    prometheus_sample(out, r->name, labels, r->value);
}

static void put_engine(const struct metrics_view *v, const char *labels, struct buf *out)
{
    const struct engine_stats *s = v->stats;
    const struct prometheus_row rows[] = {
        {"vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", s->running},
        {"vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", s->waiting},
        {"vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.",
         s->pages_total ? (double)s->pages_used / s->pages_total : 0},
        {"vllm:prefix_cache_queries_total", "counter", "Prefix cache queries, in tokens.",
         (double)s->prefix_query_tokens},
        {"vllm:prefix_cache_hits_total", "counter", "Prefix cache hits, in tokens.", (double)s->prefix_hit_tokens},
        {"vllm:num_preemptions_total", "counter", "Cumulative number of preemptions from the engine.",
         (double)s->preemptions},
        {"vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", (double)s->prompt_tokens},
        {"vllm:prompt_tokens_cached_total", "counter", "Number of prompt tokens found in the prefix cache.",
         (double)s->prefix_hit_tokens},
        {"vllm:generation_tokens_total", "counter", "Number of generation tokens processed.",
         (double)s->generated_tokens},
    };
    for (int i = 0; i < N_OF(rows); i++) put_family(out, &rows[i], labels);
    prometheus_head(out, "vllm:num_requests_waiting_by_reason", "gauge", "Number of waiting requests, by reason.");
    put_by(out, "vllm:num_requests_waiting_by_reason", labels, "reason", "capacity", s->waiting);
    put_by(out, "vllm:num_requests_waiting_by_reason", labels, "reason", "deferred", 0);
    prometheus_head(out, "vllm:iteration_tokens_total", "histogram", "Histogram of number of tokens per engine step.");
    prometheus_histogram(out, "vllm:iteration_tokens_total", labels, &s->step_tokens, engine_step_tokens_bounds);
}

/* vLLM's blocks are pages. */
static void put_cache(const struct metrics_view *v, struct buf *out)
{
    prometheus_head(out, "vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
    buf_str(out, "vllm:cache_config_info{");
    put_labels(v, out);
    buf_printf(out, ",block_size=\"%d\",num_gpu_blocks=\"%d\",enable_prefix_caching=\"%s\",", v->info->page_tokens,
               v->info->pages, v->prefix_cache ? "True" : "False");
    prometheus_label(out, "cache_dtype", v->info->kv_type);
    buf_str(out, "} 1\n");
}

/* The comma-separated names of adapters with running (or waiting) requests.  Adapter names need no escaping. */
static void put_names(const struct metrics_view *v, bool running, struct buf *out)
{
    bool any = false;
    for (int i = 0; i < v->n_adapters; i++) {
        const struct adapter_info *a = &v->adapters[i];
        if (running ? !a->running : a->requests <= a->running) continue;
        buf_printf(out, "%s%s", any ? "," : "", a->name);
        any = true;
    }
}

/* The value is the time: of several series, consumers use the newest. */
static void put_adapters(const struct metrics_view *v, struct buf *out)
{
    prometheus_head(out, "vllm:lora_requests_info", "gauge", "Running stats on lora requests.");
    buf_printf(out, "vllm:lora_requests_info{max_lora=\"%d\",running_lora_adapters=\"", v->info->max_adapters);
    put_names(v, true, out);
    buf_str(out, "\",waiting_lora_adapters=\"");
    put_names(v, false, out);
    buf_printf(out, "\"} %.3f\n", (double)clock_unix() * 1e-9);
}

static void put_success(const struct metrics *m, const char *labels, struct buf *out)
{
    static const char name[] = "vllm:request_success_total";
    const struct {
        const char *reason;
        uint64_t n;
    } rows[] = {
        {"stop", m->finished[FINISH_EOS] + m->finished[FINISH_STOP] + m->finished[FINISH_EMBEDDED]},
        {"length", m->finished[FINISH_LENGTH]},
        {"abort", m->finished[FINISH_CANCELLED] + m->finished[FINISH_TIMEOUT] + m->finished[FINISH_ABORTED]},
        {"error", m->finished[FINISH_ERROR]},
        {"repetition", 0}, /* texts are not ended for repeating themselves */
    };
    prometheus_head(out, name, "counter", "Count of successfully processed requests.");
    for (int i = 0; i < N_OF(rows); i++)
        put_by(out, name, labels, "finished_reason", rows[i].reason, (double)rows[i].n);
}

void metrics_render_vllm(const struct metrics *m, const struct metrics_view *v, struct buf *out)
{
    if (!v->stats || !v->info || !v->model_name) return;
    struct buf labels = {0};
    put_labels(v, &labels);
    put_engine(v, labels.data, out);
    put_cache(v, out);
    put_adapters(v, out);
    put_success(m, labels.data, out);
    for (int i = 0; i < HISTOGRAMS; i++) {
        if (!metrics_hists[i].vllm) continue;
        prometheus_head(out, metrics_hists[i].vllm, "histogram", metrics_hists[i].help);
        prometheus_histogram(out, metrics_hists[i].vllm, labels.data, &m->hist[i], metrics_hists[i].bounds);
    }
    buf_free(&labels);
}
