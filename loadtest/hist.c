#include "loadtest/hist.h"

#include "engine/base/mem.h"

#include <math.h>

struct hist *hist_new(void)
{
    return mem_zalloc(sizeof(struct hist));
}

/* Values below 1024 have a bucket each; of greater ones the leading eleven bits choose it. */
static unsigned bucket_of(uint64_t ns)
{
    if (ns < HIST_PARTS) return (unsigned)ns;
    int octave = 63 - __builtin_clzll(ns) - 10; /* 0: 1024..2047 */
    if (octave >= HIST_OCTAVES) return HIST_BUCKETS - 1;
    return (unsigned)(octave + 1) * HIST_PARTS + (unsigned)((ns >> octave) - HIST_PARTS);
}

/* the middle of the bucket */
static uint64_t value_of(unsigned bucket)
{
    if (bucket < HIST_PARTS) return bucket;
    unsigned octave = bucket / HIST_PARTS - 1;
    uint64_t low = (uint64_t)(bucket % HIST_PARTS + HIST_PARTS) << octave;
    return low + ((uint64_t)1 << octave) / 2;
}

void hist_add(struct hist *h, uint64_t ns)
{
    if (!h->n || ns < h->min) h->min = ns;
    if (ns > h->max) h->max = ns;
    h->n++;
    h->sum += (double)ns;
    h->squares += (double)ns * (double)ns;
    h->count[bucket_of(ns)]++;
}

uint64_t hist_percentile(const struct hist *h, double percent)
{
    if (!h->n || percent <= 0) return h->min;
    if (percent >= 100) return h->max;
    uint64_t rank = (uint64_t)ceil(percent / 100 * (double)h->n - 1e-9), seen = 0;
    if (rank < 1) rank = 1;
    for (unsigned i = 0; i < HIST_BUCKETS; i++) {
        seen += h->count[i];
        if (seen < rank) continue;
        uint64_t v = value_of(i);
        return v < h->min ? h->min : v > h->max ? h->max : v;
    }
    return h->max;
}

double hist_mean(const struct hist *h)
{
    return h->n ? h->sum / (double)h->n : 0;
}

double hist_deviation(const struct hist *h)
{
    if (!h->n) return 0;
    double mean = hist_mean(h), variance = h->squares / (double)h->n - mean * mean;
    return variance > 0 ? sqrt(variance) : 0;
}

double hist_share(const struct hist *h, uint64_t ns)
{
    if (!h->n) return 0;
    uint64_t seen = 0;
    for (unsigned i = 0, last = bucket_of(ns); i <= last; i++) seen += h->count[i];
    return (double)seen / (double)h->n;
}
