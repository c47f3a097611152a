/* Tests of sampling: equal choices and log-probabilities with ref over random settings, and what the settings mean,
 * without an oracle: ties, bans, penalties, distributions, broken rows. */
#include "tests/ops/harness.h"

#include "kernels/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct sample_row plain = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition = 1, .forced = -1};

static void run(struct dev *d, const float *logits, int R, int V, const struct sample_row *rows, struct sample_out *out)
{
    float *z = put(d, logits, (size_t)R * V * 4);
    op_sample(d, (struct sample_args){mat_f32(z, R, V), rows, out});
    check_device("sample", d);
    d->ops->free(d, z);
}

static void compare_out(const char *label, const struct sample_out *got, const struct sample_out *want, int top_n)
{
    CHECK(got->id == want->id, "%s: chose %d, ref %d", label, got->id, want->id);
    CHECK(got->id != want->id || fabsf(got->logprob - want->logprob) < 1e-4f ||
              (isnan(got->logprob) && isnan(want->logprob)) || got->logprob == want->logprob,
          "%s: logprob %.7g, ref %.7g", label, (double)got->logprob, (double)want->logprob);
    CHECK(got->rank == want->rank, "%s: rank %d, ref %d", label, got->rank, want->rank);
    for (int i = 0; i < top_n; i++)
        CHECK(got->top_id[i] == want->top_id[i] && (!(fabsf(got->top_logprob[i] - want->top_logprob[i]) > 1e-4f) ||
                                                    got->top_logprob[i] == want->top_logprob[i]),
              "%s: top %d is %d (%.7g), ref %d (%.7g)", label, i, got->top_id[i], (double)got->top_logprob[i],
              want->top_id[i], (double)want->top_logprob[i]);
}

/* settings number k of a small grid */
static struct sample_row settings(int k)
{
    static const float temperatures[] = {0, 0.3f, 1, 1.7f}, top_ps[] = {1, 0.9f, 0.5f, 0.05f, 0.999f};
    static const float min_ps[] = {0, 0, 0.1f, 0.5f}, typicals[] = {1, 1, 0.8f, 0.2f};
    static const int top_ks[] = {0, 0, 1, 5, 40, 100000};
    struct sample_row r = plain;
    r.temperature = temperatures[k % 4];
    r.top_p = top_ps[random_below(5)];
    r.min_p = min_ps[random_below(4)];
    r.typical_p = typicals[random_below(4)];
    r.top_k = top_ks[random_below(6)];
    r.top_n = random_below(3) ? random_below(SAMPLE_TOP_MAX + 1) : 0;
    r.seed = random_u32();
    r.step = random_u32();
    if (random_below(12) == 0) r.forced = 0;
    return r;
}

/* Few, half or most of the tokens, or one; bits past V are set. */
static const uint32_t *random_mask(uint32_t *m, int V, int how)
{
    size_t words = ((size_t)V + 31) / 32;
    for (size_t w = 0; w < words; w++) {
        uint32_t a = random_u32(), b = random_u32();
        m[w] = how == 0 ? a : how == 1 ? a | b | random_u32() : how == 2 && w % 3 == 0 ? UINT32_MAX : 0;
    }
    int one = random_below(V);
    m[one / 32] |= (uint32_t)1 << one % 32;
    if (V % 32) m[words - 1] |= UINT32_MAX << V % 32;
    return m;
}

