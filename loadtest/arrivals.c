#include "loadtest/arrivals.h"

#include "kernels/rng.h"

#include <math.h>

const char *const arrival_names[ARRIVE_KINDS] = {"poisson", "gamma", "constant", "trace", "closed"};

/* uniform in (0, 1): never 0, so its logarithm is finite */
static double open_uniform(uint64_t stream, uint64_t *at)
{
    return ((double)(rng_in(stream, (*at)++) >> 11) + 0.5) * 0x1p-53;
}

static double normal(uint64_t stream, uint64_t *at)
{
    double r = sqrt(-2 * log(open_uniform(stream, at)));
    return r * cos(2 * 3.14159265358979323846 * open_uniform(stream, at));
}

double gamma_unit(uint64_t seed, uint64_t index, double shape)
{
    uint64_t stream = rng_at(seed, index), at = 0;
    double k = shape < 1 ? shape + 1 : shape, d = k - 1.0 / 3, c = 1 / sqrt(9 * d), v;
    for (;;) {
        double x = normal(stream, &at);
        v = 1 + c * x;
        if (v <= 0) continue;
        v = v * v * v;
        if (log(open_uniform(stream, &at)) < x * x / 2 + d - d * v + d * log(v)) break;
    }
    double g = d * v;
    if (shape < 1) g *= pow(open_uniform(stream, &at), 1 / shape);
    return g / shape;
}

static double gap(const struct arrivals *a)
{
    uint64_t at = 0;
    switch (a->kind) {
    case ARRIVE_POISSON: return -log(open_uniform(rng_at(a->seed, a->index), &at));
    case ARRIVE_GAMMA: return gamma_unit(a->seed, a->index, a->shape);
    default: return 1;
    }
}

/* With a ramp the rate at time t is rate * t / ramp, so t^2 * rate / (2 * ramp) mean gaps have passed: the unit process
 * is stretched by the inverse of that, which keeps Poisson arrivals Poisson. */
double arrivals_next(struct arrivals *a)
{
    a->unit += a->index || a->kind != ARRIVE_CONSTANT ? gap(a) : 0;
    a->index++;
    double at_full = a->rate * a->ramp / 2; /* mean gaps in the ramp */
    if (a->unit < at_full) return sqrt(2 * a->ramp * a->unit / a->rate);
    return a->ramp / 2 + a->unit / a->rate;
}
