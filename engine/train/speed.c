#include "engine/train/speed.h"

#include <stdlib.h>
#include <string.h>

void speed_add(struct speed *s, double tokens_per_s)
{
    int64_t at = s->steps++ - SPEED_WARM_UP;
    if (at >= 0 && at < SPEED_STEPS) s->first[at] = tokens_per_s;
    s->last[s->steps % SPEED_STEPS] = tokens_per_s;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double v[SPEED_STEPS])
{
    double sorted[SPEED_STEPS];
    memcpy(sorted, v, sizeof sorted);
    qsort(sorted, SPEED_STEPS, sizeof *sorted, by_size);
    return (sorted[SPEED_STEPS / 2 - 1] + sorted[SPEED_STEPS / 2]) / 2;
}

double speed_ratio(const struct speed *s)
{
    double before = s->steps < SPEED_LEAST ? 0 : median(s->first);
    return before > 0 ? median(s->last) / before : 0;
}
