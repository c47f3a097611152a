/* Rotary position embedding: the rule for the angles, and their tables on a device. */
#ifndef TANDEM_ENGINE_MODEL_ROPE_H
#define TANDEM_ENGINE_MODEL_ROPE_H

#include "engine/base/err.h"
#include "kernels/ops.h"

enum { ROPES_MAX = 2 }; /* different rules within one model */

enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3 };

struct rope {
    int rot; /* rotated features of a head; 0: none */
    double theta;
    enum rope_scaling scaling;
    double factor, low, high; /* llama3: low_freq_factor, high_freq_factor; linear: factor only */
    int old_len;              /* llama3: original_max_position_embeddings */
};

/* cos and sin (positions, rot / 2) f32 on the device; NULL where rot is 0. */
struct rope_table {
    float *cos, *sin;
};

/* The tables of n rules; close them also after an error. */
int rope_tables_open(const struct rope *, int n, struct dev *, int positions, struct rope_table out[ROPES_MAX],
                     struct err *);
void rope_tables_close(struct dev *, struct rope_table[ROPES_MAX]);

#endif
