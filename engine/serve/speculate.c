#include "engine/serve/speculate.h"

#include <string.h>

enum {
    WANT_FIRST = 4,
    SKIP_SHIFT = 5,     /* at most 2^5 - 1 steps are skipped */
    MEASURE_STEPS = 64, /* after so many steps with candidates one without is measured */
    CREDIT_STEPS = 32,  /* bound of gains and losses that are remembered, in plain steps */
    CREDIT_SHARE = 128,
};

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

int speculation_wants(struct speculation *s, int most)
{
    if (s->closed) return 0;
    if (s->skip) {
        s->skip--;
        return 0;
    }
    if (!s->want) s->want = WANT_FIRST;
    return s->want < most ? s->want : most;
}

void speculation_learn(struct speculation *s, int n, int right)
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

int speculate_rows(const struct speculate_pace *p, enum speculate how, bool host_memory, int n)
{
    int most = host_memory ? SPECULATE_ROWS : SPECULATE_ROWS_EXACT;
    if (how == SPECULATE_OFF || n < 1 || n > SPECULATE_SEQS || n >= most) return n;
    if (how == SPECULATE_ON) return most;
    bool measured = p->plain_ns[n] > 0 && p->since_plain[n] < MEASURE_STEPS;
    return host_memory && measured && p->credit_ns >= 0 ? most : n;
}

static void add_credit(struct speculate_pace *p, double ns, double plain_ns)
{
    double most = CREDIT_STEPS * plain_ns;
    p->credit_ns += ns;
    if (p->credit_ns > most) p->credit_ns = most;
    if (p->credit_ns < -most) p->credit_ns = -most;
}

void speculate_plain(struct speculate_pace *p, int n, double ns)
{
    if (n < 1 || n > SPECULATE_SEQS) return;
    double *mean = &p->plain_ns[n];
    /* low rather than high, so that gains are not overestimated: something else may have delayed a step */
    if (*mean == 0 || ns < *mean)
        *mean = *mean == 0 ? ns : (*mean + ns) / 2;
    else
        *mean += (ns - *mean) / 8;
    p->since_plain[n] = 0;
    add_credit(p, *mean / CREDIT_SHARE, *mean);
}

void speculate_took(struct speculate_pace *p, int n, int generated, double ns)
{
    if (n < 1 || n > SPECULATE_SEQS) return;
    p->since_plain[n]++;
    double plain = p->plain_ns[n];
    if (plain > 0) add_credit(p, plain * generated / n - ns, plain);
}
