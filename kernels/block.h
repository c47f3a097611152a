/* The canonical form DT_BLOCK (struct weight_block): checking it, reading values, making it of int4. */
#ifndef TANDEM_KERNELS_BLOCK_H
#define TANDEM_KERNELS_BLOCK_H

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline int block_groups(const struct weight_src *s)
{
    return (s->cols - 1) / s->block->group + 1;
}

static inline int block_supers(const struct weight_src *s)
{
    return (s->cols - 1) / s->block->super + 1;
}

/* Of row r and group g, rounded to f32 as the format says. */
static inline float block_scale(const struct weight_src *s, int r, int g)
{
    const struct weight_block *b = s->block;
    float super = b->super_scale[(size_t)r * (size_t)block_supers(s) + (size_t)((int64_t)g * b->group / b->super)];
    return b->sub_scale ? super * (float)b->sub_scale[(size_t)r * (size_t)block_groups(s) + (size_t)g] : super;
}

/* 0 where there is no minimum. */
static inline float block_minimum(const struct weight_src *s, int r, int g)
{
    const struct weight_block *b = s->block;
    if (!b->super_min) return 0;
    float super = b->super_min[(size_t)r * (size_t)block_supers(s) + (size_t)((int64_t)g * b->group / b->super)];
    return b->sub_min ? super * (float)b->sub_min[(size_t)r * (size_t)block_groups(s) + (size_t)g] : super;
}

/* @return what is wrong with the form of s, as "bits are not 2 to 8"; NULL: nothing. Reads no codes. */
const char *block_error(const struct weight_src *s);
/* @return whether every code is below 1 << bits. */
bool block_codes_ok(const struct weight_src *s);
/* @return whether the inputs of the two parts' columns have the same order; any other type than DT_BLOCK has none. */
bool block_order_same(const struct weight_src *a, const struct weight_src *b);
/* @return whether the parts of a weight have one order, which is a permutation, or none; false when out of memory. */
bool block_order_ok(const struct weight_src *parts, int n_parts);
/* The values of row r: out (cols), by input. */
void block_row(const struct weight_src *s, int r, float *out);

/* A DT_I4 part as a DT_BLOCK one of the same values, to be stacked with others. Points into itself: not to be moved. */
struct block_of_i4 {
    struct weight_src src; /* borrows the rest */
    struct weight_block block;
    void *owned;
};
/* @return false when out of memory. */
bool block_from_i4(struct block_of_i4 *out, const struct weight_src *i4);
void block_of_i4_free(struct block_of_i4 *);

#ifdef __cplusplus
}
#endif

#endif
