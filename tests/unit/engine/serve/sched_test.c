/* Schedule and page pool: directed cases, and 100,000 random operations that must keep every invariant. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/serve/sched.h"
#include "kernels/rng.h"

#include <stdlib.h>
#include <string.h>

#include "tests/unit/engine/serve/sched_rig.h"

static void test_prompt_is_cut_to_the_budget(void **state)
{
    struct world w;
    struct fake f;
    world_open(&w, 20, 4, 30);
    fake_init(&f, 1, 70, 75, 0);
    sched_add(&w.s, &f.seq);
    int want[] = {30, 30, 10, 1, 1};
    for (int i = 0; i < 5; i++) {
        const struct plan *p = sched_step(&w.s);
        assert_int_equal(p->n, 1);
        assert_int_equal(p->v[0].n, want[i]);
        assert_int_equal(p->v[0].rows, i >= 2);
        sched_commit(&w.s);
        if (i >= 2) go_on(&f, 1, 0);
    }
    sched_remove(&w.s, &f.seq);
    assert_int_equal(kv_available(w.pool), 20);
    world_close(&w);
}

static void test_decodes_come_before_prompts(void **state)
{
    struct world w;
    struct fake a, b;
    world_open(&w, 20, 4, 16);
    fake_init(&a, 1, 8, 100, 0);
    fake_init(&b, 2, 100, 120, 0);
    sched_add(&w.s, &a.seq);
    step(&w); /* a's prompt is done: it decodes from now on */
    sched_add(&w.s, &b.seq);
    const struct plan *p = sched_step(&w.s);
    assert_int_equal(p->n, 2);
    assert_ptr_equal(p->v[0].seq, &a.seq);
    assert_int_equal(p->v[0].n, 1);
    assert_int_equal(p->v[1].n, 15);
    world_close(&w);
}

/* Beside decoding, prompts get their share of a step and no more; alone, all of it. */
static void test_prompts_leave_decodes_their_pace(void **state)
{
    struct world w;
    struct fake a, b, c;
    world_open(&w, 40, 4, 64);
    w.s.c.max_prefill_tokens = 20;
    fake_init(&a, 1, 64, 70, 0);
    fake_init(&b, 2, 70, 71, 0);
    fake_init(&c, 3, 30, 31, 0);
    b.tokens[0] = 98, c.tokens[0] = 99;
    sched_add(&w.s, &a.seq);
    assert_int_equal(sched_step(&w.s)->n_tokens, 64);
    sched_commit(&w.s);
    a.seq.n_known++;
    sched_add(&w.s, &b.seq);
    sched_add(&w.s, &c.seq);
    const struct plan *p;
    for (int i = 0; i < 3; i++) {
        p = sched_step(&w.s);
        assert_int_equal(p->n, 2);
        assert_int_equal(p->n_tokens, 1 + 20);
        sched_commit(&w.s);
        a.seq.n_known++;
    }
    p = sched_step(&w.s); /* what b leaves of the share is c's */
    assert_int_equal(p->n, 3);
    assert_int_equal(p->v[1].n, 10);
    assert_int_equal(p->v[2].n, 10);
    sched_commit(&w.s);
    sched_remove(&w.s, &a.seq);
    sched_remove(&w.s, &b.seq);
    assert_int_equal(sched_step(&w.s)->n_tokens, 20); /* the rest of c */
    sched_remove(&w.s, &c.seq);
    world_close(&w);
}

