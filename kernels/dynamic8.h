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

/* A map for kernels that compute codes.  Its entries are numbered so that those of a decade are q .. 2q - 1, q a power
 * of two: entry i of a map with signs is number i, of one without i + 1.  A value below 1 is then linear in the
 * mantissa of its number plus a half.  Rounded in f32, so a value within 1e-5 of its size of a boundary may be given to
 * either side. The tables are looked up by the low four bits of an index. */
enum { DYNAMIC8_CLASSES = 8 }; /* classes of magnitudes: 0; the decades; 1 */
struct dynamic8 {
    float bound[DYNAMIC8_CLASSES]; /* between classes i and i + 1 */
    float scale[16], shift[16];    /* by class: number = scale * magnitude + shift, rounded down */
    float low[16], high[16];       /* by class: its numbers */
    float slope[16], base[16]; /* by 127 + the exponent of the number plus a half: value = slope * mantissa + base */
    float first;               /* the number of entry 0 */
};

static inline void dynamic8_open(struct dynamic8 *t, bool with_signs)
{
    float entry[DYNAMIC8_UNSIGNED];
    int first = with_signs ? 0 : 1;
    double decade = 1e-6;
    dynamic8_entries(with_signs, entry);
    *t = (struct dynamic8){.first = (float)first};
    for (int i = 0; i < DYNAMIC8_CLASSES; i++, decade *= 10) {
        int q = (1 << i) << first; /* the first number above bound i */
        int kind = i + 1, exponent = (127 + i + first) & 15;
        bool one = kind == DYNAMIC8_CLASSES;
        t->bound[i] = dynamic8_between(entry[q - first - 1], entry[q - first]);
        t->scale[kind] = one ? 0 : (float)(q / 0.9 / decade);
        t->shift[kind] = one ? (float)q : (float)(q * (8 / 9.0));
        t->low[kind] = (float)q;
        t->high[kind] = one ? (float)q : (float)(2 * q - 1);
        t->slope[exponent] = one ? 0 : (float)(0.9 * decade);
        t->base[exponent] = one ? 1 : (float)(-0.8 * decade);
    }
    t->shift[0] = t->low[0] = t->high[0] = t->first;
}

#endif
