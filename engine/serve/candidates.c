/* The candidates of a step: where they come from, and what becomes of them. */
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/serve/engine_state.h"
#include "engine/serve/kv_tier.h"

enum {
    LONG_AGREEMENT = 6, /* tokens before a candidate: fewer, and a draft is asked instead */
    PROBE_SHIFT = 5,    /* a draft that is not worth its time is tried after at most 2^5 - 1 steps */
};

static struct request *request_of(const struct plan_item *it)
{
    return (struct request *)it->seq;
}

/* ---- texts: the request's own, and earlier ones of its prompt ---- */

static uint64_t key_of(struct engine *g, struct request *r)
{
    struct speculation *s = &r->guess;
    if (!s->key) s->key = history_key(g->history, r->seq.root & ~SEQ_FAR, r->seq.salt, r->tokens, r->n_prompt);
    return s->key;
}

void engine_remember(struct engine *g, const struct request *r, enum finish_reason why)
{
    if (!g->history || why == FINISH_ERROR || r->pooling.n || !r->n_generated) return;
    struct request *q = (struct request *)r; /* only its key is set */
    history_add(g->history, key_of(g, q), r->tokens, r->n_prompt, r->seq.n_known);
    g->now.history_entries = history_entries(g->history);
    g->now.history_bytes = history_bytes(g->history);
}

static bool index_text(struct request *r)
{
    struct speculation *s = &r->guess;
    if (!s->index.head && !s->closed) s->closed = !ngrams_open(&s->index, r->n_prompt + r->max_new);
    return !s->closed && ngrams_add(&s->index, r->tokens, r->seq.n_known);
}

/* Finds at most `most` tokens that may follow, of the text that agrees furthest back.  @return how far; 0: none. */
static int ask_texts(struct engine *g, struct request *r, int most)
{
    struct speculation *s = &r->guess;
    int32_t earlier[SPECULATE_MAX];
    int n = r->seq.n_known, agreed = 0, with = 0, found = 0;
    if (g->history && !s->looked) {
        s->looked = true;
        s->history = history_find(g->history, key_of(g, r));
    }
    s->n = 0;
    if (index_text(r)) {
        s->n = ngrams_propose(&s->index, r->tokens, n, guess_wants(&s->pace[SPECULATE_NGRAM], most), s->v, &agreed);
        s->source = SPECULATE_NGRAM;
    }
    if (s->history) {
        int want = guess_wants(&s->pace[SPECULATE_HISTORY], most);
        found = history_propose(s->history, r->tokens, n, want, earlier, &with);
    }
    if (!found || (s->n && with < agreed)) return s->n ? agreed : 0;
    for (int i = 0; i < found; i++) s->v[i] = earlier[i];
    s->n = found;
    s->source = SPECULATE_HISTORY;
    return with;
}

/* ---- the draft ---- */

/* @return false: the device failed, and the draft is used no more. */
static bool draft_ended(struct engine *g, int rc)
{
    if (rc >= 0) return false;
    struct dev *d = g->s.model.d;
    log_error("the draft model is not used any more op=%s error=\"%s\"", d->error.op ? d->error.op : "?", d->error.msg);
    if (!d->ops->lost || !d->ops->lost(d)) dev_clear_error(d);
    kv_tier_failed(g);
    g->now.failed_steps++;
    return g->no_draft = true;
}

/* How many candidates the draft is asked for. */
static int draft_wants(struct engine *g, struct request *r, int n_seqs, int most)
{
    struct guess_pace *pace = &r->guess.pace[SPECULATE_DRAFT];
    if (most <= 0) return 0;
    if (pace->skip) {
        pace->skip--;
        return 0;
    }
    int n = speculate_worth(&g->pace, g->speculate, &r->guess, n_seqs, most);
    if (n) {
        pace->fails = 0;
        return n;
    }
    pace->fails += pace->fails < PROBE_SHIFT;
    pace->skip = (1 << pace->fails) - 1;
    return 1;
}

/* The draft reads what it lacks of a text, some of it in each step, if the rest of the text is worth that time.
 * @return whether it can continue the text now. */
static bool draft_reads(struct engine *g, struct request *r, int n_seqs, int lag)
{
    int rest = r->n_prompt + r->max_new - r->seq.n_known;
    if (lag < 0) return false;
    if (lag <= DRAFT_CATCH) return true;
    if (!speculate_invests(&g->pace, g->speculate, n_seqs, lag, rest)) return false;
    uint64_t start = clock_now();
    int n = draft_read(g->s.draft, r, DRAFT_BATCH);
    uint64_t ns = clock_now() - start;
    if (draft_ended(g, n)) return false;
    speculate_invested(&g->pace, n, (double)ns);
    g->now.draft_ns += ns;
    g->now.draft_prompt_tokens += (uint64_t)n;
    return false;
}

