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

/* Where a candidate comes from: the request's own text, earlier texts of the same prompt (history.h), or a draft model
 * (draft.h). */
enum speculate_source { SPECULATE_NGRAM, SPECULATE_HISTORY, SPECULATE_DRAFT, SPECULATE_SOURCES };
extern const char *const speculate_source_names[SPECULATE_SOURCES]; /* "ngram", "history", "draft" */

/* How many candidates of one source a request proposes; zero at first. */
struct guess_pace {
    int want;        /* 0: the first time */
    int fails, skip; /* steps in a row in which no candidate was right; steps to come without a proposal */
};

/* @return how many candidates to look for in this step, at most `most`. */
int guess_wants(struct guess_pace *, int most);
/* After a step with n candidates, of which `right` were. */
void guess_learn(struct guess_pace *, int n, int right);

struct history_entry;

/* Of a request; zero at first. */
struct speculation {
    struct ngrams index;
    bool closed;                   /* no memory for the index */
    bool looked;                   /* in the history, for... */
    uint64_t key;                  /* ...its prompt */
    struct history_entry *history; /* a reference; NULL: none */
    struct guess_pace pace[SPECULATE_SOURCES];
    double accept; /* how often the draft's candidates are right, of those that are compared; 0: unknown */
    enum speculate_source source; /* of this step's candidates, */
    int n;                        /* how many there are, */
    int32_t v[SPECULATE_MAX];     /* and what they are */
};

/* What candidates cost and gain, in time.  A step's candidates gain the time that steps without them would have taken
 * for the tokens that were right, less what the step took more, and for those of a draft less the draft's own time.
 * While the sum is negative there are no candidates, and a share of the time of the plain steps pays it back: where
 * nothing is right, texts (own and earlier ones) cost less than 1/128 of the time, a draft less than 2/256: 1/256 for
 * candidates, the other for computing prompts with the draft (the debt). */
struct speculate_pace {
    double plain_ns[SPECULATE_SEQS + 1]; /* by sequences: duration of steps without candidates; 0: none was measured */
    int since_plain[SPECULATE_SEQS + 1]; /* steps with candidates since */
    double credit_ns, draft_credit_ns;
    double debt_ns;                      /* >= 0: the draft's prompts, not yet repaid by time or gains */
    double row_ns;                       /* what a candidate's row adds to a step; 0: none was measured */
    double draft_ns[SPECULATE_SEQS + 1]; /* by sequences: a step of the draft; likewise */
    double draft_token_ns;               /* a token of a prompt in the draft; likewise */
    double accept;                       /* as speculation.accept, of all requests */
};

/* @return the rows that a step of n sequences with a token each may have; n: no candidates. */
int speculate_rows(enum speculate, bool host_memory, int n);
/* @return whether such a step may have candidates from texts, or from a draft. */
bool speculate_pays(const struct speculate_pace *, enum speculate, bool host_memory, int n, bool draft);
/* @return whether the draft may compute a prompt's n tokens for a request that generates at most `rest` more, in steps
 * of n_seqs. */
bool speculate_invests(const struct speculate_pace *, enum speculate, int n_seqs, int n, int rest);
/* @return how many candidates of a draft are worth their time in a step of n sequences, at most `most`: each as long as
 * the chance that it is right saves more than it costs. */
int speculate_worth(const struct speculate_pace *, enum speculate, const struct speculation *, int n, int most);

/* A step's candidates, by text and draft. */
struct speculate_spent {
    int rows[2], right[2];
    double step_ns, draft_ns; /* the step itself; the draft before it */
};
/* After a step of n sequences with a token each, without candidates or with. */
void speculate_plain(struct speculate_pace *, int n, double ns);
void speculate_took(struct speculate_pace *, int n, const struct speculate_spent *);
/* After `steps` steps of the draft for n sequences; after n tokens of prompts. */
void speculate_drafted(struct speculate_pace *, int n, int steps, double ns);
void speculate_invested(struct speculate_pace *, int n, double ns);
/* After n candidates of the draft, the first `right` of which were. */
void speculate_accepted(struct speculate_pace *, struct speculation *, int n, int right);

#endif