static void table_case(struct dev *dev, struct dev *ref, int V, int R, float scale)
{
    enum { LISTS = 6 };
    if (case_left_out()) return;
    float *z = random_floats((size_t)R * V, scale);
    struct sample_row *rows = calloc((size_t)R, sizeof *rows);
    struct sample_out *got = calloc((size_t)R, sizeof *got), *want = calloc((size_t)R, sizeof *want);
    struct token_add(*adds)[LISTS] = calloc((size_t)R, sizeof *adds);
    struct token_count(*counts)[LISTS] = calloc((size_t)R, sizeof *counts);
    size_t words = ((size_t)V + 31) / 32;
    uint32_t *allowed = calloc((size_t)R * words, sizeof *allowed);
    for (int i = 0; i < R; i++) {
        rows[i] = settings(i);
        rows[i].adds = adds[i], rows[i].counts = counts[i];
        rows[i].n_adds = i % 3 == 0 ? random_below(LISTS + 1) : 0;
        rows[i].n_counts = i % 4 == 0 ? random_below((V < LISTS ? V : LISTS) + 1) : 0;
        rows[i].repetition = i % 2 ? 1.3f : 1;
        rows[i].frequency = i % 5 ? 0.2f : 0;
        rows[i].presence = i % 6 ? 0.4f : 0;
        for (int k = 0; k < LISTS; k++) {
            adds[i][k] = (struct token_add){random_below(V), random_below(3) || V < 9 ? random_float() : -INFINITY};
            counts[i][k] = (struct token_count){V < LISTS ? k % V : (int)((int64_t)V * k / LISTS), random_below(3)};
        }
        if (i % 4 == 2) rows[i].allowed = random_mask(allowed + (size_t)i * words, V, i / 4 % 4);
        if (i % 10 == 9)
            for (int k = 0; k < V; k++) z[(size_t)i * V + k] = roundf(z[(size_t)i * V + k]); /* ties */
    }
    run(dev, z, R, V, rows, got);
    run(ref, z, R, V, rows, want);
    for (int i = 0; i < R; i++) {
        char label[LABEL];
        const struct sample_row *r = rows + i;
        snprintf(label, sizeof label, "sample V=%d row %d: T %g top_k %d top_p %g min_p %g typical %g", V, i,
                 (double)r->temperature, r->top_k, (double)r->top_p, (double)r->min_p, (double)r->typical_p);
        compare_out(label, got + i, want + i, r->top_n < V ? r->top_n : V);
        if (r->allowed && r->forced < 0 && got[i].id >= 0)
            CHECK(r->allowed[got[i].id / 32] >> got[i].id % 32 & 1, "%s: %d is not allowed", label, got[i].id);
    }
    free(z), free(rows), free(got), free(want), free(adds), free(counts), free(allowed);
}

/* Rows of a few distinct logits, so that cuts fall among thousands that are as likely, and of hardly any differences,
 * so that a cut keeps thousands: the choice goes by id there, which no tolerance hides. */
static void crowds(struct dev *dev, struct dev *ref, int V)
{
    static const struct sample_row how[] = {
        {.top_k = 3000},
        {.top_p = 0.6f},
        {.min_p = 0.3f},
        {.typical_p = 0.7f},
        {.top_k = 2000, .top_p = 0.7f, .min_p = 0.01f},
        {.top_k = 4000, .typical_p = 0.6f, .top_p = 0.7f, .min_p = 0.2f},
        {.min_p = 1.5f},
        {.typical_p = 0.9f, .min_p = 1.5f},
    };
    enum { KINDS = 4, HOWS = sizeof how / sizeof *how, R = KINDS * HOWS };
    float *z = malloc((size_t)R * V * sizeof *z);
    struct sample_row rows[R];
    struct sample_out got[R], want[R];
    if (!z) abort();
    for (int i = 0; i < R; i++) {
        int kind = i / HOWS;
        rows[i] = plain;
        rows[i].top_k = how[i % HOWS].top_k, rows[i].min_p = how[i % HOWS].min_p, rows[i].step = (uint64_t)i;
        if (how[i % HOWS].top_p > 0) rows[i].top_p = how[i % HOWS].top_p;
        if (how[i % HOWS].typical_p > 0) rows[i].typical_p = how[i % HOWS].typical_p;
        rows[i].top_n = 3;
        for (int k = 0; k < V; k++) {
            float a = random_float();
            z[(size_t)i * V + k] = kind == 0   ? 2.5f
                                   : kind == 1 ? roundf(a)
                                   : kind == 2 ? 1e-3f * a
                                   : a > 2     ? -1.0f
                                               : -0.0f;
        }
    }
    run(dev, z, R, V, rows, got);
    run(ref, z, R, V, rows, want);
    for (int i = 0; i < R; i++) {
        char label[LABEL];
        if (dev->ops->host_memory && i / HOWS == 2 && how[i % HOWS].typical_p > 0)
            continue; /* cpu: typicality in f32 */
        snprintf(label, sizeof label, "sample from a crowd V=%d kind %d cuts %d", V, i / HOWS, i % HOWS);
        compare_out(label, got + i, want + i, 3);
    }
    free(z);
}

