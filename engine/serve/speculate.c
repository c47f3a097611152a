#include "engine/serve/speculate.h"

#include <string.h>

enum {
    WANT_FIRST = 4,
    SKIP_SHIFT = 5,     /* at most 2^5 - 1 steps are skipped */
    MEASURE_STEPS = 64, /* after so many steps with candidates one without is measured */
    CREDIT_STEPS = 32,  /* bound of gains and losses that are remembered, in plain steps */
    CREDIT_SHARE = 128,
    DRAFT_SHARE = 256, /* of its candidates, and again of its prompts */
    INVEST_SHARE = 4,  /* a prompt may take the draft a quarter of the time of the text behind it */
};

static const double PLAIN_RISE = 1.25, ACCEPT_FIRST = 0.6, ACCEPT_RATE = 0.05, MEAN_RATE = 0.1;

const char *const speculate_source_names[SPECULATE_SOURCES] = {"ngram", "history", "draft"};

int speculate_parse(const char *s, enum speculate *how, struct err *e)
{
    static const char *const names[] = {"off", "auto", "on"};
    for (int i = 0; i < 3; i++)
        if (!strcmp(s ? s : names[0], names[i])) {
            *how = (enum speculate)i;
            return 0;
        }
    return err_set(e, ERR_INVALID, "speculate: \"%s\" is none of off, auto, on", s);
}

/* ---- a request ---- */

int guess_wants(struct guess_pace *s, int most)
{
    if (s->skip) {
        s->skip--;
        return 0;
    }
    if (!s->want) s->want = WANT_FIRST;
    return s->want < most ? s->want : most;
}

void guess_learn(struct guess_pace *s, int n, int right)
{
    if (right == 0) {
        s->fails += s->fails < SKIP_SHIFT;
        s->skip = (1 << s->fails) - 1;
        s->want = s->want > 3 ? s->want / 2 : 2;
        return;
    }
    s->fails = 0;
    if (right == n)
        s->want = 2 * n > s->want ? 2 * n : s->want;
    else
        s->want = right + 1;
    if (s->want > SPECULATE_MAX) s->want = SPECULATE_MAX;
}

/* ---- all of them ---- */

int speculate_rows(enum speculate how, bool host_memory, int n)
{
    int most = host_memory ? SPECULATE_ROWS : SPECULATE_ROWS_EXACT;
    return how == SPECULATE_OFF || n < 1 || n > SPECULATE_SEQS || n >= most ? n : most;
}

bool speculate_pays(const struct speculate_pace *p, enum speculate how, bool host_memory, int n, bool draft)
{
    if (speculate_rows(how, host_memory, n) == n) return false;
    if (how == SPECULATE_ON) return true;
    bool measured = p->plain_ns[n] > 0 && p->since_plain[n] < MEASURE_STEPS;
    return host_memory && measured && (draft ? p->draft_credit_ns : p->credit_ns) >= 0;
}

bool speculate_invests(const struct speculate_pace *p, enum speculate how, int n_seqs, int n, int rest)
{
    if (how == SPECULATE_ON) return true;
    if (p->debt_ns > 0) return false;
    return n * p->draft_token_ns * INVEST_SHARE <= rest * p->plain_ns[n_seqs];
}

static double accept_of(const struct speculate_pace *p, const struct speculation *s)
{
    return s->accept > 0 ? s->accept : p->accept > 0 ? p->accept : ACCEPT_FIRST;
}

int speculate_worth(const struct speculate_pace *p, enum speculate how, const struct speculation *s, int n, int most)
{
    double chance = accept_of(p, s), all = chance, saves = p->plain_ns[n] / n, costs = p->draft_ns[n] / n + p->row_ns;
    int k = 0;
    if (saves <= 0 || p->draft_ns[n] <= 0) return most < WANT_FIRST ? most : WANT_FIRST; /* to be measured */
    while (k < most && all * saves > costs) k++, all *= chance;
    return k || how != SPECULATE_ON ? k : most > 0;
}

static void add_credit(double *credit, double ns, double plain_ns)
{
    double most = CREDIT_STEPS * plain_ns;
    *credit += ns;
    if (*credit > most) *credit = most;
    if (*credit < -most) *credit = -most;
}

static void repay(struct speculate_pace *p, double ns)
{
    p->debt_ns = p->debt_ns > ns ? p->debt_ns - ns : 0;
}

void speculate_plain(struct speculate_pace *p, int n, double ns)
{
    if (n < 1 || n > SPECULATE_SEQS) return;
    double *mean = &p->plain_ns[n];
    /* low rather than high, so that gains are not overestimated: something else may have delayed a step, perhaps by
     * many times its length */
    if (*mean == 0 || ns < *mean)
        *mean = *mean == 0 ? ns : (*mean + ns) / 2;
    else
        *mean += (ns < PLAIN_RISE * *mean ? ns - *mean : (PLAIN_RISE - 1) * *mean) / 8;
    p->since_plain[n] = 0;
    add_credit(&p->credit_ns, *mean / CREDIT_SHARE, *mean);
    add_credit(&p->draft_credit_ns, *mean / DRAFT_SHARE, *mean);
    repay(p, *mean / DRAFT_SHARE);
}

static void mean_of(double *mean, double v)
{
    *mean = *mean > 0 ? *mean + (v - *mean) * MEAN_RATE : v;
}

void speculate_took(struct speculate_pace *p, int n, const struct speculate_spent *s)
{
    int rows = s->rows[0] + s->rows[1];
    if (n < 1 || n > SPECULATE_SEQS) return;
    double plain = p->plain_ns[n], more = s->step_ns - plain, gain[2];
    if (!rows) { /* what the draft found had no room */
        add_credit(&p->draft_credit_ns, -s->draft_ns, plain);
        return;
    }
    p->since_plain[n]++;
    if (plain <= 0) return;
    for (int i = 0; i < 2; i++) gain[i] = plain * s->right[i] / n - more * s->rows[i] / rows;
    mean_of(&p->row_ns, more > 0 ? more / rows : 0);
    if (s->rows[0]) add_credit(&p->credit_ns, gain[0], plain);
    gain[1] -= s->draft_ns;
    if (s->draft_ns <= 0 && !s->rows[1]) return;
    add_credit(&p->draft_credit_ns, gain[1], plain);
    if (gain[1] > 0) repay(p, gain[1]);
}

void speculate_drafted(struct speculate_pace *p, int n, int steps, double ns)
{
    if (n >= 1 && n <= SPECULATE_SEQS && steps) mean_of(&p->draft_ns[n], ns / steps);
}

void speculate_invested(struct speculate_pace *p, int n, double ns)
{
    p->debt_ns += ns;
    if (n) mean_of(&p->draft_token_ns, ns / n);
}

void speculate_accepted(struct speculate_pace *p, struct speculation *s, int n, int right)
{
    int seen = right + (right < n); /* those behind a wrong one are not compared */
    double start = accept_of(p, s);
    if (!n) return;
    s->accept = start + (right - start * seen) * ACCEPT_RATE;
    double mean = p->accept > 0 ? p->accept : ACCEPT_FIRST;
    p->accept = mean + (right - mean * seen) * ACCEPT_RATE / 4;
    if (s->accept < 0.01) s->accept = 0.01;
    if (p->accept < 0.01) p->accept = 0.01;
}
