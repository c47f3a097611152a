/* Chooses the next token of each row, rows in parallel.
 *
 * A vocabulary is never sorted: reports and top_k keep a small buffer that is pruned by selection; top_p gathers the
 * tokens within some nats of the largest logit, extending the range until the gathered mass suffices, and finds its
 * cut by weighted selection. Candidates are kept in ascending order of id, the order of the draw. */
#include "kernels/cpu/cpu.h"
#include "kernels/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct cand {
    float key; /* cuts keep the lowest; ties go to the lower id */
    float p;
    int32_t id;
};

struct pick { /* the state of one row */
    const struct isa *isa;
    const struct sample_row *row;
    const float *z; /* (V) logits after additions and penalties */
    int V;
    float max, inv_t;
    struct cand *cand, *work; /* (V + TOP_SLACK) each */
    float *p;                 /* (V + TOP_SLACK) */
};

enum { TOP_SLACK = 1024, CHUNK = 4096 };

static bool cand_before(const struct cand *a, const struct cand *b)
{
    return a->key < b->key || (a->key == b->key && a->id < b->id);
}

static void cand_swap(struct cand *a, struct cand *b)
{
    struct cand t = *a;
    *a = *b;
    *b = t;
}

/* Partitions [low, high) around its median of three; returns the pivot's final index. */
static int cand_partition(struct cand *c, int low, int high)
{
    int mid = low + (high - low) / 2, last = high - 1, at = low;
    if (cand_before(c + mid, c + low)) cand_swap(c + mid, c + low);
    if (cand_before(c + last, c + mid)) {
        cand_swap(c + last, c + mid);
        if (cand_before(c + mid, c + low)) cand_swap(c + mid, c + low);
    }
    cand_swap(c + mid, c + last);
    for (int i = low; i < last; i++)
        if (cand_before(c + i, c + last)) cand_swap(c + i, c + at++);
    cand_swap(c + at, c + last);
    return at;
}

/* Moves the n first of `count` candidates to the front, in no order. */
static void cand_select(struct cand *c, int count, int n)
{
    int low = 0, high = count;
    while (high - low > 1 && n > low && n < high) {
        int at = cand_partition(c, low, high);
        if (at == n) return;
        if (at > n)
            high = at;
        else
            low = at + 1;
    }
}

/* The last candidate of the shortest prefix (in order of key, id) whose mass reaches `mass`; reorders c. */
static struct cand cand_mass_cut(struct cand *c, int count, double mass)
{
    int low = 0, high = count;
    while (low < high) {
        int at = cand_partition(c, low, high);
        double left = 0;
        for (int i = low; i < at; i++) left += (double)c[i].p;
        if (left >= mass && at > low) {
            high = at;
            continue;
        }
        mass -= left + (double)c[at].p;
        if (mass <= 0) return c[at];
        low = at + 1;
    }
    return c[high - 1]; /* rounding kept the sum from reaching the mass: all before `high` belong to the prefix */
}

static int by_id(const void *a, const void *b)
{
    return ((const struct cand *)a)->id - ((const struct cand *)b)->id;
}

static int by_key(const void *a, const void *b)
{
    return cand_before(a, b) ? -1 : 1;
}

/* The n largest of z (ties to the lower id) into c, which has room for n + TOP_SLACK; key = -z.  Returns how many. */
static int top_select(const struct isa *isa, const float *z, int V, int n, struct cand *c)
{
    int count = 0;
    float at_least = -INFINITY;
    for (int i = isa->find_ge(z, 0, V, at_least); i < V; i = isa->find_ge(z, i + 1, V, at_least)) {
        c[count++] = (struct cand){.key = -z[i], .id = i};
        if (count < n + TOP_SLACK) continue;
        cand_select(c, count, n);
        count = n;
        float worst = -INFINITY; /* of the n kept; a later equal one loses the tie */
        for (int k = 0; k < n; k++) worst = c[k].key > worst ? c[k].key : worst;
        at_least = nextafterf(-worst, INFINITY);
    }
    cand_select(c, count, n);
    return count < n ? count : n;
}