static void test_roots_share_nothing(void **state)
{
    struct world w;
    struct fake f[4];
    const uint64_t root[4] = {0, 1ull << 63 | 7, 0, 1ull << 63 | 7};
    world_open(&w, 40, 4, 400);
    for (int i = 0; i < 4; i++) {
        fake_init(&f[i], (uint64_t)i + 1, 40, 60, 0);
        f[i].seq.root = root[i];
    }
    for (int i = 0; i < 2; i++) {
        sched_add(&w.s, &f[i].seq);
        step(&w);
        assert_int_equal(f[i].seq.n_cached, 0);
    }
    sched_add(&w.s, &f[2].seq);
    sched_add(&w.s, &f[3].seq);
    const struct plan *p = sched_step(&w.s);
    assert_int_equal(p->n, 4); /* those of a root lie together */
    assert_ptr_equal(p->v[0].seq, &f[0].seq);
    assert_ptr_equal(p->v[1].seq, &f[2].seq);
    assert_ptr_equal(p->v[2].seq, &f[1].seq);
    assert_ptr_equal(p->v[3].seq, &f[3].seq);
    assert_int_equal(f[2].seq.n_cached, 32);
    assert_int_equal(f[3].seq.n_cached, 32);
    assert_memory_equal(f[2].pages, f[0].pages, 2 * sizeof(int32_t));
    assert_memory_equal(f[3].pages, f[1].pages, 2 * sizeof(int32_t));
    assert_int_not_equal(f[0].pages[0], f[1].pages[0]);
    sched_check(&w.s);
    world_close(&w);
}

/* A text that passes near_len begins anew, and shares nothing with shorter ones. */
static void test_longer_texts_begin_anew(void **state)
{
    struct world w;
    struct fake a, b, c;
    (void)state;
    world_open(&w, 40, 4, 400);
    w.s.c.near_len = 40;
    fake_init(&a, 1, 39, 60, 0);
    sched_add(&w.s, &a.seq);
    step(&w); /* 40 tokens are known */
    step(&w);
    assert_true(a.seq.n_known == 41 && a.seq.n_computed == 40 && !sched_is_far(&a.seq));
    const struct plan *p = sched_step(&w.s);
    assert_true(p->n == 1 && p->v[0].start == 0 && p->v[0].n == 41 && p->v[0].rows == 1 && sched_is_far(&a.seq));
    finish_step(&w, p);
    p = sched_step(&w.s);
    assert_true(p->v[0].start == 41 && p->v[0].n == 1);
    finish_step(&w, p);
    fake_init(&b, 2, 39, 60, 0);
    fake_init(&c, 3, 50, 60, 0);
    memcpy(c.tokens, a.tokens, 41 * sizeof *a.tokens);
    sched_add(&w.s, &b.seq);
    sched_add(&w.s, &c.seq);
    sched_step(&w.s);
    assert_true(!sched_is_far(&b.seq) && sched_is_far(&c.seq));
    assert_true(b.seq.n_cached == 32 && c.seq.n_cached == 32);
    assert_int_not_equal(b.pages[0], c.pages[0]);
    assert_memory_equal(c.pages, a.pages, 2 * sizeof(int32_t));
    sched_check(&w.s);
    world_close(&w);
}

static void test_second_request_takes_the_known_prefix(void **state)
{
    struct world w;
    struct fake a, b;
    world_open(&w, 20, 4, 100);
    fake_init(&a, 1, 70, 72, 0);
    fake_init(&b, 2, 70, 72, 0);
    sched_add(&w.s, &a.seq);
    step(&w);
    sched_add(&w.s, &b.seq);
    const struct plan *p = sched_step(&w.s);
    assert_int_equal(p->n, 2);
    assert_int_equal(p->v[1].start, 64);
    assert_int_equal(p->v[1].n, 6);
    assert_int_equal(b.seq.n_cached, 64);
    assert_memory_equal(a.pages, b.pages, 4 * sizeof(int32_t));
    sched_remove(&w.s, &a.seq);
    sched_remove(&w.s, &b.seq);
    assert_int_equal(kv_available(w.pool), 20);
    assert_int_equal(kv_cached(w.pool), 4);
    world_close(&w);
}

static void test_whole_prompt_cached_still_computes_its_last_token(void **state)
{
    struct world w;
    struct fake a, b;
    world_open(&w, 20, 4, 100);
    fake_init(&a, 1, 64, 66, 0);
    fake_init(&b, 2, 64, 66, 0);
    sched_add(&w.s, &a.seq);
    step(&w);
    sched_add(&w.s, &b.seq);
    sched_step(&w.s);
    assert_int_equal(b.seq.n_cached, 48);
    world_close(&w);
}

