/* Packs nf4 weights from the canonical form (nf4.h). */
#include "kernels/cpu/nf4.h"

#include <string.h>

void nf4_pack_row(uint8_t *pair, int lane, const struct weight_src *src, int row)
{
    int blocks = src->cols / NF4_BLOCK;
    const uint8_t *from = (const uint8_t *)src->data + (size_t)row * (size_t)src->cols / 2;
    const char *scale = (const char *)src->scale + (size_t)row * (size_t)blocks * sizeof(float);
    for (int b = 0; b < blocks; b++, pair += NF4_BLOCK_BYTES) {
        memcpy(pair + lane * 4, scale + (size_t)b * sizeof(float), sizeof(float));
        uint8_t *to = pair + NF4_SCALES + lane * 4;
        for (int i = 0; i < NF4_BLOCK / 8; i++, to += NF4_PAIR * 4, from += 4)
            for (int k = 0; k < 4; k++) to[k] = (uint8_t)(from[k] << 4 | from[k] >> 4);
    }
}

void nf4_unpack_row(const uint8_t *pair, int lane, int cols, float *out)
{
    for (int k = 0; k < cols; k++) {
        const uint8_t *block = pair + (size_t)(k / NF4_BLOCK) * NF4_BLOCK_BYTES;
        uint8_t both = block[NF4_SCALES + k % NF4_BLOCK / 8 * (NF4_PAIR * 4) + lane * 4 + k % 8 / 2];
        float scale;
        memcpy(&scale, block + lane * 4, sizeof scale);
        out[k] = nf4_code[k % 2 ? both >> 4 : both & 15] * scale;
    }
}
