#include "engine/train/reference.h"

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/train/ckpt.h"
#include "engine/train/train_state.h"

#include <math.h>
#include <stdlib.h>

enum { SAVE_SECONDS = 120, TOGETHER = 32 /* parts after which ranks wait for each other */ };

static int run(struct train *t, struct err *e)
{
    micro_end(&t->micro);
    train_any_runs(t, true);
    train_model_run(&t->tm, &t->micro, false, 1);
    return train_device_failed(t, e) ? e->code : 0;
}

/* Without dropout, which would make the distance of two distributions that of their noise.  base: without adapters,
 * of which the experts have a pointer of their own. */
static int run_plain(struct train *t, bool base, struct err *e)
{
    float dropout = t->tm.dropout;
    const struct site *site = t->tm.site, *of_experts = t->tm.experts.site;
    t->tm.dropout = 0;
    if (base) t->tm.site = t->tm.experts.site = NULL;
    int rc = run(t, e);
    t->tm.dropout = dropout;
    t->tm.site = site;
    t->tm.experts.site = of_experts;
    return rc;
}

/* This rank has run what it has to. */
static void end_runs(struct train *t)
{
    while (train_any_runs(t, false)) train_skim(t, false);
}

/* The answers of rows from `from` on, as many as fit.  @return the next row; or an error code. */
static int64_t some_rows(struct train *t, const struct train_rows *rows, double *v, int64_t from, struct err *e)
{
    struct micro *m = &t->micro;
    int64_t end = from;
    int each = t->objective.singles ? 1 : 2;
    micro_clear(m);
    do micro_add(m, rows, (uint32_t)end++);
    while (end < rows->n && m->n_tokens + (int)rows->length[end] <= t->tm.max_tokens);
    if (run_plain(t, !t->job.from, e)) return e->code;
    for (int i = 0; i < m->n_seqs; i++)
        v[(size_t)each * m->seq[i].row + (size_t)(i % each)] = objective_answer(m, i, t->tm.host_loss).sum;
    return end;
}

/* The crossed answers of a step, by their place in it. */
static int crossed(struct train *t, struct train_rows *rows, int64_t step, bool base, double *out, struct err *e)
{
    struct microbatches_step s = train_rows_step(rows, step);
    struct micro *m = &t->micro;
    for (uint32_t k = 0; k < s.n_rows;) {
        micro_clear(m);
        do micro_add_crossed(m, rows, s.order[k], s.order[(k + s.n_rows - 1) % s.n_rows], k);
        while (++k < s.n_rows &&
               m->n_tokens + train_rows_crossed(rows, s.order[k], s.order[k - 1]) <= t->tm.max_tokens);
        if (run_plain(t, base, e)) return e->code;
        for (int i = 0; i < m->n_seqs; i++) out[m->seq[i].row] = objective_answer(m, i, t->tm.host_loss).sum;
    }
    return 0;
}

/* Where the crossed answers of a step are. */
static double *crossed_at(const struct reference *r, struct train_rows *rows, int64_t step)
{
    size_t epoch = (size_t)train_rows_epoch(rows, step);
    return r->v + rows->n * (1 + epoch) + train_rows_step(rows, step).first;
}

int train_reference_kl(struct train *t, bool eval, int64_t step, struct err *e)
{
    struct train_rows *rows = eval ? &t->eval : &t->rows;
    prefetch_wait(eval ? t->next_eval : t->next);
    const double *known = crossed_at(eval ? &t->eval_reference : &t->reference, rows, step);
    uint32_t n = train_rows_step(rows, step).n_rows;
    double *now = mem_array(n, sizeof *now), sum = 0;
    t->objective.kl = 0;
    int rc = n > 1 ? crossed(t, rows, step, false, now, e) : 0; /* a row is no other's */
    end_runs(t);
    for (uint32_t k = 0; k < n && n > 1 && !rc; k++) sum += now[k] - known[k];
    if (!rc) t->objective.kl = fmax(0, sum / n);
    free(now);
    return rc;
}

/* ---- before the first step -------------------------------------------------------------------------------------- */

/* What is done, in parts: the rows of both sets, then the steps of both with their crossed answers. */
struct progress {
    struct train *t;
    char *dir;
    int64_t done, all, saved;
    int64_t met; /* how often the ranks have met */
    uint64_t saved_at;
};

static int64_t steps_of(const struct train *t, const struct train_rows *rows)
{
    return t->objective.singles && rows->n ? rows->before[rows->epochs] : 0;
}

static int parts_of(struct train *t, struct ckpt_part part[2])
{
    int n = 0;
    part[n++] = (struct ckpt_part){"rows", t->reference.v, t->reference.n * sizeof(double)};
    if (t->eval.n)
        part[n++] = (struct ckpt_part){"held-out", t->eval_reference.v, t->eval_reference.n * sizeof(double)};
    return n;
}

static int save(struct progress *p, struct err *e)
{
    struct ckpt_part part[2];
    if (!p->dir || p->saved == p->done || !train_ranks_first(p->t->job.comm)) return 0;
    scheduler_gate_leave(p->t->gate);
    int rc = ckpt_write(p->dir, p->t->hash, p->done, -1, part, parts_of(p->t, part), e);
    if (rc) return err_prefix(e, "the reference's log-probabilities could not be written");
    ckpt_prune(p->dir, 1, -1);
    p->saved = p->done;
    p->saved_at = clock_now();
    return 0;
}