static void test_youngest_gives_its_pages_up(void **state)
{
    struct world w;
    struct fake a, b;
    world_open(&w, 6, 4, 200);
    fake_init(&a, 1, 40, 90, 0);
    fake_init(&b, 2, 30, 60, 0);
    b.tokens[0] = 99; /* nothing shared */
    sched_add(&w.s, &a.seq);
    step(&w);
    sched_add(&w.s, &b.seq);
    int preempted = 0;
    for (int i = 0; i < 200 && (a.seq.state != SEQ_IDLE || b.seq.state != SEQ_IDLE); i++) {
        step(&w);
        preempted += w.s.plan.n_preempted;
        if (a.seq.state != SEQ_IDLE) assert_int_equal(a.seq.state, SEQ_RUNNING); /* the older one never loses */
        sched_check(&w.s);
    }
    assert_true(preempted > 0);
    assert_int_equal(a.seq.n_known, 90);
    assert_int_equal(b.seq.n_known, 60);
    assert_int_equal(kv_available(w.pool), 6);
    world_close(&w);
}

static void test_higher_priority_takes_the_slot(void **state)
{
    struct world w;
    struct fake a, b, c;
    world_open(&w, 20, 1, 64);
    fake_init(&a, 1, 10, 100, 5);
    fake_init(&b, 2, 10, 100, 5);
    fake_init(&c, 3, 10, 12, -1);
    sched_add(&w.s, &a.seq);
    step(&w);
    sched_add(&w.s, &b.seq);
    sched_add(&w.s, &c.seq);
    step(&w);
    assert_int_equal(c.seq.state, SEQ_RUNNING);
    assert_int_equal(a.seq.state, SEQ_WAITING);
    while (c.seq.state != SEQ_IDLE) step(&w);
    step(&w);
    assert_int_equal(a.seq.state, SEQ_RUNNING); /* older than b */
    assert_int_equal(b.seq.state, SEQ_WAITING);
    world_close(&w);
}

/* A long prompt of little urgency, as a batch has, gets of a step what more urgent ones leave: those that are started,
 * and those that wait, whatever their clients were served. */
static void test_urgent_prompts_come_first(void **state)
{
    struct world w;
    struct fake batch, started, late;
    world_open(&w, 60, 4, 16);
    fake_init(&batch, 1, 100, 102, INT32_MAX);
    fake_init(&started, 2, 40, 42, 0);
    fake_init(&late, 3, 16, 18, 0);
    for (int i = 0; i < 40; i++) started.tokens[i] += 100, late.tokens[i] += 200; /* no common prefix */
    batch.seq.client = 1;
    started.seq.client = late.seq.client = 2;
    sched_add(&w.s, &batch.seq);
    step(&w); /* 16 tokens */
    sched_add(&w.s, &started.seq);
    for (int i = 0; i < 2; i++) {
        const struct plan *p = sched_step(&w.s);
        assert_int_equal(p->n, 1);
        assert_ptr_equal(p->v[0].seq, &started.seq);
        finish_step(&w, p);
    }
    sched_add(&w.s, &late.seq); /* of a client that was served more than the batch */
    const struct plan *p = sched_step(&w.s);
    assert_int_equal(p->n, 2);
    assert_ptr_equal(p->v[0].seq, &started.seq);
    assert_int_equal(p->v[0].n, 8);
    assert_ptr_equal(p->v[1].seq, &late.seq);
    finish_step(&w, p);
    while (started.seq.state != SEQ_IDLE || late.seq.state != SEQ_IDLE) step(&w);
    while (batch.seq.state != SEQ_IDLE) step(&w); /* it goes on where it was */
    world_close(&w);
}

