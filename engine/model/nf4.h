/* The arithmetic of nf4 with double quantisation, as bitsandbytes computes it for load_in_4bit, and its quant_state
 * text.
 *
 * A matrix is one array in row-major order.  Each block of 64 has absmax = max |x|; a weight is the number of
 * thresholds (midpoints of nf4_code) below x * (1 / absmax), two to a byte, the first in the high nibble.  The absmax
 * values are stored in 8 bits: after subtracting their mean, in blocks of 256, as the nearest of 256 values (the
 * "dynamic map") to x * (1 / max |x|).  (QLoRA, arXiv 2305.14314, section 3; dynamic map: arXiv 1511.04561; rounding as
 * in bitsandbytes 0.50, backends/default/ops.py.)
 *
 * Pure functions on the caller's memory, any thread. */
#ifndef TANDEM_ENGINE_MODEL_NF4_H
#define TANDEM_ENGINE_MODEL_NF4_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "kernels/num.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct weight_src;

enum { NF4_GROUP = 64, NF4_NEST = 256, NF4_MAP = 256 };

static inline size_t nf4_blocks(size_t n, size_t block)
{
    return (n + block - 1) / block;
}

/* w (n) finite; codes (ceil(n / 2)), absmax (ceil(n / 64)).  n need not be a multiple of the block or of 2. */
void nf4_quantize(const float *w, size_t n, uint8_t *codes, float *absmax);
/* out (n) = nf4_code[codes] * absmax of blocks of `block`, rounded to f32 */
void nf4_dequantize(const uint8_t *codes, const float *absmax, size_t block, size_t n, float *out);

void nf4_dynamic_map(float map[NF4_MAP]);
/* absmax (n) into q (n) and nested (ceil(n / 256)); @return the offset: their mean, summed in double.  (bitsandbytes
 * sums in f32 in a machine-dependent order, so its offset may differ by some ulp.  The offset is stored, so every
 * reader uses the same one.) */
float nf4_nest(const float *absmax, size_t n, uint8_t *q, float *nested);
/* absmax (n) = map[q] * nested + offset, each step rounded to f32; nested holds one scale per `block` values */
void nf4_unnest(const uint8_t *q, size_t n, const float map[NF4_MAP], const float *nested, size_t block, float offset,
                float *absmax);

/* A matrix as stored in a file; owns its arrays. */
struct nf4_matrix {
    int rows, cols;
    size_t blocks;  /* of 64, over the whole matrix */
    uint8_t *codes; /* (ceil(rows * cols / 2)) */
    uint8_t *q;     /* (blocks) absmax */
    float *nested;  /* (ceil(blocks / 256)) */
    float offset;
};

/* Quantises a float matrix on up to `threads` threads.  ERR_NOMEM; ERR_INVALID when a weight is not finite (the message
 * has row and column).  On an error *out is empty. */
int nf4_matrix_make(const struct weight_src *src, int threads, struct nf4_matrix *out, struct err *e);
void nf4_matrix_free(struct nf4_matrix *);

/* The same, to the canonical form that a device packs: DT_NF4, or DT_F32 of the rounded values when cols is not a
 * multiple of 64.  The scales went through the second quantisation, so serving this gives the same result as serving
 * the file.  The caller frees out->data and out->scale. */
int nf4_quantize_matrix(const struct weight_src *src, int threads, struct weight_src *out, struct err *e);

/* The content of X.quant_state.bitsandbytes__nf4, stored as JSON. */
struct nf4_state {
    int block;        /* 32 .. 4096, a power of two */
    int nested_block; /* likewise; 0: absmax is stored as f32 */
    float offset;
    enum dtype dtype; /* of the matrix before it was quantised */
    int64_t rows, cols;
};

/* text: n bytes from a file, untrusted */
int nf4_state_parse(const char *text, size_t n, struct nf4_state *s, struct err *e);
/* appends the text, byte for byte as Python's json.dumps writes it */
void nf4_state_print(const struct nf4_state *s, struct buf *out);

#endif