/* ---- rows without a choice ------------------------------------------------------------------------------------- */

/* One row for each way in which a row can have nothing to choose and each way of choosing.  The verdict depends on the
 * logits, the mask and the bans alone. */
enum {
    NAN_FIRST,
    NAN_LAST,
    PLUS_INFINITY,
    ALL_MINUS_INFINITY,
    NAN_MASKED_OUT,
    INFINITY_MASKED_OUT,
    INFINITY_BANNED,
    MASK_EMPTY,
    MASK_OF_MINUS_INFINITY,
    ALL_BANNED,
    ALL_BUT_ONE_BANNED,
    ROW_FAULTS,
};

static const struct {
    const char *name;
    int id; /* the verdict; 0: the last token, the one that is left */
} row_fault[ROW_FAULTS] = {
    [NAN_FIRST] = {"NaN first", SAMPLE_BROKEN},
    [NAN_LAST] = {"NaN last", SAMPLE_BROKEN},
    [PLUS_INFINITY] = {"+infinity", SAMPLE_BROKEN},
    [ALL_MINUS_INFINITY] = {"all -infinity", SAMPLE_BROKEN},
    [NAN_MASKED_OUT] = {"a NaN the mask leaves out", SAMPLE_BROKEN},
    [INFINITY_MASKED_OUT] = {"+infinity the mask leaves out", SAMPLE_BROKEN},
    [INFINITY_BANNED] = {"+infinity banned", SAMPLE_BROKEN},
    [MASK_EMPTY] = {"nothing allowed", SAMPLE_NONE},
    [MASK_OF_MINUS_INFINITY] = {"only a token of -infinity allowed", SAMPLE_NONE},
    [ALL_BANNED] = {"all banned", SAMPLE_NONE},
    [ALL_BUT_ONE_BANNED] = {"all but one banned", 0},
};

static const struct sample_row way_of_choosing[] = {
    {.temperature = 0, .top_p = 1, .typical_p = 1},
    {.temperature = 1, .top_p = 1, .typical_p = 1},
    {.temperature = 1, .top_p = 1, .typical_p = 1, .top_k = 5},
    {.temperature = 1, .top_p = 1, .typical_p = 1, .top_k = 2000},
    {.temperature = 1, .top_p = 0.9f, .typical_p = 1},
    {.temperature = 1, .top_p = 1, .typical_p = 1, .min_p = 0.1f},
    {.temperature = 1, .top_p = 1, .typical_p = 1, .min_p = 1.5f},
    {.temperature = 1, .top_p = 1, .typical_p = 0.8f},
    {.temperature = 1, .top_p = 0.9f, .typical_p = 0.8f, .top_k = 2000, .min_p = 0.1f},
};