static void test_paused_is_not_scheduled_and_yields(void **state)
{
    struct world w;
    struct fake a, b;
    world_open(&w, 6, 2, 64);
    fake_init(&a, 1, 60, 90, 0);
    fake_init(&b, 2, 60, 90, 0);
    b.tokens[0] = 99;
    sched_add(&w.s, &a.seq);
    step(&w);
    a.seq.paused = true;
    assert_int_equal(sched_step(&w.s)->n, 0);
    assert_int_equal(a.seq.state, SEQ_RUNNING); /* nobody needs its pages yet */
    sched_add(&w.s, &b.seq);
    step(&w);
    assert_int_equal(b.seq.state, SEQ_RUNNING);
    assert_int_equal(a.seq.state, SEQ_WAITING);
    while (b.seq.state != SEQ_IDLE) step(&w);
    a.seq.paused = false;
    while (a.seq.state != SEQ_IDLE) step(&w);
    assert_int_equal(a.seq.n_known, 90);
    world_close(&w);
}

static void test_failed_step_leaves_nothing_known(void **state)
{
    struct world w;
    struct fake a;
    world_open(&w, 10, 2, 64);
    fake_init(&a, 1, 50, 60, 0);
    sched_add(&w.s, &a.seq);
    sched_step(&w.s); /* not committed: it failed */
    sched_remove(&w.s, &a.seq);
    assert_int_equal(kv_cached(w.pool), 0);
    assert_int_equal(kv_available(w.pool), 10);
    sched_check(&w.s);
    world_close(&w);
}

static void test_nobody_is_preempted_in_vain(void **state)
{
    struct world w;
    struct fake p, l, q;
    world_open(&w, 10, 3, 200);
    fake_init(&p, 1, 70, 80, 0);
    fake_init(&l, 2, 40, 100, 5);
    fake_init(&q, 3, 120, 130, 0); /* even all that l holds would not do */
    l.tokens[0] = 98, q.tokens[0] = 99;
    sched_add(&w.s, &p.seq);
    sched_add(&w.s, &l.seq);
    step(&w);
    sched_add(&w.s, &q.seq);
    step(&w);
    assert_int_equal(l.seq.state, SEQ_RUNNING);
    assert_int_equal(q.seq.state, SEQ_WAITING);
    for (int i = 0; i < 300 && q.seq.state != SEQ_IDLE; i++) step(&w);
    assert_int_equal(q.seq.n_known, 130);
    world_close(&w);
}

static void test_prompt_goes_on_when_rows_are_used_up(void **state)
{
    struct world w;
    struct fake scored, plain;
    world_open(&w, 40, 4, 64); /* rows: 4 */
    fake_init(&scored, 1, 100, 101, 0);
    fake_init(&plain, 2, 100, 101, 0);
    scored.seq.first_row = 0;
    plain.tokens[0] = 99;
    sched_add(&w.s, &scored.seq);
    sched_add(&w.s, &plain.seq);
    const struct plan *p = sched_step(&w.s);
    assert_int_equal(p->n, 2);
    assert_int_equal(p->v[0].n, 4);
    assert_int_equal(p->v[1].n, 60);
    assert_int_equal(p->v[1].rows, 0);
    world_close(&w);
}

static void test_known_tokens_with_rows_are_one_step(void **state)
{
    struct world w;
    struct fake a, b;
    world_open(&w, 40, 6, 64); /* rows: 6 */
    fake_init(&a, 1, 40, 60, 0);
    fake_init(&b, 2, 8, 100, 0);
    sched_add(&w.s, &a.seq);
    sched_add(&w.s, &b.seq);
    step(&w);
    for (int i = 40; i < 50; i++) a.tokens[i] = 3;
    a.seq.n_known = 50; /* ten tokens, all with a row: row 40 was sampled, the others are forced */
    assert_int_equal(a.seq.first_row, 40);
    const struct plan *p = sched_step(&w.s);
    assert_int_equal(p->n, 2);
    assert_ptr_equal(p->v[0].seq, &b.seq); /* decodes first */
    assert_int_equal(p->v[1].n, 5);        /* as many as there are rows left */
    assert_int_equal(p->v[1].rows, 5);
    sched_commit(&w.s);
    sched_remove(&w.s, &b.seq);
    p = sched_step(&w.s);
    assert_int_equal(p->v[0].n, 5);
    assert_int_equal(p->v[0].rows, 5);
    sched_commit(&w.s);
    sched_remove(&w.s, &a.seq);
    a.seq.first_row = 33; /* added again, it may take from the cache what needs no row */
    sched_add(&w.s, &a.seq);
    sched_step(&w.s);
    assert_int_equal(a.seq.n_cached, 32);
    world_close(&w);
}

