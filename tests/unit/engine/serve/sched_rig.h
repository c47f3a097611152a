/* Sequences without a model, and the schedule's steps as the engine would do them: for sched_test.c and
 * sched_clients_test.c. */
#ifndef TANDEM_TESTS_UNIT_ENGINE_SERVE_SCHED_RIG_H
#define TANDEM_TESTS_UNIT_ENGINE_SERVE_SCHED_RIG_H

#include "engine/serve/sched.h"

enum { MAX_LEN = 160, MAX_PAGES = MAX_LEN / KV_PAGE };

struct fake {
    struct seq seq;
    int32_t tokens[MAX_LEN], pages[MAX_PAGES];
    int want; /* tokens at which it ends */
};

static void fake_init(struct fake *f, uint64_t arrival, int n, int want, int priority)
{
    *f = (struct fake){.want = want};
    f->seq = (struct seq){.tokens = f->tokens,
                          .pages = f->pages,
                          .n_known = n,
                          .first_row = n - 1,
                          .priority = priority,
                          .arrival = arrival};
    for (int i = 0; i < n; i++) f->tokens[i] = i * 7 % 100;
}

struct world {
    struct kv_pool *pool;
    struct sched s;
};

static void world_open(struct world *w, int pages, int max_seqs, int budget)
{
    w->pool = kv_pool_new(pages, 42);
    sched_init(&w->s, &(struct sched_config){max_seqs, budget, max_seqs, true}, w->pool);
}

static void world_close(struct world *w)
{
    sched_free(&w->s);
    kv_pool_free(w->pool);
}

/* The sequence goes on with n tokens, of which the last is not computed without the rows of all. */
static void go_on(struct fake *f, int n, int32_t token)
{
    f->seq.first_row = f->seq.n_known;
    f->seq.generates = true;
    for (int i = 0; i < n && f->seq.n_known < f->want; i++) f->tokens[f->seq.n_known++] = token;
}

/* the plan was computed; every finished prompt and every decode yields a token */
static void finish_step(struct world *w, const struct plan *p)
{
    sched_commit(&w->s);
    for (int i = 0; i < p->n; i++) {
        struct fake *f = (struct fake *)p->v[i].seq;
        if (f->seq.n_computed < f->seq.n_known) continue;
        if (f->seq.n_known == f->want || f->seq.no_rows)
            sched_remove(&w->s, &f->seq);
        else
            go_on(f, 1, (int32_t)(f->seq.arrival % 3));
    }
}

static void step(struct world *w)
{
    finish_step(w, sched_step(&w->s));
}

#endif
