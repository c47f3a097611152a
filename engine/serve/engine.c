/* The engine thread: inbox -> schedule -> batch -> forward -> sample -> events, step after step; asleep when nothing
 * can run.  See engine.h for who may call what. */
#include "engine/serve/engine.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/crash.h"
#include "engine/base/flight.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/serve/engine_state.h"
#include "engine/serve/manual_step.h"
#include "engine/serve/warmup.h"
#include "kernels/rng.h"

#include <stdlib.h>
#include <string.h>

enum { IDLE_GIFT_NS = 500 * 1000 * 1000 };         /* then the statistics are published, and training goes on */
enum { MASK_NS_MIN = 20 * 1000, MASK_SHARE = 32 }; /* masks on the engine thread: at most this, or of a step's time */
enum { HIDDEN_ROWS = 16 };                         /* of hidden states, on their way from the device */
enum { MORE_ROWS = 48 }; /* of logits in a step: for prompt log-probabilities and what grammars force */

#ifdef TANDEM_DEBUG
enum { DEBUG = 1 };
#else
enum { DEBUG = 0 };
#endif

/* ---- opening and closing ---------------------------------------------------------------------------------------- */

void engine_post(struct engine *g, struct msg msg)
{
    struct msg *m = mem_alloc(sizeof *m);
    uint64_t idle = 0;
    *m = msg;
    /* Before the message is there: the turn that takes it ends this mark. */
    atomic_compare_exchange_strong(&g->busy_since, &idle, clock_now());
    mailbox_send(&g->inbox, &m->mail);
}

static void send_msg(struct engine *g, enum msg_kind kind, uint64_t id, struct request *r)
{
    engine_post(g, (struct msg){.kind = kind, .id = id, .request = r});
}

/* The trainer wants the device: by its thread. */
static void wake_engine(void *arg)
{
    send_msg(arg, MSG_WAKE, 0, NULL);
}

/* A request that was held back has its mask: by the masker's thread. */
static void mask_ready(void *arg, uint64_t id)
{
    send_msg(arg, MSG_MASK, id, NULL);
}

struct engine *engine_open(const struct engine_config *c, struct err *e)
{
    struct engine *g = mem_zalloc(sizeof *g);
    if (setup_open(&g->s, c, MORE_ROWS, e)) {
        free(g);
        return NULL;
    }
    const struct engine_info *m = &g->s.info;
    if (warmup_device(&g->batch, &g->s, e)) {
        setup_close(&g->s);
        free(g);
        return NULL;
    }
    if (g->s.model.d->ops->memory) {
        struct dev_memory taken;
        g->s.model.d->ops->memory(g->s.model.d, &taken);
        g->s.info.device_budget = taken.budget; /* all that could be had */
        g->s.info.device_base = g->stats.device_used = taken.used;
        g->s.info.workspace_bytes = taken.used - m->weight_bytes - m->kv_bytes; /* all that is neither */
    }
    mailbox_init(&g->inbox);
    events_init(&g->events);
    pthread_mutex_init(&g->stats_lock, NULL);
    debug_state_init(&g->look);
    pthread_mutex_init(&g->load_lock, NULL);
    pthread_cond_init(&g->load_done, NULL);
    adapters_init(&g->adapters, m->max_adapters, m->max_lora_rank);
    g->pool = kv_pool_new(m->pages, rng_mix(clock_unix()));
    const struct sched_config limits = {
        .max_seqs = m->max_seqs,
        .max_batch_tokens = m->max_batch_tokens,
        .max_rows = g->s.max_rows,
        .prefix_cache = !c->no_prefix_cache,
        .max_prefill_tokens = m->max_prefill_tokens,
    };
    sched_init(&g->sched, &limits, g->pool);
    g->rows = mem_array((size_t)g->s.max_rows, sizeof *g->rows);
    g->outs = mem_array((size_t)g->s.max_rows, sizeof *g->outs);
    g->seqs = mem_array((size_t)m->max_seqs, sizeof *g->seqs);
    g->hidden = mem_array((size_t)m->hidden * HIDDEN_ROWS, sizeof *g->hidden);
    for (g->id_mask = 63; g->id_mask < (uint32_t)(m->max_seqs + m->max_queue); g->id_mask = g->id_mask * 2 + 1) {
    }
    g->by_id = mem_array((size_t)g->id_mask + 1, sizeof *g->by_id);
    g->stats.pages_total = g->now.pages_total = m->pages;
    g->share = (struct train_quantum){.budget_ns = 1e9 * (c->train_itl_budget > 0 ? c->train_itl_budget : 0.05),
                                      .slowdown = c->train_slowdown >= 1 ? c->train_slowdown : 1.2};
    g->gate = scheduler_gate_new(g->s.model.d, wake_engine, g);
    if (c->watch_device || DEBUG) g->watch = device_owner_new(g->s.model.d, g->gate);
    trainer_init(&g->training, &g->s, g->gate);
    g->masker = masker_new(g->s.tokenizer, m->vocab, m->eos, m->n_eos, mask_ready, g);
    return g;
}

