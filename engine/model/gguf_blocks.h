/* The quantised types of GGUF files: codes, scales and minima of each block, as DT_BLOCK has them (kernels/ops.h):
 *
 *     w = value[code] * scale - minimum        scale = super_scale * sub_scale, minimum = super_min * sub_min
 *
 * each operation rounded to f32, which gives the values of llama.cpp's and of the `gguf` package's dequantisers bit for
 * bit.  Layout of the blocks: ggml-org/ggml, src/ggml-common.h and ggml-quants.c. */
#ifndef TANDEM_ENGINE_MODEL_GGUF_BLOCKS_H
#define TANDEM_ENGINE_MODEL_GGUF_BLOCKS_H

#include "engine/files/gguf.h"

#include <stdbool.h>
#include <stdint.h>

/* What the blocks of a type have. */
struct block_layout {
    int bits;     /* codes are below 1 << bits */
    int elements; /* of a block, which has one super_scale */
    int group;    /* elements with one sub_scale */
    int bytes;    /* of a block */
    bool sub_scale, sub_min, super_min;
    int8_t value[256]; /* the first 1 << bits */
};

/* NULL: no quantised type.  The result stays. */
const struct block_layout *gguf_block_layout(enum ggml_type);

/* The scale of MXFP4's byte e for doubled values: 2^(e - 127) / 2, subnormal for the two smallest. */
float mxfp4_scale(uint8_t e);

/* Where the parts of one row go; NULL for those that the layout does not have. */
struct block_row {
    uint8_t *code;      /* [cols] */
    float *super_scale; /* [cols / elements] */
    float *super_min;   /* likewise */
    int8_t *sub_scale;  /* [cols / group] */
    uint8_t *sub_min;   /* likewise */
};

/* Reads a row of n blocks. */
void gguf_decode_row(enum ggml_type, const uint8_t *blocks, int n, struct block_row);

/* Rounds a row of n blocks of 32 finite floats to GGML_Q8_0 or GGML_Q4_0, as the `gguf` package does, bit for bit.
 * @return false: a block's scale is beyond the largest f16. */
bool gguf_quantise_row(enum ggml_type, const float *row, int n, uint8_t *blocks);

/* The same row as floats: out [n * elements]. */
void gguf_dequantise_row(enum ggml_type, const uint8_t *blocks, int n, float *out);

#endif
