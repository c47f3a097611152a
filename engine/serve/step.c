/* One step on the engine thread: plan -> batch -> forward -> sample -> tokens and events of each request. */
#include "engine/base/clock.h"
#include "engine/base/flight.h"
#include "engine/base/mem.h"
#include "engine/serve/engine_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MASK_NS_MIN = 20 * 1000, MASK_SHARE = 32 }; /* masks on the engine thread: at most this, or a step's time / 32 */

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

/* Whether each sequence of the plan has one token, candidates not counted. */
static bool plan_decodes(const struct engine *g, const struct plan *p)
{
    return p->n_tokens - g->n_drafts == p->n;
}

/* Marks the rows that cannot be sampled because their mask is missing.  Waits for missing masks first, longer when no
 * other row of the step could be sampled (step_times.h). */
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
    if (missing) until = step_times_mask_wait(&g->times, plan_decodes(g, p), enqueues, start, clock_now(), others);
    for (int i = 0; i < p->n; i++) {
        struct request *r = request_of(&p->v[i]);
        r->seq.blocked = r->unsampled = false;
        if (!wants_mask(&p->v[i])) continue;
        enum mask_status status = masked_poll(r->masked, until);
        if (status == MASK_WAIT && (r->seq.blocked = masked_notify(r->masked))) {
            r->unsampled = true;
            continue;
        }
        status = masked_poll(r->masked, 0);
        if (status == MASK_READY) request_force(r);
        r->unsampled = wants_mask(&p->v[i]) && (status == MASK_FAILED || !masked_bits(r->masked));
    }
}

static void sample(struct engine *g, int row, int n)
{
    struct mat logits = g->s.model.logits;
    logits.p = (float *)logits.p + (size_t)row * (size_t)logits.ld;
    logits.rows = n;
    if (n) op_sample(g->s.model.d, (struct sample_args){logits, g->rows + row, g->outs + row});
}

/* Samples every row but those that wait for the candidate before them to be accepted (verify). */
static void sample_rows(struct engine *g, const struct plan *p)
{
    int from = 0, r = 0;
    for (int i = 0; i < p->n; i++) {
        const struct plan_item *it = &p->v[i];
        struct request *q = request_of(it);
        int ahead = request_samples_ahead(q) ? it->drafts : 0;
        for (int k = it->n - it->rows; k < it->n + ahead; k++) request_sample_row(q, it->start + k, &g->rows[r++]);
        if (ahead == it->drafts) continue;
        sample(g, from, r - from);
        from = r += it->drafts;
    }
    sample(g, from, r - from);
}

/* After a token was chosen: advances the request's mask, and takes forced tokens if it is ready. */
static void next_mask(struct engine *g, struct request *r, int32_t token)
{
    masked_token(r->masked, token, g->mask_until);
    if (masked_poll(r->masked, 0) == MASK_READY) request_force(r);
}

/* Ends a constrained request whose last row was not sampled although its mask is not awaited: the mask failed, or no
 * token may follow. */
static void end_unsampled(struct engine *g, struct request *r)
{
    if (masked_poll(r->masked, 0) == MASK_FAILED)
        engine_end_request(g, r, FINISH_ERROR, -1, masked_error(r->masked));
    else
        engine_end_request(g, r, FINISH_EOS, -1, NULL);
}

