/* nf4 weights in the cpu device: their packed form, shared by the packer and the kernels.
 *
 * In pairs of panels, 32 outputs; for each pair and each block of 64 inputs, in the order of k,
 *     f32 [32]       the outputs' scales of this block
 *     u32 [8][32]    eight inputs a word, the first in the low nibble: 64 inputs of 32 outputs
 * so that one pass over k reads one stream and a vector of sixteen words is sixteen outputs.  The same at every level.
 */
#ifndef TANDEM_KERNELS_CPU_NF4_H
#define TANDEM_KERNELS_CPU_NF4_H

#include "kernels/ops.h"

enum { NF4_BLOCK = 64, NF4_PAIR = 32, NF4_SCALES = NF4_PAIR * 4, NF4_BLOCK_BYTES = NF4_SCALES + NF4_PAIR * 32 };

static inline size_t nf4_pair_bytes(int cols)
{
    return (size_t)cols / NF4_BLOCK * NF4_BLOCK_BYTES;
}

/* Row `row` of src as output `lane` (0..31) of the pair whose bytes begin at `pair`.  Any thread; the rows of a pair
 * touch different bytes. */
void nf4_pack_row(uint8_t *pair, int lane, const struct weight_src *src, int row);
/* The values of output `lane`: out (cols). */
void nf4_unpack_row(const uint8_t *pair, int lane, int cols, float *out);

#endif
