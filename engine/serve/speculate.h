/* How many candidate tokens a request proposes (struct speculation), and whether a step may compute candidates at all
 * (struct speculate_pace).  Pure; owned by the engine thread.
 *
 * Candidates are tokens behind the known ones of a sequence that generates.  A step computes their rows too, and takes
 * each that equals the token that is sampled in its place: sampling is a function of (seed, index, logits), and a row's
 * logits do not depend on the other rows, so no text depends on what was proposed.  Only time does. */
#ifndef TANDEM_ENGINE_SERVE_SPECULATE_H
#define TANDEM_ENGINE_SERVE_SPECULATE_H

#include "engine/base/err.h"
#include "engine/serve/ngrams.h"

enum speculate { SPECULATE_OFF, SPECULATE_AUTO, SPECULATE_ON };

/* NULL: off.  @return 0, or ERR_INVALID with *e. */
int speculate_parse(const char *, enum speculate *, struct err *e);

enum {
    SPECULATE_MAX = 15,  /* candidates of a sequence in a step */
    SPECULATE_SEQS = 16, /* more sequences fill a step by themselves */
    SPECULATE_ROWS = 32, /* rows of a step with candidates, at most */
    SPECULATE_ROWS_EXACT =
        8, /* the same on a device of whose rows only so few always have the same bits (docs/cuda.md) */
};

/* Of a request; zero at first. */
struct speculation {
    struct ngrams index;
    bool closed;              /* no memory for the index */
    int want;                 /* candidates to propose; 0: the first time */
    int fails, skip;          /* steps in a row in which no candidate was right; steps to come without a proposal */
    int n;                    /* candidates in this step... */
    int32_t v[SPECULATE_MAX]; /* ...and what they are */
};

/* @return how many candidates to look for in this step, at most `most`. */
int speculation_wants(struct speculation *, int most);
/* After a step with n candidates, of which `right` were. */
void speculation_learn(struct speculation *, int n, int right);

/* What candidates cost and gain, in time.  The gain of a step with candidates is the time that steps without would have
 * taken for its tokens, less its own.  While the sum is negative, steps have no candidates, and 1/128 of their time
 * pays it back: where no text repeats, candidates cost less than 1 %. */
struct speculate_pace {
    double plain_ns[SPECULATE_SEQS + 1]; /* by sequences: duration of steps without candidates; 0: none was measured */
    int since_plain[SPECULATE_SEQS + 1]; /* steps with candidates since */
    double credit_ns;
};

/* @return the rows that a step of n sequences with a token each may have; n: no candidates. */
int speculate_rows(const struct speculate_pace *, enum speculate, bool host_memory, int n);
/* After a step of n sequences with a token each, without candidates or with. */
void speculate_plain(struct speculate_pace *, int n, double ns);
void speculate_took(struct speculate_pace *, int n, int generated, double ns);

#endif