/* Turns the sampled row that follows the token at `pos` into events.  @return whether the request goes on. */
static bool deliver_row(struct engine *g, struct request *r, int pos, const struct sample_out *out, uint64_t now)
{
    int last = r->seq.n_known - 1;
    if (pos + 1 < r->n_prompt) {
        int columns = r->n_scored + r->n_drawn;
        const struct top_token *scores = columns ? g->scores + (pos - g->score_from) * columns : NULL;
        request_prompt_row(r, pos, out, scores, g->s.tokenizer, &g->events);
        return true;
    }
    if (pos == last && r->unsampled) {
        end_unsampled(g, r);
        return false;
    }
    if (out->id == SAMPLE_NONE && pos == last && r->masked && masked_accepts(r->masked)) {
        engine_end_request(g, r, FINISH_EOS, -1, NULL); /* complete: biases ban every token that may follow */
        return false;
    }
    if (out->id < 0) {
        engine_end_request(g, r, FINISH_ERROR, -1,
                           out->id == SAMPLE_NONE ? "logit_bias or the penalties leave no token to choose"
                                                  : "the model produced no finite logit");
        return false;
    }
    int stop_index;
    struct masked *masked = r->masked; /* with this token, that of its grammar may begin */
    enum finish_reason why = request_token(r, out, &g->s.info, g->s.tokenizer, &g->events, now, &stop_index);
    g->now.generated_tokens++;
    g->now.forced_tokens += pos < last;
    if (why == FINISH_NONE && r->ending) why = events_last(&g->events)->finish = r->ending;
    if (why != FINISH_NONE) {
        engine_end_request(g, r, why, stop_index, NULL);
        return false;
    }
    if (pos == last && masked) next_mask(g, r, out->id);
    return true;
}

/* Whether the row that follows the token at `pos` can be sampled now; otherwise the token is computed again in a later
 * step, as if there had been no candidates.  Takes forced tokens, since the mask may have become ready after the token
 * before was delivered, and applies behind them. */
static bool can_sample(const struct engine *g, struct request *r, int pos)
{
    int near_len = g->sched.c.near_len;
    bool last = pos + 1 == r->seq.n_known;
    if (r->masked && last) {
        if (masked_poll(r->masked, 0) != MASK_READY) return false;
        request_force(r);
        last = pos + 1 == r->seq.n_known;
    }
    if (near_len && r->seq.n_known > near_len && !sched_is_far(&r->seq)) return false; /* it begins anew */
    return !r->masked || !last || masked_bits(r->masked);
}

/* Samples the row of an accepted candidate that depends on the candidate.  @return false: the device failed, and the
 * request has ended. */
static bool sample_accepted(struct engine *g, struct request *r, int pos, int row)
{
    request_sample_row(r, pos, &g->rows[row]);
    sample(g, row, 1);
    if (g->s.model.d->ops->finish(g->s.model.d) == 0) return true;
    engine_end_request(g, r, FINISH_ERROR, -1, engine_take_failure(g));
    return false;
}

/* The rows of candidates, from row `row` of the step on: as long as each candidate is the token that was chosen in its
 * place, its row is that of the text, and is delivered. */
static void verify(struct engine *g, struct request *r, int drafts, int row, uint64_t now)
{
    const struct speculation *guess = &r->guess;
    enum speculate_source source = guess->source;
    int right = 0;
    bool ahead = request_samples_ahead(r), goes_on = true;
    for (; goes_on && right < drafts; right++) {
        int pos = r->seq.n_computed;
        if (ahead && (!request_samples_ahead(r) || pos + 1 < r->seq.n_known)) break; /* its thoughts have ended */
        if (r->tokens[pos] != guess->v[right] || !can_sample(g, r, pos)) break;
        if (!ahead && !sample_accepted(g, r, pos, row + right)) return;
        sched_accept(&g->sched, &r->seq);
        goes_on = deliver_row(g, r, pos, &g->outs[row + right], now);
    }
    g->now.decode_tokens += (uint64_t)right;
    engine_verified(g, goes_on ? r : NULL, source, drafts, right);
}

/* Scores and draws ids in the places of a prompt's tokens: the rows of the item, `row` and on of the step, are sampled
 * again for every column, ids that are given as if these were what follows (ops.h: forced), while the step's logits are
 * there.  @return false: the device failed, and the request has ended. */
static bool score_prompt(struct engine *g, struct request *r, const struct plan_item *it, int row)
{
    int from = it->start + it->n - it->rows, n = r->n_prompt - 1 - from, columns = r->n_scored + r->n_drawn;
    if (n > it->rows) n = it->rows;
    if (n <= 0) return true;
    g->score_from = from;
    /* all else of these rows was read when they were sampled, except the outs, which are kept */
    struct sample_out *outs = mem_array((size_t)n, sizeof *outs);
    memcpy(outs, g->outs + row, (size_t)n * sizeof *outs);
    bool good = true;
    for (int k = 0; k < columns && good; k++) {
        for (int i = 0; i < n; i++)
            g->scores[i * columns + k].id = request_score_row(r, from + i, k, &g->rows[row + i]);
        sample(g, row, n);
        good = g->s.model.d->ops->finish(g->s.model.d) == 0;
        for (int i = 0; i < n; i++) {
            struct top_token *score = &g->scores[i * columns + k];
            score->logprob = score->id == -1 ? NAN : g->outs[row + i].logprob;
            if (score->id == SCORED_DRAWN) score->id = g->outs[row + i].id;
        }
    }
    memcpy(g->outs + row, outs, (size_t)n * sizeof *outs);
    free(outs);
    if (!good) engine_end_request(g, r, FINISH_ERROR, -1, engine_take_failure(g));
    return good;
}