static void break_row(struct sample_row *r, int fault, float *z, int V, uint32_t *allowed, const struct token_add *ban)
{
    int last = V - 1;
    bool masked = fault >= NAN_MASKED_OUT && fault <= MASK_OF_MINUS_INFINITY && fault != INFINITY_BANNED;
    if (masked) r->allowed = allowed;
    if (fault == NAN_MASKED_OUT || fault == INFINITY_MASKED_OUT) allowed[0] = 2;
    if (fault == MASK_OF_MINUS_INFINITY) allowed[last / 32] = (uint32_t)1 << last % 32;
    if (fault == NAN_FIRST) z[0] = NAN;
    if (fault == NAN_LAST || fault == NAN_MASKED_OUT) z[last] = NAN;
    if (fault == PLUS_INFINITY || fault == INFINITY_MASKED_OUT || fault == INFINITY_BANNED) z[last] = INFINITY;
    if (fault == MASK_OF_MINUS_INFINITY) z[last] = -INFINITY;
    for (int i = 0; fault == ALL_MINUS_INFINITY && i < V; i++) z[i] = -INFINITY;
    if (fault == INFINITY_BANNED) r->adds = ban + last, r->n_adds = 1;
    if (fault == ALL_BANNED || fault == ALL_BUT_ONE_BANNED) r->adds = ban, r->n_adds = fault == ALL_BANNED ? V : last;
}

static void rows_without_choice(struct dev *dev, struct dev *ref, int V)
{
    enum { WAYS = sizeof way_of_choosing / sizeof *way_of_choosing, R = ROW_FAULTS * WAYS, TOP = 3 };
    if (case_left_out()) return;
    float *z = random_floats((size_t)R * V, 2);
    size_t words = ((size_t)V + 31) / 32;
    uint32_t *allowed = calloc((size_t)R * words, sizeof *allowed);
    struct token_add *ban = malloc((size_t)V * sizeof *ban);
    struct sample_row rows[R];
    struct sample_out got[R], want[R];
    if (!allowed || !ban) abort();
    for (int i = 0; i < V; i++) ban[i] = (struct token_add){i, -INFINITY};
    for (int i = 0; i < R; i++) {
        rows[i] = way_of_choosing[i % WAYS];
        rows[i].repetition = 1, rows[i].forced = -1, rows[i].step = (uint64_t)i, rows[i].top_n = TOP;
        break_row(rows + i, i / WAYS, z + (size_t)i * V, V, allowed + (size_t)i * words, ban);
    }
    run(dev, z, R, V, rows, got);
    run(ref, z, R, V, rows, want);
    for (int i = 0; i < R; i++) {
        char label[LABEL];
        int id = row_fault[i / WAYS].id < 0 ? row_fault[i / WAYS].id : V - 1;
        snprintf(label, sizeof label, "sample V=%d, %s, way %d", V, row_fault[i / WAYS].name, i % WAYS);
        CHECK(got[i].id == id, "%s: chose %d, must be %d", label, got[i].id, id);
        CHECK(id >= 0 || isnan(got[i].logprob), "%s: logprob %g", label, (double)got[i].logprob);
        compare_out(label, got + i, want + i, TOP);
    }
    free(z), free(allowed), free(ban);
}

void test_sample(struct dev *dev, struct dev *ref)
{
    int some = dev->ops->host_memory ? 1 : 4; /* a device that is not, may be simulated */
    table_case(dev, ref, 1, 20, 1);
    table_case(dev, ref, 2, 40, 1);
    table_case(dev, ref, 15, 60, 2);
    table_case(dev, ref, 17, 60, 2);
    table_case(dev, ref, 257, 200 / some, 2);
    table_case(dev, ref, 1000, 400 / some, 3);
    table_case(dev, ref, 5003, 100 / some, 2);
    crowds(dev, ref, 5003);
#ifndef TANDEM_SANITIZED
    table_case(dev, ref, 40000, 40 / some, 1);
    table_case(dev, ref, 151936, 8 / some, 3);
#endif
    rows_without_choice(dev, ref, 40);
    rows_without_choice(dev, ref, 2500); /* more than cuts compare one with another */
}

/* ---- meaning ------------------------------------------------------------------------------------------------- */

static struct sample_out run_one(struct dev *d, const float *z, int V, struct sample_row r)
{
    struct sample_out o;
    run(d, z, 1, V, &r, &o);
    return o;
}

/* Draws from 12 tokens with known probabilities (cut to `kept` tokens): the frequencies agree within what chi-square
 * allows at one in a million, and nothing outside the set comes. */