/* ---- cutting ------------------------------------------------------------------------------------------------- */

/* Keeps, in place and in order, the candidates up to and including `last`. */
static int cand_keep(struct cand *c, int n, const struct cand *last)
{
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (!cand_before(last, c + i)) c[kept++] = c[i];
    return kept;
}

static double cand_mass(const struct cand *c, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)c[i].p;
    return sum;
}

static int cut_by_mass(struct pick *k, int n, double mass)
{
    memcpy(k->work, k->cand, (size_t)n * sizeof *k->work);
    struct cand last = cand_mass_cut(k->work, n, mass);
    return cand_keep(k->cand, n, &last);
}

static int cut_typical(struct pick *k, int n)
{
    double total = cand_mass(k->cand, n), entropy = 0;
    for (int i = 0; i < n; i++) {
        double p = (double)k->cand[i].p / total;
        k->cand[i].key = p > 0 ? (float)-log(p) : INFINITY;
        if (p > 0) entropy -= p * log(p);
    }
    for (int i = 0; i < n; i++) k->cand[i].key = fabsf(k->cand[i].key - (float)entropy);
    n = cut_by_mass(k, n, k->row->typical_p * total);
    for (int i = 0; i < n; i++) k->cand[i].key = -k->z[k->cand[i].id];
    return n;
}

static int cut_min_p(struct pick *k, int n)
{
    float max = 0;
    int kept = 0, first = 0;
    for (int i = 0; i < n; i++) max = k->cand[i].p > max ? k->cand[i].p : max;
    for (int i = 1; i < n; i++) first = cand_before(k->cand + i, k->cand + first) ? i : first;
    for (int i = 0; i < n; i++)
        if (i == first || (double)k->cand[i].p >= (double)k->row->min_p * (double)max) k->cand[kept++] = k->cand[i];
    return kept;
}

/* ---- gathering ----------------------------------------------------------------------------------------------- */

/* Gathers the candidates with z >= at_least, by id, and computes their p. */
static int gather(struct pick *k, float at_least)
{
    int n = 0;
    for (int i = k->isa->find_ge(k->z, 0, k->V, at_least); i < k->V; i = k->isa->find_ge(k->z, i + 1, k->V, at_least))
        k->cand[n++] = (struct cand){.key = -k->z[i], .id = i};
    return n;
}

static void fill_p(struct pick *k, int n)
{
    for (int i = 0; i < n; i++) k->p[i] = k->z[k->cand[i].id];
    k->isa->exp_scaled(k->p, k->p, n, k->max, k->inv_t);
    for (int i = 0; i < n; i++) k->cand[i].p = k->p[i];
}

/* Everything that top_p and min_p could keep; *total: the mass of the whole row. */
static int gather_prefix(struct pick *k, bool top_p, double *total)
{
    const struct sample_row *r = k->row;
    *total = top_p ? k->isa->exp_sum(k->z, k->V, k->max, k->inv_t) : 0;
    double nats = top_p ? 8 : 0.001 - log(r->min_p < 1 ? (double)r->min_p : 1.0);
    for (;; nats *= 2) {
        bool all = nats >= 80;
        int n = gather(k, all ? -INFINITY : (float)((double)k->max - nats * (double)r->temperature));
        fill_p(k, n);
        if (all || !top_p || cand_mass(k->cand, n) >= (double)r->top_p * *total) return n;
    }
}