static void test_a_prompt_without_rows(void **state)
{
    struct world w;
    struct fake scored, pooled;
    world_open(&w, 40, 4, 64); /* rows: 4, all taken by the first */
    fake_init(&scored, 1, 100, 101, 0);
    fake_init(&pooled, 2, 60, 61, 0);
    scored.seq.first_row = 0;
    pooled.tokens[0] = 99;
    pooled.seq.no_rows = true;
    sched_add(&w.s, &scored.seq);
    sched_add(&w.s, &pooled.seq);
    const struct plan *p = sched_step(&w.s);
    assert_int_equal(p->n, 2);
    assert_int_equal(p->v[1].n, 60); /* its last token, too */
    assert_int_equal(p->v[1].rows, 0);
    sched_commit(&w.s);
    sched_remove(&w.s, &pooled.seq);
    for (int again = 0; again < 2; again++) { /* the prefix is known now; whoever wants it gets it */
        pooled.seq.no_prefix = again == 0;
        sched_add(&w.s, &pooled.seq);
        sched_step(&w.s);
        assert_int_equal(pooled.seq.n_cached, again ? 48 : 0);
        sched_commit(&w.s);
        sched_remove(&w.s, &pooled.seq);
    }
    world_close(&w);
}

/* Those that generate share the rows: whoever has many to announce leaves one to each of the others. */
static void test_nobody_takes_all_rows(void **state)
{
    struct world w;
    struct fake f[4];
    world_open(&w, 40, 4, 200); /* rows: 4 */
    w.s.c.max_rows = 9;
    for (int i = 0; i < 4; i++) {
        fake_init(&f[i], (uint64_t)i + 1, 8, 100, 0);
        f[i].tokens[0] = 50 + i;
        sched_add(&w.s, &f[i].seq);
    }
    step(&w);
    for (int i = 0; i < 3; i++) f[i].seq.n_known += 20; /* forced behind the sampled one */
    const struct plan *p = sched_step(&w.s);
    assert_int_equal(p->n, 4);
    assert_ptr_equal(p->v[0].seq, &f[3].seq);
    assert_int_equal(p->v[1].n, 6);
    assert_int_equal(p->v[2].n, 1);
    assert_int_equal(p->v[3].n, 1);
    world_close(&w);
}

/* ---- random operations ---- */

enum { FAKES = 40, OPERATIONS = 100000 };

static uint64_t draw;

static int pick(int n)
{
    return (int)(rng_at(7, draw++) % (uint64_t)n);
}

/* texts begin alike, so that prefixes are shared, and part at random places */
static void fake_random(struct fake *f, uint64_t arrival)
{
    int n = 1 + pick(MAX_LEN - 2);
    fake_init(f, arrival, n, n + 1 + pick(MAX_LEN - n), pick(3) - 1);
    if (pick(4) == 0) f->seq.root = 1ull << 63 | (uint64_t)pick(2);
    int split = pick(MAX_LEN), kind = pick(3);
    for (int i = split; i < n; i++) f->tokens[i] = kind * 1000 + i;
    if (pick(10) == 0) f->seq.first_row = 0;
    f->seq.no_rows = f->seq.first_row && pick(10) == 0;
    f->seq.no_prefix = pick(10) == 0;
}