static void distribution(struct dev *d, const char *name, struct sample_row r, int kept)
{
    enum { V = 12 };
    int draws = d->ops->host_memory ? 20000 : 1500; /* a device that is not, may be simulated */
    float *z = malloc((size_t)draws * V * 4);
    struct sample_row *rows = malloc((size_t)draws * sizeof *rows);
    struct sample_out *out = malloc((size_t)draws * sizeof *out);
    double p[V], total = 0, chi = 0;
    int seen[V] = {0};
    for (int i = 0; i < V; i++) { /* token 5i mod 12 is the i-th most likely */
        int id = i * 5 % V;
        for (int n = 0; n < draws; n++) z[(size_t)n * V + id] = -0.35f * (float)i;
        p[id] = i < kept ? exp(-0.35 * i / (double)r.temperature) : 0;
        total += p[id];
    }
    for (int n = 0; n < draws; n++) rows[n] = r, rows[n].seed = 4, rows[n].step = (uint64_t)n;
    run(d, z, draws, V, rows, out);
    for (int n = 0; n < draws; n++)
        if (out[n].id >= 0) seen[out[n].id]++;
    for (int i = 0; i < V; i++) {
        double expected = draws * p[i] / total;
        CHECK(p[i] > 0 || seen[i] == 0, "%s: token %d outside the set came %d times", name, i, seen[i]);
        if (p[i] > 0) chi += (seen[i] - expected) * (seen[i] - expected) / expected;
    }
    CHECK(chi < 55, "%s: chi-square %.1f of %d tokens", name, chi, kept);
    free(z), free(rows), free(out);
}

/* What is not allowed is never chosen, however likely, and the log-probabilities are the model's. */
static void test_masks(struct dev *d)
{
    float z[70];
    uint32_t allowed[3] = {0};
    struct sample_row r = plain;
    for (int i = 0; i < 70; i++) z[i] = i == 3 ? 9.0f : i == 66 ? 1.0f : 0.01f * (float)i;
    r.temperature = 0, r.allowed = allowed, r.top_n = 1;
    struct sample_out o = run_one(d, z, 70, r);
    CHECK(o.id == SAMPLE_NONE, "nothing is allowed, yet %d was chosen", o.id);
    allowed[2] = 4;
    allowed[0] = 1 << 5;
    o = run_one(d, z, 70, r);
    struct sample_row free_row = plain;
    free_row.forced = 66;
    CHECK(o.id == 66 && o.top_id[0] == 3, "greedy of 5 and 66: %d, most likely %d", o.id, o.top_id[0]);
    CHECK(o.logprob == run_one(d, z, 70, free_row).logprob, "masked logprob %g", (double)o.logprob);
    struct token_add more = {5, 4};
    r.n_adds = 1, r.adds = &more;
    o = run_one(d, z, 70, r);
    CHECK(o.id == 5, "the bias counts among the allowed: %d", o.id);
    more = (struct token_add){4, 400};
    o = run_one(d, z, 70, r);
    CHECK(o.id == 66, "a bias does not allow: %d", o.id);
    r.n_adds = 0, r.temperature = 100;
    for (int cut = 0; cut < 5; cut++) {
        int seen[2] = {0};
        r.top_k = cut == 1 ? 10 : 0, r.top_p = cut == 2 ? 0.9f : 1, r.typical_p = cut == 3 ? 0.9f : 1;
        r.min_p = cut == 4 ? 0.1f : 0;
        for (int n = 0; n < 60; n++) {
            r.step = (uint64_t)n;
            o = run_one(d, z, 70, r);
            CHECK(o.id == 5 || o.id == 66, "cut %d: %d is not allowed", cut, o.id);
            seen[o.id == 66]++;
        }
        CHECK(seen[0] > 5 && seen[1] > 5, "cut %d: two that are as likely came %d and %d times", cut, seen[0], seen[1]);
    }
}

