/* Rotary position embedding: the rule for the angles, and their tables on a device. */
#ifndef TANDEM_ENGINE_MODEL_ROPE_H
#define TANDEM_ENGINE_MODEL_ROPE_H

#include "engine/base/err.h"
#include "kernels/ops.h"

#include <stdbool.h>

enum { ROPES_MAX = 3 };        /* different rules within one model */
enum { ROPE_PAIRS_MAX = 512 }; /* rotated pairs of features in a head */

enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_LONGROPE, ROPE_DYNAMIC };

/* The fields that a rule does not use are 0, `attention` apart. */
struct rope {
    int rot; /* rotated features of a head; 0: none */
    double theta;
    enum rope_scaling scaling;
    double factor;
    double low, high;                /* llama3: low_freq_factor, high_freq_factor; yarn: beta_slow, beta_fast */
    bool truncate;                   /* yarn: the ramp begins and ends at whole pairs */
    int old_len;                     /* original_max_position_embeddings; dynamic: max_position_embeddings */
    int max_len;                     /* dynamic: the longest text, whose frequencies all texts beyond old_len have */
    double attention;                /* cos and sin are multiplied by it */
    float divide[2][ROPE_PAIRS_MAX]; /* longrope: divisors of the frequencies, up to old_len and beyond */
};

/* Texts of more tokens than this have other frequencies than shorter ones; 0: all have the same. */
static inline int rope_near_len(const struct rope *r)
{
    return r->scaling == ROPE_LONGROPE || r->scaling == ROPE_DYNAMIC ? r->old_len : 0;
}

/* cos and sin (rows, rot / 2) f32 on the device; NULL where rot is 0.  A model whose near_len is not 0 has near_len
 * rows for texts of up to near_len tokens, then a row for each position of longer ones. */
struct rope_table {
    float *cos, *sin;
};

/* The row of a table for the first token of a text of n tokens. */
static inline int rope_first_row(int near_len, int n)
{
    return near_len && n > near_len ? near_len : 0;
}

/* The tables of n rules; close them also after an error. */
int rope_tables_open(const struct rope *, int n, int near_len, struct dev *, int positions,
                     struct rope_table out[ROPES_MAX], struct err *);
void rope_tables_close(struct dev *, struct rope_table[ROPES_MAX]);

#endif
