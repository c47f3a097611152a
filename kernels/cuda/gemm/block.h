/* DT_BLOCK weights on the device: their packed form, shared by the packer (weight_block.cu) and the kernels.
 *
 * Outputs of one form are a run; a weight has a run for each part that differs from the one before. The columns of a
 * row are padded to a multiple of BLOCK_PAD, so that kernels never see a part of a tile; the padding's activations are
 * zeros. Eight columns c, c + 1 ... are stored as follows, in the row's first plane, and in a second one:
 *
 *   codes         bits   first plane                              second plane
 *   BLOCK_2       2      nibble j has c + j in its low half
 *                        and c + 4 + j in its high half
 *   BLOCK_4       4      byte j has c + j in its low nibble
 *                        and c + 4 + j in its high nibble
 *   BLOCK_TABLE   4      nibble j has c + j
 *   BLOCK_6       6      the low four bits as in BLOCK_4          the high two bits as in BLOCK_2
 *   BLOCK_8       8      byte j has the value of c + j
 *
 * BLOCK_4 (3 and 4 bits) and BLOCK_6 (5 and 6 bits) are for values that are code + zero; they unpack in a few
 * instructions, and the products with `zero` come from the sum of the activations. BLOCK_2 and BLOCK_TABLE look values
 * up (PRMT). BLOCK_8 is for the rest.
 *
 * Scales and minima keep the two levels of the source: the product as an f32 for each group would cost Q4_K (4.6 bits
 * a weight with f16 super groups) two bits a weight. The floats of the super groups are f16, bf16 or f32, the shortest
 * that is exact. A super group is a power of two of groups; where the source's is not, each group has its product. */
#ifndef TANDEM_KERNELS_CUDA_GEMM_BLOCK_H
#define TANDEM_KERNELS_CUDA_GEMM_BLOCK_H

#include "kernels/cuda/device.h"

namespace GPU_NAMESPACE {

enum { BLOCK_PAD = 128 };
enum block_codes { BLOCK_2, BLOCK_4, BLOCK_TABLE, BLOCK_6, BLOCK_8 };

/* How rows are packed, and where: row 0 of the three arrays. */
struct block_form {
    enum block_codes codes;
    enum dtype floats; /* of the super groups */
    bool minimum, sub_scale, sub_minimum;
    int zero;          /* of BLOCK_4 and BLOCK_6, else 0 */
    unsigned table[4]; /* of BLOCK_TABLE: sixteen int8; of BLOCK_2 the first word */
    int group_shift;   /* log2 of the columns of a group: 4 to 7 */
    int super_shift;   /* log2 of the groups of a super group */
    int n_groups, n_supers;
    size_t row_bytes, second; /* of the codes; where in them the second plane begins */
    const uint8_t *data;      /* (rows, row_bytes) */
    const void *scale;        /* (rows, n_supers) floats, or pairs of super scale and super minimum */
    const uint8_t *sub;       /* (rows, n_groups) bytes, or pairs of sub scale (int8) and sub minimum */
};

/* Outputs first .. end - 1 of a weight; the form's arrays begin at output `first`. */
struct block_run {
    int first, end;
    struct block_form form;
};

static inline int block_padded(int cols)
{
    return (cols + BLOCK_PAD - 1) / BLOCK_PAD * BLOCK_PAD;
}

/* f, from a later row of its run on. */
block_form block_from(const block_form &f, size_t row);

/* weight_pack for DT_BLOCK: NULL when out of memory or when a part is not valid. */
struct weight *block_pack(struct dev *, const struct weight_src *parts, int n_parts);

} // namespace GPU_NAMESPACE

#endif
