/* A histogram of a fixed number of buckets: for latencies and sizes, rendered as Prometheus' cumulative buckets.  The
 * bounds are a table of their own, so that many histograms share one.  No locks: used by its owner only. */
#ifndef TANDEM_BASE_HISTOGRAM_H
#define TANDEM_BASE_HISTOGRAM_H

#include <stdint.h>

enum { HISTOGRAM_BUCKETS = 24 };

/* Upper bounds, inclusive and ascending; terminated by 0; the bucket after the last bound is for larger values. */
typedef double histogram_bounds[HISTOGRAM_BUCKETS + 1];

struct histogram {
    uint64_t counts[HISTOGRAM_BUCKETS + 1]; /* per bucket, not cumulative */
    double sum;
};

static inline void histogram_add(struct histogram *h, const double *bounds, double value)
{
    int i = 0;
    while (bounds[i] > 0 && value > bounds[i]) i++;
    h->counts[i]++;
    h->sum += value;
}

static inline uint64_t histogram_count(const struct histogram *h)
{
    uint64_t n = 0;
    for (int i = 0; i <= HISTOGRAM_BUCKETS; i++) n += h->counts[i];
    return n;
}

#endif
