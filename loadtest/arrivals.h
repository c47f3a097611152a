/* When requests are to arrive.  Pure: the n-th time is a function of the kind, the rate and the seed, so a schedule can
 * be printed without a server (--dry-run), and two servers get the same one. */
#ifndef TANDEM_LOADTEST_ARRIVALS_H
#define TANDEM_LOADTEST_ARRIVALS_H

#include <stdbool.h>
#include <stdint.h>

enum arrival_kind {
    ARRIVE_POISSON,  /* exponential gaps */
    ARRIVE_GAMMA,    /* gaps of a gamma distribution with `shape`: < 1 is bursty, 1 is Poisson, > 1 more even */
    ARRIVE_CONSTANT, /* equal gaps */
    ARRIVE_TRACE,    /* as recorded: trace.h */
    ARRIVE_CLOSED,   /* a new request when one of `concurrency` users has its answer */
    ARRIVE_KINDS
};

extern const char *const arrival_names[ARRIVE_KINDS];

struct arrivals {
    enum arrival_kind kind; /* POISSON, GAMMA or CONSTANT */
    double rate;            /* requests a second, > 0 */
    double shape;           /* GAMMA: > 0.  The gaps' variance is mean^2 / shape */
    double ramp;            /* seconds in which the rate grows linearly from 0 to `rate`; 0: none */
    uint64_t seed;
    /* state; zero before the first */
    uint64_t index;
    double unit; /* the sum of the gaps so far, in mean gaps */
};

/* The time of the next arrival, in seconds from the start; never less than the one before. */
double arrivals_next(struct arrivals *);

/* Gamma distributed with mean 1 and the given shape: the index-th of the seed's sequence.  G. Marsaglia, W. W. Tsang, A
 * simple method for generating gamma variables, ACM TOMS 26 (2000), with their boost for shapes below 1. */
double gamma_unit(uint64_t seed, uint64_t index, double shape);

#endif