const struct engine_info *engine_info(const struct engine *g)
{
    return &g->s.info;
}

const struct tokenizer *engine_tokenizer(const struct engine *g)
{
    return g->s.tokenizer;
}

/* ---- the other thread's calls ------------------------------------------------------------------------------------ */

bool engine_has_room(const struct engine *g)
{
    return atomic_load(&g->queued) < g->s.info.max_queue;
}

uint64_t engine_submit(struct engine *g, const struct gen_request *spec, struct err *e)
{
    if (!engine_has_room(g)) {
        err_set(e, ERR_FULL, "Model is overloaded");
        return 0;
    }
    struct adapter_version *adapter = spec->adapter ? adapters_hold(&g->adapters, spec->adapter, e) : NULL;
    if (spec->adapter && !adapter) return 0;
    struct request *r = request_new(spec, &g->s.info, e);
    uint64_t id = g->last_id + 1;
    if (r && spec->grammar && !(r->masked = masked_new(g->masker, spec->grammar, id, e))) {
        request_free(r);
        r = NULL;
    }
    if (!r) {
        if (adapters_release(&g->adapters, adapter)) send_msg(g, MSG_SWEEP, 0, NULL);
        return 0;
    }
    if (adapter) {
        r->adapter = adapter;
        r->seq.lora = &adapter->lora;
        r->seq.root = adapter_root(adapter);
    }
    r->id = g->last_id = id;
    r->seq.arrival = r->id;
    r->times.submitted = clock_now();
    atomic_fetch_add(&g->queued, 1);
    send_msg(g, MSG_SUBMIT, id, r);
    return id;
}

void engine_cancel(struct engine *g, uint64_t id)
{
    send_msg(g, MSG_CANCEL, id, NULL);
}

void engine_expire(struct engine *g, uint64_t id)
{
    send_msg(g, MSG_EXPIRE, id, NULL);
}

void engine_pause(struct engine *g, uint64_t id)
{
    send_msg(g, MSG_PAUSE, id, NULL);
}

void engine_resume(struct engine *g, uint64_t id)
{
    send_msg(g, MSG_RESUME, id, NULL);
}

int engine_train_start(struct engine *g, const struct train_job *job, train_event_fn *fn, void *arg, struct err *e)
{
    return trainer_start(&g->training, job, fn, arg, e);
}

int engine_train_plan(struct engine *g, const struct train_job *job, struct train_plan *plan, struct err *e)
{
    if (engine_lost(g)) return err_set(e, ERR_FULL, "the device was lost");
    return train_plan_job(job, &g->s.model, g->gate, plan, e);
}

void engine_train_command(struct engine *g, enum train_command c)
{
    trainer_command(&g->training, c);
}

struct event_batch *engine_events(struct engine *g)
{
    return events_take(&g->events);
}

void engine_events_done(struct engine *g, struct event_batch *b)
{
    events_give(&g->events, b);
}

uint64_t engine_busy_since(const struct engine *g)
{
    return atomic_load(&g->busy_since);
}

void engine_stats_read(const struct engine *g, struct engine_stats *out)
{
    struct engine *w = (struct engine *)g; /* the lock is the only thing written */
    pthread_mutex_lock(&w->stats_lock);
    *out = g->stats;
    pthread_mutex_unlock(&w->stats_lock);
    out->adapters = adapters_count(&w->adapters, &out->adapter_bytes);
    uint64_t busy = engine_busy_since(g);
    out->step_started = busy > clock_now() ? 0 : busy;
    /* requests still in the inbox wait, too */
    if (out->waiting < atomic_load(&g->queued)) out->waiting = atomic_load(&g->queued);
}

struct debug_state *engine_debug_state(const struct engine *g)
{
    return (struct debug_state *)&g->look; /* its lock is written by those who read */
}

void engine_poke(struct engine *g)
{
    wake_engine(g);
}