static int gather_cut(struct pick *k)
{
    const struct sample_row *r = k->row;
    bool top_k = r->top_k > 0 && r->top_k<k->V, typical = r->typical_p> 0 && r->typical_p < 1;
    bool top_p = r->top_p > 0 && r->top_p < 1;
    double total = 0;
    int n;
    if (top_k) {
        n = top_select(k->isa, k->z, k->V, r->top_k, k->cand);
        qsort(k->cand, (size_t)n, sizeof *k->cand, by_id);
        fill_p(k, n);
    } else if (typical) {
        n = gather(k, -INFINITY);
        fill_p(k, n);
    } else {
        n = gather_prefix(k, top_p, &total);
    }
    if (typical) n = cut_typical(k, n);
    if (top_p) n = cut_by_mass(k, n, r->top_p * (top_k || typical ? cand_mass(k->cand, n) : total));
    if (r->min_p > 0) n = cut_min_p(k, n);
    return n;
}

/* ---- choosing ------------------------------------------------------------------------------------------------ */

static int32_t draw_cand(const struct cand *c, int n, double u)
{
    double target = u * cand_mass(c, n), run = 0;
    int last = 0;
    for (int i = 0; i < n; i++) {
        if ((run += (double)c[i].p) > target) return c[i].id;
        if (c[i].p > 0) last = i;
    }
    return c[last].id;
}

/* No cuts: sums of chunks, then a scan of one of them. */
static int32_t draw_all(const struct pick *k, double u)
{
    double total = k->isa->exp_sum(k->z, k->V, k->max, k->inv_t), target = u * total, run = 0;
    int at = 0, last = 0;
    for (; at < k->V; at += CHUNK) {
        int n = k->V - at < CHUNK ? k->V - at : CHUNK;
        double sum = k->isa->exp_sum(k->z + at, n, k->max, k->inv_t);
        if (run + sum > target || at + n == k->V) break;
        run += sum;
    }
    int n = k->V - at < CHUNK ? k->V - at : CHUNK;
    k->isa->exp_scaled(k->p, k->z + at, n, k->max, k->inv_t);
    for (int i = 0; i < n; i++) {
        if ((run += (double)k->p[i]) > target) return at + i;
        if (k->p[i] > 0) last = i;
    }
    return at + last;
}

static int32_t choose(struct pick *k)
{
    const struct sample_row *r = k->row;
    double u = rng_uniform(r->seed, r->step);
    bool cuts = (r->top_k > 0 && r->top_k < k->V) || (r->typical_p > 0 && r->typical_p < 1) ||
                (r->top_p > 0 && r->top_p < 1) || r->min_p > 0;
    if (!cuts) return draw_all(k, u);
    int n = gather_cut(k);
    return draw_cand(k->cand, n, u);
}

static void apply_penalties(float *z, const struct sample_row *r)
{
    for (int i = 0; i < r->n_adds; i++) z[r->adds[i].id] += r->adds[i].add;
    for (int i = 0; i < r->n_counts; i++) {
        float *l = z + r->counts[i].id;
        int n = r->counts[i].generated;
        if (r->repetition != 1) *l = *l < 0 ? *l * r->repetition : *l / r->repetition;
        *l -= r->frequency * (float)n + (n > 0 ? r->presence : 0);
    }
}

/* Copies the logits of the allowed tokens; the others become -infinity. A word of the mask is mostly ones or mostly
 * zeros: the exceptions are corrected bit by bit. */
static void copy_allowed(float *z, const float *logits, int V, const uint32_t *allowed)
{
    for (int at = 0; at < V; at += 32) {
        int n = V - at < 32 ? V - at : 32;
        uint32_t bits = allowed[at / 32], last = UINT32_MAX >> (32 - n), odd = bits & last;
        if (__builtin_popcount(bits) >= 16) {
            memcpy(z + at, logits + at, (size_t)n * sizeof *z);
            for (odd = ~bits & last; odd; odd &= odd - 1) z[at + __builtin_ctz(odd)] = -INFINITY;
        } else {
            for (int i = 0; i < n; i++) z[at + i] = -INFINITY;
            for (; odd; odd &= odd - 1) z[at + __builtin_ctz(odd)] = logits[at + __builtin_ctz(odd)];
        }
    }
}

