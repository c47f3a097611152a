/* DT_BLOCK weights in the cpu device: their packed form, shared by the packer and the kernels.
 *
 * Codes are stored unsigned: a code u stands for u + zero, and in CODES_TABLE for table[u] + zero. Outputs are in pairs
 * of panels, 32 outputs. For each pair and each super group of columns, in the order of k:
 *     floats [32]             the outputs' super scales, f16, bf16 or f32: the shortest that is exact
 *     floats [32]             their super minima, if any
 *     i8 [groups][32]         sub scales, if any
 *     u8 [groups][32]         sub minima, if any
 *     padding to 64 bytes
 *     codes of the groups, in steps that a vector reads in lines of 64 bytes, [16 outputs][4 columns], for panel 0 and
 *     panel 1:
 *       - CODES_4, CODES_TABLE, 8 columns: a line, low nibbles columns 0..3 and high nibbles 4..7
 *       - CODES_5, 32 columns: a line of fifth bits, bit i for columns 4i .. 4i+3, then four lines of nibbles
 *       - CODES_6, 16 columns: a line of upper bits, bits 2i, 2i+1 for columns 4i .. 4i+3, then two lines of nibbles
 *       - CODES_8, 4 columns: a line
 *
 * The same at every level. Pairs of one form are a run; a pair whose outputs have different forms has one that fits all
 * (CODES_8, f32). */
#ifndef TANDEM_KERNELS_CPU_BLOCK_H
#define TANDEM_KERNELS_CPU_BLOCK_H

#include "kernels/cpu/cpu.h"

enum block_codes { CODES_4, CODES_TABLE, CODES_5, CODES_6, CODES_8, BLOCK_CODES };

struct block_form {
    enum block_codes codes;
    enum dtype floats; /* of super scales and minima */
    bool minimum, sub_scale, sub_minimum;
    uint8_t table[16];
    int zero;
    int group, n_groups, per_super; /* per_super: groups in a super group */
    size_t head, group_bytes;       /* of a super group: bytes before its codes, and of the codes of a group */
    size_t pair_bytes;
};

/* Pairs pair0 .. pair1 - 1, which begin at data + at. */
struct block_run {
    struct block_form form;
    int pair0, pair1;
    size_t at;
};

/* Columns of a step, and the bytes of its lines for both panels. */
static inline int codes_step(enum block_codes c)
{
    return c == CODES_5 ? 32 : 16;
}

static inline size_t codes_bytes(enum block_codes c)
{
    return c == CODES_5 ? 640 : c == CODES_6 ? 384 : c == CODES_8 ? 512 : 256;
}

static inline size_t float_bytes(enum dtype t)
{
    return t == DT_F32 ? 4 : 2;
}

/* Super group s of a pair. */
static inline size_t block_super_at(const struct block_form *f, int s)
{
    return (size_t)s * (f->head + (size_t)f->per_super * f->group_bytes);
}

/* Where sub scales and sub minima begin in a super group. */
static inline size_t block_subs_at(const struct block_form *f)
{
    return (size_t)PAIR * float_bytes(f->floats) * (f->minimum ? 2 : 1);
}

static inline size_t block_sub_mins_at(const struct block_form *f)
{
    return block_subs_at(f) + (f->sub_scale ? (size_t)f->per_super * PAIR : 0);
}

/* The run of a pair counted in w, which may be a slice. */
static inline const struct block_run *block_run_of(const struct weight *w, int pair)
{
    const struct block_run *r = w->runs;
    while (pair + w->pair0 >= r->pair1) r++;
    return r;
}

static inline const uint8_t *block_pair_of(const struct weight *w, const struct block_run *r, int pair)
{
    return w->data + r->at + (size_t)(pair + w->pair0 - r->pair0) * r->form.pair_bytes;
}

/* CODES_8 with f32 scales of each group: what few kinds of codes are expanded to for many rows. */
static inline struct block_form block_wide(const struct block_form *f)
{
    struct block_form wide = {.codes = CODES_8,
                              .floats = DT_F32,
                              .minimum = f->minimum,
                              .zero = f->zero,
                              .group = f->group,
                              .n_groups = f->n_groups,
                              .per_super = 1,
                              .head = (size_t)PAIR * 4 * (f->minimum ? 2 : 1),
                              .group_bytes = (size_t)PAIR * (size_t)f->group};
    wide.pair_bytes = (size_t)f->n_groups * (wide.head + wide.group_bytes);
    return wide;
}

/* Plans w's runs, which it allocates, and sizes. @return false when out of memory or when a part is not valid. */
bool block_plan(struct weight *w, const struct weight_src *parts, int n_parts);
/* Row `row` of src as output `lane` of a pair. Any thread; the rows of a pair touch different bytes. */
void block_pack_row(const struct weight *w, int pair, int lane, const struct weight_src *src, int row);
/* The values of output `lane` of a pair: out (cols), by input. */
void block_unpack_row(const struct weight *w, int pair, int lane, float *out);

#endif
