#include "engine/serve/debug_state.h"

#include "engine/base/mem.h"
#include "engine/serve/request.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

const histogram_bounds engine_step_seconds_bounds = {.0005, .001, .002, .003, .005, .0075, .01, .015, .02, .03, .05,
                                                     .075,  .1,   .15,  .25,  .5,   1,     2.5, 5,    10,  30};
const histogram_bounds engine_step_tokens_bounds = {1,   2,   4,    8,    16,   32,   64,    128,
                                                    256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
const histogram_bounds engine_step_seqs_bounds = {1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024};

void debug_state_init(struct debug_state *l)
{
    *l = (struct debug_state){0};
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->answered, NULL);
}

void debug_state_close(struct debug_state *l)
{
    debug_state_stop(l);
    engine_trace_free(l->asked);
    dev_trace_close(l->ops);
    l->ops = NULL;
    pthread_cond_destroy(&l->answered);
    pthread_mutex_destroy(&l->lock);
}

/* ---- the last steps and the running sequences ------------------------------------------------------------------- */

void debug_state_begin(struct debug_state *l, const struct plan *p, struct engine_stats *now, uint64_t start)
{
    l->step = (struct step_record){.number = now->steps + 1,
                                   .started = start,
                                   .seqs = p->n,
                                   .tokens = p->n_tokens,
                                   .rows = p->n_rows,
                                   .preempted = p->n_preempted};
    l->prefill = 0;
    for (int i = 0; i < p->n; i++) {
        const struct plan_item *it = &p->v[i];
        const struct request *r = (const struct request *)it->seq;
        if (it->start < r->n_prompt) l->prefill += (uint64_t)it->n;
        if (r->n_generated && it->start >= r->seq.first_row) now->decode_tokens += (uint64_t)it->n;
    }
}

void debug_state_end(struct debug_state *l, struct engine_stats *now)
{
    struct step_record *s = &l->step;
    uint64_t end = clock_now();
    now->steps++;
    now->last_step_ns = s->ns = end - s->started;
    if (l->prefill) now->prefill_ns += s->ns;
    now->prefill_tokens += l->prefill;
    histogram_add(&now->step_seconds, engine_step_seconds_bounds, (double)s->ns * 1e-9);
    histogram_add(&now->step_tokens, engine_step_tokens_bounds, s->tokens);
    histogram_add(&now->step_seqs, engine_step_seqs_bounds, s->seqs);
    if (!l->trace) return;
    debug_state_note(l, &(struct trace_event){.name = "step",
                                              .start = s->started,
                                              .end = end,
                                              .what = TRACE_STEP,
                                              .seqs = s->seqs,
                                              .tokens = s->tokens,
                                              .rows = s->rows});
}

void debug_state_training(struct debug_state *l, uint64_t start, uint64_t ns)
{
    l->step.train_ns = ns;
    if (!ns || !l->trace) return;
    debug_state_note(
        l, &(struct trace_event){.name = "training", .start = start, .end = start + ns, .what = TRACE_TRAINING});
}

void debug_state_publish(struct debug_state *l, const struct sched *s, int pages_used)
{
    l->step.waiting = s->n_waiting;
    l->step.running = s->n_running;
    l->step.pages_used = pages_used;
    pthread_mutex_lock(&l->lock);
    l->steps[l->n_steps++ % ENGINE_STEPS_KEPT] = l->step;
    pthread_mutex_unlock(&l->lock);
}

int engine_last_steps(const struct engine *g, struct step_record out[ENGINE_STEPS_KEPT])
{
    struct debug_state *l = engine_debug_state(g);
    pthread_mutex_lock(&l->lock);
    int n = l->n_steps < ENGINE_STEPS_KEPT ? (int)l->n_steps : ENGINE_STEPS_KEPT;
    for (int i = 0; i < n; i++) out[i] = l->steps[(l->n_steps - (uint64_t)(n - i)) % ENGINE_STEPS_KEPT];
    pthread_mutex_unlock(&l->lock);
    return n;
}

void debug_state_seqs(struct debug_state *l, const struct seq *running)
{
    int n = 0;
    pthread_mutex_lock(&l->lock);
    for (const struct seq *q = running->next; q != running && n < ENGINE_SEQS_KEPT; q = q->next) {
        const struct request *r = (const struct request *)q;
        l->seqs[n++] = (struct seq_view){.id = r->id,
                                         .known = q->n_known,
                                         .computed = q->n_computed,
                                         .cached = q->n_cached,
                                         .pages = q->n_pages,
                                         .paused = q->paused,
                                         .blocked = q->blocked};
    }
    l->n_seqs = n;
    pthread_mutex_unlock(&l->lock);
}