static void report_top(const struct isa *isa, const float *logits, int V, int top_n, double lse, struct sample_out *o,
                       struct cand *c)
{
    int n = top_select(isa, logits, V, top_n < SAMPLE_TOP_MAX ? top_n : SAMPLE_TOP_MAX, c);
    qsort(c, (size_t)n, sizeof *c, by_key);
    for (int i = 0; i < n; i++) {
        o->top_id[i] = c[i].id;
        o->top_logprob[i] = (float)((double)logits[c[i].id] - lse);
    }
}

/* 1: the likeliest; ties by ascending id. */
static int32_t rank_of(const float *logits, int V, int32_t id)
{
    float own = logits[id];
    int32_t above = 0;
    for (int i = 0; i < id; i++) above += logits[i] >= own;
    for (int i = id + 1; i < V; i++) above += logits[i] > own;
    return above + 1;
}

static void sample_one(const struct isa *isa, const float *logits, int V, const struct sample_row *r,
                       struct sample_out *o, char *scratch)
{
    size_t room = (size_t)V + TOP_SLACK;
    struct cand *cand = (struct cand *)scratch;
    float *copy = (float *)(cand + 2 * room), max = isa->row_max(logits, V);
    *o = (struct sample_out){.id = SAMPLE_BROKEN, .logprob = NAN};
    for (int i = 0; i < SAMPLE_TOP_MAX; i++) {
        o->top_id[i] = -1;
        o->top_logprob[i] = NAN;
    }
    if (!isfinite(max)) return;
    double lse = (double)max + log(isa->exp_sum(logits, V, max, 1));
    if (r->top_n > 0) report_top(isa, logits, V, r->top_n, lse, o, cand);
    int32_t id = r->forced;
    if (id >= 0) {
        o->rank = rank_of(logits, V, id);
    } else {
        struct pick k = {isa, r, logits, V, max, 0, cand, cand + room, copy + room};
        if (r->n_adds || r->n_counts || r->allowed) {
            if (r->allowed)
                copy_allowed(copy, logits, V, r->allowed);
            else
                memcpy(copy, logits, (size_t)V * sizeof *copy);
            apply_penalties(copy, r);
            k.z = copy;
            k.max = isa->row_max(copy, V);
            if (k.max == -INFINITY) o->id = SAMPLE_NONE;
            if (!isfinite(k.max)) return;
        }
        k.inv_t = r->temperature > 0 ? 1 / r->temperature : 0;
        id = r->temperature > 0 ? choose(&k) : isa->find_ge(k.z, 0, V, k.max);
    }
    o->id = id;
    o->logprob = (float)((double)logits[id] - lse);
}

struct sample_run {
    const struct cpu_dev *d;
    const struct sample_args *a;
};

static size_t sample_bytes(int V)
{
    size_t room = (size_t)V + TOP_SLACK;
    return 2 * room * sizeof(struct cand) + 2 * room * sizeof(float);
}

static void sample_task(void *ctx, int i, int worker)
{
    const struct sample_run *r = ctx;
    const struct sample_args *a = r->a;
    sample_one(r->d->isa, mat_row(&a->logits, i), a->logits.cols, a->row + i, a->out + i, r->d->worker[worker].p);
}

void cpu_sample(struct dev *head, const struct sample_args *a)
{
    struct cpu_dev *d = cpu_of(head);
    struct sample_run r = {.d = d, .a = a};
    int rows = a->logits.rows;
    for (int i = 0; i < head->threads; i++)
        if (!scratch_get(d->worker + i, sample_bytes(a->logits.cols))) {
            dev_fail(head, "sample", "out of memory");
            return;
        }
    for (int row = 0; row < rows; row += POOL_TASKS_MAX) {
        struct sample_args part = *a;
        int n = rows - row < POOL_TASKS_MAX ? rows - row : POOL_TASKS_MAX;
        part.logits.p = mat_row(&a->logits, row);
        part.row += row;
        part.out += row;
        r.a = &part;
        cpu_run(d, sample_task, &r, n, (double)n * a->logits.cols);
    }
}