static void test_distributions(struct dev *d)
{
    struct sample_row r = plain;
    distribution(d, "all", r, 12);
    r.temperature = 0.7f;
    distribution(d, "temperature 0.7", r, 12);
    r = plain, r.top_k = 4;
    distribution(d, "top_k 4", r, 4);
    r = plain, r.top_p = 0.5f; /* 0.30 + 0.21: the second passes one half */
    distribution(d, "top_p 0.5", r, 2);
    r = plain, r.min_p = 0.3f; /* exp(-0.35 i) >= 0.3: i <= 3 */
    distribution(d, "min_p 0.3", r, 4);
    r = plain, r.top_k = 6, r.top_p = 0.75f, r.min_p = 0.6f;
    distribution(d, "top_k, top_p, min_p", r, 2);
}

static void test_choices(struct dev *d)
{
    float z[20];
    struct sample_row r = plain;
    for (int i = 0; i < 20; i++) z[i] = i == 7 || i == 13 ? 2.0f : 0.1f * (float)(i % 5);
    r.temperature = 0;
    struct sample_out o = run_one(d, z, 20, r);
    CHECK(o.id == 7, "greedy tie: %d", o.id);
    struct token_add ban = {7, -INFINITY};
    r.n_adds = 1, r.adds = &ban;
    o = run_one(d, z, 20, r);
    CHECK(o.id == 13 && fabsf(o.logprob - run_one(d, z, 20, plain).logprob) < 10, "ban: %d", o.id);
    struct token_count both[2] = {{7, 3}, {13, 0}};
    r = plain, r.temperature = 0, r.n_counts = 2, r.counts = both, r.presence = 1;
    o = run_one(d, z, 20, r);
    CHECK(o.id == 13, "presence only counts generated tokens: %d", o.id);
    r.presence = 0, r.repetition = 50; /* 2 / 50 for both: another wins */
    o = run_one(d, z, 20, r);
    CHECK(o.id == 4, "repetition: %d", o.id);
    r = plain, r.forced = 3, r.top_n = 2;
    o = run_one(d, z, 20, r);
    double lse = 0;
    for (int i = 0; i < 20; i++) lse += exp((double)z[i]);
    CHECK(o.id == 3 && fabs((double)o.logprob - (z[3] - log(lse))) < 1e-5, "forced: %d %g", o.id, (double)o.logprob);
    CHECK(o.rank == 7, "rank: %d", o.rank);
    CHECK(o.top_id[0] == 7 && o.top_id[1] == 13, "top: %d %d", o.top_id[0], o.top_id[1]);
    r.forced = 8, r.top_n = 0;
    CHECK(run_one(d, z, 20, r).rank == 8, "rank of the second of two that tie");
    CHECK(run_one(d, z, 20, plain).rank == 0, "a token that was not forced has a rank");
    r = plain, r.seed = 12, r.step = 3;
    CHECK(run_one(d, z, 20, r).id == run_one(d, z, 20, r).id, "the same seed and step chose differently");
}

static void test_broken_rows(struct dev *d)
{
    float z[40];
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < 40; i++) z[i] = k == 2 ? -INFINITY : (float)(i % 3);
        if (k == 0) z[17] = NAN;
        if (k == 1) z[39] = NAN;
        if (k == 3) z[39] = INFINITY;
        for (int t = 0; t < 2; t++) {
            struct sample_row r = plain;
            r.temperature = (float)t;
            struct sample_out o = run_one(d, z, 40, r);
            CHECK(o.id == SAMPLE_BROKEN, "broken row %d: %d", k, o.id);
        }
    }
    z[39] = 1;
    struct token_add bans[40];
    for (int i = 0; i < 40; i++) bans[i] = (struct token_add){i, -INFINITY};
    struct sample_row r = plain;
    r.n_adds = 40, r.adds = bans;
    CHECK(run_one(d, z, 40, r).id == SAMPLE_NONE, "everything banned, yet something chosen");
}

void test_sample_meaning(struct dev *d)
{
    test_choices(d);
    test_broken_rows(d);
    test_masks(d);
    test_distributions(d);
}