static void ask_draft(struct engine *g, struct draft_ask *v, int n, int n_seqs)
{
    uint64_t start = clock_now();
    int steps = n ? draft_propose(g->s.draft, v, n) : 0;
    uint64_t ns = clock_now() - start;
    if (!n || draft_ended(g, steps)) return;
    for (int i = 0; i < n; i++) {
        struct request *r = v[i].r;
        if (!v[i].got) continue;
        r->guess.source = SPECULATE_DRAFT;
        r->guess.n = v[i].got;
        for (int k = 0; k < v[i].got; k++) r->guess.v[k] = r->tokens[r->seq.n_known + k];
    }
    speculate_drafted(&g->pace, n_seqs, steps, (double)ns);
    g->draft_step_ns = ns;
    g->now.draft_ns += ns;
    g->now.draft_steps += (uint64_t)steps;
}

/* ---- a step ---- */

/* Whether each sequence of the plan has one token to compute, and generates. */
static bool all_decode(const struct plan *p)
{
    bool decodes = p->n && p->n_tokens == p->n;
    for (int i = 0; i < p->n && decodes; i++) {
        const struct plan_item *it = &p->v[i];
        decodes = it->seq->generates && it->rows && it->start + it->n == it->seq->n_known;
    }
    return decodes;
}

/* Fills guess.n and guess.v of each request, at most `each`. */
static void propose(struct engine *g, const struct plan *p, int each)
{
    bool host = dev_host_memory(g->s.model.d);
    bool texts = speculate_pays(&g->pace, g->speculate, host, p->n, false);
    bool draft = !g->no_draft && speculate_pays(&g->pace, g->speculate, host, p->n, true);
    struct draft_ask ask[SPECULATE_SEQS];
    int n = 0;
    if (draft) draft_step(g->s.draft);
    for (int i = 0; i < p->n; i++) {
        struct request *r = request_of(&p->v[i]);
        int room = r->n_prompt + r->max_new - r->seq.n_known - 1; /* after the last token no row is needed */
        int most = room < each ? room : each, agreed = 0;
        r->guess.n = 0;
        if (texts) agreed = ask_texts(g, r, most);
        if (!draft || g->no_draft || agreed >= LONG_AGREEMENT) continue;
        int want = draft_reads(g, r, p->n, draft_lags(g->s.draft, r)) ? draft_wants(g, r, p->n, most) : 0;
        if (!want) continue;
        draft_keep(g->s.draft, r);
        ask[n++] = (struct draft_ask){r, want, 0};
    }
    if (!g->no_draft) ask_draft(g, ask, n, p->n);
}

void engine_speculate(struct engine *g, const struct plan *p)
{
    g->n_drafts = 0;
    g->draft_step_ns = 0;
    g->n_proposed[0] = g->n_proposed[1] = 0;
    g->decodes = all_decode(p);
    if (!g->decodes) return;
    int rows = speculate_rows(g->speculate, dev_host_memory(g->s.model.d), p->n), each = (rows - p->n) / p->n;
    if (!each) return;
    propose(g, p, each < SPECULATE_MAX ? each : SPECULATE_MAX);
    for (int i = 0; i < p->n; i++) {
        struct request *r = request_of(&p->v[i]);
        int n = sched_speculate(&g->sched, i, r->guess.n);
        for (int k = 0; k < n; k++) r->tokens[r->seq.n_known + k] = r->guess.v[k];
        g->n_drafts += n;
        g->n_proposed[r->guess.source == SPECULATE_DRAFT] += n;
        g->now.proposed_by[r->guess.source] += (uint64_t)n;
    }
    g->now.proposed_tokens += (uint64_t)g->n_drafts;
}

void engine_verified(struct engine *g, struct request *r, enum speculate_source source, int n, int right)
{
    g->now.accepted_tokens += (uint64_t)right;
    g->now.accepted_by[source] += (uint64_t)right;
    if (!r) return;
    if (source == SPECULATE_DRAFT) {
        r->draft.right = right;
        speculate_accepted(&g->pace, &r->guess, n, right);
    } else {
        guess_learn(&r->guess.pace[source], n, right);
    }
}

void engine_note_speculation(struct engine *g, int n_seqs, uint64_t start, const struct accepted *before)
{
    struct speculate_spent s = {.step_ns = (double)(clock_now() - start), .draft_ns = (double)g->draft_step_ns};
    if (!g->decodes) return;
    for (int i = 0; i < SPECULATE_SOURCES; i++)
        s.right[i == SPECULATE_DRAFT] += (int)(g->now.accepted_by[i] - before->by[i]);
    g->now.saved_steps += (double)(s.right[0] + s.right[1]) / n_seqs;
    s.rows[0] = g->n_proposed[0];
    s.rows[1] = g->n_proposed[1];
    if (!g->n_drafts) speculate_plain(&g->pace, n_seqs, s.step_ns);
    if (g->n_drafts || g->draft_step_ns) speculate_took(&g->pace, n_seqs, &s);
}