static void submit(struct world *w, struct fake *all, uint64_t *arrival, int clients)
{
    for (int i = 0; i < FAKES; i++)
        if (all[i].seq.state == SEQ_IDLE) {
            fake_random(&all[i], ++*arrival);
            all[i].seq.client = clients > 1 ? (uint64_t)pick(clients) : 0;
            sched_add(&w->s, &all[i].seq);
            return;
        }
}

static void check_plan(const struct world *w, const struct plan *p)
{
    int tokens = 0, rows = 0;
    for (int i = 0; i < p->n; i++) {
        const struct seq *q = p->v[i].seq;
        assert_int_equal(q->state, SEQ_RUNNING);
        assert_false(q->paused || q->blocked);
        assert_int_equal(p->v[i].start, q->n_computed);
        assert_true(p->v[i].n > 0 && q->n_computed + p->v[i].n <= q->n_known);
        assert_true(q->n_pages * KV_PAGE >= q->n_computed + p->v[i].n);
        for (int k = 0; k < i; k++) assert_ptr_not_equal(p->v[k].seq, q);
        int end = q->n_computed + p->v[i].n, from = q->first_row > q->n_computed ? q->first_row : q->n_computed;
        assert_int_equal(p->v[i].rows, q->no_rows || end <= from ? 0 : end - from);
        tokens += p->v[i].n;
        rows += p->v[i].rows;
    }
    assert_int_equal(tokens, p->n_tokens);
    assert_int_equal(rows, p->n_rows);
    assert_true(tokens <= w->s.budget && w->s.budget <= w->s.c.max_batch_tokens);
    assert_true(rows <= w->s.c.max_rows && p->n <= w->s.c.max_seqs);
}

/* No page that a step writes may be read by another sequence: it is either unshared or full and registered. */
static void check_writes(const struct fake *all, const struct plan *p)
{
    for (int i = 0; i < p->n; i++) {
        const struct seq *q = p->v[i].seq;
        for (int page = p->v[i].start / KV_PAGE; page <= (p->v[i].start + p->v[i].n - 1) / KV_PAGE; page++)
            for (int k = 0; k < FAKES; k++) {
                const struct seq *o = &all[k].seq;
                for (int j = 0; o != q && j < o->n_pages; j++) assert_int_not_equal(o->pages[j], q->pages[page]);
            }
    }
}

/* What a page holds of a token: other keys in a text longer than near_len. */
static int32_t content(const struct seq *q, int i)
{
    return q->tokens[i] | (sched_is_far(q) ? 1 << 30 : 0);
}

/* Whoever holds a page holds the tokens that were written into it. */
static void check_contents(const struct fake *all, int32_t (*written)[KV_PAGE])
{
    for (int k = 0; k < FAKES; k++) {
        const struct seq *q = &all[k].seq;
        for (int i = 0; i < q->n_computed; i++)
            assert_int_equal(written[q->pages[i / KV_PAGE]][i % KV_PAGE], content(q, i));
    }
}