/* ---- the engine thread: requests ----------------------------------------------------------------------------------
 */

static struct request **find_link(struct engine *g, uint64_t id)
{
    struct request **link = &g->by_id[id & g->id_mask];
    while (*link && (*link)->id != id) link = &(*link)->next;
    return link;
}

static void drop_request(struct engine *g, struct request *r)
{
    if (r && adapters_release(&g->adapters, r->adapter)) engine_adapters_sweep(g);
    request_free(r);
}

void engine_end_request(struct engine *g, struct request *r, enum finish_reason why, int stop_index, const char *error)
{
    if (!r->times.scheduled)
        atomic_fetch_sub(&g->queued, 1);
    else if (r->adapter)
        adapters_run(&g->adapters, r->adapter, -1);
    sched_remove(&g->sched, &r->seq);
    struct request **link = find_link(g, r->id);
    CHECK(*link == r);
    *link = r->next;
    request_done(r, why, stop_index, error, &g->events, clock_now());
    drop_request(g, r);
}

/* Its next step brings its next token. */
static bool decodes(const struct request *r)
{
    const struct seq *q = &r->seq;
    bool next = q->n_computed < q->n_known && q->n_computed >= q->first_row;
    return r->n_generated && q->state == SEQ_RUNNING && next && !q->paused && !q->blocked;
}

static void handle_request(struct engine *g, struct request *r, enum msg_kind kind)
{
    switch (kind) {
    case MSG_CANCEL: engine_end_request(g, r, FINISH_CANCELLED, -1, NULL); return;
    case MSG_MASK: r->seq.blocked = false; return;
    case MSG_EXPIRE: r->expired = true; break;
    default: r->seq.paused = kind == MSG_PAUSE;
    }
    if (r->expired && !decodes(r)) engine_end_request(g, r, FINISH_TIMEOUT, -1, NULL);
}

void engine_end_preempted(struct engine *g)
{
    for (struct seq *q = g->sched.waiting.next, *next; q != &g->sched.waiting; q = next) {
        next = q->next;
        if (((struct request *)q)->expired) engine_end_request(g, (struct request *)q, FINISH_TIMEOUT, -1, NULL);
    }
}

/* False: stop. */
static bool handle(struct engine *g, const struct msg *m)
{
    if (m->kind == MSG_STOP) return false;
    if (m->kind == MSG_WAKE) return true;
    if (m->kind == MSG_ADAPTER) {
        engine_adapter_publish(g, m->load);
        engine_adapter_answer(g, m->load);
        return true;
    }
    if (m->kind == MSG_SWEEP) {
        engine_adapters_sweep(g);
        return true;
    }
    if (m->kind == MSG_SUBMIT) {
        struct request *r = m->request;
        r->next = g->by_id[r->id & g->id_mask];
        g->by_id[r->id & g->id_mask] = r;
        sched_add(&g->sched, &r->seq);
        return true;
    }
    struct request *r = *find_link(g, m->id);
    if (r) handle_request(g, r, m->kind); /* else it ended meanwhile */
    return true;
}

static bool take_inbox(struct engine *g, bool wait)
{
    bool go_on = true;
    struct mail *next, *m = mailbox_take(&g->inbox, wait);
    atomic_store(&g->busy_since, clock_now());
    for (; m; m = next) {
        next = m->next;
        go_on &= handle(g, (struct msg *)m);
        free(m);
    }
    return go_on;
}

/* ---- the engine thread: a step -------------------------------------------------------------------------------------
 */

static struct request *request_of(const struct plan_item *it)
{
    return (struct request *)it->seq;
}

static void mark_scheduled(struct engine *g, const struct plan *p, uint64_t now)
{
    for (int i = 0; i < p->n; i++) {
        struct request *r = request_of(&p->v[i]);
        if (r->times.scheduled) continue;
        r->times.scheduled = now;
        if (r->adapter) adapters_run(&g->adapters, r->adapter, 1);
        if (r->masked) masked_begin(r->masked, request_may_force(r));
        atomic_fetch_sub(&g->queued, 1);
        g->now.prefix_query_tokens += (uint64_t)r->n_prompt;
        g->now.prefix_hit_tokens += (uint64_t)r->seq.n_cached;
        g->now.prompt_tokens += (uint64_t)r->n_prompt;
    }
}

static bool wants_mask(const struct plan_item *it)
{
    return request_of(it)->masked && it->rows && it->start + it->n == it->seq->n_known;
}