/* The next part. */
static int advance(struct progress *p, struct err *e)
{
    struct train *t = p->t;
    struct train_rows *both[2] = {&t->rows, &t->eval};
    struct reference *of[2] = {&t->reference, &t->eval_reference};
    int64_t at = p->done;
    for (int i = 0; i < 2; at -= both[i++]->n) {
        if (at >= both[i]->n) continue;
        int64_t next = some_rows(t, both[i], of[i]->v, at, e);
        if (next < 0) return e->code;
        p->done += next - at;
        return 0;
    }
    for (int i = 0; i < 2; at -= steps_of(t, both[i++])) {
        if (at >= steps_of(t, both[i])) continue;
        p->done++;
        int rc = crossed(t, both[i], at, !t->job.from, crossed_at(of[i], both[i], at), e);
        p->done -= rc != 0;
        return rc;
    }
    return 0;
}

/* What the ranks agree on: a failure of one, a command. */
static int agree(struct progress *p, int rc, struct err *e)
{
    struct train *t = p->t;
    if (train_agree(t, rc ? FAILED : GO_ON, 0, e) == FAILED) return e->code;
    if (t->agreed == TRAIN_GO_ON) return 0;
    t->seen = t->agreed;
    return err_set(e, ERR_FULL, "a command came");
}

/* No rank gets so far ahead that the others are late, and none goes on without one that failed: all of them meet once
 * for each TOGETHER parts, whenever each gets there; where they run each pass together, after each. */
static int meet(struct progress *p, int rc, struct err *e)
{
    struct train *t = p->t;
    if (!t->job.comm) return rc;
    if (t->o.s.values) return agree(p, rc, e);
    if (rc && p->met < p->all / TOGETHER) return agree(p, rc, e);
    while (!rc && p->met < p->done / TOGETHER) {
        p->met++;
        rc = agree(p, 0, e);
    }
    return rc;
}

static int compute(struct progress *p, struct err *e)
{
    int rc = 0;
    p->met = p->done / TOGETHER;
    if (p->done < p->all && p->t->job.from && p->t->st.step > 0)
        return err_set(e, ERR_INVALID,
                       "the reference's log-probabilities in %s are gone, and the adapter that they are of has been "
                       "trained since: start the job anew",
                       p->dir ? p->dir : "memory");
    while (p->done < p->all && !rc) {
        if (!p->t->job.comm && train_stopped(p->t)) rc = err_set(e, ERR_FULL, "a command came");
        if (!rc) rc = advance(p, e);
        if (rc == ERR_NOMEM && train_fit_less(p->t, e)) rc = 0;
        if (!rc && p->t->job.between) p->t->job.between(p->t->job.between_arg);
        if (!rc && clock_now() - p->saved_at >= SAVE_SECONDS * 1000000000ull) rc = save(p, e);
        rc = meet(p, rc, e);
    }
    end_runs(p->t);
    struct err why = {0};
    if (save(p, &why) && !rc) *e = why, rc = why.code;
    return rc;
}

/* The number of the rows' log-probabilities.  @return whether their bytes are a size. */
static bool count(const struct train_rows *rows, bool singles, size_t *n)
{
    size_t each = singles ? 1 + (size_t)rows->epochs : 2, bytes;
    return !__builtin_mul_overflow((size_t)rows->n, each, n) && !__builtin_mul_overflow(*n, sizeof(double), &bytes);
}

int train_reference_bytes(const struct train *t, size_t *bytes, struct err *e)
{
    size_t n = 0, of_eval = 0;
    bool singles = t->objective.singles;
    if (t->objective.reference &&
        (!count(&t->rows, singles, &n) || !count(&t->eval, singles, &of_eval) ||
         __builtin_add_overflow(n, of_eval, &n) || __builtin_mul_overflow(n, sizeof(double), &n)))
        return err_set(e, ERR_NOMEM, "too many log-probabilities of the reference: lower epochs, or use fewer rows");
    *bytes = n;
    return 0;
}

static int allocate(struct reference *r, const struct train_rows *rows, bool singles, struct err *e)
{
    if (count(rows, singles, &r->n)) r->v = calloc(r->n ? r->n : 1, sizeof *r->v);
    return r->v ? 0 : err_set(e, ERR_NOMEM, "no memory for %zu log-probabilities of the reference", r->n);
}

int train_reference_open(struct train *t, struct err *e)
{
    struct progress p = {.t = t, .saved = -1, .saved_at = clock_now()};
    struct ckpt_part part[2];
    if (!t->objective.reference || t->reference.v) return 0;
    int rc = allocate(&t->reference, &t->rows, t->objective.singles, e);
    if (!rc) rc = allocate(&t->eval_reference, &t->eval, t->objective.singles, e);
    if (rc) return ranks_agree(t->job.comm, rc, e);
    p.all = (int64_t)t->rows.n + t->eval.n + steps_of(t, &t->rows) + steps_of(t, &t->eval);
    if (t->job.dir && train_ranks_first(t->job.comm)) {
        p.dir = file_join(t->job.dir, "reference");
        rc = ckpt_read(p.dir, t->hash, p.all, part, parts_of(t, part), &p.saved, &t->warnings, e);
        if (rc == ERR_INVALID && t->saved < 0) { /* of a job that was killed before its first checkpoint */
            ckpt_prune(p.dir, 0, -1);
            e->code = rc = 0;
        }
        if (p.saved > 0) p.done = p.saved;
    }
    rc = train_share_reference(t, &p.done, rc, e);
    /* each rank all of it, with the same bits */
    if (!rc) rc = ranks_agree(t->job.comm, compute(&p, e), e);
    free(p.dir);
    return rc;
}
