/* What became of every request, and the figures made of it.
 *
 * All latencies count from the time at which a request was to arrive, not from when it was sent: a request that had to
 * wait because the generator or the server was busy has waited ("coordinated omission", Gil Tene).  How late the
 * generator sent is measured apart.  Definitions:
 *   ttft   intended arrival to the first piece of text that is not empty
 *   itl    between two pieces of one answer; pieces read together have no time between them
 *   tpot   first to last piece, over the tokens but one
 *   e2e    intended arrival to the end of the answer
 *   reject intended arrival to the head of a 429 or 503; service: the same from when it was sent
 * Percentiles are nearest rank, of requests that arrived after the warm-up and were served whole, plain and long ones
 * only: clients that read slowly or leave measure themselves.  Rates count what ended, and tokens that came, within the
 * window: from the warm-up's end to the end of arrivals (or, when a number of requests was given, to the last answer).
 */
#ifndef TANDEM_LOADTEST_STATS_H
#define TANDEM_LOADTEST_STATS_H

#include "loadtest/hist.h"
#include "loadtest/scenario.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum outcome {
    OUT_OK,
    OUT_REJECTED,    /* 429 or 503 */
    OUT_LEFT,        /* its client left, as planned */
    OUT_REFUSED,     /* a bad request got its 4xx */
    OUT_HTTP,        /* any other status than 200 */
    OUT_CONNECT,     /* no connection */
    OUT_CLOSED,      /* closed before the answer was whole */
    OUT_GARBAGE,     /* not HTTP, or not the protocol */
    OUT_ERROR_EVENT, /* the server reported an error in its stream */
    OUT_EMPTY,       /* an answer without a token */
    OUT_TIMEOUT,
    OUT_UNFINISHED, /* still running when the drain was over */
    OUT_LIMIT,      /* never sent: the generator's own limit of open requests */
    OUT_ACCEPTED,   /* a bad request that was not refused with a 4xx */
    OUTCOMES
};

extern const char *const outcome_names[OUTCOMES];

static inline bool outcome_is_error(enum outcome o)
{
    return o >= OUT_HTTP;
}

/* One request.  Times in ns since the start of the run; 0: did not happen. */
struct record {
    struct ask ask;
    enum outcome outcome;
    int status, attempts;
    uint64_t intended, issued;                 /* when it was to be sent; when the generator got to it */
    uint64_t sent, answered, first, last, end; /* written; head; first text; last piece; whole */
    int tokens;                                /* as the server says, else pieces */
    int prompt_tokens;                         /* as the server says, else 0 */
    int pieces, window_pieces;                 /* all; those that came within the window */
    const uint64_t *gaps;                      /* between pieces, ns; pieces - 1; valid in stats_add only */
    int n_gaps;
};

enum slo_kind { SLO_TTFT, SLO_ITL, SLO_TPOT, SLO_E2E, SLO_KINDS };

extern const char *const slo_names[SLO_KINDS];

struct slo {
    bool any;
    double ms[SLO_KINDS]; /* 0: no limit.  itl: the 99th percentile of a request's own */
};

/* A stretch of time of the run, for plots. */
struct moment {
    int arrivals, ok, rejected, errors, pieces, running; /* running: greatest number of open requests */
};

/* What the server says of itself, sampled from /metrics. */
struct gauge {
    double at, running, waiting, kv; /* s; requests; requests; 0..1.  NAN: not told */
};

enum metric { M_TTFT, M_ITL, M_TPOT, M_E2E, M_REJECT, M_SERVICE, M_LATE, M_CONNECT, METRICS };

extern const char *const metric_names[METRICS];

enum { POINTS_MAX = 4096, STATUS_MAX = 600 };

/* One request in a plot. */
struct point {
    float at, ttft, e2e; /* s since the start; ms; ms, NAN when it was not served */
    float reject;        /* ms, NAN when it was not rejected */
};

struct stats {
    struct hist *h[METRICS];
    uint64_t outcomes[OUTCOMES], kinds[ASK_KINDS];
    uint64_t by_status[STATUS_MAX]; /* of rejected and failed ones, and of bad requests */
    uint64_t requests, attempts, good, ok_in_window, good_in_window, failed_slo[SLO_KINDS];
    uint64_t reject_over_5ms;
    double tokens_in_window, prompt_tokens, tokens; /* of the window; of all */
    uint64_t warm, until;                           /* the window, ns; until is UINT64_MAX while it is not known */
    struct slo slo;
    uint64_t moment; /* length of one, ns */
    struct moment *moments;
    size_t n_moments, moments_cap;
    struct gauge *gauges;
    size_t n_gauges, gauges_cap;
    struct point points[POINTS_MAX]; /* evenly chosen: each `stride`-th */
    size_t n_points, stride, seen;
    FILE *samples; /* a line of JSON for each request; NULL: none; not owned */
};

struct stats *stats_new(const struct slo *, uint64_t warm, uint64_t until);
void stats_free(struct stats *);
struct moment *stats_moment(struct stats *, uint64_t at); /* at: ns since the start */
void stats_add(struct stats *, const struct record *);
void stats_gauge(struct stats *, const struct gauge *);

/* Does a served request meet the limits?  Sets missed[] when it is not NULL. */
bool slo_met(const struct slo *, const struct record *, bool missed[SLO_KINDS]);
/* ttft:500,itl:50 in ms.  False: not that. */
bool slo_parse(struct slo *, const char *text);

#endif