/* Every sequence has one token. */
static bool plan_decodes(const struct plan *p)
{
    return p->n_tokens == p->n;
}

/* Which rows cannot be sampled: their masks are not there.  Waits for these a little while, a longer one when nobody
 * else is in the step. */
static void await_masks(const struct engine *g, const struct plan *p, uint64_t start)
{
    bool others = false, missing = false;
    for (int i = 0; i < p->n; i++) {
        bool waits = wants_mask(&p->v[i]) && masked_poll(request_of(&p->v[i])->masked, 0) == MASK_WAIT;
        missing |= waits;
        others |= !waits;
    }
    bool enqueues = !dev_host_memory(g->s.model.d);
    uint64_t until = 0;
    if (missing) until = step_times_mask_wait(&g->times, plan_decodes(p), enqueues, start, clock_now(), others);
    for (int i = 0; i < p->n; i++) {
        struct request *r = request_of(&p->v[i]);
        r->seq.blocked = r->unsampled = false;
        if (!wants_mask(&p->v[i])) continue;
        enum mask_status status = masked_poll(r->masked, until);
        if (status == MASK_WAIT && (r->seq.blocked = masked_hold(r->masked))) {
            r->unsampled = true;
            continue;
        }
        status = masked_poll(r->masked, 0);
        if (status == MASK_READY) request_force(r);
        r->unsampled = wants_mask(&p->v[i]) && (status == MASK_FAILED || !masked_bits(r->masked));
    }
}

static void fill_rows(struct engine *g, const struct plan *p)
{
    int r = 0;
    for (int i = 0; i < p->n; i++) {
        const struct plan_item *it = &p->v[i];
        for (int k = it->n - it->rows; k < it->n; k++) request_sample_row(request_of(it), it->start + k, &g->rows[r++]);
    }
}

/* A token was chosen: works on the mask of what follows, which may force tokens at once. */
static void next_mask(struct engine *g, struct request *r, int32_t token)
{
    masked_token(r->masked, token, g->mask_until);
    if (masked_poll(r->masked, 0) == MASK_READY) request_force(r);
}

/* The last row of a constrained request was not sampled, though its mask is there: the request ends. */
static void end_unsampled(struct engine *g, struct request *r)
{
    if (masked_poll(r->masked, 0) == MASK_FAILED)
        engine_end_request(g, r, FINISH_ERROR, -1, masked_why(r->masked));
    else
        engine_end_request(g, r, FINISH_EOS, -1, NULL);
}

/* What the rows of one sequence say: prompt log-probabilities, tokens that were forced, then perhaps a new one. */
static void deliver(struct engine *g, const struct plan_item *it, const struct sample_out *out, uint64_t now)
{
    struct request *r = request_of(it);
    int last = r->seq.n_known - 1;
    for (int k = it->n - it->rows; k < it->n; k++, out++) {
        int pos = it->start + k;
        if (pos + 1 < r->n_prompt) {
            request_prompt_row(r, pos, out, g->s.tokenizer, &g->events);
            continue;
        }
        if (pos == last && r->unsampled) {
            end_unsampled(g, r);
            return;
        }
        if (out->id == SAMPLE_NONE && pos == last && r->masked && masked_accepts(r->masked)) {
            engine_end_request(g, r, FINISH_EOS, -1, NULL); /* the text is whole, and biases ban all that may follow */
            return;
        }
        if (out->id < 0) {
            engine_end_request(g, r, FINISH_ERROR, -1,
                               out->id == SAMPLE_NONE ? "logit_bias or the penalties leave no token to choose"
                                                      : "the model produced no finite logit");
            return;
        }
        int stop_index;
        enum finish_reason why = request_token(r, out, &g->s.info, g->s.tokenizer, &g->events, now, &stop_index);
        g->now.generated_tokens++;
        g->now.forced_tokens += pos < last;
        if (why == FINISH_NONE && r->expired) why = events_last(&g->events)->finish = FINISH_TIMEOUT;
        if (why != FINISH_NONE) {
            engine_end_request(g, r, why, stop_index, NULL);
            return;
        }
        if (pos == last && r->masked) next_mask(g, r, out->id);
    }
}