static void random_operations(int pages, int max_seqs, int budget, int prefill, int clients, int near_len)
{
    struct world w;
    uint64_t arrival = 0;
    struct fake *all = calloc(FAKES, sizeof *all);
    int32_t(*written)[KV_PAGE] = calloc((size_t)pages, sizeof *written);
    int finished = 0, preempted = 0, cached = 0, held = 0;
    world_open(&w, pages, max_seqs, budget);
    w.s.c.max_prefill_tokens = prefill;
    w.s.c.near_len = near_len;
    for (int op = 0; op < OPERATIONS / 8; op++) {
        int what = pick(20);
        struct fake *f = &all[pick(FAKES)];
        if (what < 4) {
            submit(&w, all, &arrival, clients);
        } else if (what == 4) {
            sched_remove(&w.s, &f->seq);
        } else if (what == 5) {
            if (f->seq.state != SEQ_IDLE) f->seq.paused = !f->seq.paused;
        } else if (what < 8) {
            for (int i = 0; i < FAKES; i++) all[i].seq.blocked &= pick(2) != 0;
        } else {
            const struct plan *p = sched_step(&w.s);
            check_plan(&w, p);
            check_writes(all, p);
            preempted += p->n_preempted;
            if (what == 8) { /* the step failed */
                for (int i = 0; i < p->n; i++) sched_remove(&w.s, p->v[i].seq);
                continue;
            }
            for (int i = 0; i < p->n; i++)
                for (int t = p->v[i].start; t < p->v[i].start + p->v[i].n; t++)
                    written[p->v[i].seq->pages[t / KV_PAGE]][t % KV_PAGE] = content(p->v[i].seq, t);
            for (int i = 0; i < p->n; i++) { /* a row that cannot be sampled yet */
                if (!p->v[i].rows || p->v[i].seq->n_computed + p->v[i].n < p->v[i].seq->n_known || pick(8)) continue;
                sched_defer(&w.s, i);
                p->v[i].seq->blocked = true;
                held++;
            }
            sched_commit(&w.s);
            check_contents(all, written);
            for (int i = 0; i < p->n; i++) {
                struct fake *g = (struct fake *)p->v[i].seq;
                if ((!p->v[i].rows && !g->seq.no_rows) || g->seq.n_computed < g->seq.n_known) continue;
                cached += g->seq.n_cached;
                if (g->seq.n_known == g->want || g->seq.no_rows)
                    sched_remove(&w.s, &g->seq), finished++;
                else
                    go_on(g, pick(4) ? 1 : 2 + pick(5), pick(2));
            }
        }
        if (op % 16 == 0) sched_check(&w.s);
    }
    assert_true(finished > 50 && preempted > 0 && cached > 0 && held > 0);
    for (int i = 0; i < FAKES; i++) all[i].seq.paused = all[i].seq.blocked = false;
    for (int i = 0; i < 100000 && w.s.n_waiting + w.s.n_running; i++) step(&w); /* whoever is left can end */
    assert_int_equal(w.s.n_waiting + w.s.n_running, 0);
    sched_check(&w.s);
    assert_int_equal(kv_available(w.pool), pages); /* no page leaked */
    free(all);
    free(written);
    world_close(&w);
}

static void test_random_operations(void **state)
{
    random_operations(MAX_PAGES, 3, 8, 0, 1, 0); /* barely one request fits */
    random_operations(MAX_PAGES, 3, 8, 0, 3, 0);
    random_operations(25, 8, 32, 7, 2, 0);
    random_operations(40, 6, 16, 1, 5, 50);
    random_operations(100, 16, 64, 16, 20, 20);
    random_operations(25, 8, 32, 7, 1, 0);
    random_operations(40, 6, 16, 1, 1, 30);
    random_operations(100, 16, 64, 16, 1, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompt_is_cut_to_the_budget),
        cmocka_unit_test(test_decodes_come_before_prompts),
        cmocka_unit_test(test_prompts_leave_decodes_their_pace),
        cmocka_unit_test(test_roots_share_nothing),
        cmocka_unit_test(test_longer_texts_begin_anew),
        cmocka_unit_test(test_second_request_takes_the_known_prefix),
        cmocka_unit_test(test_whole_prompt_cached_still_computes_its_last_token),
        cmocka_unit_test(test_youngest_gives_its_pages_up),
        cmocka_unit_test(test_higher_priority_takes_the_slot),
        cmocka_unit_test(test_urgent_prompts_come_first),
        cmocka_unit_test(test_paused_is_not_scheduled_and_yields),
        cmocka_unit_test(test_failed_step_leaves_nothing_known),
        cmocka_unit_test(test_nobody_is_preempted_in_vain),
        cmocka_unit_test(test_prompt_goes_on_when_rows_are_used_up),
        cmocka_unit_test(test_known_tokens_with_rows_are_one_step),
        cmocka_unit_test(test_nobody_takes_all_rows),
        cmocka_unit_test(test_a_prompt_without_rows),
        cmocka_unit_test(test_random_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
