/* Counter-based random numbers: the value is a pure function of (seed, index), so a stream needs no state, can be
 * entered anywhere, and is the same on every device.  splitmix64's finaliser (Steele, Lea, Flood, OOPSLA 2014)
 * applied twice; good enough for sampling and shuffling, not for secrets. */
#ifndef TANDEM_KERNELS_RNG_H
#define TANDEM_KERNELS_RNG_H

#include "kernels/num.h"

NUM_FN uint64_t rng_mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* rng_at(seed, index) for many indices: stream is rng_mix(seed) */
NUM_FN uint64_t rng_in(uint64_t stream, uint64_t index)
{
    return rng_mix(stream ^ rng_mix(index + 0x632be59bd9b4e019u));
}

NUM_FN uint64_t rng_at(uint64_t seed, uint64_t index)
{
    return rng_in(rng_mix(seed), index);
}

/* uniform in [0, 1), 53 bits */
NUM_FN double rng_uniform(uint64_t seed, uint64_t index)
{
    return (double)(rng_at(seed, index) >> 11) * 0x1p-53;
}

#endif