/* The hidden states of one sequence, from row `row` of the step, to its pooling. */
static void deliver_hidden(struct engine *g, const struct plan_item *it, int row)
{
    struct request *r = request_of(it);
    const struct engine_info *m = &g->s.info;
    int k = r->pooling == POOLING_LAST ? it->n - 1 : 0; /* of the others only the position counts */
    for (int n; k < it->n; k += n) {
        n = it->n - k < HIDDEN_ROWS ? it->n - k : HIDDEN_ROWS;
        if (model_hidden(&g->s.model, row + k, n, g->hidden)) {
            engine_end_request(g, r, FINISH_ERROR, -1, engine_take_failure(g));
            return;
        }
        enum finish_reason why = request_hidden(r, it->start + k, n, g->hidden, m, &g->events);
        if (why == FINISH_NONE) continue;
        engine_end_request(g, r, why, -1, why == FINISH_ERROR ? "the model produced no finite hidden state" : NULL);
        return;
    }
}

static void build(struct engine *g, const struct plan *p)
{
    for (int i = 0; i < p->n; i++) {
        const struct plan_item *it = &p->v[i];
        const struct seq *s = it->seq;
        g->seqs[i] = (struct batch_seq){s->tokens, s->pages, s->n_pages, it->start, it->n, it->rows, s->lora};
    }
    step_batch_build(&g->batch, g->s.model.d, g->seqs, p->n);
}

static void run_step(struct engine *g, const struct plan *p)
{
    uint64_t start = clock_now(), mark = start;
    bool enqueues = !dev_host_memory(g->s.model.d); /* ops return before they are done: finish waits for them */
    flight_begin(start, p->n, p->n_tokens, p->n_rows, p->n_preempted);
    for (int i = 0; i < p->n; i++) flight_request(i, request_of(&p->v[i])->id, p->v[i].start, p->v[i].n);
    debug_state_begin(&g->look, p, &g->now, start);
    mark_scheduled(g, p, start);
    build(g, p);
    debug_state_phase(&g->look, "build", &mark);
    model_forward(&g->s.model, &g->batch);
    debug_state_phase(&g->look, enqueues ? "enqueue" : "forward", &mark);
    if (p->n_rows) {
        await_masks(g, p, start);
        fill_rows(g, p);
        debug_state_phase(&g->look, "masks", &mark);
        struct mat logits = g->s.model.logits;
        logits.rows = p->n_rows;
        op_sample(g->s.model.d, (struct sample_args){logits, g->rows, g->outs});
        debug_state_phase(&g->look, enqueues ? "enqueue sampling" : "sample", &mark);
    }
    if (g->s.model.d->ops->finish(g->s.model.d)) {
        engine_fail_step(g, p);
    } else {
        if (enqueues) debug_state_phase(&g->look, "wait", &mark);
        step_times_note(&g->times, plan_decodes(p), clock_now() - start);
        for (int i = 0; i < p->n; i++)
            if (p->v[i].seq->blocked) sched_hold(&g->sched, i), g->now.held_rows++;
        sched_took(&g->sched, clock_now() - start);
        sched_commit(&g->sched);
        const struct sample_out *out = g->outs;
        uint64_t now = clock_now(), share = (now - start) / MASK_SHARE;
        g->mask_until = now + (share > MASK_NS_MIN ? share : MASK_NS_MIN);
        for (int i = 0, row = 0; i < p->n; i++) {
            int held = p->v[i].seq->blocked, n = p->v[i].n + held, rows = p->v[i].rows + held;
            struct request *r = request_of(&p->v[i]);
            if (r->pooling)
                deliver_hidden(g, &p->v[i], row);
            else if (held && r->expired && rows == 1) /* no token of it comes of this step */
                engine_end_request(g, r, FINISH_TIMEOUT, -1, NULL);
            else
                deliver(g, &p->v[i], out, now);
            row += n;
            out += rows;
        }
    }
    debug_state_phase(&g->look, "deliver", &mark);
    debug_state_end(&g->look, &g->now);
    flight_end(clock_now());
}

static void publish(struct engine *g, const struct plan *p)
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
    if (p) g->now.preemptions += (uint64_t)p->n_preempted;
    flight_counts(g->now.waiting, g->now.running, paused);
    debug_state_seqs(&g->look, &g->sched.running);
    pthread_mutex_lock(&g->stats_lock);
    g->stats = g->now;
    pthread_mutex_unlock(&g->stats_lock);
}

static bool mail_waits(void *arg)
{
    return mailbox_waiting(&((struct engine *)arg)->inbox);
}

/* Training has its turn: what a step leaves of the budget, or, when nothing can be computed for anybody, the time until
 * the next message. */
