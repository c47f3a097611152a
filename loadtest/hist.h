/* A histogram of times with a bounded relative error, after HdrHistogram's layout (Gil Tene, hdrhistogram.org): powers
 * of two, each cut into HIST_PARTS equal buckets, so a value is known to one part in 1024 whatever its size.  Fixed
 * memory (some 250 KB), O(1) to add.  Pure; one owner. */
#ifndef TANDEM_LOADTEST_HIST_H
#define TANDEM_LOADTEST_HIST_H

#include <stdint.h>

enum {
    HIST_PARTS = 1024, /* buckets in an octave */
    HIST_OCTAVES = 34, /* 2^10 .. 2^44 ns; longer than 4.8 hours counts as that */
    HIST_BUCKETS = HIST_PARTS * (HIST_OCTAVES + 1),
};

struct hist {
    uint64_t n, max, min; /* exact; ns.  min is 0 while n is */
    double sum;           /* ns */
    double squares;       /* ns^2 */
    uint32_t count[HIST_BUCKETS];
};

struct hist *hist_new(void); /* empty; free() it */
void hist_add(struct hist *, uint64_t ns);

/* The smallest value that at least `percent` of those added do not exceed (nearest rank), to one part in 1024, ns; 0
 * when empty.  The exact least and greatest value for 0 and 100. */
uint64_t hist_percentile(const struct hist *, double percent);
double hist_mean(const struct hist *);      /* ns; 0 when empty */
double hist_deviation(const struct hist *); /* of the population, ns */
/* The share of the values that do not exceed `ns`, 0..1. */
double hist_share(const struct hist *, uint64_t ns);

#endif