/* Delivers the rows of one sequence, `row` and on of the step: prompt log-probabilities, forced tokens, then the new
 * token, then those of candidates. */
static void deliver(struct engine *g, const struct plan_item *it, int row, uint64_t now)
{
    struct request *r = request_of(it);
    bool held = r->seq.blocked;
    if ((r->n_scored || r->n_drawn) && !score_prompt(g, r, it, row)) return;
    for (int k = it->n - it->rows; k < it->n; k++, row++)
        if (!deliver_row(g, r, it->start + k, &g->outs[row], now)) return;
    if (it->drafts && !held) verify(g, r, it->drafts, row, now);
}

/* Adds the hidden states of one sequence, from row `row` of the step, to its pooling. */
static void deliver_hidden(struct engine *g, const struct plan_item *it, int row)
{
    struct request *r = request_of(it);
    const struct engine_info *m = &g->s.info;
    int k = request_pools_last(&r->pooling) ? it->n - 1 : 0; /* the others only advance the position */
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
        g->seqs[i] = (struct step_batch_seq){s->tokens,
                                             s->pages,
                                             s->n_pages,
                                             it->start,
                                             it->n + it->drafts,
                                             it->rows + it->drafts,
                                             s->lora,
                                             sched_is_far(s) ? g->s.model.c.near_len : 0,
                                             request_of(it)->types};
    }
    step_batch_build(&g->batch, g->s.model.d, g->seqs, p->n);
}

void engine_run_step(struct engine *g, const struct plan *p)
{
    uint64_t start = clock_now(), mark = start;
    bool enqueues = !dev_host_memory(g->s.model.d); /* ops return before they have finished; finish waits for them */
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
        debug_state_phase(&g->look, "masks", &mark);
        sample_rows(g, p);
        debug_state_phase(&g->look, enqueues ? "enqueue sampling" : "sample", &mark);
    }
    if (g->s.model.d->ops->finish(g->s.model.d)) {
        engine_fail_step(g, p);
    } else {
        if (enqueues) debug_state_phase(&g->look, "wait", &mark);
        step_times_note(&g->times, plan_decodes(g, p), clock_now() - start);
        for (int i = 0; i < p->n; i++)
            if (p->v[i].seq->blocked) sched_defer(&g->sched, i), g->now.held_rows++;
        sched_took(&g->sched, clock_now() - start);
        sched_commit(&g->sched);
        struct accepted before;
        memcpy(before.by, g->now.accepted_by, sizeof before.by);
        uint64_t now = clock_now(), share = (now - start) / MASK_SHARE;
        g->mask_until = now + (share > MASK_NS_MIN ? share : MASK_NS_MIN);
        for (int i = 0, row = 0, out = 0; i < p->n; i++) {
            int held = p->v[i].seq->blocked, more = held + p->v[i].drafts;
            int n = p->v[i].n + more, rows = p->v[i].rows + more;
            struct request *r = request_of(&p->v[i]);
            if (r->pooling.n)
                deliver_hidden(g, &p->v[i], row);
            else if (held && r->ending && p->v[i].rows == 0) /* it gets no token in this step */
                engine_end_request(g, r, r->ending, -1, NULL);
            else
                deliver(g, &p->v[i], out, now);
            row += n;
            out += rows;
        }
        engine_note_speculation(g, p->n, start, &before);
    }
    debug_state_phase(&g->look, "deliver", &mark);
    debug_state_end(&g->look, &g->now);
    flight_end(clock_now());
}