static void give_to_training(struct engine *g, const struct plan *p)
{
    if (!scheduler_gate_wanted(g->gate)) return;
    uint64_t used = 0, start = clock_now();
    if (!p->n) {
        atomic_store(&g->busy_since, clock_now() + IDLE_GIFT_NS); /* when it is to be back */
        used = scheduler_gate_give(g->gate, IDLE_GIFT_NS, mail_waits, g);
    } else {
        uint64_t ns = train_quantum_allow(&g->share, g->now.last_step_ns);
        if (ns) used = scheduler_gate_give(g->gate, ns, NULL, NULL);
        train_quantum_used(&g->share, used);
    }
    g->now.train_ns += used;
    debug_state_training(&g->look, start, used);
}

int engine_step_once(struct engine *g, bool wait)
{
    if (!take_inbox(g, wait && !scheduler_gate_wanted(g->gate))) return -1;
    debug_state_serve(&g->look, g->s.model.d);
    if (engine_lost(g)) engine_end_all(g);
    const struct plan *p = sched_step(&g->sched);
    if (p->n_preempted) engine_end_preempted(g);
    int n = p->n, tokens = p->n_tokens; /* requests that end take the plan with them */
    if (n) run_step(g, p);
    publish(g, p); /* before the events: who has seen a request end sees its pages free */
    events_post(&g->events);
    if (!engine_lost(g)) give_to_training(g, p);
    if (engine_check_device(g)) { /* the next turn may be far: no request may have anything to compute */
        publish(g, NULL);
        events_post(&g->events);
    }
    if (n) debug_state_keep(&g->look, &g->sched, g->now.pages_used);
    atomic_store(&g->busy_since, 0);
    return tokens;
}

struct setup *engine_setup(struct engine *g)
{
    return &g->s;
}

static void *engine_main(void *arg)
{
    struct engine *g = arg;
    struct err e = {0};
    int n = 0;
    crash_thread_begin();
    if (setup_pin(&g->s, &e)) log_write(LOG_WARN, "%s", e.msg);
    while ((n = engine_step_once(g, n == 0)) >= 0) {
    }
    crash_thread_end();
    return NULL;
}

int engine_start(struct engine *g, void (*notify)(void *), void *arg, struct err *e)
{
    g->events.notify = notify;
    g->events.arg = arg;
    int rc = pthread_create(&g->thread, NULL, engine_main, g);
    if (rc) return err_set(e, ERR_IO, "cannot start the engine thread: %s", strerror(rc));
    pthread_setname_np(g->thread, "tandem-engine");
    g->started = true;
    return 0;
}

void engine_close(struct engine *g)
{
    if (!g) return;
    if (g->started) {
        send_msg(g, MSG_STOP, 0, NULL);
        pthread_join(g->thread, NULL);
    }
    debug_state_stop(&g->look); /* before the trainer runs free */
    trainer_close(&g->training);
    masker_stop(g->masker);
    pthread_mutex_lock(&g->load_lock);
    g->closing = true;
    pthread_mutex_unlock(&g->load_lock);
    struct mail *next;
    for (struct mail *m = mailbox_take(&g->inbox, false); m; m = next) {
        next = m->next;
        struct msg *left = (struct msg *)m;
        drop_request(g, left->request);
        if (left->kind == MSG_ADAPTER) {
            err_set(&left->load->e, ERR_FULL, "the engine is closing");
            engine_adapter_answer(g, left->load);
        }
        free(m);
    }
    pthread_mutex_lock(&g->load_lock);
    while (g->n_loading) pthread_cond_wait(&g->load_done, &g->load_lock);
    pthread_mutex_unlock(&g->load_lock);
    for (uint32_t i = 0; i <= g->id_mask; i++)
        while (g->by_id[i]) {
            struct request *r = g->by_id[i];
            g->by_id[i] = r->next;
            sched_remove(&g->sched, &r->seq);
            drop_request(g, r);
        }
    masker_free(g->masker);
    debug_state_close(&g->look);
    device_owner_free(g->watch);
    scheduler_gate_free(g->gate);
    sched_free(&g->sched);
    kv_pool_free(g->pool);
    step_batch_close(&g->batch, g->s.model.d);
    adapters_close(&g->adapters, g->s.model.d);
    setup_close(&g->s);
    events_free(&g->events);
    mailbox_destroy(&g->inbox);
    pthread_mutex_destroy(&g->stats_lock);
    pthread_mutex_destroy(&g->load_lock);
    pthread_cond_destroy(&g->load_done);
    free(g->by_id);
    free(g->rows);
    free(g->outs);
    free(g->hidden);
    free(g->seqs);
    free(g);
}
