/* Dynamic (tree) quantisation to 8 bits, for the states of optimizers: Dettmers, Lewis, Shleifer and Zettlemoyer,
 * "8-bit Optimizers via Block-wise Quantization" (2021, arXiv:2110.02861), 2.1 to 2.2, with the values of bitsandbytes'
 * create_dynamic_map.
 *
 * A block of DYNAMIC8_BLOCK values has its largest magnitude in f32, and for each value a code: the number of the
 * nearest entry of a map to value / largest magnitude.  The map's positive entries are 0, 1 and, for each of the seven
 * decades below 1, the middles of 2^i equal parts (i = 0 .. 6, the most just below 1; without signs twice as many).  So
 * small values keep about as many digits as large ones.
 *
 * Codes ascend with the values.  With signs, code 127 + i is entry i, and 127 - i its negative, which the last entry,
 * 1, has none of.  Without signs the code is the number of the entry. */
#ifndef TANDEM_KERNELS_DYNAMIC8_H
#define TANDEM_KERNELS_DYNAMIC8_H

#include "kernels/num.h"

#include <math.h>
#include <stdbool.h>

enum {
    DYNAMIC8_BLOCK = 256,
    DYNAMIC8_ZERO = 127,     /* the code of 0 in a map with signs */
    DYNAMIC8_SIGNED = 129,   /* entries of a map with signs */
    DYNAMIC8_UNSIGNED = 256, /* of a map without */
};

/* The entries, ascending from 0 to 1.  @return how many. */
static inline int dynamic8_entries(bool with_signs, float entry[DYNAMIC8_UNSIGNED])
{
    static const double decade[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
    int n = 0;
    entry[n++] = 0;
    for (int i = 0; i < 7; i++) {
        int parts = with_signs ? 1 << i : 2 << i;
        for (int k = 0; k < parts; k++) entry[n++] = (float)((0.1 + 0.9 * (k + 0.5) / parts) * decade[i]);
    }
    entry[n++] = 1;
    return n;
}

/* Up to here a magnitude is rounded to the lower of two entries, above to the next. */
NUM_FN float dynamic8_between(float low, float high)
{
    return (low + high) * 0.5f;
}

/* The tables of a map for kernels that look codes up.  A magnitude's exponent and its seven highest bits of the
 * mantissa are the number of a bucket; at most one boundary between two entries lies in it. */
enum { DYNAMIC8_LEAST = (127 - 23) << 7, DYNAMIC8_BUCKETS = (23 << 7) + 1 };
struct dynamic8 {
    float value[256];                /* of each code */
    float middle[DYNAMIC8_UNSIGNED]; /* of entry i and the next; INFINITY for the last */
    uint8_t first[DYNAMIC8_BUCKETS]; /* the entry of the least magnitude in the bucket; of the first, 0 */
};

static inline void dynamic8_open(struct dynamic8 *t, bool with_signs)
{
    float entry[DYNAMIC8_UNSIGNED];
    int n = dynamic8_entries(with_signs, entry), at = 0;
    for (int i = 0; i < 256; i++) t->value[i] = t->middle[i] = INFINITY;
    for (int i = 0; i + 1 < n; i++) t->middle[i] = dynamic8_between(entry[i], entry[i + 1]);
    for (int i = 0; i < n && !with_signs; i++) t->value[i] = entry[i];
    for (int i = 0; i < n && with_signs; i++) {
        t->value[DYNAMIC8_ZERO + i] = entry[i];
        if (i <= DYNAMIC8_ZERO) t->value[DYNAMIC8_ZERO - i] = i ? -entry[i] : 0;
    }
    for (int b = 0; b < DYNAMIC8_BUCKETS; b++) {
        float least = b ? f32_from_bits((uint32_t)(DYNAMIC8_LEAST + b) << 16) : 0;
        while (least > t->middle[at]) at++;
        t->first[b] = (uint8_t)at;
    }
}

/* The number of the entry that is nearest to a magnitude of 0 to 1. */
static inline int dynamic8_nearest(const struct dynamic8 *t, float magnitude)
{
    int bucket = (int)(f32_bits(magnitude) >> 16) - DYNAMIC8_LEAST;
    int i = t->first[bucket < 0 ? 0 : bucket < DYNAMIC8_BUCKETS ? bucket : DYNAMIC8_BUCKETS - 1];
    return i + (magnitude > t->middle[i]);
}

#endif
