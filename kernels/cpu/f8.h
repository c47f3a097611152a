/* fp8 weights in the cpu device: their packed form, shared by the packer and the kernels.
 *
 * In pairs of panels, 32 outputs; for each pair and each group of inputs (the whole row is one where there are none),
 * in the order of k, f32 [32]       the outputs' scales of this group u8 [n][32][4]  four inputs a word, zeros past the
 * last one: in the order 0, 2, 1, 3, so that every second byte makes two inputs side by side, as bf16 weights are so
 * that one pass over k reads one stream.  The same at every level. */
#ifndef TANDEM_KERNELS_CPU_F8_H
#define TANDEM_KERNELS_CPU_F8_H

#include "kernels/cpu/cpu.h"

enum { F8_SCALES = PAIR * sizeof(float), F8_WORDS = PAIR * 4 }; /* bytes of a group's scales, and of four inputs */

/* Inputs of group g. */
static inline int f8_columns(const struct weight *w, int g)
{
    if (!w->group) return w->cols;
    int left = w->cols - g * w->group;
    return left < w->group ? left : w->group;
}

/* Where group g of a pair begins. */
static inline size_t f8_group_at(const struct weight *w, int g)
{
    return (size_t)g * (F8_SCALES + (size_t)w->group * PAIR);
}

/* Bytes of a pair as bf16 weights are packed, whole words of four inputs. */
static inline size_t f8_wide_bytes(const struct weight *w)
{
    return (size_t)w->k_pad * PAIR * 2;
}

/* Where the code of input k of a group's output `lane` is, counted from the group's begin. */
static inline size_t f8_code_at(int lane, int k)
{
    return F8_SCALES + (size_t)(k / 4) * F8_WORDS + (size_t)(lane * 4 + (k % 4 == 1 ? 2 : k % 4 == 2 ? 1 : k % 4));
}

/* Row `row` of src as output `lane` (0..31) of the pair whose bytes begin at `pair`.  Any thread; the rows of a pair
 * touch different bytes. */
void f8_pack_row(const struct weight *w, uint8_t *pair, int lane, const struct weight_src *src, int row);
/* The values of output `lane`: out (cols). */
void f8_unpack_row(const struct weight *w, const uint8_t *pair, int lane, float *out);

#endif
