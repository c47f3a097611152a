/* The engine's statistics: written by the engine thread with each step, read by any. */
#include "engine/base/clock.h"
#include "engine/base/flight.h"
#include "engine/serve/engine_state.h"
#include "engine/serve/kv_tier.h"

void engine_publish(struct engine *g, const struct plan *p)
{
    int paused = 0;
    for (const struct seq *q = g->sched.running.next; q != &g->sched.running; q = q->next) paused += q->paused;
    g->now.waiting = g->sched.n_waiting;
    g->now.running = g->sched.n_running;
    g->now.paused = paused;
    g->now.pages_cached = kv_cached(g->pool);
    g->now.pages_used = kv_pages(g->pool) - kv_available(g->pool);
    if (g->s.model.d->ops->memory) {
        struct dev_memory m;
        g->s.model.d->ops->memory(g->s.model.d, &m);
        g->now.device_used = m.used;
    }
    const struct shard *shard = g->s.model.shard;
    for (int i = 0; i < COMM_OPS && shard; i++) g->now.ranks[i] = comm_profile(shard->comm, (enum comm_op)i);
    kv_tier_publish(g);
    if (p) g->now.preemptions += (uint64_t)p->n_preempted;
    flight_counts(g->now.waiting, g->now.running, paused);
    debug_state_seqs(&g->look, &g->sched.running);
    pthread_mutex_lock(&g->stats_lock);
    g->stats = g->now;
    pthread_mutex_unlock(&g->stats_lock);
}

const char *engine_comm_op(int op)
{
    return comm_op_name((enum comm_op)op);
}

void engine_stats_read(const struct engine *g, struct engine_stats *out)
{
    struct engine *w = (struct engine *)g; /* only the lock is written */
    pthread_mutex_lock(&w->stats_lock);
    *out = g->stats;
    pthread_mutex_unlock(&w->stats_lock);
    kv_tier_read(g, &out->kv_disk);
    out->adapters = adapters_count(&w->adapters, &out->adapter_bytes);
    uint64_t busy = engine_busy_since(g);
    out->step_started = busy > clock_now() ? 0 : busy;
    /* requests still in the inbox count as waiting */
    if (out->waiting < atomic_load(&g->queued)) out->waiting = atomic_load(&g->queued);
}

static void add_histogram(struct histogram *to, const struct histogram *from)
{
    for (int i = 0; i <= HISTOGRAM_BUCKETS; i++) to->counts[i] += from->counts[i];
    to->sum += from->sum;
}

static void retire_kv_disk(struct kv_disk_stats *to, const struct kv_disk_stats *from)
{
    to->on |= from->on;
    to->hits += from->hits;
    to->misses += from->misses;
    to->written += from->written;
    to->dropped += from->dropped;
    to->evicted += from->evicted;
    to->expired += from->expired;
    to->corrupt += from->corrupt;
    to->write_errors += from->write_errors;
    to->loads += from->loads;
    to->load_ns += from->load_ns;
}

void engine_stats_retire(struct engine_stats *to, const struct engine_stats *from)
{
    to->steps += from->steps;
    to->prompt_tokens += from->prompt_tokens;
    to->generated_tokens += from->generated_tokens;
    to->preemptions += from->preemptions;
    to->forced_tokens += from->forced_tokens;
    to->prefill_tokens += from->prefill_tokens;
    to->prefill_ns += from->prefill_ns;
    to->prefix_query_tokens += from->prefix_query_tokens;
    to->prefix_hit_tokens += from->prefix_hit_tokens;
    to->train_ns += from->train_ns;
    to->failed_steps += from->failed_steps;
    to->decode_tokens += from->decode_tokens;
    to->proposed_tokens += from->proposed_tokens;
    to->accepted_tokens += from->accepted_tokens;
    for (int i = 0; i < SPECULATE_SOURCES; i++) {
        to->proposed_by[i] += from->proposed_by[i];
        to->accepted_by[i] += from->accepted_by[i];
    }
    to->draft_steps += from->draft_steps;
    to->draft_ns += from->draft_ns;
    to->draft_prompt_tokens += from->draft_prompt_tokens;
    to->saved_steps += from->saved_steps;
    to->held_rows += from->held_rows;
    for (int i = 0; i < COMM_OPS; i++) {
        to->ranks[i].calls += from->ranks[i].calls;
        to->ranks[i].sent_bytes += from->ranks[i].sent_bytes;
        to->ranks[i].seconds += from->ranks[i].seconds;
    }
    retire_kv_disk(&to->kv_disk, &from->kv_disk);
    add_histogram(&to->step_seconds, &from->step_seconds);
    add_histogram(&to->step_tokens, &from->step_tokens);
    add_histogram(&to->step_seqs, &from->step_seqs);
}

void engine_stats_add(struct engine_stats *to, const struct engine_stats *from)
{
    engine_stats_retire(to, from);
    to->waiting += from->waiting;
    to->running += from->running;
    to->paused += from->paused;
    to->pages_total += from->pages_total;
    to->pages_used += from->pages_used;
    to->pages_cached += from->pages_cached;
    to->history_entries += from->history_entries;
    to->history_bytes += from->history_bytes;
    to->kv_disk.pages += from->kv_disk.pages;
    to->kv_disk.bytes += from->kv_disk.bytes;
    if (from->kv_disk.limit > to->kv_disk.limit) to->kv_disk.limit = from->kv_disk.limit; /* of the same directory */
    to->adapters += from->adapters;
    to->adapter_bytes += from->adapter_bytes;
    to->device_used += from->device_used;
    to->device_lost |= from->device_lost;
    /* of the step that has taken longest, and of the last one that took any time */
    if (from->step_started && (!to->step_started || from->step_started < to->step_started))
        to->step_started = from->step_started;
    if (from->last_step_ns) to->last_step_ns = from->last_step_ns;
}