int engine_running(const struct engine *g, struct seq_view out[ENGINE_SEQS_KEPT])
{
    struct debug_state *l = engine_debug_state(g);
    pthread_mutex_lock(&l->lock);
    int n = l->n_seqs;
    memcpy(out, l->seqs, (size_t)n * sizeof *out);
    pthread_mutex_unlock(&l->lock);
    return n;
}

/* ---- the trace -------------------------------------------------------------------------------------------------- */

void debug_state_note(struct debug_state *l, const struct trace_event *ev)
{
    struct engine_trace *t = l->trace;
    if (t->n < t->max)
        t->v[t->n++] = *ev;
    else
        t->lost++;
}

static void note_op(void *arg, int row, uint64_t start, uint64_t end)
{
    struct debug_state *l = arg;
    enum trace_track track = pthread_equal(pthread_self(), l->thread) ? TRACK_ENGINE : TRACK_TRAINER;
    debug_state_note(l, &(struct trace_event){
                            .name = trace_name(row), .start = start, .end = end, .what = TRACE_OP, .track = track});
}

static void note_exchange(void *arg, enum comm_op op, uint64_t sent, uint64_t start, uint64_t end)
{
    debug_state_note(arg, &(struct trace_event){.name = comm_op_name(op),
                                                .start = start,
                                                .end = end,
                                                .what = TRACE_EXCHANGE,
                                                .track = TRACK_ENGINE,
                                                .sent = sent});
}

/* The tracing table of ops is created once and only installed and removed: a thread that plans a job may be reading a
 * field of it (dev_host_memory) at the same time, so it must not be freed. */
static void trace_on(struct debug_state *l, struct dev *d, struct comm *ranks, struct engine_trace *t)
{
    l->thread = pthread_self();
    l->ranks = ranks;
    if (ranks) comm_on_op(ranks, note_exchange, l);
    l->trace = t;
    if (!l->ops)
        l->ops = dev_trace_open(d, NULL, 0);
    else
        dev_trace_switch(l->ops, true);
    if (l->ops) dev_trace_on_op(l->ops, note_op, l);
    t->start = clock_now();
}

static struct engine_trace *trace_off(struct debug_state *l)
{
    struct engine_trace *t = l->trace;
    if (!t) return NULL;
    if (l->ops) {
        dev_trace_on_op(l->ops, NULL, NULL);
        dev_trace_switch(l->ops, false);
    }
    if (l->ranks) comm_on_op(l->ranks, NULL, NULL);
    t->end = clock_now();
    l->trace = NULL;
    return t;
}

void debug_state_serve(struct debug_state *l, struct dev *d, struct comm *ranks)
{
    if (!atomic_load_explicit(&l->pending, memory_order_acquire)) return;
    pthread_mutex_lock(&l->lock);
    atomic_store(&l->pending, false);
    if (l->asked) trace_on(l, d, ranks, l->asked);
    l->asked = NULL;
    if (l->take) l->done = trace_off(l);
    l->take = false;
    pthread_cond_broadcast(&l->answered);
    pthread_mutex_unlock(&l->lock);
}

void debug_state_stop(struct debug_state *l)
{
    engine_trace_free(trace_off(l));
}

/* ---- for other threads ------------------------------------------------------------------------------------------ */

int engine_trace_start(struct engine *g, size_t max, struct err *e)
{
    struct debug_state *l = engine_debug_state(g);
    if (atomic_exchange(&l->traced, true)) return err_set(e, ERR_FULL, "a trace is being made already");
    struct engine_trace *t = mem_zalloc(sizeof *t);
    *t = (struct engine_trace){.max = max, .v = mem_array(max, sizeof *t->v)};
    pthread_mutex_lock(&l->lock);
    l->asked = t;
    atomic_store(&l->pending, true);
    pthread_mutex_unlock(&l->lock);
    engine_poke(g);
    return 0;
}

struct engine_trace *engine_trace_stop(struct engine *g)
{
    struct debug_state *l = engine_debug_state(g);
    pthread_mutex_lock(&l->lock);
    l->take = true;
    atomic_store(&l->pending, true);
    engine_poke(g);
    while (l->take) pthread_cond_wait(&l->answered, &l->lock);
    struct engine_trace *t = l->done;
    l->done = NULL;
    pthread_mutex_unlock(&l->lock);
    atomic_store(&l->traced, false);
    return t;
}

void engine_trace_free(struct engine_trace *t)
{
    if (!t) return;
    free(t->v);
    free(t);
}
